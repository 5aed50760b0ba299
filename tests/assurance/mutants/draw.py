"""Which mutants a submission tries in its time: those near what changed, then a share of the others.

First, in turn, one of the catalogue that is new or changed, or whose module or tests changed, and one made by rule from
a changed line of the package. Then the share. The commit decides the order and the share, so that a draw can be
repeated.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from tests.assurance.mutants.laboratory import End, Verdict
from tests.assurance.mutants.line_mutants import EQUIVALENTS, LineMutant, every_line_mutant
from tests.assurance.mutants.mutant import PACKAGE, Mutant
from tests.support.git import git
from tests.support.selection import Selection, Share

BASE = "HEAD~20"
SECONDS = 90
MORE_SECONDS = 60
"""For what was begun in time: a mutant by rule that survives the nearest tests meets farther ones, too."""

SHARES = 6
CATALOGUE = "tests/assurance/mutants/catalogue.py"
ENTRY = re.compile(r"(\w[\w-]*): ")
"""How a mutant begins in the catalogue."""
NEW = "\x1b[32m"
MOVED = ("-c", "color.diff.new=green", "-c", "color.diff.newMoved=blue")
"""git shows a line that is new in green, and one that has only moved in blue."""


@dataclass(frozen=True)
class Draw:
    """Three lists of mutants in the order in which they were drawn, and `why`: what they were drawn by."""

    why: str
    changed: Sequence[Mutant]
    lines: Sequence[LineMutant]
    share: Sequence[Mutant]

    def in_turn(self) -> list[Mutant]:
        """All of them, in the order in which they are begun."""
        near = chain.from_iterable(zip_longest(self.changed, self.lines))
        return [*(mutant for mutant in near if mutant is not None), *self.share]


def draw(catalogue: Iterable[Mutant], checkout: Path, ref: str, share: Share | None = None) -> Draw:
    """What a submission with the checkout's commit tries, with changes since `ref`."""
    mutants, share = list(catalogue), share or Selection("submission").share(SHARES)
    head = (git(checkout, "rev-parse", "HEAD") or "").strip()
    base = (git(checkout, "merge-base", ref, "HEAD") or "").strip()  # none in a shallow clone, or outside of git
    changed = changed_lines(checkout, base) if base else {}
    numbers = changed.get(CATALOGUE, set())
    written = _entries((checkout / CATALOGUE).read_text(), numbers) if numbers else set[str]()
    near = [mutant for mutant in mutants if mutant.name in written or not changed.keys().isdisjoint(mutant.files())]
    lines = [
        mutant
        for path, numbers in sorted(changed.items())
        if numbers and Path(path).is_relative_to(PACKAGE)
        for mutant in every_line_mutant(checkout, Path(path).relative_to(PACKAGE).as_posix())
        if numbers & mutant.lines and mutant.tests and mutant.key() not in EQUIVALENTS
    ]
    rest = share.of([mutant for mutant in mutants if mutant not in near])
    shuffled = random.Random(head)  # noqa: S311  # to be repeated
    for some in (near, lines, rest):
        shuffled.shuffle(some)
    since = f"changes since {ref}" if base else f"no changes, as {ref} is no commit here (a shallow clone?)"
    why = f"mutants: {len(near)} of the catalogue and {len(lines)} by rule for {since}, {len(rest)} by share {share}"
    return Draw(why, near, lines, rest)


def _entries(catalogue: str, numbers: set[int]) -> set[str]:
    """The names of the mutants that the lines with these numbers belong to."""
    name, found = "", set[str]()
    for number, line in enumerate(catalogue.split("\n"), 1):
        name = entry[1] if (entry := ENTRY.match(line)) else name
        found |= {name} if number in numbers else set()
    return found


def changed_lines(checkout: Path, base: str) -> dict[str, set[int]]:
    """By file, the numbers of the lines that are new since `base`, committed or not. A line that only moved is not."""
    options = ("--unified=0", "-M", "--no-ext-diff", "--dst-prefix=b/", "--color=always", "--color-moved=blocks")
    moved = "--color-moved-ws=allow-indentation-change"
    changed: dict[str, set[int]] = {}
    path, number = "", 0
    for line in (git(checkout, *MOVED, "diff", *options, moved, base, "--", "*.py") or "").split("\n"):
        plain = re.sub(r"\x1b\[\d*m", "", line)
        if plain.startswith("+++ b/"):
            path = plain.removeprefix("+++ b/").rstrip("\t")
            changed[path] = set()
        elif hunk := re.match(r"@@ \S+ \+(\d+)", plain):
            number = int(hunk[1])
        elif plain.startswith("+"):
            changed.get(path, set()).update({number} if line.startswith(NEW) else ())
            number += 1
    return changed


def try_in_time(
    mutants: Sequence[Mutant],
    verdict: Callable[[Mutant], Future[Verdict]],
    jobs: int,
    end: float,
    now: Callable[[], float] = time.monotonic,
) -> tuple[list[Verdict], list[Mutant]]:
    """Begin those before whose `end` the longest that was killed so far would end: the verdicts, and what is left."""
    longest = 0.0
    waiting, running, ended = list(mutants), set[Future[Verdict]](), list[Verdict]()
    while True:
        while waiting and len(running) < jobs and now() + longest < end:
            running.add(verdict(waiting.pop(0)))
        if not running:
            return ended, waiting
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            ended.append(future.result())
            if ended[-1].end is End.KILLED:
                longest = max(longest, ended[-1].seconds)
