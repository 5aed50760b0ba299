"""The fleet scenario: the real rollout controller against many nodes of the sandbox. A `FleetShow` prints it."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.spec import PLURAL, UNDER_WAY, NodeRecord, UpgradeState, decode_node_record
from driver_manager.domain.fleet.state import TASK_LABEL, Phase
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.profile import NodeKeys, Profile
from driver_manager.profiles import builtin
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.apiserver import (
    ApiServer,
    Controller,
    DaemonSetController,
    Due,
    Event,
    Kubelet,
    Obj,
    Store,
    hash_of,
    run_pod,
    set_status,
    state_of,
)
from driver_manager.sandbox.cluster import (
    Happening,
    Process,
    command_line,
    daemon_set,
    environment,
    pod_template,
    running_pods,
)
from driver_manager.sandbox.host import HostTree
from driver_manager.sandbox.scenarios import NamedScenario, NodeSummary, ScenarioReport, Show, differences, summary_of


class Release(Struct, frozen=True):
    """A driver version and the digest of its configuration. `loads`: its module can be loaded."""

    version: str
    digest: str
    loads: bool = True


class FleetScenario(NamedScenario, frozen=True):
    """All nodes serve `old`. `bad` fails on the first node and is undone. `good` reaches all nodes.

    A simulated init container takes `init_s`.
    """

    nodes: tuple[str, ...]
    old: Release
    bad: Release
    good: Release
    spec: Mapping[str, Any]
    init_s: float = 0.6

    @property
    def canary(self) -> str:
        return min(self.nodes)

    @property
    def releases(self) -> dict[str, Release]:
        return {release.version: release for release in (self.old, self.bad, self.good)}

    @property
    def by_hand(self) -> FleetScenario:
        """The scenario for people: the last wave needs an approval, and nodes take long enough for a pause."""
        *others, before, last = self.spec["waves"]
        waves = [*others, {**before, "approval": True}, last]
        return replace(self, spec={**self.spec, "waves": waves}, init_s=3.0)


FLEET_SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        FleetScenario(
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


# The driver pods. On one node their init container is the real command on a host tree; on the others it is simulated.


def version_of(pod: Obj) -> str:
    return str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2]


class DriverStarter(Controller):
    """Runs init containers, then sets the pods running. Pods that exist before `has_begun` run at once.

    `fleet` starts those of the node whose runs are real; the others are simulated, and write the state and the version
    to the Node. A failed one is not started again: the rollout reacts before the back-off of a kubelet ends.
    """

    resources = ("pods",)

    def __init__(self, fleet: SandboxFleet) -> None:
        super().__init__(fleet.store)
        self._fleet = fleet
        self._scenario = fleet.scenario
        self._containers: dict[str, Process] = {}
        self.has_begun = False

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for container in list(self._containers.values()):
            container.kill()

    @property
    def is_at_rest(self) -> bool:
        """True if no real run is under way."""
        return all(container.has_ended for container in list(self._containers.values()))

    def _consider(self, event: Event) -> None:
        pod, uid = event.obj, event.obj["metadata"]["uid"]
        if event.type == "ADDED" and TASK_LABEL in pod["metadata"].get("labels", {}):
            status = {"phase": "Failed", "message": "the nodes of this sandbox make no plan"}
            self._due[uid] = Due(
                time.monotonic() + self._scenario.init_s, partial(set_status, self._store, pod, status)
            )
        if not pod["spec"].get("initContainers"):
            return
        if event.type == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            self._due.pop(uid, None)
            container = self._containers.pop(uid, None)
            if container is not None:
                container.stop()
        elif event.type == "ADDED" and not self.has_begun:
            run_pod(self._store, pod)
        elif event.type == "ADDED" and pod["spec"]["nodeName"] == self._scenario.canary:
            self._containers[uid] = self._fleet.run(pod, partial(self._end, pod))
        elif event.type == "ADDED":
            self._due[uid] = Due(time.monotonic() + self._scenario.init_s, partial(self._simulate, pod))

    def _simulate(self, pod: Obj) -> None:
        release, keys = self._scenario.releases[version_of(pod)], self._fleet.profile.keys
        ready = {keys.state: NodeState.READY.value, keys.version: release.version}
        labels = ready if release.loads else {keys.state: NodeState.HELD.value}
        self._store.merge("nodes", pod["spec"]["nodeName"], {"metadata": {"labels": labels}})
        self._end(pod, 0 if release.loads else 1)

    def _end(self, pod: Obj, status: int) -> None:
        if status == 0:
            run_pod(self._store, pod)
            return
        name = pod["spec"]["initContainers"][0]["name"]
        state = {"waiting": {"reason": "CrashLoopBackOff"}}
        last = {"terminated": {"exitCode": status, "reason": "Error"}}
        failed = {"name": name, "ready": False, "restartCount": 1, "state": state, "lastState": last}
        set_status(self._store, pod, {"phase": "Pending", "initContainerStatuses": [failed]})


DRIVER = "rbln-driver"
OPERANDS = ("device-plugin", "metrics-exporter")
"""Operands on the node whose runs are real."""

ROOT = "/run/rbln/driver"
STOP_S = 0.5
"""Duration of a pod's stop. A run waits for it twice, so it ends in a later second than it began."""

WAIT_S = 75.0


class SandboxFleet:
    """A context manager: an API server with the scenario's fleet, which serves `old`; `say` gets real runs' lines."""

    def __init__(self, scenario: FleetScenario, profile: Profile, folder: Path, say: Callable[[str], None]) -> None:
        self.scenario = scenario
        self.profile = profile
        self.store = Store()
        self.kubeconfig, self.kubectl_config = folder / "kubeconfig", folder / "kubectl-config"
        self.tree = HostTree(folder / "host", folder / "bin", profile)
        self.starter = DriverStarter(self)
        self._say = say

    def __enter__(self) -> Self:
        scenario, tree = self.scenario, self.tree
        tree.build()
        tree.serve(ROOT, scenario.old.version, scenario.old.digest)
        with ExitStack() as stack:
            self.server = stack.enter_context(ApiServer(self.store))
            for path, in_address in ((self.kubeconfig, False), (self.kubectl_config, True)):
                path.touch(mode=0o600)
                path.write_text(json.dumps(self.server.kubeconfig(in_address=in_address)))
            for name in scenario.nodes:
                self.store.create("nodes", self._node(name))
            for name in OPERANDS:
                nodes = {self._operand_key(name): "true"}
                body = daemon_set(f"rbln-{name}", self.namespace, nodes, pod_template(f"rbln-{name}"))
                self.store.create("daemonsets", body)
            self.store.create("daemonsets", self._driver(scenario.old))
            self._offer()
            stack.enter_context(self.starter)
            stack.enter_context(Kubelet(self.store, start_s=0.05, stop_s=STOP_S))
            stack.enter_context(DaemonSetController(self.store))
            count = len(scenario.nodes) + len(OPERANDS)
            self.store.wait_until(lambda: len(running_pods(self.store)) == count, "the first pods", WAIT_S)
            self.starter.has_begun = True
            metadata = {"name": DRIVER, "namespace": self.namespace}
            self.store.create(PLURAL, {"metadata": metadata, "spec": {"daemonSet": DRIVER, **scenario.spec}})
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def namespace(self) -> str:
        return self.profile.namespace

    @property
    def revisions(self) -> dict[str, str]:
        bodies = {release.version: self._driver(release) for release in self.scenario.releases.values()}
        return {hash_of(body["spec"]["template"]): version for version, body in bodies.items()}

    def status(self) -> Obj:
        status: Obj = self.store.get(PLURAL, DRIVER, self.namespace).get("status") or {}
        return status

    def set_release(self, release: Release) -> None:
        """Write the template of this driver to the DaemonSet, as `kubectl apply` does."""
        template = self._driver(release)["spec"]["template"]
        self.store.merge("daemonsets", DRIVER, {"spec": {"template": template}}, namespace=self.namespace)

    def environment(self) -> dict[str, str]:
        """The environment of the commands that a person runs: that of the canary's driver pod, and for kubectl."""
        return environment(self.tree, self.kubectl_config, self.scenario.canary, {"OPERATOR_NAMESPACE": self.namespace})

    def _offer(self) -> None:
        """Let people set a release with the command `new-driver`."""
        bodies = {one.version: {"spec": self._driver(one)["spec"]} for one in self.scenario.releases.values()}
        path = f"/{next(iter(self.server.tokens))}/apis/apps/v1/namespaces/{self.namespace}/daemonsets/{DRIVER}"
        offered = {"server": self.server.url.removeprefix("http://"), "path": path, "bodies": bodies}
        self.tree.write(fake_tools.OFFERED_DRIVERS, json.dumps(offered))
        self.tree.add_tool(self.tree.bin / "new-driver", "new-driver")

    def rollout_command(self, say: Callable[[str], None], *words: str) -> Process:
        """Start `driver-manager rollout`: the controller, or a command as from a laptop."""
        settings = {"ROLLOUT_NAMESPACE": self.namespace, "DRIVER_PROFILE": self.profile.name, "LOG_LEVEL": "warning"}
        env = environment(self.tree, self.kubeconfig, "", settings)
        return Process(command_line("rollout", *words), env, self.tree.root, say, lambda _: self.store.wake())

    def run(self, pod: Obj, ended: Callable[[int], None]) -> Process:
        """Start the init container of a driver pod, whose image contains its driver."""
        release, metadata = self.scenario.releases[version_of(pod)], pod["metadata"]
        self.tree.add_driver(ROOT, release.version, fails=not release.loads)
        own = {one["name"]: one["value"] for one in pod["spec"]["initContainers"][0]["env"]}
        own |= {"POD_NAME": metadata["name"], "POD_NAMESPACE": metadata["namespace"]}
        env = environment(self.tree, self.kubeconfig, pod["spec"]["nodeName"], own)
        return Process(command_line("reconcile-driver-state"), env, self.tree.root, self._say, ended)

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
        boot_id, keys = f"boot-of-{name}", self.profile.keys
        if name == self.scenario.canary:
            labels |= {self._operand_key(operand): "true" for operand in OPERANDS}
            boot_id = self.tree.boot_id
        else:
            labels |= {keys.state: NodeState.READY.value, keys.version: self.scenario.old.version}
        conditions = [{"type": "Ready", "status": "True"}]
        status: Any = {"nodeInfo": {"bootID": boot_id}, "conditions": conditions}
        return {"metadata": {"name": name, "labels": labels}, "status": status}

    def _operand_key(self, operand: str) -> str:
        return self.profile.deploy.prefix + operand


# The picture of the fleet: a row for each node, and the headline of the rollout.

NONE = "-"
HEADINGS = ("NODE", "WAVE", "UPGRADE", "DRIVER", "POD", "WHY")
_WORDS_UNDER_WAY = frozenset(state.value for state in UNDER_WAY)


class NodeRow(Struct, frozen=True):
    """A node: its wave, upgrade state, driver version, driver pod, and the reason if it failed or waits."""

    node: str
    wave: str
    upgrade: str
    driver: str
    pod: str
    why: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        return astuple(self)

    @property
    def is_under_way(self) -> bool:
        return self.upgrade in _WORDS_UNDER_WAY

    @property
    def is_failed(self) -> bool:
        return self.upgrade == UpgradeState.FAILED.value

    def differs(self, other: NodeRow | None) -> bool:
        """True if the row differs from `other`. Reasons are not compared: they repeat the headline."""
        return other is None or replace(self, why="") != replace(other, why="")


class Picture(Struct, frozen=True):
    """The target revision, phase and message of the rollout, and a row for each node, by name."""

    target: str = ""
    phase: str = ""
    message: str = ""
    rows: tuple[NodeRow, ...] = ()

    @property
    def headline(self) -> str:
        return f"{self.phase}: {self.message}" if self.phase else "the controller has not read the rollout yet"


def picture_of(nodes: Sequence[Obj], pods: Iterable[Obj], status: Obj, keys: NodeKeys) -> Picture:
    """The picture of nodes that are sorted by name; `status` is that of the rollout."""
    message = next((one["message"] for one in status.get("conditions", ())), "")
    waves = {wave["number"]: wave["name"] for wave in status.get("waves", ())}
    # A reason that holds for all nodes is the headline.
    groups = [group for group in status.get("waiting", ()) if not message.startswith(group["reason"])]
    reasons = {name: group["reason"] for group in groups for name in group["nodes"]}
    by_node = {pod["spec"]["nodeName"]: pod for pod in pods}
    names = [node["metadata"]["name"] for node in nodes]
    rows = [
        _row(node, by_node.get(name), waves, reasons.get(name, ""), keys)
        for name, node in zip(names, nodes, strict=True)
    ]
    return Picture(status.get("targetRevision", ""), status.get("phase", ""), message, tuple(rows))


def record_of(node: Obj, keys: NodeKeys) -> NodeRecord | None:
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


# The course of the scenario, and its check.


class Taken(Struct, frozen=True):
    """A node started in a wave, with the nodes that had not ended by then."""

    node: str
    version: str
    wave: int
    unfinished: tuple[str, ...] = ()


class FleetCourse(Struct):
    """The observed course. `pods` counts the created driver pods by node and version, without the initial pods.

    `halted` is the message at the halt, `undone` the picture after the undo, `end` the last picture. `answers` are the
    exit codes of `rollout status` at the halt and of `rollout undo`.
    """

    taken: list[Taken] = field(default_factory=list)
    pods: Counter[tuple[str, str]] = field(default_factory=Counter)
    most_at_once: int = 0
    halted: str = ""
    undone: Picture = Picture()
    end: Picture = Picture()
    shown: Mapping[str, str] = field(default_factory=dict)
    answers: Sequence[int] = ()
    controller_status: int | None = None

    def versions(self, picture: Picture) -> dict[str, str]:
        """The driver version on each node with a running pod."""
        return {row.node: row.driver for row in picture.rows if row.pod == "Running"}


def problems(scenario: FleetScenario, course: FleetCourse) -> list[str]:
    old, bad, good = (one.version for one in (scenario.old, scenario.bad, scenario.good))
    codes = (int(ExitCode.ROLLOUT_STUCK), int(ExitCode.DONE))

    def pods(version: str) -> dict[str, int]:
        return {node: count for (node, of), count in course.pods.items() if of == version}

    labels = {row.node: row.upgrade for row in course.end.rows}
    in_parallel = int(scenario.spec["maxParallel"])
    conditions = {"Ready": "True", "Reconciling": "False", "Stalled": "False"}
    found = differences(
        [
            (f"driver {bad} reached", pods(bad), {scenario.canary: 1}),
            ("rollout status and undo ended with", tuple(course.answers), codes),
            ("after the undo the nodes serve", course.versions(course.undone), dict.fromkeys(scenario.nodes, old)),
            ("for the undo pods were restarted on", pods(old), {scenario.canary: 1}),
            (f"restarts for {good}:", pods(good), dict.fromkeys(scenario.nodes, 1)),
            ("in the end the nodes serve", course.versions(course.end), dict.fromkeys(scenario.nodes, good)),
            ("nodes that were under way at once:", course.most_at_once, in_parallel),
            ("the labels are", labels, dict.fromkeys(scenario.nodes, UpgradeState.DONE.value)),
            ("the object's conditions are", dict(course.shown), conditions),
            ("the controller ended with", course.controller_status, 0),
        ]
    )
    if not all(word in course.halted for word in (scenario.canary, NodeState.HELD.value)):
        found.append(f"the halt shows {course.halted!r}, expected {scenario.canary} and {NodeState.HELD.value}")
    return [*found, *_wave_problems(scenario, [one for one in course.taken if one.version == good])]


def _wave_problems(scenario: FleetScenario, taken: Sequence[Taken]) -> Iterator[str]:
    """No node starts before all nodes of the previous waves have ended."""
    numbers, count = [one.wave for one in taken], len(scenario.spec["waves"])
    if numbers != sorted(numbers) or set(numbers) != set(range(1, count + 1)):
        yield f"the nodes were taken in the waves {numbers}, expected all of {count} in their order"
    wave_of = {one.node: one.wave for one in taken}
    for one in taken:
        early = [other for other in one.unfinished if wave_of[other] < one.wave]
        if early:
            yield f"{one.node} of wave {one.wave} was taken before {', '.join(early)} had ended"


STEP_S = 150.0
END_S = 10.0


class FleetShow(Show, Protocol):
    """Prints the scenario while it runs."""

    def picture(self, picture: Picture, news: Sequence[str]) -> None:
        """The picture of the fleet, and its changes in lines."""


class FleetWatcher(Controller):
    """Passes changes to a show, and records the course. `picture` is the last one."""

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

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.previous is not None and event.resource == "nodes":
                self._note_node(event)
            elif event.type == "ADDED" and event.resource == "pods":
                self._note_pod(event)
        now = self._now()
        news = self._news(now)
        if now != self.picture:
            with contextlib.suppress(BrokenPipeError):  # the next part fails
                self._show.picture(now, news)
            self.picture = now
            self._store.wake()  # for `wait_for`

    def _now(self) -> Picture:
        pods = self._store.list_objects("pods", labels=f"app={DRIVER}")[0]
        nodes = self._store.list_objects("nodes")[0]
        return picture_of(nodes, pods, self._fleet.status(), self._fleet.profile.keys)

    def _note_node(self, event: Event) -> None:
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
        at_s = time.monotonic() - self._begun_s
        before = {row.node: row for row in self.picture.rows}
        changed = (row.cells for row in now.rows if row.differs(before.get(row.node)))
        news = ["  ".join(map(str.ljust, cells, (8, 8, 21, 7, 0))) for cells in changed]
        if now.headline != self.picture.headline:
            news.append(now.headline)
        self.timeline += [Happening(at_s, line) for line in news]
        return [f"{at_s:6.2f} s  {line}" for line in news]


def run_fleet_scenario(
    scenario: FleetScenario, show: FleetShow, shell: Callable[[Mapping[str, str]], None] | None = None
) -> ScenarioReport:
    """Play `scenario` and check its end, or with `shell` play to the halt and call it with the commands' environment.

    Raises RuntimeError if the sandbox itself fails.
    """
    with tempfile.TemporaryDirectory(prefix="driver-manager-sandbox-") as name:
        folder, profile = Path(name).resolve(), builtin()["rebellions"]
        with (
            SandboxFleet(scenario, profile, folder, lambda line: show.line(f"{scenario.canary}: {line}")) as fleet,
            FleetWatcher(fleet, show) as watcher,
        ):
            return FleetPlay(scenario, fleet, watcher, show).report(shell)


class FleetPlay:
    def __init__(self, scenario: FleetScenario, fleet: SandboxFleet, watcher: FleetWatcher, show: FleetShow) -> None:
        self._scenario = scenario
        self._fleet = fleet
        self._watcher = watcher
        self._show = show

    def report(self, shell: Callable[[Mapping[str, str]], None] | None = None) -> ScenarioReport:
        scenario, fleet, course, before = self._scenario, self._fleet, self._watcher.course, self._state()
        report = ScenarioReport(scenario, before, before, is_shown=True, node=scenario.canary)
        begun_s = time.monotonic()
        self._show.chapter(
            f"{len(scenario.nodes)} nodes serve driver {scenario.old.version}; rollout controller starts"
        )
        controller = fleet.rollout_command(lambda line: self._show.line(f"controller: {line}"), "controller")
        try:
            self._to_halt(controller)
            if shell is not None:
                shell(fleet.environment())
            else:
                self._play(controller, report)
        except RuntimeError as error:
            report.problems.append(str(error))
        controller.stop()
        course.controller_status = controller.wait(END_S)
        course.end = self._watcher.picture
        course.shown = {one["type"]: one["status"] for one in fleet.status().get("conditions", ())}
        report.seconds = time.monotonic() - begun_s
        report.requests = sum(record.resource != "events" for record in fleet.server.requests)
        report.timeline = list(self._watcher.timeline)
        report.after = self._state()
        if shell is None and not report.problems:  # else more problems would follow from it
            report.problems = [*problems(scenario, course), *self._left_on_host(before, report.after)]
        return report

    def _to_halt(self, controller: Process) -> None:
        """Play to the halt. Raises RuntimeError if it is not reached."""
        scenario, fleet = self._scenario, self._fleet
        self._until(controller, Phase.COMPLETE, scenario.old)
        self._show.chapter(f"kubectl apply: driver {scenario.bad.version}, whose module does not load")
        fleet.set_release(scenario.bad)
        self._until(controller, Phase.HALTED, scenario.bad)
        self._watcher.course.halted = self._watcher.picture.message

    def _play(self, controller: Process, report: ScenarioReport) -> None:
        """Play the parts after the halt. Raises RuntimeError if one does not end."""
        scenario, fleet, course = self._scenario, self._fleet, self._watcher.course
        report.exit_codes = [self._ask("status"), self._ask("undo")]
        course.answers = tuple(report.exit_codes)
        self._until(controller, Phase.COMPLETE, scenario.old)
        course.undone = self._watcher.picture
        self._show.chapter(f"kubectl apply: driver {scenario.good.version}, which is good")
        fleet.set_release(scenario.good)
        self._until(controller, Phase.COMPLETE, scenario.good)

    def _ask(self, verb: str) -> int:
        self._show.chapter(f"driver-manager rollout {verb}")
        return self._fleet.rollout_command(self._show.line, verb).wait(STEP_S)

    def _until(self, controller: Process, phase: Phase, release: Release) -> None:
        """Wait until the rollout of this driver has this phase. Raises RuntimeError if it does not."""
        fleet, watcher = self._fleet, self._watcher
        revision = next(one for one, version in fleet.revisions.items() if version == release.version)

        def holds() -> bool:
            shown = watcher.picture
            return (shown.phase, shown.target) == (phase.value, revision) and fleet.starter.is_at_rest

        what = f"{phase.value} of driver {release.version}"
        fleet.store.wait_until(lambda: holds() or controller.has_ended, what, STEP_S)
        if not holds():
            raise RuntimeError(f"the controller ended before {what}")

    def _state(self) -> NodeSummary:
        return summary_of(self._fleet.store.get("nodes", self._scenario.canary), self._fleet.tree)

    def _left_on_host(self, before: NodeSummary, after: NodeSummary) -> list[str]:
        good, keys = self._scenario.good, self._fleet.profile.keys
        labels = before.labels | {keys.state: "ready", keys.upgrade_state: UpgradeState.DONE.value}
        expected = NodeSummary(labels, before.cordoned, before.journal, good.version, good.digest)
        return differences([(f"{self._scenario.canary} is", after, expected)])
