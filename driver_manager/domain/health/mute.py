"""How somebody mutes health-watch: a time, on the Node or in a file on the host, until which it holds still. Pure.

Owns the time's form. Not imported by the loop, which has no use for calendars unless somebody mutes it.
"""

from __future__ import annotations

import re

from driver_manager.domain import timestamps
from driver_manager.domain.health.surroundings import Mute
from driver_manager.domain.node import Node
from driver_manager.domain.profile import NodeKeys

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
MAX_SHOWN = 60


def parsed(text: str, where: str) -> Mute:
    """The mute that `text`, found in `where`, asks for. Raises ValueError for what is no RFC 3339 time."""
    said = text.strip()
    until_s = timestamps.seconds_of(said) if _RFC3339.fullmatch(said) else None
    if until_s is None:
        shown = said if len(said) <= MAX_SHOWN else f"{said[:MAX_SHOWN]}…"
        raise ValueError(f"{where} does not mute health-watch: {shown!r} is not a time such as 2026-01-02T03:04:05Z")
    return Mute(until_s, said, where)


def on(node: Node, keys: NodeKeys) -> Mute | None:
    """The mute on `node`, past or not; None where there is none. Raises ValueError."""
    text = node.annotations.get(keys.mute_until) if keys.mute_until else None
    return parsed(text, f"the annotation {keys.mute_until}") if text is not None else None
