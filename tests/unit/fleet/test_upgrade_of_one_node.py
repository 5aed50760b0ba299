"""The upgrade of one node by a person: what is in its way, and which end of a run is its own."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain import journal, node_state
from driver_manager.domain.errors import ConfigError, ExitCode, ManagerError
from driver_manager.domain.fleet import upgrade
from driver_manager.domain.fleet.spec import FleetNode, RolloutObject, Taint, Task, UpgradeState
from driver_manager.domain.fleet.state import TASK_LABEL, pod_of_person
from driver_manager.domain.fleet.upgrade import NextStep, NodeDriver, NodeScene, RunEnd, UpgradeEnd, of_one_daemon_set
from driver_manager.domain.journal import Journal, Owner
from driver_manager.domain.node import Node
from driver_manager.domain.node_state import LastOutcome, NodeState
from driver_manager.domain.outage import Outage, OutagePart
from driver_manager.profiles import builtin
from tests.support.fakes.fleet_builders import DAEMON_SET, NEW, NOW_S, REVISIONS, new_pod, pod, policy
from tests.support.fakes.fleet_builders import node as fleet_node

PROFILE, ASCEND = builtin()["rebellions"], builtin()["ascend"]
KEYS = PROFILE.keys
TAINTED = (Taint("ToBeDeletedByClusterAutoscaler", "", "NoExecute"),)


def driver(of: Any = None, **more: Any) -> NodeDriver:
    return NodeDriver(**{"pod": of or pod("a"), "daemon_set": "driver", **more})


def rollout(**spec: Any) -> RolloutObject:
    more = {key: spec.pop(key) for key in ("is_deleting",) if key in spec}
    return RolloutObject("npu", "driver", "ro-uid", "1", 1, None, policy(**spec), **more)


def scene(*pods: NodeDriver, node: FleetNode | None = None, rollouts: Any = (), **more: Any) -> NodeScene:
    return NodeScene(node or fleet_node("a", **more), pods or (driver(),), DAEMON_SET, REVISIONS, rollouts)


BEGUN, PAUSED, UPGRADING = fleet_node("a", UpgradeState.RESTART), (rollout(paused=True),), NodeState.UPGRADING


def test_only_an_older_pod_is_evicted() -> None:
    serving, starting, leaving = new_pod("a"), new_pod("a", is_ready=False), pod("a", is_deleting=True)
    others = (rollout(is_deleting=True), rollout(daemon_set="other"))
    for found in (scene(), scene(rollouts=PAUSED), scene(rollouts=others), scene(unschedulable=True)):
        assert upgrade.next_step(found) is NextStep.EVICT
    assert upgrade.next_step(scene(driver_state=NodeState.HELD, is_taken_by_run=True)) is NextStep.EVICT
    assert upgrade.next_step(scene(driver(serving), is_skipped=True, is_ready=False)) is NextStep.NOTHING
    for pods in ([serving], [leaving, serving]):
        assert upgrade.next_step(scene(*map(driver, pods))) is NextStep.NOTHING
    for pods in ([starting], [leaving], [leaving, starting]):
        assert upgrade.next_step(scene(*map(driver, pods))) is NextStep.FOLLOW


@pytest.mark.parametrize(
    ("found", "code", "what"),
    [
        (scene(is_skipped=True), ExitCode.STANDING_DOWN, "a label excludes node a"),
        (scene(is_operated=True), ExitCode.STANDING_DOWN, "an operator manages"),
        (scene(rollouts=(rollout(),)), ExitCode.STANDING_DOWN, "rollout npu/driver upgrades the nodes"),
        (scene(node=BEGUN, rollouts=PAUSED), ExitCode.STANDING_DOWN, "rollout npu/driver is upgrading node a"),
        (scene(driver_state=UPGRADING, is_taken_by_run=True), ExitCode.OWNED_ELSEWHERE, "a run is at work on node a"),
        (scene(is_ready=False), ExitCode.PREFLIGHT_FAILED, "the Node is not Ready"),
        (scene(is_rebooting=True), ExitCode.PREFLIGHT_FAILED, "it reboots"),
        (scene(taints=TAINTED), ExitCode.PREFLIGHT_FAILED, "it is being removed"),
        (scene(taints=(Taint("x", "", "NoSchedule"),)), ExitCode.PREFLIGHT_FAILED, "its taint x:NoSchedule"),
        (scene(driver(), driver(pod("a", uid="b"))), ExitCode.USAGE, "2 driver pods of one DaemonSet"),
    ],
)
def test_a_pod_is_not_evicted_where_that_would_fight_or_fail(found: NodeScene, code: ExitCode, what: str) -> None:
    with pytest.raises(ManagerError) as refused:
        upgrade.next_step(found)
    assert (refused.value.exit_code, what in refused.value.what) == (code, True), refused.value.what
    assert refused.value.remedy


def test_the_driver_pods_of_two_daemon_sets_need_a_profile() -> None:
    two = (driver(profile="rebellions"), driver(daemon_set="other", profile="nvidia"))
    with pytest.raises(ConfigError, match="2 DaemonSets: npu/driver, npu/other"):
        of_one_daemon_set("a", two)
    assert of_one_daemon_set("a", two, "nvidia") == two[1:]
    with pytest.raises(ConfigError, match="no driver pod: "):
        of_one_daemon_set("a", ())
    with pytest.raises(ConfigError, match="no driver pod of profile amd: "):
        of_one_daemon_set("a", two, "amd")
    assert upgrade.current(()) is None


# How the run ends

WINDOW = Outage(NOW_S, 4.2, {OutagePart.UNLOAD: 3.1})
EARLIER = Outage(NOW_S - 900.0, 7.0)
FRESH = new_pod("a", made_s=NOW_S, is_ready=False)


def shows(state: NodeState, code: int = 0, keys: Any = KEYS, window: Outage | None = None, at: str = "") -> Node:
    outcome = LastOutcome(state, code, f"what {code}", "Do it.", ended=at or "2027-02-01T00:00:00Z", window=window)
    labels = {keys.state: state.value, keys.version: "2.0.1"}
    return Node("a", "u", "1", labels, {keys.last_outcome: node_state.encode(outcome)})


def after(node: Node, keys: Any = KEYS) -> upgrade.NodeBefore:
    """What was before, if the Node was the same then."""
    return upgrade.NodeBefore.of("a-before", node, keys)


BLANK, UNREADY = Node("a", "u", "1"), "the run has ended well; waits for the driver pod to be ready"
FAILED, STALE = shows(NodeState.FAILED, 6), shows(NodeState.REBOOT_REQUIRED, 9, ASCEND.keys)
READY, ENDED, WELL = NodeState.READY, driver(new_pod("a"), end=RunEnd(0, "")), UpgradeEnd(0, "what 0", "", "2.0.1")
AT_WORK = replace(BLANK, annotations={KEYS.journal: journal.encode(Journal(Owner("p", "u"), "b", step="unload"))})


@pytest.mark.parametrize(
    ("node", "found", "before", "expected"),
    [
        (BLANK, None, BLANK, "waits for the new driver pod"),
        (BLANK, driver(pod("a", is_deleting=True)), BLANK, "waits for driver pod npu/driver-a-before to terminate"),
        (BLANK, driver(FRESH, is_running=True), BLANK, "the run of driver pod npu/driver-a-after is at work"),
        (AT_WORK, driver(FRESH, is_running=True), BLANK, "the run of driver pod npu/driver-a-after is at work: unload"),
        (FAILED, driver(FRESH, is_running=True), FAILED, "the run of driver pod npu/driver-a-after is at work"),
        (FAILED, driver(FRESH, is_running=True), BLANK, "the run of driver pod npu/driver-a-after is at work"),
        (BLANK, driver(FRESH, end=RunEnd(8, "no answer")), BLANK, "the run is started again: no answer"),
        (BLANK, driver(FRESH, end=RunEnd(137, "")), BLANK, "the run is started again: exit 137"),
        (BLANK, driver(FRESH, end=RunEnd(0, "")), BLANK, UNREADY),
        (FAILED, driver(FRESH, end=RunEnd(6, "exit 6: x")), BLANK, UpgradeEnd(6, "what 6", "Do it.", "2.0.1")),
        (FAILED, driver(FRESH, end=RunEnd(6, "exit 6: x")), FAILED, UpgradeEnd(6, "exit 6: x", "", "2.0.1")),
        (FAILED, driver(FRESH, end=RunEnd(4, "exit 4: x")), BLANK, UpgradeEnd(4, "exit 4: x", "", "2.0.1")),
        (shows(READY, window=WINDOW), ENDED, FAILED, replace(WELL, window=WINDOW)),
        (shows(READY, window=EARLIER), ENDED, shows(NodeState.FAILED, 6, window=EARLIER), WELL),
    ],
)
def test_only_what_the_new_pod_has_left_is_a_result(
    node: Node, found: NodeDriver | None, before: Node, expected: UpgradeEnd | str
) -> None:
    assert upgrade.judged(node, found, after(before), KEYS, 0.0) == expected


def test_a_required_reboot_is_the_result_with_what_to_do() -> None:
    running, keys = driver(FRESH, is_running=True), ASCEND.keys
    assert isinstance(upgrade.judged(STALE, running, after(STALE, keys), keys, upgrade.STEADY_S - 1.0), str)
    for before, steady_s in ((BLANK, 0.0), (STALE, upgrade.STEADY_S)):
        found = upgrade.judged(STALE, running, after(before, keys), keys, steady_s)
        assert isinstance(found, UpgradeEnd)
        assert (found.code, found.what) == (ExitCode.REBOOT_REQUIRED, "what 9")
        assert "kubectl annotate node a" in found.remedy


def test_without_an_eviction_an_outcome_from_before_the_pod_does_not_count() -> None:
    node = shows(READY, at="2020-01-01T00:00:00Z", window=EARLIER)
    found = upgrade.judged(node, driver(new_pod("a", made_s=NOW_S), end=RunEnd(0, "")), upgrade.NodeBefore(), KEYS, 0.0)
    assert found == UpgradeEnd(0, "the driver pod is ready", "", "2.0.1")


def test_a_pod_of_a_person_belongs_to_no_rollout_and_keeps_image_account_and_namespace() -> None:
    args = '["reconcile-driver-state","--output","json","--log-format=json","--retry-wait","0"]'
    env = '[{"name":"DRIVER_PROFILE","value":"rebellions"},{"name":"LOG_FORMAT","value":"json"}]'
    manager = f'{{"name":"m","image":"manager:2","args":{args},"env":{env}}}'
    spec = f'"serviceAccountName":"driver","initContainers":[{manager}],"containers":[{{"image":"driver:2"}}]'
    newest = replace(REVISIONS[1], template=f'{{"spec":{{{spec}}}}}')
    made = pod_of_person(pod("a"), "look", newest, Task.PREFLIGHT, shows_plan="text")
    (container,) = made["spec"]["containers"]
    assert container["args"] == ["reconcile-driver-state", "--retry-wait", "0", "--dry-run", "--output", "text"]
    variables = {"DRIVER_PROFILE": "rebellions", "DRIVER_POD_LEAVES": "true", "LOG_FORMAT": "text"}
    assert {one["name"]: one["value"] for one in container["env"]} == variables
    shown = (container["image"], made["spec"]["serviceAccountName"], made["spec"]["nodeName"])
    assert shown == ("manager:2", "driver", "a")
    assert (made["metadata"]["namespace"], "ownerReferences" in made["metadata"]) == ("npu", False)
    clear = pod_of_person(pod("a"), "clear", newest, Task.CLEAR)
    assert clear["spec"]["containers"][0]["args"][-2:] == ["--clear-for", NEW]
    assert clear["metadata"]["labels"][TASK_LABEL] == "clear"
