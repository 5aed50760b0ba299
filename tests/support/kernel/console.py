"""The guest's console: what a long test has come to. The host ends a guest that says nothing for too long.

Runs in the guest only.
"""

from __future__ import annotations

import time
from pathlib import Path

CONSOLE = Path("/dev/console")


def say(what: str) -> None:
    """One line with the guest's seconds, past pytest, which keeps what a test prints to itself."""
    with CONSOLE.open("w") as console:
        console.write(f"{time.monotonic():.0f} s: {what}\n")
