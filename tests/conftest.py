"""What tests of several tiers are given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import kubernetes.client
import pytest

from tests.support import examples
from tests.support.failures import Failures

UNCOUNTED = ("fuzz", "mutants", "repo")
"""Folders whose tests look at many inputs, or at the repository itself."""


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


def pytest_configure(config: pytest.Config) -> None:
    """What failed is named at once; properties are tried as often as this run has time for."""
    config.pluginmanager.register(Failures())
    examples.configure(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coverage is not counted where the same lines are run thousands of times: counting takes longer than running."""
    for item in items:
        sweeps = item.path.stem.endswith("_properties") or item.path.parent.name in UNCOUNTED
        if sweeps or item.get_closest_marker("long"):
            item.add_marker(pytest.mark.no_cover)
