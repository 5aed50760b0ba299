"""Objects as JSON become slim facts: what a rollout looks at, and what stands for a field that is not there."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.adapters.kube.fleet import (
    as_daemon_set,
    as_driver_pod,
    as_fleet_node,
    as_gate_pod,
    as_revision,
    as_rollout,
    as_task_pod,
)
from driver_manager.adapters.kube.objects import understood
from driver_manager.cli.options import zone
from driver_manager.core.fleet_ports import FollowedDaemonSet
from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ApiUnavailable
from driver_manager.domain.fleet.spec import (
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
from driver_manager.domain.fleet.state import TASK_LABEL, TASK_REVISION_LABEL
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.node_state import LastOutcome, NodeState, encode
from tests.support.fakes.builders import ASCEND, PROFILE

KEYS = PROFILE.keys
RECORD = NodeRecord("npu/driver", "r2", 1, "uid-p", "boot", 1.0, 2.0, outcome_s=3.0)
OWNER = [{"kind": "DaemonSet", "uid": "uid-ds", "controller": True}, {"kind": "X", "uid": "other"}]


def node(labels: dict[str, str] | None = None, notes: dict[str, str] | None = None, **body: Any) -> FleetNode:
    metadata = {"name": "n", "uid": "u", "resourceVersion": "7", "labels": labels, "annotations": notes}
    item = as_fleet_node({"metadata": metadata, **body}, KEYS)
    assert (item.name, item.uid, item.version) == ("n", "u", "7")
    assert isinstance(item.fact, FleetNode)
    return item.fact


def test_a_bare_node_is_not_ready_and_has_nothing() -> None:
    assert node() == FleetNode("n", "u", "7", is_ready=False)


def test_a_node_in_full() -> None:
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
    assert found.conditions == {"Ready": "True", "NetworkReady": "Unknown"}
    assert found.labels["rack"] == "a"


@pytest.mark.parametrize(
    ("notes", "is_ours"),
    [
        ({}, False),
        ({KEYS.cordon: "true"}, False),
        ({KEYS.journal: "{}", KEYS.cordon: "true"}, True),
        ({KEYS.journal: "{}", KEYS.cordon: "reboot"}, False),
        ({KEYS.journal: "{}"}, False),
    ],
)
def test_a_cordon_is_that_of_a_run_where_the_node_is_taken_and_it_is_marked(
    notes: dict[str, str], is_ours: bool
) -> None:
    assert node(notes=notes, spec={"unschedulable": True}).is_cordoned_by_run is is_ours


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
    item = as_fleet_node({"metadata": {"name": "n", "labels": {"": "true"}, "annotations": {"": "true"}}}, keys)
    assert isinstance(item.fact, FleetNode)
    assert not (item.fact.is_skipped)
    assert not (item.fact.is_operated)
    assert not (item.fact.wants_retry)
    assert not (item.fact.upgrade)


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
        "initContainerStatuses": [{"name": "manager", "restartCount": 2, "state": waiting}, {"restartCount": 1}],
        "containerStatuses": [
            {"name": "driver", "restartCount": 9, "state": {"waiting": {"reason": "PodInitializing"}}}
        ],
    }
    item = as_driver_pod({"metadata": metadata, "spec": {"nodeName": "n"}, "status": status})
    assert item.owner == "uid-ds"
    assert item.fact == DriverPod("npu", "p", "u", "n", "r2", True, True, 3, "manager: CrashLoopBackOff", 1767323045.0)
    bare = as_driver_pod({"metadata": {"name": "p"}}).fact
    assert bare == DriverPod("", "p", "", "", "")


@pytest.mark.parametrize(
    ("text", "is_taken", "cleared_by"),
    [
        (None, False, ""),
        ("garbage", True, ""),
        (journals.encode(Journal(Owner("npu/clear", "uid-clear"), "boot")), True, ""),
        (journals.encode(Journal(Owner("npu/clear", "uid-clear"), "boot", cleared="r2")), True, "uid-clear"),
        (journals.encode(Journal(Owner(pid=7), "boot", cleared="r2")), True, ""),
    ],
)
def test_a_journal_tells_who_has_cleared_the_node(text: str | None, is_taken: bool, cleared_by: str) -> None:
    found = node(notes={KEYS.journal: text} if text is not None else {})
    assert (found.is_taken_by_run, found.cleared_by) == (is_taken, cleared_by)


def task_pod(**said: Any) -> TaskPod:
    metadata = {
        "name": "t",
        "namespace": "npu",
        "uid": "u",
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "labels": {TASK_LABEL: "preflight", TASK_REVISION_LABEL: "r2"},
    }
    spec = {"nodeName": "n", "containers": [{"name": "m"}, {"name": "pull-driver"}]}
    item = as_task_pod({"metadata": metadata, "spec": spec, "status": said})
    assert isinstance(item.fact, TaskPod)
    return item.fact


def test_a_short_lived_pod_that_waits() -> None:
    waiting = [{"name": "m", "state": {"waiting": {"reason": "ErrImagePull"}}}]
    found = task_pod(phase="Pending", containerStatuses=waiting)
    made_s = 1_767_323_045.0
    assert found == TaskPod("npu", "t", "u", "n", "r2", Task.PREFLIGHT, made_s, why_waiting="m: ErrImagePull")
    assert task_pod() == replace(found, why_waiting="")


def test_a_short_lived_pod_that_has_ended() -> None:
    result = {"exitCode": 6, "message": "no module", "finishedAt": "2026-01-02T03:04:15Z"}
    found = task_pod(phase="Failed", containerStatuses=[{"name": "m", "state": {"terminated": result}}])
    assert (found.exit_code, found.has_ended, found.message) == (6, True, "no module")
    assert found.ended_s == found.made_s + 10.0


def test_a_short_lived_pod_that_never_ran_says_what_its_kubelet_says() -> None:
    found = task_pod(phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu")
    assert (found.exit_code, found.has_ended) == (None, True)
    assert found.message == "OutOfcpu Node didn't have enough resource: cpu"


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


def test_a_short_lived_pod_that_fails_says_so_without_waiting_for_a_pull() -> None:
    found = task_pod(phase="Running", containerStatuses=both(6, PULLS))
    assert (found.exit_code, found.message) == (6, "said")


def test_a_gate_pod_that_leaves_is_not_ready() -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": "v", "namespace": "m", "labels": {"app": "v"}}
    body = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}
    assert as_gate_pod(body).fact == GatePod("m", "n", {"app": "v"}, is_ready=True)
    leaving = {**body, "metadata": {**metadata, "deletionTimestamp": "now"}}
    assert as_gate_pod(leaving).fact == GatePod("m", "n", {"app": "v"}, is_ready=False)


def daemon_set(**spec: Any) -> FollowedDaemonSet:
    metadata = {"name": "driver", "namespace": "npu", "uid": "u", "resourceVersion": "5", "generation": 3}
    found = as_daemon_set({"metadata": metadata, "spec": spec, "status": {"observedGeneration": 3}}).fact
    assert isinstance(found, FollowedDaemonSet)
    return found


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
    assert found.facts.update_strategy == "OnDelete"
    assert found.facts.places.text == "arch=arm,npu=true"
    assert daemon_set().facts.update_strategy == "RollingUpdate", "the default of the API"


@pytest.mark.parametrize(("observed", "is_current"), [(2, False), (3, True), (None, False)])
def test_a_daemonset_is_current_once_its_controller_has_seen_it(observed: int | None, is_current: bool) -> None:
    body = {"metadata": {"name": "d", "generation": 3}, "status": {"observedGeneration": observed}}
    found = as_daemon_set(body).fact
    assert isinstance(found, FollowedDaemonSet)
    assert found.facts.is_current is is_current


def test_a_revision_has_the_template_as_it_is_put_back() -> None:
    template = {"$patch": "replace", "spec": {"containers": []}}
    body = {
        "metadata": {"name": "driver-x", "labels": {"controller-revision-hash": "x"}, "ownerReferences": OWNER},
        "data": {"spec": {"template": template}},
        "revision": 4,
    }
    item = as_revision(body)
    assert (item.owner, item.fact) == ("uid-ds", Revision("driver-x", "x", 4, '{"spec":{"containers":[]}}'))
    assert as_revision({"metadata": {"name": "other"}}).fact == Revision("other", "", 0, "")


def test_a_rollout_is_read_whatever_is_wrong_with_it() -> None:
    for spec in ({"daemonSet": "driver"}, {}, "nonsense", None):
        found = as_rollout({"metadata": {"name": "r", "namespace": "npu", "uid": "u"}, "spec": spec}, zone).fact
        assert isinstance(found, RolloutObject)
        assert bool(found.problems) is (found.policy is None)


@pytest.mark.parametrize("metadata", [{"name": 1}, {"name": "n", "labels": []}, {"name": "n", "labels": {"a": 1}}])
def test_what_is_no_node_is_an_error_of_the_answer(metadata: Any) -> None:
    with pytest.raises(ApiUnavailable, match="is not the object that was asked for"):
        understood(lambda item: as_fleet_node(item, KEYS), {"metadata": metadata})


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
