"""Which pods on the node are clients of the driver, and which of them opened an earlier one. Pure.

Owns the selection; what was done about it in one generation is `driver_manager.domain.pods.client_record`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from driver_manager.domain import selectors, timestamps
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.generation import Generation
from driver_manager.domain.pod import Pod
from driver_manager.domain.profile import Profile
from driver_manager.domain.selectors import Selector

OWNERS = frozenset({"DaemonSet", "ReplicaSet", "StatefulSet"})
"""Controllers that make an evicted pod again; a Deployment's pods are a ReplicaSet's."""

LAG_S = 5.0
"""A kubelet reports a container that it started some moments later."""


class ClientRules(Frozen):
    """Pods that match one of `selectors` may be clients. `own_uid` is the pod around us, "" where that is not known."""

    profile: Profile
    selectors: tuple[Selector, ...] = ()
    own_uid: str = ""

    @classmethod
    def of(cls, profile: Profile, further: Selector, own_uid: str = "") -> ClientRules:
        """The profile's list and `further`, where that selects anything. Raises ValueError for a bad selector."""
        listed = tuple(selectors.parse(text) for text in profile.clients)
        return cls(profile, (*listed, further) if further else listed, own_uid)


class Standing(Enum):
    """How a client stands to a generation."""

    STALE = "stale"
    CURRENT = "current"
    UNKNOWN = "unknown"


def is_client(pod: Pod, rules: ClientRules) -> bool:
    """Whether `pod` is a client that a controller makes again.

    Never a user's pod, which asks for the accelerator or holds a claim, nor a driver's or our own: its end would be the
    end of the driver that it is restarted for.
    """
    if pod.owner_kind not in OWNERS or pod.is_mirror or pod.has_left:
        return False
    if pod.claims or any(name.startswith(rules.profile.resource_prefixes) for name in pod.resources):
        return False
    if _is_driver(pod, rules.profile) or (rules.own_uid and pod.uid == rules.own_uid):
        return False
    return any(selector.matches(pod.labels) for selector in rules.selectors)


def standing(pod: Pod, generation: Generation, now_s: float) -> Standing:
    """Whether a container of `pod` has run since before `generation` was ready.

    Times of containers are whole seconds: one of the very second in which the driver got ready had nothing to open
    before. Where no container runs yet, a kubelet may be late to tell of one, but not for long.
    """
    if pod.started_s is not None:
        return Standing.STALE if int(pod.started_s) < int(generation.ready_s) else Standing.CURRENT
    created_s = timestamps.seconds_of(pod.created)
    may_be_late = created_s is not None and created_s < generation.ready_s and 0.0 <= now_s - generation.ready_s < LAG_S
    return Standing.UNKNOWN if may_be_late else Standing.CURRENT


def clients(pods: Iterable[Pod], rules: ClientRules) -> tuple[Pod, ...]:
    """The clients among `pods` that nobody has told to end, by name."""
    found = (pod for pod in pods if not pod.deleting and is_client(pod, rules))
    return tuple(sorted(found, key=lambda pod: (pod.namespace, pod.name)))


def holding_since_before(pods: Iterable[Pod], generation: Generation, now_s: float) -> tuple[Pod, ...]:
    """The pods with claims that have run since before `generation` was ready."""
    return tuple(
        pod for pod in pods if pod.claims and not pod.is_over and standing(pod, generation, now_s) is Standing.STALE
    )


def _is_driver(pod: Pod, profile: Profile) -> bool:
    return bool(pod.config_digest) or (bool(profile.deploy.prefix) and profile.deploy.driver_key in pod.selector_keys)
