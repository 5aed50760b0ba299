"""`scripts/fuzz`: runs the guided engine on all targets or some, and says how much was tried and what was found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.assurance.fuzz import guided
from tests.assurance.fuzz.target import Target, check

DEFAULT_SECONDS = 60.0
BOUNDED_S = 20.0
"""No target of a bounded run takes so long; one that does ends then."""


def main(argv: list[str]) -> int:
    """Exit status 0 where nothing was found, 1 with a finding, 2 where it cannot run."""
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description="Coverage-guided fuzzing of everything that reads foreign input. A finding's input is saved under "
        "build/fuzz; run it again with --replay.",
    )
    parser.add_argument("target", nargs="*", help="targets by name (default: all; --list shows them)")
    parser.add_argument("--seconds", type=float, default=DEFAULT_SECONDS, help="in total, over all targets (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the randomness; 0: another one each time")
    parser.add_argument("--bounded", action="store_true", help="as CI: a fixed number of runs of each, always the same")
    parser.add_argument("--list", action="store_true", help="names of the targets")
    parser.add_argument("--replay", metavar="FILE", help="run one input through the one target named")
    options = parser.parse_args(argv)
    absent = guided.why_not()
    if absent and not (options.list or options.replay):
        print(f"fuzz: {absent}", file=sys.stderr)
        return 2
    if not absent:
        guided.instrument()
    from tests.assurance.fuzz.targets import TARGETS  # noqa: PLC0415  # instrumented just now

    unknown = sorted(set(options.target) - TARGETS.keys())
    if unknown or (options.replay and len(options.target) != 1):
        print(f"fuzz: name targets of these: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(TARGETS))
        return 0
    chosen = [TARGETS[name] for name in options.target] or list(TARGETS.values())
    if options.replay:
        is_taken = check(chosen[0], Path(options.replay).read_bytes())
        print(f"{chosen[0].name}: {'taken' if is_taken else 'refused'} as it should be")
        return 0
    return _run(chosen, options)


def _run(targets: list[Target], options: argparse.Namespace) -> int:
    findings = 0
    print(f"{'target':<18}{'runs':>10}{'runs/s':>9}{'cover':>7}{'seconds':>9}  findings")
    seconds = BOUNDED_S if options.bounded else max(1.0, options.seconds / len(targets))
    for target in targets:
        runs, seed = (target.runs, 1) if options.bounded else (-1, options.seed)
        one = guided.campaign(target, runs=runs, seconds=seconds, seed=seed)
        rate = one.runs / max(one.seconds, 0.001)
        names = " ".join(path.name for path in one.saved) or "none"
        print(f"{one.target:<18}{one.runs:>10}{rate:>9.0f}{one.coverage:>7}{one.seconds:>9.1f}  {names}", flush=True)
        if one.saved:
            findings += len(one.saved)
            print(one.output, file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
