"""A run that finds the wanted driver staged: what it plans, how it goes, and how it goes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode, ModuleFailed
from driver_manager.domain.host import NEXT, PREVIOUS
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import Loader, Policy, Situation
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.preflight import checks
from driver_manager.domain.swap.retry_wait import wish
from driver_manager.domain.swap.steps import FlipRoot, KeepRoot, LoadModules, Plan
from tests.support.fakes.builders import NEW_DIGEST, OLD_DIGEST, PLUGIN, PROFILE, pod
from tests.support.fakes.scenarios import made, swap_a_folder_for_a_slot, swap_to_a_slot
from tests.support.fakes.slots import Kept
from tests.support.fakes.world import World

Scenario = Callable[[], World]
ROOT = "/opt/driver"
THIRD = "3" * 64
FAILED = ExitCode.MODULE_FAILED
BACK = "the old driver 1.0 is loaded again"
both = pytest.mark.parametrize("scenario", [swap_to_a_slot, swap_a_folder_for_a_slot])
FORCED = Policy(loader=Loader.MANAGER, force_reinstall=True)


def situation(world: World) -> Situation:
    return Situation.of(world.observe(), world.profile, world.policy)


def planned(world: World) -> Plan:
    return plan(situation(world))


def names(decided: Plan) -> list[str]:
    return [step.name for step in decided.steps]


def one(decided: Plan, kind: type) -> Any:
    (step,) = (step for step in decided.steps if isinstance(step, kind))
    return step


def check_old(world: World) -> None:
    """Raises AssertionError unless the old driver is at the root and loaded, and the node is released."""
    assert (world.host.slots.version_at(ROOT), world.host.loaded["rebellions"]) == ("1.0", "1.0")
    assert world.is_released


@both
def test_the_old_driver_is_recorded_first_and_the_window_is_unload_flip_load(scenario: Scenario) -> None:
    decided = planned(scenario())
    assert ", ".join(names(decided)) == (
        "keep root, take node, wait for operands, wait for device, unload modules, remove artifacts, flip root, "
        "load modules, record digest, give back"
    )
    assert f"flip {ROOT} to the staged slot {NEW_DIGEST}, driver 2.0" in decided.to_text()
    assert f"load rebellions 2.0 from {ROOT} and verify it" in decided.to_text()
    assert one(decided, KeepRoot) == KeepRoot(ROOT, OLD_DIGEST, "1.0", takes=NEW_DIGEST)
    assert one(decided, FlipRoot) == FlipRoot(ROOT, f"{NEW_DIGEST}, driver 2.0", has_way_back=True)


def test_files_are_named_where_they_are_at_the_root_and_not_recorded_as_loaded_if_they_were_replaced() -> None:
    now = situation(swap_to_a_slot())
    assert now.host.source is not None
    (file,) = now.host.source.modules
    source = replace(
        now.host.source,
        modules=(replace(file, path=f"{ROOT}{NEXT}/lib/a.ko"),),
        dependencies=(replace(file, path="/lib/modules/b.ko"),),
        tree=(("a", f"{ROOT}{NEXT}/lib/a.ko"),),
    )
    found = one(plan(replace(now, host=replace(now.host, source=source))), LoadModules).source
    assert [one.path for one in (*found.modules, *found.dependencies)] == [f"{ROOT}/lib/a.ko", "/lib/modules/b.ko"]
    assert found.tree == (("a", f"{ROOT}/lib/a.ko"),)
    world = swap_a_folder_for_a_slot()  # else its digest would be that of another driver
    world.host.slots.trees[ROOT] = (None, "1.5")
    keep = one(planned(world), KeepRoot)
    assert (keep.digest, keep.version) == ("", "")


@pytest.mark.parametrize("name", ["replace_by_manager", "first_install_by_manager", "replace_by_container"])
def test_without_a_slot_nothing_is_otherwise(name: str) -> None:
    world = made(name)
    without = planned(world)
    world.host.slots.stage("another", "9.9")
    assert planned(world) == without


def test_a_container_takes_no_driver_from_a_slot_a_current_one_stays_and_preflight_names_the_slot() -> None:
    assert "flip root" not in names(planned(swap_to_a_slot().given(loader=Loader.CONTAINER)))
    assert planned(swap_to_a_slot().given(digest=OLD_DIGEST)).steps == ()
    found = {check.name: check for check in checks(situation(swap_to_a_slot()))}
    assert found["staged slot"].what == f"staged slot {NEW_DIGEST}, driver 2.0"
    assert found["driver root"].ok is True


def with_pods(now: Situation, *pods: Pod) -> Situation:
    return replace(now, obs=replace(now.obs, pods=replace(now.obs.pods, pods=pods)))


def test_only_a_pod_that_has_the_old_root_itself_is_bounced_by_a_first_install_or_named_in_a_warning() -> None:
    for path, is_paused in ((f"{ROOT}/usr", True), ("/opt", False)):
        now = with_pods(situation(swap_to_a_slot().given(loaded={})), pod("plugin", PLUGIN, host_paths=(path,)))
        assert ("wait for operands" in names(plan(now))) is is_paused, path
    now = situation(swap_to_a_slot())
    now = with_pods(now, *now.obs.pods.pods, pod("stays", host_paths=(ROOT,)))
    (warning,) = (line for line in plan(now).warnings if "old driver tree" in line)
    assert warning.startswith(f"rbln-system/stays mount {ROOT}")


@pytest.mark.parametrize(
    ("scenario", "changes", "expected"),
    [
        (swap_to_a_slot, {"problems": {NEW_DIGEST: "it is for kernel 5.10"}}, "for kernel 5.10"),
        (swap_to_a_slot, {"obstacle": "it is a mount point"}, "it is a mount point"),
        (swap_a_folder_for_a_slot, {"is_fixed": True}, "cannot be exchanged"),
    ],
)
def test_an_unusable_slot_is_refused_before_the_window(
    scenario: Scenario, changes: dict[str, Any], expected: str
) -> None:
    world = scenario().given(**changes)
    world.ended(ExitCode.PREFLIGHT_FAILED, expected)
    check_old(world)
    assert not [effect for effect in world.killer.effects if effect.startswith(("unload", "flip"))]


def test_a_root_that_cannot_be_flipped_brings_the_old_driver_back() -> None:
    world = swap_to_a_slot().on("unload rebellions", lambda one: setattr(one.host.slots, "is_fixed", True))
    world.ended(FAILED, "cannot be exchanged", BACK)
    check_old(world)


def test_from_a_folder_to_a_slot_and_back_to_what_was_in_it_whatever_kills_the_way_back() -> None:
    world = swap_a_folder_for_a_slot()
    world.ended()
    assert world.host.slots.trees == {ROOT: (NEW_DIGEST, "2.0"), ROOT + PREVIOUS: (OLD_DIGEST, "1.0")}
    assert world.host.loaded["rebellions"] == "2.0"
    world.given(digest=OLD_DIGEST).again()
    check_old(world)
    kills = [(effect, after) for effect in range(len(world.killer.effects)) for after in (False, True)]
    assert len(kills) > 20
    for effect, after in kills:
        world = swap_a_folder_for_a_slot()
        world.ended()
        world.next_process()
        world.given(digest=OLD_DIGEST).killed(effect, after=after).finish()
        check_old(world)


@both
@pytest.mark.parametrize("fault", ["broken", "sick"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_driver_that_does_not_work_takes_the_root_back_too(scenario: Scenario, fault: str, is_killed: bool) -> None:
    world = scenario()
    if is_killed:
        world.killed("flip")
    before = wish(situation(world))
    world.given(**{fault: {"2.0"}}).ended(FAILED, BACK)
    check_old(world)
    assert world.host.files[PROFILE.paths.state_file] == f"{OLD_DIGEST}\n"
    assert world.host.slots.trees[ROOT + PREVIOUS] == (NEW_DIGEST, "2.0"), "it is tried again without being staged"
    world.next_process()
    assert wish(situation(world)) == before, "each try is the same wish, so the wait between tries grows"


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("has_previous", [False, True])
def test_a_failed_reinstall_goes_back_to_the_tree_that_was_loaded(has_previous: bool, is_killed: bool) -> None:
    """The staged tree has its digest and version."""
    world, staged = swap_a_folder_for_a_slot().given(digest=OLD_DIGEST, policy=FORCED), (OLD_DIGEST, "1.0")
    previous = {ROOT + PREVIOUS: ("1" * 64, "0.1")} if has_previous else {}
    world.host.slots.trees = {ROOT: (None, "1.0"), ROOT + NEXT: staged, **previous}
    if is_killed:
        world.killed("flip")
    world.on("load rebellions", ModuleFailed("no", "Look at dmesg.")).ended(FAILED, BACK)
    assert isinstance(world.host.slots.trees[ROOT][0], Kept)
    assert (world.host.slots.trees[ROOT + PREVIOUS], world.is_released) == (staged, True)


def test_the_old_driver_or_a_third_one_after_a_killed_swap_leaves_the_record_of_what_is_not_wanted() -> None:
    world = swap_to_a_slot().killed("flip").given(digest=OLD_DIGEST)
    world.ended()
    check_old(world)
    assert world.host.slots.trees[ROOT + PREVIOUS] == (NEW_DIGEST, "2.0")
    world = swap_to_a_slot().killed("flip")
    world.host.slots.stage(THIRD, "3.0")
    world.given(digest=THIRD, broken={"3.0"}).ended(FAILED)
    check_old(world)
    assert world.host.slots.trees[ROOT + PREVIOUS] == (THIRD, "3.0")


def test_of_trees_with_equal_versions_the_digest_names_the_way_back() -> None:
    """A configuration changed, and a reboot took everything that the host had noted."""
    world = swap_a_folder_for_a_slot()
    world.host.slots.stage(NEW_DIGEST, "1.0")
    world.killed("flip").reboot()
    world.host.slots.stage(THIRD, "1.0")
    assert situation(world.given(digest=THIRD)).host.previous_source.root == ROOT + PREVIOUS  # type: ignore[union-attr]  # it is there
    world.ended()
    trees = {ROOT: (THIRD, "1.0"), ROOT + PREVIOUS: (OLD_DIGEST, "1.0"), ROOT + NEXT: (NEW_DIGEST, "1.0")}
    assert world.host.slots.trees == trees


def test_without_a_way_back_the_node_is_held_and_a_forced_reinstall_of_what_is_there_flips_nothing() -> None:
    world = swap_to_a_slot().given(broken={"1.0", "2.0"})
    world.ended(FAILED)
    assert world.is_held
    world = swap_to_a_slot()
    world.ended()
    assert "flip root" not in names(planned(world.given(policy=FORCED)))
    world.again()
