"""docs/states.md, from what the code does: `scripts/pictures` writes it."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

from driver_manager.domain.fleet.advance import OUTLOOK_GUARDS
from driver_manager.domain.fleet.nodes import JUDGE_CASES, PHASE_CASES
from driver_manager.domain.fleet.waves import HOLD_GUARDS
from driver_manager.domain.profile import Strategy
from driver_manager.domain.swap.steps import AnyStep, Decision
from tests.support.docs import fleet_picture, health_picture, plan_picture, reboot_picture
from tests.support.docs.markdown import DOCS, main, table

SCRIPT = "scripts/pictures"
HEAD = f"""# State machines

Drawn by `{SCRIPT}` from what the code does, not from what somebody remembers: a test fails when a picture is not the
code's any more. The words are in [operate.md](operate.md) and [reference.md](reference.md).
"""
RECONCILE = """## reconcile-driver-state

One run observes, plans, executes, settles. The plan is a list of steps; here is their order for each decision, merged
from the plans that the planner makes of {count:,} mixtures of facts and wishes. A box with round ends is a step that a
plan has only where it is needed; a current driver may need no step at all. A run that dies anywhere is followed by one
that observes and plans again: resuming is planning again.
"""
WHEN = {
    Decision.HOST_DRIVER: "The host has a driver of its own, and a container was to install one.",
    Decision.NOT_LOADED: "No driver is loaded: nobody can hold the device, so nobody is evicted for it.",
    Decision.CURRENT: "The wanted driver is loaded.",
    Decision.REBIND: "It is, but its container restarts, so that pods have to release its old root.",
    Decision.REPLACE: "Another driver is loaded than the wanted one.",
    Decision.UNINSTALL: "A driver is loaded, and our pod (vfio-manager, vgpu-manager) needs it out and brings none.",
    Decision.CLEAR: "A rollout is about to delete the driver pod, whose container unloads the driver then.",
    Decision.NO_DEVICE: "Virtual machines are to have the devices, and there is none on the bus.",
    Decision.ON_VFIO: "Virtual machines are to have the devices, and can: all are on vfio, and no driver is loaded.",
    Decision.BIND: "Virtual machines are to have the devices, of which the driver has none.",
    Decision.SWITCH: "Virtual machines are to have the devices, and the driver serves some.",
    Decision.REBOOT: "Another driver is loaded than the wanted one, and it is never unloaded from a running kernel.",
}
HEALTH = """## health-watch

From the table of its transitions. A sample is `good`, `bad`, `last bad` (the failure that reaches the threshold) or
`not counted` (unknown, a failure that repeats the one before it, or one before the driver was ever ready). `mute` is
a moment at which nothing is judged: a reconcile is running, the driver is not loaded, not ready or another one, or an
administrator muted the node.
"""
REBOOTER = """## rebooter

At every look the guards are asked in this order, and the first that applies decides. The acts and examples
are those seen when the rebooter played {count} stories on simulated nodes.
"""
FOLLOWERS = """Which act followed which on one node in those stories, one process after the other:"""

ROLLOUT = """## rollout controller

One decision is a pure function of what the watches show: the object, the Nodes, the driver's pods and the DaemonSet's
revisions. It is computed again at each change. What it is made from is on the objects: a controller that dies anywhere
is followed by one that decides the same. The examples are those seen in {count} stories of seven simulated nodes, in
which anything happens in the middle of a rollout and the controller dies between any two acts.

The state on a Node is a label with the operators' words; this is how the rollout changed it:
"""
PLACE = """### The place of a node

The first of these that applies to a node decides. A node that is taken is in one of the cases below.
A node that has failed holds no place of others, and is done once its driver serves after all.
"""
CASE = """### What a node is in that was taken

Its record names the pod that was to go. As long as that pod is there, nothing has been done to the node; whatever other
pod is there came after it, and is never deleted for the same revision.
"""
OBSTACLE = """### Why a node is left out

Nothing is ever done to such a node, and it holds no other node up. The rollout is complete without it only where it is
skipped or managed by an operator.
"""
HOLD = """### Why no node begins

The first of these that applies holds all nodes; those that are under way are brought to their end.
"""
PHASE = """### What is shown

The phase of the object, the reason of its conditions, and the message for people.
"""


def _mermaid(text: str) -> str:
    return f"```mermaid\n{text}\n```"


def _parts() -> Iterator[str]:
    yield HEAD
    orders = plan_picture.orders()
    yield RECONCILE.format(count=sum(order.plans for order in orders))
    for order in orders:
        never = order.strategy is Strategy.REBOOT and order.decision is not Decision.REBOOT
        title = f"{order.decision.value}, of a driver that is never unloaded" if never else order.decision.value
        yield f"### {title}\n\n{WHEN[order.decision]}"
        yield _mermaid(plan_picture.picture(order))
    yield "### The steps"
    kinds = typing.get_args(AnyStep)
    docs = [(f"`{kind.__name__}`", " ".join((kind.__doc__ or "").split("\n\n")[0].split())) for kind in kinds]
    yield table(("step", "what it does"), docs)
    yield HEALTH
    yield _mermaid(health_picture.picture())
    yield health_picture.marks()
    yield REBOOTER.format(count=len(reboot_picture.STORIES))
    yield reboot_picture.guards()
    yield FOLLOWERS
    yield _mermaid(reboot_picture.picture())
    yield ROLLOUT.format(count=fleet_picture.STORIES)
    yield _mermaid(fleet_picture.picture())
    seen, guard_table = fleet_picture.seen(), fleet_picture.guard_table
    yield PLACE
    yield guard_table("the node is", PHASE_CASES, seen.places)
    yield CASE
    yield guard_table("what is noted on it", JUDGE_CASES, seen.cases)
    yield OBSTACLE
    yield fleet_picture.obstacle_table()
    yield HOLD
    yield guard_table("phase and reason", HOLD_GUARDS, seen.holds)
    yield PHASE
    yield guard_table("phase and reason", OUTLOOK_GUARDS, seen.phases)


def pages() -> Mapping[Path, str]:
    return {DOCS / "states.md": "\n\n".join(part.strip() for part in _parts()) + "\n"}


if __name__ == "__main__":
    sys.exit(main(SCRIPT, pages))
