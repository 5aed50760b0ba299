"""Users' pods through the real command line: who is evicted, who is waited for, who blocks, and what is left then."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.control_plane.api import Json, wait_until
from tests.control_plane.faults import ALWAYS, Answer, Fault, Hold
from tests.control_plane.kubelet import NEVER, NodeFactory, OperandsFactory
from tests.control_plane.old_server import PodClaim
from tests.control_plane.proxy import Proxy
from tests.control_plane.runner import (
    CORDON,
    NEW,
    NEW_ROOT,
    OLD,
    PREFIX,
    Rig,
    assert_untouched,
    node_of,
    start_and_take,
)
from tests.control_plane.servers import ControlPlane, User
from tests.control_plane.workloads import Pod, Shape, Workloads, WorkloadsFactory

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


class Ground:
    """A node with an old driver, a rig that replaces it through the proxy, and users' pods."""

    def __init__(self, rig: Rig, made: Workloads, proxy: Proxy) -> None:
        self.rig = rig
        self.made = made
        self.proxy = proxy
        self.labels = node_of(rig).labels()

    def assert_given_back(self, driver: str) -> None:
        """Node and driver are as they have to be."""
        assert_untouched(self.rig, self.labels)
        assert self.rig.tree.driver_version == driver

    def evictions(self) -> list[str]:
        """Names of the pods that an eviction was asked for, dry runs apart."""
        asked = [exchange.request.body for exchange in self.proxy.exchanges("create", "pods/eviction")]
        return [body["metadata"]["name"] for body in asked if not body["deleteOptions"].get("dryRun")]


@pytest.fixture
def ground(
    control_plane: ControlPlane,
    agent_for_workloads: User,
    tmp_path: Path,
    node: NodeFactory,
    workloads: WorkloadsFactory,
    proxy: Proxy,
) -> Ground:
    """A node that nothing but a driver is on."""
    rig = Rig(control_plane, agent_for_workloads, tmp_path, proxy=proxy).with_upgrade()
    rig.node = node({f"{PREFIX}driver": "true"}, boot_id=rig.tree.boot_id)
    return Ground(rig, workloads(rig.node), proxy)


def test_workloads_of_every_kind_are_evicted_and_everything_else_stays(ground: Ground) -> None:
    made = ground.made
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
    planned = ground.rig.run("plan", "-o", "json", **EVICT)
    assert planned.code == 0, planned.err
    fates = {one["pod"]: one["fate"] for one in json.loads(planned.out)["workloads"]}
    assert fates == {
        **{pod.key: "evict" for pod in leave},
        **{pod.key: "stay" for pod in stay[1:3]},
    }
    assert {pod.state() for pod in leave} == {"Running"}

    ended = ground.rig.reconcile(**EVICT)

    assert ended.code == 0, ended.err
    assert {pod.state() for pod in leave} == {"gone"}
    assert [pod.state() for pod in stay] == ["Running", "Running", "Succeeded", "Running", "Running"]
    assert sorted(ground.evictions()) == sorted(pod.name for pod in leave)
    ground.assert_given_back(NEW)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda made: made.pod(), "--npu-pod-eviction-force"),
        (lambda made: made.managed(1, Shape(empty_dir=True))[0], "--npu-pod-eviction-delete-emptydir-data"),
        (lambda made: made.daemon_set_pod(), "nodeSelector"),
    ],
    ids=["unmanaged", "emptydir", "daemonset"],
)
def test_a_blocker_is_named_before_the_first_eviction(
    ground: Ground, make: Callable[[Workloads], Pod], word: str
) -> None:
    (other,) = ground.made.managed()
    blocker = make(ground.made)
    version = node_of(ground.rig).read()["metadata"]["resourceVersion"]
    ended = ground.rig.reconcile(**EVICT)
    assert ended.code == 3, ended.err
    assert blocker.key in ended.last_line
    assert word in ended.last_line
    assert ground.evictions() == []
    assert (blocker.state(), other.state()) == ("Running", "Running")
    assert node_of(ground.rig).read()["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize(
    "env",
    [
        {"NPU_POD_EVICTION_FORCE": "true", "NPU_POD_EVICTION_DELETE_EMPTYDIR_DATA": "true"},
        {"DRAIN_USE_FORCE": "true", "DRAIN_DELETE_EMPTYDIR_DATA": "true"},
    ],
    ids=["generation-2", "generation-1"],
)
def test_with_consent_they_are_evicted_too(ground: Ground, env: dict[str, str]) -> None:
    pods = [ground.made.pod(), *ground.made.managed(1, Shape(empty_dir=True))]
    ended = ground.rig.reconcile(**EVICT, **env)
    assert ended.code == 0, ended.err
    assert {pod.state() for pod in pods} == {"gone"}
    ground.assert_given_back(NEW)


def test_nvidias_names_mean_the_same(ground: Ground) -> None:
    (pod,) = ground.made.managed()
    assert ground.rig.reconcile(ENABLE_GPU_POD_EVICTION="true").code == 0
    assert pod.state() == "gone"


def test_without_being_asked_nobody_is_evicted(ground: Ground) -> None:
    (pod,) = ground.made.managed()
    ended = ground.rig.reconcile()
    assert ended.code == 3, ended.err
    assert "--enable-npu-pod-eviction" in ended.last_line
    assert pod.state() == "Running"
    ground.assert_given_back(OLD)


def test_a_budget_is_waited_for(ground: Ground) -> None:
    (pod,) = ground.made.managed(1, Shape(labels={"app": "guarded"}))
    budget = ground.made.budget({"app": "guarded"}, min_available=1)
    run = ground.rig.start("reconcile-driver-state", **EVICT)
    wait_until(ground.evictions, "the first eviction is asked for")
    assert pod.state() == "Running"
    budget.set_min_available(0)
    ended = run.end()
    assert ended.code == 0, ended.err
    assert pod.state() == "gone"
    assert len(ground.evictions()) > 1
    ground.assert_given_back(NEW)


def test_a_budget_that_never_allows_it_ends_with_exit_code_3_and_the_node_as_before(ground: Ground) -> None:
    (pod,) = ground.made.managed(1, Shape(labels={"app": "guarded"}, grace_s=1))
    ground.made.budget({"app": "guarded"}, min_available=1)
    ended = ground.rig.reconcile(**EVICT, POD_EVICTION_TIMEOUT="2s")
    assert ended.code == 3, ended.err
    assert pod.key in ended.last_line
    assert "The disruption budget" in ended.last_line
    assert pod.state() == "Running"
    ground.assert_given_back(OLD)


def test_what_plan_says_of_a_budget(ground: Ground) -> None:
    (pod,) = ground.made.managed(1, Shape(labels={"app": "guarded"}))
    ground.made.budget({"app": "guarded"}, min_available=1)
    planned = ground.rig.run("plan", **EVICT)
    assert f"the eviction of {pod.key} would be refused now" in planned.out
    checked = ground.rig.run("preflight", "-o", "text", **EVICT)
    assert f"? workloads: the eviction of {pod.key} would be refused now" in checked.out


def test_a_terminating_pod_is_waited_for_and_its_finalizer_named(ground: Ground) -> None:
    pod = ground.made.pod(Shape(finalizer=True, grace_s=1), owner=ground.made.replica_set())
    pod.api.delete(pod.path)
    ended = ground.rig.reconcile(**EVICT, POD_EVICTION_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    assert f"{pod.key}: terminating, held by finalizer" in ended.last_line
    assert ground.evictions() == []
    ground.assert_given_back(OLD)


def test_sixty_pods_cost_at_most_two_requests_each_and_a_constant(ground: Ground) -> None:
    pods = ground.made.managed(60)
    mark = ground.proxy.mark()
    ended = ground.rig.reconcile(**EVICT)
    assert ended.code == 0, ended.err
    assert {pod.state() for pod in pods} == {"gone"}
    assert len(ground.proxy.exchanges(since=mark)) <= 2 * 60 + 16
    ground.assert_given_back(NEW)


def test_a_new_pod_of_the_same_name_is_never_evicted(ground: Ground) -> None:
    (pod,) = ground.made.managed(1, Shape(labels={"app": "guarded"}))
    budget = ground.made.budget({"app": "guarded"}, min_available=1)
    run = ground.rig.start("reconcile-driver-state", **EVICT)
    wait_until(ground.evictions, "the first eviction is asked for")
    new = ground.made.replace(pod)
    budget.set_min_available(0)
    ended = run.end()
    assert (new.name, new.state()) == (pod.name, "Running")
    assert ended.code == 0, ended.err


def test_a_pod_replaced_between_list_and_eviction_is_never_evicted(ground: Ground) -> None:
    (pod,) = ground.made.managed()
    fault = Fault(Answer(503, retry_after_s=1), "create", "pods/eviction", nth=2)  # the first is the dry run
    ground.proxy.add(fault)
    run = ground.rig.start("reconcile-driver-state", **EVICT)
    ground.proxy.wait_fired(fault)
    new = ground.made.replace(pod)
    ended = run.end()
    assert ended.code == 0, ended.err
    assert new.state() == "Running"


def test_the_dra_plugin_stays_until_the_last_claim_holder_is_gone(ground: Ground, operands: OperandsFactory) -> None:
    node = node_of(ground.rig)
    operands(node, ("device-plugin", "dra-kubelet-plugin"))
    ground.labels = node.labels()
    holder = ground.made.pod(
        Shape(npus=0, claims=(PodClaim("npu", claim="mine"),), labels={"app": "holder"}),
        owner=ground.made.replica_set(),
    )
    ground.made.claim("mine", holder)
    node.kubelet.stop_after("holder", NEVER)
    run = ground.rig.start("reconcile-driver-state", **EVICT)
    holder.wait_state("terminating")
    now = node.labels()
    assert (now[f"{PREFIX}device-plugin"], now[DRA_PLUGIN]) == (PAUSED, "true")
    node.kubelet.release("holder")
    ended = run.end()
    assert ended.code == 0, ended.err
    ground.assert_given_back(NEW)


def test_with_no_driver_loaded_nobody_is_evicted(ground: Ground) -> None:
    (pod,) = ground.made.managed()
    ground.rig.tree.reboot()
    ground.rig.tree.add_driver(NEW_ROOT, NEW)
    node = node_of(ground.rig)
    node.api.patch(f"{node.path}/status", {"status": {"nodeInfo": {"bootID": ground.rig.tree.boot_id}}})
    ended = ground.rig.reconcile(**EVICT)
    assert ended.code == 0, ended.err
    assert pod.state() == "Running"
    assert ground.evictions() == []


def test_an_administrators_cordon_before_during_and_after_the_run_survives(ground: Ground) -> None:
    node = node_of(ground.rig)
    cordon: Json = {"spec": {"unschedulable": True}}
    (pod,) = ground.made.managed(1, Shape(labels={"app": "slow"}))
    node.kubelet.stop_after("slow", NEVER)
    run = start_and_take(ground.rig, **EVICT)
    pod.wait_state("terminating")
    assert node.read()["spec"]["unschedulable"] is True
    node.api.patch(node.path, {"spec": {"unschedulable": None}})
    node.api.patch(node.path, cordon)
    node.kubelet.release("slow")
    assert run.end().code == 0
    assert node.read()["spec"]["unschedulable"] is True
    assert CORDON not in node.annotations()
    again = ground.rig.reconcile("--force-reinstall", **EVICT)
    assert again.code == 0, again.err
    assert node.read()["spec"]["unschedulable"] is True


def test_our_own_cordon_is_lifted_after_success_failure_and_sigterm(ground: Ground) -> None:
    node = node_of(ground.rig)
    (pod,) = ground.made.managed(1, Shape(labels={"app": "slow"}, grace_s=1))
    node.kubelet.stop_after("slow", NEVER)
    run = start_and_take(ground.rig, **EVICT)
    pod.wait_state("terminating")
    assert run.terminate().code == 10
    assert "unschedulable" not in node.read()["spec"]
    assert ground.rig.reconcile(**EVICT, POD_EVICTION_TIMEOUT="1s").code == 3
    assert "unschedulable" not in node.read()["spec"]
    node.kubelet.release("slow")
    assert ground.rig.reconcile(**EVICT).code == 0
    ground.assert_given_back(NEW)


def test_a_drain_moves_what_eviction_may_not(ground: Ground) -> None:
    made = ground.made
    npu, plain, daemon = made.pod(), made.managed(1, Shape(npus=0))[0], made.daemon_set_pod(Shape(npus=0))
    drain = {"ENABLE_AUTO_DRAIN": "true", "DRAIN_USE_FORCE": "true", "DRAIN_TIMEOUT_SECONDS": "20"}
    ended = ground.rig.reconcile(**drain)
    assert ended.code == 0, ended.err
    assert [pod.state() for pod in (npu, plain, daemon)] == ["gone", "gone", "Running"]
    ground.assert_given_back(NEW)


def test_a_drain_moves_only_what_its_selector_says(ground: Ground) -> None:
    made = ground.made
    npu = made.managed(1, Shape(labels={"tier": "batch"}))[0]
    plain = made.managed(1, Shape(npus=0, labels={"tier": "web"}))[0]
    ended = ground.rig.reconcile(ENABLE_AUTO_DRAIN="true", DRAIN_POD_SELECTOR_LABEL="tier=batch")
    assert ended.code == 0, ended.err
    assert [pod.state() for pod in (npu, plain)] == ["gone", "Running"]


def test_pods_that_complete_are_waited_for_with_the_node_cordoned_and_its_operands_in_place(
    ground: Ground, operands: OperandsFactory
) -> None:
    node = node_of(ground.rig)
    operands(node, ("device-plugin",))
    ground.labels = node.labels()
    job = ground.made.pod(Shape(labels={"kind": "job"}), owner=ground.made.replica_set())
    run = start_and_take(ground.rig, **EVICT, WAIT_FOR_COMPLETION_SELECTOR="kind=job")
    assert node.read()["spec"]["unschedulable"] is True
    assert node.labels() == ground.labels
    job.api.patch(f"{job.path}/status", {"status": {"phase": "Succeeded"}})
    ended = run.end()
    assert ended.code == 0, ended.err
    assert job.state() == "Succeeded"
    assert ground.evictions() == []
    ground.assert_given_back(NEW)


def test_a_managed_node_is_neither_cordoned_nor_evicted_and_its_operator_asked(ground: Ground) -> None:
    node = node_of(ground.rig)
    node.api.patch(node.path, {"metadata": {"annotations": {ENABLED: "true"}}})
    (pod,) = ground.made.managed()
    run = ground.rig.start("reconcile-driver-state", **EVICT)
    wait_until(lambda: node.annotations().get(REQUESTED) == "true", "the operator is asked")
    assert "unschedulable" not in node.read()["spec"]
    node.set_labels({STATE: "pod-deletion-required"})
    pod.api.delete(pod.path)
    ended = run.end()
    assert ended.code == 0, ended.err
    assert ground.evictions() == []
    assert ground.rig.tree.driver_version == NEW
    assert node.labels() == {**ground.labels, STATE: "pod-deletion-required"}


def test_an_operator_that_does_nothing_ends_it_with_exit_code_3(ground: Ground) -> None:
    node = node_of(ground.rig)
    node.api.patch(node.path, {"metadata": {"annotations": {ENABLED: "true"}}})
    (pod,) = ground.made.managed()
    ended = ground.rig.reconcile(**EVICT, OPERATOR_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    assert pod.key in ended.last_line
    assert pod.state() == "Running"
    assert node.labels() == ground.labels
    assert ground.rig.tree.driver_version == OLD


def test_a_safe_load_waits_for_the_operators_word(ground: Ground, operands: OperandsFactory) -> None:
    node = node_of(ground.rig)
    made = operands(node, ("driver",))
    ground.labels = node.labels()
    name = made.pods()["driver"][0]["metadata"]["name"]
    run = ground.rig.start("reconcile-driver-state", "--safe-load", POD_NAME=name)
    wait_until(lambda: node.annotations().get(SAFE_LOAD) == name, "the wait is announced")
    assert ground.rig.tree.driver_version == OLD
    node.api.patch(node.path, {"metadata": {"annotations": {SAFE_LOAD: None}}})
    ended = run.end()
    assert ended.code == 0, ended.err
    ground.assert_given_back(NEW)


def test_by_hand_a_skipped_node_is_left_alone(ground: Ground) -> None:
    node_of(ground.rig).set_labels({f"{KEY}.skip": "true"})
    ended = ground.rig.reconcile()
    assert (ended.code, "--ignore-skip" in ended.last_line) == (10, True)
    assert ground.rig.tree.driver_version == OLD
    assert ground.rig.reconcile("--ignore-skip").code == 0


def test_a_run_killed_while_it_evicts_is_finished_by_the_next(ground: Ground) -> None:
    node = node_of(ground.rig)
    (pod,) = ground.made.managed(1, Shape(labels={"app": "slow"}))
    node.kubelet.stop_after("slow", NEVER)
    run = start_and_take(ground.rig, **EVICT)
    pod.wait_state("terminating")
    run.kill()
    node.kubelet.release("slow")
    ended = ground.rig.reconcile(**EVICT)
    assert ended.code == 0, ended.err
    ground.assert_given_back(NEW)


def test_claims_that_may_not_be_listed_are_an_error_and_not_taken_for_none(
    control_plane: ControlPlane, agent_with_events: User, ground: Ground
) -> None:
    ground.made.managed(1, Shape(npus=0, claims=(PodClaim("npu", claim="mine"),)))
    ground.made.claim("mine")
    kubeconfig = control_plane.kubeconfig(agent_with_events.token, ground.proxy.url)
    ended = ground.rig.reconcile(**EVICT, KUBECONFIG=str(kubeconfig))
    assert ended.code == 7, ended.err
    assert "list resourceclaims.resource.k8s.io" in ended.last_line
    ground.assert_given_back(OLD)


def test_a_drain_that_would_leave_a_workload_on_its_device_ends_with_exit_code_3(ground: Ground) -> None:
    (npu,) = ground.made.managed(1, Shape(labels={"app": "guarded"}, grace_s=1))
    (plain,) = ground.made.managed(1, Shape(npus=0, labels={"tier": "web"}))
    ground.made.budget({"app": "guarded"}, min_available=1)
    drain = {"ENABLE_AUTO_DRAIN": "true", "DRAIN_POD_SELECTOR_LABEL": "tier=web", "DRAIN_TIMEOUT_SECONDS": "2"}
    ended = ground.rig.reconcile(**EVICT, **drain, POD_EVICTION_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    assert npu.key in ended.last_line
    assert (npu.state(), plain.state()) == ("Running", "gone")
    ground.assert_given_back(OLD)


def test_a_node_made_again_from_its_copy_is_given_back_uncordoned(ground: Ground) -> None:
    node = node_of(ground.rig)
    (pod,) = ground.made.managed(1, Shape(labels={"app": "slow"}))
    node.kubelet.stop_after("slow", NEVER)
    run = start_and_take(ground.rig, **EVICT)
    pod.wait_state("terminating")
    copy = node.read()
    node.api.delete(node.path)
    kept = {key: copy["metadata"][key] for key in ("name", "labels", "annotations")}
    node.api.post("/api/v1/nodes", {"metadata": kept, "spec": copy["spec"], "status": copy["status"]})
    node.kubelet.release("slow")
    ended = run.end()
    assert ended.code == 0, ended.err
    ground.assert_given_back(NEW)


def test_a_safe_load_is_withdrawn_though_the_kubelet_changes_the_node_meanwhile(
    ground: Ground, operands: OperandsFactory
) -> None:
    node = node_of(ground.rig)
    made = operands(node, ("driver",))
    name = made.pods()["driver"][0]["metadata"]["name"]
    conflict = Fault(Answer(409), "patch", "nodes", nth=2, times=2)  # the first patch asks
    ground.proxy.add(conflict)
    ended = ground.rig.reconcile("--safe-load", POD_NAME=name, OPERATOR_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    ground.proxy.assert_all_fired()
    assert SAFE_LOAD not in node.annotations()


def test_an_admission_webhook_that_denies_an_eviction_is_quoted(ground: Ground) -> None:
    (pod,) = ground.made.managed()
    denied = Answer(403, 'admission webhook "guard.example.com" denied the request: not on a Saturday')
    ground.proxy.add(Fault(denied, "create", "pods/eviction", times=ALWAYS))
    ended = ground.rig.reconcile(**EVICT, POD_EVICTION_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    assert "not on a Saturday" in ended.last_line
    assert pod.state() == "Running"
    ground.assert_given_back(OLD)


def test_sigterm_during_an_eviction_that_hangs_ends_within_five_seconds(ground: Ground) -> None:
    ground.made.managed()
    held = Fault(Hold(), "create", "pods/eviction", nth=2)  # the first is the dry run
    ground.proxy.add(held)
    run = start_and_take(ground.rig, **EVICT)
    ground.proxy.wait_fired(held)
    began = time.monotonic()
    ended = run.terminate()
    assert ended.code == 10, ended.err
    assert ended.at_s - began < 5.0
    ground.assert_given_back(OLD)


def test_first_generation_rights_do_not_stop_a_run_that_evicts_nobody(
    control_plane: ControlPlane, agent_with_events: User, ground: Ground
) -> None:
    (pod,) = ground.made.managed(1, Shape(npus=0, claims=(PodClaim("nic", claim="somebody-elses"),)))
    kubeconfig = control_plane.kubeconfig(agent_with_events.token, ground.proxy.url)
    ended = ground.rig.reconcile(KUBECONFIG=str(kubeconfig))
    assert ended.code == 0, ended.err
    assert "resourceclaims may not be listed" in ended.err
    assert pod.state() == "Running"
    ground.assert_given_back(NEW)
