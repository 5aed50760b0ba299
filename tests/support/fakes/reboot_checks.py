"""What must hold of reboots whatever happens, as checks that raise AssertionError; run against mutants too."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from msgspec.structs import replace

from driver_manager.domain.reboot.maintenance_windows import parse_windows
from driver_manager.domain.reboot.state import RebootPolicy
from tests.support.fakes.killer import Killer
from tests.support.fakes.reboot_world import (
    APPROVE,
    KEYS,
    Fleet,
    Machine,
    check_clean,
    check_rebooted_once,
    unavailable,
)

POLICY = RebootPolicy("", KEYS, cordon=True, clear_workloads=True, max_attempts=1000)
LIFE = 3
"""Rounds of one node from marker to completion: up to the reboot, after it, and one with nothing to do."""
API_CALLS = ("node", "patch", "event", "slots", "lease", "blockers", "evict")


def pair() -> tuple[Fleet, Machine, Machine]:
    """Two nodes that both want to reboot, and one slot."""
    fleet = Fleet(2, POLICY)
    first, second = fleet.machines
    first.request()
    second.request()
    return fleet, first, second


def live(machine: Machine, prepare: Callable[[int, Killer], None]) -> None:
    """One node's rounds; `prepare` may ask something of each round's killer. The host comes back by itself."""
    for number in range(LIFE):
        if machine.host.is_down:
            machine.come_back()
        machine.round_with(lambda killer, number=number: prepare(number, killer))  # type: ignore[misc]  # bound now


@cache
def undisturbed() -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Calls and effects of each round of one node's undisturbed life."""
    _, machine, _ = pair()
    seen: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for _ in range(LIFE):
        if machine.host.is_down:
            machine.come_back()
        machine.round()
        seen.append((tuple(machine.killer.calls), tuple(machine.killer.effects)))
    return tuple(seen)


def kill_points() -> list[tuple[int, int, bool]]:
    """Round, effect, and whether the kill comes after it; the last effect before a reboot ends with the process."""
    return [
        (number, effect, after)
        for number, (_, effects) in enumerate(undisturbed())
        for effect in range(len(effects) + (number == 0))
        for after in (False, True)
    ]


def call_points(*names: str) -> list[tuple[int, int, str]]:
    """Round, number and name of every call, or of those in `names`."""
    return [
        (number, call, name)
        for number, (calls, _) in enumerate(undisturbed())
        for call, name in enumerate(calls)
        if not names or name in names
    ]


def killed(point: tuple[int, int, bool]) -> tuple[Fleet, Machine, Machine]:
    """Two nodes, after the first one's process was killed there."""
    fleet, machine, other = pair()
    number, effect, after = point
    for _ in range(number):
        machine.round()
        if machine.host.is_down:
            machine.come_back()
    machine.round_with(lambda killer: killer.kill_at(effect, after=after))
    return fleet, machine, other


def check_killed(point: tuple[int, int, bool]) -> None:
    """The next process goes on: both nodes reboot once."""
    fleet, machine, other = killed(point)
    fleet.settle()
    check_rebooted_once(machine)
    check_rebooted_once(other)


def check_killed_and_withdrawn(point: tuple[int, int, bool]) -> None:
    """After the kill the chip has recovered: nothing stays taken, the other node gets its turn."""
    fleet, machine, other = killed(point)
    if machine.host.is_down:
        machine.come_back()
    before = list(machine.reboots)
    machine.host.marker = None
    fleet.settle(100)
    assert machine.reboots == before
    assert {key: value for key, value in machine.notes.items() if key not in APPROVE} == {}
    machine.check_state()
    assert machine.name not in fleet.holders
    assert machine.host.remembered().is_empty
    check_rebooted_once(other)


def killed_while_releasing(
    point: tuple[int, int, bool], loss: Callable[[Machine], None]
) -> tuple[Fleet, Machine, Machine]:
    """Two nodes, settled: after `loss`, right before the first one's reboot, the process that undoes it was killed."""
    fleet, machine, other = pair()
    machine.round_with(lambda killer: killer.at("evidence", killer.die))
    assert fleet.holders == [machine.name]
    loss(machine)
    _, effect, after = point
    machine.round_with(lambda killer: killer.kill_at(effect, after=after))
    fleet.settle(100)
    return fleet, machine, other


def check_killed_while_withdrawing(point: tuple[int, int, bool]) -> None:
    """All is taken when the chip recovers, and the process that gives it back is killed there."""

    def recover(machine: Machine) -> None:
        machine.host.marker = None

    _, machine, other = killed_while_releasing(point, recover)
    check_clean_node(machine)
    check_rebooted_once(other)


def check_killed_while_releasing_an_unknown_grant(point: tuple[int, int, bool]) -> None:
    """The record is lost right before the reboot: the process that takes back what it finds is killed there."""

    def lose_record(machine: Machine) -> None:
        machine.host.text = None

    fleet, machine, other = killed_while_releasing(point, lose_record)
    assert machine.reboots == []
    assert machine.notes.keys() == {KEYS.reboot_required, KEYS.upgrade_state}
    assert machine.cluster.current is not None
    assert not machine.cluster.current.unschedulable
    assert fleet.holders == []
    check_rebooted_once(other)


def check_killed_with_a_forged_grant(point: tuple[int, int, bool]) -> None:
    """The Node has a grant that nobody gave, on a host that is up for 30 s: it reboots once, and not before it may."""
    fleet = Fleet(1, replace(POLICY, min_uptime_s=600.0))
    (machine,) = fleet.machines
    machine.request()
    machine.host.booted_at = fleet.clock.now - 30
    machine.cluster.edit(annotations=grant_of(machine))
    _, effect, after = point
    machine.round_with(lambda killer: killer.kill_at(effect, after=after))
    machine.round()
    assert machine.reboots == []
    assert fleet.holders == []
    fleet.clock.sleep(600.0)
    fleet.settle()
    check_rebooted_once(machine)


def check_forged_and_not_approved(point: tuple[int, int, str]) -> None:
    """At one call before the grant the approval goes, and the Node gets a grant that nobody gave: no reboot follows."""
    fleet = Fleet(1, POLICY)
    (machine,) = fleet.machines
    machine.request()
    at, call, _ = point
    if at > 0:
        return
    was_granted: list[bool] = []

    def meanwhile() -> None:
        pending = machine.host.remembered().pending
        was_granted.append(pending is not None and pending.started_s > 0)
        machine.cluster.edit(annotations={**grant_of(machine), KEYS.approve_reboot: None})

    machine.round_with(lambda killer: killer.at_call(call, meanwhile))
    machine.round()
    if was_granted == [False]:
        assert machine.host.commands == []
        assert fleet.holders == []
        assert KEYS.pre_reboot_boot_id not in machine.notes


def grant_of(machine: Machine) -> dict[str, str]:
    """The annotations of a grant for the reboot out of this boot."""
    return {KEYS.pre_reboot_boot_id: machine.host.boot_id, KEYS.reboot_in_progress: "upgrade"}


def check_killed_and_rebooted_by_hand(point: tuple[int, int, bool]) -> None:
    """After the kill somebody else reboots the host: the marker is of an earlier boot, and nothing reboots again."""
    fleet, machine, other = killed(point)
    before = list(machine.reboots)
    machine.come_back()
    fleet.settle()
    assert machine.reboots == before
    assert {key: value for key, value in machine.notes.items() if key not in APPROVE} == {}
    machine.check_state()
    assert machine.name not in fleet.holders
    check_rebooted_once(other)


def check_fault(point: tuple[int, int, str], *, after: bool) -> None:
    """The API server fails at one call: both nodes reboot once all the same."""
    fleet, machine, other = pair()
    at, call, _ = point
    live(machine, lambda number, killer: killer.at_call(call, unavailable, after=after) if number == at else None)
    fleet.settle()
    check_rebooted_once(machine)
    check_rebooted_once(other)


def check_suspended(point: tuple[int, int, str]) -> None:
    """A process stands still at one call while everybody else goes on for hours, on its node too."""
    fleet, machine, other = pair()
    at, call, _ = point

    def meanwhile() -> None:
        other.round()
        machine.second_process()
        for _ in range(3):
            if other.host.is_down:
                other.come_back()
            other.round()
        fleet.clock.sleep(4 * 3600)

    live(machine, lambda number, killer: killer.at_call(call, meanwhile) if number == at else None)
    fleet.settle()
    check_rebooted_once(machine)
    check_rebooted_once(other)


def check_window_closes(point: tuple[int, int, str], *, kill: bool = False) -> None:
    """The window closes while a process stands still at one call, or before the next one begins: no reboot follows."""
    fleet = Fleet(1, replace(POLICY, schedule=parse_windows("22:00-23:00")))
    (machine,) = fleet.machines
    fleet.clock.sleep((22.5 * 3600 - fleet.clock.wall()) % (24 * 3600))
    machine.request()
    at, call, name = point
    if at > 0 or name == "command":
        return

    def meanwhile() -> None:
        fleet.clock.sleep(4 * 3600)
        if kill:
            machine.killer.die()

    machine.round_with(lambda killer: killer.at_call(call, meanwhile))
    for _ in range(3):
        machine.round()
    assert machine.reboots == []
    assert fleet.holders == []
    assert not machine.cluster.current or not machine.cluster.current.unschedulable
    assert machine.notes[KEYS.approve_reboot] == "true"


def check_other_begins(point: tuple[int, int, str]) -> None:
    """A process stands still at one call while the other node takes the slot and goes down, if it can."""
    fleet, machine, other = pair()
    at, call, _ = point
    live(machine, lambda number, killer: killer.at_call(call, lambda: _ignored(other)) if number == at else None)
    fleet.settle()
    check_rebooted_once(machine)
    check_rebooted_once(other)


def _ignored(machine: Machine) -> None:
    machine.round()


def check_slow_return(point: tuple[int, int, str]) -> None:
    """The host is back before its kubelet and its driver are: the other node waits for both."""
    fleet, machine, other = pair()
    at, call, _ = point
    machine.round_with(lambda killer: killer.at_call(call, unavailable) if at == 0 else None)
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
    fleet.settle()
    check_rebooted_once(machine)
    check_rebooted_once(other)


def check_withdrawn(point: tuple[int, int, str]) -> None:
    """The marker goes at one call before the command: no reboot follows."""
    fleet, machine, other = pair()
    at, call, name = point
    if name == "command":
        return
    live(
        machine,
        lambda number, killer: (
            killer.at_call(call, lambda: setattr(machine.host, "marker", None)) if number == at else None
        ),
    )
    fleet.settle(100)
    assert len(machine.reboots) == (at > 0)
    check_rebooted_once(other)
    assert machine.name not in fleet.holders
    assert machine.host.remembered().is_empty


def check_resumed_after_withdrawal(point: tuple[int, int, str]) -> None:
    """A process stands still; a second one sees the request withdrawn, and the other node begins its reboot."""
    fleet, machine, other = pair()
    at, call, name = point
    if at > 0 or name == "command":
        return

    def meanwhile() -> None:
        machine.host.marker = None
        machine.second_process()
        other.round()

    live(machine, lambda number, killer: killer.at_call(call, meanwhile) if number == at else None)
    fleet.settle(100)
    assert machine.reboots == []
    check_rebooted_once(other)


def check_lost_lease(point: tuple[int, int, str]) -> None:
    """Somebody deletes the Lease while a process stands still, and the other node takes the slot."""
    fleet, machine, other = pair()
    at, call, name = point
    if at > 0 or name in ("command", "look", "keep"):
        return

    def meanwhile() -> None:
        fleet.slots, fleet.slots_version = '{"schema": 1, "holders": []}', fleet.slots_version + 1
        other.round()

    live(machine, lambda number, killer: killer.at_call(call, meanwhile) if number == at else None)
    fleet.settle(100)
    check_rebooted_once(machine)
    check_rebooted_once(other)


def check_next_approval_is_not_consumed(point: tuple[int, int, str]) -> None:
    """A process stands still; a second one consumes the approval; the next approval is for the next reboot."""
    fleet = Fleet(1, replace(POLICY, clear_workloads=False))
    (machine,) = fleet.machines
    machine.request()
    at, call, _ = point
    if at > 0:
        return
    given: list[bool] = []

    def meanwhile() -> None:
        machine.host.obeys = ()
        machine.second_process()
        machine.host.obeys = ("command", "sysrq")
        given.append(KEYS.approve_reboot not in machine.notes)
        machine.cluster.edit(annotations=APPROVE)

    live(machine, lambda number, killer: killer.at_call(call, meanwhile) if number == at else None)
    for _ in range(15):
        machine.fleet.clock.sleep(30)
        machine.round()
        if machine.host.is_down:
            machine.come_back()
    assert len(machine.reboots) == 1
    if given == [True]:
        assert machine.notes == APPROVE


def check_another_reason(point: tuple[int, int, str]) -> None:
    """Recoveries are automatic, upgrades are not: the marker of the one becomes one of the other at some call."""
    fleet = Fleet(1, replace(POLICY, auto_recover=True))
    (machine,) = fleet.machines
    machine.request("recovery", approved=False)
    at, call, name = point
    if at > 0 or name in ("command", "look"):
        return

    def upgrade() -> None:
        machine.request("upgrade", approved=False)

    machine.round_with(lambda killer: killer.at_call(call, upgrade))
    for _ in range(3):
        machine.round()
    assert machine.reboots == []
    assert fleet.holders == []


def check_commands_once(point: tuple[int, int, str]) -> None:
    """A host that hears only sysrq, and an API server that fails once: one command, then sysrq after the grace."""
    fleet = Fleet(1, POLICY)
    (machine,) = fleet.machines
    machine.request()
    machine.host.obeys = ("sysrq",)
    at, call, name = point
    machine.round_with(lambda killer: killer.at_call(call, unavailable) if name in API_CALLS and at == 0 else None)
    for _ in range(10):
        machine.round()
        fleet.clock.sleep(1.0)
    assert machine.host.commands == ["command"]
    fleet.clock.sleep(POLICY.grace_s)
    machine.round()
    assert machine.host.commands == ["command", "sysrq"]


def check_clean_node(machine: Machine) -> None:
    """See check_clean; an approval may be left."""
    machine.cluster.edit(annotations={KEYS.approve_reboot: None})
    check_clean(machine)
