"""A taken node is cleared before its driver pod is deleted; one that cannot be cleared keeps that pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.nodes import AGAIN_S
from driver_manager.domain.fleet.spec import (
    Fleet,
    FleetNode,
    OnHalt,
    Revision,
    RolloutPolicy,
    Task,
    TaskPod,
    UpgradeState,
)
from driver_manager.domain.fleet.state import CreatePod, DeletePod, MarkNode, NodePhase, Phase, PodMaker, RestartPod
from driver_manager.domain.node_state import NodeState
from tests.support.fakes.fleet_builders import NEW, NOW_S, OLD, OTHER, fleet, new_pod, node, pod, policy, record, views
from tests.support.fakes.fleet_clears import CLEAR_EVENTS, ClearingWorld
from tests.support.fakes.fleet_stories import (
    EVENTS,
    KILLS,
    LABELS,
    NAMES,
    PARALLEL,
    PAUSES_S,
    THRESHOLDS,
    UNITS,
    WAVES,
    Story,
    bring_to_its_end,
    happens,
    heal,
)
from tests.support.fakes.fleet_world import check_wake
from tests.support.selection import examples

RESTART, FAILED, DONE = UpgradeState.RESTART, UpgradeState.FAILED, UpgradeState.DONE
TEMPLATE = json.dumps({"spec": {"initContainers": [{"name": "m", "image": "i", "args": ["reconcile-driver-state"]}]}})
REVISIONS = tuple(Revision(f"driver-{name}", name, at, TEMPLATE) for at, name in enumerate((OTHER, OLD, NEW), 1))
BEGAN_S = NOW_S - 60.0


def taken(**said: Any) -> FleetNode:
    return node("a", RESTART, **said)


def facts(one: FleetNode, *pods: TaskPod, **said: Any) -> Fleet:
    """One node on the old revision, and the pods that clear it."""
    known = {"clears_first": True, "revisions": REVISIONS, "rollout_uid": "ro", "task_pods": pods}
    return fleet([one], **{**known, **said})


def clear(one: FleetNode | None = None, attempt: str = f"{BEGAN_S:.3f}/boot-1", **said: Any) -> TaskPod:
    """The pod that clears the node as it was taken: at work."""
    found = facts(one or taken())
    name = PodMaker(found, said.get("revision", NEW), Task.CLEAR).pod(one or taken(), attempt).name
    known = {"namespace": "npu", "name": name, "uid": f"uid-{name}", "node": "a", "revision": NEW, "task": Task.CLEAR}
    return TaskPod(**{**known, "made_s": BEGAN_S, **said})


def ended(code: int, **said: Any) -> TaskPod:
    known = {"exit_code": code, "has_ended": True, "message": "why", "ended_s": NOW_S}
    return clear(**{**known, **said})


def acts(found: Fleet, now_s: float = NOW_S) -> list[Any]:
    return [act for act in advance(found, now_s).acts if isinstance(act, CreatePod | DeletePod | RestartPod | MarkNode)]


def test_a_taken_node_gets_a_pod_that_clears_it_and_keeps_its_driver_pod() -> None:
    (made,) = acts(facts(taken()))
    assert isinstance(made, CreatePod)
    assert (made.task, made.name) == (Task.CLEAR, clear().name)
    (container,) = made.body["spec"]["containers"]
    assert container["args"] == ["reconcile-driver-state", "--clear-for", NEW]
    assert made.body["spec"]["activeDeadlineSeconds"] > policy().node_timeout_s


def test_while_it_is_being_cleared_nothing_is_done() -> None:
    found = facts(taken(), clear(why_waiting="m: ErrImagePull"))
    assert acts(found) == []
    assert views(found)["a"].reason == "is being cleared: m: ErrImagePull"
    assert acts(facts(taken(cleared_by="uid-of-another"), clear())) == []


@pytest.mark.parametrize("how", ["says-so", "nothing-to-clear"])
def test_once_it_is_cleared_its_driver_pod_is_deleted(how: str) -> None:
    one, found = (taken(cleared_by=clear().uid), clear()) if how == "says-so" else (taken(), ended(0))
    (due,) = acts(facts(one, found))
    assert due == RestartPod("npu", "driver-a-before", "a-before", "a")


@pytest.mark.parametrize("gone", [ended(137), clear(is_deleting=True)], ids=["died", "told-to-end"])
def test_a_mark_of_a_pod_that_has_died_since_is_not_believed(gone: TaskPod) -> None:
    assert acts(facts(taken(cleared_by=gone.uid, is_taken_by_run=True), gone)) == []


@pytest.mark.parametrize("is_taken_by_run", [False, True])
def test_a_node_whose_pods_vanish_is_taken_once_more_and_not_for_ever(is_taken_by_run: bool) -> None:
    end_s = BEGAN_S + policy().node_timeout_s
    one = taken(is_taken_by_run=is_taken_by_run)
    (mark,) = acts(facts(one), end_s)
    assert isinstance(mark, MarkNode)
    assert mark.state is RESTART
    (made,) = acts(facts(replace(one, record=mark.record)), end_s + 1.0)
    assert isinstance(made, CreatePod)
    (failed,) = acts(facts(replace(one, record=mark.record)), end_s + policy().node_timeout_s)
    assert isinstance(failed, MarkNode)
    assert failed.state is FAILED


@pytest.mark.parametrize(
    "code",
    [
        *(ExitCode.USAGE, ExitCode.PODS_REMAIN, ExitCode.DRIVER_BUSY, ExitCode.MODULE_FAILED),
        *(ExitCode.PREFLIGHT_FAILED, ExitCode.API_REFUSED),
    ],
)
def test_a_node_that_cannot_be_cleared_fails_and_keeps_its_driver_pod(code: ExitCode) -> None:
    (mark,) = acts(facts(taken(), ended(code)))
    assert isinstance(mark, MarkNode)
    assert mark.state is FAILED
    assert mark.record is not None
    assert mark.record.reason == "it could not be cleared: why"
    after = node("a", FAILED, record=mark.record)
    assert acts(facts(after, ended(code))) == [], "its log can be read"


@pytest.mark.parametrize(
    "code", [ExitCode.INTERNAL, ExitCode.API_UNAVAILABLE, ExitCode.STANDING_DOWN, ExitCode.OWNED_ELSEWHERE, 137]
)
def test_what_passes_is_tried_again_after_a_while_and_not_for_ever(code: int) -> None:
    over = ended(code)
    found = facts(taken(), over)
    assert acts(found) == []
    assert advance(found, NOW_S).again_s == NOW_S + AGAIN_S
    (gone,) = acts(found, NOW_S + AGAIN_S)
    assert gone == DeletePod("npu", over.name, over.uid, "a")
    assert acts(facts(taken(), replace(over, is_deleting=True)), NOW_S + AGAIN_S) == []
    (mark,) = acts(found, BEGAN_S + policy().node_timeout_s)
    assert isinstance(mark, MarkNode)
    assert mark.state is FAILED


def test_a_pod_that_its_kubelet_refused_is_tried_again() -> None:
    refused = clear(has_ended=True, message="OutOfpods")
    (gone,) = acts(facts(taken(), refused))
    assert isinstance(gone, DeletePod), "sixty seconds after it was made"


def test_a_node_that_is_not_cleared_in_time_fails_and_its_pod_is_told_to_end() -> None:
    end_s = BEGAN_S + policy().node_timeout_s
    (mark,) = acts(facts(taken(), clear()), end_s)
    assert isinstance(mark, MarkNode)
    assert mark.record is not None
    assert mark.record.reason == "not cleared within 30 min: is being cleared"
    (gone,) = acts(facts(node("a", FAILED), clear()), end_s)
    assert isinstance(gone, DeletePod)


def test_a_pause_finishes_what_has_begun_and_begins_nothing() -> None:
    paused = {"policy": policy(paused=True)}
    assert acts(facts(taken(cleared_by=clear().uid), clear(), **paused)) != []
    dead = taken(is_taken_by_run=True, driver_state=NodeState.UPGRADING, unschedulable=True, is_cordoned_by_run=True)
    (again,) = acts(facts(dead, **paused), NOW_S + 600.0)
    assert isinstance(again, CreatePod), "the node is in the hands of a run that died"
    (let_go,) = acts(facts(taken(), **paused), NOW_S + 600.0)
    assert isinstance(let_go, MarkNode)
    assert let_go.state is None


def test_a_newer_target_finishes_what_has_begun() -> None:
    one = taken(record=record(revision=OLD), cleared_by=clear(revision=OLD).uid)
    driver = [pod("a", OTHER)]
    (due,) = acts(facts(one, clear(revision=OLD), pods=driver))
    assert isinstance(due, RestartPod)


def test_who_stands_aside_touches_nothing() -> None:
    found = facts(taken(cleared_by=clear().uid), clear(), rivals=("older",))
    assert acts(found) == []


def test_a_pod_that_does_not_have_the_node_yet_holds_nobody_in_a_pause_and_no_skipped_node() -> None:
    for said, one in (({"policy": policy(paused=True)}, taken()), ({}, taken(is_skipped=True))):
        (let_go,) = acts(facts(one, clear(), **said))
        assert isinstance(let_go, MarkNode)
        assert let_go.state is None
    at_work = taken(is_skipped=True, is_taken_by_run=True, driver_state=NodeState.UPGRADING)
    assert acts(facts(at_work, clear())) == [], "its users are leaving: it is finished"
    (gone,) = acts(facts(node("a"), clear(), policy=policy(paused=True)))
    assert isinstance(gone, DeletePod)


@pytest.mark.parametrize("cleared_by", ["", clear().uid])
def test_a_node_whose_revision_is_taken_back_gets_back_what_it_had(cleared_by: str) -> None:
    back = (*REVISIONS[::2], Revision("driver-old", OLD, 4, TEMPLATE))
    held = taken(is_taken_by_run=True, cleared_by=cleared_by, driver_state=NodeState.UPGRADING)
    (let_go,) = acts(facts(held, clear(), revisions=back))
    assert isinstance(let_go, MarkNode)
    assert let_go.state is None
    again = replace(held, record=record(pod="a-now"), cleared_by=clear().uid)
    (due,) = acts(facts(again, clear(), pods=[pod("a", NEW, uid="a-now", is_ready=False)]))
    assert isinstance(due, RestartPod), "one more attempt with the revision that it has"


def test_what_a_run_has_left_taken_is_not_done_because_its_driver_serves() -> None:
    back = (*REVISIONS[::2], Revision("driver-old", OLD, 4, TEMPLATE))
    stranded = node("a", FAILED, is_taken_by_run=True, driver_state=NodeState.UPGRADING)
    assert acts(facts(stranded, revisions=back)) == []
    shown = advance(facts(stranded, revisions=back), NOW_S).outlook
    assert shown.phase is Phase.WAITING_FOR_NODES
    assert "`driver-manager restore` releases it" in shown.message
    (mark,) = acts(facts(replace(stranded, is_taken_by_run=False), revisions=back))
    assert isinstance(mark, MarkNode)
    assert mark.state is DONE


def test_the_driver_pod_of_a_cleared_node_waits_for_its_kubelet_and_not_for_ever() -> None:
    away = taken(is_taken_by_run=True, cleared_by=clear().uid, is_ready=False)
    assert acts(facts(away, clear())) == []
    (mark,) = acts(facts(away, clear()), BEGAN_S + policy().node_timeout_s)
    assert isinstance(mark, MarkNode)
    assert mark.state is FAILED


def test_where_nobody_had_to_leave_a_pause_and_a_skip_count_as_ever() -> None:
    for said, one in (({"policy": policy(paused=True)}, taken()), ({}, taken(is_skipped=True))):
        (let_go,) = acts(facts(one, ended(0), **said))
        assert isinstance(let_go, MarkNode)
        assert let_go.state is None


def test_the_pod_stays_while_the_driver_pod_goes_and_is_gone_after_that() -> None:
    going = [pod("a", is_deleting=True)]
    assert acts(facts(taken(), clear(), pods=going)) == [], "told to end, it could give the node back"
    (gone,) = acts(facts(taken(), ended(0), pods=going))
    assert isinstance(gone, DeletePod)
    fresh = [new_pod("a", is_ready=False)]
    assert acts(facts(taken(), clear(), pods=fresh)) == []
    (gone,) = acts(facts(node("a", DONE), ended(0), pods=[new_pod("a")]))
    assert isinstance(gone, DeletePod)


def test_a_reboot_or_a_retry_clears_anew() -> None:
    assert any(isinstance(act, CreatePod) for act in acts(facts(taken(boot_id="boot-2"), ended(0))))
    later = taken(record=record(began_s=NOW_S))
    made, gone = sorted(acts(facts(later, ended(4))), key=lambda act: type(act).__name__)
    assert isinstance(made, CreatePod)
    assert isinstance(gone, DeletePod)


def test_without_the_means_the_node_fails_with_the_reason() -> None:
    bare = (*REVISIONS[:2], Revision("driver-new", NEW, 3, '{"spec": {}}'))
    (mark,) = acts(facts(taken(), revisions=bare))
    assert isinstance(mark, MarkNode)
    assert mark.record is not None
    assert "no init container" in mark.record.reason
    found = facts(taken(), unmade="may not create pods")
    assert views(found)["a"].reason == "will be cleared: may not create pods"
    (mark,) = acts(found, BEGAN_S + policy().node_timeout_s)
    assert isinstance(mark, MarkNode)
    assert mark.state is FAILED


def test_without_it_driver_pods_are_deleted_at_once_and_pods_of_others_go() -> None:
    found = replace(facts(taken(), clear()), clears_first=False)
    assert {type(act) for act in acts(found)} == {RestartPod, DeletePod}


# stories

policies = st.builds(
    RolloutPolicy,
    daemon_set=st.just("driver"),
    max_parallel=st.sampled_from(PARALLEL),
    waves=st.sampled_from(WAVES),
    units=st.sampled_from(UNITS),
    failure_threshold=st.sampled_from(THRESHOLDS),
    on_halt=st.sampled_from(OnHalt),
    node_timeout_s=st.just(600.0),
)
events = st.lists(
    st.tuples(
        st.sampled_from((*EVENTS, *CLEAR_EVENTS * 4)),
        st.sampled_from(NAMES),
        st.sampled_from(PAUSES_S),
        st.sampled_from(KILLS),
    ),
    max_size=40,
)


def something_happens(world: ClearingWorld, event: str, name: str) -> None:
    if event in CLEAR_EVENTS:
        world.happens_to_pods(event, name)
    else:
        happens(world, event, name)


def all_is_well(world: ClearingWorld) -> None:
    """Nothing keeps a node from its upgrade any more: everybody is done, and nobody is left in the hands of a run."""
    world.ends = {}
    heal(world)
    bring_to_its_end(world)
    assert world.clears == {}
    assert not [name for name, one in world.machines.items() if one.facts.is_taken_by_run]


@pytest.mark.submission
@pytest.mark.shares(3)
@given(policies, events)
@settings(max_examples=examples(60))
def test_whatever_happens_no_node_is_restarted_uncleared_and_all_are_given_back_in_the_end(
    rules: RolloutPolicy, story: Story
) -> None:
    world = ClearingWorld(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        something_happens(world, event, name)
        world.decide(kill_after)
        world.tick(seconds)
        world.decide()
    all_is_well(world)


@pytest.mark.submission
@given(policies, events)
@settings(max_examples=examples(40))
def test_facts_that_are_late_lose_no_node(rules: RolloutPolicy, story: Story) -> None:
    world = ClearingWorld(NAMES, rules, LABELS)
    world.is_late = True
    for event, name, seconds, kill_after in story:
        decision = advance(world.fleet(), world.now_s)
        something_happens(world, event, name)
        world.tick(seconds)
        world.carry_out(decision, kill_after)
    all_is_well(world)


@given(policies, events)
@settings(max_examples=examples(40))
def test_time_alone_changes_nothing_before_the_moment_that_is_named(rules: RolloutPolicy, story: Story) -> None:
    world = ClearingWorld(NAMES, rules, LABELS)
    for event, name, seconds, kill_after in story:
        something_happens(world, event, name)
        found = world.fleet()
        check_wake(found, advance(found, world.now_s), world.now_s)
        world.decide(kill_after)
        world.tick(seconds)


def test_an_undisturbed_node_costs_five_writes_of_the_rollout() -> None:
    world = ClearingWorld(NAMES, RolloutPolicy("driver", max_parallel=0, waves=WAVES[0]), LABELS)
    writes = 0
    for _ in range(60):
        decision = world.decide()
        writes += sum(isinstance(act, CreatePod | DeletePod | RestartPod | MarkNode) for act in decision.acts)
        if world.is_through() and not decision.acts:
            break
        world.tick(7.0)
    assert world.is_through()
    assert writes == 5 * len(NAMES)
    assert all(view.place is NodePhase.DONE for view in advance(world.fleet(), world.now_s).outlook.nodes)
