"""The main job through the real command line, against a real API server and the real DaemonSet controller."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from driver_manager.domain.deadline import SAID_EVERY_S
from driver_manager.domain.wire import pointer
from tests.assurance.bench.reconcile import PEAK
from tests.support.control_plane.api import Api, Json
from tests.support.control_plane.kubelet import LAST_OUTCOME, NEVER, STATE, NodeFactory, Operands, OperandsFactory
from tests.support.control_plane.runner import (
    CORDON,
    JOURNAL,
    NEW,
    NEW_DIGEST,
    OLD,
    PREFIX,
    CommandRunner,
    assert_untouched,
    node_of,
    start_and_take,
)
from tests.support.control_plane.servers import NAMESPACE, AuditRecord, ControlPlane, User
from tests.support.fakes.pace import patient

COUNTED_OUT = ("events", "selfsubjectaccessreviews")
EXTRA_LABELS = {f"{PREFIX}vfio-manager": "false", f"{PREFIX}container-toolkit": "team-a", f"{PREFIX}driver": "true"}
LONG = "x" * 50

Build = Callable[..., CommandRunner]


@pytest.fixture
def command_runner(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> Build:
    """Builds a command runner whose node is on the API server with the host tree's boot id."""

    def build(
        user: User = agent_with_events, profile: str = "rebellions", labels: dict[str, str] | None = None
    ) -> CommandRunner:
        made = CommandRunner(control_plane, user, tmp_path, profile)
        made.node = node(EXTRA_LABELS if labels is None else labels, boot_id=made.tree.boot_id)
        return made

    return build


def _counted(records: list[AuditRecord]) -> list[str]:
    return [f"{record.verb} {record.resource}" for record in records if record.resource not in COUNTED_OUT]


def test_an_upgrade_ends_with_every_label_as_it_was_in_five_requests(
    command_runner: Build, operands: OperandsFactory, control_plane: ControlPlane, agent_with_events: User
) -> None:
    one = command_runner().with_upgrade()
    node = node_of(one)
    made = operands(node)
    node.set_labels({f"{PREFIX}{LONG[:10]}": LONG})
    labels = node.labels()
    mark = control_plane.audit_mark()

    ended = one.reconcile()

    assert ended.code == 0, ended.err
    assert_untouched(one, labels)
    assert (one.tree.driver_version, one.tree.digest) == (NEW, NEW_DIGEST)
    requests = _counted(control_plane.audit(agent_with_events.name, since=mark))
    assert requests == ["get nodes", "list pods", "patch nodes", "watch pods", "patch nodes"]
    deletions = node.kubelet.deletions()
    last_gone_s = max(deletion.asked_at_s or 0 for deletion in deletions)
    assert len(deletions) == 6
    assert ended.at_s - last_gone_s < patient(3.0)  # the figure itself is scripts/bench's
    made.wait_running()


def test_a_long_wait_says_who_is_left_and_how_long_yet_and_asks_nothing_for_it(
    command_runner: Build, operands: OperandsFactory, control_plane: ControlPlane, agent_with_events: User
) -> None:
    one = command_runner().with_upgrade()
    operands(node_of(one), ("device-plugin",), grace_s=60)
    node_of(one).kubelet.stop_after("device-plugin", SAID_EVERY_S + 2.0)
    mark = control_plane.audit_mark()
    ended = one.reconcile(POD_TERMINATION_TIMEOUT="10m")
    assert ended.code == 0, ended.err
    (said,) = [line for line in ended.err.splitlines() if "still waiting" in line]
    assert re.search(r"still waiting, at most 9 min more: 1 pod\(s\) still on the node: \S+/device-plugin", said)
    assert "terminating, its grace period of 60 s is running" in said
    requests = _counted(control_plane.audit(agent_with_events.name, since=mark))
    assert requests == ["get nodes", "list pods", "patch nodes", "watch pods", "patch nodes"]


LIBRARIES = r"(kubernetes|oauthlib|psutil|pydantic|pyudev|requests|tenacity|urllib3|websocket|yaml)"
MOST_MIB = 36.0


def test_an_upgrade_in_a_pod_imports_no_library_but_click(command_runner: Build, operands: OperandsFactory) -> None:
    one = command_runner().with_upgrade()
    operands(node_of(one), ("device-plugin",))
    one.is_forked = False
    ended = one.reconcile(PYTHONPROFILEIMPORTTIME="1")
    assert ended.code == 0, ended.err
    assert re.search(r"^import time: .* click$", ended.err, re.MULTILINE)
    assert not re.findall(rf"^import time: .* {LIBRARIES}$", ended.err, re.MULTILINE)


def test_an_upgrade_in_a_pod_has_at_most_36_mib(
    command_runner: Build, operands: OperandsFactory, tmp_path: Path
) -> None:
    one = command_runner().with_upgrade()
    operands(node_of(one))
    one.through = (sys.executable, "-I", "-S", str(PEAK), str(tmp_path / "peak"))
    assert one.reconcile().code == 0
    assert float((tmp_path / "peak").read_text()) <= MOST_MIB


def test_the_pause_is_one_patch_with_labels_cordon_and_journal(
    command_runner: Build, operands: OperandsFactory, control_plane: ControlPlane, agent_with_events: User
) -> None:
    one = command_runner().with_upgrade()
    operands(node_of(one), ("device-plugin",))
    mark = control_plane.audit_mark()
    assert one.reconcile().code == 0
    first, last = [r for r in control_plane.audit(agent_with_events.name, since=mark) if r.verb == "patch"]
    body: Json = first.body or {}
    assert body["metadata"]["labels"][f"{PREFIX}device-plugin"] == "paused-for-driver-upgrade"
    assert body["metadata"]["labels"][f"{PREFIX}container-toolkit"] == "team-a_paused-for-driver-upgrade"
    assert f"{PREFIX}vfio-manager" not in body["metadata"]["labels"]
    assert f"{PREFIX}driver" not in body["metadata"]["labels"]
    assert body["spec"]["unschedulable"] is True
    journal = json.loads(body["metadata"]["annotations"][JOURNAL])
    assert journal["labels"][f"{PREFIX}container-toolkit"] == "team-a"
    assert body["metadata"]["resourceVersion"]
    changes = {one["path"]: one for one in last.body or [] if one["op"] != "test"}
    removed = {path for path, one in changes.items() if one["op"] == "remove"}
    assert removed == {pointer("metadata", "annotations", key) for key in (JOURNAL, CORDON)} | {"/spec/unschedulable"}
    tested = {one["path"] for one in last.body or [] if one["op"] == "test"}
    outcome = pointer("metadata", "annotations", LAST_OUTCOME)
    assert tested > set(changes) - {outcome}, "nothing is replaced unseen"
    assert changes[outcome]["op"] == "add", "there was none"
    assert body["metadata"]["labels"][STATE] == "upgrading"
    assert changes[pointer("metadata", "labels", STATE)]["value"] == "ready"
    assert json.loads(changes[outcome]["value"])["version"] == NEW


def test_a_current_driver_costs_two_reads_and_changes_nothing(
    command_runner: Build, control_plane: ControlPlane, agent_with_events: User
) -> None:
    one = command_runner().with_upgrade()
    assert one.reconcile().code == 0
    version = node_of(one).read()["metadata"]["resourceVersion"]
    mark = control_plane.audit_mark()
    ended = one.reconcile()
    assert (ended.code, "nothing to do" in ended.last_line) == (0, True)
    assert [f"{r.verb} {r.resource}" for r in control_plane.audit(agent_with_events.name, since=mark)] == [
        "get nodes",
        "list pods",
    ]
    assert node_of(one).read()["metadata"]["resourceVersion"] == version


def test_plan_and_status_change_nothing(
    command_runner: Build, operands: OperandsFactory, control_plane: ControlPlane, agent_with_events: User
) -> None:
    one = command_runner().with_upgrade()
    operands(node_of(one), ("device-plugin",))
    mark = control_plane.audit_mark()
    planned = one.run("plan", "-o", "json")
    dry = one.reconcile("--dry-run", "-o", "json")
    status = one.run("status", "-o", "json")
    assert (planned.code, dry.code, status.code) == (0, 0, 0)
    steps = [step["step"] for step in json.loads(planned.out)["steps"]]
    assert steps[0] == "TakeNode"
    assert steps[-1] == "GiveBack"
    assert [step["step"] for step in json.loads(dry.out)["steps"]] == steps
    assert json.loads(status.out)["next"]["decision"] == "replace"
    verbs = {record.verb for record in control_plane.audit(agent_with_events.name, since=mark)}
    assert verbs == {"get", "list"}
    assert one.tree.driver_version == OLD


def test_a_laptop_sees_the_node_but_not_the_host(command_runner: Build, node: NodeFactory) -> None:
    one = command_runner().with_upgrade()
    one.node = node(EXTRA_LABELS)  # another machine's boot id
    status = one.run("status")
    assert status.code == 0, status.err
    assert "not on the node" in status.out
    refused = one.reconcile()
    assert (refused.code, "this is not node" in refused.err) == (2, True)
    assert one.tree.driver_version == OLD


def test_first_generation_rights_without_events_cost_one_warning(
    command_runner: Build, operands: OperandsFactory, agent: User
) -> None:
    one = command_runner(agent).with_upgrade()
    operands(node_of(one), ("device-plugin",))
    ended = one.reconcile()
    assert ended.code == 0, ended.err
    warnings = [line for line in ended.err.splitlines() if '"warning"' in line]
    assert len(warnings) == 1
    assert "no event was recorded" in warnings[0]


def test_the_outcome_is_an_event_on_the_node(command_runner: Build, admin_api: Api) -> None:
    one = command_runner().with_upgrade()
    assert one.reconcile().code == 0
    events = admin_api.list("/api/v1/namespaces/default/events")
    (event,) = [event for event in events if event["involvedObject"]["name"] == node_of(one).name]
    assert (event["reason"], event["type"]) == ("DriverReconciled", "Normal")
    assert NEW in event["message"]


def test_a_pod_that_stays_is_named_and_the_node_given_back(command_runner: Build, operands: OperandsFactory) -> None:
    one = command_runner().with_upgrade()
    node = node_of(one)
    made = operands(node)
    node.kubelet.stop_after("metrics-exporter", NEVER)
    labels = node.labels()
    ended = one.reconcile(POD_TERMINATION_TIMEOUT=f"{patient(2.0):.1f}s")  # the five others have to be gone by then
    assert ended.code == 3, ended.err
    pod = made.pods()["metrics-exporter"][0]["metadata"]["name"]
    assert f"{NAMESPACE}/{pod}" in ended.last_line
    assert "device-plugin" not in ended.last_line
    assert_untouched(one, labels, shows=("failed", 3))
    assert one.tree.driver_version == OLD


def test_a_busy_module_ends_with_exit_code_4_and_the_node_given_back(command_runner: Build) -> None:
    one = command_runner().with_upgrade()
    labels = node_of(one).labels()
    one.tree.hold_device()
    ended = one.reconcile(DEVICE_FREE_TIMEOUT="500ms")
    assert ended.code == 4, ended.err
    assert "rebellions (1 user(s))" in ended.last_line
    assert_untouched(one, labels, shows=("failed", 4))


def test_a_module_that_fails_is_rolled_back_with_exit_code_5(command_runner: Build) -> None:
    one = command_runner().with_upgrade()
    labels = node_of(one).labels()
    one.tree.add_driver("/opt/rbln/bad", "3.0.0", fails=True)
    ended = one.reconcile(DRIVER_ROOT="/opt/rbln/bad")
    assert ended.code == 5, ended.err
    assert f"the old driver {OLD} is loaded again" in ended.last_line
    assert_untouched(one, labels, shows=("failed", 5))
    assert (one.tree.driver_version, one.tree.digest) == (OLD, "digest-of-1.2.92")


def test_a_driver_for_another_kernel_is_refused_before_anything_changes(
    command_runner: Build, control_plane: ControlPlane, agent_with_events: User
) -> None:
    one = command_runner().with_upgrade()
    mark = control_plane.audit_mark()
    ended = one.reconcile(DRIVER_ROOT="/opt/rbln/none")
    assert (ended.code, "has no lib/modules" in ended.last_line) == (6, True)
    requests = _counted(control_plane.audit(agent_with_events.name, since=mark))
    third = "did another run take it meanwhile"
    assert requests == ["get nodes", "list pods", "get nodes", "patch nodes"], f"{third}; then the state is shown"
    assert node_of(one).shown() == ("failed", 6)
    assert one.tree.driver_version == OLD


def test_a_host_driver_is_left_alone_with_exit_code_10(command_runner: Build) -> None:
    one = command_runner()
    one.tree.add_driver("/", OLD)
    one.tree.load("/")
    ended = one.reconcile(DRIVER_LOAD="container")
    assert ended.code == 10, ended.err
    assert node_of(one).labels() == {**EXTRA_LABELS, f"{PREFIX}driver": "pre-installed"}
    assert node_of(one).shown() == ("ready", 10)
    assert one.tree.driver_version == OLD


def test_a_reboot_only_driver_is_never_unloaded_and_asks_with_exit_code_9(command_runner: Build) -> None:
    one = command_runner(profile="ascend", labels={"openfuyao.com/npu.present": "true"})
    one.tree.add_driver("/var/lib/Ascend/driver", "25.2.0")
    one.tree.load("/var/lib/Ascend/driver")
    one.tree.record("old", "/var/lib/Ascend/driver", "25.2.0")
    ended = one.reconcile("--no-wait", DRIVER_LOAD="container")
    assert ended.code == 9, ended.err
    assert one.tree.driver_version == "25.2.0"
    assert node_of(one).labels()["npu.openfuyao.com/reboot-required"] == "true"
    assert node_of(one).shown() == ("reboot-required", 9)
    marker = json.loads((one.tree.root / "var/lib/ascend/.reboot-required").read_text())
    assert (marker["schema"], marker["reason"], marker["bootId"]) == (1, "upgrade", one.tree.boot_id)


def test_a_second_run_is_refused_while_the_first_ones_pod_lives(
    command_runner: Build, operands: OperandsFactory
) -> None:
    one = command_runner().with_upgrade()
    node = node_of(one)
    made = operands(node, ("device-plugin", "driver"))
    node.kubelet.stop_after("device-plugin", NEVER)
    pod = made.pods()["driver"][0]["metadata"]["name"]
    first = start_and_take(one, POD_NAME=pod)
    second = one.reconcile()
    assert second.code == 11, second.err
    assert pod in second.last_line
    assert node.shown() == ("upgrading", None), "the first run's state"
    node.kubelet.release("device-plugin")
    assert first.end().code == 0


def test_a_killed_run_is_finished_by_the_next(command_runner: Build, operands: OperandsFactory) -> None:
    one = command_runner().with_upgrade()
    node = node_of(one)
    made = operands(node)
    labels = node.labels()
    node.kubelet.stop_after("device-plugin", NEVER)
    first = start_and_take(one)
    assert first.kill().code == -9
    assert node.labels() != labels
    node.kubelet.release("device-plugin")
    second = one.reconcile()
    assert second.code == 0, second.err
    assert_untouched(one, labels)
    assert one.tree.driver_version == NEW
    made.wait_running()


def test_a_terminated_run_gives_the_node_back(command_runner: Build, operands: OperandsFactory) -> None:
    one = command_runner().with_upgrade()
    node = node_of(one)
    operands(node)
    labels = node.labels()
    node.kubelet.stop_after("device-plugin", NEVER)
    run = start_and_take(one)
    ended = run.terminate()
    assert ended.code == 10, ended.err
    assert "SIGTERM" in ended.last_line
    assert_untouched(one, labels, shows=("failed", 10))


def test_edits_during_the_pause_win(command_runner: Build, operands: OperandsFactory) -> None:
    one = command_runner().with_upgrade()
    node = node_of(one)
    operands(node)
    labels = node.labels()
    node.kubelet.stop_after("device-plugin", NEVER)
    run = start_and_take(one)
    node.set_labels({f"{PREFIX}metrics-exporter": "false", f"{PREFIX}operator-validator": None, f"{PREFIX}new": "true"})
    node.kubelet.release("device-plugin")
    ended = run.end()
    assert ended.code == 0, ended.err
    wanted = {**labels, f"{PREFIX}metrics-exporter": "false", f"{PREFIX}new": "true"}
    del wanted[f"{PREFIX}operator-validator"]
    assert_untouched(one, wanted)


def test_an_administrators_cordon_survives(command_runner: Build) -> None:
    one = command_runner().with_upgrade()
    node = node_of(one)
    node.api.patch(node.path, {"spec": {"unschedulable": True}})
    assert one.reconcile().code == 0
    assert node.read()["spec"]["unschedulable"] is True
    assert CORDON not in node.annotations()


def test_a_node_deleted_meanwhile_ends_with_exit_code_2(command_runner: Build, operands: OperandsFactory) -> None:
    one = command_runner().with_upgrade()
    node = node_of(one)
    made = operands(node, ("device-plugin",))
    node.kubelet.stop_after("device-plugin", NEVER)
    run = start_and_take(one)
    node.api.delete(node.path)
    node.kubelet.release("device-plugin")
    made.wait_gone()
    ended = run.end()
    assert ended.code == 2, ended.err
    assert f"node {node.name} does not exist" in ended.last_line


def test_labels_that_another_manager_left_paused_are_decoded(command_runner: Build) -> None:
    paused = "paused-for-driver-upgrade"
    one = command_runner(
        labels={f"{PREFIX}device-plugin": paused, f"{PREFIX}container-toolkit": f"team-a_{paused}"}
    ).with_upgrade()
    ended = one.reconcile()
    assert ended.code == 0, ended.err
    assert_untouched(one, {f"{PREFIX}device-plugin": "true", f"{PREFIX}container-toolkit": "team-a"})


def test_what_failed_and_what_to_do_are_two_sentences_in_event_and_termination_message(command_runner: Build) -> None:
    one = command_runner().with_upgrade()
    one.tree.hold_device()
    ended = one.reconcile(DEVICE_FREE_TIMEOUT="0s")
    assert ended.code == 4, ended.err
    without = r"users were without [a-z ]+ for \d+\.\d s\b.*"
    said = re.compile(rf"the node was released; {without}\. Stop what uses the device")
    assert said.search(ended.last_line), ended.last_line
    node = node_of(one)
    events = node.api.list("/api/v1/namespaces/default/events")
    (event,) = [one for one in events if one["involvedObject"]["name"] == node.name]
    assert said.search(event["message"]), event["message"]


def test_restore_gives_a_node_back_by_hand(command_runner: Build, operands: OperandsFactory) -> None:
    one = command_runner().with_upgrade()
    node = node_of(one)
    made: Operands = operands(node)
    labels = node.labels()
    node.kubelet.stop_after("device-plugin", NEVER)
    run = start_and_take(one)
    refused = one.run("restore")
    assert refused.code == 11, refused.err
    run.kill()
    taken = node.read()
    dry = one.run("restore", "--dry-run", "-o", "json")
    assert json.loads(dry.out)["labels"][f"{PREFIX}container-toolkit"]["to"] == "team-a"
    assert node.read()["metadata"]["labels"] == taken["metadata"]["labels"]
    assert one.run("restore").code == 0
    assert_untouched(one, labels, shows=("failed", 0))
    node.kubelet.release("device-plugin")
    made.wait_running()
