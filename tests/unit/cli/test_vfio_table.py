"""The rows of reconcile-vfio-state's table that depend on what others have left or loaded, through the command line."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from driver_manager.cli.main import run
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import Owner, encode
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import KERNEL
from driver_manager.sandbox.scenarios import OLD
from tests.support.fakes.builders import DRIVER, PAUSED, PROFILE, journal, key
from tests.support.fakes.vfio_site import ONE, TWO, Site

JOURNAL = PROFILE.keys.journal
TO_MACHINES, TO_CONTAINERS = ["reconcile-vfio-state"], ["reconcile-driver-state"]


def test_a_node_that_another_run_has_is_left_to_it(native: Site, capfd: pytest.CaptureFixture[str]) -> None:
    pods = native.hand.cluster.store.list_objects("pods")[0]
    (metadata,) = (one["metadata"] for one in pods if one["metadata"]["name"] == native.hand.cluster.driver_pod())
    owner = Owner(f"{metadata['namespace']}/{metadata['name']}", metadata["uid"])
    native.annotate(JOURNAL, encode(journal(owner=owner, boot_id=native.hand.tree.boot_id)))
    before = native.untouched()
    assert run(TO_MACHINES) == ExitCode.OWNED_ELSEWHERE
    assert owner.pod in capfd.readouterr().err
    assert (native.untouched(), native.drivers) == (before, ("rebellions", "rebellions"))


def test_a_foreign_module_above_the_driver_is_refused(native: Site, capfd: pytest.CaptureFixture[str]) -> None:
    tree, before = native.hand.tree, native.untouched()
    module = tree.root / "foreign.ko"
    module.write_text(json.dumps({"version": ""}))
    assert fake_tools.insert(tree.root, "foreign", {"foreign": (module, ["rebellions"])}) == 0
    assert run(TO_MACHINES) == ExitCode.PREFLIGHT_FAILED
    assert "foreign module foreign uses the driver" in capfd.readouterr().err
    assert (native.untouched(), tree.driver_version) == (before, OLD)


def test_a_device_of_somebody_elses_driver_is_refused(native: Site, capfd: pytest.CaptureFixture[str]) -> None:
    before = native.untouched()
    (native.hand.tree.root / f"sys/bus/pci/devices/{TWO}/driver").unlink()
    native.bus.attach(TWO, "other", "other")
    assert run(TO_MACHINES) == ExitCode.PREFLIGHT_FAILED
    assert f"{TWO} is bound to other, which is not the driver of profile rebellions" in capfd.readouterr().err
    assert (native.untouched(), native.drivers) == (before, ("rebellions", "other"))


@pytest.mark.submission
def test_what_an_earlier_run_left_is_released_where_all_is_done(native: Site) -> None:
    toolkit = key("container-toolkit")
    native.label("true", toolkit)
    before = native.untouched()
    assert run(TO_MACHINES) == ExitCode.DONE
    dead = journal(boot_id=native.hand.tree.boot_id, labels={toolkit: "true"})
    native.label(PAUSED, toolkit)
    native.annotate(JOURNAL, encode(replace(dead, owner=Owner("rbln-system/gone", "gone"))))
    pods = set(native.hand.cluster.pods())
    assert run(TO_MACHINES) == ExitCode.DONE
    assert native.untouched() == before
    assert pods <= set(native.hand.cluster.pods()), "nobody left"
    assert native.drivers == ("vfio-pci", "vfio-pci")


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("value", ["true", "pre-installed"])
def test_the_hosts_own_driver_goes_as_well(native: Site, value: str) -> None:
    tree = native.hand.tree
    for path in (PROFILE.paths.state_file, PROFILE.paths.load_record):
        (tree.root / path.lstrip("/")).unlink()
    tree.add_driver("/", OLD)
    native.bus.add_vfio(KERNEL)
    native.label(value, DRIVER)
    before = native.untouched()
    assert run(TO_MACHINES) == ExitCode.DONE
    assert (native.drivers, tree.driver_version) == (("vfio-pci", "vfio-pci"), "not loaded")
    assert native.untouched() == before, "and the node is not labelled for a driver of the host"


@pytest.mark.submission
def test_virtual_functions_go_first_and_a_virtual_machines_pod_stays(native: Site) -> None:
    cluster, count = native.hand.cluster, native.hand.tree.root / f"sys/bus/pci/devices/{ONE}/sriov_numvfs"
    count.write_text("2\n")
    cluster.add_workload("tenant", app="tenant")
    cluster.add_workload("virt-launcher", app="web", resource="CA22_PT")
    assert run(TO_MACHINES) == ExitCode.DONE
    assert count.read_text() == "0\n"
    assert native.drivers == ("vfio-pci", "vfio-pci")
    assert {"tenant", "virt-launcher"} & set(cluster.pods()) == {"virt-launcher"}


@pytest.mark.submission
def test_unbound_devices_are_left_to_the_container_where_that_binds(bare: Site) -> None:
    before = bare.untouched()
    assert run([*TO_MACHINES, "--vfio-bind", "container"]) == ExitCode.DONE
    assert bare.drivers == ("", "")
    assert [bare.bus.read(one, "driver_override") for one in (ONE, TWO)] == ["vfio-pci", "vfio-pci"]
    assert bare.untouched() == before


@pytest.mark.submission
def test_what_vfio_has_by_its_ids_stays_there_on_the_way_back(bare: Site) -> None:
    bare.bus.attach(ONE, "vfio-pci", "vfio_pci")
    assert run(TO_MACHINES) == ExitCode.DONE
    assert bare.drivers == ("vfio-pci", "vfio-pci")
    assert run(TO_CONTAINERS) == ExitCode.DONE
    assert bare.drivers == ("vfio-pci", "")


@pytest.mark.parametrize(
    ("group", "code", "found"),
    [
        (
            "10",
            ExitCode.DONE,
            {"ok": True, "what": "2 device(s) can be bound to vfio"},
        ),
        ("", ExitCode.PREFLIGHT_FAILED, {"ok": False, "what": f"{ONE} has no IOMMU group"}),
    ],
)
def test_preflight_can_be_asked_whether_virtual_machines_could_have_the_devices(
    native: Site, group: str, code: ExitCode, found: dict[str, object], capfd: pytest.CaptureFixture[str]
) -> None:
    if not group:
        (native.hand.tree.root / f"sys/bus/pci/devices/{ONE}/iommu_group").unlink()
    version = native.version
    assert run(["preflight", "--mode", "vfio", "-o", "json"]) == code
    checks = {one["name"]: one for one in json.loads(capfd.readouterr().out)["checks"]}
    assert checks["devices"].items() >= found.items()
    assert "may patch nodes" in checks
    assert not any(name.endswith("for this kernel") for name in checks), "no driver follows"
    assert (native.version, native.drivers) == (version, ("rebellions", "rebellions"))
