"""The loop of health-watch: probe, judge, mark, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from driver_manager.core.ports_base import Clock, EvidenceKeeper, HealthMarks, NodeNotifier, Prober, Reporter
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.health.metrics import HealthReport
from driver_manager.domain.health.watch import (
    HealthState,
    History,
    MarkChange,
    Mute,
    Notice,
    Sample,
    Surroundings,
    active_mute,
    adopted_record,
    encode_watch_record,
    held_watch,
    is_marked_ready,
    judge_sample,
    mark_due,
    mark_request,
    notice_due,
    resume_watch,
    retry_after_s,
    why_muted,
)
from driver_manager.domain.host import Health, ProbeResult
from driver_manager.domain.outage import Outage
from driver_manager.domain.records import Frozen

# Which load of the driver has clients to be restarted, and how often what is left of that is tried again.
#
# Depends on ports only.

CLIENT_TOPIC = "clients"


class ClientRestarts:
    """Has `notifier` restart the clients of each new driver; without one nobody is restarted."""

    def __init__(
        self, notifier: NodeNotifier | None, clock: Clock, reporter: Reporter, warn: Callable[[str, str], None]
    ) -> None:
        """`warn` says a trouble of a topic once; an empty text says that it is over."""
        self._notifier = notifier
        self._clock = clock
        self._reporter = reporter
        self._warn = warn
        self._owed = ""
        self._failed = 0
        self._next_s = 0.0

    def owe(self, load: str) -> None:
        """This load of the driver is seen to serve for the first time."""
        if self._notifier is not None:
            self._owed, self._failed, self._next_s = load, 0, 0.0

    def restart(self, serves: str) -> None:
        """Go on with what is owed to the load that `serves` now, "" where none does. Raises Terminated.

        What cannot be done is tried again, later each time, and given up after a number of tries.
        """
        is_due = bool(serves) and serves == self._owed and self._clock.monotonic() >= self._next_s
        if self._notifier is None or not is_due:
            return
        answer = self._notifier.restart_clients(serves)
        for warning in answer.warnings:
            self._reporter.warn(warning)
        for client in answer.restarted:
            self._reporter.info(f"client {client} was restarted: it started before this driver was ready")
        if not answer.left:
            self._owed = ""
            self._warn(CLIENT_TOPIC, "")
            return
        self._failed += 1
        wait_s = retry_after_s(self._failed)
        if wait_s is None:
            self._owed = ""
        else:
            self._next_s = self._clock.monotonic() + wait_s
            if answer.is_early:
                return
        end = (
            "not retried until the next driver, or the next start of health-watch"
            if wait_s is None
            else "it is retried"
        )
        self._warn(CLIENT_TOPIC, f"not every client of the new driver was restarted: {answer.left}; {end}")


# What health-watch has to tell its Node: when, and how often what failed is tried again. Depends on ports only.

Warn = Callable[[str, str], None]
"""Says a trouble of a topic once, as long as it is the same; an empty text says that it is over."""

NODE_TOPIC, MUTE_TOPIC, WINDOW_TOPIC = "node", "mute of the node", "window on the node"
WINDOW_TRIES = 3
LOOK_S = 300.0
"""How often a Node with a wedged driver is asked whether somebody muted the watch meanwhile, in seconds."""


class NodeReporter:
    """Brings notices to the Node through `notifier`; without one nothing is told."""

    def __init__(self, notifier: NodeNotifier | None, clock: Clock, warn: Warn) -> None:
        self._notifier = notifier
        self._clock = clock
        self._warn = warn
        self._notice: Notice | None = None
        self._failed = 0
        self._next_s: float | None = 0.0
        self._asked_s = clock.monotonic()
        self._window: Outage | None = None
        self._window_tries = 0

    def asks(self, history: History, would_wedge: Callable[[], bool]) -> bool:
        """Whether the Node is to be asked now if it mutes the watch: before a wedge is declared, and then and again.

        A healthy driver is no reason, so nothing is asked of the API server for it.
        """
        if self._notifier is None:
            return False
        if history.state is HealthState.WEDGED:
            return self._clock.monotonic() - self._asked_s >= LOOK_S
        return would_wedge()

    def mute(self) -> Mute | None:
        """What the Node asks for, past or not, as it is to be held; None where it asks for nothing. Raises Terminated.

        What cannot be asked, or is no time, mutes nothing.
        """
        if self._notifier is None:
            return None
        self._asked_s = self._clock.monotonic()
        answer = self._notifier.mute()
        doubt = f"unknown whether the Node mutes health-watch: {answer.problem}" if answer.problem else ""
        self._warn(MUTE_TOPIC, answer.garbage or doubt)
        return held_watch(answer.mute, self._clock.wall()) if answer.mute is not None else None

    def tell(self, history: History, boot_id: str) -> History:
        """The history after the Node was told what it has to know; the same where nothing was, or not yet.

        A notice that cannot be brought is repeated, later each time, and given up after a number of tries: the next
        one begins anew. Raises Terminated.
        """
        notice = notice_due(history, boot_id)
        if self._notifier is None or notice is None:
            return history
        if notice.key != (self._notice.key if self._notice else ""):
            self._notice, self._failed, self._next_s = notice, 0, 0.0
        if self._next_s is None or self._clock.monotonic() < self._next_s:
            return history
        problem = self._notifier.tell(notice)
        if problem:
            self._put_off(notice, problem)
            return history
        self._warn(NODE_TOPIC, "")
        return replace(history, wedge=replace(history.wedge, told=notice.kind))

    def owe(self, window: Outage) -> None:
        """The Node is to be told that this window is over."""
        if self._notifier is not None:
            self._window, self._window_tries = window, WINDOW_TRIES

    def tell_window(self) -> None:
        """Tell it what it is owed; a figure that cannot be brought in some turns is given up. Raises Terminated."""
        if self._notifier is None or self._window is None:
            return
        problem = self._notifier.tell_window(self._window)
        self._window_tries -= 1
        if not problem or not self._window_tries:
            self._window = None
        self._warn(WINDOW_TOPIC, f"the end of the window was not reported on the Node: {problem}" if problem else "")

    def _put_off(self, notice: Notice, problem: str) -> None:
        self._failed += 1
        wait_s = retry_after_s(self._failed)
        self._next_s = None if wait_s is None else self._clock.monotonic() + wait_s
        end = "not retried until the next change" if wait_s is None else "it is retried"
        self._warn(NODE_TOPIC, f"{notice.undone}: {problem}; {end}")


# The loop that watches the driver's health: sample, judge, mark, publish, wait.
#
# Owns the order of these and what a failure of each means. Depends on ports only; the judgement is `domain.health`.

PATIENCE_INTERVALS = 3
"""A suspicion that is older than so many intervals (and probes) when a process starts is no longer consecutive."""


class WatchPolicy(Frozen):
    """What the user wants. Times in seconds; `node` is written into a recovery marker."""

    interval_s: float = 60.0
    failures: int = 3
    timeout_s: float = 20.0
    node: str = ""

    @property
    def patience_s(self) -> float:
        """How long a suspicion survives without a watch."""
        return PATIENCE_INTERVALS * (self.interval_s + self.timeout_s)


class WatchPorts(Frozen):
    """The outside of health-watch, wired once by the command line. `notifier` is None where no Node can be reached.

    `keeper` is None where no evidence is wanted.
    """

    prober: Prober
    marks: HealthMarks
    clock: Clock
    reporter: Reporter
    notifier: NodeNotifier | None = None
    keeper: EvidenceKeeper | None = None


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
        self._boot_id = ""
        self._is_ready = False
        self._returned = "", ""
        self._keeper = ports.keeper
        self._evidence_of: int | None = None
        self._talk = NodeReporter(ports.notifier, ports.clock, self._warn)
        self._clients = ClientRestarts(ports.notifier, ports.clock, ports.reporter, self._warn)
        self._serves = ""

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
        """One sample and what follows from it. Raises Terminated, and no other ManagerError.

        Before a wedge is declared the Node is asked whether it mutes the watch. What follows from a wedge sends
        operands away at once, so it waits for the answer: some seconds at most, and no answer mutes nothing. The lock
        is not held meanwhile, so no reconcile waits too.

        After it the host's marks come first, as operands and the rebooter go by them; then whoever reads the report;
        then the evidence, which the Node's Event names. The Node is last: a server that is away delays none of these.
        """
        result, took_s = None, 0.0
        try:
            muted = self._why_muted()
            begun = self._clock.monotonic()
            result = None if muted else self._prober.sample()
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
        self._tell(result, took_s)
        self._keep_evidence()
        self._tell_node()

    def _why_muted(self) -> str:
        """Why no sample is to be taken; the tool of a driver that is just changed is better left alone."""
        with self._marks.alone() as seen:
            if self._history is None:
                policy = self._policy
                self._history = resume_watch(
                    self._marks.recall(), seen, self._clock.monotonic(), policy.patience_s, policy.failures
                )
                if self._history.stuck is not None:
                    self._prober.inherit(self._history.stuck)
                if self._history.state is not HealthState.STARTING:
                    self._reporter.info(f"continuing as {self._history.name}: {self._history.reason}")
            return self._why_hold(seen)[0]

    def _why_hold(self, seen: Surroundings) -> tuple[str, bool]:
        """Why nothing is to be judged now, "" where it is, and whether that is by somebody's hand."""
        self._warn("mute", seen.mute_problem)
        why = why_muted(seen)
        mute = active_mute(self._history or History(), seen, self._clock.wall())
        return (why, False) if why or mute is None else (mute.why, True)

    def _ask_node(self, result: ProbeResult | None, begun: float) -> None:
        """Whether the Node mutes the watch, where that matters now. Raises Terminated, and as the marks."""
        before = self._history or History()

        def would_wedge() -> bool:
            if result is None or result.health is not Health.UNHEALTHY or before.failures + 1 < self._policy.failures:
                return False
            with self._marks.alone() as seen:
                return self._judged(result, seen, begun).state is HealthState.WEDGED

        if result is not None and self._talk.asks(before, would_wedge):
            self._history = replace(before, mute=self._talk.mute())

    def _judged(self, result: ProbeResult, seen: Surroundings, begun: float) -> History:
        """What `result` makes of the history, or the mute: one that began during the probe makes it worthless."""
        muted, is_hushed = self._why_hold(seen)
        sample = Sample(result.health, result.reason, begun, self._clock.wall(), muted, is_hushed)
        before, policy = self._history or History(), self._policy
        return judge_sample(before, sample, seen, policy.failures, policy.interval_s / 2)

    def _judge(self, result: ProbeResult | None, seen: Surroundings, begun: float) -> None:
        """Judge `result`, or the mute, and remember that."""
        before = self._history or History()
        muted, _ = self._why_hold(seen)
        if result is None and not muted:
            return  # a mute that ended since it was looked at: the next turn takes a sample
        said = result or ProbeResult(Health.UNKNOWN, muted)
        if not muted:
            self._warn("tool", f"the health of the devices is unknown: {said.reason}" if said.is_tool_broken else "")
        after = replace(self._judged(said, seen, begun), stuck=self._prober.stuck(), devices=said.devices)
        if after.wedge != before.wedge:
            after = adopted_record(after, self._marks.recall(), seen.boot_id)
        self._history, self._boot_id = after, seen.boot_id
        self._is_ready = is_marked_ready(after, seen)
        self._remember()
        if (after.name, after.reason if muted else "") != (before.name, before.reason if muted else ""):
            tell = (
                self._reporter.warn if after.state in (HealthState.SUSPECT, HealthState.WEDGED) else self._reporter.info
            )
            tell(f"{before.name} → {after.name}: {muted or said.reason}")
        if after.is_flapping is not before.is_flapping:
            self._reporter.warn("driver health is flapping" if after.is_flapping else "driver health is stable again")

    def _settle(self, seen: Surroundings) -> None:
        """Bring the host's marks to what the state calls for. What fails is tried again at the next turn."""
        history = self._history or History()
        failed: ManagerError | None = None
        for act in mark_due(history, seen):
            try:
                self._do(act, history, seen)
                self._reporter.info(f"done: {act.value}")
            except ManagerError as error:
                failed = error
        if failed is not None:
            raise failed
        is_blocked = history.state is HealthState.WEDGED and bool(seen.marker_problem)
        self._warn("marker", f"the recovery marker is not written: {seen.marker_problem}" if is_blocked else "")

    def _note_return(self, seen: Surroundings) -> None:
        """Once for each load of the driver, when it is first seen to serve."""
        load = seen.boot_id, seen.driver
        self._serves = seen.driver if self._is_serving(seen) else ""
        if load == self._returned or not self._serves:
            return
        window = self._marks.note_return()
        self._returned = load
        self._clients.owe(seen.driver)
        if window is not None:
            self._reporter.info(f"the driver is back: {window.sentence()}")
            self._talk.owe(window)

    def _is_serving(self, seen: Surroundings) -> bool:
        """By the probe; where no probe has told anything yet, as without a tool, by the ready marker."""
        state = self._history.state if self._history is not None else None
        is_marked = seen.ready is True and seen.is_loaded and not seen.is_reconciling
        return state is HealthState.HEALTHY or (state is HealthState.STARTING and is_marked)

    def _do(self, act: MarkChange, history: History, seen: Surroundings) -> None:
        match act:
            case MarkChange.WITHDRAW_READY:
                self._marks.withdraw_ready()
            case MarkChange.RESTORE_READY:
                self._marks.restore_ready()
            case MarkChange.FORGET_READY:
                self._marks.forget_ready()
            case MarkChange.REQUEST_RECOVERY:
                request = mark_request(history, seen.boot_id, self._policy.node, self._clock.wall())
                self._marks.request_recovery(request)
            case MarkChange.CLEAR_REQUEST:
                self._marks.clear_request()

    def _remember(self) -> None:
        """Keep the history where a restart would need it: what a healthy driver samples is not worth a write."""
        history = self._history or History()
        kept = replace(history, evidence=(), recent=()) if history.state is HealthState.HEALTHY else history
        text = encode_watch_record(kept, self._boot_id)
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

    def _tell(self, result: ProbeResult | None, took_s: float) -> None:
        last, samples = self._report, dict(self._report.samples)
        success = last.last_success_wall_s
        if result is not None:
            samples[result.health] = samples.get(result.health, 0) + 1
            success = self._clock.wall() if result.health is Health.HEALTHY else success
        history = self._history or History()
        is_stuck = history.stuck is not None
        self._report = HealthReport(
            history=history,
            result=result,
            probe_s=took_s,
            last_success_wall_s=success,
            samples=samples,
            abandoned=self._prober.abandoned(),
            is_stuck=is_stuck,
            is_ready=self._is_ready,
            turn_wall_s=self._clock.wall(),
        )
        self._publish(self._report)

    def _keep_evidence(self) -> None:
        """Save what can be seen of a wedge, once for each and process. Raises Terminated."""
        history = self._history
        if self._keeper is None or history is None or history.state is not HealthState.WEDGED:
            return
        wedge = history.wedge
        if wedge.evidence or wedge.since_s == self._evidence_of:
            return
        self._evidence_of = wedge.since_s
        said = ("", "the last output of the probe:", *self._prober.output().splitlines())
        kept = self._keeper.keep(wedge.since_s, ("health-watch's last samples:", *history.evidence, *said))
        self._warn("evidence", f"no evidence is kept: {kept.problem}" if kept.problem else "")
        if kept.path:
            self._reporter.info(f"evidence is in {kept.path} on the host")
            self._history = replace(history, wedge=replace(wedge, evidence=kept.path))
            self._remember()

    def _tell_node(self) -> None:
        """Bring the Node what it has yet to know. Raises Terminated."""
        history = self._history
        if history is None or not self._boot_id:
            return
        told = self._talk.tell(history, self._boot_id)
        if told != history:
            self._history = told
            self._remember()
        self._talk.tell_window()
        self._clients.restart(self._serves)

    def _warn(self, topic: str, text: str) -> None:
        """Say a trouble once, as long as it is the same; an empty `text` says that it is over."""
        if text and text != self._said.get(topic):
            self._reporter.warn(text)
        self._said[topic] = text
