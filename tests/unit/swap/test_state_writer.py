"""A run shows its state on the Node in the patches that it sends anyway, and in one of its own where there is none.

That every run of every test ends with the right word is `tests.support.fakes.shown`'s rule; here is what that may cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain import journal as journals
from driver_manager.domain import node_state
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ConfigError, ExitCode
from driver_manager.domain.host import Holder
from driver_manager.domain.node_state import LastOutcome, NodeState
from driver_manager.domain.observation import Loader, Policy
from tests.support.fakes.builders import NEW_DIGEST, OLD_DIGEST, PAUSED, PLUGIN, PROFILE, SOMEBODY, journal
from tests.support.fakes.scenarios import SCENARIOS, by_reboot, made
from tests.support.fakes.shown import NOTHING_SHOWN, Shown
from tests.support.fakes.world import World

KEYS = PROFILE.keys
REFUSED = ExitCode.PREFLIGHT_FAILED


def upgrade(**changes: Any) -> World:
    return made("replace_by_manager", **changes)


def impossible(**changes: Any) -> World:
    """A node whose driver cannot be replaced: preflight says so, each time."""
    return upgrade(offers={}, **changes)


def outcome(world: World) -> LastOutcome:
    found = node_state.outcome_on(world.node, world.profile.keys)
    assert found is not None
    return found


def patched(world: World) -> list[str | None]:
    """The states that the patches show."""
    return [patch.labels.get(KEYS.state) for patch in world.cluster.patches]


def shows(world: World, state: NodeState, **more: object) -> World:
    """Another client made the Node show this."""
    text = node_state.encode(replace(LastOutcome(state, 0, "earlier", ended="then", since="then"), **more))
    world.cluster.edit({KEYS.state: state.value}, annotations={KEYS.last_outcome: text})
    return world


def version(world: World) -> str:
    return world.node.resource_version


def hold_device(world: World, process: str = "trainer", pid: int = 42) -> World:
    return world.given(known_holders=(Holder(pid, process, "/dev/rbln0", "open"),), stuck_users={"rebellions": 1})


# in the patches that are sent anyway


def test_a_replacement_takes_two_patches_which_say_upgrading_and_ready() -> None:
    world = upgrade()
    world.ended()
    assert patched(world) == ["upgrading", "ready"]
    assert [KEYS.last_outcome in patch.annotations for patch in world.cluster.patches] == [False, True]
    found = outcome(world)
    assert (found.exit_code, found.step, found.digest, found.version) == (0, "", NEW_DIGEST, "2.0")
    assert found.what.startswith("done: driver 2.0 loaded")
    world = upgrade().on("load rebellions", lambda one: one.cluster.edit({PLUGIN: "false"}))
    world.ended()
    assert patched(world) == ["upgrading", "ready"], "also if it looks again before it gives back"


@pytest.mark.parametrize(
    ("bad", "state", "left", "expected"),
    [
        ({"2.0"}, NodeState.FAILED, "1.0", "the old driver 1.0 is loaded again"),
        ({"1.0", "2.0"}, NodeState.HELD, "", "the next run resumes from the journal"),
    ],
)
def test_a_held_node_is_shown_as_held_by_one_patch_more(
    bad: set[str], state: NodeState, left: str, expected: str
) -> None:
    world = upgrade(broken=bad)
    world.ended(ExitCode.MODULE_FAILED, expected)
    assert world.is_held is (state is NodeState.HELD)
    assert patched(world) == ["upgrading", state.value]
    found = outcome(world)
    shown = (found.state, found.exit_code, found.step, found.digest, found.version)
    assert shown == (state, 5, "load modules", NEW_DIGEST, left)
    assert expected in found.what
    assert "dmesg" in found.remedy


def test_the_journal_tells_its_reader_the_step_and_when_the_node_was_taken_also_after_a_run_that_was_killed() -> None:
    world, seen = made("replace_with_claims"), list[journals.Journal]()
    world.on("unload rebellions", lambda one: seen.append(one.journal)).ended()
    first = str(world.cluster.patches[0].annotations[KEYS.journal])
    assert (seen[0].step, seen[0].begin) == ("pause last", journals.decode(first).claims.begin)
    world = upgrade().killed("load rebellions", after=False)
    before = world.journal
    world.clock.now += 3600.0
    world.on("load rebellions", lambda one: seen.append(one.journal)).ended()
    assert before.begin
    assert (seen[1].begin, seen[1].step) == (before.begin, "take node")
    assert seen[1].owner != before.owner


def test_a_reboot_is_asked_for_and_shown_in_one_patch() -> None:
    world = by_reboot()
    world.ended(ExitCode.REBOOT_REQUIRED)
    assert (len(world.cluster.patches), world.state().shown) == (1, Shown("reboot-required", 9, world.digest))
    first = version(world)
    world.again(ExitCode.REBOOT_REQUIRED)
    assert version(world) == first


def test_a_driver_loaded_after_the_reboot_is_ready_when_it_is_loaded_and_not_before() -> None:
    world, seen = by_reboot(), list[str | None]()
    world.ended(ExitCode.REBOOT_REQUIRED)
    world.reboot()
    world.given(policy=Policy(loader=Loader.MANAGER), driver_root="/opt/new", offers={"/opt/new": "24.0"})
    world.on("load drv_pcie_host", lambda one: seen.append(one.state().shown.state)).again()
    assert seen == ["upgrading"], "the run has the node while it loads"
    assert world.state().shown == Shown("ready", 0, world.digest)


def test_a_run_that_fails_before_its_first_change_shows_that_once_however_often_it_is_tried() -> None:
    world = impossible()
    world.ended(REFUSED)
    assert world.only_showed_its_end
    found, first = outcome(world), version(world)
    assert (found.state, found.exit_code, found.step) == (NodeState.FAILED, 6, "preflight")
    for _ in range(3):
        world.clock.now += 60.0
        world.again(REFUSED)
        assert (version(world), world.killer.effects) == (first, [])
    for digest in (OLD_DIGEST[:-1] + "1", "other"):  # another end of a state that lasts since its first failure
        world.clock.now += 600.0
        world.given(digest=digest).again(REFUSED)
        now = outcome(world)
        assert (world.killer.effects, now.digest, now.since) == (["patch"], digest, found.since)
        assert now.ended > found.ended


GARBAGE = {KEYS.journal: "garbage"}


def changed_meanwhile(world: World) -> None:
    world.given(offers={}).on("patch", lambda one: one.cluster.edit({"example.com/unrelated": "x"}))


@pytest.mark.parametrize(
    ("spoil", "shown", "step"),
    [
        (lambda world: world.given(digest="two words"), Shown("failed", 2, ""), "observe"),
        (lambda world: world.on("pods", ConfigError("no /proc", "Mount it.")), Shown("failed", 2, ""), "observe"),
        (lambda world: world.cluster.edit({PLUGIN: PAUSED}, annotations=GARBAGE), Shown("held", 2, ""), "observe"),
        (changed_meanwhile, Shown("failed", 6, NEW_DIGEST), "preflight"),
    ],
    ids=["two words", "an unreadable host", "an unreadable journal", "changed meanwhile"],
)
def test_a_run_that_cannot_even_observe_or_take_the_node_shows_that(
    spoil: Callable[[World], object], shown: Shown, step: str
) -> None:
    world = upgrade()
    spoil(world)
    ended = world.run()
    assert ended is not None
    assert (world.state().shown, outcome(world).step) == (shown, step)
    assert (outcome(world).what, outcome(world).remedy) == (ended.what, ended.remedy)


def test_an_unexpected_error_is_shown_as_a_bug() -> None:
    world = upgrade().on("unload rebellions", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        world.run()
    assert (world.is_released, world.state().shown) == (True, Shown("failed", 1, ""))


def test_another_message_is_shown_and_the_same_with_other_numbers_is_not() -> None:
    world, seen = upgrade(), []
    for process, pid in (("trainer", 42), ("trainer", 43), ("backup", 43)):
        hold_device(world, process, pid).again(ExitCode.DRIVER_BUSY)
        seen.append(version(world))
    assert seen[0] == seen[1] != seen[2]
    assert "backup (pid 43)" in outcome(world).what


@pytest.mark.parametrize("word", [None, NodeState.READY, NodeState.WEDGED])
def test_a_run_without_a_plan_leaves_a_node_alone_that_shows_nothing_wrong(word: NodeState | None) -> None:
    world = made("current") if word is None else shows(made("current"), word)
    before = version(world)
    world.ended()
    assert (version(world), world.killer.effects) == (before, [])


@pytest.mark.parametrize("word", [NodeState.FAILED, NodeState.HELD, NodeState.UPGRADING, NodeState.REBOOT_REQUIRED])
def test_a_run_without_a_plan_corrects_what_is_over_in_one_patch(word: NodeState) -> None:
    world = shows(made("current"), word, exit_code=5)
    world.ended()
    assert (world.only_showed_its_end, world.state().shown) == (True, Shown("ready", 0, NEW_DIGEST))
    assert outcome(world).what.startswith("nothing to do: driver is current")


def test_nothing_is_shown_where_that_is_switched_off() -> None:
    silent = replace(PROFILE, keys=replace(KEYS, state="", last_outcome=""))
    for name in SCENARIOS:
        world = made(name, is_shown=False, profile=silent, broken={"2.0"})
        before = world.node.labels.get(KEYS.state), world.node.annotations.get(KEYS.last_outcome)
        world.run()
        assert (world.node.labels.get(KEYS.state), world.node.annotations.get(KEYS.last_outcome)) == before, name
        assert before == (None, None) or name == "replace_after_a_failure"


def test_after_sigterm_a_run_that_holds_the_node_sends_no_patch_of_its_own_and_one_that_gives_back_shows_it() -> None:
    world = upgrade(broken={"2.0", "1.0"}).on("load rebellions", lambda one: one.clock.ask_to_end())
    world.run()
    assert (world.is_held, world.state().shown.state) == (True, "upgrading")
    world = upgrade().on("watch", lambda one: one.clock.ask_to_end())
    world.ended(ExitCode.STANDING_DOWN)
    assert (world.is_released, world.state().shown) == (True, Shown("failed", 10, NEW_DIGEST))


@pytest.mark.parametrize("error", [ApiRefused, ApiUnavailable])
def test_a_state_that_cannot_be_written_is_a_warning_and_no_other_exit_code(error: type[Exception]) -> None:
    world = impossible(is_shown=False)
    world.on("patch", error("the API server refused to patch nodes", "Give this account the verb.")).ended(REFUSED)
    message = "the end of this run is not shown on the Node: the API server refused to patch nodes"
    assert message in world.reporter.warnings
    assert world.state().shown == NOTHING_SHOWN
    world = upgrade().on("pods", ApiUnavailable("the API server gave no usable answer", "Check it."))
    world.ended(ExitCode.API_UNAVAILABLE)
    assert "patch" not in world.killer.calls, "without an API server nothing more is asked of it"


def test_a_node_that_another_run_took_meanwhile_is_left_alone() -> None:
    world = impossible(is_shown=False)
    theirs = {KEYS.journal: journals.encode(journal(owner=SOMEBODY))}
    world.on("patch", lambda one: one.cluster.edit({KEYS.state: "upgrading"}, annotations=theirs)).run()
    assert world.node.labels[KEYS.state] == "upgrading"
    assert KEYS.last_outcome not in world.node.annotations


def test_nothing_is_shown_on_the_node_of_another_machine() -> None:
    world = upgrade(is_shown=False)
    world.cluster.current = replace(world.node, machine_id="another", boot_id="another")
    world.ended(ExitCode.USAGE)
    assert world.killer.effects == []


# what a run that changes no driver does not end


def test_a_run_that_does_not_take_the_node_ends_no_wedge_and_corrects_a_failure_to_it() -> None:
    world = shows(upgrade(are_modules_frozen=True), NodeState.WEDGED)
    world.host.files[PROFILE.paths.ready_withdrawn] = ""
    world.ended(REFUSED)
    assert world.state().shown == Shown("wedged", 6, NEW_DIGEST)
    before = version(world)
    world.again(REFUSED)
    assert version(world) == before, "the same again writes nothing"
    world = shows(made("current"), NodeState.FAILED, exit_code=2)
    world.host.files[PROFILE.paths.ready_withdrawn] = ""
    world.ended()
    assert world.state().shown == Shown("wedged", 0, NEW_DIGEST)


def test_a_node_held_for_a_driver_that_does_not_work_stays_so_through_a_run_that_fails_early() -> None:
    world = upgrade(sick={"2.0"}).on("probe", lambda one: one.given(sick={"2.0", "1.0"}))
    world.ended(ExitCode.MODULE_FAILED)
    assert world.is_held
    message = "the node stays paused, because an earlier run left a driver that was not verified"
    ended = hold_device(world).again(ExitCode.DRIVER_BUSY, message)
    assert "no pod was disturbed" not in ended.what
    assert "the next run waits until" not in ended.remedy, "it goes on at once"
    assert (world.is_held, world.state().shown) == (True, Shown("held", 4, NEW_DIGEST))
    world.given(known_holders=(), stuck_users={}, sick=set()).again()
    assert world.is_released


def test_what_a_killed_run_left_paused_is_not_called_undisturbed() -> None:
    world = hold_device(upgrade().killed("watch", after=False))
    assert "no pod was disturbed" not in world.ended(ExitCode.DRIVER_BUSY).what
    assert not [step for step in world.reporter.steps if "before anything is changed" in step]
    assert world.is_released


# the condition, which follows the state

CONDITION = KEYS.condition


def written(world: World) -> list[str]:
    """The reasons that were written, in order."""
    return [one.reason for one in world.cluster.conditions]


@pytest.mark.parametrize(
    ("world", "reasons"),
    [
        (upgrade(), ["Upgrading", "Ready"]),
        (upgrade(broken={"2.0"}), ["Upgrading", "Failed"]),
        (upgrade(broken={"1.0", "2.0"}), ["Upgrading", "Held"]),
        (impossible(), ["Failed"]),
        (by_reboot(), ["RebootRequired"]),
        (made("first_install_by_manager"), ["Upgrading", "Ready"]),
    ],
    ids=["swap", "rollback", "held", "preflight", "reboot", "first install"],
)
def test_the_condition_is_written_once_for_each_state(world: World, reasons: list[str]) -> None:
    world.given(has_conditions=True).run()
    assert written(world) == reasons
    kind, last = world.profile.keys.condition, world.cluster.conditions[-1]
    assert world.node.conditions[kind] == (str(reasons[-1] == "Ready"), reasons[-1])
    assert world.profile.keys.last_outcome in last.message
    turned = [one.is_turned for one in world.cluster.conditions]
    assert turned == [True, *(reason == "Ready" for reason in reasons[1:])], "from absent, and between True and False"


def test_a_run_that_changes_nothing_writes_a_condition_that_is_not_there_yet_and_no_second_one() -> None:
    world = upgrade()
    world.ended()
    world.given(has_conditions=True).again()
    assert written(world) == ["Ready"]
    world.again()
    assert (written(world), patched(world)) == (["Ready"], ["upgrading", "ready"])
    world = upgrade()
    world.ended()
    world.cluster.edit({KEYS.state: None})
    world.given(has_conditions=True).again()
    assert (world.node.conditions[CONDITION], KEYS.state in world.node.labels) == (("True", "Ready"), False)


def test_the_condition_is_false_before_the_load_of_a_new_boot() -> None:
    world, at_load = upgrade(has_conditions=True), list[tuple[str, str]]()
    world.ended()
    world.reboot()
    world.on("load rebellions", lambda one: at_load.append(one.node.conditions[CONDITION])).again()
    assert (at_load, world.node.conditions[CONDITION]) == ([("False", "Upgrading")], ("True", "Ready"))


def test_a_condition_that_cannot_be_written_is_tried_again_at_the_end_and_a_wedge_meanwhile_stays_shown() -> None:
    world = upgrade(has_conditions=True)
    world.on("condition", *[ApiUnavailable("no answer", "")] * 2).ended()
    assert world.killer.calls.count("condition") == 3
    assert world.reporter.warnings.count(f"the condition {CONDITION} was not written: no answer") == 2
    assert world.node.conditions[CONDITION] == ("True", "Ready")
    world = upgrade(has_conditions=True)
    wedge = lambda one: one.cluster.edit({KEYS.state: "wedged"})  # noqa: E731  # one row of a script
    world.on("condition", lambda _: None, wedge).ended()
    assert world.node.conditions[CONDITION] == ("False", "Wedged")


@pytest.mark.shares(3)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_any_effect_the_condition_is_that_of_the_state_in_the_end(name: str, after: bool) -> None:
    world = made(name, has_conditions=True)
    world.run()
    assert node_state.condition(world.node, world.profile.keys) is None
    for effect in range(len(world.killer.effects)):
        one = made(name, has_conditions=True).killed(effect, after=after)
        one.run()
        assert node_state.condition(one.node, one.profile.keys) is None, effect


def test_without_the_right_or_with_no_state_nothing_is_written() -> None:
    silent = replace(PROFILE, keys=replace(KEYS, state="", last_outcome="", version=""))
    for world in (upgrade(), upgrade(has_conditions=True, profile=silent)):
        world.ended()
        assert not world.node.conditions


def test_a_run_that_changes_nothing_corrects_a_version_that_is_over_in_one_patch() -> None:
    world = upgrade()
    world.ended()
    world.cluster.edit({KEYS.version: "1.0"})
    world.cluster.patches.clear()
    for _ in range(2):
        world.again()
        assert [dict(patch.labels) for patch in world.cluster.patches] == [{KEYS.version: "2.0"}]
