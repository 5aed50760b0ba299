"""Calls that may never return, made in a thread or child that the caller can abandon.

If a dead driver holds the memory lock of a process, a read of its /proc sleeps, and no signal ends it. A child makes
such reads: it inherits the memory and no descriptor, and prints bounded text.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from msgspec import Struct, field

T = TypeVar("T")


def start_unsignalled(thread: threading.Thread) -> None:
    """Start `thread` with the signals of this process blocked, so that they reach the main thread.

    Only the main thread handles a signal, and only a signal that reaches it ends its wait. A thread inherits the mask.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGALRM))
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def within(limit_s: float, ask: Callable[[], T]) -> T:
    """The result of `ask` in a thread, which must change nothing. Raises what it raises, and TimeoutError."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:  # noqa: BLE001  # it is raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="aside", daemon=True)
    start_unsignalled(thread)
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no result within {limit_s:.3g} s")
    return answers[0]


ANSWER_BYTES = 64 * 1024
ANSWERS_BYTES = 4 * 1024 * 1024
MAX_DESCRIPTORS = 65_536
ENDING_S = 1.0
"""Seconds left to `each_within` once the process is ending."""

POLL_S = 0.2
REAP_S = 1.0

FIRST_LOOK_S, MOST_LOOK_S = 0.000_25, 0.01
"""First and longest pause between two waits for a child: one that has answered ends within a millisecond."""

_DONE = b"\n"
"""An empty line ends the answer on one item."""


class Asked(Struct):
    """Lines by item. `stuck` items did not end (their lines so far are kept), and `left` ones were not started."""

    lines: dict[int, list[str]] = field(default_factory=dict)
    stuck: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)


def each_within(
    timeout_s: float,
    stall_s: float,
    items: Sequence[int],
    ask: Callable[[int], Iterable[str]],
    is_ending: Callable[[], bool] = lambda: False,
) -> Asked:
    """The lines of `ask` for each item, from children, in at most `timeout_s` seconds for all items.

    An item without a line for `stall_s` seconds is stuck: its child is abandoned, and another one continues after it.
    Once `is_ending` is true, one second is left. A line ends at its first line feed.
    """
    asked, size = Asked(left=list(items)), 0
    end_s, is_near = time.monotonic() + timeout_s, False

    def is_over() -> bool:
        nonlocal end_s, is_near
        if not is_near and is_ending():
            end_s, is_near = min(end_s, time.monotonic() + ENDING_S), True
        return time.monotonic() >= end_s

    while asked.left and not is_over() and size < ANSWERS_BYTES:
        with _child(partial(_answer_each, items=tuple(asked.left), ask=ask)) as read_end:
            size += _collect(read_end, asked, stall_s, is_over)
    return asked


def lines_within(timeout_s: float, ask: Callable[[], Iterable[str]]) -> list[str] | None:
    """The lines of `ask` from a child; None if it does not end within `timeout_s` seconds or 4 MiB."""
    asked = each_within(timeout_s, timeout_s, (0,), lambda _: ask())
    return asked.lines.get(0, []) if not asked.stuck and not asked.left else None


def _collect(read_end: int, asked: Asked, stall_s: float, is_over: Callable[[], bool]) -> int:
    """Read the lines of one child until it ends, stalls or the time is over; the number of bytes read."""
    size, rest = 0, b""
    last_s = time.monotonic()
    while asked.left and not is_over() and size < ANSWERS_BYTES:
        if select.select([read_end], [], [], min(POLL_S, stall_s))[0]:
            chunk = os.read(read_end, ANSWER_BYTES)
            if not chunk:
                asked.left.pop(0)  # this item killed the child
                return size
            last_s = time.monotonic()
            size += len(chunk)
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                if not line:
                    asked.left.pop(0)
                else:
                    asked.lines.setdefault(asked.left[0], []).append(line[1:].decode(errors="replace"))
        elif time.monotonic() - last_s >= stall_s:
            asked.stuck.append(asked.left.pop(0))
            return size
    return size


def _answer_each(write_end: int, items: Iterable[int], ask: Callable[[int], Iterable[str]]) -> None:
    for item in items:
        with contextlib.suppress(Exception):
            for line in ask(item):
                _write(write_end, b" " + line.partition("\n")[0].encode(errors="replace") + b"\n")
        _write(write_end, _DONE)


@contextmanager
def _child(work: Callable[[int], None]) -> Generator[int, None, None]:
    """Run `work` in a child with the writing end of a pipe; yields the reading end, and kills the child at the end."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _live(write_end, work)
    os.close(write_end)
    try:
        yield read_end
    finally:
        os.close(read_end)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            _reap(pid)


def _reap(pid: int) -> None:
    """Wait up to `REAP_S` for a killed child; a stuck one is abandoned. Raises ChildProcessError."""
    end_s, look_s = time.monotonic() + REAP_S, FIRST_LOOK_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < end_s:
        time.sleep(look_s)  # waitpid(2) has no timeout
        look_s = min(look_s * 2, MOST_LOOK_S)


def _live(write_end: int, work: Callable[[int], None]) -> None:
    try:
        # Close all inherited descriptors: a stuck child would hold their locks without end.
        os.closerange(3, write_end)
        os.closerange(write_end + 1, MAX_DESCRIPTORS)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        work(write_end)
        os._exit(0)
    finally:
        os._exit(1)


def _write(write_end: int, answer: bytes) -> None:
    left = memoryview(answer)
    while left:
        left = left[os.write(write_end, left) :]
