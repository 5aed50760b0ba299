"""Devices go to virtual machines and come back: real vfio-pci, a real IOMMU group, the real API server on the host."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.host import pci as pci_bus
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.kubelet import create_operands
from tests.support.kernel.guest_command import (
    EDU_PCI_VENDOR,
    JOURNAL,
    RUN_TIMEOUT_S,
    Command,
    assert_given_back,
    old_driver,
)
from tests.support.kernel.guest_fixtures import DriverRoots, is_loaded, module_fact, say
from tests.support.kernel.guest_vfio import (
    BINDINGS,
    BUS,
    DEVICES,
    FREE,
    NATIVE,
    NEIGHBOUR,
    NEIGHBOURS_DRIVER,
    SHARED,
    VFIO,
    all_on,
    driver_of,
    drivers,
    give_neighbour_its_driver,
    group_of,
    machine,
    noted,
    override_of,
    write,
)
from tests.support.kernel.inside import SHARE_VARIABLE
from tests.support.selection import parsed

pytestmark = pytest.mark.usefixtures("guest_kernel")

TO_MACHINES, TO_CONTAINERS = "reconcile-vfio-state", "reconcile-driver-state"


@pytest.fixture
def edu(command: Command, bus: None) -> Command:
    """The command line on this node, whose accelerators are the devices behind the IOMMU."""
    return command.by_profile(pci_vendor=EDU_PCI_VENDOR)


KERNELS = ("write sys/bus/pci/", "run rmmod", "run modprobe")
"""What effects on devices and modules are called."""


def effects(record: Path) -> list[str]:
    return [str(json.loads(line)[1]) for line in record.read_text().splitlines()]


def on_devices(found: list[str]) -> list[int]:
    return [number for number, name in enumerate(found) if name.startswith(KERNELS)]


def version(command: Command) -> str:
    return str(command.node.read()["metadata"]["resourceVersion"])


def test_devices_go_to_virtual_machines_and_come_back_as_they_were(edu: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    assert drivers() == all_on(NATIVE)
    with contextlib.ExitStack() as stack:
        create_operands(stack, edu.api, edu.node, ("driver", "device-plugin"))
        labels = edu.node.labels()
        given = edu.run(TO_MACHINES)
        assert (given.code, drivers()) == (0, all_on(VFIO)), given.err
        assert not is_loaded(NATIVE)
        assert [Path(f"/dev/vfio/{group_of(one)}").is_char_device() for one in DEVICES] == [True] * 3
        assert noted() == all_on(NATIVE)
        assert edu.node.labels() == labels
        before = version(edu)
        again = edu.run(TO_MACHINES)
        assert (again.code, version(edu)) == (0, before), again.err
        with machine(FREE[0], "web") as user:
            assert user.uses() == EDU_PCI_VENDOR
        taken = edu.reconcile(roots["v2"])
        assert (taken.code, drivers()) == (0, all_on(NATIVE)), taken.err
        assert edu.node.labels() == labels
    assert module_fact(NATIVE, "version") == "2.0.1"
    assert [override_of(one) for one in DEVICES] == [""] * 3
    assert not BINDINGS.exists()
    assert_given_back(edu)


@pytest.mark.shares(3)
def test_a_device_that_a_process_has_is_never_unbound_and_the_process_is_named(
    edu: Command, roots: DriverRoots
) -> None:
    assert edu.run(TO_MACHINES).code == 0
    with machine(FREE[0], "web") as user:
        busy = edu.reconcile(roots["v2"], DEVICE_FREE_TIMEOUT="1s")
        assert busy.code == 4
        assert f"(pid {user.pid}) of VM web has /dev/vfio/{group_of(FREE[0])} open" in busy.err
        assert drivers() == all_on(VFIO)
        assert user.uses() == EDU_PCI_VENDOR
        assert edu.run(TO_MACHINES).code == 0, "those that are on vfio may be in use"
        assert_given_back(edu)
        waiting = edu.start(TO_CONTAINERS, DRIVER_ROOT=str(roots["v2"]), DEVICE_FREE_TIMEOUT="4m")
        wait_until(lambda: "VM web" in waiting.output(), "the run waits for it", RUN_TIMEOUT_S)
        assert user.uses() == EDU_PCI_VENDOR
    assert (waiting.end().code, drivers()) == (0, all_on(NATIVE))


@contextlib.contextmanager
def stuck_unbind(address: str) -> Iterator[None]:
    """An administrator takes the device from vfio while it is in use: that does not end before its user does."""
    argv = ["/bin/sh", "-c", f"echo {address} > {BUS}/drivers/{VFIO}/unbind"]
    process = subprocess.Popen(argv)
    wait_until(lambda: not driver_of(address), "the unbind has begun", RUN_TIMEOUT_S)
    yield
    assert process.wait(280) == 0


@pytest.mark.shares(3)
def test_an_unbind_that_is_stuck_is_named_and_the_next_run_binds_once_it_is_over(
    edu: Command, roots: DriverRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert edu.run(TO_MACHINES).code == 0
    with contextlib.ExitStack() as stack:
        # It is stuck for sure: waiting longer shows nothing more.
        stack.enter_context(monkeypatch.context()).setattr(pci_bus, "STALL_S", 2.0)
        user = stack.enter_context(machine(FREE[0], "web"))
        stack.enter_context(stuck_unbind(FREE[0]))
        before = edu.node.labels()
        stuck = edu.run(TO_MACHINES)
        assert stuck.code == 4
        assert f"the unbind of {FREE[0]} is stuck, because it is in use" in stuck.err
        assert f"(pid {user.pid}) of VM web" in stuck.err
        assert drivers() == {**all_on(VFIO), FREE[0]: ""}
        assert (edu.node.labels(), JOURNAL in edu.node.annotations()) == (before, False)
        back = edu.reconcile(roots["v2"], DEVICE_FREE_TIMEOUT="1s")
        assert (back.code, is_loaded(NATIVE)) == (4, False), "its modprobe would hang as well"
        assert f"(pid {user.pid}) of VM web" in back.err
        user.process.kill()
    done = edu.run(TO_MACHINES)
    assert (done.code, drivers()) == (0, all_on(VFIO)), done.err


def test_a_group_that_is_not_viable_is_refused_before_the_first_change(edu: Command, roots: DriverRoots) -> None:
    old_driver(roots)
    give_neighbour_its_driver()
    before = edu.node.labels(), edu.node.annotations(), edu.node.read()["spec"]
    refused = edu.run(TO_MACHINES)
    assert refused.code == 6
    assert f"IOMMU group {group_of(SHARED)} is shared with {NEIGHBOUR} ({NEIGHBOURS_DRIVER})" in refused.err
    assert (edu.node.labels(), edu.node.annotations(), edu.node.read()["spec"]) == before
    assert drivers() == all_on(NATIVE)
    assert [override_of(one) for one in DEVICES] == [""] * 3
    assert module_fact(NATIVE, "version") == "1.2.92"
    write(f"devices/{NEIGHBOUR}/driver/unbind", NEIGHBOUR)
    freed = edu.run(TO_MACHINES)
    assert (freed.code, drivers()) == (0, all_on(VFIO)), freed.err


@pytest.mark.shares(3)
def test_a_run_killed_at_its_effects_on_the_devices_is_finished_by_the_next(
    edu: Command, roots: DriverRoots, tmp_path: Path
) -> None:
    """Both ways, each killed before every effect of this share on devices and modules: override, unload, load, bind.

    The other effects, on files and on the Node, are what they are on any kernel: the kill sweep has them.
    """
    old_driver(roots)
    labels, record, root = edu.node.labels(), tmp_path / "effects", str(roots["v1"])
    assert edu.recorded(record, TO_MACHINES).code == 0
    there = on_devices(effects(record))
    assert edu.recorded(record, TO_CONTAINERS, DRIVER_ROOT=root).code == 0
    again = on_devices(effects(record))
    assert len(there) >= 6
    assert len(again) >= 5
    rounds = list(itertools.zip_longest(there, again, fillvalue=-1))
    for to_machines, to_containers in parsed(os.environ[SHARE_VARIABLE]).of(rounds):
        say(f"killed at effects {to_machines} and {to_containers}, of {there} and {again}")
        killed = edu.recorded(record, TO_MACHINES, kill_at=to_machines)
        assert killed.code == (-9 if to_machines >= 0 else 0), (to_machines, killed.err)
        done = edu.run(TO_MACHINES)
        assert (done.code, drivers(), noted()) == (0, all_on(VFIO), all_on(NATIVE)), (to_machines, done.err)
        assert_given_back(edu)
        killed = edu.recorded(record, TO_CONTAINERS, kill_at=to_containers, DRIVER_ROOT=root)
        assert killed.code == (-9 if to_containers >= 0 else 0), (to_containers, killed.err)
        done = edu.run(TO_CONTAINERS, DRIVER_ROOT=root)
        assert (done.code, drivers(), noted()) == (0, all_on(NATIVE), {}), (to_containers, done.err)
        assert [override_of(one) for one in DEVICES] == [""] * 3
        assert edu.node.labels() == labels
        assert_given_back(edu)
