"""A wedge and its end as the cluster sees them: a real health-watch, its short-lived process, a real API server."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.faults import Action, Answer, Delay, Fault, Gone, Hold
from tests.support.control_plane.processes import Loop
from tests.support.control_plane.scene import STATE, WatchedNode, World, open_world, watched_node
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.fakes.pace import patient

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
@pytest.mark.parametrize("text", ["soon", "2020-01-02T03:04:05Z"])
def test_a_mute_that_is_none_or_over_mutes_nothing(watched: WatchedNode, text: str) -> None:
    watched.scene.annotate(**{MUTE: text})
    with watched.watch() as loop:
        watched.wait_told("recovered")
        watched.fail()
        wait_until(lambda: watched.events(WEDGED), "the Event")
        garbage = [line for line in loop.lines if "does not mute health-watch" in line]
    assert len(garbage) == (1 if text == "soon" else 0)
    assert not watched.ready.exists()


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


@pytest.mark.shares(6)
def test_a_mute_during_a_wedge_takes_back_what_was_marked_and_says_so(watched: WatchedNode) -> None:
    with watched.watch("first") as loop:
        watched.wait_told("recovered")
        watched.fail()
        watched.shows("wedged")
        watched.wait_told("wedged")
        watched.on_host("/run/rbln/health-watch.mute-until").write_text("2099-01-02T03:04:05Z\n")
        loop.says("wedged → muted")
        wait_until(watched.ready.exists, "the ready marker is back")
        watched.shows("ready")
        wait_until(lambda: watched.events("DriverWedgeMuted"), "the Event")
    (event,) = watched.events("DriverWedgeMuted")
    assert "muted until 2099-01-02T03:04:05Z" in event["message"]
