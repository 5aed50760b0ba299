"""Settings of the unit tier: hypothesis without deadlines, the same examples in CI every time, signals as they were."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.fakes.signals import signals_kept
from tests.support.selection import examples

# Reporting a failed property imports these, some of them with deprecation warnings, which are errors here: without the
# early import a failure would read as an internal error of pytest.
with warnings.catch_warnings(), contextlib.suppress(ImportError):
    warnings.simplefilter("ignore")
    import hypothesis.extra._patching  # noqa: F401

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Set hypothesis up, once it is known what this run takes."""
    settings.register_profile("local", deadline=None, max_examples=examples(60), suppress_health_check=_SLOW_IS_FINE)
    settings.register_profile("stable", settings.get_profile("local"), derandomize=True, database=None)
    settings.load_profile("stable" if os.environ.get("CI") else "local")


@pytest.fixture(autouse=True)
def _no_signal_stays_taken() -> Iterator[None]:
    """Tests run in any order in one process: a signal that one of them took would change what a later one sees."""
    with signals_kept():
        yield
