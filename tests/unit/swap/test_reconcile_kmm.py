"""KMM unloads and loads the driver: the run clears the node, asks, waits, verifies by the kernel, and releases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.model import EvictionRules
from driver_manager.domain.profile import Strategy
from driver_manager.domain.swap.preflight import checks, rights_to_replace
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.base import WATCH_NODES
from driver_manager.domain.waiting import SAID_EVERY_S
from tests.fakes.builders import PROFILE, ROOT_MOUNT, workload
from tests.fakes.cluster import Tenant
from tests.fakes.executions import run
from tests.fakes.kmm import ASKED, READY, kmm_world
from tests.fakes.scenarios import LABELS
from tests.fakes.world import World

JOURNAL = PROFILE.keys.journal
DONE = {**LABELS, ASKED: "2.0", READY: "2.0"}


def is_released(world: World) -> bool:
    state = world.state()
    return state.labels == DONE and not state.annotations and not state.unschedulable


def is_held(world: World) -> bool:
    return JOURNAL in world.state().annotations


def test_kmm_changes_the_driver_of_a_node_that_is_cleared() -> None:
    world, kmm = kmm_world()
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True))
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=7.0))
    world.host.mounts = [ROOT_MOUNT]
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert "KMM loaded the driver" in outcome.what
    assert is_released(world)
    assert world.host.loaded["rebellions"] == "2.0"
    assert (kmm.log, kmm.wrong) == (["hide", "unload", "load", "show"], [])
    assert world.cluster.evicted == ["tenant/job"]
    assert not any(patch.unschedulable for patch in world.cluster.patches), "KMM unloads at once on a cordoned node"
    assert world.host.mounts == [ROOT_MOUNT], "the driver's root is KMM's"
    ours = [name for name in world.killer.effects if name.split()[0] in ("load", "unload", "reload", "unmount")]
    assert ours == []


def test_the_version_is_asked_in_one_patch_with_the_journal_after_the_operands_left() -> None:
    world, _ = kmm_world()
    run(world)
    (asking,) = [patch for patch in world.cluster.patches if ASKED in patch.labels]
    assert asking.labels == {ASKED: "2.0"}
    assert '"loadBefore":"1:1"' in (asking.annotations[JOURNAL] or "")


def test_a_version_that_is_loaded_already_disturbs_nobody() -> None:
    world, kmm = kmm_world(loaded="2.0", asked="2.0", ready="2.0")
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE
    assert "nothing to do" in outcome.what
    assert (world.cluster.patches, kmm.log) == ([], [])


@pytest.mark.parametrize(("asked", "ready"), [("", ""), ("1.0", ""), ("1.0", "1.0"), ("2.0", ""), ("2.0", "2.0")])
def test_a_first_driver_is_loaded_with_everybody_in_place(asked: str, ready: str) -> None:
    """Ready labels of the boot before are stale: the kernel decides."""
    world, kmm = kmm_world(loaded="", asked=asked, ready=ready)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert is_released(world)
    assert world.host.loaded["rebellions"] == "2.0"
    assert not [key for patch in world.cluster.patches for key in patch.labels if key in LABELS]
    assert "load" in kmm.log


def test_a_label_that_stays_stale_is_not_believed() -> None:
    world, kmm = kmm_world(loaded="", asked="2.0", ready="2.0")
    world.cluster.operator = None
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "asked: 2.0, ready: 2.0), and the kernel has no driver loaded" in outcome.what
    assert "The label is stale" in outcome.remedy
    assert kmm.log == []


def test_a_version_that_is_shown_over_the_old_driver_is_not_believed() -> None:
    world, kmm = kmm_world()
    kmm.lies = True
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "the kernel has still the old driver 1.0" in outcome.what
    assert world.host.loaded["rebellions"] == "1.0"


@pytest.mark.parametrize(("has_users", "code"), [(True, ExitCode.DRIVER_BUSY), (False, ExitCode.MODULE_FAILED)])
def test_an_unload_that_hangs_holds_the_node_and_names_the_worker(
    has_users: bool, code: ExitCode
) -> None:  # a parameter of the table
    world, kmm = kmm_world()
    kmm.hangs = True
    if has_users:
        world.killer.at("load id", lambda: world.host.stuck_users.update(rebellions=1))
    outcome = run(world)
    assert outcome.exit_code is code, outcome
    assert "ready: no version), and the kernel has still the old driver 1.0" in outcome.what
    assert "the node stays paused, because KMM is still changing the driver" in outcome.what
    assert "kube-npu/kmm-worker-node-1-npu" in outcome.remedy
    assert is_held(world)
    assert [text for text in world.reporter.infos if "KMM has not shown version 2.0" in text]
    kmm.hangs = False
    world.host.stuck_users.clear()
    kmm.react()
    world.next_process()
    assert run(world).exit_code is ExitCode.DONE
    assert is_released(world)


def test_told_to_end_while_kmm_works_the_run_holds_the_node() -> None:
    world, kmm = kmm_world()
    kmm.hangs = True
    world.clock.after(SAID_EVERY_S * 3, world.clock.ask_to_end)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.STANDING_DOWN
    assert is_held(world)


def test_a_failure_before_kmm_is_asked_gives_everything_back() -> None:
    world, kmm = kmm_world()
    world.host.stuck_users = {"rebellions": 1}
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert world.state().labels == {**LABELS, ASKED: "1.0", READY: "1.0"}
    assert not is_held(world)
    assert kmm.log == []


def points() -> list[tuple[int, bool]]:
    world, _ = kmm_world()
    run(world)
    return [(effect, after) for effect in range(len(world.killer.effects)) for after in (False, True)]


@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize(("effect", "after"), points())
def test_a_run_killed_anywhere_and_run_again_ends_like_an_undisturbed_one(
    effect: int,
    after: bool,
    reboot: bool,  # as above
) -> None:
    world, kmm = kmm_world()
    world.killer.kill_at(effect, after=after)
    assert world.run() is None
    if reboot:
        world.reboot()
        kmm.react()
    world.next_process()
    assert run(world).exit_code is ExitCode.DONE
    assert is_released(world)
    assert world.host.loaded["rebellions"] == "2.0"
    assert kmm.wrong == []


def test_an_administrators_cordon_is_kept_and_said() -> None:
    world, _ = kmm_world()
    world.cluster.operator = None
    world.cluster.edit(cordon=True)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "uncordon it" in outcome.remedy
    assert world.state().unschedulable
    assert [text for text in world.reporter.warnings if "is cordoned: KMM unloads" in text]


def test_a_driver_that_must_never_be_unloaded_is_not_left_to_kmm() -> None:
    world, kmm = kmm_world()
    world.profile = replace(PROFILE, strategy=Strategy.REBOOT)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.USAGE
    assert "KMM unloads the old driver as soon as it is asked" in outcome.what
    assert ASKED not in [key for patch in world.cluster.patches for key in patch.labels]
    assert kmm.log == []


def test_what_a_killed_run_has_asked_for_is_verified_by_the_next() -> None:
    """KMM shows the version, but the old driver is still in the kernel: the journal tells which load that was."""
    world, kmm = kmm_world()
    kmm.lies = True
    undisturbed, _ = kmm_world()
    run(undisturbed)
    asking = [number for number, name in enumerate(undisturbed.killer.effects) if name == "patch"][1]
    world.killer.kill_at(asking, after=True)
    assert world.run() is None
    assert ASKED in world.cluster.patches[-1].labels
    world.cluster.edit({READY: "2.0"})
    world.next_process()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "the kernel has still the old driver 1.0" in outcome.what


def test_preflight_shows_who_loads_and_what_is_asked() -> None:
    world, _ = kmm_world()
    now = Situation.of(world.observe(), world.profile, world.policy)
    (driver,) = [check for check in checks(now) if check.name == "driver"]
    assert driver.ok is None
    assert "KMM loads version 2.0 of kube-npu/npu (asked: 1.0, ready: 1.0)" in driver.what
    assert WATCH_NODES in rights_to_replace(world.profile, world.policy)
