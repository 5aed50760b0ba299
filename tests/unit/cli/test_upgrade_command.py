"""`upgrade NODE`: in the sandbox's fleet, as a person tries it; and its waits, with a cluster that a test scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from driver_manager.adapters.kube.fleet import KubeNodeDesk
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.cli.upgrade import NodeUpgrade, run_upgrade
from driver_manager.domain import errors
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import Conflict, ExitCode, UpgradeUnended
from driver_manager.domain.fleet.spec import PLURAL, Task, TaskPod
from driver_manager.domain.fleet.upgrade import NodeDriver, NodeScene, RunEnd
from driver_manager.domain.journal import Journal, Owner, encode
from driver_manager.domain.node import Eviction, EvictionOutcome
from driver_manager.profiles import builtin
from driver_manager.sandbox.apiserver import Deny
from driver_manager.sandbox.fleet import DRIVER, FLEET_SCENARIOS, SandboxFleet
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.fleet_builders import DAEMON_SET, NEW, REVISIONS, new_pod, pod
from tests.support.fakes.fleet_builders import node as fleet_node
from tests.support.fakes.schemas import conforms
from tests.support.fakes.typed import Prompt

SCENARIO = FLEET_SCENARIOS["fleet"]
FIRST, SECOND = SCENARIO.nodes[:2]
"""The runs of the first node are real."""

TEMPLATE = '{"spec":{"initContainers":[{"name":"m","image":"m:2","args":["reconcile-driver-state"]}]}}'


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxFleet]:
    """The sandbox's fleet, with its rollout paused."""
    with SandboxFleet(SCENARIO, builtin()["rebellions"], tmp_path, lambda _: None) as found:
        found.store.merge(PLURAL, DRIVER, {"spec": {"paused": True}}, namespace=found.namespace)
        for name, value in (("KUBECONFIG", found.kubeconfig), ("LOG_FORMAT", "text"), ("HOME", tmp_path)):
            monkeypatch.setenv(name, str(value))
        yield found


@pytest.mark.submission
@pytest.mark.shares(3)
def test_the_sandbox_shows_a_failed_upgrade_a_good_one_and_the_fleet(sandbox: SandboxFleet, prompt: Prompt) -> None:
    def upgrade(node: str) -> tuple[int, Any]:
        code, out, _ = prompt(f"upgrade {node} --wait --timeout 3m -o json")
        return code, conforms("upgrade", out)

    sandbox.set_release(SCENARIO.bad)
    code, found = upgrade(FIRST)
    assert (code, found["exitCode"], found["evicted"]) == (ExitCode.MODULE_FAILED, 5, True)
    shown = prompt.shows("cluster", "status --all")
    assert (shown["needAttention"], shown["total"]) == (1, len(SCENARIO.nodes))
    assert (shown["nodes"][0]["node"], shown["nodes"][0]["state"]) == (FIRST, "held")
    sandbox.set_release(SCENARIO.good)
    code, found = upgrade(FIRST)
    assert (code, found["exitCode"], found["version"]) == (0, 0, SCENARIO.good.version)
    assert found["window"]["seconds"] > 0
    assert upgrade(SECOND)[0] == ExitCode.DONE
    nothing = f"node {FIRST}: nothing newer: the driver pod has the newest template and is ready\n"
    assert prompt(f"upgrade {FIRST}")[:2] == (ExitCode.DONE, nothing)
    sandbox.server.deny.append(Deny("create", "pods/eviction"))
    sandbox.set_release(SCENARIO.bad)
    assert 'cannot create resource "pods/eviction"' in prompt.errors(f"upgrade {FIRST}", code=ExitCode.API_REFUSED)
    assert "node no-such-node does not exist" in prompt.errors("upgrade no-such-node")


class FakeDesk:
    """See KubeNodeDesk. `done` is what the upgrade has done; `answers` are those to evictions."""

    name = "a"

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.pods: tuple[NodeDriver, ...] = (NodeDriver(pod("a"), "driver"),)
        self.task: TaskPod | None = None
        self.is_cleared = False
        self.done: list[str] = []
        self.answers: list[Eviction] = []
        self.errors: list[Exception] = []

    def node(self) -> dict[str, Any]:
        metadata = {"name": "a", "uid": "u", "resourceVersion": "1"}
        taken = encode(Journal(Owner("npu/clear", "t"), "boot", cleared=NEW))
        notes = {builtin()["nvidia"].keys.journal: taken} if self.is_cleared else {}
        return {"metadata": {**metadata, "annotations": notes}}

    def drivers(self, _: str) -> tuple[NodeDriver, ...]:
        if self.errors:
            raise self.errors.pop()
        return self.pods

    def scene(self, pods: tuple[NodeDriver, ...], _: object) -> NodeScene:
        return NodeScene(fleet_node("a"), pods, DAEMON_SET, tuple(replace(one, template=TEMPLATE) for one in REVISIONS))

    def evict(self, driver: Any, *, dry_run: bool = False) -> Eviction:
        answer = self.answers.pop(0) if self.answers else Eviction(EvictionOutcome.ACCEPTED)
        if dry_run:
            return answer
        self.done.append(f"evict {driver.name}: {answer.outcome.value}")
        if answer.outcome is not EvictionOutcome.BLOCKED:
            self.pods = ()
            self.clock.after(3.0, self.serve)
        return answer

    def serve(self) -> None:
        self.pods = (NodeDriver(new_pod("a"), "driver", end=RunEnd(0, "")),)

    def create_pod(self, namespace: str, body: Any) -> None:
        self.done.append(f"create {body['metadata']['labels']['driver-manager.rebellions.ai/task']}")
        self.task = TaskPod(namespace, body["metadata"]["name"], "t", "a", NEW, Task.CLEAR, 0.0)

    def task_pod(self, *_: str) -> TaskPod | None:
        return self.task

    def delete_pod(self, *_: str) -> None:
        self.done.append("delete pod")
        self.task = None


@pytest.fixture
def desk() -> FakeDesk:
    return FakeDesk(FakeClock())


def upgrade_of(desk: FakeDesk, profile: str = "rebellions", timeout_s: float = 600.0) -> NodeUpgrade:
    clock, end_of_wait = cast("SystemClock", desk.clock), Deadline.after(timeout_s, desk.clock.monotonic)
    ports = (cast("KubeNodeDesk", desk), clock, RecordingReporter())
    return NodeUpgrade(*ports, builtin()[profile], "npu", "driver", end_of_wait)


def test_a_pod_that_is_replaced_already_is_followed_and_not_evicted(desk: FakeDesk) -> None:
    desk.answers = [Eviction(EvictionOutcome.GONE)]
    report = run_upgrade(upgrade_of(desk), waits=True)
    assert (report.is_evicted, report.result, desk.done) == (False, None, ["evict driver-a-before: gone"])
    assert report.what.startswith("nothing newer")


@pytest.mark.parametrize("profile", ["rebellions", "nvidia"])
def test_an_outage_of_the_api_server_ends_no_wait(desk: FakeDesk, profile: str) -> None:
    desk.is_cleared = True
    for at_s in (0.5, 1.0, 2.0, 2.5):
        desk.clock.after(at_s, lambda: desk.errors.append(errors.ApiUnavailable("no usable answer", "Check it.")))
    desk.clock.after(2.0, lambda: end(desk, 0))
    report = run_upgrade(upgrade_of(desk, profile), waits=True)
    assert (report.result and report.result.code) == 0


def test_a_run_that_does_not_end_in_time_goes_on(desk: FakeDesk) -> None:
    desk.clock.after(1.0, lambda: setattr(desk, "serve", lambda: None))
    with pytest.raises(UpgradeUnended) as late:
        run_upgrade(upgrade_of(desk, timeout_s=2.0), waits=True)
    what = "did not end within 2 s: waits for the new driver pod" in late.value.what
    assert (late.value.exit_code, what) == (ExitCode.ROLLOUT_STUCK, True)


EVICTED = "evict driver-a-before: accepted"


@pytest.mark.parametrize(
    ("meanwhile", "done"),
    [
        (lambda desk: setattr(desk, "is_cleared", True), [EVICTED, "delete pod"]),
        (lambda desk: end(desk, 0), [EVICTED, "delete pod"]),
        (lambda desk: end(desk, 3), ["delete pod"]),
    ],
    ids=["it holds the node", "there was no pod to disturb", "it fails"],
)
def test_a_node_whose_container_unloads_is_cleared_before_its_pod_is_evicted(
    desk: FakeDesk, meanwhile: Callable[[FakeDesk], None], done: list[str]
) -> None:
    desk.clock.after(2.0, lambda: meanwhile(desk))
    desk.clock.after(6.0, lambda: end(desk, desk.task.exit_code or 0 if desk.task is not None else 0))
    report = run_upgrade(upgrade_of(desk, "nvidia"), waits=True)
    code = 0 if len(done) > 1 else ExitCode.PODS_REMAIN
    assert (desk.done, report.result and report.result.code) == (["create clear", *done], code)


def end(desk: FakeDesk, code: int) -> None:
    if desk.task is not None:
        desk.task = replace(desk.task, exit_code=code, has_ended=True, message="jobs/train-0 does not leave")


def test_a_node_whose_driver_pod_may_not_be_evicted_is_not_cleared(desk: FakeDesk) -> None:
    desk.answers = [Eviction(EvictionOutcome.BLOCKED, "the disruption budget needs 1 pod")] * 99
    with pytest.raises(errors.EvictionRefused, match="disruption budget") as refused:
        run_upgrade(upgrade_of(desk, "nvidia", 60.0), waits=True)
    assert refused.value.remedy.startswith("Make room in the PodDisruptionBudget (more replicas")
    assert desk.done == []


def test_no_pod_is_awaited_of_a_daemon_set_that_is_gone(desk: FakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    def scene(pods: tuple[NodeDriver, ...], keys: object) -> NodeScene:
        if not desk.pods:
            raise Conflict("DaemonSet npu/driver is gone", "")
        return FakeDesk.scene(desk, pods, keys)

    monkeypatch.setattr(desk, "scene", scene)
    with pytest.raises(Conflict, match="is gone"):
        run_upgrade(upgrade_of(desk), waits=True)
    assert desk.done == [EVICTED]


@pytest.mark.parametrize("code", [None, 137])
def test_a_plan_whose_image_cannot_be_pulled_ends_with_that_reason_alone(
    desk: FakeDesk, capsys: pytest.CaptureFixture[str], code: int | None
) -> None:
    def happen(**changes: Any) -> None:
        desk.task = replace(cast("TaskPod", desk.task), **changes)

    desk.clock.after(1.0, lambda: happen(why_waiting="ImagePullBackOff: no such image"))
    late = "DeadlineExceeded Pod was active on the node longer than the specified deadline"
    desk.clock.after(300.0, lambda: happen(why_waiting="", exit_code=code, has_ended=True, message=late))
    with pytest.raises(UpgradeUnended, match="ended without a result: ImagePullBackOff: no such image; DeadlineExc"):
        upgrade_of(desk).plan("json")
    assert (desk.done, capsys.readouterr().out) == (["create preflight", "delete pod"], "")


def test_a_node_that_is_not_ready_gets_no_pod_for_a_plan(desk: FakeDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = replace(desk.scene(desk.pods, None), node=fleet_node("a", is_ready=False))
    monkeypatch.setattr(desk, "scene", lambda *_: lost)
    with pytest.raises(errors.PreflightFailed, match="node a is not Ready"):
        upgrade_of(desk).plan("text")
    assert desk.done == []


def test_an_interrupt_deletes_the_pod_that_clears(desk: FakeDesk) -> None:
    desk.clock.after(2.0, desk.clock.ask_to_end)
    with pytest.raises(errors.Terminated):
        run_upgrade(upgrade_of(desk, "nvidia"), waits=True)
    assert desk.done == ["create clear", "delete pod"]
