"""Owns the table of what tests on a real node saw: action, what the kubelet did, end state, seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from tests.node.namespaces import FOLDER

HEAD = "| action | what the kubelet did | end state | seconds |\n|---|---|---|---|\n"


@dataclass
class Row:
    """One line of the table."""

    action: str
    kubelet: str = ""
    end: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"| {self.action} | {self.kubelet} | {self.end} | {self.seconds:.1f} |\n"


@dataclass
class Table:
    """The rows in the order they came."""

    rows: list[Row] = field(default_factory=list)
    last: ClassVar[str] = ""

    @contextlib.contextmanager
    def row(self, action: str) -> Iterator[Row]:
        """A row, timed until the context ends; none where that ends with an error."""
        row, began_s = Row(action), time.monotonic()
        yield row
        row.seconds = time.monotonic() - began_s
        self.rows.append(row)
        Table.last = HEAD + "".join(map(str, self.rows))

    def write(self) -> None:
        """Keep it as build/node/measured.md."""
        if self.rows:
            (FOLDER / "measured.md").write_text(Table.last)
