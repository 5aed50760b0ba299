"""Reboots on the fakes: killed anywhere, with an API server that fails anywhere, with processes that stand still.

Never two at once, none lost, none twice: the fleet asserts the first and the last at every reboot. The mutants of
`tests/assurance/mutants` show that these tests can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.reboot.maintenance_windows import parse_windows
from driver_manager.domain.reboot.state import RebootPolicy
from tests.support.fakes import reboot_world
from tests.support.fakes.killer import Killer
from tests.support.fakes.reboot_world import APPROVE, KEYS, Fleet, Machine, check_clean, check_rebooted_once, grant_of
from tests.support.selection import examples

POLICY = RebootPolicy("", KEYS, cordon=True, clear_workloads=True, max_attempts=1000)
LIFE = 3
"""Rounds of one node from marker to completion: up to the reboot, after it, and one with nothing to do."""
API_CALLS = ("node", "patch", "event", "slots", "lease", "pods", "blockers", "evict")

Kill = tuple[int, int, bool]
"""Round, effect, and whether the kill comes after it."""
Call = tuple[int, int, str]
"""Round, number and name of a call."""
Prepare = Callable[[int, Killer], None]


def pair() -> tuple[Fleet, Machine, Machine]:
    """Two nodes that both want to reboot, and one slot."""
    fleet = Fleet(2, POLICY)
    first, second = fleet.machines
    return fleet, first.request(), second.request()


def single(reason: str = "upgrade", *, approved: bool = True, **rules: Any) -> tuple[Fleet, Machine]:
    """One node that wants to."""
    fleet = Fleet(1, replace(POLICY, **rules))
    return fleet, fleet.machines[0].request(reason, approved=approved)


def live(machine: Machine, prepare: Prepare = lambda *_: None, rounds: int = LIFE) -> None:
    """One node's rounds; `prepare` may ask something of each round's killer. The host comes back by itself."""
    for number in range(rounds):
        if machine.host.is_down:
            machine.come_back()
        machine.round_with(partial(prepare, number))


def at(point: Call, action: Callable[[], object], *, after: bool = False) -> Prepare:
    """That action at this call."""
    return lambda now, killer: killer.at_call(point[1], action, after=after) if now == point[0] else None


@cache
def undisturbed() -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Calls and effects of each round of one node's undisturbed life."""
    _, machine, _ = pair()
    seen: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for _ in range(LIFE):
        live(machine, rounds=1)
        seen.append((tuple(machine.killer.calls), tuple(machine.killer.effects)))
    return tuple(seen)


KILLS: list[Kill] = [  # the last effect before a reboot ends with the process
    (number, effect, after)
    for number, (_, effects) in enumerate(undisturbed())
    for effect in range(len(effects) + (number == 0))
    for after in (False, True)
]
CALLS: list[Call] = [
    (number, call, name) for number, (calls, _) in enumerate(undisturbed()) for call, name in enumerate(calls)
]
FAULTS = [point for point in CALLS if point[2] in API_CALLS]
FIRST = [point for point in CALLS if point[0] == 0]
"""Those of the round that ends with the reboot."""
FIRST_KILLS = [point for point in KILLS if point[0] == 0]


def but(*names: str, points: list[Call] = FIRST) -> list[Call]:
    """The points without those of these calls."""
    return [point for point in points if point[2] not in names]


def check_end(fleet: Fleet, *machines: Machine, rounds: int = 60) -> None:
    """Raises AssertionError unless all of them have rebooted once in the end."""
    fleet.settle(rounds)
    for machine in machines:
        check_rebooted_once(machine)


def check_nothing_taken(machine: Machine) -> None:
    """Raises AssertionError unless nothing but an approval is left of the request."""
    machine.cluster.edit(annotations={KEYS.approve_reboot: None})
    check_clean(machine)


def killed(point: Kill) -> tuple[Fleet, Machine, Machine]:
    """Two nodes, after the first one's process was killed there; its host is up."""
    fleet, machine, other = pair()
    live(machine, lambda number, killer: kill(killer, point) if number == point[0] else None, rounds=point[0] + 1)
    return fleet, machine, other


def kill(killer: Killer, point: Kill) -> None:
    killer.kill_at(point[1], after=point[2])


def killed_while_releasing(point: Kill, loss: Callable[[Machine], None]) -> tuple[Fleet, Machine]:
    """After `loss`, right before the reboot, the process that undoes it was killed; then the other node reboots."""
    fleet, machine, other = pair()
    machine.round_with(lambda killer: killer.at("evidence", killer.die))
    assert fleet.holders == [machine.name]
    loss(machine)
    machine.round_with(lambda killer: kill(killer, point))
    check_end(fleet, other, rounds=100)
    return fleet, machine


def recover(machine: Machine) -> None:
    """The chip is well again: the marker goes."""
    machine.host.marker = None


def lose_record(machine: Machine) -> None:
    """The host's record is lost."""
    machine.host.text = None


def test_the_points_are_many_enough_to_mean_something() -> None:
    effects = {effect for _, effects in undisturbed() for effect in effects}
    assert {"keep", "lease", "patch", "event", "evidence", "evict", "remove marker"} <= effects
    assert (len(KILLS) > 40, len(FAULTS) > 20) == (True, True)


@pytest.mark.parametrize("point", KILLS)
def test_killed_at_any_effect_the_next_process_goes_on(point: Kill) -> None:
    check_end(*killed(point))


@pytest.mark.parametrize("point", KILLS)
def test_killed_at_any_effect_and_withdrawn_nothing_stays_taken(point: Kill) -> None:
    fleet, machine, other = killed(point)
    if machine.host.is_down:
        machine.come_back()
    before = list(machine.reboots)
    recover(machine)
    check_end(fleet, other, rounds=100)
    assert machine.reboots == before
    check_nothing_taken(machine)


@pytest.mark.parametrize("point", KILLS)
def test_killed_at_any_effect_an_approved_step_of_a_recovery_is_done_once(point: Kill) -> None:
    fleet, machine = single("recovery", approved=False)
    machine.cluster.edit(annotations={KEYS.approve_recovery: "reboot"})
    live(machine, lambda number, killer: kill(killer, point) if number == point[0] else None)
    fleet.settle()
    assert len(machine.reboots) == 1
    check_clean(machine)


@pytest.mark.parametrize("point", KILLS)
def test_killed_while_it_withdraws_nothing_stays_taken(point: Kill) -> None:
    check_nothing_taken(killed_while_releasing(point, recover)[1])


@pytest.mark.parametrize("point", FIRST_KILLS)
def test_killed_at_any_effect_nothing_stays_taken_for_a_grant_that_the_host_does_not_know(point: Kill) -> None:
    fleet, machine = killed_while_releasing(point, lose_record)
    assert machine.reboots == []
    assert machine.notes.keys() == {KEYS.reboot_required, KEYS.upgrade_state}
    assert not machine.node.unschedulable
    assert fleet.holders == []
    machine.cluster.edit(annotations=APPROVE)
    check_end(fleet, machine)


@pytest.mark.parametrize("point", FIRST_KILLS)
def test_killed_on_a_young_host_with_a_forged_grant_it_reboots_once_and_not_before_it_may(point: Kill) -> None:
    fleet, machine = single(min_uptime_s=600.0)
    machine.host.booted_at = fleet.clock.now - 30
    machine.cluster.edit(annotations=grant_of(machine))
    machine.round_with(lambda killer: kill(killer, point))
    machine.round()
    assert (machine.reboots, fleet.holders) == ([], [])
    fleet.clock.sleep(600.0)
    check_end(fleet, machine)


@pytest.mark.parametrize("point", FIRST_KILLS)
def test_killed_at_any_effect_and_rebooted_by_hand_it_does_not_reboot_again(point: Kill) -> None:
    fleet, machine, other = killed(point)
    before = list(machine.reboots)
    machine.come_back()
    check_end(fleet, other)
    assert machine.reboots == before
    check_nothing_taken(machine)


@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer-lost"])
@pytest.mark.parametrize("point", FAULTS)
def test_an_api_server_that_fails_at_any_call_loses_nothing(point: Call, after: bool) -> None:
    fleet, machine, other = pair()
    live(machine, at(point, reboot_world.unavailable, after=after))
    check_end(fleet, machine, other)


def go_on_for_hours(fleet: Fleet, machine: Machine, other: Machine) -> None:
    """Everybody else does, on this node too."""
    other.round()
    machine.second_process()
    live(other)
    fleet.clock.sleep(4 * 3600)


def take_the_slot(_fleet: Fleet, _machine: Machine, other: Machine) -> None:
    """The other node takes it and goes down, if it can."""
    other.round()


def lose_the_lease(fleet: Fleet, _machine: Machine, other: Machine) -> None:
    """Somebody deletes the Lease, and the other node takes the slot."""
    fleet.slots, fleet.slots_version = '{"schema": 1, "holders": []}', fleet.slots_version + 1
    other.round()


def withdraw(_fleet: Fleet, machine: Machine, other: Machine) -> None:
    """A second process sees the request withdrawn, and the other node begins its reboot."""
    recover(machine)
    machine.second_process()
    other.round()


Meanwhile = Callable[[Fleet, Machine, Machine], None]
STANDSTILLS: dict[Meanwhile, list[Call]] = {
    go_on_for_hours: CALLS,
    take_the_slot: CALLS,
    lose_the_lease: but("command", "look", "keep"),
    withdraw: but("command"),
}


@pytest.mark.shares(3)
@pytest.mark.parametrize(("point", "what"), [(point, what) for what, found in STANDSTILLS.items() for point in found])
def test_a_process_that_stands_still_at_any_call_does_no_harm_when_it_goes_on(point: Call, what: Meanwhile) -> None:
    fleet, machine, other = pair()
    live(machine, at(point, lambda: what(fleet, machine, other)))
    check_end(fleet, *(() if what is withdraw else (machine,)), other, rounds=100)
    assert what is not withdraw or machine.reboots == []


@pytest.mark.parametrize("point", FIRST)
def test_an_approval_given_while_a_process_stands_still_is_for_the_next_reboot(point: Call) -> None:
    _, machine = single(clear_workloads=False)
    was_consumed: list[bool] = []

    def meanwhile() -> None:
        machine.host.obeys = ()
        machine.second_process()
        machine.host.obeys = ("command", "sysrq")
        was_consumed.append(KEYS.approve_reboot not in machine.notes)
        machine.cluster.edit(annotations=APPROVE)

    live(machine, at(point, meanwhile))
    for _ in range(15):
        machine.fleet.clock.sleep(30)
        machine.round()
        if machine.host.is_down:
            machine.come_back()
    assert len(machine.reboots) == 1
    assert was_consumed != [True] or machine.notes == APPROVE


@pytest.mark.parametrize("kill", [False, True], ids=["stands-still", "killed"])
@pytest.mark.parametrize("point", but("command"))
def test_outside_its_window_nothing_reboots_however_far_it_had_come(point: Call, kill: bool) -> None:
    fleet = Fleet(1, replace(POLICY, schedule=parse_windows("22:00-23:00")))
    fleet.clock.sleep((22.5 * 3600 - fleet.clock.wall()) % (24 * 3600))
    machine = fleet.machines[0].request()

    def meanwhile() -> None:
        fleet.clock.sleep(4 * 3600)
        if kill:
            machine.killer.die()

    live(machine, at(point, meanwhile), rounds=4)
    assert (machine.reboots, fleet.holders) == ([], [])
    assert not machine.node.unschedulable
    assert machine.notes[KEYS.approve_reboot] == "true"


@pytest.mark.parametrize("point", but("command", "look"))
def test_what_allows_one_reason_does_not_allow_the_other(point: Call) -> None:
    fleet, machine = single("recovery", approved=False, auto_recover=True)
    live(machine, at(point, lambda: machine.request("upgrade", approved=False)), rounds=4)
    assert (machine.reboots, fleet.holders) == ([], [])


@pytest.mark.parametrize("point", FIRST)
def test_a_grant_forged_at_any_call_does_not_replace_the_approval(point: Call) -> None:
    fleet, machine = single()
    was_granted: list[bool] = []

    def meanwhile() -> None:
        pending = machine.host.remembered().pending
        was_granted.append(pending is not None and pending.started_s > 0)
        machine.cluster.edit(annotations={**grant_of(machine), KEYS.approve_reboot: None})

    machine.round_with(partial(at(point, meanwhile), 0))
    machine.round()
    if was_granted == [False]:
        assert (machine.host.commands, fleet.holders) == ([], [])
        assert KEYS.pre_reboot_boot_id not in machine.notes


@pytest.mark.parametrize("point", [point for point in FAULTS if point in FIRST])
def test_a_host_that_does_not_reboot_is_asked_once_and_then_forced(point: Call) -> None:
    fleet, machine = single()
    machine.host.obeys = ("sysrq",)
    machine.round_with(partial(at(point, reboot_world.unavailable), 0))
    for _ in range(10):
        machine.round()
        fleet.clock.sleep(1.0)
    assert machine.host.commands == ["command"]
    fleet.clock.sleep(POLICY.grace_s)
    machine.round()
    assert machine.host.commands == ["command", "sysrq"]
    check_end(fleet, machine)


@pytest.mark.parametrize("point", [point for point in FAULTS if point in FIRST])
def test_a_host_that_is_back_before_its_driver_is_keeps_its_slot(point: Call) -> None:
    fleet, machine, other = pair()
    machine.round_with(partial(at(point, reboot_world.unavailable), 0))
    machine.round()
    assert machine.host.is_down
    machine.boot()
    for _ in range(3):
        machine.round()
        other.round()
    machine.tell(is_ready=True, boot_id=machine.host.boot_id)
    machine.round()
    other.round()
    machine.host.serves = True
    check_end(fleet, machine, other)


@pytest.mark.parametrize("point", but("command", points=CALLS))
def test_a_request_withdrawn_at_any_call_reboots_nothing(point: Call) -> None:
    fleet, machine, other = pair()
    live(machine, at(point, lambda: recover(machine)))
    check_end(fleet, other, rounds=100)
    assert len(machine.reboots) == (point[0] > 0)
    assert machine.name not in fleet.holders
    assert machine.host.remembered().is_empty


def test_sigterm_at_any_call_gives_back_what_no_reboot_was_begun_for() -> None:
    for number in range(len(FIRST)):
        fleet, machine = single(clear_workloads=False, max_attempts=3)
        machine.killer.at_call(number, fleet.clock.ask_to_end)
        with pytest.raises(BaseException, match=r"terminated by|^$"):
            machine.rebooter.run()
        if not machine.host.is_down:
            assert fleet.holders == []
            assert KEYS.pre_reboot_boot_id not in machine.notes
            assert machine.notes.get(KEYS.approve_reboot) == "true"
        fleet.clock.forget_the_end()
        check_end(fleet, machine)


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
    fleet = Fleet(4, replace(POLICY, clear_workloads=False, max_concurrent=limit))
    for machine in fleet.machines:
        machine.request()
    for number, kind, call, other in blows:
        strike(fleet.machines[number], kind, call, fleet.machines[other])
    fleet.settle(200)
    for machine in fleet.machines:
        if machine.host.boots == 1 + len(machine.reboots) and machine.events("RebootCompleted"):
            assert len(machine.reboots) == 1
        check_nothing_taken(machine)
    assert fleet.holders == []


def strike(machine: Machine, kind: str, call: int, other: Machine) -> None:
    """One blow at one node, then its next round."""
    if machine.host.is_down:
        if call % 2:
            machine.come_back()
        return
    if kind == "by-hand":
        if not machine.host.remembered().pending:
            machine.come_back()
        return
    if kind == "withdraw":
        recover(machine)

    def prepare(killer: Killer) -> None:
        match kind:
            case "kill" | "kill-after":
                killer.kill_at(call % 14, after=kind == "kill-after")
            case "fault" | "fault-after":
                killer.at_call(call, reboot_world.unavailable, after=kind == "fault-after")
            case "stop" if other is not machine:
                killer.at_call(call, lambda: live(other, rounds=1))
            case "second":
                killer.at_call(call, machine.second_process)

    machine.round_with(prepare)
    machine.clock.sleep(30.0)
