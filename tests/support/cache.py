"""Owns the folder that the test runs of all checkouts on a machine share: what takes long to make, by its key.

An entry is a folder that counts once its stamp is there. Only the holder of its lock makes one. Standard library only.
"""

from __future__ import annotations

import contextlib
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
"""The last file of an entry, with the entry's bytes. Its time is that of the last use."""
FRESH = ".fresh"
"""The end of the name of an entry that is being made."""

KEPT_S = 14 * 24 * 3600.0
MAX_BYTES = 12 * 1024**3
RECENT_S = 6 * 3600.0
"""The size bound removes no entry that was used in the last hours: a run may still work with it."""


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
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = place.with_name(f"{place.name}.lock").open("w")
    except OSError as error:
        raise TierError(f"the cache cannot be written: {error}; name another folder with {VARIABLE}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (place / STAMP).exists():
            os.utime(place / STAMP)
            return place
        fresh = place.with_name(f"{place.name}{FRESH}")
        for left in (place, fresh):
            shutil.rmtree(left, ignore_errors=True)
        fresh.mkdir()
        make(fresh)
        (fresh / STAMP).write_text(str(sum(path.lstat().st_size for path in fresh.rglob("*"))))
        fresh.rename(place)
    prune(time.time())
    return place


def prune(now_s: float) -> None:
    """Remove the entries that were not used for long, and the oldest beyond the size bound."""
    kept_bytes = 0
    with (folder() / "prune.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        used = dict[Path, float]()
        for stamp in folder().glob(f"*/{STAMP}"):
            with contextlib.suppress(FileNotFoundError):  # another process removes or moves what it makes
                used |= {stamp: stamp.stat().st_mtime} if stamp.parent.suffix != FRESH else {}
        for stamp, used_s in sorted(used.items(), key=lambda item: item[1], reverse=True):
            kept_bytes += int(stamp.read_text() or 0)
            if now_s - used_s > (RECENT_S if kept_bytes > MAX_BYTES else KEPT_S):
                stamp.unlink()  # what is left if this process ends here counts as nothing
                shutil.rmtree(stamp.parent)
