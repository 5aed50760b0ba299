"""The rollout controller's cluster, a client's requests, and the slim facts that objects become."""

from __future__ import annotations

import itertools
import json
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from driver_manager.adapters.kube import fleet as kube_fleet
from driver_manager.adapters.kube.api import RESTARTS, Answer, KubeApi
from driver_manager.adapters.kube.fleet import (
    Informer,
    KubeDesk,
    as_daemon_set,
    as_driver_pod,
    as_fleet_node,
    as_gate_pod,
    as_node_driver,
    as_revision,
    as_task_pod,
    node_label_keys,
    readers,
)
from driver_manager.adapters.kube.objects import understood
from driver_manager.adapters.kube.transport import EXPIRED
from driver_manager.cli.options import zone
from driver_manager.core.fleet_ports import (
    Change,
    EventAbout,
    FactKind,
    Found,
    Gone,
    Leader,
    Listed,
    Lost,
    Seen,
    Subject,
)
from driver_manager.domain import deadline
from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ApiUnavailable, Conflict, Terminated, WatchBroken
from driver_manager.domain.fleet.spec import (
    PLURAL,
    DaemonSetFacts,
    DriverPod,
    FleetNode,
    GatePod,
    NodeRecord,
    Revision,
    RolloutObject,
    Task,
    TaskPod,
    decode_node_record,
    encode_node_record,
)
from driver_manager.domain.fleet.state import TASK_LABEL, TASK_REVISION_LABEL, TASKS
from driver_manager.domain.fleet.upgrade import RunEnd
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.node import NodeChange
from driver_manager.domain.node_state import LastOutcome, NodeState, Recovery, RecoveryState, encode, encode_note
from driver_manager.sandbox.apiserver import Deny, apply_merge_patch
from tests.support.fakes.builders import ASCEND
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.fleet_scene import DRIVER, KEYS, NAMESPACE, FleetOverHttp, FleetScene, over_http

NODES = Subject(FactKind.NODES)
ROLLOUTS = Subject(FactKind.ROLLOUTS, NAMESPACE)


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


def label(fleet: FleetOverHttp, value: object) -> None:
    """Another label of node a."""
    patch = {"metadata": {"labels": {"n": str(value)}}}
    fleet.store.patch("nodes", "a", lambda one: cast(dict[str, Any], apply_merge_patch(one, patch)))


def requests(fleet: FleetOverHttp, verb: str, plural: str = "nodes") -> int:
    seen = [(one.verb, one.resource, one.subresource, one.user) for one in list(fleet.server.requests)]
    return seen.count((verb, plural, "", "controller"))


def names(listed: object) -> list[str]:
    assert isinstance(listed, Listed)
    return [item.name for item in listed.items]


def seen_node(change: Change) -> FleetNode:
    assert isinstance(change, Seen)
    assert isinstance(change.item.fact, FleetNode)
    return change.item.fact


def lost(fleet: FleetOverHttp) -> str:
    """Why the next subject is lost."""
    found = fleet.until_one(Lost)
    assert isinstance(found, Lost)
    return found.why


# what is told


@pytest.mark.submission
def test_a_subject_is_listed_and_then_each_change_is_told(fleet: FleetOverHttp) -> None:
    fleet.cluster.follow(frozenset({NODES}))
    assert names(fleet.until_one(Listed)) == ["a", "b"]
    label(fleet, "seen")
    found = seen_node(fleet.until_one(Seen))
    assert found.labels["n"] == "seen"
    fleet.store.delete("nodes", "b")
    gone = fleet.until_one(Gone)
    assert isinstance(gone, Gone)
    assert gone.name == "b"
    assert int(gone.version) > int(found.resource_version)
    fleet.cluster.follow(frozenset())
    label(fleet, "unseen")
    assert fleet.cluster.changes(fleet.clock.monotonic() + 0.5) == (), "what is followed no longer tells nothing"


def test_a_list_comes_in_pages_and_is_told_as_one(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_fleet, "PAGE", 2)
    for name in "cde":
        fleet.store.create("nodes", {"metadata": {"name": name}})
    fleet.cluster.follow(frozenset({NODES}))
    assert names(fleet.until_one(Listed)) == ["a", "b", "c", "d", "e"]
    assert requests(fleet, "list") == 3


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
    fleet.cluster.follow(frozenset({ROLLOUTS}))
    fleet.until_one(Listed)
    for number in range(10):  # of other kinds, so that the watch hears of none
        label(fleet, number)
    fleet.store.compact()
    with fleet.server.store.changed:
        fleet.server.store._compacted += 1000
    try:
        fleet.until(lambda _: requests(fleet, "list", PLURAL) >= 2, "it lists again")
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
    while requests(fleet, "watch") < 3:
        label(fleet, next(numbers))
        fleet.told += fleet.cluster.changes(fleet.clock.monotonic() + 0.05)
    wanted = {str(number) for number in range(next(numbers))}
    fleet.until(lambda told: labels_in(told, seen) >= wanted, "every change")
    assert requests(fleet, "list") == 1


def labels_in(told: list[Change], seen: set[str]) -> set[str]:
    seen |= {seen_node(one).labels["n"] for one in told if isinstance(one, Seen)}
    return seen


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_connection_that_is_cut_is_followed_by_another_one_from_where_it_was(fleet: FleetOverHttp) -> None:
    fleet.cluster.follow(frozenset({NODES}))
    fleet.until_one(Listed)
    for number in range(3):
        least = number + 1
        fleet.until(lambda _: requests(fleet, "watch") >= least, "it watches")  # noqa: B023  # asked at once
        fleet.server._http.disconnect()
        label(fleet, number)
        assert seen_node(fleet.until_one(Seen)).labels["n"] == str(number)
    assert requests(fleet, "list") == 1
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
        assert lost(fleet) == "the watch was cut"
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
    why = lost(fleet)
    assert "refused to watch nodes (403)" in why
    assert "Grant this account the verb" in why
    fleet.server.deny.clear()
    fleet.until_one(Found)


def test_a_resource_that_is_not_served_is_said_as_such(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_fleet, "_COLLECTIONS", {FactKind.ROLLOUTS: ("/apis/none/v9", "nones", "nones.none")})
    fleet.cluster.follow(frozenset({ROLLOUTS}))
    assert "list nones.none in namespace rbln-system (404)" in lost(fleet)


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
    label(fleet, "unseen")
    feed._thread.join(20.0)
    assert not feed._thread.is_alive()
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
    fleet.server.deny.append(Deny("patch", "nodes"))
    with pytest.raises(ApiUnavailable, match="patch nodes: 403"):  # it was allowed: the server may be starting
        fleet.cluster.patch_node("a", change, "1")
    assert requests(fleet, "patch") == 4, "nothing is asked twice"


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


# a client's requests


@pytest.fixture
def api(fleet: FleetOverHttp) -> KubeApi:
    return KubeApi(fleet.cluster._connect(), FakeClock(), RecordingReporter(), 5.0)


@pytest.fixture
def desk(api: KubeApi) -> KubeDesk:
    return KubeDesk(api, readers(KEYS, zone))


def expiring(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """So many lists expire before their end."""
    whole, left = KubeApi.call, [None] * times

    def call(self: KubeApi, method: str, path: str, what: str, *rest: Any, **known: Any) -> dict[str, Any]:
        if left:
            left.pop()
            raise Answer(EXPIRED, "the continue token is too old", (), 0.0, what)
        return whole(self, method, path, what, *rest, **known)

    monkeypatch.setattr(KubeApi, "call", call)


def test_a_list_that_expires_is_begun_again_and_given_up_in_the_end(
    desk: KubeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    expiring(monkeypatch, RESTARTS - 1)
    assert isinstance(desk.listed(NODES), Listed)
    expiring(monkeypatch, RESTARTS)
    with pytest.raises(ApiUnavailable, match="each list expired before its end"):
        desk.listed(NODES)


def test_the_keys_of_all_nodes_labels_are_known(api: KubeApi, scene: FleetScene) -> None:
    scene.edit_node("b", {"metadata": {"labels": {"example.com/npu": "true"}}})
    assert node_label_keys(api) == {"example.com/npu"}


# wishes


def test_a_wish_keeps_what_others_have_written_meanwhile(desk: KubeDesk, scene: FleetScene) -> None:
    (node, _), (rollout,) = (desk.listed(subject).items for subject in (NODES, ROLLOUTS))
    assert isinstance(node.fact, FleetNode)
    assert isinstance(rollout.fact, RolloutObject)
    scene.edit_node("a", {"metadata": {"annotations": {"of": "others"}}})
    scene.edit_rollout(maxParallel=7)
    desk.ask_node(node.fact, {"wish": "true"}, dry_run=False)
    desk.ask_rollout(rollout.fact, {"paused": True}, {"wish": "1"}, dry_run=False)
    assert scene.node("a")["metadata"]["annotations"] == {"of": "others", "wish": "true"}
    spec = scene.rollout()["spec"]
    assert (spec["maxParallel"], spec["paused"]) == (7, True)


def test_a_wish_is_for_the_object_that_was_seen(desk: KubeDesk, scene: FleetScene) -> None:
    node, rollout = desk.listed(NODES).items[0].fact, desk.listed(ROLLOUTS).items[0].fact
    assert isinstance(node, FleetNode)
    assert isinstance(rollout, RolloutObject)
    with pytest.raises(Conflict, match="was replaced by another one"):
        desk.ask_rollout(replace(rollout, uid="another"), {"paused": True}, {}, dry_run=False)
    with pytest.raises(Conflict, match="node a was replaced by another one"):
        desk.ask_node(replace(node, uid="another"), {"wish": "true"}, dry_run=False)
    with pytest.raises(Conflict, match="node nobody is gone"):
        desk.ask_node(replace(node, name="nobody"), {"wish": "true"}, dry_run=False)
    assert "annotations" not in scene.node("a")["metadata"]


# who leads, who uses


def test_who_leads_is_as_the_lease_says(desk: KubeDesk, scene: FleetScene) -> None:
    assert desk.leader(NAMESPACE, "lead") == Leader("")
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.000000Z"}
    scene.store.create("leases", {"metadata": {"name": "lead", "namespace": NAMESPACE}, "spec": spec})
    assert desk.leader(NAMESPACE, "lead") == Leader("a", 1767323045.0, 15.0)


def test_pods_that_ask_for_a_device_are_seen_on_the_nodes_that_are_meant(desk: KubeDesk, scene: FleetScene) -> None:
    asking = {"containers": [{"resources": {"limits": {"rebellions.ai/ATOM": "1"}}}]}
    for name, node, spec in (("job", "a", asking), ("elsewhere", "c", asking), ("plain", "a", {})):
        body = {"metadata": {"name": name, "namespace": "jobs"}, "spec": {"nodeName": node, **spec}}
        scene.store.create("pods", body)
    found = desk.users_by_node({"a", "b"})
    assert {node: [one.name for one in pods] for node, pods in found.items()} == {"a": ["job"]}


# objects

RECORD = NodeRecord("npu/driver", "r2", 1, "uid-p", "boot", 1.0, 2.0, outcome_s=3.0)
OWNER = [{"kind": "DaemonSet", "uid": "uid-ds", "controller": True}, {"kind": "X", "uid": "other"}]


def node(labels: dict[str, str] | None = None, notes: dict[str, str] | None = None, **body: Any) -> FleetNode:
    metadata = {"name": "n", "uid": "u", "resourceVersion": "7", "labels": labels, "annotations": notes}
    item = readers(KEYS, zone)[FactKind.NODES]({"metadata": metadata, **body})
    assert (item.name, item.uid, item.version) == ("n", "u", "7")
    assert isinstance(item.fact, FleetNode)
    return item.fact


def test_a_node_is_read_bare_and_in_full() -> None:
    assert node() == FleetNode("n", "u", "7", is_ready=False)
    outcome = LastOutcome(NodeState.HELD, 5, "it did not load", ended="2026-01-02T03:04:05Z", since="")
    found = node(
        {"rack": "a", KEYS.upgrade_state: "upgrade-failed", KEYS.state: "held", KEYS.skip: "true"},
        {
            KEYS.rollout: encode_node_record(RECORD),
            KEYS.last_outcome: encode(outcome),
            KEYS.upgrade_enabled: "true",
            KEYS.upgrade_requested: "true",
            KEYS.journal: "{}",
            KEYS.cordon: "true",
            KEYS.recovery: encode_note(Recovery("reset", RecoveryState.UNDER_WAY)),
        },
        spec={"unschedulable": True},
        status={
            "nodeInfo": {"bootID": "boot"},
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "NetworkReady", "status": "Unknown"}],
        },
    )
    assert (found.unschedulable, found.is_ready, found.boot_id) == (True, True, "boot")
    assert (found.is_skipped, found.is_operated, found.wants_retry) == (True, True, True)
    assert (found.upgrade, found.record, found.record_problem) == ("upgrade-failed", RECORD, "")
    assert (found.driver_state, found.outcome, found.outcome_s) == (NodeState.HELD, "it did not load", 1767323045.0)
    assert found.is_cordoned_by_run
    assert found.recovery is RecoveryState.UNDER_WAY
    assert found.conditions == {"Ready": "True", "NetworkReady": "Unknown"}
    assert found.labels["rack"] == "a"


def test_a_cordon_is_that_of_a_run_where_the_node_is_taken_and_it_is_marked() -> None:
    taken, marked = {KEYS.journal: "{}"}, {KEYS.cordon: "true"}
    for notes in ({}, marked, taken, {**taken, KEYS.cordon: "reboot"}, {**taken, **marked}):
        found = node(notes=notes, spec={"unschedulable": True})
        assert found.is_cordoned_by_run is (notes == {**taken, **marked}), notes


def test_a_record_of_an_earlier_version_does_not_tell_of_an_outcome() -> None:
    before = json.loads(encode_node_record(RECORD))
    del before["outcome"]
    assert decode_node_record(json.dumps(before)) == replace(RECORD, outcome_s=None)
    assert json.loads(encode_node_record(replace(RECORD, outcome_s=None))) == before


@pytest.mark.parametrize("text", ["", "{", '{"v":99}', "[]"])
def test_a_record_that_cannot_be_read_is_a_problem_and_no_error(text: str) -> None:
    found = node(notes={KEYS.rollout: text, KEYS.last_outcome: text})
    assert found.record is None
    assert "cannot be read" in found.record_problem or "version" in found.record_problem
    assert (found.outcome, found.outcome_s) == ("", None)


def test_a_vendor_without_some_keys_has_nothing_to_read_there() -> None:
    keys = replace(ASCEND.keys, upgrade_state="", skip="", upgrade_enabled="", upgrade_requested="", state="")
    found = as_fleet_node({"metadata": {"name": "n", "labels": {"": "true"}, "annotations": {"": "true"}}}, keys)
    assert not any((found.is_skipped, found.is_operated, found.wants_retry, found.upgrade))


def test_a_driver_pod() -> None:
    metadata = {
        "name": "p",
        "namespace": "npu",
        "uid": "u",
        "resourceVersion": "3",
        "ownerReferences": OWNER,
        "labels": {"controller-revision-hash": "r2"},
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "deletionTimestamp": "2026-01-02T03:04:05Z",
    }
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "initContainerStatuses": [{"name": "manager", "state": waiting}, {}],
        "containerStatuses": [{"name": "driver", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    body = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}
    item = readers(KEYS, zone)[FactKind.DRIVER_PODS](body)
    assert item.owner == "uid-ds"
    assert item.fact == DriverPod("npu", "p", "u", "n", "r2", True, True, "manager: CrashLoopBackOff", 1767323045.0)
    bare = as_driver_pod({"metadata": {"name": "p"}})
    assert bare == DriverPod("", "p", "", "", "")


CLEARING = Owner("npu/clear", "uid-clear")


@pytest.mark.parametrize(
    ("text", "cleared_by"),
    [
        ("garbage", ""),
        (journals.encode(Journal(CLEARING, "boot")), ""),
        (journals.encode(Journal(CLEARING, "boot", cleared="r2")), "uid-clear"),
        (journals.encode(Journal(Owner(pid=7), "boot", cleared="r2")), ""),
    ],
)
def test_a_journal_tells_who_has_cleared_the_node(text: str, cleared_by: str) -> None:
    found = node(notes={KEYS.journal: text})
    assert (found.is_taken_by_run, found.cleared_by) == (True, cleared_by)


def task_pod(**said: Any) -> TaskPod:
    metadata = {
        "name": "t",
        "namespace": "npu",
        "uid": "u",
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "labels": {TASK_LABEL: "preflight", TASK_REVISION_LABEL: "r2"},
    }
    spec = {"nodeName": "n", "containers": [{"name": "m"}, {"name": "pull-driver"}]}
    return as_task_pod({"metadata": metadata, "spec": spec, "status": said})


MADE_S = 1_767_323_045.0


def test_a_short_lived_pod_waits_ends_or_never_runs() -> None:
    waits = [{"name": "m", "state": {"waiting": {"reason": "ErrImagePull"}}}]
    found = task_pod(phase="Pending", containerStatuses=waits)
    assert found == TaskPod("npu", "t", "u", "n", "r2", Task.PREFLIGHT, MADE_S, why_waiting="m: ErrImagePull")
    assert task_pod() == replace(found, why_waiting="")
    result = {"exitCode": 6, "message": "no module", "finishedAt": "2026-01-02T03:04:15Z"}
    found = task_pod(phase="Failed", containerStatuses=[{"name": "m", "state": {"terminated": result}}])
    assert (found.exit_code, found.has_ended, found.message, found.ended_s) == (6, True, "no module", MADE_S + 10.0)
    found = task_pod(phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu")
    assert (found.exit_code, found.has_ended) == (None, True)
    assert found.message == "OutOfcpu Node didn't have enough resource: cpu"


ENDED_BADLY = {"terminated": {"exitCode": 6, "message": "exit 6: no module"}}
ENDED_WELL = {"terminated": {"exitCode": 0}}


@pytest.mark.parametrize(
    ("status", "end", "is_running"),
    [
        ({}, None, False),
        ({"state": {"running": {}}}, None, True),
        ({"state": ENDED_WELL}, RunEnd(0, ""), False),
        ({"state": ENDED_BADLY}, RunEnd(6, "exit 6: no module"), False),
        ({"state": {"waiting": {}}, "lastState": ENDED_BADLY}, RunEnd(6, "exit 6: no module"), False),
        ({"state": {"running": {}}, "lastState": ENDED_WELL}, None, True),
        ({"state": ENDED_WELL, "lastState": ENDED_BADLY}, RunEnd(0, ""), False),
    ],
)
def test_the_end_of_a_run_is_that_of_the_manager(status: Any, end: RunEnd | None, is_running: bool) -> None:
    others = {"name": "other", "state": {"terminated": {"exitCode": 1}}}
    manager = {"name": "m", "args": ["reconcile-driver-state"], "env": [{"name": "DRIVER_PROFILE", "value": "amd"}]}
    owner = {"kind": "DaemonSet", "name": "driver", "uid": "ds", "controller": True}
    body: dict[str, Any] = {
        "metadata": {"name": "p", "uid": "u", "namespace": "npu", "ownerReferences": [owner]},
        "spec": {"nodeName": "n", "initContainers": [{"name": "other"}, manager]},
        "status": {"initContainerStatuses": [others, {"name": "m", **status}]},
    }
    found = as_node_driver(body)
    assert found is not None
    assert (found.end, found.is_running, found.daemon_set) == (end, is_running, "driver")
    assert (found.profile, found.pod.uid) == ("amd", "u")
    owner["kind"] = "ReplicaSet"
    assert as_node_driver(body) is None
    assert as_node_driver({**body, "spec": {}}) is None


def both(first: int, other: dict[str, Any]) -> list[dict[str, Any]]:
    """In another order than in the pod: a kubelet may list them by name."""
    mine = {"terminated": {"exitCode": first, "message": "said"}}
    return [{"name": "m", "state": mine}, {"name": "pull-driver", "state": other}][::-1]


PULLS = {"waiting": {"reason": "ImagePullBackOff"}}


def test_a_short_lived_pod_has_ended_well_once_it_has_pulled_what_it_was_to_pull() -> None:
    pulling = task_pod(phase="Running", containerStatuses=both(0, PULLS))
    assert (pulling.exit_code, pulling.why_waiting) == (None, "pull-driver: ImagePullBackOff")
    for code in (0, 128):
        pulled = both(0, {"terminated": {"exitCode": code}})
        assert task_pod(phase="Failed", containerStatuses=pulled).exit_code == 0, "the image is there"
    late = task_pod(phase="Failed", reason="DeadlineExceeded", message="m", containerStatuses=both(0, PULLS))
    assert (late.exit_code, late.has_ended, late.message) == (None, True, "DeadlineExceeded m")
    lost = both(0, {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}})
    assert task_pod(phase="Failed", reason="DeadlineExceeded", containerStatuses=lost).exit_code is None
    failed = task_pod(phase="Running", containerStatuses=both(6, PULLS))
    assert (failed.exit_code, failed.message) == (6, "said"), "which waits for no pull"


def test_a_gate_pod_that_leaves_is_not_ready() -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": "v", "namespace": "m", "labels": {"app": "v"}}
    body = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}
    assert as_gate_pod(body) == GatePod("m", "n", {"app": "v"}, is_ready=True)
    leaving = {**body, "metadata": {**metadata, "deletionTimestamp": "now"}}
    assert as_gate_pod(leaving) == GatePod("m", "n", {"app": "v"}, is_ready=False)


def daemon_set(**spec: Any) -> DaemonSetFacts:
    metadata = {"name": "driver", "namespace": "npu", "uid": "u", "resourceVersion": "5", "generation": 3}
    return as_daemon_set({"metadata": metadata, "spec": spec, "status": {"observedGeneration": 3}})


def test_a_daemonset_with_every_form_of_a_selector() -> None:
    found = daemon_set(
        selector={
            "matchLabels": {"b": "2", "a": "1"},
            "matchExpressions": [
                {"key": "c", "operator": "In", "values": ["x", "y"]},
                {"key": "d", "operator": "NotIn", "values": ["z"]},
                {"key": "e", "operator": "Exists"},
                {"key": "f", "operator": "DoesNotExist"},
            ],
        },
        updateStrategy={"type": "OnDelete"},
        template={"spec": {"nodeSelector": {"npu": "true", "arch": "arm"}}},
    )
    assert found.pods == "a=1,b=2,c in (x,y),d notin (z),e,!f"
    assert found.update_strategy == "OnDelete"
    assert found.places.selector.text == "arch=arm,npu=true"
    assert found.is_current
    for observed in (2, None):
        unseen = as_daemon_set({"metadata": {"name": "d", "generation": 3}, "status": {"observedGeneration": observed}})
        assert not unseen.is_current, "its controller has not seen it"
    assert daemon_set().update_strategy == "RollingUpdate", "the default of the API"


def test_a_revision_without_a_template_has_none() -> None:
    assert as_revision({"metadata": {"name": "other"}}) == Revision("other", "", 0, "")


def test_a_rollout_is_read_whatever_is_wrong_with_it() -> None:
    for spec in ({"daemonSet": "driver"}, {}, "nonsense", None):
        body = {"metadata": {"name": "r", "namespace": "npu", "uid": "u"}, "spec": spec}
        found = readers(KEYS, zone)[FactKind.ROLLOUTS](body).fact
        assert isinstance(found, RolloutObject)
        assert bool(found.problems) is (found.policy is None)


@pytest.mark.parametrize("metadata", [{"name": 1}, {"name": "n", "labels": []}, {"name": "n", "labels": {"a": 1}}])
def test_what_is_no_node_is_an_error_of_the_answer(metadata: Any) -> None:
    with pytest.raises(ApiUnavailable, match="is not the object that was asked for"):
        understood(readers(KEYS, zone)[FactKind.NODES], {"metadata": metadata})


@pytest.mark.submission
@pytest.mark.shares(3)
def test_thousands_of_nodes_are_kept_in_little_memory() -> None:
    labels = {f"feature.node.kubernetes.io/cpu-{number}": "true" for number in range(40)}
    images = [{"names": [f"registry/image-{number}@sha256:{'0' * 64}"], "sizeBytes": 1} for number in range(50)]
    tracemalloc.start()
    try:
        kept = []
        for number in range(1000):
            metadata = {"name": f"node-{number}", "uid": str(number), "resourceVersion": "1", "labels": labels}
            text = json.dumps({"metadata": metadata, "status": {"images": images}})
            kept.append(as_fleet_node(json.loads(text), KEYS))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(kept) < 6_000, "bytes of a node with 40 labels and 50 images"
