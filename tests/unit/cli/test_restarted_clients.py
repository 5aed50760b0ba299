"""A run that has loaded the driver itself restarts its clients, as far as it can."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from driver_manager.adapters.host.files import HostRoots
from driver_manager.cli.reconcile import restart_clients
from driver_manager.cli.session import Session
from driver_manager.core.clients import ClientRestarter, ClientTurn
from driver_manager.domain.observation import Loader, Policy
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock


@pytest.mark.parametrize(
    ("loader", "is_asked"),
    [(Loader.CONTAINER, False), (Loader.MANAGER, True), (Loader.NONE, False)],
)
def test_clients_are_restarted_by_a_run_that_loads_the_driver(
    loader: Loader, is_asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def after_run(_: ClientRestarter, pods: Any, __: Any) -> ClientTurn:
        asked.append(pods)
        return ClientTurn()

    monkeypatch.setattr(ClientRestarter, "after_run", after_run)
    roots = HostRoots(tmp_path, tmp_path / "proc", tmp_path / "sys", tmp_path / "dev")
    session = SimpleNamespace(clock=FakeClock(), log=None, cluster=None, profile=PROFILE, roots=roots)
    restart_clients(cast("Session", session), Policy(loader=loader), ())
    assert asked == ([()] if is_asked else [])
