"""The whole command on the sandbox: what would stop a run is said by the commands that look, and disturbs nobody."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import files
from driver_manager.adapters.host.files import OpenEntry
from driver_manager.cli.main import run
from driver_manager.cli.session import _home
from driver_manager.domain import settings
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.settings import AnySetting, Values
from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.scenarios import NEW, NEW_ROOT, OLD
from tests.support.control_plane.kubelet import of_others
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.sandboxed import ByHand, by_hand
from tests.support.fakes.signals import signals_kept

NOTE = PROFILE.paths.failure_note


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ByHand, None, None]:
    """A node on which a run of ours loads the new driver."""
    with by_hand(tmp_path) as found, signals_kept():
        for name, value in found.environment(NODE_NAME=NODE, DRIVER_LOAD="manager", DRIVER_ROOT=NEW_ROOT).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{found.tree.bin}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("POD_NAME", found.cluster.driver_pod())
        monkeypatch.setenv("DEVICE_FREE_TIMEOUT", "1s")
        monkeypatch.setenv("LOG_FORMAT", "text")
        yield found


def patches(node: ByHand) -> int:
    return sum(record.verb == "patch" for record in node.cluster.server.requests)


def untouched(node: ByHand) -> Any:
    """What anybody who is disturbed would change on the Node: all but what it shows of the driver's state."""
    there = node.cluster.store.get("nodes", NODE)
    labels, notes = there["metadata"].get("labels", {}), there["metadata"].get("annotations", {})
    return of_others(labels), of_others(notes), there.get("spec", {}).get("unschedulable", False)


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_process_of_the_host_is_named_by_all_commands_and_nobody_is_paused(
    node: ByHand, capfd: pytest.CaptureFixture[str]
) -> None:
    node.tree.hold_device_by(4242, "trainer")
    before = untouched(node)
    named = "trainer (pid 4242) of trainer.service has /dev/rbln0 open"
    assert run(["plan"]) == ExitCode.DONE
    text = capfd.readouterr().out
    assert f"1. wait up to 1 s, before anything is changed, for the device to be released: {named}" in text
    assert run(["preflight"]) == ExitCode.PREFLIGHT_FAILED
    assert f"✗ device: the device is in use: {named}" in capfd.readouterr().out
    assert run(["status"]) == ExitCode.DONE
    assert named in capfd.readouterr().out
    for _ in range(3):
        assert run(["reconcile-driver-state"]) == ExitCode.DRIVER_BUSY
        assert f"{named}; no pod was disturbed" in capfd.readouterr().err
    assert untouched(node) == before
    assert patches(node) == 1, "the first of them shows on the Node how it ended, the others ended alike"
    assert node.tree.driver_version == OLD
    assert not (node.tree.root / NOTE.lstrip("/")).exists()
    node.tree.end_process(4242)
    assert run(["reconcile-driver-state"]) == ExitCode.DONE
    assert node.tree.driver_version == NEW


@pytest.mark.submission
@pytest.mark.shares(3)
def test_after_a_failure_the_plan_says_until_when_and_no_wait_is_an_option(
    node: ByHand, capfd: pytest.CaptureFixture[str]
) -> None:
    node.tree.hold_device()  # by nobody that can be named
    assert run(["reconcile-driver-state"]) == ExitCode.DRIVER_BUSY
    assert "Unless something changes, the next run waits until " in capfd.readouterr().err
    note = node.tree.root / NOTE.lstrip("/")
    assert json.loads(note.read_text())["bootId"] == node.tree.boot_id
    sent = patches(node)
    assert run(["plan"]) == ExitCode.DONE
    text = capfd.readouterr().out
    assert "1. wait until " in text
    assert "as the last run failed (exit 4: the device is still in use" in text
    assert "--retry-wait=0s (RETRY_WAIT) skips this" in text
    assert run(["plan", "--retry-wait=0s"]) == ExitCode.DONE
    assert "wait until" not in capfd.readouterr().out
    assert patches(node) == sent
    (node.tree.root / "sys/module/rebellions/refcnt").write_text("0\n")
    assert run(["reconcile-driver-state", "--retry-wait=0s"]) == ExitCode.DONE
    assert not note.exists()


@pytest.mark.submission
def test_a_frozen_kernel_is_refused_by_preflight_and_by_the_run(
    node: ByHand, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node.tree.root / "proc/sys/kernel/modules_disabled").write_text("1\n")
    before = untouched(node)
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setenv("TERMINATION_LOG", str(log))
    assert run(["preflight"]) == ExitCode.PREFLIGHT_FAILED
    assert log.read_text().startswith("modules of the kernel: kernel.modules_disabled is 1"), "for who made the pod"
    assert "✗ modules of the kernel: kernel.modules_disabled is 1" in capfd.readouterr().out
    assert run(["reconcile-driver-state"]) == ExitCode.PREFLIGHT_FAILED
    assert untouched(node) == before
    assert patches(node) == 1, "what the Node shows"


PATHS = PROFILE.paths


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize(
    "path", [PATHS.load_record, PATHS.failure_note, PATHS.owner_note, PATHS.effect_lock, PATHS.client_record]
)
def test_a_folder_in_the_place_of_a_file_of_ours_stops_the_run_before_anything_is_changed(
    node: ByHand, capfd: pytest.CaptureFixture[str], path: str
) -> None:
    place = node.tree.root / path.lstrip("/")
    place.unlink(missing_ok=True)
    (place / "kept").mkdir(parents=True)
    before, said = untouched(node), f"{path} is a folder"
    assert run(["preflight"]) == ExitCode.PREFLIGHT_FAILED
    assert f"✗ host files: {said}" in capfd.readouterr().out
    for command in ("plan", "reconcile-driver-state", "reconcile-driver-state"):
        assert run([command]) == ExitCode.PREFLIGHT_FAILED
        assert f"preflight: {said}" in capfd.readouterr().err
    assert (node.tree.driver_version, untouched(node)) == (OLD, before)
    assert patches(node) == 1, "what the Node shows"
    (place / "kept").rmdir()
    place.rmdir()
    assert run(["reconcile-driver-state"]) == ExitCode.DONE
    assert node.tree.driver_version == NEW


@pytest.mark.submission
def test_what_only_a_write_would_meet_is_met_by_the_run_before_anything_is_changed(
    node: ByHand, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = untouched(node), files._written_beside

    def over_quota(where: OpenEntry, text: str, mode: int) -> str:
        if str(where.path).startswith(f"{node.tree.root}/run/rbln/"):
            raise OSError(122, "Disk quota exceeded")
        return real(where, text, mode)

    monkeypatch.setattr(files, "_written_beside", over_quota)
    assert run(["reconcile-driver-state"]) == ExitCode.PREFLIGHT_FAILED
    assert "cannot be written: Disk quota exceeded" in capfd.readouterr().err
    assert (node.tree.driver_version, untouched(node)) == (OLD, before)


EVICTING = (
    settings.ENABLE_NPU_POD_EVICTION,
    settings.ENABLE_AUTO_DRAIN,
    settings.EVICT_HOLDERS,
    settings.RESTART_CLIENTS,
)


def values(given: Mapping[AnySetting, Any]) -> Values:
    known = (*settings.CLUSTER, *settings.WORKLOADS)
    return Values({one: given.get(one, one.unset) for one in known})


@pytest.mark.parametrize(
    ("given", "home"),
    [
        ({}, PROFILE.namespace),
        ({settings.POD_NAMESPACE: "mine"}, "mine"),
        ({settings.OPERATOR_NAMESPACE: "ops"}, "ops"),
        ({settings.OPERATOR_NAMESPACE: "ops", settings.POD_NAMESPACE: "mine"}, "mine"),
        *(({one: True, settings.OPERATOR_NAMESPACE: "ops"}, "") for one in EVICTING),
    ],
)
def test_only_who_evicts_nobody_may_do_with_the_pods_of_one_namespace(given: dict[AnySetting, Any], home: str) -> None:
    assert _home(values(given), PROFILE) == home
