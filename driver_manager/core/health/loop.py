"""The loop that watches the driver's health: sample, judge, mark, publish, wait.

Owns the order of these and what a failure of each means. Depends on ports only; the judgement is `domain.health`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from driver_manager.domain.errors import ManagerError
from driver_manager.domain.health import machine
from driver_manager.domain.health.machine import HealthState, History, MarkChange, Sample, Surroundings
from driver_manager.domain.health.metrics import HealthReport
from driver_manager.domain.model import Health, ProbeResult
from driver_manager.ports import Clock, HealthMarks, Prober, Reporter

PATIENCE_INTERVALS = 3
"""A suspicion that is older than so many intervals (and probes) when a process starts is no longer consecutive."""


@dataclass(frozen=True)
class WatchPolicy:
    """What the user wants. Times in seconds; `node` is written into a recovery marker."""

    interval_s: float = 60.0
    failures: int = 3
    timeout_s: float = 20.0
    node: str = ""

    @property
    def patience_s(self) -> float:
        """How long a suspicion survives without a watch."""
        return PATIENCE_INTERVALS * (self.interval_s + self.timeout_s)


@dataclass(frozen=True)
class WatchPorts:
    """The outside of health-watch, wired once by the command line."""

    prober: Prober
    marks: HealthMarks
    clock: Clock
    reporter: Reporter


class HealthWatch:
    """One watch of one driver. `publish` is called after each turn."""

    def __init__(self, ports: WatchPorts, policy: WatchPolicy, publish: Callable[[HealthReport], None]) -> None:
        self._prober = ports.prober
        self._marks = ports.marks
        self._clock = ports.clock
        self._reporter = ports.reporter
        self._policy = policy
        self._publish = publish
        self._history: History | None = None
        self._report = HealthReport(History())
        self._said: dict[str, str] = {}
        self._recorded = ""

    @property
    def report(self) -> HealthReport:
        """What is known after the last turn."""
        return self._report

    def run(self, is_over: Callable[[], bool]) -> None:
        """Take turns until `is_over` says so after one. Raises Terminated."""
        while True:
            begun = self._clock.monotonic()
            self.turn()
            self._clock.sleep(begun + self._policy.interval_s - self._clock.monotonic())
            if is_over():
                return

    def turn(self) -> None:
        """One sample and what follows from it. Raises Terminated, and no other ManagerError."""
        result, took_s = None, 0.0
        try:
            muted = self._why_muted()
            begun = self._clock.monotonic()
            result = None if muted else self._prober.sample()
            took_s = self._clock.monotonic() - begun
            with self._marks.alone() as seen:
                self._judge(result, seen, begun)
                self._settle(seen)
        except ManagerError as error:
            if self._clock.is_ending():
                raise
            self._warn("turn", f"{error.what}. {error.remedy}")
        else:
            self._warn("turn", "")
        self._tell(result, took_s)

    def _why_muted(self) -> str:
        """Why no sample is to be taken; the tool of a driver that is just changed is better left alone."""
        with self._marks.alone() as seen:
            if self._history is None:
                policy = self._policy
                self._history = machine.resume(
                    self._marks.recall(), seen, self._clock.monotonic(), policy.patience_s, policy.failures
                )
                if self._history.stuck is not None:
                    self._prober.inherit(self._history.stuck)
                if self._history.state is not HealthState.STARTING:
                    self._reporter.info(f"going on as {self._history.name}: {self._history.reason}")
            return machine.why_muted(seen)

    def _judge(self, result: ProbeResult | None, seen: Surroundings, begun: float) -> None:
        """Judge `result`, or the mute: one that began during the probe makes its result worthless."""
        before = self._history or History()
        muted = machine.why_muted(seen)
        if result is None and not muted:
            return  # a mute that ended since it was looked at: the next turn takes a sample
        said = result or ProbeResult(Health.UNKNOWN, muted)
        if not muted:
            self._warn("tool", f"the health of the devices is unknown: {said.reason}" if said.is_tool_broken else "")
        sample = Sample(said.health, said.reason, begun, self._clock.wall(), muted)
        judged = machine.judge(before, sample, seen, self._policy.failures, self._policy.interval_s / 2)
        self._history = after = replace(judged, stuck=self._prober.stuck())
        self._remember(seen.boot_id)
        if (after.name, after.reason if muted else "") != (before.name, before.reason if muted else ""):
            tell = (
                self._reporter.warn if after.state in (HealthState.SUSPECT, HealthState.WEDGED) else self._reporter.info
            )
            tell(f"{before.name} → {after.name}: {muted or said.reason}")
        if after.is_flapping is not before.is_flapping:
            self._reporter.warn("flapping" if after.is_flapping else "no longer flapping")

    def _settle(self, seen: Surroundings) -> None:
        """Bring the host's marks to what the state calls for. What fails is tried again at the next turn."""
        history = self._history or History()
        failed: ManagerError | None = None
        for act in machine.due(history, seen):
            try:
                self._do(act, history, seen)
                self._reporter.info(f"done: {act.value}")
            except ManagerError as error:
                failed = error
        if failed is not None:
            raise failed
        is_blocked = history.state is HealthState.WEDGED and bool(seen.marker_problem)
        self._warn("marker", f"no recovery marker is written: {seen.marker_problem}" if is_blocked else "")

    def _do(self, act: MarkChange, history: History, seen: Surroundings) -> None:
        marks = self._marks
        match act:
            case MarkChange.WITHDRAW_READY:
                marks.withdraw_ready()
            case MarkChange.RESTORE_READY:
                marks.restore_ready()
            case MarkChange.FORGET_READY:
                marks.forget_ready()
            case MarkChange.REQUEST_RECOVERY:
                marks.request_recovery(machine.request(history, seen.boot_id, self._policy.node, self._clock.wall()))
            case MarkChange.CLEAR_REQUEST:
                marks.clear_request()

    def _remember(self, boot_id: str) -> None:
        """Keep the history where a restart would need it: what a healthy driver samples is not worth a write."""
        history = self._history or History()
        kept = replace(history, evidence=(), recent=()) if history.state is HealthState.HEALTHY else history
        text = machine.encode(kept, boot_id)
        if text == self._recorded:
            return
        try:
            self._marks.remember(text)
            self._recorded = text
            self._warn("record", "")
        except ManagerError as error:
            self._warn("record", f"a restart would forget what was seen: {error.what}")

    def _tell(self, result: ProbeResult | None, took_s: float) -> None:
        last, samples = self._report, dict(self._report.samples)
        success = last.last_success_wall_s
        if result is not None:
            samples[result.health] = samples.get(result.health, 0) + 1
            success = self._clock.wall() if result.health is Health.HEALTHY else success
        history = self._history or History()
        is_stuck = history.stuck is not None
        self._report = HealthReport(history, result, took_s, success, samples, self._prober.abandoned(), is_stuck)
        self._publish(self._report)

    def _warn(self, topic: str, text: str) -> None:
        """Say a trouble once, as long as it is the same; an empty `text` says that it is over."""
        if text and text != self._said.get(topic):
            self._reporter.warn(text)
        self._said[topic] = text
