"""A driver that must not leave a running kernel: a reboot is requested once, and the driver is loaded after it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.domain.errors import ApiUnavailable, ConfigError, ExitCode, ModuleFailed
from driver_manager.domain.host import Marker, decode_reboot_wish, encode_marker
from driver_manager.domain.observation import Loader, Policy
from driver_manager.domain.reboot.decision import REBOOT_STATE
from tests.support.fakes.builders import ASCEND, NEW_DIGEST, OLD_DIGEST
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.deadlines import soon
from tests.support.fakes.host import FakeHost
from tests.support.fakes.scenarios import NEW_ROOT, by_reboot
from tests.support.fakes.shown import Shown
from tests.support.fakes.world import SECONDS, State, World
from tests.support.selection import examples

PATHS, KEYS = ASCEND.paths, ASCEND.keys
REBOOT = ExitCode.REBOOT_REQUIRED


def asks(world: World) -> bool:
    """True if a reboot is requested, by both labels and the marker."""
    labels = world.state().labels
    both = [labels.get(KEYS.reboot_required), labels.get(KEYS.upgrade_state)]
    assert both in ([None, None], ["true", REBOOT_STATE]), "one without the other"
    asked = both != [None, None]
    assert asked is (PATHS.reboot_marker in world.host.files)
    return asked


def requests(world: World) -> int:
    """How often a reboot was asked for."""
    return sum(reason == "RebootRequired" for reason, *_ in world.cluster.posted)


def boot(world: World, *, loaded: str = "23.0", digest: str = "") -> World:
    """Reboot; `loaded` is what something loads in the new boot, `digest` what it records."""
    world.reboot()
    world.next_process()
    world.host.loaded = {"drv_pcie_host": loaded} if loaded else {}
    if digest:
        world.host.files[PATHS.state_file] = digest
    return world


def requested() -> World:
    """A reboot was requested, and the new driver is loaded after it."""
    world = by_reboot()
    world.ended(REBOOT)
    return boot(world, loaded="24.0", digest=NEW_DIGEST)


def test_a_driver_of_strategy_reboot_gets_a_marker_and_is_never_unloaded() -> None:
    world = by_reboot()
    world.ended(REBOOT)
    marker = json.loads(world.host.files[PATHS.reboot_marker])
    assert (marker["reason"], marker["bootId"], marker["node"], marker["schema"]) == ("upgrade", "boot-1", "node-1", 1)
    assert (marker["from"], marker["to"]) == (OLD_DIGEST, NEW_DIGEST)
    assert asks(world)
    assert (world.host.unload_attempts, world.host.loaded) == ([], {"drv_pcie_host": "23.0"})


@pytest.mark.parametrize("no_wait", [True, False])
def test_a_run_may_hold_until_sigterm_and_the_request_is_one_event(no_wait: bool) -> None:
    world = by_reboot(no_wait=no_wait)
    assert world.announced_end is (REBOOT if no_wait else ExitCode.DONE)
    for number in range(1, 4):
        world.clock.after(100.0, world.clock.ask_to_end)
        world.again(REBOOT)
        assert world.clock.now == 1_000.0 + (0.0 if no_wait else 100.0 * number)
        world.clock.forget_the_end()
    assert [(reason, text) for reason, text, _ in world.cluster.posted] == [("RebootRequired", "reason=upgrade")]


@pytest.mark.parametrize("there", [encode_marker(Marker("recovery", "boot-1", evidence=("wedged",))), "recovery\n"])
def test_a_marker_that_is_there_already_is_not_written_over(there: str) -> None:
    world = by_reboot()
    world.host.files[PATHS.reboot_marker] = there
    world.ended(REBOOT)
    assert world.host.files[PATHS.reboot_marker] == there
    assert world.killer.effects == [f"write {PATHS.reboot_wish}", "patch", "event"]
    assert asks(world)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(4))
def test_a_request_killed_at_any_effect_is_completed_by_the_next_run(effect: int, after: bool) -> None:
    world = by_reboot().killed(effect, after=after)
    world.ended(REBOOT)
    assert asks(world)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", [*range(3), None])
def test_after_the_reboot_marker_and_labels_are_gone_whatever_kills_the_run(effect: int | None, after: bool) -> None:
    world = requested()
    if effect is not None:
        world.killed(effect, after=after)
    world.ended()
    assert not asks(world)
    assert PATHS.reboot_wish not in world.host.files


def check_marker_written_meanwhile_stays() -> None:
    """Raises AssertionError unless clearing a stale marker leaves one that was written since it was seen."""
    world = requested()
    fresh = encode_marker(Marker("recovery", world.host.boot_id, writer="health-watch"))
    world.on("patch", lambda one: one.host.files.update({PATHS.reboot_marker: fresh}), after=True)
    world.ended()
    assert world.host.files.get(PATHS.reboot_marker) == fresh


def test_a_marker_written_after_a_stale_one_was_seen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    check_marker_written_meanwhile_stays()
    monkeypatch.setattr(FakeHost, "remove_marker", lambda self, _: self.files.pop(PATHS.reboot_marker, None))
    with pytest.raises(AssertionError):
        check_marker_written_meanwhile_stays()


def test_the_host_removes_the_marker_it_was_shown_and_no_other_and_refuses_to_unload(tmp_path: Path) -> None:
    linux = LinuxHost(HostRoots(tmp_path, tmp_path / "proc", tmp_path / "sys", tmp_path / "dev"), ASCEND, FakeClock())
    path = tmp_path / PATHS.reboot_marker.lstrip("/")
    path.parent.mkdir(parents=True)
    stale, fresh = Marker("upgrade", "boot-0"), Marker("recovery", "boot-1")
    for there, left in ((fresh, True), (stale, False)):
        path.write_text(encode_marker(there))
        linux.remove_marker(stale)
        assert path.exists() is left
    with pytest.raises(ModuleFailed, match="refused to unload drv_pcie_host"):
        linux.unload("drv_pcie_host", soon())


def test_a_marker_that_vanishes_while_a_run_holds_is_written_again_with_labels_and_event() -> None:
    world = by_reboot(no_wait=False)
    world.host.files[PATHS.reboot_marker] = encode_marker(Marker("recovery", "boot-1", evidence=("x",), written_s=7))

    def recovered() -> None:
        del world.host.files[PATHS.reboot_marker]
        world.cluster.edit({KEYS.reboot_required: None, KEYS.upgrade_state: None})

    world.clock.after(100.0, recovered)
    world.clock.after(400.0, world.clock.ask_to_end)
    world.ended(REBOOT)
    assert asks(world)
    assert json.loads(world.host.files[PATHS.reboot_marker])["reason"] == "upgrade"
    assert [text for _, text, _ in world.cluster.posted] == ["reason=upgrade"] * 2
    assert any("holding" in line for line in world.reporter.infos)
    away = by_reboot(no_wait=False)  # also while the API server is away
    away.clock.after(100.0, away.host.files.clear)
    away.clock.after(100.0, lambda: away.on("node", ApiUnavailable("no answer", "Wait.")))
    away.clock.after(400.0, away.clock.ask_to_end)
    away.ended(REBOOT)
    assert PATHS.reboot_marker in away.host.files
    assert any("no answer" in line for line in away.reporter.warnings)


def test_a_marker_that_cannot_be_written_labels_nothing_and_is_a_usage_error_with_the_path() -> None:
    world = by_reboot().on(f"write {PATHS.reboot_marker}", ConfigError(f"cannot write {PATHS.reboot_marker}", "Mount"))
    world.ended(ExitCode.USAGE, PATHS.reboot_marker)
    assert not asks(world)
    assert world.cluster.posted == []


# one reboot for one wish


def test_a_hosts_own_driver_asks_for_no_reboot_at_any_boot() -> None:
    world = by_reboot(host_driver="/lib/modules/6.1.0-fake/updates/drv_pcie_host.ko")
    for _ in range(3):
        boot(world).ended(ExitCode.STANDING_DOWN)
        assert not asks(world)
    assert (requests(world), world.state().labels) == (0, world.labels)


@pytest.mark.parametrize("loader", [Loader.CONTAINER, Loader.MANAGER])
@pytest.mark.parametrize("known", ["", OLD_DIGEST], ids=["nothing recorded", "another recorded"])
def test_a_reboot_after_which_another_driver_is_loaded_again_is_not_asked_for_again(loader: Loader, known: str) -> None:
    world = by_reboot(loader=loader, driver_root=NEW_ROOT, offers={NEW_ROOT: "24.0"})
    world.ended(REBOOT)
    message = f"the node has rebooted for driver {NEW_DIGEST} since that was requested"
    for _ in range(2):
        boot(world, digest=known).ended(ExitCode.MODULE_FAILED, message, remedy=PATHS.reboot_wish)
        assert not asks(world), "what asked for the last reboot is taken back"
    assert requests(world) == 1


def test_a_forced_reinstall_asks_for_one_reboot_and_is_done_after_it() -> None:
    world = by_reboot(force_reinstall=True)
    world.host.files[PATHS.state_file] = NEW_DIGEST
    world.ended(REBOOT)
    boot(world, loaded="").ended()  # its container loads it
    for _ in range(3):
        world.host.loaded, world.host.files[PATHS.state_file] = {"drv_pcie_host": "24.0"}, NEW_DIGEST
        world.again(ExitCode.DONE, "after the reboot for the forced reinstall")
        boot(world, loaded="")
    assert requests(world) == 1


def test_a_reinstall_forced_later_asks_for_its_own_reboot() -> None:
    world = requested()
    for runs in (1, 2):
        world.given(force_reinstall=True).ended(REBOOT)
        assert requests(world) == 1 + runs
        boot(world.given(force_reinstall=False), loaded="24.0", digest=NEW_DIGEST).ended()
        world.next_process()


def test_another_driver_wanted_since_asks_again_and_a_wish_that_was_given_up_is_forgotten() -> None:
    world = by_reboot()
    world.ended(REBOOT)
    assert boot(world).announced_end is ExitCode.MODULE_FAILED
    world.ended(ExitCode.MODULE_FAILED)
    world.given(digest="e" * 64).again(REBOOT)
    assert decode_reboot_wish(world.host.files[PATHS.reboot_wish]).to_driver == "e" * 64
    # Back to the first one, which a reboot did not bring when it was asked for: much has happened since.
    boot(world).given(digest=NEW_DIGEST).ended(REBOOT)
    world.host.files[PATHS.state_file] = OLD_DIGEST
    world.given(digest=OLD_DIGEST).again()
    assert PATHS.reboot_wish not in world.host.files
    boot(world, digest=OLD_DIGEST).given(digest=NEW_DIGEST).ended(REBOOT)


def test_a_recovery_is_asked_for_as_ever() -> None:
    world = by_reboot()
    world.ended(REBOOT)
    recovery = encode_marker(Marker("recovery", boot(world).host.boot_id))
    world.host.files[PATHS.reboot_marker] = recovery
    world.run()
    assert world.host.files[PATHS.reboot_marker] == recovery


EVENTS: dict[str, dict[str, Any]] = {
    "force": {"force_reinstall": True},
    "unforce": {"force_reinstall": False},
    "want new": {"digest": NEW_DIGEST},
    "want old": {"digest": OLD_DIGEST},
    "run": {},
    "boot with nothing": {},
    "boot with the old": {},
}


@example(["force", "want old", "run", "unforce", "run"])
@settings(max_examples=examples(200))
@given(st.lists(st.sampled_from(sorted(EVENTS)), min_size=4, max_size=14))
def test_between_two_requests_for_one_wish_something_was_wanted_that_is_not_wanted_now(events: list[str]) -> None:
    """Whatever happens: the same wish, asked for in one boot, is not asked for again in the next one as it is."""
    world = by_reboot()
    asked: list[tuple[str, bool]] = []
    for event in events:
        world.next_process()
        world.given(**EVENTS[event])
        if event.startswith("boot"):
            boot(world, **({"loaded": ""} if event.endswith("nothing") else {"digest": OLD_DIGEST}))
        if event != "run":
            continue
        before = requests(world)
        assert world.run() is not None
        wish = (world.digest, world.policy.force_reinstall)
        if requests(world) > before:
            assert asked[-1:] != [wish], "nothing else was wanted since"
            asked.append(wish)
        elif asked[-1:] != [wish]:
            asked.append(("", False))


# loaded at a boot, by one run at a time

MODULES = ("drv_pcie_host", "drv_devmng_host")


def fresh(**changes: Any) -> World:
    """A fresh boot of a node whose manager loads the driver."""
    policy = Policy(loader=Loader.MANAGER, no_wait=True)
    world = World({"openfuyao.com/npu.present": "true"}, policy, profile=ASCEND, driver_root=NEW_ROOT)
    return world.given(needs={MODULES[0]: MODULES[1:]}, offers={NEW_ROOT: "24.0"}, **changes)


def undisturbed() -> tuple[State, int, list[str]]:
    world = fresh()
    world.ended()
    return world.state(), len(world.killer.effects), world.killer.calls


STATE, EFFECTS, CALLS = undisturbed()


def test_an_undisturbed_run_loads_inside_the_fence_records_and_leaves_the_node_as_it_was() -> None:
    assert dict(STATE.modules) == dict.fromkeys(MODULES, "24.0")
    assert STATE.files[PATHS.state_file].strip() == NEW_DIGEST
    world, inside = fresh(), list[tuple[str, bool]]()
    for name in MODULES:
        world.on(f"load {name}", lambda one, name=name: inside.append((name, one.host.is_owned)))  # type: ignore[misc]
    world.ended()
    assert (world.is_released, inside) == (True, [(name, True) for name in reversed(MODULES)])


@pytest.mark.parametrize("pod", SECONDS)
def test_a_second_run_is_refused_at_every_moment_from_the_first_patch_to_the_last(pod: str) -> None:
    first, last = CALLS.index("patch"), len(CALLS) - CALLS[::-1].index("patch") - 1
    for call in range(first + 1, last + 1):
        world, refused = fresh(), list[object]()

        def another(world: World = world, refused: list[object] = refused) -> None:
            refused.append(world.second(pod).ended(ExitCode.OWNED_ELSEWHERE))

        world.killer.at_call(call, another)
        world.ended()
        assert (len(refused), world.state()) == (1, STATE), CALLS[call]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(EFFECTS))
@pytest.mark.parametrize("new_pod", [False, True])
@pytest.mark.parametrize("reboots", [False, True])
def test_killed_at_any_effect_the_next_run_ends_like_an_undisturbed_one(
    effect: int, after: bool, new_pod: bool, reboots: bool
) -> None:
    world = fresh().killed(effect, after=after)
    if reboots:
        world.reboot()
    if new_pod:
        world.move_to_new_pod()
    world.ended()
    assert world.state() == STATE


@pytest.mark.parametrize("call", range(len(CALLS)))
def test_a_signal_at_any_call_gives_the_node_back_and_the_next_run_ends_the_work(call: int) -> None:
    world = fresh()
    world.killer.at_call(call, world.clock.ask_to_end)
    assert world.run() is not None
    assert world.is_released
    world.again()
    assert world.state() == STATE


def test_after_sigterm_while_it_waits_for_the_new_drivers_device_it_finishes_the_load() -> None:
    world = fresh()

    def end_and_check(_: World) -> None:
        world.clock.ask_to_end()
        world.clock.check()  # as a wait would

    outcome = world.on("device nodes", end_and_check).run()
    assert outcome is not None
    assert outcome.exit_code in (ExitCode.DONE, ExitCode.STANDING_DOWN)
    shows = STATE.shown if outcome.exit_code is ExitCode.DONE else Shown("failed", 10, world.digest)
    assert world.state() == dataclasses.replace(STATE, shown=shows)


@pytest.mark.parametrize(
    ("fault", "expected", "then"),
    [("broken", "cannot be loaded", ExitCode.MODULE_FAILED), ("sick", "there is no old driver to go back to", REBOOT)],
)
def test_a_driver_that_does_not_load_or_work_leaves_a_node_free_to_reboot(
    fault: str, expected: str, then: ExitCode
) -> None:
    world = fresh(**{fault: {"24.0"}})
    world.ended(ExitCode.MODULE_FAILED, expected)
    assert world.state().annotations == {}, "nothing reboots a node that is taken"
    world.again(then)
    assert world.host.unload_attempts == []
