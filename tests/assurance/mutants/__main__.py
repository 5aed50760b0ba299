"""Applies mutants and reports which are killed. Run by scripts/mutants, whose help is its own."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future

from tests.assurance.mutants import draw
from tests.assurance.mutants.catalogue import MUTANTS
from tests.assurance.mutants.laboratory import CHECKOUT, End, Laboratory, Verdict
from tests.assurance.mutants.line_mutants import every_line_mutant
from tests.assurance.mutants.mutant import PACKAGE, Mutant


def main() -> int:
    """0 where every mutant is killed, 1 where one is not or the list has rotted, 2 for names that are none."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", add_help=False)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--base", default=os.environ.get("TEST_BASE") or draw.BASE)
    options = parser.parse_args()
    if options.draw:
        end = time.monotonic() + draw.SECONDS
        drawn = draw.draw(MUTANTS.values(), CHECKOUT, options.base)
        print(drawn.why, flush=True)
        return tried(drawn.in_turn(), options.jobs, end)
    by_rule = {name: named(name) for name in options.names if ".py:" in name}
    unknown = [name for name in options.names if not by_rule.get(name) and name not in MUTANTS]
    if unknown:
        print(f"mutants: no such mutant: {', '.join(unknown)}; --list shows all", file=sys.stderr)
        return 2
    wanted = [mutant for name in options.names or MUTANTS for mutant in by_rule.get(name) or [MUTANTS[name]]]
    if options.list:
        print("\n".join(f"{mutant.name:<32} {mutant.breaks}" for mutant in wanted))
        return 0
    return tried(wanted, options.jobs)


def named(name: str) -> Sequence[Mutant]:
    """The mutants made by rule from a line, such as core/swap/node.py:41, or its second, with :2 after it."""
    path, _, place = name.partition(":")
    if not (CHECKOUT / PACKAGE / path).is_file():
        return ()
    return [one for one in every_line_mutant(CHECKOUT, path) if f"{one.name}:".startswith(f"{path}:{place}:")]


def tried(wanted: Sequence[Mutant], jobs: int, end: float = math.inf) -> int:
    """Try what fits before `end`, and print how each ended and what survived. 1 where something did.

    Where time is no matter, the tests have to pass without any mutant first; in a draw the unit tier shows that.
    """
    by_name = {mutant.name: mutant for mutant in wanted}
    with Laboratory(jobs, end + draw.MORE_SECONDS) as laboratory:
        problem = laboratory.control(wanted).result() if math.isinf(end) else ""
        if problem:
            print(f"mutants: the tests fail without any mutant:\n{problem}")
            return 1

        def begin(mutant: Mutant) -> Future[Verdict]:
            begun = laboratory.verdict(mutant)
            begun.add_done_callback(lambda ended: print(ended.result(), flush=True))
            return begun

        verdicts, left_out = draw.try_in_time(wanted, begin, jobs, end)
    bad = [one for one in verdicts if one.end not in (End.KILLED, End.UNDECIDED)]
    for one in bad:
        print(f"{by_name[one.mutant].shown()}\n  {one.end.value}: {one.says}\n  again: scripts/mutants {one.mutant}")
    ends = Counter(one.end for one in verdicts)
    killed, undecided = f"{ends[End.KILLED]} of {len(verdicts)} killed", f"{ends[End.UNDECIDED]} not decided in time"
    print(f"mutants: {killed}, {undecided}, {len(left_out)} left out for lack of time")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
