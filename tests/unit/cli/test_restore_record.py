"""`restore` by hand of a node whose journal names a record on its host, or is of an older version."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.cli.main import run
from driver_manager.core.swap import run as observe
from driver_manager.domain import host_record
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import Journal, Owner, encode
from driver_manager.domain.settings import HEADINGS
from driver_manager.sandbox.cluster import NODE
from tests.support.fakes.builders import PAUSED, PLUGIN, PROFILE
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.signals import signals_kept

GONE = Owner("rbln-system/driver-gone", "dead")
SERVICE = "rbln_daemon.service"
ELSEWHERE = "restore has to run on the node"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ByHand, None, None]:
    """A node that a dead run has taken, as its own pod's variables say."""
    for name in (name for _, group in HEADINGS for one in group for name in (one.env, *one.also)):
        monkeypatch.delenv(name, raising=False)
    with by_hand(tmp_path) as found, signals_kept():
        for name, value in found.environment(DRIVER_PROFILE="rebellions").items():
            monkeypatch.setenv(name, value)
        yield found


def taken(node: ByHand, *, has_record: bool) -> Path:
    """Where the record is, or would be, of a run that has stopped a service and paused a label."""
    held = Journal(GONE, node.tree.boot_id, {PLUGIN: "true"}, services=(SERVICE,), record="run-1" * has_record)

    def changed(found: dict[str, Any]) -> dict[str, Any]:
        metadata = dict(found["metadata"])
        metadata["labels"] = {**metadata["labels"], PLUGIN: PAUSED}
        metadata["annotations"] = {**metadata.get("annotations", {}), PROFILE.keys.journal: encode(held)}
        return {**found, "metadata": metadata}

    node.cluster.store.patch("nodes", NODE, changed)
    path = node.tree.root / PROFILE.paths.run_record("run-1").lstrip("/")
    if has_record:
        path.write_text(host_record.encode(host_record.of(held)))
    return path


def label(node: ByHand) -> str:
    found: str = node.cluster.store.get("nodes", NODE)["metadata"]["labels"][PLUGIN]
    return found


def test_on_the_node_the_record_is_undone_and_removed(node: ByHand, capfd: pytest.CaptureFixture[str]) -> None:
    path = taken(node, has_record=True)
    assert run(["restore"]) == ExitCode.DONE
    shown = capfd.readouterr().out
    assert (f"started host service {SERVICE}" in shown, ELSEWHERE in shown) == (True, False)
    assert (label(node), SERVICE in node.tree.services, path.exists()) == ("true", True, False)


def test_a_record_that_no_journal_names_is_undone_too(node: ByHand, capfd: pytest.CaptureFixture[str]) -> None:
    path = taken(node, has_record=True)
    left = Journal(GONE, node.tree.boot_id, services=(SERVICE,), record=f"{node.tree.boot_id}:1:9:9")
    path.unlink()
    path = node.tree.root / PROFILE.paths.run_record(left.record).lstrip("/")
    path.write_text(host_record.encode(host_record.of(left)))
    node.cluster.store.patch("nodes", NODE, without_annotations)
    assert run(["restore"]) == ExitCode.DONE
    shown = capfd.readouterr()
    assert f"started host service {SERVICE}" in shown.out
    assert f"does not name; to undo: start {SERVICE}" in shown.err
    assert (label(node), SERVICE in node.tree.services, path.exists()) == ("true", True, False)


def without_annotations(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "metadata": {**found["metadata"], "annotations": {}}}


def test_records_stay_where_the_journal_is_ignored(node: ByHand) -> None:
    taken(node, has_record=False)
    left = Journal(GONE, node.tree.boot_id, services=(SERVICE,), record=f"{node.tree.boot_id}:1:9:9")
    path = node.tree.root / PROFILE.paths.run_record(left.record).lstrip("/")
    path.write_text(host_record.encode(host_record.of(left)))
    assert run(["restore", "--ignore-journal"]) == ExitCode.DONE
    assert (label(node), path.exists()) == ("true", True)


def test_away_from_the_node_a_record_is_refused_unless_the_journal_is_ignored(
    node: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = taken(node, has_record=True)
    monkeypatch.setattr(observe, "is_this_host", lambda *_: False)
    assert run(["restore"]) == ExitCode.USAGE
    said = [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()]
    assert any("Run restore on the node" in line for line in said)
    assert (label(node), path.exists()) == (PAUSED, True)
    assert run(["restore", "--dry-run"]) == ExitCode.DONE
    assert ELSEWHERE in capfd.readouterr().out
    assert run(["restore", "--ignore-journal"]) == ExitCode.DONE
    assert label(node) == "true"


@pytest.mark.parametrize("is_here", [True, False])
def test_of_an_older_journal_the_labels_are_restored_and_the_service_is_named(
    node: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    taken(node, has_record=False)
    if not is_here:
        monkeypatch.setattr(observe, "is_this_host", lambda *_: False)
    assert run(["restore"]) == ExitCode.DONE
    assert (
        f"field services is ignored: it is on the Node and not in a record on the host: {SERVICE} is not started"
        in (capfd.readouterr().err)
    )
    assert (label(node), SERVICE in node.tree.services) == ("true", False)
