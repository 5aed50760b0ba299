"""Which mutants a submission tries in its time: those near what changed, then a share of the others.

First, in turn, one of the catalogue whose module or tests changed, and one made by rule from a changed line of the
package. Then the share. The commit decides the order and the share, so that a draw can be repeated.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from textwrap import wrap

from tests.assurance.mutants import changes
from tests.assurance.mutants.laboratory import End, Verdict
from tests.assurance.mutants.line_mutants import LineMutant, line_mutants
from tests.assurance.mutants.mutant import PACKAGE, Mutant
from tests.support.selection import Share

BASE = "HEAD~20"
SECONDS = 90
MORE_SECONDS = 60
"""For what was begun in time: a mutant by rule that survives the nearest tests meets farther ones, too."""

SHARES = 6
CATALOGUE = "tests/assurance/mutants/"


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

    def __str__(self) -> str:
        kinds = {
            "in the catalogue, by changed modules and tests": self.changed,
            "by rule, on changed lines": self.lines,
            "in the catalogue, by share": self.share,
        }
        lines = [self.why]
        for kind, drawn in kinds.items():
            names = ", ".join(mutant.name for mutant in drawn)
            lines += [f"  {len(drawn)} {kind}", *(f"    {line}" for line in wrap(names, 116, break_on_hyphens=False))]
        return "\n".join(lines)


def draw(catalogue: Iterable[Mutant], checkout: Path, ref: str, share: Share) -> Draw:
    """What a submission with the checkout's commit tries, with changes since `ref`."""
    mutants = list(catalogue)
    head, base = changes.head_commit(checkout), changes.base_commit(checkout, ref)
    changed = changes.changed_lines(checkout, base) if base else {}
    shuffled = random.Random(head)  # noqa: S311  # to be repeated
    written = _written(changed, checkout)
    near = [mutant for mutant in mutants if mutant.name in written or not changed.keys().isdisjoint(mutant.files())]
    lines = [
        mutant
        for path, numbers in sorted(changed.items())
        if numbers and Path(path).is_relative_to(PACKAGE)
        for mutant in line_mutants(checkout, Path(path).relative_to(PACKAGE).as_posix())
        if numbers & mutant.lines
    ]
    rest = share.of([mutant for mutant in mutants if mutant not in near])
    for some in (near, lines, rest):
        shuffled.shuffle(some)
    since = f"changes since {ref}" if base else f"no changes, as {ref} is no commit here (a shallow clone?)"
    return Draw(f"mutants: {since}, share {share}, seed {head or 'none'}", near, lines, rest)


def _written(changed: Mapping[str, set[int]], checkout: Path) -> set[str]:
    """What is quoted on changed lines of the catalogue: new mutants are among it."""
    found = set()
    for path, numbers in changed.items():
        if path.startswith(CATALOGUE):
            lines = (checkout / path).read_text().split("\n")
            found |= {word for number in numbers for word in re.findall(r'"([^"]*)"', lines[number - 1])}
    return found


@dataclass(frozen=True)
class Outcome:
    """The verdicts on what was begun, and what was not begun in the time."""

    verdicts: Sequence[Verdict]
    left_out: Sequence[Mutant]


def try_in_time(
    mutants: Sequence[Mutant],
    verdict: Callable[[Mutant], Future[Verdict]],
    jobs: int,
    end: float,
    now: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Begin as many as fit before `end`, `jobs` at a time, and wait for each that was begun.

    One fits if the longest that was killed so far would end in time.
    """
    longest = 0.0
    waiting, running, ended = list(mutants), set[Future[Verdict]](), list[Verdict]()
    while True:
        while waiting and len(running) < jobs and now() + longest < end:
            running.add(verdict(waiting.pop(0)))
        if not running:
            return Outcome(ended, waiting)
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            ended.append(future.result())
            if ended[-1].end is End.KILLED:
                longest = max(longest, ended[-1].seconds)
