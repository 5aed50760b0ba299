"""The main job through the real command line, on a real API server: runs, bad input, earlier journals, and the host.

The journals are those of `tests/unit/golden`: every form ever written.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driver_manager.domain.deadline import SAID_EVERY_S
from driver_manager.domain.node import FIELD_MANAGER
from driver_manager.domain.profile import RUN_RECORD
from driver_manager.domain.wire import pointer
from tests.assurance.bench.reconcile import PEAK
from tests.support.control_plane.api import MERGE_PATCH, Json, wait_until
from tests.support.control_plane.kubelet import (
    LAST_OUTCOME,
    NEVER,
    NOTHING,
    STATE,
    NodeFactory,
    Operands,
    OperandsFactory,
    Shown,
)
from tests.support.control_plane.processes import Ended
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

BAD_INPUT_LABELS = {f"{PREFIX}device-plugin": "paused-for-driver-upgrade", f"{PREFIX}metrics-exporter": "true"}


@pytest.fixture
def case(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node with the old driver, ready for an upgrade."""
    command_runner = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    command_runner.node = node(BAD_INPUT_LABELS, boot_id=command_runner.tree.boot_id)
    return command_runner


def _assert_lost_nothing(
    command_runner: CommandRunner, ended: Ended, code: int, *words: str, shows: Shown = NOTHING
) -> None:
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err
    for word in words:
        assert word in ended.err
    assert "what to do: " in ended.err
    assert len([line for line in ended.err.splitlines() if "error" in line]) <= 2
    assert ended.last_line.startswith(f"exit {code}: ")
    assert command_runner.node is not None
    assert command_runner.node.labels() == BAD_INPUT_LABELS
    assert command_runner.node.shown() == shows
    assert command_runner.tree.driver_version == OLD


UNSHOWN_BAD: tuple[tuple[dict[str, str], str], ...] = (
    ({"NODE_NAME": "no-such-node"}, "no-such-node does not exist"),
    ({"NODE_NAME": "../pods"}, "not the name of a node"),
    ({"NODE_NAME": ""}, "the name of the node is not set"),
    ({"KUBECONFIG": "/nonexistent/kubeconfig"}, "cannot connect to the cluster"),
    ({"POD_TERMINATION_TIMEOUT": "5 parsecs"}, "5 parsecs"),
    ({"DRIVER_PROFILE": "cray"}, "no profile 'cray'"),
    ({"DRIVER_LOAD": "nobody"}, "nobody"),
    ({"FORCE_REINSTALL": "perhaps"}, "perhaps"),
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

BAD_PROFILES = (
    ('name = "x"\nflavour = "sweet"\n', "unknown key flavour"),
    ('name = "x"\nstrategy = "hope"\n', "strategy is 'hope'"),
    ("name = [", "is not TOML"),
)


def test_bad_settings_and_profiles_are_exit_code_2(case: CommandRunner, tmp_path: Path) -> None:
    for env, word in UNSHOWN_BAD:
        _assert_lost_nothing(case, case.reconcile(**env), 2, word)
    path = tmp_path / "own.toml"
    for text, word in BAD_PROFILES:
        path.write_text(text)
        _assert_lost_nothing(case, case.reconcile(PROFILE_FILE=str(path)), 2, word)
    for env, word in SHOWN_BAD:
        _assert_lost_nothing(case, case.reconcile(**env), 2, word, shows=("failed", 2))


@pytest.mark.shares(6)
@pytest.mark.parametrize(
    ("journal", "words"),
    [
        ("not json", ["cannot be read"]),
        ('{"v":99}', ["version 99"]),
        ('{"v":1,"owner":{},"labels":[],"bootId":"","cordoned":false}', ["cannot be read"]),
        ('{"v":1,"bootId":3}', ["cannot be read"]),
    ],
)
def test_an_unreadable_journal_stops_the_run_and_stays(case: CommandRunner, journal: str, words: list[str]) -> None:
    assert case.node is not None
    case.node.api.patch(case.node.path, {"metadata": {"annotations": {JOURNAL: journal}}})
    _assert_lost_nothing(case, case.reconcile(), 2, *words, shows=("held", 2))
    assert case.node.annotations()[JOURNAL] == journal
    status = case.run("status")
    assert status.code == 0, status.err
    assert "unreadable" in status.out
    assert status.out.startswith("held since ")
    assert case.run("restore").code == 2
    restored = case.run("restore", "--ignore-journal")
    assert restored.code == 0, restored.err
    assert case.node.labels() == {**BAD_INPUT_LABELS, f"{PREFIX}device-plugin": "true"}
    assert case.node.shown() == ("failed", 0), "who took it did not finish"
    assert JOURNAL not in case.node.annotations()


def test_an_account_without_rights_and_an_unknown_token_are_refused(
    control_plane: ControlPlane, case: CommandRunner
) -> None:
    for token, word in ((control_plane.nobody.token, "refused to get nodes (403)"), ("wrong", "(401)")):
        kubeconfig = str(control_plane.kubeconfig(token))
        _assert_lost_nothing(case, case.reconcile(KUBECONFIG=kubeconfig), 7, word)


def test_a_dead_api_server_is_unavailable_after_the_budget(
    control_plane: ControlPlane, agent_with_events: User, case: CommandRunner
) -> None:
    dead = str(control_plane.kubeconfig(agent_with_events.token, server="https://127.0.0.1:9"))
    ended = case.reconcile(KUBECONFIG=dead, API_TIMEOUT="1s")
    _assert_lost_nothing(case, ended, 8, "gave no usable answer within 1 s")
    assert ended.took_s < patient(5.0)


def test_garbage_in_the_digest_file_means_replace_not_crash(case: CommandRunner) -> None:
    for garbage in (b"\xff\xfe\x00", b"", b"two words", b"x" * 100_000, b"a\nb\n"):
        (case.tree.root / "run/rbln/rbln-driver.state").write_bytes(garbage)
        planned = case.run("plan")
        assert planned.code == 0, planned.err
        assert "does not contain exactly one digest" in planned.out


GOLDEN = sorted((Path(__file__).parents[2] / "unit/golden").glob("journal-v*.json"))
PAUSED = "paused-for-driver-upgrade"
JOURNAL_LABELS = {f"{PREFIX}device-plugin": "true", f"{PREFIX}custom": "gold"}
"""What the node's labels are while no run has it."""


def taken(runner: CommandRunner, path: Path) -> dict[str, str]:
    """Make the Node as the version that wrote the journal left it in this boot; its labels before."""
    node = node_of(runner)
    journal: dict[str, Any] = json.loads(path.read_text())
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


@pytest.fixture
def runner(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    made = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    made.node = node(JOURNAL_LABELS, boot_id=made.tree.boot_id)
    return made


@pytest.mark.shares(6)
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_run_goes_on_from_every_journal_ever_written(
    runner: CommandRunner, operands: OperandsFactory, path: Path
) -> None:
    node = node_of(runner)
    operands(node, ("device-plugin",))
    labels = taken(runner, path)
    ended = runner.reconcile()
    assert ended.code == 0, ended.err
    assert (runner.tree.driver_version, runner.tree.digest) == (NEW, NEW_DIGEST)
    assert_untouched(runner, labels)


def test_restore_gives_back_what_every_journal_ever_written_names(runner: CommandRunner) -> None:
    node = node_of(runner)
    for path in GOLDEN:
        labels = taken(runner, path)
        assert JOURNAL in node.annotations()
        ended = runner.run("restore")
        assert ended.code == 0, f"{path.stem}: {ended.err}"
        assert runner.tree.driver_version == OLD
        assert node.labels() == labels, path.stem
        assert not {JOURNAL, CORDON} & node.annotations().keys(), path.stem
        assert "unschedulable" not in node.read()["spec"], path.stem


SERVICE = "rbln_daemon.service"
HOST_LABELS = {f"{PREFIX}device-plugin": "true"}


@pytest.fixture
def one(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node ready for an upgrade, with the vendor's host service and a foreign one running."""
    command_runner = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    command_runner.node = node(HOST_LABELS, boot_id=command_runner.tree.boot_id)
    command_runner.tree.start_service(SERVICE)
    command_runner.tree.start_service("sshd.service")
    return command_runner


def _journal(command_runner: CommandRunner) -> str:
    assert command_runner.node is not None
    return command_runner.node.annotations().get(JOURNAL, "")


def _records(command_runner: CommandRunner) -> list[Path]:
    return list(command_runner.tree.root.rglob(f"{RUN_RECORD}*"))


def test_a_host_service_is_left_alone_unless_asked(one: CommandRunner) -> None:
    ended = one.reconcile()
    assert ended.code == 0, ended.err
    assert "rbln_daemon" not in ended.err
    assert one.tree.services == [SERVICE, "sshd.service"]


def test_a_host_service_is_stopped_for_the_swap_and_runs_after_it_and_after_a_failure(one: CommandRunner) -> None:
    version = one.tree.driver_version
    one.tree.hold_device()
    failed = one.reconcile("--stop-host-services", "-o", "json", DEVICE_FREE_TIMEOUT="0s")
    body = json.loads(failed.out)
    assert (body["exitCode"], "error" in body, "remedy" in body) == (4, True, True)
    assert (one.tree.services, one.tree.driver_version) == ([SERVICE, "sshd.service"], version)
    (one.tree.root / "sys/module/rebellions/refcnt").write_text("0\n")
    ended = one.reconcile("--stop-host-services", RETRY_WAIT="0s")
    assert ended.code == 0, ended.err
    order = [
        ended.err.index(text) for text in (f"stop host service(s) {SERVICE}", "is unloaded", f"{SERVICE} is started")
    ]
    assert order == sorted(order)
    assert one.tree.services == [SERVICE, "sshd.service"]
    assert one.tree.driver_version == NEW


def test_a_killed_runs_service_is_started_by_the_next(one: CommandRunner) -> None:
    one.tree.hold_device()
    run = one.start("reconcile-driver-state", "--stop-host-services")
    wait_until(lambda: one.tree.services == ["sshd.service"], "the service is stopped")
    run.kill()
    assert SERVICE not in _journal(one)
    (record,) = _records(one)
    assert (SERVICE in record.read_text(), record.stat().st_mode & 0o777) == (True, 0o600)
    again = one.reconcile(DEVICE_FREE_TIMEOUT="0s")
    assert again.code == 4, again.err
    assert one.tree.services == [SERVICE, "sshd.service"]
    assert (_journal(one), _records(one)) == ("", [])


def test_missing_rights_are_found_before_anything_changes(control_plane: ControlPlane, one: CommandRunner) -> None:
    reader = str(control_plane.kubeconfig(control_plane.reader.token))
    ended = one.reconcile(KUBECONFIG=reader)
    assert ended.code == 6, ended.err
    assert "may not patch nodes" in ended.last_line
    assert one.node is not None
    assert one.node.labels() == HOST_LABELS
    assert one.tree.driver_version == OLD
    checked = one.run("preflight", "-o", "text", KUBECONFIG=reader)
    assert checked.code == 6
    assert "✗ may patch nodes" in checked.out
    assert "? may watch pods" in checked.out


def test_preflight_says_what_stops_a_run_and_what_to_do(one: CommandRunner) -> None:
    good = one.run("preflight", "-o", "json")
    assert good.code == 0, good.err
    assert all(check["ok"] is not False for check in json.loads(good.out)["checks"])
    bad = one.run("preflight", "-o", "text", DRIVER_ROOT="/nonexistent", RECONCILE_DEADLINE="1s")
    assert bad.code == 6
    assert bad.out.count("✗") == 2
    assert bad.out.count("what to do: ") == 2


def test_enforced_signatures_stop_an_unsigned_driver(one: CommandRunner) -> None:
    switch = one.tree.root / "sys/module/module/parameters/sig_enforce"
    switch.parent.mkdir(parents=True)
    switch.write_text("Y\n")
    ended = one.reconcile()
    assert ended.code == 6, ended.err
    assert "enforces signatures and rebellions is not signed" in ended.last_line
    assert _journal(one) == ""


def test_a_foreign_module_above_the_driver_stops_the_run(one: CommandRunner) -> None:
    foreign = one.tree.root / "sys/module/thirdparty_peer"
    (foreign / "holders").mkdir(parents=True)
    (foreign / "initstate").write_text("live\n")
    (foreign / "refcnt").write_text("0\n")
    (one.tree.root / "sys/module/rebellions/holders/thirdparty_peer").touch()
    ended = one.reconcile()
    assert ended.code == 6, ended.err
    assert "thirdparty_peer" in ended.last_line
    assert one.tree.driver_version == OLD


def test_a_driver_root_that_leads_to_the_hosts_own_folders_is_refused(one: CommandRunner) -> None:
    root = one.tree.root / "run/rbln/driver"
    root.rename(root.with_name("real"))
    root.symlink_to("/")
    ended = one.reconcile(DRIVER_ROOT="/run/rbln/real")
    assert ended.code == 2, ended.err
    assert "resolves to the system directory /" in ended.last_line
    assert one.tree.driver_version == OLD


def test_holders_lists_who_has_the_device_open(one: CommandRunner) -> None:
    process = one.tree.root / "proc/4242"
    (process / "fd").mkdir(parents=True)
    (process / "fd/3").symlink_to("/dev/rbln0")
    (process / "stat").write_text("4242 (trainer) S 1 " + "0 " * 40 + "\n")
    (process / "status").write_text("Name:\ttrainer\n")
    (process / "cgroup").write_text(f"0::/kubepods/burstable/pod{'1' * 8}-2222-3333-4444-{'5' * 12}/{'c' * 64}\n")
    listed = one.run("holders", "-o", "json")
    assert listed.code == 0, listed.err
    (holder,) = json.loads(listed.out)["holders"]
    assert (holder["pid"], holder["process"], holder["node"], holder["how"]) == (4242, "trainer", "/dev/rbln0", "open")
    one.tree.hold_device()
    busy = one.reconcile(DEVICE_FREE_TIMEOUT="0s")
    assert busy.code == 4
    assert "trainer (pid 4242)" in busy.last_line


def test_a_node_whose_services_were_stopped_is_not_given_back_from_another_machine(
    one: CommandRunner, tmp_path: Path
) -> None:
    one.tree.hold_device()
    run = one.start("reconcile-driver-state", "--stop-host-services")
    wait_until(lambda: one.tree.services == ["sshd.service"], "the service is stopped")
    run.kill()
    boot_id = one.tree.root / "proc/sys/kernel/random/boot_id"
    here = boot_id.read_text()
    boot_id.write_text("another machine\n")
    dry = one.run("restore", "--take-over", "--dry-run")
    assert "a record on the host names what else is to be undone" in dry.out
    refused = one.run("restore", "--take-over")
    assert refused.code == 2, refused.err
    assert "Run restore on the node" in refused.err
    assert len(_records(one)) == 1
    boot_id.write_text(here)
    given = one.run("restore")
    assert given.code == 0, given.err
    assert (one.tree.services, _journal(one)) == ([SERVICE, "sshd.service"], "")


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


@pytest.mark.shares(6)
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


def test_a_run_posts_one_event_and_a_current_driver_costs_two_reads_and_changes_nothing(
    command_runner: Build, control_plane: ControlPlane, agent_with_events: User
) -> None:
    one = command_runner().with_upgrade()
    assert one.reconcile().code == 0
    events = node_of(one).api.list("/api/v1/namespaces/default/events")
    (event,) = [event for event in events if event["involvedObject"]["name"] == node_of(one).name]
    assert (event["reason"], event["type"], NEW in event["message"]) == ("DriverReconciled", "Normal", True)
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
