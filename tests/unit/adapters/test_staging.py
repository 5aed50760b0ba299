"""A slot is there complete or not at all, whatever happens while it is filled; the driver that runs is not touched."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from driver_manager.adapters.host.slots import Staging, Wanted, lock_of
from driver_manager.domain.errors import ConfigError, PreflightFailed
from driver_manager.domain.host import RECORD, decode_staged, folder_of, slot_name
from tests.support.fakes.effect_child import CAME_TO_ITS_END, KILLED, RAISED, Blow, struck
from tests.support.fakes.host_folders import KERNEL
from tests.support.fakes.slot_host import NEW, OLD, ROOT, SlotHost, fill

MOST_EFFECTS = 200


@pytest.fixture
def host(tmp_path: Path) -> SlotHost:
    """The old driver's slot, and the root that leads to it."""
    made = SlotHost(tmp_path)
    made.image(NEW)
    made.stage(OLD)
    made.slots.flip(ROOT, f"{folder_of(ROOT)}/{slot_name(OLD)}", "")
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
    paths = [host.slot(NEW).parent, *host.slot(NEW).parent.rglob("*")]
    return {str(path): (one.st_ino, one.st_mtime_ns, one.st_ctime_ns) for path in paths if (one := path.lstat())}


def test_a_slot_has_the_tree_as_it_was_and_a_record_of_it(host: SlotHost) -> None:
    done = host.stage(NEW)
    assert (done.path, done.version, done.was_there) == (f"{folder_of(ROOT)}/{slot_name(NEW)}", "2.0", False)
    copied = content(host.slot(NEW))
    record = decode_staged(copied.pop(RECORD)[1])
    assert copied == content(host.image(NEW))
    assert (record.digest, record.kernel, record.version) == (NEW, KERNEL, "2.0")
    assert {one.path for one in record.files} == {f"lib/modules/{KERNEL}/rebellions.ko", "usr/bin/smi"}
    assert dict(record.links) == {"usr/sbin": "bin"}
    assert (host.version, host.left_over()) == ("1.0", [])


def test_a_complete_slot_is_left_alone_to_the_byte(host: SlotHost) -> None:
    host.stage(NEW)
    before = changes(host)
    assert host.stage(NEW).was_there
    assert changes(host) == before


@pytest.mark.submission
@pytest.mark.shares(3)
def test_killed_anywhere_the_slot_is_not_there_or_complete_and_the_next_one_ends_alike(host: SlotHost) -> None:
    for number in range(MOST_EFFECTS):
        ended = struck(Blow(number, host.tree.root), lambda: host.stage(NEW))
        if host.slot(NEW).exists():
            assert host.seen(NEW).named(slot_name(NEW)).problem == ""  # type: ignore[union-attr]  # it is there
        assert host.version == "1.0"
        if ended == CAME_TO_ITS_END:
            break
        assert ended == KILLED
        host.stage(NEW)
        assert content(host.image(NEW)).items() <= content(host.slot(NEW)).items()
        assert host.left_over() == []
        host.slots.remove(ROOT, (slot_name(NEW),))
    assert 15 < number < MOST_EFFECTS - 1, "every effect was met"


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_disk_that_is_full_at_any_moment_leaves_nothing_and_is_said(host: SlotHost) -> None:
    def stage() -> None:
        with pytest.raises(PreflightFailed, match="not enough space for another driver in"):
            host.stage(NEW)

    for number in range(MOST_EFFECTS):
        if struck(Blow(number, host.tree.root, errno.ENOSPC), stage) == RAISED:  # it was not refused
            break
        assert not host.slot(NEW).exists()
        assert (host.version, host.left_over()) == ("1.0", [])
    assert host.slot(NEW).exists()
    assert 10 < number < MOST_EFFECTS - 1


def test_without_room_nothing_is_begun(host: SlotHost, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstatvfs

    def nearly_full(folder: int) -> os.statvfs_result:
        values = list(real(folder))
        values[4] = 2  # f_bavail
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "fstatvfs", nearly_full)
    with pytest.raises(PreflightFailed, match="MiB are needed, 0 MiB are free") as caught:
        host.stage(NEW)
    assert caught.value.exit_code == 6
    assert not host.slot(NEW).exists()


def test_two_at_once_fill_it_once(host: SlotHost) -> None:
    begun, let_go = os.pipe(), os.pipe()

    def slowly(path: str) -> str:
        os.write(begun[1], b"x")
        os.read(let_go[0], 1)
        return host.version_in(path)

    first = os.fork()
    if not first:
        os._exit(0 if not host.stage(NEW, slowly).was_there else 1)
    os.read(begun[0], 1)
    asleep: list[float] = []

    def wait(seconds: float) -> None:
        if not asleep:
            os.write(let_go[1], b"x")
            os.waitpid(first, 0)
        asleep.append(seconds)

    host.clock.sleep = wait  # type: ignore[method-assign]  # the second one waits until the first has ended
    assert host.stage(NEW).was_there
    assert asleep


def test_one_that_does_not_end_is_waited_for_no_longer_than_that(host: SlotHost) -> None:
    with (
        lock_of(host.files, ROOT).alone(host.clock, 0.0),
        pytest.raises(PreflightFailed, match="for 5 s"),
    ):
        host.stage(NEW)


def test_what_a_dead_one_left_goes_and_what_is_no_slot_stays(host: SlotHost) -> None:
    left = host.slot(NEW).parent / f".{slot_name(NEW)}.0123456789ab"
    fill(left, "2.0")
    host.stage(NEW)
    assert not left.exists()
    assert (host.slot(NEW).parent / ".previous").parent.is_dir()


@pytest.mark.parametrize("ruin", ["short", "gone", "link", "record", "garbage", "kernel", "file", "folder", "loop"])
def test_a_slot_that_does_not_match_its_record_is_said_and_replaced(host: SlotHost, ruin: str) -> None:
    host.stage(NEW, kernel="5.10.0" if ruin == "kernel" else KERNEL)
    slot, module = host.slot(NEW), host.slot(NEW) / f"lib/modules/{KERNEL}/rebellions.ko"
    match ruin:
        case "short":
            os.truncate(module, 10)
        case "gone":
            module.unlink()
        case "link":
            (slot / "usr/sbin").unlink()
        case "record":
            (slot / RECORD).unlink()
        case "garbage":
            (slot / RECORD).write_text("{")
        case "folder":
            (slot / RECORD).unlink()
            (slot / RECORD).mkdir()
        case "loop":
            (slot / RECORD).unlink()
            (slot / RECORD).symlink_to(RECORD)
        case "file":
            slot.rename(slot.with_name("aside"))
            slot.write_text("")
    if ruin != "file":
        assert host.seen(NEW).named(slot_name(NEW)).problem != ""  # type: ignore[union-attr]  # it is there
    done = host.stage(NEW)
    assert (done.was_there, bool(done.replaced)) == (False, True)
    assert host.seen(NEW).named(slot_name(NEW)).problem == ""  # type: ignore[union-attr]  # it is there
    assert host.left_over() == []


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_slot_that_the_root_leads_to_is_replaced_without_a_gap(host: SlotHost) -> None:
    os.truncate(host.slot(OLD) / f"lib/modules/{KERNEL}/rebellions.ko", 3)
    for number in range(MOST_EFFECTS):
        if struck(Blow(number, host.tree.root), lambda: host.stage(OLD)) == CAME_TO_ITS_END:
            break
        assert host.version == "1.0"
    assert host.seen(OLD).named(slot_name(OLD)).problem == ""  # type: ignore[union-attr]  # it is there


def test_a_slot_whose_driver_is_in_use_stays_and_is_said(host: SlotHost) -> None:
    module = host.slot(OLD) / f"lib/modules/{KERNEL}/rebellions.ko"
    os.truncate(module, 3)
    done = host.stage(OLD, is_loaded=True)
    assert (done.was_there, done.replaced, module.stat().st_size) == (True, "", 3)
    assert "rebellions.ko" in done.left
    host.stage(NEW)
    os.truncate(host.slot(NEW) / f"lib/modules/{KERNEL}/rebellions.ko", 3)
    assert host.stage(NEW, is_loaded=True).replaced, "nobody uses that one"


def test_a_byte_that_changed_is_found_by_checksum_only(host: SlotHost) -> None:
    host.stage(NEW)
    tool = host.slot(NEW) / "usr/bin/smi"
    tool.write_text("2.1")
    assert host.stage(NEW).was_there
    assert "usr/bin/smi" in host.stage(NEW, verifies=True).replaced
    assert tool.read_text() == "2.0"


def test_a_driver_that_is_no_use_leaves_nothing(host: SlotHost) -> None:
    def refuse(_: str) -> str:
        raise PreflightFailed("not staged: no", "Build it.")

    with pytest.raises(PreflightFailed, match="not staged"):
        host.stage(NEW, refuse)
    assert not host.slot(NEW).exists()
    assert host.left_over() == []


def test_what_cannot_be_copied_is_refused(host: SlotHost) -> None:
    os.mkfifo(host.image(NEW) / "pipe")
    with pytest.raises(PreflightFailed, match="neither a file nor a link nor a folder"):
        host.stage(NEW)
    assert host.left_over() == []


def test_a_source_that_the_slots_are_in_is_refused(host: SlotHost) -> None:
    """Copied into itself it would have no end, nor would the removal of what was copied by then."""
    staging = Staging(host.files, ROOT, host.clock)
    with pytest.raises(PreflightFailed, match="contain itself"):
        staging.stage(Wanted(host.root.parent, NEW, KERNEL), host.version_in, 5.0)
    assert host.left_over() == []


def test_a_source_that_is_not_there_is_a_wrong_option(host: SlotHost) -> None:
    gone = Wanted(host.images / "gone", NEW, KERNEL)
    with pytest.raises(ConfigError, match="is not a folder"):
        Staging(host.files, ROOT, host.clock).stage(gone, host.version_in, 5.0)
