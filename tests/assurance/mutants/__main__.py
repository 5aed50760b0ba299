"""Applies mutants and reports which are killed. Run by scripts/mutants, whose help is its own."""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import as_completed

from tests.assurance.mutants.catalogue import MUTANTS
from tests.assurance.mutants.laboratory import End, Laboratory, Verdict
from tests.assurance.mutants.mutant import Mutant


def main() -> int:
    """0 where every mutant is killed, 1 where one is not or the list has rotted, 2 for names that are none."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", add_help=False)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--list", action="store_true")
    told = parser.parse_args()
    unknown = sorted(set(told.names) - MUTANTS.keys())
    if unknown or told.jobs < 1:
        why = f"no such mutant: {', '.join(unknown)}; --list shows all" if unknown else "--jobs is a number from 1"
        print(f"mutants: {why}", file=sys.stderr)
        return 2
    wanted = [MUTANTS[name] for name in told.names or MUTANTS]
    if told.list:
        print("\n".join(f"{mutant.name:<32} {mutant.breaks}" for mutant in wanted))
        return 0
    return report(wanted, told.jobs, as_json=told.output == "json")


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
            {"mutant": one.mutant, "breaks": MUTANTS[one.mutant].breaks, "end": one.end.value, "says": one.says}
            | {"seconds": round(one.seconds, 2)}
            for one in ends
        ]
        print(json.dumps(rows, indent=2))
    else:
        for one in ends:
            print(f"{one.end.value:<9} {one.seconds:>6.1f} s  {one.mutant:<32} {one.says}")
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
