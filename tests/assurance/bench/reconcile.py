"""Measures one upgrade of the real command line on a real API server."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.assurance.bench.floor import floor_s
from tests.assurance.bench.tools import quicken
from tests.support.control_plane.kubelet import Operands
from tests.support.control_plane.many_nodes import COUNTED_OUT
from tests.support.control_plane.objects import create_node, create_operands
from tests.support.control_plane.runner import NEW, CommandRunner
from tests.support.control_plane.servers import ControlPlane

POD_STOP_S = 1.0
PEAK = Path(__file__).with_name("peak.py")


@dataclass(frozen=True)
class Sample:
    """One reconcile. Seconds, and a count; `floor_s` is the machine's floor right before it."""

    requests: int
    reaction_s: float
    overhead_s: float
    floor_s: float


def measure(plane: ControlPlane, folder: Path) -> Sample:
    """One upgrade with six operands that take a second to stop."""
    return _upgrade(plane, folder)


def measure_peak(plane: ControlPlane, folder: Path) -> float:
    """The most memory that such an upgrade ever had, in MiB."""
    peak = folder / "peak"
    _upgrade(plane, folder, (sys.executable, "-I", "-S", str(PEAK), str(peak)))
    return float(peak.read_text())


def _upgrade(plane: ControlPlane, folder: Path, through: tuple[str, ...] = ()) -> Sample:
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(plane.api(plane.admin))
        command_runner = CommandRunner(
            plane, plane.agent_with_events, folder, through=through, is_forked=False
        ).with_upgrade()
        quicken(command_runner.tree, NEW)
        node = create_node(stack, api, {}, boot_id=command_runner.tree.boot_id)
        command_runner.node = node
        made: Operands = create_operands(stack, api, node)
        for component in made.components:
            node.kubelet.stop_after(component, POD_STOP_S)
        labels, mark, floor = node.labels(), plane.audit_mark(), floor_s()
        ended = command_runner.reconcile()
        if ended.code or node.labels() != labels:
            raise SystemExit(f"the run did not end as it has to: {ended.err}")
        if command_runner.tree.driver_version != NEW:
            raise SystemExit(f"the driver is {command_runner.tree.driver_version}")
        gone_s = max(deletion.asked_at_s or 0.0 for deletion in node.kubelet.deletions())
        records = plane.audit(plane.agent_with_events.name, since=mark)
        requests = sum(record.resource not in COUNTED_OUT for record in records)
        return Sample(requests, ended.at_s - gone_s, ended.took_s - POD_STOP_S, floor)
