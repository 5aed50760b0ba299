"""The controller on a fleet in memory: a whole rollout in as few writes as can be, and nothing while it is idle.

Controllers that die, race, lag behind and meet errors come to the end of an undisturbed rollout, each pod once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.leases import LeaseLeadership
from driver_manager.core.fleet.controller import PASS_S
from driver_manager.core.fleet_ports import FactKind
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, Terminated
from driver_manager.domain.fleet.nodes import STALE_S
from driver_manager.domain.fleet.spec import PLURAL
from driver_manager.domain.fleet.state import Announce, FleetDecision, MarkNode, Phase, RestartPod
from driver_manager.domain.fleet.status import PACE_S
from driver_manager.sandbox.apiserver import apply_merge_patch
from tests.support.fakes import fleet_scene
from tests.support.fakes.fleet_scene import NAMESPACE, ControllerRun, FakeLeadership, FleetScene, check_each_once, fleet
from tests.support.fakes.lease_api import LeaseApi

UNDER_WAY = "pod-restart-required"
REFUSED = ApiRefused("the API server refused to patch nodes (403): no", "Give this account the verb.")


def complete(nodes: int = 4, **spec: Any) -> tuple[FleetScene, ControllerRun]:
    """A fleet that serves one revision, and the controller that says so."""
    scene = fleet(nodes, **spec)
    run = ControllerRun(scene)
    run.until_phase("Complete")
    return scene, run


def upgrading(nodes: int = 4, **spec: Any) -> tuple[FleetScene, ControllerRun, str]:
    """The same with the next controller, before anything is done for a new revision; its hash."""
    scene, _ = complete(nodes, **spec)
    new = scene.set_driver("driver:2")
    return scene, ControllerRun(scene), new


def check_end(scene: FleetScene, run: ControllerRun, new: str) -> None:
    """The rollout comes to its end, each pod was restarted once."""
    run.until_complete(new)
    check_each_once(scene, new)


def refuse(run: ControllerRun, error: Exception, what: str) -> None:
    """The API server refuses what begins with this."""
    run.cluster.refuse = lambda effect: error if effect.startswith(what) else None


def allow(run: ControllerRun) -> None:
    run.cluster.refuse = lambda _: None


def decides(run: ControllerRun, change: Callable[[FleetDecision], FleetDecision]) -> None:
    """The controller gets its decisions changed like this from now on."""
    decide = run.controller._advance
    run.controller._advance = lambda fleet, now_s: change(decide(fleet, now_s))


def serving(scene: FleetScene, revision: str) -> int:
    """How many nodes serve it."""
    return list(scene.serving().values()).count(revision)


# a whole rollout


def test_a_new_template_reaches_every_node_once_in_three_writes_and_the_object_says_so() -> None:
    scene, run = complete(12)
    new = scene.set_driver("driver:2")
    run.cluster.writes.clear()
    run.until(lambda: UNDER_WAY in scene.upgrades().values(), "it begins")
    began = next(node for node, state in scene.upgrades().items() if state == UNDER_WAY)
    assert f'"revision":"{new}"' in scene.node(began)["metadata"]["annotations"][fleet_scene.KEYS.rollout]
    check_end(scene, run, new)
    assert set(scene.upgrades().values()) == {"upgrade-done"}
    conditions = {one["type"]: one["status"] for one in scene.rollout()["status"]["conditions"]}
    assert conditions == {"Ready": "True", "Reconciling": "False", "Stalled": "False"}
    of_nodes = [write for write in run.cluster.writes if not write.startswith(("patch status", "post event"))]
    assert len(of_nodes) == 3 * 12
    assert len([write for write in run.cluster.writes if write.startswith("patch status")]) <= 12
    (figures,) = run.reports[-1].rollouts.values()
    assert {place.value: count for place, count in figures.places.items() if count} == {"done": 12}
    assert (run.reports[-1].acts["MarkNode"], run.reports[-1].acts["RestartPod"]) == (24, 12)


def test_the_status_keeps_up_with_a_rollout_that_acts_at_every_decision() -> None:
    scene, run = complete(3)
    number = itertools.count()

    def always(decision: FleetDecision) -> FleetDecision:
        outlook = replace(decision.outlook, phase=Phase.PROGRESSING, reason=f"Turn{next(number)}")
        return replace(decision, outlook=outlook, acts=(Announce("Turn", "", str(next(number))),))

    decides(run, always)
    scene.edit_rollout(paused=True)
    run.cluster.writes.clear()
    run.idle_for(5.0)
    shown = run.cluster.writes.count("patch status driver")
    assert 2 <= shown <= run.cluster.writes.count("post event driver") // 2 + 1


# idleness


def test_an_idle_controller_asks_for_nothing() -> None:
    _, run = complete(3)
    run.idle_for(60.0)
    run.killer.revive()
    run.idle_for(3600.0)
    assert set(run.killer.calls) == {"changes"}


def test_nodes_that_report_that_they_live_cause_no_decision_and_a_thousand_changes_cause_one() -> None:
    scene, run = complete(3)
    run.idle_for(60.0)
    made: list[FleetDecision] = []

    def counted(decision: FleetDecision) -> FleetDecision:
        made.append(decision)
        return decision

    decides(run, counted)
    for number in range(100):
        scene.edit_node("node-1", {"metadata": {"annotations": {"heartbeat": str(number)}}})
        run.idle_for(1.0)
    assert made == []
    for number in range(1000):
        scene.edit_node("node-1", {"metadata": {"labels": {"rack": str(number)}}})
    run.idle_for(30.0)
    assert 1 <= len(made) <= 2


# the lead


def test_nothing_is_done_without_the_lead_and_its_loss_clears_the_caches() -> None:
    run = ControllerRun(fleet(2))
    lead = run.own_lead
    lead.is_ours = False
    run.idle_for(120.0)
    assert run.cluster.subjects == frozenset()
    assert set(run.killer.calls) == {"changes"}
    lead.is_ours = True
    run.until_phase("Complete")
    assert run.cluster.subjects
    lead.is_ours = False
    run.turn()
    assert run.cluster.subjects == frozenset()
    assert run.reporter.infos[-1] == "standing by: somebody leads"
    assert (run.reports[-1].leads, run.reports[-1].why_not_ready) == (False, "")


def test_each_act_asks_whether_it_may_still_be_done() -> None:
    scene, run, _ = upgrading(6, maxParallel=0)
    run.cluster.refuse = lambda what: setattr(run.own_lead, "is_sure", len(run.cluster.writes) < 2)
    run.idle_for(120.0)
    assert len(run.cluster.writes) == 3
    assert run.own_lead.asked > 3
    allow(run)
    run.own_lead.is_sure = True
    run.until(lambda: set(scene.upgrades().values()) == {"upgrade-done"}, "all done")


def test_on_a_signal_it_hands_over_at_once_even_in_the_middle() -> None:
    scene, run, _ = upgrading(4)
    run.cluster.refuse = lambda _: scene.clock.ask_to_end()
    with pytest.raises(Terminated):
        run.controller.run()
    assert run.own_lead.released == 1
    assert len(run.cluster.writes) == 1, "the act that was under way is done, no other begun"


def test_a_lease_that_cannot_be_read_is_logged_once_and_stops_every_write() -> None:
    scene, run, new = upgrading(2)
    run.turn()
    lead = run.own_lead
    lead.error, lead.is_sure = fleet_scene.UNAVAILABLE, False
    run.cluster.writes.clear()
    run.idle_for(300.0)
    assert run.cluster.writes == []
    why = "the Lease: the API server gave no usable answer. Check it."
    assert [line for line in run.reporter.warnings if line.startswith("the Lease")] == [why]
    lead.error, lead.is_sure = None, True
    check_end(scene, run, new)


def test_a_status_that_could_not_be_written_for_want_of_a_sure_lead_is_written_once_it_is_sure() -> None:
    scene, run, _ = upgrading(2)
    scene.edit_rollout(paused=True)
    run.turn()
    run.own_lead.is_sure = False
    run.idle_for(60.0)
    assert scene.phase() == "Complete"
    run.own_lead.is_sure = True
    run.until_phase("Paused", 10.0)


@pytest.mark.submission
@pytest.mark.shares(3)
@given(st.data())
def test_controllers_that_lead_in_turn_by_the_lease_never_restart_a_pod_twice(data: st.DataObject) -> None:
    scene, _, new = upgrading(4)
    api = cast(KubeApi, LeaseApi(scene.clock))
    leads = [LeaseLeadership(api, scene.clock, NAMESPACE, "lease", name) for name in ("one", "two")]
    runs = [ControllerRun(scene, leadership=lead) for lead in leads]
    end_s = scene.clock.monotonic() + 3600.0
    while not scene.is_complete(new):
        assert scene.clock.monotonic() < end_s
        which = data.draw(st.integers(0, 1))
        for _ in range(data.draw(st.integers(1, 30))):  # the other one sleeps meanwhile, and its Lease may run out
            runs[which].turn()
    check_each_once(scene, new)


@pytest.mark.parametrize("step_s", [7200.0, -7200.0])
@pytest.mark.parametrize("is_new", [False, True], ids=["the leader's", "the next leader's"])
def test_a_clock_that_is_set_fails_no_node(step_s: float, is_new: bool) -> None:
    scene, run, new = upgrading(3)
    scene.broken.update(scene.pods())
    run.until(lambda: serving(scene, new) < 3 and UNDER_WAY in scene.upgrades().values(), "a node is under way")
    before_s = scene.clock.wall()
    scene.clock.ahead_s = step_s
    if is_new:
        run = ControllerRun(scene, leadership=FakeLeadership(scene.clock, last_renewed_s=before_s))
    run.idle_for(1700.0)
    assert scene.phase() == "Progressing"
    run.until_phase("Halted", 400.0)


@pytest.mark.shares(3)
@pytest.mark.parametrize("preflight", ["off", "require"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_every_effect_the_next_one_goes_on_and_no_pod_is_restarted_twice(after: bool, preflight: str) -> None:
    for effect in itertools.count():
        scene, _, new = upgrading(2, preflight=preflight)
        died = fleet_scene.killed_again_and_again(scene, {0: (effect, after)}.get, new)
        check_each_once(scene, new)
        assert set(scene.looks.values()) <= {1}, "a result is read and not made again"
        if not died:
            break
    assert effect >= 6, "two marks and a restart of each node, at least"


@pytest.mark.submission
@pytest.mark.shares(3)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=12))
def test_killed_again_and_again_every_node_comes_to_its_end_by_one_restart(kills: list[tuple[int, bool]]) -> None:
    scene, _, new = upgrading(4)
    fleet_scene.killed_again_and_again(scene, dict(enumerate(kills)).get, new)
    check_each_once(scene, new)


# edits and errors


def edit_at_patch(scene: FleetScene, run: ControllerRun, times: float = float("inf")) -> None:
    """Another client edits node-0 right before each patch of it, `times` times."""
    number = itertools.count()

    def edit(what: str) -> None:
        if what == "patch node node-0" and (now := next(number)) < times:
            scene.edit_node("node-0", {"metadata": {"annotations": {"edited": str(now)}}})

    run.cluster.refuse = cast("Callable[[str], None]", edit)


def test_a_node_edited_between_the_facts_and_the_act_is_looked_at_again() -> None:
    scene, run, new = upgrading(2)
    edit_at_patch(scene, run, 3)
    check_end(scene, run, new)
    assert run.reporter.warnings == [], "conflicts are not logged"


@pytest.mark.parametrize("parallel", [0, 1])
def test_a_node_that_others_edit_at_every_patch_delays_no_other_node(parallel: int) -> None:
    scene, run, new = upgrading(4, maxParallel=parallel)
    edit_at_patch(scene, run)
    run.until(lambda: serving(scene, new) == 3, "the others serve it")
    assert set(scene.upgrades()) == {"node-1", "node-2", "node-3"}
    assert len(run.killer.calls) < 2000, "and it is not tried in every moment"


@pytest.mark.parametrize("parallel", [0, 1])
def test_a_refusal_for_one_node_delays_no_other_and_is_logged_once(parallel: int) -> None:
    scene, run, new = upgrading(4, maxParallel=parallel)
    refuse(run, REFUSED, "patch node node-1")
    run.until(lambda: serving(scene, new) == 3, "the others serve it")
    run.idle_for(300.0)
    why = "node node-1: the API server refused to patch nodes (403): no. Give this account the verb."
    assert [line for line in run.reporter.warnings if "node-1" in line] == [why]
    assert run.killer.calls.count("patch node") < 3 * 2 + 40, "asked again now and then"
    allow(run)
    check_end(scene, run, new)


def shown(scene: FleetScene, place: str) -> dict[str, str]:
    """The reasons in the object's status of the nodes in a place."""
    groups = scene.rollout()["status"][place]
    return {node: group["reason"] for group in groups for node in group.get("nodes", [group.get("node")])}


def test_a_node_that_cannot_be_marked_is_shown_as_waiting_with_the_reason_and_blocks_its_wave_alone() -> None:
    waves = [{"name": "canary", "count": 1}, {"name": "rest"}]
    scene, run, new = upgrading(2, maxParallel=1, waves=waves)
    refuse(run, REFUSED, "patch node node-0")
    run.until_phase("WaitingForNodes")
    seen = len(scene.rollout()["status"]["history"])
    run.idle_for(300.0)
    assert shown(scene, "waiting")["node-0"] == f"cannot begin: {REFUSED.what}"
    assert shown(scene, "underWay") == {}
    ready = next(one for one in scene.rollout()["status"]["conditions"] if one["type"] == "Ready")
    why = f"blocked: node-0; node-0 cannot begin: {REFUSED.what}"
    assert (ready["reason"], ready["message"]) == ("NodesBlocked", why)
    written = [write for write in run.cluster.writes if write.startswith("patch status")]
    assert len(written) < 10, "and not by turns as under way"
    assert (len(scene.rollout()["status"]["history"]), scene.restarts) == (seen, {})
    allow(run)
    check_end(scene, run, new)


def test_a_node_under_way_whose_end_cannot_be_noted_is_shown_with_the_reason() -> None:
    scene, run, new = upgrading(1)
    run.until(lambda: bool(scene.restarts), "its pod is restarted")
    refuse(run, REFUSED, "patch node")
    run.until(lambda: serving(scene, new) == 1, "it serves")
    run.idle_for(120.0)
    assert shown(scene, "underWay") == {"node-0": f"cannot continue: {REFUSED.what}"}
    allow(run)
    run.until_complete(new)


def test_of_a_nodes_acts_none_is_done_after_one_that_failed() -> None:
    scene, run, _ = upgrading(2)
    run.until(lambda: len(run.cluster.subjects) == 5, "all is followed")
    pods = {node: pod["metadata"] for node, pod in scene.pods().items()}
    versions = {"node-0": "1", "node-1": scene.node("node-1")["metadata"]["resourceVersion"]}
    marks = [MarkNode(node, version, None, None) for node, version in versions.items()]
    restarts = [RestartPod(NAMESPACE, pod["name"], pod["uid"], node) for node, pod in pods.items()]
    decides(run, lambda decision: replace(decision, acts=(*marks, *restarts)))
    run.until(lambda: "delete pod" in run.killer.calls, "the acts are done")
    assert [node for node, _ in scene.restarts] == ["node-1"]


@pytest.mark.parametrize("what", ["patch node", "delete pod", "patch status", "post event"])
def test_an_answer_that_is_lost_is_no_second_effect(what: str) -> None:
    scene, run, new = upgrading(3)

    def lose() -> None:
        raise fleet_scene.UNAVAILABLE

    for _ in range(3):
        run.killer.at(what, lose, after=True)
    check_end(scene, run, new)


@pytest.mark.parametrize("what", ["patch node", "delete pod", "patch status"])
def test_a_server_that_is_away_for_a_while_is_waited_for(what: str) -> None:
    scene, run, new = upgrading(3)
    back_s = scene.clock.monotonic() + 300.0
    refuse(run, fleet_scene.UNAVAILABLE, what)
    run.until(lambda: scene.clock.monotonic() >= back_s, "it is back")
    assert len(run.killer.calls) < 3000
    allow(run)
    check_end(scene, run, new)


def test_what_a_busy_server_is_asked_for_is_left_alone_for_as_long_as_it_says() -> None:
    scene, run, new = upgrading(1)
    asked: list[float] = []

    def busy(what: str) -> ApiUnavailable | None:
        if not what.startswith("patch node"):
            return None
        asked.append(scene.clock.monotonic())
        return ApiUnavailable("429", "Wait.", 20.0) if len(asked) <= 3 else None

    run.cluster.refuse = busy
    check_end(scene, run, new)
    assert min(after - before for before, after in itertools.pairwise(asked[:4])) >= 20.0
    assert len(asked) > 3


def test_two_objects_that_tell_the_same_of_one_revision_have_an_event_each(monkeypatch: pytest.MonkeyPatch) -> None:
    _, run, _ = upgrading(1)
    keys = set[str]()
    run.until(lambda: bool(run.controller._world.rollouts()), "it knows the object")
    (rollout,) = run.controller._world.rollouts()
    assert rollout.policy is not None
    monkeypatch.setattr(run.cluster, "post_event", lambda *_, key, **__: keys.add(key))
    for uid in ("first", "first", "second"):
        act = Announce("RolloutStarted", "it started", "revision/0")
        run.controller._acting.do(act, replace(rollout, uid=uid), rollout.policy)
    assert len(keys) == 2


def test_after_its_own_write_it_goes_on_without_waiting_for_the_watch() -> None:
    scene, run, new = upgrading(1)
    run.until(lambda: "patch node" in run.killer.calls, "the node is marked")
    run.cluster.is_held = True
    run.idle_for(5.0)
    assert run.killer.calls.count("patch node") == 1
    assert scene.restarts == {("node-0", new): 1}


def test_what_cannot_be_seen_is_not_decided_on() -> None:
    scene, run, new = upgrading(2)
    run.turn()
    run.turn()
    for kind in FactKind:
        run.cluster.lose(kind)
    run.turn()
    run.cluster.writes.clear()
    run.idle_for(300.0)
    assert run.cluster.writes == []
    assert run.reports[-1].why_not_ready == "the API server did not answer"
    count = len(run.reporter.warnings)
    run.cluster.lose(FactKind.NODES, "the API server still did not answer")
    run.turn()
    assert len(run.reporter.warnings) == count, "it is logged once"
    for kind in FactKind:
        run.cluster.find(kind)
    check_end(scene, run, new)
    assert run.reports[-1].why_not_ready == ""


def test_a_refused_pod_is_retried_seldom_and_shown_in_the_status() -> None:
    scene, run, new = upgrading(40, preflight="require")
    refuse(run, ApiRefused("may not create pods", "Give the right."), "create pod")
    run.until_phase("Stalled")
    run.killer.revive()
    run.idle_for(300.0)
    assert run.killer.calls.count("create pod") <= 15  # after 1, 2, 4, 8 and 16 s, then each 30 s
    message = scene.rollout()["status"]["conditions"][0]["message"]
    assert message == "the preflight cannot run: may not create pods"
    allow(run)
    check_end(scene, run, new)


def test_a_pod_whose_name_is_taken_by_one_that_is_never_shown_is_asked_for_seldom_and_the_reason_is_shown() -> None:
    scene, run, new = upgrading(2, preflight="require")
    run.until(lambda: len(scene.task_pods()) == 2, "both are looked at")
    hidden = next(pod for pod in scene.task_pods() if pod["spec"]["nodeName"] == "node-0")["metadata"]["name"]
    bare = {"metadata": {"labels": None}}
    scene.store.patch("pods", hidden, lambda pod: apply_merge_patch(pod, bare), namespace=NAMESPACE)
    asked = run.killer.calls.count("create pod")
    run.idle_for(300.0)
    assert 5 < run.killer.calls.count("create pod") - asked < 150, "every few seconds"
    assert len([line for line in run.reporter.infos if line.startswith("node node-0: preflight pod")]) == 1
    why = f"pod {NAMESPACE}/{hidden} exists, but its labels or its owner were changed: delete it"
    assert shown(scene, "waiting")["node-0"] == f"cannot begin: {why}"
    scene.store.delete("pods", hidden, namespace=NAMESPACE, grace_s=0)
    check_end(scene, run, new)


# objects and records that cannot be read or are gone


def test_a_rollout_that_cannot_be_read_says_what_is_wrong_and_goes_on_once_it_is_corrected() -> None:
    scene = fleet(2, windows="at night")
    run = ControllerRun(scene)
    run.until_phase("Stalled")
    assert "spec.windows is 'at night'" in scene.rollout()["status"]["conditions"][0]["message"]
    scene.edit_rollout(windows="00:00-24:00")
    run.until_phase("Complete")


def left_behind(nodes: int = 3, parallel: int = 2) -> tuple[FleetScene, ControllerRun, str]:
    """A rollout of which nodes are marked and keep their pods still; the new revision."""
    scene, run, new = upgrading(nodes, maxParallel=parallel)
    run.until(lambda: list(scene.upgrades().values()).count(UNDER_WAY) == (parallel or nodes), "they are under way")
    return scene, run, new


@pytest.mark.parametrize("has_another", [False, True])
def test_the_next_leader_finds_the_nodes_of_a_rollout_that_was_deleted_without_a_leader(has_another: bool) -> None:
    scene, _, _ = left_behind()
    before = scene.serving()
    scene.store.delete(PLURAL, "driver", namespace=NAMESPACE)
    if has_another:
        scene.add_rollout("other", daemonSet="other")
    run = ControllerRun(scene)
    run.until(lambda: UNDER_WAY not in scene.upgrades().values(), "none is")
    run.idle_for(60.0)
    assert scene.serving() == before
    assert (FactKind.NODES in {subject.kind for subject in run.cluster.subjects}) is has_another
    run.killer.revive()
    run.idle_for(600.0)
    assert set(run.killer.calls) == {"changes"}


def test_a_pod_whose_deletion_may_have_come_through_is_waited_for_before_its_node_is_released() -> None:
    scene, run, _ = upgrading(1)
    refuse(run, fleet_scene.UNAVAILABLE, "delete pod")
    run.until(lambda: "delete pod" in run.killer.calls, "the answer is lost")
    newest, began_s = scene.set_driver("driver:3"), scene.clock.monotonic()
    allow(run)
    run.until(lambda: bool(scene.restarts), "the pod is deleted")
    assert scene.clock.monotonic() - began_s > STALE_S - 5.0
    check_end(scene, run, newest)


def test_a_rollout_of_another_profile_is_refused_after_a_while_and_then_left_to_a_controller_of_that_profile() -> None:
    scene, _ = complete(2)
    scene.set_driver("driver:2", "nvidia")
    run, began_s = ControllerRun(scene), scene.clock.monotonic()
    run.until_phase("Stalled")
    assert scene.clock.monotonic() - began_s >= PACE_S
    (stalled,) = [one for one in scene.rollout()["status"]["conditions"] if one["type"] == "Stalled"]
    why = "DaemonSet driver has profile nvidia, and this controller rebellions"
    shown = ("AnotherProfile", f"{why}: install the rollout controller of nvidia")
    assert (stalled["reason"], stalled["message"]) == shown
    assert "profile" not in scene.rollout()["status"]
    assert run.reports[-1].rollouts[f"{NAMESPACE}/driver"].phase is Phase.STALLED
    run.idle_for(60.0)
    assert run.cluster.writes == ["patch status driver"]
    theirs = {"phase": "Progressing", "profile": "nvidia"}
    scene.store.patch(PLURAL, "driver", lambda one: one | {"status": theirs}, namespace=NAMESPACE, status=True)
    run.idle_for(600.0)
    assert scene.rollout()["status"] == theirs
    assert (run.cluster.writes, run.reports[-1].rollouts, scene.restarts) == (["patch status driver"], {}, {})


def test_many_nodes_that_are_left_behind_keep_the_loop_from_nothing_else_for_long() -> None:
    scene, run, _ = left_behind(6, 0)
    scene.store.delete(PLURAL, "driver", namespace=NAMESPACE)
    run.cluster.refuse = lambda what: scene.clock.sleep(1.5) if what.startswith("patch node") else None
    took_s = list[float]()
    while UNDER_WAY in scene.upgrades().values():
        before = len(run.cluster.writes)
        run.turn()
        took_s.append(1.5 * (len(run.cluster.writes) - before))
    assert max(took_s) <= PASS_S + 1.5


def test_nodes_of_a_rollout_that_cannot_be_read_stay_and_those_of_one_that_is_gone_are_found() -> None:
    scene, run, new = left_behind()
    scene.edit_rollout(waves=[{"name": "bad", "nodeSelector": "a=b,="}])
    run.until_phase("Stalled")
    scene.add_rollout("other", daemonSet="other")
    run.until(lambda: scene.phase("other") == "Stalled", "it has no DaemonSet")
    assert UNDER_WAY in scene.upgrades().values()
    for name in ("driver", "other"):
        scene.store.delete(PLURAL, name, namespace=NAMESPACE)
    scene.add_rollout("after")
    ControllerRun(scene).until(lambda: serving(scene, new) == 3, "all are upgraded")
    check_each_once(scene, new)
