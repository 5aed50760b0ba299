"""Owns how long the node tier waits: bounds in seconds of an idle machine, and as much more as this one is slower.

How slow it is gets measured only where a bound has been reached, so nothing that ends in time pays for it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.support.fakes.pace import patient

LONG_S = 120.0
"""For what takes a kubelet a few of its rounds: a pod that comes, leaves, or is started again after a failure."""

REST = 4
"""How many times as long as an answer took it is waited before the next question."""

LONGEST_REST_S = 2.0

T = TypeVar("T")


def wait_until(check: Callable[[], T | None], what: str, idle_s: float = LONG_S, every_s: float = 0.05) -> T:
    """The first truthy value of `check`, asked every `every_s` seconds. AssertionError after `idle_s`, made longer.

    Where asking takes long it is asked less often: it takes from what is waited for.
    """
    began_s = time.monotonic()
    allowed_s, is_measured = idle_s, False
    while True:
        asked_s = time.monotonic()
        value = check()
        if value:
            return value
        if time.monotonic() - began_s > allowed_s and not is_measured:
            allowed_s, is_measured = patient(idle_s), True
        if time.monotonic() - began_s > allowed_s:
            raise AssertionError(f"not within {allowed_s:.0f} s ({idle_s:g} s of an idle machine): {what}")
        time.sleep(max(every_s, min(REST * (time.monotonic() - asked_s), LONGEST_REST_S)))


def ended(process: subprocess.Popen[Any], idle_s: float) -> int:
    """Its exit status. Raises TimeoutExpired."""
    try:
        return process.wait(idle_s)
    except subprocess.TimeoutExpired:
        return process.wait(max(0.0, patient(idle_s) - idle_s))


def run(argv: Sequence[str], given: str, idle_s: float) -> subprocess.CompletedProcess[str]:
    """The command with what it wrote; any exit status. Raises TimeoutExpired, and then the command is killed."""
    pipe = subprocess.PIPE
    with subprocess.Popen(list(argv), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            try:
                out, err = process.communicate(given, timeout=idle_s)
            except subprocess.TimeoutExpired:
                out, err = process.communicate(timeout=max(0.0, patient(idle_s) - idle_s))
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(argv), process.returncode, out, err)
