"""Finds a path beneath a root by holding each folder open on the way: whatever is swapped meanwhile, nothing leads out.

A name that was checked may be another file a moment later; an open folder stays what it is. So every component is
opened by its name in the folder before it, without following it; a symlink is read and walked like the rest of the
path; `..` is the folder that we came from. Sources: openat(2), path_resolution(7).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from driver_manager.domain.frozen import Frozen

MAX_LINKS = 40
"""As the kernel's own limit (path_resolution(7), ELOOP)."""

FOLDER_MODE = 0o755

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Missing(Enum):
    """What is done where a folder on the way is not there."""

    RAISE = "raise"
    MAKE = "make"
    STOP = "stop"
    """The place is then the first name that is missing, in the last folder that is there."""


class Place(Frozen):
    """A name in an open folder; `path` is how this process spells it, for messages. "." is the folder itself."""

    folder: int
    name: str
    path: Path


@contextmanager
def place(
    root: Path, path: str, *, follow_last: bool = False, missing: Missing = Missing.RAISE
) -> Generator[Place, None, None]:
    """Where `path` (absolute on the host) is beneath `root`; its folder stays open as long as the context.

    What is at the last name is not opened, and no symlink when it was looked at, with `follow_last`: whoever opens it
    does so without following. Raises OSError: ELOOP for too many links, ENOTDIR, ENOENT with Missing.RAISE, and for a
    path with NUL, which may come from JSON.
    """
    if "\0" in path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    with contextlib.ExitStack() as held:
        walk = _Walk(root, path)
        held.callback(walk.close)
        yield walk.to_last(follow_last=follow_last, missing=missing)


def open_in(where: Place, flags: int, mode: int = 0) -> int:
    """A descriptor of what is at the place, which must not be a symlink by now. Raises OSError."""
    return os.open(where.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=where.folder)


class _Walk:
    """The folders from the root to where we are, all open, by name."""

    def __init__(self, root: Path, path: str) -> None:
        self._root = root
        self._path = path
        self._left = _pieces(path)
        self._links = 0
        self._open = [(os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), "")]

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop()[0])

    def to_last(self, *, follow_last: bool, missing: Missing) -> Place:
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
        """Into the folder `name`, or along the symlink; False where this is the end of the way."""
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

    def _at(self, name: str) -> Place:
        return Place(self._open[-1][0], name, self._root.joinpath(*(folder for _, folder in self._open), name))


def _pieces(path: str) -> list[str]:
    """The components of a path, the last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _made(parent: int, name: str) -> int:
    """A new folder, or the one that somebody else made first; of the mode that is meant, whatever the umask."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, FOLDER_MODE, dir_fd=parent)
        made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.fchmod(made, FOLDER_MODE)
        finally:
            os.close(made)
    return os.open(name, _LOOK, dir_fd=parent)
