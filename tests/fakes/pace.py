"""How slow this machine is just now, for promises whose real time is measured: an idle one would keep them as written.

The measure is an interpreter that imports click and ends, which is what every start of the command line pays too.
"""

from __future__ import annotations

import subprocess
import sys
import time

NOMINAL_S = 0.12
"""An idle machine with two cores: 0.09 to 0.12 s, seen on several."""

ROUNDS = 3


def ratio() -> float:
    """How many times slower than an idle machine, at least 1: the slowest of three starts, measured now."""
    return max(1.0, *(_start_s() / NOMINAL_S for _ in range(ROUNDS)))


def patient(seconds: float) -> float:
    """`seconds` of an idle machine on this one. Ask after what is measured, while the machine is as busy as it was."""
    return seconds * ratio()


def _start_s() -> float:
    began_s = time.monotonic()
    subprocess.run([sys.executable, "-I", "-c", "import click"], check=True, timeout=600)
    return time.monotonic() - began_s
