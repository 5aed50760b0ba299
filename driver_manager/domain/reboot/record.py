"""What the rebooter must still know after the reboot, on the host's disk: one versioned JSON file.

It holds what cannot be observed again: attempts, what was announced, and the reboot under way. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.markers import REASONS, Marker
from driver_manager.domain.wire import LAST_MOMENT_S, Fields, Form

MAX_ATTEMPTS_KEPT = 50
MOST_REBOOTS = 2**31


class RebootRequest(Frozen):
    """One request for a reboot: of one boot, for one reason, written at `written_s` seconds after the epoch."""

    boot_id: str
    reason: str
    written_s: int = 0

    @property
    def key(self) -> str:
        """A name for it, the same wherever it is computed, of letters that any object's name may have."""
        return re.sub("[^a-z0-9-]", "-", f"{self.reason}-{self.boot_id[:40]}-{self.written_s % 10**12}".lower())


def event_key(reason: str, key: str) -> str:
    """The name by which an Event for a request is recorded once only, whoever posts it."""
    return f"{reason.lower()}-{key}"


def request_of(marker: Marker, boot_id: str) -> RebootRequest:
    """The request that `marker` makes in the boot `boot_id`."""
    return RebootRequest(marker.boot_id or boot_id, marker.reason, marker.written_s)


class Attempt(Frozen):
    """A reboot that was begun at `at_s` seconds after the epoch."""

    at_s: int
    reason: str


class Pending(Frozen):
    """A reboot under way, from before its slot is taken until the node is back.

    `node_uid` is whose slot it is, `started_s` when it was granted, 0 before that, `approved` whether an approval was
    consumed for it, `counted` whether it is among the attempts. `commanded_s` is the host's uptime in seconds from
    which on it may go down, `given` whether the command is known to have been given; `forced_s` is the same for sysrq.
    `refused_s` is the uptime at which the host first refused the command, `refusal` what it said last.
    """

    request: RebootRequest
    node_uid: str
    started_s: int = 0
    approved: bool = False
    counted: bool = False
    cleared: bool = False
    commanded_s: float | None = None
    given: bool = False
    forced_s: float | None = None
    refused_s: float | None = None
    refusal: str = ""

    @property
    def is_granted(self) -> bool:
        """True if every guard had passed when this was written."""
        return self.started_s > 0


class RebootAnswer(Frozen):
    """What a reboot command came to: `problem` is what went wrong, "" where nothing did.

    `is_refused` where the host has said no: then it does not go down. A command that hangs may still take it down.
    """

    problem: str = ""
    is_refused: bool = False


class Record(Frozen):
    """The rebooter's memory. `reason` is why the request waits, for `status`.

    `announced` is the request that the Node may speak of, since `announced_s` seconds after the epoch; `announced_key`
    names the one whose announcement is complete. `reboots` are counted by reason, for metrics.
    """

    announced: RebootRequest | None = None
    announced_key: str = ""
    escalated: str = ""
    pending: Pending | None = None
    attempts: tuple[Attempt, ...] = ()
    reason: str = ""
    announced_s: int = 0
    reboots: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return self.announced is None and self.pending is None

    def granted(self, boot_id: str) -> str:
        """The reason of the reboot out of the boot `boot_id` that was granted, "" if none was."""
        pending = self.pending
        if pending is None or not pending.is_granted or pending.request.boot_id != boot_id:
            return ""
        return pending.request.reason

    def attempts_since(self, begin_s: float) -> int:
        """How many attempts are not older than `begin_s`; one of the future is none of the past."""
        return sum(attempt.at_s >= begin_s for attempt in self.attempts)

    def counting(self, attempt: Attempt) -> Record:
        """The same with one more attempt; the oldest are forgotten."""
        reboots = {**self.reboots, attempt.reason: self.reboots.get(attempt.reason, 0) + 1}
        return replace(self, attempts=(*self.attempts, attempt)[-MAX_ATTEMPTS_KEPT:], reboots=reboots)


class RecordUnreadable(ConfigError):
    """The file is not a record that this version can act on."""


FORM = Form(
    "the rebooter's record",
    RecordUnreadable,
    "Look at the file on the host and remove it: until then this node is not rebooted.",
)


def encode(record: Record) -> str:
    """The file's content: one line of JSON."""
    pending = record.pending
    body: dict[str, Any] = {
        "announced": _request_body(record.announced) if record.announced else None,
        "told": record.announced_key,
        "escalated": record.escalated,
        "attempts": [{"at": attempt.at_s, "reason": attempt.reason} for attempt in record.attempts],
        "said": record.reason,
        **({"announcedAt": record.announced_s} if record.announced_s else {}),
        **({"reboots": dict(record.reboots)} if record.reboots else {}),
        "pending": {
            "request": _request_body(pending.request),
            "nodeUid": pending.node_uid,
            "started": pending.started_s,
            "approved": pending.approved,
            "counted": pending.counted,
            "cleared": pending.cleared,
            "commanded": pending.commanded_s,
            "given": pending.given,
            "forced": pending.forced_s,
            **({"refused": pending.refused_s, "refusal": pending.refusal} if pending.refused_s is not None else {}),
        }
        if pending
        else None,
    }
    return FORM.write(body) + "\n"


def decode(text: str) -> Record:
    """The record in `text`. Raises RecordUnreadable."""
    body = FORM.read(text)
    return Record(
        announced=None if body.is_null("announced") else _request(body.fields("announced")),
        announced_key=body.text("told"),
        escalated=body.text("escalated"),
        pending=None if body.is_null("pending") else _pending(body.fields("pending")),
        attempts=tuple(
            Attempt(one.whole("at", least=0, most=LAST_MOMENT_S), one.text("reason")) for one in body.each("attempts")
        ),
        reason=body.text("said"),
        announced_s=body.whole("announcedAt", 0, least=0, most=LAST_MOMENT_S),
        reboots=_counted(body.fields("reboots")) if "reboots" in body else {},
    )


def _counted(body: Fields) -> dict[str, int]:
    return {reason: body.whole(reason, least=0, most=MOST_REBOOTS) for reason in REASONS if reason in body}


def _request_body(request: RebootRequest) -> dict[str, Any]:
    return {"bootId": request.boot_id, "reason": request.reason, "written": request.written_s}


def _request(body: Fields) -> RebootRequest:
    return RebootRequest(body.text("bootId"), body.choice("reason", REASONS), body.whole("written"))


def _pending(body: Fields) -> Pending:
    return Pending(
        request=_request(body.fields("request")),
        node_uid=body.text("nodeUid"),
        started_s=body.whole("started"),
        approved=body.flag("approved"),
        counted=body.flag("counted"),
        cleared=body.flag("cleared"),
        commanded_s=None if body.is_null("commanded") else body.seconds("commanded"),
        given=body.flag("given"),
        forced_s=None if body.is_null("forced") else body.seconds("forced"),
        # There only where it was refused.
        refused_s=None if "refused" not in body or body.is_null("refused") else body.seconds("refused"),
        refusal=body.text("refusal", ""),
    )
