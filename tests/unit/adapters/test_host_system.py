"""The host's part of an observation is read from files; effects are proved, and no mount of the host is touched."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import holders as host_holders
from driver_manager.adapters.host import modules as kmod
from driver_manager.adapters.host import pci as udev
from driver_manager.adapters.host import system as host_system
from driver_manager.adapters.host.holders import MOUNTS, in_host, is_of_a_kernel, why_not_unmounted
from driver_manager.adapters.host.pci import pci_devices, served_devices
from driver_manager.adapters.host.system import NODE_POLL_S, TURN_S, LinuxHost
from driver_manager.adapters.process.tools import NOT_FOUND, Result
from driver_manager.domain import host_record
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ConfigError, ModuleFailed, ModuleStuck, OwnedElsewhere
from driver_manager.domain.host import Health, Marker, PastFailure, RebootWish, encode_failure, encode_reboot_wish
from driver_manager.domain.journal import Journal, OldDriver, Owner
from driver_manager.domain.observation import Loader, Policy, Situation
from driver_manager.domain.profile import NodeMaker, Profile
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.steps import UnmountDriverRoot
from tests.support.fakes.builders import ASCEND, NEW_DIGEST, OLD_DIGEST, PROFILE, PROFILES, journal, observation, source
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.deadlines import soon
from tests.support.fakes.host_folders import KERNEL, Tree, load, mountinfo

PATHS = PROFILE.paths
ROOT = PATHS.driver_root
SOURCE = source("/opt/new", "2.0")
WISH = RebootWish("boot-0", "node-1", NEW_DIGEST, is_forced=True)
Patch = pytest.MonkeyPatch
SYSTEM_FOLDERS = ("/", "/run", "/usr", "/etc", "/var/lib/kubelet", "/opt")


def test_loaded_modules_and_artifacts_that_are_there_are_part_of_the_host(tree: Tree) -> None:
    found = tree.read()
    assert (found.boot_id, found.kernel_release, found.machine_id) == ("boot-1", KERNEL, "machine")
    assert (found.modules, found.digest, found.digest_problem, found.previous_source) == ({}, None, "", None)
    assert (found.root_mounts, found.artifacts, found.host_driver, found.source) == ((), (), "", None)
    assert (found.marker, found.failure, found.permanent) == (None, None, {})
    load(tree.root / "sys", "rebellions", version="1.0\n")
    tree.put("/proc/modules", "rebellions 1 0 [permanent], Live 0x0\ndrm 1 0 [permanent], Live 0x0\n")
    for path in (PATHS.ready_marker, PATHS.state_file):
        tree.put(path, "")
    found = tree.read()
    assert (found.modules["rebellions"].version, set(found.permanent)) == ("1.0", {"rebellions"})
    assert set(found.artifacts) == {PATHS.ready_marker, PATHS.state_file}
    nvidia = PROFILES["nvidia"]
    assert tree.read(nvidia).conflicting == ()
    load(tree.root / "sys", "nouveau")
    assert tree.read(nvidia).conflicting == ("nouveau",)


def test_one_line_is_the_digest_and_garbage_is_a_problem(tree: Tree) -> None:
    contents: list[tuple[str | bytes, str | None]] = [
        *((text, NEW_DIGEST) for text in (NEW_DIGEST, f"{NEW_DIGEST}\n", f"  {NEW_DIGEST} \n\n")),
        *((text, text) for text in ("short", "d" * 256)),
        *((text, None) for text in ("", "\n", "two words", "two\nlines", "d" * 257, "x" * 200_000)),
        *((content, None) for content in (b"\x00\x01\x02", b"\xff\xfe\x00d")),
    ]
    for content, digest in contents:
        tree.put(PATHS.state_file, content)
        found = tree.read()
        assert (found.digest, PATHS.state_file in found.digest_problem) == (digest, digest is None)


def test_what_is_no_file_in_the_state_files_place_is_a_problem(tree: Tree) -> None:
    place = tree.root / PATHS.state_file.lstrip("/")
    place.parent.mkdir(parents=True)
    for make, why, unwritable, take in (
        (os.mkdir, "Is a directory", f"{PATHS.state_file} is a folder", os.rmdir),
        (os.mkfifo, "not a regular file", None, os.unlink),
    ):
        make(place)
        found = tree.read()
        assert (found.digest, why in found.digest_problem) == (None, True)
        assert found.unwritable.get(PATHS.state_file) == unwritable
        take(place)


def test_mounts_are_found_where_the_host_really_mounts_them_the_last_first(tree: Tree) -> None:
    (tree.root / "data/rbln").mkdir(parents=True)
    (tree.root / "run").mkdir()
    (tree.root / "run/rbln").symlink_to("/data/rbln")
    points = [f"/data/rbln/driver{below}" for below in ("", "/dev", "/a", "/dev/shm")]
    tree.put("/proc/1/mountinfo", mountinfo("/", *points, ROOT))
    assert tree.read().root_mounts == tuple(reversed(points))


@pytest.mark.parametrize("target", [*SYSTEM_FOLDERS, "../..", "/var"])
def test_a_driver_root_that_leads_to_a_folder_the_host_lives_in_is_refused(tree: Tree, target: str) -> None:
    for folder in ("run/rbln", "usr", "etc", "var/lib/kubelet", "opt"):
        (tree.root / folder).mkdir(parents=True, exist_ok=True)
    (tree.root / ROOT.lstrip("/")).symlink_to(target)
    tree.put("/proc/1/mountinfo", mountinfo("/", "/run", "/var/lib/kubelet"))
    with pytest.raises(ConfigError, match="resolves to the system directory") as caught:
        tree.read()
    assert "Nothing was changed" in caught.value.remedy


@pytest.mark.parametrize(
    "mounted",
    [
        "pods/5f0c9f7c-0d5c-4d2e-9d57-2f7a7e0f0a11/volumes/kubernetes.io~empty-dir/v",
        "pods/5f0c9f7c-0d5c-4d2e-9d57-2f7a7e0f0a11/volume-subpaths/config/main/0",
        "plugins/kubernetes.io/csi/x.csi.example.com/0c4f/globalmount",
        "io.containerd.runtime.v2.task/k8s.io/0c4f/rootfs",
    ],
)
@pytest.mark.parametrize(
    "kubelet", ["/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet", "/data/driver/k"]
)
def test_a_driver_root_with_mounts_of_pods_in_it_is_refused(tree: Tree, kubelet: str, mounted: str) -> None:
    root = "/".join(kubelet.split("/")[:4])
    (tree.root / root.lstrip("/")).mkdir(parents=True)
    (tree.root / "run/rbln").mkdir(parents=True)
    (tree.root / ROOT.lstrip("/")).symlink_to(root)
    tree.put("/proc/1/mountinfo", mountinfo("/", f"{kubelet}/{mounted}"))
    with pytest.raises(ConfigError, match="has mounts of pods in it") as caught:
        tree.read()
    assert "Nothing was changed" in caught.value.remedy


def test_a_host_installed_driver_is_one_in_the_running_kernels_own_tree(tmp_path: Path) -> None:
    rows = (
        ("lib", "updates/rebellions.ko.xz:\n", KERNEL, f"/lib/modules/{KERNEL}/updates/rebellions.ko.xz"),
        ("usr/lib", "rebellions.ko:\n", KERNEL, f"/lib/modules/{KERNEL}/rebellions.ko"),
        ("lib", "updates/rebellions.ko:\n", "5.15", ""),
        ("lib", "updates/rebellions_core.ko:\n", KERNEL, ""),
    )
    for number, (lib, dep, kernel, found) in enumerate(rows):
        tree = Tree(tmp_path / str(number))
        tree.put(f"/{lib}/modules/{kernel}/modules.dep", dep)
        if lib != "lib":
            (tree.root / "lib").symlink_to(lib)
        assert tree.read().host_driver == found, f"row {number}"


def test_a_device_belongs_to_one_profile_or_is_no_accelerator_and_they_are_listed_in_order(tree: Tree) -> None:
    assert pci_devices(tree.roots, PROFILE) == (), "there is no bus"
    for vendor, kind, device, profiles in (
        ("0x1eff", "0x120000", "0x1220", ["rebellions"]),
        ("0x1EFF", "0x120000", "0x1220", ["rebellions"]),
        ("0x10de", "0x030200", "0x20b0", ["nvidia"]),
        ("0x19e5", "0x120000", "0xd802", ["ascend"]),
        ("0x1eff", "0x020000", "0x1220", []),
        ("0x10de", "0x040300", "0x0fbb", []),
        ("0x19e5", "0x120000", "0x0200", []),
        ("0x8086", "0x120000", "0x1220", []),
        ("garbage", "", "", []),
    ):
        tree.pci("0000:01:00.0", vendor, kind, device)
        assert [profile.name for profile in PROFILES.values() if pci_devices(tree.roots, profile)] == profiles
    for address in ("0000:02:00.0", "0000:01:00.0"):
        tree.pci(address, "0x1eff")
    (tree.root / "sys/bus/pci/devices/0000:03:00.0").mkdir()
    assert pci_devices(tree.roots, PROFILE) == ("0000:01:00.0", "0000:02:00.0")


def test_a_function_that_is_given_away_is_not_the_drivers_to_serve(tmp_path: Path) -> None:
    rows = (
        ("rebellions", "rebellions", False, True),
        ("rebellions", "rebellions", True, True),
        ("rebellions", "", False, False),
        ("rebellions", "", True, False),
        ("rebellions", "vfio-pci", False, False),
        ("rebellions", "vfio-pci", True, False),
        ("rebellions", "pci-stub", False, False),
        ("rebellions", "nouveau", False, False),
        ("nvidia", "nvidia", False, True),
        ("nvidia", "nvidia", True, False),
    )
    for number, (name, driver, is_virtual, is_served) in enumerate(rows):
        tree = Tree(tmp_path / str(number))
        vendor, kind = {"nvidia": ("0x10de", "0x030200")}.get(name, ("0x1eff", "0x120000"))
        tree.pci("0000:01:00.0", vendor, kind)
        device = tree.root / "sys/bus/pci/devices/0000:01:00.0"
        if driver:
            (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
        if is_virtual:
            (device / "physfn").symlink_to("../0000:00:00.0")
        profile = replace(PROFILES[name], modules=replace(PROFILES[name].modules, conflicting=("nouveau",)))
        served = served_devices(tree.roots, profile)
        assert served.listed == (("0000:01:00.0",) if is_served else ()), (name, driver, is_virtual)
        assert served.physical == (() if is_virtual else served.listed)
        assert served.on_bus == {"0000:01:00.0": driver}
        assert pci_devices(tree.roots, profile) == ("0000:01:00.0",)


def test_a_bus_that_this_process_cannot_read_is_not_an_empty_one(tree: Tree) -> None:
    tree.pci("0000:01:00.0", "0x1eff", "0x120000")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        served = served_devices(tree.roots, PROFILES["rebellions"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert served.on_bus is None
    assert served_devices(tree.roots, PROFILES["rebellions"]).on_bus == {"0000:01:00.0": ""}


def test_a_marker_is_read_in_both_forms_and_one_that_cannot_be_says_why(tree: Tree) -> None:
    for text, marker, why in (
        ('{"schema": 1, "reason": "recovery", "bootId": "b"}', Marker("recovery", "b"), ""),
        ("driver upgrade\n", Marker("upgrade", ""), ""),
        ("[1]", None, "not a JSON object"),
    ):
        tree.put(ASCEND.paths.reboot_marker, text)
        found = tree.read(ASCEND)
        assert (found.marker, why in found.marker_problem) == (marker, True)


def test_a_kernel_that_changes_no_modules_or_refuses_unsigned_ones_is_known_by_its_switches(tree: Tree) -> None:
    assert not tree.read().are_modules_frozen
    for text, is_frozen in (("1\n", True), ("0\n", False), ("", False), ("2\n", False)):
        tree.put("/proc/sys/kernel/modules_disabled", text)
        assert tree.read().are_modules_frozen is is_frozen
    for path, text, is_enforced in (
        ("module/module/parameters/sig_enforce", "Y\n", True),
        ("module/module/parameters/sig_enforce", "N\n", False),
        ("kernel/security/lockdown", "none [integrity] confidentiality\n", True),
        ("kernel/security/lockdown", "none integrity [confidentiality]\n", True),
        ("kernel/security/lockdown", "[none] integrity confidentiality\n", False),
    ):
        tree.put(f"/sys/{path}", text)
        assert tree.read().enforces_signatures is is_enforced


def test_notes_of_a_failure_and_of_a_request_for_a_reboot_are_read_and_broken_ones_are_none(tree: Tree) -> None:
    past, paths = PastFailure("boot-1", "wish", 4, "busy", 7.5), ASCEND.paths
    broken: tuple[str | bytes, ...] = ("", "{", '{"schema": 9}', b"\xff\xfe", "[" * 60_000)
    for field, path, text, note in (
        ("failure", paths.failure_note, encode_failure(past), past),
        ("reboot_wish", paths.reboot_wish, encode_reboot_wish(WISH), WISH),
    ):
        assert getattr(tree.read(ASCEND), field) is None
        for content in (text, encode_failure(replace(past, boot_id="boot-0")), *broken):
            file = tree.put(path, content)
            assert getattr(tree.read(ASCEND), field) == (note if content == text else None)
        file.unlink()
        file.mkdir()
        assert getattr(tree.read(ASCEND), field) is None


def test_what_cannot_be_read_is_a_configuration_error_naming_the_file(tree: Tree) -> None:
    for path, remedy in (
        ("/proc/sys/kernel/random/boot_id", "/proc"),
        ("/proc/sys/kernel/osrelease", "/proc"),
        ("/proc/1/mountinfo", "/proc"),
        ("/sys/module", "(SYS_ROOT), and run as root"),
    ):
        file = tree.root / path.lstrip("/")
        file.rename(tree.root / "aside")
        with pytest.raises(ConfigError, match=f"cannot read .*{file.name}: No such file") as caught:
            tree.read()
        assert remedy in caught.value.remedy
        (tree.root / "aside").rename(file)
    (tree.root / "etc/machine-id").unlink()
    (tree.root / "etc/machine-id").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        tree.read()
    (tree.root / "run").symlink_to("/run")
    with pytest.raises(ConfigError, match="symbolic links"):
        tree.read()


def test_the_files_that_ask_for_a_reboot_are_looked_at_where_the_profile_has_them(tree: Tree) -> None:
    paths = ASCEND.paths.reboot_files()
    assert {ASCEND.paths.reboot_marker, ASCEND.paths.reboot_wish} <= set(paths)
    for path in paths:
        (tree.root / path.lstrip("/")).mkdir(parents=True)
    found = tree.read(ASCEND).unwritable
    assert {path: found.get(path) for path in paths} == {path: f"{path} is a folder" for path in paths}
    assert replace(PATHS, reboot_marker="").reboot_files() == ()


def test_records_of_this_boot_that_the_journal_does_not_name_are_read(tree: Tree) -> None:
    named, left = (replace(OLD, record=f"{OLD.boot_id}:1:{pid}:9") for pid in (7, 8))
    before = replace(left, record="boot-0:1:9:9", boot_id="boot-0")
    for one in (named, left, before):
        tree.put(PATHS.run_record(one.record), noted(one))
    tree.put(PATHS.run_record("garbage"), "{")
    tree.put(PATHS.run_record("another"), noted(left))
    found = tree.read(driver_root="/opt/new", loads=True, journal=named)
    assert (found.run_record, found.left_records) == (host_record.of(named), (host_record.of(left),))


# the way back: the roots /opt/old and /opt/new offer 1.0 and 2.0

OLD = journal(driver=OldDriver("1.0", "/opt/old", ("rebellions",)), record="run-1")
CORE = OldDriver("2.0", "/opt/old")


def noted(run: Journal) -> str:
    """What a run writes on the host."""
    return host_record.encode(host_record.of(run))


@pytest.fixture
def offered(tree: Tree, monkeypatch: Patch) -> Tree:
    for root in ("/opt/old", "/opt/new"):
        tree.put(f"{root}/lib/modules/{KERNEL}/modules.dep", "rebellions.ko:\n")

    def run(argv: Sequence[str], **_: Any) -> Result:
        version = next((text for root, text in (("/opt/old/", "1.0"), ("/opt/new/", "2.0")) if root in argv[-1]), "")
        return Result(0, f"version: {version}\nvermagic: {KERNEL} SMP\n" if version else "", "")

    monkeypatch.setattr(kmod, "run", run)
    return tree


def test_a_load_record_counts_for_its_own_boot_only(offered: Tree) -> None:
    load(offered.root / "sys", "rebellions", version="1.0\n")
    record = {"bootId": "boot-1", "root": "/opt/old", "version": "1.0"}
    others = (json.dumps(record | {"bootId": "boot-0"}), json.dumps(record | {"root": "opt/old"}))
    garbage = ('{"bootId": "boot-1"}', "[]", '"text"', "null", "", "{", b"\xff", "[" * 60_000)
    for body, root in ((json.dumps(record), "/opt/old"), *((body, "") for body in (*others, *garbage))):
        offered.put(PATHS.load_record, body)
        found = offered.read(driver_root="/opt/new", loads=True).previous_source
        assert (found.root if found else "") == root


@pytest.mark.parametrize(
    ("loaded", "record", "named", "root"),
    [
        ({}, None, None, ""),
        ({}, None, OLD, ""),
        ({}, noted(OLD), OLD, "/opt/old"),
        ({"rebellions": "2.0"}, noted(OLD), OLD, "/opt/old"),
        ({"rebellions_core": "2.0"}, noted(OLD), OLD, "/opt/old"),
        # A root that offers another version now.
        ({"rebellions": "1.5"}, noted(replace(OLD, driver=OldDriver("1.5", "/opt/old"))), OLD, ""),
        # After a boot a root that is known without the journal may offer its version.
        ({}, None, replace(OLD, driver=CORE), "/opt/new"),
        ({"rebellions": "1.5"}, None, replace(OLD, driver=CORE), ""),
        # Records of another boot or run, without a driver, and garbage.
        ({}, noted(replace(OLD, boot_id="boot-0")), OLD, ""),
        ({}, noted(replace(OLD, record="run-2")), OLD, ""),
        ({}, noted(replace(OLD, driver=None)), OLD, ""),
        *(({}, text, OLD, "") for text in ("", "null", "[]", "{", '{"schema":9}', '{"schema":1,"bootId":"boot-1"}')),
    ],
)
def test_the_way_back_is_what_a_run_of_this_boot_noted_on_this_host(
    offered: Tree, loaded: dict[str, str], record: str | None, named: Journal | None, root: str
) -> None:
    for name, version in loaded.items():
        load(offered.root / "sys", name, version=f"{version}\n")
    if record is not None:
        offered.put(PATHS.run_record("run-1"), record)
        # The Node does not name the root.
        named = replace(OLD, driver=OldDriver("1.0"))
    found = offered.read(driver_root="/opt/new", loads=True, journal=named).previous_source
    assert (found.root if found else "") == root


def test_a_source_behind_a_link_is_known_to_be_what_is_mounted(tree: Tree, monkeypatch: Patch) -> None:
    fits = Result(0, f"version: 1.0\nvermagic: {KERNEL} SMP\n", "")
    monkeypatch.setattr(kmod, "run", lambda argv, **_: fits if argv[0] == "modinfo" else Result(0, "", ""))
    (tree.root / "var").mkdir()
    (tree.root / "var/run").symlink_to("/run")
    tree.put(f"{ROOT}/lib/modules/{KERNEL}/modules.dep", "rebellions.ko:\n")
    tree.put("/proc/1/mountinfo", mountinfo("/", ROOT))
    load(tree.root / "sys", "rebellions", version="0.9\n")
    facts = replace(tree.read(driver_root=f"/var{ROOT}", loads=True), digest=OLD_DIGEST)
    found = plan(Situation.of(observation(host=facts), PROFILE, Policy(loader=Loader.MANAGER)))
    assert (facts.root_mounts, facts.previous_source) == ((ROOT,), None)
    assert UnmountDriverRoot not in [type(step) for step in found.steps]


class Machine(Tree):
    """A host whose modprobe, rmmod and umount are functions."""

    def __init__(self, root: Path, monkeypatch: Patch) -> None:
        super().__init__(root)
        self.clock = FakeClock()
        self.ran: list[list[str]] = []
        self.on_modprobe: Callable[[str], Result] = lambda _: Result(0, "", "")
        self.on_umount: Callable[[Sequence[str]], Result] = lambda _: Result(0, "", "")
        self.put(f"/opt/new/lib/modules/{KERNEL}/modules.dep", "")
        monkeypatch.setattr(kmod, "run", self.run)
        monkeypatch.setattr(host_system, "run", self.run)
        monkeypatch.setattr(udev, "_monitor", lambda: None)

    def run(self, argv: Sequence[str], **_: Any) -> Result:
        self.ran.append(list(argv))
        if argv[0] == "modprobe":
            return self.on_modprobe(argv[-1])
        if argv[0] == "umount":
            return self.on_umount(argv)
        if argv[0] == "rmmod":
            self.gone(argv[-1])
        return Result(0, "", "")

    def loaded(self, name: str, version: str = "2.0") -> None:
        load(self.root / "sys", name, version=f"{version}\n")

    def gone(self, name: str) -> None:
        folder = self.root / "sys/module" / name
        for entry in folder.iterdir():
            entry.rmdir() if entry.is_dir() else entry.unlink()
        folder.rmdir()

    def half(self, _: str) -> Result:
        """A modprobe that loads a dependency and fails."""
        self.loaded("rebellions_core")
        return Result(1, "", "modprobe: ERROR: could not insert")

    def system(self, profile: Profile = PROFILE) -> LinuxHost:
        return LinuxHost(self.roots, profile, self.clock)

    def waits(self, seconds: float, profile: Profile = PROFILE) -> bool:
        return self.system(profile).await_device_nodes(Deadline.after(seconds, self.clock.monotonic))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: Patch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_driver_is_loaded_if_it_is_there_in_its_version_then(machine: Machine) -> None:
    for there, why in (("", "but .* is not loaded"), ("1.0", "is loaded in version 1.0, not 2.0")):
        if there:
            machine.loaded("rebellions", there)
        with pytest.raises(ModuleFailed, match=why):
            machine.system().load(SOURCE, soon())
        assert list(machine.system().modules()) == (["rebellions"] if there else []), "what was there before stays"
    machine.gone("rebellions")

    def works(name: str) -> Result:
        machine.loaded(name)
        return Result(0, "", "")

    machine.on_modprobe = works
    machine.system().load(SOURCE, soon())
    assert list(machine.system().modules()) == ["rebellions"]


def test_a_failed_load_takes_back_what_it_left_and_nothing_else_and_names_what_is_stuck(machine: Machine) -> None:
    machine.loaded("rebellions_old", "1.0")
    machine.on_modprobe = machine.half
    with pytest.raises(ModuleFailed, match="could not insert"):
        machine.system().load(SOURCE, soon())
    assert ["rmmod", "--", "rebellions_core"] in machine.ran
    assert list(machine.system().modules()) == ["rebellions_old"]

    def hung(name: str) -> None:
        (machine.root / "sys/module" / name / "initstate").write_text("going\n")

    machine.gone = hung  # type: ignore[method-assign]  # an rmmod that hangs
    with pytest.raises(ModuleStuck, match="rebellions_core is stuck"):
        machine.system().load(SOURCE, Deadline.after(90.0, machine.clock.monotonic))


def test_modules_are_loaded_again_one_by_one_in_the_given_order(machine: Machine) -> None:
    machine.system().reload(source("/opt/new"), ("rebellions", "rebellions_peer"), soon())
    assert [argv[-1] for argv in machine.ran if argv[0] == "modprobe"] == ["rebellions", "rebellions_peer"]
    machine.on_modprobe = lambda name: Result(1, "", f"modprobe: FATAL: Module {name} not found")
    with pytest.raises(ModuleFailed, match="Module rebellions_peer not found"):
        machine.system().reload(source("/opt/new"), ("rebellions_peer",), soon())


def test_a_file_that_cannot_be_removed_or_written_is_reported(machine: Machine) -> None:
    (machine.root / "run/rbln/folder").mkdir(parents=True)
    with pytest.raises(ModuleFailed, match="cannot remove /run/rbln/folder on the host"):
        machine.system().remove("/run/rbln/folder")
    machine.system().remove("/run/rbln/absent")
    for name, mode in (("state", 0o644), ("secret", 0o600)):
        machine.system().write_text(f"/run/rbln/{name}", "d\n", is_secret=mode == 0o600)
        assert (machine.root / "run/rbln" / name).read_text() == "d\n"
        assert (machine.root / "run/rbln" / name).stat().st_mode & 0o777 == mode
    with pytest.raises(ConfigError):
        machine.system().write_text("/run/rbln/folder", "d")


def test_device_nodes_are_awaited_where_there_is_a_device_and_its_module_makes_them(machine: Machine) -> None:
    nvidia = PROFILES["nvidia"]
    machine.pci("0000:01:00.0", "0x10de", "0x030200")
    assert (machine.waits(5.0), machine.waits(5.0, nvidia), machine.clock.slept) == (True, True, [])
    assert not machine.waits(5.0, replace(nvidia, paths=replace(nvidia.paths, device_nodes_made_by=NodeMaker.MODULE)))
    machine.pci("0000:02:00.0", "0x1eff")
    assert not machine.waits(5.0)
    assert machine.clock.now == pytest.approx(1_010.0)
    assert set(machine.clock.slept) == {NODE_POLL_S}
    (machine.root / "dev").mkdir()
    machine.clock.after(1.1, (machine.root / "dev/rbln0").touch)
    assert machine.waits(15.0)
    assert machine.clock.now < 1_011.5


def test_the_probe_of_the_driver_root_is_run(machine: Machine, monkeypatch: Patch) -> None:
    machine.put("/opt/loop/lib/x", "")
    (machine.root / "opt/loop/usr").symlink_to("usr")
    for profile, root in ((PROFILE, "/opt/new"), (ASCEND, "/opt/new"), (PROFILE, "/opt/loop")):
        assert machine.system(profile).probe(root, soon()).health is Health.UNKNOWN, "no tool, no probe, no way to it"
    assert machine.ran == []
    path = machine.put(f"/opt/new/usr/bin/{PROFILE.probe.tool if PROFILE.probe else ''}", "")
    path.chmod(0o755)
    library = machine.put("/opt/new/usr/lib64/librbln-ml.so", "")
    seen: list[tuple[list[str], dict[str, str], float]] = []
    rows = (
        (Result(0, '{"devices": [{"name": "rbln0", "status": "normal"}]}', ""), Health.HEALTHY),
        (Result(1, "", "no device"), Health.UNHEALTHY),
        (Result(124, "", "no end"), Health.UNHEALTHY),
        (Result(NOT_FOUND, "", "not found"), Health.UNKNOWN),
    )

    def run(argv: Sequence[str], *, timeout_s: float, env: dict[str, str]) -> Result:
        seen.append((list(argv), env, timeout_s))
        return rows[len(seen) - 1][0]

    monkeypatch.setattr(host_system, "run", run)
    for _, health in rows:
        assert machine.system().probe("/opt/new/", Deadline.after(0.0, time.monotonic)).health is health
    call = ([str(path), "-j"], {"LD_PRELOAD": str(library)}, 20.0)
    assert seen == [call] * len(rows), "at least the probe's own timeout"


NO_MOUNT = ("Invalid argument", "Operation not permitted")
"""What umount2(2) answers root and others."""


@pytest.mark.parametrize("point", [*SYSTEM_FOLDERS, ""])
def test_a_mount_that_the_host_lives_in_is_never_unmounted(machine: Machine, point: str) -> None:
    with pytest.raises(ModuleFailed, match="it is a system directory of the host"):
        machine.system().unmount(point, soon())
    assert machine.ran == []


def test_a_busy_mount_is_detached_lazily(machine: Machine) -> None:
    machine.put("/proc/1/mountinfo", mountinfo("/", ROOT))

    def busy_at_first(argv: Sequence[str]) -> Result:
        if "--lazy" in argv:
            machine.put("/proc/1/mountinfo", mountinfo("/"))
            return Result(0, "", "")
        return Result(32, "", "umount: target is busy.")

    machine.on_umount = busy_at_first
    machine.system().unmount(ROOT, soon())
    target = str(machine.root / ROOT.lstrip("/"))
    assert machine.ran == [["umount", "--", target], ["umount", "--lazy", "--", target]]


@pytest.mark.parametrize(("status", "why"), [(0, ""), (32, "umount: not mounted")])
def test_a_mount_that_is_gone_is_accepted_and_one_that_stays_is_reported(
    machine: Machine, status: int, why: str
) -> None:
    machine.on_umount = lambda _: Result(status, "", f"{why}.")
    machine.system().unmount(ROOT, soon())
    machine.put("/proc/1/mountinfo", mountinfo("/", ROOT))
    with pytest.raises(ModuleFailed, match=f"cannot unmount {ROOT}: {why}"):
        machine.system().unmount(ROOT, soon())


def test_what_is_no_mount_is_named_in_the_kernels_words_and_a_wait_has_an_end(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    proc, before = tmp_path / "proc", Path("/proc/self/ns/mnt").readlink()
    proc.mkdir()
    (proc / "1").symlink_to("/proc/self")
    for lazily in (False, True):
        assert why_not_unmounted(proc, "/no/mount", tmp_path, 30.0, lazily=lazily) in NO_MOUNT
    assert Path("/proc/self/ns/mnt").readlink() == before
    assert (is_of_a_kernel(Path("/proc")), is_of_a_kernel(tmp_path), in_host(proc, MOUNTS)) == (True, False, [])
    monkeypatch.setattr(host_holders, "_unmounted", lambda *_: time.sleep(60))
    assert why_not_unmounted(proc, "/x", tmp_path, 0.2) == "timed out after 0.2 s"


@pytest.mark.parametrize(("kind", "whys"), [(stat.S_IFREG, NO_MOUNT), (stat.S_IFSOCK, ("No such device or address",))])
def test_mounts_that_cannot_be_opened_or_entered_are_named(tmp_path: Path, kind: int, whys: tuple[str, ...]) -> None:
    namespace = tmp_path / "proc/1/ns/mnt"
    namespace.parent.mkdir(parents=True)
    os.mknod(namespace, kind | 0o600)  # open(2) refuses a socket, also to root
    found = why_not_unmounted(tmp_path / "proc", "/x", tmp_path, 30.0)
    assert found in [f"its mounts cannot be entered: {why}" for why in whys]


def test_on_a_kernels_proc_no_program_is_run_and_the_mount_table_decides(machine: Machine, monkeypatch: Patch) -> None:
    (machine.root / "proc/1/ns").mkdir()
    (machine.root / "proc/1/ns/mnt").symlink_to("/proc/self/ns/mnt")
    machine.put("/proc/1/mountinfo", mountinfo("/", ROOT))
    asked: list[tuple[str, Path, bool]] = []

    def answer(_: Path, point: str, here: Path, timeout_s: float, *, lazily: bool) -> str:
        asked.append((point, here, lazily))
        if lazily:
            machine.put("/proc/1/mountinfo", mountinfo("/"))
        return "" if lazily else "Device or resource busy"

    monkeypatch.setattr(host_system, "why_not_unmounted", answer)
    machine.system().unmount(ROOT, soon())
    here = machine.root / ROOT.lstrip("/")
    assert (asked, machine.ran) == ([(ROOT, here, False), (ROOT, here, True)], [])
    machine.put("/proc/1/mountinfo", mountinfo("/", ROOT))
    monkeypatch.setattr(host_system, "why_not_unmounted", lambda *_, **__: "Operation refused")
    with pytest.raises(ModuleFailed, match=f"cannot unmount {ROOT}: Operation refused"):
        machine.system().unmount(ROOT, soon())


# whose effects may follow, on real files and real locks; test_files.py has the lock and a full file system

FIRST = Owner(pod="rbln-system/driver-a", pod_uid="a", pid=1, start_ticks=10, pid_namespace=7, boot_id="boot")
SECOND = Owner(pid=2, start_ticks=20, pid_namespace=8, boot_id="boot")


def take(host: LinuxHost, owner: Owner) -> bool:
    with host.turn() as note:
        return note(owner)


def test_only_who_took_the_node_last_may_change_the_driver(machine: Machine) -> None:
    for owner in (FIRST, SECOND):
        assert take(machine.system(), owner)
        with machine.system().owned(owner):
            pass
    for other in (FIRST, replace(SECOND, start_ticks=21)):
        with pytest.raises(OwnedElsewhere, match="taken over by process 2 run by hand"), machine.system().owned(other):
            pytest.fail("the effect must not begin")


@pytest.mark.parametrize("text", [None, "", "garbage", "\x00" * 100])
def test_a_note_that_is_gone_or_garbage_names_no_owner(machine: Machine, text: str | None) -> None:
    take(machine.system(), FIRST)
    note = machine.root / PATHS.owner_note.lstrip("/")
    note.unlink() if text is None else note.write_text(text)
    with pytest.raises(OwnedElsewhere, match="taken over by another run"), machine.system().owned(FIRST):
        pytest.fail("the effect must not begin")


def test_no_takeover_happens_in_the_middle_of_an_effect_and_a_short_one_is_waited_for(machine: Machine) -> None:
    take(machine.system(), FIRST)
    clock = machine.clock
    with machine.system().owned(FIRST), pytest.raises(OwnedElsewhere, match="another run is changing the driver"):
        take(machine.system(), SECOND)
    assert TURN_S <= sum(clock.slept) < TURN_S + 0.1
    clock.slept.clear()
    with contextlib.ExitStack() as effect:
        effect.enter_context(machine.system().turn())
        clock.after(1.0, effect.close)
        assert take(machine.system(), SECOND)
    assert 1.0 <= sum(clock.slept) < 1.1


def test_a_host_without_room_for_lock_or_note_takes_no_owner(machine: Machine) -> None:
    note = machine.root / PATHS.owner_note.lstrip("/")
    note.mkdir(parents=True)
    assert not take(machine.system(), FIRST)
    (machine.root / "run").rename(machine.root / "moved")
    (machine.root / "run").write_text("not a folder")
    assert not take(machine.system(), FIRST)
