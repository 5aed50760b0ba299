"""Two runs on one node, as real processes: at every moment one has it, and who was superseded does nothing more.

A run is stopped (SIGSTOP) at each of its calls to the outside, as recorded from an undisturbed run. Meanwhile a second
one is refused, and a third one takes over; then the first is continued (SIGCONT).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from driver_manager.domain.node import PROGRAM
from driver_manager.profiles import builtin
from driver_manager.sandbox import fake_tools
from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.faults import ALWAYS, Answer, Fault
from tests.support.control_plane.foreign_edits import HANDS, WAITS, Hand, Wait, play, plays, wanted
from tests.support.control_plane.kubelet import create_operands
from tests.support.control_plane.processes import EFFECTS, Ended, ForkedCommand, Orders
from tests.support.control_plane.runner import ASCEND_OLD, ASCEND_ROOT, NEW, NEW_DIGEST, OLD
from tests.support.control_plane.scene import Left, NodeScene, World, make_stage, open_world
from tests.support.control_plane.servers import NAMESPACE, ControlPlane
from tests.support.control_plane.workloads import Shape
from tests.support.selection import Share, share

PLAYS_AT_ONCE = 8
SHARES = 6
PLAYS = plays(share(SHARES))
MUTANTS = [("unconditional restore", "eviction", "edits-to-false"), ("always uncordon", "operands", "cordons-anew")]


def problem(world: World, wait: Wait, hands: Sequence[Hand], mutant: str = "") -> str:
    """How what the run left differs from what had to be, with its log; "" where it does not."""
    name = f"{wait.name}-{hands[0].bundle}-{mutant}"
    with contextlib.ExitStack() as stack:
        scene = make_stage(stack, world, name, wait.profile)
        scene.mutant = mutant
        found, expected = play(scene, wait, hands), wanted(scene, wait, hands)
        return "" if found == expected else f"{name}: {found}\nexpected:\n{expected}\n{scene.current.log}"


def test_an_edit_during_a_wait_wins_and_nothing_else_is_lost(world: World) -> None:
    print(f"share {share(SHARES)}: {sum(len(hands) for _, hands in PLAYS)} pairs of hand and wait in {len(PLAYS)} runs")
    with ThreadPoolExecutor(PLAYS_AT_ONCE) as pool:
        problems = list(pool.map(lambda one: problem(world, *one), PLAYS))
    assert not any(problems), "\n".join(problems)


def test_every_wait_meets_every_hand_that_means_something_in_it() -> None:
    pairs = [(hand.name, wait.name) for wait, hands in plays(Share()) for hand in hands]
    left_out = {(hand.name, wait.name) for hand in HANDS for wait in WAITS} - set(pairs)
    assert len(pairs) == len(set(pairs)) == len(HANDS) * len(WAITS) - len(left_out) >= 130
    assert {wait for _, wait in left_out} == {"completion", "safe-load", "operator", "reboot"}


@pytest.mark.shares(6)
@pytest.mark.parametrize(("mutant", "wait_name", "hand_name"), MUTANTS, ids=lambda value: value)
def test_a_mutant_is_caught(world: World, mutant: str, wait_name: str, hand_name: str) -> None:
    wait = next(wait for wait in WAITS if wait.name == wait_name)
    hand = next(hand for hand in HANDS if hand.name == hand_name)
    assert problem(world, wait, [hand], mutant)


def test_a_node_that_never_stops_changing_ends_the_run_after_a_bounded_number_of_requests(world: World) -> None:
    wait = next(wait for wait in WAITS if wait.name == "device")
    with contextlib.ExitStack() as stack:
        scene = make_stage(stack, world, "never-stops-changing")
        wait.reach(scene)
        world.proxy.script.add(Fault(Answer(409), "patch", "nodes", path=f"/{scene.node.name}$", times=ALWAYS))
        mark = world.proxy.mark()
        wait.end(scene)
        assert scene.current.end().code == 8, scene.current.log
        asked = [one for one in world.proxy.exchanges(since=mark) if scene.node.name in one.request.path]
        assert len(asked) <= 45, "two rounds of ten reads and ten patches, and an event"
        assert scene.is_taken()
        direct = {"KUBECONFIG": str(world.plane.kubeconfig(world.user.token))}
        assert scene.start(env=direct).end().code == 0
        assert Left.of(scene) == Left(scene.labels, driver=NEW)


SERVICE = "rbln_daemon.service"
AGAIN = ("--force-reinstall", "--stop-host-services")
BY_HAND = {"POD_NAME": ""}
FENCED = frozenset(EFFECTS)
"""Effects during which no other run takes over."""

IMPATIENT = Orders(turn_s=0.3)
AT_ONCE = 4
ROUNDS = 8


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, admin_api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with open_world(control_plane, control_plane.agent_for_workloads, admin_api, folder) as made:
        yield made


@pytest.fixture
def scene(world: World, request: pytest.FixtureRequest) -> Iterator[NodeScene]:
    with contextlib.ExitStack() as stack:
        yield new_stage(stack, world, request.node.name)


def new_stage(stack: contextlib.ExitStack, world: World, name: str) -> NodeScene:
    made = make_stage(stack, world, name)
    made.command_runner.tree.start_service(SERVICE)
    return made


def driver_load(scene: NodeScene) -> tuple[str, int]:
    """What no two loads of the driver have in common."""
    path = scene.command_runner.tree.root / "sys/module/rebellions"
    return scene.command_runner.tree.driver_version, path.stat().st_mtime_ns if path.exists() else 0


def assert_given_back(scene: NodeScene) -> None:
    assert Left.of(scene) == Left(scene.labels, driver=NEW)
    assert (scene.command_runner.tree.digest, scene.command_runner.tree.services) == (NEW_DIGEST, [SERVICE])


@dataclass(frozen=True)
class Blow:
    """The exit codes of three runs: one refused, one that took over, and the first, which was stopped at `point`.

    `done_after` are the first one's effects on the driver once it was continued.
    """

    point: str
    refused: int
    taken_over: int
    first: int
    was_touched: bool
    done_after: tuple[str, ...]


def moments(scene: NodeScene) -> tuple[list[str], list[tuple[int, str]]]:
    """The calls of an undisturbed run, and the moments at which it has the node: a call's number, before or after."""
    run = scene.start(*AGAIN)
    assert run.end().code == 0, run.log
    calls = run.calls
    first = calls.index("patch_node")
    last = max(number for number, call in enumerate(calls) if call.startswith("patch_node"))
    points = [(first, "after"), *((number, "before") for number in range(first + 1, last + 1))]
    return calls, points


def blow(scene: NodeScene, calls: list[str], number: int, when: str) -> Blow:
    """Stop a run there; a second, a third, and then the first goes on."""
    first = scene.start(*AGAIN, orders=Orders(stops=(f"{number} {when}",)))
    assert first.wait_stopped(), first.log
    assert first.calls == calls[: number + 1], "another run than the one recorded"
    second = scene.start(*AGAIN, env=BY_HAND).end()
    third = scene.start(*AGAIN, "--take-over", env=BY_HAND, orders=IMPATIENT).end()
    before = driver_load(scene)
    first.go_on()
    ended = first.end()
    was_touched = driver_load(scene) != before
    done = tuple(call for call in first.calls[number + 1 :] if call in FENCED)
    assert_given_back(scene)
    return Blow(f"{when} {calls[number]} ({number})", second.code, third.code, ended.code, was_touched, done)


@pytest.mark.shares(6)
def test_at_every_moment_a_second_run_is_refused_and_one_that_takes_over_is_not_disturbed_by_the_first(
    world: World,
) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as pool:
        stages = [new_stage(stack, world, f"moment-{number}") for number in range(AT_ONCE)]
        calls, points = moments(stages[0])
        for scene in stages[1:]:
            assert moments(scene) == (calls, points)

        def deal(one: int) -> list[Blow]:
            return [blow(stages[one], calls, *point) for point in points[one::AT_ONCE]]

        blows = [found for dealt in pool.map(deal, range(AT_ONCE)) for found in dealt]
    print(f"moments at which a run was stopped: {len(blows)}")
    assert len(blows) >= 15
    for one in blows:
        assert one.refused == 11, one
        if one.point.split()[1] in FENCED or one.point.startswith("after"):  # in the middle of an effect
            assert (one.taken_over, one.first) == (11, 0), one
        else:
            assert (one.taken_over, one.first) in ((0, 11), (0, 0)), one
            # One that finds the node released removes its own record, which the run that took over has removed already.
            own_record = ("remove",) if one.first == 0 else ()
            assert (one.was_touched, one.done_after) in ((False, ()), (False, own_record)), one
    assert {one.first for one in blows if not one.taken_over} == {0, 11}


@pytest.mark.shares(6)
def test_two_that_start_at_the_same_instant_never_both_take_the_node(scene: NodeScene) -> None:
    winners = set()
    for _ in range(ROUNDS):
        scene.command_runner.hold_unread()
        pair = [scene.start(*AGAIN, env=env, orders=Orders(stops=("0 before",))) for env in ({}, BY_HAND)]
        assert all(run.wait_stopped() for run in pair)
        for run in pair:
            run.go_on()
        wait_until(lambda pair=pair: any(run.has_ended for run in pair), "one is refused")  # type: ignore[misc]
        (loser,) = [run for run in pair if run.has_ended]
        (winner,) = [run for run in pair if run is not loser]
        assert loser.end().code == 11, loser.log
        winner.wait_log("device in use")
        fake_tools.count(scene.command_runner.tree.root / "sys/module/rebellions", -1)
        assert winner.end().code == 0, winner.log
        assert_given_back(scene)
        winners.add(pair.index(winner))
    print(f"races: {ROUNDS}, won by {sorted(winners)}")


def test_a_driver_that_only_a_reboot_changes_is_loaded_by_one_run_at_a_time(world: World) -> None:
    with contextlib.ExitStack() as stack:
        scene = make_stage(stack, world, "boot", "ascend", loaded=False)
        tree, env = scene.command_runner.tree, {"DRIVER_ROOT": ASCEND_ROOT}
        tree.add_driver(ASCEND_ROOT, ASCEND_OLD)
        first = scene.start(env=env, orders=Orders(stops=("load before",)))
        assert first.wait_stopped(), first.log
        refused = scene.start(env={**env, **BY_HAND}).end()
        taking_over = scene.start("--take-over", env={**env, **BY_HAND}, orders=IMPATIENT).end()
        assert (refused.code, taking_over.code) == (11, 11), (refused.err, taking_over.err)
        assert "another run is changing the driver" in taking_over.err
        assert tree.driver_version == "not loaded"
        first.go_on()
        assert first.end().code == 0, first.log
        assert (tree.driver_version, tree.digest) == (ASCEND_OLD, NEW_DIGEST)
        assert scene.node.labels() == scene.labels
        assert builtin()["ascend"].keys.journal not in scene.node.annotations()


def superseded_by_a_force_deleted_pod(scene: NodeScene, mutant: str = "") -> tuple[Ended, Ended, bool]:
    """The first run's pod is gone by force, and the process is not; the run of the next pod takes the node."""
    scene.command_runner.hold_unread()
    scene.mutant = mutant
    first = scene.start(*AGAIN)
    first.wait_log("device in use")
    first.stop()
    scene.own.api.delete(scene.own.path, grace_s=0)
    scene.own.wait_state("gone")
    heir = scene.pods.pod(Shape(npus=0, command=(PROGRAM,)), namespace=NAMESPACE)
    fake_tools.count(scene.command_runner.tree.root / "sys/module/rebellions", -1)
    second = scene.start(*AGAIN, env={"POD_NAME": heir.name}).end()
    before = driver_load(scene)
    first.go_on()
    return first.end(), second, driver_load(scene) != before


def test_the_process_of_a_pod_deleted_by_force_does_nothing_more_once_the_next_pod_has_the_node(
    scene: NodeScene,
) -> None:
    first, second, was_touched = superseded_by_a_force_deleted_pod(scene)
    assert (first.code, second.code, was_touched) == (11, 0, False), first.err
    assert "was taken over by" in first.err or "taken over" in first.last_line
    assert_given_back(scene)


def test_a_run_that_sleeps_while_its_node_is_given_back_by_hand_leaves_the_driver_alone(scene: NodeScene) -> None:
    first = scene.start(*AGAIN, orders=Orders(stops=("unload before",)))
    assert first.wait_stopped(), first.log
    refused = scene.start("--take-over", command="restore", env=BY_HAND, orders=IMPATIENT).end()
    assert (refused.code, "another run is changing the driver" in refused.err) == (11, True)
    first.kill()
    scene.command_runner.hold_unread()
    second = scene.start(*AGAIN)
    second.wait_log("device in use")
    second.stop()
    assert scene.start("--take-over", command="restore", env=BY_HAND).end().code == 0
    fake_tools.count(scene.command_runner.tree.root / "sys/module/rebellions", -1)
    second.go_on()
    assert second.end().code == 11, second.log
    assert Left.of(scene) == Left(scene.labels, driver=OLD, state="failed")


def test_a_run_without_the_fence_is_caught(scene: NodeScene) -> None:
    _, second, was_touched = superseded_by_a_force_deleted_pod(scene, "no fence")
    assert (second.code, was_touched) == (0, True)


def test_an_operators_state_machine_and_the_run_change_the_node_at_the_same_moments(scene: NodeScene) -> None:
    """Each of our patches meets a change of the operator's; its labels and its cordon are as it left them."""
    key, states = "rebellions.ai/npu-driver-upgrade-state", iter(("cordon-required", "drain-required", "upgrade-done"))
    run: ForkedCommand = scene.start(*AGAIN, orders=Orders(stops=("patch_node before",)))
    last = ""
    while run.wait_stopped():
        last = next(states, last)
        scene.node.set_labels({key: last})
        if last == "drain-required":
            scene.patch({"spec": {"unschedulable": True}})
        run.go_on()
    assert run.end().code == 0, run.log
    assert last == "upgrade-done"
    assert Left.of(scene) == Left({**scene.labels, key: last}, is_cordoned=True, driver=NEW)


@pytest.mark.parametrize(("sets_back", "code", "driver"), [((2,), 0, NEW), ((2, 4), 3, OLD)], ids=["once", "twice"])
def test_a_label_that_an_operator_sets_back_before_the_unload(
    scene: NodeScene, sets_back: tuple[int, ...], code: int, driver: str
) -> None:
    """The second GET of a run is its look before the first module, the third is part of the pause."""
    placed = create_operands(scene.stack, scene.world.api, scene.node, ("device-plugin",))
    scene.labels = scene.node.labels()
    (key,) = placed.deploy_labels.values()
    run: ForkedCommand = scene.start(*AGAIN, orders=Orders(stops=("node before",)))
    number = 0
    while run.wait_stopped():
        number += 1
        if number in sets_back:
            scene.node.set_labels({key: "true"})
        run.go_on()
    ended = run.end()
    assert ended.code == code, run.log
    assert f" switched {key} on, while operands are to stay away; pausing again" in ended.err
    assert ("for the second time" in ended.err) is (code == 3)
    assert Left.of(scene) == Left(scene.labels, driver=driver, state="failed" if code else "ready")
    placed.wait_running()
