"""The commands on a host that ships and loads its driver (`DRIVER_LOAD=none`): they look, and name what to do."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.cli.main import run
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.observation import Loader
from driver_manager.domain.settings import HEADINGS
from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.host import HostTree
from driver_manager.sandbox.scenarios import NEW, OLD
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.schemas import conforms
from tests.support.fakes.signals import signals_kept


def _shipped(tree: HostTree) -> None:
    tree.add_driver("/", OLD)
    tree.load("/")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ByHand, None, None]:
    """A host whose image has the driver that is loaded."""
    for name in (name for _, group in HEADINGS for one in group for name in (one.env, *one.also)):
        monkeypatch.delenv(name, raising=False)
    with by_hand(tmp_path, _shipped) as found:
        for name, value in found.environment(NODE_NAME=NODE, DRIVER_LOAD="none").items():
            monkeypatch.setenv(name, value)
        with signals_kept():
            yield found


def said(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any, str]:
    """Exit code, JSON and log of a command."""
    code = run([*argv, "-o", "json"])
    captured = capfd.readouterr()
    return code, json.loads(captured.out) if captured.out.strip() else None, captured.err


def _kernel(node: ByHand) -> dict[str, str]:
    tree = node.tree.root
    return {str(path): path.read_text() for path in sorted((tree / "sys/module").rglob("*")) if path.is_file()}


@pytest.mark.submission
def test_the_driver_of_the_image_is_loaded_and_a_run_is_done(
    node: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _kernel(node)
    for version in ("", OLD):
        monkeypatch.setenv("DRIVER_VERSION", version)
        code, body, _ = said(capfd, "reconcile-driver-state")
        assert code == ExitCode.DONE
        assert f"version {OLD}, loaded by the host itself" in body["what"]
    code, body, _ = said(capfd, "preflight")
    assert code == ExitCode.DONE
    assert body["checks"][0]["name"] == "driver"
    assert _kernel(node) == before


@pytest.mark.submission
def test_an_image_that_was_updated_needs_a_reboot(
    node: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node.tree.add_driver("/", NEW)
    monkeypatch.setenv("DRIVER_VERSION", NEW)
    before = _kernel(node)
    for command in ("plan", "reconcile-driver-state"):
        code, body, err = said(capfd, command)
        assert code == ExitCode.REBOOT_REQUIRED
        assert f"driver {OLD} is loaded, {NEW} is wanted, and the host has {NEW} on disk" in str(body) + err
    assert said(capfd, "preflight")[0] == ExitCode.PREFLIGHT_FAILED
    assert _kernel(node) == before


def test_an_image_without_the_wanted_driver_has_to_be_updated_first(
    node: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIVER_VERSION", NEW)
    before = _kernel(node)
    code, body, _ = said(capfd, "reconcile-driver-state")
    assert code == ExitCode.PREFLIGHT_FAILED
    assert "Update the host image" in body["remedy"]
    assert _kernel(node) == before


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("loader", [one.value for one in Loader])
def test_status_shows_who_loads(
    node: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loader: str
) -> None:
    monkeypatch.setenv("DRIVER_LOAD", loader)
    assert run(["status", "-o", "json"]) == ExitCode.DONE
    assert conforms("status", capfd.readouterr().out)["driverLoad"] == loader
    assert run(["status"]) == ExitCode.DONE
    assert f"(DRIVER_LOAD={loader})" in capfd.readouterr().out


def test_a_forced_reinstall_contradicts_it(
    node: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_REINSTALL", "true")
    for command in ("reconcile-driver-state", "plan", "preflight", "status"):
        assert run([command]) == ExitCode.USAGE
        assert "with DRIVER_LOAD=none nothing is ever installed" in capfd.readouterr().err
