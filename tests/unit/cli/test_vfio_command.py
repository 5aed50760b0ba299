"""`reconcile-vfio-state` on the sandbox: every row of its table through the command line, and the way back."""

from __future__ import annotations

import json

import pytest

from driver_manager.cli.main import run
from driver_manager.domain.errors import ExitCode
from driver_manager.sandbox.host import KERNEL
from driver_manager.sandbox.scenarios import OLD
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.vfio_site import ONE, TWO, WORKLOAD, Site

RECORD = PROFILE.paths.bindings.lstrip("/")


@pytest.mark.submission
@pytest.mark.shares(3)
def test_to_virtual_machines_and_back(native: Site, capfd: pytest.CaptureFixture[str]) -> None:
    before = native.untouched()
    native.hand.cluster.add_workload("tenant", app="tenant")
    assert run(["reconcile-vfio-state", "--dry-run"]) == ExitCode.DONE
    planned = capfd.readouterr().out
    assert "decision: switch" in planned
    assert native.drivers == ("rebellions", "rebellions"), "and nothing was done"
    assert run(["reconcile-vfio-state"]) == ExitCode.DONE
    said = capfd.readouterr().err
    assert "the devices are on vfio" in said
    assert native.drivers == ("vfio-pci", "vfio-pci")
    assert native.hand.tree.driver_version == "not loaded"
    assert native.untouched() == before
    assert "tenant" not in native.hand.cluster.pods()
    noted = json.loads((native.hand.tree.root / RECORD).read_text())
    assert noted["devices"] == [{"address": one, "driver": "rebellions"} for one in (ONE, TWO)]
    version = native.version
    assert run(["reconcile-vfio-state"]) == ExitCode.DONE
    assert native.version == version, "all are on vfio already: nothing is written"
    assert run(["reconcile-driver-state"]) == ExitCode.DONE
    assert native.drivers == ("", "")
    assert native.bus.read(ONE, "driver_override") == ""
    assert not (native.hand.tree.root / RECORD).exists()
    assert native.untouched() == before


@pytest.mark.submission
def test_devices_that_nobody_has_are_bound_and_no_pod_leaves(bare: Site) -> None:
    before, pods = bare.untouched(), bare.hand.cluster.pods()
    assert run(["reconcile-vfio-state"]) == ExitCode.DONE
    assert bare.drivers == ("vfio-pci", "vfio-pci")
    assert bare.untouched() == before
    assert [name for name in pods if name not in bare.hand.cluster.pods() and "driver" not in name] == []


@pytest.mark.submission
def test_the_container_after_us_binds_where_it_is_to(native: Site) -> None:
    assert run(["reconcile-vfio-state", "--vfio-bind", "container"]) == ExitCode.DONE
    assert native.drivers == ("", "")
    assert native.bus.read(ONE, "driver_override") == "vfio-pci"
    assert native.hand.tree.driver_version == "not loaded"


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_virtual_machine_keeps_its_device_and_is_named_on_the_way_back(
    bare: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["reconcile-vfio-state"]) == ExitCode.DONE
    bare.bus.hold_group("10", 4711, "web")
    assert run(["reconcile-vfio-state"]) == ExitCode.DONE
    capfd.readouterr()
    assert run(["reconcile-driver-state"]) == ExitCode.DRIVER_BUSY
    assert "qemu-system-x86 (pid 4711) of VM web has /dev/vfio/10 open" in capfd.readouterr().err
    assert bare.drivers == ("vfio-pci", "vfio-pci"), "never unbound while somebody has it"
    bare.label("vm-passthrough")
    assert run(["reconcile-driver-state"]) == ExitCode.DONE
    assert bare.drivers == ("vfio-pci", "vfio-pci"), "and not where the node is for virtual machines"


def test_a_stuck_unbind_is_named_and_nothing_is_written(bare: Site, capfd: pytest.CaptureFixture[str]) -> None:
    bare.bus.hold_group("10", 4711, "web")
    before = bare.untouched()
    assert run(["reconcile-vfio-state"]) == ExitCode.DRIVER_BUSY
    assert f"the unbind of {ONE} is stuck, because it is in use" in capfd.readouterr().err
    assert bare.drivers == ("", "")
    assert bare.bus.read(TWO, "driver_override") == ""
    assert bare.untouched() == before


@pytest.mark.submission
def test_what_is_mixed_is_finished_and_what_vfio_has_stays(native: Site) -> None:
    (native.hand.tree.root / f"sys/bus/pci/devices/{TWO}/driver").unlink()
    native.bus.attach(TWO, "vfio-pci", "vfio_pci")
    native.bus.hold_group("11", 4711, "web")
    assert run(["reconcile-vfio-state"]) == ExitCode.DONE
    assert native.drivers == ("vfio-pci", "vfio-pci")
    assert native.bus.read(TWO, "driver_override") == "", "it was never touched"


@pytest.mark.parametrize(
    ("row", "code", "said"),
    [
        ("no device", ExitCode.DONE, "no device of profile rebellions is on the PCI bus"),
        ("unwanted", ExitCode.STANDING_DOWN, f"is labelled {WORKLOAD}=container"),
        ("no group", ExitCode.PREFLIGHT_FAILED, f"{ONE} has no IOMMU group"),
        ("no module", ExitCode.PREFLIGHT_FAILED, f"no vfio module for {ONE}"),
        ("shared", ExitCode.PREFLIGHT_FAILED, "IOMMU group 10 is shared with 0000:c1:01.0 (e1000)"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_changed(
    native: Site, row: str, code: ExitCode, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    devices = native.hand.tree.root / "sys/bus/pci/devices"
    match row:
        case "no device":
            for address in (ONE, TWO):
                (devices / address / "vendor").write_text("0xffff\n")
        case "unwanted":
            native.label("container")
        case "no group":
            (devices / ONE / "iommu_group").unlink()
        case "no module":
            for name in ("modules.alias", "modules.dep"):
                (native.hand.tree.root / "lib/modules" / KERNEL / name).write_text("")
        case "shared":
            native.bus.add("0000:c1:01.0", vendor="8086", kind="020000", group="10", driver="e1000")
    before = native.untouched()
    assert run(["reconcile-vfio-state", "--profile", "rebellions"]) == code
    assert said in capfd.readouterr().err
    assert native.drivers == ("rebellions", "rebellions")
    assert native.hand.tree.driver_version == OLD
    assert native.untouched() == before


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_failure_before_the_unload_gives_everything_back(native: Site, capfd: pytest.CaptureFixture[str]) -> None:
    before = native.untouched()
    native.hand.tree.hold_device()
    assert run(["reconcile-vfio-state"]) == ExitCode.DRIVER_BUSY
    assert "the node was released" in capfd.readouterr().err
    assert native.untouched() == before
    assert native.drivers == ("rebellions", "rebellions")
    assert native.bus.read(ONE, "driver_override") == ""


@pytest.mark.submission
@pytest.mark.shares(3)
def test_after_the_unload_the_node_is_held_and_the_next_run_goes_on(
    native: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    before = native.untouched()
    native.bus.refused.add(TWO)
    assert run(["reconcile-vfio-state"]) == ExitCode.MODULE_FAILED
    said = capfd.readouterr().err
    assert f"{TWO} is not bound to vfio-pci: its driver is none" in said
    assert "the node stays paused, because its old driver is gone" in said
    assert native.untouched() != before
    native.bus.refused.clear()
    assert run(["reconcile-vfio-state"]) == ExitCode.DONE
    assert native.drivers == ("vfio-pci", "vfio-pci")
    assert native.untouched() == before


def test_plan_can_be_asked_for_the_mode_as_json(native: Site, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--mode", "vfio", "-o", "json"]) == ExitCode.DONE
    found = json.loads(capfd.readouterr().out)
    assert found["decision"] == "switch"
    assert [step["step"] for step in found["steps"]][-3:] == ["LoadVfio", "BindToVfio", "GiveBack"]
    assert native.drivers == ("rebellions", "rebellions")


@pytest.mark.submission
def test_status_shows_mode_group_driver_and_who_has_each_device(bare: Site, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["reconcile-vfio-state"]) == ExitCode.DONE
    bare.label("vm-passthrough")
    bare.bus.hold_group("10", 4711, "web")
    capfd.readouterr()
    assert run(["status", "-o", "json"]) == ExitCode.DONE
    found = json.loads(capfd.readouterr().out)
    assert (found["state"], found["why"]) == ("ready", "2 device(s) on vfio, for virtual machines")
    assert (found["mode"], found["next"]["decision"]) == ("vfio", "on-vfio")
    first, second = found["host"]["functions"]
    assert (first["address"], first["driver"], first["iommuGroup"]) == (ONE, "vfio-pci", "10")
    assert first["holders"] == ["qemu-system-x86 (pid 4711) of VM web has /dev/vfio/10 open"]
    assert second["holders"] == []
    assert run(["status"]) == ExitCode.DONE
    text = capfd.readouterr().out
    assert "mode vfio" in text
    assert f"{ONE} driver vfio-pci, kept for vfio-pci, IOMMU group 10; qemu-system-x86 (pid 4711) of VM web" in text
