"""A fleet that lives by itself: the product's controller, and simulated actors around it, on one store and one clock.

The actors are the DaemonSet controller, kubelets, a rebooter, an autoscaler with node repair, and an operator that
removes the state label. Each reacts to the store's changes after a delay, as the real ones do. A scenario is a function
that gets a `Simulator`, and does with it what a person does. Everything that changes in the store is a line of the
trace, and after each change the limits of the rollout are checked (`Limits`).

An `Order` decides what comes first of what may happen at nearly the same time: the default order has no chance in it.
In others delays vary by half, and each watch of the controller shows its changes up to `LAG_S` late.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

from msgspec.structs import replace

from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.fleet import readers
from driver_manager.adapters.kube.leases import LeaseLeadership
from driver_manager.cli.options import zone
from driver_manager.core.fleet_ports import Change, EventAbout, Leadership, Subject
from driver_manager.domain.fleet import spec as records
from driver_manager.domain.fleet.spec import PLURAL, RETRY, UNDER_WAY_WORDS, Amount, NodeRecord, Task, UpgradeState
from driver_manager.domain.fleet.state import TASK_LABEL, TASK_REVISION_LABEL
from driver_manager.domain.journal import Journal, Owner, encode
from driver_manager.domain.node import REVISION_LABEL
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.reboot.decision import APPROVED as REBOOT_APPROVED
from driver_manager.domain.text import parse_duration, several
from driver_manager.domain.wire import written_time
from driver_manager.sandbox.apiserver import ApiError, Event, Obj, ResourceKind, Store, apply_merge_patch
from tests.support.fakes import fleet_scene
from tests.support.fakes.builders import PROFILE, PROFILES
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.killer import Killed, Killer
from tests.support.fakes.lease_api import LeaseApi, LeaseServer

LAG_S = 2.0
"""The most seconds by which a watch is late."""

KNOWN_S = LAG_S + 3.0
"""Seconds after which a controller knows what others changed, and has to respect it."""

OBSERVE_S = 1.0
REPORT_S = 5.0
"""Seconds from the end of a pod until its kubelet reports it, as kubelets of Kubernetes 1.36 do."""

MAX_TURNS = 1000
"""Turns of controllers at one moment; more are a loop."""

OURS = "rebellions.ai/npu-driver-manager"
KEYS = replace(PROFILE.keys, approve_reboot=f"{OURS}.approve-reboot", reboot_in_progress=f"{OURS}.reboot-in-progress")
SIM_PROFILE = replace(PROFILE, keys=KEYS)
"""A profile with all keys that a rollout reads."""

CORDON, UNCORDON = {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}
SKIP = {"metadata": {"labels": {KEYS.skip: "true"}}}
WATCHED = ("nodes", "pods", "daemonsets", PLURAL)


class Order:
    """How the moments of a scenario fall; without a seed as they are planned."""

    def __init__(self, seed: int | None = None) -> None:
        self._dice = random.Random(seed) if seed is not None else None  # noqa: S311  # the same at every run

    def delay_s(self, seconds: float) -> float:
        return seconds * self._dice.uniform(0.5, 1.5) if self._dice is not None else seconds

    def lag_s(self) -> float:
        return self._dice.choice((0.0, 0.0, self._dice.uniform(0.0, LAG_S))) if self._dice is not None else 0.0

    def of(self, subjects: Iterable[Subject]) -> list[Subject]:
        found = sorted(subjects, key=str)
        if self._dice is not None:
            self._dice.shuffle(found)
        return found


class SimStore(Store):
    """A store whose times are those of the simulated clock, and whose names and uids are the same at every run."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self._made = 0

    @property
    def revision(self) -> int:
        return self._revision

    def create(self, resource: str, obj: Obj, *, dry_run: bool = False) -> Obj:
        metadata = obj["metadata"]
        if "name" not in metadata:
            obj = {**obj, "metadata": {**metadata, "name": f"{metadata['generateName']}{self._made}"}}
        return super().create(resource, obj, dry_run=dry_run)

    def _commit(self, kind: ResourceKind, change: str, old: Obj | None, new: Obj, *, dry_run: bool = False) -> Obj:
        metadata = new["metadata"]
        if change == "ADDED":
            self._made += 1
            metadata |= {"uid": f"uid-{self._made}", "creationTimestamp": written_time(self._clock.wall())}
        elif "deletionTimestamp" in metadata and old is not None and "deletionTimestamp" not in old["metadata"]:
            after_s = metadata.get("deletionGracePeriodSeconds") or 0
            metadata["deletionTimestamp"] = written_time(self._clock.wall() + after_s)
        return super()._commit(kind, change, old, new, dry_run=dry_run)


class SimFleet(fleet_scene.StoreFleet):
    """The controller's port. Its watches are independent of each other. It never waits: the simulator has the clock."""

    def __init__(self, scene: fleet_scene.FleetScene, killer: Killer | None = None) -> None:
        super().__init__(scene, killer)
        self._sim = cast("Simulator", scene)
        self._late: dict[Subject, deque[tuple[float, Change]]] = {}
        self._polled = 0

    def changes(self, until_s: float) -> tuple[Change, ...]:
        with self.killer.call("changes"):
            self.poll()
            now_s, found = self._sim.clock.monotonic(), list[Change]()
            for subject in self._sim.order.of(self._late):
                queue = self._late[subject]
                while queue and queue[0][0] <= now_s:
                    found.append(queue.popleft()[1])
            return tuple(found)

    def poll(self) -> None:
        """Note when each change that is new becomes visible: those of one watch in their order."""
        if self._sim.store.revision == self._polled and not self._changes:
            return
        self._polled = self._sim.store.revision
        for change in sorted(self._drained(), key=lambda one: str(one.subject)):  # sets have another order at each run
            queue = self._late.setdefault(change.subject, deque())
            at_s = self._sim.clock.monotonic() + self._sim.order.lag_s()
            queue.append((max(at_s, queue[-1][0]) if queue else at_s, change))
        self._late = {subject: queue for subject, queue in self._late.items() if subject in self._since}

    def next_s(self) -> float:
        return min((queue[0][0] for queue in self._late.values() if queue), default=math.inf)

    def post_event(self, about: EventAbout, reason: str, message: str, *, warning: bool, key: str) -> None:
        super().post_event(about, reason, message, warning=warning, key=key)
        self._sim.tell(f"posts {'the warning' if warning else 'the event'} {reason}")

    @contextlib.contextmanager
    def _effect(self, what: str, name: str) -> Iterator[None]:
        with super()._effect(what, name):
            yield
            self._sim.settle()


@dataclass
class Process(fleet_scene.ControllerRun):
    """One controller. `is_frozen`: it gets no processor time, as on a node that hangs. `is_logged`: its death is."""

    name: str = "controller"
    is_frozen: bool = False
    has_begun: bool = False
    is_logged: bool = False
    cluster_type: ClassVar[type[fleet_scene.StoreFleet]] = SimFleet

    @property
    def due_s(self) -> float:
        if self.killer.is_dead or self.is_frozen:
            return math.inf
        return min(self.controller._until_s(), cast("SimFleet", self.cluster).next_s()) if self.has_begun else 0.0


class Actor:
    """A client that changes the store under the name `who`, and reacts to changes of it."""

    who = ""

    def __init__(self, sim: Simulator) -> None:
        self._sim = sim

    def react(self, event: Event) -> None:
        """See a change of the store, and plan what follows."""

    def _later(self, seconds: float, action: Callable[[], object]) -> None:
        self._sim.after(seconds, self.who, action)


class DaemonSetController(Actor):
    """Makes a pod of the newest template where a node admits one, and removes pods of nodes that are gone.

    pkg/controller/daemon/daemon_controller.go of kubernetes, NodeShouldRunDaemonPod: a node that does not match, or has
    a NoExecute taint that is not tolerated, loses its pod; with a NoSchedule taint it keeps it and gets no other one.
    """

    who = "DaemonSet controller"
    makes_none_for = ""

    def react(self, event: Event) -> None:
        if event.resource == "daemonsets" and event.obj["spec"] != (event.previous or {}).get("spec"):
            self._later(OBSERVE_S, self._observe)
        elif event.resource == "nodes" and (event.type != "MODIFIED" or _place(event.obj) != _place(event.previous)):
            self._later(fleet_scene.START_S, lambda: self._reconcile(event.obj["metadata"]["name"]))
        elif event.resource == "pods" and event.type == "DELETED":
            self._later(fleet_scene.START_S, lambda: self._reconcile(_node_of(event.obj)))

    def admits(self, node: Obj) -> tuple[bool, bool]:
        """Whether the node gets a pod, and whether it keeps the one that it has."""
        template = self._sim.objects["daemonsets"][fleet_scene.DRIVER]["spec"]["template"]["spec"]
        labels, taints = node["metadata"].get("labels", {}), (node.get("spec") or {}).get("taints", [])
        required = template.get("affinity", {}).get("nodeAffinity", {})
        terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
        if not template.get("nodeSelector", {}).items() <= labels.items():
            return False, False
        matches = (all(_holds(one, labels) for one in term["matchExpressions"]) for term in terms or ())
        if terms is not None and not any(matches):
            return False, False
        tolerations = [*template.get("tolerations", []), *TOLERATED]
        left = {taint["effect"] for taint in taints if not any(_tolerates(one, taint) for one in tolerations)}
        return not left & {"NoSchedule", "NoExecute"}, "NoExecute" not in left

    def _observe(self) -> None:
        fleet_scene.FleetScene.observe(self._sim)
        for name in list(self._sim.nodes):
            self._reconcile(name)

    def _reconcile(self, name: str) -> None:
        node, pods = self._sim.nodes.get(name), self._sim.pods_of(name)
        gets, keeps = self.admits(node) if node is not None else (False, False)
        if pods and not keeps:
            for pod in pods:
                self._sim.remove_pod(pod, None if node else 0)
        elif gets and not pods and name != self.makes_none_for:
            self._sim.make_pod(name)


def _place(node: Obj | None) -> Any:
    """What decides whether a DaemonSet has a pod on the node."""
    return node and (node["metadata"].get("labels"), (node.get("spec") or {}).get("taints"))


def _holds(expression: Obj, labels: Mapping[str, str]) -> bool:
    """k8s.io/api core/v1, NodeSelectorRequirement, without Gt and Lt."""
    key, operator, values = expression["key"], expression["operator"], expression.get("values", ())
    if operator in ("Exists", "DoesNotExist"):
        return (key in labels) is (operator == "Exists")
    return (labels.get(key) in values) is (operator == "In")


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    """k8s.io/api core/v1, Toleration.ToleratesTaint."""
    is_of_value = toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
    return is_of_value and all(toleration.get(key, "") in ("", taint[key]) for key in ("key", "effect"))


TOLERATED = (
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
)
"""Those of pkg/controller/daemon/util/daemonset_util.go of kubernetes, AddOrUpdateDaemonPodTolerations, that matter."""


class Kubelets(Actor):
    """Ends pods, and makes them ready unless `fates` has another end of a pod for its revision, or revision and node.

    A fate is `broken`, a state that the node reports (`held`, `wedged`, `reboot-required`), or `unscheduled`. A pod
    that clears a node notes that in the journal, and ends once the driver pod is gone.
    """

    who = "kubelet"

    def __init__(self, sim: Simulator) -> None:
        super().__init__(sim)
        self.fates: dict[str, str] = {}

    def react(self, event: Event) -> None:
        pod = event.obj
        if event.resource != "pods":
            return
        if event.type == "DELETED":
            for clear in self._sim.pods_of(_node_of(pod), TASK_LABEL, Task.CLEAR.value):
                self._after(REPORT_S, clear, self._end_task)
        elif event.type == "ADDED" and "nodeName" in pod["spec"]:
            task = pod["metadata"]["labels"].get(TASK_LABEL)
            follows = {None: self._start, Task.CLEAR.value: self._clear, Task.PREFLIGHT.value: self._end_task}
            self._after(fleet_scene.LOOKS_S if task else fleet_scene.READY_S, pod, follows[task])
        elif _is_deleted(event) and "nodeName" in pod["spec"]:
            self._after(fleet_scene.STOP_S, pod, self._sim.remove_pod)

    def fate(self, revision: str, node: str) -> str:
        return self.fates.get(f"{revision} {node}", self.fates.get(revision, "ready"))

    def reports(self, node: str, word: str, what: str = "") -> None:
        """A run on the node ends, or its health-watch sees this state."""
        now = written_time(self._sim.clock.wall())
        outcome = {"v": 1, "state": word, "exitCode": 0, "what": what or word, "ended": now, "since": now}
        notes = {KEYS.last_outcome: json.dumps(outcome)}
        self._sim.edit_node(node, {"metadata": {"labels": {KEYS.state: word}, "annotations": notes}})

    def ready(self, pod: Obj) -> None:
        node = pod["spec"]["nodeName"]
        if KEYS.journal in self._sim.nodes[node]["metadata"].get("annotations", {}):
            self._sim.note(node, {KEYS.journal: None})
        if _label(self._sim.nodes[node], KEYS.state) not in ("", "ready"):
            self.reports(node, "ready")
        self._sim._ready(pod)

    def unready(self, pod: Obj) -> None:
        self._sim._ready(pod, "False")

    def _after(self, seconds: float, pod: Obj, action: Callable[[Obj], object]) -> None:
        def act() -> None:
            if pod["spec"]["nodeName"] in self._sim.nodes and pod["metadata"]["name"] in self._sim.pods_by_name:
                action(pod)

        self._later(seconds, act)

    def _start(self, pod: Obj) -> None:
        node, revision = pod["spec"]["nodeName"], pod["metadata"]["labels"][REVISION_LABEL]
        if "deletionTimestamp" in self._sim.pods_by_name[pod["metadata"]["name"]]["metadata"]:
            return
        if (fate := self.fate(revision, node)) == "ready":
            self.ready(pod)
        elif fate != "broken":
            self.reports(node, fate, f"driver of {revision}: {fate}")

    def _clear(self, pod: Obj) -> None:
        node, uid = self._sim.nodes[pod["spec"]["nodeName"]], pod["metadata"]["uid"]
        cleared = pod["metadata"]["labels"][TASK_REVISION_LABEL]
        owner = Owner(pod=f"{fleet_scene.NAMESPACE}/{pod['metadata']['name']}", pod_uid=uid)
        journal = Journal(owner=owner, boot_id=node["status"]["nodeInfo"]["bootID"], cleared=cleared)
        self._sim.note(node["metadata"]["name"], {KEYS.journal: encode(journal)})

    def _end_task(self, pod: Obj) -> None:
        if (result := self._sim.preflights.get(pod["spec"]["nodeName"], (0, ""))) is not None:
            self._sim._ended(pod, *result)


class Rebooter(Actor):
    """Reboots nodes that require it and are approved: `slots` at a time, from `opens_s` on, each in `minutes`.

    What it grants is in the annotation `reboot_in_progress` of the Node. On the node `hangs` it does not end.
    """

    who = "rebooter"
    slots, minutes, opens_s = 1, 12.0, 0.0
    hangs = ""

    def __init__(self, sim: Simulator) -> None:
        super().__init__(sim)
        self._busy: set[str] = set()

    def react(self, event: Event) -> None:
        if event.resource == "nodes" and event.type == "MODIFIED" and self._waits(event.obj):
            self._later(5.0, self._look)

    def opens_in(self, duration: str) -> None:
        self.opens_s = self._sim.clock.monotonic() + parse_duration(duration)

    def _waits(self, node: Obj) -> bool:
        notes = node["metadata"].get("annotations", {})
        is_asked = _label(node, KEYS.state) == NodeState.REBOOT_REQUIRED.value
        return is_asked and notes.get(KEYS.approve_reboot) == REBOOT_APPROVED

    def _look(self) -> None:
        waiting = [name for name, node in sorted(self._sim.nodes.items()) if self._waits(node)]
        if waiting and self._sim.clock.monotonic() < self.opens_s:
            self._later(60.0, self._look)
            return
        for name in waiting:
            if name not in self._busy and len(self._busy) < self.slots:
                self._busy.add(name)
                self._sim.note(name, {KEYS.reboot_in_progress: "upgrade", KEYS.approve_reboot: None})
                self._sim.set_ready(name, "False")
                if name != self.hangs:
                    self._later(60.0 * self.minutes, partial(self._boot, name))

    def _boot(self, name: str) -> None:
        self._busy.discard(name)
        if name in self._sim.nodes:
            self._sim.set_ready(name, "True", boot=f"boot-{name}-again")
            self._sim.note(name, {KEYS.reboot_in_progress: None})
            for pod in self._sim.pods_of(name):
                self._sim.kubelets.ready(pod)
        self._look()


class Autoscaler(Actor):
    """Adds and removes nodes; with `repairs_after_s` it replaces a node whose upgrade has failed for so long.

    With `removes_after_s` it removes each node so long after its driver pod was deleted.
    """

    who = "autoscaler"
    repairs_after_s = removes_after_s = math.inf

    def react(self, event: Event) -> None:
        if event.resource == "pods" and _is_deleted(event) and self.removes_after_s < math.inf:
            self._later(self.removes_after_s, partial(self.removes, _node_of(event.obj)))
        if event.type != "MODIFIED" or self.repairs_after_s == math.inf or event.resource != "nodes":
            return
        before, now = _label(event.previous, KEYS.upgrade_state), _label(event.obj, KEYS.upgrade_state)
        if now == UpgradeState.FAILED.value != before:
            uid = event.obj["metadata"]["uid"]
            self._later(self.repairs_after_s, lambda: self._replace(event.obj, uid))

    def _replace(self, node: Obj, uid: str) -> None:
        name = node["metadata"]["name"]
        if self._sim.nodes.get(name, {"metadata": {}})["metadata"].get("uid") == uid:
            self.removes(name)
            self.adds(f"spare-of-{name}")

    def adds(self, *names: str, **labels: str) -> None:
        for name in names:
            self._later(0.0, partial(self._sim.make_node, name, labels))

    def removes(self, name: str) -> None:
        self._later(0.0, lambda: self._sim.store.delete("nodes", name))

    def taints(self, name: str, key: str = "ToBeDeletedByClusterAutoscaler", effect: str = "NoSchedule") -> None:
        taints = [{"key": key, "value": "1", "effect": effect}]
        self._later(0.0, lambda: self._sim.edit_node(name, {"spec": {"taints": taints}}))

    def disrupts(self, name: str, minutes: float) -> None:
        """As Karpenter does: it deletes the Node, which stays with its finalizer until the node is drained."""
        self._later(0.0, lambda: self._sim.edit_node(name, {"metadata": {"finalizers": ["karpenter.sh/termination"]}}))
        self.taints(name, "karpenter.sh/disrupted")
        self.removes(name)
        drained = {"metadata": {"finalizers": None}}
        self._later(60.0 * minutes, lambda: self._sim.edit_node(name, drained))


class LabelOperator(Actor):
    """A vendor's operator: it removes the state label wherever it sees one, or writes `word` instead."""

    who = "operator"
    strips_after_s = math.inf
    word: str | None = None

    def react(self, event: Event) -> None:
        is_strange = _label(event.obj, KEYS.upgrade_state) not in ("", self.word)
        if event.resource == "nodes" and self.strips_after_s < math.inf and is_strange:
            self._later(self.strips_after_s, lambda: self._strip(event.obj["metadata"]["name"]))

    def _strip(self, name: str) -> None:
        if name in self._sim.nodes:
            self._sim.edit_node(name, {"metadata": {"labels": {KEYS.upgrade_state: self.word}}})


def _record(node: Obj | None) -> NodeRecord | None:
    text = node["metadata"].get("annotations", {}).get(KEYS.rollout) if node is not None else None
    return records.decode_node_record(text) if text is not None else None


def _node_of(pod: Obj) -> str:
    """The node of a pod; of one that is not scheduled, the one that its DaemonSet wants it on."""
    if "nodeName" in pod["spec"]:
        return str(pod["spec"]["nodeName"])
    rule = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(rule["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _is_deleted(event: Event) -> bool:
    """True if this is the change by which the object gets its deletionTimestamp."""
    before = event.previous["metadata"] if event.previous is not None else {}
    return "deletionTimestamp" in event.obj["metadata"] and "deletionTimestamp" not in before


def _label(node: Obj | None, key: str) -> str:
    return str(node["metadata"].get("labels", {}).get(key, "")) if node is not None else ""


class Limits:
    """What a rollout promises, checked at each change of the store: the limits of its spec, and each node at most once.

    `under_way` are the nodes that a controller has taken and not ended, `failed` the uids of those that it marked as
    failed by revision; `taken` are all that it took for a revision, in order. What others changed less than `KNOWN_S`
    ago is no reason: no watch had to show it yet.
    """

    def __init__(self, sim: Simulator) -> None:
        self._sim = sim
        self.under_way: dict[str, str] = {}
        self.failed: dict[str, set[str]] = {}
        self.taken: dict[str, list[str]] = {}
        self._restarted = Counter[tuple[str, str]]()
        self._retried: set[str] = set()
        self._away_since_s: dict[str, float] = {}
        self._refuses_since_s: dict[str, float] = {}

    def see(self, event: Event, *, is_ours: bool) -> None:
        metadata = event.obj["metadata"]
        if event.resource == "daemonsets" and event.previous and event.obj["spec"] != event.previous["spec"]:
            self._restarted.clear()
        if event.resource == PLURAL and (metadata.get("annotations") or {}).get(RETRY):
            self._retried.add(metadata["annotations"][RETRY])
        if event.resource == "nodes":
            if metadata.get("annotations", {}).get(KEYS.upgrade_requested):
                self._retried.add(metadata["uid"])
            if event.type == "DELETED":
                self.under_way.pop(metadata["name"], None)
                for uids in self.failed.values() if _label(event.obj, KEYS.skip) == "true" else ():
                    uids.discard(metadata["uid"])
            elif is_ours:
                self._mark(event)
        if event.resource == "pods" and is_ours and "deletionTimestamp" in metadata:
            self._restart(event.obj)
        if event.resource in ("nodes", "pods"):
            self._look(metadata["name"] if event.resource == "nodes" else _node_of(event.obj))

    def _look(self, name: str) -> None:
        node, now_s = self._sim.nodes.get(name), self._sim.clock.monotonic()
        if node is None:
            self._away_since_s.pop(name, None)
            self._refuses_since_s.pop(name, None)
            return
        serves = any(_is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in self._sim.pods_of(name))
        is_away = not (serves and _is_ready(node)) or (node.get("spec") or {}).get("unschedulable")
        refuses = not self._sim.daemon_set.admits(node)[0]
        for since_s, holds in ((self._away_since_s, is_away), (self._refuses_since_s, refuses)):
            if holds:
                since_s.setdefault(name, now_s)
            else:
                since_s.pop(name, None)

    def _mark(self, event: Event) -> None:
        name, uid = event.obj["metadata"]["name"], event.obj["metadata"]["uid"]
        before, record = _record(event.previous), _record(event.obj)
        if before == record:
            return
        word = _label(event.obj, KEYS.upgrade_state)
        if record is not None and word in UNDER_WAY_WORDS:
            self.under_way[name] = record.revision
            if before is None or before.began_s != record.began_s:
                self._take(name, uid, record.revision)
            return
        self.under_way.pop(name, None)
        if record is not None:
            of_it = self.failed.setdefault(record.revision, set())
            (of_it.add if word == UpgradeState.FAILED.value else of_it.discard)(uid)

    def _take(self, name: str, uid: str, revision: str) -> None:
        self.taken.setdefault(revision, []).append(name)
        spec = self._sim.rollout()["spec"]
        parallel = spec.get("maxParallel", 1) or math.inf
        assert len(self.under_way) <= parallel, f"{len(self.under_way)} nodes are under way, maxParallel is {parallel}"
        is_retry = bool({uid, revision} & self._retried)
        outside = {self._sim.nodes[one]["metadata"]["uid"] for one in self._outside()}
        failed = len(self.failed.get(revision, set()) - outside)
        assert is_retry or failed < spec.get("failureThreshold", 1), f"{name} is taken after {failed} failed"
        self._retried.discard(uid)
        if is_retry:
            self._restarted.pop((uid, revision), None)
        if (units := spec.get("units")) and units.get("mode", "OneAtATime") == "OneAtATime":
            named = [_label(self._sim.nodes[one], units["topologyKey"]) or one for one in self.under_way]
            assert len(named) == len(set(named)), f"two nodes of a unit are under way: {sorted(self.under_way)}"
        self._check_available(name, spec.get("maxUnavailable"))

    def _check_available(self, name: str, most: int | str | None) -> None:
        known_s = self._sim.clock.monotonic() - KNOWN_S
        away = {one for one, since_s in self._away_since_s.items() if since_s <= known_s}
        if most is None or name in away:
            return
        placed = {one for one, node in self._sim.nodes.items() if self._sim.daemon_set.admits(node)[0]}
        ours = {one for one in self._sim.nodes if one in placed or self._sim.pods_of(one)} - self._outside()
        amount = Amount(int(str(most).removesuffix("%")), str(most).endswith("%")).of(len(ours))
        count = len((away | self.under_way.keys()) & ours)
        assert count <= amount, f"{name} is taken with {count} unavailable, maxUnavailable is {most}"

    def _outside(self) -> set[str]:
        """Nodes that a person skips, or that are being removed: they count for nothing."""
        leaving = {"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"}
        taints = {name: (node.get("spec") or {}).get("taints", ()) for name, node in self._sim.nodes.items()}
        left = {name for name, found in taints.items() if leaving & {taint["key"] for taint in found}}
        return left | {name for name, node in self._sim.nodes.items() if _label(node, KEYS.skip) == "true"}

    def _restart(self, pod: Obj) -> None:
        name = _node_of(pod)
        if TASK_LABEL in pod["metadata"]["labels"]:
            return
        since_s = self._refuses_since_s.get(name, math.inf)
        known_s = self._sim.clock.monotonic() - KNOWN_S
        assert since_s > known_s, f"the driver pod of {name} is deleted, and the DaemonSet makes no other one"
        assert name in self.under_way, f"the driver pod of {name} is deleted, which is not under way"
        node = self._sim.nodes[name]["metadata"]["uid"]
        self._restarted[node, self.under_way[name]] += 1
        assert self._restarted[node, self.under_way[name]] == 1, f"{name} is restarted twice for a revision"


def _story(event: Event) -> Iterator[str]:
    """What a change of the store is, for people who read: verb and object. Nothing for what follows by itself."""
    one, before, name = event.obj, event.previous or {"metadata": {}}, event.obj["metadata"]["name"]
    match event.resource, event.type:
        case "nodes", "ADDED":
            yield f"adds {name}"
        case "nodes", "DELETED":
            yield f"deletes {name}"
        case "nodes", "MODIFIED":
            yield from _node_story(event)
        case "daemonsets", "MODIFIED" if before["spec"] != one["spec"]:
            yield f"sets the template to {one['spec']['template']['spec']['containers'][0]['image']}"
        case "pods", _:
            yield from _pod_story(event)
        case _, "MODIFIED" if event.resource == PLURAL:
            changed = {key: value for key, value in one["spec"].items() if before["spec"].get(key) != value}
            yield from (f"sets {key} to {json.dumps(value)}" for key, value in changed.items())
            notes = _new(before, one, "annotations")
            yield from (f"annotates the rollout with {key.partition('/')[2]}={text}" for key, text in notes)
        case _, "DELETED" if event.resource == PLURAL:
            yield "deletes the rollout"


def _new(before: Obj, one: Obj, where: str) -> list[tuple[str, str]]:
    """The labels or annotations that are not as before; "" for those that are gone."""
    old, new = before["metadata"].get(where, {}), one["metadata"].get(where, {})
    return [(key, new.get(key, "")) for key in sorted({*old, *new}) if old.get(key) != new.get(key)]


_NOTES = {
    KEYS.upgrade_requested: "asks for a retry of",
    KEYS.approve_reboot: "approves the reboot of",
    KEYS.reboot_in_progress: "reboots",
    KEYS.journal: "notes in the journal that it has cleared",
}


def _node_story(event: Event) -> Iterator[str]:
    one, before, name = event.obj, event.previous or {}, event.obj["metadata"]["name"]
    labels, notes = dict(_new(before, one, "labels")), dict(_new(before, one, "annotations"))
    if KEYS.upgrade_state in labels or KEYS.rollout in notes:
        word, record = _label(one, KEYS.upgrade_state), _record(one)
        reason = record.reason if record is not None else ""
        if KEYS.rollout not in notes:
            yield f"removes the state label of {name}" if not word else f"labels {name} {word}"
        else:
            yield f"marks {name} {word or 'as not under way'}{': ' if reason else ''}{reason}"
    if KEYS.state in labels:
        outcome = json.loads(one["metadata"]["annotations"][KEYS.last_outcome])["what"]
        yield f"{name} reports {labels[KEYS.state]}" + (f": {outcome}" if outcome != labels[KEYS.state] else "")
    if labels.get(KEYS.skip):
        yield f"labels {name} to be skipped"
    yield from (f"{text} {name}" for key, text in _NOTES.items() if notes.get(key))
    old, new = before.get("spec") or {}, one.get("spec") or {}
    if old.get("unschedulable") != new.get("unschedulable"):
        yield f"{'cordons' if new.get('unschedulable') else 'uncordons'} {name}"
    for taint in new.get("taints", []) if old.get("taints") != new.get("taints") else []:
        yield f"taints {name} {taint['key']}:{taint['effect']}"
    if _is_deleted(event):
        yield f"deletes {name}, which waits for its finalizer"
    if _is_ready(before) is not _is_ready(one):
        yield f"{name} is {'Ready' if _is_ready(one) else 'NotReady'}"
    if before["status"]["nodeInfo"] != one["status"]["nodeInfo"]:
        yield f"{name} has booted"


def _pod_story(event: Event) -> Iterator[str]:
    one, before = event.obj, event.previous or {"metadata": {}}
    labels, node, status = one["metadata"]["labels"], _node_of(one), one.get("status") or {}
    what = f"{labels[TASK_LABEL]} pod" if TASK_LABEL in labels else f"driver pod of {labels.get(REVISION_LABEL)}"
    ends = [one["state"]["terminated"] for one in status.get("containerStatuses", ()) if "terminated" in one["state"]]
    if event.type == "ADDED":
        why = status["conditions"][0]["message"] if status.get("phase") == "Pending" else ""
        yield f"makes a {what} for {node}{', which cannot be scheduled: ' if why else ''}{why}"
    elif _is_deleted(event) or (event.type == "DELETED" and "deletionTimestamp" not in one["metadata"]):
        yield f"deletes the {what} on {node}"
    elif event.type == "DELETED":
        return
    elif _is_ready(one) and not _is_ready(before):
        yield f"the {what} on {node} is ready"
    elif ends and status != before.get("status"):
        yield f"the {what} on {node} ends with {ends[0]['exitCode']} {ends[0]['message']}".rstrip()


def _is_ready(one: Obj) -> bool:
    conditions = (one.get("status") or {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


class Simulator(fleet_scene.FleetScene):
    """The cluster, its actors and controllers, and the trace of what they do."""

    def __init__(self, order: Order | None = None) -> None:
        clock = FakeClock()
        self.store: SimStore = SimStore(clock)
        super().__init__(clock, self.store)
        self.order = order or Order()
        self.trace: list[str] = []
        self.phases: list[str] = []
        self.objects: dict[str, dict[str, Obj]] = {resource: {} for resource in WATCHED}
        self.nodes, self.pods_by_name = self.objects["nodes"], self.objects["pods"]
        self.processes: list[Process] = []
        self.daemon_set, self.kubelets, self.autoscaler = DaemonSetController(self), Kubelets(self), Autoscaler(self)
        self.rebooter, self.operator = Rebooter(self), LabelOperator(self)
        self.limits = Limits(self)
        self._actors = (self.daemon_set, self.kubelets, self.rebooter, self.autoscaler, self.operator)
        self._who, self._since, self._shown, self._began_s = "person", 0, "", 0.0
        self._is_live, self._turns = False, 0
        self.rules: Obj = {}
        self.profile = SIM_PROFILE
        self._deleted: set[tuple[str, str]] = set()
        self._planned: list[tuple[Callable[[], bool], str, Callable[[], object]]] = []
        self._lease = LeaseServer()

    # The scene, with actors that follow by themselves

    def fleet(self, nodes: int | Mapping[str, Mapping[str, str]] = 4, *, by_lease: bool = False, **spec: Any) -> None:
        """Nodes with their labels that serve r1, a rollout that is Complete, and a controller. The trace begins."""
        self.set_driver("driver:1", **self.rules)
        named = nodes if isinstance(nodes, Mapping) else {f"node-{number}": {} for number in range(nodes)}
        for name, labels in named.items():
            self.add_nodes(name, labels=labels)
        self.add_rollout(**{"waves": [{"name": "all"}], "maxParallel": 1, **spec})
        self.settle()
        self._is_live = True
        self.start_controller(by_lease=by_lease)
        self.until("Complete")
        self.trace, self._began_s = [], self.clock.monotonic()

    def rollout(self, name: str = fleet_scene.DRIVER) -> Obj:
        return self.objects[PLURAL].get(name) or {}

    def observe(self) -> str:
        return self.newest() if self._is_live else super().observe()

    def upgrade(self, *, after: str = "", until: str | Callable[[], bool] = "", run: str = "", **fates: str) -> None:
        """A person sets the template of the next revision, `after` a while; `fates` of its pods by node, or `on_all`.

        Then time passes `until` a phase or until something holds, or for the duration `run`.
        """
        if after:
            self.run(after)
        revision = f"r{len(self.revisions()) + 1}"
        for name, fate in fates.items():
            self.kubelets.fates[revision if name == "on_all" else f"{revision} {name.replace('_', '-')}"] = fate
        self.set_driver(f"driver:{revision.removeprefix('r')}", **self.rules)
        self.settle()
        if until:
            self.until(until)
        if run:
            self.run(run)

    def ask(self, key: str, text: str) -> None:
        """An annotation of the object, as `rollout approve`, `retry` and `undo` write it."""
        note = {"metadata": {"annotations": {key: text}}}
        self._change(PLURAL, fleet_scene.DRIVER, lambda one: apply_merge_patch(one, note))

    def delete_rollout(self) -> None:
        self.store.delete(PLURAL, fleet_scene.DRIVER, namespace=fleet_scene.NAMESPACE)

    def replace_rollout(self) -> None:
        """`kubectl replace --force`: another object of the same name and spec."""
        spec = self.rollout()["spec"]
        self.delete_rollout()
        self.settle()
        self.add_rollout(**spec)

    def check(self, phase: str, *taken: str, says: str = "", after: str = "") -> None:
        """The status has this phase and says this, `after` a while. If nodes are named, r2 has taken these alone."""
        if after:
            self.run(after)
        assert (self.phase(), says in self._shown) == (phase, True), self._shown
        assert not taken or self.limits.taken["r2"] == [*taken], self.limits.taken

    def make_node(self, name: str, labels: Mapping[str, str]) -> None:
        status = self._node_status("True", f"boot-{name}")
        self.store.create("nodes", {"metadata": {"name": name, "labels": dict(labels)}, "status": status})

    def set_ready(self, name: str, ready: str, boot: str = "") -> None:
        """The Node is Ready or not, since now; with another boot id if one is given."""
        status = self._node_status(ready, boot or self.nodes[name]["status"]["nodeInfo"]["bootID"])
        self._change("nodes", name, lambda one: one | {"status": status}, namespace="", status=True)

    def _node_status(self, ready: str, boot: str) -> Obj:
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": written_time(self.clock.wall())}
        return {"nodeInfo": {"bootID": boot}, "conditions": [condition]}

    def note(self, name: str, notes: Mapping[str, str | None]) -> None:
        self.edit_node(name, {"metadata": {"annotations": dict(notes)}})

    def make_pod(self, node: str) -> None:
        """As the DaemonSet controller does: the pod names its node by affinity, and the scheduler binds it."""
        revision = self.newest()
        labels = {"app": fleet_scene.DRIVER, REVISION_LABEL: revision}
        metadata = self._owned(labels, generateName=f"{fleet_scene.DRIVER}-")
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        rule = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rule}}
        pod: Obj = {"metadata": metadata, "spec": {"nodeName": node, "affinity": affinity}}
        if self.kubelets.fate(revision, node) == "unscheduled":
            why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}
            pod |= {"spec": {"affinity": affinity}, "status": {"phase": "Pending", "conditions": [why]}}
        self.store.create("pods", pod)

    def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        assert (self._who, uid) not in self._deleted, f"{self._who} deletes pod {name} twice"
        self._deleted.add((self._who, uid))
        with contextlib.suppress(ApiError):
            is_task = TASK_LABEL in self.store.get("pods", name, namespace)["metadata"]["labels"]
            self.store.delete("pods", name, namespace=namespace, uid=uid, grace_s=0 if is_task else None)

    def remove_pod(self, pod: Obj, grace_s: int | None = 0) -> None:
        self.store.delete("pods", pod["metadata"]["name"], namespace=fleet_scene.NAMESPACE, grace_s=grace_s)

    def create_pod(self, body: Obj) -> Obj:
        made = self.store.create("pods", body)
        self.looks[made["spec"]["nodeName"]] += 1
        return made

    def pods_of(self, node: str, key: str = "app", value: str = fleet_scene.DRIVER) -> list[Obj]:
        """The pods on a node with this label: those of the driver."""
        found = (pod for pod in self.pods_by_name.values() if _node_of(pod) == node)
        return [pod for pod in found if pod["metadata"]["labels"].get(key) == value]

    # Controllers

    def start_controller(self, name: str = "controller", *, by_lease: bool = False, vendor: str = "") -> Process:
        lead: Leadership = fleet_scene.FakeLeadership(renews_s=math.inf)
        if by_lease:
            api = cast("KubeApi", LeaseApi(self.clock, self._lease))
            lead = LeaseLeadership(api, self.clock, fleet_scene.NAMESPACE, "lease", name)
        profile = PROFILES[vendor] if vendor else self.profile
        self.processes.append(Process(self, Killer(), lead, profile=profile, name=name))
        self.processes[-1].cluster._read = readers(profile.keys, zone)
        return self.processes[-1]

    def kill_controller(self, when: Callable[[], bool] | None = None) -> None:
        """The controller dies right after the write after which this holds, by default after the next one."""
        process = self.processes[-1]
        if when is None:
            process.killer.kill_at(len(process.killer.effects), after=True)
        else:
            self.once(when, process.name, lambda: self._die(process))
        self.until(lambda: process.is_logged)

    def _die(self, process: Process) -> None:
        if not process.is_logged:
            process.killer.is_dead = process.is_logged = True
            self.tell("is killed")

    def replace_controller(self, after: str = "0s") -> None:
        self.run(after)
        by_lease = isinstance(self.processes[-1].lead, LeaseLeadership)
        self.start_controller(f"controller {len(self.processes) + 1}", by_lease=by_lease)

    # Time

    def after(self, seconds: float, who: str, action: Callable[[], object]) -> None:
        def act() -> None:
            self._who = who
            action()
            self.settle()

        self.clock.after(self.order.delay_s(seconds), act)

    def once(self, holds: Callable[[], bool], who: str, action: Callable[[], object]) -> None:
        """At the first change after which this holds, even in the middle of what a controller does."""
        self._planned.append((holds, who, action))

    def run(self, duration: str) -> None:
        """Let time pass, such as 90s or 6h."""
        end_s = self.clock.monotonic() + parse_duration(duration)
        self.settle()
        while self.clock.monotonic() < end_s:
            self._step(end_s)
        self._who = "person"

    def until(self, holds: str | Callable[[], bool], *taken: str, limit: str = "24h") -> None:
        """Until the status has this phase for the template, or until something holds; `taken` as in `check`."""
        end_s = self.clock.monotonic() + parse_duration(limit)
        self.settle()
        while not (holds() if callable(holds) else self._has_come_to(holds)):
            assert self.clock.monotonic() < end_s, f"not within {limit}: {holds}; {self.rollout().get('status')}"
            self._step(end_s)
        self._who = "person"
        assert not taken or self.limits.taken["r2"] == [*taken], self.limits.taken

    def _has_come_to(self, phase: str) -> bool:
        daemon_set, status = self.objects["daemonsets"][fleet_scene.DRIVER], self.rollout().get("status") or {}
        if daemon_set["status"]["observedGeneration"] < daemon_set["metadata"]["generation"]:
            return False
        return status.get("phase") == phase and status["targetRevision"] == self.newest()

    def _step(self, end_s: float) -> None:
        process = min(self.processes, key=lambda one: one.due_s)
        if process.due_s > self.clock.monotonic():
            self._turns = 0
            self.clock.to_next(min(end_s, process.due_s))
            return
        self._turns += 1
        assert self._turns < MAX_TURNS, f"{process.name} decides again and again"
        self._who, process.has_begun = process.name, True
        try:
            process.turn()
        except Killed:
            self._die(process)
        self.settle()

    def settle(self) -> None:
        """All that changed is shown: to the trace, the limits, the actors and the watches."""
        events: list[Event] = []
        if self._since != self.store.revision:
            events, self._since = self.store.wait(self._since, WATCHED, timeout_s=0.0, stop=fleet_scene.NEVER)
        for event in events:
            known, name = self.objects[event.resource], event.obj["metadata"]["name"]
            known[name] = event.obj
            if event.type == "DELETED":
                del known[name]
            for text in _story(event):
                self.tell(text)
            if event.resource == PLURAL:
                self._show(event.obj.get("status") or {})
            self.limits.see(event, is_ours=self._who.startswith("controller"))
            for actor in self._actors if self._is_live else ():
                actor.react(event)
        for plan in [plan for plan in self._planned if plan[0]()]:
            self._planned.remove(plan)
            before, self._who = self._who, plan[1]
            plan[2]()
            self.settle()
            self._who = before
        for process in self.processes:
            if not process.killer.is_dead:
                cast("SimFleet", process.cluster).poll()

    # The trace

    def tell(self, text: str, who: str = "") -> None:
        seconds = round(self.clock.monotonic() - self._began_s)
        moment = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        self.trace.append(f"{moment}  {who or self._who:<20}  {text}")

    def _show(self, status: Obj) -> None:
        """A line whenever phase or message change, with why others wait."""
        ready: Obj = next((one for one in status.get("conditions", ()) if one["type"] == "Ready"), {})
        shown = f"{status.get('phase')}: {ready.get('message')}"
        if shown != self._shown:
            self._shown = shown
            self.phases.append(str(status.get("phase")))
            others = [one for key in ("waiting", "leftOut") for one in status.get(key, ())]
            why = [f"{several(one['nodes'])}: {one['reason']}" for one in others if one["reason"] not in shown]
            self.tell(" | ".join([shown, *why]), "status")
