"""Whole runs on the fakes: whatever kills them and whoever edits the Node meanwhile, nothing is lost.

MUTANTS that these properties caught, each proved again by a test at the end:
  - restore without comparing: an edit made during the pause is overwritten
  - the pause in one patch, the journal in a second: a kill in between loses custom values that do not fit
  - originals read from the paused values alone, though a journal is there: a value that does not fit becomes `true`
  - always uncordon: an administrator's cordon is lifted
  - never hold: operands come back to a node whose old driver is gone
  - the owner is not asked for: two runs interleave
  - the node is taken only to pause it: two runs load the driver at once
  - no resourceVersion precondition on the pause: an edit between observation and pause is overwritten
  - what is bound now taken for what was: after a kill the record says that vfio had the devices from the beginning
  - overrides left where they are: a driver that comes after a kill gets no device
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.core.swap.node import NodeLock, NodeSteps
from driver_manager.domain import pci as bindings
from driver_manager.domain.errors import ApiUnavailable, ExitCode
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.observation import Situation
from driver_manager.domain.pci import Binding, PciFunction
from driver_manager.domain.pods import labels as label_rules
from driver_manager.domain.swap import node_patches, planner
from driver_manager.domain.swap import vfio as vfio_return
from driver_manager.domain.swap.building import taking
from driver_manager.domain.swap.steps import Step, TakeNode
from tests.support.fakes.broken import Case, check_caught
from tests.support.fakes.builders import EXPORTER, PAUSED, PLUGIN, key
from tests.support.fakes.checks import (
    EDITS,
    SECONDS,
    check_called_off,
    check_converged,
    check_cordoned_first,
    check_edited,
    check_killed,
    check_second_run_is_refused,
    check_terminated,
    edit_points,
    finish,
    kill_points,
)
from tests.support.fakes.scenarios import LABELS, SCENARIOS, TAKING, calls_until_given_back, settle_in, undisturbed
from tests.support.fakes.world import World
from tests.support.selection import examples

ALL_KILLS = [(name, effect, after) for name in SCENARIOS for effect, after in kill_points(name)]


@pytest.mark.shares(3)
@pytest.mark.parametrize(("name", "effect", "after"), ALL_KILLS)
def test_a_run_killed_at_any_effect_and_run_again_ends_like_an_undisturbed_one(
    name: str, effect: int, after: bool
) -> None:
    check_killed(name, effect, after=after)
    check_killed(name, effect, after=after, new_pod=True)


@pytest.mark.shares(3)
@pytest.mark.parametrize(("name", "effect", "after"), ALL_KILLS)
def test_a_reboot_between_the_kill_and_the_next_run_changes_nothing(name: str, effect: int, after: bool) -> None:
    check_killed(name, effect, after=after, reboot=True)
    check_killed(name, effect, after=after, reboot=True, new_pod=True)


TO_MACHINES = ("switch_to_vfio", "bind_to_vfio")


@pytest.mark.parametrize(("name", "effect", "after"), [one for one in ALL_KILLS if one[0] in TO_MACHINES])
def test_devices_on_their_way_to_machines_come_back_whatever_killed_the_run(
    name: str, effect: int, after: bool
) -> None:
    for reboot in (False, True):
        check_called_off(name, effect, after=after, reboot=reboot)


@pytest.mark.shares(3)
@settings(max_examples=examples(300))
@given(
    name=st.sampled_from(sorted(SCENARIOS)),
    blows=st.lists(
        st.tuples(st.integers(0, 11), st.booleans(), st.booleans(), st.booleans(), st.none() | st.integers(0, 21)),
        min_size=2,
        max_size=6,
    ),
)
@example(name="swap_a_folder_for_a_slot", blows=[(0, False, False, False, 15), (0, False, True, False, None)])
def test_any_number_of_kills_signals_and_reboots_in_a_row_ends_like_an_undisturbed_run(
    name: str, blows: list[tuple[int, bool, bool, bool, int | None]]
) -> None:
    world = SCENARIOS[name]()
    for effect, after, reboot, new_pod, sigterm_at in blows:
        world.next_process()
        world.killer.kill_at(effect, after=after)
        if sigterm_at is not None:
            world.killer.at_call(sigterm_at, world.clock.ask_to_end)
        world.run()
        if reboot:
            world.reboot()
        if new_pod:
            world.move_to_new_pod()
    finish(world, runs=8)
    assert world.state().labels == LABELS
    # A run that ended well in the middle may find a rebooted host to install on again: only the settled state counts.
    check_converged(world, name, rebooted=True)


@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer-lost"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_api_server_that_fails_at_any_call_loses_nothing(name: str, after: bool) -> None:
    for number, called in enumerate(calls_of(name)):
        if called not in ("node", "pods", "patch", "watch"):
            continue
        world = SCENARIOS[name]()
        world.killer.at_call(number, unavailable, after=after)
        outcome = world.run()
        assert outcome is not None
        assert outcome.exit_code in (ExitCode.DONE, ExitCode.API_UNAVAILABLE), f"{called} at {number}: {outcome}"
        if world.host.loaded:
            assert world.state().labels == LABELS, f"{called} at {number}"
            assert world.state().annotations == {}
        finish(world)
        assert world.state().labels == LABELS
        assert settle_in(world) == undisturbed(name)[1]


def unavailable() -> None:
    raise ApiUnavailable("no answer", "Look at the API server.")


@cache
def calls_of(name: str) -> list[str]:
    """The calls of an undisturbed run."""
    world = SCENARIOS[name]()
    world.run()
    return world.killer.calls


@pytest.mark.shares(3)
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit[0].rpartition('/')[2]}={edit[1]}")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_label_edited_at_any_moment_is_left_alone_and_no_other_changes(
    name: str, edit: tuple[str, str | None]
) -> None:
    for call in edit_points(name):
        check_edited(name, call, (edit,))


@pytest.mark.shares(3)
@settings(max_examples=examples(300))
@given(
    name=st.sampled_from(TAKING),
    call=st.integers(0, 22),
    edits=st.lists(st.sampled_from(EDITS), min_size=1, max_size=4, unique_by=lambda edit: edit[0]),
    kill=st.tuples(st.integers(0, 10), st.booleans()),
)
def test_edits_survive_a_kill_too(
    name: str, call: int, edits: list[tuple[str, str | None]], kill: tuple[int, bool]
) -> None:
    check_edited(name, call, tuple(edits), kill)


@pytest.mark.shares(3)
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_administrators_cordon_stays(name: str) -> None:
    check_cordoned_first(name)


@pytest.mark.shares(3)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_cordon_set_while_the_node_is_not_cordoned_by_us_stays(name: str) -> None:
    for call in edit_points(name):
        world, seen = SCENARIOS[name](), list[bool]()

        def cordon(world: World = world, seen: list[bool] = seen) -> None:
            assert world.cluster.current is not None
            seen.append(world.cluster.current.unschedulable)
            world.cluster.edit(cordon=True)

        world.killer.at_call(call, cordon)
        world.run()
        assert world.state().unschedulable is (seen == [False]), f"at call {call}"


@pytest.mark.shares(3)
@pytest.mark.parametrize("name", TAKING)
def test_labels_found_paused_without_a_journal_are_given_back(name: str) -> None:
    for kill in (None, *kill_points(name)):
        world = SCENARIOS[name]()
        world.cluster.edit({PLUGIN: PAUSED, key("custom-client"): f"gold_{PAUSED}"})
        if kill is not None:
            world.killer.kill_at(kill[0], after=kill[1])
        if world.run() is None:
            finish(world)
        assert world.state().labels == LABELS
        assert world.state().annotations == {}


@pytest.mark.shares(3)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_node_replaced_meanwhile_keeps_its_new_labels(name: str) -> None:
    fresh = {PLUGIN: "true", EXPORTER: "false", "new": "node"}
    for call in edit_points(name):
        world, done = SCENARIOS[name](), list[bool]()

        def replaced(world: World = world, done: list[bool] = done) -> None:
            done.append(True)
            world.cluster.replace_node(fresh)

        world.killer.at_call(call, replaced)
        assert world.run() is not None
        assert world.state().labels == (fresh if done else LABELS), f"replaced at call {call}"
        assert world.state().annotations == {}
        assert not world.state().unschedulable


@pytest.mark.shares(3)
@pytest.mark.parametrize("name", TAKING)
def test_a_node_deleted_meanwhile_ends_the_run_with_a_usage_error_and_is_not_made_again(name: str) -> None:
    for call in range(calls_until_given_back(name)):
        world = SCENARIOS[name]()
        world.killer.at_call(call, world.cluster.delete_node)
        outcome = world.run()
        assert outcome is not None
        assert outcome.exit_code is ExitCode.USAGE, f"deleted at call {call}: {outcome}"
        assert world.cluster.current is None


@pytest.mark.shares(3)
@pytest.mark.parametrize("name", SCENARIOS)
def test_sigterm_at_any_call_gives_back_or_holds_and_the_next_run_finishes(name: str) -> None:
    for call in range(undisturbed(name)[3] + 1):
        check_terminated(name, call)


def test_sigterm_while_waiting_for_pods_ends_the_wait_at_once_and_gives_back() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.clock.after(1.0, world.clock.ask_to_end)
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.STANDING_DOWN
    assert "the node was released" in outcome.what
    assert world.clock.now == world.clock.ended_at
    assert world.state().labels == LABELS


NOTHING_TAKEN = ("current", "replace_with_safe_load")
"""Their first patch, if any, only asks: two runs may wait for the same answer."""


def all_seconds(name: str) -> list[Case]:
    calls = calls_of(name)
    return [
        partial(check_second_run_is_refused, name, call, pod)
        for call in range(calls.index("patch") + 1, calls_until_given_back(name))
        for pod in SECONDS
    ]


@pytest.mark.shares(3)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in NOTHING_TAKEN])
def test_a_second_run_is_refused_while_the_first_lives(name: str) -> None:
    for check in all_seconds(name):
        check()


def all_kills() -> list[Case]:
    return [partial(check_killed, name, effect, after=after) for name in TAKING for effect, after in kill_points(name)]


def all_edits() -> list[Case]:
    return [
        partial(check_edited, name, call, (edit,)) for name in TAKING for call in edit_points(name) for edit in EDITS
    ]


def all_switches() -> list[Case]:
    return [
        partial(check_killed, "switch_to_vfio", effect, after=after) for effect, after in kill_points("switch_to_vfio")
    ]


def all_called_off() -> list[Case]:
    return [
        partial(check_called_off, name, effect, after=after, reboot=False)
        for name in TO_MACHINES
        for effect, after in kill_points(name)
    ]


def all_terms() -> list[Case]:
    return [partial(check_terminated, name, call) for name in TAKING for call in range(undisturbed(name)[3] + 1)]


def restore_all(labels: dict[str, str], saved: dict[str, str], _: str) -> dict[str, str]:
    return {name: value for name, value in saved.items() if labels.get(name) != value}


def journal_in_a_second_patch(self: NodeSteps, step: TakeNode) -> None:
    self._context.lock.acquired(step.journal)
    first = self._context.ports.cluster.patch_node(replace(step.change, annotations={}), step.resource_version)
    self._context.ports.cluster.patch_node(NodeChange(annotations=step.change.annotations), first.resource_version)


def originals_without_the_journal(
    labels: dict[str, str], _: dict[str, str], keys: frozenset[str], paused_value: str
) -> dict[str, str]:
    return ORIGINALS(labels, {}, keys, paused_value)


def always_uncordon(node: Node, *rest: object) -> NodeChange:
    change: NodeChange = RELEASE(node, *rest)  # type: ignore[arg-type]  # handed through as it came
    return replace(change, unschedulable=False if node.unschedulable else None)


def take_only_to_pause(*arguments: Any, **options: Any) -> tuple[Step, ...]:
    return TAKEN(*arguments, **options) if arguments[1] else ()


def patch_without_precondition(self: NodeSteps, step: TakeNode) -> None:
    self._context.lock.acquired(step.journal)
    self._context.ports.cluster.patch_node(step.change, None)


def last_word_first(known: Iterable[Binding], more: Iterable[Binding]) -> tuple[Binding, ...]:
    return MERGED(more, known)


def given_back_as_they_are(situation: Situation) -> tuple[PciFunction, ...]:
    return tuple(one for one in RETURNING(situation) if one.is_on_vfio)


MERGED, RETURNING = bindings.merged_bindings, vfio_return.returning
ORIGINALS, RELEASE, TAKEN = label_rules.originals, node_patches.release, taking


@pytest.mark.parametrize(
    ("target", "name", "mutant", "cases"),
    [
        (label_rules, "restored", restore_all, all_edits),
        (NodeSteps, "_acquire", journal_in_a_second_patch, all_kills),
        (label_rules, "originals", originals_without_the_journal, all_kills),
        (node_patches, "release", always_uncordon, lambda: [partial(check_cordoned_first, "replace_by_container")]),
        (NodeLock, "_why_hold", lambda *_: "", all_terms),
        (planner, "refuse_if_owned", lambda *_, **__: None, lambda: all_seconds("first_install_by_manager")),
        (planner, "taking", take_only_to_pause, lambda: all_seconds("first_install_by_manager")),
        (NodeSteps, "_acquire", patch_without_precondition, all_edits),
        ((bindings, node_patches, vfio_return), "merged_bindings", last_word_first, all_switches),
        (vfio_return, "returning", given_back_as_they_are, all_called_off),
    ],
    ids=lambda value: getattr(value, "__name__", None) if callable(value) else None,
)
def test_a_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, target: object, name: str, mutant: object, cases: Callable[[], list[Case]]
) -> None:
    for scenario in SCENARIOS:
        undisturbed(scenario)  # measured before anything is broken
        calls_of(scenario)
    check_caught(cases(), monkeypatch, name, mutant, *(target if isinstance(target, tuple) else (target,)))
