"""What tests of several tiers are given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import kubernetes.client
import pytest


@pytest.fixture
def whole_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client with its generated models and calls, which this project leaves out and keeps aside for this."""
    known = set(sys.modules)
    for package in (kubernetes.client, kubernetes.client.models):
        aside = Path(sys.prefix, "left-out", *package.__name__.split("."))
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(aside)])
    yield
    for name in set(sys.modules) - known:
        if name.startswith("kubernetes."):
            del sys.modules[name]
