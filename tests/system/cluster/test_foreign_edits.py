"""Others act on a node during every wait of a run: whoever edits wins, nothing else is lost, nothing of ours stays.

Pairs of hand and wait are played at once, hands that touch different things in one run, each run on its own node. A
submission plays one share of the runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.support.control_plane.api import Api
from tests.support.control_plane.faults import ALWAYS, Answer, Fault
from tests.support.control_plane.foreign_edits import HANDS, WAITS, Hand, Wait, play, plays, wanted
from tests.support.control_plane.runner import NEW
from tests.support.control_plane.scene import Left, World, make_stage, open_world
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.selection import Share, share

AT_ONCE = 8
SHARES = 3
PLAYS = plays(share(SHARES))
PAIRS = [(wait, hand) for wait, hands in PLAYS for hand in hands]
MUTANTS = [
    ("unconditional restore", "eviction", "edits-to-false"),
    ("unconditional restore", "device", "deletes-label"),
    ("always uncordon", "operands", "cordons-anew"),
    ("always uncordon", "safe-load", "cordons"),
    ("keep the journal", "drain", "adds-missing-label"),
    ("adopt every pause", "completion", "pauses-one-that-is-off"),
]
Judged = tuple[tuple[int, Left], tuple[int, Left], str]


def name_of(pair: tuple[Wait, Hand]) -> str:
    return f"{pair[1].name}-during-{pair[0].name}"


def play_of(pair: tuple[Wait, Hand]) -> tuple[str, str]:
    """The run in which the pair is played."""
    return pair[0].name, pair[1].bundle


def judged(world: World, wait: Wait, hands: Sequence[Hand], mutant: str = "") -> Judged:
    """What was left, what had to be, and the run's log."""
    name = f"{wait.name}-{hands[0].bundle}-{mutant}"
    with contextlib.ExitStack() as stack:
        scene = make_stage(stack, world, name, wait.profile)
        found = play(scene, wait, hands, mutant)
        return found, wanted(scene, wait, hands), scene.current.log


@pytest.fixture(scope="module")
def world(
    control_plane: ControlPlane,
    agent_for_workloads: User,
    admin_api: Api,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    with open_world(control_plane, agent_for_workloads, admin_api, tmp_path_factory.mktemp("world")) as made:
        yield made


Played = dict[tuple[str, str], Future[Judged]]


@pytest.fixture(scope="module")
def played(world: World, request: pytest.FixtureRequest) -> Iterator[Played]:
    """The run of every selected pair, under way."""
    selected = {item.callspec.id for item in request.session.items if hasattr(item, "callspec")}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            play_of((wait, hands[0])): pool.submit(judged, world, wait, hands)
            for wait, hands in PLAYS
            if any(name_of((wait, hand)) in selected for hand in hands)
        }


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_whoever_acts_wins_and_nothing_else_is_lost(played: Played, pair: tuple[Wait, Hand]) -> None:
    found, expected, log = played[play_of(pair)].result()
    assert found == expected, f"{found}\nexpected:\n{expected}\n{log}"


def test_every_wait_meets_every_hand_that_means_something_in_it() -> None:
    every = plays(Share())
    pairs = {(hand.name, wait.name) for wait, hands in every for hand in hands}
    print(f"pairs of hand and wait: {len(pairs)}, in {len(every)} runs; share {share(SHARES)}: {len(PAIRS)} pairs")
    left_out = {(hand.name, wait.name) for hand in HANDS for wait in WAITS} - pairs
    assert len(pairs) == len(HANDS) * len(WAITS) - len(left_out) == sum(len(hands) for _, hands in every)
    assert {wait for _, wait in left_out} == {"completion", "safe-load", "operator", "reboot"}
    assert len(pairs) >= 130


@pytest.mark.parametrize(("mutant", "wait_name", "hand_name"), MUTANTS, ids=lambda value: value)
def test_a_mutant_is_caught(world: World, mutant: str, wait_name: str, hand_name: str) -> None:
    wait = next(wait for wait in WAITS if wait.name == wait_name)
    hand = next(hand for hand in HANDS if hand.name == hand_name)
    found, expected, log = judged(world, wait, [hand], mutant)
    assert found != expected, log


def test_a_node_that_never_stops_changing_ends_the_run_after_a_bounded_number_of_requests(world: World) -> None:
    wait = next(wait for wait in WAITS if wait.name == "device")
    with contextlib.ExitStack() as stack:
        scene = make_stage(stack, world, "never-stops-changing")
        wait.reach(scene)
        world.proxy.add(Fault(Answer(409), "patch", "nodes", path=f"/{scene.node.name}$", times=ALWAYS))
        mark = world.proxy.mark()
        wait.end(scene)
        assert scene.current.end().code == 8, scene.current.log
        asked = [one for one in world.proxy.exchanges(since=mark) if scene.node.name in one.request.path]
        assert len(asked) <= 45, "two rounds of ten reads and ten patches, and an event"
        assert scene.is_taken()
        direct = {"KUBECONFIG": str(world.plane.kubeconfig(world.user.token))}
        assert scene.start(env=direct).end().code == 0
        assert Left.of(scene) == Left(scene.labels, driver=NEW)
