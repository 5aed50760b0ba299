"""The driver root is whole at every moment: it leads to the old driver or to the new one, whoever is killed."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from pathlib import Path

import pytest

from driver_manager.adapters.host import slots as host_slots
from driver_manager.adapters.host.probe import probe_command
from driver_manager.adapters.host.slots import lock_of, look
from driver_manager.domain.errors import ModuleFailed, PreflightFailed
from driver_manager.domain.host import RECORD, folder_of, slot_name
from driver_manager.domain.profile import Probe
from tests.support.fakes.effect_child import CAME_TO_ITS_END, Blow, struck
from tests.support.fakes.host_folders import KERNEL, mountinfo
from tests.support.fakes.slot_host import NEW, OLD, ROOT, SlotHost, fill

FOLDER = folder_of(ROOT)
TO_OLD, TO_NEW = f"{FOLDER}/{slot_name(OLD)}", f"{FOLDER}/{slot_name(NEW)}"
ELSEWHERE = "/opt/elsewhere"
MOST_EFFECTS = 60


@pytest.fixture
def host(tmp_path: Path) -> SlotHost:
    """The new driver is staged; there is nothing at the root yet."""
    made = SlotHost(tmp_path)
    made.stage(NEW)
    return made


def in_a_folder(host: SlotHost) -> None:
    """The root is a folder with the old driver, recorded so that it can be a slot."""
    fill(host.root, "1.0")
    host.slots.keep_root(ROOT, OLD, "1.0")


def in_a_slot(host: SlotHost) -> None:
    host.stage(OLD)
    host.slots.flip(ROOT, TO_OLD, "")


def behind_a_link_of_somebody_else(host: SlotHost) -> None:
    fill(host.path(ELSEWHERE), "1.0")
    host.root.symlink_to(ELSEWHERE)


BEGINNINGS = {"folder": in_a_folder, "slot": in_a_slot, "link": behind_a_link_of_somebody_else}


def flip(host: SlotHost, target: str = TO_NEW) -> None:
    kept = slot_name(OLD) if not host.root.is_symlink() and host.root.is_dir() else ""
    host.slots.flip(ROOT, target, kept)


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_killed_anywhere_the_root_is_whole_and_the_next_flip_ends_alike(tmp_path: Path, beginning: str) -> None:
    names = [slot_name(NEW)] if beginning == "link" else [slot_name(OLD), slot_name(NEW)]
    for number in range(MOST_EFFECTS):
        host = SlotHost(tmp_path / str(number))
        host.stage(NEW)
        BEGINNINGS[beginning](host)
        ended = struck(Blow(number, host.tree.root), partial(flip, host))
        assert host.version in ("1.0", "2.0")
        flip(host)
        assert (host.version, host.seen().current) == ("2.0", slot_name(NEW))
        assert [one.name for one in host.seen().slots] == names
        if ended == CAME_TO_ITS_END:
            break
        host.slots.flip(ROOT, TO_OLD if beginning != "link" else ELSEWHERE, "")
        assert host.version == "1.0"
    assert 1 < number < MOST_EFFECTS - 1


@pytest.mark.parametrize("beginning", ["folder", "slot"])
def test_the_slot_before_is_remembered(host: SlotHost, beginning: str) -> None:
    BEGINNINGS[beginning](host)
    flip(host)
    seen = host.seen(OLD)
    assert (seen.current, seen.previous, seen.wanted) == (slot_name(NEW), slot_name(OLD), slot_name(OLD))
    kept = seen.named(slot_name(OLD))
    assert kept is not None
    assert (kept.digest, kept.version, kept.kernel, kept.problem) == (OLD, "1.0", KERNEL, "")


def written(path: Path) -> tuple[int, ...]:
    """Which file it is, and when it was written last. When it was read last is another matter."""
    found = path.lstat()
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def test_a_flip_to_where_it_leads_already_writes_nothing(host: SlotHost) -> None:
    flip(host)
    before = written(host.root)
    assert struck(Blow(0, host.tree.root), lambda: flip(host)) == CAME_TO_ITS_END
    assert written(host.root) == before


def test_the_first_root_and_one_that_is_empty_become_links(host: SlotHost) -> None:
    flip(host)
    assert str(host.root.readlink()) == f"driver.slots/{slot_name(NEW)}", "true in every mount of the folder"
    host.root.unlink()
    host.root.mkdir()
    host.slots.flip(ROOT, TO_NEW, "")
    assert host.version == "2.0"
    assert [one.name for one in host.seen().slots] == [slot_name(NEW)]


@pytest.mark.parametrize("left", [(), ("kept.conf",)], ids=["empty", "with a file"])
def test_a_folder_that_an_earlier_flip_left_is_in_nobodys_way(host: SlotHost, left: tuple[str, ...]) -> None:
    """It was at the root, and was killed before it was removed, or somebody had put something into it meanwhile."""
    folder = host.path(FOLDER)
    (folder / ".flip").mkdir()
    for name in left:
        (folder / ".flip" / name).write_text("by hand")
    host.slots.flip(ROOT, TO_NEW, "")
    assert host.version == "2.0"
    assert [path.name for path in folder.rglob("kept.conf")] == list(left)


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
    with pytest.raises(ModuleFailed, match="cannot be pointed at"):
        flip(host)
    assert host.version == "1.0"


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK], ids=["pipe", "socket"])
def test_what_is_no_file_in_a_root_is_neither_read_nor_recorded(host: SlotHost, kind: int) -> None:
    """A tree from a container image has devices as well; the end of /dev/zero never comes."""
    fill(host.root, "1.0")
    os.mknod(host.root / "special", kind | 0o600)
    host.slots.keep_root(ROOT, OLD, "1.0")
    assert "special" not in (host.root / RECORD).read_text()
    flip(host)
    assert (host.version, host.seen(OLD).named(slot_name(OLD)).problem) == ("2.0", "")  # type: ignore[union-attr]  # it is there


def test_a_root_that_is_recorded_already_is_not_written_again(host: SlotHost) -> None:
    in_a_folder(host)
    before = written(host.root / RECORD)
    host.slots.keep_root(ROOT, OLD, "1.0")
    host.slots.keep_root(ROOT, OLD, "")
    assert written(host.root / RECORD) == before
    (host.root / "more").write_text("x")
    (host.root / "usr/bin/smi").write_text("1.0.1")
    host.slots.keep_root(ROOT, OLD, "1.0.1")
    assert (host.root / RECORD).lstat() != before


def test_what_is_mounted_at_the_root_is_in_the_way(host: SlotHost) -> None:
    fill(host.root, "1.0")
    assert host.seen(NEW).obstacle == ""
    host.tree.put("/proc/1/mountinfo", mountinfo("/", ROOT, f"{ROOT}/dev"))
    assert host.seen(NEW).obstacle == f"{ROOT} is a mount point: {ROOT} cannot be pointed at a slot"


def test_slots_go_but_never_the_one_that_the_root_leads_to(host: SlotHost) -> None:
    in_a_slot(host)
    names = (slot_name(OLD), slot_name(NEW), "not-there")
    assert host.slots.remove(ROOT, names) == (slot_name(NEW),)
    assert (host.version, host.left_over()) == ("1.0", [])


def test_a_slot_that_something_is_mounted_in_stays_and_so_does_what_is_mounted(
    host: SlotHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bind of the host's own folders, as for a chroot: to remove what is in the slot would empty them."""
    in_a_slot(host)
    host.stage("another")
    host.slots.flip(ROOT, TO_NEW, "")
    mounted = host.slot(OLD) / "usr/bin"
    real_id = host_slots._mount_id  # only root can mount

    def mount_id(descriptor: int) -> str:
        is_there = Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(mounted)
        return "mnt_id:\tanother" if is_there else real_id(descriptor)

    monkeypatch.setattr(host_slots, "_mount_id", mount_id)
    with pytest.raises(ModuleFailed, match="something is mounted at "):
        host.slots.remove(ROOT, (slot_name(OLD), "another"))
    assert not host.slot("another").exists()
    assert ((mounted / "smi").read_text(), host.left_over()) == ("1.0", [])
    os.truncate(host.slot(OLD) / f"lib/modules/{KERNEL}/rebellions.ko", 3)
    with pytest.raises(PreflightFailed, match="something is mounted at "):
        host.stage(OLD)
    assert ((mounted / "smi").read_text(), host.left_over()) == ("1.0", [])


def test_nothing_goes_while_somebody_stages(host: SlotHost) -> None:
    in_a_slot(host)
    with lock_of(host.files, ROOT).alone(host.clock, 0.0):
        assert host.slots.remove(ROOT, (slot_name(NEW),)) == ()
    assert host.slot(NEW).exists()


@pytest.mark.submission
def test_a_slot_that_is_being_removed_is_gone_by_its_name_first(host: SlotHost) -> None:
    for number in range(MOST_EFFECTS):
        host.stage(NEW)
        ended = struck(Blow(number, host.tree.root), lambda: host.slots.remove(ROOT, (slot_name(NEW),)))
        slot = host.seen(NEW).named(slot_name(NEW)) if host.slot(NEW).exists() else None
        assert slot is None or slot.problem == ""
        if ended == CAME_TO_ITS_END:
            break
    assert 3 < number < MOST_EFFECTS - 1


def test_without_a_folder_there_is_nothing_to_be_seen(tmp_path: Path) -> None:
    host = SlotHost(tmp_path)
    assert look(host.files, host.tree.roots.proc, ROOT, NEW, KERNEL) is None


def test_garbage_among_the_slots_fails_no_run(host: SlotHost) -> None:
    """A run with DRIVER_LOAD=container looks there, too."""
    in_a_slot(host)
    (host.path(FOLDER) / ".previous").mkdir()
    assert (host.seen().current, host.seen().previous) == (slot_name(OLD), "")


def test_a_file_in_the_place_of_the_slots_is_none(tmp_path: Path) -> None:
    host = SlotHost(tmp_path)
    host.path(FOLDER).write_text("")
    assert look(host.files, host.tree.roots.proc, ROOT, NEW, KERNEL) is None


def test_a_slot_of_another_kernel_is_no_use_until_it_is_staged_again(host: SlotHost) -> None:
    slot = host.seen(NEW, "6.9.0").named(slot_name(NEW))
    assert slot is not None
    assert slot.problem == f"it is for kernel {KERNEL}, this one is 6.9.0"
    host.stage(NEW, kernel="6.9.0")
    again = host.seen(NEW, "6.9.0").named(slot_name(NEW))
    assert again is not None
    assert again.problem == ""


def test_only_the_wanted_slot_is_looked_through(host: SlotHost) -> None:
    os.truncate(host.slot(NEW) / "usr/bin/smi", 0)
    assert [one.problem for one in host.seen().slots] == [""]
    assert host.seen(NEW).slots[0].problem == ("it is not complete: usr/bin/smi has 0 bytes, its record has 3")


def test_the_vendors_tool_is_found_where_the_root_leads(host: SlotHost) -> None:
    in_a_slot(host)
    for target in (TO_OLD, TO_NEW):
        flip(host, target)
        command = probe_command(host.files, Probe("smi"), ROOT)
        assert command is not None
        assert str(host.path(f"{target}/usr/bin/smi")) in command.argv
