"""Measures how long the sandbox's demo takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time


def measure_demo(runs: int, *name: str) -> list[float]:
    """Seconds of `driver-manager sandbox`, what scripts/demo runs, start of the process included."""
    seconds = []
    for _ in range(runs):
        begun_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "driver_manager", "sandbox", *name],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        seconds.append(time.monotonic() - begun_s)
        if done.returncode:
            raise SystemExit(f"the demo did not end as it has to: {done.stderr[-500:]}")
    return seconds
