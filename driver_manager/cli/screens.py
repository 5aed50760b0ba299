"""Where the sandbox's stories are shown: lines for anybody, and a table that is drawn again and again on a terminal.

Owns how a story looks. The table is what a terminal shows last; what is said meanwhile goes above it, and each chapter
leaves it as it was. Where there is no room for it, or no terminal, each change is a line.
"""

from __future__ import annotations

import shutil
import textwrap
import threading
from collections.abc import Sequence
from typing import TextIO

import click

from driver_manager.adapters.report.terminal import CYAN, GREEN, RED, columns_of, has_colour, is_capable, painted
from driver_manager.cli.options import styled
from driver_manager.domain.fleet.model import UpgradeState
from driver_manager.sandbox.fleet_picture import HEADINGS, NodeRow, Picture

MOST_COLUMNS = 100
HEADLINES = 8
"""Lines that the rollout's own message may take."""

LEAST_LINES = 24


class Screen:
    """Shows a story as plain lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def terminal(self) -> TextIO | None:
        """The terminal that it is shown on, where control sequences work there."""
        return self._stream if is_capable(self._stream) else None

    def chapter(self, title: str) -> None:
        """A new part begins."""
        self.line("")
        width = min(MOST_COLUMNS, shutil.get_terminal_size().columns)
        self.line(styled(f"── {title} ", bold=True) + "─" * max(0, width - len(title) - 4))

    def line(self, text: str) -> None:
        """One line of it."""
        click.echo(text, file=self._stream)


class FleetScreen(Screen):
    """The same, and the fleet as it looks. Called from several threads."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        lines = shutil.get_terminal_size().lines
        self._is_live = is_capable(stream) and lines >= LEAST_LINES
        self._paints = has_colour(stream)
        self._lock = threading.RLock()
        self._picture: Picture | None = None
        self._drawn = 0

    def chapter(self, title: str) -> None:
        """See Screen."""
        with self._lock:
            self._picture, self._drawn = None, 0
            super().chapter(title)

    def line(self, text: str) -> None:
        """See Screen."""
        with self._lock:
            self._erase()
            super().line(text)
            self._draw()

    def picture(self, picture: Picture, news: Sequence[str]) -> None:
        """How the fleet looks now, and what of it is new, in lines."""
        with self._lock:
            if not self._is_live:
                for text in news:
                    self.line(text)
                return
            self._erase()
            self._picture = picture
            self._draw()

    def _erase(self) -> None:
        """The table is gone, and the cursor where it began (ECMA-48: cursor up, erase in page)."""
        if self._drawn:
            click.echo(f"\x1b[{self._drawn}A\r\x1b[J", nl=False, file=self._stream)
        self._drawn = 0

    def _draw(self) -> None:
        if self._picture is None:
            return
        lines = table(self._picture, columns_of(self._stream), paints=self._paints)
        click.echo("\n".join(lines), file=self._stream)
        self._drawn = len(lines)


def table(picture: Picture, columns: int, *, paints: bool) -> list[str]:
    """The picture in lines that a terminal so wide does not wrap: what is said of the rollout, then its nodes."""
    headline = textwrap.wrap(picture.headline, columns, max_lines=HEADLINES, placeholder=" ...")
    cells = [HEADINGS, *(row.cells for row in picture.rows)]
    widths = [max(len(one[column]) for one in cells) for column in range(len(HEADINGS) - 1)]
    lines = [_cut(one, widths, columns) for one in cells]
    colours = ["", *(_colour(row) for row in picture.rows)]
    return [
        "",
        *headline,
        *(painted(line, colour, wanted=paints and bool(colour)) for line, colour in zip(lines, colours, strict=True)),
    ]


def _cut(cells: Sequence[str], widths: Sequence[int], columns: int) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, (*widths, 0), strict=True))
    line = "  ".join(padded).rstrip()
    return line if len(line) <= columns else f"{line[: max(0, columns - 3)]}..."


def _colour(row: NodeRow) -> str:
    if row.is_failed:
        return RED
    if row.is_under_way:
        return CYAN
    return GREEN if row.upgrade == UpgradeState.DONE.value else ""
