"""The host's side of an observation, read from files alone; garbage is told, never believed and never a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import modules as module_tree
from driver_manager.adapters.host.files import boot_id
from driver_manager.adapters.host.pci import pci_devices, served_devices
from driver_manager.adapters.process.tools import Result
from driver_manager.domain import host_record
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host import Marker
from driver_manager.domain.journal import Journal, OldDriver
from driver_manager.domain.observation import Loader, Policy, Situation
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.steps import UnmountDriverRoot
from tests.support.fakes.builders import ASCEND, NEW_DIGEST, OLD_DIGEST, PROFILE, PROFILES, journal, observation
from tests.support.fakes.host_folders import KERNEL, Tree, load, mountinfo

PATHS = PROFILE.paths


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_bare_host_is_read(tree: Tree) -> None:
    found = tree.read()
    assert (found.boot_id, found.kernel_release, found.machine_id) == ("boot-1", KERNEL, "machine")
    assert (found.modules, found.digest, found.digest_problem, found.previous_source) == ({}, None, "", None)
    assert (found.root_mounts, found.artifacts, found.host_driver, found.source) == ((), (), "", None)


# digest


@pytest.mark.parametrize("text", [NEW_DIGEST, f"{NEW_DIGEST}\n", f"  {NEW_DIGEST} \n\n", "short", "d" * 256])
def test_one_line_is_the_digest(tree: Tree, text: str) -> None:
    tree.put(PATHS.state_file, text)
    assert (tree.read().digest, tree.read().digest_problem) == (text.strip(), "")


@pytest.mark.parametrize(
    "content", ["", "\n", "two words", "two\nlines", "d" * 257, "x" * 200_000, b"\x00\x01\x02", b"\xff\xfe\x00d"]
)
def test_garbage_in_the_state_file_is_a_problem_not_a_digest(tree: Tree, content: str | bytes) -> None:
    tree.put(PATHS.state_file, content)
    assert tree.read().digest is None
    assert PATHS.state_file in tree.read().digest_problem


def test_bytes_that_are_no_text_are_a_problem_not_a_digest(tree: Tree) -> None:
    tree.put(PATHS.state_file, b"\xff\xfe\xfd")
    assert tree.read().digest is None


def test_a_folder_in_the_state_files_place_is_a_problem(tree: Tree) -> None:
    (tree.root / PATHS.state_file.lstrip("/")).mkdir(parents=True)
    assert "Is a directory" in tree.read().digest_problem


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_no_file_in_the_state_files_place_stops_the_run(tree: Tree, kind: str) -> None:
    place = tree.root / PATHS.state_file.lstrip("/")
    if kind == "folder":
        place.mkdir(parents=True)
    else:
        place.parent.mkdir(parents=True)
        os.mkfifo(place)
    found = tree.read()
    assert found.digest is None
    assert found.digest_problem
    assert (f"{PATHS.state_file} is a folder" == found.unwritable.get(PATHS.state_file)) is (kind == "folder")


# load record


def with_record(tree: Tree, monkeypatch: pytest.MonkeyPatch, record: str | bytes) -> str:
    """The way back of a loaded driver whose root only the load record names."""
    offer(tree, monkeypatch, old="1.0", new="2.0")
    load(tree.root / "sys", "rebellions", version="1.0\n")
    tree.put(PATHS.load_record, record)
    return way_back(tree)


@pytest.mark.parametrize(
    ("body", "root"),
    [
        ({"bootId": "boot-1", "root": "/opt/old", "version": "1.0"}, "/opt/old"),
        ({"bootId": "boot-0", "root": "/opt/old", "version": "1.0"}, ""),
        ({"bootId": "boot-1", "root": "opt/old", "version": "1.0"}, ""),
        ({"bootId": "boot-1"}, ""),
        ([], ""),
        ("text", ""),
        (None, ""),
    ],
)
def test_a_load_record_counts_for_its_own_boot_only(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, body: object, root: str
) -> None:
    assert with_record(tree, monkeypatch, json.dumps(body)) == root


@pytest.mark.parametrize("content", ["", "{", b"\xff", "[" * 60_000])
def test_a_broken_load_record_is_none(tree: Tree, monkeypatch: pytest.MonkeyPatch, content: str | bytes) -> None:
    assert with_record(tree, monkeypatch, content) == ""


# mounts and artifacts


def test_stale_mounts_are_found_where_the_host_really_mounts_them(tree: Tree) -> None:
    (tree.root / "data/rbln").mkdir(parents=True)
    (tree.root / "run").mkdir()
    (tree.root / "run/rbln").symlink_to("/data/rbln")
    tree.put("/proc/1/mountinfo", mountinfo("/", "/data/rbln/driver", "/data/rbln/driver/dev", "/run/rbln/driver"))
    assert tree.read().root_mounts == ("/data/rbln/driver/dev", "/data/rbln/driver")


def test_mounts_come_last_mounted_first(tree: Tree) -> None:
    points = (PATHS.driver_root, f"{PATHS.driver_root}/dev", f"{PATHS.driver_root}/a", f"{PATHS.driver_root}/dev/shm")
    tree.put("/proc/1/mountinfo", mountinfo("/", *points))
    assert tree.read().root_mounts == tuple(reversed(points))


@pytest.mark.parametrize("target", ["/", "/run", "../..", "/usr", "/etc", "/var", "/var/lib/kubelet", "/opt"])
def test_a_driver_root_that_leads_to_a_folder_the_host_lives_in_is_refused(tree: Tree, target: str) -> None:
    for folder in ("run/rbln", "usr", "etc", "var/lib/kubelet", "opt"):
        (tree.root / folder).mkdir(parents=True, exist_ok=True)
    (tree.root / PATHS.driver_root.lstrip("/")).symlink_to(target)
    tree.put("/proc/1/mountinfo", mountinfo("/", "/run", "/var/lib/kubelet"))
    with pytest.raises(ConfigError, match="resolves to the system directory") as caught:
        tree.read()
    assert "Nothing was changed" in caught.value.remedy


def test_artifacts_are_those_that_are_there(tree: Tree) -> None:
    tree.put(PATHS.ready_marker, "")
    tree.put(PATHS.state_file, "d")
    assert set(tree.read().artifacts) == {PATHS.ready_marker, PATHS.state_file}


# host driver


@pytest.mark.parametrize(
    ("dep", "kernel", "found"),
    [
        ("updates/rebellions.ko.xz:\n", KERNEL, f"/lib/modules/{KERNEL}/updates/rebellions.ko.xz"),
        ("updates/rebellions.ko:\n", "5.15", ""),
        ("updates/rebellions_core.ko:\n", KERNEL, ""),
    ],
)
def test_a_host_installed_driver_is_one_in_the_running_kernels_own_tree(
    tree: Tree, dep: str, kernel: str, found: str
) -> None:
    tree.put(f"/lib/modules/{kernel}/modules.dep", dep)
    assert tree.read().host_driver == found


def test_the_hosts_tree_is_found_through_its_merged_usr_link(tree: Tree) -> None:
    tree.put(f"/usr/lib/modules/{KERNEL}/modules.dep", "rebellions.ko:\n")
    (tree.root / "lib").symlink_to("usr/lib")
    assert tree.read().host_driver == f"/lib/modules/{KERNEL}/rebellions.ko"


# devices


@pytest.mark.parametrize(
    ("vendor", "kind", "device", "name"),
    [
        ("0x1eff", "0x120000", "0x1220", "rebellions"),
        ("0x1EFF", "0x120000", "0x1220", "rebellions"),
        ("0x10de", "0x030200", "0x20b0", "nvidia"),
        ("0x19e5", "0x120000", "0xd802", "ascend"),
    ],
)
def test_a_device_belongs_to_one_profile(tree: Tree, vendor: str, kind: str, device: str, name: str) -> None:
    tree.pci("0000:01:00.0", vendor, kind, device)
    assert [profile.name for profile in PROFILES.values() if pci_devices(tree.roots, profile)] == [name]


@pytest.mark.parametrize(
    ("vendor", "kind", "device"),
    [
        ("0x1eff", "0x020000", "0x1220"),
        ("0x10de", "0x040300", "0x0fbb"),
        ("0x19e5", "0x120000", "0x0200"),
        ("0x8086", "0x120000", "0x1220"),
        ("garbage", "", ""),
    ],
)
def test_other_functions_and_vendors_are_no_accelerators(tree: Tree, vendor: str, kind: str, device: str) -> None:
    tree.pci("0000:01:00.0", vendor, kind, device)
    assert not any(pci_devices(tree.roots, profile) for profile in PROFILES.values())


def test_devices_are_listed_in_order_and_a_missing_bus_is_empty(tree: Tree) -> None:
    assert pci_devices(tree.roots, PROFILE) == ()
    for address in ("0000:02:00.0", "0000:01:00.0"):
        tree.pci(address, "0x1eff")
    (tree.root / "sys/bus/pci/devices/0000:03:00.0").mkdir()
    assert pci_devices(tree.roots, PROFILE) == ("0000:01:00.0", "0000:02:00.0")


@pytest.mark.parametrize(
    ("driver", "is_virtual", "is_served"),
    [
        ("rebellions", False, True),
        ("rebellions", True, True),
        ("", False, False),
        ("", True, False),
        ("vfio-pci", False, False),
        ("vfio-pci", True, False),
        ("pci-stub", False, False),
        ("nouveau", False, False),
    ],
)
def test_a_function_that_is_given_away_is_not_the_drivers_to_serve(
    tree: Tree, driver: str, is_virtual: bool, is_served: bool
) -> None:
    tree.pci("0000:01:00.0", "0x1eff")
    device = tree.root / "sys/bus/pci/devices/0000:01:00.0"
    if driver:
        (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    if is_virtual:
        (device / "physfn").symlink_to("../0000:00:00.0")
    profile = replace(PROFILE, modules=replace(PROFILE.modules, conflicting=("nouveau",)))
    assert served_devices(tree.roots, profile) == (("0000:01:00.0",) if is_served else ())
    assert pci_devices(tree.roots, PROFILE) == ("0000:01:00.0",)


def test_virtual_functions_of_nvidia_are_no_missing_devices(tree: Tree) -> None:
    nvidia = PROFILES["nvidia"]
    for address, is_virtual in (("0000:01:00.0", False), ("0000:01:00.4", True)):
        tree.pci(address, "0x10de", kind="0x030200")
        device = tree.root / "sys/bus/pci/devices" / address
        (device / "driver").symlink_to("../../../../bus/pci/drivers/nvidia")
        if is_virtual:
            (device / "physfn").symlink_to("../0000:01:00.0")
    assert served_devices(tree.roots, nvidia) == ("0000:01:00.0",)
    assert pci_devices(tree.roots, nvidia) == ("0000:01:00.0", "0000:01:00.4")


# markers


def test_a_marker_is_read_in_both_forms(tree: Tree) -> None:
    tree.put(ASCEND.paths.reboot_marker, '{"schema": 1, "reason": "recovery", "bootId": "b"}')
    assert tree.read(ASCEND).marker == Marker("recovery", "b")
    tree.put(ASCEND.paths.reboot_marker, "driver upgrade\n")
    assert tree.read(ASCEND).marker == Marker("upgrade", "")


def test_a_marker_that_cannot_be_read_is_none_and_says_why(tree: Tree) -> None:
    tree.put(ASCEND.paths.reboot_marker, "[1]")
    found = tree.read(ASCEND)
    assert (found.marker, "not a JSON object" in found.marker_problem) == (None, True)


def test_no_marker_is_none(tree: Tree) -> None:
    assert tree.read(ASCEND).marker is None
    assert tree.read().marker is None


# what cannot be read


@pytest.mark.parametrize("path", ["/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/osrelease", "/proc/1/mountinfo"])
def test_an_unreadable_proc_is_a_configuration_error_naming_the_file(tree: Tree, path: str) -> None:
    (tree.root / path.lstrip("/")).unlink()
    with pytest.raises(ConfigError, match=Path(path).name) as caught:
        tree.read()
    assert "/proc" in caught.value.remedy


def test_an_unreadable_sys_is_a_configuration_error(tree: Tree) -> None:
    (tree.root / "sys/module").rmdir()
    with pytest.raises(ConfigError, match="sys/module"):
        tree.read()
    assert boot_id(tree.roots) == "boot-1"


@pytest.mark.parametrize("fault", ["machine-id", "loop"])
def test_an_odd_host_is_read_or_a_configuration_error(tree: Tree, fault: str) -> None:
    if fault == "machine-id":
        (tree.root / "etc/machine-id").unlink()
        (tree.root / "etc/machine-id").mkdir()
    else:
        (tree.root / "run").symlink_to("/run")
    try:
        tree.read()
    except ConfigError as error:
        assert error.remedy  # noqa: PT017  # either way is fine, only no other exception


def test_loaded_modules_are_part_of_the_host(tree: Tree) -> None:
    load(tree.root / "sys", "rebellions", version="1.0\n")
    assert tree.read().modules["rebellions"].version == "1.0"


# the way back

OLD = journal(driver=OldDriver("1.0", "/opt/old", ("rebellions",)), record="run-1")


def offer(tree: Tree, monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Driver roots below /opt by name, each with a module of its version for this kernel."""
    for name in versions:
        tree.put(f"/opt/{name}/lib/modules/{KERNEL}/modules.dep", "rebellions.ko:\n")

    def run(argv: Sequence[str], **_: Any) -> Result:
        name = next((name for name in versions if f"/opt/{name}/" in argv[-1]), "")
        return Result(0, f"version: {versions.get(name, '')}\nvermagic: {KERNEL} SMP\n" if name else "", "")

    monkeypatch.setattr(module_tree, "run", run)


def way_back(tree: Tree, noted: Journal | None = None, **options: Any) -> str:
    """`noted` is what the run of the node's journal wrote on the host."""
    if noted is not None:
        tree.put(PATHS.run_record(noted.record), host_record.encode(host_record.of(noted)))
        options["journal"] = replace(noted, driver=OldDriver("1.0"))
    source = tree.read(driver_root="/opt/new", loads=True, **options).previous_source
    return source.root if source else ""


def test_the_loaded_driver_is_found_where_the_load_record_says(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tree, monkeypatch, old="1.0", new="2.0")
    load(tree.root / "sys", "rebellions", version="1.0\n")
    tree.put(PATHS.load_record, json.dumps({"bootId": "boot-1", "root": "/opt/old", "version": "1.0"}))
    assert way_back(tree) == "/opt/old"


def test_a_source_behind_a_link_is_known_to_be_what_is_mounted(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = Result(0, f"version: 1.0\nvermagic: {KERNEL} SMP\n", "")
    monkeypatch.setattr(module_tree, "run", lambda argv, **_: fits if argv[0] == "modinfo" else Result(0, "", ""))
    (tree.root / "var").mkdir()
    (tree.root / "var/run").symlink_to("/run")
    tree.put(f"{PATHS.driver_root}/lib/modules/{KERNEL}/modules.dep", "rebellions.ko:\n")
    tree.put("/proc/1/mountinfo", mountinfo("/", PATHS.driver_root))
    load(tree.root / "sys", "rebellions", version="0.9\n")
    facts = replace(tree.read(driver_root=f"/var{PATHS.driver_root}", loads=True), digest=OLD_DIGEST)
    found = plan(Situation.of(observation(host=facts), PROFILE, Policy(loader=Loader.MANAGER)))
    assert (facts.root_mounts, facts.previous_source) == ((PATHS.driver_root,), None)
    assert UnmountDriverRoot not in [type(step) for step in found.steps]


def test_a_root_that_offers_another_version_now_is_no_way_back(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tree, monkeypatch, old="1.5", new="2.0")
    load(tree.root / "sys", "rebellions", version="1.0\n")
    assert way_back(tree, OLD) == ""


def test_with_nothing_loaded_the_journal_knows_the_way_back(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tree, monkeypatch, old="1.0", new="2.0")
    assert way_back(tree) == ""
    assert way_back(tree, journal=OLD) == "", "a root that only the Node names"
    assert way_back(tree, OLD) == "/opt/old"


def test_after_a_boot_a_root_that_is_known_without_the_journal_may_offer_its_version(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tree, monkeypatch, old="1.0", new="2.0")
    assert way_back(tree, journal=replace(OLD, driver=OldDriver("2.0", "/opt/old"))) == "/opt/new"
    load(tree.root / "sys", "rebellions", version="1.5\n")
    assert way_back(tree, journal=replace(OLD, driver=OldDriver("2.0", "/opt/old"))) == ""


@pytest.mark.parametrize(
    "other", [{"boot_id": "boot-0"}, {"record": "run-2"}, {"driver": None}], ids=["boot", "run", "nothing"]
)
def test_a_record_of_another_run_or_boot_is_no_way_back(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    offer(tree, monkeypatch, old="1.0", new="2.0")
    tree.put(PATHS.run_record("run-1"), host_record.encode(host_record.of(replace(OLD, **other))))
    assert way_back(tree, journal=OLD) == ""


@pytest.mark.parametrize("garbage", ["", "null", "[]", "{", '{"schema":9}', '{"schema":1,"bootId":"boot-1"}'])
def test_a_broken_record_of_a_run_is_none(tree: Tree, monkeypatch: pytest.MonkeyPatch, garbage: str) -> None:
    offer(tree, monkeypatch, old="1.0", new="2.0")
    tree.put(PATHS.run_record("run-1"), garbage)
    assert way_back(tree, journal=OLD) == ""


@pytest.mark.parametrize("half", ["rebellions", "rebellions_core"])
def test_with_a_half_loaded_driver_the_journal_knows_the_way_back(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, half: str
) -> None:
    offer(tree, monkeypatch, old="1.0", new="2.0")
    load(tree.root / "sys", half, version="2.0\n")
    assert way_back(tree, OLD) == "/opt/old"


def test_the_files_that_ask_for_a_reboot_are_looked_at_where_the_profile_has_them(tree: Tree) -> None:
    paths = ASCEND.paths
    for path in paths.reboot_files():
        (tree.root / path.lstrip("/")).mkdir(parents=True)
    found = tree.read(ASCEND).unwritable
    assert {path: found.get(path) for path in (paths.reboot_marker, paths.reboot_wish)} == {
        paths.reboot_marker: f"{paths.reboot_marker} is a folder",
        paths.reboot_wish: f"{paths.reboot_wish} is a folder",
    }
    assert PROFILE.paths.reboot_files() == ()


def test_records_of_this_boot_that_the_journal_does_not_name_are_read(tree: Tree) -> None:
    named, left = (replace(OLD, record=f"{OLD.boot_id}:1:{pid}:9") for pid in (7, 8))
    before = replace(left, record="boot-0:1:9:9", boot_id="boot-0")
    for one in (named, left, before):
        tree.put(PATHS.run_record(one.record), host_record.encode(host_record.of(one)))
    tree.put(PATHS.run_record("garbage"), "{")
    tree.put(PATHS.run_record("another"), host_record.encode(host_record.of(left)))
    found = tree.read(driver_root="/opt/new", loads=True, journal=named)
    assert found.run_record == host_record.of(named)
    assert found.left_records == (host_record.of(left),)
