"""One reconcile from observation to outcome: observe, plan, execute, settle.

Owns the order of these four and what a failure of each means. Depends on ports only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from driver_manager.domain.errors import (
    ApiUnavailable,
    Conflict,
    ExitCode,
    ManagerError,
    OwnedElsewhere,
    PreflightFailed,
    StandingDown,
    Terminated,
)
from driver_manager.domain.model import Observation, Policy
from driver_manager.domain.planner import plan
from driver_manager.domain.preflight import access, rights
from driver_manager.domain.profile import Profile
from driver_manager.domain.steps import Decision, LoadModules, Plan
from driver_manager.executor import Executor, Ports
from driver_manager.settling import Settler

TAKE_ATTEMPTS = 10
"""How often a run observes and plans anew when the Node changes between its observation and its first patch."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `remedy` is empty on success; `changed` says whether anything was done."""

    exit_code: ExitCode
    what: str
    remedy: str = ""
    changed: bool = False


def reconcile(ports: Ports, observe: Callable[[], Observation], profile: Profile, policy: Policy) -> Outcome:
    """Bring the node's driver to what is wanted. Raises only unexpected errors, after settling."""
    deadline = ports.clock.monotonic() + policy.deadline_s
    for _ in range(TAKE_ATTEMPTS):
        try:
            return _attempt(ports, observe(), profile, policy, deadline)
        except Conflict as error:
            ports.reporter.info(f"{error.what}; observing again")
        except ManagerError as error:
            return _plain(error)
    return _plain(ApiUnavailable("the Node kept changing while it was to be taken", "Run again; nothing was changed."))


def _attempt(ports: Ports, obs: Observation, profile: Profile, policy: Policy, deadline: float) -> Outcome:
    settler = Settler(ports.cluster, ports.host, ports.clock, ports.reporter, profile, obs)
    try:
        decided = plan(obs, profile, policy)
    except OwnedElsewhere:
        raise
    except ManagerError as error:
        # A node that an earlier run left paused does not stay so because this run cannot even start.
        return _failed(error, ports, settler, obs) if obs.host is not None else _plain(error)
    for warning in decided.warnings:
        ports.reporter.warn(warning)
    try:
        _check_rights(ports, decided)
        Executor(ports, profile, obs, settler, deadline).run(decided)
    except (Conflict, OwnedElsewhere):
        raise
    except ManagerError as error:
        return _failed(error, ports, settler, obs)
    except BaseException:
        settler.after_failure(obs.journal)
        raise
    return Outcome(ExitCode.DONE, _summary(decided), changed=bool(decided.steps))


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
        raise PreflightFailed(f"preflight: {what}", " ".join(check.remedy for check in missing))


def _plain(error: ManagerError) -> Outcome:
    return Outcome(error.exit_code, error.what, error.remedy)


def _failed(error: ManagerError, ports: Ports, settler: Settler, obs: Observation) -> Outcome:
    settled = settler.after_failure(obs.journal, hurry=ports.clock.is_ending())
    expected = isinstance(error, StandingDown) and not isinstance(error, Terminated)
    what = f"{error.what}; {settled}" if settled and not expected else error.what
    return Outcome(error.exit_code, what, error.remedy, changed=True)
