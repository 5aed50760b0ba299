"""The rebooter's facts and records: policy, requests, attempts, slots, patches, metrics. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host import REASONS, UPGRADE_REASON, Marker
from driver_manager.domain.metrics import Family, by_label, gauge
from driver_manager.domain.node import Node
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.maintenance_windows import Schedule
from driver_manager.domain.wire import LAST_MOMENT_S, Fields, Form

# What the rebooter must still know after the reboot, on the host's disk: one versioned JSON file.
#
# It holds what cannot be observed again: attempts, what was announced, and the reboot under way. Pure.

MAX_ATTEMPTS_KEPT = 50
MOST_REBOOTS = 2**31


class RebootRequest(Struct, frozen=True):
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


class Attempt(Struct, frozen=True):
    """A reboot that was begun at `at_s` seconds after the epoch."""

    at_s: int
    reason: str


class Pending(Struct, frozen=True):
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


class RebootAnswer(Struct, frozen=True):
    """What a reboot command came to: `problem` is what went wrong, "" where nothing did.

    `is_refused` where the host has said no: then it does not go down. A command that hangs may still take it down.
    """

    problem: str = ""
    is_refused: bool = False


class Record(Struct, frozen=True):
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


REBOOT_RECORD_FORM = Form(
    "the rebooter's record",
    RecordUnreadable,
    "Look at the file on the host and remove it: until then this node is not rebooted.",
)


def encode_reboot_record(record: Record) -> str:
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
    return REBOOT_RECORD_FORM.write(body) + "\n"


def decode_reboot_record(text: str) -> Record:
    """The record in `text`. Raises RecordUnreadable."""
    body = REBOOT_RECORD_FORM.read(text)
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


# What the rebooter's record says, as families of metrics. Pure.


def reboot_families(record: Record) -> tuple[Family, ...]:
    """All metrics of the rebooter."""
    asked, pending = record.announced, record.pending
    since_s = record.announced_s or (asked.written_s if asked else 0)
    return (
        by_label(
            "counter",
            "reboots_total",
            "Reboots that the rebooter began, by reason.",
            "reason",
            {reason: record.reboots.get(reason, 0) for reason in REASONS},
        ),
        by_label(
            "gauge",
            "reboot_requested_timestamp_seconds",
            "When the reboot became required, by reason; 0 if none is required.",
            "reason",
            {reason: since_s if asked and asked.reason == reason else 0 for reason in REASONS},
        ),
        gauge(
            "reboot_under_way",
            "Whether this node holds a slot, or its granted reboot is not over.",
            pending is not None,
        ),
        gauge(
            "reboot_refused",
            "Whether the host refuses to reboot.",
            pending is not None and pending.refused_s is not None,
        ),
        gauge(
            "reboot_escalated",
            "Whether the maximum number of reboots was made without success.",
            bool(asked is not None and record.escalated and record.escalated == asked.key),
        ),
    )


# Who may reboot at this moment, over the whole cluster: a value that one compare-and-swap keeps.
#
# A holder is a Node by its uid: one created again under the same name does not inherit. There is no time to live: a
# node that does not come back keeps its slot, so that a bad driver stops at the first node. Pure.


class SlotHolder(Struct, frozen=True):
    """A node that holds a slot for a reboot out of the boot `boot_id`, since `since_s` seconds after the epoch."""

    node: str
    uid: str
    boot_id: str
    since_s: int = 0


class SlotsUnreadable(ConfigError):
    """Who holds a slot cannot be told."""


SLOTS_FORM = Form(
    "the slots for reboots",
    SlotsUnreadable,
    "Make sure that no node reboots now, then delete the Lease that holds them.",
)


class Slots(Struct, frozen=True):
    """The slots in use. No uid is in it twice."""

    holders: tuple[SlotHolder, ...] = ()

    def held_by(self, uid: str) -> SlotHolder | None:
        """The entry of the node `uid`, None where it holds no slot."""
        return next((holder for holder in self.holders if holder.uid == uid), None)

    def without(self, gone: frozenset[str]) -> Slots:
        """The same without the nodes whose uids are in `gone`."""
        return Slots(tuple(holder for holder in self.holders if holder.uid not in gone))

    def with_room(self, me: SlotHolder, limit: int) -> Slots | None:
        """The same with `me` in it; None where `limit` others hold one. Who is in already stays in."""
        others = self.without(frozenset({me.uid})).holders
        is_in = len(others) < len(self.holders)
        return Slots((*others, me)) if is_in or len(others) < limit else None


class SlotsSeen(Struct, frozen=True):
    """The slots as read at `version`; `gone` are uids of holders that may be dropped. `problem`: why it is unknown."""

    slots: Slots = Slots()
    version: str = ""
    gone: frozenset[str] = frozenset()
    problem: str = ""


def encode_slots(slots: Slots) -> str:
    """The slots as one line of JSON."""
    holders = [
        {"node": holder.node, "uid": holder.uid, "bootId": holder.boot_id, "since": holder.since_s}
        for holder in slots.holders
    ]
    return SLOTS_FORM.write({"holders": holders})


def decode_slots(text: str) -> Slots:
    """The slots in `text`. Raises SlotsUnreadable: nobody may reboot while it is unknown who does."""
    holders = tuple(_holder(one) for one in SLOTS_FORM.read(text).each("holders"))
    if len({holder.uid for holder in holders}) < len(holders):
        raise SLOTS_FORM.refused("a node is in them twice")
    return Slots(holders)


def _holder(body: Fields) -> SlotHolder:
    holder = SlotHolder(body.text("node"), body.text("uid"), body.text("bootId"), body.whole("since"))
    if not holder.uid:
        raise body.bad("uid", "a uid")
    if holder.node in ("", ".", ".."):  # no Node is at such a path
        raise body.bad("node", "the name of a node")
    return holder


# What an idle rebooter looks at, and whether it is enough to go on being idle. Pure, and small on purpose.


class Snapshot(Struct, frozen=True):
    """One look at the host: cheap, and all that an idle rebooter needs. `uptime_s` does not jump, as clocks do."""

    boot_id: str
    uptime_s: float
    marker: Marker | None = None
    marker_problem: str = ""


def is_foreign(marker: Marker, node: str) -> bool:
    """Whether the marker names another node."""
    return marker.node not in ("", node)


def is_stale(snapshot: Snapshot, record: Record) -> bool:
    """Whether the marker on the host is of an earlier boot."""
    if snapshot.marker is None:
        return False
    boot = snapshot.marker.boot_id or (record.announced.boot_id if record.announced else "")
    return boot not in ("", snapshot.boot_id)


def is_idle(snapshot: Snapshot, record: Record | None, node: str) -> bool:
    """Whether there is nothing to ask the API server about. `record` is None where it cannot be read."""
    marker = snapshot.marker
    has_work = marker is not None and (marker.is_stale(snapshot.boot_id) or not is_foreign(marker, node))
    return not has_work and (record is None or record.is_empty)


class RebootPolicy(Struct, frozen=True):
    """What the user allows. Times in seconds, `grace_s` is how long a reboot command may take to take the host down."""

    node: str
    keys: NodeKeys
    auto_upgrade: bool = False
    auto_recover: bool = False
    min_uptime_s: float = 600.0
    max_attempts: int = 3
    attempt_window_s: float = 24 * 3600.0
    max_concurrent: int = 1
    schedule: Schedule = field(default_factory=Schedule)
    cordon: bool = False
    clear_workloads: bool = False
    grace_s: float = 300.0
    dry_run: bool = False

    def is_automatic(self, reason: str) -> bool:
        """Whether a reboot for `reason` needs no approval."""
        return self.auto_upgrade if reason == UPGRADE_REASON else self.auto_recover


def is_granted(node: Node, keys: NodeKeys, boot_id: str, recorded: str | None) -> bool:
    """True if the Node has the grant for a reboot out of this boot, for the reason `recorded` on the host.

    More accounts can write the annotations than the record. Where it cannot be read (None) the Node alone decides: only
    for a caller that the grant holds back.
    """
    notes = node.annotations
    reason = notes.get(keys.reboot_in_progress) if keys.reboot_in_progress else None
    if reason not in REASONS or notes.get(keys.pre_reboot_boot_id) != boot_id:
        return False
    return recorded is None or recorded == reason


class RebootState(Struct, frozen=True):
    """Everything one decision is made of. `node` is None where the Node does not exist.

    `blockers` and `slots` are None as long as nobody asked for them. `driver_problem` is why the driver does not serve
    its devices yet, "" when it does.
    """

    snapshot: Snapshot
    record: Record
    node: Node | None
    policy: RebootPolicy
    wall_s: float
    driver_problem: str = ""
    is_here: bool = True
    blockers: tuple[str, ...] | None = None
    slots: SlotsSeen | None = None

    @property
    def boot_id(self) -> str:
        """This boot."""
        return self.snapshot.boot_id

    @property
    def request(self) -> RebootRequest | None:
        """The request of this boot and node, None where there is none that may be acted on."""
        marker = self.snapshot.marker
        if marker is None or self.is_stale or is_foreign(marker, self.policy.node):
            return None
        return request_of(marker, self.boot_id)

    @property
    def is_stale(self) -> bool:
        """Whether the marker was written before this boot. An older operator's is of the boot it was announced in."""
        return is_stale(self.snapshot, self.record)

    @property
    def pending(self) -> Pending | None:
        """The reboot under way: as recorded, else as far as the Node tells, which is enough to undo one only."""
        node = self.node
        if self.record.pending is not None or node is None:
            return self.record.pending
        boot = node.annotations.get(self.policy.keys.pre_reboot_boot_id, "")
        reason = node.annotations.get(self.policy.keys.reboot_in_progress, "")
        if reason not in REASONS:
            return None
        return Pending(RebootRequest(boot, reason), node.uid)

    @property
    def here(self) -> Pending | None:
        """The reboot under way out of this boot."""
        pending = self.pending
        return pending if pending is not None and pending.request.boot_id == self.boot_id else None

    @property
    def reason(self) -> str:
        """Why a reboot is required, "" where none is."""
        return self.request.reason if self.request is not None else ""

    @property
    def is_granted(self) -> bool:
        """Whether Node and record have the grant for a reboot out of this boot."""
        return self.node is not None and is_granted(
            self.node, self.policy.keys, self.boot_id, self.record.granted(self.boot_id)
        )

    @property
    def holds_slot(self) -> bool:
        """Whether this node holds a slot for a reboot out of this boot, as far as was asked."""
        held = self.slots.slots.held_by(self.node.uid) if self.slots and self.node else None
        return held is not None and held.boot_id == self.boot_id
