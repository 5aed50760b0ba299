"""What the sweep's tests share: the workers' nodes, the recorded runs, and the figures at the end of a session."""

# ruff: noqa: F811  # pytest passes fixtures by name
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path as File

import pytest

from tests.support.control_plane.api import Api
from tests.support.control_plane.fixtures import (  # noqa: F401  # fixtures, used by their names
    admin_api,
    control_plane,
    dra,
    nothing_left_running,
    proxy,
)
from tests.support.control_plane.servers import ControlPlane
from tests.support.control_plane.sweep.scene import SweepNode, SweepPath
from tests.support.control_plane.sweep.sweeping import SHARES, Figures, Recording, record
from tests.support.selection import share

WORKERS = 3
_FIGURES = pytest.StashKey[Figures]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lives in this folder: its figures are those of one process, so that it runs in one."""
    for item in items:
        if File(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.sweep)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = Figures(share(SHARES))


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Figures:
    return pytestconfig.stash[_FIGURES]


@pytest.fixture(scope="module")
def sweep_nodes_for(
    control_plane: ControlPlane, admin_api: Api, dra: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], list[SweepNode]]]:
    """Makes nodes to sweep on. They go with the module: their kubelets watch all pods of the cluster."""
    with contextlib.ExitStack() as stack:

        def make(count: int) -> list[SweepNode]:
            folders = [tmp_path_factory.mktemp("ground") for _ in range(count)]
            user = control_plane.agent_for_workloads
            return [SweepNode(stack, control_plane, user, admin_api, folder) for folder in folders]

        yield make


@pytest.fixture(scope="module")
def grounds(sweep_nodes_for: Callable[[int], list[SweepNode]]) -> list[SweepNode]:
    """Nodes that are swept at the same time: three keep two processors busy, as each waits now and then."""
    return sweep_nodes_for(WORKERS)


@pytest.fixture(scope="module")
def sweep_node(sweep_nodes_for: Callable[[int], list[SweepNode]]) -> SweepNode:
    return sweep_nodes_for(1)[0]


@pytest.fixture(scope="module")
def recordings(grounds: list[SweepNode]) -> Callable[[SweepPath], Recording]:
    """The undisturbed run of a path, recorded once."""
    return cache(lambda path: record(grounds[0], path))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[_FIGURES].lines()
    if lines:
        terminalreporter.section("kill sweep")
        for line in lines:
            terminalreporter.line(line)
