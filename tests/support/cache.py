"""Owns the folder that the test runs of all checkouts on a machine share: what takes long to make, by its key.

An entry is a folder that is there whole or not at all. A process that was given an entry holds a shared lock on it
until the process ends. Only the holder of the exclusive lock makes or removes an entry. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.tiers import TierError

VARIABLE = "DRIVER_MANAGER_TEST_CACHE"
STAMP = ".complete"
"""The last file of an entry, with the entry's bytes."""

KEPT_S = 14 * 24 * 3600.0
MAX_BYTES = 12 * 1024**3
RECENT_S = 3600.0
"""The size bound removes no entry that was used in the last hour: a script may use the path that a process printed."""

_held: dict[Path, int] = {}


def folder() -> Path:
    """The cache's folder, which need not exist."""
    if asked := os.environ.get(VARIABLE):
        return Path(asked).absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "driver-manager-tests"


def key(*parts: str | bytes | Path) -> str:
    """The key of what is made of these parts, in this order; of a path, the file's name and content."""
    content = hashlib.sha256()
    for part in parts:
        text = key(part.name, part.read_bytes()) if isinstance(part, Path) else part
        data = text.encode() if isinstance(text, str) else text
        content.update(b"%d:%s" % (len(data), data))
    return content.hexdigest()[:16]


def entry(kind: str, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of the entry `kind`-`name`; where it is not complete, `make` fills an empty folder first.

    The folder moves to its place after that, so what is made may not depend on its path. Nothing may change it later.
    Raises TierError where the cache cannot be written, and what `make` raises.
    """
    place = folder() / f"{kind}-{name}"
    while True:
        _release(place)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            held = _lock(place, fcntl.LOCK_SH)
        except OSError as error:
            raise TierError(f"the cache cannot be written: {error}; name another folder with {VARIABLE}") from error
        os.utime(held)
        if (place / STAMP).exists():
            _held[place] = held
            return place
        os.close(held)
        _make(place, make)


def prune(now_s: float) -> list[str]:
    """Remove entries that were not used for long, and the oldest beyond the size bound; none in use. Their names."""
    removed, kept_bytes = [], 0
    locks = [(lock.stat().st_mtime, lock) for lock in folder().glob("*.lock")]
    for used_s, lock in sorted(locks, reverse=True):
        place = lock.with_suffix("")
        size = _bytes_of(place)
        is_over = kept_bytes + size > MAX_BYTES and now_s - used_s > RECENT_S
        if (is_over or now_s - used_s > KEPT_S) and _remove(place):
            removed.append(place.name)
        else:
            kept_bytes += size
    return removed


def _make(place: Path, make: Callable[[Path], object]) -> None:
    alone = _lock(place, fcntl.LOCK_EX)
    try:
        if (place / STAMP).exists():  # another process was faster
            return
        fresh = _fresh(place)
        _clear(place)
        fresh.mkdir()
        try:
            make(fresh)
            (fresh / STAMP).write_text(str(sum(path.lstat().st_size for path in fresh.rglob("*"))))
            fresh.rename(place)
        except BaseException:
            _clear(place)
            raise
        prune(time.time())
    finally:
        os.close(alone)


def _remove(place: Path) -> bool:
    """Remove an entry with its lock; False if a process uses it or makes it."""
    try:
        alone = _lock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        # The stamp first: what is left if this process ends here counts as nothing.
        (place / STAMP).unlink(missing_ok=True)
        _clear(place)
        _lock_file(place).unlink()
    finally:
        os.close(alone)
    return True


def _clear(place: Path) -> None:
    for path in (place, _fresh(place)):
        if path.exists():
            shutil.rmtree(path)


def _lock(place: Path, how: int) -> int:
    """The descriptor that holds the entry's lock. Raises BlockingIOError with LOCK_NB where another one holds it."""
    path = _lock_file(place)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, how)
            # The file may have been removed, with its entry, while this process waited for it.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _release(place: Path) -> None:
    if place in _held:
        os.close(_held.pop(place))


def _bytes_of(place: Path) -> int:
    try:
        return int((place / STAMP).read_text() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def _lock_file(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


def _fresh(place: Path) -> Path:
    return place.with_name(f"{place.name}.fresh")
