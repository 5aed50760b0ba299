"""What the Node has to be told at a wedge and at its end: one Event for each, however often it is tried, and the state.

Owns when a notice is due, how often one that failed is repeated, and its words. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from driver_manager.domain import events
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.health.machine import HealthState, History
from driver_manager.domain.health.wedge import NoticeKind

FIRST_RETRY_S = 30.0
TRIES = 7
"""An API server that is away for half an hour still gets the notice: 30 s, doubled six times."""

REASON_CHARS = 400
"""An Event's message has 1,024 characters, and names evidence, too."""

_EVENTS = {
    NoticeKind.WEDGED: events.DRIVER_WEDGED,
    NoticeKind.RECOVERED: events.DRIVER_RECOVERED,
    NoticeKind.MUTED: events.DRIVER_WEDGE_MUTED,
}


class Notice(Frozen):
    """One notice. `since_s` is when the wedge was declared, in seconds since the epoch.

    It is 0 where this boot knows of none: then only what an earlier boot left on the Node is taken back. `evidence` is
    a file on the host.
    """

    kind: NoticeKind
    boot_id: str
    since_s: int
    reason: str
    evidence: str = ""

    @property
    def event(self) -> str:
        """The reason of its Event."""
        return _EVENTS[self.kind]

    @property
    def key(self) -> str:
        """What names its Event, the same for every process that tells of this wedge; letters of an object's name."""
        return re.sub("[^a-z0-9-]", "-", f"{self.event}-{self.boot_id[:40]}-{self.since_s % 10**12}".lower())

    @property
    def message(self) -> str:
        """The Event's words."""
        match self.kind:
            case NoticeKind.WEDGED:
                where = f"; evidence on the host: {self.evidence}" if self.evidence else ""
                return f"the driver does not serve its devices: {self.reason}{where}"
            case NoticeKind.RECOVERED:
                return f"the driver serves its devices again: {self.reason}"
            case NoticeKind.MUTED:
                return f"health-watch is {self.reason}: what it had marked for the wedge is withdrawn"

    @property
    def undone(self) -> str:
        """What a process that failed to bring it leaves undone, for a message."""
        if self.since_s:
            return f"{self.event} was not reported on the Node"
        return "unknown whether the Node still shows a wedge of an earlier boot"

    def to_json(self) -> dict[str, Any]:
        """For another process of this version."""
        return {**asdict(self), "kind": self.kind.value}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Notice:
        """What `to_json` made."""
        return cls(**{**body, "kind": NoticeKind(body["kind"])})


class ClientAnswer(Frozen):
    """What became of clients of the driver: those `restarted` now, and what is `left` to be done, "" for nothing.

    `is_early`: that is no trouble yet. `warnings` are about what else is worth knowing.
    """

    restarted: tuple[str, ...] = ()
    left: str = ""
    warnings: tuple[str, ...] = ()
    is_early: bool = False


def due(history: History, boot_id: str) -> Notice | None:
    """What the Node has yet to be told, None where it knows.

    The first healthy sample of a boot is told, too: a state that the last boot left on the Node has no other end.
    """
    match history.state:
        case HealthState.WEDGED:
            kind = NoticeKind.WEDGED
        case HealthState.HEALTHY:
            kind = NoticeKind.RECOVERED
        case HealthState.MUTED if history.is_hushed and history.wedge.told is NoticeKind.WEDGED:
            kind = NoticeKind.MUTED
        case _:
            return None
    if history.wedge.told is kind:
        return None
    wedge = history.wedge
    return Notice(kind, boot_id, wedge.since_s, history.reason[:REASON_CHARS], wedge.evidence)


def retry_after_s(failed: int) -> float | None:
    """How long to wait after the `failed`th try (from 1) of one notice, in seconds; None where it is given up."""
    return FIRST_RETRY_S * 2.0 ** (failed - 1) if failed < TRIES else None
