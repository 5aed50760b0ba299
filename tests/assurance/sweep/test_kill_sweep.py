"""The kill sweep: the real command line, killed before and after every effect of every path, loses nothing.

A submission kills at its share of the points. The points are those of a recorded run; each mutant at the end was found
by the judge that it is listed with.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path as File

import pytest

from tests.support.control_plane.api import wait_until
from tests.support.control_plane.runner import JOURNAL, NEW, NEW_ROOT, lighten
from tests.support.control_plane.sweep.scene import DEVICES, PATHS, Effect, Kill, Place, SweepNode, SweepPath
from tests.support.control_plane.sweep.sweeping import Figures, Point, Recording, each, judge, outcome, points, strike

pytestmark = pytest.mark.submission


Record = Callable[[SweepPath], Recording]
BY_NAME = {path.name: path for path in PATHS}
PAUSE = Effect(Place.API, "patch nodes", 1)


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_run_killed_anywhere_is_finished_by_the_next_and_nothing_is_lost(
    grounds: list[SweepNode], recordings: Record, figures: Figures, path: SweepPath
) -> None:
    began_s = time.monotonic()
    recording = recordings(path)
    work = [partial(strike, recording, point) for point in points(recording, figures.share)]
    judged = each(grounds, work)
    figures.add(recording, judged, time.monotonic() - began_s)
    lost = [str(one) for one in judged if str(one)]
    assert not lost, "\n".join([f"share {figures.share} of the kills:", *lost])


def test_every_path_has_writes_to_the_api_and_to_the_host(recordings: Record) -> None:
    for path in PATHS:
        assert {effect.place for effect in recordings(path).effects} == {Place.API, Place.HOST}


def test_writes_to_device_attributes_are_among_the_effects(recordings: Record) -> None:
    for name, attribute in (
        ("to-virtual-machines", "drivers_probe"),
        ("back-from-virtual-machines", f"devices/{DEVICES[0]}/driver/unbind"),
    ):
        effects = [effect.name for effect in recordings(BY_NAME[name]).effects]
        overrides = [f"write /sys/bus/pci/devices/{device}/driver_override" for device in DEVICES]
        assert {*overrides, f"write /sys/bus/pci/{attribute}"} <= set(effects), effects


def test_before_means_that_nothing_has_happened_and_after_that_all_of_it_has(
    grounds: list[SweepNode], recordings: Record
) -> None:
    path = BY_NAME["replace-by-manager"]
    (unload,) = (one for one in recordings(path).effects if one.name == "run rmmod -- rebellions")
    for after in (False, True):
        with grounds[0].scene(path) as scene:
            scene.killed(Kill(PAUSE, after))
            assert (JOURNAL in scene.sweep_node.node.annotations()) is after
        with grounds[0].scene(path) as scene:
            scene.killed(Kill(unload, after))
            assert (scene.command_runner.tree.driver_version == "not loaded") is after


def test_a_run_killed_together_with_its_half_done_modprobe_is_finished_by_the_next(
    grounds: list[SweepNode], recordings: Record
) -> None:
    recording = recordings(BY_NAME["replace-by-manager"])
    with grounds[0].scene(recording.path) as scene:
        tree = scene.command_runner.tree
        tree.add_driver(NEW_ROOT, NEW, seconds=30.0)
        run = scene.start()
        core = tree.root / "sys/module/rebellions_core/version"
        wait_until(lambda: core.exists() and core.read_text().strip() == NEW, "half of the new driver is loaded")
        tools = File(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        assert run.kill().code == -signal.SIGKILL
        for tool in map(int, tools):
            os.kill(tool, signal.SIGKILL)
        assert tree.driver_version == "not loaded"
        tree.add_driver(NEW_ROOT, NEW)
        lighten(tree)
        got = outcome(scene, scene.finished().code)
    lost = judge(recording.at_the_end, got, edits={}, uncovered="", pods=frozenset())
    assert not any(lost.values()), lost


def last(name: str) -> Callable[[Recording], Kill]:
    def found(recording: Recording) -> Kill:
        there = [one for one in recording.effects if one.place is Place.HOST and one.name.startswith(name)]
        return Kill(there[-1], after=True)

    return found


@pytest.mark.parametrize(
    ("mutant", "path", "kill", "judge"),
    [
        ("unconditional restore", "replace-by-manager", last("rename /run/rbln/.rbln-driver.state"), "lost labels"),
        ("always uncordon", "replace-by-container", lambda _: Kill(PAUSE, after=True), "lost cordons"),
        ("an effect that is not listed", "replace-by-manager", last("run modprobe"), "uncovered effects"),
    ],
)
def test_a_mutant_is_found(
    grounds: list[SweepNode], recordings: Record, mutant: str, path: str, kill: Callable[[Recording], Kill], judge: str
) -> None:
    recording = recordings(BY_NAME[path])
    point = Point(kill(recording), reboots=False)
    sound, broken = (strike(recording, point, grounds[0], name) for name in ("", mutant))
    assert str(sound) == ""
    assert broken.lost[judge], f"not found; what was: {broken}"
