"""Evidence of a wedge: kernel log, holders and probe output, saved in a file on the host.

Files are bounded in number and size, the oldest are removed, and each is written atomically.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from driver_manager.adapters.host.files import HostFiles, HostRoots
from driver_manager.adapters.host.holders import Looks, find_holders
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.text import one_line

KERNEL_LINES = 400
KERNEL_RECORDS = 100_000
EVIDENCE_KEPT = 8
EVIDENCE_CHARS = 256 * 1024


class EvidenceFolder:
    """The files in `folder` on the host, "" for none. Their names begin with the time, in seconds since the epoch."""

    def __init__(self, files: HostFiles, folder: str) -> None:
        self._files = files
        self._folder = folder

    def save(self, name: str, lines: Iterable[str]) -> str:
        """Save the last 256 KiB of `lines`; the file's path, "" without a folder. Raises ConfigError."""
        if not self._folder:
            return ""
        path = f"{self._folder}/{name}.txt"
        text = "\n".join(map(one_line, lines))[-EVIDENCE_CHARS:]
        self._files.write(path, text + "\n", mode=0o600)
        with contextlib.suppress(OSError):
            self._forget_old()
        return path

    def _forget_old(self) -> None:
        """Remove all but the newest files, by the time in their names."""
        names = sorted(
            (name for name in self._files.names(self._folder) if name[:1].isdigit()),
            key=lambda name: (len(name.partition("-")[0]), name),
        )
        for name in names[:-EVIDENCE_KEPT]:
            self._files.remove(f"{self._folder}/{name}")


def with_surroundings(lines: Iterable[str], holders: Iterable[str], roots: HostRoots) -> list[str]:
    """`lines`, then the processes that use the device, then the kernel's last messages."""
    return [
        *lines,
        "",
        "processes that use the device:",
        *holders,
        "",
        "the kernel's last messages:",
        *kernel_log(roots),
    ]


def holders_within(roots: HostRoots, patterns: tuple[str, ...], timeout_s: float) -> list[str]:
    """The processes that use the device, as lines. Bounded: reading a stuck process may get stuck too."""
    try:
        found = find_holders(roots.proc, roots.dev, patterns, looks=Looks(timeout_s=timeout_s))
    except ManagerError as error:
        return [f"unknown: {error.what}"]
    return [str(one) for one in found]


def kernel_log(roots: HostRoots) -> list[str]:
    """The last lines of the kernel's log, or why it cannot be read."""
    try:
        return list(deque(_kernel_records(roots.dev / "kmsg"), KERNEL_LINES))
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]


def _kernel_records(path: Path) -> Iterator[str]:
    """The records of /dev/kmsg (ABI/testing/dev-kmsg), without waiting for more. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        for _ in range(KERNEL_RECORDS):
            try:
                raw = os.read(descriptor, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:  # overwritten before it was read
                continue
            if not raw:
                return
            yield raw.decode(errors="replace").partition(";")[2].partition("\n")[0]
    finally:
        os.close(descriptor)
