"""What a terminal can be shown, and in which colours. Small: loops import it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TextIO

from driver_manager.domain.escaping import shown

RED, GREEN, YELLOW, CYAN = "31", "32", "33", "36"
ERASE_LINE = "\r\x1b[2K"
_STYLES = re.compile(r"(\x1b\[(?:0|1|31|32|33|36)m)")
"""What we paint with: bold, the colours above, and their end."""


def is_capable(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether `stream` is a terminal that understands control sequences: not where TERM is unset, empty or `dumb`."""
    try:
        return stream.isatty() and environ.get("TERM", "") not in ("", "dumb")
    except ValueError:
        return False  # a closed stream


def allows_colour(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the user lets us colour: not where NO_COLOR is set and not empty (no-color.org), nor on a dumb TERM."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def has_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether what goes to `stream` is to be coloured."""
    return is_capable(stream, environ) and allows_colour(environ)


def painted(text: str, colour: str, *, wanted: bool) -> str:
    """`text` in `colour` where that is wanted (ECMA-48, select graphic rendition)."""
    return f"\x1b[{colour}m{text}\x1b[0m" if wanted and text else text


def for_terminal(text: str) -> str:
    """`text` with no control sequence but our styles: the last guard, for words that nothing before has escaped."""
    return "".join(part if _STYLES.fullmatch(part) else shown(part) for part in _STYLES.split(text))


def columns_of(stream: TextIO) -> int:
    """How wide the terminal is now, 80 where it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
