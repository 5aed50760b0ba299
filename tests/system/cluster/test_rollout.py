"""The definition of DriverRollout on the real API server: what it refuses in which words, fills in, shows and keeps."""

from __future__ import annotations

import copy
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from driver_manager import profiles
from driver_manager.domain.fleet.spec import (
    RevisionHistory,
    RolloutPolicy,
    RolloutState,
    memory_of,
    read,
)
from driver_manager.domain.fleet.state import FleetDecision, NodePhase, NodeView, Outlook, Phase, WaveView
from driver_manager.domain.fleet.status import status_of
from driver_manager.domain.wire import merge_patch, without_blanks
from scripts.releasing.kustomize import DEPLOY, OVERLAYS, only, render
from tests.support.control_plane.api import Api, Json, gone, refusal, wait_until
from tests.support.control_plane.faults import ALWAYS, Drop, Exchange, Fault
from tests.support.control_plane.kubelet import NEVER, Node, NodeFactory, OperandsFactory
from tests.support.control_plane.processes import Command, Running
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.rollout_fleet import (
    IDLE,
    PODS,
    ROLLOUTS,
    STATE,
    TASK,
    RolloutFleet,
    TaskPods,
    Witness,
    ended,
    most_under_way,
    restarted,
    serve_rollouts,
    writes,
)
from tests.support.control_plane.runner import CORDON, JOURNAL, PREFIX, CommandRunner, node_of
from tests.support.control_plane.servers import NAMESPACE, ControlPlane, User
from tests.support.deploy.apply import applied, apply
from tests.support.docs.rollout_object import definition
from tests.support.fakes.rollout_objects import BAD, BLANK, FULL, SPEC, Bad, rollout, zones

DAEMON_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
MANAGER = {"name": "manager", "image": "manager:1", "args": ["reconcile-driver-state"]}
ROLLOUT = "clear-first"
OPERAND = "device-plugin"
CLEAR_POD = f"{ROLLOUT}-clear-"


@dataclass
class Scene:
    """A node that serves an old driver, whose DaemonSet has a new template; a controller that clears nodes first."""

    api: Api
    one: CommandRunner
    driver: str
    first: Json
    controller: Running
    labels: dict[str, str]

    @property
    def node(self) -> Node:
        return node_of(self.one)

    def driver_pod(self) -> Json | None:
        pods = [pod for pod in self.node.pods() if pod["metadata"]["name"].startswith(self.driver)]
        return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), None)

    def clear_pods(self) -> list[Json]:
        return self.api.list(PODS, labelSelector=f"{TASK}=clear")

    def begin(self) -> tuple[Json, Command]:
        """The pod that clears the node, and its command."""
        (pod,) = wait_until(self.clear_pods, "the node is to be cleared", 120)
        self.node.kubelet.report_running(pod)
        (container,) = pod["spec"]["containers"]
        assert pod["spec"]["nodeName"] == self.node.name
        return pod, self.one.start(*container["args"], **self.env(pod))

    def env(self, pod: Json) -> dict[str, str]:
        """As the pod's downward API gives it."""
        name = pod["metadata"]["name"]
        where = {"POD_NAMESPACE": NAMESPACE, "OPERATOR_NAMESPACE": NAMESPACE}
        return {"POD_NAME": name, **where, "DRIVER_LOAD": "container", "DEVICE_FREE_TIMEOUT": "2s"}

    def report(self, pod: Json, code: int, message: str = "") -> None:
        gone(lambda: self.api.patch(f"{PODS}/{pod['metadata']['name']}/status", ended(pod, code, message)), 409)

    def is_given_back(self) -> bool:
        """Whether the node is as it was before anybody took it."""
        node = self.node.read()
        labels = {key: value for key, value in self.node.labels().items() if key != STATE}
        is_free = not {JOURNAL, CORDON} & self.node.annotations().keys() and "unschedulable" not in node["spec"]
        return is_free and labels == self.labels

    def state(self) -> str:
        return str(self.node.read()["metadata"]["labels"].get(STATE, ""))

    def phase(self) -> str:
        return str(self.api.get(f"{ROLLOUTS}/{ROLLOUT}").get("status", {}).get("phase", ""))


@pytest.fixture
def scene(
    control_plane: ControlPlane,
    admin_api: Api,
    agent_with_events: User,
    tmp_path: Path,
    node: NodeFactory,
    operands: OperandsFactory,
) -> Iterator[Scene]:
    """Everything but the runs."""
    serve_rollouts(admin_api, definition())
    one = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    one.node = node({}, boot_id=one.tree.boot_id)
    (pod,) = operands(one.node, (OPERAND, "driver")).pods()["driver"]
    driver = pod["metadata"]["ownerReferences"][0]["name"]
    one.node.kubelet.start_by_hand(CLEAR_POD, driver)
    labels = one.node.labels()
    template = {"spec": {"initContainers": [MANAGER]}}
    spec = {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}, "template": template}
    admin_api.patch(f"{DAEMON_SETS}/{driver}", {"spec": spec})
    metadata = {"name": ROLLOUT, "namespace": NAMESPACE}
    body = {"apiVersion": "driver-manager.rebellions.ai/v1alpha1", "kind": "DriverRollout", "metadata": metadata}
    admin_api.post(ROLLOUTS, {**body, "spec": {"daemonSet": driver, "waves": [{"name": "all"}]}})
    controller = _controller(control_plane, tmp_path)
    try:
        yield Scene(admin_api, one, driver, pod, controller, labels)
    finally:
        print(controller.kill().err)
        gone(lambda: admin_api.delete(f"{ROLLOUTS}/{ROLLOUT}"))
        wait_until(lambda: not admin_api.list(PODS, labelSelector=f"{TASK}=clear"), "no pod is left", 120)


def _controller(plane: ControlPlane, folder: Path) -> Running:
    profile = folder / "unloading.toml"
    shipped = (
        (Path(profiles.__file__).parent / "rebellions.toml")
        .read_text()
        .replace('name = "rebellions"', 'name = "unloading"', 1)
    )
    profile.write_text(shipped.replace("namespace = ", "container_unloads = true\nnamespace = ", 1))
    last_line = folder / "controller"
    last_line.touch()
    argv = [sys.executable, "-m", "driver_manager", "rollout", "controller", "--profile", "unloading"]
    argv += ["--profile-file", str(profile), "--namespace", NAMESPACE, "--lease-name", ROLLOUT, "--log-format", "text"]
    env = {"PATH": "/usr/bin:/bin", **plane.service_account(plane.rollout.token)}
    return Running(argv, env, last_line)


@pytest.mark.shares(6)
def test_the_journal_carries_the_node_from_one_pod_to_the_next(scene: Scene) -> None:
    pod, clears = scene.begin()
    driver = scene.driver_pod
    first = scene.first["metadata"]["uid"]
    wait_until(
        lambda: (found := driver()) is None or found["metadata"]["uid"] != first, "the driver pod is deleted", 120
    )
    over = clears.end()
    assert over.code == 0, over.err
    scene.report(pod, 0)
    left = json.loads(scene.node.annotations()[JOURNAL])
    assert left["cleared"] == pod["metadata"]["labels"]["driver-manager.rebellions.ai/revision"]
    assert left["owner"]["uid"] == pod["metadata"]["uid"]
    assert scene.node.labels()[f"{PREFIX}{OPERAND}"] == "paused-for-driver-upgrade"
    assert scene.one.tree.driver_version, "nothing was unloaded by us"
    second = wait_until(driver, "the next driver pod", 60)
    ended_run = scene.one.reconcile(**scene.env(second))
    assert ended_run.code == 0, ended_run.err
    scene.node.kubelet.report_running(second)
    assert scene.is_given_back()
    wait_until(lambda: scene.phase() == "Complete", "the rollout is complete", 120)
    assert scene.state() == "upgrade-done"
    wait_until(lambda: not scene.clear_pods(), "its pod is gone", 60)


@pytest.mark.shares(6)
def test_a_node_that_cannot_be_cleared_keeps_its_driver_pod(scene: Scene) -> None:
    scene.node.kubelet.stop_after(OPERAND, NEVER)
    pod, clears = scene.begin()
    wait_until(lambda: JOURNAL in scene.node.annotations(), "the node is taken", 60)
    scene.one.tree.hold_device()
    scene.node.kubelet.release(OPERAND)
    over = clears.end()
    assert over.code == 4, over.err
    scene.report(pod, over.code, over.last_line)
    wait_until(lambda: scene.state() == "upgrade-failed", "the node has failed", 60)
    assert scene.is_given_back()
    there = scene.driver_pod()
    assert there is not None
    assert there["metadata"]["uid"] == scene.first["metadata"]["uid"]
    wait_until(lambda: scene.phase() == "Halted", "it halts", 60)


@pytest.mark.shares(6)
def test_a_deleted_object_gives_the_node_back(scene: Scene) -> None:
    scene.node.kubelet.stop_after(OPERAND, NEVER)
    _, clears = scene.begin()
    wait_until(lambda: JOURNAL in scene.node.annotations(), "the node is taken", 60)
    scene.controller.process.kill()
    scene.node.kubelet.release(OPERAND)
    wait_until(lambda: "cleared" in scene.node.annotations()[JOURNAL], "the node is cleared", 60)
    assert scene.driver_pod() is not None
    gone(lambda: scene.api.delete(f"{ROLLOUTS}/{ROLLOUT}"))
    wait_until(
        lambda: not [one for one in scene.clear_pods() if "deletionTimestamp" not in one["metadata"]],
        "the garbage collector takes its pod",
        120,
    )
    assert clears.terminate().code == 10
    assert scene.is_given_back()


NODES = 10
WAVES = [{"name": "canary", "count": 1, "soak": "2s"}, {"name": "tenth", "percent": 10}, {"name": "rest"}]


@pytest.fixture
def fleet(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[RolloutFleet]:
    """Ten nodes that serve the first driver, without a controller."""
    serve_rollouts(admin_api, definition())
    with RolloutFleet(control_plane, admin_api, tmp_path, NODES) as made:
        yield made


def begun(fleet: RolloutFleet, **spec: object) -> int:
    """The first revision is complete by the object; a mark of the audit log after that."""
    fleet.make_rollout(**{"waves": WAVES, "maxParallel": 3, **spec})
    wait_until(lambda: fleet.status().get("phase") == "Complete", f"the first revision: {fleet.status()}", 120)
    return fleet.plane.audit_mark()


def check_each_once(fleet: RolloutFleet, revision: str, mark: int) -> None:
    """Raise AssertionError unless every node serves the revision after one restart."""
    assert fleet.serving() == dict.fromkeys(fleet.nodes, revision)
    assert fleet.states() == dict.fromkeys(fleet.nodes, "upgrade-done")
    deleted = restarted(fleet.requests(mark))
    assert (len(deleted), set(deleted.values())) == (NODES, {1})


@pytest.mark.shares(6)
def test_a_rollout_goes_through_its_waves_in_few_writes_and_is_idle_afterwards(fleet: RolloutFleet) -> None:
    controller = fleet.start()
    mark = begun(fleet)
    new = fleet.set_driver("driver:2")
    fleet.wait_complete(new)
    check_each_once(fleet, new, mark)
    records = fleet.requests(mark)
    marked = [one.name for one in records if (one.verb, one.resource) == ("patch", "nodes")]
    assert marked[0] == marked[1], "the canary has ended before anybody else begins"
    assert 1 < most_under_way(records) <= 3
    found = writes(records)
    print(f"writes of {NODES} nodes: {dict(found)}")
    assert found["nodes"] == 2 * NODES
    assert found["pods"] == NODES
    assert found["driverrollouts/status"] <= NODES
    assert sum(found.values()) - found["events"] <= 4 * NODES
    counts = fleet.status()["counts"]
    assert (counts["updated"], counts["total"]) == (NODES, NODES)
    assert fleet.while_idle(renewals=3) <= IDLE
    ended = controller.terminate()
    assert ended.code == 0, ended.err


@pytest.mark.shares(6)
def test_killed_in_the_middle_again_and_again_the_next_one_goes_on(fleet: RolloutFleet) -> None:
    controller = fleet.start()
    mark = begun(fleet, waves=[{"name": "all"}], maxParallel=2)
    chance = random.Random(4)  # noqa: S311  # when it is killed is no secret
    new = fleet.set_driver("driver:2")
    for _ in range(3):
        done = sum(state == "upgrade-done" for state in fleet.states().values())
        wait_until(
            lambda done=done: len(fleet.states()) > done or fleet.is_complete(new),  # type: ignore[misc]
            "another node goes",
            120,
        )
        since, more = fleet.plane.audit_mark(), chance.randrange(4)
        wait_until(
            lambda since=since, more=more: (  # type: ignore[misc]
                writes(fleet.requests(since)).total() >= more or fleet.is_complete(new)
            ),
            f"{more} writes more",
            120,
        )
        assert controller.kill().code == -9
        controller = fleet.start()
    fleet.wait_complete(new)
    check_each_once(fleet, new, mark)
    assert most_under_way(fleet.requests(mark)) <= 2


@pytest.mark.shares(6)
def test_of_two_at_once_one_acts_and_the_other_takes_over_when_it_is_told_to_end(fleet: RolloutFleet) -> None:
    first = fleet.start("first")
    mark = begun(fleet, waves=[{"name": "all"}], maxParallel=2)
    second = fleet.start("second")
    wait_until(lambda: "as " in second.said(), "the second is there", 60)
    new = fleet.set_driver("driver:2")
    wait_until(lambda: len(fleet.states()) >= 2, "it is under way", 60)
    assert "leading" not in second.said()
    assert first.terminate().code == 0
    handed_s = time.monotonic()
    wait_until(lambda: "leading" in second.said(), "the second leads", 60)
    assert time.monotonic() - handed_s < 12.0, "before the Lease would have run out"
    fleet.wait_complete(new)
    check_each_once(fleet, new, mark)
    assert most_under_way(fleet.requests(mark)) <= 2


@pytest.mark.shares(6)
def test_a_node_that_fails_halts_the_rollout_and_a_repaired_one_completes_it(fleet: RolloutFleet) -> None:
    fleet.start()
    begun(fleet, nodeTimeout="5s")
    canary = min(fleet.nodes)
    fleet.kubelets.broken.add(canary)
    new = fleet.set_driver("driver:2")
    wait_until(lambda: fleet.status().get("phase") == "Halted", "it halts", 120)
    assert fleet.states() == {canary: "upgrade-failed"}
    (stalled,) = [one for one in fleet.status()["conditions"] if one["type"] == "Stalled"]
    assert stalled["status"] == "True"
    assert canary in str(fleet.status()["failures"])
    fleet.kubelets.broken.clear()
    fleet.wait_complete(new)


LEADERS_NODES = 30
"""One after the other: as long as a leader may act without its Lease, and another one after it."""


@pytest.fixture
def thirty(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[RolloutFleet]:
    serve_rollouts(admin_api, definition())
    with RolloutFleet(control_plane, admin_api, tmp_path, LEADERS_NODES) as made:
        yield made


def effects(proxy: Proxy, since: int = 0) -> list[Exchange]:
    """What the controller behind the proxy has changed, or tried to change, of the rollout."""
    verbs = ("patch", "delete", "create")
    return [
        one
        for one in proxy.exchanges(since=since)
        if one.request.target.verb in verbs and one.request.target.resource != "leases"
    ]


@pytest.mark.shares(6)
def test_a_leader_cut_off_from_its_lease_stops_before_another_begins(
    thirty: RolloutFleet, admin_api: Api, tmp_path: Path
) -> None:
    cut = Fault(Drop(), resource="leases", times=ALWAYS)
    with (
        Proxy.before(thirty.plane) as of_first,
        Proxy.before(thirty.plane) as of_second,
    ):
        first = thirty.fork(of_first.url)
        thirty.make_rollout(waves=[{"name": "all"}])
        wait_until(
            lambda: thirty.status().get("phase") == "Complete",
            f"the first revision: {thirty.status()}",
            120,
        )
        (good,) = set(thirty.serving().values())
        second = thirty.fork(of_second.url)
        second.wait_log("as ")
        with Witness(admin_api, thirty.name) as witness:
            new = thirty.set_driver("driver:2")
            wait_until(lambda: len(thirty.states()) > 1, "it is under way", 120)
            at_cut = of_first.mark()
            of_first.add(cut)
            second.wait_log("leading")
            wait_until(lambda: effects(of_second), "the second acts", 120)
            took_s = effects(of_second)[0].at_s
            of_first.lift(cut)
            first.wait_log("standing by")
            at_heal = of_first.mark()
            late = effects(of_first, at_cut)
            assert late, "its way to everything else was open"
            assert max(one.ended_at_s or took_s for one in late) < took_s
            assert second.terminate().code == 0
            handed = len(effects(of_second))
            wait_until(lambda: effects(of_first, at_heal), "the first acts again", 120)
            thirty.wait_complete(new)
            assert len(effects(of_second)) == handed
            witness.caught_up()
        assert first.terminate().code == 0
    last = max(one.ended_at_s or 0.0 for one in effects(of_second))
    assert last < effects(of_first, at_heal)[0].at_s
    assert witness.served() == {name: [good, new] for name in thirty.nodes}
    assert {tuple(words) for words in witness.words().values()} == {("pod-restart-required", "upgrade-done")}
    assert witness.most_under_way() == 1
    assert witness.labels_lost({"fleet": thirty.name}) == []


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
NOW_S = 1_767_323_045.0

Make = Callable[..., Json]


@pytest.fixture(scope="module")
def defined(admin_api: Api) -> Iterator[None]:
    """The server knows DriverRollouts, as deploy/ defines them."""
    with applied(admin_api, [only(render("rebellions/rollout"), "CustomResourceDefinition")]):
        wait_until(lambda: admin_api.answers(ROLLOUTS), "DriverRollouts are served")
        yield


@pytest.fixture
def make(admin_api: Api, defined: None) -> Iterator[Make]:
    """Makes rollouts with the API server as judge; they are gone afterwards."""
    names = (f"rollout-{number}" for number in itertools.count())
    made: list[str] = []

    def create(spec: Any) -> Json:
        name = next(names)
        found = admin_api.post(ROLLOUTS, rollout(spec, name))
        made.append(name)
        return found

    yield create
    for name in made:
        gone(lambda name=name: admin_api.delete(f"{ROLLOUTS}/{name}"))  # type: ignore[misc]


def column(api: Api, name: str) -> dict[str, Any]:
    """What `kubectl get` shows of an object: its table comes from the server."""
    table = api.request("GET", f"{ROLLOUTS}/{name}", accept=TABLE)
    (row,) = table["rows"]
    return dict(zip((one["name"] for one in table["columnDefinitions"]), row["cells"], strict=True))


def wide(api: Api, name: str) -> set[str]:
    """The columns that `kubectl get` shows with `-o wide` only."""
    table = api.request("GET", f"{ROLLOUTS}/{name}", accept=TABLE)
    return {one["name"] for one in table["columnDefinitions"] if one["priority"]}


def decision(nodes: int) -> FleetDecision:
    """One about so many nodes, in all places, with reasons of all lengths."""
    places = itertools.cycle(NodePhase)
    views = tuple(
        NodeView(f"node-{number:04}", next(places), 1, f"{number} {'why ' * (number % 90)}", NOW_S)
        for number in range(nodes)
    )
    waves = (WaveView(1, "canary", {NodePhase.DONE: 1}, NOW_S), WaveView(2, "rest", {NodePhase.WAITING: nodes}))
    memory = RolloutState(
        "new",
        "old",
        ("bad",),
        (RevisionHistory("bad", NOW_S - 60, NOW_S, "halted"), RevisionHistory("new", NOW_S)),
        "1",
    )
    return FleetDecision((), memory, Outlook(Phase.PROGRESSING, "UnderWay", "it goes on", "new", 2, views, waves))


def shows(api: Api, name: str, old: Json, made: FleetDecision) -> Json:
    """The status as the server has it, which is as it was written."""
    status = without_blanks(status_of(made, {}, 1, NOW_S))
    stored: Json = api.patch(f"{ROLLOUTS}/{name}/status", {"status": merge_patch(old, status)})["status"]
    assert stored == status
    return stored


@pytest.mark.shares(6)
@pytest.mark.parametrize("bad", [bad for bad in BAD if bad.server], ids=lambda bad: bad.name)
def test_a_bad_value_is_refused_by_name(make: Make, bad: Bad) -> None:
    refused = refusal(lambda: make(bad.spec))
    assert refused.status == 422
    assert bad.server in refused.body["message"]


@pytest.mark.parametrize("bad", [bad for bad in BAD if not bad.server], ids=lambda bad: bad.name)
def test_what_the_server_cannot_check_the_reader_finds_in_what_it_stored(admin_api: Api, make: Make, bad: Bad) -> None:
    stored = make(bad.spec)
    if bad.name == "field-unknown":
        assert "maxParralel" not in stored["spec"], "the server drops what it does not know"
    else:
        assert read(stored, zones).problems == (bad.reader,)


def test_the_shortest_object_is_stored_with_all_defaults(make: Make) -> None:
    stored = make(SPEC)
    assert stored["spec"].keys() - SPEC.keys() == {
        "paused",
        "maxParallel",
        "waves",
        "timezone",
        "failureThreshold",
        "onHalt",
        "nodeTimeout",
        "validationTimeout",
        "approveReboots",
        "preflight",
    }
    assert read(stored, zones).policy == RolloutPolicy("driver")


def test_the_longest_object_is_stored_as_it_was_meant(make: Make) -> None:
    assert read(make(FULL), zones).policy == read(rollout(FULL), zones).policy


def test_what_is_blank_or_null_is_as_if_it_were_not_said(make: Make) -> None:
    assert read(make(BLANK), zones).policy == read(make({**SPEC, "waves": [{"name": "rest"}]}), zones).policy


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_example_of_an_overlay_is_taken(admin_api: Api, defined: None, overlay: str) -> None:
    body = yaml.safe_load((DEPLOY / "overlays" / overlay / "rollout/driverrollout.yaml").read_text())
    with applied(admin_api, [*render(f"{overlay}/namespace"), body]):
        stored = apply(admin_api, body)
    assert read(stored, zones).policy == read(body, zones).policy


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_server_knows_every_field_of_the_controller(admin_api: Api, defined: None, overlay: str) -> None:
    objects = copy.deepcopy(render(f"{overlay}/rollout"))
    # The server of these tests is older than policy/v1, which has the same fields.
    only(objects, "PodDisruptionBudget")["apiVersion"] = "policy/v1beta1"
    rest = [one for one in objects if one["kind"] != "CustomResourceDefinition"]
    with applied(admin_api, [*render(f"{overlay}/namespace"), *rest]):
        deployment = apply(admin_api, only(objects, "Deployment"))
    assert deployment["spec"]["replicas"] == 2


def test_kubectl_shows_how_it_stands(admin_api: Api, make: Make) -> None:
    name = make(SPEC)["metadata"]["name"]
    before = column(admin_api, name)
    assert list(before) == [
        "Name",
        "Target",
        "Phase",
        "Wave",
        "Updated",
        "Total",
        "Failed",
        "Left out",
        "Age",
        "Message",
    ]
    assert wide(admin_api, name) == {"Left out", "Message"}
    shows(admin_api, name, {}, decision(10))
    shown = column(admin_api, name)
    assert {key: shown[key] for key in shown.keys() - {"Name", "Age"}} == {
        "Target": "new",
        "Phase": "Progressing",
        "Wave": 2,
        "Updated": 2,
        "Total": 10,
        "Failed": 2,
        "Left out": 2,
        "Message": "it goes on",
    }


def test_the_status_of_five_thousand_nodes_is_kept_whole(admin_api: Api, make: Make) -> None:
    stored = shows(admin_api, make(SPEC)["metadata"]["name"], {}, decision(5_000))
    assert memory_of(stored) == decision(0).memory


def test_nothing_is_left_of_an_earlier_status(admin_api: Api, make: Make) -> None:
    name = make(SPEC)["metadata"]["name"]
    stored = shows(admin_api, name, {}, decision(500))
    empty = FleetDecision((), RolloutState(), Outlook(Phase.COMPLETE, "Complete", "", "", 0, (), ()))
    assert memory_of(shows(admin_api, name, stored, empty)) == RolloutState()


def test_spec_and_status_are_written_apart(admin_api: Api, make: Make) -> None:
    made = make(SPEC)
    path = f"{ROLLOUTS}/{made['metadata']['name']}"
    both = {"spec": {"paused": True}, "status": {"phase": "Complete"}}
    by_status = admin_api.patch(f"{path}/status", both)
    assert (by_status["spec"]["paused"], by_status["status"]["phase"]) == (False, "Complete")
    by_spec = admin_api.patch(path, {"spec": {"paused": True}, "status": {"phase": "Halted"}})
    assert (by_spec["spec"]["paused"], by_spec["status"]["phase"]) == (True, "Complete")
    generations = [one["metadata"]["generation"] for one in (made, by_status, by_spec)]
    assert generations == [1, 1, 2], "a status is about a generation of the spec"


def test_a_status_that_is_none_is_refused(admin_api: Api, make: Make) -> None:
    path = f"{ROLLOUTS}/{make(SPEC)['metadata']['name']}/status"
    assert refusal(lambda: admin_api.patch(path, {"status": {"wave": "two"}})).status == 422
    assert refusal(lambda: admin_api.patch(path, {"status": {"conditions": [{"status": "True"}]}})).status == 422


PREFLIGHT_NODES = 4
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/driver-rollout"
REQUESTED = "rebellions.ai/npu-driver-upgrade-requested"


@pytest.fixture
def four(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[RolloutFleet]:
    serve_rollouts(admin_api, definition())
    with RolloutFleet(control_plane, admin_api, tmp_path, PREFLIGHT_NODES) as made:
        yield made


@pytest.fixture
def looks(admin_api: Api) -> Iterator[TaskPods]:
    with TaskPods(admin_api, "preflight") as made:
        yield made


@pytest.mark.shares(6)
def test_a_node_that_would_fail_is_left_out_until_it_passes(four: RolloutFleet, looks: TaskPods) -> None:
    four.start()
    waves = [{"name": "canary", "count": 1}, {"name": "rest"}]
    four.make_rollout(waves=waves, maxParallel=0, preflight="require")
    wait_until(lambda: four.status().get("phase") == "Complete", f"the first revision: {four.status()}", 120)
    assert looks.seen == {}
    canary = min(four.nodes)
    looks.ends[canary] = (6, "module: none for this kernel")
    mark = four.plane.audit_mark()
    new = four.set_driver("driver:2")
    wait_until(lambda: list(four.serving().values()).count(new) == PREFLIGHT_NODES - 1, "the others go", 120)
    wait_until(lambda: four.status().get("phase") == "WaitingForNodes", "the rest waits", 60)
    assert four.serving()[canary] != new
    assert four.status()["leftOut"] == [
        {"reason": "its preflight fails: module: none for this kernel", "count": 1, "nodes": [canary]}
    ]
    wait_until(lambda: [pod["spec"]["nodeName"] for pod in looks.there()] == [canary], "only its pod is kept", 60)
    looks.ends.clear()
    four.api.patch(f"/api/v1/nodes/{canary}", {"metadata": {"annotations": {REQUESTED: "true"}}})
    four.wait_complete(new)
    wait_until(lambda: not looks.there(), "no pod is left", 60)
    assert looks.seen == {**dict.fromkeys(four.nodes, 1), canary: 2}
    records = four.requests(mark)
    made = [one for one in records if (one.verb, one.resource, one.code) == ("create", "pods", 201)]
    assert len(made) == PREFLIGHT_NODES + 1
    assert writes(records)["pods"] == PREFLIGHT_NODES + 2 * (PREFLIGHT_NODES + 1)
    deleted = restarted(records)
    drivers = {name: times for name, times in deleted.items() if "-preflight-" not in name}
    assert (len(drivers), set(drivers.values())) == (PREFLIGHT_NODES, {1})
    spec = looks.bodies[canary]["spec"]
    assert spec["containers"][0]["args"] == ["preflight", "--driver-pod-leaves", "--output", "json"]
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", 300)


@pytest.mark.shares(6)
def test_without_the_right_to_make_pods_it_says_so_and_goes_on_once_it_has_it(
    four: RolloutFleet, looks: TaskPods
) -> None:
    four.start()
    four.make_rollout(waves=[{"name": "all"}], maxParallel=0, preflight="require")
    wait_until(lambda: four.status().get("phase") == "Complete", f"the first revision: {four.status()}", 120)
    rules = four.api.get(ROLE)["rules"]
    less = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "create"]} for rule in rules if is_of_pods(rule)
    ]
    four.api.patch(ROLE, {"rules": [*less, *(rule for rule in rules if not is_of_pods(rule))]})
    try:
        new = four.set_driver("driver:2")
        wait_until(lambda: four.status().get("phase") == "Stalled", f"it says so: {four.status()}", 120)
        assert "create pods" in str(four.status()["conditions"])
        assert four.states() == {}
    finally:
        four.api.patch(ROLE, {"rules": rules})
    four.wait_complete(new)
    assert looks.seen == dict.fromkeys(four.nodes, 1)


def is_of_pods(rule: Json) -> bool:
    return bool(rule["resources"] == ["pods"])


@pytest.mark.shares(6)
def test_the_pods_go_with_the_object(four: RolloutFleet, looks: TaskPods) -> None:
    four.start()
    four.make_rollout(waves=[{"name": "all"}], preflight="require")
    wait_until(lambda: four.status().get("phase") == "Complete", f"the first revision: {four.status()}", 120)
    looks.ends = dict.fromkeys(four.nodes, (6, "no module"))
    four.set_driver("driver:2")
    wait_until(lambda: four.status().get("counts", {}).get("leftOut") == PREFLIGHT_NODES, "all are left out", 120)
    assert len(looks.there()) == PREFLIGHT_NODES
    four.api.delete(f"{ROLLOUTS}/{four.name}")
    wait_until(lambda: not looks.there(), "the garbage collector takes them", 120)
