"""What must hold of whole runs, as checks that raise AssertionError; the unit tests call them at every point.

Kept apart from the tests so that each check can be run against a mutant too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from msgspec.structs import replace

from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.observation import Mode
from tests.support.fakes.builders import EXPORTER, PAUSED, PLUGIN, PROFILE, driver_pod, key
from tests.support.fakes.scenarios import LABELS, SCENARIOS, settle_in, undisturbed
from tests.support.fakes.shown import Shown
from tests.support.fakes.world import State, World

JOURNAL = PROFILE.keys.journal


NEW_KEY = key("new-component")


EDITS: tuple[tuple[str, str | None], ...] = (
    (PLUGIN, None),
    (PLUGIN, "false"),
    (PLUGIN, "true"),
    (EXPORTER, "custom"),
    (key("custom-client"), "silver"),
    (key("custom-client"), None),
    (key("long"), "short"),
    (key("off"), "true"),
    (key("empty"), None),
    (NEW_KEY, "true"),
    ("example.com/unrelated", "x"),
    ("kubernetes.io/hostname", None),
)


def finish(world: World, *, runs: int = 4) -> None:
    """Let processes follow each other until one ends well, as the kubelet restarts an init container."""
    for _ in range(runs):
        world.next_process()
        outcome = world.run()
        if outcome is not None and outcome.exit_code is ExitCode.DONE:
            return
    raise AssertionError(f"never done: {outcome}")


def check_converged(world: World, name: str, *, rebooted: bool) -> None:
    """Raises AssertionError unless the world is as an undisturbed run leaves it."""
    at_once, settled, _, _ = undisturbed(name)
    if not rebooted:
        assert world.state() == at_once
        assert settle_in(world) == settled
    else:
        assert without_peers(settle_in(world)) == without_peers(as_shown(settled, world))


def as_shown(settled: State, world: World) -> State:
    """`settled`, as a rebooted node shows it: one that no run had taken, and none had to take since, shows nothing."""
    keys = world.profile.keys
    was_taken = any(keys.state in patch.labels for patch in world.cluster.patches)
    return dataclasses.replace(settled, shown=Shown("ready", 0, world.digest) if was_taken else Shown())


def without_peers(state: State) -> State:
    """A reboot ends what somebody had loaded above the driver, set in it, or bound: it belongs to the boot."""
    modules = {name: one for name, one in state.modules.items() if name != "rebellions_peer"}
    devices = tuple(replace(one, virtual_count=0) for one in state.devices)
    return dataclasses.replace(state, modules=modules, given={}, bindings=(), devices=devices)


def check_called_off(name: str, effect: int, *, after: bool, reboot: bool) -> None:
    """A run that gives devices to virtual machines is killed, and the next one is a driver's. Raises AssertionError
    unless containers are served then: every device has its own driver, and the Node is as it was."""
    world = SCENARIOS[name]()
    world.killer.kill_at(effect, after=after)
    assert world.run() is None, "the kill must have struck"
    if reboot:
        world.reboot()
    world.serve_containers()
    finish(world)
    world.host.start_driver_container("2.0", world.digest)
    finish(world)
    state = world.state()
    assert (state.labels, state.annotations, state.unschedulable) == (LABELS, {}, False)
    physical = [one for one in state.devices if not one.physical]
    assert [(one.driver, one.override) for one in physical] == [("rebellions", "")] * len(physical)
    if not reboot:  # a boot ends bindings, virtual functions and what is noted of them
        had = SCENARIOS[name]().state().devices
        counts = {one.address: one.virtual_count for one in had}
        assert [one.virtual_count for one in physical] == [counts[one.address] for one in physical]
        assert PROFILE.paths.bindings not in world.host.files, "a record of what is given back already"


def check_killed(name: str, effect: int, *, after: bool, reboot: bool = False, new_pod: bool = False) -> None:
    """Kill a run at one effect, run again. Raises AssertionError unless that ends like an undisturbed run."""
    world = SCENARIOS[name]()
    world.killer.kill_at(effect, after=after)
    assert world.run() is None, "the kill must have struck"
    if reboot:
        world.reboot()
    if new_pod:
        world.move_to_new_pod()
    finish(world)
    check_converged(world, name, rebooted=reboot)


def kill_points(name: str) -> Iterator[tuple[int, bool]]:
    """Every moment right before and right after an effect of an undisturbed run."""
    for effect in range(undisturbed(name)[2]):
        yield effect, False
        yield effect, True


def check_edited(
    name: str, call: int, edits: tuple[tuple[str, str | None], ...], kill: tuple[int, bool] | None = None
) -> None:
    """Somebody edits labels at `call`. Raises AssertionError unless these edits, and no others, are on the Node."""
    world = SCENARIOS[name]()
    done: list[bool] = []

    def edit() -> None:
        done.append(True)
        world.cluster.edit(dict(edits))

    world.killer.at_call(call, edit)
    if kill is not None:
        world.killer.kill_at(kill[0], after=kill[1])
    outcome = world.run()
    if outcome is None:
        finish(world)
    expected = {**LABELS, **dict(edits)} if done else dict(LABELS)
    state = world.state()
    assert state.labels == {label: value for label, value in expected.items() if value is not None}
    assert state.annotations == {}
    assert not state.unschedulable


def edit_points(name: str) -> range:
    """Every call of an undisturbed run, and one more: the edit may lead to a second observation."""
    return range(undisturbed(name)[3] + 1)


def check_cordoned_first(name: str) -> None:
    """An administrator cordoned before the run. Raises AssertionError unless the cordon stays, through a kill too."""
    for kill in (None, *kill_points(name)):
        world = SCENARIOS[name]()
        world.cluster.edit(cordon=True)
        if kill is not None:
            world.killer.kill_at(kill[0], after=kill[1])
        if world.run() is None:
            finish(world)
        assert world.state().unschedulable, f"lifted, killed at {kill}"
        assert world.state().annotations == {}
        assert world.state().labels == LABELS


def check_terminated(name: str, call: int) -> None:
    """SIGTERM at `call`. Raises AssertionError unless the node is given back, or held where its driver is gone."""
    world = SCENARIOS[name]()
    had_driver, before = bool(world.host.loaded), world.state()
    world.killer.at_call(call, world.clock.ask_to_end)
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code in (ExitCode.DONE, ExitCode.STANDING_DOWN), outcome
    state, is_loaded = world.state(), "rebellions" in world.host.loaded
    gone = had_driver and not is_loaded
    if outcome.exit_code is ExitCode.DONE or not gone:
        assert state.labels == LABELS
        assert state.annotations == {}
        assert not state.unschedulable
        assert "paused" not in outcome.what
        if world.policy.mode is Mode.VFIO and outcome.exit_code is not ExitCode.DONE:
            assert_devices_kept(before, state)
        if outcome.exit_code is not ExitCode.DONE and world.host.loaded.get("rebellions") != "2.0":
            assert state.foreign == SCENARIOS[name]().state().foreign, "a conflicting module stays away for nothing"
    else:
        assert "stays paused" in outcome.what
        assert state.labels[PLUGIN] == PAUSED
        assert journals.decode(state.annotations[JOURNAL]).claims.labels[key("long")] == LABELS[key("long")]
        assert state.unschedulable is (PROFILE.keys.cordon in state.annotations)
    if world.clock.ended_at is not None:
        assert world.clock.now - world.clock.ended_at < 5.0, "not within the grace period"
    finish(world)
    assert world.state().labels == LABELS
    assert settle_in(world) == undisturbed(name)[1]


def assert_devices_kept(before: State, after: State) -> None:
    """Raises AssertionError unless devices are as they were, apart from those that vfio has got by now."""
    known = {one.address: one for one in before.devices}
    given = {one.address for one in after.devices if one.is_on_vfio}
    kept = [one for one in after.devices if one.address not in given]
    assert [one.override for one in kept] == [known[one.address].override for one in kept]
    assert {one.address: one.virtual_count for one in kept} == {
        one.address: known[one.address].virtual_count for one in kept
    }


SECONDS = ("driver-b", "driver-a", "")
"""Where a second run may begin: in another pod, in the first one's own, by hand."""


def check_second_run_is_refused(name: str, call: int, pod: str) -> None:
    """At `call` of a run, another begins in `pod`. Raises AssertionError unless it is refused and changes nothing."""
    first = SCENARIOS[name]()
    refused: list[ExitCode] = []

    def second_run() -> None:
        before = first.state()
        outcome = second_run_of(first, pod).run()
        assert outcome is not None
        refused.append(outcome.exit_code)
        assert first.state() == before

    first.killer.at_call(call, second_run)
    outcome = first.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE, outcome
    assert refused == [ExitCode.OWNED_ELSEWHERE]
    assert first.state().labels == LABELS


def second_run_of(world: World, pod: str) -> World:
    """The same node and host, seen by a second process in `pod` ("": by hand)."""
    other = object.__new__(World)
    other.__dict__.update(world.__dict__)
    other.pod, other.pid = pod, world.pid + 1_000
    if pod and pod not in world.cluster.listed:
        world.cluster.add_pod(replace(driver_pod(), name=pod, uid=pod, selector_keys=frozenset({world.gate})))
    return other
