"""A run that finds the wanted driver staged: what it plans, how it goes, and how it goes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode, ModuleFailed
from driver_manager.domain.host import NEXT, PREVIOUS
from driver_manager.domain.observation import Loader, Policy, Situation
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.preflight import checks
from driver_manager.domain.swap.retry_wait import wish
from driver_manager.domain.swap.steps import FlipRoot, KeepRoot, LoadModules, Plan
from tests.support.fakes.builders import NEW_DIGEST, OLD_DIGEST, PLUGIN, PROFILE, pod
from tests.support.fakes.checks import finish
from tests.support.fakes.executions import is_given_back, is_held, run
from tests.support.fakes.scenarios import SCENARIOS, swap_a_folder_for_a_slot, swap_to_a_slot
from tests.support.fakes.slots import Kept
from tests.support.fakes.world import World

ROOT = "/opt/driver"
OLD_KEPT = {ROOT: (NEW_DIGEST, "2.0"), ROOT + PREVIOUS: (OLD_DIGEST, "1.0")}


def at_root(world: World) -> tuple[str | None, str]:
    """Versions of the driver at the root and of the loaded one."""
    return world.host.slots.version_at(ROOT), world.host.loaded["rebellions"]


def situation(world: World) -> Situation:
    return Situation.of(world.observe(), world.profile, world.policy)


def planned(world: World) -> Plan:
    return plan(situation(world))


def names(decided: Plan) -> list[str]:
    return [step.name for step in decided.steps]


@pytest.mark.parametrize("scenario", [swap_to_a_slot, swap_a_folder_for_a_slot])
def test_the_old_driver_is_recorded_first_and_the_window_is_unload_flip_load(scenario: Callable[[], World]) -> None:
    decided = planned(scenario())
    assert names(decided) == [
        "keep root",
        "take node",
        "wait for operands",
        "wait for device",
        "unload modules",
        "remove artifacts",
        "flip root",
        "load modules",
        "record digest",
        "give back",
    ]
    assert f"flip {ROOT} to the staged slot {NEW_DIGEST}, driver 2.0" in decided.to_text()
    assert f"load rebellions 2.0 from {ROOT} and verify it" in decided.to_text()
    (keep,) = (step for step in decided.steps if isinstance(step, KeepRoot))
    (flip,) = (step for step in decided.steps if isinstance(step, FlipRoot))
    assert keep == KeepRoot(ROOT, OLD_DIGEST, "1.0", takes=NEW_DIGEST)
    assert flip == FlipRoot(ROOT, f"{NEW_DIGEST}, driver 2.0", has_way_back=True)


def test_the_files_of_the_new_driver_are_named_where_they_are_once_it_is_at_the_root() -> None:
    now = situation(swap_to_a_slot())
    assert now.host.source is not None
    (file,) = now.host.source.modules
    source = replace(
        now.host.source,
        modules=(replace(file, path=f"{ROOT}{NEXT}/lib/a.ko"),),
        dependencies=(replace(file, path="/lib/modules/b.ko"),),
        tree=(("a", f"{ROOT}{NEXT}/lib/a.ko"),),
    )
    decided = plan(replace(now, host=replace(now.host, source=source)))
    (load,) = (step for step in decided.steps if isinstance(step, LoadModules))
    assert [one.path for one in load.source.modules] == [f"{ROOT}/lib/a.ko"]
    assert [one.path for one in load.source.dependencies] == ["/lib/modules/b.ko"]
    assert load.source.tree == (("a", f"{ROOT}/lib/a.ko"),)


def test_files_that_were_replaced_in_a_folder_are_not_recorded_as_the_driver_that_is_loaded() -> None:
    """Whoever wants the old digest again would get another driver under its name."""
    world = swap_a_folder_for_a_slot()
    world.host.slots.trees[ROOT] = (None, "1.5")
    (keep,) = (step for step in planned(world).steps if isinstance(step, KeepRoot))
    assert (keep.digest, keep.version) == ("", "")


@pytest.mark.parametrize("name", ["replace_by_manager", "first_install_by_manager", "replace_by_container"])
def test_without_a_slot_nothing_is_otherwise(name: str) -> None:
    world = SCENARIOS[name]()
    without = planned(world)
    world.host.slots.stage("another", "9.9")
    assert planned(world) == without


def test_a_container_that_loads_its_driver_takes_none_from_a_slot() -> None:
    world = swap_to_a_slot()
    world.policy = replace(world.policy, loader=Loader.CONTAINER)
    assert "flip root" not in names(planned(world))


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
    assert at_root(world) == ("1.0", "1.0")
    assert not [effect for effect in world.killer.effects if effect.startswith(("unload", "flip"))]


def test_preflight_names_the_slot() -> None:
    found = {check.name: check for check in checks(situation(swap_to_a_slot()))}
    assert found["staged slot"].what == f"staged slot {NEW_DIGEST}, driver 2.0"
    assert found["driver root"].ok is True


def test_a_root_that_cannot_be_exchanged_ends_the_run_before_the_first_pause() -> None:
    world = swap_a_folder_for_a_slot()
    world.host.slots.is_fixed = True
    assert run(world).exit_code is ExitCode.PREFLIGHT_FAILED
    assert is_given_back(world)
    assert at_root(world) == ("1.0", "1.0")


def test_from_a_folder_to_a_slot_and_back_to_what_was_in_it() -> None:
    world = swap_a_folder_for_a_slot()
    assert run(world).exit_code is ExitCode.DONE
    assert (world.host.slots.trees, at_root(world)) == (OLD_KEPT, ("2.0", "2.0"))
    world.next_process()
    world.digest = OLD_DIGEST
    assert run(world).exit_code is ExitCode.DONE
    assert at_root(world) == ("1.0", "1.0")
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
        assert at_root(world) == ("1.0", "1.0")
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
    assert at_root(world) == ("1.0", "1.0")
    assert world.host.files[PROFILE.paths.state_file] == f"{OLD_DIGEST}\n"
    assert world.host.slots.trees[ROOT + PREVIOUS] == (NEW_DIGEST, "2.0"), "it is tried again without being staged"
    assert is_given_back(world)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("previous", [{}, {ROOT + PREVIOUS: ("1" * 64, "0.1")}])
def test_a_failed_reinstall_goes_back_to_the_tree_that_was_loaded(
    previous: dict[str, tuple[str | None, str]], is_killed: bool
) -> None:
    """The staged tree has its digest and version."""

    def fail() -> None:
        raise ModuleFailed("no", "Look at dmesg.")

    world, staged = swap_a_folder_for_a_slot(), (OLD_DIGEST, "1.0")
    world.host.slots.trees = {ROOT: (None, "1.0"), ROOT + NEXT: staged, **previous}
    world.digest, world.policy = OLD_DIGEST, Policy(loader=Loader.MANAGER, force_reinstall=True)
    if is_killed:
        world.killer.at("flip", world.killer.die, after=True)
        assert world.run() is None
        world.next_process()
    world.killer.at("load rebellions", fail)
    assert "the old driver 1.0 is loaded again" in run(world).what
    assert isinstance(world.host.slots.trees[ROOT][0], Kept)
    assert world.host.slots.trees[ROOT + PREVIOUS] == staged
    assert is_given_back(world)


def test_the_old_driver_wanted_again_after_a_killed_swap_keeps_the_record_of_the_new_one() -> None:
    world = swap_to_a_slot()
    world.killer.at("flip", world.killer.die, after=True)
    assert world.run() is None
    world.next_process()
    world.digest = OLD_DIGEST
    assert run(world).exit_code is ExitCode.DONE
    assert at_root(world) == ("1.0", "1.0")
    assert world.host.slots.trees[ROOT + PREVIOUS] == (NEW_DIGEST, "2.0")


def test_of_trees_with_equal_versions_the_digest_names_the_way_back() -> None:
    """A configuration changed, and a reboot took everything that the host had noted."""
    world = swap_a_folder_for_a_slot()
    world.host.slots.stage(NEW_DIGEST, "1.0")
    world.killer.at("flip", world.killer.die, after=True)
    assert world.run() is None
    world.next_process()
    world.reboot()
    world.host.slots.stage("3" * 64, "1.0")
    world.digest = "3" * 64
    assert situation(world).host.previous_source.root == ROOT + PREVIOUS  # type: ignore[union-attr]  # it is there
    assert run(world).exit_code is ExitCode.DONE
    trees = {ROOT: ("3" * 64, "1.0"), ROOT + PREVIOUS: (OLD_DIGEST, "1.0"), ROOT + NEXT: (NEW_DIGEST, "1.0")}
    assert world.host.slots.trees == trees


def test_a_driver_that_came_back_is_as_much_the_wanted_one_as_before() -> None:
    """Each try is the same wish, so the wait between tries grows, though the new driver has changed its place."""
    world = swap_to_a_slot()
    world.host.broken = {"2.0"}
    before = wish(situation(world))
    run(world)
    world.next_process()
    assert situation(world).host.source.root == ROOT + PREVIOUS  # type: ignore[union-attr]  # it is there
    assert wish(situation(world)) == before


def test_a_third_driver_after_a_killed_swap_leaves_the_first_as_the_way_back() -> None:
    world = swap_to_a_slot()
    world.killer.at("flip", world.killer.die, after=True)
    assert world.run() is None
    world.next_process()
    world.host.slots.stage("3" * 64, "3.0")
    world.digest, world.host.broken = "3" * 64, {"3.0"}
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    assert at_root(world) == ("1.0", "1.0")
    assert world.host.slots.trees[ROOT + PREVIOUS] == ("3" * 64, "3.0")


@pytest.mark.parametrize("scenario", [swap_to_a_slot, swap_a_folder_for_a_slot])
def test_a_driver_that_does_not_work_after_a_kill_takes_the_root_back_too(scenario: Callable[[], World]) -> None:
    world = scenario()
    world.killer.at("flip", world.killer.die, after=True)
    assert world.run() is None
    world.next_process()
    world.host.broken = {"2.0"}
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    assert at_root(world) == ("1.0", "1.0")
    assert is_given_back(world)


def test_a_root_that_cannot_be_flipped_brings_the_old_driver_back() -> None:
    world = swap_to_a_slot()
    world.killer.at("unload rebellions", lambda: setattr(world.host.slots, "is_fixed", True))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "cannot be exchanged" in outcome.what
    assert "the old driver 1.0 is loaded again" in outcome.what
    assert at_root(world) == ("1.0", "1.0")
    assert is_given_back(world)


def test_without_a_way_back_the_node_is_held() -> None:
    world = swap_to_a_slot()
    world.host.broken = {"1.0", "2.0"}
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    assert is_held(world)


def test_a_current_driver_beside_a_slot_that_waits_is_left_alone() -> None:
    world = swap_to_a_slot()
    world.digest = OLD_DIGEST
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
