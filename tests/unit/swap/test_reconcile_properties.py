"""Whole runs on the fakes: whatever kills or supersedes them or edits the Node meanwhile, nothing is lost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache, partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ApiUnavailable, Conflict, ExitCode
from driver_manager.domain.journal import Owner
from driver_manager.domain.observation import Loader, Mode
from driver_manager.domain.profile import RUN_RECORD
from tests.support.fakes.builders import EXPORTER, PAUSED, PLUGIN, PROFILE, key
from tests.support.fakes.scenarios import LABELS, SCENARIOS, TAKING, made, settle_in, undisturbed
from tests.support.fakes.shown import Shown
from tests.support.fakes.world import SECONDS, State, World
from tests.support.selection import examples

JOURNAL, LONG = PROFILE.keys.journal, key("long")
Edit = tuple[str, str | None]
EDITS: tuple[Edit, ...] = (
    (PLUGIN, None),
    (PLUGIN, "false"),
    (PLUGIN, "true"),
    (EXPORTER, "custom"),
    (key("custom-client"), "silver"),
    (key("custom-client"), None),
    (LONG, "short"),
    (key("off"), "true"),
    (key("empty"), None),
    (key("new-component"), "true"),
    ("example.com/unrelated", "x"),
    ("kubernetes.io/hostname", None),
)
DIVIDED = pytest.mark.shares(3)
every_scenario, every_taking = (pytest.mark.parametrize("name", names) for names in (SCENARIOS, TAKING))


@cache
def calls_of(name: str) -> tuple[str, ...]:
    """The calls of an undisturbed run."""
    world = made(name)
    world.run()
    return tuple(world.killer.calls)


def calls_until_given_back(name: str) -> int:
    """How many calls there are until the node is given back: what follows changes no node."""
    return max(number for number, called in enumerate(calls_of(name)) if called == "patch") + 1


def kill_points(name: str) -> Iterator[tuple[int, bool]]:
    """Every moment right before and right after an effect of an undisturbed run."""
    return ((effect, after) for effect in range(undisturbed(name)[2]) for after in (False, True))


def edit_points(name: str) -> range:
    """Every call of an undisturbed run, and one more: the edit may lead to a second observation."""
    return range(undisturbed(name)[3] + 1)


def is_clean(world: World, labels: dict[str, str] = LABELS) -> bool:
    """True if the Node has these labels and nothing of a run."""
    state = world.state()
    return (state.labels, state.annotations, state.unschedulable) == (labels, {}, False)


def check_converged(world: World, name: str, *, rebooted: bool) -> None:
    """Raises AssertionError unless the world is as an undisturbed run leaves it."""
    at_once, settled, _, _ = undisturbed(name)
    if not rebooted:
        assert (world.state(), settle_in(world)) == (at_once, settled)
        return
    keys = world.profile.keys
    was_taken = any(keys.state in patch.labels for patch in world.cluster.patches)
    # A rebooted node that no run had taken, and none had to take since, shows nothing.
    shown = Shown("ready", 0, world.digest) if was_taken else Shown()
    assert without_peers(settle_in(world)) == without_peers(dataclasses.replace(settled, shown=shown))


def without_peers(state: State) -> State:
    """A reboot ends what a user had loaded above the driver, set in it, or bound: it belongs to the boot."""
    modules = {name: one for name, one in state.modules.items() if name != "rebellions_peer"}
    devices = tuple(replace(one, virtual_count=0) for one in state.devices)
    return dataclasses.replace(state, modules=modules, given={}, bindings=(), devices=devices)


ALL_KILLS = [(name, effect, after) for name in SCENARIOS for effect, after in kill_points(name)]


@DIVIDED
@pytest.mark.parametrize("reboot", [False, True], ids=["", "and-a-reboot"])
@pytest.mark.parametrize(("name", "effect", "after"), ALL_KILLS)
def test_killed_at_any_effect_and_run_again_it_ends_as_undisturbed(
    name: str, effect: int, after: bool, reboot: bool
) -> None:
    for new_pod in (False, True):
        world = made(name).killed(effect, after=after)
        if reboot:
            world.reboot()
        if new_pod:
            world.move_to_new_pod()
        world.finish()
        check_converged(world, name, rebooted=reboot)


@pytest.mark.parametrize("reboot", [False, True], ids=["", "and-a-reboot"])
@pytest.mark.parametrize(("name", "effect", "after"), [one for one in ALL_KILLS if one[0].endswith("to_vfio")])
def test_devices_half_way_to_machines_come_back_after_a_kill(name: str, effect: int, after: bool, reboot: bool) -> None:
    """Every device has its own driver, and the Node is as it was, once the next run is a driver's."""
    had = {one.address: one.virtual_count for one in made(name).state().devices}
    world = made(name).killed(effect, after=after)
    if reboot:
        world.reboot()
    world.serve_containers()
    world.finish()
    world.host.start_driver_container("2.0", world.digest)
    world.finish()
    assert is_clean(world)
    physical = [one for one in world.state().devices if not one.physical]
    assert [(one.driver, one.override) for one in physical] == [("rebellions", "")] * len(physical)
    if not reboot:  # a boot ends bindings, virtual functions and what is noted of them
        assert [one.virtual_count for one in physical] == [had[one.address] for one in physical]
        assert PROFILE.paths.bindings not in world.host.files, "a record of what is given back already"


@DIVIDED
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
    world = made(name)
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
    world.finish(runs=8)
    assert world.state().labels == LABELS
    # A run that ended well in the middle may find a rebooted host to install on again: only the settled state counts.
    check_converged(world, name, rebooted=True)


@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer-lost"])
@every_scenario
def test_an_api_server_that_fails_at_any_call_loses_nothing(name: str, after: bool) -> None:
    for number, called in enumerate(calls_of(name)):
        if called not in ("node", "pods", "patch", "watch"):
            continue
        world = made(name)
        world.killer.at_call(number, ApiUnavailable("no answer", "Look at the API server."), after=after)
        outcome = world.run()
        assert outcome is not None
        assert outcome.exit_code in (ExitCode.DONE, ExitCode.API_UNAVAILABLE), f"{called} at {number}: {outcome}"
        if world.host.loaded:
            assert (world.state().labels, world.state().annotations) == (LABELS, {}), f"{called} at {number}"
        world.finish()
        assert (world.state().labels, settle_in(world)) == (LABELS, undisturbed(name)[1])


def check_edited(name: str, call: int, edits: tuple[Edit, ...], kill: tuple[int, bool] | None = None) -> None:
    """Labels are edited at `call`. Raises AssertionError unless these edits, and no others, are on the Node."""
    world = made(name)
    done = world.noted(call, lambda one: one.cluster.edit(dict(edits)))
    world.run_through(kill)
    expected = {**LABELS, **dict(edits)} if done else dict(LABELS)
    assert is_clean(world, {label: value for label, value in expected.items() if value is not None})


@DIVIDED
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit[0].rpartition('/')[2]}={edit[1]}")
@every_scenario
def test_a_label_edited_at_any_moment_is_left_alone_and_no_other_changes(name: str, edit: Edit) -> None:
    for call in edit_points(name):
        check_edited(name, call, (edit,))


@DIVIDED
@settings(max_examples=examples(300))
@given(
    name=st.sampled_from(TAKING),
    call=st.integers(0, 22),
    edits=st.lists(st.sampled_from(EDITS), min_size=1, max_size=4, unique_by=lambda edit: edit[0]),
    kill=st.tuples(st.integers(0, 10), st.booleans()),
)
def test_edits_survive_a_kill_too(name: str, call: int, edits: list[Edit], kill: tuple[int, bool]) -> None:
    check_edited(name, call, tuple(edits), kill)


@DIVIDED
@every_scenario
def test_an_administrators_cordon_stays(name: str) -> None:
    for kill in (None, *kill_points(name)):
        world = made(name)
        world.cluster.edit(cordon=True)
        world.run_through(kill)
        state = world.state()
        assert (state.unschedulable, state.annotations, state.labels) == (True, {}, LABELS), f"killed at {kill}"


def cordon(world: World) -> bool:
    was_cordoned = world.node.unschedulable
    world.cluster.edit(cordon=True)
    return was_cordoned


@DIVIDED
@every_scenario
def test_a_cordon_set_while_the_node_is_not_cordoned_by_us_stays(name: str) -> None:
    for call in edit_points(name):
        world = made(name)
        seen = world.noted(call, cordon)
        world.run()
        assert world.state().unschedulable is (seen == [False]), f"at call {call}"


@DIVIDED
@every_taking
def test_labels_found_paused_without_a_journal_are_given_back(name: str) -> None:
    for kill in (None, *kill_points(name)):
        world = made(name)
        world.cluster.edit({PLUGIN: PAUSED, key("custom-client"): f"gold_{PAUSED}"})
        world.run_through(kill)
        assert (world.state().labels, world.state().annotations) == (LABELS, {})


@DIVIDED
@every_scenario
def test_a_node_replaced_meanwhile_keeps_its_new_labels(name: str) -> None:
    fresh = {PLUGIN: "true", EXPORTER: "false", "new": "node"}
    for call in edit_points(name):
        world = made(name)
        done = world.noted(call, lambda one: one.cluster.replace_node(fresh))
        assert world.run() is not None
        assert is_clean(world, fresh if done else LABELS), f"replaced at call {call}"


@DIVIDED
@every_taking
def test_a_node_deleted_meanwhile_ends_the_run_with_a_usage_error_and_is_not_made_again(name: str) -> None:
    for call in range(calls_until_given_back(name)):
        world = made(name)
        world.killer.at_call(call, world.cluster.delete_node)
        world.ended(ExitCode.USAGE)
        assert world.cluster.current is None, f"deleted at call {call}"


@DIVIDED
@every_scenario
def test_sigterm_at_any_call_gives_back_or_holds_and_the_next_run_finishes(name: str) -> None:
    before = made(name).state()
    for call in edit_points(name):
        world = made(name)
        had_driver = bool(world.host.loaded)
        world.killer.at_call(call, world.clock.ask_to_end)
        outcome = world.run()
        assert outcome is not None
        assert outcome.exit_code in (ExitCode.DONE, ExitCode.STANDING_DOWN), outcome
        state, is_done = world.state(), outcome.exit_code is ExitCode.DONE
        if is_done or not had_driver or "rebellions" in world.host.loaded:
            assert is_clean(world)
            assert "paused" not in outcome.what
            if world.policy.mode is Mode.VFIO and not is_done:
                assert_devices_kept(before, state)
            if not is_done and world.host.loaded.get("rebellions") != "2.0":
                assert state.foreign == before.foreign, "a conflicting module stays away for nothing"
        else:
            assert "stays paused" in outcome.what
            assert (state.labels[PLUGIN], world.journal.labels[LONG]) == (PAUSED, LABELS[LONG])
            assert state.unschedulable is (PROFILE.keys.cordon in state.annotations)
        if world.clock.ended_at is not None:
            assert world.clock.now - world.clock.ended_at < 5.0, "not within the grace period"
        world.finish()
        assert (world.state().labels, settle_in(world)) == (LABELS, undisturbed(name)[1])


def test_sigterm_while_waiting_for_pods_ends_the_wait_at_once_and_gives_back() -> None:
    world = made("replace_by_container")
    world.clock.after(1.0, world.clock.ask_to_end)
    world.ended(ExitCode.STANDING_DOWN, "the node was released")
    assert (world.clock.now, world.is_released) == (world.clock.ended_at, True)


def assert_devices_kept(before: State, after: State) -> None:
    """Raises AssertionError unless devices are as they were, apart from those that vfio has got by now."""
    known = {one.address: one for one in before.devices}
    given = {one.address for one in after.devices if one.is_on_vfio}
    for one in after.devices:
        if one.address not in given:
            was = known[one.address]
            assert (one.override, one.virtual_count) == (was.override, was.virtual_count)


NOTHING_TAKEN = ("current", "replace_with_safe_load")
"""Their first patch, if any, only asks: two runs may wait for the same answer."""


@DIVIDED
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in NOTHING_TAKEN])
def test_a_second_run_is_refused_while_the_first_lives(name: str) -> None:
    for call in range(calls_of(name).index("patch") + 1, calls_until_given_back(name)):
        for pod in SECONDS:
            world = made(name)
            refused = world.noted(call, partial(is_refused, pod))
            world.ended()
            assert refused == [True], f"at call {call}"
            assert world.state().labels == LABELS


def is_refused(pod: str, world: World) -> bool:
    before = world.state()
    world.second(pod).ended(ExitCode.OWNED_ELSEWHERE)
    return world.state() == before


OTHER = Owner(pid=9, start_ticks=9, pid_namespace=2, boot_id="boot-1")
CHANGED = Conflict("the Node changed since it was read", "Run again.")
ON_DRIVER = ("unload", "load", "flip", "reload", "unmount", "remove", "write", "stop")
ON_DEVICES = ("override", "virtual", "bind", "unbind", "probe ")
EFFECTS = (*ON_DRIVER, *ON_DEVICES, "evict")


def is_record(call: str) -> bool:
    """True if `call` writes what a run keeps on the host from before it has the node."""
    return RUN_RECORD in call or PROFILE.paths.baseline in call


def take_over(world: World) -> tuple[int, State] | None:
    """Another run takes the node, as `--take-over` does: the number of effects until then, and the state."""
    if world.host.is_owned or world.killer.calls[-1].startswith((*EFFECTS, "start")):
        return None  # who takes over waits for the end of an effect; a service starts right after a look at the Node
    world.running.add(OTHER)
    text = world.node.annotations.get(JOURNAL)
    if text is not None:
        taken = replace(journals.decode(text).claims, owner=OTHER)
        world.cluster.edit(annotations={JOURNAL: journals.encode(taken)})
    world.host.claimed_by = OTHER
    return len(world.killer.effects), world.state()


def begun(name: str, *, is_answer_lost: bool = False, can_be_locked: bool = True) -> World:
    """The world of a run. The answer to the patch that takes the node may be lost: sent again, it is a conflict."""
    world = made(name, can_be_locked=can_be_locked)
    if is_answer_lost:
        taking = calls_of(name).index("note") - 1
        assert calls_of(name)[taking] == "patch"
        world.killer.at_call(taking, CHANGED, after=True)
    return world


def check_superseded(name: str, call: int, *, is_answer_lost: bool = False) -> None:
    """Another run takes over at `call`. Raises AssertionError unless this one touches nothing any more."""
    for can_be_locked in (True, False):
        world = begun(name, is_answer_lost=is_answer_lost, can_be_locked=can_be_locked)
        left = world.noted(call, take_over)
        outcome = world.run()
        assert outcome is not None
        for at, state in filter(None, left):
            touched = [one for one in world.killer.effects[at:] if one.startswith(EFFECTS) and RUN_RECORD not in one]
            assert touched == [], f"at call {call}"
            assert outcome.exit_code is ExitCode.OWNED_ELSEWHERE, f"at call {call}: {outcome}"
            assert dataclasses.replace(world.state(), files={}) == dataclasses.replace(state, files={})


@DIVIDED
@every_taking
def test_a_run_that_was_superseded_does_nothing_more(name: str) -> None:
    for call in range(calls_of(name).index("note") + 1, calls_until_given_back(name) - 1):
        check_superseded(name, call)


def test_a_run_whose_taking_patch_got_no_answer_does_nothing_more_once_superseded() -> None:
    name = "replace_by_manager"
    world = begun(name, is_answer_lost=True)
    world.run()
    for call in range(world.killer.calls.index("note") + 1, len(world.killer.calls) - 1):
        check_superseded(name, call, is_answer_lost=True)


@pytest.mark.parametrize("is_answer_lost", [False, True], ids=["answered", "answer lost"])
@every_taking
def test_every_effect_on_the_driver_of_a_taken_node_is_owned(name: str, is_answer_lost: bool) -> None:
    world, owned = begun(name, is_answer_lost=is_answer_lost), list[bool]()
    for number in range(2 * undisturbed(name)[3]):
        world.killer.at_call(number, lambda: owned.append(world.host.is_owned))
    world.ended()
    for called, is_owned in zip(world.killer.calls, owned, strict=False):
        if called.startswith((*ON_DRIVER, *ON_DEVICES)) and not is_record(called):
            assert is_owned, called


# a driver that does not load, does not work or does not leave: the old one is back, or a reboot resolves it

FAILED = ExitCode.MODULE_FAILED


def bad_driver(fault: str) -> World:
    """An old driver to go back to, and a new one that does not load (`broken`) or does not work (`sick`)."""
    return made("replace_by_manager", **{fault: {"2.0"}})


@cache
def rolled_back(fault: str) -> tuple[State, int]:
    """The state after an undisturbed run, and the number of its effects."""
    world = bad_driver(fault)
    world.ended(FAILED)
    assert (world.is_released, set(world.host.loaded.values())) == (True, {"1.0"})
    assert PROFILE.paths.state_file in world.host.files
    return world.state(), len(world.killer.effects)


FAULT_EFFECTS = [(fault, effect) for fault in ("broken", "sick") for effect in range(rolled_back(fault)[1])]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("fault", "effect"), FAULT_EFFECTS)
def test_the_old_driver_and_its_digest_are_back_after_a_kill_anywhere(fault: str, effect: int, after: bool) -> None:
    world, before = bad_driver(fault).killed(effect, after=after), rolled_back(fault)[0]
    world.ended(FAILED)
    state = world.state()
    assert (state.modules, state.labels) == (before.modules, LABELS)
    assert (state.annotations, state.files) == ({}, before.files)


@DIVIDED
@pytest.mark.parametrize(("fault", "first"), [one for one in FAULT_EFFECTS if one[1] < rolled_back(one[0])[1] - 1])
def test_the_old_driver_is_back_after_two_kills_in_a_row(fault: str, first: int) -> None:
    for second in range(rolled_back(fault)[1]):
        world = bad_driver(fault)
        for effect in (first, second):
            world.next_process()
            world.killer.kill_at(effect, after=True)
            world.run()
        world.next_process()
        assert world.run() is not None
        assert (world.state().modules, world.state().labels) == (rolled_back(fault)[0].modules, LABELS)


REPLACING = [name for name in SCENARIOS if name.startswith("replace")]
HANGING = [(name, module) for name in REPLACING for module in sorted(SCENARIOS[name]().host.loaded)]


@pytest.mark.parametrize(("name", "module"), HANGING)
def test_the_node_is_held_untouched_until_a_reboot_after_which_all_is_as_undisturbed(name: str, module: str) -> None:
    world = made(name, hanging={module})
    stuck = f"module {module} is stuck while unloading"
    world.ended(FAILED, stuck, "the node stays paused, because its driver is stuck")
    assert JOURNAL in world.state().annotations
    loads = [call for call in world.killer.calls if call.startswith(("load ", "reload "))]
    assert loads == [], "a load would wait for the module in the kernel"
    before = world.state()
    world.again(FAILED, f"still unloading module {module}", remedy="reboot the node")
    assert JOURNAL in world.state().annotations
    assert world.state() == before, "the next run touches nothing"
    world.given(hanging=set()).reboot()
    world.finish()
    settled, expected = settle_in(world), undisturbed(name)[1]
    assert (settled.labels, settled.annotations) == (LABELS, {})
    if world.policy.loader is Loader.MANAGER:  # only what loads the driver again knows of modules beside it
        assert set(settled.modules.values()) == set(expected.modules.values())


@pytest.mark.parametrize("module", ["rebellions", "rebellions_core"])
def test_a_new_driver_that_hangs_when_it_is_taken_out_again_is_held(module: str) -> None:
    world = made("replace_by_manager", sick={"2.0"}).on("probe", lambda one: one.given(hanging={module}))
    world.ended(FAILED, "going back failed too")
    assert JOURNAL in world.state().annotations


def test_a_driver_that_was_refused_is_no_baseline_for_the_next_run_and_the_tool_is_asked_once_before_a_swap() -> None:
    world = made("first_install_by_manager", sick={"2.0"})
    world.ended(FAILED)
    world.again(FAILED)
    world = made("replace_by_manager").on("patch", CHANGED, CHANGED, CHANGED)
    world.ended()
    assert world.killer.calls.count("first probe") == 1, "however often the Node changes"
