"""A text that is drawn again in place, for a person at a terminal. Owns what is erased, and nothing of the text."""

from __future__ import annotations

import os
import re
from typing import TextIO

from driver_manager.adapters.report.terminal import for_terminal

ERASE_BELOW = "\x1b[J"
HOME_AND_ERASE = "\x1b[H\x1b[2J"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_PLAIN = "\x1b[0m"


class LiveScreen:
    """The terminal behind `stream`, from its first line on: what was on it before is in the scrollback."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_drawn = False

    def draw(self, text: str) -> None:
        """Show `text`, as much of it as there is room for: what wraps or scrolls could not be drawn over."""
        columns, lines = self._size()
        shown = [_cut(line, columns) for line in for_terminal(text).split("\n")]
        if len(shown) > lines:
            shown = [*shown[: lines - 1], f"... and {len(shown) - lines + 1} more lines"]
        start = "\x1b[H" if self._is_drawn else "\n" * (lines - 1) + HOME_AND_ERASE
        body = "\x1b[K\n".join(shown)
        self._write(f"{start}{body}\x1b[K{ERASE_BELOW}")
        self._is_drawn = True

    def end(self) -> None:
        """Leave the terminal empty, for what comes next."""
        if self._is_drawn:
            self._write(HOME_AND_ERASE)
            self._is_drawn = False

    def _size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return 80, 24
        return size.columns or 80, size.lines or 24

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _cut(line: str, columns: int) -> str:
    """`line` in so many columns; styles take none."""
    if len(_STYLE.sub("", line)) <= columns:
        return line
    left, found = columns - 1, ""
    for part in re.split(f"({_STYLE.pattern})", line):
        taken = part if _STYLE.fullmatch(part) else part[:left]
        left -= 0 if _STYLE.fullmatch(part) else len(taken)
        found += taken
    return f"{found}…{_PLAIN if _STYLE.search(line) else ''}"
