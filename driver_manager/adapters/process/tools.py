"""What every tool that we start has in common, however it is run: its environment, and its last word."""

from __future__ import annotations

import os
from collections.abc import Mapping

from driver_manager.adapters.process.orphans import MARK

LAST_LINE_CHARS = 300
READ_CHARS = 4096
"""Of the end of an output: a last line that is longer is cut anyway."""


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """PATH, LC_ALL=C, the mark of what we start, and `own`; nothing else of ours, which may hold credentials."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", MARK[0]: MARK[1], **own}


def last_words(status: int, out: str, err: str) -> str:
    """The last line that a tool wrote, for a message."""
    lines = [line.strip() for line in (err or out)[-READ_CHARS:].splitlines() if line.strip()]
    return lines[-1][:LAST_LINE_CHARS] if lines else f"exit status {status}, no output"
