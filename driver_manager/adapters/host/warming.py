"""Reads files before somebody waits for them: what is in the page cache then is not read from a disk.

In a child, because a disk may never answer; bounded, because what is read pushes something else out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from driver_manager.adapters.process.forked import lines_within

MOST_BYTES = 1024 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024


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
