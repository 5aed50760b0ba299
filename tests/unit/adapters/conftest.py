"""Host folders, a real clock, and the API server of the Kubernetes adapters: it answers as each test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.process.clock import LoopClock
from tests.support.fakes.host_folders import Tree
from tests.support.fakes.scripted_api import TRANSPORTS, Scripted
from tests.support.fakes.signals import signals_kept


@pytest.fixture(scope="module", params=TRANSPORTS)
def running(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    """One server for all tests of a module, over each transport."""
    scripted = Scripted(request.param)
    yield scripted
    scripted.close()


@pytest.fixture
def api(running: Scripted) -> Scripted:
    """The one server, with nothing asked yet and a new port."""
    running.start_over()
    return running


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def clock() -> Iterator[LoopClock]:
    """The real clock of a loop, which hears signals."""
    with signals_kept():
        made = LoopClock()
        made.install()
        yield made
