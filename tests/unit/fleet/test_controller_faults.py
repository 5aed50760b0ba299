"""Controllers that die, race, lag behind and meet errors: the end is that of an undisturbed rollout, each pod once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.leases import LeaseLeadership
from driver_manager.core.fleet_ports import FactKind
from driver_manager.domain.errors import ApiRefused, ApiUnavailable
from driver_manager.domain.fleet.spec import Fleet
from driver_manager.domain.fleet.state import Act, Announce, FleetDecision, MarkNode, RestartPod
from tests.support.fakes.fleet_scene import (
    NAMESPACE,
    UNAVAILABLE,
    ControllerRun,
    FakeLeadership,
    FleetScene,
    check_each_once,
    fleet,
    killed_again_and_again,
)
from tests.support.fakes.lease_api import LeaseApi

REFUSED = ApiRefused("the API server refused to patch nodes (403): no", "Give this account the verb.")


def upgrading(nodes: int = 4, **spec: object) -> tuple[FleetScene, str]:
    """A fleet that serves one revision and is to get another; its hash."""
    scene = fleet(nodes, **spec)
    ControllerRun(scene).until_phase("Complete")
    return scene, scene.set_driver("driver:2")


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("preflight", ["off", "require"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_every_effect_the_next_one_goes_on_and_no_pod_is_restarted_twice(after: bool, preflight: str) -> None:
    for effect in itertools.count():
        scene, new = upgrading(2, preflight=preflight)
        planned = {0: (effect, after)}
        died = killed_again_and_again(scene, planned.get, new)
        check_each_once(scene, new)
        assert set(scene.looks.values()) <= {1}, "a result is read and not made again"
        if not died:
            break
    assert effect >= 6, "two marks and a restart of each node, at least"


@pytest.mark.submission
@pytest.mark.shares(3)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12))
def test_killed_again_and_again_every_node_comes_to_the_new_revision_by_one_restart(
    kills: list[tuple[int, bool]],
) -> None:
    scene, new = upgrading(4)
    killed_again_and_again(scene, dict(enumerate(kills)).get, new)
    check_each_once(scene, new)


def test_a_node_edited_between_the_facts_and_the_act_is_looked_at_again() -> None:
    scene, new = upgrading(2)
    run = ControllerRun(scene)
    edits = iter(range(3))

    def edit(what: str) -> None:
        if what == "patch node node-0" and next(edits, None) is not None:
            scene.edit_node("node-0", {"metadata": {"annotations": {"edited": str(scene.clock.now)}}})

    run.cluster.refuse = cast("Callable[[str], None]", edit)
    run.until_complete(new)
    check_each_once(scene, new)
    assert run.reporter.warnings == [], "somebody was faster: that is no news"


@pytest.mark.parametrize("parallel", [0, 1])
def test_a_node_that_others_edit_at_every_patch_keeps_nobody_else_back(parallel: int) -> None:
    scene, new = upgrading(4, maxParallel=parallel)
    run = ControllerRun(scene)

    def edit(what: str) -> None:
        if what == "patch node node-0":
            scene.edit_node("node-0", {"metadata": {"annotations": {"edited": str(len(run.killer.calls))}}})

    run.cluster.refuse = cast("Callable[[str], None]", edit)
    run.until(lambda: set(scene.upgrades()) == {"node-1", "node-2", "node-3"}, "the others go")
    run.until(lambda: list(scene.serving().values()).count(new) == 3, "they serve it")
    assert len(run.killer.calls) < 2000, "and it is not tried in every moment"


@pytest.mark.parametrize("parallel", [0, 1])
def test_what_one_node_is_refused_keeps_nobody_else_back_and_is_said_once(parallel: int) -> None:
    scene, new = upgrading(4, maxParallel=parallel)
    run = ControllerRun(scene)
    run.cluster.refuse = lambda what: REFUSED if what == "patch node node-1" else None
    run.until(lambda: list(scene.serving().values()).count(new) == 3, "the others serve it")
    run.idle_for(300.0)
    assert [line for line in run.reporter.warnings if "node-1" in line] == [
        "node node-1: the API server refused to patch nodes (403): no. Give this account the verb."
    ]
    tried = [call for call in run.killer.calls if call == "patch node"]
    assert len(tried) < 3 * 2 + 40, "asked again now and then"
    run.cluster.refuse = lambda _: None
    run.until_complete(new)
    check_each_once(scene, new)


def shown(scene: FleetScene, place: str) -> dict[str, str]:
    """The reasons in the object's status of the nodes in a place."""
    groups = scene.rollout()["status"][place]
    return {node: group["reason"] for group in groups for node in group.get("nodes", [group.get("node")])}


def test_a_node_that_cannot_be_marked_is_shown_as_waiting_with_the_reason_and_blocks_its_wave_alone() -> None:
    waves = [{"name": "canary", "count": 1}, {"name": "rest"}]
    scene, new = upgrading(2, maxParallel=1, waves=waves)
    run = ControllerRun(scene)
    run.cluster.refuse = lambda what: REFUSED if what == "patch node node-0" else None
    run.until_phase("WaitingForNodes")
    seen = len(scene.rollout()["status"]["history"])
    run.idle_for(300.0)
    assert shown(scene, "waiting")["node-0"] == f"cannot begin: {REFUSED.what}"
    assert shown(scene, "underWay") == {}
    ready = next(one for one in scene.rollout()["status"]["conditions"] if one["type"] == "Ready")
    assert (ready["reason"], ready["message"]) == (
        "NodesBlocked",
        f"blocked: node-0; node-0 cannot begin: {REFUSED.what}",
    )
    written = [write for write in run.cluster.writes if write.startswith("patch status")]
    assert len(written) < 10, "and not by turns as under way"
    assert (len(scene.rollout()["status"]["history"]), scene.restarts) == (seen, {})
    run.cluster.refuse = lambda _: None
    run.until_complete(new)
    check_each_once(scene, new)


def test_a_node_under_way_whose_end_cannot_be_noted_is_shown_with_the_reason() -> None:
    scene, new = upgrading(1)
    run = ControllerRun(scene)
    run.until(lambda: bool(scene.restarts), "its pod is restarted")
    run.cluster.refuse = lambda what: REFUSED if what.startswith("patch node") else None
    run.until(lambda: scene.serving().get("node-0") == new, "it serves")
    run.idle_for(120.0)
    assert shown(scene, "underWay") == {"node-0": f"cannot continue: {REFUSED.what}"}
    run.cluster.refuse = lambda _: None
    run.until_complete(new)


def test_a_pod_whose_name_is_taken_by_one_that_is_never_shown_is_asked_for_seldom_and_the_reason_is_shown() -> None:
    scene, new = upgrading(2, preflight="require")
    run = ControllerRun(scene)
    run.until(lambda: len(scene.task_pods()) == 2, "both are looked at")
    hidden = next(pod for pod in scene.task_pods() if pod["spec"]["nodeName"] == "node-0")["metadata"]["name"]
    scene.store.patch(
        "pods", hidden, lambda one: one | {"metadata": {**one["metadata"], "labels": {}}}, namespace=NAMESPACE
    )
    asked = run.killer.calls.count("create pod")
    run.idle_for(300.0)
    assert 5 < run.killer.calls.count("create pod") - asked < 150, "every few seconds"
    made = [line for line in run.reporter.infos if line.startswith("node node-0: preflight pod")]
    assert len(made) == 1
    why = f"pod {NAMESPACE}/{hidden} exists, but its labels or its owner were changed: delete it"
    assert shown(scene, "waiting")["node-0"] == f"cannot begin: {why}"
    scene.store.delete("pods", hidden, namespace=NAMESPACE, grace_s=0)
    run.until_complete(new)
    check_each_once(scene, new)


def test_acts_behind_one_that_failed_wait_for_it() -> None:
    scene, _ = upgrading(1)
    run = ControllerRun(scene)
    run.cluster.refuse = lambda what: UNAVAILABLE if what.startswith("patch node") else None
    run.idle_for(120.0)
    assert scene.restarts == {}, "a pod whose node is not marked is not restarted"


def acted(run: ControllerRun, *acts: Act) -> None:
    """The controller gets exactly these acts from its next decision."""
    decide = run.controller._advance

    def given(fleet: Fleet, now_s: float) -> FleetDecision:
        run.controller._advance = decide
        return replace(decide(fleet, now_s), acts=acts)

    run.controller._advance = given


def test_of_a_nodes_acts_none_is_done_after_one_that_failed() -> None:
    scene, _ = upgrading(2)
    run = ControllerRun(scene)
    run.until(lambda: len(run.cluster.subjects) == 5, "all is followed")
    pods = {node: pod["metadata"] for node, pod in scene.pods().items()}
    versions = {"node-0": "1", "node-1": scene.node("node-1")["metadata"]["resourceVersion"]}
    marks = [MarkNode(node, version, None, None) for node, version in versions.items()]
    restarts = [RestartPod(NAMESPACE, pod["name"], pod["uid"], node) for node, pod in pods.items()]
    acted(run, *marks, *restarts)
    run.until(lambda: "delete pod" in run.killer.calls, "the acts are done")
    assert [node for node, _ in scene.restarts] == ["node-1"]


def test_a_deletion_that_the_watch_has_not_shown_is_not_sent_again() -> None:
    scene, new = upgrading(1)
    run = ControllerRun(scene)
    run.until(lambda: "delete pod" in run.killer.calls, "the pod is deleted")
    run.cluster.is_held = True
    run.idle_for(600.0)
    assert run.killer.calls.count("delete pod") == 1
    run.cluster.is_held = False
    run.until_complete(new)


@pytest.mark.parametrize("what", ["patch node", "delete pod", "patch status", "post event"])
def test_an_answer_that_is_lost_is_no_second_effect(what: str) -> None:
    scene, new = upgrading(3)
    run = ControllerRun(scene)

    def lose() -> None:
        raise UNAVAILABLE

    for _ in range(3):
        run.killer.at(what, lose, after=True)
    run.until_complete(new)
    check_each_once(scene, new)


@pytest.mark.submission
@pytest.mark.parametrize("what", ["patch node", "delete pod", "patch status"])
def test_a_server_that_is_away_for_a_while_is_waited_for(what: str) -> None:
    scene, new = upgrading(3)
    run = ControllerRun(scene)
    back_s = scene.clock.monotonic() + 300.0
    run.cluster.refuse = lambda said: (
        UNAVAILABLE if said.startswith(what) and scene.clock.monotonic() < back_s else None
    )
    run.until(lambda: scene.clock.monotonic() >= back_s, "it is back")
    assert len(run.killer.calls) < 3000
    run.until(lambda: set(scene.serving().values()) == {new}, "all serve it")
    run.until_complete(new)
    check_each_once(scene, new)


def test_what_a_busy_server_is_asked_for_is_left_alone_for_as_long_as_it_says() -> None:
    scene, new = upgrading(1)
    run = ControllerRun(scene)
    asked: list[float] = []

    def busy(what: str) -> ApiUnavailable | None:
        if not what.startswith("patch node"):
            return None
        asked.append(scene.clock.monotonic())
        return ApiUnavailable("429", "Wait.", 20.0) if len(asked) <= 3 else None

    run.cluster.refuse = busy
    run.until_complete(new)
    pauses_s = [after - before for before, after in itertools.pairwise(asked[:4])]
    assert len(pauses_s) == 3
    assert min(pauses_s) >= 20.0
    check_each_once(scene, new)


def test_two_objects_that_tell_the_same_of_one_revision_have_an_event_each(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, _ = upgrading(1)
    run, keys = ControllerRun(scene), set[str]()
    run.until(lambda: bool(run.controller._world.rollouts()), "it knows the object")
    (rollout,) = run.controller._world.rollouts()
    assert rollout.policy is not None
    monkeypatch.setattr(run.cluster, "post_event", lambda *_, key, **__: keys.add(key))
    for uid in ("first", "first", "second"):
        act = Announce("RolloutStarted", "it started", "revision/0")
        run.controller._acting.do(act, replace(rollout, uid=uid), rollout.policy)
    assert len(keys) == 2


def test_a_watch_that_lags_behind_our_own_writes_makes_no_second_restart() -> None:
    scene, new = upgrading(3, maxParallel=1)
    run = ControllerRun(scene)
    while set(scene.serving().values()) != {new}:
        run.cluster.is_held = True
        run.idle_for(60.0)
        run.cluster.is_held = False
        run.turn()
        assert sum(state == "pod-restart-required" for state in scene.upgrades().values()) <= 1
    run.until_complete(new)
    check_each_once(scene, new)


def test_after_its_own_write_it_goes_on_without_waiting_for_the_watch() -> None:
    scene, new = upgrading(1)
    run = ControllerRun(scene)
    run.until(lambda: "patch node" in run.killer.calls, "the node is marked")
    run.cluster.is_held = True
    run.idle_for(5.0)
    assert run.killer.calls.count("patch node") == 1
    assert scene.restarts == {("node-0", new): 1}


def test_facts_older_than_our_own_write_change_nothing() -> None:
    scene, new = upgrading(2, maxParallel=1)
    run = ControllerRun(scene)
    run.until(lambda: bool(scene.restarts), "one is under way")
    for subject in run.cluster.subjects:
        run.cluster.list_again(subject)
    run.until_complete(new)
    check_each_once(scene, new)


def test_what_cannot_be_seen_is_not_decided_on() -> None:
    scene, new = upgrading(2)
    run = ControllerRun(scene)
    run.turn()
    run.turn()
    for kind in FactKind:
        run.cluster.lose(kind)
    run.turn()
    run.cluster.writes.clear()
    run.idle_for(300.0)
    assert run.cluster.writes == []
    assert run.reports[-1].why_not_ready == "the API server did not answer"
    said = len(run.reporter.warnings)
    run.cluster.lose(FactKind.NODES, "the API server still did not answer")
    run.turn()
    assert len(run.reporter.warnings) == said, "it is said once"
    for kind in FactKind:
        run.cluster.find(kind)
    run.until_complete(new)
    check_each_once(scene, new)
    assert run.reports[-1].why_not_ready == ""


def test_a_lease_that_cannot_be_read_is_said_once_and_stops_every_act() -> None:
    scene, new = upgrading(2)
    lead = FakeLeadership(scene.clock)
    run = ControllerRun(scene, leadership=lead)
    run.turn()
    lead.error, lead.is_sure = UNAVAILABLE, False
    run.cluster.writes.clear()
    run.idle_for(300.0)
    assert run.cluster.writes == []
    assert [line for line in run.reporter.warnings if line.startswith("the Lease")] == [
        "the Lease: the API server gave no usable answer. Check it."
    ]
    lead.error, lead.is_sure = None, True
    run.until(lambda: set(scene.serving().values()) == {new}, "all serve it")
    run.until_complete(new)
    check_each_once(scene, new)


def test_a_status_that_could_not_be_written_for_want_of_a_sure_lead_is_written_once_it_is_sure() -> None:
    scene, _ = upgrading(2)
    lead = FakeLeadership(scene.clock)
    run = ControllerRun(scene, leadership=lead)
    scene.edit_rollout(paused=True)
    run.turn()
    lead.is_sure = False
    run.idle_for(60.0)
    assert scene.phase() == "Complete"
    lead.is_sure = True
    run.until_phase("Paused", 10.0)


def test_two_controllers_that_both_believe_to_lead_restart_no_pod_twice() -> None:
    scene, new = upgrading(6, maxParallel=2)
    runs = [ControllerRun(scene), ControllerRun(scene)]
    while set(scene.serving().values()) != {new}:
        for run in runs:
            run.turn()
    runs[0].until_phase("Complete")
    check_each_once(scene, new)


@pytest.mark.submission
@pytest.mark.shares(3)
@given(st.data())
def test_controllers_that_lead_in_turn_by_the_lease_never_restart_a_pod_twice(data: st.DataObject) -> None:
    scene, new = upgrading(4)
    api = LeaseApi(scene.clock)
    runs = [
        ControllerRun(scene, leadership=LeaseLeadership(cast(KubeApi, api), scene.clock, NAMESPACE, "lease", name))
        for name in ("one", "two")
    ]
    end_s = scene.clock.monotonic() + 3600.0
    while not scene.is_complete(new):
        assert scene.clock.monotonic() < end_s
        which = data.draw(st.integers(0, 1))
        for _ in range(data.draw(st.integers(1, 30))):  # the other one sleeps meanwhile, and its Lease may run out
            runs[which].turn()
    check_each_once(scene, new)


def test_a_record_that_cannot_be_read_is_no_other_nodes_error() -> None:
    scene, new = upgrading(2)
    scene.edit_node("node-1", {"metadata": {"annotations": {"rebellions.ai/npu-driver-manager.rollout": "{"}}})
    run = ControllerRun(scene)
    run.until(lambda: new in scene.serving().values(), "the other node goes")
    assert "node-1" not in {node for node, revision in scene.serving().items() if revision == new}
