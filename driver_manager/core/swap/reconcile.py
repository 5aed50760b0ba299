"""One reconcile from observation to outcome: observe, plan, execute, settle.

Owns the order of these four and what a failure of each means. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from driver_manager.core.pods.eviction import Evictor
from driver_manager.core.swap.context import RunContext
from driver_manager.core.swap.executor import Executor
from driver_manager.core.swap.fence import Fence
from driver_manager.core.swap.observe import look_closer
from driver_manager.core.swap.settling import Settler
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import (
    ApiUnavailable,
    Conflict,
    ExitCode,
    ManagerError,
    ModuleStuck,
    OwnedElsewhere,
    PreflightFailed,
    StandingDown,
    Terminated,
)
from driver_manager.domain.model import Observation, Policy
from driver_manager.domain.pods.workloads import PodAction, with_action
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.plan import Decision, Plan, PlanAgain
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.preflight import access, remedies, rights
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.modules import LoadModules
from driver_manager.domain.swap.steps.pods import DrainNode, EvictWorkloads
from driver_manager.ports import Ports

TAKE_ATTEMPTS = 10
"""How often a run observes and plans anew when the Node changes between its observation and its first patch."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `remedy` is empty on success; `changed` says whether anything was done."""

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


def reconcile(ports: Ports, observe: Callable[[], Observation], profile: Profile, policy: Policy) -> Outcome:
    """Bring the node's driver to what is wanted. Raises only unexpected errors, after settling."""
    run = _Run(ports, profile, policy)
    for _ in range(TAKE_ATTEMPTS):
        try:
            obs = observe()
        except ManagerError as error:
            return run.failed(error)
        try:
            return run.attempt(obs)
        except Again as again:
            run.go_on(again)
        except Conflict as error:
            ports.reporter.info(f"{error.what}; observing again")
        except ManagerError as error:
            return _plain(error)
    return run.failed(ApiUnavailable("the Node kept changing while it was to be taken", "Run again."))


def decide(
    ports: Ports, obs: Observation, profile: Profile, policy: Policy, waited: frozenset[str] = frozenset()
) -> tuple[Situation, Plan]:
    """The plan, and all that it was made from; `waited` is what this run has waited for. Changes nothing.

    Raises ConfigError away from the node, ApiRefused, and as `plan`.
    """
    now = look_closer(Situation.of(obs, profile, policy, waited), ports)
    return now, plan(now)


def rehearsed(ports: Ports, decided: Plan) -> Plan:
    """`decided` with a warning for each eviction that the API server would refuse now. Raises ApiRefused."""
    evicting = any(isinstance(step, EvictWorkloads | DrainNode) for step in decided.steps)
    targets = [one.pod for one in with_action(decided.workloads, PodAction.EVICT)] if evicting else []
    refused = Evictor(ports.cluster, ports.clock, ports.reporter).rehearse(targets)
    return replace(decided, warnings=(*decided.warnings, *refused))


class _Run:
    """One reconcile, which may plan more than once: what it has waited for, and what it holds from one to the next."""

    def __init__(self, ports: Ports, profile: Profile, policy: Policy) -> None:
        self._ports = ports
        self._profile = profile
        self._policy = policy
        self._waited: frozenset[str] = frozenset()
        self._deadline = Deadline.after(policy.deadline_s, ports.clock.monotonic)
        self._fence = Fence(ports.host, ports.reporter)
        self._kept: tuple[Settler, Observation] | None = None
        self._is_rehearsed = False

    def attempt(self, obs: Observation) -> Outcome:
        """Plan and execute once. Raises Again, Conflict where nothing new was taken, OwnedElsewhere."""
        ports = self._ports
        settler = Settler(ports, self._profile, obs)
        try:
            now, decided = decide(ports, obs, self._profile, self._policy, self._waited)
        except OwnedElsewhere:
            raise
        except ManagerError as error:
            is_seen_half_done = isinstance(error, PreflightFailed | ModuleStuck)
            if is_seen_half_done and _was_taken_since(obs, ports, self._profile):
                raise Conflict(f"{error.what}, but the Node was taken or given back meanwhile", error.remedy) from error
            # A node that an earlier run left paused does not stay so because this run cannot even start.
            return _failed(error, ports, settler, obs) if obs.host is not None else _plain(error)
        try:
            self._prepare(decided)
            waited_for = Executor(RunContext(ports, now, settler, self._fence, self._deadline), decided).run()
        except (Conflict, OwnedElsewhere):
            raise
        except ManagerError as error:
            return _failed(error, ports, settler, obs)
        except BaseException:
            settler.after_failure(obs.journal)
            raise
        if waited_for:
            raise Again(waited_for, settler, now.obs)
        return Outcome(ExitCode.DONE, _summary(decided), changed=bool(decided.steps))

    def go_on(self, again: Again) -> None:
        """The next attempt follows what `again` waited for."""
        self._waited |= {again.after}
        self._kept = (again.settler, again.obs)

    def failed(self, error: ManagerError) -> Outcome:
        """The end between two attempts: what an earlier one took is given back."""
        return _plain(error) if self._kept is None else _failed(error, self._ports, *self._kept)

    def _prepare(self, decided: Plan) -> None:
        """Raise PreflightFailed for a missing right; say what is worth a warning. Evictions are rehearsed once."""
        _check_rights(self._ports, decided)
        plans_again = any(isinstance(step, PlanAgain) for step in decided.steps)
        if not plans_again and not self._is_rehearsed:
            decided = rehearsed(self._ports, decided)
            self._is_rehearsed = True
        for warning in decided.warnings:
            self._ports.reporter.warn(warning)


_DONE = {
    Decision.NOT_LOADED: "the way for the driver was made clear",
    Decision.CURRENT: "the node was given back",
    Decision.REBIND: "operands let go of the old driver root",
    Decision.REPLACE: "the old driver was unloaded",
}


def _summary(decided: Plan) -> str:
    """The last line of a run that succeeded."""
    if not decided.steps:
        return f"nothing to do: {decided.reason}"
    loaded = [step.source.version for step in decided.steps if isinstance(step, LoadModules)]
    done = f"driver {loaded[0]} was loaded" if loaded else _DONE[decided.decision]
    return f"done: {done} ({decided.reason})"


def _check_rights(ports: Ports, decided: Plan) -> None:
    """Raise PreflightFailed for a right that a step will need and we do not have. Asks nothing for an empty plan."""
    needed = rights(decided.steps)
    missing = [check for check in access(ports.cluster.refused(needed), needed) if check.ok is False]
    if missing:
        what = "; ".join(check.what for check in missing)
        raise PreflightFailed(f"preflight: {what}", remedies(missing))


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


def _plain(error: ManagerError) -> Outcome:
    return Outcome(error.exit_code, error.what, error.remedy)


def _failed(error: ManagerError, ports: Ports, settler: Settler, obs: Observation) -> Outcome:
    if isinstance(error, ModuleStuck):
        settler.driver_is_stuck()
    settled = settler.after_failure(obs.journal, hurry=ports.clock.is_ending())
    expected = isinstance(error, StandingDown) and not isinstance(error, Terminated)
    what = f"{error.what}; {settled}" if settled and not expected else error.what
    return Outcome(error.exit_code, what, error.remedy, changed=True)
