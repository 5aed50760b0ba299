"""This machine's floor: how long an interpreter takes that imports click and ends.

A time says something of the product only beside it: the same commit takes twice as long on a machine that is twice as
slow, or as busy.
"""

from __future__ import annotations

import subprocess
import sys
import time

ARGV = (sys.executable, "-c", "import click")
LIMIT_S = 600.0


def floor_s() -> float:
    """Seconds from start to end of one such interpreter, now."""
    begun_s = time.monotonic()
    subprocess.run(ARGV, check=True, timeout=LIMIT_S)
    return time.monotonic() - begun_s
