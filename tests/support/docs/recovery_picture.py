"""The decisions of a recovery: its guards in their order, with what each was seen to decide in stories."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from unittest import mock

from msgspec.structs import replace

from driver_manager.core import recovery as recovery_loop
from driver_manager.domain.profile import RecoveryStep
from driver_manager.domain.reboot.state import SlotHolder, Slots
from driver_manager.domain.recovery import (
    GUARDS,
    RecoveryAct,
    RecoveryAttempt,
    RecoveryDecision,
    RecoveryFacts,
    RecoveryRecord,
)
from tests.support.docs.markdown import table
from tests.support.fakes.builders import node
from tests.support.fakes.recovery_world import KEYS, NVIDIA, RecoveryWorld

Change = Callable[[RecoveryWorld], object]
OTHERS = Slots((SlotHolder("node-2", "uid-2", "boot-9"),))
NOTHING = RecoveryFacts(profile=NVIDIA, boot_id="boot-1", wall_s=1e9, uptime_s=100.0)
OF_ANOTHER_BOOT, OF_ANOTHER_LOAD = (
    RecoveryRecord((RecoveryAttempt(RecoveryStep.RESET, boot, 10**9, 100.0, load="7"),))
    for boot in ("boot-0", "boot-1")
)


def _without_reboot(world: RecoveryWorld) -> None:
    world.profile = replace(world.profile, recovery=(RecoveryStep.RESET, RecoveryStep.RELOAD))


STORIES: tuple[tuple[str, Change], ...] = (
    *((fault, lambda _: None) for fault in ("reset", "reload", "reboot")),
    ("reset", lambda world: setattr(world, "auto", frozenset())),
    ("reset", lambda world: setattr(world, "users", ("process 7 (train) of pod a/b",))),
    ("reset", lambda world: setattr(world.shelves[RecoveryStep.RESET], "slots", OTHERS)),
    ("reset", lambda world: world.cluster.edit({KEYS.skip: "true"})),
    ("never", _without_reboot),
)
"""What heals the device, and what else is so on its node."""


class Seen:
    """What was decided in all stories: acts and reasons by guard."""

    def __init__(self) -> None:
        self.by_guard: dict[str, dict[RecoveryAct, str]] = {}

    def decide(self, record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision:
        found = ((guard.__name__, guard(record, facts)) for guard in GUARDS)
        name, decision = next((name, decision) for name, decision in found if decision is not None)
        self.by_guard.setdefault(name, {}).setdefault(decision.act, decision.reason)
        return decision


@cache
def seen() -> Seen:
    found = Seen()
    with mock.patch.object(recovery_loop, "decide", found.decide):
        for fault, change in STORIES:
            world = RecoveryWorld()
            world.play(3)
            world.fault = fault
            change(world)
            world.play(60)
    found.decide(RecoveryRecord(), NOTHING)
    there = replace(NOTHING, node=node({}))
    found.decide(RecoveryRecord(), there)
    found.decide(OF_ANOTHER_BOOT, replace(there, is_wedged=True))
    found.decide(OF_ANOTHER_LOAD, replace(there, is_wedged=True))
    announced = RecoveryRecord(announced=(f"{there.wedge}-reload",))
    found.decide(announced, replace(there, is_wedged=True, auto=frozenset({RecoveryStep.RELOAD})))
    return found


def guards() -> str:
    """The guards in the order in which they are asked."""
    rows = []
    for number, guard in enumerate(GUARDS, 1):
        found = seen().by_guard[guard.__name__]
        acts = ", ".join(act.value for act in RecoveryAct if act in found)
        rows.append((f"{number}. {guard.__name__.strip('_').replace('_', ' ')}", acts, next(iter(found.values()))))
    return table(("asked in this order", "decides", "for example"), rows)
