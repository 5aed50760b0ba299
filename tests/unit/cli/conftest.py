"""Shared by the tests of commands: a bare environment, a prompt, and nodes as a person meets them."""

from __future__ import annotations

import socket
from collections.abc import Generator
from pathlib import Path

import pytest

from driver_manager.cli import session as wiring
from driver_manager.domain.settings import HEADINGS
from driver_manager.sandbox.cluster import NODE
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.signals import signals_kept
from tests.support.fakes.typed import Prompt
from tests.support.fakes.vfio_site import Site, site


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    """No option from the environment; afterwards, signal handlers as before."""
    for name in (name for _, group in HEADINGS for one in group for name in (one.env, *one.also)):
        monkeypatch.delenv(name, raising=False)
    with signals_kept():
        yield


@pytest.fixture
def prompt(capfd: pytest.CaptureFixture[str]) -> Prompt:
    return Prompt(capfd)


@pytest.fixture
def debug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ByHand, None, None]:
    """A node as a person meets it in a debug pod."""
    with by_hand(tmp_path) as found:
        monkeypatch.setattr(wiring, "CONTAINER_HOST_ROOT", found.tree.root)
        monkeypatch.setattr(socket, "gethostname", lambda: NODE)
        for name, value in {"HOME": str(tmp_path), "KUBECONFIG": str(found.kubeconfig), "LOG_FORMAT": "text"}.items():
            monkeypatch.setenv(name, value)
        yield found


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
