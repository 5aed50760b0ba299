"""One driver tree as files: what is in it, a copy of it, how it gets on disk to the last byte, and its removal.

Works by open folders and never follows a link. Knows nothing of drivers.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from driver_manager.domain.staged import RECORD, FoundTree, SlotRecord, StagedFile

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
