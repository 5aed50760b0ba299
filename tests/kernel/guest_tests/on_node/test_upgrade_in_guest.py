"""The node tier's node on a kernel of its own: kubelet, images and deploy/ as there, modules and their device real.

Operands have the device open, so the kernel itself refuses to unload the driver before they have left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.kernel.guest_fixtures import DEVICE, STAND_INS, holders, module_fact
from tests.kernel.guest_node import WITHOUT_VARIABLE, driver_node
from tests.node.drivers import MODULE, Drivers
from tests.node.patience import wait_until

OPERANDS = ("device-plugin", "metrics-exporter")
WITH_DEVICE_OPEN = f"exec 3<{DEVICE}; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


@pytest.fixture
def drivers(guest_kernel: None) -> Iterator[Drivers]:
    """The driver, installed by the pods of deploy/, with operands that have its device open."""
    if WITHOUT_VARIABLE in os.environ:
        pytest.skip(os.environ[WITHOUT_VARIABLE])
    with driver_node() as installed:
        for name in OPERANDS:
            installed.add_operand(name, WITH_DEVICE_OPEN, is_privileged=True)
        wait_until(lambda: opened() == len(OPERANDS), "the operands have the device open")
        yield installed


def opened() -> int:
    """How often the device is open, as the kernel counts."""
    return int(module_fact(MODULE, "refcnt"))


def versions() -> set[str]:
    """Of the modules that are loaded."""
    return {module_fact(module, "version") for module in STAND_INS}


def uids(drivers: Drivers) -> set[str]:
    """Of the operands' pods."""
    return {pod["metadata"]["uid"] for name in OPERANDS for pod in drivers.running(name)}


def test_an_upgrade_swaps_the_kernels_modules_once_the_operands_have_left(drivers: Drivers) -> None:
    assert versions() == {drivers.version}
    assert DEVICE.is_char_device()
    before = uids(drivers)
    drivers.want(drivers.other_version())
    drivers.replace_pod()
    drivers.wait_serving()
    assert versions() == {drivers.version}
    assert holders("rebellions_core") == [MODULE]
    assert drivers.a_pod().restarts == 0, "the unload was refused before it succeeded"
    assert len(uids(drivers) - before) == len(OPERANDS)
    wait_until(lambda: opened() == len(OPERANDS), "the operands have the new driver's device open")
