"""A wedge on a real kubelet: readiness, the Node's state and Events come and go with it; evidence is on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.control_plane.api import Json
from tests.support.node.drivers import WATCH, Drivers
from tests.support.node.machine import NAMESPACE
from tests.support.node.place import wait_until

STATE = "rebellions.ai/npu-driver-manager.state"
WELL = {"devices": [{"npu": 0, "name": "RBLN-CA12", "status": "normal", "device": "rbln0"}]}


class Chip:
    """The vendor's tool in the driver's tree on the node."""

    def __init__(self, drivers: Drivers) -> None:
        self._tool = drivers.machine.namespaces.root / "run/rbln/driver/usr/bin/rbln-smi"
        self._tool.parent.mkdir(parents=True, exist_ok=True)

    def say(self, line: str) -> None:
        """From now on the tool is this line of shell."""
        fresh = self._tool.with_suffix(".fresh")
        fresh.write_text(f"#!/bin/sh\n{line}\n")
        fresh.chmod(0o755)
        fresh.rename(self._tool)


@pytest.fixture
def watched(drivers: Drivers) -> Drivers:
    """The driver with a health-watch that looks every second."""
    drivers.want(drivers.version, HEALTH_WATCH_INTERVAL="1s")
    drivers.replace_pod()
    drivers.wait_serving()
    return drivers


def watch_is_ready(drivers: Drivers) -> bool:
    """What the kubelet says of the sidecar."""
    pod = drivers.a_pod()
    status = drivers.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod.name}")["status"]
    found = [one["ready"] for one in status.get("containerStatuses", []) if one["name"] == WATCH]
    return found == [True]


def state(drivers: Drivers) -> str | None:
    labels: dict[str, str] = drivers.machine.kubelet.node()["metadata"]["labels"]
    return labels.get(STATE)


def events(drivers: Drivers, reason: str) -> list[Json]:
    return drivers.api.list("/api/v1/namespaces/default/events", fieldSelector=f"reason={reason}")


def evidence(drivers: Drivers) -> list[Path]:
    folder = drivers.machine.namespaces.root / "var/lib/driver-manager/evidence"
    return sorted(folder.glob("*-rebellions-wedge.txt")) if folder.is_dir() else []


@pytest.mark.shares(6)
def test_a_wedge_is_seen_by_kubectl_and_so_is_its_end(watched: Drivers) -> None:
    chip, old_files = Chip(watched), evidence(watched)  # another test may have wedged the driver of this node before
    old = [*events(watched, "DriverWedged"), *events(watched, "DriverRecovered")]

    def new(reason: str) -> list[Json]:
        return [one for one in events(watched, reason) if one not in old]

    chip.say(f"echo '{json.dumps(WELL)}'")
    wait_until(lambda: watch_is_ready(watched), "the sidecar is ready")
    chip.say("echo npu 0 does not answer >&2; exit 1")
    wait_until(lambda: state(watched) == "wedged", "the Node says so")
    wait_until(lambda: not watch_is_ready(watched), "the sidecar is not ready")
    (event,) = wait_until(lambda: new("DriverWedged"), "the Event")
    assert "npu 0 does not answer" in event["message"]
    (file,) = (one for one in evidence(watched) if one not in old_files)
    assert event["message"].endswith(f"/var/lib/driver-manager/evidence/{file.name}")
    assert "npu 0 does not answer" in file.read_text()
    shown = watched.machine.kubectl("get", "nodes", "-L", STATE).stdout
    assert "wedged" in shown
    chip.say(f"echo '{json.dumps(WELL)}'")
    wait_until(lambda: state(watched) == "ready", "the Node says so")
    wait_until(lambda: watch_is_ready(watched), "the sidecar is ready again")
    wait_until(lambda: new("DriverRecovered"), "the Event")
