"""The API server of the Kubernetes adapters: it answers as each test tells it, over both transports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fakes.scripted_api import TRANSPORTS, Scripted


@pytest.fixture(scope="module", params=TRANSPORTS)
def running(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    """One server for all tests of a module."""
    scripted = Scripted(request.param)
    yield scripted
    scripted.close()


@pytest.fixture
def api(running: Scripted) -> Scripted:
    """The one server, with nothing asked yet and a new port."""
    running.start_over()
    return running
