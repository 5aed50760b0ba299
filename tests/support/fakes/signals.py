"""What a command that runs inside of a test does to the signals of the test's own process, undone."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager

TAKEN = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


@contextmanager
def signals_kept() -> Generator[None, None, None]:
    """Handlers, mask and wakeup descriptor are as before afterwards."""
    handlers = {number: signal.getsignal(number) for number in TAKEN}
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    wakeup = signal.set_wakeup_fd(-1)
    try:
        yield
    finally:
        used = signal.set_wakeup_fd(wakeup)
        if used not in (-1, wakeup):
            os.close(used)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        for number, handler in handlers.items():
            signal.signal(number, handler)
