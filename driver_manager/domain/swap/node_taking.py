"""How a plan takes a node, makes everybody leave the device, and releases the node again: steps from facts.

Shared by the rows of the decision tables. Pure. Must not import the planner, which builds its rows from these.
"""

from __future__ import annotations

from collections.abc import Set

from driver_manager.domain.bindings import Binding
from driver_manager.domain.pods.labels import is_pausable
from driver_manager.domain.pods.operands import moved_by
from driver_manager.domain.pods.workloads import holds_claim, node_pods
from driver_manager.domain.policy import Mode
from driver_manager.domain.swap.eviction_plan import EvictionPlan, clearing, is_managed
from driver_manager.domain.swap.loading import check
from driver_manager.domain.swap.node_patches import found_journal, give_back, pausable_keys, paused_keys, take
from driver_manager.domain.swap.obstacles import wait_for_holders, wait_for_stuck
from driver_manager.domain.swap.plan import AnyStep
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.staged_swap import keep_root
from driver_manager.domain.swap.steps.modules import StopServices
from driver_manager.domain.swap.steps.node import GiveBack, PauseLast, TakeNode
from driver_manager.domain.swap.steps.pods import WaitForOperands


def before_the_unload(
    now: Situation, bindings: tuple[Binding, ...] = ()
) -> tuple[tuple[AnyStep, ...], tuple[AnyStep, ...], EvictionPlan]:
    """What makes everybody leave the device; which of it takes the node; and what becomes of users' pods.

    `bindings` are what the devices are bound to, where that will change, too.
    """
    check(now)
    # On a cordoned node KMM unloads at once, whoever uses the driver, and loads nothing: see `domain.kmm`.
    cleared, cordon = clearing(now), not is_managed(now) and now.policy.kmm is None
    services = now.host.active_services if now.policy.stop_host_services else ()
    first, last = pause_in_two(now)
    patient = (*wait_for_stuck(now, first | last, cleared.found), *wait_for_holders(now, cleared.found))
    taken = taking(now, first, cordon=cordon, services=services, bindings=bindings)
    # Nothing new shall come while others are waited for, so the cordon is set before that.
    early = _taken_first(now, bindings) if cordon and cleared.first else ()
    if not any(
        isinstance(step, WaitForOperands) for step in taken
    ):  # nobody to wait for, but somebody may have come before the cordon
        taken = (*taken, WaitForOperands((), (), now.policy.pod_termination_timeout_s))
    steps = (
        *patient,
        *keep_root(now),
        *early,
        *cleared.first,
        *taken,
        *cleared.steps,
        *_pause_last(now, last),
        *((StopServices(services),) if services else ()),
    )
    return steps, taken, cleared


def _taken_first(now: Situation, bindings: tuple[Binding, ...]) -> tuple[TakeNode, ...]:
    """The step that only cordons the node, where that is not done yet."""
    step = take(now.obs, now.profile, frozenset(), cordon=True, bindings=bindings)
    return (step,) if step is not None else ()


def pause_in_two(now: Situation) -> tuple[frozenset[str], frozenset[str]]:
    """Keys to pause at once, and those that have to wait until no claim is held any more."""
    keys = pausable_keys(now.obs, now.profile) | driver_gate(now)
    last = (
        now.profile.deploy.last_keys
        if holds_claim(node_pods(now.obs), now.profile, now.policy.eviction)
        else frozenset()
    )
    return keys - last, (keys & last) - paused_keys(now.obs.node, now.profile)


def _pause_last(now: Situation, keys: frozenset[str]) -> tuple[AnyStep, ...]:
    if not keys:
        return ()
    names = tuple(sorted(keys))
    pods = tuple(sorted(str(pod) for pod in moved_by(now.obs.pods.pods, keys, now.obs.own_pod)))
    return (PauseLast(names), WaitForOperands(names, pods, now.policy.pod_termination_timeout_s))


def driver_gate(now: Situation) -> frozenset[str]:
    """The driver's own deploy label where devices go to virtual machines and it is on: its pod is to leave as well."""
    own, deploy = now.obs.own_pod, now.profile.deploy
    if now.policy.mode is not Mode.VFIO or not deploy.prefix or (own and deploy.driver_key in own.selector_keys):
        return frozenset()
    value = now.obs.node.labels.get(deploy.driver_key)
    is_on = is_pausable(value) and value != deploy.preinstalled_value
    return frozenset({deploy.driver_key}) if is_on else frozenset()


def _switched_off(now: Situation) -> frozenset[str]:
    """Deploy labels that placed pods of this node and are gone from it: their pods leave, and are waited for.

    Where a driver stays, or another follows it, nobody waits for them: the device's users are seen by themselves.
    """
    if now.policy.mode is not Mode.VFIO:
        return frozenset()
    deploy, labels, own = now.profile.deploy, now.obs.node.labels, now.obs.own_pod
    used = {key for pod in now.obs.pods.pods for key in pod.selector_keys if key not in labels}
    # What is on while it is absent is no switch that is gone.
    found = deploy.keys_in(dict.fromkeys(used, "")) - set(deploy.on_unless_false) | ({deploy.driver_key} & used)
    return found - (own.selector_keys if own is not None else frozenset())


def taking(
    now: Situation,
    pause: Set[str],
    *,
    cordon: bool,
    services: tuple[str, ...] = (),
    bindings: tuple[Binding, ...] = (),
) -> tuple[AnyStep, ...]:
    """The step that takes the node with the labels in `pause` paused, and the wait for those whom that makes leave."""
    step = take(now.obs, now.profile, pause, cordon=cordon, services=services, bindings=bindings)
    keys = frozenset(pause) | _switched_off(now)
    pods = tuple(sorted(str(pod) for pod in moved_by(now.obs.pods.pods, keys, now.obs.own_pod)))
    wait = WaitForOperands(tuple(sorted(keys)), pods, now.policy.pod_termination_timeout_s) if keys else None
    return tuple(found for found in (step, wait) if found is not None)


def releasing(now: Situation, taken: tuple[AnyStep, ...]) -> tuple[GiveBack, ...]:
    """The step that gives the node back as `taken` took it, or as an earlier run left it; none for one that is free."""
    for step in taken:
        if isinstance(step, TakeNode):
            return (GiveBack(step.journal),)
    return give_back(found_journal(now.obs, now.profile))
