"""The rebooter's facts and records: policy, requests, attempts, slots, metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host import REASONS, UPGRADE_REASON, Marker
from driver_manager.domain.metrics import Family, by_label, gauge
from driver_manager.domain.node import Node
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.maintenance_windows import Schedule
from driver_manager.domain.selectors import Selector
from driver_manager.domain.wire import LAST_MOMENT_S, Fields, Form, Part, body_of

# The rebooter's record: one versioned JSON file on the host's disk, which outlasts the reboot
#
# The file has the facts that cannot be observed again: attempts, the announced request, and the reboot under way.

MAX_ATTEMPTS_KEPT = 50
MOST_REBOOTS = 2**31


class RebootRequest(Struct, frozen=True):
    """A request to reboot out of one boot, for one reason. `written_s` is in seconds since the epoch."""

    boot_id: str
    reason: Annotated[str, Part(choices=REASONS)]
    written_s: Annotated[int, Part("written")] = 0

    @property
    def key(self) -> str:
        """The request's name, the same in every process. It has only characters that a Kubernetes name allows."""
        return re.sub("[^a-z0-9-]", "-", f"{self.reason}-{self.boot_id[:40]}-{self.written_s % 10**12}".lower())


def event_key(reason: str, key: str) -> str:
    """The name of an Event for a request. Each process computes the same name, so the API server keeps one Event."""
    return f"{reason.lower()}-{key}"


def request_of(marker: Marker, boot_id: str) -> RebootRequest:
    return RebootRequest(marker.boot_id or boot_id, marker.reason, marker.written_s)


class Attempt(Struct, frozen=True):
    """A reboot that began at `at_s`, in seconds since the epoch."""

    at_s: Annotated[int, Part("at", least=0, most=LAST_MOMENT_S)]
    reason: str


class Pending(Struct, frozen=True):
    """A reboot under way: from before the rebooter takes a slot until the node is ready again.

    `node_uid` is the uid of the slot's holder. `started_s` is when the reboot was granted, since the epoch, 0 before
    that. `approved`: the grant consumed an approval; `approved_recovery`: one of the recovery's step. `counted`: it is
    among the attempts. `cleared`: the workloads have left. Uptimes in seconds: from `commanded_s` on the command may
    take the host down (`given`: it was answered), from `forced_s` on sysrq may; the host first refused at `refused_s`,
    with `refusal` as its last reason.
    """

    request: RebootRequest
    node_uid: str
    started_s: Annotated[int, Part("started")] = 0
    approved: bool = False
    counted: bool = False
    cleared: bool = False
    commanded_s: Annotated[float | None, Part("commanded")] = None
    given: bool = False
    forced_s: Annotated[float | None, Part("forced")] = None
    # These fields exist only after a refusal.
    refused_s: Annotated[float | None, Part("refused", is_optional=True)] = None
    refusal: Annotated[str, Part(is_optional=True)] = ""
    approved_recovery: Annotated[bool, Part(is_omitted=True)] = False

    @property
    def is_granted(self) -> bool:
        """True if every guard had passed when this was written."""
        return self.started_s > 0


class RebootAnswer(Struct, frozen=True):
    """The result of a reboot command: its `problem`, "" for none. Unless `is_refused`, the host may still go down."""

    problem: str = ""
    is_refused: bool = False


class CompletionWait(Struct, frozen=True):
    """The wait for pods to complete, for the request with the key `request`, since the uptime `since_s` in seconds."""

    request: str
    since_s: Annotated[float, Part("uptime")]


class Record(Struct, frozen=True):
    """The rebooter's record. `reason` is why the request waits, for `status`.

    `announced` is the request that the Node may show, since `announced_s` since the epoch. `announced_key` and
    `escalated` are the keys of requests whose announcement, or escalation, is complete. `reboots` are counted by
    reason. `completion` is the last wait for pods, which a restart of the rebooter continues.
    """

    announced: RebootRequest | None = None
    announced_key: Annotated[str, Part("told")] = ""
    escalated: str = ""
    pending: Pending | None = None
    attempts: tuple[Attempt, ...] = ()
    reason: Annotated[str, Part("said")] = ""
    announced_s: Annotated[int, Part("announcedAt", least=0, most=LAST_MOMENT_S, is_omitted=True)] = 0
    reboots: Annotated[Mapping[str, int], Part(is_omitted=True)] = field(default_factory=dict)
    completion: Annotated[CompletionWait | None, Part(is_omitted=True)] = None

    @property
    def is_empty(self) -> bool:
        """True if no request is announced and no reboot is pending."""
        return self.announced is None and self.pending is None

    def granted(self, boot_id: str) -> str:
        """The reason of the reboot out of the boot `boot_id` that was granted, "" if none was."""
        pending = self.pending
        if pending is None or not pending.is_granted or pending.request.boot_id != boot_id:
            return ""
        return pending.request.reason

    def attempts_since(self, begin_s: float) -> int:
        """The number of attempts at or after `begin_s`, in seconds since the epoch, also of those in the future."""
        return sum(attempt.at_s >= begin_s for attempt in self.attempts)

    def counting(self, attempt: Attempt) -> Record:
        """The record with one more attempt; only the last `MAX_ATTEMPTS_KEPT` stay."""
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
    body = body_of(record)
    if record.pending is not None and record.pending.refused_s is None:
        del body["pending"]["refused"]
        if not record.pending.refusal:
            del body["pending"]["refusal"]
    return REBOOT_RECORD_FORM.write(body) + "\n"


def decode_reboot_record(text: str) -> Record:
    """The record in `text`. Raises RecordUnreadable."""
    body = REBOOT_RECORD_FORM.read(text)
    return body.record(Record, reboots=_counted(body.fields("reboots")) if "reboots" in body else {})


def _counted(body: Fields) -> dict[str, int]:
    return {reason: body.whole(reason, least=0, most=MOST_REBOOTS) for reason in REASONS if reason in body}


# Metrics of the rebooter


def reboot_families(record: Record) -> tuple[Family, ...]:
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


# Slots: the nodes of the cluster that may reboot now, a value that rebooters change by compare-and-swap
#
# A slot belongs to a Node's uid: a recreated Node of the same name does not get it. Slots do not expire: a node that
# does not return keeps its slot, so that a bad driver stops at the first node.


class SlotHolder(Struct, frozen=True):
    """A node that holds a slot for a reboot out of the boot `boot_id`; `since_s` is in seconds since the epoch."""

    node: str
    uid: str
    boot_id: str
    since_s: Annotated[int, Part("since")] = 0


class SlotsUnreadable(ConfigError):
    """The holders of slots cannot be determined."""


SLOTS_FORM = Form(
    "the slots for reboots",
    SlotsUnreadable,
    "Make sure that no node reboots now, then delete the Lease that holds them.",
)


class Slots(Struct, frozen=True):
    """The slots in use; each uid occurs once."""

    holders: tuple[SlotHolder, ...] = ()

    def held_by(self, uid: str) -> SlotHolder | None:
        return next((holder for holder in self.holders if holder.uid == uid), None)

    def without(self, gone: frozenset[str]) -> Slots:
        return Slots(tuple(holder for holder in self.holders if holder.uid not in gone))

    def with_room(self, me: SlotHolder, limit: int) -> Slots | None:
        """The slots with `me`; None if `limit` others hold one. A node that holds one already keeps it."""
        others = self.without(frozenset({me.uid})).holders
        is_in = len(others) < len(self.holders)
        return Slots((*others, me)) if is_in or len(others) < limit else None


class SlotsSeen(Struct, frozen=True):
    """The slots as read at `version`. `gone`: uids of holders that may be removed. `problem`: why they are unknown."""

    slots: Slots = Slots()
    version: str = ""
    gone: frozenset[str] = frozenset()
    problem: str = ""


def encode_slots(slots: Slots) -> str:
    return SLOTS_FORM.write(body_of(slots))


def decode_slots(text: str) -> Slots:
    """The slots in `text`. Raises SlotsUnreadable: no node may reboot while the holders are unknown."""
    holders = tuple(_holder(one) for one in SLOTS_FORM.read(text).each("holders"))
    if len({holder.uid for holder in holders}) < len(holders):
        raise SLOTS_FORM.refused("a node is in them twice")
    return Slots(holders)


def _holder(body: Fields) -> SlotHolder:
    holder = body.record(SlotHolder)
    if not holder.uid:
        raise body.bad("uid", "a uid")
    if holder.node in ("", ".", ".."):  # such a name would change the path of the request
        raise body.bad("node", "the name of a node")
    return holder


# Facts of the host, and of one decision


class Snapshot(Struct, frozen=True):
    """The host at one moment: all that an idle rebooter reads. `uptime_s` is in seconds and never jumps."""

    boot_id: str
    uptime_s: float
    marker: Marker | None = None
    marker_problem: str = ""


def is_foreign(marker: Marker, node: str) -> bool:
    return marker.node not in ("", node)


def is_stale(snapshot: Snapshot, record: Record) -> bool:
    """True if the host's marker is of an earlier boot; without a boot id, by the announced request's boot."""
    if snapshot.marker is None:
        return False
    boot = snapshot.marker.boot_id or (record.announced.boot_id if record.announced else "")
    return boot not in ("", snapshot.boot_id)


def is_idle(snapshot: Snapshot, record: Record | None, node: str) -> bool:
    """True if the rebooter needs no request to the API server. `record` is None if it cannot be read."""
    marker = snapshot.marker
    has_work = marker is not None and (marker.is_stale(snapshot.boot_id) or not is_foreign(marker, node))
    return not has_work and (record is None or record.is_empty)


class RebootPolicy(Struct, frozen=True):
    """The user's settings. Times in seconds; `grace_s` is how long the host may take to go down after the command.

    `completion` selects pods that get `completion_timeout_s` to complete, `blocking` pods that block a reboot.
    """

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
    completion: Selector = field(default_factory=Selector)
    completion_timeout_s: float = 300.0
    blocking: Selector = field(default_factory=Selector)
    grace_s: float = 300.0
    dry_run: bool = False

    def is_automatic(self, reason: str) -> bool:
        return self.auto_upgrade if reason == UPGRADE_REASON else self.auto_recover


def is_granted(node: Node, keys: NodeKeys, boot_id: str, recorded: str | None) -> bool:
    """True if the Node has the grant for a reboot out of this boot, for the reason `recorded` on the host.

    More accounts can write the Node. For an unreadable record (None) it alone decides: only where a grant stops a run.
    """
    notes = node.annotations
    reason = notes.get(keys.reboot_in_progress) if keys.reboot_in_progress else None
    if reason not in REASONS or notes.get(keys.pre_reboot_boot_id) != boot_id:
        return False
    return recorded is None or recorded == reason


AFTER_DELAY_S = 60.0
"""What the rest of a shutdown may take after the delay."""


class RebootState(Struct, frozen=True):
    """The facts of one decision. `node` is None if the Node does not exist.

    `blockers` and `slots` are None until a decision asks for them; the names of pods that still run and get time to
    complete, `completing`, come with `blockers`. `driver_problem` is why the driver does not serve,
    "" if it does. `is_here`: this host is the Node's machine. `wall_s` is in seconds since the epoch. `delay_s` is how
    long logind may delay a shutdown for others, in seconds.
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
    completing: tuple[str, ...] = ()
    delay_s: float = 0.0

    @property
    def down_s(self) -> float:
        """How long the host may take to go down after the command, in seconds."""
        return max(self.policy.grace_s, self.delay_s + AFTER_DELAY_S if self.delay_s else 0.0)

    @property
    def boot_id(self) -> str:
        return self.snapshot.boot_id

    @property
    def request(self) -> RebootRequest | None:
        """The request of this boot and node; None without one, or if the marker is stale or for another node."""
        marker = self.snapshot.marker
        if marker is None or self.is_stale or is_foreign(marker, self.policy.node):
            return None
        return request_of(marker, self.boot_id)

    @property
    def is_stale(self) -> bool:
        """True if the marker is of an earlier boot. Markers of older operators have no boot id: see `is_stale`."""
        return is_stale(self.snapshot, self.record)

    @property
    def pending(self) -> Pending | None:
        """The reboot under way, from the record or else the Node; the Node's annotations are enough only to undo it."""
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
        """Why a reboot is required, "" if none is."""
        return self.request.reason if self.request is not None else ""

    @property
    def is_granted(self) -> bool:
        """True if Node and record have the grant for a reboot out of this boot."""
        return self.node is not None and is_granted(
            self.node, self.policy.keys, self.boot_id, self.record.granted(self.boot_id)
        )

    @property
    def holds_slot(self) -> bool:
        """True if this node holds a slot for a reboot out of this boot; False also while the slots are unread."""
        held = self.slots.slots.held_by(self.node.uid) if self.slots and self.node else None
        return held is not None and held.boot_id == self.boot_id
