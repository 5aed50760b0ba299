"""A host's folders, and the API server of the Kubernetes adapters: it answers as each test tells it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fakes.host_folders import Tree
from tests.support.fakes.scripted_api import TRANSPORTS, Scripted


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
