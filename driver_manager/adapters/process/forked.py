"""Asks something of the kernel that may never answer, in a child that can be left behind.

What reads of a process whose memory is locked by a dead driver sleeps where no signal reaches it. The child inherits
memory and no descriptor; its answer is text, bounded.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable

ANSWER_BYTES = 64 * 1024
MAX_DESCRIPTORS = 65_536


def lines_within(timeout_s: float, ask: Callable[[], Iterable[str]]) -> list[str] | None:
    """The lines that `ask` gives, the first 64 KiB of them; None where it gives none within `timeout_s` seconds.

    A child that does not die is not waited for.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(write_end, ask)
    os.close(write_end)
    try:
        return _read(read_end, time.monotonic() + timeout_s)
    finally:
        os.close(read_end)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            # At once for a child that has answered; what is stuck is left to whoever adopts it.
            end_s = time.monotonic() + 1.0
            while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < end_s:
                time.sleep(0.01)  # waitpid(2) knows no timeout


def _answer(write_end: int, ask: Callable[[], Iterable[str]]) -> None:
    """The child's life: never returns."""
    try:
        # A lock would be held as long as a child lives that nobody can end.
        os.closerange(3, write_end)
        os.closerange(write_end + 1, MAX_DESCRIPTORS)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        left = memoryview("\n".join(ask()).encode(errors="replace")[:ANSWER_BYTES])
        while left:
            left = left[os.write(write_end, left) :]
        os._exit(0)
    finally:
        os._exit(1)


def _read(read_end: int, end_s: float) -> list[str] | None:
    answer = b""
    while True:
        left_s = end_s - time.monotonic()
        if left_s <= 0 or not select.select([read_end], [], [], left_s)[0]:
            return None
        chunk = os.read(read_end, ANSWER_BYTES)
        if not chunk:
            return answer.decode(errors="replace").splitlines()
        answer += chunk
