"""A slot is there complete or not at all, whatever happens while it is filled; the driver that runs is not touched."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host.slots import Staging, Wanted, lock_of
from driver_manager.domain.errors import ConfigError, PreflightFailed
from driver_manager.domain.host import NEXT, PREVIOUS, RECORD, decode_staged
from tests.support.fakes.effect_child import CAME_TO_ITS_END, KILLED, RAISED, Blow, struck
from tests.support.fakes.host_folders import KERNEL
from tests.support.fakes.slot_host import NEW, OLD, ROOT, SlotHost, fill, mount_at

MOST_EFFECTS = 200


@pytest.fixture
def host(tmp_path: Path) -> SlotHost:
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


def test_a_slot_has_the_tree_as_it_was_and_a_record_of_it(host: SlotHost) -> None:
    done = host.stage(NEW)
    assert (done.path, done.version, done.was_there) == (ROOT + NEXT, "2.0", False)
    copied = content(host.next)
    record = decode_staged(copied.pop(RECORD)[1])
    assert copied == content(host.image(NEW))
    assert (record.digest, record.kernel, record.version) == (NEW, KERNEL, "2.0")
    module = (host.image(NEW) / f"lib/modules/{KERNEL}/rebellions.ko").read_bytes()
    assert record.tree == {
        f"lib/modules/{KERNEL}/rebellions.ko": f"3004 {hashlib.sha256(module).hexdigest()}",
        "usr/bin/smi": f"3 {hashlib.sha256(b'2.0').hexdigest()}",
        "usr/sbin": "-> bin",
    }
    assert (host.versions, host.left_over()) == (("1.0", "2.0", ""), [])


def test_a_complete_slot_is_left_alone_to_the_byte(host: SlotHost) -> None:
    host.stage(NEW)
    before = changes(host)
    assert host.stage(NEW).was_there
    assert changes(host) == before
    assert (host.stage(OLD).was_there, host.stage(OLD).path) == (True, ROOT)
    host.bring(NEW)
    assert (host.stage(OLD).was_there, host.stage(OLD).path) == (True, ROOT + PREVIOUS)


@pytest.mark.submission
@pytest.mark.shares(3)
def test_killed_anywhere_the_slot_is_not_there_or_complete_and_the_next_one_ends_alike(host: SlotHost) -> None:
    for number in range(MOST_EFFECTS):
        if number % 2:
            host.stage("another")
        ended = struck(Blow(number // 2, host.tree.root), lambda: host.stage(NEW))
        assert host.problems(NEW) in ([""], ["", ""])
        assert host.versions in [("1.0", version, "") for version in ("", "2.0", "another" if number % 2 else "")]
        if ended == CAME_TO_ITS_END:
            break
        assert ended == KILLED
        host.stage(NEW)
        assert content(host.image(NEW)).items() <= content(host.next).items()
        assert host.left_over() == []
        shutil.rmtree(host.next)
    assert 15 < number < MOST_EFFECTS - 1, "every effect was met"


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_disk_that_is_full_at_any_moment_leaves_nothing_and_is_said(host: SlotHost) -> None:
    def stage() -> None:
        with pytest.raises(PreflightFailed, match="not enough space for another driver beside"):
            host.stage(NEW)

    for number in range(MOST_EFFECTS):
        if struck(Blow(number, host.tree.root, errno.ENOSPC), stage) == RAISED:  # it was not refused
            break
        assert (host.versions, host.left_over()) == (("1.0", "", ""), [])
    assert host.next.exists()
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
    assert not host.next.exists()


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


def test_what_a_killed_process_left_goes_and_other_files_stay(host: SlotHost) -> None:
    fill(host.root.parent / ".driver.next.0123456789ab", "2.0")
    (host.root.parent / ".driver.other.0123456789ab").write_text("")
    host.stage(NEW)
    assert host.left_over() == [".driver.other.0123456789ab"]


@pytest.mark.parametrize("ruin", ["short", "gone", "link", "garbage", "kernel", "folder", "loop"])
def test_a_slot_that_does_not_match_its_record_is_replaced_and_named(host: SlotHost, ruin: str) -> None:
    host.stage(NEW, kernel="5.10.0" if ruin == "kernel" else KERNEL)
    record, module = host.next / RECORD, host.next / f"lib/modules/{KERNEL}/rebellions.ko"
    match ruin:
        case "short":
            os.truncate(module, 10)
        case "gone":
            module.unlink()
        case "link":
            (host.next / "usr/sbin").unlink()
        case "garbage":
            record.write_text("{")
        case "folder":
            record.unlink()
            record.mkdir()
        case "loop":
            record.unlink()
            record.symlink_to(RECORD)
    assert host.problems(NEW)[1] != ""
    done = host.stage(NEW)
    assert (done.was_there, bool(done.replaced)) == (False, True)
    assert (host.problems(NEW), host.left_over()) == (["", ""], [])


@pytest.mark.parametrize("is_file", [False, True], ids=["folder", "file"])
def test_what_stage_did_not_make_is_not_removed(host: SlotHost, is_file: bool) -> None:
    if is_file:
        host.next.write_text("")
    else:
        fill(host.next, "by hand")
    with pytest.raises(PreflightFailed, match=r"`stage` did not make what is there: move it away .*driver\.next"):
        host.stage(NEW)
    assert host.next.exists()


def test_a_link_in_the_place_of_the_next_driver_is_replaced_and_what_it_leads_to_stays(host: SlotHost) -> None:
    fill(host.path("/opt/by-hand"), "by hand")
    host.next.symlink_to("../by-hand")
    host.stage(NEW)
    assert (host.versions, host.version_in("/opt/by-hand"), host.left_over()) == (("1.0", "2.0", ""), "by hand", [])


@pytest.mark.parametrize("end", ["", "usr/bin", "usr/bin/smi"])
def test_a_tree_that_something_is_mounted_in_is_not_removed(
    host: SlotHost, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A bind of the host's own folders, as for a chroot: to remove what is in the tree would empty them."""
    host.stage("another")
    left = ".driver.next.0123456789ab"
    mount_at(monkeypatch, host.next / end, host.next.with_name(left) / end)
    with pytest.raises(PreflightFailed, match=f"something is mounted at driver.next/{end}"):
        host.stage(NEW)
    assert (host.versions, host.left_over()) == (("1.0", "another", ""), [])
    host.next.rename(host.next.with_name(left))
    with pytest.raises(PreflightFailed, match=f"something is mounted at {left}/{end}"):
        host.stage(NEW)
    assert host.left_over() == [left]


def test_a_folder_that_takes_the_place_of_a_link_meanwhile_leads_the_copy_nowhere(
    host: SlotHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, outside = host.image(NEW) / "zz", host.path("/outside")
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
    host.stage(NEW)
    assert list(outside.iterdir()) == []


def test_a_tree_without_end_is_refused(host: SlotHost) -> None:
    deep = host.image(NEW).joinpath(*("d" * 110))
    deep.mkdir(parents=True)
    with pytest.raises(PreflightFailed, match="more than 100 folders in each other"):
        host.stage(NEW)
    assert host.left_over() == []


def test_a_damaged_driver_at_the_root_stays_and_is_staged_once_more(host: SlotHost) -> None:
    module = host.root / f"lib/modules/{KERNEL}/rebellions.ko"
    os.truncate(module, 3)
    done = host.stage(OLD)
    assert (done.path, module.stat().st_size) == (ROOT + NEXT, 3)


@pytest.mark.parametrize("name", ["driver", "driver.previous", "driver.next", ""])
def test_a_folder_that_no_link_leads_into_any_more_is_named(host: SlotHost, name: str) -> None:
    host.stage(NEW)
    assert not host.stage(NEW).is_folder_unused
    shutil.rmtree(host.root)
    shutil.move(host.next, host.path(f"{ROOT}.slots/a"))
    if name:
        (host.root.parent / name).symlink_to("driver.slots/a")
    done = host.stage(NEW)
    assert (done.was_there, done.is_folder_unused) == (bool(name), not name)


def test_a_byte_that_changed_is_found_by_checksum_only(host: SlotHost) -> None:
    host.stage(NEW)
    tool = host.next / "usr/bin/smi"
    tool.write_text("2.1")
    assert host.stage(NEW).was_there
    assert "usr/bin/smi" in host.stage(NEW, verifies=True).replaced
    assert host.versions == ("1.0", "2.0", "")


def test_a_driver_that_is_no_use_leaves_nothing(host: SlotHost) -> None:
    def refuse(_: str) -> str:
        raise PreflightFailed("not staged: no", "Build it.")

    with pytest.raises(PreflightFailed, match="not staged"):
        host.stage(NEW, refuse)
    assert not host.next.exists()
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
