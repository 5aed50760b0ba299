"""What the tests of the sandbox are given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from driver_manager.sandbox.apiserver import ApiServer, Store
from tests.support.fakes.sandbox_calls import TOKENS


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(Store(), tokens=TOKENS) as running:
        yield running
