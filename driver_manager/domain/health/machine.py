"""Is the driver wedged? Judged from samples of its probe, one at a time.

Owns the states and the table of their transitions. Pure: time comes with the sample.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from driver_manager.domain.frozen import Frozen
from driver_manager.domain.health.surroundings import Mute, Surroundings
from driver_manager.domain.health.wedge import NO_WEDGE, Wedge
from driver_manager.domain.journal import Owner
from driver_manager.domain.probe_result import DeviceVerdict, Health

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


def held(mute: Mute, wall_s: float) -> Mute:
    """`mute` as it is held from `wall_s` on."""
    return replace(mute, until_s=min(mute.until_s, wall_s + MUTE_HOLD_S))


def active_mute(history: History, seen: Surroundings, wall_s: float) -> Mute | None:
    """The mute by hand that holds at `wall_s`: the host's file, which is read at every turn, or the Node's."""
    return next((one for one in (seen.mute, history.mute) if one is not None and wall_s < one.until_s), None)


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
    if after.state is HealthState.WEDGED and before.state is not HealthState.WEDGED:
        after = replace(after, wedge=Wedge(max(0, int(sample.wall_s))))
    if not seen.is_loaded:
        after = replace(after, was_healthy=False)
    is_hushed = finding is Finding.MUTE and sample.is_hushed
    return replace(after, is_flapping=_flaps(after), driver=seen.driver or history.driver, is_hushed=is_hushed)


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
