"""How a node is cleared of users of the driver: by eviction, by a drain, or by an operator.

Raises PodsRemain for pods that cannot be evicted, before the first effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from msgspec import Struct
from msgspec.structs import replace

from driver_manager.domain.errors import (
    ConfigError,
    DriverBusy,
    EvictionRefused,
    ManagerError,
    PodsRemain,
    PreflightFailed,
)
from driver_manager.domain.host import UNREAD, Holder, pod_blocker, process_blocker
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import Policy, Situation
from driver_manager.domain.pods.workloads import (
    AFTER_GRACE_S,
    NodePods,
    PodAction,
    Use,
    Workload,
    after_others_s,
    by_name,
    drained,
    grace_s,
    is_overdue,
    is_unmoved,
    mounts,
    moved_by,
    node_pods,
    paused_by_owners,
    placed_by,
    refusal,
    with_action,
    workloads,
)
from driver_manager.domain.profile import users
from driver_manager.domain.selectors import Selector
from driver_manager.domain.swap.retry_wait import AFTER_FAILURE
from driver_manager.domain.swap.steps import (
    AnyStep,
    AskOperator,
    DrainNode,
    EvictWorkloads,
    PlanAgain,
    WaitForCompletion,
    WaitForHolders,
    WaitForOwners,
    WaitForSafeLoad,
    WaitForStuckPods,
    WithdrawSafeLoad,
)
from driver_manager.domain.text import several

SAFE_LOAD, OPERATOR, COMPLETION = "safe-load", "operator", "completion"
"""What can be waited for before a node is taken; each once in a run."""

END_HOLDER = "end what holds it"
END_POD = "delete the pod, or take the node label out of its nodeSelector"
NOBODYS = "no label makes it leave, and the operator that manages upgrades on this node does not know it"
LONGER = "raise RECONCILE_DEADLINE (--reconcile-deadline), or delete the pod"


class EvictionPlan(Struct, frozen=True):
    """`first` comes before the node is acquired and ends with planning again; `steps` come after its operands left."""

    first: tuple[AnyStep, ...] = ()
    steps: tuple[AnyStep, ...] = ()
    found: tuple[Workload, ...] = ()
    warnings: tuple[str, ...] = ()


def is_managed(situation: Situation) -> bool:
    """Whether an operator manages this node's upgrades: it cordons and evicts, not we."""
    key = situation.profile.keys.upgrade_enabled
    return bool(key) and situation.obs.node.annotations.get(key) == "true"


def clearing(situation: Situation) -> EvictionPlan:
    """How the pods that use the driver leave. Raises PodsRemain where they would not."""
    scene, policy = node_pods(situation.obs), situation.policy
    if is_managed(situation):
        return _by_operator(situation, workloads(scene, situation.profile, policy.eviction))
    completing = _completing(situation)
    if completing:
        wait = WaitForCompletion(policy.completion, tuple(map(str, completing)), policy.completion_timeout_s)
        ending = {pod.uid for pod in completing}
        given_time = tuple(
            replace(one, action=PodAction.WAIT, why="it is given time to complete", remedy="")
            for one in workloads(scene, situation.profile, policy.eviction)
            if one.pod.uid in ending
        )
        others = replace(scene, pods=tuple(pod for pod in scene.pods if pod.uid not in ending))
        steps, found = _by_eviction(situation, others)
        return EvictionPlan((wait, PlanAgain(COMPLETION)), steps, by_name((*found, *given_time)))
    steps, found = _by_eviction(situation, scene)
    warnings = tuple(f"{one.pod} {one.uses}: {one.why}" for one in found if _is_tolerated(one, found))
    return EvictionPlan((), steps, found, warnings)


def safe_load(situation: Situation) -> tuple[AnyStep, ...]:
    """The wait for the operator's word before a driver is loaded; none where it was not asked for, or is over.

    Raises ConfigError where it cannot be asked: the operator answers to a pod.
    """
    if not situation.policy.safe_load or SAFE_LOAD in situation.waited:
        return ()
    own, key = situation.obs.own_pod, situation.profile.keys.safe_load
    if own is None or not key:
        lack = "a run by hand has none" if key else f"profile {situation.profile.name} has no key for it"
        what = f"SAFE_LOAD needs a driver pod for the operator to answer to, and {lack}"
        raise ConfigError(what, "Unset SAFE_LOAD (--safe-load).")
    return (WaitForSafeLoad(key, own.name, situation.policy.operator_timeout_s), PlanAgain(SAFE_LOAD))


def stale_safe_load(situation: Situation) -> tuple[AnyStep, ...]:
    """The step that withdraws what a dead run asked for: in our own pod's name, or in that of one that is gone."""
    key = situation.profile.keys.safe_load
    asked = situation.obs.node.annotations.get(key) if key else None
    if asked is None or any(pod.name == asked and pod != situation.obs.own_pod for pod in situation.obs.pods.pods):
        return ()
    return (WithdrawSafeLoad(key, asked),)


def is_completing(pod: Pod, selector: Selector, own: Pod | None) -> bool:
    """Whether `pod` is one of those that may complete, and has not yet."""
    return not pod.is_over and (own is None or pod.uid != own.uid) and selector.matches(pod.labels)


def eviction_timeout_s(policy: Policy, targets: tuple[Workload, ...]) -> float:
    """Seconds within which `targets` are gone after their eviction is accepted, each pod's grace included."""
    usual_s = policy.eviction.timeout_s
    longer = (grace_s(one.pod) + AFTER_GRACE_S for one in targets if grace_s(one.pod) > usual_s)
    return max([usual_s, *longer]) + after_others_s(targets)


def refuse_blocked(found: tuple[Workload, ...]) -> None:
    """Raise PodsRemain for pods that would not leave, naming all of them."""
    blocked = tuple(one for one in with_action(found, PodAction.BLOCK) if not _is_tolerated(one, found))
    if blocked:
        raise refusal(blocked, f"{len(blocked)} pod(s) that use the accelerator would not leave", found)


def drain(situation: Situation, scene: NodePods) -> tuple[Workload, ...]:
    """The pods that a drain evicts or waits for, and those outside of it that would be evicted anyway.

    Raises PodsRemain for pods of both kinds that may not be evicted.
    """
    profile, rules = situation.profile, situation.policy.eviction
    found = _in_time(drained(scene, profile, rules), situation.policy)
    inside = {one.pod.uid for one in found}
    outside = [one for one in workloads(scene, profile, rules) if one.pod.uid not in inside]
    blocked = (*with_action(found, PodAction.BLOCK), *with_action(outside, PodAction.BLOCK))
    if blocked:
        raise refusal(blocked, f"{len(blocked)} pod(s) keep the node from being drained", by_name((*found, *outside)))
    return by_name((*found, *with_action(outside, PodAction.EVICT, PodAction.WAIT)))


def _is_tolerated(one: Workload, found: tuple[Workload, ...]) -> bool:
    """True if a pod that only has the device open may keep it a little longer.

    It may close the device while the run waits for it. It is a blocker if other pods would be evicted meanwhile: in
    vain if it does not.
    """
    return one.action is PodAction.BLOCK and not one.must_leave and not with_action(found, PodAction.EVICT)


def _by_eviction(situation: Situation, scene: NodePods) -> tuple[tuple[AnyStep, ...], tuple[Workload, ...]]:
    """The step that makes the workloads leave, where there are any, and the fate of each. Raises PodsRemain."""
    policy, rules = situation.policy, situation.policy.eviction
    found = _in_time(workloads(scene, situation.profile, rules), policy)
    try:
        refuse_blocked(found)
    except EvictionRefused:
        if not rules.drains:
            raise
        going = drain(situation, scene)
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
    """`found`, with those blocked whose grace is longer than the whole run: they would end in vain."""
    bounded = []
    for one in found:
        if one.action is PodAction.EVICT and grace_s(one.pod) > policy.deadline_s:
            why = f"its grace of {grace_s(one.pod):g} s is longer than the run may take"
            bounded.append(replace(one, action=PodAction.BLOCK, why=why, remedy=LONGER))
        else:
            bounded.append(one)
    return tuple(bounded)


def _by_operator(situation: Situation, found: tuple[Workload, ...]) -> EvictionPlan:
    """An operator moves the workloads; it is asked once, and waited for. Raises PodsRemain where it would not help."""
    unmoved = tuple(
        replace(one, action=PodAction.BLOCK, why=NOBODYS, remedy=END_POD)
        for one in with_action(found, PodAction.EVICT, PodAction.BLOCK)
        if one.use is Use.PLACED
    )
    if unmoved:
        raise refusal(unmoved, f"{len(unmoved)} pod(s) would not leave", found)
    leaving = with_action(found, PodAction.EVICT, PodAction.WAIT, PodAction.BLOCK)
    holding = tuple(one for one in leaving if one.has_asked)
    found = tuple(map(_left_to_operator, found))
    warnings = ("the operator manages upgrades on this node: this run neither cordons nor evicts",)
    if not holding:
        return EvictionPlan(found=found, warnings=warnings)
    keys, pods = situation.profile.keys, tuple(str(one.pod) for one in holding)
    state = situation.obs.node.labels.get(keys.upgrade_state, "")
    if OPERATOR in situation.waited or not keys.upgrade_requested:
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
        timeout_s=situation.policy.operator_timeout_s,
        asks=state in ("", *situation.profile.idle_states)
        and not all(one.action is PodAction.WAIT for one in holding)
        and situation.obs.node.annotations.get(keys.upgrade_requested) != "true",
    )
    return EvictionPlan((ask, PlanAgain(OPERATOR)), (), found, warnings)


def _left_to_operator(one: Workload) -> Workload:
    """What becomes of a pod on a node where we evict nothing."""
    if one.action is PodAction.STAY or one.pod.deleting:
        return one
    if one.has_asked:
        why = "the operator that manages upgrades on this node moves it"
        return replace(one, action=PodAction.WAIT, why=why, remedy="")
    why = "the operator that manages upgrades on this node does not know that it has the device"
    return replace(one, action=PodAction.BLOCK, why=why, remedy=END_HOLDER)


def _completing(situation: Situation) -> tuple[Pod, ...]:
    """Pods that get time to complete; none once they had it."""
    selector, obs = situation.policy.completion, situation.obs
    if not selector or COMPLETION in situation.waited:
        return ()
    return tuple(pod for pod in obs.pods.pods if is_completing(pod, selector, obs.own_pod))


# Obstacles that are known before a pod is disturbed: processes that the run does not stop, pods that do not end.
#
# They may go by themselves, so the run first waits with everything in place, and then refuses.

AGAIN, HOLDERS, KERNEL, OWNERS, STUCK = "again", "holders", "kernel", "owners", "stuck-pods"
"""What can be waited for while everything stays in place; each once in a run."""

STOP_IT = "stop what holds the device (`driver-manager holders` lists it), then run again"
DELETE_DRIVER = "delete the driver pod: the init container of its successor replaces the driver"
DELETE_IT = "Delete the pod, or take the node label out of its nodeSelector: its owner does not react to that label."


def wait_for_stuck(situation: Situation, keys: Set[str], found: Iterable[Workload] = ()) -> tuple[AnyStep, ...]:
    """The wait for pods that the run would wait for anyway, and that should have ended long ago; () for none.

    `keys` are those that the plan pauses, `found` what it does to users' pods.
    """
    pods = (
        *moved_by(situation.obs.pods.pods, keys, situation.obs.own_pod),
        *(one.pod for one in with_action(found, PodAction.WAIT)),
    )
    stuck = {pod.uid: pod for pod in pods if is_overdue(pod, situation.obs.at.wall_s)}
    if not stuck or STUCK in situation.waited:
        return ()
    names = tuple(map(str, stuck.values()))
    wait = WaitForStuckPods(tuple(stuck), names, situation.policy.pod_termination_timeout_s, is_undisturbed(situation))
    return (wait, PlanAgain(STUCK))


def wait_for_owners(situation: Situation) -> tuple[AnyStep, ...]:
    """The wait for components that have paused operands for a work of their own; () for none. Raises PodsRemain."""
    found = paused_by_owners(situation.obs.node.labels, situation.profile)
    if not found:
        return ()
    labels = tuple(f"{key}={value}" for key, value in found.items())
    if OWNERS in situation.waited:
        end = "; no pod was disturbed" if is_undisturbed(situation) else ""
        raise PodsRemain(
            f"another component is at work on this node: it has set {several(labels)}{end}",
            "Find why it has not ended (mig-manager leaves the labels so after a failure); then set each label as it "
            "was before.",
        )
    timeout_s = situation.policy.pod_termination_timeout_s
    return (WaitForOwners(labels, timeout_s, is_undisturbed(situation)), PlanAgain(OWNERS))


def wait_for_holders(situation: Situation, found: tuple[Workload, ...]) -> tuple[AnyStep, ...]:
    """The wait until processes that this run does not stop have released the device, and the kernel too; () for none.

    `found` is what the plan does to users' pods. Raises DriverBusy and PreflightFailed if the run has already waited
    for them.
    """
    held = holders_in_the_way(situation, found)
    coming = tuple(name for name, module in situation.host.modules.items() if module.is_coming)
    timeout_s, undisturbed = situation.policy.device_free_timeout_s, is_undisturbed(situation)
    if held or coming:
        if HOLDERS in situation.waited:
            raise _busy(situation, held, found) if held else _still_loading(situation, coming)
        pids = tuple(dict.fromkeys(holder.pid for holder in held))
        named = (*map(str, held), *(f"the init function of module {name}" for name in coming))
        return (WaitForHolders(pids, named, timeout_s, undisturbed, coming), PlanAgain(HOLDERS))
    used = _used_by_kernel(situation)
    if not used:
        return ()
    reasons = _reasons_of_kernel(situation)
    if KERNEL in situation.waited:
        raise _busy_in_kernel(used, reasons)
    because = f" (perhaps because {several(reasons)})" if reasons else ""
    named = tuple(f"{one} in use by the kernel, not by a process{because}" for one in used)
    return (WaitForHolders((), named, timeout_s, undisturbed, by_kernel=True), PlanAgain(KERNEL))


def _used_by_kernel(situation: Situation) -> tuple[str, ...]:
    """The driver's modules that have users although no process has a device open.

    () if that is unknown, and after a pod was disturbed: a process that ends closes its files before its uses end.
    """
    obs = situation.obs
    if not obs.has_read_holders or obs.holders or not is_undisturbed(situation):
        return ()
    used = (module for module in situation.host.modules.values() if users(module))
    return tuple(f"{module.name} ({users(module)} user(s))" for module in used)


def _reasons_of_kernel(situation: Situation) -> dict[str, str]:
    """What on the PCI bus may be why the kernel uses the driver, and what to do about each."""
    found, bus = dict[str, str](), situation.host.bus
    for one in bus.functions:
        count = one.virtual_count or len(bus.virtual_of(one.address))
        if count and one.driver and not one.is_on_vfio:
            found[f"{one.address} has {count} virtual function(s)"] = (
                "End what uses the virtual functions, then remove them: "
                f"write 0 to /sys/bus/pci/devices/{one.address}/sriov_numvfs."
            )
        if one.console:
            found[f"the console is on {one.console} of {one.address}"] = (
                "Take the console off it: write 0 to `bind` of the frame buffer device in /sys/class/vtconsole."
            )
    return found


def _busy_in_kernel(used: tuple[str, ...], reasons: dict[str, str]) -> ManagerError:
    what = f"the kernel uses the driver, and no process has a device open: {several(used)}"
    if reasons:
        return PreflightFailed(f"{what}, as {several(reasons)}; no pod was disturbed", " ".join(reasons.values()))
    return DriverBusy(
        f"{what}; no pod was disturbed",
        "Find what the kernel needs it for: an export to another driver (DMA-BUF, peer memory), an open file in a "
        "socket or in io_uring. If nothing can be found, drain and reboot the node.",
    )


def _still_loading(situation: Situation, coming: tuple[str, ...]) -> DriverBusy:
    end = "; no pod was disturbed" if is_undisturbed(situation) else ""
    return DriverBusy(
        f"module {several(coming)} is still being loaded: its init function has not returned{end}",
        "Look at the kernel log (dmesg). If it never returns, only a reboot or a power cycle ends it.",
    )


def is_undisturbed(situation: Situation) -> bool:
    """True if no pod was disturbed so far: no run holds the node, and this one has evicted none."""
    return not situation.obs.is_resumed and situation.waited <= {AGAIN, HOLDERS, KERNEL, OWNERS, STUCK, AFTER_FAILURE}


def holders_in_the_way(situation: Situation, found: tuple[Workload, ...]) -> tuple[Holder, ...]:
    """Processes that hold the device and that this run does not make release it."""
    pods = {pod.uid: pod for pod in situation.obs.pods.pods}
    blocked = {one.pod.uid for one in with_action(found, PodAction.BLOCK)}
    return tuple(
        holder
        for holder in situation.obs.holders
        if holder.how != UNREAD and _is_in_the_way(situation, holder, pods.get(holder.pod_uid), blocked)
    )


def refuse_unmoved(situation: Situation, keys: Set[str], *, bound_only: bool = False) -> None:
    """Raise PodsRemain for pods that `keys` placed, that no label moves, and that this kind of run does not evict.

    `bound_only`: those that only mount nothing of the driver root may stay.
    """
    root = situation.profile.paths.driver_root
    pods = [pod for pod in placed_by(situation.obs.pods.pods, keys, situation.obs.own_pod) if is_unmoved(pod)]
    left = [pod for pod in pods if not bound_only or mounts(pod, root)]
    if left:
        named = several((f"{pod} ({_why_unmoved(pod, keys)})" for pod in left), "; ")
        what = f"{len(left)} pod(s) would not release the driver root: {named}"
        raise PodsRemain(what, DELETE_IT, tuple(pod_blocker(pod.uid) for pod in left))


def _why_unmoved(pod: Pod, keys: Set[str]) -> str:
    owner = f"owned by a {pod.owner_kind}" if pod.owner_kind else "has no controller"
    who = "mirror pod of a static manifest" if pod.is_mirror else owner
    return f"{who}, placed by {', '.join(sorted(pod.selector_keys & keys))}, which does not make it leave"


def _is_in_the_way(situation: Situation, holder: Holder, pod: Pod | None, blocked: set[str]) -> bool:
    if not holder.pod_uid:
        return holder.service not in stopped_services(situation)
    if pod is None:  # its object is gone, or it is in a namespace that this account may not list
        return True
    if node_pods(situation.obs).is_ours(pod):
        return True
    return pod.uid in blocked or (_is_driver_pod(situation, pod) and not situation.policy.driver_pod_leaves)


def driver_pods(situation: Situation) -> tuple[Pod, ...]:
    """The driver pods of the node that have not left, but for our own."""
    own = situation.obs.own_pod
    pods = (pod for pod in situation.obs.pods.pods if own is None or pod.uid != own.uid)
    return tuple(pod for pod in pods if _is_placed_as_driver(situation, pod) and not pod.has_left)


def _is_driver_pod(situation: Situation, pod: Pod) -> bool:
    """Whether it stays because it is placed by the driver's own label alone, which is never paused."""
    return _is_placed_as_driver(situation, pod) and not pod.deleting


def _is_placed_as_driver(situation: Situation, pod: Pod) -> bool:
    deploy = situation.profile.deploy
    others = deploy.keys_in(dict.fromkeys(pod.selector_keys, "")) & pod.selector_keys
    return bool(deploy.prefix) and deploy.driver_key in pod.selector_keys and not others


def stopped_services(situation: Situation) -> tuple[str, ...]:
    """The host's services that this run stops for the swap."""
    return situation.host.active_services if situation.policy.stop_host_services else ()


def _busy(situation: Situation, held: tuple[Holder, ...], found: tuple[Workload, ...]) -> DriverBusy:
    named = several(map(str, held), "; ")
    uids = {holder.pod_uid for holder in held}
    remedies = {one.pod.uid: one.remedy for one in with_action(found, PodAction.BLOCK) if one.pod.uid in uids}
    holding = (pod for pod in situation.obs.pods.pods if pod.uid in uids)
    remedies |= {pod.uid: DELETE_DRIVER for pod in holding if _is_driver_pod(situation, pod)}
    lines = [STOP_IT] if uids - remedies.keys() else []
    lines += remedies.values()
    if situation.obs.pods.namespace and uids - {"", *(pod.uid for pod in situation.obs.pods.pods)}:
        lines.append(f"to see more pods than those of {situation.obs.pods.namespace}, let this account list all pods")
    services = () if situation.policy.stop_host_services else situation.profile.host_services
    if any(holder.service in services for holder in held):
        lines.append("for the vendor's host services use STOP_HOST_SERVICES (--stop-host-services)")
    end = "; no pod was disturbed" if is_undisturbed(situation) else ""
    return DriverBusy(
        f"the device is in use, and this run cannot free it: {named}{end}",
        " ".join(f"{remedy[:1].upper()}{remedy[1:]}." for remedy in dict.fromkeys(lines)),
        tuple(process_blocker(holder.pid, holder.process) for holder in held),
    )
