"""Pods on the node: operands, users of the accelerator, clients, and which of them may be evicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from enum import Enum
from fnmatch import fnmatchcase

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.errors import EvictionRefused
from driver_manager.domain.host import Holder, pod_blocker
from driver_manager.domain.node import Claim, Pod
from driver_manager.domain.node_state import Generation
from driver_manager.domain.observation import EvictionRules, Observation
from driver_manager.domain.pods import labels as label_rules
from driver_manager.domain.profile import Profile
from driver_manager.domain.selectors import Selector
from driver_manager.domain.text import several
from driver_manager.domain.wire import seconds_of

# Clients of the driver on the node, and those among them that opened an earlier one.

OWNERS = frozenset({"DaemonSet", "ReplicaSet", "StatefulSet"})
"""Controllers that make an evicted pod again; a Deployment's pods are a ReplicaSet's."""

LAG_S = 5.0
"""A kubelet reports a container that it started some moments later."""


class ClientRules(Struct, frozen=True):
    """Pods that match one of `selectors` may be clients. `own_uid` is the pod around us, "" where that is not known."""

    profile: Profile
    selectors: tuple[Selector, ...] = ()
    own_uid: str = ""

    @classmethod
    def of(cls, profile: Profile, further: Selector, own_uid: str = "") -> ClientRules:
        """The profile's list and `further`, where that selects anything. Raises ValueError for a bad selector."""
        listed = tuple(selectors.parse(text) for text in profile.clients)
        return cls(profile, (*listed, further) if further else listed, own_uid)


class ClientAge(Enum):
    """How a client stands to a generation."""

    STALE = "stale"
    CURRENT = "current"
    UNKNOWN = "unknown"


def is_client(pod: Pod, rules: ClientRules) -> bool:
    """True if `pod` is a client that a controller makes again.

    Never one that asks for the accelerator or holds a claim, nor a driver's or our own, which would end the driver.
    """
    if pod.owner_kind not in OWNERS or pod.is_mirror or pod.has_left:
        return False
    if pod.claims or any(name.startswith(rules.profile.resource_prefixes) for name in pod.resources):
        return False
    if _is_driver(pod, rules.profile) or (rules.own_uid and pod.uid == rules.own_uid):
        return False
    is_named = any(selector.matches(pod.labels) for selector in rules.selectors)
    return is_named or (is_dra_plugin(pod, rules.profile) and not _deploy_keys(pod, rules.profile))


def standing(pod: Pod, generation: Generation, now_s: float) -> ClientAge:
    """How `pod` stands to `generation`: STALE if a container has run since before it was ready.

    Times are whole seconds: in the very second there was nothing to open before. A kubelet may report a bit late.
    """
    if pod.started_s is not None:
        return ClientAge.STALE if int(pod.started_s) < int(generation.ready_s) else ClientAge.CURRENT
    created_s = seconds_of(pod.created)
    may_be_late = created_s is not None and created_s < generation.ready_s and 0.0 <= now_s - generation.ready_s < LAG_S
    return ClientAge.UNKNOWN if may_be_late else ClientAge.CURRENT


def clients(pods: Iterable[Pod], rules: ClientRules) -> tuple[Pod, ...]:
    """The clients among `pods` that are not terminating, by name."""
    found = (pod for pod in pods if not pod.deleting and is_client(pod, rules))
    return tuple(sorted(found, key=lambda pod: (pod.namespace, pod.name)))


def holding_since_before(pods: Iterable[Pod], generation: Generation, now_s: float) -> tuple[Pod, ...]:
    return tuple(
        pod for pod in pods if pod.claims and not pod.is_over and standing(pod, generation, now_s) is ClientAge.STALE
    )


REGISTRY = "plugins_registry"
"""Folder below the kubelet's, in which CSI and DRA plugins register (kubelet, pkg/kubelet/pluginmanager)."""


def is_dra_plugin(pod: Pod, profile: Profile) -> bool:
    """True if `pod` is a kubelet plugin for the vendor's devices, by its mounts and its placement.

    A CSI node plugin registers in the same folder, and so do DRA plugins of other vendors.
    """
    if not any(path.rstrip("/").endswith(f"/{REGISTRY}") for path in pod.host_paths):
        return False
    folders = tuple(f"/plugins/{driver}" for driver in profile.dra_driver)
    has_folder = any(path.rstrip("/").endswith(folders) for path in pod.host_paths)
    return bool(_deploy_keys(pod, profile)) or has_folder or _shows_root(pod, profile.paths.driver_root)


def plugin_keys(pods: Iterable[Pod], profile: Profile) -> frozenset[str]:
    """Deploy-label keys that place DRA plugins of the vendor, with those that the profile names."""
    placing = (_deploy_keys(pod, profile) for pod in pods if is_dra_plugin(pod, profile))
    return profile.deploy.last_keys.union(*placing)


def _shows_root(pod: Pod, root: str) -> bool:
    """True if a hostPath volume is the driver root, something in it, or its parent, unless that is a top folder."""
    parent = root.rpartition("/")[0]
    whole = {root, parent} if parent.count("/") > 1 else {root}
    return any(path.rstrip("/") in whole or path.startswith(f"{root}/") for path in pod.host_paths)


def _deploy_keys(pod: Pod, profile: Profile) -> frozenset[str]:
    """The deploy-label keys, the driver's own among them, that `pod` needs to be placed."""
    prefix, whole = profile.deploy.prefix, {*profile.deploy.last_keys, *profile.deploy.on_unless_false}
    return frozenset(key for key in pod.selector_keys if (prefix and key.startswith(prefix)) or key in whole)


def _is_driver(pod: Pod, profile: Profile) -> bool:
    return bool(pod.config_digest) or (bool(profile.deploy.prefix) and profile.deploy.driver_key in pod.selector_keys)


# Pods that a pause makes leave, and why one of them is still there.

UNMOVED_OWNERS = frozenset({"", "Job", "Node", "ReplicaSet", "ReplicationController", "StatefulSet"})
"""Owners that keep a pod if a label of its node changes. A run waits for pods of all others, also unknown ones."""

OVERDUE_S = 60.0
"""A pod that is there this long after its grace does not end by itself, unless clocks disagree."""


def gates(labels: Mapping[str, str], own: Pod | None, profile: Profile) -> frozenset[str]:
    """Deploy-label keys that may be paused: those that are on, or are paused, but none that places our own pod."""
    places_us = own.selector_keys if own is not None else frozenset[str]()
    keys, inverse = profile.deploy_keys(labels) - places_us, profile.deploy.on_unless_false
    keys -= paused_by_owners(labels, profile).keys()
    switches = (key for key in keys if key not in inverse and label_rules.is_pausable(labels.get(key)))
    return frozenset(switches) | {key for key in keys & set(inverse) if labels.get(key) != label_rules.OFF}


def paused_by_owners(labels: Mapping[str, str], profile: Profile) -> dict[str, str]:
    """The deploy labels that another component has paused, with their values: it is at work, and restores them."""
    paused = profile.deploy.paused_value
    keys = profile.deploy_keys(labels) & labels.keys()
    return {key: labels[key] for key in sorted(keys) if label_rules.is_paused_by_others(labels[key], paused)}


def is_placed_by(pod: Pod, keys: Set[str], own: Pod | None) -> bool:
    """True if one of the node-label `keys` placed `pod`, and it is not ours, has not left, nor `asks_by_itself`."""
    if pod.has_left or asks_by_itself(pod) or (own is not None and pod.uid == own.uid):
        return False
    return not pod.selector_keys.isdisjoint(keys)


def asks_by_itself(pod: Pod) -> bool:
    """True if it is a user's pod that requests devices, placed by any node label or none."""
    return pod.owner_kind != "DaemonSet" and bool(pod.resources or pod.claims)


def is_unmoved(pod: Pod) -> bool:
    """True if a label that places `pod` does not make it leave: neither its owner nor a controller reacts to it."""
    return not pod.deleting and (pod.is_mirror or pod.owner_kind in UNMOVED_OWNERS)


def is_moved_by(pod: Pod, keys: Set[str], own: Pod | None) -> bool:
    """Whether pausing `keys` makes `pod` leave, or it is leaving already."""
    return is_placed_by(pod, keys, own) and not is_unmoved(pod)


def moved_by(pods: Iterable[Pod], keys: Set[str], own: Pod | None) -> tuple[Pod, ...]:
    return tuple(pod for pod in pods if is_moved_by(pod, keys, own))


def is_overdue(pod: Pod, wall_s: float) -> bool:
    """Whether `pod` should have ended long ago, `wall_s` being the time now in seconds since the epoch."""
    return pod.deleting and pod.due_s is not None and wall_s - pod.due_s > OVERDUE_S


def placed_by(pods: Iterable[Pod], keys: Set[str], own: Pod | None) -> tuple[Pod, ...]:
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
    """The holders with their pods' names, and uids of the API, if `pods` has them.

    A reader in a cgroup namespace of its own sees no pod's uid for what runs beside it, only the container's id
    (cgroup_namespaces(7)).
    """
    known = {name: pod for pod in pods for name in (*pod.container_ids, pod.static_uid, pod.uid) if name}
    found = ((one, known.get(one.pod_uid or one.container)) for one in holders)
    return tuple(replace(one, pod=str(pod), pod_uid=pod.uid) if pod else replace(one, pod="") for one, pod in found)


def why_still_there(pod: Pod) -> str:
    if pod.is_mirror:
        return "mirror pod of a static manifest: labels do not move it, remove its manifest from the node"
    if pod.reason == "NodeLost":
        return "node lost: its kubelet does not answer"
    if not pod.deleting:
        owner = f"owned by a {pod.owner_kind}" if pod.owner_kind else "it has no controller"
        if pod.owner_kind == "DaemonSet":
            return "not deleted: its DaemonSet controller has not reacted to the label, or its label was set back"
        return f"not deleted: {owner}, so a label does not move it; delete it by hand"
    if pod.finalizers:
        return f"terminating, held by finalizer {', '.join(pod.finalizers)}"
    return f"terminating, its grace period of {pod.grace_period_s or 0} s is running or its processes do not end"


FORCE_IT = "allow it with NPU_POD_EVICTION_FORCE=true (--npu-pod-eviction-force), or delete the pod"
DELETE_DATA = (
    "allow it with NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA=true (--npu-pod-eviction-delete-emptydir-data), "
    "or delete the pod"
)
ENABLE_IT = "set ENABLE_NPU_POD_EVICTION=true (--enable-npu-pod-eviction), or delete the pod"
EVICT_HOLDERS = "end what holds it, or allow it with EVICT_HOLDERS=true (--evict-holders)"
USE_LABEL = (
    "give its DaemonSet a nodeSelector on a deploy label of the node, so that the pause makes it leave, or keep "
    "it off this node"
)
RESTART_IT = "let the run restart it with RESTART_CLIENTS=true (--restart-clients)"
MIRROR = "remove its manifest from the node"

AFTER_GRACE_S = 10.0
"""A kubelet needs a while to kill a pod whose grace is over, and to tell that it is gone."""


class Use(Enum):
    """How a pod has to do with the accelerator: the first of these that is true of it."""

    ASKS = "asks"
    """It asks for one."""
    PLACED = "placed"
    """It asks for none, but a deploy label placed it, and does not make it leave."""
    HOLDS = "holds"
    """It only has the device open."""


class PodAction(Enum):
    """What becomes of a pod that uses the accelerator."""

    EVICT = "evict"
    WAIT = "wait"
    BLOCK = "block"
    RESTART = "restart"
    """It leaves right before the unload, and its controller recreates it: a client of the driver."""
    STAY = "stay"


class Workload(Struct, frozen=True):
    """One pod, how it `uses` the accelerator, and its fate. A BLOCK has a remedy."""

    pod: Pod
    uses: str
    action: PodAction
    why: str
    remedy: str = ""
    use: Use = Use.ASKS

    @property
    def has_asked(self) -> bool:
        """Whether it asks for the accelerator, rather than just having the device open."""
        return self.use is Use.ASKS

    @property
    def must_leave(self) -> bool:
        """Whether the driver cannot be replaced before it has left, whether or not it has the device open now."""
        return self.use is not Use.HOLDS

    def __str__(self) -> str:
        return f"{self.pod} ({self.uses})" if self.uses else str(self.pod)

    def to_json(self) -> dict[str, str]:
        return {"pod": str(self.pod), "uses": self.uses, "fate": self.action.value, "why": self.why}

    def to_text(self) -> str:
        return f"{' '.join(filter(None, (str(self.pod), self.uses)))}: {self.action.value}, {self.why}"


class NodePods(Struct, frozen=True):
    """The pods of the node, their claims, the holders of the device, and our own pod.

    `enclosing_uid` is the pod around our process, "" if unknown. `has_unread_claims`: claims may not be read, and no
    pod is evicted for them. `labels` are the Node's, empty if no label will be paused.
    """

    pods: tuple[Pod, ...]
    claims: tuple[Claim, ...]
    holders: tuple[Holder, ...]
    own_pod: Pod | None
    enclosing_uid: str = ""
    has_unread_claims: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    def is_ours(self, pod: Pod) -> bool:
        """Whether `pod` is the one that we run in: it would be our own end."""
        return pod.uid == self.enclosing_uid or (self.own_pod is not None and pod.uid == self.own_pod.uid)


def node_pods(obs: Observation) -> NodePods:
    return NodePods(
        obs.pods.pods, obs.claims, obs.holders, obs.own_pod, obs.enclosing_uid, obs.has_unread_claims, obs.node.labels
    )


def namespaces_with_claims(pods: Iterable[Pod], profile: Profile, rules: EvictionRules) -> tuple[str, ...]:
    """Where the ResourceClaims of these pods are; a pod that has ended holds none. () where no claim could be ours."""
    if not (rules.device_classes or profile.device_classes or profile.dra_driver):
        return ()
    return tuple(sorted({pod.namespace for pod in pods if pod.claims and not pod.is_over}))


def names_of_claims(pods: Iterable[Pod]) -> frozenset[tuple[str, str]]:
    """Namespace and name of every claim that one of `pods` holds; a pod that has ended holds none."""
    return frozenset((pod.namespace, name) for pod in pods if not pod.is_over for name in pod.claims)


def workloads(scene: NodePods, profile: Profile, rules: EvictionRules) -> tuple[Workload, ...]:
    """Every pod on the node that uses the accelerator, or has to leave before it, with its fate, by name."""
    claims = {(claim.namespace, claim.name): claim for claim in scene.claims}
    holders = {holder.pod_uid: holder for holder in reversed(scene.holders) if holder.pod_uid}
    keys = gates(scene.labels, scene.own_pod, profile)
    serving = _serving(scene, claims, profile, rules)
    found = []
    for pod in sorted(scene.pods, key=lambda pod: (pod.namespace, pod.name)):
        asked, holder = _asks_for(pod, claims, profile, rules), holders.get(pod.uid)
        if pod.uid in serving:
            found.append(Workload(pod, asked, PodAction.WAIT, "it leaves after the pods whose claims it serves"))
        elif asked:
            found.append(_judged(pod, asked, holder, _why_never(pod, scene, profile), rules))
        elif _is_unmoved_by(pod, keys, scene):
            found.append(_judged_placed(pod, keys, holder, scene, rules))
        elif holder is not None:
            found.append(replace(_judged_holder(pod, holder, scene, profile, rules), use=Use.HOLDS))
    return tuple(found)


def drained(scene: NodePods, profile: Profile, rules: EvictionRules) -> tuple[Workload, ...]:
    """Every pod that a drain concerns, with its fate: DaemonSets, mirror pods and what the selector leaves out stay."""
    uses = {workload.pod.uid: workload.uses for workload in workloads(scene, profile, rules)}
    keys = gates(scene.labels, scene.own_pod, profile)
    found = []
    for pod in sorted(scene.pods, key=lambda pod: (pod.namespace, pod.name)):
        is_left = pod.is_over or pod.is_mirror or pod.owner_kind == "DaemonSet" or scene.is_ours(pod)
        is_left = is_left or (is_operand(pod, profile) and not _is_unmoved_by(pod, keys, scene))
        if not is_left and rules.drain_selector.matches(pod.labels):
            found.append(_evictable(pod, uses.get(pod.uid, ""), rules))
    return tuple(found)


def holds_claim(scene: NodePods, profile: Profile, rules: EvictionRules) -> bool:
    """True if a pod that has not ended holds, or may hold, a claim of our drivers: it needs the DRA plugin to end."""
    if scene.has_unread_claims:
        return any(pod.claims and not pod.is_over for pod in scene.pods)
    claims = {(claim.namespace, claim.name): claim for claim in scene.claims}
    return any(_claims_of(pod, claims, profile, rules) for pod in scene.pods if not pod.is_over)


def claims_of(pods: Iterable[Pod], claims: Iterable[Claim], profile: Profile) -> tuple[str, ...]:
    """The claims of ours, as namespace/name, that `pods` hold."""
    known, rules = {(claim.namespace, claim.name): claim for claim in claims}, EvictionRules()
    held = (f"{pod.namespace}/{name}" for pod in pods for name in _claims_of(pod, known, profile, rules))
    return tuple(sorted(set(held)))


def unread_claims(scene: NodePods) -> tuple[str, ...]:
    """A warning where pods hold claims that we may not read."""
    pods = [pod for pod in scene.pods if pod.claims and not pod.is_over] if scene.has_unread_claims else []
    if not pods:
        return ()
    return (f"unknown whether {several(pods)} use the driver: resourceclaims may not be listed",)


def staying(scene: NodePods, profile: Profile, rules: EvictionRules, why: str) -> tuple[Workload, ...]:
    """The pods that request the accelerator if none has to leave; claims that were not read count as none."""
    found = workloads(scene, profile, rules)
    users = (one for one in found if one.use is not Use.PLACED and not one.pod.is_over)
    return tuple(replace(one, action=PodAction.STAY, why=why, remedy="") for one in users)


def by_name(found: Iterable[Workload]) -> tuple[Workload, ...]:
    return tuple(sorted(found, key=lambda one: (one.pod.namespace, one.pod.name)))


def with_action(found: Iterable[Workload], *actions: PodAction) -> tuple[Workload, ...]:
    return tuple(workload for workload in found if workload.action in actions)


def refusal(blocked: Iterable[Workload], why: str, found: Iterable[Workload] = ()) -> EvictionRefused:
    """The error that names each blocking pod with its reason, and each remedy once; `found` are its facts."""
    pods = list(blocked)
    remedies = dict.fromkeys(workload.remedy for workload in pods)
    what_to_do = ". ".join(remedy[:1].upper() + remedy[1:] for remedy in remedies)
    named = several((f"{workload}: {workload.why}" for workload in pods), "; ")
    error = EvictionRefused(f"{why}: {named}", f"{what_to_do}.")
    error.facts = {"workloads": [one.to_json() for one in found or pods]}
    error.blockers = tuple(pod_blocker(one.pod.uid) for one in pods)
    return error


def is_operand(pod: Pod, profile: Profile) -> bool:
    """Whether a deploy label, the driver's own among them, places the pod: labels move it, never an eviction.

    Not one that asks for devices and that no DaemonSet makes: a user who picks nodes by a deploy label.
    """
    if asks_by_itself(pod):
        return False
    return bool(_deploy_keys(pod, profile))


def _asks_for(pod: Pod, claims: Mapping[tuple[str, str], Claim], profile: Profile, rules: EvictionRules) -> str:
    """What of the accelerator the pod asks for, "" for nothing."""
    resources = [name for name in pod.resources if _is_of_the_driver(name, profile)]
    held = _claims_of(pod, claims, profile, rules)
    asked = [f"requests {', '.join(resources)}"] if resources else []
    asked += [f"holds claim {', '.join(held)}"] if held else []
    return " and ".join(asked)


def _is_of_the_driver(resource: str, profile: Profile) -> bool:
    """Whether a pod that asks for `resource` uses the driver: not where the device is passed through to its machine."""
    given_away = profile.passthrough.resources if profile.passthrough is not None else ()
    is_ours = resource.startswith(profile.resource_prefixes)
    return is_ours and not any(fnmatchcase(resource, pattern) for pattern in given_away)


def _claims_of(pod: Pod, claims: Mapping[tuple[str, str], Claim], profile: Profile, rules: EvictionRules) -> list[str]:
    found = ((name, claims.get((pod.namespace, name))) for name in pod.claims)
    return [name for name, claim in found if claim is not None and _is_of_class(claim, profile, rules)]


def _serving(
    scene: NodePods, claims: Mapping[tuple[str, str], Claim], profile: Profile, rules: EvictionRules
) -> frozenset[str]:
    """The pods of DaemonSets that a DRA driver makes for users' claims, by uid; () if no such user is to leave."""
    classes, serving, has_users = {*profile.serving_classes}, set[str](), False
    for pod in scene.pods if classes else ():
        held = [claims.get((pod.namespace, name)) for name in pod.claims]
        serves = all(one is not None and one.device_classes and classes.issuperset(one.device_classes) for one in held)
        if _why_never(pod, scene, profile):
            continue
        if held and serves and not pod.resources and pod.owner_kind == "DaemonSet":
            serving.add(pod.uid)
        elif _claims_of(pod, claims, profile, rules):
            has_users = True
    return frozenset(serving if has_users else ())


def after_others_s(going: Iterable[Workload]) -> float:
    """Seconds that pods which leave after all others may take; 0 without one."""
    waiting = (one.pod for one in going if one.action is PodAction.WAIT and not one.pod.deleting)
    return max((grace_s(pod) + AFTER_GRACE_S for pod in waiting), default=0.0)


def _is_of_class(claim: Claim, profile: Profile, rules: EvictionRules) -> bool:
    """True if it requests one of our classes, or was given one of our devices through a user's class.

    Devices passed through to a virtual machine do not use the driver: their claims are never ours.
    """
    classes = rules.device_classes or profile.device_classes
    passed_through = {f"vfio{joint}{name}" for name in classes for joint in "-."}
    asked = set(claim.device_classes)
    if asked & set(classes):
        return True
    return not asked & passed_through and not set(profile.dra_driver).isdisjoint(claim.drivers)


def _judged(pod: Pod, uses: str, holder: Holder | None, stays: str, rules: EvictionRules) -> Workload:
    """The fate of a pod that requests the accelerator; `stays`: why it is never evicted, "" if it may be."""
    if stays:
        return Workload(pod, uses, PodAction.STAY, stays)
    if pod.is_mirror and holder is not None:
        return Workload(
            pod, uses, PodAction.BLOCK, f"mirror pod of a static manifest that has {holder.node} open", MIRROR
        )
    if pod.is_mirror:
        return Workload(pod, uses, PodAction.STAY, "mirror pod of a static manifest: it cannot be evicted")
    return _consented(_evictable(pod, uses, rules), "eviction is not enabled", ENABLE_IT, is_given=rules.is_enabled)


def _judged_holder(pod: Pod, holder: Holder, scene: NodePods, profile: Profile, rules: EvictionRules) -> Workload:
    """The fate of a pod that has the device open without having asked for it."""
    uses = f"has {holder.node} {holder.how} without requesting it"
    stays = _why_never(pod, scene, profile)
    if stays:
        return Workload(pod, uses, PodAction.STAY, stays)
    if pod.is_mirror:
        return Workload(pod, uses, PodAction.BLOCK, "mirror pod of a static manifest", MIRROR)
    judged = _evictable(pod, uses, rules)
    holder_judged = _consented(judged, "evicted only with EVICT_HOLDERS", EVICT_HOLDERS, is_given=rules.evicts_holders)
    if not is_client(pod, ClientRules.of(profile, rules.clients, scene.enclosing_uid)) or pod.deleting:
        return holder_judged
    if rules.restarts_clients:
        return Workload(pod, uses, PodAction.RESTART, "a client of the driver, evicted right before the unload")
    if holder_judged.action is PodAction.BLOCK:
        why = "a client of the driver, restarted only with RESTART_CLIENTS"
        return replace(holder_judged, why=why, remedy=RESTART_IT)
    return holder_judged


def _is_unmoved_by(pod: Pod, keys: frozenset[str], scene: NodePods) -> bool:
    """Whether one of `keys` placed the pod and does not make it leave."""
    return is_placed_by(pod, keys, scene.own_pod) and is_unmoved(pod)


def _judged_placed(
    pod: Pod, keys: frozenset[str], holder: Holder | None, scene: NodePods, rules: EvictionRules
) -> Workload:
    """The fate of a pod that a deploy label placed, and that stays when that label is paused."""
    uses = f"is placed by {', '.join(sorted(pod.selector_keys & keys))}"
    uses += f" and has {holder.node} {holder.how}" if holder is not None else ""
    if scene.is_ours(pod):
        judged = Workload(pod, uses, PodAction.STAY, "our own pod")
    elif pod.is_mirror:
        judged = Workload(pod, uses, PodAction.BLOCK, "mirror pod of a static manifest: no label moves it", MIRROR)
    else:
        why = "no label makes it leave, and eviction is not enabled"
        judged = _consented(_evictable(pod, uses, rules), why, ENABLE_IT, is_given=rules.is_enabled)
    return replace(judged, use=Use.PLACED)


def _why_never(pod: Pod, scene: NodePods, profile: Profile) -> str:
    if scene.is_ours(pod):
        return "our own pod"
    if pod.is_over:
        return f"it has ended ({pod.phase})"
    if is_operand(pod, profile) and not pod.is_mirror:
        return "an operand: its label makes it leave"
    return ""


def _consented(judged: Workload, why: str, remedy: str, *, is_given: bool) -> Workload:
    """`judged`, blocked where the first consent is missing; one that no consent would evict keeps its own reason."""
    if is_given or judged.action is PodAction.WAIT or judged.remedy == USE_LABEL:
        return judged
    return replace(judged, action=PodAction.BLOCK, why=why, remedy=remedy)


def _evictable(pod: Pod, uses: str, rules: EvictionRules) -> Workload:
    """True if an eviction suits the pod, and the user's consents cover its losses."""
    if pod.deleting:
        return Workload(pod, uses, PodAction.WAIT, "it is terminating already")
    if pod.owner_kind == "DaemonSet":
        return Workload(pod, uses, PodAction.BLOCK, "its DaemonSet would recreate it at once", USE_LABEL)
    if not pod.owner_kind and not rules.forces:
        return Workload(pod, uses, PodAction.BLOCK, "no controller recreates it elsewhere", FORCE_IT)
    if pod.has_empty_dir and not rules.deletes_empty_dirs:
        return Workload(pod, uses, PodAction.BLOCK, "the data of its emptyDir volume would be lost", DELETE_DATA)
    return Workload(pod, uses, PodAction.EVICT, f"its {pod.owner_kind} recreates it" if pod.owner_kind else "forced")


def grace_s(pod: Pod) -> float:
    """Seconds that the pod may take to terminate: what it asks for, or what its deletion was given."""
    return float(pod.grace_period_s if pod.deleting and pod.grace_period_s is not None else pod.termination_grace_s)
