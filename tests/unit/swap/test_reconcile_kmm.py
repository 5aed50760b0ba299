"""KMM unloads and loads the driver: the run clears the node, asks, waits, verifies by the kernel, and releases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.core.swap.handoffs import KERNEL_LOOK_S
from driver_manager.domain import host_record
from driver_manager.domain.deadline import SAID_EVERY_S
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.journal import Journal, Owner, decode
from driver_manager.domain.kmm import NAME_OF_MODULE, KmmRequest
from driver_manager.domain.node import Node
from driver_manager.domain.observation import EvictionRules, Loader, Mode, Policy, Situation
from driver_manager.domain.pci import PciBus
from driver_manager.domain.profile import Strategy
from driver_manager.domain.swap.building import ready_names
from driver_manager.domain.swap.node_patches import CORDON_MARK, asked_kmm
from driver_manager.domain.swap.planner import plan, wants_users
from driver_manager.domain.swap.preflight import checks, refuse_kmm_at_work, rights_to_replace
from driver_manager.domain.swap.steps import WATCH_NODES, RemoveArtifacts
from tests.support.fakes.builders import PROFILE, ROOT_MOUNT, node, workload
from tests.support.fakes.cluster import Tenant
from tests.support.fakes.executions import run
from tests.support.fakes.kmm import ASKED, MODULE, READY, WORKERS, FakeKmm, kmm_world
from tests.support.fakes.pci import function
from tests.support.fakes.scenarios import LABELS
from tests.support.fakes.world import World

JOURNAL = PROFILE.keys.journal


def by_kmm(version: str) -> dict[str, str]:
    """The Node's labels once KMM has loaded that version."""
    return {**LABELS, **dict.fromkeys((ASKED, WORKERS, READY), version)}


DONE = by_kmm("2.0")


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
    assert (kmm.log, kmm.wrong) == (["withdraw", "unload", "hide", "begin", "load", "show"], [])
    assert world.cluster.evicted == ["tenant/job"]
    assert not any(patch.unschedulable for patch in world.cluster.patches), "KMM unloads at once on a cordoned node"
    assert world.host.mounts == [ROOT_MOUNT], "the driver's root is KMM's"
    ours = [name for name in world.killer.effects if name.split()[0] in ("load", "unload", "reload", "unmount")]
    assert ours == []


def test_what_kmm_is_asked_for_is_on_the_host_before_it_is_asked() -> None:
    world, _ = kmm_world()
    patches = [at for at, effect in enumerate(first_effects()) if effect == "patch"]
    asked = next(at for at in patches if first_effects()[at - 1].startswith("write ") and at != patches[0])
    world.killer.kill_at(asked, after=False)
    assert world.run() is None
    (text,) = (text for path, text in world.host.files.items() if "driver-manager.run-" in path)
    assert host_record.decode(text).kmm == KmmRequest(MODULE, "boot-1", "1:1", "1.0")
    assert ASKED not in world.state().labels or world.state().labels[ASKED] == "1.0"


def first_effects() -> list[str]:
    world, _ = kmm_world()
    run(world)
    return world.killer.effects


def test_the_version_is_asked_in_one_patch_with_the_journal_after_the_operands_left() -> None:
    world, _ = kmm_world()
    run(world)
    (asking,) = [patch for patch in world.cluster.patches if ASKED in patch.labels]
    assert (asking.labels, asking.unschedulable) == ({ASKED: "2.0"}, None)
    assert decode(asking.annotations[JOURNAL] or "").claims.kmm == KmmRequest(MODULE, "boot-1", "1:1", "1.0")


def test_a_version_that_is_loaded_already_disturbs_nobody() -> None:
    world, kmm = kmm_world(loaded="2.0", asked="2.0", ready="2.0")
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE
    assert "nothing to do" in outcome.what
    assert (world.cluster.patches, kmm.log) == ([], [])


@pytest.mark.parametrize(("asked", "ready"), [("", ""), ("1.0", ""), ("2.0", ""), ("2.0", "2.0")])
def test_a_first_driver_is_loaded_with_everybody_in_place(asked: str, ready: str) -> None:
    """Ready labels of the boot before are stale: the kernel decides."""
    world, kmm = kmm_world(loaded="", asked=asked, ready=ready)
    world.reboot()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert is_released(world)
    assert world.host.loaded["rebellions"] == "2.0"
    assert not [key for patch in world.cluster.patches for key in patch.labels if key in LABELS]
    assert "load" in kmm.log


def test_operands_leave_where_kmm_may_load_the_old_driver_again_after_a_boot() -> None:
    world, kmm = kmm_world(loaded="")
    world.reboot()
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=7.0))
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert is_released(world)
    assert (world.host.loaded["rebellions"], kmm.wrong) == ("2.0", [])
    assert [key for patch in world.cluster.patches for key in patch.labels if key in LABELS]


def test_a_driver_that_comes_right_before_kmm_is_asked_is_not_unloaded_under_its_users() -> None:
    """The plan saw no driver, so nobody has left."""
    world, kmm = kmm_world(loaded="", asked="", ready="")
    load = {"rebellions_core": "1.0", "rebellions": "1.0"}
    world.killer.at("patch", lambda: world.host.loaded.update(load))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "a driver was loaded while this run was about to ask KMM" in outcome.what
    assert (is_held(world), kmm.log, world.state().labels) == (False, [], LABELS)


def test_a_label_that_stays_stale_is_not_believed() -> None:
    world, kmm = kmm_world(loaded="", asked="2.0", ready="2.0")
    world.cluster.operator = None
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "asked: 2.0, workers: 2.0, ready: 2.0), and the kernel has no driver loaded" in outcome.what
    assert "The label is stale" in outcome.remedy
    assert kmm.log == []


def test_a_version_that_is_shown_over_the_old_driver_is_believed_by_no_run() -> None:
    """The node is kept with what is known of the old load until KMM really loads."""
    world, kmm = kmm_world()
    kmm.lies = True
    for _ in range(2):
        outcome = run(world)
        assert outcome.exit_code is ExitCode.MODULE_FAILED
        assert "the kernel has still the old driver 1.0" in outcome.what
        assert "because KMM shows version 2.0, but the old driver is still loaded" in outcome.what
        assert "remove kmm.node.kubernetes.io/version-module.kube-npu.npu" in outcome.remedy
        assert world.host.loaded["rebellions"] == "1.0"
        assert is_held(world)
        world.next_process()
    kmm.lies = False
    world.cluster.edit({ASKED: None})
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert is_released(world)
    assert world.host.loaded["rebellions"] == "2.0"


def test_a_label_that_is_removed_for_being_stale_has_an_effect_whenever_the_next_run_comes() -> None:
    """The driver was removed by hand. KMM takes its time to withdraw its label, and the run waits for that."""
    world, kmm = kmm_world(loaded="", asked="2.0", ready="2.0")
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    kmm.work_s = 20.0
    world.cluster.edit({ASKED: None})
    world.next_process()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert is_released(world)
    assert world.host.loaded["rebellions"] == "2.0"


def test_a_request_for_another_version_is_withdrawn_and_nobody_leaves() -> None:
    world, kmm = kmm_world(loaded="2.0", asked="3.0", ready="2.0")
    world.cluster.operator = None  # it has not begun
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=7.0))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert "is asked for 3.0" in outcome.what
    assert is_released(world)
    assert not [key for patch in world.cluster.patches for key in patch.labels if key in LABELS]
    assert (world.cluster.evicted, kmm.log) == ([], [])


def test_a_request_that_kmm_begins_with_after_all_is_waited_for() -> None:
    """It had seen the other version before the label was set back: it unloads, and loads the wanted one again."""
    world, kmm = kmm_world(loaded="2.0", asked="3.0", ready="2.0")
    world.cluster.operator = None
    world.killer.at("patch", lambda: world.clock.after(KERNEL_LOOK_S / 2, lambda: begins(world, kmm)))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert is_released(world)
    assert kmm.log == ["unload", "hide", "begin", "load", "show"]
    assert kmm.wrong == ["it is in use"], "what had begun cannot be stopped, but the node was not given back meanwhile"


def begins(world: World, kmm: FakeKmm) -> None:
    world.cluster.operator = lambda _: kmm.react()
    world.cluster.edit({WORKERS: None})


@pytest.mark.parametrize("asked", ["3.0", ""])
def test_a_node_is_cleared_where_kmm_has_begun_to_unload_the_wanted_version(asked: str) -> None:
    world, kmm = kmm_world(loaded="2.0", asked="2.0", ready="2.0")
    kmm.hangs = True
    world.cluster.edit({ASKED: asked or None})
    kmm.settle(10.0)
    world.clock.after(60.0, kmm.goes_on)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert is_released(world)
    assert kmm.wrong == []
    assert world.host.loaded["rebellions"] == "2.0"


def test_going_back_waits_for_kmm_and_nobody_comes_before_it_has_unloaded() -> None:
    world, kmm = kmm_world()
    kmm.hangs = True
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    world.policy, kmm.offers = replace(world.policy, kmm=replace(MODULE, version="1.0")), "1.0"
    world.next_process()
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    assert is_held(world)
    kmm.goes_on()
    kmm.settle(60.0)
    world.next_process()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert world.state().labels == by_kmm("1.0")
    assert (is_held(world), world.host.loaded["rebellions"], kmm.wrong) == (False, "1.0", [])


def test_a_request_that_kmm_has_not_begun_with_is_taken_back_after_a_failure() -> None:
    """The old driver never left, and is the wanted one again: no other load of it is waited for."""
    world, kmm = kmm_world()
    world.cluster.operator = None
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    world.policy = replace(world.policy, kmm=replace(MODULE, version="1.0"))
    world.next_process()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert world.state().labels == by_kmm("1.0")
    assert (is_held(world), world.host.loaded["rebellions"], kmm.log) == (False, "1.0", [])


@pytest.mark.parametrize("asked", ["", "2.0"])
def test_nobody_leaves_for_a_driver_that_kmm_would_not_unload(asked: str) -> None:
    """Somebody else has loaded it: KMM's own load would do nothing over it, and end well."""
    world, _ = kmm_world(asked=asked, ready="")
    world.cluster.operator = None
    before = world.state().labels
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PREFLIGHT_FAILED
    assert "it has not loaded that driver, and would not unload it" in outcome.what
    assert world.state().labels == before
    assert (is_held(world), world.host.loaded["rebellions"]) == (False, "1.0")


def test_nobody_leaves_where_kmm_loads_by_itself_after_a_boot() -> None:
    """The run comes when the driver is loaded already, and KMM has not shown that yet."""
    world, kmm = kmm_world(loaded="", asked="2.0", ready="2.0")
    world.reboot()
    world.host.loaded = {"rebellions_core": "2.0", "rebellions": "2.0"}
    world.cluster.edit({READY: None})
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert is_released(world)
    assert not [key for patch in world.cluster.patches for key in patch.labels if key in LABELS]
    assert kmm.wrong == []


@pytest.mark.parametrize("shown", [False, True])
def test_the_wanted_driver_may_come_while_the_run_is_about_to_ask(
    monkeypatch: pytest.MonkeyPatch, *, shown: bool
) -> None:
    """KMM is asked already, by a label that outlived the boot."""
    world, kmm = kmm_world(loaded="", asked="2.0", ready="2.0")
    world.reboot()
    rewrite = world.cluster.patch_node

    def loads(*arguments: Any, **options: Any) -> Node:
        if not world.host.loaded:
            kmm.goes_on()
            world.host.loaded = {"rebellions_core": "2.0", "rebellions": "2.0"}
            world.cluster.edit({READY: "2.0" if shown else None})
        return rewrite(*arguments, **options)

    monkeypatch.setattr(world.cluster, "patch_node", loads)
    before_s = world.clock.now
    assert run(world).exit_code is ExitCode.DONE
    assert is_released(world)
    assert world.clock.now - before_s < KERNEL_LOOK_S


@pytest.mark.parametrize("loader", [Loader.MANAGER, Loader.CONTAINER, Loader.NONE])
def test_another_loader_waits_until_kmm_is_done(loader: Loader) -> None:
    world, kmm = kmm_world()
    kmm.hangs = True
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    world.policy = Policy(loader=loader)
    world.next_process()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.USAGE
    assert "KMM was asked for version 2.0 of kube-npu/npu and may change modules at any moment" in outcome.what
    assert is_held(world)
    world.cluster.edit({ASKED: None})
    kmm.goes_on()
    kmm.settle(60.0)
    world.next_process()
    assert "may change modules" not in run(world).what
    assert kmm.wrong == []


def test_a_node_is_not_restored_by_hand_while_kmm_is_at_work() -> None:
    world, kmm = kmm_world()
    kmm.hangs = True
    run(world)
    obs = world.observe()
    with pytest.raises(ConfigError, match="may change modules at any moment"):
        refuse_kmm_at_work(obs.journal, obs.node)
    kmm.goes_on()
    kmm.settle(60.0)
    obs = world.observe()
    refuse_kmm_at_work(obs.journal, obs.node)


def test_a_driver_that_never_left_keeps_no_node() -> None:
    """The run before removed what another installer had recorded of it, and failed; then the label was set back."""
    world, kmm = kmm_world()
    world.cluster.operator = None
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    world.cluster.edit({ASKED: "1.0"})
    world.host.stuck_users = {"rebellions": 1}
    world.next_process()
    assert run(world).exit_code is ExitCode.DRIVER_BUSY
    assert (is_held(world), kmm.log) == (False, [])


def test_a_load_of_an_earlier_boot_is_not_in_the_way() -> None:
    before = KmmRequest(MODULE, "boot-1", "1:1", "1.0")
    assert before.is_in_the_way("boot-1", "1:1", "2.0")
    assert not before.is_in_the_way("boot-2", "1:1", "2.0")
    assert not before.is_in_the_way("boot-1", "1:2", "2.0")
    assert not before.is_in_the_way("boot-1", "1:1", "1.0")
    assert not replace(before, load="").is_in_the_way("boot-1", "", "2.0")


def test_what_was_first_known_of_a_load_stays_known() -> None:
    """Once KMM has begun, it shows no version any more."""
    before = Journal(Owner("ns/a", "u"), "boot-1")
    first, _ = asked_kmm(node({ASKED: "1.0", READY: "1.0"}), before, PROFILE, MODULE, ("boot-1", "7"))
    assert first.kmm == KmmRequest(MODULE, "boot-1", "7", "1.0")
    begun, third = node({ASKED: "2.0"}), replace(MODULE, version="3.0")
    again, change = asked_kmm(begun, first, PROFILE, third, ("boot-1", "7"))
    assert (again.kmm, change.labels) == (KmmRequest(third, "boot-1", "7", "1.0"), {ASKED: "3.0"})
    assert asked_kmm(begun, first, PROFILE, third, ("boot-2", "7"))[0].kmm == KmmRequest(third, "boot-2", "7", "")
    assert asked_kmm(begun, before, PROFILE, third, ("boot-1", ""))[0].kmm == KmmRequest(third, "boot-1", "", "")
    just_loaded = asked_kmm(begun, before, PROFILE, MODULE, ("boot-1", "7"))[0].kmm
    assert just_loaded == KmmRequest(MODULE, "boot-1", "", ""), "asked already, it may be what KMM has loaded"
    unloading = asked_kmm(node({ASKED: "2.0", READY: "2.0"}), before, PROFILE, MODULE, ("boot-1", "7"))[0].kmm
    assert unloading == KmmRequest(MODULE, "boot-1", "7", "2.0"), "the next run clears the node as well"


def test_a_cordon_of_an_earlier_run_ends_when_kmm_is_asked() -> None:
    """KMM loads nothing on a cordoned node; that it unloads there at once is no loss: a run had cleared the node."""
    world, kmm = kmm_world()
    world.cluster.edit(cordon=True, annotations={PROFILE.keys.cordon: CORDON_MARK})
    kmm.tolerates = True
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert is_released(world)
    (asking,) = [patch for patch in world.cluster.patches if ASKED in patch.labels]
    assert (asking.unschedulable, asking.annotations[PROFILE.keys.cordon]) == (False, None)
    assert world.host.loaded["rebellions"] == "2.0"


def test_a_cordon_that_an_administrator_has_set_again_is_kept() -> None:
    world, kmm = kmm_world()
    kmm.tolerates = True
    policy, world.policy = world.policy, Policy(loader=Loader.MANAGER)
    world.driver_root, world.host.offers = "/opt/new", {"/opt/new": "2.0"}
    world.cluster.operator = None
    world.killer.kill_at(1, after=True)
    assert world.run() is None
    assert world.state().unschedulable
    world.cluster.edit(cordon=False)
    world.cluster.edit(cordon=True)
    world.policy, world.cluster.operator = policy, lambda _: kmm.react()
    world.next_process()
    assert run(world).exit_code is ExitCode.DONE
    assert world.state().unschedulable


def test_where_an_operator_cordons_kmm_is_not_asked() -> None:
    world, kmm = kmm_world()
    world.cluster.edit(annotations={PROFILE.keys.upgrade_enabled: "true"})
    outcome = run(world)
    assert outcome.exit_code is ExitCode.USAGE
    assert "cordons it for them, and on a cordoned node KMM unloads the driver at once" in outcome.what
    assert world.state().labels == by_kmm("1.0")
    assert (is_held(world), kmm.log) == (False, [])


@pytest.mark.parametrize("cordoned", [False, True])
def test_nobody_is_evicted_who_would_come_back_at_once(*, cordoned: bool) -> None:
    world, _ = kmm_world()
    world.cluster.edit(dict.fromkeys(LABELS), cordon=cordoned)
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True))
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=7.0))
    world.cluster.operator = None
    outcome = run(world)
    if cordoned:
        assert world.cluster.evicted == ["tenant/job"]
        return
    assert outcome.exit_code is ExitCode.PREFLIGHT_FAILED, outcome
    assert "tenant/job would be evicted, and nothing keeps such pods from coming back" in outcome.what
    assert (world.cluster.evicted, is_held(world)) == ([], False)
    assert world.state().labels == dict.fromkeys((ASKED, WORKERS, READY), "1.0")


def test_nobody_is_evicted_to_whom_kmm_itself_offers_devices() -> None:
    world, _ = kmm_world()
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True))
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=7.0))
    labels = {NAME_OF_MODULE: MODULE.name}
    plugin = workload("plugin", namespace=MODULE.namespace, owner_kind="DaemonSet", resources=(), labels=labels)
    world.cluster.add_tenant(plugin, Tenant())
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PREFLIGHT_FAILED, outcome
    assert "device plugin kube-npu/plugin is KMM's" in outcome.what
    assert (world.cluster.evicted, is_held(world)) == ([], False)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_host_service_stays_stopped_while_kmm_may_unload(*, hangs: bool) -> None:
    world, kmm = kmm_world()
    world.policy = replace(world.policy, stop_host_services=True)
    world.host.services = {"rbln_daemon.service": True}
    kmm.hangs = hangs
    assert run(world).exit_code is (ExitCode.MODULE_FAILED if hangs else ExitCode.DONE)
    assert world.host.services == {"rbln_daemon.service": not hangs}
    kmm.goes_on()
    world.next_process()
    assert run(world).exit_code is ExitCode.DONE
    assert world.host.services == {"rbln_daemon.service": True}


@pytest.mark.parametrize("version", ["", "1.0"])
def test_a_pod_that_wants_the_driver_away_waits_until_kmm_has_none(version: str) -> None:
    world, _ = kmm_world(loaded=version, asked=version, ready=version)
    world.gate = f"{PROFILE.deploy.prefix}vfio-manager"
    world.move_to_new_pod()
    assert run(world).exit_code is (ExitCode.USAGE if version else ExitCode.DONE)


def test_there_is_nothing_to_clear_for_a_driver_pod() -> None:
    world, kmm = kmm_world()
    world.policy = replace(world.policy, clear_for="r2")
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert "a run asks KMM to unload the driver, and clears the node before that" in outcome.what
    assert (world.cluster.patches, kmm.log) == ([], [])


def test_kmm_would_load_what_was_unloaded_for_virtual_machines() -> None:
    world, _ = kmm_world()
    now = Situation.of(world.observe(), world.profile, Policy(mode=Mode.VFIO, loader=Loader.KMM))
    bus = PciBus((function(),))
    with pytest.raises(ConfigError, match="KMM loads the driver again"):
        plan(replace(now, host=replace(now.host, bus=bus)))


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
    assert "workers: no version, ready: 1.0), and the kernel has still the old driver 1.0" in outcome.what
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
    assert world.state().labels == by_kmm("1.0")
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
    kmm.settle(60.0)
    assert MODULE.is_ready(world.state().labels)
    world.next_process()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.MODULE_FAILED
    assert "the kernel has still the old driver 1.0" in outcome.what


def test_preflight_shows_who_loads_and_what_is_asked() -> None:
    world, _ = kmm_world()
    now = Situation.of(world.observe(), world.profile, world.policy)
    (driver,) = [check for check in checks(now) if check.name == "driver"]
    assert driver.ok is None
    assert "KMM loads version 2.0 of kube-npu/npu (asked: 1.0, workers: 1.0, ready: 1.0)" in driver.what
    assert WATCH_NODES in rights_to_replace(world.profile, world.policy)


def test_both_names_of_the_ready_marker_go_as_for_any_other_driver() -> None:
    """Health-watch may put it aside after our look."""
    world, _ = kmm_world()
    world.host.files[PROFILE.paths.ready_marker] = ""
    now = Situation.of(world.observe(), world.profile, world.policy)
    (removing,) = [step for step in plan(now).steps if isinstance(step, RemoveArtifacts)]
    assert set(removing.paths) == {*ready_names(PROFILE), PROFILE.paths.state_file}


def test_a_pod_that_comes_while_others_leave_keeps_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device plugin is no operand here, and nothing else keeps pods away. It has not opened its device yet."""
    world, kmm = kmm_world()
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True))
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=3.0))
    look = world.cluster.node

    def look_late() -> Node:
        if world.cluster.evicted and "job" not in world.cluster.listed and "again" not in world.cluster.listed:
            world.cluster.add_tenant(workload("again"), Tenant(uses_device=False))
        return look()

    monkeypatch.setattr(world.cluster, "node", look_late)
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PODS_REMAIN, outcome
    assert "1 pod(s) that use the device came after the node was cleared: tenant/again" in outcome.what
    assert (is_held(world), kmm.log, world.state().labels) == (False, [], by_kmm("1.0"))


def test_another_module_waits_until_kmm_is_done() -> None:
    world, kmm = kmm_world()
    kmm.hangs = True
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    world.policy = replace(world.policy, kmm=replace(MODULE, name="other"))
    world.next_process()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.USAGE
    assert "KMM_MODULE=kube-npu/npu" in outcome.remedy
    assert is_held(world)


def test_no_device_is_given_away_while_kmm_is_at_work() -> None:
    world, kmm = kmm_world()
    kmm.hangs = True
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    world.next_process()
    now = Situation.of(world.observe(), world.profile, Policy(mode=Mode.VFIO, take_over=True))
    with pytest.raises(ConfigError, match="may change modules at any moment"):
        plan(replace(now, host=replace(now.host, bus=PciBus((function(),)))))


def test_a_node_is_cleared_for_another_version_than_the_first_that_was_asked() -> None:
    world, kmm = kmm_world(loaded="", asked="", ready="")
    patches = [at for at, effect in enumerate(first_load()) if effect == "patch"]
    world.killer.kill_at(patches[1], after=True)
    assert world.run() is None
    kmm.settle(60.0)
    assert MODULE.is_ready(world.state().labels)
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=7.0))
    world.cluster.operator = None
    world.cluster.edit({ASKED: "3.0"})
    world.cluster.operator = lambda _: kmm.react()
    kmm.offers, kmm.hangs = "3.0", True
    world.clock.after(60.0, kmm.goes_on)
    world.policy = replace(world.policy, kmm=replace(MODULE, version="3.0"), eviction=EvictionRules(is_enabled=True))
    world.next_process()
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert (world.cluster.evicted, kmm.wrong, world.host.loaded["rebellions"]) == (["tenant/job"], [], "3.0")


def first_load() -> list[str]:
    """The effects of a run that lets KMM load a first driver."""
    world, _ = kmm_world(loaded="", asked="", ready="")
    run(world)
    return world.killer.effects


def test_nobody_is_evicted_who_would_come_back_when_a_runs_cordon_ends() -> None:
    world, kmm = kmm_world()
    kmm.tolerates = True
    world.cluster.edit(dict.fromkeys(LABELS), cordon=True, annotations={PROFILE.keys.cordon: CORDON_MARK})
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True))
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=7.0))
    outcome = run(world)
    assert outcome.exit_code is ExitCode.PREFLIGHT_FAILED, outcome
    assert (world.cluster.evicted, kmm.log) == ([], [])


def test_claims_and_holders_matter_where_kmm_may_load_the_old_driver_again() -> None:
    world, _ = kmm_world(loaded="")
    world.reboot()
    assert wants_users(Situation.of(world.observe(), world.profile, world.policy))
    assert not wants_users(Situation.of(world.observe(), world.profile, replace(world.policy, clear_for="r2")))
