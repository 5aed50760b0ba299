"""`reconcile-vfio-state` on the sandbox: through the command line, there and back; the plans are in test_plans.py."""

from __future__ import annotations

import json

import pytest

from driver_manager.domain.errors import ExitCode
from driver_manager.sandbox.host import KERNEL
from driver_manager.sandbox.scenarios import OLD
from tests.support.fakes.builders import DRIVER, PROFILE
from tests.support.fakes.typed import Prompt, slow
from tests.support.fakes.vfio_site import ONE, TWO, Site

RECORD = PROFILE.paths.bindings.lstrip("/")
TO_MACHINES, TO_CONTAINERS = "reconcile-vfio-state", "reconcile-driver-state"
ON_VFIO = ("vfio-pci", "vfio-pci")


@slow
def test_to_virtual_machines_and_back(native: Site, prompt: Prompt) -> None:
    before, cluster, tree = native.untouched(), native.hand.cluster, native.hand.tree
    cluster.add_workload("tenant", app="tenant")
    cluster.add_workload("virt-launcher", app="web", resource="CA22_PT")
    assert "decision: switch" in prompt.output(f"{TO_MACHINES} --dry-run")
    assert native.drivers == ("rebellions", "rebellions"), "and nothing was done"
    assert "the devices are on vfio" in prompt.errors(TO_MACHINES, code=ExitCode.DONE)
    assert (native.drivers, tree.driver_version, native.untouched()) == (ON_VFIO, "not loaded", before)
    assert {"tenant", "virt-launcher"} & set(cluster.pods()) == {"virt-launcher"}
    noted = json.loads((tree.root / RECORD).read_text())
    assert noted["devices"] == [{"address": one, "driver": "rebellions"} for one in (ONE, TWO)]
    version = native.version
    assert (prompt(TO_MACHINES).code, native.version) == (ExitCode.DONE, version), "all are on vfio already"
    assert prompt(TO_CONTAINERS).code == ExitCode.DONE
    assert (native.drivers, native.bus.read(ONE, "driver_override")) == (("", ""), "")
    assert not (tree.root / RECORD).exists()
    assert native.untouched() == before


@slow
def test_a_virtual_machine_keeps_its_device_is_shown_and_is_named_on_the_way_back(bare: Site, prompt: Prompt) -> None:
    before, pods = bare.untouched(), bare.hand.cluster.pods()
    assert (prompt(TO_MACHINES).code, bare.drivers, bare.untouched()) == (ExitCode.DONE, ON_VFIO, before)
    assert [name for name in pods if name not in bare.hand.cluster.pods() and "driver" not in name] == []
    bare.bus.hold_group("10", 4711, "web")
    assert prompt(TO_MACHINES).code == ExitCode.DONE
    holder = "qemu-system-x86 (pid 4711) of VM web has /dev/vfio/10 open"
    assert holder in prompt.errors(TO_CONTAINERS, code=ExitCode.DRIVER_BUSY)
    assert bare.drivers == ON_VFIO, "never unbound while a process has it"
    bare.label("vm-passthrough")
    assert prompt(TO_CONTAINERS).code == ExitCode.DONE
    assert bare.drivers == ON_VFIO, "and not where the node is for virtual machines"
    found = prompt.shows("status", "status")
    assert (found["state"], found["why"]) == ("ready", "2 device(s) on vfio, for virtual machines")
    assert (found["mode"], found["next"]["decision"]) == ("vfio", "on-vfio")
    first, second = found["host"]["functions"]
    assert (first["address"], first["driver"], first["iommuGroup"]) == (ONE, "vfio-pci", "10")
    assert (first["holders"], second["holders"]) == ([holder], [])
    out = prompt.output("status")
    assert "mode vfio" in out
    assert f"{ONE} driver vfio-pci, kept for vfio-pci, IOMMU group 10; qemu-system-x86 (pid 4711) of VM web" in out


def test_virtual_functions_go_before_the_binding(native: Site, prompt: Prompt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VFIO_BIND", "container")
    count = native.hand.tree.root / f"sys/bus/pci/devices/{ONE}/sriov_numvfs"
    count.write_text("2\n")
    assert (prompt(TO_MACHINES).code, count.read_text()) == (ExitCode.DONE, "0\n")
    assert (native.drivers, native.hand.tree.driver_version) == (("", ""), "not loaded")
    assert [native.bus.read(one, "driver_override") for one in (ONE, TWO)] == ["vfio-pci", "vfio-pci"]


def test_a_stuck_unbind_is_named_and_nothing_is_written(bare: Site, prompt: Prompt) -> None:
    bare.bus.hold_group("10", 4711, "web")
    before = bare.untouched()
    code, _, err = prompt(TO_MACHINES)
    assert (code, f"the unbind of {ONE} is stuck, because it is in use" in err) == (ExitCode.DRIVER_BUSY, True)
    assert (bare.drivers, bare.bus.read(TWO, "driver_override"), bare.untouched()) == (("", ""), "", before)


ROWS = {
    "no device": (ExitCode.DONE, "no device of profile rebellions is on the PCI bus"),
    "no group": (ExitCode.PREFLIGHT_FAILED, f"{ONE} has no IOMMU group"),
    "no module": (ExitCode.PREFLIGHT_FAILED, f"no vfio module for {ONE}"),
    "shared": (ExitCode.PREFLIGHT_FAILED, "IOMMU group 10 is shared with 0000:c1:01.0 (e1000)"),
    "foreign driver": (ExitCode.PREFLIGHT_FAILED, f"{TWO} is bound to other, which is not the driver of profile"),
}


def prepare(row: str, native: Site) -> None:
    tree = native.hand.tree
    devices = tree.root / "sys/bus/pci/devices"
    match row:
        case "no device":
            for address in (ONE, TWO):
                (devices / address / "vendor").write_text("0xffff\n")
        case "no group":
            (devices / ONE / "iommu_group").unlink()
        case "no module":
            for name in ("modules.alias", "modules.dep"):
                (tree.root / "lib/modules" / KERNEL / name).write_text("")
        case "shared":
            native.bus.add("0000:c1:01.0", vendor="8086", kind="020000", group="10", driver="e1000")
        case "foreign driver":
            (devices / TWO / "driver").unlink()
            native.bus.attach(TWO, "other", "other")


@pytest.mark.parametrize("row", ROWS)
def test_an_impossible_request_is_reported_and_nothing_is_changed(native: Site, row: str, prompt: Prompt) -> None:
    prepare(row, native)
    before, drivers = native.untouched(), native.drivers
    code, _, err = prompt(f"{TO_MACHINES} --profile rebellions")
    assert (code, ROWS[row][1] in err) == (ROWS[row][0], True), err
    assert (native.untouched(), native.drivers, native.hand.tree.driver_version) == (before, drivers, OLD)


@slow
def test_the_hosts_own_driver_goes_as_well(native: Site, prompt: Prompt) -> None:
    tree = native.hand.tree
    for path in (PROFILE.paths.state_file, PROFILE.paths.load_record):
        (tree.root / path.lstrip("/")).unlink()
    tree.add_driver("/", OLD)
    native.bus.add_vfio(KERNEL)
    native.label("pre-installed", DRIVER)
    before = native.untouched()
    assert (prompt(TO_MACHINES).code, native.drivers, tree.driver_version) == (ExitCode.DONE, ON_VFIO, "not loaded")
    assert native.untouched() == before, "and the node is not labelled for a driver of the host"


@pytest.mark.parametrize("has_group", [True, False])
def test_plan_and_preflight_say_whether_vfio_could_have_devices(native: Site, has_group: bool, prompt: Prompt) -> None:
    if not has_group:
        prepare("no group", native)
    version = native.version
    code, out, _ = prompt("preflight --mode vfio -o json")
    checks = {one["name"]: one for one in json.loads(out)["checks"]}
    what = "2 device(s) can be bound to vfio" if has_group else f"{ONE} has no IOMMU group"
    assert (checks["devices"]["ok"], checks["devices"]["what"]) == (has_group, what)
    assert (code, "may patch nodes" in checks) == (ExitCode.DONE if has_group else ExitCode.PREFLIGHT_FAILED, True)
    assert not any(name.endswith("for this kernel") for name in checks), "no driver follows"
    if has_group:
        found = prompt.shows("plan", "plan --mode vfio")
        assert found["decision"] == "switch"
        assert [step["step"] for step in found["steps"]][-3:] == ["LoadVfio", "BindToVfio", "GiveBack"]
    assert (native.version, native.drivers) == (version, ("rebellions", "rebellions"))
