"""Evidence of a wedge, in files on the host of bounded number and size: kernel log, holders and probe output."""

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


def save_evidence(roots: HostRoots, folder: str, name: str, lines: Iterable[str], holders: Iterable[str]) -> str:
    """Save the last 256 KiB of `lines`, the `holders` and the kernel's log; the path, "" if `folder` is "".

    `folder` is absolute on the host. `name` begins with the time in seconds since the epoch. Raises ConfigError.
    """
    if not folder:
        return ""
    files, path = roots.files(), f"{folder}/{name}.txt"
    of_host = ("", "processes that use the device:", *holders, "", "the kernel's last messages:", *kernel_log(roots))
    text = "\n".join(map(one_line, (*lines, *of_host)))[-EVIDENCE_CHARS:]
    files.write(path, text + "\n", mode=0o600)
    with contextlib.suppress(OSError):
        _remove_old(files, folder)
    return path


def _remove_old(files: HostFiles, folder: str) -> None:
    """Remove all but the newest files, by the time in their names."""
    for name in _by_age(files, folder)[:-EVIDENCE_KEPT]:
        files.remove(f"{folder}/{name}")


def _by_age(files: HostFiles, folder: str) -> list[str]:
    """The names of the files of evidence, the oldest first. Raises OSError."""
    names = (name for name in files.names(folder) if name[:1].isdigit())
    return sorted(names, key=lambda name: (len(name.partition("-")[0]), name))


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
        return list(deque((line for _, line in _kernel_records(roots.dev / "kmsg")), KERNEL_LINES))
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]


def kernel_lines_with(roots: HostRoots, words: Iterable[str]) -> list[str]:
    """The last lines of the kernel's log with one of `words`, each with its second since boot. Raises OSError."""
    wanted = tuple(word.lower() for word in words if word)
    found = (
        f"[{seconds:.6f}] {line}"
        for seconds, line in _kernel_records(roots.dev / "kmsg")
        if any(word in line.lower() for word in wanted)
    )
    return list(deque(found, KERNEL_LINES))


def newest_evidence(files: HostFiles, folder: str, most: int) -> list[str]:
    """The names of the newest files in `folder`, the newest first; empty if it is missing. Raises OSError."""
    try:
        return _by_age(files, folder)[::-1][:most]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _kernel_records(path: Path) -> Iterator[tuple[float, str]]:
    """The records of /dev/kmsg (ABI/testing/dev-kmsg) with their seconds since boot, without waiting for more.

    Raises OSError.
    """
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
            before, _, text = raw.decode(errors="replace").partition(";")
            microseconds = [*before.split(","), "", "", ""][2]
            yield int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0, text.partition("\n")[0]
    finally:
        os.close(descriptor)
