"""How each step is done, and what is left when one fails: whole runs over the fakes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.core.swap.driver import DEVICE_NODES_S
from driver_manager.domain.errors import ApiRefused, ApiUnavailable, ConfigError, ExitCode, ModuleFailed
from driver_manager.domain.host import Holder, Marker, Module, encode_marker
from driver_manager.domain.journal import encode
from driver_manager.domain.observation import Loader, Policy, Situation
from driver_manager.domain.profile import Profile, joined, kept, options
from driver_manager.domain.swap.preflight import checks
from tests.support.fakes import builders
from tests.support.fakes.builders import EXPORTER, PAUSED, PLUGIN, PROFILE, key, pod
from tests.support.fakes.scenarios import LABELS, NEW_ROOT, OLD_ROOT, SCENARIOS, TAKING, by_reboot, made, undisturbed
from tests.support.fakes.shown import Shown
from tests.support.fakes.world import World

PATHS, JOURNAL = PROFILE.paths, PROFILE.keys.journal
READY, WITHDRAWN = PATHS.ready_marker, PATHS.ready_withdrawn
SERVICE = "rbln_daemon.service"
OWN_DRIVER = "/lib/modules/x/rebellions.ko"
RMMOD = ModuleFailed("rmmod: no", "Look at dmesg.")
NEW = {"rebellions_core": "2.0", "rebellions": "2.0"}
NEW_ONLY: dict[str, Any] = {"offers": {NEW_ROOT: "2.0"}}
BACK = "the old driver 1.0 is loaded again…the node was released"
NO_WAY = "there is no old driver to go back to"


def telling(*, tells_idle: bool) -> Profile:
    """The profile, where the probe tells what is at work, or does not."""
    assert PROFILE.probe is not None
    return replace(PROFILE, probe=replace(PROFILE.probe, tells_idle=tells_idle))


def busy(world: World) -> None:
    world.host.stuck_users["rebellions"] = 1


def bring_back(name: str) -> Callable[[World], None]:
    return lambda world: world.host.loaded.update({name: "1.0"})


def edited(labels: Mapping[str, str]) -> Callable[[World], None]:
    return lambda world: world.cluster.edit(labels)


def end(world: World) -> None:
    world.clock.ask_to_end()


@dataclass(frozen=True)
class Failure:
    """A run of scenario `name` that ends with `code` and prints `message`, of which parts are left out at `…`.

    `given` is changed before, and `at` names what happens at a call, or after one that ends with `>`. The node is
    released unless it `is_held`. What was loaded is loaded again, or `loaded` is.
    """

    name: str
    message: str
    code: ExitCode
    given: Mapping[str, Any] = field(default_factory=dict)
    at: Mapping[str, Callable[[World], object] | Exception] = field(default_factory=dict)
    is_held: bool = False
    loaded: Mapping[str, str] | None = None

    def world(self) -> World:
        world = made(self.name, **self.given)
        for call, action in self.at.items():
            world.on(call.rstrip(">"), action, after=call.endswith(">"))
        return world


CONTAINER, MANAGER, PEER = "replace_by_container", "replace_by_manager", "replace_with_a_peer"
SERVICES, MORE = "replace_with_host_services", "replace_with_more_of_the_profile"
FAILED, BUSY = ExitCode.MODULE_FAILED, ExitCode.DRIVER_BUSY
STUCK = "rbln-system/stuck: terminating, held by finalizer vendor/hold…the node was released"
HOLDER = (Holder(4711, "python3", "/dev/rbln0", "open", "c0ffee", pod_uid="plugin-101"),)
UNMOUNT = {f"unmount {PATHS.driver_root}": ModuleFailed("cannot unmount", "fuser")}
RECREATED = {"load rebellions": lambda world: world.cluster.recreate_node()}
HOLD = pod("stuck", PLUGIN, deleting=True, finalizers=("vendor/hold",))
NO_NODE = {"device nodes>": lambda world: world.given(has_device_nodes=True)}
BOTH_BAD: dict[str, Any] = {"broken": {"1.0", "2.0"}}
FROM_OLD: dict[str, Any] = {"driver_root": OLD_ROOT}
BACK_FAILED = "from /opt/new…going back failed too: module rebellions cannot be loaded from /opt/old"
PEER_BACK, ROOT_BACK = (f"module {name} came back after it was unloaded" for name in ("rebellions_peer", "rebellions"))
PEER_AGAIN, ROOT_AGAIN = bring_back("rebellions_peer"), bring_back("rebellions")
FAILURES = {
    "pods that do not leave": Failure(
        CONTAINER, STUCK, ExitCode.PODS_REMAIN, at={"turn": lambda world: world.cluster.add_pod(HOLD)}
    ),
    "a busy device": Failure(CONTAINER, "rebellions (2 user(s))…after 60 s", BUSY, {"stuck_users": {"rebellions": 2}}),
    "a holder, by its pod": Failure(
        CONTAINER,
        "python3 (pid 4711) in pod …has /dev/rbln0 open",
        BUSY,
        {"stuck_users": {"rebellions": 1}, "known_holders": HOLDER},
    ),
    "busy after a part was unloaded": Failure(CONTAINER, "", BUSY, FROM_OLD, {"unload rebellions_peer>": busy}),
    "an unload": Failure(CONTAINER, "rmmod: no", FAILED, FROM_OLD, {"unload rebellions": RMMOD}),
    "a module that comes back": Failure(PEER, PEER_BACK, FAILED, at={"unload rebellions_peer>": PEER_AGAIN}),
    "a root that comes back": Failure(PEER, ROOT_BACK, FAILED, at={"unload rebellions>": ROOT_AGAIN}),
    "sigterm between two unloads": Failure(PEER, "", ExitCode.STANDING_DOWN, at={"unload rebellions_peer>": end}),
    "an unmount": Failure(CONTAINER, "stays paused", FAILED, at=UNMOUNT, is_held=True, loaded={}),
    "a sick driver": Failure(MANAGER, f"probe reports…{BACK}", FAILED, {"sick": {"2.0"}}),
    "no device node": Failure(MANAGER, f"no device node appeared…{BACK}", FAILED, {"has_device_nodes": False}, NO_NODE),
    "a rollback that is stopped": Failure(PEER, BACK, FAILED, {"sick": {"2.0"}}, {"probe": end}),
    "no way back": Failure(MANAGER, NO_WAY, FAILED, {"broken": {"2.0"}, **NEW_ONLY}, is_held=True, loaded={}),
    "an old driver that fails too": Failure(MANAGER, BACK_FAILED, FAILED, BOTH_BAD, is_held=True, loaded={}),
    "sick, no way back": Failure(MANAGER, NO_WAY, FAILED, {"sick": {"2.0"}, **NEW_ONLY}, is_held=True, loaded=NEW),
    "a Node created again": Failure(MANAGER, "", FAILED, BOTH_BAD, RECREATED, is_held=True, loaded={}),
    "a service without consent": Failure(SERVICES, "", BUSY, {"stop_host_services": False}),
    "a service that does not stop": Failure(SERVICES, "cannot stop host", FAILED, {"broken_services": {SERVICE}}),
    "a service that ends with the new driver": Failure(
        SERVICES, f"ended after its start…{BACK}", FAILED, {"dying_services": {SERVICE: {"2.0"}}}
    ),
    "work that does not end": Failure(
        MANAGER,
        "still at work after…2 context(s)",
        BUSY,
        {"work": ("2 context(s)",), "profile": telling(tells_idle=True)},
    ),
    "a conflicting module in use": Failure(MORE, "", BUSY, {"foreign_users": 1}),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=list(FAILURES))
def test_a_failure_is_named_and_leaves_the_old_driver_or_a_held_node(failure: Failure) -> None:
    world = failure.world()
    before, services = dict(world.host.loaded), dict(world.host.services)
    outcome = world.ended(failure.code, *failure.message.split("…"))
    assert (world.is_held, world.is_released) == (failure.is_held, not failure.is_held)
    assert ("stays paused" in outcome.what) is failure.is_held
    assert world.host.loaded == (before if failure.loaded is None else failure.loaded)
    if failure.code is BUSY and not failure.at:
        assert world.host.unload_attempts == []
        assert world.host.files[PATHS.state_file] == f"{builders.OLD_DIGEST}\n"
    assert (world.host.services, world.host.foreign) == (services, made(failure.name).host.foreign)


def test_a_module_that_comes_back_is_unloaded_once_and_a_new_holder_before_what_it_holds() -> None:
    world = made(PEER).on("unload rebellions_peer", *[PEER_AGAIN] * 50, after=True)
    world.ended(FAILED)
    assert world.host.unload_attempts == ["rebellions_peer"]
    world = made(CONTAINER).on("unload rebellions_peer", lambda one: one.host.loaded.update(late="1"), after=True)
    world.host.needs["late"] = ("rebellions",)
    world.ended()
    assert world.host.unload_attempts == ["rebellions_peer", "late", "rebellions", "rebellions_core"]


@pytest.mark.parametrize(("stops", "option"), [(False, "; host services: STOP_HOST_SERVICES=true"), (True, "")])
def test_after_the_wait_the_option_to_stop_services_is_named_where_it_is_off(*, stops: bool, option: str) -> None:
    world = made(CONTAINER, stuck_users={"rebellions": 2}, stop_host_services=stops)
    world.ended(BUSY, "still in use", remedy=f"(`driver-manager holders` lists it{option})")
    assert world.clock.now == pytest.approx(1_000 + 8 + 60, abs=0.5)


def test_a_device_is_waited_for_until_it_is_free_and_its_holders_are_logged_every_half_minute() -> None:
    in_use = "device in use: rebellions (1 user(s))"
    world = made(CONTAINER, stuck_users={"rebellions": 1})
    world.clock.after(30.0, world.host.stuck_users.clear)
    world.ended()
    assert world.clock.now == pytest.approx(1_030, abs=0.3)
    lines = [text for text in world.reporter.infos if "device in use" in text]
    assert [text.partition(": unread")[0] for text in lines] == [in_use]
    world = made(PEER, device_free_timeout_s=100.0, stuck_users={"rebellions": 1})
    world.clock.after(80.0, world.host.stuck_users.clear)
    world.ended()
    lines = [line for line in world.reporter.infos if line.startswith("still waiting")]
    assert [line.partition(" more: ")[2][: len(in_use)] for line in lines] == [in_use] * 2


@pytest.mark.parametrize("offers", [{NEW_ROOT: "2.0", OLD_ROOT: "1.0"}, {}])
def test_a_partial_unload_is_undone_or_reported_to_last(offers: dict[str, str]) -> None:
    message = "rebellions_peer loaded again" if offers else "rebellions_peer stay unloaded: their root is not known"
    world = made(CONTAINER, driver_root=OLD_ROOT, offers=offers).on("unload rebellions_peer", busy, after=True)
    world.ended(BUSY)
    assert message in (*world.reporter.infos, *world.reporter.warnings)


@pytest.mark.parametrize(("name", "fault"), [(MANAGER, "broken"), (PEER, "sick")])
def test_a_load_that_fails_goes_back_to_the_old_driver_and_says_so(name: str, fault: str) -> None:
    world = made(name, **{fault: {"2.0"}})
    before = dict(world.host.loaded)
    world.ended(FAILED, *BACK.split("…"))
    assert (world.host.loaded, world.host.files[PATHS.state_file]) == (before, f"{builders.OLD_DIGEST}\n")
    assert (json.loads(world.host.files[PATHS.load_record])["root"], world.is_released) == (OLD_ROOT, True)
    world.given(**{fault: set()}).again()
    assert (world.host.loaded, world.is_released) == (dict.fromkeys(before, "2.0"), True)


def test_a_first_install_records_the_digest_after_the_driver_is_verified_and_pauses_nothing_if_it_fails() -> None:
    world = made("first_install_by_manager")
    world.ended()
    order = ("probe", f"write {PATHS.load_record}", f"write {PATHS.state_file}")
    assert world.calls(*order) == list(order)
    assert world.host.files[PATHS.state_file] == f"{builders.NEW_DIGEST}\n"
    record = json.loads(world.host.files[PATHS.load_record])
    assert record == {"schema": 1, "bootId": "boot-1", "root": NEW_ROOT, "version": "2.0"}
    world = made("first_install_by_manager", broken={"2.0"})
    assert "paused" not in world.ended(FAILED).what
    shown = {PROFILE.keys.state, PROFILE.keys.version}
    assert not any(change.labels.keys() - shown or change.unschedulable for change in world.cluster.patches)
    assert (world.host.loaded, world.is_released) == ({}, True)


@pytest.mark.parametrize("peer", ["rebellions_peer", "rblnfs"])
@pytest.mark.parametrize("is_lacking", [False, True])
def test_a_peer_is_loaded_again_from_the_new_root_or_a_warning_names_it(peer: str, is_lacking: bool) -> None:
    lacking = {peer} if is_lacking else set[str]()
    world = made(MANAGER, lacking=lacking)
    world.host.loaded[peer] = "1.0"
    world.host.needs[peer] = ("rebellions",)
    world.ended()
    assert world.host.loaded == dict.fromkeys({*NEW, peer} - lacking, "2.0")
    is_named = [f"{peer} was loaded before and is not now" in text for text in world.reporter.warnings]
    assert is_named == [True] * is_lacking


def test_what_the_root_brought_back_by_itself_is_not_loaded_twice() -> None:
    world = made(PEER).killed("unload rebellions_core")
    world.ended()
    assert [call for call in world.killer.calls if call.startswith("reload")] == ["reload rebellions_peer"]


KEPT = {"rebellions.depth": "9", "rebellions.trace": "Y"}
BEFORE = {**KEPT, "rebellions_core.old": "1"}
CHANGED = "module parameters differ from those of the driver before: "


@pytest.mark.parametrize(
    ("name", "now", "message"),
    [
        (MANAGER, BEFORE, ""),
        (MANAGER, {**BEFORE, "rebellions.new": "5"}, ""),
        (MANAGER, {**BEFORE, "rebellions.depth": "64"}, "rebellions.depth was 9 and is 64."),
        (MANAGER, KEPT, "rebellions_core.old was 1 and is no longer set."),
        (MANAGER, {}, ""),
        ("first_install_by_manager", {}, ""),
        ("first_install_by_manager", BEFORE, ""),
    ],
)
def test_parameters_that_the_new_driver_does_not_have_are_reported(
    name: str, now: dict[str, str], message: str
) -> None:
    world = made(name, tunables={"1.0": BEFORE, "2.0": now})
    world.ended()
    expected = [f"{CHANGED}{message} To keep one, set it in modprobe.d on the host."] if message else []
    assert world.reporter.warnings == expected


@pytest.mark.parametrize("call", ["load rebellions", "reload rebellions_peer", "device nodes", "probe"])
def test_sigterm_while_the_driver_loads_still_records_its_digest(call: str) -> None:
    world = made(PEER).on(call, end)
    world.ended(ExitCode.STANDING_DOWN)
    assert world.host.loaded["rebellions"] == "2.0"
    assert (world.host.files[PATHS.state_file], world.is_released) == (f"{builders.NEW_DIGEST}\n", True)
    assert world.again().what.startswith("nothing to do")


def test_the_whole_run_is_bounded_by_its_deadline_and_device_nodes_get_their_time_though_it_is_near() -> None:
    world = made(CONTAINER, policy=Policy(deadline_s=361.0, pod_termination_timeout_s=300.0))
    world.given(stuck_users={"rebellions": 1}).ended(BUSY)
    assert world.clock.now - 1_000.0 <= 361.0
    world = made(PEER, pod_termination_timeout_s=10.0, device_free_timeout_s=1.0, deadline_s=11.0)
    world.host.stuck_users = {"rebellions": 1}
    world.clock.after(8.9, world.host.stuck_users.clear)
    world.ended()
    assert world.host.awaited_s == [DEVICE_NODES_S]


def test_parameters_that_the_profile_sets_or_keeps_reach_the_new_driver_and_the_old_one_that_comes_back() -> None:
    given = {"rebellions": 'mode=2 depth="7 x"'}
    world = made(MORE)
    world.ended()
    assert (world.host.loaded["rebellions"], world.host.given, world.host.foreign) == ("2.0", given, set())
    world = made(MORE, broken={"2.0"})
    world.ended(FAILED)
    assert (world.host.loaded["rebellions"], world.host.given) == ("1.0", given)
    assert world.host.foreign == {"generic_npu"}, "the way back brings it back too"
    world = made(MORE)
    silent = replace(world.profile.modules, parameters=(), keep_parameters=())
    world.given(profile=replace(world.profile, modules=silent)).ended()
    assert world.host.given == {}


def test_only_values_that_an_option_can_hold_are_kept_and_the_hosts_options_come_last() -> None:
    values = {"m.a": "(null)", "m.b": 'x"y', "m.c": "", "m.d": "\x07", "m.e": "1,2", "n.e": "5"}
    assert kept(values, ("m.*",)) == {"m.e": "1,2"}
    given = options(("m.a=1", "n.b=x"), {"m.c": "two words"})
    assert given == {"m": 'a=1 c="two words"', "n": "b=x"}
    assert joined(given, {"m": "a=9", "o": "z=1"}) == {"m": 'a=1 c="two words" a=9', "n": "b=x", "o": "z=1"}


def test_preflight_says_that_a_conflicting_module_would_go() -> None:
    beside = replace(PROFILE, modules=replace(PROFILE.modules, conflicting_removable=("generic_npu",)))
    facts = builders.host(removable={"generic_npu": Module("generic_npu", "", 0)})
    now = Situation.of(builders.observation(host=facts, own_pod=builders.driver_pod()), beside, Policy())
    (check,) = [one for one in checks(now) if one.name == "conflicts"]
    assert check.ok
    assert "is unloaded for it" in check.what


@pytest.mark.parametrize("broken", [set(), {"2.0"}])
def test_a_driver_that_does_not_load_on_a_fresh_node_brings_it_back(broken: set[str]) -> None:
    world = made(MORE, loaded={}, files={}, broken=broken)
    world.ended(FAILED if broken else ExitCode.DONE)
    back = {"generic_npu"} if broken else set()
    assert (world.host.foreign, world.host.firmware_path) == (back, "/var/lib/firmware")
    assert ("generic_npu loaded again" in world.reporter.infos) is bool(broken)
    world = made(MORE, loaded={}, files={}).killed(3)
    assert world.host.foreign == set()
    world.given(broken=broken).run()
    assert world.host.foreign == back, "also in the run after one that was killed once it had gone"


@pytest.mark.parametrize("tells", [True, False])
def test_a_driver_whose_probe_tells_what_is_at_work_is_not_unloaded_before_that_ends(tells: bool) -> None:
    world = made(MANAGER, profile=telling(tells_idle=tells))
    world.host.work, seen = ("2 context(s)",), list[bool]()

    def end_work() -> None:
        seen.append("rebellions" in world.host.loaded and not world.host.unload_attempts)
        world.host.work = ()

    world.clock.after(30.0, end_work)
    world.ended()
    assert (seen, world.host.loaded["rebellions"]) == ([True] if tells else [], "2.0")


def test_one_reconcile_with_operands_is_five_requests() -> None:
    world = made(CONTAINER)
    world.ended()
    assert world.calls("node", "pods", "patch", "watch", "event") == ["node", "pods", "patch", "watch", "patch"]


def test_a_node_edited_before_the_pause_is_observed_again() -> None:
    world = made(CONTAINER).on("patch", edited({EXPORTER: "false"}))
    world.ended()
    assert (world.killer.calls.count("host"), world.state().labels) == (2, {**LABELS, EXPORTER: "false"})
    world = made(CONTAINER).on("patch", *[edited({"other": "x"})] * 50)
    world.ended(ExitCode.API_UNAVAILABLE, "kept changing")
    assert world.cluster.patches == []


@pytest.mark.parametrize("name", [MANAGER, "first_install_over_a_stale_root"])
def test_a_node_that_was_created_again_from_a_copy_is_given_back(name: str) -> None:
    for call in range(undisturbed(name)[3]):
        world = made(name)

        def recreate(world: World = world) -> None:
            if JOURNAL in world.node.annotations:
                world.cluster.recreate_node()

        world.killer.at_call(call, recreate)
        world.run()
        assert world.is_released, f"created again at call {call}"


def without_operands() -> World:
    world = made(MANAGER, daemon_sets=())
    world.cluster.daemon_sets = ()
    for uid in list(world.cluster.owner_of):
        world.cluster.remove_pod(uid)
    return world


def test_a_pod_that_came_between_list_and_pause_is_waited_for_where_no_other_was_there() -> None:
    world = without_operands()
    world.ended()
    assert world.calls("watch", "pods") == ["pods", "pods"], "the second list is the end of the wait"
    world = without_operands().on("patch", lambda one: one.cluster.add_pod(pod("late", PLUGIN)))
    world.clock.after(20.0, lambda: world.cluster.remove_pod("late"))
    world.ended()
    assert world.killer.calls[: world.killer.calls.index("watch")].count("pods") == 2
    assert world.clock.now >= 1_020.0


def test_a_missing_right_is_found_before_the_first_change() -> None:
    world = made(CONTAINER, missing_rights=frozenset({("patch", "nodes")}), is_shown=False)  # it cannot be written
    world.ended(ExitCode.PREFLIGHT_FAILED, "may not patch nodes")
    assert world.killer.effects == []


def host_driver() -> World:
    return made("first_install_over_a_stale_root", host_driver=OWN_DRIVER)


def test_standing_down_labels_waits_and_ends_with_ten_or_with_sigterm() -> None:
    world = host_driver()
    world.ended(ExitCode.STANDING_DOWN)
    assert world.state().labels == {**LABELS, builders.DRIVER: "pre-installed"}
    assert (world.state().shown, len(world.cluster.patches)) == (Shown("ready", 10, builders.NEW_DIGEST), 1)
    assert world.clock.now == 1_300.0
    world = host_driver()
    world.clock.after(5.0, world.clock.ask_to_end)
    world.ended(ExitCode.STANDING_DOWN, "the host has its own driver")
    assert world.clock.now == 1_005.0


def test_the_run_after_a_removed_digest_does_not_stand_down_and_a_node_given_back_is_not_reported_as_paused() -> None:
    world = made(CONTAINER, host_driver=OWN_DRIVER).killed(f"remove {PATHS.state_file}")
    world.ended()
    assert world.state().labels == LABELS
    world = host_driver()
    world.cluster.edit({PLUGIN: PAUSED, EXPORTER: PAUSED}, annotations={JOURNAL: encode(builders.journal())})
    world.on("patch", lambda _: None, ApiRefused("refused to patch nodes", "Give the verb."))
    assert "paused" not in world.ended(ExitCode.API_REFUSED).what
    assert world.is_released


def test_a_service_is_stopped_before_the_unload_and_started_again() -> None:
    world = made(SERVICES)
    world.ended()
    order = (f"stop {SERVICE}", "unload rebellions", f"start {SERVICE}")
    assert (world.calls(*order), world.host.services) == (list(order), {SERVICE: True})


@pytest.mark.parametrize("path", [PATHS.failure_note, PATHS.owner_note, PATHS.effect_lock])
@pytest.mark.parametrize("name", TAKING)
def test_a_run_that_cannot_write_a_file_of_the_host_has_no_effect_but_what_the_node_shows(name: str, path: str) -> None:
    world = made(name, refused_files={path: "the file system is full"})
    outcome = world.ended(ExitCode.PREFLIGHT_FAILED)
    assert (outcome.what.split("; ")[0], world.is_released) == ("preflight: the file system is full", True)
    assert set(world.killer.effects) == {"patch"}


def test_a_run_that_writes_nothing_is_not_stopped_and_leaves_the_mark_of_a_wedge() -> None:
    world = made("current", refused_files={PATHS.failure_note: "the file system is full"})
    world.host.files[WITHDRAWN] = "DRIVER=1\n"
    world.ended()
    assert WITHDRAWN in world.host.files


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("", "", ""),
        ("follows", "", ""),
        ("copy follows", "copy", "pod copy"),
        ("copy", "copy later", "pod copy"),
        ("driver-a copy", "driver-a copy", "pod copy"),
        ("uid-e", "uid-e", "pod rbln-system/exporter"),
    ],
    ids=["unseen", "unmounted too", "its own mount stays", "a later mount of that number", "our own ends", "a name"],
)
def test_a_pod_that_still_sees_the_root_of_a_dead_container_is_named(before: str, after: str, named: str) -> None:
    world = World(LABELS, Policy()).given(mounts=[PATHS.driver_root])
    world.cluster.add_pod(pod("exporter", uid="uid-e"))
    world.given(seen_before=tuple(before.split()), seen_after=tuple(after.split())).ended()
    assert world.host.mounts == []
    lines = [line.partition(": restart it")[0] for line in world.reporter.warnings]
    assert lines == ([f"{named} still sees the old driver root"] if named else [])


DRIVER_WORK = ("unload", "load", "reload", "unmount", "remove", "write")


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_is_done_to_the_driver_is_done_under_the_lock_and_an_unload_leaves_evidence(name: str) -> None:
    world, held = made(name), list[bool]()
    for number in range(undisturbed(name)[3]):
        world.killer.at_call(number, lambda: held.append(world.host.is_at_work))
    world.run()
    work = [call for call, is_held in zip(world.killer.calls, held, strict=False) if is_held]
    done = [call for call in world.killer.calls if call.startswith(DRIVER_WORK)]
    assert [call for call in work if call.startswith(DRIVER_WORK)] == done
    assert bool(work) is (name != "current")
    assert not world.host.is_at_work
    assert bool(world.host.evidence) is bool(world.host.unload_attempts)


def test_the_lock_is_free_after_a_kill_and_while_a_run_holds_for_a_reboot_and_a_run_without_it_warns() -> None:
    assert not made(MANAGER).killed(3, after=False).host.is_at_work
    world = made(MANAGER, can_be_locked=False)
    world.ended()
    assert [line for line in world.reporter.warnings if "health-watch" in line]
    assert [line for line in world.reporter.warnings if "re-reading the Node" in line], "nor note who owns the driver"
    holding, seen = by_reboot(no_wait=False), list[bool]()
    for seconds in (1.0, 100.0, 1_000.0):
        holding.clock.after(seconds, lambda: seen.append(holding.host.is_at_work))
    holding.clock.after(2_000.0, holding.clock.ask_to_end)
    holding.ended(ExitCode.REBOOT_REQUIRED)
    assert seen == [False] * 3


@pytest.mark.parametrize("name", [CONTAINER, MANAGER, "rebind", "first_install_by_manager"])
@pytest.mark.parametrize(("there", "then"), [(READY, WITHDRAWN), (WITHDRAWN, READY), (WITHDRAWN, WITHDRAWN)])
def test_a_ready_marker_put_aside_or_back_meanwhile_does_not_outlive_its_driver(
    name: str, there: str, then: str
) -> None:
    world = made(name)
    world.host.files.pop(READY, None)
    world.host.files[there] = "DRIVER=1\n"
    if name != "first_install_by_manager":
        world.on("patch", lambda one: one.host.files.update({then: one.host.files.pop(there)}))
    world.ended()
    assert not {READY, WITHDRAWN} & world.host.files.keys() or there == READY


def test_evidence_is_kept_once_before_the_first_module_goes_and_named_at_the_end() -> None:
    world = made(PEER)
    outcome = world.ended()
    effects = world.killer.effects
    assert effects.count("evidence") == 1
    assert effects.index("evidence") + 1 == effects.index("unload rebellions_peer")
    ((name, lines),) = world.host.evidence
    assert name == "unload"
    assert f"wanted: {builders.NEW_DIGEST}" in lines
    assert any(line.startswith("rebellions 1.0, 0 user(s)") for line in lines)
    assert outcome.what.endswith(f"; evidence on the host: {PATHS.evidence}/unload")


def test_where_none_is_kept_the_driver_is_swapped_all_the_same() -> None:
    no_room = ConfigError("cannot write /var/lib/driver-manager/evidence/1.txt: Read-only file system", "Mount it.")
    unwanted = replace(PROFILE, paths=replace(PATHS, evidence=""))
    full, without = made(PEER, evidence_error=no_room), made(PEER, profile=unwanted)
    for world, warnings in ((full, [f"no evidence is kept: {no_room.what}"]), (without, [])):
        assert "evidence" not in world.ended().what
        assert (world.host.evidence, world.reporter.warnings) == ([], warnings)


def test_a_new_driver_that_does_not_work_leaves_its_own_and_a_busy_module_one_file_for_all_tries() -> None:
    world = made(MANAGER, sick={"2.0"})
    assert world.ended(FAILED).what.count(f"{PATHS.evidence}/unload") == 2
    old, new = (lines for _, lines in world.host.evidence)
    assert any("rebellions 1.0" in line for line in old)
    assert any("rebellions 2.0" in line for line in new)
    world = made(PEER).on("evidence", lambda one: one.host.stuck_users.update(rebellions_peer=1), after=True)
    world.ended(BUSY)
    assert (len(world.host.evidence), len(world.host.unload_attempts) > 1) == (1, True)


def left_paused() -> World:
    world = made("current")
    world.cluster.edit({PLUGIN: PAUSED})
    return world


def left_ready() -> World:
    world = made("current", loader=Loader.CONTAINER)
    world.host.files[READY] = ""
    return world


def rebooted(loaded: Mapping[str, str]) -> World:
    """The wanted driver is recorded, and the marker is of the boot before."""
    world, paths = by_reboot(driver_root=NEW_ROOT, loaded=dict(loaded)), builders.ASCEND.paths
    marker = encode_marker(Marker("upgrade", "boot-0"))
    world.host.files |= {paths.state_file: builders.NEW_DIGEST, paths.reboot_marker: marker}
    return world


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        (SCENARIOS[MANAGER], "done: driver 2.0 loaded ("),
        (SCENARIOS[CONTAINER], "done: the driver was unloaded ("),
        (SCENARIOS["rebind"], "done: the old driver root was unmounted ("),
        (SCENARIOS["first_install_over_a_stale_root"], "done: the old driver root was unmounted ("),
        (SCENARIOS["first_install_by_manager"], "done: driver 2.0 loaded (none was loaded before)"),
        (SCENARIOS["current"], "nothing to do: driver is current"),
        (left_paused, "done: the node was released ("),
        (left_ready, "done: files of an earlier driver were removed ("),
        (partial(rebooted, {"drv_pcie_host": "23.0"}), "done: an earlier reboot request was cleared ("),
        (partial(rebooted, {}), "done: an earlier reboot request was cleared ("),
    ],
)
def test_the_last_line_says_what_a_run_has_done(scenario: Callable[[], World], expected: str) -> None:
    world = scenario()
    assert world.ended().what.startswith(expected)
    assert "patch" not in world.killer.calls or scenario is not left_ready


# labels that another writer sets back while operands are to stay away


def switch_on(world: World) -> None:
    world.cluster.writer = "operator (Update, 2026-11-28T10:00:00Z)"
    world.cluster.edit(dict.fromkeys([PLUGIN, EXPORTER], "true"))


def switch_off(world: World) -> None:
    world.cluster.edit(dict.fromkeys([PLUGIN, EXPORTER], "false"))


def switch_off_and_on(world: World) -> None:
    """As NVSentinel's janitor does."""
    switch_off(world)
    switch_on(world)


SET_BACK = f"operator (Update, 2026-11-28T10:00:00Z) switched {PLUGIN}, {EXPORTER} on, while operands are to stay away"


Actions = tuple[Callable[[World], object], ...]


def nothing(_: World) -> None:
    pass


@pytest.mark.parametrize(
    "at_looks",
    [(switch_on,), (nothing, switch_on), (switch_off_and_on,), (switch_off, switch_on)],
    ids=["at the first module", "at the second", "off and on between two looks", "off at one look, on at the next"],
)
def test_operands_that_are_switched_on_again_are_paused_once_more_and_leave(at_looks: Actions) -> None:
    world, placed = made(PEER).on("look at labels", *at_looks), list[int]()
    world.on("unload rebellions", lambda one: placed.append(len(one.cluster.device_holders())))
    world.ended()
    assert placed == [0]
    assert f"{SET_BACK}; pausing again" in world.reporter.warnings
    assert world.is_released


@pytest.mark.parametrize("before", [None, "", "false"])
def test_an_operand_that_is_switched_on_for_the_first_time_is_paused_too_and_stays_on(before: str | None) -> None:
    """As gpu-operator writes absent and empty keys, at each of its reconciles."""
    new, seen = key("new-component"), list[str | None]()
    world = made(PEER).on("look at labels", edited({new: "true"}))
    world.cluster.edit({new: before})
    world.on("unload rebellions", lambda one: seen.append(one.node.labels.get(new))).ended()
    assert (seen, world.node.labels[new]) == ([PAUSED], "true")


def test_operands_that_come_back_while_the_run_waits_for_them_are_paused_again() -> None:
    """As rbln-npu-operator writes them at each of its reconciles, if it sees no run."""
    world = made(PEER, pod_termination_timeout_s=20.0).on("watch", switch_on)
    before = world.state().labels
    world.ended()
    assert f"{SET_BACK}; pausing again" in world.reporter.warnings
    assert world.state().labels == before


@pytest.mark.parametrize(
    ("call", "actions"),
    [
        ("watch", (switch_on, switch_on)),
        ("look at labels", (switch_on, switch_on)),
        ("look at labels", (nothing, switch_on, switch_on)),
    ],
)
def test_the_second_time_the_run_stops_names_the_writer_and_loads_what_it_unloaded(call: str, actions: Actions) -> None:
    world = made(PEER, pod_termination_timeout_s=20.0).on(call, *actions)
    modules = dict(world.host.loaded)
    world.ended(ExitCode.PODS_REMAIN, f"{SET_BACK}, for the second time", remedy="Stop that writer")
    assert (world.host.loaded, world.is_released) == (modules, True)


def test_a_node_that_cannot_be_looked_at_stops_no_run_and_a_writer_without_a_name_is_another_writer() -> None:
    world = made(PEER).on("look at labels", ApiUnavailable("no answer", ""))
    world.ended()
    assert world.killer.calls.count("look at labels") == 1
    assert "cannot look whether the operands are still paused: no answer" in world.reporter.warnings
    world = made(PEER).on("look at labels", switch_on).on("label writer", ApiUnavailable("no answer", ""))
    world.ended()
    assert any(line.startswith(f"another writer switched {PLUGIN}, {EXPORTER} on") for line in world.reporter.warnings)


def test_labels_that_another_component_pauses_or_switches_off_are_its_own_also_on_top_of_our_pause() -> None:
    theirs = {PLUGIN: "paused-for-mig-change", EXPORTER: "false"}
    for edit in (theirs, {PLUGIN: f"{PAUSED}_paused-for-mig-change", EXPORTER: "false"}):
        world = made(PEER).on("look at labels", edited(edit))
        world.ended()
        assert {key: world.node.labels[key] for key in edit} == theirs


@pytest.mark.parametrize("bad", ["broken", "sick"])
def test_operands_that_an_operator_switches_on_after_a_failure_cost_nothing(bad: str) -> None:
    """As rbln-npu-operator does once the init container has terminated: exactly our value becomes `true`.

    The next run pauses them again if a driver is loaded, which they may hold.
    """
    world = made("replace_by_manager", **{bad: {"2.0"}}, **NEW_ONLY)
    world.cluster.edit({key("long"): None})  # `true` would be what it had: its pause keeps no more of it
    before = world.state().labels
    world.ended(FAILED, "operands that an operator switches on before fail until then")
    paused = [label for label, value in world.node.labels.items() if value == PAUSED]
    assert len(paused) > 1
    world.cluster.edit(dict.fromkeys(paused, "true"))
    assert world.node.labels[key("custom-client")] == f"gold_{PAUSED}", "of which the operator knows nothing"
    seen = list[bool]()
    world.given(**{bad: set()}).on("load rebellions", lambda one: seen.append(one.node.labels[PLUGIN] == PAUSED))
    world.again()
    assert seen == [bad == "sick"]
    after = world.state()
    assert (after.labels, after.annotations, after.unschedulable) == (before, {}, False)


@pytest.mark.parametrize("times", [1, 8])
def test_the_state_label_of_an_upgrade_that_an_operator_removes_changes_no_run(times: int) -> None:
    """As gpu-operator does on all nodes at each reconcile, with autoUpgrade off or sandbox workloads on."""
    key, removed = PROFILE.keys.upgrade_state, list[str]()
    world = made("replace_by_manager")

    def remove() -> None:
        removed.append(world.node.labels[key])
        world.cluster.edit({key: None})
        if len(removed) < times:
            world.cluster.edit({key: "upgrade-done"})

    world.cluster.edit({key: "upgrade-done"})
    for number in range(times):
        world.clock.after(1.0 + number, remove)
    world.ended()
    assert (removed, world.is_released) == (["upgrade-done"] * times, True)


def test_the_deploy_labels_that_an_operator_removes_from_a_skipped_node_are_not_made_again() -> None:
    """As rbln-npu-operator does where `npu.deploy.skip` becomes `true`."""
    world = made(MANAGER)
    others = {label: value for label, value in LABELS.items() if not label.startswith(PROFILE.deploy.prefix)}
    edit = {**dict.fromkeys(LABELS.keys() - others.keys()), key("skip"): "true"}
    world.on("watch", lambda one: one.cluster.edit(edit)).ended()
    state = world.state()
    assert state.labels == {**others, key("skip"): "true"}
    assert (state.annotations, state.unschedulable) == ({}, False)
