"""Asks git about a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(checkout: Path, *arguments: str) -> str | None:
    """What git prints. None where it fails, as outside of git."""
    argv = ["git", "-C", str(checkout), *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", check=False, timeout=120)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
