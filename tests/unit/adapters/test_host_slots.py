"""The driver root is whole at every moment, and a slot complete or not there, whichever process is killed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import slots as host_slots
from driver_manager.adapters.host.files import HostFiles, WorkLock, exchange, mount_id
from driver_manager.adapters.host.modules import ModuleTrees
from driver_manager.adapters.host.probe import probe_command
from driver_manager.adapters.host.slots import LOCK, HostSlots, Staged, Staging, Wanted, look
from driver_manager.adapters.host.system import Sources
from driver_manager.domain.errors import ConfigError, ModuleFailed, PreflightFailed
from driver_manager.domain.host import NEXT, PREVIOUS, RECORD, STAGE_AGAIN, StagedSlot, StagedSlots, decode_staged
from driver_manager.domain.profile import Probe
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.effect_child import CAME_TO_ITS_END, KILLED, RAISED, Blow, struck
from tests.support.fakes.host_folders import KERNEL, Tree, failing, mountinfo

Patch = pytest.MonkeyPatch
Prepare = Callable[["SlotHost"], object]
ROOT = "/opt/vendor/driver"
OLD, NEW = "sha256:" + "0" * 64, "sha256:" + "f" * 64
VERSIONS = {OLD: "1.0", NEW: "2.0"}


class SlotHost:
    """The host in `folder`; driver trees of an image's installer are in `images`."""

    def __init__(self, folder: Path) -> None:
        self.tree = Tree(folder / "host")
        self.images = folder / "images"
        self.clock = FakeClock()
        self.root = self.path(ROOT)
        self.next, self.previous = self.path(ROOT + NEXT), self.path(ROOT + PREVIOUS)
        self.root.parent.mkdir(parents=True)

    @property
    def files(self) -> HostFiles:
        return self.tree.roots.files()

    @property
    def slots(self) -> HostSlots:
        return HostSlots(self.files, self.tree.roots.proc)

    def path(self, path: str) -> Path:
        """A path of the host as one of this process."""
        return self.tree.root / path.lstrip("/")

    def image(self, digest: str) -> Path:
        """The tree that an image installs: a module, a tool, a link to it and an empty folder."""
        made = self.images / digest.replace(":", "-")
        if not made.exists():
            fill(made, VERSIONS.get(digest, digest))
        return made

    def stage(
        self, digest: str, judge: Callable[[str], str] | None = None, *, kernel: str = KERNEL, verifies: bool = False
    ) -> Staged:
        """Stage that driver; its version is what its tool says."""
        staging = Staging(self.files, ROOT, self.clock, verifies=verifies)
        return staging.stage(Wanted(self.image(digest), digest, kernel), judge or self.version_in, 5.0)

    def bring(self, digest: str) -> None:
        """Bring the next driver to the root, as a run does."""
        self.slots.take_next(ROOT, digest)
        self.slots.flip(ROOT)

    def version_in(self, path: str) -> str:
        """The version of the driver in the tree at a path of the host."""
        return self.path(path).joinpath("usr/bin/smi").read_text()

    @property
    def versions(self) -> tuple[str, ...]:
        """Versions of the drivers at the root, next and previous, as a process finds them; "" for none."""
        tools = (self.files.path(path) / "usr/bin/smi" for path in (ROOT, ROOT + NEXT, ROOT + PREVIOUS))
        return tuple(tool.read_text() if tool.exists() else "" for tool in tools)

    def seen(self, wanted: str = "", kernel: str = KERNEL) -> StagedSlots:
        """What a run sees."""
        found = look(self.files, self.tree.roots.proc, ROOT, wanted, kernel)
        assert found is not None
        return found

    def problems(self, wanted: str, kernel: str = KERNEL) -> list[str]:
        """Of each staged driver."""
        return [slot.problem for slot in self.seen(wanted, kernel).slots]

    def left_over(self) -> list[str]:
        """What a killed process left beside the root."""
        known = [self.root.name + end for end in ("", NEXT, PREVIOUS, LOCK)]
        return [one.name for one in self.root.parent.iterdir() if one.name not in known]


def mount_at(monkeypatch: Patch, *paths: Path) -> None:
    """Let everything at and below `paths` be in another mount; only root could mount something there."""

    def mount_id_of(descriptor: int) -> str:
        where = Path(f"/proc/self/fd/{descriptor}").readlink()
        return "another" if any(where.is_relative_to(path) for path in paths) else mount_id(descriptor)

    monkeypatch.setattr(host_slots, "mount_id", mount_id_of)


def fill(folder: Path, version: str) -> None:
    """A small driver tree."""
    modules = folder / "lib/modules" / KERNEL
    modules.mkdir(parents=True)
    (modules / "rebellions.ko").write_bytes(b"\x7fELF" + version.encode() * 1000)
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "usr/bin/smi").write_text(version)
    (folder / "usr/bin/smi").chmod(0o755)
    (folder / "usr/sbin").symlink_to("bin")
    (folder / "empty").mkdir(mode=0o750)


EARLIER = f"{ROOT}.slots/sha256-old"
MOST_EFFECTS = 60
MOST_EFFECTS_OF_STAGING = 200


def staged(folder: Path) -> SlotHost:
    """The new driver is staged; there is nothing at the root yet."""
    made = SlotHost(folder)
    made.stage(NEW)
    return made


@pytest.fixture
def host(tmp_path: Path) -> SlotHost:
    return staged(tmp_path)


def in_a_folder(host: SlotHost) -> None:
    """The root is a folder with the old driver, and its record."""
    fill(host.root, "1.0")
    host.slots.keep_root(ROOT, OLD, "1.0")


def behind_a_link(host: SlotHost) -> None:
    """As an earlier version left it."""
    fill(host.path(EARLIER), "1.0")
    (host.path(EARLIER) / RECORD).write_text(
        f'{{"schema":1,"digest":"{OLD}","kernel":"{KERNEL}","version":"1.0","files":[],"links":{{}}}}'
    )
    host.root.symlink_to("driver.slots/sha256-old")


def with_a_previous_one(host: SlotHost) -> None:
    fill(host.root, "0.1")
    host.slots.keep_root(ROOT, "older", "0.1")
    host.slots.flip(ROOT)
    in_a_folder(host)


BEGINNINGS = {"folder": in_a_folder, "link": behind_a_link, "previous": with_a_previous_one}


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_killed_anywhere_the_root_is_whole_and_the_next_run_ends_alike(tmp_path: Path, beginning: str) -> None:
    for number in range(MOST_EFFECTS):
        host = staged(tmp_path / str(number))
        BEGINNINGS[beginning](host)
        ended = struck(Blow(number, host.tree.root), partial(host.bring, NEW))
        assert host.versions[0] in ("1.0", "2.0")
        wanted = host.seen(NEW).wanted  # the next run finds the wanted driver by its record
        if wanted == "driver.next":
            host.bring(NEW)
        elif wanted == "driver.previous":
            host.slots.flip(ROOT)
        kept = "0.1" if beginning == "previous" else ""
        assert host.versions == ("2.0", kept, "1.0")
        host.slots.flip(ROOT)
        assert host.versions == ("1.0", kept, "2.0")
        if ended == CAME_TO_ITS_END:
            break
    assert 1 < number < MOST_EFFECTS - 1


@pytest.mark.parametrize("beginning", ["folder", "link"])
def test_the_driver_before_is_known_by_its_digest(host: SlotHost, beginning: str) -> None:
    BEGINNINGS[beginning](host)
    host.bring(NEW)
    seen = host.seen(OLD)
    assert seen.slots == (
        StagedSlot("driver", NEW, "2.0", KERNEL),
        StagedSlot("driver.previous", OLD, "1.0", KERNEL, has_served=beginning == "folder"),
    )
    assert seen.wanted == "driver.previous"


@pytest.mark.parametrize("is_there", [False, True], ids=["nothing", "an empty folder"])
def test_the_first_driver_leaves_no_previous_one(host: SlotHost, is_there: bool) -> None:
    if is_there:
        host.root.mkdir()
    host.bring(NEW)
    assert (host.versions, host.previous.exists()) == (("2.0", "", ""), False)


def test_a_file_system_that_cannot_exchange_is_found_before_a_change(host: SlotHost, monkeypatch: Patch) -> None:
    fill(host.root, "1.0")
    monkeypatch.setattr(host_slots, "exchange", failing(errno.EINVAL))
    with pytest.raises(PreflightFailed, match="the old driver could not be restored: Invalid argument"):
        host.slots.keep_root(ROOT, OLD, "1.0")
    assert not (host.root / RECORD).exists()
    assert host.left_over() == []
    with pytest.raises(PreflightFailed, match="cannot be renamed"):
        host.bring(NEW)
    with pytest.raises(ModuleFailed, match="cannot be exchanged"):
        host.slots.flip(ROOT)
    assert host.versions == ("1.0", "2.0", "")


def test_a_failed_sync_does_not_fail_an_exchange_that_took_place(host: SlotHost, monkeypatch: Patch) -> None:
    in_a_folder(host)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    host.bring(NEW)
    assert host.versions == ("2.0", "", "1.0")


@pytest.mark.parametrize("is_checked", [False, True], ids=["before", "after the check"])
def test_what_was_staged_in_between_is_not_brought(host: SlotHost, monkeypatch: Patch, is_checked: bool) -> None:
    def stage_first(*names: Any) -> None:
        monkeypatch.undo()
        host.stage("another")
        exchange(*names)

    in_a_folder(host)
    if is_checked:
        monkeypatch.setattr(host_slots, "exchange", stage_first)
    else:
        host.stage("another")
    with pytest.raises(PreflightFailed, match=f"it is no longer the driver {NEW}"):
        host.bring(NEW)
    assert host.versions == ("1.0", "another", "")


def test_what_is_no_file_or_is_mounted_in_a_root_is_neither_read_nor_recorded(
    host: SlotHost, monkeypatch: Patch
) -> None:
    """A tree from a container image has devices as well; the end of /dev/zero never comes.

    A chroot has /proc, whose files come and go, and a tmpfs that is empty after a reboot.
    """
    fill(host.root, "1.0")
    for kind in (stat.S_IFIFO, stat.S_IFSOCK):
        os.mknod(host.root / f"special-{kind}", kind | 0o600)
    (host.root / "proc/1").mkdir(parents=True)
    for name in ("proc/1/stat", "resolv.conf"):
        (host.root / name).write_text("1")
    mount_at(monkeypatch, host.root / "proc", host.root / "resolv.conf")
    host.slots.keep_root(ROOT, OLD, "1.0")
    monkeypatch.undo()
    tree = decode_staged((host.root / RECORD).read_text()).tree
    assert sorted(tree) == [f"lib/modules/{KERNEL}/rebellions.ko", "usr/bin/smi", "usr/sbin"]
    host.bring(NEW)
    assert (host.versions, host.problems(OLD)) == (("2.0", "", "1.0"), ["", ""])


def write(path: str, text: str) -> Prepare:
    """A file at a path beside the root."""
    return lambda host: (host.root.parent / path).write_text(text)


def unreadable(slot: str) -> Prepare:
    return write(f"{slot}/{RECORD}", "{")


def then(*steps: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda at: [step(at) for step in steps]


OVERWRITTEN = write("driver/usr/bin/smi", "30.0")
DAMAGED_NEXT = write("driver.next/usr/bin/smi", "")


def swapped(host: SlotHost) -> None:
    in_a_folder(host)
    host.bring(NEW)


FOUND = (OLD, "1.0", True, True)


def test_the_record_of_a_root_stays_as_long_as_it_is_right(tmp_path: Path) -> None:
    rows: tuple[tuple[Prepare, tuple[str, str], tuple[str, str, bool, bool]], ...] = (
        (then(in_a_folder, write("driver/more", "a log, say")), (OLD, "1.0"), FOUND),
        (in_a_folder, (OLD, ""), FOUND),
        (in_a_folder, ("", ""), FOUND),
        (in_a_folder, ("other", "1.0"), ("other", "1.0", True, True)),
        (then(in_a_folder, unreadable("driver")), (OLD, "1.0"), FOUND),
        (then(in_a_folder, lambda host: host.tree.put("/proc/sys/kernel/osrelease", "6.9")), (OLD, "1.0"), FOUND),
        (then(in_a_folder, OVERWRITTEN), ("", ""), ("", "", True, False)),
        (swapped, (NEW, "2.0"), (NEW, "2.0", False, True)),
        # A swap was killed, and the run after it wants something else: the tree is still that of the new driver.
        (swapped, ("", ""), (NEW, "2.0", False, False)),
        (swapped, (OLD, "1.0"), (NEW, "2.0", False, False)),
    )
    for number, (prepare, known, record) in enumerate(rows):
        host = staged(tmp_path / str(number))
        prepare(host)
        before = host.root.joinpath(RECORD).stat().st_ino
        host.slots.keep_root(ROOT, *known)
        found = decode_staged((host.root / RECORD).read_text())
        assert (found.digest, found.version, found.is_kept, found.has_served) == record, f"row {number}"
        assert found.kernel == (host.tree.root / "proc/sys/kernel/osrelease").read_text().strip()
        is_same = prepare is in_a_folder and record == FOUND
        assert (host.root.joinpath(RECORD).stat().st_ino == before) or not is_same


FOREIGN = f"{ROOT}.previous is not of driver-manager, which needs that name"


def test_what_keeps_the_trees_from_being_exchanged_is_seen(tmp_path: Path) -> None:
    rows: tuple[tuple[Prepare, str], ...] = (
        (lambda host: host.tree.put("/proc/1/mountinfo", mountinfo("/", f"{ROOT}/dev")), ""),
        *(
            (
                lambda host, at=ROOT + end: host.tree.put("/proc/1/mountinfo", mountinfo("/", at, f"{at}/dev")),
                f"{ROOT}{end} is a mount point: {ROOT} cannot be exchanged",
            )
            for end in ("", NEXT, PREVIOUS)
        ),
        (lambda host: fill(host.previous, "mine"), FOREIGN),
        (lambda host: host.previous.write_text(""), FOREIGN),
        (lambda host: host.previous.mkdir(), ""),
        (lambda host: host.previous.symlink_to("/mine"), ""),
    )
    for number, (make, obstacle) in enumerate(rows):
        host = staged(tmp_path / str(number))
        fill(host.root, "1.0")
        make(host)
        assert host.seen(NEW).obstacle == obstacle, f"row {number}"


DAMAGE = "it is not complete: usr/bin/smi differs from its record or is missing"
GARBAGE = "the record of the slot cannot be read: not JSON"


def test_the_wanted_driver_is_found_with_its_problem(tmp_path: Path) -> None:
    rows: tuple[tuple[Prepare, str, str, str, str], ...] = (
        (in_a_folder, NEW, KERNEL, "driver.next", ""),
        (in_a_folder, NEW, "6.9", "driver.next", f"it is for kernel {KERNEL}, this one is 6.9"),
        (then(in_a_folder, DAMAGED_NEXT), NEW, KERNEL, "driver.next", DAMAGE),
        (then(in_a_folder, unreadable("driver.next")), NEW, KERNEL, "driver.next", GARBAGE),
        (then(swapped, unreadable("driver")), "third", KERNEL, "driver", GARBAGE),
        (then(swapped, OVERWRITTEN), NEW, KERNEL, "driver", DAMAGE),
        (then(swapped, OVERWRITTEN, lambda host: host.stage(NEW)), NEW, KERNEL, "driver.next", ""),
        # An upgrade without `stage` works as it did before anything was staged.
        (in_a_folder, OLD, "6.9", "", ""),
        (in_a_folder, "third", KERNEL, "", ""),
        (then(in_a_folder, DAMAGED_NEXT), "third", KERNEL, "", ""),
        (then(swapped, OVERWRITTEN), "third", KERNEL, "", ""),
        (then(swapped, OVERWRITTEN, unreadable("driver.previous")), "third", KERNEL, "", ""),
    )
    for number, (prepare, wanted, kernel, name, problem) in enumerate(rows):
        host = staged(tmp_path / str(number))
        prepare(host)
        seen = host.seen(wanted, kernel)
        slot = seen.named(seen.wanted)
        assert (seen.wanted, slot.problem.partition(" (")[0] if slot else "") == (name, problem), f"row {number}"
        assert name or seen.at(ROOT) is None, "the root counts as one where something was installed"


def test_without_a_record_there_is_nothing_to_be_seen(tmp_path: Path) -> None:
    host = SlotHost(tmp_path)
    fill(host.root, "1.0")
    fill(host.next, "2.0")
    host.path(f"{ROOT}.slots").write_text("")
    assert look(host.files, host.tree.roots.proc, ROOT, NEW, KERNEL) is None


@pytest.mark.parametrize("ruin", [Path.mkdir, lambda path: path.symlink_to(RECORD)], ids=["folder", "loop"])
def test_a_record_that_is_no_file_may_be_the_wanted_drivers(host: SlotHost, ruin: Callable[[Path], object]) -> None:
    (host.next / RECORD).unlink()
    ruin(host.next / RECORD)
    seen = host.seen(NEW)
    assert (seen.wanted, seen.slots[0].problem != "") == ("driver.next", True)
    assert host.seen().slots == seen.slots, "a run with DRIVER_LOAD=container looks there, too"


def left_by_an_earlier_version(host: SlotHost) -> None:
    """Only its folder is there."""
    behind_a_link(host)
    host.root.unlink()


def test_a_driver_that_an_earlier_version_staged_is_found(host: SlotHost) -> None:
    left_by_an_earlier_version(host)
    seen = host.seen(OLD)
    assert (seen.wanted, seen.left) == ("", EARLIER)
    assert host.seen(NEW).left == ""


STAGE_FIRST = "Stage the wanted driver first (`driver-manager stage`), then run again."
INSTALLED = f" If the wanted driver was installed in {ROOT} without `stage`, remove {RECORD} there."


def test_the_source_in_an_unusable_slot_states_the_problem_and_the_remedy(tmp_path: Path) -> None:
    rows: tuple[tuple[Prepare, str, str, str], ...] = (
        (DAMAGED_NEXT, NEW, f"the staged slot driver.next cannot be used: {DAMAGE}", STAGE_AGAIN),
        (then(swapped, OVERWRITTEN), NEW, f"the staged slot driver cannot be used: {DAMAGE}", STAGE_AGAIN + INSTALLED),
        (left_by_an_earlier_version, OLD, f"an earlier version staged the wanted driver in {EARLIER}", STAGE_FIRST),
    )
    for number, (prepare, wanted, problem, remedy) in enumerate(rows):
        host = staged(tmp_path / str(number))
        prepare(host)
        trees = ModuleTrees(host.tree.roots, KERNEL)
        found = Sources(trees, PROFILE, host.seen(wanted)).wanted(ROOT)
        assert (found.root, found.problem.partition(" (")[0], found.remedy) == (ROOT, problem, remedy), f"row {number}"


def test_a_root_that_is_a_link_is_not_written_to_and_the_vendors_tool_is_found_at_the_root(host: SlotHost) -> None:
    behind_a_link(host)
    before = (host.path(EARLIER) / RECORD).stat()
    host.slots.keep_root(ROOT, "another", "3.0")
    assert (host.path(EARLIER) / RECORD).stat().st_ctime_ns == before.st_ctime_ns
    for path in (f"{EARLIER}/usr/bin/smi", f"{ROOT}/usr/bin/smi"):
        command = probe_command(host.files, Probe("smi"), ROOT)
        assert command is not None
        assert str(host.path(path)) in command.argv
        if host.root.is_symlink():
            host.bring(NEW)


# staging: while the driver that runs is not touched


@pytest.fixture
def staging(tmp_path: Path) -> SlotHost:
    """The old driver, staged once, is at the root."""
    made = SlotHost(tmp_path)
    made.image(NEW)
    made.stage(OLD)
    made.bring(OLD)
    return made


def content(folder: Path) -> dict[str, tuple[int, str]]:
    """Mode and content of all in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        what = f"-> {path.readlink()}" if path.is_symlink() else path.read_text() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, what)
    return found


def changes(host: SlotHost) -> dict[str, tuple[int, int, int]]:
    """What another write would change of all files, by path."""
    paths = [host.next, *host.next.rglob("*")]
    return {str(path): (one.st_ino, one.st_mtime_ns, one.st_ctime_ns) for path in paths if (one := path.lstat())}


def test_a_slot_has_the_tree_as_it_was_and_a_record_of_it(staging: SlotHost) -> None:
    done = staging.stage(NEW)
    assert (done.path, done.version, done.was_there) == (ROOT + NEXT, "2.0", False)
    copied = content(staging.next)
    record = decode_staged(copied.pop(RECORD)[1])
    assert copied == content(staging.image(NEW))
    assert (record.digest, record.kernel, record.version) == (NEW, KERNEL, "2.0")
    module = (staging.image(NEW) / f"lib/modules/{KERNEL}/rebellions.ko").read_bytes()
    assert record.tree == {
        f"lib/modules/{KERNEL}/rebellions.ko": f"3004 {hashlib.sha256(module).hexdigest()}",
        "usr/bin/smi": f"3 {hashlib.sha256(b'2.0').hexdigest()}",
        "usr/sbin": "-> bin",
    }
    assert (staging.versions, staging.left_over()) == (("1.0", "2.0", ""), [])


def test_a_complete_slot_is_left_alone_to_the_byte_and_a_byte_that_changed_found_by_checksum(staging: SlotHost) -> None:
    staging.stage(NEW)
    before = changes(staging)
    assert staging.stage(NEW).was_there
    assert changes(staging) == before
    (staging.next / "usr/bin/smi").write_text("2.1")
    assert staging.stage(NEW).was_there
    assert "usr/bin/smi" in staging.stage(NEW, verifies=True).replaced
    assert staging.versions == ("1.0", "2.0", "")
    assert (staging.stage(OLD).was_there, staging.stage(OLD).path) == (True, ROOT)
    staging.bring(NEW)
    assert (staging.stage(OLD).was_there, staging.stage(OLD).path) == (True, ROOT + PREVIOUS)
    os.truncate(staging.root / MODULE, 3)
    done = staging.stage(NEW)
    assert (done.path, (staging.root / MODULE).stat().st_size) == (ROOT + NEXT, 3), "a damaged driver at the root stays"


@pytest.mark.submission
@pytest.mark.shares(3)
def test_killed_anywhere_the_slot_is_not_there_or_complete_and_the_next_one_ends_alike(staging: SlotHost) -> None:
    for number in range(MOST_EFFECTS_OF_STAGING):
        if number % 2:
            staging.stage("another")
        ended = struck(Blow(number // 2, staging.tree.root), lambda: staging.stage(NEW))
        assert staging.problems(NEW) in ([""], ["", ""])
        assert staging.versions in [("1.0", version, "") for version in ("", "2.0", "another" if number % 2 else "")]
        if ended == CAME_TO_ITS_END:
            break
        assert ended == KILLED
        staging.stage(NEW)
        assert content(staging.image(NEW)).items() <= content(staging.next).items()
        assert staging.left_over() == []
        shutil.rmtree(staging.next)
    assert 15 < number < MOST_EFFECTS_OF_STAGING - 1, "every effect was met"


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_disk_that_is_full_at_any_moment_leaves_nothing_and_is_reported(staging: SlotHost) -> None:
    def stage() -> None:
        with pytest.raises(PreflightFailed, match="not enough space for another driver beside"):
            staging.stage(NEW)

    for number in range(MOST_EFFECTS_OF_STAGING):
        if struck(Blow(number, staging.tree.root, errno.ENOSPC), stage) == RAISED:  # it was not refused
            break
        assert (staging.versions, staging.left_over()) == (("1.0", "", ""), [])
    assert staging.next.exists()
    assert 10 < number < MOST_EFFECTS_OF_STAGING - 1


def test_without_room_nothing_is_begun(staging: SlotHost, monkeypatch: Patch) -> None:
    there = os.statvfs(staging.root)
    nearly_full = os.statvfs_result((*there[:4], 2, *there[5:]))  # f_bavail
    monkeypatch.setattr(os, "fstatvfs", lambda _: nearly_full)
    with pytest.raises(PreflightFailed, match="MiB are needed, 0 MiB are free") as caught:
        staging.stage(NEW)
    assert caught.value.exit_code == 6
    assert not staging.next.exists()


def test_two_at_once_fill_it_once_and_one_waits_no_longer_than_it_may(staging: SlotHost) -> None:
    with contextlib.ExitStack() as first:
        first.enter_context(WorkLock(staging.files, ROOT + LOCK).alone(staging.clock, 0.0))
        with pytest.raises(PreflightFailed, match="for 5 s"):
            staging.stage(NEW)

        def ends() -> None:
            first.close()
            assert not staging.stage(NEW).was_there

        staging.clock.after(1.0, ends)
        assert staging.stage(NEW).was_there


def test_what_a_killed_process_left_goes_and_other_files_stay(staging: SlotHost) -> None:
    fill(staging.root.parent / ".driver.next.0123456789ab", "2.0")
    (staging.root.parent / ".driver.other.0123456789ab").write_text("")
    staging.stage(NEW)
    assert staging.left_over() == [".driver.other.0123456789ab"]


MODULE = f"lib/modules/{KERNEL}/rebellions.ko"
RUINS: dict[str, Callable[[Path], object]] = {
    "short": lambda slot: os.truncate(slot / MODULE, 10),
    "gone": lambda slot: (slot / MODULE).unlink(),
    "link": lambda slot: (slot / "usr/sbin").unlink(),
    "garbage": lambda slot: (slot / RECORD).write_text("{"),
    "folder": then(lambda slot: (slot / RECORD).unlink(), lambda slot: (slot / RECORD).mkdir()),
    "loop": then(lambda slot: (slot / RECORD).unlink(), lambda slot: (slot / RECORD).symlink_to(RECORD)),
    "kernel": lambda _: None,
}


@pytest.mark.parametrize("ruin", RUINS)
def test_a_slot_that_does_not_match_its_record_is_replaced_and_named(staging: SlotHost, ruin: str) -> None:
    staging.stage(NEW, kernel="5.10.0" if ruin == "kernel" else KERNEL)
    RUINS[ruin](staging.next)
    assert staging.problems(NEW)[1] != ""
    done = staging.stage(NEW)
    assert (done.was_there, bool(done.replaced)) == (False, True)
    assert (staging.problems(NEW), staging.left_over()) == (["", ""], [])


@pytest.mark.parametrize("is_file", [False, True], ids=["folder", "file"])
def test_what_stage_did_not_make_is_not_removed(staging: SlotHost, is_file: bool) -> None:
    if is_file:
        staging.next.write_text("")
    else:
        fill(staging.next, "by hand")
    with pytest.raises(PreflightFailed, match=r"`stage` did not make what is there: move it away .*driver\.next"):
        staging.stage(NEW)
    assert staging.next.exists()


def test_a_link_in_the_place_of_the_next_driver_is_replaced_and_what_it_leads_to_stays(staging: SlotHost) -> None:
    fill(staging.path("/opt/by-hand"), "by hand")
    staging.next.symlink_to("../by-hand")
    staging.stage(NEW)
    assert (staging.versions, staging.left_over()) == (("1.0", "2.0", ""), [])
    assert staging.version_in("/opt/by-hand") == "by hand"


@pytest.mark.parametrize("end", ["", "usr/bin", "usr/bin/smi"])
def test_a_tree_that_something_is_mounted_in_is_not_removed(staging: SlotHost, monkeypatch: Patch, end: str) -> None:
    """A bind of the host's own folders, as for a chroot: to remove what is in the tree would empty them."""
    staging.stage("another")
    left = ".driver.next.0123456789ab"
    mount_at(monkeypatch, staging.next / end, staging.next.with_name(left) / end)
    with pytest.raises(PreflightFailed, match=f"something is mounted at driver.next/{end}"):
        staging.stage(NEW)
    assert (staging.versions, staging.left_over()) == (("1.0", "another", ""), [])
    staging.next.rename(staging.next.with_name(left))
    with pytest.raises(PreflightFailed, match=f"something is mounted at {left}/{end}"):
        staging.stage(NEW)
    assert staging.left_over() == [left]


def test_a_folder_that_takes_the_place_of_a_link_leads_the_copy_nowhere(staging: SlotHost, monkeypatch: Patch) -> None:
    link, outside = staging.image(NEW) / "zz", staging.path("/outside")
    outside.mkdir()
    link.symlink_to(outside)
    real = os.symlink

    def replace_then(target: str, name: str, **options: Any) -> None:
        real(target, name, **options)
        if name == link.name:
            link.unlink()
            link.mkdir()
            (link / "written").write_text("x")

    monkeypatch.setattr(os, "symlink", replace_then)
    staging.stage(NEW)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("name", ["driver", "driver.previous", "driver.next", ""])
def test_a_folder_that_no_link_leads_into_any_more_is_named(staging: SlotHost, name: str) -> None:
    staging.stage(NEW)
    assert not staging.stage(NEW).is_folder_unused
    shutil.rmtree(staging.root)
    shutil.move(staging.next, staging.path(f"{ROOT}.slots/a"))
    if name:
        (staging.root.parent / name).symlink_to("driver.slots/a")
    done = staging.stage(NEW)
    assert (done.was_there, done.is_folder_unused) == (bool(name), not name)


def refuse(_: str) -> str:
    raise PreflightFailed("not staged: no", "Build it.")


@pytest.mark.parametrize(
    ("prepare", "source", "judge", "why"),
    [
        (None, "", refuse, "not staged"),
        (lambda tree: os.mkfifo(tree / "pipe"), "", None, "neither a file nor a link nor a folder"),
        (lambda tree: tree.joinpath(*("d" * 110)).mkdir(parents=True), "", None, "more than 100 folders in each other"),
        # Copied into itself it would have no end, nor would the removal of what was copied by then.
        (None, "..", None, "contain itself"),
        (None, "gone", None, "is not a folder"),
    ],
)
def test_a_driver_that_is_no_use_or_cannot_be_copied_leaves_nothing(
    staging: SlotHost, prepare: Callable[[Path], object] | None, source: str, judge: Any, why: str
) -> None:
    if prepare is not None:
        prepare(staging.image(NEW))
    tree = {"": staging.image(NEW), "..": staging.root.parent, "gone": staging.images / "gone"}[source]
    wanted = Wanted(tree, NEW, KERNEL)
    with pytest.raises(ConfigError if source == "gone" else PreflightFailed, match=why):
        Staging(staging.files, ROOT, staging.clock).stage(wanted, judge or staging.version_in, 5.0)
    assert (staging.next.exists(), staging.left_over()) == (False, [])
