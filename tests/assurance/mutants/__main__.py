"""Applies mutants and reports which are killed. Run by scripts/mutants, whose help is its own."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import as_completed

from tests.assurance.mutants import draw
from tests.assurance.mutants.catalogue import MUTANTS
from tests.assurance.mutants.laboratory import CHECKOUT, End, Laboratory, Verdict
from tests.assurance.mutants.line_mutants import LineMutant, every_line_mutant
from tests.assurance.mutants.mutant import PACKAGE, Mutant
from tests.support import selection


def main() -> int:
    """0 where every mutant is killed, 1 where one is not or the list has rotted, 2 for names that are none."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", add_help=False)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--seconds", type=float, default=draw.SECONDS)
    parser.add_argument("--base", default=os.environ.get("TEST_BASE") or draw.BASE)
    parser.add_argument("--share", type=selection.parsed)
    told = parser.parse_args()
    if told.draw:
        end = time.monotonic() + told.seconds
        share = selection.Selection("submission", told.share).share(draw.SHARES)
        return tried(draw.draw(MUTANTS.values(), CHECKOUT, told.base, share), told.jobs, end)
    by_rule = {name: named(name) for name in told.names if ".py:" in name}
    unknown = [name for name in told.names if not by_rule.get(name) and name not in MUTANTS]
    if unknown or told.jobs < 1:
        why = f"no such mutant: {', '.join(unknown)}; --list shows all" if unknown else "--jobs is a number from 1"
        print(f"mutants: {why}", file=sys.stderr)
        return 2
    wanted = [mutant for name in told.names or MUTANTS for mutant in by_rule.get(name) or [MUTANTS[name]]]
    if told.list:
        print("\n".join(f"{mutant.name:<32} {mutant.breaks}" for mutant in wanted))
        return 0
    return report(wanted, told.jobs, as_json=told.output == "json")


def named(name: str) -> Sequence[Mutant]:
    """The mutants made by rule from a line, such as core/swap/node.py:41, or its second, with :2 after it."""
    path, _, place = name.partition(":")
    if not (CHECKOUT / PACKAGE / path).is_file():
        return ()
    return [one for one in every_line_mutant(CHECKOUT, path) if f"{one.name}:".startswith(f"{path}:{place}:")]


def tried(drawn: draw.Draw, jobs: int, end: float) -> int:
    """Print the draw, try what fits before `end` and print what survived. 1 where something did."""
    print(drawn, flush=True)
    wanted = {mutant.name: mutant for mutant in drawn.in_turn()}
    with Laboratory(jobs, end + draw.MORE_SECONDS) as laboratory:
        outcome = draw.try_in_time(list(wanted.values()), laboratory.verdict, jobs, end)
    ends = Counter(one.end for one in outcome.verdicts)
    bad = [one for one in outcome.verdicts if one.end not in (End.KILLED, End.UNDECIDED)]
    for one in bad:
        print(f"{wanted[one.mutant].shown()}\n  {one.end.value}: {one.says}\n  again: scripts/mutants {one.mutant}")
    said = f"mutants: {ends[End.KILLED]} of {len(outcome.verdicts)} killed"
    if ends[End.UNDECIDED]:
        said += f", {ends[End.UNDECIDED]} not decided in time"
    print(said + (f", {len(outcome.left_out)} left out for lack of time" if outcome.left_out else ""))
    return 1 if bad else 0


def report(wanted: list[Mutant], jobs: int, *, as_json: bool) -> int:
    """Run all of `wanted` and print how they ended, progress to stderr."""
    print(f"the tests of {len(wanted)} mutant(s) on the package as it is", file=sys.stderr)
    with Laboratory(jobs) as laboratory:
        problem = laboratory.control(wanted).result()
        if problem:
            print(f"mutants: they fail without any mutant:\n{problem}", file=sys.stderr)
            return 1
        ends = found(wanted, laboratory)
    if as_json:
        rows = [
            {"mutant": mutant.name, "breaks": mutant.breaks, "end": one.end.value, "says": one.says}
            | {"seconds": round(one.seconds, 2)}
            for mutant, one in zip(wanted, ends, strict=True)
        ]
        print(json.dumps(rows, indent=2))
    else:
        for one in ends:
            print(f"{one.end.value:<9} {one.seconds:>6.1f} s  {one.mutant:<32} {one.says}")
    for mutant, one in zip(wanted, ends, strict=True):
        if isinstance(mutant, LineMutant) and one.end is not End.KILLED:
            print(mutant.shown(), file=sys.stderr)
    killed = sum(one.end is End.KILLED for one in ends)
    print(f"{killed} of {len(ends)} mutants killed", file=sys.stderr)
    return 0 if killed == len(ends) else 1


def found(wanted: list[Mutant], laboratory: Laboratory) -> list[Verdict]:
    """The verdicts, in the order of `wanted`."""
    ended: dict[str, Verdict] = {}
    for future in as_completed([laboratory.verdict(mutant) for mutant in wanted]):
        one = future.result()
        ended[one.mutant] = one
        print(f"{len(ended)}/{len(wanted)} {one.mutant}: {one.end.value}", file=sys.stderr)
    return [ended[mutant.name] for mutant in wanted]


if __name__ == "__main__":
    sys.exit(main())
