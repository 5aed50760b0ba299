"""A run that finds the wanted driver staged: what it plans, how it goes, and how it goes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.host import UNRECORDED, folder_of
from driver_manager.domain.observation import Loader, Policy, Situation
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.preflight import checks
from driver_manager.domain.swap.steps import Decision, FlipRoot, KeepRoot, Plan, RemoveSlots
from tests.support.fakes.builders import NEW_DIGEST, OLD_DIGEST, PLUGIN, PROFILE, pod
from tests.support.fakes.checks import finish
from tests.support.fakes.executions import is_given_back, is_held, run
from tests.support.fakes.scenarios import SCENARIOS, swap_a_folder_for_a_slot, swap_to_a_slot
from tests.support.fakes.world import World

ROOT = "/opt/driver"
TO_OLD, TO_NEW = f"{folder_of(ROOT)}/{OLD_DIGEST}", f"{folder_of(ROOT)}/{NEW_DIGEST}"


def situation(world: World) -> Situation:
    return Situation.of(world.observe(), world.profile, world.policy)


def planned(world: World) -> Plan:
    return plan(situation(world))


def names(decided: Plan) -> list[str]:
    return [step.name for step in decided.steps]


def test_the_window_is_unload_flip_load_and_the_old_slots_go_after_it() -> None:
    decided = planned(swap_to_a_slot())
    assert names(decided) == [
        "take node",
        "wait for operands",
        "wait for device",
        "unload modules",
        "remove artifacts",
        "flip root",
        "load modules",
        "record digest",
        "give back",
        "remove slots",
    ]
    assert f"flip {ROOT} to the staged slot {NEW_DIGEST}, driver 2.0" in decided.to_text()
    assert f"load rebellions 2.0 from {TO_NEW} and verify it" in decided.to_text()
    (flip,) = (step for step in decided.steps if isinstance(step, FlipRoot))
    (remove,) = (step for step in decided.steps if isinstance(step, RemoveSlots))
    assert (flip.back, flip.kept) == (TO_OLD, "")
    assert remove.names == ("1" * 64, "2" * 64), "of those before, the newest stays"


def test_a_folder_at_the_root_is_recorded_before_anybody_is_disturbed() -> None:
    decided = planned(swap_a_folder_for_a_slot())
    assert names(decided)[:2] == ["keep root", "take node"]
    (keep,) = (step for step in decided.steps if isinstance(step, KeepRoot))
    (flip,) = (step for step in decided.steps if isinstance(step, FlipRoot))
    assert (keep.digest, keep.version) == (OLD_DIGEST, "1.0")
    assert (flip.kept, flip.back) == (OLD_DIGEST, TO_OLD)


def test_files_that_were_replaced_in_a_folder_are_not_recorded_as_the_driver_that_is_loaded() -> None:
    """Whoever wants the old digest again would get another driver under its name."""
    world = swap_a_folder_for_a_slot()
    world.host.slots.in_root = "1.5"
    decided = planned(world)
    (keep,) = (step for step in decided.steps if isinstance(step, KeepRoot))
    (flip,) = (step for step in decided.steps if isinstance(step, FlipRoot))
    assert (keep.digest, keep.version, flip.kept) == ("", "", UNRECORDED)


def test_a_name_that_a_slot_has_already_is_not_taken_twice() -> None:
    world = swap_a_folder_for_a_slot()
    world.host.slots.stage(OLD_DIGEST, "1.0")
    (flip,) = (step for step in planned(world).steps if isinstance(step, FlipRoot))
    assert flip.kept == f"{OLD_DIGEST}-2"


@pytest.mark.parametrize("name", ["replace_by_manager", "first_install_by_manager", "replace_by_container"])
def test_without_a_slot_nothing_is_otherwise(name: str) -> None:
    world = SCENARIOS[name]()
    without = planned(world)
    world.host.slots.stage("another", "9.9")
    assert planned(world) == without


def test_a_container_that_loads_its_driver_takes_none_from_a_slot() -> None:
    world = swap_to_a_slot()
    world.policy = replace(world.policy, loader=Loader.CONTAINER)
    assert not {"flip root", "remove slots"} & set(names(planned(world)))


@pytest.mark.parametrize(
    ("ruin", "what"),
    [
        (lambda world: world.host.slots.problems.update({NEW_DIGEST: "it is for kernel 5.10"}), "for kernel 5.10"),
        (lambda world: setattr(world.host.slots, "obstacle", "it is a mount point"), "it is a mount point"),
    ],
)
def test_a_slot_that_cannot_be_used_is_refused_before_the_window(ruin: Callable[[World], None], what: str) -> None:
    world = swap_to_a_slot()
    ruin(world)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PREFLIGHT_FAILED
    assert what in outcome.what
    assert is_given_back(world)
    assert world.host.slots.leads_to == TO_OLD
    assert not [effect for effect in world.killer.effects if effect.startswith(("unload", "flip"))]


def test_preflight_names_the_slot() -> None:
    found = {check.name: check for check in checks(situation(swap_to_a_slot()))}
    assert found["staged slot"].what == f"staged slot {NEW_DIGEST}, driver 2.0"
    assert found["driver root"].ok is True


def test_a_root_that_cannot_become_a_slot_ends_the_run_before_the_first_pause() -> None:
    world = swap_a_folder_for_a_slot()
    world.host.slots.is_fixed = True
    assert run(world).exit_code is ExitCode.PREFLIGHT_FAILED
    assert is_given_back(world)
    assert (world.host.slots.in_root, world.host.loaded["rebellions"]) == ("1.0", "1.0")


def test_from_a_folder_to_a_slot_and_back_to_what_was_in_it() -> None:
    world = swap_a_folder_for_a_slot()
    assert run(world).exit_code is ExitCode.DONE
    assert (world.host.slots.leads_to, world.host.loaded["rebellions"]) == (TO_NEW, "2.0")
    world.next_process()
    world.digest = OLD_DIGEST
    assert run(world).exit_code is ExitCode.DONE
    assert (world.host.slots.leads_to, world.host.loaded["rebellions"]) == (TO_OLD, "1.0")
    assert is_given_back(world)


def test_the_way_back_killed_at_any_effect_ends_alike() -> None:
    number = 0
    while True:
        world = swap_a_folder_for_a_slot()
        run(world)
        world.next_process()
        world.digest = OLD_DIGEST
        world.killer.kill_at(number // 2, after=bool(number % 2))
        outcome = world.run()
        if outcome is not None:
            break
        finish(world)
        assert (world.host.slots.leads_to, world.host.loaded["rebellions"]) == (TO_OLD, "1.0")
        assert is_given_back(world)
        number += 1
    assert number > 20


@pytest.mark.parametrize("scenario", [swap_to_a_slot, swap_a_folder_for_a_slot])
@pytest.mark.parametrize("fault", ["broken", "sick"])
def test_a_driver_that_does_not_work_takes_the_root_back_too(scenario: Callable[[], World], fault: str) -> None:
    world = scenario()
    setattr(world.host, fault, {"2.0"})
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "the old driver 1.0 is loaded again" in outcome.what
    assert (world.host.slots.leads_to, world.host.loaded["rebellions"]) == (TO_OLD, "1.0")
    assert world.host.files[PROFILE.paths.state_file] == f"{OLD_DIGEST}\n"
    assert len(world.host.slots.slots) == 5, "no slot goes before the new driver was seen to work"
    assert is_given_back(world)


@pytest.mark.parametrize("scenario", [swap_to_a_slot, swap_a_folder_for_a_slot])
def test_a_driver_that_does_not_work_after_a_kill_takes_the_root_back_too(scenario: Callable[[], World]) -> None:
    world = scenario()
    world.killer.at(f"flip {TO_NEW}", world.killer.die, after=True)
    assert world.run() is None
    world.next_process()
    world.host.broken = {"2.0"}
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    assert (world.host.slots.leads_to, world.host.loaded["rebellions"]) == (TO_OLD, "1.0")
    assert is_given_back(world)


def test_a_root_that_cannot_be_flipped_brings_the_old_driver_back() -> None:
    world = swap_to_a_slot()
    world.host.slots.is_fixed = True
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "cannot be pointed at" in outcome.what
    assert "the old driver 1.0 is loaded again" in outcome.what
    assert world.host.slots.leads_to == TO_OLD
    assert is_given_back(world)


def test_without_a_way_back_the_node_is_held() -> None:
    world = swap_to_a_slot()
    world.host.broken = {"1.0", "2.0"}
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    assert is_held(world)


def test_slots_that_a_killed_run_did_not_remove_are_removed_by_the_next() -> None:
    world = swap_to_a_slot()
    run(world)
    left = dict(world.host.slots.slots)
    world.host.slots.slots = {"1" * 64: ("1" * 64, "0.1"), **left}
    world.next_process()
    decided = planned(world)
    assert (decided.decision, names(decided)) == (Decision.CURRENT, ["remove slots"])
    assert run(world).what.startswith("done: old slots were removed")
    assert world.host.slots.slots == left
    world.next_process()
    assert planned(world).steps == ()


def test_a_run_that_is_told_to_end_once_all_is_done_has_done_it() -> None:
    world = swap_to_a_slot()
    done = [number for number, called in enumerate(_calls()) if called == "patch"][-1]
    world.killer.at_call(done, world.clock.ask_to_end, after=True)
    assert run(world).exit_code is ExitCode.DONE
    assert len(world.host.slots.slots) == 5, "what nobody waits for is left to the next run"


def _calls() -> list[str]:
    world = swap_to_a_slot()
    run(world)
    return world.killer.calls


def test_slots_that_somebody_fills_now_stay_and_fail_nothing() -> None:
    world = swap_to_a_slot()
    world.host.slots.is_being_filled = True
    assert run(world).exit_code is ExitCode.DONE
    assert "old slots stay for now: another process is staging a driver" in world.reporter.infos
    assert is_given_back(world)


def test_a_current_driver_beside_a_slot_that_waits_is_left_alone() -> None:
    world = swap_to_a_slot()
    world.digest = OLD_DIGEST
    world.host.slots.leads_to = "/opt/by-hand"
    assert planned(world).steps == ()


def test_a_first_install_bounces_only_who_has_the_old_root_itself() -> None:
    world = swap_to_a_slot()
    world.host.loaded = {}
    bound = pod("plugin", PLUGIN, host_paths=(f"{ROOT}/usr",))
    above = pod("above", PLUGIN, host_paths=("/opt",))
    for one, is_paused in ((bound, True), (above, False)):
        now = situation(world)
        now = replace(now, obs=replace(now.obs, pods=replace(now.obs.pods, pods=(one,))))
        assert ("wait for operands" in names(plan(now))) is is_paused


def test_a_pod_that_no_label_moves_is_said_to_see_the_old_tree() -> None:
    world = swap_to_a_slot()
    now = situation(world)
    stays = pod("stays", host_paths=(ROOT,))
    now = replace(now, obs=replace(now.obs, pods=replace(now.obs.pods, pods=(*now.obs.pods.pods, stays))))
    (said,) = (line for line in plan(now).warnings if "old driver tree" in line)
    assert said.startswith(f"rbln-system/stays mount {ROOT}")


def test_a_forced_reinstall_of_what_is_there_flips_nothing() -> None:
    world = swap_to_a_slot()
    run(world)
    world.next_process()
    world.policy = Policy(loader=Loader.MANAGER, force_reinstall=True)
    assert "flip root" not in names(planned(world))
    assert run(world).exit_code is ExitCode.DONE
