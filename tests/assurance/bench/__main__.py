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

from tests.assurance.bench import reconcile, rollout
from tests.assurance.bench.figure import Figure, Target, as_markdown, floor_s
from tests.assurance.bench.reconcile import NODES, UNLIMITED, measure_crowd, measure_holders, measure_storm
from tests.assurance.bench.watches import measure_rebooter, measure_watch, measure_watch_requests
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
    with plane_with_rights() as plane:
        found = [*of_reconcile(plane), *of_holders(plane), *of_idle(plane), *of_rollout(plane)]
    with plane_with_rights(UNLIMITED) as plane:
        found += of_scale(plane)
    return [*found, *of_big_fleets(), *of_storm(), *of_watch(), *of_demo()]


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
    seconds = in_a_folder("holders among 5,000 processes", lambda f: measure_holders(plane, f, HOLDER_RUNS))
    how = f"whole command among 5,000 processes more; {OVER.format(HOLDER_RUNS)}"
    floors = tuple(floor_s() for _ in seconds)
    return [Figure(Target.HOLDERS, tuple(seconds), how, floors)]


def of_idle(plane: ControlPlane) -> list[Figure]:
    rebooter = in_a_folder("idle rebooter", lambda f: measure_rebooter(plane, f))
    requests = in_a_folder("health-watch's requests", lambda f: measure_watch_requests(plane, f))
    how = "through a proxy that counts"
    return [
        Figure(Target.REBOOTER_MEMORY, (rebooter.rss_mib,), "the most in 500 looks, VmRSS"),
        Figure(Target.REBOOTER_REQUESTS, (float(rebooter.requests),), f"in 500 looks, {how}"),
        Figure(Target.WATCH_REQUESTS, (float(requests),), f"in 200 probes, KUBECONFIG set, {how}"),
    ]


def of_rollout(plane: ControlPlane) -> list[Figure]:
    """What a rollout costs before a real API server, over a few nodes and over many."""
    rolled = in_a_folder(f"rollout over {rollout.FEW} nodes", lambda f: rollout.measure_rolled(plane, f))
    few = f"audit log, {rollout.FEW} nodes in the default waves, 4 at a time; Events aside"
    idle = f"audit log over {rollout.IDLE_S:.0f} s after a rollout; watches and its Lease aside"
    served = in_a_folder(f"rollout over {rollout.MANY} real Nodes", lambda f: rollout.measure_served(plane, f))
    how = f"{rollout.MANY:,} nodes of 15 KiB in the default waves, a tenth unavailable at most, real API server"
    budget = f"{how}; a watch's view, write by write"
    rate = f"audit log, {how}; {served.requests_per_s:.0f} requests/s on the mean over {served.seconds:.0f} s"
    return [
        Figure(Target.WRITES, (rolled.writes_per_node,), few),
        Figure(Target.IDLE, (float(rolled.idle),), idle),
        Figure(Target.UNAVAILABLE, (float(served.most_unavailable),), budget),
        Figure(Target.MANY_WRITES, (served.writes_per_node,), rate),
        Figure(Target.MANY_MEMORY, (served.peak_mib,), f"VmHWM, {how}"),
    ]


def of_big_fleets() -> list[Figure]:
    many, most = rollout.MANY, rollout.MOST
    say(f"decisions about {most} nodes")
    decisions = tuple(rollout.measure_decisions(most, DECISIONS))
    floors = tuple(floor_s() for _ in decisions)
    at_once = in_a_folder(f"rollout over {many} nodes at once", rollout.measure_at_once)
    peak = in_a_folder(f"rollout with {most} nodes", rollout.measure_peak)
    server = "the sandbox's API server behind TLS, which shares the processors"
    busy = f"processor time from facts to status, in the middle of a rollout; {OVER.format(DECISIONS)}"
    memory = f"VmHWM in a pod, Nodes of 15 KiB, until {rollout.DONE_OF_MOST} are upgraded; {server}"
    whole = f"from the template to Complete, {at_once.writes_per_node:.2f} writes for each node; {server}"
    return [
        Figure(Target.DECISION, decisions, busy, floors),
        Figure(Target.MOST_MEMORY, (peak,), memory),
        Figure(Target.UNLIMITED, (at_once.seconds,), whole, (floor_s(),)),
    ]


def of_scale(plane: ControlPlane) -> list[Figure]:
    say(f"{NODES} nodes at once")
    crowd = measure_crowd(plane)
    more = tuple(float(count - crowd.alone) for count in crowd.requests)
    audited = (
        "audit log; real agents, simulated hosts; one API server, its limits of requests in flight raised; "
        f"{crowd.took_s:.0f} s, at most {crowd.peak} requests in 100 ms"
    )
    ended = f"last pod's deletion to the end of the run; median {crowd.reactions_s[NODES // 2]:.2f} s"
    return [Figure(Target.CROWD, more, audited), Figure(Target.CROWD_REACTION, (crowd.p99_s,), ended, (floor_s(),))]


def of_storm() -> list[Figure]:
    say("1,000 clients sent away")
    with_jitter, without = measure_storm()
    how = f"real clients on simulated clocks, 5 s of 429 with Retry-After: 1; {without} of 1,000 without jitter"
    return [Figure(Target.STORM, (float(with_jitter),), how)]


def of_watch() -> list[Figure]:
    watch = in_a_folder("health-watch over 10,000 probes", measure_watch)
    how = "VmRSS, a probe every millisecond, /metrics scraped 50 times a second"
    growth = "most memory in probes 5,500 to 10,000 less that in 1,000 to 5,500"
    share = "processor time of a probe over 9,000, as a share of 60 s; the tool's own aside"
    return [
        Figure(Target.WATCH_MEMORY, (watch.rss_mib,), how),
        Figure(Target.WATCH_GROWTH, (watch.growth_mib,), growth),
        Figure(Target.WATCH_PROCESSOR, (watch.idle_cpu_percent,), share),
    ]


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
