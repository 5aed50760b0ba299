"""What tests of commands share: a node whose devices can go to virtual machines."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.fakes.vfio_site import Site, site


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Site, None, None]:
    """The driver is loaded and has both devices."""
    with site(tmp_path, monkeypatch, loads=True) as found:
        yield found


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Site, None, None]:
    """No driver is loaded, and nobody has a device."""
    with site(tmp_path, monkeypatch, loads=False) as found:
        yield found
