"""The loop of health-watch: sample, judge, mark, publish, report. `domain.health.watch` has the judgement."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.core.ports_base import Clock, EvidenceKeeper, HealthMarks, NodeNotifier, Prober, Recoverer, Reporter
from driver_manager.domain.baseline import Baseline
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.health import watch
from driver_manager.domain.health.metrics import HealthReport
from driver_manager.domain.host import Health, ProbeResult
from driver_manager.domain.node_state import Recovery, RecoveryState, recovery_text
from driver_manager.domain.outage import Outage
from driver_manager.domain.text import without_numbers

Warn = Callable[[str, str], None]
"""Logs a problem of a topic once while it stays the same; an empty text ends the problem."""

CLIENT_TOPIC, NODE_TOPIC, MUTE_TOPIC, WINDOW_TOPIC = "clients", "node", "mute of the node", "window on the node"
RECOVERY_TOPIC = "recovery"
WINDOW_TRIES = 3
LOOK_S = 300.0
"""Minimum seconds between two reads of the Node's mute while the driver is wedged."""


class _Retries:
    """The tries of one report: each is due `retry_after_s` after the last, until the tries end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Begin with a first try, which is due now."""
        self._failed = 0
        self._next_s: float | None = 0.0

    @property
    def is_due(self) -> bool:
        return self._next_s is not None and self._clock.monotonic() >= self._next_s

    def fail(self) -> bool:
        self._failed += 1
        wait_s = watch.retry_after_s(self._failed)
        self._next_s = None if wait_s is None else self._clock.monotonic() + wait_s
        return wait_s is not None


class NodeReporter:
    """Sends the Node, through `notifier`, what it has to show, reads its mute, and restarts clients of a new driver.

    Failures are retried after longer pauses, at most `TRIES` tries in all; each next thing starts with a first try.
    """

    def __init__(self, notifier: NodeNotifier, clock: Clock, reporter: Reporter, warn: Warn) -> None:
        self._notifier = notifier
        self._clock = clock
        self._reporter = reporter
        self._warn = warn
        self._notice_key = ""
        self._notice_tries = _Retries(clock)
        self._load = ""
        self._client_tries = _Retries(clock)
        self._asked_s = clock.monotonic()
        self._window: Outage | None = None
        self._window_tries = 0

    def enqueue(self, load: str, window: Outage | None) -> None:
        """Restart the clients of this load of the driver, which serves for the first time, and report its `window`."""
        self._load = load
        self._client_tries.start()
        if window is not None:
            self._window, self._window_tries = window, WINDOW_TRIES

    def should_ask(self, history: watch.History, would_wedge: Callable[[], bool]) -> bool:
        """True if the watch must read the Node's mute now: before it declares a wedge, and every `LOOK_S` during it."""
        if history.state is watch.HealthState.WEDGED:
            return self._clock.monotonic() - self._asked_s >= LOOK_S
        return would_wedge()

    def mute(self) -> watch.Mute | None:
        """The Node's mute, bounded; None for none. An unreadable one has no effect but a warning. Raises Terminated."""
        self._asked_s = self._clock.monotonic()
        answer = self._notifier.mute()
        doubt = f"unknown whether the Node mutes health-watch: {answer.problem}" if answer.problem else ""
        self._warn(MUTE_TOPIC, answer.invalid or doubt)
        return watch.bounded_mute(answer.mute, self._clock.wall()) if answer.mute is not None else None

    def report(self, history: watch.History, boot_id: str) -> watch.History:
        """Send the notice that is due, if any; return the history with the last notice sent. Raises Terminated."""
        notice = watch.notice_due(history, boot_id)
        if notice is None:
            return history
        if notice.key != self._notice_key:
            self._notice_key = notice.key
            self._notice_tries.start()
        if not self._notice_tries.is_due:
            return history
        problem = self._notifier.report(notice)
        if problem:
            end = "it is retried" if self._notice_tries.fail() else "not retried until the next change"
            self._warn(NODE_TOPIC, f"{notice.undone}: {problem}; {end}")
            return history
        self._warn(NODE_TOPIC, "")
        return watch.with_reported(history, notice)

    def report_window(self) -> None:
        """Report that the enqueued window, if any, is over, with `WINDOW_TRIES` tries in all. Raises Terminated."""
        if self._window is None:
            return
        problem = self._notifier.report_window(self._window)
        self._window_tries -= 1
        if not problem or not self._window_tries:
            self._window = None
        self._warn(WINDOW_TOPIC, f"the end of the window was not reported on the Node: {problem}" if problem else "")

    def restart_clients(self, serving: str) -> None:
        """Restart the clients of the enqueued load, if a try is due and `serving` is that load. Raises Terminated."""
        if not serving or serving != self._load or not self._client_tries.is_due:
            return
        answer = self._notifier.restart_clients(serving)
        for warning in answer.warnings:
            self._reporter.warn(warning)
        for client in answer.restarted:
            self._reporter.info(f"client {client} was restarted: it started before this driver was ready")
        if not answer.left:
            self._load = ""
            self._warn(CLIENT_TOPIC, "")
            return
        end = "it is retried"
        if not self._client_tries.fail():
            self._load = ""
            end = "not retried until the next driver, or the next start of health-watch"
        elif answer.is_early:
            return
        self._warn(CLIENT_TOPIC, f"not every client of the new driver was restarted: {answer.left}; {end}")


PATIENCE_INTERVALS = 3
"""Intervals, each with its probe, after which a process that starts drops the recorded failures."""


class WatchPolicy(Struct, frozen=True):
    """The user's settings. Times in seconds; `node` is written into a recovery marker.

    `settle_s` is how long a device may be slow after its driver was loaded. `has_steps_before_reboot`: so the profile.
    """

    interval_s: float = 60.0
    failures: int = 3
    timeout_s: float = 20.0
    node: str = ""
    settle_s: float = 0.0
    has_steps_before_reboot: bool = False

    @property
    def patience_s(self) -> float:
        """Seconds for which recorded failures count while no process watches."""
        return PATIENCE_INTERVALS * (self.interval_s + self.timeout_s)


class WatchPorts(Struct, frozen=True):
    """The ports of health-watch. `notifier` is None if the Node cannot be reached, `keeper` if evidence is off.

    `recoverer` is None if the marker for the rebooter is all that follows a wedge.
    """

    prober: Prober
    marks: HealthMarks
    clock: Clock
    reporter: Reporter
    notifier: NodeNotifier | None = None
    keeper: EvidenceKeeper | None = None
    recoverer: Recoverer | None = None


class HealthWatch:
    """One watch of one driver. `publish` gets the report of each turn."""

    def __init__(self, ports: WatchPorts, policy: WatchPolicy, publish: Callable[[HealthReport], None]) -> None:
        self._prober = ports.prober
        self._marks = ports.marks
        self._clock = ports.clock
        self._reporter = ports.reporter
        self._policy = policy
        self._publish = publish
        self._history = watch.History()
        self._is_resumed = False
        self._report = HealthReport(watch.History())
        self._problems: dict[str, str] = {}
        self._recorded = ""
        self._boot_id = ""
        self._is_ready = False
        self._returned = "", ""
        self._keeper = ports.keeper
        self._recoverer = ports.recoverer
        self._is_recovery_known = False
        self._evidence_of: int | None = None
        self._node: NodeReporter | None = None
        if ports.notifier is not None:
            self._node = NodeReporter(ports.notifier, ports.clock, ports.reporter, self._warn)
        self._serving = ""
        self._load = ""
        self._sampled: str | None = None
        self._settled_by_s = 0.0
        self._baseline: Baseline | None = None

    @property
    def report(self) -> HealthReport:
        return self._report

    def run(self, is_over: Callable[[], bool]) -> None:
        """Take turns until `is_over` is true after one. Raises Terminated."""
        while True:
            begun = self._clock.monotonic()
            self.turn()
            self._clock.sleep(begun + self._policy.interval_s - self._clock.monotonic())
            if is_over():
                return

    def turn(self) -> None:
        """One sample and its consequences. Raises Terminated, and no other ManagerError.

        Before it declares a wedge, it reads the Node's mute, without the lock, so that no reconcile waits. Then it
        changes the marks, publishes, saves the evidence, which the Node's Event names, and reports to the Node last, so
        that an unreachable API server delays nothing else. Then it recovers the driver.
        """
        result, took_s = None, 0.0
        try:
            muted = self._why_muted()
            begun = self._clock.monotonic()
            result = None if muted else self._sample(begun)
            took_s = self._clock.monotonic() - begun
            self._ask_node(result, begun)
            with self._marks.alone() as seen:
                self._judge(result, seen, begun)
                self._settle(seen)
                self._note_return(seen)
        except ManagerError as error:
            if self._clock.is_ending():
                raise
            self._warn("turn", f"{error.what}. {error.remedy}")
        else:
            self._warn("turn", "")
        self._publish_report(result, took_s)
        self._keep_evidence()
        self._report_to_node()
        self._recover(result)

    def _sample(self, begun: float) -> ProbeResult:
        """One sample, compared with the devices that served before. Slow is not bad while the driver settles."""
        history = self._history or watch.History()
        is_first = self._load != self._sampled
        if is_first:
            self._sampled, self._settled_by_s = self._load, begun + self._policy.settle_s
        result = self._prober.sample(is_first=is_first)
        if result.is_slow and begun < self._settled_by_s:
            result = replace(result, health=Health.UNKNOWN)
        return watch.compared(result, self._load, self._baseline, history)

    def _why_muted(self) -> str:
        """Why this turn takes no sample, "" if it takes one. The tool must not run while a run changes the driver.

        The first call also reads the record. Raises ManagerError as the marks do.
        """
        with self._marks.alone() as seen:
            if not self._is_resumed:
                policy = self._policy
                self._history = watch.resume_watch(
                    self._marks.recall(), seen, self._clock.monotonic(), policy.patience_s, policy.failures
                )
                self._is_resumed = True
                if self._history.stuck is not None:
                    self._prober.inherit(self._history.stuck)
                if self._history.served:
                    self._sampled = self._history.driver
                if self._history.state is not watch.HealthState.STARTING:
                    self._reporter.info(f"continuing as {self._history.name}: {self._history.reason}")
            self._load, self._baseline = seen.driver, seen.baseline
            return self._mute_reason(seen)[0]

    def _mute_reason(self, seen: watch.Surroundings) -> tuple[str, bool]:
        """Why the watch judges no sample now ("" if it does), and True if that is a mute by hand."""
        self._warn("mute", seen.mute_problem)
        why = watch.why_muted(seen)
        mute = watch.active_mute(self._history, seen, self._clock.wall())
        return (why, False) if why or mute is None else (mute.why, True)

    def _ask_node(self, result: ProbeResult | None, begun: float) -> None:
        """Read the Node's mute if the result needs it. Raises Terminated, and ConfigError as the marks do."""
        if self._node is None or result is None:
            return
        if self._node.should_ask(self._history, lambda: self._would_wedge(result, begun)):
            self._history = replace(self._history, mute=self._node.mute())

    def _would_wedge(self, result: ProbeResult, begun: float) -> bool:
        if result.health is not Health.UNHEALTHY or self._history.failures + 1 < self._policy.failures:
            return False
        with self._marks.alone() as seen:
            return self._judged(result, seen, begun).state is watch.HealthState.WEDGED

    def _judged(self, result: ProbeResult, seen: watch.Surroundings, begun: float) -> watch.History:
        """The history after `result`. A mute, also one that began during the probe, replaces the result."""
        muted, is_muted_by_hand = self._mute_reason(seen)
        served = () if muted else result.served
        sample = watch.Sample(result.health, result.reason, begun, self._clock.wall(), muted, is_muted_by_hand, served)
        return watch.judge_sample(self._history, sample, seen, self._policy.failures, self._policy.interval_s / 2)

    def _judge(self, result: ProbeResult | None, seen: watch.Surroundings, begun: float) -> None:
        """Judge `result` or the mute, write the record, and log the change."""
        before = self._history
        muted, _ = self._mute_reason(seen)
        if result is None and not muted:
            return  # the mute ended during this turn: the next turn takes a sample
        judged = result or ProbeResult(Health.UNKNOWN, muted)
        if not muted:
            problem = f"the health of the devices is unknown: {judged.reason}" if judged.is_tool_broken else ""
            self._warn("tool", problem)
        after = replace(self._judged(judged, seen, begun), stuck=self._prober.stuck(), devices=judged.devices)
        if after.wedge != before.wedge:
            after = watch.with_recorded_wedge(after, self._marks.recall(), seen.boot_id)
        self._history, self._boot_id = after, seen.boot_id
        self._is_ready = watch.is_marked_ready(after, seen)
        self._remember()
        if (after.name, after.reason if muted else "") != (before.name, before.reason if muted else ""):
            is_bad = after.state in (watch.HealthState.SUSPECT, watch.HealthState.WEDGED)
            log = self._reporter.warn if is_bad else self._reporter.info
            log(f"{before.name} → {after.name}: {muted or judged.reason}")
        if after.is_flapping is not before.is_flapping:
            self._reporter.warn("driver health is flapping" if after.is_flapping else "driver health is stable again")

    def _settle(self, seen: watch.Surroundings) -> None:
        """Change the host's marks as the state needs. Raises ManagerError; the next turn retries failed changes."""
        history = self._history
        failed: ManagerError | None = None
        # Where other steps come first, the rebooter is asked once they are used up.
        may_ask = not self._policy.has_steps_before_reboot or watch.wants_reboot(history)
        for act in watch.mark_changes(history, replace(seen, can_request=seen.can_request and may_ask)):
            try:
                self._do(act, history, seen)
                self._reporter.info(f"done: {act.value}")
            except ManagerError as error:
                failed = error
        if failed is not None:
            raise failed
        is_blocked = history.state is watch.HealthState.WEDGED and bool(seen.marker_problem)
        self._warn("marker", f"the recovery marker is not written: {seen.marker_problem}" if is_blocked else "")

    def _note_return(self, seen: watch.Surroundings) -> None:
        """When a load of the driver first serves, end the window and enqueue the restart of clients, once."""
        load = seen.boot_id, seen.driver
        self._serving = seen.driver if self._is_serving(seen) else ""
        if load == self._returned or not self._serving:
            return
        window = self._marks.note_return()
        self._returned = load
        if window is not None:
            self._reporter.info(f"the driver is back: {window.sentence()}")
        if self._node is not None:
            self._node.enqueue(seen.driver, window)

    def _is_serving(self, seen: watch.Surroundings) -> bool:
        """True if the state is healthy; before the first counted sample, if the ready marker is there."""
        state = self._history.state
        is_marked = seen.ready is True and seen.is_loaded and not seen.is_reconciling
        return state is watch.HealthState.HEALTHY or (state is watch.HealthState.STARTING and is_marked)

    def _do(self, act: watch.MarkChange, history: watch.History, seen: watch.Surroundings) -> None:
        match act:
            case watch.MarkChange.WITHDRAW_READY:
                self._marks.withdraw_ready()
            case watch.MarkChange.RESTORE_READY:
                self._marks.restore_ready()
            case watch.MarkChange.FORGET_READY:
                self._marks.forget_ready()
            case watch.MarkChange.REQUEST_RECOVERY:
                request = watch.mark_request(history, seen.boot_id, self._policy.node, self._clock.wall())
                self._marks.request_recovery(request)
            case watch.MarkChange.CLEAR_REQUEST:
                self._marks.clear_request()

    def _remember(self) -> None:
        """Write the record, for a restart. It has no samples of a healthy driver, so that these cause no write."""
        history = self._history
        kept = replace(history, evidence=(), recent=()) if history.state is watch.HealthState.HEALTHY else history
        text = watch.encode_watch_record(kept, self._boot_id)
        try:
            if text == self._recorded:
                self._marks.touch()
                return
            self._marks.remember(text)
            self._recorded = text
            self._warn("record", "")
        except ManagerError as error:
            self._recorded = ""
            self._warn("record", f"a restart would lose the history: {error.what}")

    def _publish_report(self, result: ProbeResult | None, took_s: float) -> None:
        last, samples = self._report, dict(self._report.samples)
        success = last.last_success_wall_s
        if result is not None:
            samples[result.health] = samples.get(result.health, 0) + 1
            success = self._clock.wall() if result.health is Health.HEALTHY else success
        self._report = HealthReport(
            history=self._history,
            result=result,
            probe_s=took_s,
            last_success_wall_s=success,
            samples=samples,
            abandoned=self._prober.abandoned(),
            is_stuck=self._history.stuck is not None,
            is_ready=self._is_ready,
            turn_wall_s=self._clock.wall(),
        )
        self._publish(self._report)

    def _keep_evidence(self) -> None:
        """Save the evidence of a wedge, at most once for each wedge in this process. Raises Terminated."""
        history = self._history
        if self._keeper is None or history.state is not watch.HealthState.WEDGED:
            return
        wedge = history.wedge
        if wedge.evidence or wedge.since_s == self._evidence_of:
            return
        self._evidence_of = wedge.since_s
        output = ("", "the last output of the probe:", *self._prober.output().splitlines())
        kept = self._keeper.keep(wedge.since_s, ("health-watch's last samples:", *history.evidence, *output))
        self._warn("evidence", f"no evidence is kept: {kept.problem}" if kept.problem else "")
        if kept.path:
            self._reporter.info(f"evidence is in {kept.path} on the host")
            self._history = replace(history, wedge=replace(wedge, evidence=kept.path))
            self._remember()

    def _report_to_node(self) -> None:
        """Send the Node the notice and the window that are due, and restart clients. Raises Terminated."""
        if self._node is None or not self._boot_id:
            return
        reported = self._node.report(self._history, self._boot_id)
        if reported != self._history:
            self._history = reported
            self._remember()
        self._node.report_window()
        self._node.restart_clients(self._serving)

    def _recover(self, result: ProbeResult | None) -> None:
        """Take a turn of the recovery, while there is something to do for it. Raises Terminated."""
        history, before = self._history, self._history.recovery
        if self._recoverer is None or not self._boot_id:
            return
        seen = watch.wedge_seen(history, result)
        # This boot's record may not have what was begun: it is lost at a reboot.
        is_begun, self._is_recovery_known = not self._is_recovery_known and self._recoverer.is_begun(), True
        if not (before.is_open or is_begun or (watch.is_recovering(history) and not seen.is_unsure)):
            if watch.is_recovery_over(history):
                self._history = replace(history, recovery=Recovery(counts=before.counts))
                self._remember()
            return
        if not before.is_open:
            # Before the first turn, as its answer may be lost.
            is_same = before.since_s == history.wedge.since_s
            fresh = Recovery(since_s=history.wedge.since_s, counts=before.counts)
            before = replace(before if is_same else fresh, is_open=True)
            self._history = replace(history, recovery=before)
            self._remember()
        answer = self._recoverer.recover(seen)
        self._warn(RECOVERY_TOPIC, f"no recovery: {answer.problem}" if answer.problem else "")
        after = answer.recovery
        if answer.problem:
            is_waiting = history.state is watch.HealthState.WEDGED and before.state is not RecoveryState.UNDER_WAY
            after = before if not is_waiting else replace(before, state=RecoveryState.WAITING, reason=answer.problem)
        text = recovery_text(after)
        if without_numbers(text) != without_numbers(recovery_text(before)):
            self._reporter.info(f"recovery: {text or 'over'}")
        if after != before:
            self._history = replace(self._history, recovery=after)
            self._remember()

    def _warn(self, topic: str, text: str) -> None:
        """Log a problem of `topic` once while it stays the same; an empty `text` ends it."""
        if text and text != self._problems.get(topic):
            self._reporter.warn(text)
        self._problems[topic] = text
