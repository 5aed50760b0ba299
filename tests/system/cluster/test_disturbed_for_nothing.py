"""A run that cannot succeed disturbs nobody, and one that failed waits: the real command, a real API server."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from driver_manager.profiles import builtin
from tests.support.control_plane.api import Json, wait_until
from tests.support.control_plane.kubelet import NodeFactory, Operands, OperandsFactory, of_others
from tests.support.control_plane.processes import Command
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import JOURNAL, NEW, OLD, PREFIX, CommandRunner, assert_untouched, node_of
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.control_plane.workloads import Pod, Shape, WorkloadsFactory

EVICTS = {"ENABLE_NPU_POD_EVICTION": "true"}
COMPONENTS = ("device-plugin", "metrics-exporter")
NOTE = builtin()["rebellions"].paths.failure_note
WAIT = "wait until "
SOON_S = 150.0
"""More than a look at the Node is away, on a machine that is slow."""


@pytest.fixture
def one(
    control_plane: ControlPlane, agent_for_workloads: User, tmp_path: Path, node: NodeFactory, proxy: Proxy, dra: None
) -> CommandRunner:
    """A node ready for an upgrade."""
    made = CommandRunner(control_plane, agent_for_workloads, tmp_path, proxy=proxy).with_upgrade()
    made.node = node(boot_id=made.tree.boot_id)
    return made


@pytest.fixture
def placed(one: CommandRunner, operands: OperandsFactory) -> Operands:
    """Its operands, running."""
    return operands(node_of(one), COMPONENTS)


def state(one: CommandRunner) -> tuple[Json, set[str]]:
    """What anybody who is disturbed would change: the Node, but for what it shows of runs, and which pods are there."""
    node = node_of(one)
    there = node.read()
    meta = there["metadata"]
    notes = of_others(meta.get("annotations", {}))
    seen = {"labels": of_others(meta["labels"]), "annotations": notes, "spec": there["spec"]}
    return seen, {pod["metadata"]["uid"] for pod in node.pods()}


def version(one: CommandRunner) -> str:
    return str(node_of(one).read()["metadata"]["resourceVersion"])


def waiting(run: Command) -> bool:
    return WAIT in run.said()


def fail(one: CommandRunner) -> None:
    """A run that pauses the operands, and fails for what nobody can see beforehand."""
    one.tree.hold_device()
    ended = one.reconcile(DEVICE_FREE_TIMEOUT="1s")
    assert ended.code == 4, ended.err
    assert "the device is still in use" in ended.last_line
    assert json.loads((one.tree.root / NOTE.lstrip("/")).read_text())["attempts"] == 1


@pytest.mark.shares(6)
def test_a_process_of_the_host_disturbs_nobody_in_three_retries(
    one: CommandRunner, placed: Operands, workloads: WorkloadsFactory
) -> None:
    (tenant,) = workloads(node_of(one)).managed(1)
    one.tree.hold_device_by(4242, "trainer")
    before, versions = state(one), [version(one)]
    for _ in range(3):
        ended = one.reconcile(DEVICE_FREE_TIMEOUT="1s", **EVICTS)
        assert ended.code == 4, ended.err
        assert "trainer (pid 4242) of trainer.service has /dev/rbln0 open; no pod was disturbed" in ended.last_line
        assert state(one) == before
        versions.append(version(one))
    assert len(set(versions)) == 2, "the first one shows on the Node how it ended, the others write nothing"
    run = one.start("reconcile-driver-state", DEVICE_FREE_TIMEOUT="4m", **EVICTS)
    wait_until(lambda: "before anything is changed" in run.said(), "the run waits")
    assert state(one) == before
    one.tree.end_process(4242)
    assert run.end().code == 0
    assert (one.tree.driver_version, tenant.state()) == (NEW, "gone")
    placed.wait_running()


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("proc/sys/kernel/modules_disabled", "1\n", "kernel.modules_disabled is 1"),
        ("proc/modules", "rebellions 16384 0 [permanent], Live 0x0\n", "rebellions cannot be unloaded"),
        ("proc/modules", "rebellions 16384 - - Live 0x0\n", "without CONFIG_MODULE_UNLOAD"),
    ],
    ids=["frozen", "permanent", "no-unload"],
)
def test_a_kernel_that_cannot_do_it_disturbs_nobody(
    one: CommandRunner, placed: Operands, path: str, text: str, said: str
) -> None:
    (one.tree.root / path).write_text(text)
    before = state(one)
    for _ in range(2):
        ended = one.reconcile(**EVICTS)
        assert (ended.code, said in ended.last_line) == (6, True), ended.err
    assert state(one) == before


def test_a_pod_that_no_label_moves_is_refused_before_and_evicted_where_that_is_allowed(
    one: CommandRunner, placed: Operands, workloads: WorkloadsFactory
) -> None:
    key = placed.deploy_labels["device-plugin"]
    (client,) = workloads(node_of(one)).managed(1, Shape(npus=0, node_selector={key: "true"}))
    before = state(one)
    refused = one.reconcile()
    assert refused.code == 3, refused.err
    assert f"{client.key} (is placed by {key}): no label makes it leave" in refused.last_line
    assert "ENABLE_NPU_POD_EVICTION" in refused.err
    assert state(one) == before
    ended = one.reconcile(**EVICTS)
    assert (ended.code, client.state(), one.tree.driver_version) == (0, "gone", NEW), ended.err
    placed.wait_running()


def test_a_bare_pod_that_a_deploy_label_placed_takes_the_consent_of_a_bare_pod(
    one: CommandRunner, placed: Operands, workloads: WorkloadsFactory
) -> None:
    key = placed.deploy_labels["metrics-exporter"]
    client: Pod = workloads(node_of(one)).pod(Shape(npus=0, node_selector={key: "true"}))
    refused = one.reconcile(**EVICTS)
    assert (refused.code, "NPU_POD_EVICTION_FORCE" in refused.err, client.state()) == (3, True, "Running")
    forced = one.reconcile(NPU_POD_EVICTION_FORCE="true", **EVICTS)
    assert (forced.code, client.state()) == (0, "gone"), forced.err


# after a failure


@pytest.mark.shares(6)
def test_the_next_run_waits_says_until_when_and_ends_at_once_when_it_is_told_to(
    one: CommandRunner, placed: Operands
) -> None:
    fail(one)
    placed.wait_running()
    before = state(one)
    run = one.start("reconcile-driver-state", DEVICE_FREE_TIMEOUT="1s")
    wait_until(lambda: waiting(run), "the run waits")
    told = time.monotonic()
    ended = run.terminate()
    assert ended.code == 10, ended.err
    assert ended.at_s - told < 30.0, "it did not wait for the rest of its time"
    assert "as the last run failed (exit 4: the device is still in use" in ended.err
    assert "--retry-wait=0s" in ended.err
    assert state(one) == before


@pytest.mark.shares(6)
def test_the_wait_is_over_after_half_a_minute_and_longer_the_next_time(one: CommandRunner, placed: Operands) -> None:
    fail(one)
    began = time.monotonic()
    again = one.reconcile(DEVICE_FREE_TIMEOUT="1s")
    assert again.code == 4, again.err
    assert time.monotonic() - began > 20.0
    note = json.loads((one.tree.root / NOTE.lstrip("/")).read_text())
    assert note["attempts"] == 2
    run = one.start("reconcile-driver-state", DEVICE_FREE_TIMEOUT="1s")
    wait_until(lambda: "as the last 2 runs failed" in run.said(), "it waits for longer")
    run.terminate()


@pytest.mark.shares(6)
def test_a_deploy_label_that_is_switched_off_ends_the_wait(one: CommandRunner, placed: Operands) -> None:
    fail(one)
    (one.tree.root / "sys/module/rebellions/refcnt").write_text("0\n")
    raised = json.loads((one.tree.root / NOTE.lstrip("/")).read_text()) | {"attempts": 7}
    (one.tree.root / NOTE.lstrip("/")).write_text(json.dumps(raised))
    run = one.start("reconcile-driver-state", DEVICE_FREE_TIMEOUT="1s")
    wait_until(lambda: waiting(run), "the run waits, for half an hour")
    node_of(one).set_labels({placed.deploy_labels["metrics-exporter"]: "false"})
    wait_until(lambda: JOURNAL in node_of(one).annotations() or run.has_ended, "it goes on", SOON_S)
    ended = run.end()
    assert (ended.code, one.tree.driver_version) == (0, NEW), ended.err
    assert node_of(one).labels()[placed.deploy_labels["metrics-exporter"]] == "false"


@pytest.mark.shares(6)
@pytest.mark.parametrize(
    "change",
    [{"FORCE_REINSTALL": "true"}, {"DRIVER_CONFIG_DIGEST": "digest-of-another"}, {"RETRY_WAIT": "0s"}],
    ids=["forced", "digest", "skipped"],
)
def test_a_run_for_which_something_else_holds_does_not_wait(
    one: CommandRunner, placed: Operands, change: dict[str, str]
) -> None:
    fail(one)
    (one.tree.root / "sys/module/rebellions/refcnt").write_text("0\n")
    ended = one.reconcile(DEVICE_FREE_TIMEOUT="1s", **change)
    assert (ended.code, one.tree.driver_version) == (0, NEW), ended.err
    assert WAIT not in ended.err
    assert not (one.tree.root / NOTE.lstrip("/")).exists()


def test_a_driver_that_was_repaired_is_loaded_at_once(one: CommandRunner, placed: Operands) -> None:
    root = "/opt/rbln/next"
    one.tree.add_driver(root, NEW, fails=True)
    failed = one.reconcile(DRIVER_ROOT=root)
    assert (failed.code, one.tree.driver_version) == (5, OLD), failed.err
    one.tree.add_driver(root, NEW)
    ended = one.reconcile(DRIVER_ROOT=root)
    assert (ended.code, one.tree.driver_version, WAIT in ended.err) == (0, NEW, False), ended.err


def test_a_node_without_operands_is_left_as_it_is(one: CommandRunner) -> None:
    node_of(one).set_labels({f"{PREFIX}device-plugin": "true"})
    one.tree.hold_device_by(4242, "trainer")
    assert one.reconcile(DEVICE_FREE_TIMEOUT="0s").code == 4
    assert_untouched(one, {f"{PREFIX}device-plugin": "true"}, shows=("failed", 4))
