"""The node tier's node on a kernel of its own: kubelet, images and deploy/ as there, modules and their device real.

Operands have the device open, so the kernel itself refuses to unload the driver before they have left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.kernel.guest_fixtures import DEVICE, STAND_INS, holders, module_fact
from tests.kernel.guest_node import WITHOUT_VARIABLE, driver_node, node_states
from tests.node.bystanders import Bystanders, holding_device, is_disturbed, last_words, wait_retried
from tests.node.drivers import MODULE, Drivers
from tests.node.patience import wait_until

pytestmark = pytest.mark.usefixtures("guest_kernel_of_module")

OPERANDS = ("device-plugin", "metrics-exporter")
WITH_DEVICE_OPEN = f"exec 3<{DEVICE}; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


@pytest.fixture(scope="module")
def installed(guest_kernel_of_module: None) -> Iterator[Drivers]:
    """The driver, installed once by the pods of deploy/."""
    if WITHOUT_VARIABLE in os.environ:
        pytest.skip(os.environ[WITHOUT_VARIABLE])
    with driver_node() as drivers:
        yield drivers


@pytest.fixture
def drivers(installed: Drivers) -> Drivers:
    """The driver, ready, with operands that have its device open."""
    there = installed.operand_names()
    for name in OPERANDS:
        if name not in there:
            installed.add_operand(name, WITH_DEVICE_OPEN, is_privileged=True)
    installed.wait_serving()
    wait_until(lambda: opened() == len(OPERANDS), "the operands have the device open")
    return installed


def opened() -> int:
    """How often the device is open, as the kernel counts."""
    return int(module_fact(MODULE, "refcnt"))


def versions() -> set[str]:
    """Of the modules that are loaded."""
    return {module_fact(module, "version") for module in STAND_INS}


def test_an_upgrade_swaps_the_kernels_modules_once_the_operands_have_left(drivers: Drivers) -> None:
    assert versions() == {drivers.version}
    assert DEVICE.is_char_device()
    before = Bystanders.of(drivers).operands
    assert len(before) == len(OPERANDS)
    drivers.want(drivers.other_version())
    drivers.replace_pod()
    drivers.wait_serving()
    assert versions() == {drivers.version}
    assert holders("rebellions_core") == [MODULE]
    assert drivers.a_pod().restarts == 0, "the unload was refused before it succeeded"
    after = Bystanders.of(drivers).operands
    assert len(after) == len(OPERANDS)
    assert not after & before
    wait_until(lambda: opened() == len(OPERANDS), "the operands have the new driver's device open")


def test_a_process_of_the_host_on_the_device_disturbs_nobody_and_keeps_the_driver(drivers: Drivers) -> None:
    present = Bystanders.of(drivers)
    drivers.want(drivers.other_version(), DEVICE_FREE_TIMEOUT="1s")
    with holding_device(drivers), node_states(drivers) as states:
        wait_until(lambda: opened() == len(OPERANDS) + 1, "the kernel counts the holder, too")
        drivers.replace_pod()
        wait_retried(drivers, 1)
        present.assert_there()
        said = last_words(drivers)
        assert opened() == len(OPERANDS) + 1
    assert not [node["metadata"] for node in states if is_disturbed(node)]
    assert said.startswith("exit 4: "), said
    assert "sleep" in said
    assert "nobody was disturbed" in said
    assert versions() == {present.version}
