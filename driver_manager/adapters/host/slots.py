"""Staged drivers: slots beside a driver root, and the rename that puts one in its place.

Each change is one rename, so the driver root is whole whenever a run is killed.
"""

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

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.adapters.host.files import HostFiles, OpenEntry, WorkLock, exchange, replace_in
from driver_manager.adapters.host.mounts import mount_points_below
from driver_manager.adapters.process.forked import lines_within
from driver_manager.core.ports_base import Clock
from driver_manager.domain.errors import ConfigError, ModuleFailed, PreflightFailed
from driver_manager.domain.host import (
    RECORD,
    STAGE_AGAIN,
    STAGED_FORM,
    FoundTree,
    SlotRecord,
    SlotRecordUnreadable,
    StagedFile,
    StagedSlot,
    StagedSlots,
    decode_staged,
    encode_staged,
    folder_of,
    slot_name,
    why_unusable,
)
from driver_manager.domain.profile import Profile, Strategy, is_safe_root

# One driver tree as files: what is in it, a copy of it, how it gets on disk to the last byte, and its removal.
#
# Works by open folders and never follows a link. Knows nothing of drivers.

CHUNK_BYTES = 1024 * 1024
BLOCK_BYTES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def found_in(top: Path | int) -> FoundTree:
    """Files and links in the folder, without a slot's record at its top. Raises OSError.

    Devices, pipes and sockets count for nothing: reading one may never end.
    """
    sizes: dict[str, int] = {}
    links: dict[str, str] = {}
    left = [""]
    with _opened(top) as root:
        while left:
            inner = left.pop()
            with _below(root, inner) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    path = f"{inner}/{entry.name}" if inner else entry.name
                    if entry.is_symlink():
                        links[path] = os.readlink(entry.name, dir_fd=folder)
                    elif entry.is_dir(follow_symlinks=False):
                        left.append(path)
                    elif entry.is_file(follow_symlinks=False) and path != RECORD:
                        sizes[path] = entry.stat(follow_symlinks=False).st_size
    return FoundTree(sizes, links)


def needed_bytes(top: Path) -> tuple[int, int]:
    """Bytes on disk, and names, that a copy of the tree takes. Raises OSError."""
    found = found_in(top)
    blocks = sum(-(-size // BLOCK_BYTES) + 1 for size in found.sizes.values()) + len(found.links)
    names = len(found.sizes) + len(found.links) + sum(1 for _ in os.walk(top))
    return (blocks + names) * BLOCK_BYTES, names


def record_of(top: Path | int, digest: str, kernel: str, version: str) -> SlotRecord:
    """The record of the tree as it is, every file read. Raises OSError."""
    with _opened(top) as root:
        found = found_in(root)
        files = tuple(_checked(root, path) for path in sorted(found.sizes))
        return SlotRecord(digest, kernel, version, files, dict(sorted(found.links.items())))


def why_other_content(top: Path | int, record: SlotRecord) -> str:
    """Which file is not as the record says, by checksum, "" for none. Raises OSError."""
    with _opened(top) as root:
        wrong = (one.path for one in record.files if _checked(root, one.path) != one)
        path = next(wrong, "")
    return f"{path} is not the file that its record names (sha256 differs)" if path else ""


def _checked(root: int, path: str) -> StagedFile:
    inner, _, name = path.rpartition("/")
    digest, size = hashlib.sha256(), 0
    with _below(root, inner) as folder, os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return StagedFile(path, size, digest.hexdigest())


def copy_tree(source: Path, target: int) -> None:
    """Copy what is in the folder `source` into the open and empty folder.

    Modes, times and, for root, owners go along; what is neither file, link nor folder is refused, and so is a source
    that the copy lies in. Raises OSError.
    """
    with _opened(source) as top:
        _copy_folder(top, target, os.fstat(target))


def _copy_folder(source: int, target: int, copy: os.stat_result) -> None:
    if os.path.samestat(os.fstat(source), copy):
        raise OSError(errno.EINVAL, "the copy would contain itself")
    with os.scandir(source) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        if name == RECORD:
            continue
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif kind == stat.S_IFDIR:
            os.mkdir(name, 0o700, dir_fd=target)
            with _opened_in(source, name) as inner, _opened_in(target, name) as made:
                _copy_folder(inner, made, copy)
        elif kind == stat.S_IFREG:
            _copy_file(source, target, name)
        else:
            raise OSError(errno.EINVAL, "neither a file nor a link nor a folder", name)
    _take_after(target, os.fstat(source))


def _copy_file(source: int, target: int, name: str) -> None:
    made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=target)
    with os.fdopen(made, "wb") as to, os.fdopen(os.open(name, _FILE, dir_fd=source), "rb") as of:
        while chunk := of.read(CHUNK_BYTES):
            to.write(chunk)
        to.flush()
        _take_after(to.fileno(), os.fstat(of.fileno()))


def sync_tree(top: int) -> None:
    """See everything in the open folder on disk. Raises OSError."""
    with os.scandir(top) as entries:
        found = sorted((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries)
    for name, is_folder, is_link in found:
        if is_folder:
            with _opened_in(top, name) as inner:
                sync_tree(inner)
        elif not is_link:
            file = os.open(name, _FILE, dir_fd=top)
            try:
                os.fsync(file)
            finally:
                os.close(file)
    os.fsync(top)


def _take_after(descriptor: int, status: os.stat_result) -> None:
    """Give what is open there the owner, the mode and the times that are in `status`."""
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, status.st_uid, status.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))


def remove_tree(name: str, folder: int) -> None:
    """Remove the tree, link or file of that name in the open folder; what somebody else removed meanwhile is gone.

    Raises OSError: EBUSY, before anything is gone, where something is mounted in it.
    """
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
    refuse_mounts(name, folder)
    import shutil  # noqa: PLC0415  # a MiB with its decompressors, for runs that remove something

    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(name, dir_fd=folder)


def refuse_mounts(name: str, folder: int) -> None:
    """Raise OSError (EBUSY) where something is mounted in the tree of that name: its removal would empty that, too.

    By the open folder, so in whichever mount namespace that is: none of the others is seen, nor emptied.
    """
    here, left = _mount_id(folder), [name]
    while left:
        path = left.pop()
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            _below(folder, path) as inner,
            os.scandir(inner) as entries,
        ):
            _refuse_other_mount(here, inner, path)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(f"{path}/{entry.name}")
                    continue
                one = os.open(entry.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inner)
                try:
                    _refuse_other_mount(here, one, f"{path}/{entry.name}")
                finally:
                    os.close(one)


def _refuse_other_mount(here: str, descriptor: int, path: str) -> None:
    if _mount_id(descriptor) != here:
        raise OSError(errno.EBUSY, f"something is mounted at {path}")


def _mount_id(descriptor: int) -> str:
    """Of the mount that what is open was found in (proc(5), /proc/pid/fdinfo): a bind has the device of its origin."""
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    return next((line for line in text.splitlines() if line.startswith("mnt_id:")), "")


@contextmanager
def _opened(top: Path | int) -> Iterator[int]:
    """The folder, open; one that is open already stays so afterwards."""
    if isinstance(top, int):
        yield top
        return
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _opened_in(folder: int, name: str) -> Iterator[int]:
    inner = os.open(name, _FOLDER, dir_fd=folder)
    try:
        yield inner
    finally:
        os.close(inner)


@contextmanager
def _below(root: int, path: str) -> Iterator[int]:
    """The folder `path` in the open folder, without following a link on the way."""
    with contextlib.ExitStack() as held:
        folder = held.enter_context(_opened_in(root, "."))
        for name in path.split("/") if path else ():
            folder = held.enter_context(_opened_in(folder, name))
        yield folder


LOCK, PREVIOUS, FLIP, TRIED = ".lock", ".previous", ".flip", ".tried"
"""Names in the folder of the slots. A slot's own name never begins with a dot."""

MAX_RECORD_BYTES = 64 * 1024 * 1024
RANDOM_BYTES = 6
_BESIDE = re.compile(r"\..+\.[0-9a-f]{12}")
BUSY_S = 0.0


class OpenSlots(Struct, frozen=True):
    """The open folder of the driver root, its name there, and the open folder of its slots."""

    above: int
    name: str
    slots: int
    path: str

    def place(self, name: str) -> OpenEntry:
        """The place of a file among the slots."""
        return OpenEntry(self.slots, name, Path(self.path) / name)


class HostSlots:
    """See `driver_manager.core.ports.SlotFolders`; beside that, what the facts read."""

    def __init__(self, files: HostFiles, proc: Path, clock: Clock) -> None:
        self._files = files
        self._proc = proc
        self._clock = clock

    def keep_root(self, root: str, digest: str, version: str) -> None:
        """See the port."""
        try:
            with opened(self._files, root) as at, _folder_in(at.above, at.name) as top:
                if os.fstat(top).st_dev != os.fstat(at.slots).st_dev:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
                _try_exchange(at.slots)
                kernel = (self._proc / "sys/kernel/osrelease").read_text().strip()
                if _why_no_slot(top, digest, version, kernel):
                    where = OpenEntry(top, RECORD, Path(root) / RECORD)
                    replace_in(where, encode_staged(record_of(top, digest, kernel, version)), 0o644)
        except OSError as error:
            raise PreflightFailed(
                f"preflight: {root} cannot become a slot, so the old driver could not be restored: {error.strerror}",
                f"Put {root} and {folder_of(root)} on one file system that can exchange two names (renameat2), or move "
                f"what is in {root} elsewhere and leave a symlink to it there.",
            ) from error

    def flip(self, root: str, target: str, kept: str) -> None:
        """See the port."""
        try:
            with opened(self._files, root) as at:
                if not self._leads(root, target):
                    self._flip(at, root, target, kept)
                    os.fsync(at.slots)
                    os.fsync(at.above)
        except OSError as error:
            raise ModuleFailed(
                f"{root} cannot be pointed at {target}: {error.strerror}",
                "It is unchanged. Check that path on the host, then run again.",
            ) from error

    def _flip(self, at: OpenSlots, root: str, target: str, kept: str) -> None:
        """Make the symlink under another name, and let the two change places, or the one take the other's."""
        before = slot_behind(self._files, root) or kept
        if before:
            replace_in(at.place(PREVIOUS), f"{before}\n", 0o644)
        text = os.path.relpath(target, os.path.dirname(root)) if _is_slot(root, target) else target  # noqa: PTH120
        link = kept or FLIP
        _make_free(at.slots, link)
        os.symlink(text, link, dir_fd=at.slots)
        if _is_folder(at.above, at.name):
            exchange(at.slots, link, at.above, at.name)
            if not kept:
                with contextlib.suppress(OSError):  # what somebody put into it meanwhile stays there
                    os.rmdir(link, dir_fd=at.slots)
        else:
            os.rename(link, at.name, src_dir_fd=at.slots, dst_dir_fd=at.above)

    def _leads(self, root: str, target: str) -> bool:
        here = self._files.path(root, follow_last=False)
        return here.is_symlink() and self._files.real(root) == self._files.real(target)

    def remove(self, root: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """See the port."""
        gone: list[str] = []
        failed: OSError | None = None
        try:
            with opened(self._files, root) as at, lock_of(self._files, root).alone(self._clock, BUSY_S) as is_alone:
                if is_alone:
                    sweep(at)
                for name in names if is_alone else ():
                    if name != slot_behind(self._files, root) and _is_folder(at.slots, name):
                        try:
                            _drop(at, name)
                            gone.append(name)
                        except OSError as error:  # the others can go
                            failed = error
            if failed is not None:
                raise failed
        except OSError as error:
            raise ModuleFailed(
                f"an old slot in {folder_of(root)} cannot be removed: {error.strerror}", "Remove it by hand."
            ) from error
        return tuple(gone)


def look(files: HostFiles, proc: Path, root: str, digest: str, kernel: str) -> StagedSlots | None:
    """What is to be seen of the slots beside `root`, None where there are none. The one of `digest` is looked through.

    Raises OSError.
    """
    try:
        names = sorted(name for name in files.names(folder_of(root)) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return None
    folder = files.path(folder_of(root))
    wanted = slot_name(digest) if digest else ""
    slots = tuple(
        _slot(folder / name, digest if name == wanted else None, kernel)
        for name in names
        if not (folder / name).is_symlink() and (folder / name).is_dir()
    )
    here = files.path(root, follow_last=False)
    obstacle, remedy = ("", "") if here.is_symlink() else _obstacle(proc, files.real(root))
    if wanted and not obstacle:
        obstacle, remedy = _why_no_flip(files, root)
    return StagedSlots(
        root.rstrip("/"),
        slots,
        current=slot_behind(files, root),
        previous=_previous(files, root),
        wanted=wanted if any(slot.name == wanted for slot in slots) else "",
        leads_to=files.real(root) if here.is_symlink() else "",
        in_root=_slot(here, None, kernel) if here.is_dir() and not here.is_symlink() and any(here.iterdir()) else None,
        obstacle=obstacle,
        remedy=remedy,
    )


def _previous(files: HostFiles, root: str) -> str:
    """The name that the last flip noted, "" where none can be read: no run fails for what only keeps a slot longer."""
    try:
        return (files.read(f"{folder_of(root)}/{PREVIOUS}") or "").strip()
    except OSError:
        return ""


def may_have_slots(profile: Profile, root: str) -> bool:
    """Whether a driver root, as a path without symlinks, may have slots: of a driver that is swapped in place."""
    return profile.strategy is Strategy.IN_PLACE and is_safe_root(root)


def _obstacle(proc: Path, root: str) -> tuple[str, str]:
    """What is mounted at or below a root that is no link: it can neither be renamed nor replaced."""
    points = mount_points_below((proc / "1/mountinfo").read_text(errors="surrogateescape"), root)
    if not points:
        return "", ""
    return (
        f"{points[-1]} is a mount point: {root} cannot be pointed at a slot",
        "Unmount it on the host; where a driver container mounts it, delete that pod first.",
    )


def _why_no_flip(files: HostFiles, root: str) -> tuple[str, str]:
    """Why the files that a flip writes cannot be written, and what to do; "" and "" where they can."""
    above, folder = root.rstrip("/").rpartition("/")[0], folder_of(root)
    refused = (files.why_not_writable(path) for path in (f"{above}/{FLIP}", f"{folder}/{PREVIOUS}"))
    why = next(filter(None, refused), "") or files.why_no_lock(f"{folder}/{LOCK}")
    return why, f"Mount {above} of the host read-write and free some space." if why else ""


def _slot(path: Path, digest: str | None, kernel: str) -> StagedSlot:
    """The slot at `path`; with a `digest`, looked through for a run that wants that driver on `kernel`."""
    seen = StagedSlot(path.name)
    try:
        with _folder_in(None, str(path)) as top:
            record = record_at(top)
            if record is None:
                return replace(seen, problem=f"it has no {RECORD}")
            made_s = os.stat(RECORD, dir_fd=top, follow_symlinks=False).st_mtime
            seen = StagedSlot(path.name, record.digest, record.version, record.kernel, made_s)
            why = why_unusable(record, digest, kernel, found_in(top)) if digest is not None else ""
            return replace(seen, problem=why)
    except SlotRecordUnreadable as error:
        return replace(seen, problem=error.what)
    except OSError as error:
        return replace(seen, problem=f"it cannot be read: {error.strerror}")


def problem_of(slot: StagedSlot) -> tuple[str, str]:
    """Why the slot of the wanted driver does not serve, and what to do; "" and "" where it does."""
    if not slot.problem:
        return "", ""
    return f"the staged slot {slot.name} cannot be used: {slot.problem}", STAGE_AGAIN


def lock_of(files: HostFiles, root: str) -> WorkLock:
    """The lock of whoever fills or removes slots beside `root`."""
    return WorkLock(files, f"{folder_of(root)}/{LOCK}")


@contextmanager
def opened(files: HostFiles, root: str) -> Iterator[OpenSlots]:
    """The folders of `root` and of its slots, made where they are missing, on a view that can be written.

    Raises OSError: EXDEV where something is mounted between the two.
    """
    above, _, name = root.rstrip("/").rpartition("/")
    with contextlib.ExitStack() as held:
        folder = files.open_folder(above or "/")
        held.callback(os.close, folder)
        slots_name = folder_of(name)
        with contextlib.suppress(FileExistsError):
            os.mkdir(slots_name, 0o755, dir_fd=folder)
        slots = held.enter_context(_folder_in(folder, slots_name))
        if os.fstat(slots).st_dev != os.fstat(folder).st_dev:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), folder_of(root))
        yield OpenSlots(folder, name, slots, folder_of(root))


def beside(name: str) -> str:
    """Another name for a slot that is not whole yet, or not any more."""
    return f".{name}.{os.urandom(RANDOM_BYTES).hex()}"


def sweep(at: OpenSlots) -> None:
    """Remove what dead ones left: names as `beside` makes them. Only who holds the lock may. Raises OSError."""
    for name in os.listdir(at.slots):  # noqa: PTH208  # by open folder
        if _BESIDE.fullmatch(name):
            remove_tree(name, at.slots)


def _drop(at: OpenSlots, name: str) -> None:
    """Remove a slot: its name goes first, in one operation. Raises OSError: EBUSY where something is mounted in it."""
    refuse_mounts(name, at.slots)
    aside = beside(name)
    os.rename(name, aside, src_dir_fd=at.slots, dst_dir_fd=at.slots)
    remove_tree(aside, at.slots)


def record_at(top: int) -> SlotRecord | None:
    """The record at the top of an open tree, None where there is none. Raises OSError, SlotRecordUnreadable."""
    try:
        if not stat.S_ISREG(os.stat(RECORD, dir_fd=top, follow_symlinks=False).st_mode):
            raise STAGED_FORM.refused("it is not a file")
        descriptor = os.open(RECORD, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=top)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return decode_staged(file.read(MAX_RECORD_BYTES).decode(errors="replace"))


def _why_no_slot(top: int, digest: str, version: str, kernel: str) -> str:
    """Why the open tree is no slot of this driver for `kernel`, "" where it is one. Raises OSError.

    A driver that is not loaded may have told nobody its version: then the one that was recorded stays.
    """
    try:
        record = record_at(top)
    except SlotRecordUnreadable as error:
        return error.what
    if record is None:
        return f"it has no {RECORD}"
    if version and record.version != version:
        return f"its record is of version {record.version}"
    return why_unusable(record, digest, kernel, found_in(top))


def slot_behind(files: HostFiles, root: str) -> str:
    """The name of the slot that `root` leads to, "" where it leads to none."""
    if not files.path(root, follow_last=False).is_symlink():
        return ""
    real, folder = files.path(root), files.path(folder_of(root))
    return real.name if real.parent == folder and real.is_dir() else ""


def _is_slot(root: str, target: str) -> bool:
    return target.rpartition("/")[0] == folder_of(root)


def _is_folder(folder: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _make_free(folder: int, name: str) -> None:
    """Take away what a flip that died left under the name: its symlink, or the empty folder that was at the root.

    A slot stays. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            os.unlink(name, dir_fd=folder)
        elif name == FLIP and stat.S_ISDIR(mode):
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError:  # somebody put something into it: that stays, under a name that is in nobody's way
                aside = f"{name}-{os.urandom(RANDOM_BYTES).hex()}"
                os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)


def _try_exchange(folder: int) -> None:
    """See that this file system can exchange two names. Raises OSError."""
    names = (f"{TRIED}-a", f"{TRIED}-b")
    try:
        for name in names:
            with contextlib.suppress(FileExistsError):
                os.symlink(name, name, dir_fd=folder)
        exchange(folder, names[0], folder, names[1])
    finally:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)


@contextmanager
def _folder_in(folder: int | None, name: str) -> Iterator[int]:
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield inner
    finally:
        os.close(inner)


# Fills a slot beside a driver root: complete under its name, or not there at all.
#
# The tree is copied under a name that nobody reads, judged there, put on disk with its record, and then renamed.
# Whoever dies leaves a name with a dot, which the next one removes. The driver root itself is not touched.

MARGIN_BYTES = 1024 * 1024
"""Beside the tree itself, for the record and the folders."""

MIB = 1024 * 1024

Judge = Callable[[str], str]
"""Given the path of a tree on the host: the version of the driver in it. Raises PreflightFailed where it is no use."""


class Wanted(Struct, frozen=True):
    """What is to be staged: the tree at `source`, a path of this process, as the driver `digest` for `kernel`.

    `is_loaded`: a driver is loaded, so that a slot which the driver root leads to is in use.
    """

    source: Path
    digest: str
    kernel: str
    is_loaded: bool = False


class Staged(Struct, frozen=True):
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
            replace_in(OpenEntry(top, RECORD, Path(at.path) / name / RECORD), encode_staged(record), 0o644)
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


# Reads files before somebody waits for them: what is in the page cache then is not read from a disk.
#
# In a child, because a disk may never answer; bounded, because what is read pushes something else out.

MOST_BYTES = 1024 * 1024 * 1024


def warm(paths: Callable[[], Iterable[Path]], timeout_s: float, most_bytes: int = MOST_BYTES) -> int:
    """Read what `paths` gives, in the child too; how many bytes that was, 0 where it took longer than `timeout_s`.

    What cannot be read is left out: whoever needs it says so.
    """
    said = lines_within(timeout_s, lambda: [str(_read(paths(), most_bytes))])
    return int(said[0]) if said else 0


def _read(paths: Iterable[Path], most_bytes: int) -> int:
    done = 0
    for path in dict.fromkeys(paths):
        try:
            done += _read_file(path, most_bytes - done)
        except OSError:
            continue
    return done


def _read_file(path: Path, most_bytes: int) -> int:
    """How many bytes of a regular file were read. Raises OSError."""
    # A pipe in its place would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        done = 0
        while done < min(size, most_bytes):
            chunk = os.read(descriptor, min(CHUNK_BYTES, most_bytes - done))
            if not chunk:
                break
            done += len(chunk)
        return done
    finally:
        os.close(descriptor)
