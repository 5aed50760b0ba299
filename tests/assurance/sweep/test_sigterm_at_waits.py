"""SIGTERM where the real command line waits: over within five seconds, and the node given back or held.

The waits that an administrator can meet get it in tests/system/cluster/test_two_runs.py, where their pod is deleted.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import replace

import pytest

from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.kubelet import NEVER, of_others, shown
from tests.support.control_plane.processes import Ended, ForkedCommand
from tests.support.control_plane.runner import CORDON, JOURNAL, NEW, NEW_ROOT, OLD, PAUSED, PREFIX
from tests.support.control_plane.sweep.scene import CLIENT, EXPORTER, OPERAND, PATHS, TEAM, Scene, SweepNode
from tests.support.control_plane.sweep.sweeping import Figures, outcome
from tests.support.fakes.pace import patient

pytestmark = pytest.mark.submission

LIMIT_S = 5.0
BY_NAME = {path.name: path for path in PATHS}
REPLACE = BY_NAME["replace-by-manager"]


def terminated_at(scene: Scene, says: str, figures: Figures, name: str) -> Ended:
    """Start a run, and end it where it `says` this."""
    run = scene.start()
    wait_until(lambda: says in run.log, f"{name}: it says {says!r}")
    return end_in_time(run, figures, name)


def end_in_time(run: ForkedCommand, figures: Figures, name: str) -> Ended:
    began_s = time.monotonic()
    ended = run.terminate()
    assert ended.at_s - began_s < patient(LIMIT_S), ended.err
    figures.terminated(name, ended.at_s - began_s)
    return ended


def check_given_back(scene: Scene, state: tuple[str, int]) -> None:
    node = scene.sweep_node.node.read()
    assert of_others(node["metadata"]["labels"]) == scene.sweep_node.labels
    assert of_others(node["metadata"].get("annotations", {})) == {}
    assert shown(node) == state
    assert "unschedulable" not in node["spec"]


def finish(scene: Scene) -> None:
    """The next run, undisturbed, does what is to be done."""
    ended = scene.finished()
    assert ended.code == 0, ended.err
    check_given_back(scene, ("ready", 0))


def test_a_run_that_waits_for_a_disruption_budget_gives_the_node_back(sweep_node: SweepNode, figures: Figures) -> None:
    with sweep_node.scene(BY_NAME["eviction"]) as scene:
        budget = sweep_node.made.budget({"app": "job"}, min_available=len(scene.jobs))
        ended = terminated_at(scene, "is refused", figures, "a disruption budget")
        assert ended.code == 10, ended.err
        check_given_back(scene, ("failed", 10))
        assert scene.command_runner.tree.driver_version == OLD
        budget.set_min_available(0)
        finish(scene)


def test_a_run_whose_module_loads_slowly_gives_the_node_back_with_the_new_driver(
    sweep_node: SweepNode, figures: Figures
) -> None:
    with sweep_node.scene(REPLACE) as scene:
        scene.command_runner.tree.add_driver(NEW_ROOT, NEW, seconds=1.0)
        ended = terminated_at(scene, "] load rebellions", figures, "a module that loads slowly")
        assert ended.code == 10, ended.err
        check_given_back(scene, ("failed", 10))
        assert scene.command_runner.tree.driver_version == NEW
        scene.command_runner.tree.add_driver(NEW_ROOT, NEW)
        finish(scene)


def test_a_run_that_waits_for_a_clients_budget_has_given_the_node_back_and_the_next_one_goes_on(
    sweep_node: SweepNode, figures: Figures
) -> None:
    with sweep_node.scene(BY_NAME["clients"]) as scene:
        budget = sweep_node.made.budget(CLIENT.labels, min_available=1, namespace=TEAM)
        ended = terminated_at(scene, "is refused", figures, "a client's budget")
        assert ended.code == 0, ended.err
        check_given_back(scene, ("ready", 0))
        assert scene.command_runner.tree.driver_version == NEW
        assert outcome(scene, ended.code).restarts == {EXPORTER: (0,)}
        budget.set_min_available(0)
        finish(scene)
        found = outcome(scene, 0)
        assert (found.restarts, found.without_event) == ({EXPORTER: (1,)}, ())


def slow(tree: HostTree, tool: str) -> None:
    quick = tree.bin / f"{tool}-quick"
    (tree.bin / tool).rename(quick)
    (tree.bin / tool).write_text(f'#!/bin/sh\nsleep 1\nexec {shlex.quote(str(quick))} "$@"\n')
    (tree.bin / tool).chmod(0o755)


def test_a_run_whose_old_driver_is_gone_holds_the_node(sweep_node: SweepNode, figures: Figures) -> None:
    with sweep_node.scene(replace(BY_NAME["replace-by-container"], is_cordoned=False)) as scene:
        slow(scene.command_runner.tree, "umount")
        ended = terminated_at(scene, "unmount", figures, "a host without its driver")
        assert ended.code == 10, ended.err
        assert scene.command_runner.tree.driver_version == "not loaded"
        node = sweep_node.node.read()["metadata"]
        assert node["labels"][f"{PREFIX}{OPERAND}"] == PAUSED
        assert {JOURNAL, CORDON} <= node["annotations"].keys()
        finish(scene)


def test_without_the_api_server_it_ends_in_time_all_the_same_and_the_next_run_gives_back(
    sweep_node: SweepNode, figures: Figures
) -> None:
    with sweep_node.scene(REPLACE) as scene:
        sweep_node.node.kubelet.stop_after(OPERAND, NEVER)
        run = scene.start()
        wait_until(lambda: "operand pod(s) to terminate" in run.log, "it waits for the operand")
        sweep_node.proxy.go_away(600.0)
        ended = end_in_time(run, figures, "an API server that is gone")
        assert (ended.code, "the next run releases it" in ended.err) == (10, True), ended.err
        assert JOURNAL in sweep_node.node.annotations()
        assert scene.command_runner.tree.driver_version == OLD
        sweep_node.proxy.go_away(0.0)  # it is back
        sweep_node.node.kubelet.release(OPERAND)
        finish(scene)
