"""`holders`: who uses the device."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from driver_manager import schemas, settings
from driver_manager.adapters.host.holders import find_holders
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option, with_options
from driver_manager.cli.printing import in_form, put
from driver_manager.cli.sight import Sight
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.host import UNREAD
from driver_manager.domain.modules import users_of
from driver_manager.domain.observation import Part
from driver_manager.domain.pod import PodList
from driver_manager.domain.pods.operands import named
from driver_manager.domain.setting import Values


@click.command(cls=ScreenCommand, name="holders", short_help="List the processes that use the device.")
@output_option
@with_options(settings.CLUSTER, settings.HOST, settings.LOGGING)
def holders_command(*, output: str, values: Values) -> int:
    """List the processes that have the device open or mapped, with their pods and containers. Changes nothing.

    Needs the host's /proc (PROC_ROOT) and, for the names of pods, the API server; without one it shows their uids.
    """
    missing = Sight()
    session = missing.session(values)
    if not session.is_here:
        raise ConfigError(f"this is not node {session.node.name}", "Run it on the node, with the host at /host.")
    loaded = session.ports().host.modules()
    count = users_of(loaded)
    nodes = session.profile.paths.device_nodes
    found = find_holders(session.roots.proc, session.roots.dev, nodes, enough=count if loaded else None)
    if any(holder.pod_uid for holder in found) and missing.why_no_node is None:
        found = named(found, missing(Part.PODS, session.cluster.pods, PodList((), "")).pods)
    unread = missing.first()
    body = {
        "schemaVersion": schemas.VERSION,
        "holders": [asdict(holder) for holder in found],
        "podsUnknown": unread.what if unread is not None else None,
    }
    put(in_form(output, body, lambda words: _table(words["holders"])))
    if unread is not None:
        session.log.warn(f"the names of pods are unknown: {unread.what}. {unread.remedy}")
    sure = [holder for holder in found if holder.how != UNREAD]
    for holder in found:
        if holder.how == UNREAD:
            session.log.warn(str(holder))
    if count > len(sure):
        session.log.warn(
            f"the driver has {count - len(sure)} more user(s) that could not be found under {session.roots.proc}"
        )
    return ExitCode.DONE


def _table(holders: list[dict[str, Any]]) -> str:
    if not holders:
        return "no process uses the device"
    rows = [("PID", "PROCESS", "NODE", "HOW", "POD", "CONTAINER")]
    rows += [
        (str(one["pid"]), one["process"], one["node"] or "-", one["how"], _pod(one), one["container"][:12] or "-")
        for one in holders
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _pod(one: dict[str, Any]) -> str:
    """Its pod, by the uid where nobody knows a name for that."""
    return one["pod"] or (f"unknown (uid {one['pod_uid']})" if one["pod_uid"] else "-")
