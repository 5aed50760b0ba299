"""The rebooter's decisions: its guards in their order, and the acts that followed each other in stories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from unittest import mock

from msgspec.structs import replace

from driver_manager.core import rebooter as reboot_loop
from driver_manager.domain import selectors
from driver_manager.domain.node import Pod
from driver_manager.domain.reboot import decision as reboot_decision
from driver_manager.domain.reboot.decision import ASKS, GUARDS, RebootAct, RebootDecision
from driver_manager.domain.reboot.maintenance_windows import parse_windows
from driver_manager.domain.reboot.state import RebootPolicy, RebootState, Slots, encode_slots
from tests.support.docs.markdown import name_of, table
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
        decision = reboot_decision.decide(state)
        guard = next(guard for guard in GUARDS if guard(state) is not None)
        self.by_guard.setdefault(name_of(guard), {}).setdefault(decision.act, decision.reason)
        if decision.act not in ASKS:
            before = self.last.get(state.policy.node, RebootAct.NOTHING)
            self.last[state.policy.node] = decision.act
            if before is not decision.act:
                self.followers.setdefault(before, set()).add(decision.act)
        return decision


Event = Callable[[Machine], object]
Story = Callable[[], None]


def _story(*events: Event, policy: RebootPolicy = POLICY, approved: bool = True) -> Story:
    """What happens to a node that is asked to reboot."""

    def story() -> None:
        (machine,) = Fleet(1, policy).machines
        machine.request(approved=approved)
        for event in events:
            event(machine)

    return story


def _live(machine: Machine) -> None:
    """A host that went down comes back; one look, and some time."""
    if machine.host.is_down:
        machine.come_back()
    machine.round()
    machine.clock.sleep(30.0)


def _leaving(event: Event) -> Event:
    """It happens in the middle of a reboot's way, after the grant and before the command."""

    def look(machine: Machine) -> None:
        clear = machine.workloads.clear
        with mock.patch.object(machine.workloads, "clear", side_effect=lambda: (event(machine), clear())):
            machine.round()

    return look


def _host(**facts: object) -> Event:
    return lambda machine: vars(machine.host).update(facts)


def _sleeps(seconds: float) -> Event:
    return lambda machine: machine.clock.sleep(seconds)


def _blocked(*pods: str) -> Event:
    return lambda machine: setattr(machine.workloads, "blocking", pods)


def _has_a_job(machine: Machine) -> None:
    machine.cluster.listed = {"uid": Pod("tenant", "train", "uid", labels={"job": "yes"})}


def _loses_the_lease(machine: Machine) -> None:
    machine.fleet.slots, machine.fleet.slots_version = encode_slots(Slots()), machine.fleet.slots_version + 1


def _is_another_hosts(machine: Machine) -> None:
    there = machine.cluster.current
    assert there is not None
    machine.cluster.current = replace(there, machine_id="another", boot_id="another")


def _two_nodes() -> None:
    """One may reboot at a time."""
    fleet = Fleet(2, POLICY)
    for machine in fleet.machines:
        machine.request()
    for _ in range(6):
        for machine in fleet.machines:
            _live(machine)


_look, _life, _recovered = Machine.round, [_live] * 4, _host(marker=None)
_late: tuple[Event, ...] = (
    *(_look, lambda machine: machine.cluster.edit(annotations=APPROVE), _look, Machine.boot, _look),
    lambda machine: machine.tell(is_ready=True, boot_id=machine.host.boot_id),
    *(_host(serves=False), _look, _host(serves=True), _look, _look),
)
_hard = replace(POLICY, grace_s=20.0)
_at_night = replace(POLICY, schedule=parse_windows("22:00-23:00"))
STORIES: tuple[Story, ...] = (
    _story(*_life),
    _story(*_late, approved=False),
    _story(_look, _recovered, *_life[:2], approved=False),
    _story(_leaving(_recovered), *_life),
    _story(_leaving(lambda machine: machine.request("recovery", approved=False)), *_life),
    _story(
        *(lambda machine: machine.clock.sleep((12 * 3600 - machine.clock.wall()) % DAY_S), _look),
        *(_sleeps(10.5 * 3600), _leaving(_sleeps(4 * 3600)), *_life),
        policy=_at_night,
    ),
    _story(lambda machine: setattr(machine.host, "booted_at", machine.clock.now), _look),
    _story(_blocked("pod a/b: its DaemonSet would recreate it"), _look, _blocked(), *_life),
    _two_nodes,
    _story(
        *(*_life, _sleeps(POLICY.min_uptime_s), Machine.request, *_life[:2]),
        policy=replace(POLICY, max_attempts=1, auto_upgrade=True),
    ),
    _story(_host(obeys=("sysrq",)), *[_live] * 6, policy=_hard),
    _story(_host(obeys=()), *[_live] * 6, policy=_hard),
    _story(_is_another_hosts, _look, lambda machine: setattr(machine.cluster, "current", None), _look),
    _story(_leaving(_loses_the_lease), *_life),
    _story(
        _has_a_job, *_life, policy=replace(POLICY, completion=selectors.parse("job=yes"), completion_timeout_s=60.0)
    ),
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
    names, followers = {act: act.name.lower() for act in RebootAct}, seen().followers
    drawn = set(followers).union(*followers.values()) - ASKS
    lines = ["stateDiagram-v2", f"    [*] --> {names[RebootAct.NOTHING]}"]
    lines += [f"    {names[act]}: {act.value}" for act in RebootAct if act in drawn]
    for act in RebootAct:
        lines += [f"    {names[act]} --> {names[other]}" for other in RebootAct if other in followers.get(act, ())]
    return "\n".join(lines)


def guards() -> str:
    """The guards in the order in which they are asked, with what each was seen to decide."""
    rows = []
    for number, name in enumerate(map(name_of, GUARDS), 1):
        found = seen().by_guard.get(name, {})
        acts = ", ".join(act.value for act in RebootAct if act in found)
        rows.append((f"{number}. {name}", acts, next(iter(found.values()), "")))
    return table(("asked in this order", "decides", "for example"), rows)
