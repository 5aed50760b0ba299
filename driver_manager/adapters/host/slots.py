"""Staged drivers: the next driver beside a driver root. Each change is one rename, so the root is always whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.adapters.host.files import (
    HostFiles,
    OpenEntry,
    WorkLock,
    exchange,
    mount_id,
    replace_in,
    translated,
)
from driver_manager.adapters.host.holders import mount_points_below
from driver_manager.adapters.process.forked import lines_within
from driver_manager.core.ports_base import Clock
from driver_manager.domain.errors import ConfigError, ModuleFailed, PreflightFailed
from driver_manager.domain.host import (
    FOLDER_END,
    NEXT,
    PREVIOUS,
    RECORD,
    STAGED_FORM,
    SlotRecord,
    StagedSlot,
    StagedSlots,
    decode_staged,
    encode_staged,
)
from driver_manager.domain.profile import Profile, Strategy, is_safe_root
from driver_manager.domain.wire import Unreadable

# One driver tree as files: what is in it, a copy of it on disk, and its removal. Links are never followed.

CHUNK_BYTES = 1024 * 1024
BLOCK_BYTES = 4096
MAX_RECORD_BYTES = 64 * 1024 * 1024
MOST_FOLDERS_DEEP = 100
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class _TreeEntry(NamedTuple):
    """Something in a tree: its path there, its name in the open `folder`, and whether it is in another mount."""

    path: str
    name: str
    folder: int
    status: os.stat_result
    is_mounted: bool


def _entries(folder: int, path: str = "", *, enters_mounts: bool = False) -> Iterator[_TreeEntry]:
    """Everything in the open folder, each folder before what is in it. Raises OSError."""
    if path.count("/") > MOST_FOLDERS_DEEP:
        raise OSError(errno.ENAMETOOLONG, f"it has more than {MOST_FOLDERS_DEEP} folders in each other", path)
    mount = mount_id(folder)
    for name in sorted(os.listdir(folder)):  # by open folder
        with _opened(name, folder, _ENTRY) as entry:
            found = _TreeEntry(path + name, name, folder, os.fstat(entry), mount_id(entry) != mount)
            yield found
            if stat.S_ISDIR(found.status.st_mode) and (enters_mounts or not found.is_mounted):
                with _opened(".", entry) as inner:
                    yield from _entries(inner, f"{path}{name}/", enters_mounts=enters_mounts)


def tree_of(top: int, *, sums: bool = False) -> dict[str, str]:
    """Files and links in the open folder without its record, as `SlotRecord.tree` has them. Raises OSError.

    Without devices, pipes and sockets, as reading one may never end, and mounts. `sums`: with checksums.
    """
    found: dict[str, str] = {}
    for path, name, folder, status, is_mounted in _entries(top):
        if is_mounted:
            continue
        if stat.S_ISLNK(status.st_mode):
            found[path] = f"-> {os.readlink(name, dir_fd=folder)}"
        elif stat.S_ISREG(status.st_mode) and path != RECORD:
            found[path] = f"{status.st_size} {_sum(name, folder)}" if sums else f"{status.st_size}"
    return found


def _sum(name: str, folder: int) -> str:
    with os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_tree(source: int, target: int) -> None:
    """Copy what is in the open folder into the other one, which is empty, with modes, times and, for root, owners.

    Raises OSError for what is neither file, link nor folder, and if the copy is below the source.
    """
    _copy(source, target, os.fstat(target), "")


def _copy(source: int, target: int, copy: os.stat_result, path: str) -> None:
    """Copy one folder by open folders alone: another process may replace a folder by a link in the meantime."""
    if path.count("/") > MOST_FOLDERS_DEEP:
        raise OSError(errno.ENAMETOOLONG, f"it has more than {MOST_FOLDERS_DEEP} folders in each other", path)
    for name in os.listdir(source):  # by open folder
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if os.path.samestat(status, copy):
            raise OSError(errno.EINVAL, "the copy would contain itself")
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif stat.S_ISDIR(status.st_mode):
            os.mkdir(name, 0o700, dir_fd=target)
            with _opened(name, source) as inner, _opened(name, target) as made:
                _copy(inner, made, copy, f"{path}{name}/")
        elif not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "neither a file nor a link nor a folder", path + name)
        elif path + name != RECORD:
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
            with os.fdopen(descriptor, "wb") as to, os.fdopen(os.open(name, _FILE, dir_fd=source), "rb") as of:
                while chunk := of.read(CHUNK_BYTES):
                    to.write(chunk)
                to.flush()
                _take_after(to.fileno(), os.fstat(of.fileno()))
    _take_after(target, os.fstat(source))


def _take_after(descriptor: int, status: os.stat_result) -> None:
    """Give what is open there the owner, the mode and the times that are in `status`."""
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, status.st_uid, status.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))


def remove_tree(above: int, name: str) -> None:
    """Remove the tree or link of that name, if it exists. Raises OSError: EBUSY if something is mounted in it."""
    if not _is_folder(above, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=above)
        return
    refuse_mounts(above, name)
    import shutil  # noqa: PLC0415  # a MiB with its decompressors, for runs that remove something

    shutil.rmtree(name, dir_fd=above)


def _is_folder(above: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def refuse_mounts(above: int, name: str) -> None:
    """Raise OSError (EBUSY) if something is mounted in the tree: its removal would empty that, too."""
    with _opened(name, above) as top:
        mounts = [""] if mount_id(top) != mount_id(above) else [one.path for one in _entries(top) if one.is_mounted]
    if mounts:
        raise OSError(errno.EBUSY, f"something is mounted at {name}/{mounts[0]}")


@contextmanager
def _opened(name: str | Path, folder: int | None = None, flags: int = _FOLDER | os.O_NOFOLLOW) -> Iterator[int]:
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# The driver root and the trees beside it. A record comes and goes with its tree, so each order of them can be read,
# and no rename has to be on disk before the next one.

LOCK = ".lock"
"""Appended to the driver root: only one process at a time stages there."""


class HostSlots:
    """See `driver_manager.core.ports.SlotFolders`."""

    def __init__(self, files: HostFiles, proc: Path) -> None:
        self._files = files
        self._proc = proc

    def keep_root(self, root: str, digest: str, version: str) -> None:
        what = f"preflight: {root} cannot be exchanged, so the old driver could not be restored"
        remedy = f"Put {root} on a file system that can exchange two names (renameat2)."
        with translated(PreflightFailed, what, remedy), _above(self._files, root) as (above, name):
            # See that this file system can exchange two names. Raises OSError.
            names = (f".{name}.tried-a", f".{name}.tried-b")
            try:
                for one in names:
                    with contextlib.suppress(FileExistsError):
                        os.symlink(one, one, dir_fd=above)
                exchange(above, names[0], above, names[1])
            finally:
                for one in names:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(one, dir_fd=above)
            if not _is_folder(above, name):
                return
            with _opened(name, above) as top:
                kernel = (self._proc / "sys/kernel/osrelease").read_text().strip()
                has_served = bool(digest or version)
                made = SlotRecord(digest, kernel, version, tree_of(top), is_kept=True, has_served=has_served)
                try:
                    found = _record_at(top)
                except Unreadable:
                    found = None
                if (record := _record_to_keep(found, made)) != found:
                    replace_in(OpenEntry(top, RECORD, Path(root) / RECORD), encode_staged(record), 0o644)

    def take_next(self, root: str, digest: str) -> None:
        what = f"preflight: {root}{NEXT} cannot be renamed to {root}{PREVIOUS}"
        remedy = "Check these paths on the host, then run again."
        with translated(PreflightFailed, what, remedy), _above(self._files, root) as (above, name):
            place, previous = name + NEXT, name + PREVIOUS
            before = os.stat(place, dir_fd=above, follow_symlinks=False)
            found = _slot(self._files, root + NEXT)
            _exchange(above, place, previous)
            # `stage` may have replaced it since the look.
            after = os.stat(previous, dir_fd=above, follow_symlinks=False)
            if found is None or found.digest != digest or not os.path.samestat(before, after):
                _exchange(above, place, previous)
                raise OSError(errno.ESTALE, f"it is no longer the driver {digest}")

    def flip(self, root: str) -> None:
        what = f"{root} cannot be exchanged with {root}{PREVIOUS}"
        remedy = "It is unchanged. Check that path on the host, then run again."
        with translated(ModuleFailed, what, remedy), _above(self._files, root) as (above, name):
            _exchange(above, name, name + PREVIOUS)


def look(files: HostFiles, proc: Path, root: str, digest: str, kernel: str) -> StagedSlots | None:
    """What is staged at `root` and beside it, None if nothing is. The trees of `digest` are looked through.

    A record at the root counts if `stage` made it and the tree still matches it: otherwise the driver was installed
    there. Raises OSError.
    """
    root = root.rstrip("/")
    paths = (root + NEXT, root, root + PREVIOUS)
    found = [slot for path in paths if (slot := _slot(files, path, digest, kernel, is_root=path == root))]
    left = _left_by_earlier(files, root, digest)
    if not found and not left:
        return None
    wanted = sorted((slot for slot in found if slot.digest == digest != ""), key=lambda slot: bool(slot.problem))
    if digest and not wanted:  # what cannot be read may be the wanted driver
        wanted = [slot for slot in found if slot.problem and not slot.name.endswith(PREVIOUS)]
    slots = tuple(sorted(found, key=lambda slot: slot.name))
    seen = StagedSlots(root, slots, wanted[0].name if wanted else "", "" if wanted else left)
    if not wanted or seen.path(seen.wanted) == root:
        return seen
    obstacle, remedy = _obstacle(files, proc, root)
    return replace(seen, obstacle=obstacle, remedy=remedy if obstacle else "")


def _obstacle(files: HostFiles, proc: Path, root: str) -> tuple[str, str]:
    """Why the trees at the root and beside it cannot be exchanged, "" if they can, and the remedy. Raises OSError."""
    table = (proc / "1/mountinfo").read_text(errors="surrogateescape")
    above = files.real(root.rpartition("/")[0] or "/").rstrip("/")
    for path in (root, root + NEXT, root + PREVIOUS):
        place = f"{above}/{path.rpartition('/')[2]}"
        if place in mount_points_below(table, place):  # what is mounted in a tree goes along with it
            remedy = "Unmount it on the host; where a driver container mounts it, delete that pod first."
            return f"{place} is a mount point: {root} cannot be exchanged", remedy
    previous = files.path(root + PREVIOUS, follow_last=False)
    is_ours = previous.is_symlink() or not previous.exists() or _slot(files, root + PREVIOUS) is not None
    if not is_ours and not (previous.is_dir() and not any(previous.iterdir())):
        return f"{root}{PREVIOUS} is not of driver-manager, which needs that name", "Move it away, then run again."
    return files.why_not_writable(root + LOCK), f"Mount the folder of {root} on the host read-write."


def _slot(  # noqa: PLR0913  # what makes a record count
    files: HostFiles, path: str, digest: str = "", kernel: str = "", *, sums: bool = False, is_root: bool = False
) -> StagedSlot | None:
    """The recorded tree at `path`, None if none or if installed there (`is_root`). Checks that of `digest`."""
    seen = StagedSlot(path.rpartition("/")[2])
    try:
        with _opened(files.path(path)) as top:
            record = _record_at(top)
            if record is None:
                return None
            is_wanted = digest != "" and record.digest == digest
            if is_root and ((record.is_kept and digest) or (not is_wanted and record.why_other(tree_of(top)))):
                return None
            why = record.why_unusable(kernel, tree_of(top, sums=sums)) if is_wanted else ""
            return StagedSlot(seen.name, record.digest, record.version, record.kernel, why, record.has_served)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Unreadable as error:
        return replace(seen, problem=error.what)
    except OSError as error:
        return replace(seen, problem=f"it cannot be read: {error.strerror}")


def _left_by_earlier(files: HostFiles, root: str, digest: str) -> str:
    """Where an earlier version staged the driver `digest`, "" if nowhere. Raises OSError."""
    folder = root + FOLDER_END
    try:
        paths = [f"{folder}/{name}" for name in sorted(files.names(folder)) if digest and name[0] != "."]
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return next((path for path in paths if (slot := _slot(files, path)) and slot.digest == digest), "")


def may_have_slots(profile: Profile, root: str) -> bool:
    """True if drivers may be staged at a root, a path without symlinks: those that are swapped in place."""
    return profile.strategy is Strategy.IN_PLACE and is_safe_root(root)


@contextmanager
def _above(files: HostFiles, root: str) -> Iterator[tuple[int, str]]:
    """The folder that has the root, open on a view that can be written, and the root's name in it. Raises OSError."""
    above, _, name = root.rpartition("/")
    folder = files.open_folder(above or "/")
    try:
        yield folder, name
    finally:
        os.close(folder)


def _record_at(top: int) -> SlotRecord | None:
    """The record at the top of an open tree, None if there is none. Raises OSError, Unreadable."""
    try:
        if not stat.S_ISREG(os.stat(RECORD, dir_fd=top, follow_symlinks=False).st_mode):
            raise STAGED_FORM.refused("it is not a file")
        descriptor = os.open(RECORD, _FILE, dir_fd=top)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return decode_staged(file.read(MAX_RECORD_BYTES).decode(errors="replace"))


def _record_to_keep(found: SlotRecord | None, made: SlotRecord) -> SlotRecord:
    """The record to keep at a root with the record `found`, where `made` is what is known now.

    A record of `stage` stays while the tree matches it, that of an earlier run also while nothing else is known.
    """
    if found is None or found.why_other(made.tree):
        return made
    is_same = made.digest in ("", found.digest) and made.version in ("", found.version)
    if found.is_kept and not (is_same and made.kernel == found.kernel):
        return made
    return replace(found, has_served=found.has_served or (made.has_served and is_same))


def _exchange(folder: int, name: str, other: str) -> None:
    """Let the two names change places; one of them may be free, or an empty folder. Raises OSError."""
    for one in (name, other):
        with contextlib.suppress(OSError):  # an empty folder is no driver to go back to
            os.rmdir(one, dir_fd=folder)
    try:
        exchange(folder, name, folder, other)
    except FileNotFoundError:
        try:
            os.rename(name, other, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:
            os.rename(other, name, src_dir_fd=folder, dst_dir_fd=folder)


# Fills the place of the next driver: complete under its name, or not there at all.
#
# The tree is copied under a temporary name, judged there, put on disk with its record, and then renamed. What a killed
# process leaves under such a name, the next one removes. The driver root itself is not touched.

MARGIN_BYTES = 1024 * 1024
"""Beside the tree itself, for the record and the folders."""

MIB = 1024 * 1024

Judge = Callable[[str], str]
"""Given the path of a tree on the host: the version of the driver in it. Raises PreflightFailed if it is no use."""


class Wanted(Struct, frozen=True):
    """What is to be staged: the tree at `source`, a path of this process, as the driver `digest` for `kernel`."""

    source: Path
    digest: str
    kernel: str


class Staged(Struct, frozen=True):
    """The result. `was_there`: nothing was written. `replaced`: why a tree under that name did not serve, else "".

    `is_folder_unused`: the folder of an earlier version is there, and no link beside it leads into it.
    """

    path: str
    version: str
    was_there: bool = False
    replaced: str = ""
    is_folder_unused: bool = False


class Staging:
    """Stages beside `root`; `verifies`: a tree that is there already is read and compared to the last byte."""

    def __init__(self, files: HostFiles, root: str, clock: Clock, *, verifies: bool = False) -> None:
        self._files = files
        self._root = root
        self._paths = (root, root + NEXT, root + PREVIOUS)
        self._clock = clock
        self._verifies = verifies

    def stage(self, wanted: Wanted, judge: Judge, timeout_s: float) -> Staged:
        """Stage `wanted`, or find it whole. Another process that stages is waited for, `timeout_s` seconds.

        Raises PreflightFailed: no room, no use, or the other process does not end; ConfigError for what cannot be read.
        """
        if not wanted.source.is_dir():
            raise ConfigError(f"{wanted.source} is not a folder", "Give --from the folder with the driver tree.")
        try:
            with (
                _above(self._files, self._root) as (above, name),
                WorkLock(self._files, self._root + LOCK).alone(self._clock, timeout_s) as is_alone,
            ):
                if not is_alone:
                    raise PreflightFailed(
                        f"another process has been staging beside {self._root} for {timeout_s:g} s",
                        "Wait until it has ended (`lslocks` shows it), then run again.",
                    )
                made = re.compile(rf"\.{re.escape(name + NEXT)}\.[0-9a-f]{{12}}")
                for left in filter(made.fullmatch, os.listdir(above)):  # noqa: PTH208  # by open folder
                    remove_tree(above, left)
                done = self._staged(above, name + NEXT, wanted, judge)
                is_used = any(self._files.path(path, follow_last=False).is_symlink() for path in self._paths)
                return replace(done, is_folder_unused=not is_used and self._files.exists(self._root + FOLDER_END))
        except OSError as error:
            raise _refused(self._root, error) from error

    def _staged(self, above: int, name: str, wanted: Wanted, judge: Judge) -> Staged:
        path = self._root + NEXT
        for one in self._paths:
            slot = _slot(self._files, one, wanted.digest, wanted.kernel, sums=self._verifies)
            if slot is not None and slot.digest == wanted.digest and not slot.problem:
                return Staged(one, slot.version, was_there=True)
        before = _slot(self._files, path, wanted.digest, wanted.kernel, sums=self._verifies)
        here = self._files.path(path, follow_last=False)
        if before is None and here.exists() and not here.is_symlink():
            raise OSError(errno.EEXIST, "`stage` did not make what is there: move it away", path)
        if _is_folder(above, name):
            refuse_mounts(above, name)
        with _opened(wanted.source, flags=_FOLDER) as source:
            _refuse_without_room(above, source, self._root)
            new = f".{name}.{os.urandom(6).hex()}"
            try:
                version = self._copied(above, new, source, wanted, judge)
                _exchange(above, new, name)  # in one operation: a run may take what is there at the same time
                os.fsync(above)
            finally:
                remove_tree(above, new)
        return Staged(path, version, replaced=before.problem if before is not None else "")

    def _copied(self, above: int, name: str, source: int, wanted: Wanted, judge: Judge) -> str:
        """Copy the tree under `name`, all of it on disk, with a record; the driver's version."""
        os.mkdir(name, 0o700, dir_fd=above)
        path = f"{self._root.rpartition('/')[0]}/{name}"
        with _opened(name, above) as top:
            copy_tree(source, top)
            version = judge(path)
            record = SlotRecord(wanted.digest, wanted.kernel, version, tree_of(top, sums=True))
            replace_in(OpenEntry(top, RECORD, Path(path) / RECORD), encode_staged(record), 0o644)
            # Wait until everything in the open folder is on disk. Raises OSError.
            for entry in _entries(top):
                if stat.S_ISREG(entry.status.st_mode) or stat.S_ISDIR(entry.status.st_mode):
                    with _opened(entry.name, entry.folder, _FILE) as one:
                        os.fsync(one)
            os.fsync(top)
        return version


def _refuse_without_room(above: int, source: int, root: str) -> None:
    """Raise PreflightFailed if the tree would not fit. Raises OSError."""
    entries = [one.status for one in _entries(source, enters_mounts=True)]
    sizes = [status.st_size if stat.S_ISREG(status.st_mode) else 0 for status in entries]
    needed = sum(size // BLOCK_BYTES + 2 for size in sizes) * BLOCK_BYTES
    status = os.fstatvfs(above)
    free = status.f_bavail * status.f_frsize
    if needed + MARGIN_BYTES > free:
        raise _no_room(root, f"{needed / MIB:.0f} MiB are needed, {free / MIB:.0f} MiB are free")
    if status.f_files and len(sizes) > status.f_favail:
        raise _no_room(root, f"{len(sizes)} inodes are needed, {status.f_favail} are free")


def _no_room(root: str, why: str) -> PreflightFailed:
    return PreflightFailed(
        f"not enough space for another driver beside {root}: {why}",
        f"Free some space on that file system, or remove {root}{PREVIOUS}, the way back. Nothing was changed.",
    )


def _refused(root: str, error: OSError) -> PreflightFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_room(root, error.strerror or "it is full")
    name = f" ({error.filename})" if isinstance(error.filename, str) else ""
    return PreflightFailed(
        f"the driver cannot be staged beside {root}: {error.strerror}{name}",
        f"Mount the folder of {root} on the host read-write at the same path, and check that path. The running driver "
        "is untouched.",
    )


# Reads files ahead, so that the load finds them in the page cache.
#
# In a child, because a disk may never answer; bounded, because what is read pushes something else out.

MOST_BYTES = 1024 * 1024 * 1024


def warm(paths: Callable[[], Iterable[Path]], timeout_s: float, most_bytes: int = MOST_BYTES) -> int:
    """Read the files in a child; the bytes, 0 if that takes too long. Skips those that cannot be read."""
    answer = lines_within(timeout_s, lambda: [str(_read(paths(), most_bytes))])
    return int(answer[0]) if answer else 0


def _read(paths: Iterable[Path], most_bytes: int) -> int:
    done = 0
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError):
            done += _read_file(path, most_bytes - done)
    return done


def _read_file(path: Path, most_bytes: int) -> int:
    """How many bytes of a regular file were read. Raises OSError."""
    # A pipe in its place would wait for its writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        left = min(os.fstat(file.fileno()).st_size, most_bytes)
        done = 0
        while chunk := file.read(min(CHUNK_BYTES, left - done)):
            done += len(chunk)
        return done
