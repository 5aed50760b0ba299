"""`rollout`: the group of commands about a driver's way over the whole fleet."""

from __future__ import annotations

import click

from driver_manager.cli.lazy import LazyGroup

COMMANDS = {
    "status": ("driver_manager.cli.rollout_status", "status_command"),
    "plan": ("driver_manager.cli.rollout_plan", "plan_command"),
    "pause": ("driver_manager.cli.rollout_asking", "pause_command"),
    "resume": ("driver_manager.cli.rollout_asking", "resume_command"),
    "approve": ("driver_manager.cli.rollout_asking", "approve_command"),
    "retry": ("driver_manager.cli.rollout_asking", "retry_command"),
    "undo": ("driver_manager.cli.rollout_asking", "undo_command"),
    "history": ("driver_manager.cli.rollout_history", "history_command"),
    "controller": ("driver_manager.cli.rollout_controller", "controller_command"),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    name="rollout",
    short_help="Roll a driver out over the fleet, wave by wave.",
)
def rollout_group() -> None:
    """Roll a new driver out over the nodes of a cluster: which nodes, when, and when to stop.

    A DriverRollout object names the driver's DaemonSet (updateStrategy OnDelete) and the rules. The controller restarts
    one driver pod after the other; each node's own run, the pod's init container, does the work on its node. All other
    commands here only need a kubeconfig; they ask the controller to act.
    """
