"""Is the driver wedged? Judged from samples of its probe, one at a time.

Owns the states, the table of their transitions, what mutes the watch, and which marks on the host a state calls for.
Pure: time comes with the sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.escaping import writable
from driver_manager.domain.journal import Owner
from driver_manager.domain.markers import RECOVERY, Marker
from driver_manager.domain.model import Health
from driver_manager.domain.wire import Fields, Form

WRITER = "health-watch"
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


class Finding(Enum):
    """What a moment tells, with the failures before it counted in."""

    GOOD = "good"
    UNKNOWN = "unknown"
    BAD = "bad"
    LAST_BAD = "last bad"
    MUTE = "mute"


TRANSITIONS: dict[HealthState, dict[Finding, HealthState]] = {
    HealthState.STARTING: {
        Finding.GOOD: HealthState.HEALTHY,
        Finding.UNKNOWN: HealthState.STARTING,
        Finding.BAD: HealthState.SUSPECT,
        Finding.LAST_BAD: HealthState.WEDGED,
        Finding.MUTE: HealthState.MUTED,
    },
    HealthState.HEALTHY: {
        Finding.GOOD: HealthState.HEALTHY,
        Finding.UNKNOWN: HealthState.HEALTHY,
        Finding.BAD: HealthState.SUSPECT,
        Finding.LAST_BAD: HealthState.WEDGED,
        Finding.MUTE: HealthState.MUTED,
    },
    HealthState.SUSPECT: {
        Finding.GOOD: HealthState.HEALTHY,
        Finding.UNKNOWN: HealthState.SUSPECT,
        Finding.BAD: HealthState.SUSPECT,
        Finding.LAST_BAD: HealthState.WEDGED,
        Finding.MUTE: HealthState.MUTED,
    },
    HealthState.WEDGED: {
        Finding.GOOD: HealthState.HEALTHY,
        Finding.UNKNOWN: HealthState.WEDGED,
        Finding.BAD: HealthState.WEDGED,
        Finding.LAST_BAD: HealthState.WEDGED,
        Finding.MUTE: HealthState.MUTED,
    },
    HealthState.MUTED: {
        Finding.GOOD: HealthState.HEALTHY,
        Finding.UNKNOWN: HealthState.STARTING,
        Finding.BAD: HealthState.SUSPECT,
        Finding.LAST_BAD: HealthState.WEDGED,
        Finding.MUTE: HealthState.MUTED,
    },
}


@dataclass(frozen=True)
class Sample:
    """One sample of the probe, or a moment without one: `muted` then says why. Times in seconds.

    `at_s` is when it began, on a clock that goes on through restarts of this process, `wall_s` since the epoch.
    """

    health: Health
    reason: str
    at_s: float = 0.0
    wall_s: float = 0.0
    muted: str = ""


@dataclass(frozen=True)
class History:
    """What has to be remembered between two samples.

    `failures` are consecutive, unknown samples left out. `was_healthy`: at least once since this boot. `recent` holds
    the last samples that said something, the newest last. `reason` belongs to the state. `stuck` is a probe that could
    not be killed. `driver` tells the loaded driver from the one before it.
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

    @property
    def name(self) -> str:
        """The state as people are told it."""
        return f"suspect({self.failures})" if self.state is HealthState.SUSPECT else self.state.value


@dataclass(frozen=True)
class Surroundings:
    """The host's side of the judgement. `ready` is None where the profile knows no ready marker.

    `driver` is another text for each load of the driver, "" while it cannot be told. `is_withdrawn`: the ready marker
    is put aside, by us. `marker` is the reboot-required marker, `marker_problem` why
    it cannot be read; `can_request` says whether the profile has one at all.
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


class MarkChange(Enum):
    """One effect on the host's marks."""

    WITHDRAW_READY = "withdraw the ready marker"
    RESTORE_READY = "put the ready marker back"
    FORGET_READY = "drop the withdrawn ready marker"
    REQUEST_RECOVERY = "write the recovery marker"
    CLEAR_REQUEST = "remove the recovery marker"


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


def judge(history: History, sample: Sample, seen: Surroundings, threshold: int, spacing_s: float = 0.0) -> History:
    """The history after one more sample; `threshold` consecutive failures are a wedge.

    A failure sooner than `spacing_s` seconds after the last one that counted is the same failure: restarts and reloads
    take samples at once.
    """
    if seen.driver and history.driver and seen.driver != history.driver and history.state is not HealthState.MUTED:
        # It was changed between two samples: what was counted is the failures of another driver.
        changed = replace(sample, muted="the driver was changed")
        history = judge(replace(history, driver=""), changed, seen, threshold)
    before = _unmuted(history, seen) if history.state is HealthState.MUTED and not sample.muted else history
    is_same = before.failures > 0 and sample.at_s - before.failed_at_s < spacing_s
    finding = _finding(before, sample, seen, threshold, is_same=is_same)
    after = replace(_counted(before, sample, finding), state=TRANSITIONS[before.state][finding])
    if after.state is not before.state or finding in (Finding.BAD, Finding.MUTE):
        after = replace(after, reason=sample.muted or sample.reason)
    if not seen.is_loaded:
        after = replace(after, was_healthy=False)
    return replace(after, is_flapping=_flaps(after), driver=seen.driver or history.driver)


def due(history: History, seen: Surroundings) -> tuple[MarkChange, ...]:
    """What the host's marks lack of what the state calls for, in the order in which it has to be done.

    On a wedge nobody may hold the driver for ready before its recovery is asked for, and that takes a failure: a marker
    that was put aside, by itself, may be an earlier boot's. On recovery a reboot is called
    off before the driver is called ready.
    """
    acts: list[MarkChange] = []
    match history.state:
        case HealthState.WEDGED:
            if seen.ready:
                acts.append(MarkChange.WITHDRAW_READY)
            if seen.may_request and history.failures:
                acts.append(MarkChange.REQUEST_RECOVERY)
        case HealthState.HEALTHY | HealthState.SUSPECT:
            if seen.has_request_of_ours:
                acts.append(MarkChange.CLEAR_REQUEST)
            if seen.is_withdrawn:
                acts.append(MarkChange.RESTORE_READY)
        case HealthState.MUTED:
            # The driver that we called not ready is gone: the next one's marker is not ours to put back.
            if seen.is_withdrawn and not seen.is_loaded and not seen.is_reconciling:
                acts.append(MarkChange.FORGET_READY)
        case HealthState.STARTING:
            pass
    return tuple(acts)


def request(history: History, boot_id: str, node: str, wall_s: float) -> Marker:
    """The recovery marker for a wedge."""
    return Marker(RECOVERY, boot_id, node=node, writer=WRITER, written_s=int(wall_s), evidence=history.evidence)


def _unmuted(history: History, seen: Surroundings) -> History:
    """What is held right after a mute: a wedge that is still marked on the host goes on, anything else begins anew."""
    return replace(history, state=HealthState.WEDGED if seen.is_marked else HealthState.STARTING)


def _finding(history: History, sample: Sample, seen: Surroundings, threshold: int, *, is_same: bool) -> Finding:
    if sample.muted:
        return Finding.MUTE
    match sample.health:
        case Health.HEALTHY:
            return Finding.GOOD
        case Health.UNKNOWN:
            return Finding.UNKNOWN
        case Health.UNHEALTHY:
            # Without a ready marker only a healthy sample tells that the driver was ready at all.
            if seen.ready is None and not history.was_healthy and history.state is HealthState.STARTING:
                return Finding.UNKNOWN
            if is_same:
                return Finding.UNKNOWN
            return Finding.LAST_BAD if history.failures + 1 >= threshold else Finding.BAD


def _counted(history: History, sample: Sample, finding: Finding) -> History:
    if finding is Finding.MUTE:
        return replace(history, failures=0, recent=())
    line = f"{sample.health.value}: {sample.reason}"[:EVIDENCE_CHARS]
    evidence = (*history.evidence, f"{int(sample.wall_s)} {line}")[-EVIDENCE_LINES:]
    after = replace(history, evidence=evidence)
    if finding is Finding.GOOD:
        return replace(after, failures=0, was_healthy=True, recent=(*after.recent, True)[-RECENT:])
    if finding is Finding.UNKNOWN:
        return after
    return replace(after, failures=after.failures + 1, recent=(*after.recent, False)[-RECENT:], failed_at_s=sample.at_s)


def _flaps(history: History) -> bool:
    flips = sum(one != other for one, other in zip(history.recent, history.recent[1:], strict=False))
    return flips >= FLAPPING_FLIPS or (history.is_flapping and flips > CALM_FLIPS)


class HistoryUnreadable(ConfigError):
    """The file is no history that this version can go on with."""


FORM = Form("health-watch's record", HistoryUnreadable, "No action needed: it is written again.")
MAX_FAILURES = 2**31
MAX_PID = 2**22
"""The kernel gives no higher process id (proc(5), pid_max); more failures than that take four thousand years."""


def encode(history: History, boot_id: str) -> str:
    """The history as a later process of this boot needs it: one line of JSON."""
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
    }
    return FORM.write(body) + "\n"


def resume(text: str, seen: Surroundings, now_s: float, patience_s: float, threshold: int) -> History:
    """The history to go on with: what `encode` wrote, corrected by the marks on the host.

    It is written before the marks are changed. So marks are a wedge, unless the record says that the driver recovered
    and only their removal was cut short. Without marks a suspicion needs one more failure, whatever was counted, and
    one whose last failure is more than `patience_s` seconds past is dropped. Garbage and other boots' records count
    for nothing.
    """
    history = recorded(text, seen.boot_id)
    if seen.is_marked and history.state not in (HealthState.HEALTHY, HealthState.SUSPECT):
        reason = history.reason if history.state is HealthState.WEDGED else "marked on the host before this start"
        failures = max(history.failures, threshold) if seen.has_request_of_ours else history.failures
        return replace(history, state=HealthState.WEDGED, failures=failures, reason=reason)
    is_fresh = 0 <= now_s - history.failed_at_s <= patience_s
    failures = min(history.failures, threshold - 1) if is_fresh else 0
    calm = HealthState.HEALTHY if seen.is_marked else HealthState.STARTING
    return replace(history, state=HealthState.SUSPECT if failures else calm, failures=failures)


def _of_process(owner: Owner) -> dict[str, int]:
    """What tells a process from all others of one boot."""
    return {"pid": owner.pid, "startTicks": owner.start_ticks, "pidNamespace": owner.pid_namespace}


def _process(body: Fields) -> Owner:
    return Owner(
        pid=body.whole("pid", least=1, most=MAX_PID),
        start_ticks=body.whole("startTicks"),
        pid_namespace=body.whole("pidNamespace"),
    )


def recorded(text: str, boot_id: str) -> History:
    """What `encode` wrote in this boot; a fresh start for anything else."""
    try:
        body = FORM.read(text)
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
        )
    except HistoryUnreadable:
        return History()
