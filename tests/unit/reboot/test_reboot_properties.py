"""Reboots on the fakes: killed anywhere, with an API server that fails anywhere, with processes that stand still.

Never two at once, none lost, none twice: the fleet asserts the first and the last at every reboot.

MUTANTS that these properties caught, each proved again by a test at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.core.rebooter import Rebooter
from driver_manager.domain.node import NodeChange
from driver_manager.domain.reboot import decision
from driver_manager.domain.reboot import state as reboot_state
from driver_manager.domain.reboot.state import Pending, RebootPolicy, RebootState, SlotHolder, Snapshot
from tests.support.fakes.broken import Case, check_caught
from tests.support.fakes.killer import Killer
from tests.support.fakes.reboot_checks import (
    API_CALLS,
    call_points,
    check_another_reason,
    check_clean_node,
    check_commands_once,
    check_fault,
    check_forged_and_not_approved,
    check_killed,
    check_killed_and_rebooted_by_hand,
    check_killed_and_withdrawn,
    check_killed_while_releasing_an_unknown_grant,
    check_killed_while_withdrawing,
    check_killed_with_a_forged_grant,
    check_lost_lease,
    check_next_approval_is_not_consumed,
    check_other_begins,
    check_resumed_after_withdrawal,
    check_slow_return,
    check_suspended,
    check_window_closes,
    check_withdrawn,
    kill_points,
    undisturbed,
)
from tests.support.fakes.reboot_world import KEYS, Fleet, check_rebooted_once, unavailable
from tests.support.selection import examples

KILLS, CALLS, FAULTS = kill_points(), call_points(), call_points(*API_CALLS)


def test_the_points_are_many_enough_to_mean_something() -> None:
    effects = [effect for _, effects in undisturbed() for effect in effects]
    assert {"keep", "lease", "patch", "event", "evidence", "evict", "remove marker"} <= set(effects)
    assert len(KILLS) > 40
    assert len(FAULTS) > 20


@pytest.mark.parametrize("point", KILLS)
def test_killed_at_any_effect_the_next_process_goes_on(point: tuple[int, int, bool]) -> None:
    check_killed(point)


@pytest.mark.parametrize("point", KILLS)
def test_killed_at_any_effect_and_withdrawn_nothing_stays_taken(point: tuple[int, int, bool]) -> None:
    check_killed_and_withdrawn(point)
    check_killed_while_withdrawing(point)


@pytest.mark.parametrize("point", [point for point in KILLS if point[0] == 0])
def test_killed_at_any_effect_nothing_stays_taken_for_a_grant_that_the_host_does_not_know(
    point: tuple[int, int, bool],
) -> None:
    check_killed_while_releasing_an_unknown_grant(point)
    check_killed_with_a_forged_grant(point)


@pytest.mark.parametrize("point", [point for point in KILLS if point[0] == 0])
def test_killed_at_any_effect_and_rebooted_by_hand_it_does_not_reboot_again(point: tuple[int, int, bool]) -> None:
    check_killed_and_rebooted_by_hand(point)


@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer-lost"])
@pytest.mark.parametrize("point", FAULTS)
def test_an_api_server_that_fails_at_any_call_loses_nothing(point: tuple[int, int, str], after: bool) -> None:
    check_fault(point, after=after)


@pytest.mark.shares(3)
@pytest.mark.parametrize("point", CALLS)
def test_a_process_that_stands_still_at_any_call_does_no_harm_when_it_goes_on(point: tuple[int, int, str]) -> None:
    check_suspended(point)
    check_resumed_after_withdrawal(point)
    check_lost_lease(point)
    check_next_approval_is_not_consumed(point)
    check_other_begins(point)


@pytest.mark.parametrize("kill", [False, True], ids=["stands-still", "killed"])
@pytest.mark.parametrize("point", CALLS)
def test_outside_its_window_nothing_reboots_however_far_it_had_come(point: tuple[int, int, str], kill: bool) -> None:
    check_window_closes(point, kill=kill)


@pytest.mark.parametrize("point", CALLS)
def test_what_allows_one_reason_does_not_allow_the_other(point: tuple[int, int, str]) -> None:
    check_another_reason(point)


@pytest.mark.parametrize("point", [point for point in CALLS if point[0] == 0])
def test_a_grant_forged_at_any_call_does_not_replace_the_approval(point: tuple[int, int, str]) -> None:
    check_forged_and_not_approved(point)


@pytest.mark.parametrize("point", [point for point in CALLS if point[0] == 0])
def test_a_host_that_does_not_obey_is_told_once_and_then_forced(point: tuple[int, int, str]) -> None:
    check_commands_once(point)


@pytest.mark.parametrize("point", [point for point in FAULTS if point[0] == 0])
def test_a_host_that_is_back_before_its_driver_is_keeps_its_slot(point: tuple[int, int, str]) -> None:
    check_slow_return(point)


@pytest.mark.parametrize("point", CALLS)
def test_a_request_withdrawn_at_any_call_reboots_nothing(point: tuple[int, int, str]) -> None:
    check_withdrawn(point)


def test_sigterm_at_any_call_gives_back_what_no_reboot_was_begun_for() -> None:
    for number in range(len(undisturbed()[0][0])):
        fleet = Fleet(1, RebootPolicy("", KEYS, cordon=True))
        (machine,) = fleet.machines
        machine.request()
        machine.killer.at_call(number, fleet.clock.ask_to_end)
        with pytest.raises(BaseException, match=r"terminated by|^$"):
            machine.rebooter.run()
        if not machine.host.is_down:
            assert fleet.holders == []
            assert KEYS.pre_reboot_boot_id not in machine.notes
            assert machine.notes.get(KEYS.approve_reboot) == "true"
        fleet.clock.forget_the_end()
        fleet.settle()
        check_rebooted_once(machine)


BLOWS = st.tuples(
    st.integers(0, 3),
    st.sampled_from(["kill", "kill-after", "fault", "fault-after", "stop", "second", "withdraw", "by-hand", "plain"]),
    st.integers(0, 30),
    st.integers(0, 3),
)


@pytest.mark.shares(3)
@settings(max_examples=examples(400))
@given(blows=st.lists(BLOWS, max_size=25), limit=st.integers(1, 2))
def test_in_any_order_of_blows_no_two_reboot_at_once_none_is_lost_none_reboots_twice(
    blows: list[tuple[int, str, int, int]], limit: int
) -> None:
    fleet = Fleet(4, RebootPolicy("", KEYS, cordon=True, max_concurrent=limit, max_attempts=1000))
    for machine in fleet.machines:
        machine.request()
    for number, kind, at, other in blows:
        strike(fleet, number, kind, at, other)
    fleet.settle(200)
    for machine in fleet.machines:
        if machine.host.boots == 1 + len(machine.reboots) and machine.events("RebootCompleted"):
            assert len(machine.reboots) == 1
        check_clean_node(machine)
    assert fleet.holders == []


def strike(fleet: Fleet, number: int, kind: str, at: int, other: int) -> None:
    """One blow at one node, then its next round."""
    machine = fleet.machines[number]
    if machine.host.is_down:
        if at % 2:
            machine.come_back()
        return
    if kind == "withdraw":
        machine.host.marker = None
    elif kind == "by-hand":
        if not machine.host.remembered().pending:
            machine.come_back()
        return
    actions: dict[str, Callable[[Killer], None]] = {
        "kill": lambda killer: killer.kill_at(at % 14, after=False),
        "kill-after": lambda killer: killer.kill_at(at % 14, after=True),
        "fault": lambda killer: killer.at_call(at, unavailable),
        "fault-after": lambda killer: killer.at_call(at, unavailable, after=True),
        "stop": lambda killer: killer.at_call(at, lambda: _others_go_on(fleet, number, other)),
        "second": lambda killer: killer.at_call(at, lambda: _second_goes_on(fleet, number)),
    }
    machine.round_with(actions.get(kind, lambda _: None))
    fleet.clock.sleep(30.0)


def _second_goes_on(fleet: Fleet, number: int) -> None:
    fleet.machines[number].second_process()


def _others_go_on(fleet: Fleet, number: int, other: int) -> None:
    machine = fleet.machines[other]
    if other != number:
        if machine.host.is_down:
            machine.come_back()
        machine.round()


def over(points: list[Any], *checks: Callable[..., None]) -> list[Case]:
    """All checks at all points."""
    return [partial(check, point) for check in checks for point in points]


def reboot_without_second_look(self: Rebooter, state: RebootState, _: str) -> None:
    self._save_evidence(state)
    pending = state.pending
    assert pending is not None
    self._ports.host.keep(replace(state.record, pending=replace(pending, commanded_s=state.snapshot.uptime_s)))
    self._ports.host.reboot()


def wanted_however_old(self: Rebooter, look: Snapshot) -> bool:
    now = self._ports.host.look()
    return (now.boot_id, now.marker) == (look.boot_id, look.marker)


def slot_before_the_note(self: Rebooter, state: RebootState, reason: str) -> None:
    node, request, seen = state.node, state.request, state.slots
    assert node is not None
    assert request is not None
    assert seen is not None
    me = SlotHolder(node.name, node.uid, state.boot_id)
    slots = seen.slots.without(seen.gone).with_room(me, self._policy.max_concurrent)
    assert slots is not None
    self._ports.slots.write(slots, seen.version)
    self._ports.host.keep(replace(state.record, pending=Pending(request, node.uid)))


def grant_without_precondition(self: Rebooter, change: NodeChange, _: str | None) -> None:
    if not change.is_empty:
        self._ports.cluster.patch_node(change, None)


def slots_without_compare(self: Rebooter, state: RebootState, reason: str) -> None:
    assert state.slots is not None
    fresh = self._ports.slots.read(self._policy.max_concurrent)
    TAKE_SLOT(self, replace(state, slots=replace(state.slots, version=fresh.version)), reason)


def release_without_a_note(self: Rebooter, state: RebootState, _: str) -> None:
    pending = state.record.pending or state.pending
    UNDO(self, replace(state, record=replace(state.record, pending=pending)), keeps_request=True)
    self._forget(state, keeps_request=True)


def forget_before_giving_back(self: Rebooter, state: RebootState, reason: str) -> None:
    self._forget(state, keeps_request=False)
    self._undo(state, keeps_request=False)


def without(guard: object) -> tuple[object, ...]:
    return tuple(other for other in decision.GUARDS if other is not guard)


TAKE_SLOT = Rebooter._take_slot
UNDO = Rebooter._undo


@pytest.mark.shares(3)
@pytest.mark.parametrize(
    ("target", "name", "mutant", "cases"),
    [
        (Rebooter, "_reboot", reboot_without_second_look, over(CALLS, check_withdrawn, check_resumed_after_withdrawal)),
        (Rebooter, "_still_wanted", lambda *_: True, over(CALLS, check_withdrawn)),
        (Rebooter, "_still_wanted", wanted_however_old, over(CALLS, check_window_closes)),
        (decision, "_may_go_down", lambda *_: True, over(CALLS, check_window_closes)),
        (Rebooter, "_take_slot", slot_before_the_note, over(KILLS, check_killed_and_withdrawn)),
        (Rebooter, "_take_slot", slots_without_compare, over(CALLS, check_other_begins)),
        (Rebooter, "_patch", grant_without_precondition, over(CALLS, check_next_approval_is_not_consumed)),
        (Rebooter, "_release", release_without_a_note, over(KILLS, check_killed_while_releasing_an_unknown_grant)),
        (Pending, "is_granted", property(lambda _: True), over(CALLS, check_forged_and_not_approved)),
        (Rebooter, "_withdraw", forget_before_giving_back, over(KILLS, check_killed_while_withdrawing)),
        (decision, "_why_not_back", lambda _: "", over(FAULTS, check_slow_return)),
        (decision, "GUARDS", without(decision._earlier_boot), over(KILLS, check_killed_and_rebooted_by_hand)),
        (decision, "GUARDS", without(decision._another_reason), over(CALLS, check_another_reason)),
        (decision, "GUARDS", without(decision._under_way), over(CALLS, check_commands_once)),
        (reboot_state, "is_stale", lambda *_: False, over(KILLS, check_killed_and_rebooted_by_hand)),
    ],
)
def test_a_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, target: object, name: str, mutant: object, cases: list[Case]
) -> None:
    check_caught(cases, monkeypatch, name, mutant, target)
