"""Threads beside the main one: one that no signal reaches, and a question that is given up after a time limit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import TypeVar

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
    """The result of `ask`, for a call that has no time limit of its own. Raises what it raises.

    Raises TimeoutError after `limit_s` seconds. The thread then stays behind, so `ask` must change nothing.
    """
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
