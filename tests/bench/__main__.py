"""Measures the figures of one reconcile against a real API server: a table, or JSON with `-o json`.

Run by scripts/bench. Figures are taken from outside: the audit log, the process' end, the kubelet stand-in's record.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.health_watch import WatchFigures, measure_watch
from tests.bench.holders import measure_holders
from tests.cluster.api import wait_until
from tests.cluster.conftest import EVENTS, GENERATION_1, bind_rights, create_node, create_operands
from tests.cluster.controlplane import NAMESPACE, ControlPlane, missing_assets
from tests.cluster.kubelet import Operands
from tests.cluster.rig import Rig

RUNS = 10
HOLDER_RUNS = 5
POD_STOP_S = 1.0
COUNTED_OUT = ("events", "selfsubjectaccessreviews")


@dataclass(frozen=True)
class Figure:
    """One row: what, its samples, the target, and how it was measured."""

    what: str
    unit: str
    samples: tuple[float, ...]
    target: float
    how: str

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def is_met(self) -> bool:
        """Whether the median reaches the target."""
        return self.median <= self.target


@dataclass(frozen=True)
class Sample:
    """One reconcile. Seconds, and a count."""

    requests: int
    reaction_s: float
    overhead_s: float


def measure(plane: ControlPlane, folder: Path) -> Sample:
    """One upgrade with six operands that take a second to stop."""
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(plane.api(plane.admin))
        rig = Rig(plane, plane.agent_with_events, folder).with_upgrade()
        node = create_node(stack, api, {}, boot_id=rig.tree.boot_id)
        rig.node = node
        made: Operands = create_operands(stack, api, node)
        for component in made.components:
            node.kubelet.stop_after(component, POD_STOP_S)
        labels, mark = node.labels(), plane.audit_mark()
        ended = rig.reconcile()
        if ended.code or node.labels() != labels:
            raise SystemExit(f"the run did not end as it has to: {ended.err}")
        wait_until(lambda: len(node.kubelet.deletions) == len(made.components), "every pod's end is recorded")
        gone_s = max(deletion.asked_at_s or 0.0 for deletion in node.kubelet.deletions)
        records = plane.audit(plane.agent_with_events.name, since=mark)
        requests = sum(record.resource not in COUNTED_OUT for record in records)
        return Sample(requests, ended.at_s - gone_s, ended.took_s - POD_STOP_S)


@contextlib.contextmanager
def running_plane() -> Iterator[ControlPlane]:
    """A control plane with the namespace and the agent's rights."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    reason = missing_assets(assets)
    if reason or assets is None:
        raise SystemExit(f"bench: {reason}")
    with ControlPlane(Path(assets)) as plane:
        with plane.api(plane.admin) as api:
            api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            bind_rights(api, plane.agent_with_events, GENERATION_1 + EVENTS)
        yield plane


def figures() -> list[Figure]:
    """All figures of a reconcile, each over `RUNS` runs."""
    samples = []
    with running_plane() as plane:
        for number in range(RUNS):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                samples.append(measure(plane, Path(folder)))
            print(f"reconcile {number + 1} of {RUNS}", file=sys.stderr)
        print("holders among 5,000 processes", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            holders_s = measure_holders(plane, Path(folder), HOLDER_RUNS)
    print("health-watch over 10,000 probes", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        watch = measure_watch(Path(folder))
    return [
        Figure(
            "API requests of one reconcile, 6 operands",
            "",
            tuple(float(sample.requests) for sample in samples),
            6,
            "audit log; events and access reviews aside",
        ),
        Figure(
            "last pod's deletion to the process' exit",
            "s",
            tuple(sample.reaction_s for sample in samples),
            0.5,
            "from before the final DELETE is sent to the end of the process; unload and load with stand-in tools",
        ),
        Figure(
            "whole overhead of a reconcile",
            "s",
            tuple(sample.overhead_s for sample in samples),
            1.0,
            "from start to end of the process, less the second that the pods take",
        ),
        Figure(
            "`holders` on a host with 5,000 processes",
            "s",
            tuple(holders_s),
            1.0,
            "whole command, start of the process included; the open files of all processes explain the one user",
        ),
        *watch_figures(watch),
    ]


def watch_figures(watch: WatchFigures) -> list[Figure]:
    """The rows of health-watch."""
    return [
        Figure(
            "health-watch: most memory in 10,000 probes",
            "MiB",
            (watch.rss_mib,),
            16.0,
            "VmRSS of the process with a probe every millisecond, without --metrics-addr; looked at every 20 ms",
        ),
        Figure(
            "health-watch: growth in the second half",
            "MiB",
            (watch.growth_mib,),
            0.1,
            "most memory in probes 5,500 to 10,000 less that in 1,000 to 5,500",
        ),
        Figure(
            "health-watch: processor, one probe a minute",
            "%",
            (watch.idle_cpu_percent,),
            0.1,
            "processor time of the process itself per probe, over 9,000, as a share of 60 s; it sleeps in between",
        ),
    ]


def main() -> int:
    """Print the table; exit status 1 when a target is missed."""
    found = figures()
    if sys.argv[1:] == ["-o", "json"]:
        rows = [{**vars(figure), "median": figure.median, "met": figure.is_met} for figure in found]
        print(json.dumps(rows, indent=2))
    else:
        print(f"{'what':<45} {'min':>7} {'median':>7} {'max':>7} {'target':>8}  unit")
        for figure in found:
            low, high = min(figure.samples), max(figure.samples)
            target = f"≤ {figure.target:g}"
            row = f"{figure.what:<45} {low:>7.2f} {figure.median:>7.2f} {high:>7.2f} {target:>8}"
            print(f"{row}  {figure.unit or 'count'}{'' if figure.is_met else '  MISSED'}")
        print("\nhow:")
        for figure in found:
            print(f"  {figure.what}: {figure.how}")
    return 0 if all(figure.is_met for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
