"""Which tests, cases and examples a run of pytest takes: the options --run, --share and --cases.

`--run` names the run:

- `quick`: without the tests that are marked `submission` or `release`, at most three cases of a parametrised function,
  and a fifth of each property's examples.
- `submission`: without those that are marked `release`. One share of what is divided, and a third of the examples.
- `release`, the default: everything.

What takes long is divided into shares, and a submission takes one of them. The number of the checkout's commits decides
which, so that consecutive submissions take all of them in turn. `--share K/N` chooses by hand.

Two runs take every case once, on two releases of Python: one with `--cases N`, one with `--cases N --other-cases`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.git import git

RUNS = ("quick", "submission", "release")
QUICK_CASES = 3
EXAMPLES_PER = {"quick": 5, "submission": 3, "release": 1}
"""A run tries one of this number of examples of a property."""

FEWEST_EXAMPLES = 10
"""A property is tried with at least this many examples, unless it asks for fewer."""

T = TypeVar("T")
CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Share:
    """Part `index` of `count`, counted from 1. Raises ValueError where there is no such part."""

    index: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(f"a share is K/N with K from 1 to N, not {self}")

    def of(self, items: Sequence[T]) -> list[T]:
        """Every `count`-th item, from item `index` on. The shares of a sequence are disjoint and together all of it."""
        return list(items[self.index - 1 :: self.count])

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True)
class Selection:
    """What a run takes: its name, the share chosen by hand, and the most cases of a parametrised function."""

    run: str = "release"
    by_hand: Share | None = None
    cases: int | None = None
    are_others: bool = False
    """Takes the cases that the same selection leaves out otherwise."""

    def share(self, count: int) -> Share:
        if self.by_hand:
            return self.by_hand
        return Share() if self.run == "release" else Share(commits() % count + 1, count)

    def examples(self, count: int) -> int:
        return max(count // EXAMPLES_PER[self.run], min(count, FEWEST_EXAMPLES))

    def takes(self, marked: set[str]) -> bool:
        return not marked & set(RUNS[RUNS.index(self.run) + 1 :])

    def chosen(self, cases: Sequence[T], shares: int, name: str) -> list[T]:
        """The cases to run of the function `name`, which is divided into `shares`.

        A share begins at a place that depends on the name, so that functions of one case are spread over the shares.
        A limited number of cases is spread over the list. It begins at another case in the next commit.
        """
        first = zlib.crc32(name.encode())
        taken = list(cases)
        if shares > 1 and (self.run != "quick" or self.by_hand):
            share = self.share(shares)
            taken = Share((share.index - 1 + first) % share.count + 1, share.count).of(cases)
        most = self.cases
        if most is None or len(taken) <= most:
            return [] if self.are_others else taken
        places = [(first + commits() + len(taken) * at // most) % len(taken) for at in range(most)]
        others = [at for at in range(len(taken)) if at not in places]
        return [taken[at] for at in (others if self.are_others else places)]


class _Current:
    """The selection of this process, once the options are read. Test modules read it while they are imported."""

    selection: Selection | None = None


def current() -> Selection:
    """The selection of this process. Raises RuntimeError before the options are read: everything would be taken."""
    if _Current.selection is None:
        raise RuntimeError("the selection is asked for before tests/conftest.py has read the options")
    return _Current.selection


def share(count: int) -> Share:
    return current().share(count)


def examples(count: int) -> int:
    return current().examples(count)


@cache
def commits() -> int:
    """The number of commits of the checkout; 0 outside of git, and in a copy without history."""
    return int(git(CHECKOUT, "rev-list", "--count", "HEAD") or 0)


def parsed(text: str) -> Share:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None:
        raise ValueError(f"a share is K/N, such as 2/3, not {text}")
    return Share(int(found[1]), int(found[2]))


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption("--run", choices=RUNS, default="release", help="which tests to take (default: all of them)")
    group.addoption("--share", metavar="K/N", help="the part to take of what is divided into shares")
    group.addoption("--cases", type=int, metavar="N", help="the most cases to run of a parametrised function")
    group.addoption("--other-cases", action="store_true", help="the cases that --cases leaves out")


def configure(config: pytest.Config) -> None:
    run, cases = config.getoption("--run"), config.getoption("--cases")
    try:
        by_hand = parsed(config.getoption("--share")) if config.getoption("--share") else None
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    cases = QUICK_CASES if run == "quick" and cases is None else cases
    _Current.selection = Selection(run, by_hand, cases, config.getoption("--other-cases"))


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection = current()
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if selection.takes({marker.name for marker in item.iter_markers()}):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen = set()
    for function, cases in functions.items():
        node, marker = next(cases[0].iter_markers_with_node("shares"), (None, None))
        # A module's tests are divided together: what several of them use is made once.
        name = node.nodeid if isinstance(node, pytest.Module) else function
        chosen |= set(selection.chosen(cases, marker.args[0] if marker else 1, name))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
