"""The node tier's node on a kernel of its own: kubelet, images and deploy/ as there, modules and their device real.

An operand has the device open, so the kernel itself refuses to unload the driver before it has left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.kernel.driver_roots import OLD_VERSION
from tests.kernel.guest_command import STATE
from tests.kernel.guest_fixtures import DEVICE, STAND_INS, DriverRoots, holders, modprobe, module_fact
from tests.kernel.guest_node import WITHOUT_VARIABLE, driver_node
from tests.node.drivers import MODULE, Drivers
from tests.node.patience import wait_until

OPERAND = "device-plugin"
WITH_DEVICE_OPEN = f"exec 3<{DEVICE}; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


@pytest.fixture
def drivers(guest_kernel: None, roots: DriverRoots) -> Iterator[Drivers]:
    """Another driver is loaded than the one that deploy/ wants, as its pod left it, and an operand uses it."""
    if WITHOUT_VARIABLE in os.environ:
        pytest.skip(os.environ[WITHOUT_VARIABLE])
    assert modprobe(roots["v1"], MODULE).status == 0
    with driver_node() as deployed:
        state = deployed.machine.namespaces.root / STATE.relative_to("/")
        state.parent.mkdir()
        state.write_text("old-digest\n")
        deployed.add_operand(OPERAND, WITH_DEVICE_OPEN, is_privileged=True)
        wait_until(is_open, "the operand has the device open")
        yield deployed


def is_open() -> bool:
    """Whether the device is open once, as the kernel counts."""
    return module_fact(MODULE, "refcnt") == "1"


def versions() -> set[str]:
    """Of the modules that are loaded."""
    return {module_fact(module, "version") for module in STAND_INS}


def test_an_upgrade_swaps_the_kernels_modules_once_the_operand_has_left(drivers: Drivers) -> None:
    assert versions() == {OLD_VERSION}
    (before,) = drivers.running(OPERAND)
    drivers.place_pod()
    drivers.wait_serving()
    assert versions() == {drivers.version} != {OLD_VERSION}
    assert holders("rebellions_core") == [MODULE]
    assert drivers.a_pod().restarts == 0, "the unload was refused before it succeeded"
    (after,) = drivers.running(OPERAND)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    wait_until(is_open, "the operand has the new driver's device open")
