"""Runs with KMM that are killed, ended or begun at any moment: no user loses the driver, and a good end is true."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest

from driver_manager.domain.errors import ExitCode
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.executions import run
from tests.support.fakes.kmm import ASKED, MODULE, READY, WORKERS, FakeKmm, kmm_world
from tests.support.fakes.scenarios import LABELS
from tests.support.fakes.world import World

JOURNAL = PROFILE.keys.journal
LATER_S = (0.0, 4.0, 7.0, 10.0, 13.0, 19.0, 60.0)
"""How long KMM goes on alone before the next run: each of its pieces of work takes 3 s."""

LONGEST_S = 45
"""An undisturbed run takes less."""


@cache
def count() -> int:
    """The effects of an undisturbed run."""
    world, _ = kmm_world()
    run(world)
    return len(world.killer.effects)


def killed_world(effect: int, later_s: float, *, after: bool, reboot: bool) -> tuple[World, FakeKmm]:
    world, kmm = kmm_world()
    world.killer.kill_at(effect, after=after)
    assert world.run() is None
    kmm.settle(later_s)
    if reboot:
        world.reboot()
        kmm.settle(later_s / 2)
    world.next_process()
    return world, kmm


def assert_changed(world: World, kmm: FakeKmm, version: str) -> None:
    outcome = run(world)
    assert outcome.exit_code is ExitCode.DONE, outcome
    kmm.settle(300.0)
    state = world.state()
    assert state.labels == {**LABELS, **dict.fromkeys((ASKED, WORKERS, READY), version)}
    assert (state.annotations, state.unschedulable) == ({}, False)
    assert (world.host.loaded["rebellions"], kmm.wrong) == (version, [])


@pytest.mark.shares(3)
@pytest.mark.parametrize("effect", range(count()))
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("version", ["1.0", "2.0", "3.0"])
def test_the_run_after_a_killed_one_brings_whatever_is_wanted_then(*, effect: int, after: bool, version: str) -> None:
    """The Module was changed in between, where another version is wanted than before."""
    for later_s, reboot, work_s in itertools.product(LATER_S, (False, True), (0.01, 3.0)):
        world, kmm = killed_world(effect, later_s, after=after, reboot=reboot)
        kmm.work_s = work_s
        kmm.offers, world.policy = version, replace(world.policy, kmm=replace(MODULE, version=version))
        assert_changed(world, kmm, version)


@pytest.mark.parametrize("moment_s", range(LONGEST_S))
def test_a_run_that_is_told_to_end_leaves_everything_to_the_next(moment_s: int) -> None:
    world, kmm = kmm_world()
    world.clock.after(moment_s + 0.5, world.clock.ask_to_end)
    run(world)
    world.next_process()
    assert_changed(world, kmm, "2.0")


@pytest.mark.parametrize("asked", ["", "1.0", "2.0", "3.0"])
@pytest.mark.parametrize("ready", ["", "1.0", "2.0"])
@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("loaded", ["", "1.0", "2.0"])
def test_from_every_state_a_good_end_is_true_and_nobody_loses_the_driver(
    asked: str,
    ready: str,
    has_begun: bool,
    reboot: bool,
    loaded: str,
) -> None:
    """A label that lies about a driver that somebody else has loaded cannot be told from a true one.

    What KMM had begun with by itself takes a minute: before that, no run could help.
    """
    world, kmm = kmm_world(loaded=loaded, asked=asked, ready=ready)
    if has_begun:
        kmm.hangs = True
        world.cluster.edit({WORKERS: None})
        world.clock.after(60.0, kmm.goes_on)
    if reboot:
        world.reboot()
    is_lie = not reboot and bool(loaded) and ready not in ("", loaded)
    outcome = run(world)
    kmm.settle(300.0)
    assert kmm.wrong == [] or is_lie
    assert outcome.exit_code is not ExitCode.DONE or is_lie or world.host.loaded.get("rebellions") == "2.0"
    if outcome.exit_code is ExitCode.DONE:
        assert JOURNAL not in world.state().annotations
