"""docs/operands.md on a real API server: an ordinary device plugin leaves for an upgrade once the page was followed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.control_plane.api import Api, gone, wait_until
from tests.support.control_plane.fixtures import skip_or_fail
from tests.support.control_plane.kubelet import NodeFactory
from tests.support.control_plane.processes import RUN_TIMEOUT_S
from tests.support.control_plane.runner import NEW, PREFIX, CommandRunner, assert_untouched, node_of
from tests.support.control_plane.servers import NAMESPACE, ControlPlane, User
from tests.support.docs.console import commands, files
from tests.support.docs.markdown import DOCS

PAGE = DOCS / "operands.md"
KEY = f"{PREFIX}device-plugin"
MADE = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/device-plugin"

Types = Callable[[str], str]


@pytest.fixture
def types(control_plane: ControlPlane, admin_api: Api, runner: CommandRunner, tmp_path: Path) -> Iterator[Types]:
    """Somebody with the page's files types one of its lines; what kubectl prints."""
    if shutil.which("kubectl") is None:
        skip_or_fail("kubectl is not on PATH")
    home = tmp_path / "home"
    home.mkdir()
    for name, content in files(PAGE).items():
        (home / name).write_text(content)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "KUBECONFIG": str(control_plane.kubeconfig(control_plane.admin.token)),
    }

    def typed(line: str) -> str:
        argv = ["bash", "--norc", "--noprofile", "-c", re.sub(r"\bN\b", node_of(runner).name, line)]
        done = subprocess.run(
            argv, env=env, cwd=home, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S
        )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout

    yield typed
    gone(partial(admin_api.delete, MADE, grace_s=0))


@pytest.fixture
def runner(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node on which an old driver is loaded, and the new one at hand."""
    made = CommandRunner(control_plane, agent_with_events, tmp_path).with_upgrade()
    made.node = node({f"{PREFIX}driver": "true", "kubernetes.io/os": "linux"}, boot_id=made.tree.boot_id)
    return made


def plugin(runner: CommandRunner) -> str:
    """The uid of the plugin's pod once it runs."""
    found: list[str] = []

    def runs() -> bool:
        pods = [one for one in node_of(runner).pods() if one["metadata"]["labels"].get("app") == "device-plugin"]
        found[:] = [one["metadata"]["uid"] for one in pods if one["status"].get("phase") == "Running"]
        return len(found) == 1

    wait_until(runs, "the plugin runs")
    return found[0]


def test_an_ordinary_plugin_stays_and_the_pages_operand_leaves_and_comes_back(
    types: Types, runner: CommandRunner
) -> None:
    label, patch, rolled = (one.text for one in commands(PAGE) if one.text.startswith("kubectl"))
    types("kubectl apply -f device-plugin.yaml")
    ordinary = plugin(runner)
    before = runner.run("plan", LOG_FORMAT="text").out
    assert "operand pod(s)" not in before

    types(label)
    types(patch)
    types(rolled)
    wait_until(lambda: plugin(runner) != ordinary, "the operand takes the plugin's place")
    operand, labels = plugin(runner), node_of(runner).labels()
    assert labels[KEY] == "true"
    promised = re.findall(r"^ +(\d\. .*)$", PAGE.read_text(), re.MULTILINE)
    assert len(promised) == 2
    said = runner.run("plan", LOG_FORMAT="text").out
    assert [line for line in promised if line not in said] == [], said

    assert runner.reconcile().code == 0
    assert runner.tree.driver_version == NEW
    assert_untouched(runner, labels)
    assert plugin(runner) != operand, "it has left and come back"
