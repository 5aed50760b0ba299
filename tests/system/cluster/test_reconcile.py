"""The main job through the real command line, on a real API server: runs, bad input, earlier journals, and the host.

The journals are those of `tests/unit/golden`: every form ever written.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from driver_manager.domain.node import FIELD_MANAGER
from driver_manager.domain.profile import RUN_RECORD
from driver_manager.domain.wire import pointer
from tests.assurance.bench.reconcile import PEAK
from tests.support.control_plane.api import MERGE_PATCH, Json, wait_until
from tests.support.control_plane.kubelet import LAST_OUTCOME, NEVER, NOTHING, STATE, VERSION, OperandsFactory, Shown
from tests.support.control_plane.processes import Ended
from tests.support.control_plane.runner import (
    CORDON,
    JOURNAL,
    NEW,
    NEW_DIGEST,
    OLD,
    PAUSED,
    PREFIX,
    CommandRunner,
    RunnerFactory,
    assert_untouched,
    start_and_take,
)
from tests.support.control_plane.servers import AuditRecord, ControlPlane
from tests.support.fakes.pace import patient

PLUGIN, TOOLKIT = f"{PREFIX}device-plugin", f"{PREFIX}container-toolkit"
BAD_INPUT_LABELS = {PLUGIN: PAUSED, f"{PREFIX}metrics-exporter": "true"}
ALL_LABELS = {f"{PREFIX}vfio-manager": "false", TOOLKIT: "team-a", f"{PREFIX}driver": "true"}
EVENTS = "/api/v1/namespaces/default/events"


def requests(records: list[AuditRecord]) -> list[str]:
    return [f"{record.verb} {record.resource}" for record in records if record.is_counted]


def event_of(one: CommandRunner) -> Json:
    """The Event about the runner's node, which is the only one."""
    node = one.node
    (event,) = [event for event in node.api.list(EVENTS) if event["involvedObject"]["name"] == node.name]
    return event


def test_an_upgrade_ends_with_every_label_as_it_was_in_few_requests(
    runner_for: RunnerFactory, operands: OperandsFactory, control_plane: ControlPlane
) -> None:
    one = runner_for({**ALL_LABELS, f"{PREFIX}long": "x" * 50})
    node = one.node
    made = operands(node)
    labels, mark = node.labels(), control_plane.audit_mark()

    ended = one.reconcile()

    assert ended.code == 0, ended.err
    assert_untouched(one, labels)
    assert (one.tree.driver_version, one.tree.digest) == (NEW, NEW_DIGEST)
    records = control_plane.audit(control_plane.agent_with_events.name, since=mark)
    looks = ["get nodes"] * 2  # at the labels, before each module is unloaded
    assert requests(records) == ["get nodes", "list pods", "patch nodes", "watch pods", *looks, "patch nodes"]
    deletions = node.kubelet.deletions()
    last_gone_s = max(deletion.asked_at_s or 0 for deletion in deletions)
    assert len(deletions) == 6
    assert ended.at_s - last_gone_s < patient(3.0)  # the figure itself is scripts/bench's
    made.wait_running()
    check_patches(*(record.body for record in records if record.verb == "patch" and record.is_counted))
    event = event_of(one)
    assert (event["reason"], event["type"], NEW in event["message"]) == ("DriverReconciled", "Normal", True)

    version, mark = node.read()["metadata"]["resourceVersion"], control_plane.audit_mark()
    again = one.reconcile()
    assert (again.code, "nothing to do" in again.last_line) == (0, True)
    records = control_plane.audit(control_plane.agent_with_events.name, since=mark)
    found = [str(one) for one in records]
    status = f"patch nodes/{node.name}/status 403"
    assert found == [f"get nodes/{node.name} 200", "list pods 200", status], "two reads; it may write no condition"
    assert node.read()["metadata"]["resourceVersion"] == version


def check_patches(pause: Json, release: list[Json]) -> None:
    """The pause is one patch with labels, cordon and journal; what gives back tests all that it replaces."""
    labels = pause["metadata"]["labels"]
    assert (labels[PLUGIN], labels[TOOLKIT], labels[STATE]) == (PAUSED, f"team-a_{PAUSED}", "upgrading")
    assert not {f"{PREFIX}vfio-manager", f"{PREFIX}driver"} & labels.keys()
    assert pause["spec"]["unschedulable"] is True
    assert json.loads(pause["metadata"]["annotations"][JOURNAL])["labels"][TOOLKIT] == "team-a"
    assert pause["metadata"]["resourceVersion"]
    changes = {one["path"]: one for one in release if one["op"] != "test"}
    removed = {path for path, one in changes.items() if one["op"] == "remove"}
    assert removed == {pointer("metadata", "annotations", key) for key in (JOURNAL, CORDON)} | {"/spec/unschedulable"}
    tested = {one["path"] for one in release if one["op"] == "test"}
    outcome = pointer("metadata", "annotations", LAST_OUTCOME)
    version = pointer("metadata", "labels", VERSION)
    assert tested > set(changes) - {outcome, version}, "nothing is replaced unseen"
    assert changes[outcome]["op"] == "add", "there was none"
    assert changes[pointer("metadata", "labels", STATE)]["value"] == "ready"
    assert changes[version]["value"] == NEW
    assert json.loads(changes[outcome]["value"])["version"] == NEW


def test_an_upgrade_in_a_pod_has_at_most_36_mib(
    runner_for: RunnerFactory, operands: OperandsFactory, tmp_path: Path
) -> None:
    one = runner_for(ALL_LABELS)
    operands(one.node)
    one.through = (sys.executable, "-I", "-S", str(PEAK), str(tmp_path / "peak"))
    assert one.reconcile().code == 0
    assert float((tmp_path / "peak").read_text()) <= 36.0


def test_plan_and_status_change_nothing(
    runner_for: RunnerFactory, operands: OperandsFactory, control_plane: ControlPlane
) -> None:
    one = runner_for(ALL_LABELS)
    operands(one.node, ("device-plugin",))
    mark = control_plane.audit_mark()
    planned = one.run("plan", "-o", "json")
    dry = one.reconcile("--dry-run", "-o", "json")
    status = one.run("status", "-o", "json")
    assert (planned.code, dry.code, status.code) == (0, 0, 0)
    steps = [step["step"] for step in json.loads(planned.out)["steps"]]
    assert (steps[0], steps[-1]) == ("TakeNode", "GiveBack")
    assert [step["step"] for step in json.loads(dry.out)["steps"]] == steps
    assert json.loads(status.out)["next"]["decision"] == "replace"
    audit = control_plane.audit(control_plane.agent_with_events.name, since=mark)
    assert {record.verb for record in audit if record.is_counted} == {"get", "list"}
    assert one.tree.driver_version == OLD


def test_a_driver_for_another_kernel_is_refused_before_anything_changes(
    runner_for: RunnerFactory, control_plane: ControlPlane
) -> None:
    one, mark = runner_for(ALL_LABELS), control_plane.audit_mark()
    ended = one.reconcile(DRIVER_ROOT="/opt/rbln/none")
    assert (ended.code, "has no lib/modules" in ended.last_line) == (6, True)
    found = requests(control_plane.audit(control_plane.agent_with_events.name, since=mark))
    third = "did another run take it meanwhile"
    assert found == ["get nodes", "list pods", "get nodes", "patch nodes"], f"{third}; then the state is shown"
    assert one.node.shown() == ("failed", 6)
    assert one.tree.driver_version == OLD


def test_missing_rights_are_found_before_anything_changes(
    runner_for: RunnerFactory, control_plane: ControlPlane
) -> None:
    one, reader = runner_for({PLUGIN: "true"}), str(control_plane.kubeconfig(control_plane.reader.token))
    ended = one.reconcile(KUBECONFIG=reader)
    assert (ended.code, "may not patch nodes" in ended.last_line) == (6, True), ended.err
    assert (one.node.labels(), one.tree.driver_version) == ({PLUGIN: "true"}, OLD)
    checked = one.run("preflight", "-o", "text", KUBECONFIG=reader)
    assert checked.code == 6
    assert "✗ may patch nodes" in checked.out
    assert "? may watch pods" in checked.out


def test_what_failed_and_what_to_do_are_two_sentences_in_event_and_termination_message(
    runner_for: RunnerFactory,
) -> None:
    one = runner_for(ALL_LABELS)
    one.hold_unread()
    ended = one.reconcile(DEVICE_FREE_TIMEOUT="0s")
    assert ended.code == 4, ended.err
    without = r"users were without [a-z ]+ for \d+\.\d s\b.*"
    sentences = re.compile(rf"the node was released; {without}\. Stop what uses the device")
    for text in (ended.last_line, event_of(one)["message"]):
        assert sentences.search(text), text
    assert_untouched(one, ALL_LABELS, shows=("failed", 4))


def test_restore_gives_a_node_back_by_hand(runner_for: RunnerFactory, operands: OperandsFactory) -> None:
    one = runner_for(ALL_LABELS)
    node = one.node
    made = operands(node)
    labels = node.labels()
    node.kubelet.stop_after("device-plugin", NEVER)
    run = start_and_take(one)
    refused = one.run("restore")
    assert refused.code == 11, refused.err
    run.kill()
    taken = node.labels()
    dry = one.run("restore", "--dry-run", "-o", "json")
    assert json.loads(dry.out)["labels"][TOOLKIT]["to"] == "team-a"
    assert node.labels() == taken
    assert one.run("restore").code == 0
    assert_untouched(one, labels, shows=("failed", 0))
    node.kubelet.release("device-plugin")
    made.wait_running()


# bad input


def check_lost_nothing(one: CommandRunner, ended: Ended, word: str, shows: Shown = NOTHING) -> None:
    assert ended.code == 2, ended.err
    assert "Traceback" not in ended.err
    assert word in ended.err
    assert "what to do: " in ended.err
    assert len([line for line in ended.err.splitlines() if "error" in line]) <= 2
    assert ended.last_line.startswith("exit 2: ")
    assert one.node.labels() == BAD_INPUT_LABELS
    assert one.node.shown() == shows
    assert one.tree.driver_version == OLD


UNSHOWN_BAD: tuple[tuple[dict[str, str], str], ...] = (
    ({"NODE_NAME": "no-such-node"}, "no-such-node does not exist"),
    ({"NODE_NAME": "../pods"}, "not the name of a node"),
    ({"NODE_NAME": ""}, "the name of the node is not set"),
    ({"KUBECONFIG": "/nonexistent/kubeconfig"}, "cannot connect to the cluster"),
    ({"POD_TERMINATION_TIMEOUT": "5 parsecs"}, "5 parsecs"),
    ({"DRIVER_PROFILE": "cray"}, "no profile 'cray'"),
    ({"PROFILE_FILE": "/nonexistent.toml"}, "cannot be read"),
    ({"PROC_ROOT": "/nonexistent"}, "cannot read /nonexistent/sys/kernel"),
)
"""Settings with which the run does not know that the Node is this host's, each with a part of the message."""

SHOWN_BAD: tuple[tuple[dict[str, str], str], ...] = (
    ({"POD_NAME": "rbln-driver-abcde", "OPERATOR_NAMESPACE": "wrong"}, "wrong/rbln-driver-abcde is not on node"),
    ({"SYS_ROOT": "/nonexistent"}, "cannot read /nonexistent/module"),
    ({"DRIVER_CONFIG_DIGEST": ""}, "the wanted driver is unknown"),
)
"""Settings that are found wrong after the Node was read."""


def test_bad_settings_are_exit_code_2(runner_for: RunnerFactory) -> None:
    one = runner_for(BAD_INPUT_LABELS)
    for env, word in UNSHOWN_BAD:
        check_lost_nothing(one, one.reconcile(**env), word)
    for env, word in SHOWN_BAD:
        check_lost_nothing(one, one.reconcile(**env), word, ("failed", 2))


@pytest.mark.shares(6)
@pytest.mark.parametrize(("journal", "word"), [("not json", "cannot be read"), ('{"v":99}', "version 99")])
def test_an_unreadable_journal_stops_the_run_and_stays(runner_for: RunnerFactory, journal: str, word: str) -> None:
    one = runner_for(BAD_INPUT_LABELS)
    node = one.node
    node.api.patch(node.path, {"metadata": {"annotations": {JOURNAL: journal}}})
    check_lost_nothing(one, one.reconcile(), word, ("held", 2))
    assert node.annotations()[JOURNAL] == journal
    status = one.run("status")
    assert (status.code, "unreadable" in status.out) == (0, True), status.err
    assert status.out.startswith("held since ")
    assert one.run("restore").code == 2
    restored = one.run("restore", "--ignore-journal")
    assert restored.code == 0, restored.err
    assert node.labels() == {**BAD_INPUT_LABELS, PLUGIN: "true"}
    assert node.shown() == ("failed", 0), "who took it did not finish"
    assert JOURNAL not in node.annotations()


# earlier journals


GOLDEN = sorted((Path(__file__).parents[2] / "unit/golden").glob("journal-v*.json"))
JOURNAL_LABELS = {PLUGIN: "true", f"{PREFIX}custom": "gold"}
"""What the node's labels are while no run has it."""


def taken(runner: CommandRunner, path: Path) -> dict[str, str]:
    """Make the Node as the version that wrote the journal left it in this boot; its labels before."""
    node = runner.node
    journal: Json = json.loads(path.read_text())
    node.set_labels(journal["labels"])
    before = node.labels()
    journal["bootId"] = runner.tree.boot_id
    if "nodeUid" in journal:
        journal["nodeUid"] = node.read()["metadata"]["uid"]
    labels = {key: PAUSED if value == "true" else f"{value}_{PAUSED}" for key, value in journal["labels"].items()}
    notes = {JOURNAL: json.dumps(journal), **({CORDON: "true"} if journal["cordoned"] else {})}
    spec = {"spec": {"unschedulable": True}} if journal["cordoned"] else {}
    body = {"metadata": {"labels": labels, "annotations": notes}, **spec}
    node.api.request("PATCH", node.path, body, params={"fieldManager": FIELD_MANAGER}, content_type=MERGE_PATCH)
    return before


@pytest.mark.shares(6)
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_run_goes_on_from_every_journal_ever_written(
    runner_for: RunnerFactory, operands: OperandsFactory, path: Path
) -> None:
    one = runner_for(JOURNAL_LABELS)
    operands(one.node, ("device-plugin",))
    labels = taken(one, path)
    ended = one.reconcile()
    assert ended.code == 0, ended.err
    assert (one.tree.driver_version, one.tree.digest) == (NEW, NEW_DIGEST)
    assert_untouched(one, labels)


def test_restore_gives_back_what_every_journal_ever_written_names(runner_for: RunnerFactory) -> None:
    one = runner_for(JOURNAL_LABELS)
    for path in GOLDEN:
        labels = taken(one, path)
        assert JOURNAL in one.node.annotations()
        ended = one.run("restore")
        assert ended.code == 0, f"{path.stem}: {ended.err}"
        assert one.tree.driver_version == OLD
        assert_untouched(one, labels, shows=one.node.shown())


# services of the host


SERVICE = "rbln_daemon.service"


@pytest.fixture
def serving(runner_for: RunnerFactory) -> CommandRunner:
    """A node with the vendor's host service and a foreign one running."""
    one = runner_for({PLUGIN: "true"})
    one.tree.start_service(SERVICE)
    one.tree.start_service("sshd.service")
    return one


def test_a_host_service_is_stopped_for_the_swap_and_runs_after_it_and_after_a_failure(serving: CommandRunner) -> None:
    tree = serving.tree
    serving.hold_unread()
    failed = serving.reconcile("--stop-host-services", "-o", "json", DEVICE_FREE_TIMEOUT="0s")
    body = json.loads(failed.out)
    assert (body["exitCode"], "error" in body, "remedy" in body) == (4, True, True)
    assert (tree.services, tree.driver_version) == ([SERVICE, "sshd.service"], OLD)
    (tree.root / "sys/module/rebellions/refcnt").write_text("0\n")
    ended = serving.reconcile("--stop-host-services", RETRY_WAIT="0s")
    assert ended.code == 0, ended.err
    order = [
        ended.err.index(text) for text in (f"stop host service(s) {SERVICE}", "is unloaded", f"{SERVICE} is started")
    ]
    assert order == sorted(order)
    assert (tree.services, tree.driver_version) == ([SERVICE, "sshd.service"], NEW)


@pytest.mark.parametrize("by_hand", [False, True], ids=["the next run", "restore"])
def test_a_killed_runs_service_is_started_on_its_host_and_from_no_other_machine(
    serving: CommandRunner, by_hand: bool
) -> None:
    tree, node = serving.tree, serving.node
    serving.hold_unread()
    run = serving.start("reconcile-driver-state", "--stop-host-services")
    wait_until(lambda: tree.services == ["sshd.service"], "the service is stopped")
    run.kill()
    assert SERVICE not in node.annotations().get(JOURNAL, "")
    (record,) = tree.root.rglob(f"{RUN_RECORD}*")
    assert (SERVICE in record.read_text(), record.stat().st_mode & 0o777) == (True, 0o600)
    if by_hand:
        boot_id = tree.root / "proc/sys/kernel/random/boot_id"
        here = boot_id.read_text()
        boot_id.write_text("another machine\n")
        dry = serving.run("restore", "--take-over", "--dry-run")
        assert "a record on the host names what else is to be undone" in dry.out
        refused = serving.run("restore", "--take-over")
        assert (refused.code, "Run restore on the node" in refused.err) == (2, True), refused.err
        assert record.exists()
        boot_id.write_text(here)
    again = serving.run("restore") if by_hand else serving.reconcile(DEVICE_FREE_TIMEOUT="0s")
    assert again.code == (0 if by_hand else 4), again.err
    assert tree.services == [SERVICE, "sshd.service"]
    assert (JOURNAL in node.annotations(), list(tree.root.rglob(f"{RUN_RECORD}*"))) == (False, [])
