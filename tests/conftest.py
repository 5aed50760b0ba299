"""What tests of several tiers are given."""

from __future__ import annotations

import gc

import pytest

from tests.support import selection
from tests.support.failures import Failures

UNCOUNTED = ("fuzz", "mutants", "checks")
"""Folders whose tests look at many inputs, or at the repository itself."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that choose what to run."""
    selection.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins, and read the options before the other conftests ask for a share."""
    config.pluginmanager.register(Failures())
    selection.configure(config)


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection: they live until the end, and scanning them takes a tenth."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take what this run takes. Tests with many inputs are not counted for coverage, as that takes longer than they."""
    selection.select(config, items)
    for item in items:
        if item.path.stem.endswith("_properties") or item.path.parent.name in UNCOUNTED:
            item.add_marker(pytest.mark.no_cover)
