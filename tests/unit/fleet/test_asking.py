"""What a verb asks for, and when it is refused because nothing would change: decided from facts alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.fleet import requests
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import (
    APPROVED,
    UNDO,
    Fleet,
    PreflightMode,
    Requests,
    RevisionHistory,
    RolloutState,
    Task,
    TaskPod,
    UpgradeState,
    Wave,
)
from driver_manager.domain.fleet.state import DeletePod, MarkNode, Phase
from tests.support.fakes.fleet_builders import (
    DAEMON_SET,
    NEW,
    NOW_S,
    OLD,
    OTHER,
    fleet,
    matching,
    new_pod,
    node,
    pod,
    policy,
    record,
)

HISTORY = (RevisionHistory(OLD, NOW_S - 900.0, NOW_S - 800.0, "complete"), RevisionHistory(NEW, NOW_S - 600.0))
GOOD = RolloutState(target=NEW, good=OLD, history=HISTORY)
BARE = RolloutState(target=NEW)
NOTHING_WAITS = "nothing waits for an approval now"


def gated(*approvals: bool, done: str = "a", **said: Any) -> Fleet:
    """A wave for each node a, b, c ..., of which those that are True ask for an approval at their end.

    Those in `done` serve the new revision.
    """
    names = dict(enumerate("abcd"[: len(approvals)], 1))
    waves = tuple(
        Wave(f"wave-{name}", matching(f"w={name}"), needs_approval=approvals[at - 1]) for at, name in names.items()
    )
    nodes = [
        node(name, UpgradeState.DONE, labels={"w": name}, record=record(name, wave=at))
        if name in done
        else node(name, labels={"w": name})
        for at, name in names.items()
    ]
    pods = [new_pod(name) if name in done else pod(name) for name in names.values()]
    return fleet(nodes, pods, policy=policy(waves=waves), memory=GOOD, **said)


def refused(ask: Callable[[], object], what: str, remedy: str = "") -> None:
    """It is refused with these words."""
    with pytest.raises(ConfigError) as caught:
        ask()
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def begun(facts: Fleet) -> list[str]:
    """The nodes that begin."""
    marks = [act for act in advance(facts, NOW_S).acts if isinstance(act, MarkNode)]
    restarts = [one for one in marks if one.state is UpgradeState.RESTART]
    return [one.node for one in restarts if one.record is not None and one.record.began_s == NOW_S]


# approve


def test_an_approval_is_for_the_next_wave_and_this_revision_alone() -> None:
    request = requests.approval(gated(True, False), NOW_S, None)
    assert request.annotations == {APPROVED: "new:2"}
    assert begun(request.after) == ["b"]


def test_waves_are_approved_ahead_and_only_as_far_as_is_said() -> None:
    facts = gated(True, True, False, done="")
    ahead = requests.approval(facts, NOW_S, 2)
    assert ahead.annotations == {APPROVED: "new:2"}
    assert requests.approval(ahead.after, NOW_S, 3).annotations == {APPROVED: "new:3"}


APPROVED_2 = Requests(NEW, 2)


@pytest.mark.parametrize(
    ("facts", "wave", "what", "remedy"),
    [
        (gated(False, False), None, NOTHING_WAITS, "No later wave needs one."),
        (gated(True, False, done=""), None, NOTHING_WAITS, "To approve ahead of time, use --wave 2."),
        (gated(True, False, done="ab"), None, NOTHING_WAITS, "No later wave needs one."),
        (gated(False, True), None, NOTHING_WAITS, "No later wave needs one."),
        (gated(True, False), 3, "there is no wave 3", "The waves are: 1 (wave-a), 2 (wave-b)."),
        (gated(True, False), 1, "wave 1 does not wait for an approval", ""),
        (gated(False, True, False, done=""), 2, "wave 2 does not wait for an approval", ""),
        (gated(True, False, wishes=APPROVED_2), 2, "wave 2 is approved already for revision new", ""),
        (gated(True, False, wishes=APPROVED_2), None, NOTHING_WAITS, "No later wave needs one."),
        (gated(True, False, daemon_set=None), None, "the rollout does nothing now: DaemonSet driver", ""),
    ],
)
def test_where_nothing_waits_nothing_is_approved(facts: Fleet, wave: int | None, what: str, remedy: str) -> None:
    refused(lambda: requests.approval(facts, NOW_S, wave), what, remedy)


def test_an_approval_of_another_revision_counts_for_nothing() -> None:
    facts = gated(True, False, wishes=Requests(OLD, 2))
    assert requests.approval(facts, NOW_S, 2).annotations == {APPROVED: "new:2"}


# retry


def failed(**said: Any) -> Fleet:
    """Node a has failed for the new revision, b is done, c waits."""
    nodes = [node("a", UpgradeState.FAILED), node("b", UpgradeState.DONE), node("c")]
    pods = [new_pod("a", is_ready=False), new_pod("b"), pod("c")]
    return fleet(nodes, pods, **{"memory": GOOD, **said})


def test_a_failed_node_begins_again_and_it_is_told_when() -> None:
    request = requests.retry_of_nodes(failed(), NOW_S, ["a", "a"])
    assert [one.name for one in request.nodes] == ["a"]
    assert request.did == ("node a is retried: starts now",)
    paused = requests.retry_of_nodes(failed(policy=policy(paused=True)), NOW_S, ["a"])
    assert paused.did[0].startswith("node a is retried: failureThreshold is 1")
    assert begun(request.after) == ["a"]


def test_a_node_that_left_the_target_again_may_be_retried() -> None:
    facts = fleet([node("a", UpgradeState.DONE)], [pod("a", OTHER, "a-third")], memory=GOOD)
    assert begun(facts) == []
    assert begun(requests.retry_of_nodes(facts, NOW_S, ["a"]).after) == ["a"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("b", "b: it has not failed, it is done (serves the target revision)"),
        ("c", "c: it has not failed, it is waiting"),
        ("z", "z: it is not in this rollout"),
    ],
)
def test_a_node_that_has_not_failed_is_not_retried(name: str, what: str) -> None:
    refused(lambda: requests.retry_of_nodes(failed(), NOW_S, ["a", name]), what)


def test_one_more_attempt_is_not_asked_for_twice() -> None:
    once = requests.retry_of_nodes(failed(), NOW_S, ["a"]).after
    refused(lambda: requests.retry_of_nodes(once, NOW_S, ["a"]), "a: a retry was already asked for")


def test_a_failed_revision_may_be_tried_again_once_it_is_asked_for() -> None:
    facts = fleet([node("a")], memory=replace(GOOD, failed=(NEW,)))
    assert requests.outlook_after(requests.retry_of_revision(facts, NOW_S, "w"), NOW_S).phase is Phase.PROGRESSING
    again = requests.retry_of_revision(facts, NOW_S, "w").after
    refused(lambda: requests.retry_of_revision(again, NOW_S, "w"), "revision new may already be retried")
    going = replace(facts, memory=replace(facts.memory, undo_from=NEW, undo_to=OLD))
    refused(lambda: requests.retry_of_revision(going, NOW_S, "w"), "the rollout goes back from revision new now")


def test_a_retry_checks_a_node_again_that_its_preflight_left_out() -> None:
    looks = tuple(
        TaskPod("npu", f"look-{of}", f"look-{of}", of, NEW, Task.PREFLIGHT, NOW_S - 10.0, code, has_ended=True)
        for of, code in (("a", 6), ("b", 0))
    )
    known: dict[str, Any] = {"policy": policy(preflight=PreflightMode.REQUIRE), "task_pods": looks}
    found = fleet([node("a"), node("b")], **known)
    request = requests.retry_of_nodes(found, NOW_S, ["a"])
    assert request.did == ("node a is checked again",)
    assert [act.uid for act in advance(request.after, NOW_S).acts if isinstance(act, DeletePod)] == ["look-a"]
    refused(lambda: requests.retry_of_nodes(found, NOW_S, ["b"]), "b: it has not failed")
    cordoned = fleet([node("a", unschedulable=True)], **known)
    refused(lambda: requests.retry_of_nodes(cordoned, NOW_S, ["a"]), "a: it has not failed, it is left out")


# undo


def test_undo_leads_to_the_last_good_revision_and_says_so() -> None:
    request = requests.undo(failed(), NOW_S, "", "wish-1")
    assert request.annotations == {UNDO: "wish-1"}
    assert request.did == ("goes back from revision new to old by the same rules; 2 nodes run another revision now",)
    after = requests.outlook_after(request, NOW_S)
    assert (after.phase, after.reason) == (Phase.HALTED, "Undoing")
    paused = replace(failed(), policy=replace(failed().policy, paused=True))
    assert requests.undo(paused, NOW_S, "", "wish-1").did[0].endswith("now; paused: `rollout resume` starts it")


@pytest.mark.parametrize("to", [OLD, "1", "driver-old"])
def test_undo_knows_a_revision_by_hash_number_or_name(to: str) -> None:
    request = requests.undo(failed(memory=BARE), NOW_S, to, "w")
    assert request.annotations == {UNDO: "w:old"}
    assert advance(request.after, NOW_S).memory.undo_to == OLD


@pytest.mark.parametrize(
    ("memory", "to", "what", "remedy"),
    [
        (replace(BARE, failed=(OLD,)), "", "no earlier revision is known to be good", "--to: 1 (old)"),
        (BARE, "9", "there is no revision 9", ""),
        (BARE, "2", "revision new is the target already", ""),
        (replace(GOOD, undo_from=NEW, undo_to=OLD), "", "already goes back from revision new to old", ""),
    ],
)
def test_undo_without_a_way_back_is_refused(memory: RolloutState, to: str, what: str, remedy: str) -> None:
    refused(lambda: requests.undo(failed(memory=memory), NOW_S, to, "w"), what, remedy)


def test_a_rollout_that_stands_aside_heeds_no_wish() -> None:
    aside = failed(daemon_set=replace(DAEMON_SET, update_strategy="RollingUpdate"))
    for ask in (
        lambda: requests.approval(aside, NOW_S, None),
        lambda: requests.retry_of_nodes(aside, NOW_S, ["a"]),
        lambda: requests.retry_of_revision(aside, NOW_S, "w"),
        lambda: requests.undo(aside, NOW_S, "", "w"),
    ):
        refused(ask, "the rollout does nothing now: DaemonSet driver has updateStrategy RollingUpdate")


# pause and resume


def test_pause_and_resume_change_one_field_and_are_refused_where_it_has_that_value() -> None:
    facts = fleet([node("a")])
    paused = requests.pause(facts)
    assert (paused.spec, begun(paused.after)) == ({"paused": True}, [])
    assert (requests.resume(paused.after).spec, begun(requests.resume(paused.after).after)) == (
        {"paused": False},
        ["a"],
    )
    refused(lambda: requests.pause(paused.after), "the rollout is paused already")
    refused(lambda: requests.resume(facts), "the rollout is not paused")
