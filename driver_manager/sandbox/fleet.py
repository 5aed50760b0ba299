"""The fleet scenarios: the real rollout controller against many nodes of the sandbox.

Prints nothing: a `FleetShow` does.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.spec import PLURAL, UNDER_WAY, NodeRecord, UpgradeState, decode_node_record
from driver_manager.domain.fleet.state import Phase
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.profile import NodeKeys, Profile
from driver_manager.domain.records import Frozen
from driver_manager.profiles import builtin
from driver_manager.sandbox.apiserver import (
    ApiServer,
    Controller,
    DaemonSetController,
    Event,
    Kubelet,
    Obj,
    Store,
    hash_of,
    run_pod,
    set_status,
    state_of,
)
from driver_manager.sandbox.cluster import Container, Happening, daemon_set, environment, pod_template
from driver_manager.sandbox.host import HostTree
from driver_manager.sandbox.stories import NodeSummary, ScenarioReport, Show

# The sandbox's stories of a fleet as data: who is there, which drivers come, by which rules.
#
# Imports only the standard library.


class Release(Frozen):
    """A driver by its version, with the digest of its configuration. `loads`: its module can be loaded."""

    version: str
    digest: str
    loads: bool = True


class FleetStory(Frozen):
    """One story: all nodes serve `old`, `bad` ends with its first node and is undone, `good` reaches all of them."""

    name: str
    tells: str
    nodes: tuple[str, ...]
    old: Release
    bad: Release
    good: Release
    spec: Mapping[str, Any]

    @property
    def canary(self) -> str:
        """The node that goes first, by its name."""
        return min(self.nodes)

    @property
    def releases(self) -> dict[str, Release]:
        """All of them by their versions."""
        return {release.version: release for release in (self.old, self.bad, self.good)}

    @property
    def waves(self) -> tuple[str, ...]:
        """The names of the waves in their order."""
        return tuple(wave["name"] for wave in self.spec["waves"])

    @property
    def most_at_once(self) -> int:
        """As many nodes may be under way."""
        return int(self.spec["maxParallel"])


FLEET_STORIES = {
    story.name: story
    for story in (
        FleetStory(
            "fleet",
            "twelve nodes: a driver whose canary fails, the halt, the undo, then a good driver wave by wave",
            tuple(f"node-{number:02}" for number in range(1, 13)),
            Release("1.2.92", "4d1f7c09a25e83b6"),
            Release("2.0.0", "77d0c1e58ab2f394", loads=False),
            Release("2.0.1", "9be2a06f4c31d758"),
            {
                "maxParallel": 4,
                "waves": [
                    {"name": "canary", "count": 1, "soak": "1s"},
                    {"name": "quarter", "percent": 25},
                    {"name": "rest"},
                ],
                "nodeTimeout": "1m",
            },
        ),
    )
}


# Who starts the driver pods of the sandbox's fleet: kubelets that run init containers.
#
# Owns when a driver pod gets ready. On one node its init container is the real command on a host tree; on the others
# it is played: it takes its time and ends well, unless the driver does not load. Must not import the API server or a
# client.

INIT_S = 0.6
"""What a played init container takes."""

_IDLE_S = 3600.0


def version_of(pod: Obj) -> str:
    """The driver's version that the pod is for: the tag of its image."""
    return str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2]


@dataclass
class RunHost:
    """The node whose runs are real: `run` starts the init container of a pod there, and tells its exit status."""

    node: str
    run: Callable[[Obj, Callable[[int], None]], Container]
    containers: dict[str, Container] = field(default_factory=dict)

    @property
    def is_at_rest(self) -> bool:
        """Whether none of them runs now."""
        return all(container.has_ended for container in list(self.containers.values()))


class DriverStarter(Controller):
    """Runs the init containers of pods that have any, then their containers. Until `begin` they have run before.

    An init container that failed is not started again: whoever looks at it is faster than a kubelet's back-off.
    """

    resources = ("pods",)

    def __init__(self, store: Store, releases: dict[str, Release], host: RunHost) -> None:
        super().__init__(store)
        self._releases = releases
        self._host = host
        self._is_begun = False
        self._due: dict[str, tuple[float, Obj]] = {}

    def begin(self) -> None:
        """From now on each new pod's init container takes place."""
        self._is_begun = True

    def _handle(self, events: Sequence[Event]) -> float:
        for event in events:
            if event.obj["spec"].get("initContainers"):
                self._consider(event)
        now_s = time.monotonic()
        for uid in [uid for uid, (at_s, _) in self._due.items() if at_s <= now_s]:
            _, pod = self._due.pop(uid)
            self._end(pod, 0 if self._releases[version_of(pod)].loads else 1)
        return max(0.0, min([_IDLE_S, *(at_s - now_s for at_s, _ in self._due.values())]))

    def _consider(self, event: Event) -> None:
        pod, uid = event.obj, event.obj["metadata"]["uid"]
        if event.type == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            self._due.pop(uid, None)
            container = self._host.containers.pop(uid, None)
            if container is not None:
                container.stop()
        elif event.type == "ADDED" and not self._is_begun:
            run_pod(self._store, pod)
        elif event.type == "ADDED" and pod["spec"]["nodeName"] == self._host.node:
            self._host.containers[uid] = self._host.run(pod, lambda status: self._end(pod, status))
        elif event.type == "ADDED":
            self._due[uid] = (time.monotonic() + INIT_S, pod)

    def _end(self, pod: Obj, status: int) -> None:
        if status == 0:
            run_pod(self._store, pod)
            return
        name = pod["spec"]["initContainers"][0]["name"]
        state = {"waiting": {"reason": "CrashLoopBackOff"}}
        last = {"terminated": {"exitCode": status, "reason": "Error"}}
        failed = {"name": name, "ready": False, "restartCount": 1, "state": state, "lastState": last}
        set_status(self._store, pod, {"phase": "Pending", "initContainerStatuses": [failed]})


# The sandbox's fleet: some nodes with a driver's DaemonSet, a rollout of it, and those who act on them.
#
# Owns the objects, what an administrator does to them, and who plays the nodes. Imports only the domain and the
# sandbox.

DRIVER = "rbln-driver"
OPERANDS = ("device-plugin", "metrics-exporter")
"""On the node whose runs are real, so that these have somebody to pause."""

ROOT = "/run/rbln/driver"
STOP_S = 0.5
"""Of a pod. A run waits for it twice, so it ends in a later second than its node was taken in: Nodes tell no less."""

WAIT_S = 75.0


class SandboxFleet:
    """A running API server with the fleet of `story`, which serves its old driver; a context manager.

    `say` gets the lines of the real runs.
    """

    def __init__(self, story: FleetStory, profile: Profile, folder: Path, say: Callable[[str], None]) -> None:
        self.story = story
        self.profile = profile
        self.store = Store()
        self.kubeconfig = folder / "kubeconfig"
        self.tree = HostTree(folder / "host", folder / "bin", profile)
        self.host = RunHost(story.canary, self._run)
        self._say = say

    def __enter__(self) -> Self:
        story, tree = self.story, self.tree
        tree.build()
        self._bring(story.old)
        tree.load(ROOT)
        tree.record(story.old.digest, ROOT, story.old.version)
        with ExitStack() as stack:
            self.server = stack.enter_context(ApiServer(self.store))
            self.kubeconfig.write_text(json.dumps(self.server.kubeconfig()))
            self.kubeconfig.chmod(0o600)
            for name in story.nodes:
                self.store.create("nodes", self._node(name))
            for name in OPERANDS:
                nodes = {self._operand_key(name): "true"}
                body = daemon_set(f"rbln-{name}", self.namespace, nodes, pod_template(f"rbln-{name}"))
                self.store.create("daemonsets", body)
            self.store.create("daemonsets", self._driver(story.old))
            stack.callback(lambda: [container.kill() for container in list(self.host.containers.values())])
            starter = stack.enter_context(DriverStarter(self.store, story.releases, self.host))
            stack.enter_context(Kubelet(self.store, start_s=0.05, stop_s=STOP_S))
            stack.enter_context(DaemonSetController(self.store))
            self.wait_for(lambda: self._are_running(len(story.nodes) + len(OPERANDS)), "the first pods")
            starter.begin()
            metadata = {"name": DRIVER, "namespace": self.namespace}
            self.store.create(PLURAL, {"metadata": metadata, "spec": {"daemonSet": DRIVER, **story.spec}})
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def namespace(self) -> str:
        """Where the driver's pods and the rollout live."""
        return self.profile.namespace

    @property
    def revisions(self) -> dict[str, str]:
        """The version of each revision by its hash."""
        bodies = {release.version: self._driver(release) for release in self.story.releases.values()}
        return {hash_of(body["spec"]["template"]): version for version, body in bodies.items()}

    def rollout(self) -> Obj:
        """The rollout's object."""
        return self.store.get(PLURAL, DRIVER, self.namespace)

    def status(self) -> Obj:
        """What it shows."""
        status: Obj = self.rollout().get("status") or {}
        return status

    def set_release(self, release: Release) -> None:
        """The DaemonSet gets the template of this driver, as by `kubectl apply`."""
        template = self._driver(release)["spec"]["template"]
        self.store.patch(
            "daemonsets",
            DRIVER,
            lambda one: {**one, "spec": {**one["spec"], "template": template}},
            namespace=self.namespace,
        )

    def wait_for(self, holds: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        """Block until it holds. Raises RuntimeError after `timeout_s` seconds."""
        with self.store.changed:
            if not self.store.changed.wait_for(holds, timeout_s):
                raise RuntimeError(f"the sandbox timed out after {timeout_s:g} s waiting for {what}")

    def rollout_command(self, say: Callable[[str], None], *words: str) -> Container:
        """A real command of `driver-manager rollout`, started: the controller, or a verb as from a laptop."""
        told = {"ROLLOUT_NAMESPACE": self.namespace, "DRIVER_PROFILE": self.profile.name, "LOG_LEVEL": "warning"}
        env = environment(self.tree, self.kubeconfig, "", told)
        return Container(["rollout", *words], env, self.tree.root, say, lambda _: self.store.wake())

    def _run(self, pod: Obj, ended: Callable[[int], None]) -> Container:
        """The init container of a driver pod on the node with the host: its image has brought its driver along."""
        self._bring(self.story.releases[version_of(pod)])
        told = {one["name"]: one["value"] for one in pod["spec"]["initContainers"][0]["env"]}
        metadata = pod["metadata"]
        placed = {"POD_NAME": metadata["name"], "POD_NAMESPACE": metadata["namespace"]}
        env = environment(self.tree, self.kubeconfig, pod["spec"]["nodeName"], {**told, **placed})
        return Container(["reconcile-driver-state"], env, self.tree.root, self._say, ended)

    def _bring(self, release: Release) -> None:
        self.tree.add_driver(ROOT, release.version, fails=not release.loads)

    def _driver(self, release: Release) -> Obj:
        env = {
            "DRIVER_CONFIG_DIGEST": release.digest,
            "DRIVER_LOAD": "manager",
            "DRIVER_ROOT": ROOT,
            "OPERATOR_NAMESPACE": self.namespace,
        }
        template = pod_template(DRIVER, env, release.version)
        return daemon_set(DRIVER, self.namespace, {self.profile.deploy.driver_key: "true"}, template)

    def _node(self, name: str) -> Obj:
        labels = {self.profile.deploy.driver_key: "true", "kubernetes.io/hostname": name}
        boot_id = f"boot-of-{name}"
        if name == self.story.canary:
            labels |= {self._operand_key(operand): "true" for operand in OPERANDS}
            boot_id = self.tree.boot_id
        conditions = [{"type": "Ready", "status": "True"}]
        status: Any = {"nodeInfo": {"bootID": boot_id}, "conditions": conditions}
        return {"metadata": {"name": name, "labels": labels}, "status": status}

    def _operand_key(self, operand: str) -> str:
        return self.profile.deploy.prefix + operand

    def _are_running(self, count: int) -> bool:
        phases = [pod.get("status", {}).get("phase") for pod in self.store.list_objects("pods")[0]]
        return phases == ["Running"] * count


# What the sandbox's fleet looks like at one moment: a row for each node, and how the rollout stands.
#
# Owns what of the objects is shown, in which words. Pure: how it is drawn is the screen's. Must not import anything
# but the standard library, the domain and the sandbox.

NONE = "-"
HEADINGS = ("NODE", "WAVE", "UPGRADE", "DRIVER", "POD", "WHY")
_WORDS_UNDER_WAY = frozenset(state.value for state in UNDER_WAY)


class NodeRow(Frozen):
    """A node: the wave in which it was taken, the word of its label, its driver pod's version and state, and why.

    Why it failed, or waits; what is under way needs no reason.
    """

    node: str
    wave: str
    upgrade: str
    driver: str
    pod: str
    why: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands below the headings."""
        return self.node, self.wave, self.upgrade, self.driver, self.pod, self.why

    @property
    def is_under_way(self) -> bool:
        """Whether the rollout has taken it and has not ended there."""
        return self.upgrade in _WORDS_UNDER_WAY

    @property
    def is_failed(self) -> bool:
        """Whether the rollout has failed there."""
        return self.upgrade == UpgradeState.FAILED.value

    def differs(self, other: NodeRow | None) -> bool:
        """Whether it is news beside `other`. Why is none: a failure's reason is the rollout's, too, and others wait."""
        return other is None or replace(self, why="") != replace(other, why="")


class Picture(Frozen):
    """All nodes by name, and what the rollout's object shows: the revision that it is about, its phase, and the message
    of its conditions.
    """

    target: str = ""
    phase: str = ""
    message: str = ""
    rows: tuple[NodeRow, ...] = ()

    @property
    def headline(self) -> str:
        """How the rollout stands, in one line."""
        return f"{self.phase}: {self.message}" if self.phase else "the controller has not read the rollout yet"


def picture_of(nodes: Iterable[Obj], pods: Iterable[Obj], rollout: Obj | None, keys: NodeKeys) -> Picture:
    """What these objects show; `pods` are those of the driver."""
    status = (rollout or {}).get("status") or {}
    message = next((one["message"] for one in status.get("conditions", ())), "")
    waves = {wave["number"]: wave["name"] for wave in status.get("waves", ())}
    # What holds all of them is the rollout's own message, and need not be said on each line.
    groups = [group for group in status.get("waiting", ()) if not message.startswith(group["reason"])]
    reasons = {name: group["reason"] for group in groups for name in group["nodes"]}
    by_node = {pod["spec"].get("nodeName", ""): pod for pod in pods}
    rows = []
    for node in nodes:
        name = node["metadata"]["name"]
        rows.append(_row(node, by_node.get(name), waves, reasons.get(name, ""), keys))
    return Picture(
        status.get("targetRevision", ""),
        status.get("phase", ""),
        message,
        tuple(sorted(rows, key=lambda one: one.node)),
    )


def record_of(node: Obj, keys: NodeKeys) -> NodeRecord | None:
    """What the rollout has written down on the node."""
    text = node["metadata"].get("annotations", {}).get(keys.rollout)
    return decode_node_record(text) if text is not None else None


def _row(node: Obj, pod: Obj | None, waves: Mapping[int, str], waits: str, keys: NodeKeys) -> NodeRow:
    record = record_of(node, keys)
    row = NodeRow(
        node["metadata"]["name"],
        waves.get(record.wave, NONE) if record is not None else NONE,
        node["metadata"].get("labels", {}).get(keys.upgrade_state, NONE),
        version_of(pod) if pod is not None else NONE,
        state_of(pod) if pod is not None else "gone",
    )
    if row.is_failed:
        return replace(row, why=record.reason if record is not None else "")
    return row if row.is_under_way else replace(row, why=waits)


# How the story of a fleet went, and what of it is not as it has to be.
#
# Owns what is written down while it goes on, and the promises that it is measured by: each is one function, and can
# fail. Pure. Must not import anything but the standard library and the sandbox.


class Taken(Frozen):
    """A node was taken for a driver, in a wave, while so many others of that driver had not ended."""

    node: str
    version: str
    wave: int
    unfinished: tuple[str, ...] = ()


@dataclass
class FleetCourse:
    """What was seen. `pods` counts the driver pods that were made, by node and version, the first ones apart.

    `halted` is what the object said when it halted, `undone` the picture once the way back was gone, `end` the last.
    `answers` are the exit codes of `rollout status` while it was halted, and of `rollout undo`.
    """

    taken: list[Taken] = field(default_factory=list)
    pods: Counter[tuple[str, str]] = field(default_factory=Counter)
    most_at_once: int = 0
    halted: str = ""
    undone: Picture | None = None
    end: Picture | None = None
    shown: Mapping[str, str] = field(default_factory=dict)
    answers: Sequence[int] = ()
    controller_status: int | None = None

    def versions(self, picture: Picture | None) -> dict[str, str]:
        """The driver of each node that runs there."""
        return {row.node: row.driver for row in picture.rows if row.pod == "Running"} if picture is not None else {}


Promise = Callable[[FleetStory, FleetCourse], Iterator[str]]


def _canary_alone(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """A driver that fails reaches one node."""
    got = {node: count for (node, version), count in course.pods.items() if version == story.bad.version}
    if got != {story.canary: 1}:
        yield f"driver {story.bad.version} reached {got}, expected {story.canary} alone"


def _halt_says_why(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """Whoever reads the object knows which node it was, and what its own run said."""
    wanted = (story.canary, NodeState.HELD.value)
    if not all(word in course.halted for word in wanted):
        yield f"the halt shows {course.halted!r}, expected it to name {' and '.join(wanted)}"


def _verbs_answer(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """Who looks at a halted rollout learns by the exit code that somebody has to act; what is asked for is taken."""
    wanted = (ExitCode.ROLLOUT_STUCK, ExitCode.DONE)
    if tuple(course.answers) != wanted:
        yield f"rollout status and undo ended with {list(course.answers)}, expected {[int(code) for code in wanted]}"


def _way_back(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """The old driver is everywhere again, and only where it was not, a pod was restarted for it."""
    found = course.versions(course.undone)
    if found != dict.fromkeys(story.nodes, story.old.version):
        yield f"after the undo the nodes serve {found}, expected {story.old.version} everywhere"
    got = {node: count for (node, version), count in course.pods.items() if version == story.old.version}
    if got != {story.canary: 1}:
        yield f"for the undo pods were restarted on {got}, expected {story.canary} alone"


def _each_once(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """The good driver reaches every node by one restart."""
    got = {node: course.pods[node, story.good.version] for node in story.nodes}
    if got != dict.fromkeys(story.nodes, 1):
        yield f"restarts for {story.good.version}: {got}, expected one on each node"
    found = course.versions(course.end)
    if found != dict.fromkeys(story.nodes, story.good.version):
        yield f"in the end the nodes serve {found}, expected {story.good.version} everywhere"


def _wave_by_wave(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """No node begins before the wave before its own has ended."""
    good = [one for one in course.taken if one.version == story.good.version]
    numbers = [one.wave for one in good]
    if numbers != sorted(numbers) or set(numbers) != set(range(1, len(story.waves) + 1)):
        yield f"the nodes were taken in the waves {numbers}, expected all of {len(story.waves)} in their order"
    wave_of = {one.node: one.wave for one in good}
    for one in good:
        early = [other for other in one.unfinished if wave_of[other] < one.wave]
        if early:
            yield f"{one.node} of wave {one.wave} was taken before {', '.join(early)} had ended"


def _never_too_many(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """maxParallel holds, and is made use of."""
    if course.most_at_once != story.most_at_once:
        yield f"at most {course.most_at_once} nodes were under way, expected {story.most_at_once}"


def _all_is_said(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """The Nodes' labels and the object show that it is over."""
    words = {row.node: row.upgrade for row in course.end.rows} if course.end is not None else {}
    if words != dict.fromkeys(story.nodes, UpgradeState.DONE.value):
        yield f"the labels are {words}, expected {UpgradeState.DONE.value} everywhere"
    if course.shown != {"Ready": "True", "Reconciling": "False", "Stalled": "False"}:
        yield f"the object's conditions are {dict(course.shown)}, expected Ready alone"


def _controller_ends(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """Told to end, the controller hands over and ends well."""
    if course.controller_status != 0:
        yield f"the controller ended with {course.controller_status}, expected 0"


PROMISES: tuple[Promise, ...] = (
    _canary_alone,
    _halt_says_why,
    _verbs_answer,
    _way_back,
    _each_once,
    _wave_by_wave,
    _never_too_many,
    _all_is_said,
    _controller_ends,
)


def problems(story: FleetStory, course: FleetCourse) -> list[str]:
    """What is not as it has to be, empty where all is."""
    return [problem for promise in PROMISES for problem in promise(story, course)]


STEP_S = 150.0
"""What one chapter may take on the slowest of machines."""

END_S = 10.0


class FleetShow(Show, Protocol):
    """Where the story of a fleet goes while it happens."""

    def picture(self, picture: Picture, news: Sequence[str]) -> None:
        """How the fleet looks now, and what of it is new, in lines."""
        ...


class FleetWatcher(Controller):
    """Tells a show what the objects show, and writes down the course. `picture` is the last that was told."""

    resources = ("nodes", "pods", PLURAL)

    def __init__(self, fleet: SandboxFleet, show: FleetShow) -> None:
        super().__init__(fleet.store)
        self.course = FleetCourse()
        self.timeline: list[Happening] = []
        self._fleet = fleet
        self._show = show
        self._begun_s = time.monotonic()
        self._first = {pod["metadata"]["uid"] for pod in fleet.store.list_objects("pods")[0]}
        self._versions = fleet.revisions
        self._words: dict[str, str] = {}
        self._unfinished: set[str] = set()
        self.picture = Picture()

    def _handle(self, events: Sequence[Event]) -> float:
        for event in events:
            if event.previous is not None and event.resource == "nodes":
                self._note_node(event)
            elif event.type == "ADDED" and event.resource == "pods":
                self._note_pod(event)
        now = self._now()
        news = self._news(now)
        if now != self.picture:
            with contextlib.suppress(BrokenPipeError):  # nobody reads any more: the next chapter's line says so
                self._show.picture(now, news)
            self.picture = now
            self._store.wake()  # for whoever waits for this picture
        return _IDLE_S

    def _now(self) -> Picture:
        pods = self._store.list_objects("pods", labels=f"app={DRIVER}")[0]
        nodes = self._store.list_objects("nodes")[0]
        return picture_of(nodes, pods, self._fleet.rollout(), self._fleet.profile.keys)

    def _note_node(self, event: Event) -> None:
        """A node's word has changed: it was taken, or has ended."""
        keys, name = self._fleet.profile.keys, event.obj["metadata"]["name"]
        word = event.obj["metadata"].get("labels", {}).get(keys.upgrade_state, "")
        if word == self._words.get(name, ""):
            return
        self._words[name] = word
        record = record_of(event.obj, keys)
        if word == UpgradeState.RESTART.value and record is not None:
            version = self._versions.get(record.revision, record.revision)
            self.course.taken.append(Taken(name, version, record.wave, tuple(sorted(self._unfinished))))
            self._unfinished.add(name)
        elif word in (UpgradeState.DONE.value, UpgradeState.FAILED.value):
            self._unfinished.discard(name)
        self.course.most_at_once = max(self.course.most_at_once, len(self._unfinished))

    def _note_pod(self, event: Event) -> None:
        pod = event.obj
        if pod["metadata"]["labels"].get("app") == DRIVER and pod["metadata"]["uid"] not in self._first:
            self.course.pods[pod["spec"]["nodeName"], version_of(pod)] += 1

    def _news(self, now: Picture) -> list[str]:
        """One line for each change."""
        at_s = time.monotonic() - self._begun_s
        before = {row.node: row for row in self.picture.rows}
        news = [_told(row) for row in now.rows if row.differs(before.get(row.node))]
        if now.headline != self.picture.headline:
            news.append(now.headline)
        self.timeline += [Happening(at_s, line) for line in news]
        return [f"{at_s:6.2f} s  {line}" for line in news]


def _told(row: NodeRow) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row.cells, (8, 8, 21, 7, 0), strict=False))


def run_fleet_story(story: FleetStory, show: FleetShow) -> ScenarioReport:
    """Play `story` and judge its end. Raises RuntimeError when the sandbox itself does not work."""
    with tempfile.TemporaryDirectory(prefix="driver-manager-sandbox-") as name:
        folder, profile = Path(name).resolve(), builtin()["rebellions"]
        with (
            SandboxFleet(story, profile, folder, lambda line: show.line(f"{story.canary}: {line}")) as fleet,
            FleetWatcher(fleet, show) as watcher,
        ):
            return FleetPlay(story, fleet, watcher, show).report()


class FleetPlay:
    """One story under way."""

    def __init__(self, story: FleetStory, fleet: SandboxFleet, watcher: FleetWatcher, show: FleetShow) -> None:
        self._story = story
        self._fleet = fleet
        self._watcher = watcher
        self._show = show

    def report(self) -> ScenarioReport:
        """Each chapter until it is over, then the end beside the beginning."""
        story, fleet, course = self._story, self._fleet, self._watcher.course
        report = ScenarioReport(story, self._state(), is_told=True, node=story.canary)
        begun_s = time.monotonic()
        self._show.chapter(f"{len(story.nodes)} nodes serve driver {story.old.version}; rollout controller starts")
        controller = fleet.rollout_command(lambda line: self._show.line(f"controller: {line}"), "controller")
        try:
            self._play(controller, report)
        except RuntimeError as error:
            report.problems.append(str(error))
        course.controller_status = controller.terminate(END_S)
        course.end = self._watcher.picture
        course.shown = {one["type"]: one["status"] for one in fleet.status().get("conditions", ())}
        report.seconds = time.monotonic() - begun_s
        report.requests = sum(record.resource != "events" for record in fleet.server.requests)
        report.timeline = list(self._watcher.timeline)
        report.after = self._state()
        if not report.problems:  # else what follows from that is no news
            report.problems = [*problems(story, course), *self._left_on_host(report.before, report.after)]
        return report

    def _play(self, controller: Container, report: ScenarioReport) -> None:
        """The chapters. Raises RuntimeError when one of them does not end."""
        story, fleet, course = self._story, self._fleet, self._watcher.course
        self._until(controller, Phase.COMPLETE, story.old)
        self._show.chapter(f"kubectl apply: driver {story.bad.version}, whose module does not load")
        fleet.set_release(story.bad)
        self._until(controller, Phase.HALTED, story.bad)
        course.halted = self._watcher.picture.message
        report.exit_codes = [self._ask("status"), self._ask("undo")]
        course.answers = tuple(report.exit_codes)
        self._until(controller, Phase.COMPLETE, story.old)
        course.undone = self._watcher.picture
        self._show.chapter(f"kubectl apply: driver {story.good.version}, which is good")
        fleet.set_release(story.good)
        self._until(controller, Phase.COMPLETE, story.good)

    def _ask(self, verb: str) -> int:
        """What somebody types; its exit status."""
        self._show.chapter(f"driver-manager rollout {verb}")
        return self._fleet.rollout_command(self._show.line, verb).wait(STEP_S)

    def _until(self, controller: Container, phase: Phase, release: Release) -> None:
        """Wait until the object says this about this driver. Raises RuntimeError where it does not come to that."""
        fleet, watcher = self._fleet, self._watcher
        revision = next(one for one, version in fleet.revisions.items() if version == release.version)

        def holds() -> bool:
            shown = watcher.picture
            return (shown.phase, shown.target) == (phase.value, revision) and fleet.host.is_at_rest

        what = f"{phase.value} of driver {release.version}"
        fleet.wait_for(lambda: holds() or controller.has_ended, what, STEP_S)
        if not holds():
            raise RuntimeError(f"the controller ended before {what}")

    def _state(self) -> NodeSummary:
        """The node whose runs are real."""
        node = self._fleet.store.get("nodes", self._story.canary)
        metadata, keys, tree = node["metadata"], self._fleet.profile.keys, self._fleet.tree
        return NodeSummary(
            labels=dict(metadata.get("labels", {})),
            cordoned=bool(node.get("spec", {}).get("unschedulable")),
            journal=keys.journal in metadata.get("annotations", {}),
            driver=tree.driver_version,
            digest=tree.digest,
        )

    def _left_on_host(self, before: NodeSummary, after: NodeSummary) -> list[str]:
        """What the real runs should have left as it was, or changed, and have not."""
        good, keys = self._story.good, self._fleet.profile.keys
        labels = before.labels | {keys.state: "ready", keys.upgrade_state: UpgradeState.DONE.value}
        expected = NodeSummary(labels, before.cordoned, before.journal, good.version, good.digest)
        return [] if after == expected else [f"{self._story.canary} is {after}, expected {expected}"]
