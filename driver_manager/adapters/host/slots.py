"""The slots beside a driver root on one host: what is to be seen of them, and the operations that change them.

Each change is one rename, so that the driver root is whole whenever a run is killed. How a slot is filled belongs to
`driver_manager.adapters.host.staging`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from driver_manager.adapters.host.files import HostFiles, replace_in
from driver_manager.adapters.host.locks import WorkLock
from driver_manager.adapters.host.mounts import mount_points_below
from driver_manager.adapters.host.openat import Place
from driver_manager.adapters.host.rename import exchange
from driver_manager.adapters.host.slot_tree import found_in, record_of, refuse_mounts, remove_tree
from driver_manager.domain.errors import ModuleFailed, PreflightFailed
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.profile import Profile, Strategy
from driver_manager.domain.safe_root import is_safe_root
from driver_manager.domain.staged import (
    FORM,
    RECORD,
    STAGE_AGAIN,
    SlotRecord,
    SlotRecordUnreadable,
    StagedSlot,
    StagedSlots,
    decode,
    encode,
    folder_of,
    slot_name,
    why_unusable,
)
from driver_manager.ports.base import Clock

LOCK, PREVIOUS, FLIP, TRIED = ".lock", ".previous", ".flip", ".tried"
"""Names in the folder of the slots. A slot's own name never begins with a dot."""

MAX_RECORD_BYTES = 64 * 1024 * 1024
RANDOM_BYTES = 6
_BESIDE = re.compile(r"\..+\.[0-9a-f]{12}")
BUSY_S = 0.0


class OpenSlots(Frozen):
    """The open folder of the driver root, its name there, and the open folder of its slots."""

    above: int
    name: str
    slots: int
    path: str

    def place(self, name: str) -> Place:
        """The place of a file among the slots."""
        return Place(self.slots, name, Path(self.path) / name)


class HostSlots:
    """See `driver_manager.ports.slots.SlotFolders`; beside that, what the facts read."""

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
                    where = Place(top, RECORD, Path(root) / RECORD)
                    replace_in(where, encode(record_of(top, digest, kernel, version)), 0o644)
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
            raise FORM.refused("it is not a file")
        descriptor = os.open(RECORD, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=top)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return decode(file.read(MAX_RECORD_BYTES).decode(errors="replace"))


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
