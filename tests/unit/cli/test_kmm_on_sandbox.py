"""`restore` and `status` by hand on a node whose driver KMM is changing."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from driver_manager.cli.main import run
from driver_manager.domain import host_record
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.journal import Journal, Owner, encode
from driver_manager.domain.kmm import KmmModule, KmmRequest
from driver_manager.domain.settings import HEADINGS
from driver_manager.sandbox.apiserver import Deny
from driver_manager.sandbox.cluster import NODE
from tests.support.fakes.builders import PLUGIN, PROFILE
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.schemas import conforms
from tests.support.fakes.signals import signals_kept

MODULE = KmmModule("kube-npu", "npu", "2.0")
PAUSED = PROFILE.deploy.paused_value
AT_WORK = {PLUGIN: PAUSED, MODULE.asked_key: "2.0", MODULE.worker_key: None, MODULE.ready_key: "1.0"}
DONE = {MODULE.worker_key: "2.0", MODULE.ready_key: "2.0"}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ByHand, None, None]:
    """It is taken by a run that is over, which had asked KMM for a version."""
    for name in (name for _, group in HEADINGS for one in group for name in (one.env, *one.also)):
        monkeypatch.delenv(name, raising=False)
    with by_hand(tmp_path) as found:
        env = {"DRIVER_LOAD": "kmm", "KMM_MODULE": str(MODULE), "KMM_VERSION": MODULE.version}
        for name, value in found.environment(NODE_NAME=NODE, **env).items():
            monkeypatch.setenv(name, value)
        request = KmmRequest(MODULE, found.tree.boot_id, "7", "1.0")
        owner = Owner(pid=1, boot_id="over")
        journal = Journal(owner, found.tree.boot_id, {PLUGIN: "true"}, kmm=request, record="run-1")
        record = found.tree.root / PROFILE.paths.run_record("run-1").lstrip("/")
        record.write_text(host_record.encode(host_record.of(journal)))
        change(found, annotations={PROFILE.keys.journal: encode(journal)}, labels=AT_WORK)
        with signals_kept():
            yield found


def change(node: ByHand, **fields: dict[str, Any]) -> None:
    def changed(found: dict[str, Any]) -> dict[str, Any]:
        metadata = found["metadata"]
        for field, values in fields.items():
            merged = {**metadata.get(field, {}), **values}
            metadata = {**metadata, field: {key: value for key, value in merged.items() if value is not None}}
        return {**found, "metadata": metadata}

    node.cluster.store.patch("nodes", NODE, changed)


def metadata(node: ByHand) -> dict[str, Any]:
    found: dict[str, Any] = node.cluster.store.get("nodes", NODE)["metadata"]
    return found


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--ignore-journal",)])
def test_a_node_is_restored_by_hand_only_once_kmm_is_done(
    node: ByHand, capfd: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    before = metadata(node)
    assert run(["restore", *more]) == ExitCode.USAGE
    assert "KMM was asked for version 2.0 of kube-npu/npu and may change modules" in capfd.readouterr().err
    assert metadata(node) == before
    change(node, labels=DONE)
    assert run(["restore", *more]) == ExitCode.DONE


def test_a_request_that_only_the_node_names_does_not_keep_it_from_being_restored(node: ByHand) -> None:
    (node.tree.root / PROFILE.paths.run_record("run-1").lstrip("/")).unlink()
    assert run(["restore"]) == ExitCode.DONE
    assert metadata(node)["labels"][PLUGIN] == "true"


def test_who_is_sure_restores_it_all_the_same(node: ByHand) -> None:
    assert run(["restore", "--take-over"]) == ExitCode.DONE
    assert metadata(node)["labels"][PLUGIN] == "true"


@pytest.mark.submission
def test_status_shows_what_kmm_is_asked_for(
    node: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in ("container", "vm-passthrough"):
        change(node, labels={"rebellions.ai/npu.workload.config": mode})
        assert run(["status"]) == ExitCode.DONE
        shown = "kmm       kube-npu/npu, wanted: 2.0, asked: 2.0, workers: no version, ready: 1.0"
        assert shown in capfd.readouterr().out
    monkeypatch.setattr(node.cluster.server, "deny", [Deny("get", "nodes"), Deny("list", "nodes")])
    run(["status", "-o", "json"])
    found = conforms("status", capfd.readouterr().out)["kmm"]
    assert found == {"module": "kube-npu/npu", "wanted": "2.0", "asked": None, "workers": None, "ready": None}
