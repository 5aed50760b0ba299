"""What stands in a run's way and is known before it disturbs anybody: processes nobody stops, pods that do not end.

Owns which these are, and what comes of them: a wait while everything stays in place, as they may go by themselves, and
then a refusal. What keeps modules from changing at all belongs to `driver_manager.domain.swap.preflight`, users' pods
that may not be evicted to `driver_manager.domain.swap.eviction_plan`. Pure; must not import the planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from driver_manager.domain.errors import DriverBusy, PodsRemain
from driver_manager.domain.failure import pod_blocker, process_blocker
from driver_manager.domain.host import UNREAD, Holder
from driver_manager.domain.listing import several
from driver_manager.domain.pod import Pod
from driver_manager.domain.pods.operands import is_overdue, is_unmoved, mounts, moved_by, placed_by
from driver_manager.domain.pods.workloads import PodAction, Workload, node_pods, with_action
from driver_manager.domain.swap.plan import AnyStep, PlanAgain
from driver_manager.domain.swap.retry_wait import AFTER_FAILURE
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.waits import WaitForHolders, WaitForStuckPods

HOLDERS, STUCK = "holders", "stuck-pods"
"""What can be waited for while everything stays in place; each once in a run."""

STOP_IT = "stop what holds the device (`driver-manager holders` lists it), then run again"
DELETE_DRIVER = "delete the driver pod: the init container of its successor replaces the driver"
DELETE_IT = "Delete the pod, or take the node label out of its nodeSelector: its owner does not react to that label."


def wait_for_stuck(now: Situation, keys: Set[str], found: Iterable[Workload] = ()) -> tuple[AnyStep, ...]:
    """The wait for pods that the run would wait for anyway, and that should have ended long ago; () for none.

    `keys` are those that the plan pauses, `found` what it does to users' pods.
    """
    pods = (
        *moved_by(now.obs.pods.pods, keys, now.obs.own_pod),
        *(one.pod for one in with_action(found, PodAction.WAIT)),
    )
    stuck = {pod.uid: pod for pod in pods if is_overdue(pod, now.obs.at.wall_s)}
    if not stuck or STUCK in now.waited:
        return ()
    names = tuple(map(str, stuck.values()))
    wait = WaitForStuckPods(tuple(stuck), names, now.policy.pod_termination_timeout_s, is_undisturbed(now))
    return (wait, PlanAgain(STUCK))


def wait_for_holders(now: Situation, found: tuple[Workload, ...]) -> tuple[AnyStep, ...]:
    """The wait for processes that this run does not stop to let go of the device; () where there are none.

    `found` is what the plan does to users' pods. Raises DriverBusy where the run has waited for them already.
    """
    held = holders_in_the_way(now, found)
    if not held:
        return ()
    if HOLDERS in now.waited:
        raise _busy(now, held, found)
    pids = tuple(dict.fromkeys(holder.pid for holder in held))
    wait = WaitForHolders(pids, tuple(map(str, held)), now.policy.device_free_timeout_s, is_undisturbed(now))
    return (wait, PlanAgain(HOLDERS))


def is_undisturbed(now: Situation) -> bool:
    """Whether nobody was made to leave so far: no run holds the node, and this one asked nobody to go."""
    return not now.obs.is_resumed and now.waited <= {HOLDERS, STUCK, AFTER_FAILURE}


def holders_in_the_way(now: Situation, found: tuple[Workload, ...]) -> tuple[Holder, ...]:
    """Processes that have the device and that nothing in this run makes let go of it."""
    pods = {pod.uid: pod for pod in now.obs.pods.pods}
    blocked = {one.pod.uid for one in with_action(found, PodAction.BLOCK)}
    return tuple(
        holder
        for holder in now.obs.holders
        if holder.how != UNREAD and _is_in_the_way(now, holder, pods.get(holder.pod_uid), blocked)
    )


def refuse_unmoved(now: Situation, keys: Set[str], *, bound_only: bool = False) -> None:
    """Raise PodsRemain for pods that `keys` placed, that no label moves, and that this kind of run does not evict.

    `bound_only`: those that only mount nothing of the driver root may stay.
    """
    root = now.profile.paths.driver_root
    pods = [pod for pod in placed_by(now.obs.pods.pods, keys, now.obs.own_pod) if is_unmoved(pod)]
    left = [pod for pod in pods if not bound_only or mounts(pod, root)]
    if left:
        named = several((f"{pod} ({_why_unmoved(pod, keys)})" for pod in left), "; ")
        error = PodsRemain(f"{len(left)} pod(s) would not release the driver root: {named}", DELETE_IT)
        error.blockers = tuple(pod_blocker(pod.uid) for pod in left)
        raise error


def _why_unmoved(pod: Pod, keys: Set[str]) -> str:
    owner = f"owned by a {pod.owner_kind}" if pod.owner_kind else "owned by nobody"
    who = "mirror pod of a static manifest" if pod.is_mirror else owner
    return f"{who}, placed by {', '.join(sorted(pod.selector_keys & keys))}, which does not make it leave"


def _is_in_the_way(now: Situation, holder: Holder, pod: Pod | None, blocked: set[str]) -> bool:
    if not holder.pod_uid:
        return holder.service not in _stopped(now)
    if pod is None:  # its object is gone, or it is in a namespace that this account may not list
        return True
    if node_pods(now.obs).is_ours(pod):
        return True
    return pod.uid in blocked or (_is_driver_pod(now, pod) and not now.policy.driver_pod_leaves)


def driver_pods(now: Situation) -> tuple[Pod, ...]:
    """The driver pods of the node that have not left, but for our own."""
    own = now.obs.own_pod
    pods = (pod for pod in now.obs.pods.pods if own is None or pod.uid != own.uid)
    return tuple(pod for pod in pods if _is_placed_as_driver(now, pod) and not pod.has_left)


def _is_driver_pod(now: Situation, pod: Pod) -> bool:
    """Whether it stays because it is placed by the driver's own label alone, which is never paused."""
    return _is_placed_as_driver(now, pod) and not pod.deleting


def _is_placed_as_driver(now: Situation, pod: Pod) -> bool:
    deploy = now.profile.deploy
    others = deploy.keys_in(dict.fromkeys(pod.selector_keys, "")) & pod.selector_keys
    return bool(deploy.prefix) and deploy.driver_key in pod.selector_keys and not others


def _stopped(now: Situation) -> tuple[str, ...]:
    """The host's services that this run stops for the swap."""
    return now.host.active_services if now.policy.stop_host_services else ()


def _busy(now: Situation, held: tuple[Holder, ...], found: tuple[Workload, ...]) -> DriverBusy:
    named = several(map(str, held), "; ")
    uids = {holder.pod_uid for holder in held}
    remedies = {one.pod.uid: one.remedy for one in with_action(found, PodAction.BLOCK) if one.pod.uid in uids}
    remedies |= {pod.uid: DELETE_DRIVER for pod in now.obs.pods.pods if pod.uid in uids and _is_driver_pod(now, pod)}
    lines = [STOP_IT] if uids - remedies.keys() else []
    lines += remedies.values()
    if now.obs.pods.namespace and uids - {"", *(pod.uid for pod in now.obs.pods.pods)}:
        lines.append(f"to see more pods than those of {now.obs.pods.namespace}, let this account list all pods")
    if any(holder.service in now.profile.host_services for holder in held):
        lines.append("for the vendor's host services use STOP_HOST_SERVICES (--stop-host-services)")
    end = "; no pod was disturbed" if is_undisturbed(now) else ""
    error = DriverBusy(
        f"the device is in use, and this run cannot free it: {named}{end}",
        " ".join(f"{remedy[:1].upper()}{remedy[1:]}." for remedy in dict.fromkeys(lines)),
    )
    error.blockers = tuple(process_blocker(holder.pid, holder.process) for holder in held)
    return error
