"""Files of the host seen through its root: no symlink and no `..` leads out of it.

Owns path resolution and the three ways to a writable view. Knows nothing of drivers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from driver_manager.domain.errors import ConfigError

MAX_LINKS = 40
"""As the kernel's own limit (path_resolution(7), ELOOP)."""

MAX_READ_BYTES = 64 * 1024

MIN_FREE_BYTES = 64 * 1024
"""More than the few files take that a run writes."""

T = TypeVar("T")


def resolve(root: Path, path: str, *, follow_last: bool = True) -> Path:
    """`path` (absolute on the host) as a path of this process, every symlink resolved inside `root`.

    Raises OSError (ELOOP) for too many links. What does not exist is kept as written.
    """
    done: list[str] = []
    left = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    links = 0
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
            left += [piece for piece in reversed(target.split("/")) if piece not in ("", ".")]
            continue
        done.append(part)
    return root.joinpath(*done)


class HostFiles:
    """The host's files below `root`; `proc` is the host's /proc, whose pid 1 shows the root as the host mounts it."""

    def __init__(self, root: Path, proc: Path) -> None:
        self.root = root
        self._proc = proc

    def path(self, path: str, *, follow_last: bool = True) -> Path:
        """`path` as this process can read it. Raises OSError (ELOOP)."""
        return resolve(self.root, path, follow_last=follow_last)

    def real(self, path: str) -> str:
        """`path` on the host without symlinks, as the host's mount table names it."""
        inside = self.path(path).relative_to(self.root).as_posix()
        return "/" if inside == "." else f"/{inside}"

    def exists(self, path: str) -> bool:
        """Whether something is there, be it a dangling symlink."""
        return os.path.lexists(self.path(path, follow_last=False))

    def read(self, path: str) -> str | None:
        """The file's first 64 KiB as text, None where there is no file. Raises OSError."""
        try:
            # Not blocking: a FIFO in the file's place must not hold the run.
            descriptor = os.open(self.path(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            return file.read(MAX_READ_BYTES).decode(errors="replace")

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Replace the file atomically; a symlink in its place is replaced, not followed. Raises ConfigError."""
        try:
            self._writable(path, lambda target: replace_file(target, text, mode))
        except OSError as error:
            raise ConfigError(
                f"cannot write {path} on the host: {error.strerror}",
                f"Mount {os.path.dirname(path)} of the host read-write at the same path.",  # noqa: PTH120  # a host path
            ) from error

    def why_not_writable(self, path: str) -> str:
        """Why a small file cannot be written at `path`, "" if it seems that it can. Writes nothing."""
        try:
            if self.path(path, follow_last=False).is_dir():
                return f"{path} is a folder"
            return self._writable(path, lambda target: _why_no_room(target.parent))
        except OSError as error:
            return f"{path} cannot be written: {error.strerror}"

    def create(self, path: str, text: str, mode: int = 0o644) -> bool:
        """Whether the file was made, whole: False where something is there already. Raises ConfigError."""
        try:
            return self._writable(path, lambda target: _create(target, text, mode))
        except OSError as error:
            raise ConfigError(
                f"cannot write {path} on the host: {error.strerror}",
                f"Mount {os.path.dirname(path)} of the host read-write at the same path.",  # noqa: PTH120  # a host path
            ) from error

    def put_aside(self, path: str, name: str) -> None:
        """Rename the file within its folder, over what is called `name` there. Raises OSError."""
        self._writable(path, lambda target: target.replace(target.with_name(name)))

    def put_back(self, path: str, name: str) -> None:
        """Undo `put_aside`; where there is a file at `path` again, that one stays. Raises OSError."""
        self._writable(path, lambda target: _put_back(target.with_name(name), target))

    def open_lock(self, path: str) -> int:
        """A descriptor of the file for flock(2); it is made if it is not there. Raises OSError."""
        return self._writable(path, _open_lock)

    def remove(self, path: str) -> None:
        """Remove the file or symlink, if it is there. Raises OSError."""
        self._writable(path, lambda target: target.unlink(missing_ok=True))

    def _writable(self, path: str, act: Callable[[Path], T]) -> T:
        """`act` on the first view of `path` that is not read-only.

        The contract mounts the host's root read-only at /host and, in its second generation, the vendor's folder
        read-write at its own path. Where neither can be written, pid 1's root is the host's own view.
        """
        views = [self.path(path, follow_last=False)]
        direct = Path(path)
        with contextlib.suppress(OSError):
            if self.root != Path("/") and direct.parent.samefile(views[0].parent):
                views.insert(0, direct)
        for view in views:
            try:
                return act(view)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                refused = error
        host_view = self._proc / "1" / "root"
        if not os.path.isdir(host_view):  # noqa: PTH112  # False, not an error, where we may not look
            raise refused
        return act(resolve(host_view, path, follow_last=False))


def _why_no_room(folder: Path) -> str:
    """Raises OSError (EROFS) for a read-only file system."""
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is not a folder"
    status = os.statvfs(folder)
    if status.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))
    free_bytes = status.f_bavail * status.f_frsize
    return "" if free_bytes >= MIN_FREE_BYTES else f"{folder} has only {free_bytes} bytes left"


def _put_back(aside: Path, target: Path) -> None:
    # Never over a file that somebody made meanwhile, and never without one of the two names.
    with contextlib.suppress(FileExistsError):
        _link(aside, target)
    aside.unlink(missing_ok=True)


def _open_lock(target: Path) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(target, flags, 0o600)


def replace_file(target: Path, text: str, mode: int = 0o644) -> None:
    """Give `target` this content, whole or not at all; a symlink in its place is replaced. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _written_beside(target, text, mode)
    try:
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _create(target: Path, text: str, mode: int) -> bool:
    """Whether `target` was made with this content: False where something is there already. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _written_beside(target, text, mode)
    try:
        _link(temporary, target)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(target.parent)
    return True


def _link(source: Path, target: Path) -> None:
    """Give the file a second name, which must be free; where the file system has no links, its only one.

    Raises OSError (EEXIST).
    """
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP):
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        source.replace(target)


def _written_beside(target: Path, text: str, mode: int) -> Path:
    """A new file with `text` in the folder of `target`, on disk."""
    temporary = target.parent / f".{target.name}.{os.urandom(6).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
