"""One reconcile from observation to outcome: observe, plan, execute, settle.

Owns the order of these four and what a failure of each means. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from driver_manager.core.pods.eviction import Evictor
from driver_manager.core.swap.context import RunContext
from driver_manager.core.swap.executor import Executor
from driver_manager.core.swap.fence import Fence
from driver_manager.core.swap.observe import look_closer, report_refused, warn_of_left
from driver_manager.core.swap.settling import Settler
from driver_manager.core.swap.state_writer import StateWriter
from driver_manager.core.swap.summary import measured, state_after, summary
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import (
    ApiUnavailable,
    Conflict,
    EvictionRefused,
    ExitCode,
    ManagerError,
    ModuleStuck,
    OwnedElsewhere,
    PreflightFailed,
    StandingDown,
    Terminated,
)
from driver_manager.domain.failure import encode, pod_blocker
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import several
from driver_manager.domain.node import Node
from driver_manager.domain.observation import Observation
from driver_manager.domain.pods.workloads import PodAction, with_action
from driver_manager.domain.policy import Loader, Policy
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.driver_state import is_owned_elsewhere
from driver_manager.domain.swap.obstacles import HOLDERS, STUCK
from driver_manager.domain.swap.plan import Decision, Plan, PlanAgain
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.preflight import access, host_files, remedies, rights, written_files
from driver_manager.domain.swap.retry_wait import AFTER_FAILURE, disturbs, noted, time_of_day, wait_s
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.base import PATCH_NODES
from driver_manager.domain.swap.steps.devices import KeepBindings
from driver_manager.domain.swap.steps.modules import LoadModules, RecordDigest, UnloadModules
from driver_manager.domain.swap.steps.mounts import RemoveArtifacts
from driver_manager.domain.swap.steps.node import StandDown, TakeNode
from driver_manager.domain.swap.steps.pods import DrainNode, EvictWorkloads
from driver_manager.domain.swap.steps.reboot import EndWithoutReboot, HoldForReboot
from driver_manager.domain.swap.steps.waits import WaitAfterFailure
from driver_manager.domain.swap.window_parts import earlier, opens
from driver_manager.ports.node import Ports

LEAST_SAID_BYTES = 2**20 // 10
"""Of files that were read ahead: less is 0.0 MiB."""

WARM_S = 20.0
"""What reading ahead may take: a slow disk is better waited for with everything in place."""

TAKE_ATTEMPTS = 10
"""How often a run observes and plans anew when the Node changes between its observation and its first patch."""


class Outcome(Frozen):
    """How a run ended. `remedy` is empty on success; `changed`: the Node's Events are to say so."""

    exit_code: ExitCode
    what: str
    remedy: str = ""
    changed: bool = False


class Again(Exception):
    """Observe and plan anew. `after` names what was waited for; `settler` holds what was taken, seen as `obs`."""

    def __init__(self, after: str, settler: Settler, obs: Observation) -> None:
        super().__init__(after)
        self.after = after
        self.settler = settler
        self.obs = obs


def reconcile(
    ports: Ports,
    observe: Callable[[], Observation],
    profile: Profile,
    policy: Policy,
    here: Node | None = None,
) -> Outcome:
    """Bring the node's driver to what is wanted. Raises only unexpected errors, after settling.

    `here` is the Node, where this host is known to be it: it shows how a run ended that could not even observe.
    """
    run = _Run(ports, profile, policy, here)
    attempts = 0
    while attempts < TAKE_ATTEMPTS:
        try:
            obs = observe()
        except ManagerError as error:
            return run.failed(error)
        try:
            return run.attempt(obs)
        except Again as again:
            run.go_on(again)
            if again.after == AFTER_FAILURE:  # however often it is looked
                continue
        except Conflict as error:
            ports.reporter.info(f"{error.what}; reading the facts again")
        except ManagerError as error:
            return _plain(error)
        attempts += 1
    return run.failed(ApiUnavailable("the Node kept changing while this run tried to take it", "Run again."))


def decide(
    ports: Ports, obs: Observation, profile: Profile, policy: Policy, waited: frozenset[str] = frozenset()
) -> tuple[Situation, Plan]:
    """The plan, and all that it was made from; `waited` is what this run has waited for. Changes nothing.

    Raises ConfigError away from the node, ApiRefused, and as `plan`.
    """
    now = look_closer(Situation.of(obs, profile, policy, waited), ports)
    return now, plan(now)


def rehearsed(ports: Ports, decided: Plan) -> Plan:
    """`decided` with a warning for each eviction that the API server would refuse now.

    Raises EvictionRefused for a client of the driver: it is asked last, when everybody else has left. ApiRefused.
    """
    uids = {uid for step in decided.steps if isinstance(step, UnloadModules) for uid in step.clients}
    clients = [one.pod for one in with_action(decided.workloads, PodAction.RESTART) if one.pod.uid in uids]
    evicting = any(isinstance(step, EvictWorkloads | DrainNode) for step in decided.steps)
    users = [one.pod for one in with_action(decided.workloads, PodAction.EVICT)] if evicting else []
    rehearsal = Evictor(ports.cluster, ports.clock, ports.reporter).rehearse([*clients, *users])
    refused = [(pod, why) for pod, why in rehearsal.refused if pod.uid in uids]
    if refused:
        named = several((f"{pod}: {why}" for pod, why in refused), "; ")
        error = EvictionRefused(
            f"the eviction of client(s) that hold the device would be refused now: {named}",
            "Make room in the PodDisruptionBudget (more replicas, or one disruption allowed), then run again.",
        )
        error.blockers = tuple(pod_blocker(pod.uid) for pod, _ in refused)
        raise error
    return replace(decided, warnings=(*decided.warnings, *rehearsal.warnings))


class _Run:
    """One reconcile, which may plan more than once: what it has waited for, and what it holds from one to the next."""

    def __init__(self, ports: Ports, profile: Profile, policy: Policy, here: Node | None) -> None:
        self._ports = ports
        self._here = here
        self._profile = profile
        self._policy = policy
        self._waited: frozenset[str] = frozenset()
        self._deadline = Deadline.after(policy.deadline_s, ports.clock.monotonic)
        self._fence = Fence(ports.host, ports.reporter)
        self._kept: tuple[Settler, Observation] | None = None
        self._is_rehearsed = False
        self._said_refused = set[str]()

    def attempt(self, obs: Observation) -> Outcome:
        """Plan and execute once. Raises Again, Conflict where nothing new was taken, OwnedElsewhere."""
        ports = self._ports
        report_refused(obs.refused, ports, self._said_refused)
        warn_of_left(obs.left, ports.reporter, self._said_refused)
        may_load = self._policy.loader is not Loader.NONE
        settler = Settler(ports, self._profile, obs, self._policy.kmm, may_load=may_load)
        if obs.host is not None:
            settler.state.saw_host(obs.host)
        try:
            now, decided = decide(ports, obs, self._profile, self._policy, self._waited)
        except OwnedElsewhere:
            raise
        except ManagerError as error:
            return self._refused(error, obs, settler)
        self._go_on_measuring(obs)
        if not _ends_by_itself(decided):
            settler.state.will_end_well(summary(decided), state_after(decided, now))
        try:
            if _waits_after_failure(decided) and self._is_let_go(now, decided):
                self._waited |= {AFTER_FAILURE}
                now, decided = decide(ports, obs, self._profile, self._policy, self._waited)
            settler.state.reached("preflight")
            self._prepare(now, decided, settler.state)
            self._warm(decided)
            waited_for = Executor(RunContext(ports, now, settler, self._fence, self._deadline), decided).run()
        except (Conflict, OwnedElsewhere):
            raise
        except ManagerError as error:
            return self._noted(_failed(error, ports, settler, obs), error, now, settler, decided)
        except BaseException as error:
            settler.state.breaks(error)
            settler.after_failure(obs.journal)
            settler.state.write()
            raise
        if waited_for:
            raise Again(waited_for, settler, now.obs)
        settler.state.correct()
        what = summary(decided) + measured(ports) + settler.evidence
        return Outcome(ExitCode.DONE, what, changed=bool(decided.steps))

    def _refused(self, error: ManagerError, obs: Observation, settler: Settler) -> Outcome:
        """The end of a run that cannot begin. Raises Conflict where another run was seen half done."""
        ports = self._ports
        if is_owned_elsewhere(obs, take_over=self._policy.take_over):  # nothing of that run's is given back
            return _plain(error)
        self._go_on_measuring(obs)
        is_seen_half_done = isinstance(error, PreflightFailed | ModuleStuck)
        if is_seen_half_done and _was_taken_since(obs, ports, self._profile):
            raise Conflict(f"{error.what}, but the Node was taken or released meanwhile", error.remedy) from error
        # A node that an earlier run left paused does not stay so because this run cannot even start.
        settler.state.reached("preflight" if isinstance(error, PreflightFailed) else "plan")
        if obs.host is None:
            return _plain(error)
        # A node that is left out of upgrades was asked for by hand: that is no news of its driver.
        return _failed(error, ports, settler, obs, is_news=not isinstance(error, StandingDown))

    def _go_on_measuring(self, obs: Observation) -> None:
        """The window that the run before opened, whose journal was found and is ours to go on from, is still open."""
        clock, before = self._ports.clock, earlier(obs.journal)
        if before is not None:
            self._ports.tally.window.goes_on(before, clock.wall(), clock.monotonic())

    def go_on(self, again: Again) -> None:
        """The next attempt follows what `again` waited for."""
        if again.after == AFTER_FAILURE:  # everything is as it was, and the run only begins
            self._deadline = Deadline.after(self._policy.deadline_s, self._ports.clock.monotonic)
            return
        if again.after in (HOLDERS, STUCK) and again.settler.held is None:  # each once, and nobody is disturbed yet
            self._deadline = Deadline.after(self._policy.deadline_s, self._ports.clock.monotonic)
        self._waited |= {again.after}
        self._kept = (again.settler, again.obs)

    def failed(self, error: ManagerError) -> Outcome:
        """The end between two attempts: what an earlier one took is given back."""
        if self._kept is not None:
            return _failed(error, self._ports, *self._kept)
        if self._here is None or isinstance(error, ApiUnavailable):
            return _plain(error)
        _show_blindness(error, self._ports, self._profile, self._here)
        return replace(_plain(error), changed=True)

    def _prepare(self, now: Situation, decided: Plan, state: StateWriter) -> None:
        """Raise PreflightFailed for a missing right or a file that cannot be written; say what is worth a warning.

        Evictions are rehearsed once.
        """
        if _waits_after_failure(decided):  # whatever comes then is looked at then
            return
        _check_rights(self._ports, decided, state)
        _check_files(self._ports, now, decided)
        plans_again = any(isinstance(step, PlanAgain) for step in decided.steps)
        if not plans_again and not self._is_rehearsed:
            decided = rehearsed(self._ports, decided)
            self._is_rehearsed = True
        for warning in decided.warnings:
            self._ports.reporter.warn(warning)

    def _warm(self, decided: Plan) -> None:
        """Read what the load will need before anybody has to leave for it; later it is as quick to read it then."""
        ports = self._ports
        loads = [step for step in decided.steps if isinstance(step, LoadModules)]
        plans_again = any(isinstance(step, PlanAgain) for step in decided.steps)
        if not loads or plans_again or ports.tally.window.is_open or not any(map(opens, decided.steps)):
            return
        read = ports.host.warm(loads[0].source, self._deadline.within(WARM_S))
        if read >= LEAST_SAID_BYTES:
            ports.reporter.info(f"{read / 2**20:.1f} MiB of the new driver's files are read ahead")

    def _is_let_go(self, now: Situation, decided: Plan) -> bool:
        """Whether budgets allow by now the evictions that they refused to the run that failed. Raises ApiRefused."""
        ports, blockers = self._ports, now.host.failure.blockers if now.host.failure is not None else ()
        going = with_action(decided.workloads, PodAction.EVICT, PodAction.RESTART)
        pods = [one.pod for one in going if pod_blocker(one.pod.uid) in blockers]
        evictor = Evictor(ports.cluster, ports.clock, ports.reporter)
        return bool(pods) and not evictor.rehearse(pods).warnings

    def _noted(self, outcome: Outcome, error: ManagerError, now: Situation, settler: Settler, decided: Plan) -> Outcome:
        """`outcome`, with when the next run tries again if it waits at all, which is noted on the host for it."""
        ports = self._ports
        failure = noted(now, error, ports.clock.monotonic()) if settler.has_taken else None
        if failure is None:
            return outcome
        try:
            ports.host.write_text(self._profile.paths.failure_note, encode(failure))
        except ManagerError as problem:
            ports.reporter.warn(f"the next run will not wait before it retries: {problem.what}")
            return outcome
        if not (settler.has_given_back and disturbs(decided)):
            return outcome
        seconds = wait_s(failure.attempts, self._policy.retry_wait_s)
        until = time_of_day(ports.clock.wall() + seconds)
        remedy = f"{outcome.remedy} Unless something changes, the next run waits until {until}."
        return replace(outcome, remedy=remedy) if seconds > 0 else outcome


def _ends_by_itself(decided: Plan) -> bool:
    """Whether the run shows on the Node how it ended in a way of its own, or, where it only clears it, not at all."""
    last = decided.steps[-1] if decided.steps else None
    return decided.decision is Decision.CLEAR or isinstance(last, StandDown | HoldForReboot | EndWithoutReboot)


def _waits_after_failure(decided: Plan) -> bool:
    return bool(decided.steps) and isinstance(decided.steps[0], WaitAfterFailure)


def _check_rights(ports: Ports, decided: Plan, state: StateWriter) -> None:
    """Raise PreflightFailed for a right that a step will need and we do not have. Asks nothing for an empty plan."""
    needed = rights(decided.steps)
    refused = ports.cluster.refused(needed)
    missing = [check for check in access(refused, needed) if check.ok is False]
    if PATCH_NODES in refused:
        state.keeps_silent()
    if missing:
        what = "; ".join(check.what for check in missing)
        raise PreflightFailed(f"preflight: {what}", remedies(missing))


def _check_files(ports: Ports, now: Situation, decided: Plan) -> None:
    """Raise PreflightFailed for a file of the host that a step will write and cannot: found out by writing beside it.

    What only gives the node back is never refused.
    """
    if any(isinstance(step, TakeNode | RemoveArtifacts | KeepBindings | RecordDigest) for step in decided.steps):
        check = host_files(now, ports.host.unwritable(written_files(now)))
        if not check.ok:
            raise PreflightFailed(f"preflight: {check.what}", check.remedy)


def _was_taken_since(obs: Observation, ports: Ports, profile: Profile) -> bool:
    """Whether the Node's journal is another one than in `obs`: one GET, False where it gets no answer.

    A run that has the node changes modules, files and mounts, so a second one may see them half done.
    """
    try:
        now = ports.cluster.node()
    except ManagerError:
        return False
    key = profile.keys.journal
    return now.annotations.get(key) != obs.node.annotations.get(key)


def _show_blindness(error: ManagerError, ports: Ports, profile: Profile, node: Node) -> None:
    """Show on `node` that a run could not observe. Who took it, if anybody did, is not known: it stays taken."""
    state = StateWriter(ports, profile, node)
    state.reached("observe")
    state.fails(error)
    if profile.keys.journal in node.annotations:
        state.holds()
    if not ports.clock.is_ending():
        state.write()


def _plain(error: ManagerError) -> Outcome:
    return Outcome(error.exit_code, error.what, error.remedy)


def _failed(error: ManagerError, ports: Ports, settler: Settler, obs: Observation, *, is_news: bool = True) -> Outcome:
    """The end of a run that failed: settled, and shown on the Node where it `is_news`."""
    is_ending = ports.clock.is_ending()
    if isinstance(error, ModuleStuck):
        settler.driver_is_stuck()
    settler.state.fails(error)
    settled = settler.after_failure(obs.journal, hurry=is_ending)
    expected = isinstance(error, StandingDown) and not isinstance(error, Terminated)
    what = f"{error.what}; {settled}" if settled and not expected else error.what
    if is_news and not is_ending:  # killed soon: the Event comes first
        settler.state.write(what)
    return Outcome(error.exit_code, what + measured(ports) + settler.evidence, error.remedy, changed=True)
