"""Reconcile, health-watch and rebooter side by side on one node, as real processes with a real API server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.domain.reboot.decision import CORDON_FOR_REBOOT
from driver_manager.profiles import builtin
from driver_manager.sandbox import fake_tools
from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.foreign_edits import ASCEND_OLD, ASCEND_ROOT
from tests.support.control_plane.processes import running
from tests.support.control_plane.runner import OLD_ROOT
from tests.support.control_plane.scene import NodeScene, World, make_stage, open_world
from tests.support.control_plane.servers import ControlPlane, User

ASCEND, REBELLIONS = builtin()["ascend"], builtin()["rebellions"]
KEYS = ASCEND.keys


@pytest.fixture
def world(control_plane: ControlPlane, agent_for_workloads: User, admin_api: Api, tmp_path: Path) -> Iterator[World]:
    with open_world(control_plane, agent_for_workloads, admin_api, tmp_path) as made:
        yield made


@pytest.fixture
def swappable(world: World) -> Iterator[NodeScene]:
    """A node whose driver can be swapped, and is ready."""
    with contextlib.ExitStack() as stack:
        made = make_stage(stack, world, "node")
        ready = on_host(made, REBELLIONS.paths.ready_marker)
        ready.parent.mkdir(parents=True)
        ready.write_text("DRIVER=1\n")
        yield made


@pytest.fixture
def rebooted(world: World) -> Iterator[NodeScene]:
    """A node whose driver only a reboot changes."""
    with contextlib.ExitStack() as stack:
        made = make_stage(stack, world, "node", "ascend")
        made.command_runner.tree.add_driver(ASCEND_ROOT, ASCEND_OLD)
        made.command_runner.tree.load(ASCEND_ROOT)
        made.command_runner.tree.record("old", ASCEND_ROOT, ASCEND_OLD)
        yield made


def on_host(scene: NodeScene, path: str) -> Path:
    return scene.command_runner.tree.root / path.lstrip("/")


def watch_environment(scene: NodeScene, profile: str, root: str) -> dict[str, str]:
    return scene.command_runner.environment(DRIVER_PROFILE=profile, DRIVER_ROOT=root, HEALTH_WATCH_INTERVAL="100ms")


def rebooter_environment(scene: NodeScene) -> dict[str, str]:
    plane = scene.world.plane
    return scene.command_runner.environment(
        KUBECONFIG=str(plane.kubeconfig(plane.rebooter.token)), REBOOTER_INTERVAL="100ms", REBOOT_MIN_UPTIME="0"
    )


def events_of(scene: NodeScene, reason: str) -> int:
    found = scene.world.api.list("/api/v1/namespaces/default/events")
    return sum(one["involvedObject"]["name"] == scene.node.name and one["reason"] == reason for one in found)


@pytest.mark.shares(6)
def test_health_watch_changes_no_mark_while_a_run_works_and_does_once_that_run_is_dead(swappable: NodeScene) -> None:
    ready, withdrawn = (
        on_host(swappable, path) for path in (REBELLIONS.paths.ready_marker, REBELLIONS.paths.ready_withdrawn)
    )
    folder = swappable.world.folder
    with running("health-watch", watch_environment(swappable, "rebellions", OLD_ROOT), folder) as watch:
        watch.says("→ healthy")
        run = swappable.start(stops=("unload before",))
        assert run.wait_stopped(), run.log
        watch.says("→ muted")
        tool = on_host(swappable, OLD_ROOT) / "usr/bin/rbln-smi"
        asked = folder / "asked"
        tool.write_text(f"#!/bin/sh\necho >> {asked}\nexit 1\n")
        said = len(watch.lines)
        assert (ready.exists(), withdrawn.exists()) == (True, False)
        run.kill()
        watch.says("→ wedged", after=said)
        wait_until(withdrawn.exists, "the ready marker is withdrawn")
        assert not ready.exists()
        begun = asked.read_text().count("\n")
        assert begun >= 3, "it was judged before three failures outside of a run"


@pytest.mark.shares(6)
def test_nothing_reboots_while_a_run_has_the_node_and_the_request_of_both_is_one_event(rebooted: NodeScene) -> None:
    tree = rebooted.command_runner.tree
    asked = rebooted.start("--no-wait", env={"DRIVER_LOAD": "container", "DRIVER_ROOT": ""}).end()
    assert asked.code == 9, asked.err
    rebooted.annotate(**{KEYS.approve_reboot: "true", KEYS.journal: "of a run that has taken the node"})
    with running("rebooter", rebooter_environment(rebooted), rebooted.world.folder) as rebooter:
        rebooter.says("taken")
        assert not tree.is_told_to_reboot
        assert rebooted.node.annotations()[KEYS.approve_reboot] == "true"
        rebooted.annotate(**{KEYS.journal: None})
        wait_until(lambda: tree.is_told_to_reboot, "the host is told to reboot")
        assert events_of(rebooted, "RebootRequired") == 1


@pytest.mark.shares(6)
def test_restore_leaves_the_rebooters_cordon_while_its_reboot_is_granted(rebooted: NodeScene) -> None:
    tree = rebooted.command_runner.tree
    asked = rebooted.start("--no-wait", env={"DRIVER_LOAD": "container", "DRIVER_ROOT": ""}).end()
    assert asked.code == 9, asked.err
    rebooted.annotate(**{KEYS.approve_reboot: "true"})
    cordoning = {**rebooter_environment(rebooted), "REBOOT_CORDON": "true"}
    with running("rebooter", cordoning, rebooted.world.folder):
        wait_until(lambda: tree.is_told_to_reboot, "the host is told to reboot")
        granted = rebooted.node.annotations()
        assert granted[KEYS.cordon] == CORDON_FOR_REBOOT
        restored = rebooted.start(command="restore", env={"POD_NAME": ""}).end()
        assert restored.code == 0, restored.err
        assert "the rebooter's cordon stays" in restored.out
        assert f"kubectl uncordon {rebooted.node.name}" in restored.out
        assert rebooted.node.read()["spec"]["unschedulable"] is True
        assert rebooted.node.annotations() == granted
        told = rebooted.start("-o", "json", command="status", env={"POD_NAME": ""}).end()
        assert json.loads(told.out)["cordon"] == "the rebooter's"


@pytest.mark.shares(6)
def test_a_chip_that_recovers_takes_back_what_the_rebooter_announced(rebooted: NodeScene) -> None:
    tree, folder = rebooted.command_runner.tree, rebooted.world.folder
    marker = on_host(rebooted, ASCEND.paths.reboot_marker)
    with (
        running("rebooter", rebooter_environment(rebooted), folder),
        running("health-watch", watch_environment(rebooted, "ascend", ""), folder) as watch,
    ):
        watch.says("→ healthy")
        tree.wedge()
        wait_until(lambda: rebooted.node.labels().get(KEYS.reboot_required) == "true", "a reboot is asked for")
        assert json.loads(marker.read_text())["reason"] == "recovery"
        (tree.root / fake_tools.WEDGED).unlink()
        wait_until(lambda: not marker.exists(), "the marker is taken back")
        wait_until(lambda: KEYS.reboot_required not in rebooted.node.labels(), "the label is taken back")
        assert not tree.is_told_to_reboot
        rebooted.annotate(**{KEYS.approve_reboot: "true"})
        tree.wedge()
        wait_until(lambda: tree.is_told_to_reboot, "the host is told to reboot")
        assert KEYS.approve_reboot not in rebooted.node.annotations()
