"""A run that was superseded, at whatever moment and however long it slept, does nothing more to the driver or the node.

MUTANTS that this caught, each proved again at the end: no look before an effect, or before an
eviction; a look without the owner.
"""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
from msgspec.structs import replace

from driver_manager.domain import journal as journals
from driver_manager.domain.errors import Conflict, ExitCode
from driver_manager.domain.journal import Owner
from driver_manager.domain.profile import RUN_RECORD
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.scenarios import SCENARIOS, TAKING, undisturbed
from tests.support.fakes.world import World

OTHER = Owner(pid=9, start_ticks=9, pid_namespace=2, boot_id="boot-1")
ON_DRIVER = ("unload", "load", "flip", "reload", "unmount", "remove", "write", "stop")
ON_DEVICES = ("override", "virtual", "bind", "unbind", "probe ")
EFFECTS = (*ON_DRIVER, *ON_DEVICES, "evict")


def is_own_record(called: str) -> bool:
    """True for the record of the run itself, which no other run writes."""
    return RUN_RECORD in called


def take_over(world: World) -> None:
    """Another run takes the node, as `--take-over` does."""
    key = PROFILE.keys.journal
    there = world.cluster.current
    assert there is not None
    text = there.annotations.get(key)
    if text is not None:
        journal = replace(journals.decode(text).claims, owner=OTHER)
        world.cluster.edit(annotations={key: journals.encode(journal)})
    world.host.claimed_by = OTHER


def lose_the_answer(world: World, name: str) -> None:
    """Apply the patch that takes the node and lose its answer: the client sends it again and gets a conflict."""

    def conflict() -> None:
        raise Conflict("the Node changed since it was read", "Run again.")

    calls = undisturbed_calls(name)
    taking = calls.index("note") - 1
    assert calls[taking] == "patch"
    world.killer.at_call(taking, conflict, after=True)


def check_superseded(name: str, call: int, *, can_be_locked: bool = True, is_answer_lost: bool = False) -> None:
    """Another run takes over at `call`. Raises AssertionError unless this one touches nothing any more."""
    world = SCENARIOS[name]()
    world.host.can_be_locked = can_be_locked
    if is_answer_lost:
        lose_the_answer(world, name)
    left: list[object] = []

    def act() -> None:
        if world.host.is_owned or world.killer.calls[-1].startswith((*EFFECTS, "start")):
            return  # who takes over waits for the end of an effect; a service is started right after a look at the Node
        world.running.add(OTHER)
        take_over(world)
        left.extend([len(world.killer.effects), world.state()])

    world.killer.at_call(call, act)
    outcome = world.run()
    assert outcome is not None
    if not left:
        return
    at, state = left
    assert isinstance(at, int)
    assert [one for one in world.killer.effects[at:] if one.startswith(EFFECTS) and not is_own_record(one)] == [], (
        f"at call {call}"
    )
    assert outcome.exit_code is ExitCode.OWNED_ELSEWHERE, f"at call {call}: {outcome}"
    assert dataclasses.replace(world.state(), files={}) == dataclasses.replace(state, files={})  # type: ignore[type-var]


@cache
def undisturbed_calls(name: str) -> tuple[str, ...]:
    """The calls of an undisturbed run."""
    world = SCENARIOS[name]()
    world.run()
    return tuple(world.killer.calls)


def taken_calls(name: str) -> range:
    """Calls of an undisturbed run after which it has taken node and host, up to its last patch."""
    calls = undisturbed_calls(name)
    last = max(number for number, called in enumerate(calls) if called == "patch")
    return range(calls.index("note") + 1, last)


@pytest.mark.shares(3)
@pytest.mark.parametrize("name", TAKING)
def test_a_run_that_was_superseded_does_nothing_more(name: str) -> None:
    for call in taken_calls(name):
        check_superseded(name, call)
        check_superseded(name, call, can_be_locked=False)


def test_a_run_whose_taking_patch_got_no_answer_does_nothing_more_once_superseded() -> None:
    name = "replace_by_manager"
    world = SCENARIOS[name]()
    lose_the_answer(world, name)
    world.run()
    claimed = world.killer.calls.index("note")
    for call in range(claimed + 1, len(world.killer.calls) - 1):
        check_superseded(name, call, is_answer_lost=True)
        check_superseded(name, call, can_be_locked=False, is_answer_lost=True)


@pytest.mark.parametrize("is_answer_lost", [False, True], ids=["answered", "answer lost"])
@pytest.mark.parametrize("name", TAKING)
def test_every_effect_on_the_driver_of_a_taken_node_is_owned(name: str, is_answer_lost: bool) -> None:
    world = SCENARIOS[name]()
    owned: list[bool] = []
    if is_answer_lost:
        lose_the_answer(world, name)
    for number in range(2 * undisturbed(name)[3]):
        world.killer.at_call(number, lambda: owned.append(world.host.is_owned))
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    for called, is_owned in zip(world.killer.calls, owned, strict=False):
        if called.startswith((*ON_DRIVER, *ON_DEVICES)) and not is_own_record(called):
            assert is_owned, called


def test_a_host_without_room_for_the_note_is_asked_for_by_the_node_and_said() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.can_be_locked = False
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE
    assert [line for line in world.reporter.warnings if "re-reading the Node" in line]
