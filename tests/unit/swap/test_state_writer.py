"""A run shows its state on the Node in the patches that it sends anyway, and in one of its own where there is none.

That every run of every test ends with the right word is `tests.support.fakes.shown`'s rule; here is what that may cost.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from driver_manager.domain import journal as journals
from driver_manager.domain import node_state
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ConfigError, ExitCode
from driver_manager.domain.host import Holder
from driver_manager.domain.node_state import LastOutcome, NodeState
from driver_manager.domain.observation import Loader, Policy
from tests.support.fakes.builders import NEW_DIGEST, OLD_DIGEST, PAUSED, PLUGIN, PROFILE, SOMEBODY, journal
from tests.support.fakes.executions import ascend, is_given_back, is_held, only_showed_its_end, run
from tests.support.fakes.scenarios import SCENARIOS
from tests.support.fakes.shown import NOTHING_SHOWN, Shown
from tests.support.fakes.world import World

KEYS = PROFILE.keys


def outcome(world: World) -> LastOutcome:
    """What the Node tells of the last run."""
    assert world.cluster.current is not None
    found = node_state.outcome_on(world.cluster.current, world.profile.keys)
    assert found is not None
    return found


def shows(world: World, state: NodeState, **more: object) -> None:
    """Somebody made the Node show this."""
    text = node_state.encode(replace(LastOutcome(state, 0, "earlier", ended="then", since="then"), **more))
    world.cluster.edit({KEYS.state: state.value}, annotations={KEYS.last_outcome: text})


def version(world: World) -> str:
    assert world.cluster.current is not None
    return world.cluster.current.resource_version


# in the patches that are sent anyway


def test_a_replacement_takes_two_patches_which_say_upgrading_and_ready() -> None:
    world = SCENARIOS["replace_by_manager"]()
    run(world)
    assert [patch.labels.get(KEYS.state) for patch in world.cluster.patches] == ["upgrading", "ready"]
    assert [KEYS.last_outcome in patch.annotations for patch in world.cluster.patches] == [False, True]
    found = outcome(world)
    assert (found.exit_code, found.step, found.digest, found.version) == (0, "", NEW_DIGEST, "2.0")
    assert found.what.startswith("done: driver 2.0 loaded")


def test_a_run_that_looks_again_before_it_gives_back_shows_its_end_there_too() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.killer.at("load rebellions", lambda: world.cluster.edit({PLUGIN: "false"}))
    run(world)
    assert [patch.labels.get(KEYS.state) for patch in world.cluster.patches] == ["upgrading", "ready"]


def test_a_failure_is_shown_in_the_patch_that_gives_back() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.broken = {"2.0"}
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    assert is_given_back(world)
    assert [patch.labels.get(KEYS.state) for patch in world.cluster.patches] == ["upgrading", "failed"]
    found = outcome(world)
    assert (found.state, found.exit_code, found.step) == (NodeState.FAILED, 5, "load modules")
    assert (found.digest, found.version) == (NEW_DIGEST, "1.0"), "what is loaded is the old driver again"
    assert "dmesg" in found.remedy


def test_the_journal_tells_its_reader_the_step_and_when_the_node_was_taken() -> None:
    world = SCENARIOS["replace_with_claims"]()
    seen: list[journals.Journal] = []
    world.killer.at("unload rebellions", lambda: seen.append(journal_on(world)))
    run(world)
    assert seen[0].step == "pause last"
    assert seen[0].begin == outcome_time(world, at=0)


def journal_on(world: World) -> journals.Journal:
    assert world.cluster.current is not None
    return journals.decode(world.cluster.current.annotations[KEYS.journal]).claims


def outcome_time(world: World, at: int) -> str:
    """When the patch number `at` was sent, as its journal tells."""
    return journals.decode(str(world.cluster.patches[at].annotations[KEYS.journal])).claims.begin


def test_a_run_that_goes_on_keeps_the_time_at_which_the_node_was_taken() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.killer.at("load rebellions", world.killer.die)
    assert world.run() is None
    first = journal_on(world)
    world.next_process()
    world.clock.now += 3600.0
    seen: list[journals.Journal] = []
    world.killer.at("load rebellions", lambda: seen.append(journal_on(world)))
    run(world)
    assert first.begin
    assert (seen[0].begin, seen[0].step) == (first.begin, "take node")
    assert seen[0].owner != first.owner


# in a patch of its own


def test_a_held_node_is_shown_as_held_by_one_patch_more() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.broken = {"2.0", "1.0"}
    failed = run(world)
    assert is_held(world)
    assert [patch.labels.get(KEYS.state) for patch in world.cluster.patches] == ["upgrading", "held"]
    found = outcome(world)
    assert (found.state, found.exit_code, found.step) == (NodeState.HELD, 5, "load modules")
    assert "the next run resumes from the journal" in failed.what
    assert "the next run resumes from the journal" in found.what


def impossible() -> World:
    """A node whose driver cannot be replaced: preflight says so, each time."""
    world = SCENARIOS["replace_by_manager"]()
    world.host.offers = {}
    return world


def test_a_run_that_fails_before_its_first_change_shows_that_once_however_often_it_is_tried() -> None:
    world = impossible()
    assert run(world).exit_code is ExitCode.PREFLIGHT_FAILED
    assert only_showed_its_end(world)
    found, first = outcome(world), version(world)
    assert (found.state, found.exit_code, found.step) == (NodeState.FAILED, 6, "preflight")
    for _ in range(3):
        world.next_process()
        world.clock.now += 60.0
        run(world)
        assert version(world) == first
        assert world.killer.effects == []


@pytest.mark.parametrize("digest", [OLD_DIGEST[:-1] + "1", "other"])
def test_another_digest_is_another_end(digest: str) -> None:
    world = impossible()
    run(world)
    world.next_process()
    world.digest = digest
    run(world)
    assert outcome(world).digest == digest
    assert world.killer.effects == ["patch"]


def test_the_state_lasts_since_its_first_failure() -> None:
    world = impossible()
    run(world)
    begun = outcome(world).since
    world.next_process()
    world.clock.now += 600.0
    world.digest = "other"
    run(world)
    assert (outcome(world).since, outcome(world).ended > begun) == (begun, True)


def test_a_run_that_cannot_even_observe_shows_that() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.digest = "two words"
    assert run(world).exit_code is ExitCode.USAGE
    found = outcome(world)
    assert (found.state, found.exit_code, found.step) == (NodeState.FAILED, 2, "observe")
    assert only_showed_its_end(world)


def test_a_journal_that_cannot_be_read_is_a_node_that_is_held() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.cluster.edit({PLUGIN: PAUSED}, annotations={KEYS.journal: "garbage"})
    assert run(world).exit_code is ExitCode.USAGE
    assert world.state().shown == Shown("held", 2, "")


# what it must never do


@pytest.mark.parametrize("word", [None, NodeState.READY, NodeState.WEDGED])
def test_a_run_without_a_plan_leaves_a_node_alone_that_shows_nothing_wrong(word: NodeState | None) -> None:
    world = SCENARIOS["current"]()
    if word is not None:
        shows(world, word)
    before = version(world)
    assert run(world).exit_code is ExitCode.DONE
    assert version(world) == before
    assert world.killer.effects == []


@pytest.mark.parametrize("word", [NodeState.FAILED, NodeState.HELD, NodeState.UPGRADING, NodeState.REBOOT_REQUIRED])
def test_a_run_without_a_plan_corrects_what_is_over_in_one_patch(word: NodeState) -> None:
    world = SCENARIOS["current"]()
    shows(world, word, exit_code=5)
    assert run(world).exit_code is ExitCode.DONE
    assert only_showed_its_end(world)
    assert world.state().shown == Shown("ready", 0, NEW_DIGEST)
    assert outcome(world).what.startswith("nothing to do: driver is current")


LEFT_BY_A_RUN_BEFORE = frozenset({"replace_after_a_failure"})


def on_the_node(world: World) -> tuple[str | None, str | None]:
    node = world.cluster.current
    assert node is not None
    return node.labels.get(KEYS.state), node.annotations.get(KEYS.last_outcome)


def test_nothing_is_shown_where_that_is_switched_off() -> None:
    for name in SCENARIOS:
        world = SCENARIOS[name]()
        world.is_shown = False
        world.profile = replace(PROFILE, keys=replace(KEYS, state="", last_outcome=""))
        world.host.broken = {"2.0"}
        before = on_the_node(world)
        run(world)
        assert on_the_node(world) == before, name
        assert before == (None, None) or name in LEFT_BY_A_RUN_BEFORE


def test_told_to_end_a_run_that_holds_the_node_sends_no_patch_of_its_own() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.host.broken = {"2.0", "1.0"}
    world.killer.at("load rebellions", world.clock.ask_to_end)
    run(world)
    assert is_held(world)
    assert world.state().shown.state == "upgrading"


def test_told_to_end_the_patch_that_gives_back_still_shows_it() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.killer.at("watch", world.clock.ask_to_end)
    assert run(world).exit_code is ExitCode.STANDING_DOWN
    assert is_given_back(world)
    assert world.state().shown == Shown("failed", 10, NEW_DIGEST)


@pytest.mark.parametrize("error", [ApiRefused, ApiUnavailable])
def test_a_state_that_cannot_be_written_is_a_warning_and_no_other_exit_code(error: type[Exception]) -> None:
    world = impossible()
    world.is_shown = False

    def refuse() -> None:
        raise error("the API server refused to patch nodes", "Give this account the verb.")

    world.killer.at("patch", refuse)
    assert run(world).exit_code is ExitCode.PREFLIGHT_FAILED
    assert (
        "the end of this run is not shown on the Node: the API server refused to patch nodes" in world.reporter.warnings
    )
    assert world.state().shown == NOTHING_SHOWN


def test_without_an_api_server_nothing_more_is_asked_of_it() -> None:
    world = SCENARIOS["replace_by_manager"]()

    def away() -> None:
        raise ApiUnavailable("the API server gave no usable answer", "Check it.")

    world.killer.at("pods", away)
    assert run(world).exit_code is ExitCode.API_UNAVAILABLE
    assert "patch" not in world.killer.calls


def test_a_node_that_another_run_took_meanwhile_is_left_alone() -> None:
    world = impossible()
    world.is_shown = False
    theirs = journals.encode(journal(owner=SOMEBODY))
    world.killer.at("patch", lambda: world.cluster.edit({KEYS.state: "upgrading"}, annotations={KEYS.journal: theirs}))
    run(world)
    assert world.cluster.current is not None
    assert world.cluster.current.labels[KEYS.state] == "upgrading"
    assert KEYS.last_outcome not in world.cluster.current.annotations


def test_a_node_that_changed_meanwhile_is_looked_at_again() -> None:
    world = impossible()
    world.killer.at("patch", lambda: world.cluster.edit({"example.com/unrelated": "x"}))
    assert run(world).exit_code is ExitCode.PREFLIGHT_FAILED
    assert world.state().shown == Shown("failed", 6, NEW_DIGEST)


def test_another_machines_node_is_not_spoken_for() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.is_shown = False
    assert world.cluster.current is not None
    world.cluster.current = replace(world.cluster.current, machine_id="another", boot_id="another")
    assert run(world).exit_code is ExitCode.USAGE
    assert world.killer.effects == []


def test_a_node_that_is_left_out_by_hand_is_not_spoken_for() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.pod = ""
    world.cluster.edit({KEYS.skip: "true"})
    assert run(world).exit_code is ExitCode.STANDING_DOWN
    assert world.killer.effects == []


def test_an_unexpected_error_is_shown_as_a_bug() -> None:
    world = SCENARIOS["replace_by_manager"]()

    def bug() -> None:
        raise ZeroDivisionError

    world.killer.at("unload rebellions", bug)
    with pytest.raises(ZeroDivisionError):
        world.run()
    assert is_given_back(world)
    assert world.state().shown == Shown("failed", 1, "")


# a reboot, and the host's own driver


def test_a_reboot_is_asked_for_and_shown_in_one_patch() -> None:
    world = ascend(no_wait=True)
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert len(world.cluster.patches) == 1
    assert world.state().shown == Shown("reboot-required", 9, world.digest)
    first = version(world)
    world.next_process()
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert version(world) == first


def test_a_driver_loaded_after_the_reboot_is_ready_when_it_is_loaded_and_not_before() -> None:
    world = ascend(no_wait=True)
    run(world)
    world.reboot()
    world.next_process()
    world.policy = Policy(loader=Loader.MANAGER)
    world.driver_root = "/opt/new"
    world.host.offers = {"/opt/new": "24.0"}
    seen: list[str | None] = []
    world.killer.at("load drv_pcie_host", lambda: seen.append(world.state().shown.state))
    assert run(world).exit_code is ExitCode.DONE
    assert seen == ["upgrading"], "the run has the node while it loads"
    assert world.state().shown == Shown("ready", 0, world.digest)


def test_a_host_with_a_driver_of_its_own_is_ready() -> None:
    world = SCENARIOS["replace_by_container"]()
    world.host.files = {}
    world.host.host_driver = "/lib/modules/x/rebellions.ko"
    assert run(world).exit_code is ExitCode.STANDING_DOWN
    assert len(world.cluster.patches) == 1
    assert world.state().shown == Shown("ready", 10, NEW_DIGEST)


def test_what_a_config_error_says_is_what_the_node_shows() -> None:
    world = SCENARIOS["replace_by_manager"]()

    def unreadable() -> None:
        raise ConfigError("cannot read /proc of the host", "Mount it.")

    world.killer.at("pods", unreadable)
    run(world)
    assert (outcome(world).what, outcome(world).remedy) == ("cannot read /proc of the host", "Mount it.")


# what a run that changes no driver does not end


def wedged(world: World) -> World:
    """health-watch has found a wedge: the ready marker is withdrawn, and the Node shows it."""
    world.host.files[PROFILE.paths.ready_withdrawn] = ""
    shows(world, NodeState.WEDGED)
    return world


def test_a_run_that_fails_before_it_takes_the_node_ends_no_wedge() -> None:
    world = wedged(SCENARIOS["replace_by_manager"]())
    world.host.are_modules_frozen = True
    assert run(world).exit_code is ExitCode.PREFLIGHT_FAILED
    assert world.state().shown == Shown("wedged", 6, NEW_DIGEST)
    before = version(world)
    world.next_process()
    assert run(world).exit_code is ExitCode.PREFLIGHT_FAILED
    assert version(world) == before, "the same again writes nothing"


def test_a_good_run_without_a_plan_corrects_a_failure_to_the_wedge_that_there_still_is() -> None:
    world = SCENARIOS["current"]()
    world.host.files[PROFILE.paths.ready_withdrawn] = ""
    shows(world, NodeState.FAILED, exit_code=2)
    assert run(world).exit_code is ExitCode.DONE
    assert world.state().shown == Shown("wedged", 0, NEW_DIGEST)


def test_another_message_is_told_and_the_same_with_other_numbers_is_not() -> None:
    world = SCENARIOS["replace_by_manager"]()
    seen = []
    for process, pid in (("trainer", 42), ("trainer", 43), ("backup", 43)):
        world.next_process()
        world.host.known_holders = (Holder(pid, process, "/dev/rbln0", "open"),)
        world.host.stuck_users = {"rebellions": 1}
        assert run(world).exit_code is ExitCode.DRIVER_BUSY
        seen.append(version(world))
    assert seen[0] == seen[1] != seen[2]
    assert "backup (pid 43)" in outcome(world).what


# held


def not_working(world: World) -> World:
    """Neither the new driver nor the old one serves its device: the node is held."""
    world.host.sick = {"2.0", "1.0"}
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    assert is_held(world)
    return world


def test_a_node_held_for_a_driver_that_does_not_work_stays_so_through_a_run_that_fails_early() -> None:
    world = not_working(SCENARIOS["replace_by_manager"]())
    world.next_process()
    world.host.known_holders = (Holder(42, "trainer", "/dev/rbln0", "open"),)
    world.host.stuck_users = {"rebellions": 1}
    ended = run(world)
    assert ended.exit_code is ExitCode.DRIVER_BUSY
    assert "the node stays paused, because an earlier run left a driver that was not verified" in ended.what
    assert "no pod was disturbed" not in ended.what
    assert "the next run waits until" not in ended.remedy, "it goes on at once"
    assert is_held(world)
    assert world.state().shown == Shown("held", 4, NEW_DIGEST)
    world.next_process()
    world.host.known_holders, world.host.stuck_users, world.host.sick = (), {}, set()
    assert run(world).exit_code is ExitCode.DONE
    assert is_given_back(world)


def test_what_a_killed_run_left_paused_is_not_called_undisturbed() -> None:
    world = SCENARIOS["replace_by_manager"]()
    world.killer.at("watch", world.killer.die)
    assert world.run() is None
    world.next_process()
    world.host.known_holders = (Holder(42, "trainer", "/dev/rbln0", "open"),)
    world.host.stuck_users = {"rebellions": 1}
    ended = run(world)
    assert ended.exit_code is ExitCode.DRIVER_BUSY
    assert "no pod was disturbed" not in ended.what
    assert not [step for step in world.reporter.steps if "before anything is changed" in step]
    assert is_given_back(world)
