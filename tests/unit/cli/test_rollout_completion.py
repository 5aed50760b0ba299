"""Names of rollouts and nodes are completed from the cluster; `kubectl driver-rollout` is the same by another name."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from driver_manager.cli import start
from driver_manager.cli.main import NO_FILES, offers
from driver_manager.sandbox.apiserver import Deny
from tests.support.fakes.rollout_desk import Laptop, laptop


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Generator[Laptop, None, None]:
    """Three nodes, of which one has failed; two rollouts, of which the second stands aside."""
    with laptop(tmp_path, monkeypatch, capfd, nodes=3) as found:
        found.scene.broken.add("node-1")
        found.scene.set_driver("driver:2")
        found.controller.until_phase("Halted")
        found.scene.add_rollout("second")
        yield found


def values(*words: str) -> list[str]:
    """What kubectl is offered, without the descriptions."""
    *found, directive = offers(list(words))
    assert directive == NO_FILES
    return [line.partition("\t")[0] for line in found]


def test_verbs_names_and_failed_nodes_are_offered(desk: Laptop) -> None:
    assert values("re") == ["resume", "retry"]
    assert values("status", "") == ["driver", "second"]
    assert values("undo", "dr") == ["driver"]
    assert values("retry", "--rollout", "s") == ["second"]
    assert values("retry", "") == ["node-1"]
    assert values("retry", "node-1", "") == []
    assert values("status", "-n", "elsewhere", "") == []


def test_what_cannot_be_read_is_not_offered_and_nothing_is_said(desk: Laptop) -> None:
    desk.server.deny = [Deny("list", "driverrollouts"), Deny("list", "nodes")]
    assert values("status", "") == []
    assert values("retry", "") == []
    assert desk.capfd.readouterr() == ("", "")


def test_without_any_words_the_verbs_are_offered() -> None:
    assert {"status", "plan", "undo"} <= set(values())


def test_the_plugin_has_the_verbs_at_its_top(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["kubectl-driver_rollout", "status", "-w"])
    monkeypatch.setattr(start, "entry", lambda: seen.append(sys.argv[1:]))
    start.plugin_entry()
    assert seen == [["rollout", "status", "-w"]]
