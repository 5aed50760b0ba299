"""docs/states.md, from what the code does: `scripts/pictures` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from driver_manager.domain.fleet.advance import OUTLOOK_GUARDS
from driver_manager.domain.fleet.nodes import JUDGE_CASES, PHASE_CASES
from driver_manager.domain.fleet.waves import HOLD_GUARDS
from driver_manager.domain.profile import Strategy
from driver_manager.domain.swap.steps import Decision
from tests.support.docs import fleet_picture, health_picture, plan_picture, reboot_picture, recovery_picture
from tests.support.docs.markdown import DOCS, main

SCRIPT = "scripts/pictures"
MERMAID = "```mermaid\n{}\n```"
HEAD = f"""# State machines

For developers: in which order each program acts, and why. Made by `{SCRIPT}` from the code; a test fails when they
differ. For users: [operate](operate.md) and [reference](reference.md).
"""
RECONCILE = """## reconcile-driver-state

A run observes, makes a plan, and executes its steps. The run that follows a killed one does the same.

These are the steps of each decision in order, merged from {count:,} plans. **Bold** steps are in each plan that has
steps. ↻ is PlanAgain: the run observes and plans again. What a step does is in its docstring in
`driver_manager/domain/swap/steps.py`.
"""
WHEN = {
    Decision.HOST_DRIVER: "The host has its own driver, and a container was to install one.",
    Decision.NOT_LOADED: "No driver is loaded. No process can hold the device, so no pod is evicted.",
    Decision.CURRENT: "The wanted driver is loaded.",
    Decision.REBIND: "The wanted driver is loaded, but its container restarts: pods have to release its old root.",
    Decision.REPLACE: "The loaded driver is not the wanted one.",
    Decision.UNINSTALL: "A driver is loaded; a vfio-manager or vgpu-manager pod needs it unloaded and brings none.",
    Decision.CLEAR: "A rollout will delete the driver pod, whose container then unloads the driver.",
    Decision.NO_DEVICE: "Virtual machines are to have the devices, but the bus has none.",
    Decision.ON_VFIO: "Virtual machines have the devices: all are on vfio, and no driver is loaded.",
    Decision.BIND: "Virtual machines are to have the devices, and no driver serves them.",
    Decision.SWITCH: "Virtual machines are to have the devices, and the driver serves some.",
    Decision.REBOOT: "The loaded driver is not the wanted one, and it is never unloaded from a running kernel.",
}
HEALTH = """## health-watch

A sample is `good`, `bad`, `last bad` (the failure that reaches the threshold) or `not counted` (unknown, a repetition,
or a failure before the driver was ever ready). `mute`: a reconcile is running, the driver is absent, not ready or
another one, or an administrator muted the node.
"""
RECOVERY = """## recovery

While the driver is wedged, a short-lived process of health-watch decides each minute. The first guard that applies
decides.
"""
REBOOTER = """## rebooter

The first guard that applies decides. The examples are from {count} simulated stories.
"""
ROLLOUT = """## rollout controller

A decision is a pure function of object, Nodes, driver pods and revisions. It is computed again at each change, and by
the controller that follows a killed one. The tables show what {count} simulated stories of seven nodes led to.

How the rollout changed the state label of a Node:
"""
PLACE = """### The place of a node

The first row that applies decides. A node that has failed takes no place of others; it is done once its driver serves.
"""
CASE = """### States of a node that was taken

The node's record names the pod to delete. A pod that replaced it is never deleted for the same revision.
"""
OBSTACLE = """### Why a node is left out

Such a node is not changed and delays no other node. The rollout completes without it only if it is skipped or managed
by an operator.
"""
HOLD = """### Why no node begins

The first row that applies holds all nodes. Nodes under way are completed.
"""


def _parts() -> Iterator[str]:
    yield HEAD
    orders = plan_picture.orders()
    yield RECONCILE.format(count=sum(order.plans for order in orders))
    for never in (False, True):
        yield "### A driver that is never unloaded" if never else "### A driver that can be swapped"
        shown = (one for one in orders if (one.strategy is Strategy.REBOOT) is never)
        yield "\n".join(f"- `{one.decision.value}`. {WHEN[one.decision]}\n  {plan_picture.steps(one)}" for one in shown)
    yield HEALTH
    yield MERMAID.format(health_picture.picture())
    yield health_picture.marks()
    yield RECOVERY
    yield recovery_picture.guards()
    yield REBOOTER.format(count=len(reboot_picture.STORIES))
    yield reboot_picture.guards()
    yield "Which act followed which on one node:"
    yield MERMAID.format(reboot_picture.picture())
    yield ROLLOUT.format(count=fleet_picture.STORIES)
    yield MERMAID.format(fleet_picture.picture())
    seen, guard_table = fleet_picture.seen(), fleet_picture.guard_table
    yield from (PLACE, guard_table("the node is", PHASE_CASES, seen.places))
    yield from (CASE, guard_table("what is noted on it", JUDGE_CASES, seen.cases))
    yield from (OBSTACLE, fleet_picture.obstacles())
    yield from (HOLD, guard_table("phase and reason", HOLD_GUARDS, seen.holds))
    yield from ("### What is shown", guard_table("phase and reason", OUTLOOK_GUARDS, seen.phases))


def pages() -> Mapping[Path, str]:
    return {DOCS / "states.md": "\n\n".join(part.strip() for part in _parts()) + "\n"}


if __name__ == "__main__":
    sys.exit(main(SCRIPT, pages))
