"""Shared by the tests of commands: a bare environment, and nodes whose devices can go to virtual machines."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from driver_manager.domain.settings import HEADINGS
from tests.support.fakes.signals import signals_kept
from tests.support.fakes.vfio_site import Site, site


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    """No option from the environment; afterwards, signal handlers as before."""
    for name in (name for _, group in HEADINGS for one in group for name in (one.env, *one.also)):
        monkeypatch.delenv(name, raising=False)
    with signals_kept():
        yield


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Site, None, None]:
    """The driver is loaded and has both devices."""
    with site(tmp_path, monkeypatch, loads=True) as found:
        yield found


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Site, None, None]:
    """No driver is loaded, and no process has a device."""
    with site(tmp_path, monkeypatch, loads=False) as found:
        yield found
