"""A controller's way to the cluster over HTTP: what is told, in which order, and what each request of it says."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from driver_manager.adapters.kube import fleet as kube_fleet
from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.fleet import Informer
from driver_manager.core.fleet_ports import Change, EventAbout, FactKind, Found, Gone, Listed, Lost, Seen, Subject
from driver_manager.domain import deadline
from driver_manager.domain.errors import ApiRefused, Conflict, Terminated, WatchBroken
from driver_manager.domain.fleet.spec import PLURAL, FleetNode, Task, TaskPod
from driver_manager.domain.fleet.state import TASK_LABEL, TASKS
from driver_manager.domain.node import NodeChange
from driver_manager.sandbox.apiserver import Deny, apply_merge_patch
from tests.support.fakes.fleet_scene import DRIVER, NAMESPACE, FleetOverHttp, FleetScene, over_http

NODES = Subject(FactKind.NODES)


@pytest.fixture
def scene() -> FleetScene:
    made = FleetScene()
    made.set_driver("driver:1")
    made.add_nodes("a", "b")
    made.add_rollout()
    return made


@pytest.fixture
def fleet(scene: FleetScene, tmp_path: Path) -> Iterator[FleetOverHttp]:
    with over_http(tmp_path, scene.store) as found:
        yield found


def edit(fleet: FleetOverHttp, name: str, patch: dict[str, Any]) -> None:
    fleet.store.patch("nodes", name, lambda one: cast(dict[str, Any], apply_merge_patch(one, patch)))


def names(listed: object) -> list[str]:
    assert isinstance(listed, Listed)
    return [item.name for item in listed.items]


# what is told


@pytest.mark.submission
def test_a_subject_is_listed_and_then_each_change_is_told(fleet: FleetOverHttp) -> None:
    fleet.cluster.follow(frozenset({NODES}))
    assert names(fleet.until_one(Listed)) == ["a", "b"]
    edit(fleet, "a", {"spec": {"unschedulable": True}})
    found = fleet.until_one(Seen)
    assert isinstance(found, Seen)
    assert isinstance(found.item.fact, FleetNode)
    assert found.item.fact.unschedulable
    fleet.store.delete("nodes", "b")
    gone = fleet.until_one(Gone)
    assert isinstance(gone, Gone)
    assert gone.name == "b"
    assert int(gone.version) > int(found.item.version)


def test_a_list_comes_in_pages_and_is_told_as_one(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_fleet, "PAGE", 2)
    for name in "cde":
        fleet.store.create("nodes", {"metadata": {"name": name}})
    fleet.cluster.follow(frozenset({NODES}))
    assert names(fleet.until_one(Listed)) == ["a", "b", "c", "d", "e"]
    assert fleet.server.counts()["list", "nodes", "controller"] == 3


def test_each_kind_is_asked_for_where_it_is_and_by_its_selector(fleet: FleetOverHttp) -> None:
    subjects = {
        Subject(FactKind.ROLLOUTS, NAMESPACE): ["driver"],
        Subject(FactKind.DAEMON_SETS, NAMESPACE): [DRIVER],
        Subject(FactKind.REVISIONS, NAMESPACE): ["driver-r1"],
        Subject(FactKind.GATE_PODS, NAMESPACE, "app in (other)"): [],
        Subject(FactKind.GATE_PODS, "elsewhere"): [],
    }
    fleet.cluster.follow(frozenset(subjects))
    told = fleet.until(lambda told: len(told) == len(subjects), "all are listed")
    assert {one.subject: names(one) for one in told if isinstance(one, Listed)} == subjects
    pods = Subject(FactKind.DRIVER_PODS, NAMESPACE, "app=driver")
    fleet.told.clear()
    fleet.cluster.follow(frozenset({pods}))
    assert len(names(fleet.until_one(Listed))) == 2


@pytest.mark.submission
def test_a_watch_whose_version_is_forgotten_lists_again(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_fleet, "WATCH_S", 1.0)
    fleet.cluster.follow(frozenset({Subject(FactKind.ROLLOUTS, NAMESPACE)}))
    fleet.until_one(Listed)
    for number in range(10):  # of other kinds, so that the watch hears of none
        edit(fleet, "a", {"metadata": {"labels": {"n": str(number)}}})
    fleet.store.compact()
    with fleet.server.store.changed:
        fleet.server.store._compacted += 1000
    try:
        fleet.until(lambda _: fleet.server.counts()["list", PLURAL, "controller"] >= 2, "it lists again")
    finally:
        with fleet.server.store.changed:
            fleet.server.store._compacted -= 1000


@pytest.mark.submission
@pytest.mark.shares(3)
def test_what_happens_between_two_watches_is_told(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_fleet, "WATCH_S", 1.0)
    fleet.cluster.follow(frozenset({NODES}))
    fleet.until_one(Listed)
    seen: set[str] = set()
    numbers = itertools.count()
    while fleet.server.counts()["watch", "nodes", "controller"] < 3:
        edit(fleet, "a", {"metadata": {"labels": {"n": str(next(numbers))}}})
        fleet.told += fleet.cluster.changes(fleet.clock.monotonic() + 0.05)
    wanted = {str(number) for number in range(next(numbers))}
    fleet.until(lambda told: labels_in(told, seen) >= wanted, "every change")
    assert fleet.server.counts()["list", "nodes", "controller"] == 1


def labels_in(told: list[Change], seen: set[str]) -> set[str]:
    facts = [one.item.fact for one in told if isinstance(one, Seen)]
    seen |= {fact.labels["n"] for fact in facts if isinstance(fact, FleetNode)}
    return seen


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_connection_that_is_cut_is_followed_by_another_one_from_where_it_was(fleet: FleetOverHttp) -> None:
    fleet.cluster.follow(frozenset({NODES}))
    fleet.until_one(Listed)

    def watches() -> int:
        return fleet.server.counts()["watch", "nodes", "controller"]

    for number in range(3):
        least = number + 1
        fleet.until(lambda _: watches() >= least, "it watches")  # noqa: B023  # asked at once
        fleet.server._http.disconnect()
        edit(fleet, "a", {"metadata": {"labels": {"n": str(number)}}})
        found = fleet.until_one(Seen)
        assert isinstance(found, Seen)
        assert isinstance(found.item.fact, FleetNode)
        assert found.item.fact.labels["n"] == str(number)
    assert fleet.server.counts()["list", "nodes", "controller"] == 1
    assert fleet.told == [], "nothing was lost"


@pytest.mark.submission
@pytest.mark.shares(3)
def test_watches_that_break_before_they_tell_anything_are_lost_and_tried_again(
    fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise WatchBroken("the watch was cut", "")

    with monkeypatch.context() as patched:
        patched.setattr(KubeApi, "watch", broken)
        fleet.cluster.follow(frozenset({NODES}))
        fleet.until_one(Listed)
        lost = fleet.until_one(Lost)
        assert isinstance(lost, Lost)
        assert lost.why == "the watch was cut"
    fleet.until_one(Found)


@pytest.mark.submission
@pytest.mark.shares(3)
def test_what_is_refused_is_lost_with_the_reason_and_found_once_it_is_allowed(
    fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "REFUSED_S", 0.1)
    fleet.server.deny.append(Deny("watch", "nodes"))
    fleet.cluster.follow(frozenset({NODES}))
    fleet.until_one(Listed)
    lost = fleet.until_one(Lost)
    assert isinstance(lost, Lost)
    assert "refused to watch nodes (403)" in lost.why
    assert "Grant this account the verb" in lost.why
    fleet.server.deny.clear()
    fleet.until_one(Found)


def test_a_resource_that_is_not_served_is_said_as_such(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "driver_manager.adapters.kube.fleet._COLLECTIONS",
        {FactKind.ROLLOUTS: ("/apis/none/v9", "nones", "nones.none")},
    )
    fleet.cluster.follow(frozenset({Subject(FactKind.ROLLOUTS, NAMESPACE)}))
    lost = fleet.until_one(Lost)
    assert isinstance(lost, Lost)
    assert "list nones.none in namespace rbln-system (404)" in lost.why


@pytest.mark.submission
def test_a_subject_that_is_followed_no_longer_tells_nothing(fleet: FleetOverHttp) -> None:
    fleet.cluster.follow(frozenset({NODES}))
    fleet.until_one(Listed)
    fleet.cluster.follow(frozenset())
    edit(fleet, "a", {"metadata": {"labels": {"x": "y"}}})
    assert fleet.cluster.changes(fleet.clock.monotonic() + 0.5) == ()


def test_an_error_of_our_own_in_a_thread_ends_the_loop_with_it(fleet: FleetOverHttp) -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    fleet.cluster._readers = {FactKind.NODES: broken}
    fleet.cluster.follow(frozenset({NODES}))
    with pytest.raises(ZeroDivisionError):
        fleet.until(lambda _: False, "it is raised")


def test_a_stopped_feed_ends(fleet: FleetOverHttp) -> None:
    told: list[Any] = []
    feed = Informer(
        NODES, fleet.cluster._connect, fleet.cluster._readers[FactKind.NODES], threading.Lock(), told.append
    )
    feed.start()
    fleet.until(lambda _: bool(told), "it lists")
    feed.stop()
    edit(fleet, "a", {"metadata": {"labels": {"x": "y"}}})
    assert feed.join(20.0)
    assert len(told) == 1


def test_waiting_ends_when_the_process_is_told_to(fleet: FleetOverHttp) -> None:
    fleet.clock._signal = "SIGTERM"
    with pytest.raises(Terminated):
        fleet.cluster.changes(fleet.clock.monotonic() + 60.0)


# what is changed


def version(fleet: FleetOverHttp, resource: str, name: str, namespace: str = "") -> str:
    return str(fleet.store.get(resource, name, namespace)["metadata"]["resourceVersion"])


def test_a_node_gets_state_and_record_in_one_patch_of_the_version_that_was_read(fleet: FleetOverHttp) -> None:
    change = NodeChange({"l": "x"}, {"a": "y"})
    read = version(fleet, "nodes", "a")
    item = fleet.cluster.patch_node("a", change, read)
    assert item.version == version(fleet, "nodes", "a") != read
    assert isinstance(item.fact, FleetNode)
    assert item.fact.labels["l"] == "x"
    with pytest.raises(Conflict, match="a changed since it was read"):
        fleet.cluster.patch_node("a", change, read)
    with pytest.raises(Conflict, match="gone is gone"):
        fleet.cluster.patch_node("gone", change, "1")
    assert fleet.server.counts()["patch", "nodes", "controller"] == 3


def test_exactly_the_pod_that_was_meant_is_deleted(fleet: FleetOverHttp, scene: FleetScene) -> None:
    pod = scene.pods()["a"]["metadata"]
    fleet.cluster.delete_pod(NAMESPACE, pod["name"], "another-uid")
    assert "deletionTimestamp" not in fleet.store.get("pods", pod["name"], NAMESPACE)["metadata"]
    fleet.cluster.delete_pod(NAMESPACE, pod["name"], pod["uid"])
    deleted = fleet.store.get("pods", pod["name"], NAMESPACE)["metadata"]
    assert deleted["deletionGracePeriodSeconds"] == 30, "its own grace"
    fleet.cluster.delete_pod(NAMESPACE, "no-such-pod", "uid")


def test_a_short_lived_pod_is_made_once_and_seen_by_its_label(fleet: FleetOverHttp) -> None:
    labels = {TASK_LABEL: Task.PREFLIGHT.value}
    body = {"metadata": {"name": "t", "namespace": NAMESPACE, "labels": labels}, "spec": {"nodeName": "a"}}
    made = fleet.cluster.create_pod(NAMESPACE, body)
    assert made is not None
    assert isinstance(made.fact, TaskPod)
    assert fleet.cluster.create_pod(NAMESPACE, body) is None
    fleet.cluster.follow(frozenset({Subject(FactKind.TASK_PODS, NAMESPACE, TASKS)}))
    assert names(fleet.until_one(Listed)) == ["t"], "and no driver pod"
    fleet.cluster.delete_pod(NAMESPACE, "t", made.uid)


def test_the_daemonset_gets_a_template_of_the_version_that_was_read(fleet: FleetOverHttp) -> None:
    template = json.dumps({"spec": {"containers": [{"name": "driver", "image": "driver:0"}]}})
    read = version(fleet, "daemonsets", DRIVER, NAMESPACE)
    fleet.cluster.set_template(NAMESPACE, DRIVER, template, read)
    found = fleet.store.get("daemonsets", DRIVER, NAMESPACE)
    assert found["spec"]["template"] == json.loads(template)
    assert found["spec"]["updateStrategy"] == {"type": "OnDelete"}
    with pytest.raises(Conflict):
        fleet.cluster.set_template(NAMESPACE, DRIVER, template, read)


def test_a_status_replaces_what_it_names_and_conflicts_with_a_changed_object(fleet: FleetOverHttp) -> None:
    read = version(fleet, PLURAL, "driver", NAMESPACE)
    item = fleet.cluster.patch_status(NAMESPACE, "driver", {"phase": "Complete", "waves": [1]}, read)
    assert item.version == version(fleet, PLURAL, "driver", NAMESPACE)
    fleet.cluster.patch_status(NAMESPACE, "driver", {"phase": "Halted", "waves": []}, item.version)
    found = fleet.store.get(PLURAL, "driver", NAMESPACE)
    assert found["status"] == {"phase": "Halted", "waves": []}
    assert found["metadata"]["generation"] == 1
    with pytest.raises(Conflict):
        fleet.cluster.patch_status(NAMESPACE, "driver", {}, read)


def test_an_event_is_about_the_object_or_a_node_and_is_posted_once_for_each_key(fleet: FleetOverHttp) -> None:
    about = EventAbout("driver", NAMESPACE, "uid-1")
    for _ in range(2):
        fleet.cluster.post_event(about, "Halted", "why", warning=True, key="Halted/Node A/1")
    fleet.cluster.post_event(about, "Halted", "why", warning=True, key="Halted/Node A/2")
    fleet.cluster.post_event(EventAbout("a"), "NodeUpgradeFailed", "why", warning=True, key="x" * 500)
    events, _ = fleet.store.list_objects("events")
    said = [(one["metadata"]["namespace"], one["involvedObject"]["kind"], one["type"]) for one in events]
    assert sorted(said) == [
        ("default", "Node", "Warning"),
        (NAMESPACE, "DriverRollout", "Warning"),
        (NAMESPACE, "DriverRollout", "Warning"),
    ]
    assert {one["involvedObject"]["uid"] for one in events} == {"uid-1", "a"}


def test_a_refusal_is_the_callers_and_nothing_is_asked_twice(fleet: FleetOverHttp) -> None:
    fleet.server.deny.append(Deny("patch", "nodes"))
    with pytest.raises(ApiRefused, match=r"refused to patch nodes \(403\)"):
        fleet.cluster.patch_node("a", NodeChange({"l": "x"}), "1")
