"""Which pods on the node a pause makes leave, and why one is still there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from driver_manager.domain.host import Holder
from driver_manager.domain.observation import Observation
from driver_manager.domain.pod import Pod
from driver_manager.domain.pods import labels as label_rules
from driver_manager.domain.profile import Profile

UNMOVED_OWNERS = frozenset({"", "Job", "Node", "ReplicaSet", "ReplicationController", "StatefulSet"})
"""Owners that keep a pod where it is when a label of its node changes. A DaemonSet deletes it then; what somebody's own
controller does is not known, so its pods are waited for."""

OVERDUE_S = 60.0
"""A pod that is still there so long after its grace does not end by itself, as far as clocks agree."""


def gates(labels: Mapping[str, str], own: Pod | None, profile: Profile) -> frozenset[str]:
    """Deploy-label keys that may be paused on a node with `labels`: those that are on, or are paused.

    Never one that places our own pod: its DaemonSet would end us in the middle.
    """
    places_us = own.selector_keys if own is not None else frozenset[str]()
    keys, inverse = profile.deploy_keys(labels) - places_us, profile.deploy.on_unless_false
    switches = (key for key in keys if key not in inverse and label_rules.is_pausable(labels.get(key)))
    return frozenset(switches) | {key for key in keys & set(inverse) if labels.get(key) != label_rules.OFF}


def is_placed_by(pod: Pod, keys: Set[str], own: Pod | None) -> bool:
    """Whether `pod` runs here because of one of the node-label `keys`; never our own pod, nor one that has left.

    Nor one that `asks_by_itself`: a label does not make it leave.
    """
    if pod.has_left or asks_by_itself(pod) or (own is not None and pod.uid == own.uid):
        return False
    return not pod.selector_keys.isdisjoint(keys)


def asks_by_itself(pod: Pod) -> bool:
    """Whether it is a user's pod that asks for devices, whatever node labels it chose its node by."""
    return pod.owner_kind != "DaemonSet" and bool(pod.resources or pod.claims)


def is_unmoved(pod: Pod) -> bool:
    """Whether a label that places `pod` does not make it leave: neither its owner nor anybody else reacts to it."""
    return not pod.deleting and (pod.is_mirror or pod.owner_kind in UNMOVED_OWNERS)


def is_moved_by(pod: Pod, keys: Set[str], own: Pod | None) -> bool:
    """Whether pausing `keys` makes `pod` leave, or it is leaving already."""
    return is_placed_by(pod, keys, own) and not is_unmoved(pod)


def moved_by(pods: Iterable[Pod], keys: Set[str], own: Pod | None) -> tuple[Pod, ...]:
    """The pods that pausing `keys` makes leave."""
    return tuple(pod for pod in pods if is_moved_by(pod, keys, own))


def is_overdue(pod: Pod, wall_s: float) -> bool:
    """Whether `pod` should have ended long ago, `wall_s` being the time now in seconds since the epoch."""
    return pod.deleting and pod.due_s is not None and wall_s - pod.due_s > OVERDUE_S


def placed_by(pods: Iterable[Pod], keys: Set[str], own: Pod | None) -> tuple[Pod, ...]:
    """The pods that are here because of `keys`."""
    return tuple(pod for pod in pods if is_placed_by(pod, keys, own))


def bound_to_root(obs: Observation, profile: Profile) -> frozenset[str]:
    """Deploy-label keys of operand pods that mount the driver root from the host and so hold a stale one."""
    places_us = obs.own_pod.selector_keys if obs.own_pod is not None else frozenset[str]()
    keys = profile.deploy_keys(obs.node.labels) - places_us
    root = profile.paths.driver_root
    bound = (pod for pod in placed_by(obs.pods.pods, keys, obs.own_pod) if mounts(pod, root))
    return frozenset(key for pod in bound for key in pod.selector_keys & keys)


def mounts(pod: Pod, root: str) -> bool:
    """Whether a hostPath volume of `pod` shows `root`: the root itself, something in it, or a folder that holds it."""
    return any(
        path == root or path.startswith(f"{root}/") or root.startswith(f"{path.rstrip('/')}/")
        for path in pod.host_paths
    )


def named(holders: Iterable[Holder], pods: Iterable[Pod]) -> tuple[Holder, ...]:
    """The holders with their pods' names, and uids of the API, as far as `pods` has them."""
    known = {uid: pod for pod in pods for uid in (pod.uid, pod.static_uid) if uid}
    return tuple(
        replace(holder, pod=str(known[holder.pod_uid]), pod_uid=known[holder.pod_uid].uid)
        if holder.pod_uid in known
        else replace(holder, pod="")
        for holder in holders
    )


def why_still_there(pod: Pod) -> str:
    """Why `pod` has not left yet, as far as its object tells."""
    if pod.is_mirror:
        return "mirror pod of a static manifest: labels do not move it, remove its manifest from the node"
    if pod.reason == "NodeLost":
        return "node lost: its kubelet does not answer"
    if not pod.deleting:
        owner = f"owned by a {pod.owner_kind}" if pod.owner_kind else "owned by nobody"
        if pod.owner_kind == "DaemonSet":
            return "not deleted: its DaemonSet controller has not reacted to the label, or its label was set back"
        return f"not deleted: {owner}, so a label does not move it; delete it by hand"
    if pod.finalizers:
        return f"terminating, held by finalizer {', '.join(pod.finalizers)}"
    return f"terminating, its grace period of {pod.grace_period_s or 0} s is running or its processes do not end"
