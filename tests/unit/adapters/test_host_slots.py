"""The driver root is whole at every moment: it is the old driver or the new one, whichever process is killed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import slots as host_slots
from driver_manager.adapters.host.files import exchange
from driver_manager.adapters.host.probe import probe_command
from driver_manager.adapters.host.slots import look
from driver_manager.domain.errors import ModuleFailed, PreflightFailed
from driver_manager.domain.host import FOLDER_END, NEXT, PREVIOUS, RECORD, StagedSlot, decode_staged
from driver_manager.domain.profile import Probe
from tests.support.fakes.effect_child import CAME_TO_ITS_END, Blow, struck
from tests.support.fakes.host_folders import KERNEL, mountinfo
from tests.support.fakes.slot_host import NEW, OLD, ROOT, SlotHost, fill, mount_at

EARLIER = f"{ROOT}{FOLDER_END}/sha256-old"
MOST_EFFECTS = 60


@pytest.fixture
def host(tmp_path: Path) -> SlotHost:
    """The new driver is staged; there is nothing at the root yet."""
    made = SlotHost(tmp_path)
    made.stage(NEW)
    return made


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
    host.root.symlink_to(f"driver{FOLDER_END}/sha256-old")


def with_a_previous_one(host: SlotHost) -> None:
    fill(host.root, "0.1")
    host.slots.keep_root(ROOT, "older", "0.1")
    host.slots.flip(ROOT)
    in_a_folder(host)


BEGINNINGS = {"folder": in_a_folder, "link": behind_a_link, "previous": with_a_previous_one}


def go_on(host: SlotHost) -> None:
    """As the next run does, which finds the wanted driver by its record."""
    seen = host.seen(NEW)
    if seen.wanted == "driver.next":
        host.bring(NEW)
    elif seen.wanted == "driver.previous":
        host.slots.flip(ROOT)


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_killed_anywhere_the_root_is_whole_and_the_next_run_ends_alike(tmp_path: Path, beginning: str) -> None:
    for number in range(MOST_EFFECTS):
        host = SlotHost(tmp_path / str(number))
        host.stage(NEW)
        BEGINNINGS[beginning](host)
        ended = struck(Blow(number, host.tree.root), partial(host.bring, NEW))
        assert host.versions[0] in ("1.0", "2.0")
        go_on(host)
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


def test_what_was_staged_in_between_is_not_brought(host: SlotHost) -> None:
    in_a_folder(host)
    host.stage("another")
    with pytest.raises(PreflightFailed, match=f"it is no longer the driver {NEW}"):
        host.bring(NEW)
    assert host.versions == ("1.0", "another", "")


@pytest.mark.parametrize("is_there", [False, True], ids=["nothing", "an empty folder"])
def test_the_first_driver_leaves_no_previous_one(host: SlotHost, is_there: bool) -> None:
    if is_there:
        host.root.mkdir()
    host.bring(NEW)
    assert (host.versions, host.previous.exists()) == (("2.0", "", ""), False)


def test_a_file_system_that_cannot_exchange_is_found_before_anything_changes(
    host: SlotHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    fill(host.root, "1.0")
    monkeypatch.setattr(host_slots, "exchange", refuse)
    with pytest.raises(PreflightFailed, match="the old driver could not be restored: Invalid argument"):
        host.slots.keep_root(ROOT, OLD, "1.0")
    assert not (host.root / RECORD).exists()
    assert host.left_over() == []
    with pytest.raises(PreflightFailed, match="cannot be renamed"):
        host.bring(NEW)
    with pytest.raises(ModuleFailed, match="cannot be exchanged"):
        host.slots.flip(ROOT)
    assert host.versions == ("1.0", "2.0", "")


def test_a_failed_sync_does_not_fail_an_exchange_that_took_place(
    host: SlotHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    in_a_folder(host)
    monkeypatch.setattr(os, "fsync", fail)
    host.bring(NEW)
    assert host.versions == ("2.0", "", "1.0")


def test_a_driver_staged_between_the_check_and_the_rename_is_not_taken(
    host: SlotHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage_first(*names: Any) -> None:
        monkeypatch.undo()
        host.stage("another")
        exchange(*names)

    in_a_folder(host)
    monkeypatch.setattr(host_slots, "exchange", stage_first)
    with pytest.raises(PreflightFailed, match=f"it is no longer the driver {NEW}"):
        host.slots.take_next(ROOT, NEW)
    assert host.versions == ("1.0", "another", "")


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK], ids=["pipe", "socket"])
def test_what_is_no_file_in_a_root_is_neither_read_nor_recorded(host: SlotHost, kind: int) -> None:
    """A tree from a container image has devices as well; the end of /dev/zero never comes."""
    fill(host.root, "1.0")
    os.mknod(host.root / "special", kind | 0o600)
    host.slots.keep_root(ROOT, OLD, "1.0")
    assert "special" not in (host.root / RECORD).read_text()
    host.bring(NEW)
    assert (host.versions, host.problems(OLD)) == (("2.0", "", "1.0"), ["", ""])


def overwritten(host: SlotHost) -> None:
    (host.root / "usr/bin/smi").write_text("30.0")


def damaged_next(host: SlotHost) -> None:
    os.truncate(host.next / "usr/bin/smi", 0)


def more_in_it(host: SlotHost) -> None:
    (host.root / "more").write_text("a log, say")


def unreadable(record: str) -> Callable[[SlotHost], object]:
    """A record that cannot be read, at a path beside the root."""
    return lambda host: (host.root.parent / record / RECORD).write_text("{")


def under_another_kernel(host: SlotHost) -> None:
    host.tree.put("/proc/sys/kernel/osrelease", "6.9")


def swapped(host: SlotHost) -> None:
    in_a_folder(host)
    host.bring(NEW)


def then(*steps: Callable[[SlotHost], object]) -> Callable[[SlotHost], None]:
    def do(host: SlotHost) -> None:
        for step in steps:
            step(host)

    return do


FOUND = (OLD, "1.0", True, True)


@pytest.mark.parametrize(
    ("prepare", "known", "record"),
    [
        (then(in_a_folder, more_in_it), (OLD, "1.0"), FOUND),
        (in_a_folder, (OLD, ""), FOUND),
        (in_a_folder, ("", ""), FOUND),
        (in_a_folder, ("other", "1.0"), ("other", "1.0", True, True)),
        (then(in_a_folder, unreadable("driver")), (OLD, "1.0"), FOUND),
        (then(in_a_folder, under_another_kernel), (OLD, "1.0"), FOUND),
        (then(in_a_folder, overwritten), ("", ""), ("", "", True, False)),
        (swapped, (NEW, "2.0"), (NEW, "2.0", False, True)),
        # A swap was killed, and the run after it wants something else: the tree is still that of the new driver.
        (swapped, ("", ""), (NEW, "2.0", False, False)),
        (swapped, (OLD, "1.0"), (NEW, "2.0", False, False)),
    ],
)
def test_the_record_of_a_root_stays_as_long_as_it_is_right(
    host: SlotHost,
    prepare: Callable[[SlotHost], object],
    known: tuple[str, str],
    record: tuple[str, str, bool, bool],
) -> None:
    prepare(host)
    before = host.root.joinpath(RECORD).stat().st_ino
    host.slots.keep_root(ROOT, *known)
    found = decode_staged((host.root / RECORD).read_text())
    assert (found.digest, found.version, found.is_kept, found.has_served) == record
    assert found.kernel == (host.tree.root / "proc/sys/kernel/osrelease").read_text().strip()
    is_same = prepare is in_a_folder and record == FOUND
    assert (host.root.joinpath(RECORD).stat().st_ino == before) or not is_same


def test_a_root_that_is_a_link_is_not_written_to(host: SlotHost) -> None:
    behind_a_link(host)
    before = (host.path(EARLIER) / RECORD).stat()
    host.slots.keep_root(ROOT, "another", "3.0")
    assert (host.path(EARLIER) / RECORD).stat().st_ctime_ns == before.st_ctime_ns


FOREIGN = f"{ROOT}.previous is not of driver-manager, which needs that name"


@pytest.mark.parametrize(
    ("make", "obstacle"),
    [
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
    ],
)
def test_what_keeps_the_trees_from_being_exchanged_is_seen(
    host: SlotHost, make: Callable[[SlotHost], object], obstacle: str
) -> None:
    fill(host.root, "1.0")
    make(host)
    assert host.seen(NEW).obstacle == obstacle


def test_what_is_mounted_in_a_tree_is_not_recorded(host: SlotHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chroot has /proc, whose files come and go, and a tmpfs that is empty after a reboot."""
    fill(host.root, "1.0")
    (host.root / "proc/1").mkdir(parents=True)
    for name in ("proc/1/stat", "resolv.conf"):
        (host.root / name).write_text("1")
    mount_at(monkeypatch, host.root / "proc", host.root / "resolv.conf")
    host.slots.keep_root(ROOT, OLD, "1.0")
    tree = decode_staged((host.root / RECORD).read_text()).tree
    assert sorted(tree) == [f"lib/modules/{KERNEL}/rebellions.ko", "usr/bin/smi", "usr/sbin"]


DAMAGE = "it is not complete: usr/bin/smi differs from its record or is missing"
GARBAGE = "the record of the slot cannot be read: not JSON"


@pytest.mark.parametrize(
    ("prepare", "wanted", "kernel", "name", "problem"),
    [
        (in_a_folder, NEW, KERNEL, "driver.next", ""),
        (in_a_folder, NEW, "6.9", "driver.next", f"it is for kernel {KERNEL}, this one is 6.9"),
        (then(in_a_folder, damaged_next), NEW, KERNEL, "driver.next", DAMAGE),
        (then(in_a_folder, unreadable("driver.next")), NEW, KERNEL, "driver.next", GARBAGE),
        (then(swapped, unreadable("driver")), "third", KERNEL, "driver", GARBAGE),
        (then(swapped, overwritten), NEW, KERNEL, "driver", DAMAGE),
        (then(swapped, overwritten, lambda host: host.stage(NEW)), NEW, KERNEL, "driver.next", ""),
        # An upgrade without `stage` works as it did before anything was staged.
        (in_a_folder, OLD, "6.9", "", ""),
        (in_a_folder, "third", KERNEL, "", ""),
        (then(in_a_folder, damaged_next), "third", KERNEL, "", ""),
        (then(swapped, overwritten), "third", KERNEL, "", ""),
        (then(swapped, overwritten, unreadable("driver.previous")), "third", KERNEL, "", ""),
    ],
)
def test_the_wanted_driver_is_found_with_its_problem(  # a row of the table
    host: SlotHost, prepare: Callable[[SlotHost], object], wanted: str, kernel: str, name: str, problem: str
) -> None:
    prepare(host)
    seen = host.seen(wanted, kernel)
    slot = seen.named(seen.wanted)
    assert (seen.wanted, slot.problem.partition(" (")[0] if slot else "") == (name, problem)
    assert name or seen.at(ROOT) is None, "the root counts as one where something was installed"


def test_without_a_record_there_is_nothing_to_be_seen(tmp_path: Path) -> None:
    host = SlotHost(tmp_path)
    fill(host.root, "1.0")
    fill(host.next, "2.0")
    host.path(ROOT + FOLDER_END).write_text("")
    assert look(host.files, host.tree.roots.proc, ROOT, NEW, KERNEL) is None


@pytest.mark.parametrize("ruin", [Path.mkdir, lambda path: path.symlink_to(RECORD)], ids=["folder", "loop"])
def test_a_record_that_is_no_file_may_be_that_of_the_wanted_driver(
    host: SlotHost, ruin: Callable[[Path], object]
) -> None:
    (host.next / RECORD).unlink()
    ruin(host.next / RECORD)
    seen = host.seen(NEW)
    assert (seen.wanted, seen.slots[0].problem != "") == ("driver.next", True)
    assert host.seen().slots == seen.slots, "a run with DRIVER_LOAD=container looks there, too"


def test_a_driver_that_an_earlier_version_staged_is_found(host: SlotHost) -> None:
    behind_a_link(host)
    host.root.unlink()
    seen = host.seen(OLD)
    assert (seen.wanted, seen.left) == ("", EARLIER)
    assert host.seen(NEW).left == ""


def test_the_vendors_tool_is_found_at_the_root(host: SlotHost) -> None:
    behind_a_link(host)
    for path in (f"{EARLIER}/usr/bin/smi", f"{ROOT}/usr/bin/smi"):
        command = probe_command(host.files, Probe("smi"), ROOT)
        assert command is not None
        assert str(host.path(path)) in command.argv
        if host.root.is_symlink():
            host.bring(NEW)
