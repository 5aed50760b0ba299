"""Fills a slot beside a driver root: complete under its name, or not there at all.

The tree is copied under a name that nobody reads, judged there, put on disk with its record, and then renamed. Whoever
dies leaves a name with a dot, which the next one removes. The driver root itself is not touched.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from driver_manager.adapters.host.files import HostFiles, replace_in
from driver_manager.adapters.host.openat import Place
from driver_manager.adapters.host.rename import exchange
from driver_manager.adapters.host.slot_tree import (
    copy_tree,
    found_in,
    needed_bytes,
    record_of,
    refuse_mounts,
    remove_tree,
    sync_tree,
    why_other_content,
)
from driver_manager.adapters.host.slots import OpenSlots, beside, lock_of, opened, record_at, slot_behind, sweep
from driver_manager.domain.errors import ConfigError, PreflightFailed
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.staged import (
    RECORD,
    SlotRecord,
    SlotRecordUnreadable,
    encode,
    folder_of,
    slot_name,
    why_unusable,
)
from driver_manager.ports.base import Clock

MARGIN_BYTES = 1024 * 1024
"""Beside the tree itself, for the record and the folders."""

MIB = 1024 * 1024

Judge = Callable[[str], str]
"""Given the path of a tree on the host: the version of the driver in it. Raises PreflightFailed where it is no use."""


class Wanted(Frozen):
    """What is to be staged: the tree at `source`, a path of this process, as the driver `digest` for `kernel`.

    `is_loaded`: a driver is loaded, so that a slot which the driver root leads to is in use.
    """

    source: Path
    digest: str
    kernel: str
    is_loaded: bool = False


class Staged(Frozen):
    """What became of it. `was_there`: nothing was written. `replaced`: why a slot of that name had to go, else "".

    `left`: why a slot that is in use does not match its record, else "".
    """

    path: str
    version: str
    was_there: bool = False
    replaced: str = ""
    left: str = ""


class Staging:
    """Fills slots beside `root`; `verifies`: a slot that is there already is read and compared to the last byte."""

    def __init__(self, files: HostFiles, root: str, clock: Clock, *, verifies: bool = False) -> None:
        self._files = files
        self._root = root
        self._clock = clock
        self._verifies = verifies

    def stage(self, wanted: Wanted, judge: Judge, timeout_s: float) -> Staged:
        """Fill the slot of `wanted`, or find it whole. Another one who stages is waited for, `timeout_s` seconds.

        Raises PreflightFailed: no room, no use, or somebody else does not end; ConfigError for what cannot be read.
        """
        if not wanted.source.is_dir():
            raise ConfigError(f"{wanted.source} is not a folder", "Give --from the folder with the driver tree.")
        try:
            with opened(self._files, self._root) as at, self._alone(timeout_s):
                sweep(at)
                return self._staged(at, wanted, judge)
        except OSError as error:
            raise _refused(self._root, error) from error

    @contextmanager
    def _alone(self, timeout_s: float) -> Iterator[None]:
        with lock_of(self._files, self._root).alone(self._clock, timeout_s) as is_alone:
            if not is_alone:
                raise PreflightFailed(
                    f"another process has been staging in {folder_of(self._root)} for {timeout_s:g} s",
                    "Wait until it has ended (`lslocks` shows it), then run again.",
                )
            yield

    def _staged(self, at: OpenSlots, wanted: Wanted, judge: Judge) -> Staged:
        name = slot_name(wanted.digest)
        path = f"{folder_of(self._root)}/{name}"
        record, why = self._there(at, name, wanted)
        if record is not None and not why:
            return Staged(path, record.version, was_there=True)
        if why and wanted.is_loaded and name == slot_behind(self._files, self._root):
            # Whoever has it mounted would be left with an empty folder.
            return Staged(path, record.version if record is not None else "", was_there=True, left=why)
        refuse_mounts(name, at.slots)
        _refuse_without_room(at, wanted.source)
        new = beside(name)
        try:
            version = self._copied(at, new, wanted, judge)
            if why:
                exchange(at.slots, new, at.slots, name)
            else:
                os.rename(new, name, src_dir_fd=at.slots, dst_dir_fd=at.slots)
            os.fsync(at.slots)
        finally:
            remove_tree(new, at.slots)
        return Staged(path, version, replaced=why)

    def _there(self, at: OpenSlots, name: str, wanted: Wanted) -> tuple[SlotRecord | None, str]:
        """The record of the slot of that name, and why the slot does not serve: None and "" where there is none."""
        try:
            top = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at.slots)
        except FileNotFoundError:
            return None, ""
        except NotADirectoryError:
            return None, "it is not a folder"
        try:
            record = record_at(top)
            if record is None:
                return None, f"it has no {RECORD}"
            why = why_unusable(record, wanted.digest, wanted.kernel, found_in(top))
            return record, why or (why_other_content(top, record) if self._verifies else "")
        except SlotRecordUnreadable as error:
            return None, error.what
        finally:
            os.close(top)

    def _copied(self, at: OpenSlots, name: str, wanted: Wanted, judge: Judge) -> str:
        """Copy the tree under `name`, all of it on disk, with a record; the driver's version."""
        os.mkdir(name, 0o700, dir_fd=at.slots)
        top = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at.slots)
        try:
            copy_tree(wanted.source, top)
            version = judge(f"{folder_of(self._root)}/{name}")
            sync_tree(top)
            record = record_of(top, wanted.digest, wanted.kernel, version)
            replace_in(Place(top, RECORD, Path(at.path) / name / RECORD), encode(record), 0o644)
            return version
        finally:
            os.close(top)


def _refuse_without_room(at: OpenSlots, source: Path) -> None:
    """Raise PreflightFailed where the tree would not fit. Raises OSError."""
    needed, names = needed_bytes(source)
    status = os.fstatvfs(at.slots)
    free = status.f_bavail * status.f_frsize
    if needed + MARGIN_BYTES > free:
        raise _no_room(at.path, f"{needed / MIB:.0f} MiB are needed, {free / MIB:.0f} MiB are free")
    if status.f_files and names > status.f_favail:
        raise _no_room(at.path, f"{names} inodes are needed, {status.f_favail} are free")


def _no_room(folder: str, why: str) -> PreflightFailed:
    return PreflightFailed(
        f"not enough space for another driver in {folder}: {why}",
        f"Free some space on that file system, or remove old slots from {folder} that `driver-manager status` does not "
        "name as current. Nothing was changed.",
    )


def _refused(root: str, error: OSError) -> PreflightFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_room(folder_of(root), error.strerror or "it is full")
    name = f" ({error.filename})" if isinstance(error.filename, str) else ""
    return PreflightFailed(
        f"the driver cannot be staged in {folder_of(root)}: {error.strerror}{name}",
        f"Mount the folder of {root} on the host read-write at the same path, and check that path. The running driver "
        "is untouched.",
    )
