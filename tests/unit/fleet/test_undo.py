"""The way back, and what is kept of each revision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import (
    Fleet,
    OnHalt,
    Requests,
    Revision,
    RevisionHistory,
    RolloutState,
    UpgradeState,
)
from driver_manager.domain.fleet.state import Announce, MarkNode, SetTemplate
from tests.support.fakes.fleet_builders import (
    DAEMON_SET,
    NEW,
    NOW_S,
    OLD,
    OTHER,
    begun,
    fleet,
    new_pod,
    node,
    pod,
    policy,
    record,
)

DONE, FAILED = UpgradeState.DONE, UpgradeState.FAILED
REVISIONS = (Revision("driver-0", "r0", 1), Revision("driver-1", OLD, 2), Revision("driver-2", NEW, 3))
HISTORY = (
    RevisionHistory("r0", 1.0, 2.0, "complete"),
    RevisionHistory(OLD, 3.0, 4.0, "complete"),
    RevisionHistory(NEW, 5.0),
)
MEMORY = RolloutState(target=NEW, good=OLD, history=HISTORY)


def of(**said: Any) -> Fleet:
    """Two outdated nodes in the middle of a rollout."""
    return fleet([node("a"), node("b")], **{"revisions": REVISIONS, "memory": MEMORY, **said})


def templates(facts: Fleet) -> list[str]:
    """The revisions whose template the DaemonSet is given."""
    return [act.revision for act in advance(facts, NOW_S).acts if isinstance(act, SetTemplate)]


def told(facts: Fleet) -> list[str]:
    """What is announced."""
    return [act.reason for act in advance(facts, NOW_S).acts if isinstance(act, Announce)]


def test_a_wish_is_kept_before_it_is_met_and_is_met_once() -> None:
    wished = of(wishes=Requests(undo="u1"))
    kept = advance(wished, NOW_S).memory
    assert templates(wished) == []
    assert (kept.undone, kept.undo_from, kept.undo_to, kept.failed) == ("u1", NEW, OLD, (NEW,))
    going = replace(wished, memory=kept)
    assert templates(going) == [OLD]
    assert begun(going) == []
    assert advance(going, NOW_S).memory.undo_to == OLD
    back = replace(going, revisions=(REVISIONS[0], REVISIONS[2], Revision("driver-1", OLD, 4)))
    there = advance(back, NOW_S).memory
    assert templates(back) == []
    assert (there.undone, there.undo_from, there.undo_to) == ("u1", "", "")
    assert templates(replace(back, memory=there)) == []
    assert advance(replace(back, memory=there), NOW_S).memory.undo_to == ""


def test_the_template_is_given_to_the_daemon_set_that_was_seen() -> None:
    going = of(memory=replace(MEMORY, undo_from=NEW, undo_to=OLD))
    (found,) = (act for act in advance(going, NOW_S).acts if isinstance(act, SetTemplate))
    assert found == SetTemplate(OLD, "9", "back from revision new to old")
    assert told(going)[0] == "RolloutUndo"


@pytest.mark.parametrize("name", ["r0", "driver-0", "1"])
def test_a_revision_is_named_by_its_hash_its_name_or_its_number(name: str) -> None:
    assert advance(of(wishes=Requests(undo="u1", undo_to=name)), NOW_S).memory.undo_to == "r0"


def test_a_revision_that_failed_is_gone_back_to_where_somebody_names_it() -> None:
    memory = replace(MEMORY, failed=("r0",))
    kept = advance(of(memory=memory, wishes=Requests(undo="u1", undo_to="r0")), NOW_S).memory
    assert (kept.undo_to, kept.failed) == ("r0", (NEW,))


def test_a_wish_for_the_newest_revision_is_met_already() -> None:
    kept = advance(of(wishes=Requests(undo="u1", undo_to=NEW)), NOW_S).memory
    assert (kept.undone, kept.undo_to, kept.failed) == ("u1", "", ())


CANNOT = {
    "no-such-revision": (MEMORY, "r9"),
    "nothing-was-complete": (RolloutState(target=NEW), ""),
    "only-this-one-was": (RolloutState(target=NEW, good=NEW), ""),
    "the-good-one-is-gone": (RolloutState(target=NEW, good="r-gone"), ""),
    "the-good-one-failed-since": (RolloutState(target=NEW, good=OLD, failed=(OLD,)), ""),
}


@pytest.mark.parametrize(("memory", "to"), CANNOT.values(), ids=CANNOT)
def test_where_there_is_no_way_back_that_is_told_once(memory: RolloutState, to: str) -> None:
    facts = of(memory=memory, wishes=Requests(undo="u1", undo_to=to))
    assert "RolloutCannotUndo" in told(facts)
    kept = advance(facts, NOW_S).memory
    assert (kept.undone, kept.undo_to) == ("u1", "")
    assert told(replace(facts, memory=kept)) == []


def test_from_the_good_one_the_way_back_is_to_the_one_before() -> None:
    memory = replace(MEMORY, good=NEW)
    assert advance(of(memory=memory, wishes=Requests(undo="u1")), NOW_S).memory.undo_to == OLD


def test_a_template_that_somebody_changed_since_is_left_alone() -> None:
    facts = of(memory=replace(MEMORY, undo_from="r0", undo_to=OLD))
    assert templates(facts) == []
    assert advance(facts, NOW_S).memory.undo_to == ""


def test_a_revision_that_is_gone_by_now_is_not_waited_for() -> None:
    facts = of(memory=replace(MEMORY, undo_from=NEW, undo_to="r9"))
    assert templates(facts) == []
    assert advance(facts, NOW_S).memory.undo_to == ""


def test_nothing_is_undone_while_the_template_is_not_observed() -> None:
    memory = replace(MEMORY, undo_from=NEW, undo_to=OLD)
    facts = of(memory=memory, daemon_set=replace(DAEMON_SET, is_current=False))
    assert (templates(facts), advance(facts, NOW_S).memory) == ([], memory)


@pytest.mark.parametrize("memory", [MEMORY, replace(MEMORY, undo_from=NEW, undo_to=OLD)], ids=["halted", "on-its-way"])
@pytest.mark.parametrize("state", [FAILED, UpgradeState.RESTART])
def test_a_template_whose_revision_is_not_seen_yet_is_not_thrown_away(
    state: UpgradeState, memory: RolloutState
) -> None:
    """`a` was taken for the target, and its new pod is of what somebody asked for since; so is that of `c`, by hand."""
    nodes = [node("a", state), node("b", UpgradeState.RESTART), node("c")]
    pods = [new_pod("a", OTHER, made_s=NOW_S), pod("b"), new_pod("c", OTHER, made_s=NOW_S - 100.0)]
    facts = fleet(nodes, pods, revisions=REVISIONS, memory=memory, policy=policy(on_halt=OnHalt.UNDO))
    decision = advance(facts, NOW_S)
    assert decision.memory == memory
    assert [type(act) for act in decision.acts if not isinstance(act, MarkNode)] == []
    assert "upgrade-failed" not in {act.state.value for act in decision.acts if isinstance(act, MarkNode) and act.state}
    seen = replace(facts, revisions=(*REVISIONS, Revision("driver-3", OTHER, 4)))
    assert advance(seen, NOW_S).outlook.target == OTHER
    assert templates(seen) == []


@pytest.mark.parametrize(("on_halt", "to"), [(OnHalt.UNDO, OLD), (OnHalt.HOLD, "")])
def test_a_halt_goes_back_where_that_is_asked_for(on_halt: OnHalt, to: str) -> None:
    nodes = [node("a", FAILED), node("b")]
    facts = fleet(nodes, revisions=REVISIONS, memory=MEMORY, policy=policy(on_halt=on_halt))
    kept = advance(facts, NOW_S).memory
    assert (kept.undo_to, kept.failed) == (to, (NEW,) if to else ())


def test_a_halt_without_a_good_revision_stays_where_it_is() -> None:
    nodes = [node("a", FAILED), node("b")]
    facts = fleet(nodes, memory=RolloutState(target=NEW), policy=policy(on_halt=OnHalt.UNDO))
    assert advance(facts, NOW_S).memory.undo_to == ""
    assert "RolloutHalted" in told(facts)


def test_a_new_target_ends_what_was_under_way_for_the_old_one() -> None:
    memory = RolloutState(target=OLD, good="r0", history=(RevisionHistory(OLD, 3.0),))
    decision = advance(of(memory=memory), NOW_S)
    assert decision.memory.target == NEW
    assert decision.memory.history == (RevisionHistory(OLD, 3.0, NOW_S, "superseded"), RevisionHistory(NEW, NOW_S))
    assert told(of(memory=memory)) == ["RolloutStarted"]


def test_a_complete_revision_is_the_good_one_and_is_told_once() -> None:
    memory = replace(MEMORY, failed=(NEW, "r0"))
    facts = fleet([node("a", DONE)], [new_pod("a")], revisions=REVISIONS, memory=memory)
    decision = advance(facts, NOW_S)
    assert (decision.memory.good, decision.memory.failed) == (NEW, ("r0",))
    assert decision.memory.history[-1] == RevisionHistory(NEW, 5.0, NOW_S, "complete")
    assert told(facts) == ["RolloutComplete"]
    later = advance(replace(facts, memory=decision.memory), NOW_S + 9.0)
    assert (later.acts, later.memory) == ((), decision.memory)


@pytest.mark.parametrize("desired", [0, 1])
def test_a_revision_that_no_node_serves_is_not_good(desired: int) -> None:
    facts = fleet([], memory=MEMORY, revisions=REVISIONS, daemon_set=replace(DAEMON_SET, desired=desired))
    decision = advance(facts, NOW_S)
    assert (decision.acts, decision.memory) == ((), MEMORY)


def test_a_halt_is_told_by_one_key_until_it_is_kept_and_the_next_one_by_another() -> None:
    def key(began_s: float, now_s: float) -> str:
        facts = fleet([node("a", FAILED, record=record(began_s=began_s))], revisions=REVISIONS, memory=MEMORY)
        (told,) = [act for act in advance(facts, now_s).acts if isinstance(act, Announce)]
        return told.key

    assert key(NOW_S - 90.0, NOW_S) == key(NOW_S - 90.0, NOW_S + 1.0)
    assert key(NOW_S - 90.0, NOW_S) != key(NOW_S - 10.0, NOW_S)


def test_the_end_of_a_rollout_is_told_by_one_key_until_it_is_kept() -> None:
    def key(before_s: float, now_s: float) -> str:
        memory = replace(
            MEMORY, target=OLD, good=OLD, history=(RevisionHistory(OLD, before_s, NOW_S - 60.0, "complete"),)
        )
        facts = fleet([node("a")], [new_pod("a")], revisions=REVISIONS, memory=memory)
        (complete,) = [act for act in advance(facts, now_s).acts if isinstance(act, Announce)]
        assert complete.reason == "RolloutComplete"
        return complete.key

    assert key(NOW_S - 90.0, NOW_S) == key(NOW_S - 90.0, NOW_S + 1.0)
    assert key(NOW_S - 90.0, NOW_S) != key(NOW_S - 80.0, NOW_S)


def test_a_halt_after_the_rollout_was_complete_is_told_too() -> None:
    memory = replace(MEMORY, target=NEW, good=NEW, history=(RevisionHistory(NEW, 5.0, 9.0, "complete"),))
    facts = fleet([node("a", DONE), node("b", FAILED)], [new_pod("a")], revisions=REVISIONS, memory=memory)
    assert told(facts) == ["RolloutHalted"]
    kept = advance(facts, NOW_S).memory
    assert (kept.history[-1], kept.good) == (RevisionHistory(NEW, 5.0, None, "halted"), NEW)
    assert told(replace(facts, memory=kept)) == []


def test_a_halt_is_told_once_and_stands_in_the_history_until_it_is_over() -> None:
    facts = fleet([node("a", FAILED), node("b")], revisions=REVISIONS, memory=MEMORY)
    kept = advance(facts, NOW_S).memory
    assert kept.history[-1] == RevisionHistory(NEW, 5.0, None, "halted")
    assert told(facts) == ["RolloutHalted"]
    assert told(replace(facts, memory=kept)) == []
    over = fleet([node("a", DONE), node("b")], [new_pod("a"), pod("b")], revisions=REVISIONS, memory=kept)
    assert advance(over, NOW_S).memory.history[-1] == RevisionHistory(NEW, 5.0)
    left = fleet([node("a")], revisions=(*REVISIONS, Revision("driver-3", "r3", 9)), memory=kept)
    assert advance(left, NOW_S).memory.history[-2] == RevisionHistory(NEW, 5.0, NOW_S, "halted")
    done = fleet([node("a", DONE)], [new_pod("a")], revisions=REVISIONS, memory=kept)
    assert advance(done, NOW_S).memory.history[-1].outcome == "complete"


def test_no_more_is_kept_than_a_daemon_set_keeps() -> None:
    history = tuple(RevisionHistory(f"r{number}", 1.0, 2.0, "complete") for number in range(30))
    assert len(advance(of(memory=RolloutState(target="x", history=history)), NOW_S).memory.history) == 10


def test_a_fleet_that_is_seen_complete_at_first_began_nothing() -> None:
    facts = fleet([node("a")], [new_pod("a")], memory=RolloutState())
    assert told(facts) == ["RolloutComplete"]
    assert advance(facts, NOW_S).memory.good == NEW
