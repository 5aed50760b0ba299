"""How a node is cleared of what uses the driver before it is replaced: by eviction, by a drain, or by its operator.

Pure: steps from facts. Raises PodsRemain for what would stand in the way, before the first effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from driver_manager.domain.errors import ConfigError, PodsRemain
from driver_manager.domain.model import Observation, Pod, Policy
from driver_manager.domain.profile import Profile
from driver_manager.domain.selectors import Selector
from driver_manager.domain.steps import (
    AskOperator,
    DrainNode,
    EvictWorkloads,
    PlanAgain,
    Step,
    WaitForCompletion,
    WaitForSafeLoad,
)
from driver_manager.domain.workloads import (
    Fate,
    Scene,
    Workload,
    drained,
    refusal,
    scene_of,
    with_fate,
    workloads,
)

SAFE_LOAD, OPERATOR, COMPLETION = "safe-load", "operator", "completion"
"""What can be waited for before a node is taken; each once in a run."""


@dataclass(frozen=True)
class Clearing:
    """`first` comes before the node is taken and ends in planning anew, `steps` after its operands have left."""

    first: tuple[Step, ...] = ()
    steps: tuple[Step, ...] = ()
    found: tuple[Workload, ...] = ()
    warnings: tuple[str, ...] = ()


def is_managed(obs: Observation, profile: Profile) -> bool:
    """Whether an operator manages this node's upgrades: it cordons and evicts, not we."""
    key = profile.keys.upgrade_enabled
    return bool(key) and obs.node.annotations.get(key) == "true"


def clearing(obs: Observation, profile: Profile, policy: Policy) -> Clearing:
    """How the pods that use the driver leave. Raises PodsRemain where they would not."""
    found = workloads(scene_of(obs), profile, policy.eviction)
    if is_managed(obs, profile):
        return _by_operator(obs, profile, policy, found)
    completing = _completing(obs, policy)
    if completing:
        wait = WaitForCompletion(policy.completion, tuple(map(str, completing)), policy.completion_timeout_s)
        ending = {pod.uid for pod in completing}
        found = tuple(workload for workload in found if workload.pod.uid not in ending)
        return Clearing((wait, PlanAgain(COMPLETION)), _by_eviction(obs, profile, policy, found), found)
    warnings = tuple(f"{one.pod} {one.uses}: {one.why}" for one in found if _is_tolerated(one, found))
    return Clearing((), _by_eviction(obs, profile, policy, found), found, warnings)


def safe_load(obs: Observation, profile: Profile, policy: Policy) -> tuple[Step, ...]:
    """The wait for the operator's word before a driver is loaded; none where it was not asked for, or is over.

    Raises ConfigError where it cannot be asked: the operator answers to a pod.
    """
    if not policy.safe_load or SAFE_LOAD in policy.waited:
        return ()
    if obs.own_pod is None or not profile.keys.safe_load:
        lack = "by hand there is none" if profile.keys.safe_load else f"profile {profile.name} has no key for it"
        raise ConfigError(
            f"the wait for a safe load needs a pod of ours for the operator to answer to, and {lack}",
            "Leave SAFE_LOAD (--safe-load) out.",
        )
    return (WaitForSafeLoad(profile.keys.safe_load, obs.own_pod.name, policy.operator_timeout_s), PlanAgain(SAFE_LOAD))


def is_completing(pod: Pod, selector: Selector, own: Pod | None) -> bool:
    """Whether `pod` is one of those that may complete, and has not yet."""
    return not pod.is_over and (own is None or pod.uid != own.uid) and selector.matches(pod.labels)


def eviction_timeout_s(policy: Policy, targets: tuple[Workload, ...]) -> float:
    """Seconds for the evictions of `targets`: each pod's grace is honoured, however long."""
    return max([policy.eviction.timeout_s, *(float(one.pod.termination_grace_s) for one in targets)])


def refuse_blocked(found: tuple[Workload, ...]) -> None:
    """Raise PodsRemain for pods that would not leave, naming all of them."""
    blocked = tuple(one for one in with_fate(found, Fate.BLOCK) if not _is_tolerated(one, found))
    if blocked:
        raise refusal(blocked, f"{len(blocked)} pod(s) that use the accelerator would not leave")


def drain(scene: Scene, profile: Profile, policy: Policy) -> tuple[Workload, ...]:
    """The pods that a drain evicts or waits for. Raises PodsRemain for those that it would have to and may not."""
    found = drained(scene, profile, policy.eviction)
    blocked = with_fate(found, Fate.BLOCK)
    if blocked:
        raise refusal(blocked, f"{len(blocked)} pod(s) keep the node from being drained")
    return found


def _is_tolerated(one: Workload, found: tuple[Workload, ...]) -> bool:
    """Whether a pod that only has the device open may have it a little longer.

    It may let go by itself while the device is waited for. Where others would be evicted meanwhile, for nothing if it
    does not, it is a blocker.
    """
    return one.fate is Fate.BLOCK and not one.has_asked and not with_fate(found, Fate.EVICT)


def _by_eviction(obs: Observation, profile: Profile, policy: Policy, found: tuple[Workload, ...]) -> tuple[Step, ...]:
    rules = policy.eviction
    try:
        refuse_blocked(found)
    except PodsRemain as error:
        if not rules.drains:
            raise
        return (_by_drain(obs, profile, policy, found, error),)
    targets, leaving = with_fate(found, Fate.EVICT), with_fate(found, Fate.WAIT)
    if not targets and not leaving:
        return ()
    timeout_s = eviction_timeout_s(policy, targets)
    pods, going = tuple(str(one.pod) for one in targets), tuple(str(one.pod) for one in leaving)
    return (EvictWorkloads(pods, going, timeout_s, rules.drains),)


def _by_drain(
    obs: Observation, profile: Profile, policy: Policy, found: tuple[Workload, ...], error: PodsRemain
) -> DrainNode:
    """The drain that stands in for an eviction that would fail with `error`."""
    leaving = drain(scene_of(obs), profile, policy)
    left = {one.pod.uid for one in leaving}
    stuck = tuple(one for one in with_fate(found, Fate.BLOCK) if one.pod.uid not in left)
    if stuck:
        raise refusal(stuck, f"a drain would not move {len(stuck)} pod(s) that use the accelerator") from error
    return DrainNode(tuple(str(one.pod) for one in leaving), policy.eviction.drain_timeout_s)


def _by_operator(obs: Observation, profile: Profile, policy: Policy, found: tuple[Workload, ...]) -> Clearing:
    """An operator moves the workloads; it is asked once, and waited for."""
    holding = tuple(one for one in with_fate(found, Fate.EVICT, Fate.WAIT, Fate.BLOCK) if one.has_asked)
    warnings = ("the operator manages upgrades on this node: no cordon and no eviction of ours",)
    if not holding:
        return Clearing(found=found, warnings=warnings)
    keys, pods = profile.keys, tuple(str(one.pod) for one in holding)
    state = obs.node.labels.get(keys.upgrade_state, "")
    if OPERATOR in policy.waited or not keys.upgrade_requested:
        raise PodsRemain(
            f"the operator manages upgrades on this node (its state: {state or 'none'}) and these pods still use the "
            f"driver: {', '.join(pods)}",
            "Look at the operator's log for why it does not move them, or end them; the next run tries again.",
        )
    ask = AskOperator(
        key=keys.upgrade_requested,
        state_key=keys.upgrade_state,
        state=state,
        is_idle=state in ("", *profile.idle_states),
        pods=pods,
        timeout_s=policy.operator_timeout_s,
        already_asked=obs.node.annotations.get(keys.upgrade_requested) == "true",
    )
    return Clearing((ask, PlanAgain(OPERATOR)), (), found, warnings)


def _completing(obs: Observation, policy: Policy) -> tuple[Pod, ...]:
    """Pods that get time to complete; none once they had it."""
    if not policy.completion or COMPLETION in policy.waited:
        return ()
    return tuple(pod for pod in obs.pods.pods if is_completing(pod, policy.completion, obs.own_pod))
