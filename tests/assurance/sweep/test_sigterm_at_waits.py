"""SIGTERM at every wait of the real command line: over within five seconds, and the node given back or held."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.kubelet import NEVER, NOTHING, of_others, shown
from tests.support.control_plane.processes import Ended, ForkedCommand
from tests.support.control_plane.runner import CORDON, JOURNAL, NEW, NEW_ROOT, OLD, PAUSED, PREFIX, SAFE_LOAD
from tests.support.control_plane.sweep.scene import (
    CLIENT,
    EXPORTER,
    MANAGED,
    OPERAND,
    PATHS,
    REQUESTED,
    TEAM,
    Scene,
    SweepNode,
    SweepPath,
)
from tests.support.control_plane.sweep.sweeping import Figures, outcome
from tests.support.fakes.pace import patient

pytestmark = pytest.mark.submission


LIMIT_S = 5.0
BY_NAME = {path.name: path for path in PATHS}
MARKER = "var/lib/ascend/.reboot-required"
JOBS = {"app": "job"}

Obstacle = Callable[[Scene], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Wait:
    """A wait: the path that gets there, what makes it wait until `obstacle` is left, and what it says when it waits."""

    name: str
    path: SweepPath
    obstacle: Obstacle
    says: str
    kept: dict[str, str] = field(default_factory=dict)
    takes: bool = True

    def __str__(self) -> str:
        return self.name


@contextlib.contextmanager
def operand_stays(scene: Scene) -> Iterator[None]:
    kubelet = scene.sweep_node.node.kubelet
    kubelet.stop_after(OPERAND, NEVER)
    yield
    kubelet.release(OPERAND)


@contextlib.contextmanager
def jobs_stay(scene: Scene) -> Iterator[None]:
    kubelet = scene.sweep_node.node.kubelet
    for job in scene.jobs:
        kubelet.stop_after(job.key, NEVER)
    yield
    kubelet.release()


@contextlib.contextmanager
def budget_refuses(scene: Scene) -> Iterator[None]:
    budget = scene.sweep_node.made.budget(JOBS, min_available=len(scene.jobs))
    yield
    budget.set_min_available(0)


@contextlib.contextmanager
def device_is_held(scene: Scene) -> Iterator[None]:
    scene.command_runner.tree.hold_device()
    yield
    refcnt = scene.command_runner.tree.root / "sys/module/rebellions/refcnt"
    refcnt.write_text("0\n")


@contextlib.contextmanager
def operator_sleeps(scene: Scene) -> Iterator[None]:
    node = scene.sweep_node.node
    node.api.patch(node.path, {"metadata": {"annotations": {MANAGED: "true"}}})
    yield
    node.api.patch(node.path, {"metadata": {"annotations": {MANAGED: None, REQUESTED: None}}})
    for job in scene.jobs:
        job.api.delete(job.path)
        job.wait_state("gone")


@contextlib.contextmanager
def jobs_run_on(scene: Scene) -> Iterator[None]:
    yield
    for job in scene.jobs:
        job.api.patch(f"{job.path}/status", {"status": {"phase": "Succeeded"}})


@contextlib.contextmanager
def operator_says_nothing(scene: Scene) -> Iterator[None]:
    yield


def slow(tree: HostTree, tool: str) -> Callable[[], object]:
    """Make a tool of the host take a second; how to make it quick again."""
    quick = tree.bin / f"{tool}-itself"
    (tree.bin / tool).rename(quick)
    (tree.bin / tool).write_text(f'#!/bin/sh\nsleep 1\nexec {shlex.quote(str(quick))} "$@"\n')
    (tree.bin / tool).chmod(0o755)
    return lambda: quick.replace(tree.bin / tool)


@contextlib.contextmanager
def driver_loads_slowly(scene: Scene) -> Iterator[None]:
    scene.command_runner.tree.add_driver(NEW_ROOT, NEW, seconds=1.0)
    yield
    scene.command_runner.tree.add_driver(NEW_ROOT, NEW)


REPLACE, EVICT = BY_NAME["replace-by-manager"], BY_NAME["eviction"]
IN_A_POD = replace(REPLACE, runs_in_pod=True, words=("--safe-load",))
COMPLETING = replace(EVICT, env={**EVICT.env, "WAIT_FOR_COMPLETION_SELECTOR": "app=job"})
MANAGED_ASLEEP = replace(BY_NAME["operator-managed"], is_managed=False)

WAITS = (
    Wait("operands", REPLACE, operand_stays, "operand pod(s) to terminate"),
    Wait("pods that were evicted", EVICT, jobs_stay, "is being evicted"),
    Wait("a disruption budget", EVICT, budget_refuses, "is refused"),
    Wait("a free device", REPLACE, device_is_held, "device in use"),
    Wait("pods that may complete", COMPLETING, jobs_run_on, "complete"),
    Wait(
        "an operator that moves pods",
        MANAGED_ASLEEP,
        operator_sleeps,
        "ask",
        {MANAGED: "true", REQUESTED: "true"},
        takes=False,
    ),
    Wait("an operator's word to load", IN_A_POD, operator_says_nothing, "safe", takes=False),
    Wait("a module that loads slowly", REPLACE, driver_loads_slowly, "] load rebellions"),
)


def terminated_at(scene: Scene, says: str, figures: Figures, name: str, *words: str) -> tuple[int, str]:
    """Start a run, end it where it `says` this; its exit code and what it said."""
    run = scene.start(None, *words)
    wait_until(lambda: says in run.log, f"{name}: it says {says!r}")
    if "safe" in says:
        wait_until(lambda: SAFE_LOAD in scene.sweep_node.node.annotations(), "the wait is announced")
    ended = end_in_time(run, figures, name)
    return ended.code, ended.err


def end_in_time(run: ForkedCommand, figures: Figures, name: str) -> Ended:
    began_s = time.monotonic()
    ended = run.terminate()
    assert ended.at_s - began_s < patient(LIMIT_S), ended.err
    figures.terminated(name, ended.at_s - began_s)
    return ended


@pytest.mark.parametrize("wait", WAITS, ids=str)
def test_a_run_that_waits_gives_the_node_back(sweep_node: SweepNode, figures: Figures, wait: Wait) -> None:
    with sweep_node.scene(wait.path) as scene:
        with wait.obstacle(scene):
            code, said = terminated_at(scene, wait.says, figures, wait.name)
            node = sweep_node.node.read()
            assert code == 10, said
            assert of_others(node["metadata"]["labels"]) == sweep_node.labels
            assert of_others(node["metadata"].get("annotations", {})) == wait.kept
            assert shown(node) == (("failed", 10) if wait.takes else NOTHING)
            assert "unschedulable" not in node["spec"]
            is_loaded = scene.command_runner.tree.driver_version
            assert is_loaded == (NEW if wait.obstacle is driver_loads_slowly else OLD)
        finish(replace(scene.path, words=()), scene)


def finish(path: SweepPath, scene: Scene) -> None:
    """The next run, undisturbed, does what is to be done."""
    scene.path = path
    ended = scene.finished()
    assert ended.code == 0, ended.err
    node = scene.sweep_node.node.read()
    assert of_others(node["metadata"]["labels"]) == scene.sweep_node.labels
    assert shown(node) == ("ready", 0)
    assert JOURNAL not in node["metadata"].get("annotations", {})
    assert "unschedulable" not in node["spec"]


def test_a_run_that_waits_for_a_clients_budget_has_given_the_node_back_and_the_next_one_goes_on(
    sweep_node: SweepNode, figures: Figures
) -> None:
    with sweep_node.scene(BY_NAME["clients"]) as scene:
        budget = sweep_node.made.budget(CLIENT.labels, min_available=1, namespace=TEAM)
        code, said = terminated_at(scene, "is refused", figures, "a client's budget")
        assert code == 0, said
        node = sweep_node.node.read()
        assert of_others(node["metadata"]["labels"]) == sweep_node.labels
        assert shown(node) == ("ready", 0)
        assert scene.command_runner.tree.driver_version == NEW
        assert outcome(scene, code).restarts == {EXPORTER: (0,)}
        budget.set_min_available(0)
        finish(scene.path, scene)
        found = outcome(scene, 0)
        assert (found.restarts, found.untold) == ({EXPORTER: (1,)}, ())


def test_a_run_whose_old_driver_is_gone_holds_the_node(sweep_node: SweepNode, figures: Figures) -> None:
    path = replace(BY_NAME["replace-by-container"], is_cordoned=False)
    with sweep_node.scene(path) as scene:
        quick = slow(scene.command_runner.tree, "umount")
        code, said = terminated_at(scene, "unmount", figures, "a host without its driver")
        assert code == 10, said
        assert scene.command_runner.tree.driver_version == "not loaded"
        node = sweep_node.node.read()["metadata"]
        assert node["labels"][f"{PREFIX}{OPERAND}"] == PAUSED
        assert {JOURNAL, CORDON} <= node["annotations"].keys()
        quick()
        finish(path, scene)


def test_a_hold_for_a_reboot_ends_with_exit_code_9_and_the_request_stays(
    sweep_node: SweepNode, figures: Figures
) -> None:
    with sweep_node.scene(replace(BY_NAME["reboot-required"], words=())) as scene:
        code, said = terminated_at(scene, "hold", figures, "a reboot")
        assert code == 9, said
        assert sweep_node.node.labels()["npu.openfuyao.com/reboot-required"] == "true"
        assert (scene.command_runner.tree.root / MARKER).exists()
        assert "unschedulable" not in sweep_node.node.read()["spec"]


def test_without_the_api_server_it_ends_in_time_all_the_same_and_the_next_run_gives_back(
    sweep_node: SweepNode, figures: Figures
) -> None:
    with sweep_node.scene(REPLACE) as scene:
        with operand_stays(scene):
            run = scene.start()
            wait_until(lambda: "operand pod(s) to terminate" in run.log, "it waits for the operand")
            sweep_node.proxy.go_away(600.0)
            ended = end_in_time(run, figures, "an API server that is gone")
            assert (ended.code, "the next run releases it" in ended.err) == (10, True), ended.err
            assert JOURNAL in sweep_node.node.annotations()
            assert scene.command_runner.tree.driver_version == OLD
            sweep_node.proxy.go_away(0.0)  # it is back
        finish(REPLACE, scene)
