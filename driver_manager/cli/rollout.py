"""`rollout`: the group of commands about a driver's way over the whole fleet."""

from __future__ import annotations

import click

from driver_manager.cli.lazy import LazyGroup

COMMANDS = {
    "controller": ("driver_manager.cli.rollout_controller", "controller_command"),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    name="rollout",
    short_help="Roll a driver out over the fleet, wave by wave.",
)
def rollout_group() -> None:
    """Roll a new driver out over the nodes of a cluster: who goes, when, and when to stop.

    A DriverRollout object names the driver's DaemonSet (updateStrategy OnDelete) and the rules. The controller restarts
    one driver pod after the other; each node's own run, the pod's init container, does the work on its node.
    """
