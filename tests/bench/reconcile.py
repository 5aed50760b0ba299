"""Measures one upgrade of the real command line on a real API server."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from tests.control_plane.api import wait_until
from tests.control_plane.kubelet import Operands
from tests.control_plane.many_nodes import COUNTED_OUT
from tests.control_plane.objects import create_node, create_operands
from tests.control_plane.runner import CommandRunner
from tests.control_plane.servers import ControlPlane

POD_STOP_S = 1.0


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
        command_runner = CommandRunner(plane, plane.agent_with_events, folder).with_upgrade()
        node = create_node(stack, api, {}, boot_id=command_runner.tree.boot_id)
        command_runner.node = node
        made: Operands = create_operands(stack, api, node)
        for component in made.components:
            node.kubelet.stop_after(component, POD_STOP_S)
        labels, mark = node.labels(), plane.audit_mark()
        ended = command_runner.reconcile()
        if ended.code or node.labels() != labels:
            raise SystemExit(f"the run did not end as it has to: {ended.err}")
        wait_until(lambda: len(node.kubelet.deletions) == len(made.components), "every pod's end is recorded")
        gone_s = max(deletion.asked_at_s or 0.0 for deletion in node.kubelet.deletions)
        records = plane.audit(plane.agent_with_events.name, since=mark)
        requests = sum(record.resource not in COUNTED_OUT for record in records)
        return Sample(requests, ended.at_s - gone_s, ended.took_s - POD_STOP_S)
