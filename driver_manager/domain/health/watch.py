"""Health-watch: states and transitions, marks on the host, records, notices and mutes. Pure.

Time comes with the sample.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from enum import Enum
from typing import Any

from driver_manager.domain import events
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host import RECOVERY, DeviceVerdict, Health, Marker
from driver_manager.domain.journal import Owner
from driver_manager.domain.node import Node
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.records import Frozen
from driver_manager.domain.text import writable
from driver_manager.domain.wire import LAST_MOMENT_S, Fields, Form, seconds_of

# What health-watch sees of the host beside the probe: boot, driver, marks, and what mutes it.
#
# Owns which marks are health-watch's own. Pure.

WRITER = "health-watch"


class Mute(Frozen):
    """Somebody wants health-watch to hold still until `until_s`, in seconds since the epoch.

    `said` is that time as it was written, `where` who says so.
    """

    until_s: float
    said: str
    where: str

    @property
    def why(self) -> str:
        """For a message."""
        return f"muted until {self.said} by {self.where}"


class MuteAnswer(Frozen):
    """What the Node says of it: a mute, or `garbage` in its place, or `problem`: it could not be asked."""

    mute: Mute | None = None
    garbage: str = ""
    problem: str = ""


class Surroundings(Frozen):
    """The host's side of the judgement. `ready` is None where the profile knows no ready marker.

    `driver` is another text for each load of the driver, "" while it cannot be told. `is_withdrawn`: the ready marker
    is put aside, by us. `marker` is the reboot-required marker, `marker_problem` why
    it cannot be read; `can_request` says whether the profile has one at all. `mute` is what the host's file asks for,
    `mute_problem` why that cannot be read.
    """

    boot_id: str
    driver: str = ""
    is_loaded: bool = True
    is_reconciling: bool = False
    ready: bool | None = None
    is_withdrawn: bool = False
    can_request: bool = False
    marker: Marker | None = None
    marker_problem: str = ""
    mute: Mute | None = None
    mute_problem: str = ""

    @property
    def has_request_of_ours(self) -> bool:
        """Whether the marker is a recovery marker that health-watch wrote in this boot."""
        return self.marker is not None and self.marker.boot_id == self.boot_id and is_own(self.marker)

    @property
    def is_marked(self) -> bool:
        """Whether the host says that we hold the driver for wedged."""
        return self.has_request_of_ours or (self.is_withdrawn and not self.ready)

    @property
    def may_request(self) -> bool:
        """Whether a recovery marker may be written: nothing is there, or an outdated one of our own.

        An upgrade marker stays, of whatever boot, and so does what somebody else wrote or what cannot be read.
        """
        if not self.can_request or self.marker_problem:
            return False
        return self.marker is None or (is_own(self.marker) and self.marker.is_stale(self.boot_id))


def is_own(marker: Marker) -> bool:
    """Whether health-watch wrote it, as a request for recovery."""
    return marker.reason == RECOVERY and marker.writer == WRITER


def why_muted(seen: Surroundings) -> str:
    """Why nothing can be judged now, "" where it can."""
    if seen.is_reconciling:
        return "a reconcile is under way"
    if not seen.is_loaded:
        return "the driver is not loaded"
    if seen.ready is False and not seen.is_withdrawn:
        return "the driver is not ready"
    return ""


# A wedge as it is remembered: since when, and what the Node was told of it last. Pure.


class NoticeKind(Enum):
    """What the Node is told of a wedge."""

    WEDGED = "wedged"
    RECOVERED = "recovered"
    MUTED = "muted"


class Wedge(Frozen):
    """The last wedge of this boot. `since_s` is when it was declared, in seconds since the epoch; 0: none is known.

    `told` is the last notice that reached the Node in this boot, None before the first. `evidence` is the file on the
    host with what could be seen when it was declared, "" where there is none.
    """

    since_s: int = 0
    told: NoticeKind | None = None
    evidence: str = ""


class Kept(Frozen):
    """What became of evidence: the file on the host, "" where none is wanted, or the problem."""

    path: str = ""
    problem: str = ""


NO_WEDGE = Wedge()


EVIDENCE_LINES = 10
EVIDENCE_CHARS = 500
RECENT = 20
FLAPPING_FLIPS = 6
CALM_FLIPS = 2
"""Of the last 20 samples that said something, so many changes are flapping, and so few are calm again."""


class HealthState(Enum):
    """What is held of the driver."""

    STARTING = "starting"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    WEDGED = "wedged"
    MUTED = "muted"


class SampleResult(Enum):
    """What a moment tells, with the failures before it counted in."""

    GOOD = "good"
    UNKNOWN = "unknown"
    BAD = "bad"
    THRESHOLD_REACHED = "last bad"
    MUTE = "mute"


TRANSITIONS: dict[HealthState, dict[SampleResult, HealthState]] = {
    HealthState.STARTING: {
        SampleResult.GOOD: HealthState.HEALTHY,
        SampleResult.UNKNOWN: HealthState.STARTING,
        SampleResult.BAD: HealthState.SUSPECT,
        SampleResult.THRESHOLD_REACHED: HealthState.WEDGED,
        SampleResult.MUTE: HealthState.MUTED,
    },
    HealthState.HEALTHY: {
        SampleResult.GOOD: HealthState.HEALTHY,
        SampleResult.UNKNOWN: HealthState.HEALTHY,
        SampleResult.BAD: HealthState.SUSPECT,
        SampleResult.THRESHOLD_REACHED: HealthState.WEDGED,
        SampleResult.MUTE: HealthState.MUTED,
    },
    HealthState.SUSPECT: {
        SampleResult.GOOD: HealthState.HEALTHY,
        SampleResult.UNKNOWN: HealthState.SUSPECT,
        SampleResult.BAD: HealthState.SUSPECT,
        SampleResult.THRESHOLD_REACHED: HealthState.WEDGED,
        SampleResult.MUTE: HealthState.MUTED,
    },
    HealthState.WEDGED: {
        SampleResult.GOOD: HealthState.HEALTHY,
        SampleResult.UNKNOWN: HealthState.WEDGED,
        SampleResult.BAD: HealthState.WEDGED,
        SampleResult.THRESHOLD_REACHED: HealthState.WEDGED,
        SampleResult.MUTE: HealthState.MUTED,
    },
    HealthState.MUTED: {
        SampleResult.GOOD: HealthState.HEALTHY,
        SampleResult.UNKNOWN: HealthState.STARTING,
        SampleResult.BAD: HealthState.SUSPECT,
        SampleResult.THRESHOLD_REACHED: HealthState.WEDGED,
        SampleResult.MUTE: HealthState.MUTED,
    },
}


class Sample(Frozen):
    """One sample of the probe, or a moment without one: `muted` then says why. Times in seconds.

    `at_s` is when it began, on a clock that goes on through restarts of this process, `wall_s` since the epoch.
    `is_hushed`: somebody muted it by hand.
    """

    health: Health
    reason: str
    at_s: float = 0.0
    wall_s: float = 0.0
    muted: str = ""
    is_hushed: bool = False


class History(Frozen):
    """What has to be remembered between two samples.

    `failures` are consecutive, unknown samples left out. `was_healthy`: at least once since this boot. `recent` holds
    the last samples that said something, the newest last. `reason` belongs to the state. `stuck` is a probe that could
    not be killed. `driver` tells the loaded driver from the one before it. `wedge` is the last one of this boot.
    `mute` is what the Node last asked for; `is_hushed`: muted, and by hand, so nothing is held against the driver.
    `devices` are those of the last sample, none where it said nothing of each.
    """

    state: HealthState = HealthState.STARTING
    failures: int = 0
    was_healthy: bool = False
    is_flapping: bool = False
    recent: tuple[bool, ...] = ()
    evidence: tuple[str, ...] = ()
    reason: str = ""
    failed_at_s: float = 0.0
    stuck: Owner | None = None
    driver: str = ""
    wedge: Wedge = NO_WEDGE
    mute: Mute | None = None
    is_hushed: bool = False
    devices: tuple[DeviceVerdict, ...] = ()

    @property
    def name(self) -> str:
        """The state as people are told it."""
        return f"suspect({self.failures})" if self.state is HealthState.SUSPECT else self.state.value


MUTE_HOLD_S = 3600.0
"""A mute on the Node is held for so long at most, in seconds; then a driver that still fails is a reason to ask again.

So one that is taken back early, or is of the year 9999 by mistake, does not blind the watch for long.
"""


def held_watch(mute: Mute, wall_s: float) -> Mute:
    """`mute` as it is held from `wall_s` on."""
    return replace(mute, until_s=min(mute.until_s, wall_s + MUTE_HOLD_S))


def active_mute(history: History, seen: Surroundings, wall_s: float) -> Mute | None:
    """The mute by hand that holds at `wall_s`: the host's file, which is read at every turn, or the Node's."""
    return next((one for one in (seen.mute, history.mute) if one is not None and wall_s < one.until_s), None)


def judge_sample(
    history: History, sample: Sample, seen: Surroundings, threshold: int, spacing_s: float = 0.0
) -> History:
    """The history after one more sample; `threshold` consecutive failures are a wedge.

    A failure sooner than `spacing_s` seconds after the last one that counted is the same failure: restarts and reloads
    take samples at once.
    """
    if seen.driver and history.driver and seen.driver != history.driver and history.state is not HealthState.MUTED:
        # It was changed between two samples: what was counted is the failures of another driver.
        changed = replace(sample, muted="the driver was changed")
        history = judge_sample(replace(history, driver=""), changed, seen, threshold)
    before = _unmuted(history, seen) if history.state is HealthState.MUTED and not sample.muted else history
    is_same = before.failures > 0 and sample.at_s - before.failed_at_s < spacing_s
    finding = _finding(before, sample, seen, threshold, is_same=is_same)
    after = replace(_counted(before, sample, finding), state=TRANSITIONS[before.state][finding])
    if after.state is not before.state or finding in (SampleResult.BAD, SampleResult.MUTE):
        after = replace(after, reason=sample.muted or sample.reason)
    if after.state is HealthState.WEDGED and before.state is not HealthState.WEDGED:
        after = replace(after, wedge=Wedge(max(0, int(sample.wall_s))))
    if not seen.is_loaded:
        after = replace(after, was_healthy=False)
    is_hushed = finding is SampleResult.MUTE and sample.is_hushed
    return replace(after, is_flapping=_flaps(after), driver=seen.driver or history.driver, is_hushed=is_hushed)


def _unmuted(history: History, seen: Surroundings) -> History:
    """What is held right after a mute: a wedge that is still marked on the host goes on, anything else begins anew."""
    return replace(history, state=HealthState.WEDGED if seen.is_marked else HealthState.STARTING)


def _finding(history: History, sample: Sample, seen: Surroundings, threshold: int, *, is_same: bool) -> SampleResult:
    if sample.muted:
        return SampleResult.MUTE
    match sample.health:
        case Health.HEALTHY:
            return SampleResult.GOOD
        case Health.UNKNOWN:
            return SampleResult.UNKNOWN
        case Health.UNHEALTHY:
            # Without a ready marker only a healthy sample tells that the driver was ready at all.
            if seen.ready is None and not history.was_healthy and history.state is HealthState.STARTING:
                return SampleResult.UNKNOWN
            if is_same:
                return SampleResult.UNKNOWN
            return SampleResult.THRESHOLD_REACHED if history.failures + 1 >= threshold else SampleResult.BAD


def _counted(history: History, sample: Sample, finding: SampleResult) -> History:
    if finding is SampleResult.MUTE:
        return replace(history, failures=0, recent=())
    line = f"{sample.health.value}: {sample.reason}"[:EVIDENCE_CHARS]
    evidence = (*history.evidence, f"{int(sample.wall_s)} {line}")[-EVIDENCE_LINES:]
    after = replace(history, evidence=evidence)
    if finding is SampleResult.GOOD:
        return replace(after, failures=0, was_healthy=True, recent=(*after.recent, True)[-RECENT:])
    if finding is SampleResult.UNKNOWN:
        return after
    return replace(after, failures=after.failures + 1, recent=(*after.recent, False)[-RECENT:], failed_at_s=sample.at_s)


def _flaps(history: History) -> bool:
    flips = sum(one != other for one, other in zip(history.recent, history.recent[1:], strict=False))
    return flips >= FLAPPING_FLIPS or (history.is_flapping and flips > CALM_FLIPS)


# Which marks on the host a state of health-watch calls for: the ready marker put aside, a recovery asked for. Pure.


class MarkChange(Enum):
    """One effect on the host's marks."""

    WITHDRAW_READY = "withdraw the ready marker"
    RESTORE_READY = "restore the ready marker"
    FORGET_READY = "drop the withdrawn ready marker"
    REQUEST_RECOVERY = "write the recovery marker"
    CLEAR_REQUEST = "remove the recovery marker"


def mark_due(history: History, seen: Surroundings) -> tuple[MarkChange, ...]:
    """What the host's marks lack of what the state calls for, in the order in which it has to be done.

    On a wedge nobody may hold the driver for ready before its recovery is asked for, and that takes a failure: a marker
    that was put aside, by itself, may be an earlier boot's. A mute by hand takes back what a wedge before it marked.
    """
    acts: list[MarkChange] = []
    match history.state:
        case HealthState.WEDGED:
            if seen.ready:
                acts.append(MarkChange.WITHDRAW_READY)
            if seen.may_request and history.failures:
                acts.append(MarkChange.REQUEST_RECOVERY)
        case HealthState.HEALTHY | HealthState.SUSPECT:
            acts += _taken_back(seen)
        case HealthState.MUTED if history.is_hushed:
            acts += _taken_back(seen)
        case HealthState.MUTED:
            # The driver that we called not ready is gone: the next one's marker is not ours to put back.
            if seen.is_withdrawn and not seen.is_loaded and not seen.is_reconciling:
                acts.append(MarkChange.FORGET_READY)
        case HealthState.STARTING:
            pass
    return tuple(acts)


def _taken_back(seen: Surroundings) -> list[MarkChange]:
    """Nothing is held against the driver: a reboot is called off before it is called ready."""
    request = [MarkChange.CLEAR_REQUEST] if seen.has_request_of_ours else []
    return [*request, *([MarkChange.RESTORE_READY] if seen.is_withdrawn else [])]


def is_marked_ready(history: History, seen: Surroundings) -> bool:
    """What a readiness probe is answered: not while the driver is wedged, and not while a wedge waits out a mute.

    While nothing is held against the driver (starting, suspect, muted without a wedge or by hand) the answer is yes.
    """
    waits = history.state is HealthState.MUTED and seen.is_marked and not history.is_hushed
    return history.state is not HealthState.WEDGED and not waits


def mark_request(history: History, boot_id: str, node: str, wall_s: float) -> Marker:
    """The recovery marker for a wedge."""
    return Marker(RECOVERY, boot_id, node=node, writer=WRITER, written_s=int(wall_s), evidence=history.evidence)


# How somebody mutes health-watch: a time, on the Node or in a file on the host, until which it holds still. Pure.
#
# Owns the time's form. Not imported by the loop, which has no use for calendars unless somebody mutes it.

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
MAX_SHOWN = 60


def parsed_mute(text: str, where: str) -> Mute:
    """The mute that `text`, found in `where`, asks for. Raises ValueError for what is no RFC 3339 time."""
    said = text.strip()
    until_s = seconds_of(said) if _RFC3339.fullmatch(said) else None
    if until_s is None:
        shown = said if len(said) <= MAX_SHOWN else f"{said[:MAX_SHOWN]}…"
        raise ValueError(f"{where} does not mute health-watch: {shown!r} is not a time such as 2026-01-02T03:04:05Z")
    return Mute(until_s, said, where)


def mute_on(node: Node, keys: NodeKeys) -> Mute | None:
    """The mute on `node`, past or not; None where there is none. Raises ValueError."""
    text = node.annotations.get(keys.mute_until) if keys.mute_until else None
    return parsed_mute(text, f"the annotation {keys.mute_until}") if text is not None else None


# What the Node has to be told at a wedge and at its end: one Event for each, however often it is tried, and the state.
#
# Owns when a notice is due, how often one that failed is repeated, and its words. Pure.

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


def notice_due(history: History, boot_id: str) -> Notice | None:
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


# What a later process of health-watch goes on with: one versioned line of JSON, gone with the boot.
#
# Owns its form and how it is reconciled with the marks on the host. Pure.


class HistoryUnreadable(ConfigError):
    """The file is no history that this version can go on with."""


WATCH_RECORD_FORM = Form("health-watch's record", HistoryUnreadable, "No action needed: it is written again.")
MAX_FAILURES = 2**31
MAX_PID = 2**22
"""The kernel gives no higher process id (proc(5), pid_max); more failures than that take four thousand years."""


MAX_DEVICES = 256
MAX_REASON_CHARS = 200


def encode_watch_record(history: History, boot_id: str) -> str:
    """The history as a later process of this boot needs it, and whoever looks at it: one line of JSON."""
    body = {
        "bootId": boot_id,
        "state": history.state.value,
        "failures": history.failures,
        "failedAt": history.failed_at_s,
        "wasHealthy": history.was_healthy,
        "isFlapping": history.is_flapping,
        "recent": list(history.recent),
        "evidence": list(history.evidence),
        "reason": history.reason,
        **({"driver": history.driver} if history.driver else {}),
        **({"stuck": _of_process(history.stuck)} if history.stuck is not None else {}),
        **({"wedge": _of_wedge(history.wedge)} if history.wedge != NO_WEDGE else {}),
        **({"mute": _of_mute(history.mute)} if history.mute is not None else {}),
        **({"devices": [_of_device(one) for one in history.devices[:MAX_DEVICES]]} if history.devices else {}),
    }
    return WATCH_RECORD_FORM.write(body) + "\n"


def resume_watch(text: str, seen: Surroundings, now_s: float, patience_s: float, threshold: int) -> History:
    """The history to go on with: what `encode` wrote, corrected by the marks on the host.

    It is written before the marks are changed. So marks are a wedge, unless the record says that the driver recovered
    and only their removal was cut short. Without marks a suspicion needs one more failure, whatever was counted, and
    one whose last failure is more than `patience_s` seconds past is dropped. Garbage and other boots' records count
    for nothing.
    """
    history = recorded_watch(text, seen.boot_id)
    if seen.is_marked and history.state not in (HealthState.HEALTHY, HealthState.SUSPECT):
        reason = history.reason if history.state is HealthState.WEDGED else "already marked on the host at the start"
        failures = max(history.failures, threshold) if seen.has_request_of_ours else history.failures
        wedge = history.wedge
        if not wedge.since_s and seen.has_request_of_ours and seen.marker is not None:
            wedge = replace(wedge, since_s=seen.marker.written_s)
        return replace(history, state=HealthState.WEDGED, failures=failures, reason=reason, wedge=wedge)
    is_fresh = 0 <= now_s - history.failed_at_s <= patience_s
    failures = min(history.failures, threshold - 1) if is_fresh else 0
    calm = HealthState.HEALTHY if seen.is_marked else HealthState.STARTING
    return replace(history, state=HealthState.SUSPECT if failures else calm, failures=failures)


def adopted_record(history: History, text: str, boot_id: str) -> History:
    """`history` of a fresh wedge, as the record in `text` has it where another process has declared it already.

    Two that watch one driver see the same wedge moments apart: one Event is to come of it.
    """
    there = recorded_watch(text, boot_id)
    return replace(history, wedge=there.wedge) if there.state is HealthState.WEDGED and there.wedge.since_s else history


def _of_device(device: DeviceVerdict) -> dict[str, str]:
    """What a healthy device says of itself changes with every sample, and is not worth a write."""
    reason = "" if device.health is Health.HEALTHY else writable(device.reason)[:MAX_REASON_CHARS]
    return {"name": device.name, "address": device.address, "health": device.health.value, "reason": reason}


def _device(body: Fields) -> DeviceVerdict:
    health = Health(body.choice("health", [health.value for health in Health]))
    reason = writable(body.text("reason"))[:MAX_REASON_CHARS]
    return DeviceVerdict(writable(body.text("name")), health, reason, writable(body.text("address")))


def _of_process(owner: Owner) -> dict[str, int]:
    """What tells a process from all others of one boot."""
    return {"pid": owner.pid, "startTicks": owner.start_ticks, "pidNamespace": owner.pid_namespace}


def _of_wedge(wedge: Wedge) -> dict[str, Any]:
    told = wedge.told.value if wedge.told else ""
    return {"since": wedge.since_s, "told": told, **({"evidence": wedge.evidence} if wedge.evidence else {})}


def _wedge(body: Fields) -> Wedge:
    told = body.choice("told", ["", *(kind.value for kind in NoticeKind)])
    since_s, evidence = body.whole("since", least=0, most=LAST_MOMENT_S), writable(body.text("evidence", ""))
    return Wedge(since_s, NoticeKind(told) if told else None, evidence)


def _of_mute(mute: Mute) -> dict[str, Any]:
    return {"until": mute.until_s, "said": mute.said, "where": mute.where}


def _mute(body: Fields) -> Mute:
    return Mute(body.seconds("until"), writable(body.text("said")), writable(body.text("where")))


def _process(body: Fields) -> Owner:
    return Owner(
        pid=body.whole("pid", least=1, most=MAX_PID),
        start_ticks=body.whole("startTicks"),
        pid_namespace=body.whole("pidNamespace"),
    )


def recorded_watch(text: str, boot_id: str) -> History:
    """What `encode` wrote in this boot; a fresh start for anything else."""
    try:
        body = WATCH_RECORD_FORM.read(text)
        if body.text("bootId") != boot_id:
            return History()
        return History(
            state=HealthState(body.choice("state", [state.value for state in HealthState])),
            failures=body.whole("failures", least=0, most=MAX_FAILURES),
            was_healthy=body.flag("wasHealthy"),
            is_flapping=body.flag("isFlapping"),
            recent=body.flags("recent")[-RECENT:],
            evidence=tuple(writable(line)[: EVIDENCE_CHARS + 20] for line in body.texts("evidence"))[-EVIDENCE_LINES:],
            reason=writable(body.text("reason")),
            failed_at_s=body.seconds("failedAt"),
            driver=writable(body.text("driver", "")),
            stuck=_process(body.fields("stuck")) if "stuck" in body else None,
            devices=tuple(_device(one) for one in body.each("devices"))[:MAX_DEVICES] if "devices" in body else (),
            wedge=_wedge(body.fields("wedge")) if "wedge" in body else NO_WEDGE,
            mute=_mute(body.fields("mute")) if "mute" in body else None,
        )
    except HistoryUnreadable:
        return History()
