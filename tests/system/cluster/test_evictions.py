"""Users' pods through the real command line: who is evicted, waited for, or blocks, and runs that disturb no pod."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from driver_manager.adapters.kube.node import EVICTIONS_AT_ONCE
from driver_manager.profiles import builtin
from tests.support.control_plane.api import Json, wait_until
from tests.support.control_plane.faults import ALWAYS, Answer, Delay, Exchange, Fault, Hold
from tests.support.control_plane.kubelet import NEVER, NodeFactory, Operands, OperandsFactory, of_others
from tests.support.control_plane.old_server import PodClaim
from tests.support.control_plane.processes import Command
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import (
    CORDON,
    JOURNAL,
    NEW,
    NEW_ROOT,
    OLD,
    PREFIX,
    CommandRunner,
    assert_untouched,
    node_of,
    start_and_take,
)
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.control_plane.workloads import Pod, Shape, Workloads, WorkloadsFactory
from tests.support.fakes.pace import patient

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
    """A run that pauses the operands, and fails for a reason that no check finds beforehand."""
    one.tree.hold_device()
    ended = one.reconcile(DEVICE_FREE_TIMEOUT="1s")
    assert ended.code == 4, ended.err
    assert "the device is still in use" in ended.last_line
    assert json.loads((one.tree.root / NOTE.lstrip("/")).read_text())["attempts"] == 1


@pytest.mark.shares(6)
def test_a_process_of_the_host_disturbs_no_pod_in_three_retries(
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


EVICT = {"ENABLE_NPU_POD_EVICTION": "true"}
KEY = "rebellions.ai/npu-driver-upgrade"
STATE, REQUESTED, ENABLED, SAFE_LOAD = (
    f"{KEY}-state",
    f"{KEY}-requested",
    f"{KEY}-enabled",
    f"{KEY}.driver-wait-for-safe-load",
)
DRA_PLUGIN = f"{PREFIX}dra-kubelet-plugin"
PAUSED = "paused-for-driver-upgrade"
LAST_OUTCOME = "rebellions.ai/npu-driver-manager.last-outcome"

EVICTION_S = 0.1
"""What the API server takes for one eviction, by the proxy's doing."""


def is_rehearsal(exchange: Exchange) -> bool:
    return bool(exchange.request.body["deleteOptions"].get("dryRun"))


class Case:
    """A node with an old driver, a command runner that replaces it through the proxy, and users' pods."""

    def __init__(self, command_runner: CommandRunner, made: Workloads, proxy: Proxy) -> None:
        self.command_runner = command_runner
        self.made = made
        self.proxy = proxy
        self.labels = node_of(command_runner).labels()

    def assert_given_back(self, driver: str, code: int = 3) -> None:
        """Node and driver are as they have to be; with the old driver the run failed with exit code `code`."""
        shows = ("ready", 0) if driver == NEW else ("failed", code)
        assert_untouched(self.command_runner, self.labels, shows=shows)
        assert self.command_runner.tree.driver_version == driver

    def evictions(self) -> list[str]:
        """Names of the pods that an eviction was asked for, dry runs apart."""
        asked = [exchange.request.body for exchange in self.proxy.exchanges("create", "pods/eviction")]
        return [body["metadata"]["name"] for body in asked if not body["deleteOptions"].get("dryRun")]


@pytest.fixture
def case(
    control_plane: ControlPlane,
    agent_for_workloads: User,
    tmp_path: Path,
    node: NodeFactory,
    workloads: WorkloadsFactory,
    proxy: Proxy,
) -> Case:
    """A node that nothing but a driver is on."""
    command_runner = CommandRunner(control_plane, agent_for_workloads, tmp_path, proxy=proxy).with_upgrade()
    command_runner.node = node({f"{PREFIX}driver": "true"}, boot_id=command_runner.tree.boot_id)
    return Case(command_runner, workloads(command_runner.node), proxy)


@pytest.mark.shares(6)
def test_workloads_of_every_kind_are_evicted_and_everything_else_stays(case: Case) -> None:
    made = case.made
    by_name, by_template = PodClaim("npu", claim="by-name"), PodClaim("npu", template="any", claim="made-from-it")
    leave = [
        *made.managed(2),
        *made.managed(1, Shape(npus=0, init_npus=1)),
        *made.managed(1, namespace="team-b"),
        *made.managed(1, Shape(npus=0, claims=(by_name,))),
        *made.managed(1, Shape(npus=0, claims=(by_template,))),
    ]
    made.claim("by-name", leave[4])
    made.claim("made-from-it", leave[5], first_available=True)
    vfio = made.managed(1, Shape(npus=0, claims=(PodClaim("npu", claim="passed-through"),)))
    made.claim("passed-through", vfio[0], device_class="vfio-npu.rebellions.ai")
    stay = [
        *vfio,
        made.mirror(),
        made.succeeded(owner=made.replica_set()),
        *made.managed(1, Shape(npus=0)),
        *made.managed(1, Shape(resource="nvidia.com/gpu")),
    ]
    planned = case.command_runner.run("plan", "-o", "json", **EVICT)
    assert planned.code == 0, planned.err
    fates = {one["pod"]: one["fate"] for one in json.loads(planned.out)["workloads"]}
    assert fates == {
        **{pod.key: "evict" for pod in leave},
        **{pod.key: "stay" for pod in stay[1:3]},
    }
    assert {pod.state() for pod in leave} == {"Running"}

    ended = case.command_runner.reconcile(**EVICT)

    assert ended.code == 0, ended.err
    assert {pod.state() for pod in leave} == {"gone"}
    assert [pod.state() for pod in stay] == ["Running", "Running", "Succeeded", "Running", "Running"]
    assert sorted(case.evictions()) == sorted(pod.name for pod in leave)
    case.assert_given_back(NEW)


@pytest.mark.shares(6)
@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda made: made.pod(), "--npu-pod-eviction-force"),
        (lambda made: made.managed(1, Shape(empty_dir=True))[0], "--npu-pod-eviction-delete-emptydir-data"),
        (lambda made: made.daemon_set_pod(), "nodeSelector"),
    ],
    ids=["unmanaged", "emptydir", "daemonset"],
)
def test_a_blocker_is_named_before_the_first_eviction(case: Case, make: Callable[[Workloads], Pod], word: str) -> None:
    (other,) = case.made.managed()
    blocker = make(case.made)
    node = node_of(case.command_runner)
    before = node.labels(), node.annotations(), node.read()["spec"]
    ended = case.command_runner.reconcile(**EVICT)
    assert ended.code == 3, ended.err
    assert blocker.key in ended.last_line
    assert word in ended.last_line
    assert case.evictions() == []
    assert (blocker.state(), other.state()) == ("Running", "Running")
    assert (node.labels(), node.annotations(), node.read()["spec"]) == before
    assert node.shown() == ("failed", 3)
    assert len(case.proxy.exchanges("patch", "nodes")) == 1, "that shows the failure, and no more"
    version = node.read()["metadata"]["resourceVersion"]
    assert case.command_runner.reconcile(**EVICT).code == 3
    assert node.read()["metadata"]["resourceVersion"] == version, "a kubelet's retries write nothing"


@pytest.mark.parametrize(
    "env",
    [
        {"NPU_POD_EVICTION_FORCE": "true", "NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA": "true"},
        {"DRAIN_USE_FORCE": "true", "DRAIN_DELETE_EMPTYDIR_DATA": "true"},
    ],
    ids=["generation-2", "generation-1"],
)
def test_with_consent_they_are_evicted_too(case: Case, env: dict[str, str]) -> None:
    pods = [case.made.pod(), *case.made.managed(1, Shape(empty_dir=True))]
    ended = case.command_runner.reconcile(**EVICT, **env)
    assert ended.code == 0, ended.err
    assert {pod.state() for pod in pods} == {"gone"}
    case.assert_given_back(NEW)


def test_without_the_option_no_pod_is_evicted(case: Case) -> None:
    (pod,) = case.made.managed()
    ended = case.command_runner.reconcile()
    assert ended.code == 3, ended.err
    assert "--enable-npu-pod-eviction" in ended.last_line
    assert pod.state() == "Running"
    case.assert_given_back(OLD)


@pytest.mark.shares(6)
def test_a_budget_is_waited_for(case: Case) -> None:
    (pod,) = case.made.managed(1, Shape(labels={"app": "guarded"}))
    budget = case.made.budget({"app": "guarded"}, min_available=1)
    run = case.command_runner.start("reconcile-driver-state", **EVICT)
    wait_until(case.evictions, "the first eviction is asked for")
    assert pod.state() == "Running"
    budget.set_min_available(0)
    ended = run.end()
    assert ended.code == 0, ended.err
    assert pod.state() == "gone"
    assert len(case.evictions()) > 1
    case.assert_given_back(NEW)


@pytest.mark.shares(6)
def test_a_budget_that_never_allows_it_is_in_the_plan_and_leaves_the_node_as_before(
    case: Case,
) -> None:
    (pod,) = case.made.managed(1, Shape(labels={"app": "guarded"}, grace_s=1))
    case.made.budget({"app": "guarded"}, min_available=1)
    refused = f"the eviction of {pod.key} would be refused now"
    assert refused in case.command_runner.run("plan", **EVICT).out
    assert f"? workloads: {refused}" in case.command_runner.run("preflight", "-o", "text", **EVICT).out
    ended = case.command_runner.reconcile(**EVICT, POD_EVICTION_TIMEOUT="2s")
    assert ended.code == 3, ended.err
    assert pod.key in ended.last_line
    assert "The disruption budget" in ended.last_line
    assert pod.state() == "Running"
    case.assert_given_back(OLD)


@pytest.mark.shares(6)
def test_a_terminating_pod_is_waited_for_and_its_finalizer_named(case: Case) -> None:
    pod = case.made.pod(Shape(finalizer=True, grace_s=1), owner=case.made.replica_set())
    pod.api.delete(pod.path)
    ended = case.command_runner.reconcile(**EVICT, POD_EVICTION_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    assert f"{pod.key}: terminating, held by finalizer" in ended.last_line
    assert case.evictions() == []
    case.assert_given_back(OLD)


@pytest.mark.shares(6)
def test_the_requests_for_sixty_pods_overlap_and_are_two_each(case: Case) -> None:
    pods = case.made.managed(60, Shape(labels={"app": "users"}))
    node_of(case.command_runner).kubelet.stop_after("users", 1.0)
    delay_s = patient(EVICTION_S)  # what a request costs beside it grows with it
    case.proxy.add(Fault(Delay(delay_s), "create", "pods/eviction", times=ALWAYS))
    mark = case.proxy.mark()
    ended = case.command_runner.reconcile(**EVICT)
    assert ended.code == 0, ended.err
    assert {pod.state() for pod in pods} == {"gone"}
    asked = [one for one in case.proxy.exchanges("create", "pods/eviction") if not is_rehearsal(one)]
    assert len(asked) == 60, "each once"
    assert len(case.proxy.exchanges(since=mark)) <= 2 * 60 + 16, "two requests for each, and a constant"
    moments = [(one.at_s, one.ended_at_s or one.at_s) for one in asked]
    at_once = max(sum(begun <= at < ended for begun, ended in moments) for at, _ in moments)
    assert 4 <= at_once <= EVICTIONS_AT_ONCE
    span_s = max(ended for _, ended in moments) - min(begun for begun, _ in moments)
    assert span_s < 60 * delay_s / 2
    window = json.loads(node_of(case.command_runner).read()["metadata"]["annotations"][LAST_OUTCOME])["window"]
    assert span_s / 2 < window["parts"]["evict"] < window["seconds"]
    print(f"60 evictions of {delay_s:g} s each took {span_s:.2f} s, {at_once} at once; window: {window}")
    case.assert_given_back(NEW)


def test_a_new_pod_of_the_same_name_is_never_evicted(case: Case) -> None:
    (pod,) = case.made.managed(1, Shape(labels={"app": "guarded"}))
    budget = case.made.budget({"app": "guarded"}, min_available=1)
    run = case.command_runner.start("reconcile-driver-state", **EVICT)
    wait_until(case.evictions, "the first eviction is asked for")
    new = case.made.replace(pod)
    budget.set_min_available(0)
    ended = run.end()
    assert (new.name, new.state()) == (pod.name, "Running")
    assert ended.code == 0, ended.err


@pytest.mark.shares(6)
def test_a_pod_replaced_between_list_and_eviction_is_never_evicted(case: Case) -> None:
    (pod,) = case.made.managed()
    fault = Fault(Answer(503, retry_after_s=1), "create", "pods/eviction", nth=2)  # the first is the dry run
    case.proxy.add(fault)
    run = case.command_runner.start("reconcile-driver-state", **EVICT)
    case.proxy.wait_fired(fault)
    new = case.made.replace(pod)
    ended = run.end()
    assert ended.code == 0, ended.err
    assert new.state() == "Running"


def test_the_dra_plugin_stays_until_the_last_claim_holder_is_gone(case: Case, operands: OperandsFactory) -> None:
    node = node_of(case.command_runner)
    operands(node, ("device-plugin", "dra-kubelet-plugin"))
    case.labels = node.labels()
    holder = case.made.pod(
        Shape(npus=0, claims=(PodClaim("npu", claim="mine"),), labels={"app": "holder"}),
        owner=case.made.replica_set(),
    )
    case.made.claim("mine", holder)
    node.kubelet.stop_after("holder", NEVER)
    run = case.command_runner.start("reconcile-driver-state", **EVICT)
    holder.wait_state("terminating")
    now = node.labels()
    assert (now[f"{PREFIX}device-plugin"], now[DRA_PLUGIN]) == (PAUSED, "true")
    node.kubelet.release("holder")
    ended = run.end()
    assert ended.code == 0, ended.err
    case.assert_given_back(NEW)


def test_with_no_driver_loaded_no_pod_is_evicted(case: Case) -> None:
    (pod,) = case.made.managed()
    case.command_runner.tree.reboot()
    case.command_runner.tree.add_driver(NEW_ROOT, NEW)
    node = node_of(case.command_runner)
    node.api.patch(f"{node.path}/status", {"status": {"nodeInfo": {"bootID": case.command_runner.tree.boot_id}}})
    ended = case.command_runner.reconcile(**EVICT)
    assert ended.code == 0, ended.err
    assert pod.state() == "Running"
    assert case.evictions() == []


def test_an_administrators_cordon_before_during_and_after_the_run_survives(case: Case) -> None:
    node = node_of(case.command_runner)
    cordon: Json = {"spec": {"unschedulable": True}}
    (pod,) = case.made.managed(1, Shape(labels={"app": "slow"}))
    node.kubelet.stop_after("slow", NEVER)
    run = start_and_take(case.command_runner, **EVICT)
    pod.wait_state("terminating")
    assert node.read()["spec"]["unschedulable"] is True
    node.api.patch(node.path, {"spec": {"unschedulable": None}})
    node.api.patch(node.path, cordon)
    node.kubelet.release("slow")
    assert run.end().code == 0
    assert node.read()["spec"]["unschedulable"] is True
    assert CORDON not in node.annotations()
    again = case.command_runner.reconcile("--force-reinstall", **EVICT)
    assert again.code == 0, again.err
    assert node.read()["spec"]["unschedulable"] is True


@pytest.mark.shares(6)
def test_our_own_cordon_is_lifted_after_success_failure_and_sigterm(case: Case) -> None:
    node = node_of(case.command_runner)
    (pod,) = case.made.managed(1, Shape(labels={"app": "slow"}, grace_s=1))
    node.kubelet.stop_after("slow", NEVER)
    run = start_and_take(case.command_runner, **EVICT)
    pod.wait_state("terminating")
    assert run.terminate().code == 10
    assert "unschedulable" not in node.read()["spec"]
    assert case.command_runner.reconcile(**EVICT, POD_EVICTION_TIMEOUT="1s").code == 3
    assert "unschedulable" not in node.read()["spec"]
    node.kubelet.release("slow")
    assert case.command_runner.reconcile(**EVICT).code == 0
    case.assert_given_back(NEW)


def test_a_drain_moves_what_eviction_may_not(case: Case) -> None:
    made = case.made
    npu, plain, daemon = made.pod(), made.managed(1, Shape(npus=0))[0], made.daemon_set_pod(Shape(npus=0))
    drain = {"ENABLE_AUTO_DRAIN": "true", "DRAIN_USE_FORCE": "true", "DRAIN_TIMEOUT_SECONDS": "20"}
    ended = case.command_runner.reconcile(**drain)
    assert ended.code == 0, ended.err
    assert [pod.state() for pod in (npu, plain, daemon)] == ["gone", "gone", "Running"]
    case.assert_given_back(NEW)


def test_a_drain_moves_only_what_its_selector_says(case: Case) -> None:
    made = case.made
    npu = made.managed(1, Shape(labels={"tier": "batch"}))[0]
    plain = made.managed(1, Shape(npus=0, labels={"tier": "web"}))[0]
    ended = case.command_runner.reconcile(ENABLE_AUTO_DRAIN="true", DRAIN_POD_SELECTOR_LABEL="tier=batch")
    assert ended.code == 0, ended.err
    assert [pod.state() for pod in (npu, plain)] == ["gone", "Running"]


def test_pods_that_complete_are_waited_for_with_the_node_cordoned_and_its_operands_in_place(
    case: Case, operands: OperandsFactory
) -> None:
    node = node_of(case.command_runner)
    operands(node, ("device-plugin",))
    case.labels = node.labels()
    job = case.made.pod(Shape(labels={"kind": "job"}), owner=case.made.replica_set())
    run = start_and_take(case.command_runner, **EVICT, WAIT_FOR_COMPLETION_SELECTOR="kind=job")
    assert node.read()["spec"]["unschedulable"] is True
    assert node.labels() == case.labels
    job.api.patch(f"{job.path}/status", {"status": {"phase": "Succeeded"}})
    ended = run.end()
    assert ended.code == 0, ended.err
    assert job.state() == "Succeeded"
    assert case.evictions() == []
    case.assert_given_back(NEW)


def test_a_managed_node_is_neither_cordoned_nor_evicted_and_its_operator_asked(case: Case) -> None:
    node = node_of(case.command_runner)
    node.api.patch(node.path, {"metadata": {"annotations": {ENABLED: "true"}}})
    (pod,) = case.made.managed()
    run = case.command_runner.start("reconcile-driver-state", **EVICT)
    wait_until(lambda: node.annotations().get(REQUESTED) == "true", "the operator is asked")
    assert "unschedulable" not in node.read()["spec"]
    node.set_labels({STATE: "pod-deletion-required"})
    pod.api.delete(pod.path)
    ended = run.end()
    assert ended.code == 0, ended.err
    assert case.evictions() == []
    assert case.command_runner.tree.driver_version == NEW
    assert node.labels() == {**case.labels, STATE: "pod-deletion-required"}


def test_an_operator_that_does_nothing_ends_it_with_exit_code_3(case: Case) -> None:
    node = node_of(case.command_runner)
    node.api.patch(node.path, {"metadata": {"annotations": {ENABLED: "true"}}})
    (pod,) = case.made.managed()
    ended = case.command_runner.reconcile(**EVICT, OPERATOR_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    assert pod.key in ended.last_line
    assert pod.state() == "Running"
    assert node.labels() == case.labels
    assert case.command_runner.tree.driver_version == OLD


def test_a_safe_load_waits_for_the_operators_word(case: Case, operands: OperandsFactory) -> None:
    node = node_of(case.command_runner)
    made = operands(node, ("driver",))
    case.labels = node.labels()
    name = made.pods()["driver"][0]["metadata"]["name"]
    run = case.command_runner.start("reconcile-driver-state", "--safe-load", POD_NAME=name)
    wait_until(lambda: node.annotations().get(SAFE_LOAD) == name, "the wait is announced")
    assert case.command_runner.tree.driver_version == OLD
    node.api.patch(node.path, {"metadata": {"annotations": {SAFE_LOAD: None}}})
    ended = run.end()
    assert ended.code == 0, ended.err
    case.assert_given_back(NEW)


def test_by_hand_a_skipped_node_is_left_alone(case: Case) -> None:
    node_of(case.command_runner).set_labels({f"{KEY}.skip": "true"})
    ended = case.command_runner.reconcile()
    assert (ended.code, "--ignore-skip" in ended.last_line) == (10, True)
    assert case.command_runner.tree.driver_version == OLD
    assert case.command_runner.reconcile("--ignore-skip").code == 0


def test_a_run_killed_while_it_evicts_is_finished_by_the_next(case: Case) -> None:
    node = node_of(case.command_runner)
    (pod,) = case.made.managed(1, Shape(labels={"app": "slow"}))
    node.kubelet.stop_after("slow", NEVER)
    run = start_and_take(case.command_runner, **EVICT)
    pod.wait_state("terminating")
    run.kill()
    node.kubelet.release("slow")
    ended = case.command_runner.reconcile(**EVICT)
    assert ended.code == 0, ended.err
    case.assert_given_back(NEW)


def test_claims_that_may_not_be_listed_are_an_error_and_not_taken_for_none(
    control_plane: ControlPlane, agent_with_events: User, case: Case
) -> None:
    case.made.managed(1, Shape(npus=0, claims=(PodClaim("npu", claim="mine"),)))
    case.made.claim("mine")
    kubeconfig = control_plane.kubeconfig(agent_with_events.token, case.proxy.url)
    ended = case.command_runner.reconcile(**EVICT, KUBECONFIG=str(kubeconfig))
    assert ended.code == 7, ended.err
    assert "list resourceclaims.resource.k8s.io" in ended.last_line
    case.assert_given_back(OLD, 7)


@pytest.mark.shares(6)
def test_a_drain_that_would_leave_a_workload_on_its_device_ends_with_exit_code_3(case: Case) -> None:
    (npu,) = case.made.managed(1, Shape(labels={"app": "guarded"}, grace_s=1))
    (plain,) = case.made.managed(1, Shape(npus=0, labels={"tier": "web"}))
    case.made.budget({"app": "guarded"}, min_available=1)
    drain = {"ENABLE_AUTO_DRAIN": "true", "DRAIN_POD_SELECTOR_LABEL": "tier=web", "DRAIN_TIMEOUT_SECONDS": "2"}
    ended = case.command_runner.reconcile(**EVICT, **drain, POD_EVICTION_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    assert npu.key in ended.last_line
    assert (npu.state(), plain.state()) == ("Running", "gone")
    case.assert_given_back(OLD)


def test_a_node_made_again_from_its_copy_is_given_back_uncordoned(case: Case) -> None:
    node = node_of(case.command_runner)
    (pod,) = case.made.managed(1, Shape(labels={"app": "slow"}))
    node.kubelet.stop_after("slow", NEVER)
    run = start_and_take(case.command_runner, **EVICT)
    pod.wait_state("terminating")
    copy = node.read()
    node.api.delete(node.path)
    kept = {key: copy["metadata"][key] for key in ("name", "labels", "annotations")}
    node.api.post("/api/v1/nodes", {"metadata": kept, "spec": copy["spec"], "status": copy["status"]})
    node.kubelet.release("slow")
    ended = run.end()
    assert ended.code == 0, ended.err
    case.assert_given_back(NEW)


def test_a_safe_load_is_withdrawn_though_the_kubelet_changes_the_node_meanwhile(
    case: Case, operands: OperandsFactory
) -> None:
    node = node_of(case.command_runner)
    made = operands(node, ("driver",))
    name = made.pods()["driver"][0]["metadata"]["name"]
    conflict = Fault(Answer(409), "patch", "nodes", nth=2, times=2)  # the first patch asks
    case.proxy.add(conflict)
    ended = case.command_runner.reconcile("--safe-load", POD_NAME=name, OPERATOR_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    case.proxy.assert_all_fired()
    assert SAFE_LOAD not in node.annotations()


def test_an_admission_webhook_that_denies_an_eviction_is_quoted(case: Case) -> None:
    (pod,) = case.made.managed()
    denied = Answer(403, 'admission webhook "guard.example.com" denied the request: not on a Saturday')
    case.proxy.add(Fault(denied, "create", "pods/eviction", times=ALWAYS))
    ended = case.command_runner.reconcile(**EVICT, POD_EVICTION_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    assert "not on a Saturday" in ended.last_line
    assert pod.state() == "Running"
    case.assert_given_back(OLD)


def test_sigterm_during_an_eviction_that_hangs_ends_within_five_seconds(case: Case) -> None:
    case.made.managed()
    held = Fault(Hold(), "create", "pods/eviction", nth=2)  # the first is the dry run
    case.proxy.add(held)
    run = start_and_take(case.command_runner, **EVICT)
    case.proxy.wait_fired(held)
    began = time.monotonic()
    ended = run.terminate()
    assert ended.code == 10, ended.err
    assert ended.at_s - began < patient(5.0)
    case.assert_given_back(OLD, 10)


def test_first_generation_rights_do_not_stop_a_run_that_evicts_no_pod(
    control_plane: ControlPlane, agent_with_events: User, case: Case
) -> None:
    (pod,) = case.made.managed(1, Shape(npus=0, claims=(PodClaim("nic", claim="somebody-elses"),)))
    kubeconfig = control_plane.kubeconfig(agent_with_events.token, case.proxy.url)
    ended = case.command_runner.reconcile(KUBECONFIG=str(kubeconfig))
    assert ended.code == 0, ended.err
    assert "resourceclaims may not be listed" in ended.err
    assert pod.state() == "Running"
    case.assert_given_back(NEW)
