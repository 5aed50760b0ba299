"""A wedge and its end as the cluster sees them: a real health-watch, its short-lived process, a real API server."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager import profiles
from driver_manager.domain.reboot.decision import CORDON_FOR_REBOOT
from driver_manager.profiles import builtin
from driver_manager.sandbox import fake_tools
from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.faults import Action, Answer, Delay, Fault, Gone, Hold
from tests.support.control_plane.processes import Orders, running
from tests.support.control_plane.scene import (
    EVENTS,
    PROFILE,
    NodeScene,
    WatchedNode,
    World,
    make_stage,
    open_world,
    watched_node,
)
from tests.support.control_plane.servers import ControlPlane
from tests.support.fakes.pace import patient

ASCEND = builtin()["ascend"]
KEYS = ASCEND.keys
WEDGED, RECOVERED = "DriverWedged", "DriverRecovered"
# Ten seconds for the question, thirty for the evidence, twenty for the news.
GIVES_UP_S = 60.0


@pytest.fixture
def world(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[World]:
    with open_world(control_plane, control_plane.agent_for_workloads, admin_api, tmp_path) as made:
        yield made


@pytest.fixture
def watched(world: World) -> Iterator[WatchedNode]:
    with watched_node(world) as made:
        yield made


@pytest.fixture
def rebooted(world: World) -> Iterator[NodeScene]:
    """A node whose driver only a reboot changes."""
    with contextlib.ExitStack() as stack:
        yield make_stage(stack, world, "node", "ascend")


def rebooter_environment(scene: NodeScene, **env: str) -> dict[str, str]:
    plane = scene.world.plane
    account = {"KUBECONFIG": str(plane.kubeconfig(plane.rebooter.token))}
    return scene.command_runner.environment(**account, REBOOTER_INTERVAL="100ms", REBOOT_MIN_UPTIME="0", **env)


@pytest.mark.shares(6)
def test_health_watch_changes_no_mark_while_a_run_works_and_does_once_that_run_is_dead(watched: WatchedNode) -> None:
    withdrawn = watched.on_host(PROFILE.paths.ready_withdrawn)
    with watched.watch() as loop:
        loop.says("→ healthy")
        run = watched.scene.start(orders=Orders(stops=("unload before",)))
        assert run.wait_stopped(), run.log
        loop.says("→ muted")
        count, begun = len(loop.lines), watched.samples
        watched.fail()
        assert (watched.ready.exists(), withdrawn.exists()) == (True, False)
        run.kill()
        loop.says("→ wedged", after=count)
        wait_until(withdrawn.exists, "the ready marker is withdrawn")
        assert not watched.ready.exists()
        assert watched.samples - begun >= 3, "it was judged before three failures outside of a run"


@pytest.mark.shares(6)
def test_nothing_reboots_while_a_run_has_the_node_and_restore_leaves_the_cordon_of_a_granted_reboot(
    rebooted: NodeScene,
) -> None:
    tree, node = rebooted.command_runner.tree, rebooted.node
    asked = rebooted.start("--no-wait", env={"DRIVER_LOAD": "container", "DRIVER_ROOT": ""}).end()
    assert asked.code == 9, asked.err
    rebooted.annotate(**{KEYS.approve_reboot: "true", KEYS.journal: "of a run that has taken the node"})
    environment = rebooter_environment(rebooted, REBOOT_CORDON="true")
    with running("rebooter", environment, rebooted.command_runner.new_last_line()) as rebooter:
        rebooter.says("taken")
        assert not tree.is_reboot_requested
        assert node.annotations()[KEYS.approve_reboot] == "true"
        rebooted.annotate(**{KEYS.journal: None})
        wait_until(lambda: tree.is_reboot_requested, "the reboot is requested")
        about = f"involvedObject.name={node.name},reason=RebootRequired"
        assert len(node.api.list(EVENTS, fieldSelector=about)) == 1, "the request of both is one Event"
        granted = node.annotations()
        assert granted[KEYS.cordon] == CORDON_FOR_REBOOT
        restored = rebooted.start(command="restore", env={"POD_NAME": ""}).end()
        assert restored.code == 0, restored.err
        assert "the rebooter's cordon stays" in restored.out
        assert f"kubectl uncordon {node.name}" in restored.out
        assert (node.annotations(), node.read()["spec"]["unschedulable"]) == (granted, True)
        status = rebooted.start("-o", "json", command="status", env={"POD_NAME": ""}).end()
        assert json.loads(status.out)["cordon"] == "the rebooter's"


@pytest.mark.shares(6)
def test_a_chip_that_recovers_takes_back_what_the_rebooter_announced(rebooted: NodeScene) -> None:
    runner = rebooted.command_runner
    marker = runner.tree.root / ASCEND.paths.reboot_marker.lstrip("/")
    watching = runner.environment(DRIVER_PROFILE="ascend", DRIVER_ROOT="", HEALTH_WATCH_INTERVAL="100ms")
    with (
        running("rebooter", rebooter_environment(rebooted), runner.new_last_line()),
        running("health-watch", watching, runner.new_last_line()) as watch,
    ):
        watch.says("→ healthy")
        runner.tree.wedge()
        wait_until(lambda: rebooted.node.labels().get(KEYS.reboot_required) == "true", "a reboot is asked for")
        assert json.loads(marker.read_text())["reason"] == "recovery"
        (runner.tree.root / fake_tools.WEDGED).unlink()
        wait_until(lambda: not marker.exists(), "the marker is taken back")
        wait_until(lambda: KEYS.reboot_required not in rebooted.node.labels(), "the label is taken back")
        assert not runner.tree.is_reboot_requested
        rebooted.annotate(**{KEYS.approve_reboot: "true"})
        runner.tree.wedge()
        wait_until(lambda: runner.tree.is_reboot_requested, "the reboot is requested")
        assert KEYS.approve_reboot not in rebooted.node.annotations()


# a wedge and its end


@pytest.mark.shares(6)
def test_a_wedge_and_its_end_are_an_event_each_and_the_state_on_the_node(watched: WatchedNode) -> None:
    ready, alive = watched.folder / "ready", watched.folder / "alive"
    with watched.watch(HEALTH_WATCH_READY_FILE=str(ready), ALIVE_FILE=str(alive)) as loop:
        loop.says("→ healthy")
        wait_until(ready.exists, "it is ready")
        watched.fail()
        watched.shows("wedged")
        assert not ready.exists()
        assert not watched.ready.exists()
        wait_until(lambda: watched.events(WEDGED), "the Event")
        watched.repair()
        watched.shows("ready")
        wait_until(lambda: watched.events(RECOVERED), "the Event")
        wait_until(ready.exists, "it is ready again")
        assert alive.stat().st_mtime > time.time() + 60, "a wedge is no reason to end the loop"
        rss_kib = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{loop.process.pid}/status").read_text(), re.MULTILINE)
        assert rss_kib is not None
        assert int(rss_kib.group(1)) <= 16 * 1024
    (begin,), (end,) = watched.events(WEDGED), watched.events(RECOVERED)
    assert (begin["type"], end["type"]) == ("Warning", "Normal")
    what, _, path = begin["message"].partition("; evidence on the host: ")
    assert what == "the driver does not serve its devices: rbln-smi failed with exit status 1: npu 0 does not answer"
    assert "npu 0 does not answer" in watched.on_host(path).read_text()
    assert end["message"].startswith("the driver serves its devices again: ")


@pytest.mark.shares(6)
def test_a_healthy_driver_costs_one_look_in_a_boot_at_its_node_and_its_clients(watched: WatchedNode) -> None:
    proxy = watched.scene.world.proxy
    for _ in range(2):
        with watched.watch(AUTO_RECOVER="reset,reload,reboot") as loop:
            loop.says("→ healthy")
            watched.wait_samples(20)
    node = f"nodes/{watched.scene.node.name} 200"
    assert [str(one) for one in proxy.exchanges()] == [f"get {node}", "list pods 200", f"patch {node}"]


@pytest.mark.shares(6)
def test_a_state_that_an_earlier_boot_left_is_taken_back(watched: WatchedNode) -> None:
    with watched.watch() as loop:
        loop.says("→ healthy")
        watched.fail()
        wait_until(lambda: watched.events(WEDGED), "the Event")
        watched.shows("wedged")
    watched.reboot()
    watched.repair()
    with watched.watch():
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
    with watched.watch() as loop:
        loop.says("→ healthy")
        watched.wait_reported("recovered")
        hold = Fault(Hold(applied), verb, resource)
        proxy.script.add(hold)
        watched.fail()
        proxy.script.wait_fired(hold)
        loop.process.send_signal(end)
        loop.process.wait(60)
    proxy.script.release(hold)
    with watched.watch():
        wait_until(lambda: watched.events(WEDGED), "the Event")
        watched.shows("wedged")
        watched.repair()
        wait_until(lambda: watched.events(RECOVERED), "the Event")
        watched.shows("ready")
    assert (len(watched.events(WEDGED)), len(watched.events(RECOVERED))) == (1, 1)


LADDER = 'recovery = ["reload", "reboot"]'


@pytest.mark.shares(6)
@pytest.mark.parametrize(("ladder", "asked"), [(LADDER, ["get nodes"]), ('recovery = ["reboot"]', [])])
def test_a_wedge_is_reported_once_and_then_only_the_approval_is_read(
    watched: WatchedNode, tmp_path: Path, ladder: str, asked: list[str]
) -> None:
    proxy, profile = watched.scene.world.proxy, tmp_path / "profile.toml"
    shipped = (Path(profiles.__file__).parent / "rebellions.toml").read_text()
    assert LADDER in shipped
    profile.write_text(shipped.replace(LADDER, ladder))
    with watched.watch(PROFILE_FILE=str(profile)) as loop:
        loop.says("→ healthy")
        watched.fail()
        wait_until(lambda: proxy.exchanges("create", "events"), "the Event")
        watched.wait_reported("wedged")
        if asked:
            loop.says("recovery: next step reload: waits for approval")
    mark = proxy.mark()
    with watched.watch(PROFILE_FILE=str(profile)) as loop:
        loop.says("continuing as wedged")
        watched.wait_samples(5)
    targets = {one.request.target for one in proxy.exchanges(since=mark)}
    assert sorted(f"{one.verb} {one.resource}" for one in targets) == asked


@pytest.mark.shares(6)
@pytest.mark.parametrize("action", [Gone(3.0), Answer(503), Delay(2.0)], ids=["gone for 3 s", "503 once", "slow"])
def test_a_server_in_trouble_at_the_transition_hears_of_it(watched: WatchedNode, action: Action) -> None:
    proxy = watched.scene.world.proxy
    with watched.watch() as loop:
        loop.says("→ healthy")
        watched.wait_reported("recovered")
        proxy.script.add(Fault(action, "get", "nodes"))
        watched.fail()
        watched.shows("wedged")
        wait_until(lambda: watched.events(WEDGED), "the Event")
        assert not watched.ready.exists()


@pytest.mark.shares(6)
def test_a_server_that_does_not_answer_for_long_delays_no_mark_and_no_sample_and_hears_of_it_in_the_end(
    watched: WatchedNode,
) -> None:
    proxy = watched.scene.world.proxy
    with watched.watch() as loop:
        loop.says("→ healthy")
        watched.wait_reported("recovered")
        proxy.script.add(*(Fault(Hold(), verb, resource, times=100) for verb, resource in REQUESTS))
        watched.fail()
        wait_until(lambda: not watched.ready.exists(), "the ready marker is withdrawn")
        given_up = "DriverWedged was not reported on the Node: "
        wait_until(lambda: any(given_up in line for line in loop.lines), "it gives up", patient(2 * GIVES_UP_S))
        watched.wait_samples(20)
        children = Path(f"/proc/{loop.process.pid}/task/{loop.process.pid}/children").read_text().split()
        assert len(children) <= 1, "no more than a probe"
        assert watched.events(WEDGED) == []
        proxy.script.release()
        wait_until(lambda: watched.events(WEDGED), "the Event")
        watched.shows("wedged")
        assert len([line for line in loop.lines if "was not reported" in line]) == 1


def test_without_a_token_one_line_says_so_and_the_watch_goes_on(watched: WatchedNode) -> None:
    with watched.watch(TEST_SERVICE_ACCOUNT=str(watched.folder / "absent")) as loop:
        loop.says("→ healthy")
        watched.fail()
        loop.says("→ wedged")
        wait_until(lambda: not watched.ready.exists(), "the ready marker is withdrawn")
        watched.repair()
        loop.says("wedged → healthy")
    lines = [line for line in loop.lines if line.startswith("wedges are not reported on the Node: ")]
    assert len(lines) == 1
    assert "no service account token" in lines[0]
    assert watched.scene.world.proxy.exchanges() == []


MUTE = "rebellions.ai/npu-driver-manager.mute-until"


@pytest.mark.shares(6)
def test_a_muted_node_keeps_its_ready_driver_and_hears_nothing(watched: WatchedNode) -> None:
    watched.scene.annotate(**{MUTE: "2099-01-02T03:04:05Z"})
    with watched.watch() as loop:
        watched.wait_reported("recovered")
        watched.fail()
        loop.says(f"→ muted: muted until 2099-01-02T03:04:05Z by the annotation {MUTE}")
        count = len(loop.lines)
        assert watched.ready.exists()
        assert not any("→ wedged" in line for line in loop.lines)
    assert watched.events(WEDGED) == []
    assert watched.state is None
    assert len(loop.lines) == count, "and it says nothing more until then"


@pytest.mark.shares(6)
@pytest.mark.parametrize(
    "action", [Hold(), Gone(25.0), Answer(403, "nodes is forbidden")], ids=["hangs", "gone", "403"]
)
def test_a_node_that_cannot_be_asked_delays_the_marks_by_some_seconds_and_no_more(
    watched: WatchedNode, action: Action
) -> None:
    proxy = watched.scene.world.proxy
    with watched.watch() as loop:
        watched.wait_reported("recovered")
        proxy.script.add(Fault(action, "get", "nodes", times=100))
        watched.fail()
        loop.says("unknown whether the Node mutes health-watch: ")
        loop.says("→ wedged")
        wait_until(lambda: not watched.ready.exists(), "the ready marker is withdrawn")
        proxy.script.release()
