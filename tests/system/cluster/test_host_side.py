"""What belongs to the host, through the real command line: services, preflight, holders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driver_manager.domain.profile import RUN_RECORD
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.kubelet import NodeFactory
from tests.support.control_plane.runner import JOURNAL, NEW, OLD, PREFIX, CommandRunner
from tests.support.control_plane.servers import ControlPlane, User

SERVICE = "rbln_daemon.service"
LABELS = {f"{PREFIX}device-plugin": "true"}


@pytest.fixture
def one(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node ready for an upgrade, with the vendor's host service and a foreign one running."""
    command_runner = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    command_runner.node = node(LABELS, boot_id=command_runner.tree.boot_id)
    command_runner.tree.start_service(SERVICE)
    command_runner.tree.start_service("sshd.service")
    return command_runner


def _journal(command_runner: CommandRunner) -> str:
    assert command_runner.node is not None
    return command_runner.node.annotations().get(JOURNAL, "")


def _records(command_runner: CommandRunner) -> list[Path]:
    """What runs have left to undo on the host."""
    return list(command_runner.tree.root.rglob(f"{RUN_RECORD}*"))


def test_a_host_service_is_left_alone_unless_asked(one: CommandRunner) -> None:
    ended = one.reconcile()
    assert ended.code == 0, ended.err
    assert "rbln_daemon" not in ended.err
    assert one.tree.services == [SERVICE, "sshd.service"]


def test_a_host_service_is_stopped_for_the_swap_and_runs_after_it(one: CommandRunner) -> None:
    ended = one.reconcile("--stop-host-services")
    assert ended.code == 0, ended.err
    order = [
        ended.err.index(text) for text in (f"stop host service(s) {SERVICE}", "is unloaded", f"{SERVICE} is started")
    ]
    assert order == sorted(order)
    assert one.tree.services == [SERVICE, "sshd.service"]
    assert one.tree.driver_version == NEW


def test_a_host_service_runs_again_after_a_failure(one: CommandRunner) -> None:
    one.tree.hold_device()
    assert one.reconcile("--stop-host-services", DEVICE_FREE_TIMEOUT="0s").code == 4
    assert one.tree.services == [SERVICE, "sshd.service"]


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
    assert one.node.labels() == LABELS
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


def test_a_failed_run_says_so_in_json(one: CommandRunner) -> None:
    one.tree.hold_device()
    failed = one.reconcile("-o", "json", DEVICE_FREE_TIMEOUT="0s")
    body = json.loads(failed.out)
    assert (body["exitCode"], "error" in body, "remedy" in body) == (4, True, True)
    wrong = one.run("plan", "-o", "json", NODE_NAME="no-such-node")
    assert json.loads(wrong.out)["exitCode"] == 2
