"""A wedge and its end as the cluster sees them: a real health-watch, its short-lived process, a real API server."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from driver_manager.domain.node_state import NEEDS_HAND, NodeState
from driver_manager.domain.reboot.decision import CORDON_FOR_REBOOT
from driver_manager.profiles import builtin
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.faults import Action, Answer, Delay, Fault, Gone, Hold
from tests.support.control_plane.foreign_edits import ASCEND_OLD, ASCEND_ROOT
from tests.support.control_plane.kubelet import STATE, NodeFactory, OperandsFactory
from tests.support.control_plane.processes import Loop, running
from tests.support.control_plane.runner import OLD_ROOT, PREFIX, CommandRunner, node_of
from tests.support.control_plane.scene import NodeScene, WatchedNode, World, make_stage, open_world, watched_node
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.fakes.night import NIGHTS, Night, check, textfile
from tests.support.fakes.pace import patient

ASCEND, REBELLIONS = builtin()["ascend"], builtin()["rebellions"]
KEYS = ASCEND.keys


@pytest.fixture
def swappable(world: World) -> Iterator[NodeScene]:
    """A node whose driver can be swapped, and is ready."""
    with contextlib.ExitStack() as stack:
        made = make_stage(stack, world, "node")
        ready = on_host(made, REBELLIONS.paths.ready_marker)
        ready.parent.mkdir(parents=True)
        ready.write_text("DRIVER=1\n")
        yield made


@pytest.fixture
def rebooted(world: World) -> Iterator[NodeScene]:
    """A node whose driver only a reboot changes."""
    with contextlib.ExitStack() as stack:
        made = make_stage(stack, world, "node", "ascend")
        made.command_runner.tree.add_driver(ASCEND_ROOT, ASCEND_OLD)
        made.command_runner.tree.load(ASCEND_ROOT)
        made.command_runner.tree.record("old", ASCEND_ROOT, ASCEND_OLD)
        yield made


def on_host(scene: NodeScene, path: str) -> Path:
    return scene.command_runner.tree.root / path.lstrip("/")


def watch_environment(scene: NodeScene, profile: str, root: str) -> dict[str, str]:
    return scene.command_runner.environment(DRIVER_PROFILE=profile, DRIVER_ROOT=root, HEALTH_WATCH_INTERVAL="100ms")


def rebooter_environment(scene: NodeScene) -> dict[str, str]:
    plane = scene.world.plane
    return scene.command_runner.environment(
        KUBECONFIG=str(plane.kubeconfig(plane.rebooter.token)), REBOOTER_INTERVAL="100ms", REBOOT_MIN_UPTIME="0"
    )


def events_of(scene: NodeScene, reason: str) -> int:
    found = scene.world.api.list("/api/v1/namespaces/default/events")
    return sum(one["involvedObject"]["name"] == scene.node.name and one["reason"] == reason for one in found)


@pytest.mark.shares(6)
def test_health_watch_changes_no_mark_while_a_run_works_and_does_once_that_run_is_dead(swappable: NodeScene) -> None:
    ready, withdrawn = (
        on_host(swappable, path) for path in (REBELLIONS.paths.ready_marker, REBELLIONS.paths.ready_withdrawn)
    )
    folder = swappable.world.folder
    with running("health-watch", watch_environment(swappable, "rebellions", OLD_ROOT), folder) as watch:
        watch.says("→ healthy")
        run = swappable.start(stops=("unload before",))
        assert run.wait_stopped(), run.log
        watch.says("→ muted")
        tool = on_host(swappable, OLD_ROOT) / "usr/bin/rbln-smi"
        asked = folder / "asked"
        tool.write_text(f"#!/bin/sh\necho >> {asked}\nexit 1\n")
        said = len(watch.lines)
        assert (ready.exists(), withdrawn.exists()) == (True, False)
        run.kill()
        watch.says("→ wedged", after=said)
        wait_until(withdrawn.exists, "the ready marker is withdrawn")
        assert not ready.exists()
        begun = asked.read_text().count("\n")
        assert begun >= 3, "it was judged before three failures outside of a run"


@pytest.mark.shares(6)
def test_nothing_reboots_while_a_run_has_the_node_and_the_request_of_both_is_one_event(rebooted: NodeScene) -> None:
    tree = rebooted.command_runner.tree
    asked = rebooted.start("--no-wait", env={"DRIVER_LOAD": "container", "DRIVER_ROOT": ""}).end()
    assert asked.code == 9, asked.err
    rebooted.annotate(**{KEYS.approve_reboot: "true", KEYS.journal: "of a run that has taken the node"})
    with running("rebooter", rebooter_environment(rebooted), rebooted.world.folder) as rebooter:
        rebooter.says("taken")
        assert not tree.is_reboot_requested
        assert rebooted.node.annotations()[KEYS.approve_reboot] == "true"
        rebooted.annotate(**{KEYS.journal: None})
        wait_until(lambda: tree.is_reboot_requested, "the reboot is requested")
        assert events_of(rebooted, "RebootRequired") == 1


@pytest.mark.shares(6)
def test_restore_leaves_the_rebooters_cordon_while_its_reboot_is_granted(rebooted: NodeScene) -> None:
    tree = rebooted.command_runner.tree
    asked = rebooted.start("--no-wait", env={"DRIVER_LOAD": "container", "DRIVER_ROOT": ""}).end()
    assert asked.code == 9, asked.err
    rebooted.annotate(**{KEYS.approve_reboot: "true"})
    cordoning = {**rebooter_environment(rebooted), "REBOOT_CORDON": "true"}
    with running("rebooter", cordoning, rebooted.world.folder):
        wait_until(lambda: tree.is_reboot_requested, "the reboot is requested")
        granted = rebooted.node.annotations()
        assert granted[KEYS.cordon] == CORDON_FOR_REBOOT
        restored = rebooted.start(command="restore", env={"POD_NAME": ""}).end()
        assert restored.code == 0, restored.err
        assert "the rebooter's cordon stays" in restored.out
        assert f"kubectl uncordon {rebooted.node.name}" in restored.out
        assert rebooted.node.read()["spec"]["unschedulable"] is True
        assert rebooted.node.annotations() == granted
        told = rebooted.start("-o", "json", command="status", env={"POD_NAME": ""}).end()
        assert json.loads(told.out)["cordon"] == "the rebooter's"


@pytest.mark.shares(6)
def test_a_chip_that_recovers_takes_back_what_the_rebooter_announced(rebooted: NodeScene) -> None:
    tree, folder = rebooted.command_runner.tree, rebooted.world.folder
    marker = on_host(rebooted, ASCEND.paths.reboot_marker)
    with (
        running("rebooter", rebooter_environment(rebooted), folder),
        running("health-watch", watch_environment(rebooted, "ascend", ""), folder) as watch,
    ):
        watch.says("→ healthy")
        tree.wedge()
        wait_until(lambda: rebooted.node.labels().get(KEYS.reboot_required) == "true", "a reboot is asked for")
        assert json.loads(marker.read_text())["reason"] == "recovery"
        (tree.root / fake_tools.WEDGED).unlink()
        wait_until(lambda: not marker.exists(), "the marker is taken back")
        wait_until(lambda: KEYS.reboot_required not in rebooted.node.labels(), "the label is taken back")
        assert not tree.is_reboot_requested
        rebooted.annotate(**{KEYS.approve_reboot: "true"})
        tree.wedge()
        wait_until(lambda: tree.is_reboot_requested, "the reboot is requested")
        assert KEYS.approve_reboot not in rebooted.node.annotations()


@dataclass(frozen=True)
class RealPlace:
    """See `tests.support.fakes.night.Place`."""

    plane: ControlPlane
    runner: CommandRunner
    api: Api

    @property
    def tree(self) -> HostTree:
        return self.runner.tree

    def run(self, *argv: str, **env: str) -> tuple[int, str]:
        by_container = {"DRIVER_LOAD": "container"} if self.tree.profile.name == "ascend" else {}
        ended = self.runner.run(*argv, METRICS_TEXTFILE=str(textfile(self)), **by_container, **env)
        return ended.code, ended.out

    def node(self) -> dict[str, Any]:
        return node_of(self.runner).read()

    def events(self) -> list[tuple[str, str]]:
        name = node_of(self.runner).name
        found = self.api.list("/api/v1/namespaces/default/events")
        return [(one["reason"], one["message"]) for one in found if one["involvedObject"]["name"] == name]

    def pin(self, component: str, finalizer: str) -> None:
        (pod,) = [one for one in node_of(self.runner).pods() if one["metadata"]["labels"]["app"] == component]
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self.api.patch(path, {"metadata": {"finalizers": [finalizer]}})

    def watch(self, is_over: Callable[[], bool], **env: str) -> None:
        own = {"DRIVER_PROFILE": "rebellions", "METRICS_TEXTFILE": str(textfile(self))}
        run = self.runner.start("health-watch", **own, **env)
        wait_until(is_over, "health-watch is done")
        wait_until(lambda: any(reason == "DriverWedged" for reason, _ in self.events()), "the Node was told")
        wait_until(lambda: node_of(self.runner).shown()[0] == "wedged", "the Node shows it")
        assert run.terminate().code == 0

    def without_pods(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.plane.kubeconfig(self.plane.rebooter.token))}


@pytest.fixture
def place(
    control_plane: ControlPlane,
    agent_with_events: User,
    admin_api: Api,
    tmp_path: Path,
    node: NodeFactory,
    operands: OperandsFactory,
) -> Callable[[str], RealPlace]:
    def make(profile: str) -> RealPlace:
        runner = CommandRunner(control_plane, agent_with_events, tmp_path, profile)
        if profile == "ascend":
            runner.tree.add_driver(ASCEND_ROOT, "25.2.0")
            runner.tree.load(ASCEND_ROOT)
            runner.tree.record("old", ASCEND_ROOT, "25.2.0")
            runner.node = node({"openfuyao.com/npu.present": "true"}, boot_id=runner.tree.boot_id)
        else:
            runner.with_upgrade()
            runner.node = node({f"{PREFIX}driver": "true"}, boot_id=runner.tree.boot_id)
            operands(runner.node, ("device-plugin",))
        return RealPlace(control_plane, runner, admin_api)

    return make


@pytest.mark.shares(6)
@pytest.mark.parametrize("night", NIGHTS, ids=lambda night: night.name)
def test_what_happens_at_night_is_seen_on_a_real_api_server(night: Night, place: Callable[[str], RealPlace]) -> None:
    check(night, place(night.profile))


# kubectl get nodes -L rebellions.ai/npu-driver-manager.state

AT_ONCE = 3


def _ready(scene: NodeScene) -> None:
    assert scene.start().end().code == 0


def _failed(scene: NodeScene) -> None:
    scene.command_runner.tree.hold_device()
    assert scene.start(env={"DEVICE_FREE_TIMEOUT": "0s"}).end().code == 4


def _held(scene: NodeScene) -> None:
    for root in ("/opt/rbln/bad", "/opt/rbln/1.2.92"):
        scene.command_runner.tree.add_driver(root, "3.0.0", fails=True)
    assert scene.start(env={"DRIVER_ROOT": "/opt/rbln/bad"}).end().code == 5


def _reboot_required(scene: NodeScene) -> None:
    """By hand what the profile of another vendor does: the label of the same domain is what is looked for."""
    scene.node.set_labels({STATE: NodeState.REBOOT_REQUIRED.value})


def _wedged(scene: NodeScene) -> None:
    scene.node.set_labels({STATE: NodeState.WEDGED.value})


@contextlib.contextmanager
def _upgrading(scene: NodeScene) -> Iterator[None]:
    scene.command_runner.tree.hold_device()
    run = scene.start()
    run.wait_log("device in use")
    yield
    run.kill()


MAKE: dict[NodeState, Callable[[NodeScene], object]] = {
    NodeState.READY: _ready,
    NodeState.FAILED: _failed,
    NodeState.HELD: _held,
    NodeState.REBOOT_REQUIRED: _reboot_required,
    NodeState.WEDGED: _wedged,
    NodeState.UPGRADING: _upgrading,
}


def selected(api: Api, selector: str) -> set[str]:
    """Names of the nodes that `kubectl get nodes -l` would print."""
    return {one["metadata"]["name"] for one in api.list("/api/v1/nodes", labelSelector=selector)}


@pytest.mark.shares(6)
def test_of_nodes_in_all_states_the_label_finds_those_that_need_a_hand(
    control_plane: ControlPlane, agent_for_workloads: User, admin_api: Api, tmp_path: Path
) -> None:
    states = [*NodeState, NodeState.READY, NodeState.HELD]
    with open_world(control_plane, agent_for_workloads, admin_api, tmp_path) as world, contextlib.ExitStack() as stack:
        scenes = [make_stage(stack, world, f"node-{number}") for number in range(len(states))]

        def bring(pair: tuple[NodeState, NodeScene]) -> contextlib.AbstractContextManager[None] | None:
            lasting = MAKE[pair[0]](pair[1])
            if not isinstance(lasting, contextlib.AbstractContextManager):
                return None
            lasting.__enter__()
            return lasting

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for lasting in pool.map(bring, zip(states, scenes, strict=True)):
                if lasting is not None:
                    stack.push(lasting)
        wanted = {scene.node.name: state for state, scene in zip(states, scenes, strict=True)}
        assert set(wanted.values()) == set(NodeState)
        shown = {name: scene.node.shown()[0] for name, scene in zip(wanted, scenes, strict=True)}
        assert shown == {name: state.value for name, state in wanted.items()}
        hand = ",".join(sorted(state.value for state in NEEDS_HAND))
        mine = set(wanted)
        found = selected(admin_api, f"{STATE} in ({hand})") & mine
        assert found == {name for name, state in wanted.items() if state in NEEDS_HAND}
        rest = selected(admin_api, f"{STATE},{STATE} notin ({hand})") & mine
        assert rest == mine - found
        for state in NodeState:
            assert selected(admin_api, f"{STATE}={state.value}") & mine == {
                name for name, one in wanted.items() if one is state
            }


WEDGED, RECOVERED = "DriverWedged", "DriverRecovered"
# Ten seconds for the question, thirty for the evidence, twenty for the news.
GIVES_UP_S = 60.0


@pytest.fixture
def world(control_plane: ControlPlane, agent_for_workloads: User, admin_api: Api, tmp_path: Path) -> Iterator[World]:
    with open_world(control_plane, agent_for_workloads, admin_api, tmp_path) as made:
        yield made


@pytest.fixture
def watched(world: World) -> Iterator[WatchedNode]:
    with watched_node(world) as made:
        yield made


@pytest.mark.shares(6)
def test_a_wedge_and_its_end_are_an_event_each_and_the_state_on_the_node(watched: WatchedNode) -> None:
    ready = watched.folder / "ready"
    with watched.watch(HEALTH_WATCH_READY_FILE=str(ready)) as loop:
        loop.says("→ healthy")
        wait_until(ready.exists, "it is ready")
        watched.fail()
        watched.shows("wedged")
        assert not ready.exists()
        assert not watched.ready.exists()
        wait_until(lambda: watched.events(WEDGED), "the Event")
        watched.mend()
        watched.shows("ready")
        wait_until(lambda: watched.events(RECOVERED), "the Event")
        wait_until(ready.exists, "it is ready again")
        rss_kib = re.search(r"^VmRSS:\s+(\d+) kB$", _status(loop.process.pid), re.MULTILINE)
        assert rss_kib is not None
        assert int(rss_kib.group(1)) <= 16 * 1024
    (begin,), (end,) = watched.events(WEDGED), watched.events(RECOVERED)
    assert (begin["type"], end["type"]) == ("Warning", "Normal")
    said, _, path = begin["message"].partition("; evidence on the host: ")
    assert said == "the driver does not serve its devices: npu 0 does not answer"
    assert "npu 0 does not answer" in watched.on_host(path).read_text()
    assert end["message"].startswith("the driver serves its devices again: ")


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


@pytest.mark.shares(6)
def test_a_healthy_driver_costs_one_look_in_a_boot_at_its_node_and_its_clients(watched: WatchedNode) -> None:
    proxy = watched.scene.world.proxy
    for name in ("first", "second"):
        with watched.watch(name) as loop:
            loop.says("→ healthy")
            watched.wait_samples(20)
    node = f"nodes/{watched.scene.node.name} 200"
    assert [str(one) for one in proxy.exchanges()] == [f"get {node}", "list pods 200", f"patch {node}"]


@pytest.mark.shares(6)
def test_a_state_that_an_earlier_boot_left_is_taken_back(watched: WatchedNode) -> None:
    with watched.watch("before") as loop:
        loop.says("→ healthy")
        watched.fail()
        wait_until(lambda: watched.events(WEDGED), "the Event")
        watched.shows("wedged")
    watched.reboot()
    watched.mend()
    with watched.watch("after"):
        watched.shows("ready")
        wait_until(lambda: watched.events(RECOVERED), "the Event")


REQUESTS = (("get", "nodes"), ("patch", "nodes"), ("create", "events"))


@pytest.mark.shares(6)
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize(("verb", "resource"), REQUESTS)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_ended_at_any_request_the_next_one_tells_once(
    watched: WatchedNode, verb: str, resource: str, applied: bool, end: signal.Signals
) -> None:
    proxy = watched.scene.world.proxy
    with watched.watch("first") as loop:
        loop.says("→ healthy")
        watched.wait_told("recovered")
        hold = Fault(Hold(applied), verb, resource)
        proxy.add(hold)
        watched.fail()
        proxy.wait_fired(hold)
        loop.process.send_signal(end)
        loop.process.wait(60)
    proxy.release(hold)
    with watched.watch("second"):
        wait_until(lambda: watched.events(WEDGED), "the Event")
        watched.shows("wedged")
        watched.mend()
        wait_until(lambda: watched.events(RECOVERED), "the Event")
        watched.shows("ready")
    assert (len(watched.events(WEDGED)), len(watched.events(RECOVERED))) == (1, 1)


@pytest.mark.shares(6)
def test_a_restart_during_a_wedge_asks_the_server_nothing(watched: WatchedNode) -> None:
    proxy = watched.scene.world.proxy
    with watched.watch("first") as loop:
        loop.says("→ healthy")
        watched.fail()
        wait_until(lambda: proxy.exchanges("create", "events"), "the Event")
        watched.wait_told("wedged")
    mark = proxy.mark()
    with watched.watch("second") as loop:
        loop.says("continuing as wedged")
        watched.wait_samples(5)
    assert proxy.exchanges(since=mark) == []


@pytest.mark.shares(6)
@pytest.mark.parametrize("action", [Gone(3.0), Answer(503), Delay(2.0)], ids=["gone for 3 s", "503 once", "slow"])
def test_a_server_in_trouble_at_the_transition_hears_of_it(watched: WatchedNode, action: Action) -> None:
    proxy = watched.scene.world.proxy
    with watched.watch() as loop:
        loop.says("→ healthy")
        watched.wait_told("recovered")
        proxy.add(Fault(action, "get", "nodes"))
        watched.fail()
        watched.shows("wedged")
        wait_until(lambda: watched.events(WEDGED), "the Event")
        assert not watched.ready.exists()


@pytest.mark.shares(6)
def test_a_server_that_is_away_for_long_delays_no_mark_and_no_sample_and_hears_of_it_in_the_end(
    watched: WatchedNode,
) -> None:
    proxy = watched.scene.world.proxy
    with watched.watch() as loop:
        loop.says("→ healthy")
        watched.wait_told("recovered")
        proxy.go_away(600.0)  # for longer than it takes to give up, also on a slow machine
        watched.fail()
        wait_until(lambda: not watched.ready.exists(), "the ready marker is withdrawn")
        wait_until(
            lambda: _said(loop, "DriverWedged was not reported on the Node: "), "it gives up", patient(2 * GIVES_UP_S)
        )
        watched.wait_samples(20)
        assert watched.events(WEDGED) == []
        proxy.go_away(0.0)  # it is back
        wait_until(lambda: watched.events(WEDGED), "the Event")
        assert watched.state == "wedged"
        assert len([line for line in loop.lines if "was not reported" in line]) == 1


@pytest.mark.shares(6)
def test_a_server_that_never_answers_is_given_up_and_nothing_is_left_of_it(watched: WatchedNode) -> None:
    proxy = watched.scene.world.proxy
    with watched.watch() as loop:
        loop.says("→ healthy")
        watched.wait_told("recovered")
        holds = [Fault(Hold(), verb, resource, times=100) for verb, resource in REQUESTS]
        proxy.add(*holds)
        watched.fail()
        wait_until(
            lambda: _said(loop, "DriverWedged was not reported on the Node: "), "it gives up", patient(2 * GIVES_UP_S)
        )
        watched.wait_samples(5)
        assert _children(loop.process.pid) <= 1, "no more than a probe"
        proxy.release()


def _said(loop: Loop, text: str) -> bool:
    return any(text in line for line in loop.lines)


def _children(pid: int) -> int:
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@pytest.mark.shares(6)
def test_two_that_watch_one_driver_make_one_event_each_time(watched: WatchedNode) -> None:
    with watched.watch("one") as one, watched.watch("two") as two:
        for loop in (one, two):
            loop.says("→ healthy")
        watched.fail()
        for loop in (one, two):
            loop.says("→ wedged")
        watched.shows("wedged")
        watched.mend()
        for loop in (one, two):
            loop.says("wedged → healthy")
        wait_until(lambda: watched.events(RECOVERED), "the Event")
        watched.shows("ready")
    assert (len(watched.events(WEDGED)), len(watched.events(RECOVERED))) == (1, 1)


def test_without_a_token_one_line_says_so_and_the_watch_goes_on(watched: WatchedNode) -> None:
    with watched.watch(TEST_SERVICE_ACCOUNT=str(watched.folder / "absent")) as loop:
        loop.says("→ healthy")
        watched.fail()
        loop.says("→ wedged")
        wait_until(lambda: not watched.ready.exists(), "the ready marker is withdrawn")
        watched.mend()
        loop.says("wedged → healthy")
    said = [line for line in loop.lines if line.startswith("wedges are not reported on the Node: ")]
    assert len(said) == 1
    assert "no service account token" in said[0]
    assert watched.scene.world.proxy.exchanges() == []


@pytest.mark.shares(6)
def test_a_run_that_has_the_node_keeps_its_word_on_it(watched: WatchedNode) -> None:
    watched.scene.patch({"metadata": {"labels": {STATE: "upgrading"}}})
    with watched.watch() as loop:
        loop.says("→ healthy")
        watched.fail()
        wait_until(lambda: watched.events(WEDGED), "the Event")
        assert watched.state == "upgrading"


@pytest.mark.shares(6)
def test_a_node_that_shows_no_state_has_the_event_alone(watched: WatchedNode) -> None:
    with watched.watch(NODE_STATE="off") as loop:
        loop.says("→ healthy")
        watched.fail()
        wait_until(lambda: watched.events(WEDGED), "the Event")
    assert watched.state is None
    assert watched.scene.world.proxy.exchanges("patch", "nodes") == []


MUTE = "rebellions.ai/npu-driver-manager.mute-until"


@pytest.mark.shares(6)
def test_a_muted_node_keeps_its_ready_driver_and_hears_nothing(watched: WatchedNode) -> None:
    watched.scene.annotate(**{MUTE: "2099-01-02T03:04:05Z"})
    with watched.watch() as loop:
        watched.wait_told("recovered")
        watched.fail()
        loop.says(f"→ muted: muted until 2099-01-02T03:04:05Z by the annotation {MUTE}")
        said = len(loop.lines)
        assert watched.ready.exists()
        assert not any("→ wedged" in line for line in loop.lines)
    assert watched.events(WEDGED) == []
    assert watched.state is None
    assert len(loop.lines) == said, "and it says nothing more until then"


@pytest.mark.shares(6)
@pytest.mark.parametrize(
    "action", [Hold(), Gone(25.0), Answer(403, "nodes is forbidden")], ids=["hangs", "gone", "403"]
)
def test_a_node_that_cannot_be_asked_delays_the_marks_by_some_seconds_and_no_more(
    watched: WatchedNode, action: Action
) -> None:
    proxy = watched.scene.world.proxy
    with watched.watch() as loop:
        watched.wait_told("recovered")
        proxy.add(Fault(action, "get", "nodes", times=100))
        watched.fail()
        loop.says("unknown whether the Node mutes health-watch: ")
        loop.says("→ wedged")
        wait_until(lambda: not watched.ready.exists(), "the ready marker is withdrawn")
        proxy.release()
