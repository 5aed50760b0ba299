"""Users' pods through the real command line: who is evicted, waited for, or blocks, and runs that disturb no pod."""

from __future__ import annotations

import json
import time

import pytest

from driver_manager.adapters.kube.node import EVICTIONS_AT_ONCE
from driver_manager.profiles import builtin
from tests.support.control_plane.api import Json, wait_until
from tests.support.control_plane.faults import ALWAYS, Answer, Delay, Fault, Hold
from tests.support.control_plane.kubelet import LAST_OUTCOME, Operands, OperandsFactory, of_others
from tests.support.control_plane.old_server import PodClaim
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import (
    EVICT,
    JOURNAL,
    NEW,
    OLD,
    PREFIX,
    CommandRunner,
    RunnerFactory,
    assert_untouched,
    start_and_take,
)
from tests.support.control_plane.servers import ControlPlane
from tests.support.control_plane.workloads import Shape, Workloads, WorkloadsFactory
from tests.support.fakes.pace import patient

LABELS = {f"{PREFIX}driver": "true"}
NOTE = builtin()["rebellions"].paths.failure_note
SOON_S = 150.0
"""More than a look at the Node is away, on a machine that is slow."""

EVICTION_S = 0.1
"""What the API server takes for one eviction, by the proxy's doing."""


@pytest.fixture
def one(runner_for: RunnerFactory, control_plane: ControlPlane, proxy: Proxy, dra: None) -> CommandRunner:
    return runner_for(LABELS, user=control_plane.agent_for_workloads, proxy=proxy)


@pytest.fixture
def placed(one: CommandRunner, operands: OperandsFactory) -> Operands:
    """Its operands, running."""
    return operands(one.node, ("device-plugin", "metrics-exporter"))


@pytest.fixture
def made(one: CommandRunner, workloads: WorkloadsFactory) -> Workloads:
    return workloads(one.node)


def state(one: CommandRunner) -> tuple[Json, set[str]]:
    """What anybody who is disturbed would change: the Node, but for what it shows of runs, and which pods are there."""
    node = one.node
    there = node.read()
    meta = there["metadata"]
    notes = of_others(meta.get("annotations", {}))
    seen = {"labels": of_others(meta["labels"]), "annotations": notes, "spec": there["spec"]}
    return seen, {pod["metadata"]["uid"] for pod in node.pods()}


# runs that disturb no pod


@pytest.mark.shares(6)
def test_a_process_of_the_host_disturbs_no_pod_in_three_retries(
    one: CommandRunner, placed: Operands, made: Workloads
) -> None:
    (tenant,) = made.managed(1)
    one.tree.hold_device_by(4242, "trainer")
    before, versions = state(one), set()
    for _ in range(3):
        ended = one.reconcile(DEVICE_FREE_TIMEOUT="1s", **EVICT)
        assert ended.code == 4, ended.err
        assert "trainer (pid 4242) of trainer.service has /dev/rbln0 open; no pod was disturbed" in ended.last_line
        assert state(one) == before
        versions.add(one.node.read()["metadata"]["resourceVersion"])
    assert len(versions) == 1, "the first one shows on the Node how it ended, the others write nothing"
    run = one.start("reconcile-driver-state", DEVICE_FREE_TIMEOUT="4m", **EVICT)
    wait_until(lambda: "before anything is changed" in run.output(), "the run waits")
    assert state(one) == before
    one.tree.end_process(4242)
    assert run.end().code == 0
    assert (one.tree.driver_version, tenant.state()) == (NEW, "gone")
    placed.wait_running()


def test_a_pod_that_no_label_moves_is_refused_before_and_evicted_where_that_is_allowed(
    one: CommandRunner, placed: Operands, made: Workloads
) -> None:
    key = placed.deploy_labels["device-plugin"]
    (client,) = made.managed(1, Shape(npus=0, node_selector={key: "true"}))
    before = state(one)
    refused = one.reconcile()
    assert refused.code == 3, refused.err
    assert f"{client.key} (is placed by {key}): no label makes it leave" in refused.last_line
    assert "ENABLE_NPU_POD_EVICTION" in refused.err
    assert state(one) == before
    ended = one.reconcile(**EVICT)
    assert (ended.code, client.state(), one.tree.driver_version) == (0, "gone", NEW), ended.err
    placed.wait_running()


@pytest.mark.shares(6)
def test_after_a_failure_the_next_run_waits_for_sigterm_or_a_deploy_label_that_is_switched_off(
    one: CommandRunner, placed: Operands
) -> None:
    note, exporter = one.tree.root / NOTE.lstrip("/"), placed.deploy_labels["metrics-exporter"]
    one.hold_unread()
    failed = one.reconcile(DEVICE_FREE_TIMEOUT="1s")
    assert (failed.code, "the device is still in use" in failed.last_line) == (4, True), failed.err
    record = json.loads(note.read_text())
    assert record["attempts"] == 1
    placed.wait_running()

    before = state(one)
    run = one.start("reconcile-driver-state", DEVICE_FREE_TIMEOUT="1s")
    wait_until(lambda: "wait until " in run.output(), "the run waits")
    began_s = time.monotonic()
    ended = run.terminate()
    assert ended.code == 10, ended.err
    assert ended.at_s - began_s < 30.0, "it did not wait for the rest of its time"
    assert "as the last run failed (exit 4: the device is still in use" in ended.err
    assert "--retry-wait=0s" in ended.err
    assert state(one) == before

    (one.tree.root / "sys/module/rebellions/refcnt").write_text("0\n")
    note.write_text(json.dumps(record | {"attempts": 7}))
    run = one.start("reconcile-driver-state", DEVICE_FREE_TIMEOUT="1s")
    wait_until(lambda: "wait until " in run.output(), "the run waits, for half an hour")
    one.node.set_labels({exporter: "false"})
    wait_until(lambda: JOURNAL in one.node.annotations() or run.has_ended, "it goes on", SOON_S)
    ended = run.end()
    assert (ended.code, one.tree.driver_version) == (0, NEW), ended.err
    assert one.node.labels()[exporter] == "false"


# who is evicted


def evictions(proxy: Proxy) -> list[str]:
    """Names of the pods that an eviction was asked for, dry runs apart."""
    asked = proxy.exchanges("create", "pods/eviction")
    return [one.request.body["metadata"]["name"] for one in asked if not one.request.is_dry_run]


@pytest.mark.shares(6)
def test_workloads_of_every_kind_are_evicted_and_everything_else_stays(
    one: CommandRunner, made: Workloads, proxy: Proxy
) -> None:
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
        made.succeeded(),
        *made.managed(1, Shape(npus=0)),
        *made.managed(1, Shape(resource="nvidia.com/gpu")),
    ]
    planned = one.run("plan", "-o", "json", **EVICT)
    assert planned.code == 0, planned.err
    fates = {found["pod"]: found["fate"] for found in json.loads(planned.out)["workloads"]}
    assert fates == {**{pod.key: "evict" for pod in leave}, **{pod.key: "stay" for pod in stay[1:3]}}
    assert {pod.state() for pod in leave} == {"Running"}

    ended = one.reconcile(**EVICT)

    assert ended.code == 0, ended.err
    assert {pod.state() for pod in leave} == {"gone"}
    assert [pod.state() for pod in stay] == ["Running", "Running", "Succeeded", "Running", "Running"]
    assert sorted(evictions(proxy)) == sorted(pod.name for pod in leave)
    assert_untouched(one, LABELS)
    assert one.tree.driver_version == NEW


@pytest.mark.shares(6)
def test_the_requests_for_sixty_pods_overlap_and_are_two_each(
    one: CommandRunner, made: Workloads, proxy: Proxy
) -> None:
    pods = made.managed(60, Shape(labels={"app": "users"}))
    one.node.kubelet.stop_after("users", 1.0)
    delay_s = patient(EVICTION_S)  # what a request costs beside it grows with it
    proxy.script.add(Fault(Delay(delay_s), "create", "pods/eviction", times=ALWAYS))
    mark = proxy.mark()
    ended = one.reconcile(**EVICT)
    assert ended.code == 0, ended.err
    assert {pod.state() for pod in pods} == {"gone"}
    asked = [found for found in proxy.exchanges("create", "pods/eviction") if not found.request.is_dry_run]
    assert len(asked) == 60, "each once"
    assert len(proxy.exchanges(since=mark)) <= 2 * 60 + 16, "two requests for each, and a constant"
    moments = [(found.at_s, found.ended_at_s or found.at_s) for found in asked]
    at_once = max(sum(begun <= at < ended for begun, ended in moments) for at, _ in moments)
    assert 4 <= at_once <= EVICTIONS_AT_ONCE
    span_s = max(ended for _, ended in moments) - min(begun for begun, _ in moments)
    assert span_s < 60 * delay_s / 2
    window = json.loads(one.node.read()["metadata"]["annotations"][LAST_OUTCOME])["window"]
    assert span_s / 2 < window["parts"]["evict"] < window["seconds"]
    print(f"60 evictions of {delay_s:g} s each took {span_s:.2f} s, {at_once} at once; window: {window}")
    assert_untouched(one, LABELS)


@pytest.mark.shares(6)
def test_a_pod_replaced_between_list_and_eviction_is_never_evicted(
    one: CommandRunner, made: Workloads, proxy: Proxy
) -> None:
    (pod,) = made.managed()
    fault = Fault(Answer(503, retry_after_s=1), "create", "pods/eviction", nth=2)  # the first is the dry run
    proxy.script.add(fault)
    run = one.start("reconcile-driver-state", **EVICT)
    proxy.script.wait_fired(fault)
    new = made.replace(pod)
    ended = run.end()
    assert ended.code == 0, ended.err
    assert (new.name, new.state()) == (pod.name, "Running")


@pytest.mark.shares(6)
def test_a_drain_that_would_leave_a_workload_on_its_device_ends_with_exit_code_3(
    one: CommandRunner, made: Workloads
) -> None:
    (npu,) = made.managed(1, Shape(labels={"app": "guarded"}, grace_s=1))
    (plain,) = made.managed(1, Shape(npus=0, labels={"tier": "web"}))
    made.budget({"app": "guarded"}, min_available=1)
    drain = {"ENABLE_AUTO_DRAIN": "true", "DRAIN_POD_SELECTOR_LABEL": "tier=web", "DRAIN_TIMEOUT_SECONDS": "2"}
    ended = one.reconcile(**EVICT, **drain, POD_EVICTION_TIMEOUT="1s")
    assert ended.code == 3, ended.err
    assert npu.key in ended.last_line
    assert "The disruption budget" in ended.last_line
    assert (npu.state(), plain.state()) == ("Running", "gone")
    assert_untouched(one, LABELS, shows=("failed", 3))
    assert one.tree.driver_version == OLD


def test_sigterm_during_an_eviction_that_hangs_ends_within_five_seconds(
    one: CommandRunner, made: Workloads, proxy: Proxy
) -> None:
    made.managed()
    held = Fault(Hold(), "create", "pods/eviction", nth=2)  # the first is the dry run
    proxy.script.add(held)
    run = start_and_take(one, **EVICT)
    proxy.script.wait_fired(held)
    began_s = time.monotonic()
    ended = run.terminate()
    assert ended.code == 10, ended.err
    assert ended.at_s - began_s < patient(5.0)
    assert_untouched(one, LABELS, shows=("failed", 10))
    assert one.tree.driver_version == OLD
