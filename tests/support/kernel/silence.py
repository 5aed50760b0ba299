"""How long a guest may be quiet: there is no limit on a run as a whole, however slow the machine is."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Protocol

LIMIT_S = 300.0
"""Nothing at all on the console, the results port or the disk for so long: no test takes a third of it anywhere."""

LOOKS_EVERY_S = 1.0


class Process(Protocol):
    """What is asked of a process: its exit status, or subprocess.TimeoutExpired."""

    def wait(self, timeout: float) -> int:
        """The exit status, once it has ended."""


def wait_while_told(
    process: Process,
    told: Callable[[], object],
    limit_s: float = LIMIT_S,
    now: Callable[[], float] = time.monotonic,
) -> int | None:
    """The exit status of `process`; None once `told()` has said the same for `limit_s` seconds.

    The process is left as it is then.
    """
    last, since_s = told(), now()
    while True:
        try:
            return process.wait(LOOKS_EVERY_S)
        except subprocess.TimeoutExpired:
            heard = told()
        if heard != last:
            last, since_s = heard, now()
        elif now() - since_s > limit_s:
            return None
