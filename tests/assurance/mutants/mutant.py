"""What a mutant is: one promise broken by one small patch, and the tests that have to notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PACKAGE = "driver_manager"


class NoLongerAppliesError(Exception):
    """The text that a mutant replaces is not in its file exactly once."""


@dataclass(frozen=True)
class Mutant:
    """`search`, once in the package's file `path`, becomes `replace`; `tests` (pytest's node ids below tests/) kill it.

    `breaks` is the promise that it breaks. Tests that take longer than `limit_s` seconds have noticed it only where the
    mutant says that it `hangs`; else they show nothing, as the machine may be slow.
    """

    breaks: str
    path: str
    search: str
    replace: str
    tests: tuple[str, ...]
    limit_s: int = 600
    hangs: bool = False
    name: str = ""

    def files(self) -> set[str]:
        """The files of its module and its tests, below the checkout."""
        return {f"{PACKAGE}/{self.path}", *(f"tests/{test.partition('::')[0]}" for test in self.tests)}

    def shown(self) -> str:
        """The place and the change, for a reader."""
        return f"{PACKAGE}/{self.path}: {self.breaks}"

    def mutated(self, root: Path) -> str:
        """What becomes of the module in the package below `root`. Raises NoLongerAppliesError."""
        source = (root / PACKAGE / self.path).read_text()
        if (count := source.count(self.search)) != 1:
            raise NoLongerAppliesError(f"{self.name}: what it replaces is {count} times in {PACKAGE}/{self.path}")
        return source.replace(self.search, self.replace)

    def apply(self, root: Path) -> None:
        """Patch the copy of the package below `root`. Raises NoLongerAppliesError."""
        (root / PACKAGE / self.path).write_text(self.mutated(root))
