"""The rebooter's decisions: its guards in their order, and the acts that followed each other in stories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from unittest import mock

from msgspec.structs import replace

from driver_manager.core import rebooter as reboot_loop
from driver_manager.domain.reboot import decision as reboot_decision
from driver_manager.domain.reboot.decision import ASKS, GUARDS, RebootAct, RebootDecision
from driver_manager.domain.reboot.maintenance_windows import parse_windows
from driver_manager.domain.reboot.state import RebootPolicy, RebootState, Slots, encode_slots
from tests.support.docs.markdown import table
from tests.support.fakes.reboot_world import APPROVE, KEYS, Fleet, Machine

POLICY = RebootPolicy("", KEYS, cordon=True, clear_workloads=True)
DAY_S = 24 * 3600.0


@dataclass
class Seen:
    """What was decided in all stories: acts and reasons by guard, and which act followed which on one node."""

    by_guard: dict[str, dict[RebootAct, str]] = field(default_factory=dict)
    followers: dict[RebootAct, set[RebootAct]] = field(default_factory=dict)
    last: dict[str, RebootAct] = field(default_factory=dict)

    def decide(self, state: RebootState) -> RebootDecision:
        """The product's decision, noted."""
        decision = reboot_decision.decide(state)
        guard = next(guard for guard in GUARDS if guard(state) is not None)
        self.by_guard.setdefault(_name(guard), {}).setdefault(decision.act, decision.reason)
        if decision.act not in ASKS:
            before = self.last.get(state.policy.node, RebootAct.NOTHING)
            self.last[state.policy.node] = decision.act
            if before is not decision.act:
                self.followers.setdefault(before, set()).add(decision.act)
        return decision


def _name(guard: Callable[[RebootState], RebootDecision | None]) -> str:
    return guard.__name__.strip("_").replace("_", " ")


def _one(policy: RebootPolicy = POLICY, **request: object) -> Machine:
    """A node that is asked to reboot."""
    (machine,) = Fleet(1, policy).machines
    return machine.request(**request)  # type: ignore[arg-type]  # the fields of a marker


def _lives(machine: Machine, rounds: int = 4) -> None:
    for _ in range(rounds):
        if machine.host.is_down:
            machine.come_back()
        machine.round()
        machine.clock.sleep(30.0)


def _while_workloads_leave(machine: Machine, act: Callable[[], object]) -> None:
    """Let `act` happen in the middle of a reboot's way, after the grant and before the command."""
    clear = machine.workloads.clear

    def leave() -> None:
        act()
        clear()

    with mock.patch.object(machine.workloads, "clear", leave):
        machine.round()
    _lives(machine)


def approved() -> None:
    """From marker to completion."""
    _lives(_one())


def approved_late() -> None:
    """Approval comes after a while; the kubelet and the driver come back late."""
    machine = _one(approved=False)
    machine.round()
    machine.cluster.edit(annotations=APPROVE)
    machine.round()
    machine.boot()
    machine.round()
    machine.tell(is_ready=True, boot_id=machine.host.boot_id)
    machine.host.serves = False
    machine.round()
    machine.host.serves = True
    machine.round()
    machine.round()


def withdrawn() -> None:
    """The chip recovers before anybody approves."""
    machine = _one(approved=False)
    machine.round()
    machine.host.marker = None
    _lives(machine, 2)


def withdrawn_with_a_grant() -> None:
    """It recovers while workloads leave."""
    machine = _one()
    _while_workloads_leave(machine, lambda: setattr(machine.host, "marker", None))


def for_another_reason() -> None:
    """An upgrade that was granted becomes a recovery."""
    machine = _one()
    _while_workloads_leave(machine, lambda: machine.request("recovery", approved=False))


def outside_its_window() -> None:
    """The window is not open yet; once it is, it closes while workloads leave."""
    machine = _one(replace(POLICY, schedule=parse_windows("22:00-23:00")))
    machine.clock.sleep((12 * 3600 - machine.clock.wall()) % DAY_S)
    machine.round()
    machine.clock.sleep(10.5 * 3600)
    _while_workloads_leave(machine, lambda: machine.clock.sleep(4 * 3600))


def too_young() -> None:
    """The host has just booted."""
    machine = _one()
    machine.host.booted_at = machine.clock.now
    machine.round()


def blocked() -> None:
    """A pod would not leave; then it would."""
    machine = _one()
    machine.workloads.blocking = ("pod a/b: its DaemonSet would recreate it",)
    machine.round()
    machine.workloads.blocking = ()
    _lives(machine)


def one_slot() -> None:
    """Two nodes, and one may reboot at a time."""
    fleet = Fleet(2, POLICY)
    for machine in fleet.machines:
        machine.request()
    for _ in range(6):
        for machine in fleet.machines:
            _lives(machine, 1)


def too_often() -> None:
    """Reboots do not help."""
    machine = _one(replace(POLICY, max_attempts=1, auto_upgrade=True))
    _lives(machine)
    machine.clock.sleep(POLICY.min_uptime_s)
    machine.request()
    _lives(machine, 2)


def forced() -> None:
    """The command does nothing, sysrq does."""
    machine = _one(replace(POLICY, grace_s=20.0))
    machine.host.obeys = ("sysrq",)
    _lives(machine, 6)


def given_up() -> None:
    """Nothing takes the host down."""
    machine = _one(replace(POLICY, grace_s=20.0))
    machine.host.obeys = ()
    _lives(machine, 6)


def elsewhere() -> None:
    """The Node is not there, or is another host's."""
    machine = _one()
    there = machine.cluster.current
    assert there is not None
    machine.cluster.current = replace(there, machine_id="another", boot_id="another")
    machine.round()
    machine.cluster.current = None
    machine.round()


def slot_lost() -> None:
    """Somebody deletes the Lease while workloads leave."""
    machine = _one()

    def delete() -> None:
        machine.fleet.slots, machine.fleet.slots_version = encode_slots(Slots()), machine.fleet.slots_version + 1

    _while_workloads_leave(machine, delete)


STORIES: tuple[Callable[[], None], ...] = (
    *(approved, approved_late, withdrawn, withdrawn_with_a_grant, for_another_reason, outside_its_window, too_young),
    *(blocked, one_slot, too_often, forced, given_up, elsewhere, slot_lost),
)


@cache
def seen() -> Seen:
    found = Seen()
    with mock.patch.object(reboot_loop, "decide", found.decide):
        for story in STORIES:
            found.last.clear()
            story()
    return found


def picture() -> str:
    names = {act: act.name.lower() for act in RebootAct}
    lines = ["stateDiagram-v2", f"    [*] --> {names[RebootAct.NOTHING]}"]
    lines += [f"    {names[act]}: {act.value}" for act in RebootAct if act not in ASKS and act in _drawn()]
    for act in RebootAct:
        followers = seen().followers.get(act, set())
        lines += [f"    {names[act]} --> {names[other]}" for other in RebootAct if other in followers]
    return "\n".join(lines)


def _drawn() -> set[RebootAct]:
    followers = seen().followers
    return set(followers) | {act for found in followers.values() for act in found}


def guards() -> str:
    """The guards in the order in which they are asked, with what each was seen to decide."""
    rows = []
    for number, guard in enumerate(GUARDS, 1):
        found = seen().by_guard.get(_name(guard), {})
        example = next(iter(found.values()), "")
        acts = ", ".join(act.value for act in RebootAct if act in found)
        rows.append((str(number), _name(guard), acts, example))
    return table(("", "guard", "decides", "for example"), rows)
