"""Health-watch: states and transitions, marks on the host, record, notices and mutes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated, Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from driver_manager.domain import events
from driver_manager.domain.baseline import Baseline, in_service
from driver_manager.domain.host import RECOVERY, DeviceVerdict, Health, Marker, ProbeResult
from driver_manager.domain.journal import Owner
from driver_manager.domain.node import Node
from driver_manager.domain.node_state import NO_RECOVERY, Recovery, RecoveryState
from driver_manager.domain.profile import NodeKeys, RecoveryStep
from driver_manager.domain.text import several, writable
from driver_manager.domain.wire import LAST_MOMENT_S, Fields, Form, Part, Unreadable, body_of, seconds_of

# Facts of the host: boot, driver, marks, and the file that mutes health-watch

WRITER = "health-watch"


class Mute(Struct, frozen=True):
    """A request to change nothing until `until_s`, since the epoch, which file or annotation `where` has as `text`."""

    until_s: Annotated[float, Part("until")]
    text: Annotated[str, Part("said")]
    where: str

    @property
    def why(self) -> str:
        return f"muted until {self.text} by {self.where}"


class MuteAnswer(Struct, frozen=True):
    """The mute on the Node, the error in `invalid`, or neither. `problem`: why the Node cannot be read."""

    mute: Mute | None = None
    invalid: str = ""
    problem: str = ""


class Surroundings(Struct, frozen=True):
    """The host as health-watch sees it.

    `driver` differs for each load of the driver, and is "" if unknown. `ready`: the ready marker exists; None if the
    profile has none. `is_withdrawn`: health-watch has moved it aside. `marker` is the reboot-required marker, if the
    profile has one (`can_request`), and `mute` the request in the host's file; a `…_problem` is why it cannot be read.
    `baseline` is that of the last swap of this boot.
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
    baseline: Baseline | None = None

    @property
    def has_request_of_ours(self) -> bool:
        """True if the marker is a recovery marker that health-watch wrote in this boot."""
        return self.marker is not None and self.marker.boot_id == self.boot_id and is_own(self.marker)

    @property
    def is_marked(self) -> bool:
        """True if the host's marks show a wedge that health-watch declared."""
        return self.has_request_of_ours or (self.is_withdrawn and not self.ready)

    @property
    def may_request(self) -> bool:
        """True if a recovery marker may be written: there is none, or one of health-watch from an earlier boot."""
        if not self.can_request or self.marker_problem:
            return False
        return self.marker is None or (is_own(self.marker) and self.marker.is_stale(self.boot_id))


def is_own(marker: Marker) -> bool:
    """True if health-watch wrote this marker, as a request for recovery."""
    return marker.reason == RECOVERY and marker.writer == WRITER


def why_muted(seen: Surroundings) -> str:
    """Why no sample can be judged now, "" if one can."""
    if seen.is_reconciling:
        return "a reconcile is under way"
    if not seen.is_loaded:
        return "the driver is not loaded"
    if seen.ready is False and not seen.is_withdrawn:
        return "the driver is not ready"
    return ""


# The last wedge, its evidence, and its notices on the Node


class NoticeKind(Enum):
    WEDGED = "wedged"
    RECOVERED = "recovered"
    MUTED = "muted"
    LOST = "lost"


class Wedge(Struct, frozen=True):
    """The last wedge of this boot, declared at `since_s` since the epoch; 0 without one.

    `reported` is the last notice that reached the Node, `evidence` the file on the host, "" for none.
    """

    since_s: Annotated[int, Part("since", least=0, most=LAST_MOMENT_S)] = 0
    reported: Annotated[NoticeKind | None, Part(None)] = None
    evidence: Annotated[str, Part(is_omitted=True)] = ""


RECOVERY_FORM = Form("the recovery", Unreadable, "It is written again.", key="v", is_compact=True)


def write_recovery(recovery: Recovery) -> str:
    return RECOVERY_FORM.write(body_of(recovery))


def read_recovery(text: str) -> Recovery:
    """The recovery that `write_recovery` wrote. Raises Unreadable."""
    return RECOVERY_FORM.read(text).record(Recovery)


class WedgeSeen(Struct, frozen=True):
    """What health-watch knows of a wedge.

    `is_wedged` since `since_s`, in seconds since the epoch, with the PCI addresses of the sick `devices` (none if
    unknown); `healthy` samples in a row, the last one with `serving` devices; `served` of them did before the wedge.
    `is_unsure`: no sample shows now whether the wedge lasts.
    """

    is_wedged: bool = False
    since_s: int = 0
    is_unsure: bool = False
    reason: str = ""
    devices: tuple[str, ...] = ()
    served: int = 0
    serving: int = 0
    healthy: int = 0
    load: str = ""


class RecoveryAnswer(Struct, frozen=True):
    """The recovery after a turn of it, or the `problem` because of which there was none."""

    recovery: Recovery = NO_RECOVERY
    problem: str = ""


class Kept(Struct, frozen=True):
    """The file on the host with the evidence ("" if none is wanted), or why it was not saved."""

    path: str = ""
    problem: str = ""


NO_WEDGE = Wedge()

# States and transitions

MAX_FAILURES = 2**31
EVIDENCE_LINES = 10
EVIDENCE_CHARS = 500
RECENT = 20
FLAPPING_FLIPS = 6
CALM_FLIPS = 2
"""Driver health is flapping at `FLAPPING_FLIPS` changes in the last `RECENT` counted samples, until `CALM_FLIPS`."""


class HealthState(Enum):
    STARTING = "starting"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    WEDGED = "wedged"
    MUTED = "muted"


class SampleResult(Enum):
    """The result of a sample, given the failures before it.

    NOT_COUNTED: unknown, or unhealthy again at once or before the driver was ever ready.
    """

    GOOD = "good"
    NOT_COUNTED = "not counted"
    BAD = "bad"
    THRESHOLD_REACHED = "last bad"
    MUTE = "mute"


_STARTING, _HEALTHY, _SUSPECT, _WEDGED, _MUTED = HealthState
TRANSITIONS: dict[HealthState, dict[SampleResult, HealthState]] = {
    state: dict(zip(SampleResult, row, strict=True))
    for state, row in {
        # after a sample: GOOD, NOT_COUNTED, BAD, THRESHOLD_REACHED, MUTE
        _STARTING: (_HEALTHY, _STARTING, _SUSPECT, _WEDGED, _MUTED),
        _HEALTHY: (_HEALTHY, _HEALTHY, _SUSPECT, _WEDGED, _MUTED),
        _SUSPECT: (_HEALTHY, _SUSPECT, _SUSPECT, _WEDGED, _MUTED),
        _WEDGED: (_HEALTHY, _WEDGED, _WEDGED, _WEDGED, _MUTED),
        _MUTED: (_HEALTHY, _STARTING, _SUSPECT, _WEDGED, _MUTED),
    }.items()
}
"""The next state, by state and sample."""


class Sample(Struct, frozen=True):
    """One sample of the probe, or a turn without one, for the reason `muted`. Times in seconds.

    `at_s` is its start on a clock that outlasts this process. `is_muted_by_hand`: the Node or a file muted it. `served`
    are the PCI addresses of healthy devices.
    """

    health: Health
    reason: str
    at_s: float = 0.0
    wall_s: float = 0.0
    muted: str = ""
    is_muted_by_hand: bool = False
    served: tuple[str, ...] = ()


class History(Struct, frozen=True):
    """The state that health-watch keeps between two samples.

    `failures` are consecutive; samples that are not counted do not end the row. `was_healthy`: at least once since this
    boot. `recent` has the last counted samples, the newest last; True is healthy. `stuck` is a probe that could not be
    killed. `driver` differs for each load. `wedge` is the last one of this boot, `mute` the last on the Node.
    `is_muted_by_hand`: the Node or a file mutes, so the driver counts as ready. `devices` are those of the last sample.
    `served` are the PCI addresses of devices that were healthy since this driver was loaded, `served_before` of those
    that were healthy before that, in this boot. `lost` are those whose loss was reported in this boot.
    """

    state: HealthState = HealthState.STARTING
    failures: Annotated[int, Part(least=0, most=MAX_FAILURES)] = 0
    was_healthy: bool = False
    is_flapping: bool = False
    recent: tuple[bool, ...] = ()
    evidence: Annotated[tuple[str, ...], Part(chars=EVIDENCE_CHARS + 20)] = ()
    reason: str = ""
    failed_at_s: Annotated[float, Part("failedAt")] = 0.0
    stuck: Annotated[Owner | None, Part(None)] = None
    driver: Annotated[str, Part(is_omitted=True)] = ""
    wedge: Annotated[Wedge, Part(None)] = NO_WEDGE
    mute: Annotated[Mute | None, Part(is_omitted=True)] = None
    is_muted_by_hand: Annotated[bool, Part(None)] = False
    devices: Annotated[tuple[DeviceVerdict, ...], Part(is_omitted=True)] = ()
    served: Annotated[tuple[str, ...], Part(is_omitted=True)] = ()
    served_before: Annotated[tuple[str, ...], Part(is_omitted=True)] = ()
    lost: Annotated[tuple[str, ...], Part(is_omitted=True)] = ()
    recovery: Annotated[Recovery, Part(is_omitted=True)] = NO_RECOVERY

    @property
    def name(self) -> str:
        return f"suspect({self.failures})" if self.state is HealthState.SUSPECT else self.state.value


MUTE_HOLD_S = 3600.0
"""Maximum seconds for which a mute on the Node counts until it is read again: a user may remove or correct it."""


def bounded_mute(mute: Mute, wall_s: float) -> Mute:
    """`mute` with its end at most `MUTE_HOLD_S` after `wall_s`, in seconds since the epoch."""
    return replace(mute, until_s=min(mute.until_s, wall_s + MUTE_HOLD_S))


def active_mute(history: History, seen: Surroundings, wall_s: float) -> Mute | None:
    """The mute by hand at `wall_s`, in seconds since the epoch: the host file's, or else the Node's; None for none."""
    return next((one for one in (seen.mute, history.mute) if one is not None and wall_s < one.until_s), None)


def judge_sample(
    history: History, sample: Sample, seen: Surroundings, threshold: int, spacing_s: float = 0.0
) -> History:
    """The history after one more sample; `threshold` consecutive failures are a wedge.

    A failure counts only `spacing_s` seconds after the last one, as restarts and reloads take a sample at once.
    """
    if seen.driver and history.driver and seen.driver != history.driver and history.state is not HealthState.MUTED:
        # The driver was changed between two samples: the counted failures are of the old driver.
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
    is_same_load = seen.is_loaded and seen.driver in ("", history.driver)
    served, earlier = (after.served, ()) if is_same_load else ((), after.served)
    after = replace(
        after,
        served=_united(served, sample.served),
        served_before=_united(after.served_before, earlier),
        was_healthy=after.was_healthy and seen.is_loaded,
    )
    by_hand = finding is SampleResult.MUTE and sample.is_muted_by_hand
    return replace(after, is_flapping=_flaps(after), driver=seen.driver or history.driver, is_muted_by_hand=by_hand)


def _united(some: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*some, *more}))


def _unmuted(history: History, seen: Surroundings) -> History:
    """The history after a mute: wedged if the host still has the marks of a wedge, else starting."""
    return replace(history, state=HealthState.WEDGED if seen.is_marked else HealthState.STARTING)


def _finding(history: History, sample: Sample, seen: Surroundings, threshold: int, *, is_same: bool) -> SampleResult:
    if sample.muted:
        return SampleResult.MUTE
    match sample.health:
        case Health.HEALTHY:
            return SampleResult.GOOD
        case Health.UNKNOWN:
            return SampleResult.NOT_COUNTED
        case Health.UNHEALTHY:
            # If the profile has no ready marker, only a healthy sample shows that the driver was ever ready.
            never_ready = seen.ready is None and not history.was_healthy and history.state is HealthState.STARTING
            if never_ready or is_same:
                return SampleResult.NOT_COUNTED
            return SampleResult.THRESHOLD_REACHED if history.failures + 1 >= threshold else SampleResult.BAD


def _counted(history: History, sample: Sample, finding: SampleResult) -> History:
    if finding is SampleResult.MUTE:
        return replace(history, failures=0, recent=())
    line = f"{sample.health.value}: {sample.reason}"[:EVIDENCE_CHARS]
    evidence = (*history.evidence, f"{int(sample.wall_s)} {line}")[-EVIDENCE_LINES:]
    after = replace(history, evidence=evidence)
    if finding is SampleResult.GOOD:
        return replace(after, failures=0, was_healthy=True, recent=(*after.recent, True)[-RECENT:])
    if finding is SampleResult.NOT_COUNTED:
        return after
    return replace(after, failures=after.failures + 1, recent=(*after.recent, False)[-RECENT:], failed_at_s=sample.at_s)


def _flaps(history: History) -> bool:
    flips = sum(one != other for one, other in zip(history.recent, history.recent[1:], strict=False))
    return flips >= FLAPPING_FLIPS or (history.is_flapping and flips > CALM_FLIPS)


# The recovery: what the loop has to know of it


def is_recovering(history: History) -> bool:
    """True if something has to be done for the recovery: a step to take or to end, or a recovery to forget."""
    known = history.recovery
    if known.is_open:
        return True
    if history.state is not HealthState.WEDGED:
        return False
    is_known = known.since_s == history.wedge.since_s
    return not (is_known and (known.state is RecoveryState.NEEDS_SERVICE or known.step == RecoveryStep.REBOOT.value))


def is_recovery_over(history: History) -> bool:
    """True if the record shows a recovery of a wedge that has ended without one more step."""
    is_calm = history.state is HealthState.HEALTHY or history.is_muted_by_hand
    return is_calm and not history.recovery.is_open and history.recovery.state is not RecoveryState.NONE


def wants_reboot(history: History) -> bool:
    """True if a reboot is the step that is left for the wedge."""
    known = history.recovery
    return known.step == RecoveryStep.REBOOT.value and known.since_s == history.wedge.since_s


def is_unsure(history: History, result: ProbeResult | None) -> bool:
    """True if neither `result` nor a mute by hand shows whether the last wedge lasts, as while a run works."""
    if history.state is HealthState.WEDGED:
        return result is None or result.health is Health.UNKNOWN
    is_over = history.state is HealthState.HEALTHY or history.is_muted_by_hand
    return not is_over and history.wedge.since_s > 0 and history.wedge.since_s == history.recovery.since_s


def wedge_seen(history: History, result: ProbeResult | None) -> WedgeSeen:
    """The facts of the loop for a turn of the recovery, after a turn with `result`, None if it is muted."""
    devices = result.devices if result is not None else ()
    row = 0
    while row < len(history.recent) and history.recent[-1 - row]:
        row += 1
    return WedgeSeen(
        is_wedged=history.state is HealthState.WEDGED,
        since_s=history.wedge.since_s,
        is_unsure=is_unsure(history, result),
        reason=history.reason,
        devices=tuple(
            sorted(one.address for one in devices if one.health is Health.UNHEALTHY and one.address and not one.is_lost)
        ),
        served=len({*history.served, *history.served_before}),
        serving=len({*result.served}) if result is not None else 0,
        healthy=row if history.state is HealthState.HEALTHY else 0,
        load=history.driver,
    )


# The marks on the host that each state needs: a withdrawn ready marker, a request for recovery


class MarkChange(Enum):
    WITHDRAW_READY = "withdraw the ready marker"
    RESTORE_READY = "restore the ready marker"
    FORGET_READY = "drop the withdrawn ready marker"
    REQUEST_RECOVERY = "write the recovery marker"
    CLEAR_REQUEST = "remove the recovery marker"


def mark_changes(history: History, seen: Surroundings) -> tuple[MarkChange, ...]:
    """The changes of the host's marks that the state needs, in order.

    On a wedge, the ready marker is withdrawn before the request for recovery, which needs a failure: a withdrawn marker
    may be from an earlier boot. A mute by hand removes the marks of the wedge before it.
    """
    acts: list[MarkChange] = []
    match history.state:
        case HealthState.WEDGED:
            if seen.ready:
                acts.append(MarkChange.WITHDRAW_READY)
            if seen.may_request and history.failures:
                acts.append(MarkChange.REQUEST_RECOVERY)
        case HealthState.HEALTHY | HealthState.SUSPECT:
            acts += _marks_removed(seen)
        case HealthState.MUTED if history.is_muted_by_hand:
            acts += _marks_removed(seen)
        case HealthState.MUTED:
            # The wedged driver is unloaded, and the next one writes its own ready marker.
            if seen.is_withdrawn and not seen.is_loaded and not seen.is_reconciling:
                acts.append(MarkChange.FORGET_READY)
        case HealthState.STARTING:
            pass
    return tuple(acts)


def _marks_removed(seen: Surroundings) -> list[MarkChange]:
    """The changes that remove the marks of a wedge: first cancel the reboot, then restore the ready marker."""
    request = [MarkChange.CLEAR_REQUEST] if seen.has_request_of_ours else []
    return [*request, *([MarkChange.RESTORE_READY] if seen.is_withdrawn else [])]


def is_marked_ready(history: History, seen: Surroundings) -> bool:
    """The answer to a readiness probe: False while the driver is wedged, or was when the host muted it."""
    waits = history.state is HealthState.MUTED and seen.is_marked and not history.is_muted_by_hand
    return history.state is not HealthState.WEDGED and not waits


def mark_request(history: History, boot_id: str, node: str, wall_s: float) -> Marker:
    return Marker(RECOVERY, boot_id, node=node, writer=WRITER, written_s=int(wall_s), evidence=history.evidence)


# Mutes: a time on the Node or in a file on the host, until which health-watch changes nothing

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
MAX_SHOWN = 60


def parsed_mute(text: str, where: str) -> Mute:
    """The mute that `text`, found in `where`, requests. Raises ValueError if it is not an RFC 3339 time."""
    time = text.strip()
    until_s = seconds_of(time) if _RFC3339.fullmatch(time) else None
    if until_s is None:
        shown = time if len(time) <= MAX_SHOWN else f"{time[:MAX_SHOWN]}…"
        raise ValueError(f"{where} does not mute health-watch: {shown!r} is not a time such as 2026-01-02T03:04:05Z")
    return Mute(until_s, time, where)


def mute_on(node: Node, keys: NodeKeys) -> Mute | None:
    """The mute in the Node's annotation, past or not; None for none. Raises ValueError."""
    text = node.annotations.get(keys.mute_until) if keys.mute_until else None
    return parsed_mute(text, f"the annotation {keys.mute_until}") if text is not None else None


# Notices: one Event and the Node's state for each wedge and each end of one, with any number of tries

FIRST_RETRY_S = 30.0
TRIES = 7
"""Maximum tries of one notice. With 30 s, doubled after each try, they last half an hour."""

MAX_KEY_CHARS = 120
REASON_CHARS = 400
"""Maximum length of a reason: an Event's message has at most 1,024 characters, and also names the evidence."""

_EVENTS = {
    NoticeKind.WEDGED: events.DRIVER_WEDGED,
    NoticeKind.RECOVERED: events.DRIVER_RECOVERED,
    NoticeKind.MUTED: events.DRIVER_WEDGE_MUTED,
    NoticeKind.LOST: events.DEVICE_LOST,
}


class Notice(Struct, frozen=True):
    """One notice. `since_s` is when the wedge was declared, since the epoch; `evidence` a file on the host.

    `since_s` is 0 without a wedge in this boot: then the notice only removes the state of an earlier boot. `lost` are
    the PCI addresses of the devices that are lost, for a notice of that kind.
    """

    kind: NoticeKind
    boot_id: str
    since_s: int
    reason: str
    evidence: str = ""
    lost: tuple[str, ...] = ()

    @property
    def event(self) -> str:
        return _EVENTS[self.kind]

    @property
    def key(self) -> str:
        """The name of its Event, the same in every process that reports this wedge."""
        of = "-".join(self.lost)[:MAX_KEY_CHARS] if self.lost else self.since_s % 10**12
        return re.sub("[^a-z0-9-]", "-", f"{self.event}-{self.boot_id[:40]}-{of}".lower())

    @property
    def message(self) -> str:
        match self.kind:
            case NoticeKind.WEDGED:
                where = f"; evidence on the host: {self.evidence}" if self.evidence else ""
                return f"the driver does not serve its devices: {self.reason}{where}"
            case NoticeKind.RECOVERED:
                return f"the driver serves its devices again: {self.reason}"
            case NoticeKind.MUTED:
                return f"health-watch is {self.reason}: what it had marked for the wedge is withdrawn"
            case NoticeKind.LOST:
                return f"device(s) {several(self.lost)} served before and do not any more: {self.reason}"

    @property
    def undone(self) -> str:
        """The consequence of a notice that was not reported, for a message."""
        if self.since_s or self.lost:
            return f"{self.event} was not reported on the Node"
        return "unknown whether the Node still shows a wedge of an earlier boot"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "kind": self.kind.value, "lost": list(self.lost)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Notice:
        return cls(**{**body, "kind": NoticeKind(body["kind"]), "lost": tuple(body.get("lost", ()))})


class ClientAnswer(Struct, frozen=True):
    """The clients `restarted` now, and why others are `left` ("" for none). `is_early`: that is normal so far."""

    restarted: tuple[str, ...] = ()
    left: str = ""
    warnings: tuple[str, ...] = ()
    is_early: bool = False


def notice_due(history: History, boot_id: str) -> Notice | None:
    """The notice that the Node has not received yet, None if there is none: first that of the state, then of a loss.

    A boot's first healthy sample is one.
    """
    kind: NoticeKind | None
    match history.state:
        case HealthState.WEDGED:
            kind = NoticeKind.WEDGED
        case HealthState.HEALTHY:
            kind = NoticeKind.RECOVERED
        case HealthState.MUTED if history.is_muted_by_hand and history.wedge.reported is NoticeKind.WEDGED:
            kind = NoticeKind.MUTED
        case _:
            kind = None
    wedge, reason = history.wedge, history.reason[:REASON_CHARS]
    if kind is not None and wedge.reported is not kind:
        return Notice(kind, boot_id, wedge.since_s, reason, wedge.evidence)
    served = {*history.served, *history.served_before}
    lost = {one.address for one in history.devices if one.is_lost and one.address in served}
    new = () if history.state is HealthState.MUTED else tuple(sorted(lost - {*history.lost}))
    return Notice(NoticeKind.LOST, boot_id, 0, reason, lost=new) if new else None


def with_reported(history: History, notice: Notice) -> History:
    """`history` after `notice` reached the Node."""
    if notice.kind is NoticeKind.LOST:
        return replace(history, lost=tuple(sorted({*history.lost, *notice.lost})))
    return replace(history, wedge=replace(history.wedge, reported=notice.kind))


def retry_after_s(failed: int) -> float | None:
    """Seconds to wait after the `failed`th try (from 1) of one notice, None after the last try."""
    return FIRST_RETRY_S * 2.0 ** (failed - 1) if failed < TRIES else None


# The record from which a later process of the same boot continues: one versioned line of JSON


WATCH_RECORD_FORM = Form("health-watch's record", Unreadable, "No action needed: it is written again.")
MAX_PID = 2**22
"""The highest process id of Linux (proc(5), pid_max)."""

MAX_DEVICES = 256
MAX_REASON_CHARS = 200


def encode_watch_record(history: History, boot_id: str) -> str:
    """The history as one line of JSON, for a later process of this boot and for `status`."""
    body = {"bootId": boot_id, **body_of(replace(history, devices=tuple(map(_shown, history.devices[:MAX_DEVICES]))))}
    if history.stuck is not None:
        stuck = history.stuck
        body["stuck"] = {"pid": stuck.pid, "startTicks": stuck.start_ticks, "pidNamespace": stuck.pid_namespace}
    if history.wedge != NO_WEDGE:
        reported = history.wedge.reported
        body["wedge"] = {**body_of(history.wedge), "told": reported.value if reported else ""}
    return WATCH_RECORD_FORM.write(body) + "\n"


def resume_watch(text: str, seen: Surroundings, now_s: float, patience_s: float, threshold: int) -> History:
    """The history to continue with: the record in `text`, corrected by the marks on the host.

    The record is written before the marks. So marks mean a wedge, unless it shows that the driver recovered: then a
    process ended before it removed them. Without marks, recorded failures stay below the threshold, and are dropped if
    the last one is older than `patience_s`. An unreadable record, or one of another boot, counts as none.
    """
    history = decode_watch_record(text, seen.boot_id)
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


def with_recorded_wedge(history: History, text: str, boot_id: str) -> History:
    """`history` of a new wedge, as another process has recorded it in `text` if it has, so that both post one Event."""
    recorded = decode_watch_record(text, boot_id)
    is_declared = recorded.state is HealthState.WEDGED and recorded.wedge.since_s
    return replace(history, wedge=recorded.wedge) if is_declared else history


def _shown(device: DeviceVerdict) -> DeviceVerdict:
    """A device as written. A healthy one has no reason: it changes with every sample and would cause a write."""
    reason = "" if device.health is Health.HEALTHY else writable(device.reason)[:MAX_REASON_CHARS]
    return replace(device, reason=reason)


def _wedge(body: Fields) -> Wedge:
    reported = body.choice("told", ["", *(kind.value for kind in NoticeKind)])
    return body.record(Wedge, reported=NoticeKind(reported) if reported else None)


def _process(body: Fields) -> Owner:
    return Owner(
        pid=body.whole("pid", least=1, most=MAX_PID),
        start_ticks=body.whole("startTicks"),
        pid_namespace=body.whole("pidNamespace"),
    )


def compared(result: ProbeResult, load: str, before: Baseline | None, history: History) -> ProbeResult:
    """`result` of the driver of load `load`, compared with what served in this boot and before the last swap.

    A baseline of this load does not count: the swap that recorded it loaded no other driver.
    """
    if before is not None and before.load == load:
        before = None
    served, earlier = history.served, history.served_before
    if history.driver != load:
        served, earlier = (), (*served, *earlier)
    if before is not None and before.functions and not before.is_reload:
        # What had left the bus before the swap, as by hand, is not missed after it.
        earlier = tuple(one for one in earlier if one in before.functions)
    return in_service(result, before, served, earlier)


def decode_watch_record(text: str, boot_id: str) -> History:
    """The history in the record `text`; a new history if it is unreadable or of another boot."""
    try:
        body = WATCH_RECORD_FORM.read(text)
        if body.text("bootId") != boot_id:
            return History()
        found = body.record(
            History,
            stuck=_process(body.fields("stuck")) if "stuck" in body else None,
            wedge=_wedge(body.fields("wedge")) if "wedge" in body else NO_WEDGE,
        )
        return replace(
            found,
            recent=found.recent[-RECENT:],
            evidence=found.evidence[-EVIDENCE_LINES:],
            devices=found.devices[:MAX_DEVICES],
        )
    except Unreadable:
        return History()
