"""How a node is cleared of what uses the driver before it is replaced: by eviction, by a drain, or by its operator.

Pure: steps from facts. Raises PodsRemain for what would stand in the way, before the first effect.
"""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.errors import ConfigError, EvictionRefused, PodsRemain
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import several
from driver_manager.domain.pod import Pod
from driver_manager.domain.pods.workloads import (
    AFTER_GRACE_S,
    NodePods,
    PodAction,
    Use,
    Workload,
    by_name,
    drained,
    grace_s,
    node_pods,
    refusal,
    with_action,
    workloads,
)
from driver_manager.domain.policy import Policy
from driver_manager.domain.selectors import Selector
from driver_manager.domain.swap.plan import AnyStep, PlanAgain
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.operator import AskOperator, WaitForSafeLoad, WithdrawSafeLoad
from driver_manager.domain.swap.steps.pods import DrainNode, EvictWorkloads, WaitForCompletion

SAFE_LOAD, OPERATOR, COMPLETION = "safe-load", "operator", "completion"
"""What can be waited for before a node is taken; each once in a run."""

END_HOLDER = "end what holds it"
END_POD = "delete the pod, or take the node label out of its nodeSelector"
NOBODYS = "no label makes it leave, and the operator that manages upgrades on this node does not know it"
LONGER = "raise RECONCILE_DEADLINE (--reconcile-deadline), or delete the pod"


class EvictionPlan(Frozen):
    """`first` comes before the node is taken and ends in planning anew, `steps` after its operands have left."""

    first: tuple[AnyStep, ...] = ()
    steps: tuple[AnyStep, ...] = ()
    found: tuple[Workload, ...] = ()
    warnings: tuple[str, ...] = ()


def is_managed(now: Situation) -> bool:
    """Whether an operator manages this node's upgrades: it cordons and evicts, not we."""
    key = now.profile.keys.upgrade_enabled
    return bool(key) and now.obs.node.annotations.get(key) == "true"


def clearing(now: Situation) -> EvictionPlan:
    """How the pods that use the driver leave. Raises PodsRemain where they would not."""
    scene = node_pods(now.obs)
    if is_managed(now):
        return _by_operator(now, workloads(scene, now.profile, now.policy.eviction))
    completing = _completing(now)
    if completing:
        wait = WaitForCompletion(now.policy.completion, tuple(map(str, completing)), now.policy.completion_timeout_s)
        ending = {pod.uid for pod in completing}
        given_time = tuple(
            replace(one, action=PodAction.WAIT, why="it is given time to complete", remedy="")
            for one in workloads(scene, now.profile, now.policy.eviction)
            if one.pod.uid in ending
        )
        others = replace(scene, pods=tuple(pod for pod in scene.pods if pod.uid not in ending))
        steps, found = _by_eviction(now, others)
        return EvictionPlan((wait, PlanAgain(COMPLETION)), steps, by_name((*found, *given_time)))
    steps, found = _by_eviction(now, scene)
    warnings = tuple(f"{one.pod} {one.uses}: {one.why}" for one in found if _is_tolerated(one, found))
    return EvictionPlan((), steps, found, warnings)


def safe_load(now: Situation) -> tuple[AnyStep, ...]:
    """The wait for the operator's word before a driver is loaded; none where it was not asked for, or is over.

    Raises ConfigError where it cannot be asked: the operator answers to a pod.
    """
    if not now.policy.safe_load or SAFE_LOAD in now.waited:
        return ()
    if now.obs.own_pod is None or not now.profile.keys.safe_load:
        lack = (
            "a run by hand has none" if now.profile.keys.safe_load else f"profile {now.profile.name} has no key for it"
        )
        raise ConfigError(
            f"SAFE_LOAD needs a driver pod for the operator to answer to, and {lack}",
            "Unset SAFE_LOAD (--safe-load).",
        )
    return (
        WaitForSafeLoad(now.profile.keys.safe_load, now.obs.own_pod.name, now.policy.operator_timeout_s),
        PlanAgain(SAFE_LOAD),
    )


def stale_safe_load(now: Situation) -> tuple[AnyStep, ...]:
    """The step that withdraws what a dead run asked for: in our own pod's name, or in that of one that is gone."""
    key = now.profile.keys.safe_load
    asked = now.obs.node.annotations.get(key) if key else None
    if asked is None or any(pod.name == asked and pod != now.obs.own_pod for pod in now.obs.pods.pods):
        return ()
    return (WithdrawSafeLoad(key, asked),)


def is_completing(pod: Pod, selector: Selector, own: Pod | None) -> bool:
    """Whether `pod` is one of those that may complete, and has not yet."""
    return not pod.is_over and (own is None or pod.uid != own.uid) and selector.matches(pod.labels)


def eviction_timeout_s(policy: Policy, targets: tuple[Workload, ...]) -> float:
    """Seconds within which `targets` are gone once they are let go: each pod's grace is honoured, however long."""
    usual_s = policy.eviction.timeout_s
    longer = (grace_s(one.pod) + AFTER_GRACE_S for one in targets if grace_s(one.pod) > usual_s)
    return max([usual_s, *longer])


def refuse_blocked(found: tuple[Workload, ...]) -> None:
    """Raise PodsRemain for pods that would not leave, naming all of them."""
    blocked = tuple(one for one in with_action(found, PodAction.BLOCK) if not _is_tolerated(one, found))
    if blocked:
        raise refusal(blocked, f"{len(blocked)} pod(s) that use the accelerator would not leave", found)


def drain(now: Situation, scene: NodePods) -> tuple[Workload, ...]:
    """The pods that a drain evicts or waits for, and those outside of it that would be evicted anyway.

    Raises PodsRemain for pods of both kinds that may not be evicted.
    """
    found = _in_time(drained(scene, now.profile, now.policy.eviction), now.policy)
    inside = {one.pod.uid for one in found}
    outside = [one for one in workloads(scene, now.profile, now.policy.eviction) if one.pod.uid not in inside]
    blocked = (*with_action(found, PodAction.BLOCK), *with_action(outside, PodAction.BLOCK))
    if blocked:
        raise refusal(blocked, f"{len(blocked)} pod(s) keep the node from being drained", by_name((*found, *outside)))
    return by_name((*found, *with_action(outside, PodAction.EVICT, PodAction.WAIT)))


def _is_tolerated(one: Workload, found: tuple[Workload, ...]) -> bool:
    """Whether a pod that only has the device open may have it a little longer.

    It may let go by itself while the device is waited for. Where others would be evicted meanwhile, for nothing if it
    does not, it is a blocker.
    """
    return one.action is PodAction.BLOCK and not one.must_leave and not with_action(found, PodAction.EVICT)


def _by_eviction(now: Situation, scene: NodePods) -> tuple[tuple[AnyStep, ...], tuple[Workload, ...]]:
    """The step that makes the workloads leave, where there are any, and the fate of each. Raises PodsRemain."""
    policy, rules = now.policy, now.policy.eviction
    found = _in_time(workloads(scene, now.profile, rules), policy)
    try:
        refuse_blocked(found)
    except EvictionRefused:
        if not rules.drains:
            raise
        going = drain(now, scene)
        uids = {one.pod.uid for one in going}
        step = DrainNode(tuple(str(one.pod) for one in going), rules.drain_timeout_s)
        return (step,), by_name((*going, *(one for one in found if one.pod.uid not in uids)))
    targets, leaving = with_action(found, PodAction.EVICT), with_action(found, PodAction.WAIT)
    if not targets and not leaving:
        return (), found
    timeout_s = eviction_timeout_s(policy, (*targets, *leaving))
    pods, terminating = tuple(str(one.pod) for one in targets), tuple(str(one.pod) for one in leaving)
    return (EvictWorkloads(pods, terminating, timeout_s, rules.drains),), found


def _in_time(found: tuple[Workload, ...], policy: Policy) -> tuple[Workload, ...]:
    """`found`, with those blocked whose grace is longer than the whole run: they would be told to end for nothing."""
    return tuple(
        replace(
            one,
            action=PodAction.BLOCK,
            why=f"its grace of {grace_s(one.pod):g} s is longer than the run may take",
            remedy=LONGER,
        )
        if one.action is PodAction.EVICT and grace_s(one.pod) > policy.deadline_s
        else one
        for one in found
    )


def _by_operator(now: Situation, found: tuple[Workload, ...]) -> EvictionPlan:
    """An operator moves the workloads; it is asked once, and waited for. Raises PodsRemain where it would not help."""
    unmoved = tuple(
        replace(one, action=PodAction.BLOCK, why=NOBODYS, remedy=END_POD)
        for one in with_action(found, PodAction.EVICT, PodAction.BLOCK)
        if one.use is Use.PLACED
    )
    if unmoved:
        raise refusal(unmoved, f"{len(unmoved)} pod(s) would not leave", found)
    holding = tuple(
        one for one in with_action(found, PodAction.EVICT, PodAction.WAIT, PodAction.BLOCK) if one.has_asked
    )
    found = tuple(map(_left_to_operator, found))
    warnings = ("the operator manages upgrades on this node: this run neither cordons nor evicts",)
    if not holding:
        return EvictionPlan(found=found, warnings=warnings)
    keys, pods = now.profile.keys, tuple(str(one.pod) for one in holding)
    state = now.obs.node.labels.get(keys.upgrade_state, "")
    if OPERATOR in now.waited or not keys.upgrade_requested:
        raise PodsRemain(
            f"the operator manages upgrades on this node (its state: {state or 'none'}) and these pods still use the "
            f"driver: {several(pods)}",
            "Check the operator's log for why it does not move them, or delete them; the next run tries again.",
        )
    ask = AskOperator(
        key=keys.upgrade_requested,
        state_key=keys.upgrade_state,
        state=state,
        pods=pods,
        timeout_s=now.policy.operator_timeout_s,
        asks=state in ("", *now.profile.idle_states)
        and not all(one.action is PodAction.WAIT for one in holding)
        and now.obs.node.annotations.get(keys.upgrade_requested) != "true",
    )
    return EvictionPlan((ask, PlanAgain(OPERATOR)), (), found, warnings)


def _left_to_operator(one: Workload) -> Workload:
    """What becomes of a pod on a node where we evict nothing."""
    if one.action is PodAction.STAY or one.pod.deleting:
        return one
    if one.has_asked:
        return replace(
            one, action=PodAction.WAIT, why="the operator that manages upgrades on this node moves it", remedy=""
        )
    why = "the operator that manages upgrades on this node does not know that it has the device"
    return replace(one, action=PodAction.BLOCK, why=why, remedy=END_HOLDER)


def _completing(now: Situation) -> tuple[Pod, ...]:
    """Pods that get time to complete; none once they had it."""
    if not now.policy.completion or COMPLETION in now.waited:
        return ()
    return tuple(pod for pod in now.obs.pods.pods if is_completing(pod, now.policy.completion, now.obs.own_pod))
