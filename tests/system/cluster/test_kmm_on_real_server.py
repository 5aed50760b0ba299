"""A driver that KMM loads, on a real API server: the real command line, and a stand-in for KMM."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver_manager.domain.kmm import KmmModule
from driver_manager.sandbox.cluster import KmmWorkers
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.audit import AuditRecord
from tests.support.control_plane.kmm import Kmm
from tests.support.control_plane.kubelet import NodeFactory, OperandsFactory
from tests.support.control_plane.runner import (
    JOURNAL,
    NEW,
    NEW_ROOT,
    OLD,
    OLD_ROOT,
    CommandRunner,
    assert_untouched,
    node_of,
)
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.fakes.pace import ratio

MODULE = KmmModule("rbln-system", "rebellions", NEW)
ENV = {"DRIVER_LOAD": "kmm", "DRIVER_ROOT": "", "KMM_MODULE": str(MODULE), "KMM_VERSION": NEW}
ASKED, WORKERS, READY = MODULE.asked_key, MODULE.worker_key, MODULE.ready_key


@pytest.fixture
def one(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node whose old driver KMM has loaded."""
    made = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    made.node = node(dict.fromkeys((ASKED, WORKERS, READY), OLD), boot_id=made.tree.boot_id)
    return made


def kmm(one: CommandRunner) -> Kmm:
    return Kmm(node_of(one), KmmWorkers(one.tree, MODULE, {OLD: OLD_ROOT, NEW: NEW_ROOT}, OLD), journal=JOURNAL)


def _patches(records: list[AuditRecord]) -> list[str]:
    return [f"{record.verb} {record.resource}" for record in records if record.resource == "nodes"]


@pytest.mark.shares(6)
def test_kmm_changes_the_driver_of_a_cleared_node_and_the_node_is_released(
    one: CommandRunner, operands: OperandsFactory, control_plane: ControlPlane, agent_with_events: User
) -> None:
    made = operands(node_of(one))
    labels, mark = node_of(one).labels(), control_plane.audit_mark()
    with kmm(one) as stand_in:
        ended = one.reconcile(**ENV)
    assert ended.code == 0, ended.err
    assert one.tree.driver_version == NEW
    assert stand_in.wrong == []
    assert_untouched(one, {**labels, **dict.fromkeys((ASKED, WORKERS, READY), NEW)})
    made.wait_running()
    sent = _patches(control_plane.audit(agent_with_events.name, since=mark))
    assert sent.count("patch nodes") == 3, "taken, asked, released"
    assert "watch nodes" in sent
    again = one.reconcile(**ENV)
    assert (again.code, "nothing to do" in again.err) == (0, True), again.err


@pytest.mark.shares(6)
def test_a_kmm_that_hangs_is_named_and_the_node_is_held_until_it_goes_on(
    one: CommandRunner, operands: OperandsFactory
) -> None:
    operands(node_of(one))
    labels = node_of(one).labels()
    with kmm(one) as stand_in:
        stand_in.hang.set()
        slow_by = ratio()
        limits_s = {"POD_TERMINATION_TIMEOUT": 6, "DEVICE_FREE_TIMEOUT": 2, "RECONCILE_DEADLINE": 12}
        waits = {name: f"{limit_s * slow_by:.1f}s" for name, limit_s in limits_s.items()}
        ended = one.reconcile(**ENV, **waits)
        assert ended.code == 5, ended.err
        assert f"kmm-worker-{node_of(one).name}-rebellions" in ended.err
        assert "KMM is still changing the driver" in ended.err
        assert JOURNAL in node_of(one).annotations()
        shown = one.run("status", **ENV)
        assert f"kmm       {MODULE}, wanted: {NEW}, asked: {NEW}, workers: {OLD}, ready: {OLD}" in shown.out
        stand_in.hang.clear()
        wait_until(lambda: node_of(one).labels().get(READY) == NEW, "KMM has gone on")
        ended = one.reconcile(**ENV)
    assert ended.code == 0, ended.err
    assert stand_in.wrong == []
    assert_untouched(one, {**labels, **dict.fromkeys((ASKED, WORKERS, READY), NEW)})


@pytest.mark.parametrize("command", ["reconcile-driver-state", "plan", "status"])
def test_a_module_that_is_missing_is_refused_in_one_line(one: CommandRunner, command: str) -> None:
    ended = one.run(command, **{**ENV, "KMM_MODULE": ""})
    assert ended.code == 2
    assert "KMM_MODULE is ''" in ended.err
    assert "Traceback" not in ended.err
