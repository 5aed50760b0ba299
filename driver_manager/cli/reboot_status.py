"""The part of `status` about reboots: what asks for one, what it waits for, how often it was tried. Changes nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from driver_manager import settings
from driver_manager.adapters.host.reboot_files import RebootFiles
from driver_manager.cli.wiring import Session
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.node import Node
from driver_manager.domain.reboot.patches import is_approved
from driver_manager.domain.reboot.record import Record

WINDOW = settings.REBOOT_ATTEMPTS_WINDOW
"""The option that says for how long a reboot counts; it should be the rebooter's."""


def facts(session: Session, node: Node, *, on_host: bool) -> dict[str, Any] | None:
    """Everything that is shown of reboots, for machines; None for a driver that never asks for one."""
    profile = session.profile
    keys, paths = profile.keys, profile.paths
    if not paths.reboot_marker:
        return None
    record, problem = _record(session) if on_host else (Record(), "not on the node")
    wall_s, window_s = session.clock.wall(), session.values[WINDOW]
    return {
        "required": keys.reboot_required in node.labels,
        "approved": is_approved(node, keys),
        "underWay": node.annotations.get(keys.reboot_in_progress),
        "preRebootBootId": node.annotations.get(keys.pre_reboot_boot_id),
        "waitsFor": record.reason,
        "isAnnounced": record.announced is not None,
        "attempts": record.attempts_since(wall_s - window_s),
        "attemptsWindowSeconds": window_s,
        "lastAttempt": record.attempts[-1].at_s if record.attempts else None,
        "evidence": paths.reboot_evidence if record.attempts else "",
        "problem": problem,
    }


def rows(body: dict[str, Any] | None, *, has_marker: bool) -> list[str]:
    """The same for people; nothing where there is nothing to say."""
    if body is None or not (has_marker or body["required"] or body["underWay"] or body["attempts"]):
        return []
    state = "under way" if body["underWay"] else "required" if body["required"] else "not announced on the Node yet"
    lines = [f"{state}{', approved' if body['approved'] else ''}"]
    if body["waitsFor"]:
        lines.append(body["waitsFor"])
    elif body["problem"]:
        lines.append(body["problem"])
    elif has_marker and not body["isAnnounced"]:
        lines.append("no rebooter has read the marker yet")
    if body["attempts"]:
        hours = body["attemptsWindowSeconds"] / 3600
        last = datetime.fromtimestamp(body["lastAttempt"], UTC)
        lines.append(f"{body['attempts']} attempt(s) within {hours:g} h, the last at {last:%Y-%m-%dT%H:%M:%SZ}")
    return lines


def _record(session: Session) -> tuple[Record, str]:
    paths = session.profile.paths
    try:
        return RebootFiles(session.roots, paths.reboot_marker, paths.rebooter_record).record(), ""
    except ManagerError as error:
        return Record(), error.what
