"""Files below the host root: paths that cannot leave it, atomic writes, and locks between runs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from driver_manager.core.ports_base import Clock
from driver_manager.domain.errors import ConfigError, ManagerError

# Paths beneath a root. Each folder on the path stays open, so a replaced folder cannot lead outside the root.
#
# Another process may replace a file between a check of its name and its use; an open folder stays the same. So each
# component is opened by name in the open folder before it, without following symlinks. A symlink is read and resolved
# like the rest of the path. `..` is the previous open folder. Sources: openat(2), path_resolution(7).

MAX_LINKS = 40
"""The kernel's own limit (path_resolution(7), ELOOP)."""

FOLDER_MODE = 0o755

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Missing(Enum):
    RAISE = "raise"
    MAKE = "make"
    STOP = "stop"
    """The place is the first missing name, in the last existing folder."""


class OpenEntry(Struct, frozen=True):
    """A name in an open folder; "." is the folder itself. `path` is its path in this process, for messages."""

    folder: int
    name: str
    path: Path


@contextmanager
def place(
    root: Path, path: str, *, follow_last: bool = False, missing: Missing = Missing.RAISE
) -> Generator[OpenEntry, None, None]:
    """The place of `path` (absolute on the host) beneath `root`; its folder stays open within the context.

    The entry at the last name is not opened. With `follow_last` it was not a symlink when checked; the caller must open
    it without following symlinks. Raises OSError: ELOOP for too many links, ENOTDIR, ENOENT with Missing.RAISE and for
    a path with NUL, which may come from JSON.
    """
    if "\0" in path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    with contextlib.closing(_Walk(root, path)) as walk:
        yield walk.to_last(follow_last=follow_last, missing=missing)


def open_in(where: OpenEntry, flags: int, mode: int = 0) -> int:
    """A descriptor of the entry at the place. Raises OSError, also if the entry is a symlink."""
    return os.open(where.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=where.folder)


class _Walk:
    """The open folders from the root to the current one, with their names."""

    def __init__(self, root: Path, path: str) -> None:
        self._root = root
        self._path = path
        self._left = _pieces(path)
        self._links = 0
        self._open = [(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), "")]

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop()[0])

    def to_last(self, *, follow_last: bool, missing: Missing) -> OpenEntry:
        while self._left:
            name = self._left.pop()
            if name == "..":
                if len(self._open) > 1:
                    os.close(self._open.pop()[0])
            elif not self._left and not follow_last:
                return self._at(name)
            else:
                is_there = self._step(name, missing)
                if not is_there:
                    return self._at(name)
        return self._at(".")

    def _step(self, name: str, missing: Missing) -> bool:
        """Enter the folder `name`, or follow the symlink; False if `name` is the last component or missing."""
        is_last = not self._left
        try:
            descriptor = os.open(name, _LOOK, dir_fd=self._open[-1][0])
        except FileNotFoundError:
            if is_last or missing is Missing.STOP:
                return False
            if missing is Missing.RAISE:
                raise
            descriptor = _made(self._open[-1][0], name)
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind == stat.S_IFDIR and not is_last:
            self._open.append((descriptor, name))
            return True
        try:
            if kind == stat.S_IFLNK:
                self._follow(os.readlink("", dir_fd=descriptor))
                return True
        finally:
            os.close(descriptor)
        if not is_last:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._path)
        return False

    def _follow(self, target: str) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._path)
        if target.startswith("/"):
            while len(self._open) > 1:
                os.close(self._open.pop()[0])
        self._left += _pieces(target)

    def _at(self, name: str) -> OpenEntry:
        return OpenEntry(self._open[-1][0], name, self._root.joinpath(*(folder for _, folder in self._open), name))


def _pieces(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _made(parent: int, name: str) -> int:
    """A descriptor of a new folder with `FOLDER_MODE` regardless of the umask, or of one that already exists."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, FOLDER_MODE, dir_fd=parent)
        made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.fchmod(made, FOLDER_MODE)
        finally:
            os.close(made)
    return os.open(name, _LOOK, dir_fd=parent)


MAX_READ_BYTES = 64 * 1024

MIN_FREE_BYTES = 64 * 1024
MIN_FREE_INODES = 16
"""Free bytes and inodes that a write requires: more than the files of a run need."""

OWN_ROOT = Path("/")

T = TypeVar("T")


def resolve(root: Path, path: str, *, follow_last: bool = True) -> Path:
    """`path` (absolute on the host) as a path of this process, with every symlink resolved inside `root`.

    Only for tools, which need a name, and for messages, as another process may replace a folder after this call: this
    process uses open folders (`place`). Keeps missing components as written. Raises OSError (ELOOP).
    """
    done: list[str] = []
    left, links = _pieces(path), 0
    while left:
        part = left.pop()
        if part == "..":
            done = done[:-1]
            continue
        here = root.joinpath(*done, part)
        if (left or follow_last) and here.is_symlink():
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = str(here.readlink())
            if target.startswith("/"):
                done = []
            left += _pieces(target)
            continue
        done.append(part)
    return root.joinpath(*done)


class HostFiles:
    """The host's files below `root`; `proc` is the host's /proc, whose pid 1 shows the root as the host mounts it."""

    def __init__(self, root: Path, proc: Path) -> None:
        self.root = root
        self._proc = proc

    def path(self, path: str, *, follow_last: bool = True) -> Path:
        """`path` by name, for a tool. Raises OSError (ELOOP)."""
        return resolve(self.root, path, follow_last=follow_last)

    def noexec_mount(self, path: str) -> str:
        """The mount point of `path`, or of the first folder above it that is there, if it is mounted `noexec`; else "".

        No program there can be executed (mount(8)), nor a library be mapped for one. Raises OSError.
        """
        found = self.real(path)
        while found != "/" and not self.path(found).exists():
            found = found.rpartition("/")[0] or "/"
        device = self._noexec_device(found)
        while device and found != "/" and self._noexec_device(found.rpartition("/")[0] or "/") == device:
            found = found.rpartition("/")[0] or "/"
        return found if device else ""

    def _noexec_device(self, path: str) -> int:
        """The device of a folder whose mount allows no execution, else 0. Raises OSError."""
        where = self.path(path)
        return where.stat().st_dev if os.statvfs(where).f_flag & os.ST_NOEXEC else 0

    def real(self, path: str) -> str:
        """`path` on the host without symlinks, as the host's mount table names it."""
        inside = self.path(path).relative_to(self.root).as_posix()
        return "/" if inside == "." else f"/{inside}"

    def exists(self, path: str) -> bool:
        """True if `path` exists, also as a dangling symlink. Raises OSError."""
        try:
            self._status(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _status(self, path: str) -> os.stat_result:
        with place(self.root, path) as where:
            return os.stat(where.name, dir_fd=where.folder, follow_symlinks=False)

    def read(self, path: str, most_bytes: int = MAX_READ_BYTES, *, follow_last: bool = True) -> str | None:
        """The first `most_bytes` of the file as text, None if it is missing. Raises OSError.

        Without `follow_last`, a symlink in place of the file is an error (ELOOP).
        """
        try:
            with place(self.root, path, follow_last=follow_last) as where:
                # Non-blocking, so that a FIFO in place of the file cannot block the run.
                descriptor = open_in(where, os.O_RDONLY | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            return file.read(most_bytes).decode(errors="replace")

    def text(self, path: str, most_bytes: int = MAX_READ_BYTES) -> str:
        """As `read`, "" if the file is missing or cannot be read, or if `path` is ""."""
        try:
            return (self.read(path, most_bytes) if path else None) or ""
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        with place(self.root, path, follow_last=True) as where:
            folder = open_in(where, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return os.listdir(folder)  # noqa: PTH208  # by open folder
        finally:
            os.close(folder)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Replace the file atomically; replace a symlink instead of following it. Raises ConfigError."""
        with _writing(path):
            self._writable(path, lambda where: replace_in(where, text, mode), missing=Missing.MAKE)

    def why_not_writable(self, path: str, *, tries: bool = False) -> str:
        """Why a small file at `path` cannot be replaced or removed, "" if no obstacle is found. Writes nothing.

        With `tries`, write a file in its folder, rename and remove it, which also detects quotas and security modules.
        """
        try:
            return self._writable(path, lambda where: _why_not(where, path, tries=tries), missing=Missing.STOP)
        except OSError as error:
            return f"{path} cannot be written: {error.strerror}"

    def why_no_lock(self, path: str) -> str:
        """Why `open_lock` would fail at `path`, "" if no obstacle is found. Writes nothing."""
        try:
            with place(self.root, path) as where:
                file = open_in(where, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return self.why_not_writable(path)
        except OSError as error:
            return f"{path} cannot be opened: {error.strerror}"
        is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
        os.close(file)
        return f"{path} is a folder" if is_folder else ""

    def create(self, path: str, text: str, mode: int = 0o644) -> bool:
        """Create the file atomically; False if `path` already exists. Raises ConfigError."""
        with _writing(path):
            return self._writable(path, lambda where: _create(where, text, mode), missing=Missing.MAKE)

    def put_aside(self, path: str, name: str) -> None:
        """Rename the file to `name` in its folder, replacing an existing one. Raises OSError."""
        self._writable(path, lambda where: _rename(where, where.name, name))

    def put_back(self, path: str, name: str) -> None:
        """Undo `put_aside`. If `path` exists again, keep that file and remove the renamed one. Raises OSError."""
        self._writable(path, lambda where: _put_back(where, name))

    def open_lock(self, path: str) -> int:
        """A descriptor of the file for flock(2). Creates a missing file. Raises OSError."""
        flags = os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK
        return self._writable(path, lambda where: open_in(where, flags, 0o600), missing=Missing.MAKE)

    def open_folder(self, path: str) -> int:
        """A descriptor of the folder on a writable view. Creates a missing folder. Raises OSError."""
        # Any name serves: its place holds the folder open.
        return self._writable(f"{path.rstrip('/')}/any", _open_writable, missing=Missing.MAKE)

    def touch(self, path: str) -> None:
        """Set the file's modification time to now. Raises OSError."""
        self._writable(path, lambda where: os.utime(where.name, dir_fd=where.folder, follow_symlinks=False))

    def written_s(self, path: str) -> float | None:
        """The file's modification time in seconds since the epoch; None if it is missing or `path` is ""."""
        try:
            return self._status(path).st_mtime if path else None
        except OSError:
            return None

    def remove(self, path: str) -> None:
        """Remove the file or symlink if it exists. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._writable(path, lambda where: _unlink(where, where.name))

    def _writable(self, path: str, act: Callable[[OpenEntry], T], *, missing: Missing = Missing.RAISE) -> T:
        """The result of `act` on the first view of `path` that is not read-only.

        The contract mounts the host's root read-only at /host and, in its second generation, the vendor's folder
        read-write at its own path. If neither is writable, use pid 1's root, which is the host's own view.
        """
        roots = [self.root]
        if self.root != OWN_ROOT and self._is_own_too(path):
            roots.insert(0, OWN_ROOT)
        for root in roots:
            try:
                with place(root, path, missing=missing) as where:
                    return act(where)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                refused = error
        host_view = self._proc / "1" / "root"
        if not os.path.isdir(host_view):  # noqa: PTH112  # False, not an error, without permission
            raise refused
        with place(host_view, path, missing=missing) as where:
            return act(where)

    def _is_own_too(self, path: str) -> bool:
        """True if the folder of `path`, or its last existing parent, is the same folder below this process's root."""
        last = Missing.STOP
        with (
            contextlib.suppress(OSError),
            place(OWN_ROOT, path, missing=last) as own,
            place(self.root, path, missing=last) as hosts,
        ):
            return os.path.samestat(os.fstat(own.folder), os.fstat(hosts.folder))
        return False


def _writing(path: str) -> AbstractContextManager[None]:
    """Translate an OSError while `path` is written. Raises ConfigError."""
    folder = path.rpartition("/")[0] or "/"
    remedy = f"Mount {folder} of the host read-write at the same path."
    return translated(ConfigError, f"cannot write {path} on the host", remedy)


def _why_not(where: OpenEntry, path: str, *, tries: bool) -> str:
    """Why no file can be written at `path` or its first missing component, "" if it can. Raises OSError."""
    status = os.fstatvfs(where.folder)
    if status.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(where.path))
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=where.folder, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(where.path))
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(where.name, dir_fd=where.folder, follow_symlinks=False).st_mode):
            return f"{path} is a folder"
        _refuse_kept(where)
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes < MIN_FREE_BYTES:
        return f"the file system of {path} has only {free_bytes} bytes left"
    if status.f_files and status.f_favail < MIN_FREE_INODES:  # file systems without an inode table report f_files 0
        return f"the file system of {path} has only {status.f_favail} inodes left"
    if tries:
        _try(where)
    return ""


def _refuse_kept(where: OpenEntry) -> None:
    """Raise OSError for a file that is immutable, append-only or a mount point, as it cannot be replaced.

    rmdir(2) makes the same checks as unlink(2) and rename(2) before it refuses a file that is not a folder.
    """
    try:
        os.rmdir(where.name, dir_fd=where.folder)
    except NotADirectoryError:
        file = open_in(where, os.O_PATH)
        try:
            if mount_id(file) != mount_id(where.folder):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(where.path)) from None
        finally:
            os.close(file)


def _try(where: OpenEntry) -> None:
    """Write a file beside, rename it and remove it. Raises OSError where the file system refuses one of these."""
    with _written_beside(where, "\0" * MIN_FREE_BYTES, 0o600) as name:
        other = _random_name(where)
        _rename(where, name, other)
        _unlink(where, other)


def mount_id(descriptor: int) -> str:
    """The `mnt_id:` line of an open file (proc(5), fdinfo)."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(line for line in lines if line.startswith("mnt_id:"))


def _open_writable(where: OpenEntry) -> int:
    """A descriptor of the folder of the place. Raises OSError (EROFS) on a read-only file system."""
    folder = open_in(replace(where, name="."), os.O_RDONLY | os.O_DIRECTORY)
    if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
        os.close(folder)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(where.path))
    return folder


def _put_back(where: OpenEntry, aside: str) -> None:
    # Link first, then unlink: a new file stays, and one of the two names always exists.
    with contextlib.suppress(FileExistsError):
        _link(where, aside, where.name)
    _unlink(where, aside)


def replace_file(target: Path, text: str, mode: int = 0o644) -> None:
    """Write `text` to `target` of this process atomically; replaces a symlink. Raises OSError."""
    with place(OWN_ROOT, str(target.absolute()), missing=Missing.MAKE) as where:
        replace_in(where, text, mode)


def replace_in(where: OpenEntry, text: str, mode: int) -> None:
    """Write `text` to the file at the place atomically; replace a symlink instead of following it. Raises OSError."""
    with _written_beside(where, text, mode) as temporary:
        _rename(where, temporary, where.name)
    _sync_folder(where)


def _create(where: OpenEntry, text: str, mode: int) -> bool:
    """Create a file with `text` at the place atomically; False if the place is taken. Raises OSError."""
    with _written_beside(where, text, mode) as temporary:
        try:
            _link(where, temporary, where.name)
        except FileExistsError:
            return False
    _sync_folder(where)
    return True


def _link(where: OpenEntry, source: str, target: str) -> None:
    """Link the folder's file `source` to the free name `target`, or rename it without links. Raises OSError."""
    try:
        os.link(source, target, src_dir_fd=where.folder, dst_dir_fd=where.folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP):
            raise
        with contextlib.suppress(FileNotFoundError):
            os.stat(target, dir_fd=where.folder, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
        _rename(where, source, target)


def _rename(where: OpenEntry, source: str, target: str) -> None:
    os.rename(source, target, src_dir_fd=where.folder, dst_dir_fd=where.folder)


def _unlink(where: OpenEntry, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=where.folder)


@contextmanager
def _written_beside(where: OpenEntry, text: str, mode: int) -> Generator[str, None, None]:
    """A new, synced file with `text` beside the place: its name. It is gone at the end. Raises OSError."""
    temporary = _random_name(where)
    beside = replace(where, name=temporary)
    descriptor = open_in(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        yield temporary
    finally:
        _unlink(where, temporary)


def _random_name(where: OpenEntry) -> str:
    return f".{where.name}.{os.urandom(6).hex()}"


def _sync_folder(where: OpenEntry) -> None:
    folder = open_in(replace(where, name="."), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# The work lock: a reconcile, health-watch and the rebooter exclude each other with it.
#
# The lock is a flock(2) on a file under /run. The kernel releases it when the process dies, in any namespace.

POLL_S = 0.02

MOMENT_S = 1.0
"""Seconds that `alone` waits. Health-watch holds the lock for less, so a longer holder works on the driver."""


class WorkLock:
    def __init__(self, files: HostFiles, path: str) -> None:
        self._files = files
        self.path = path

    def working(self, clock: Clock, timeout_s: float) -> AbstractContextManager[bool]:
        """Hold the lock shared, waiting up to `timeout_s` seconds. Yields True if it is held. Raises OSError."""
        return self._held(fcntl.LOCK_SH, clock, timeout_s)

    def alone(self, clock: Clock, timeout_s: float = MOMENT_S) -> AbstractContextManager[bool]:
        """Hold the lock exclusively. Yields True if it is held, False if a run works on the driver. Raises OSError."""
        return self._held(fcntl.LOCK_EX, clock, timeout_s)

    @contextmanager
    def _held(self, how: int, clock: Clock, timeout_s: float) -> Generator[bool, None, None]:
        descriptor = self._files.open_lock(self.path)
        try:
            yield becomes(lambda: _lock(descriptor, how), timeout_s, POLL_S, clock)
        finally:
            os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        return True
    return False


def becomes(is_so: Callable[[], bool], timeout_s: float, poll_s: float, clock: Clock) -> bool:
    """True as soon as `is_so` is true, False if it is not after `timeout_s` seconds. Raises Terminated."""
    end_s = clock.monotonic() + timeout_s
    while not is_so():
        if clock.monotonic() >= end_s:
            return False
        clock.sleep(poll_s)
    return True


@contextmanager
def translated(kind: type[ManagerError], what: str, remedy: str) -> Generator[None, None, None]:
    """Translate an OSError: raise `kind` with `what` failed, the reason of the kernel, and the remedy."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror}", remedy) from error


def changing(path: str) -> AbstractContextManager[None]:
    """Translate an OSError for `path`, a file of the driver. Raises ConfigError."""
    remedy = "Run as root, with the vendor's folders of the host mounted read-write."
    return translated(ConfigError, f"cannot read or change {path} on the host", remedy)


# renameat2(2) with RENAME_EXCHANGE swaps two names in one operation, so that neither is ever missing.

RENAME_EXCHANGE = 2
"""include/uapi/linux/fs.h"""


def exchange(folder: int, name: str, other_folder: int, other: str) -> None:
    """Swap two names, each in an open folder. Raises OSError: EINVAL if the file system does not support it."""
    import ctypes  # noqa: PLC0415  # half a MiB that few runs need

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(folder, os.fsencode(name), other_folder, os.fsencode(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name, None, other)


# The host's roots in this process, and common facts of the host. Files of /proc and /sys come and go at any moment.


def text_of(path: Path) -> str | None:
    """The text of a file of the kernel, without the white space around it; None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def target_of(link: Path) -> str:
    """The name of a link's target, "" if the link is missing."""
    try:
        return link.readlink().name
    except OSError:
        return ""


def names_in(folder: Path) -> list[str]:
    """The names in the folder; empty if it cannot be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208  # thousands of names, no Path for each
    except OSError:
        return []


class HostRoots(Struct, frozen=True):
    """The paths of the host's root, /proc, /sys and /dev in this process."""

    root: Path
    proc: Path
    sys: Path
    dev: Path

    def files(self) -> HostFiles:
        return HostFiles(self.root, self.proc)

    def to_document(self) -> dict[str, str]:
        """The roots as JSON, for another process of the same version."""
        return {name: str(path) for name, path in asdict(self).items()}

    @classmethod
    def from_document(cls, document: Mapping[str, str]) -> HostRoots:
        return cls(**{name: Path(path) for name, path in document.items()})


def boot_id(roots: HostRoots) -> str:
    """The kernel's id of this boot. Raises ConfigError."""
    return kernel_fact(roots, "random/boot_id")


def machine_id(roots: HostRoots) -> str:
    """The host's machine id (machine-id(5)), "" if it has none. Raises OSError."""
    return (roots.files().read("/etc/machine-id") or "").strip()


def system_uuid(roots: HostRoots) -> str:
    """The firmware's id of the machine, as a kubelet reports it (cadvisor, machine.GetSystemUUID); "" if unknown."""
    return (text_of(roots.sys / "class/dmi/id/product_uuid") or "").strip()


def host_name(roots: HostRoots) -> str:
    """The host's name as a kubelet takes it (kubernetes, pkg/util/node, GetHostname); "" if unknown.

    The kernel's name is that of the reader's UTS namespace: it counts where that is the host's. Else the file counts.
    """
    found = []
    with contextlib.suppress(OSError, ConfigError):
        if (roots.proc / "1/ns/uts").readlink() == (roots.proc / "self/ns/uts").readlink():
            found.append(kernel_fact(roots, "hostname"))
    with contextlib.suppress(OSError):
        found += (roots.files().read("/etc/hostname") or "").splitlines()
    names = (line.partition("#")[0].strip().lower() for line in found)
    return next((name for name in names if name and name.partition(".")[0] != "localhost"), "")


def kernel_fact(roots: HostRoots, name: str) -> str:
    """The text of the file `name` below /proc/sys/kernel. Raises ConfigError."""
    path = roots.proc / "sys/kernel" / name
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}", "Mount the host's /proc (PROC_ROOT)."
        ) from error
