"""What the rebooter must still know after the reboot, on the host's disk: one versioned JSON file.

It holds what cannot be observed again: attempts, what was announced, and the reboot under way. Pure.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.markers import REASONS, Marker

SCHEMA = 1
MAX_ATTEMPTS_KEPT = 50
LAST_MOMENT_S = 253_402_300_799


@dataclass(frozen=True)
class RebootRequest:
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


@dataclass(frozen=True)
class Attempt:
    """A reboot that was begun at `at_s` seconds after the epoch."""

    at_s: int
    reason: str


@dataclass(frozen=True)
class Pending:
    """A reboot under way, from before its slot is taken until the node is back.

    `node_uid` is whose slot it is, `approved` whether an approval was consumed for it, `counted` whether it is among
    the attempts. `commanded_s` is the host's uptime in seconds from which on it may go down, `given` whether the
    command is known to have been given; `forced_s` is the same for sysrq. `refused_s` is the uptime at which the host
    first refused the command, `refusal` what it said last.
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


@dataclass(frozen=True)
class RebootAnswer:
    """What a reboot command came to: `problem` is what went wrong, "" where nothing did.

    `is_refused` where the host has said no: then it does not go down. A command that hangs may still take it down.
    """

    problem: str = ""
    is_refused: bool = False


@dataclass(frozen=True)
class Record:
    """The rebooter's memory. `reason` is why the request waits, for `status`.

    `announced` is the request that the Node may speak of, `announced_key` names the one whose announcement is complete.
    """

    announced: RebootRequest | None = None
    announced_key: str = ""
    escalated: str = ""
    pending: Pending | None = None
    attempts: tuple[Attempt, ...] = ()
    reason: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return self.announced is None and self.pending is None

    def attempts_since(self, begin_s: float) -> int:
        """How many attempts are not older than `begin_s`; one of the future is none of the past."""
        return sum(attempt.at_s >= begin_s for attempt in self.attempts)

    def counting(self, attempt: Attempt) -> Record:
        """The same with one more attempt; the oldest are forgotten."""
        return replace(self, attempts=(*self.attempts, attempt)[-MAX_ATTEMPTS_KEPT:])


class RecordUnreadable(ConfigError):
    """The file is not a record that this version can act on."""


def encode(record: Record) -> str:
    """The file's content: one line of JSON."""
    pending = record.pending
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "announced": _request_body(record.announced) if record.announced else None,
        "told": record.announced_key,
        "escalated": record.escalated,
        "attempts": [{"at": attempt.at_s, "reason": attempt.reason} for attempt in record.attempts],
        "said": record.reason,
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
    return json.dumps(body, sort_keys=True) + "\n"


def decode(text: str) -> Record:
    """The record in `text`. Raises RecordUnreadable."""
    try:
        body = json.loads(text)
        if body["schema"] != SCHEMA:
            raise _unreadable(f"its schema is {body['schema']!r}, this driver-manager knows {SCHEMA}")
        return Record(
            announced=_request(body["announced"]) if body["announced"] is not None else None,
            announced_key=_typed(body["told"], str),
            escalated=_typed(body["escalated"], str),
            pending=_pending(body["pending"]) if body["pending"] is not None else None,
            attempts=tuple(Attempt(_moment(one["at"]), _typed(one["reason"], str)) for one in body["attempts"]),
            reason=_typed(body["said"], str),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(f"it is not what it should be ({type(error).__name__})") from error


def _request_body(request: RebootRequest) -> dict[str, Any]:
    return {"bootId": request.boot_id, "reason": request.reason, "written": request.written_s}


def _request(body: Any) -> RebootRequest:
    request = RebootRequest(_typed(body["bootId"], str), body["reason"], _typed(body["written"], int))
    if request.reason not in REASONS:
        raise ValueError(request.reason)
    return request


def _pending(body: Any) -> Pending:
    return Pending(
        request=_request(body["request"]),
        node_uid=_typed(body["nodeUid"], str),
        started_s=_typed(body["started"], int),
        approved=_typed(body["approved"], bool),
        counted=_typed(body["counted"], bool),
        cleared=_typed(body["cleared"], bool),
        commanded_s=_seconds(body["commanded"]),
        given=_typed(body["given"], bool),
        forced_s=_seconds(body["forced"]),
        # There only where it was refused.
        refused_s=_seconds(body.get("refused")),
        refusal=_typed(body.get("refusal", ""), str),
    )


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(value)
    return float(value)


def _moment(value: Any) -> int:
    """Seconds since the epoch, before the year 10000: what a calendar can show."""
    at_s: int = _typed(value, int)
    if not 0 <= at_s <= LAST_MOMENT_S:
        raise ValueError(value)
    return at_s


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(value)
    return value


def _unreadable(why: str) -> RecordUnreadable:
    return RecordUnreadable(
        f"the rebooter's record cannot be read: {why}",
        "Look at the file on the host and remove it: until then this node is not rebooted.",
    )
