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
from driver_manager.adapters.kube.fleet import KubeDesk, as_fleet_node, as_gate_pod, as_node_driver, readers
from driver_manager.adapters.kube.objects import understood
from driver_manager.adapters.kube.transport import EXPIRED
from driver_manager.cli.options import zone
from driver_manager.core.fleet_ports import EventAbout, FactKind, Found, Gone, Leader, Listed, Lost, Seen, Subject
from driver_manager.domain import deadline
from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ApiUnavailable, Conflict, Terminated, WatchBroken
from driver_manager.domain.fleet import spec as facts
from driver_manager.domain.fleet.spec import PLURAL, FleetNode, TaskPod, encode_node_record
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
    patch = {"metadata": {"labels": {"n": str(value)}}}
    fleet.store.patch("nodes", "a", lambda one: cast(dict[str, Any], apply_merge_patch(one, patch)))


def requests(fleet: FleetOverHttp, verb: str, plural: str = "nodes") -> int:
    seen = [(one.verb, one.resource, one.subresource, one.user) for one in list(fleet.server.requests)]
    return seen.count((verb, plural, "", "controller"))


def next_change(fleet: FleetOverHttp, kind: Any) -> Any:
    return fleet.until_one(kind)


def followed(fleet: FleetOverHttp, subject: Subject = NODES) -> list[str]:
    """What is listed first of a subject that alone is followed from now on."""
    fleet.cluster.follow(frozenset({subject}))
    return [item.name for item in next_change(fleet, Listed).items]


# what is delivered


def test_a_subject_is_listed_and_then_each_change_is_delivered(fleet: FleetOverHttp) -> None:
    assert followed(fleet) == ["a", "b"]
    label(fleet, "seen")
    found = next_change(fleet, Seen).item.fact
    assert found.labels["n"] == "seen"
    fleet.store.delete("nodes", "b")
    gone = next_change(fleet, Gone)
    assert gone.name == "b"
    assert int(gone.version) > int(found.resource_version)
    fleet.cluster.follow(frozenset())
    label(fleet, "unseen")
    assert fleet.cluster.changes(fleet.clock.monotonic() + 0.5) == (), "what is followed no longer tells nothing"


def test_a_list_comes_in_pages_and_is_delivered_as_one(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_fleet, "PAGE", 2)
    for name in "cde":
        fleet.store.create("nodes", {"metadata": {"name": name}})
    assert followed(fleet) == ["a", "b", "c", "d", "e"]
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
    found = fleet.until(lambda changes: len(changes) == len(subjects), "all are listed")
    assert {one.subject: [item.name for item in one.items] for one in found if isinstance(one, Listed)} == subjects
    fleet.changes.clear()
    assert len(followed(fleet, Subject(FactKind.DRIVER_PODS, NAMESPACE, "app=driver"))) == 2


def test_a_watch_whose_version_is_forgotten_lists_again(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_fleet, "WATCH_S", 1.0)
    followed(fleet, ROLLOUTS)
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
def test_changes_between_two_watches_are_delivered(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_fleet, "WATCH_S", 1.0)
    followed(fleet)
    numbers = itertools.count()
    while requests(fleet, "watch") < 3:
        label(fleet, next(numbers))
        fleet.changes += fleet.cluster.changes(fleet.clock.monotonic() + 0.05)
    wanted = {str(number) for number in range(next(numbers))}

    def has_all(changes: list[Any]) -> bool:
        return {cast(Any, one.item.fact).labels["n"] for one in changes if isinstance(one, Seen)} >= wanted

    fleet.until(has_all, "every change")
    assert requests(fleet, "list") == 1


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_connection_that_is_cut_is_followed_by_another_one_from_where_it_was(fleet: FleetOverHttp) -> None:
    followed(fleet)
    for number in range(3):
        least = number + 1
        fleet.until(lambda _: requests(fleet, "watch") >= least, "it watches")  # noqa: B023  # asked at once
        fleet.server._http.disconnect()
        label(fleet, number)
        assert next_change(fleet, Seen).item.fact.labels["n"] == str(number)
    assert requests(fleet, "list") == 1
    assert fleet.changes == [], "nothing was lost"


@pytest.mark.submission
@pytest.mark.shares(3)
def test_watches_that_break_at_once_are_lost_then_found(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise WatchBroken("the watch was cut", "")

    with monkeypatch.context() as patched:
        patched.setattr(KubeApi, "watch", broken)
        followed(fleet)
        assert next_change(fleet, Lost).why == "the watch was cut"
    next_change(fleet, Found)


@pytest.mark.submission
@pytest.mark.shares(3)
def test_what_is_refused_is_lost_until_it_is_allowed(fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "REFUSED_S", 0.1)
    fleet.server.deny.append(Deny("watch", "nodes"))
    followed(fleet)
    why = next_change(fleet, Lost).why
    assert "refused to watch nodes (403)" in why
    assert "Grant this account the verb" in why
    fleet.server.deny.clear()
    next_change(fleet, Found)


def test_a_resource_that_is_not_served_is_reported_as_such(
    fleet: FleetOverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_fleet, "_COLLECTIONS", {FactKind.ROLLOUTS: ("/apis/none/v9", "nones", "nones.none")})
    fleet.cluster.follow(frozenset({ROLLOUTS}))
    assert "list nones.none in namespace rbln-system (404)" in next_change(fleet, Lost).why


def test_an_error_of_our_own_in_a_thread_and_a_signal_end_the_loop(fleet: FleetOverHttp) -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    fleet.cluster._readers = {FactKind.NODES: broken}
    fleet.cluster.follow(frozenset({NODES}))
    with pytest.raises(ZeroDivisionError):
        fleet.until(lambda _: False, "it is raised")
    fleet.clock._signal = "SIGTERM"
    with pytest.raises(Terminated):
        fleet.cluster.changes(fleet.clock.monotonic() + 60.0)


def test_a_stopped_feed_ends(fleet: FleetOverHttp) -> None:
    sent: list[Any] = []
    read = fleet.cluster._readers[FactKind.NODES]
    feed = kube_fleet.Informer(NODES, fleet.cluster._connect, read, threading.Lock(), sent.append)
    feed.start()
    fleet.until(lambda _: bool(sent), "it lists")
    feed.stop()
    label(fleet, "unseen")
    feed._thread.join(20.0)
    assert (feed._thread.is_alive(), len(sent)) == (False, 1)


# what is changed


def version(fleet: FleetOverHttp, resource: str, name: str, namespace: str = "") -> str:
    return str(fleet.store.get(resource, name, namespace)["metadata"]["resourceVersion"])


def test_a_node_gets_state_and_record_in_one_patch_of_the_version_that_was_read(fleet: FleetOverHttp) -> None:
    change = NodeChange({"l": "x"}, {"a": "y"})
    read = version(fleet, "nodes", "a")
    item = fleet.cluster.patch_node("a", change, read)
    assert item.version == version(fleet, "nodes", "a") != read
    assert cast(FleetNode, item.fact).labels["l"] == "x"
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
    labels = {TASK_LABEL: facts.Task.PREFLIGHT.value}
    body = {"metadata": {"name": "t", "namespace": NAMESPACE, "labels": labels}, "spec": {"nodeName": "a"}}
    made = cast(Any, fleet.cluster.create_pod(NAMESPACE, body))
    assert isinstance(made.fact, TaskPod)
    assert fleet.cluster.create_pod(NAMESPACE, body) is None
    assert followed(fleet, Subject(FactKind.TASK_PODS, NAMESPACE, TASKS)) == ["t"], "and no driver pod"
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
    posted = [(one["metadata"]["namespace"], one["involvedObject"]["kind"], one["type"]) for one in events]
    assert sorted(posted) == [("default", "Node", "Warning"), *[(NAMESPACE, "DriverRollout", "Warning")] * 2]
    assert {one["involvedObject"]["uid"] for one in events} == {"uid-1", "a"}


# a client's requests


@pytest.fixture
def desk(fleet: FleetOverHttp) -> KubeDesk:
    return KubeDesk(KubeApi(fleet.cluster._connect(), FakeClock(), RecordingReporter(), 5.0), readers(KEYS, zone))


def test_a_list_that_expires_is_begun_again_and_then_given_up(desk: KubeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, expiring = KubeApi.call, list[int]()

    def call(self: KubeApi, method: str, path: str, what: str, *rest: Any, **known: Any) -> dict[str, Any]:
        if expiring:
            expiring.pop()
            raise Answer(EXPIRED, "the continue token is too old", (), 0.0, what)
        return whole(self, method, path, what, *rest, **known)

    monkeypatch.setattr(KubeApi, "call", call)
    expiring += range(RESTARTS - 1)
    assert isinstance(desk.listed(NODES), Listed)
    expiring += range(RESTARTS)
    with pytest.raises(ApiUnavailable, match="each list expired before its end"):
        desk.listed(NODES)


def test_the_keys_of_all_nodes_labels_are_known(desk: KubeDesk, scene: FleetScene) -> None:
    scene.edit_node("b", {"metadata": {"labels": {"example.com/npu": "true"}}})
    assert kube_fleet.node_label_keys(desk._api) == {"example.com/npu"}


# wishes


def test_a_wish_keeps_what_others_have_written_meanwhile(desk: KubeDesk, scene: FleetScene) -> None:
    node, rollout = (cast(Any, desk.listed(subject).items[0].fact) for subject in (NODES, ROLLOUTS))
    scene.edit_node("a", {"metadata": {"annotations": {"of": "others"}}})
    scene.edit_rollout(maxParallel=7)
    desk.ask_node(node, {"wish": "true"}, dry_run=False)
    desk.ask_rollout(rollout, {"paused": True}, {"wish": "1"}, dry_run=False)
    assert scene.node("a")["metadata"]["annotations"] == {"of": "others", "wish": "true"}
    spec = scene.rollout()["spec"]
    assert (spec["maxParallel"], spec["paused"]) == (7, True)


def test_a_wish_is_for_the_object_that_was_seen(desk: KubeDesk, scene: FleetScene) -> None:
    node, rollout = (cast(Any, desk.listed(subject).items[0].fact) for subject in (NODES, ROLLOUTS))
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
    assert desk.leader(NAMESPACE, "lead") == Leader("a", MADE_S, 15.0)


def test_pods_that_ask_for_a_device_are_seen_on_the_nodes_that_are_meant(desk: KubeDesk, scene: FleetScene) -> None:
    asking = {"containers": [{"resources": {"limits": {"rebellions.ai/ATOM": "1"}}}]}
    for name, node, spec in (("job", "a", asking), ("elsewhere", "c", asking), ("plain", "a", {})):
        body = {"metadata": {"name": name, "namespace": "jobs"}, "spec": {"nodeName": node, **spec}}
        scene.store.create("pods", body)
    found = desk.users_by_node({"a", "b"})
    assert {node: [one.name for one in pods] for node, pods in found.items()} == {"a": ["job"]}


# objects

MADE, MADE_S = "2026-01-02T03:04:05Z", 1_767_323_045.0
RECORD = facts.NodeRecord("npu/driver", "r2", 1, "uid-p", "boot", 1.0, 2.0, outcome_s=3.0)
OWNER = [{"kind": "DaemonSet", "uid": "uid-ds", "controller": True}, {"kind": "X", "uid": "other"}]


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "npu", "uid": "u", "resourceVersion": "7", "creationTimestamp": MADE, **more}


def node(labels: dict[str, str] | None = None, notes: dict[str, str] | None = None, **body: Any) -> FleetNode:
    item = readers(KEYS, zone)[FactKind.NODES]({"metadata": named("n", labels=labels, annotations=notes), **body})
    assert (item.name, item.uid, item.version) == ("n", "u", "7")
    assert isinstance(item.fact, FleetNode)
    return item.fact


def test_a_node_is_read_bare_and_in_full() -> None:
    assert node() == FleetNode("n", "u", "7", is_ready=False)
    outcome = LastOutcome(NodeState.HELD, 5, "it did not load", ended=MADE, since="")
    recovery = encode_note(Recovery("reset", RecoveryState.UNDER_WAY))
    notes = {KEYS.rollout: encode_node_record(RECORD), KEYS.last_outcome: encode(outcome), KEYS.recovery: recovery}
    notes |= {KEYS.journal: "{}"} | dict.fromkeys((KEYS.upgrade_enabled, KEYS.upgrade_requested, KEYS.cordon), "true")
    labels = {"rack": "a", KEYS.upgrade_state: "upgrade-failed", KEYS.state: "held", KEYS.skip: "true"}
    conditions = [{"type": "Ready", "status": "True"}, {"type": "NetworkReady", "status": "Unknown"}]
    status = {"nodeInfo": {"bootID": "boot"}, "conditions": conditions}
    found = node(labels, notes, spec={"unschedulable": True}, status=status)
    assert (found.unschedulable, found.is_ready, found.boot_id) == (True, True, "boot")
    assert (found.is_skipped, found.is_operated, found.wants_retry) == (True, True, True)
    assert (found.upgrade, found.record, found.record_problem) == ("upgrade-failed", RECORD, "")
    assert (found.driver_state, found.outcome, found.outcome_s) == (NodeState.HELD, "it did not load", MADE_S)
    assert (found.is_cordoned_by_run, found.recovery) == (True, RecoveryState.UNDER_WAY)
    assert (found.conditions, found.labels["rack"]) == ({"Ready": "True", "NetworkReady": "Unknown"}, "a")


def test_a_cordon_is_that_of_a_run_where_the_node_is_taken_and_it_is_marked() -> None:
    taken, marked = {KEYS.journal: "{}"}, {KEYS.cordon: "true"}
    for notes in ({}, marked, taken, {**taken, KEYS.cordon: "reboot"}, {**taken, **marked}):
        found = node(notes=notes, spec={"unschedulable": True})
        assert found.is_cordoned_by_run is (notes == {**taken, **marked}), notes


def test_a_record_of_an_earlier_version_does_not_tell_of_an_outcome() -> None:
    before = json.loads(encode_node_record(RECORD))
    del before["outcome"]
    assert facts.decode_node_record(json.dumps(before)) == replace(RECORD, outcome_s=None)
    assert json.loads(encode_node_record(replace(RECORD, outcome_s=None))) == before


def test_a_record_that_cannot_be_read_is_a_problem_and_no_error() -> None:
    for text in ("", "{", '{"v":99}', "[]"):
        found = node(notes={KEYS.rollout: text, KEYS.last_outcome: text})
        assert (found.record, found.outcome, found.outcome_s) == (None, "", None)
        assert "cannot be read" in found.record_problem or "version" in found.record_problem


def test_a_vendor_without_some_keys_has_nothing_to_read_there() -> None:
    keys = replace(ASCEND.keys, upgrade_state="", skip="", upgrade_enabled="", upgrade_requested="", state="")
    found = as_fleet_node({"metadata": {"name": "n", "labels": {"": "true"}, "annotations": {"": "true"}}}, keys)
    assert not any((found.is_skipped, found.is_operated, found.wants_retry, found.upgrade))


def test_a_driver_pod() -> None:
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "initContainerStatuses": [{"name": "manager", "state": waiting}, {}],
        "containerStatuses": [{"name": "driver", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    labels = {"controller-revision-hash": "r2"}
    metadata = named("p", ownerReferences=OWNER, labels=labels, deletionTimestamp=MADE)
    item = readers(KEYS, zone)[FactKind.DRIVER_PODS](
        {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}
    )
    assert item.owner == "uid-ds"
    assert item.fact == facts.DriverPod("npu", "p", "u", "n", "r2", True, True, "manager: CrashLoopBackOff", MADE_S)
    assert kube_fleet.as_driver_pod({"metadata": {"name": "p"}}) == facts.DriverPod("", "p", "", "", "")


CLEARING = Owner("npu/clear", "uid-clear")


def test_a_journal_tells_who_has_cleared_the_node() -> None:
    for text, cleared_by in (
        ("garbage", ""),
        (journals.encode(Journal(CLEARING, "boot")), ""),
        (journals.encode(Journal(CLEARING, "boot", cleared="r2")), "uid-clear"),
        (journals.encode(Journal(Owner(pid=7), "boot", cleared="r2")), ""),
    ):
        found = node(notes={KEYS.journal: text})
        assert (found.is_taken_by_run, found.cleared_by) == (True, cleared_by)


def task_pod(**status: Any) -> TaskPod:
    metadata = named("t", labels={TASK_LABEL: "preflight", TASK_REVISION_LABEL: "r2"})
    spec = {"nodeName": "n", "containers": [{"name": "m"}, {"name": "pull-driver"}]}
    return kube_fleet.as_task_pod({"metadata": metadata, "spec": spec, "status": status})


def test_a_short_lived_pod_waits_ends_or_never_runs() -> None:
    waits = [{"name": "m", "state": {"waiting": {"reason": "ErrImagePull"}}}]
    found = task_pod(phase="Pending", containerStatuses=waits)
    assert found == TaskPod("npu", "t", "u", "n", "r2", facts.Task.PREFLIGHT, MADE_S, why_waiting="m: ErrImagePull")
    assert task_pod() == replace(found, why_waiting="")
    result = {"exitCode": 6, "message": "no module", "finishedAt": "2026-01-02T03:04:15Z"}
    found = task_pod(phase="Failed", containerStatuses=[{"name": "m", "state": {"terminated": result}}])
    assert (found.exit_code, found.has_ended, found.message, found.ended_s) == (6, True, "no module", MADE_S + 10.0)
    found = task_pod(phase="Failed", reason="OutOfcpu", message="Not enough: cpu")
    assert (found.exit_code, found.has_ended, found.message) == (None, True, "OutOfcpu Not enough: cpu")


ENDED_BADLY = {"terminated": {"exitCode": 6, "message": "exit 6: no module"}}
ENDED_WELL = {"terminated": {"exitCode": 0}}


def test_the_end_of_a_run_is_that_of_the_manager() -> None:
    for status, end, is_running in (
        ({}, None, False),
        ({"state": {"running": {}}}, None, True),
        ({"state": ENDED_WELL}, RunEnd(0, ""), False),
        ({"state": ENDED_BADLY}, RunEnd(6, "exit 6: no module"), False),
        ({"state": {"waiting": {}}, "lastState": ENDED_BADLY}, RunEnd(6, "exit 6: no module"), False),
        ({"state": {"running": {}}, "lastState": ENDED_WELL}, None, True),
        ({"state": ENDED_WELL, "lastState": ENDED_BADLY}, RunEnd(0, ""), False),
    ):
        others = {"name": "other", "state": {"terminated": {"exitCode": 1}}}
        manager = {"name": "m", "args": ["reconcile-driver-state"], "env": [{"name": "DRIVER_PROFILE", "value": "amd"}]}
        owner = {"kind": "DaemonSet", "name": "driver", "uid": "ds", "controller": True}
        body: dict[str, Any] = {
            "metadata": named("p", ownerReferences=[owner]),
            "spec": {"nodeName": "n", "initContainers": [{"name": "other"}, manager]},
            "status": {"initContainerStatuses": [others, {"name": "m", **status}]},
        }
        found = as_node_driver(body)
        assert found is not None
        assert (found.end, found.is_running) == (end, is_running)
        assert (found.daemon_set, found.profile, found.pod.uid) == ("driver", "amd", "u")
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
    for leaving in ({}, {"deletionTimestamp": "now"}):
        body = {"metadata": named("v", labels={"app": "v"}, **leaving), "spec": {"nodeName": "n"}, "status": status}
        assert as_gate_pod(body) == facts.GatePod("npu", "n", {"app": "v"}, is_ready=not leaving)


def daemon_set(observed: int | None = 3, **spec: Any) -> facts.DaemonSetFacts:
    body = {"metadata": named("driver", generation=3), "spec": spec, "status": {"observedGeneration": observed}}
    return kube_fleet.as_daemon_set(body)


def test_a_daemonset_with_every_form_of_a_selector() -> None:
    expressions = [
        {"key": "c", "operator": "In", "values": ["x", "y"]},
        {"key": "d", "operator": "NotIn", "values": ["z"]},
        {"key": "e", "operator": "Exists"},
        {"key": "f", "operator": "DoesNotExist"},
    ]
    selector = {"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": expressions}
    template = {"spec": {"nodeSelector": {"npu": "true", "arch": "arm"}}}
    found = daemon_set(selector=selector, updateStrategy={"type": "OnDelete"}, template=template)
    assert found.pods == "a=1,b=2,c in (x,y),d notin (z),e,!f"
    assert found.update_strategy == "OnDelete"
    assert found.places.selector.text == "arch=arm,npu=true"
    assert found.is_current
    for observed in (2, None):
        assert not daemon_set(observed).is_current, "its controller has not seen it"
    assert daemon_set().update_strategy == "RollingUpdate", "the default of the API"
    assert kube_fleet.as_revision({"metadata": {"name": "other"}}) == facts.Revision("other", "", 0, "")  # no template


def test_a_rollout_is_read_whatever_is_wrong_with_it() -> None:
    for spec in ({"daemonSet": "driver"}, {}, "nonsense", None):
        found = readers(KEYS, zone)[FactKind.ROLLOUTS]({"metadata": named("r"), "spec": spec}).fact
        assert isinstance(found, facts.RolloutObject)
        assert bool(found.problems) is (found.policy is None)


def test_what_is_no_node_is_an_error_of_the_answer() -> None:
    for metadata in ({"name": 1}, {"name": "n", "labels": []}, {"name": "n", "labels": {"a": 1}}):
        with pytest.raises(ApiUnavailable, match="is not the object that was asked for"):
            understood(readers(KEYS, zone)[FactKind.NODES], {"metadata": metadata})


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
