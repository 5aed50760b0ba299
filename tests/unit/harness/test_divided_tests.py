"""What the cluster tier divides into shares: the shares together are everything, each once."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.control_plane import fault_kinds
from tests.support.control_plane.fault_kinds import KINDS, Asked, cells
from tests.support.control_plane.foreign_edits import HANDS, WAITS, plays
from tests.support.control_plane.sweep import sweeping
from tests.support.control_plane.sweep.scene import PATHS, Effect, Place
from tests.support.control_plane.sweep.sweeping import Outcome, Recording, points
from tests.support.selection import Share

ASKED = {
    "full": tuple(Asked(verb, "nodes", nth) for verb in ("get", "patch") for nth in (1, 2, 3)),
    "evict": (Asked("list", "pods", 1), Asked("watch", "pods", 1), Asked("create", "pods/eviction", 1)),
}
EFFECTS = dict(zip(map(str, PATHS), (29, 23, 10, 10, 13, 29, 29, 31, 12, 27, 38, 40, 29, 18, 16), strict=True))
"""How many effects each path has at the time of writing."""


NOTHING = Outcome.__new__(Outcome)
RECORDINGS = [
    Recording(path, tuple(Effect(Place.HOST, "write", at) for at in range(EFFECTS[str(path)])), NOTHING, NOTHING)
    for path in PATHS
]
"""A recording of each path, with as many effects as it has."""


def shares(count: int) -> list[Share]:
    return [Share(index, count) for index in range(1, count + 1)]


@pytest.mark.parametrize("count", [*range(1, 8), sweeping.SHARES])
def test_the_shares_of_the_kill_sweep_are_every_kill_once(count: int) -> None:
    swept = [(one.path, point) for share in shares(count) for one in RECORDINGS for point in points(one, share)]
    every = {(one.path, kill, False) for one in RECORDINGS for kill in one.kills}
    every |= {(one.path, kill, True) for one in RECORDINGS for kill in one.kills if kill.after}
    every |= {(one.path, one.kills[0], True) for one in RECORDINGS}
    assert Counter((path, point.kill, point.reboots) for path, point in swept) == dict.fromkeys(every, 1)
    reboots = sum(point.reboots for _, point in swept)
    assert (len(RECORDINGS), sum(EFFECTS.values()), len(swept), reboots) == (15, 354, 1077, 369)


@pytest.mark.parametrize("count", [*range(1, 8), sweeping.SHARES])
def test_each_share_of_the_kill_sweep_kills_on_every_path(count: int) -> None:
    for share in shares(count):
        for swept in (points(recording, share) for recording in RECORDINGS):
            assert {point.reboots for point in swept} == {True, False}
            if count % 2:
                assert {point.kill.after for point in swept if not point.reboots} == {True, False}


@pytest.mark.parametrize("count", [*range(1, 8), fault_kinds.SHARES])
def test_the_shares_of_the_fault_matrix_are_every_cell_once(count: int) -> None:
    every = cells(ASKED, Share())
    parts = [cells(ASKED, share) for share in shares(count)]
    assert Counter(cell for part in parts for cell in part) == dict.fromkeys(every, 1)
    assert {cell.kind for cell in every} == {kind.name for kind in KINDS}
    for part in parts:
        met = Counter((cell.route, cell.asked) for cell in part)
        assert met.keys() == {(route, asked) for route in ASKED for asked in ASKED[route]}


@pytest.mark.parametrize("count", range(1, 8))
def test_the_shares_of_the_edits_by_others_are_every_pair_of_wait_and_hand_once(count: int) -> None:
    every = [(wait.name, hand.name) for hand in HANDS for wait in WAITS if hand.fits(wait)]
    parts = [[(wait.name, hand.name) for wait, hands in plays(share) for hand in hands] for share in shares(count)]
    assert sorted(pair for part in parts for pair in part) == sorted(every)
    assert all(parts)
