"""Measures every figure that the project promises, and prints one table in Markdown.

Run by scripts/bench. Figures are taken from outside: the audit log, the end of processes, the record of who plays the
kubelets, a proxy that counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.assurance.bench import reconcile, rollout, watches
from tests.assurance.bench.figure import Figure, Target, as_markdown, floor_s
from tests.assurance.bench.reconcile import NODES, UNLIMITED
from tests.support.control_plane.servers import ControlPlane, plane_with_rights
from tests.support.tiers import TierError

RUNS = 10
HOLDER_RUNS = 5
PEAK_RUNS = 3
DEMO_RUNS = 3
DECISIONS = 10
OVER = "median of {}"

T = TypeVar("T")


def main() -> int:
    """Print the table; exit status 1 when a target is missed."""
    before = os.getloadavg()[0]
    try:
        found = figures()
    except TierError as error:
        raise SystemExit(f"bench: {error}") from error
    noise = (
        f"Load before: {before:.1f}, after: {os.getloadavg()[0]:.1f}, of {os.cpu_count()} processors; control plane, "
        f"clients and stand-ins share them. Floor: an interpreter that imports click and ends, {floor_s():.3f} s now."
    )
    print(as_markdown(found, noise))
    return 0 if all(one.is_met for one in found) else 1


def figures() -> list[Figure]:
    few, many = f"rollout over {rollout.FEW} nodes", f"rollout over {rollout.MANY} real Nodes"
    with plane_with_rights() as plane:
        found = [*of_reconcile(plane), *of_holders(plane)]
        found += in_a_folder("idle rebooter", lambda f: watches.measure_rebooter(plane, f))
        found += in_a_folder("health-watch's requests", lambda f: watches.measure_watch_requests(plane, f))
        found += in_a_folder(few, lambda f: rollout.measure_rolled(plane, f))
        found += in_a_folder(many, lambda f: rollout.measure_served(plane, f))
    with plane_with_rights(UNLIMITED) as plane:
        say(f"{NODES} nodes at once")
        found += reconcile.measure_crowd(plane)
    found += of_decisions()
    found += in_a_folder(f"rollout with {rollout.MOST} nodes", rollout.measure_peak)
    found += in_a_folder(f"rollout over {rollout.MANY} nodes at once", rollout.measure_at_once)
    say("1,000 clients sent away")
    found += reconcile.measure_storm()
    found += in_a_folder("health-watch over 10,000 probes", watches.measure_watch)
    return [*found, *of_demo()]


def of_reconcile(plane: ControlPlane) -> list[Figure]:
    samples = [in_a_folder(f"reconcile {n + 1} of {RUNS}", lambda f: reconcile.measure(plane, f)) for n in range(RUNS)]
    peaks = tuple(in_a_folder("its memory", lambda f: reconcile.measure_peak(plane, f)) for _ in range(PEAK_RUNS))
    floors = tuple(sample.floor_s for sample in samples)
    requests = tuple(float(sample.requests) for sample in samples)
    reactions, overheads = (tuple(getattr(one, name) for one in samples) for name in ("reaction_s", "overhead_s"))
    audited = f"audit log; events, access reviews and the condition aside; {OVER.format(RUNS)}"
    tools = f"stand-in tools in sh; {OVER.format(RUNS)}"
    deleted, whole = "from before its final DELETE is sent", "start to end of the process less the pods' second"
    return [
        Figure(Target.REQUESTS, requests, audited),
        Figure(Target.REACTION, reactions, f"{deleted}; {tools}", floors),
        Figure(Target.OVERHEAD, overheads, f"{whole}; {tools}", floors),
        Figure(Target.PEAK, peaks, f"ru_maxrss, as in a pod; {OVER.format(PEAK_RUNS)}"),
    ]


def of_holders(plane: ControlPlane) -> list[Figure]:
    what = "holders among 5,000 processes"
    seconds = in_a_folder(what, lambda f: reconcile.measure_holders(plane, f, HOLDER_RUNS))
    how = f"whole command among 5,000 processes more; {OVER.format(HOLDER_RUNS)}"
    return [Figure(Target.HOLDERS, tuple(seconds), how, tuple(floor_s() for _ in seconds))]


def of_decisions() -> list[Figure]:
    say(f"decisions about {rollout.MOST} nodes")
    decisions = tuple(rollout.measure_decisions(rollout.MOST, DECISIONS))
    busy = f"processor time from facts to status, in the middle of a rollout; {OVER.format(DECISIONS)}"
    return [Figure(Target.DECISION, decisions, busy, tuple(floor_s() for _ in decisions))]


def of_demo() -> list[Figure]:
    found = []
    for target, name in ((Target.DEMO, ()), (Target.FLEET_DEMO, ("fleet",))):
        say(target.what)
        seconds, floors_s = zip(*((measure_demo(*name), floor_s()) for _ in range(DEMO_RUNS)), strict=True)
        found.append(Figure(target, seconds, f"whole command; {OVER.format(DEMO_RUNS)}", floors_s))
    return found


def measure_demo(*name: str) -> float:
    """Seconds of `driver-manager sandbox`, what scripts/demo runs, start of the process included."""
    argv, env = [sys.executable, "-m", "driver_manager", "sandbox", *name], {"PATH": os.environ["PATH"]}
    begun_s = time.monotonic()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"the demo did not end as it has to: {done.stderr[-500:]}")
    return time.monotonic() - begun_s


def in_a_folder(what: str, measure: Callable[[Path], T]) -> T:
    say(what)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return measure(Path(folder))


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
