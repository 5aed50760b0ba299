"""The node tier's node on a kernel of its own: kubelet, images and deploy/ as there, modules and their device real.

An operand has the device open, and so has a client of another team, which no label moves: the kernel itself refuses to
unload the driver before both have left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.control_plane.api import Json
from tests.support.control_plane.kubelet import shown
from tests.support.kernel.driver_roots import OLD_VERSION
from tests.support.kernel.guest_command import STATE
from tests.support.kernel.guest_fixtures import (
    DEVICE,
    STAND_INS,
    DriverRoots,
    holders,
    modprobe,
    module_fact,
    open_files,
)
from tests.support.kernel.guest_node import WITHOUT_VARIABLE, driver_node
from tests.support.node.drivers import (
    CLIENT,
    JOURNAL,
    MODULE,
    OTHER_NAMESPACE,
    PREFIX,
    Drivers,
    OtherTeam,
    last_words,
    stopping_after,
)
from tests.support.node.place import wait_until

pytestmark = pytest.mark.release

OPERAND, EXPORTER, BYSTANDER = "device-plugin", "exporter", "bystander"
WITH_DEVICE_OPEN = f"exec 3<{DEVICE}; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
OPENING_DEVICE = f"trap 'exit 0' TERM; while [ ! -e {DEVICE} ]; do sleep 1; done; {WITH_DEVICE_OPEN}"
HISTORY_S = 5
"""In which the API server tells how an object has changed until now."""


@dataclass(frozen=True)
class Pods:
    """A node whose driver is to be replaced, and who is on it beside the driver."""

    drivers: Drivers
    team: OtherTeam

    def uids(self) -> dict[str, str]:
        """Of the pods that run and are not on their way out, each DaemonSet has one at most."""
        found = {name: self.team.running(name) for name in (EXPORTER, BYSTANDER)}
        found[OPERAND] = self.drivers.running(OPERAND)
        return {name: pods[0]["metadata"]["uid"] for name, pods in found.items() if pods}

    def have_open(self) -> set[str]:
        """Whose pods have a process with the device open."""
        processes = self.drivers.machine.containers.processes
        return {name for name, uid in self.uids().items() if any(map(has_open, processes(uid)))}

    def node_version(self) -> str:
        return str(self.drivers.machine.kubelet.node()["metadata"]["resourceVersion"])

    def node_since(self, version: str) -> list[Json]:
        name = self.drivers.machine.kubelet.path.rpartition("/")[2]
        only = {"fieldSelector": f"metadata.name={name}", "resourceVersion": version}
        with self.drivers.api.watch("/api/v1/nodes", timeout_s=HISTORY_S, **only) as changes:
            return [node for _, node in changes]

    def restarts(self) -> list[str]:
        found = self.drivers.api.list("/api/v1/namespaces/default/events", fieldSelector="reason=DriverClientRestarted")
        return [event["message"] for event in found]


@pytest.fixture
def pods(guest_kernel: None, roots: DriverRoots) -> Iterator[Pods]:
    """Another driver is loaded than the one that deploy/ wants, as its pod left it; operand and client use it."""
    if WITHOUT_VARIABLE in os.environ:
        pytest.skip(os.environ[WITHOUT_VARIABLE])
    assert modprobe(roots["v1"], MODULE).status == 0
    with driver_node() as deployed:
        state = deployed.machine.namespaces.root / STATE.relative_to("/")
        state.parent.mkdir()
        state.write_text("old-digest\n")
        made = Pods(deployed, OtherTeam(deployed))
        made.team.add(EXPORTER, OPENING_DEVICE, CLIENT)
        made.team.add(BYSTANDER, stopping_after(0))
        deployed.add_operand(OPERAND, WITH_DEVICE_OPEN, is_privileged=True)
        wait_until(lambda: made.have_open() == {OPERAND, EXPORTER}, "operand and client have the device open")
        assert users() == 2
        yield made


def has_open(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return DEVICE in open_files(pid)
    return False


def users() -> int:
    return int(module_fact(MODULE, "refcnt"))


def versions() -> set[str]:
    return {module_fact(module, "version") for module in STAND_INS}


def test_an_upgrade_swaps_the_kernels_modules_once_operand_and_client_have_left(pods: Pods) -> None:
    """Without the consent to restart clients it is refused before anything is changed."""
    drivers, before = pods.drivers, pods.uids()
    (client,) = pods.team.running(EXPORTER)
    assert versions() == {OLD_VERSION}
    refused_without_consent(pods, f"{OTHER_NAMESPACE}/{client['metadata']['name']}")
    assert pods.uids() == before
    assert pods.have_open() == {OPERAND, EXPORTER}
    assert versions() == {OLD_VERSION}

    since = pods.node_version()
    drivers.want(drivers.version, RESTART_CLIENTS="true")
    drivers.delete_pod(grace_s=0)
    drivers.wait_serving()
    assert any(map(is_disturbed, pods.node_since(since))), "what a refusal must not do is seen where it is done"
    assert versions() == {drivers.version} != {OLD_VERSION}
    assert holders("rebellions_core") == [MODULE]
    assert drivers.a_pod().restarts == 0, "the unload was refused before it succeeded"
    wait_until(
        lambda: pods.have_open() == {OPERAND, EXPORTER} and users() == 2,
        "operand and client have the new driver's device open",
    )
    after = pods.uids()
    assert {name for name in before if after.get(name) == before[name]} == {BYSTANDER}
    (bystander,) = pods.team.running(BYSTANDER)
    assert [one["restartCount"] for one in bystander["status"]["containerStatuses"]] == [0]
    who = f"client {OTHER_NAMESPACE}/{client['metadata']['name']} (DaemonSet)"
    messages = pods.restarts()
    assert f"{who} was restarted: it held the driver that is being replaced" in messages
    assert not [one for one in messages if f"{OTHER_NAMESPACE}/{EXPORTER}-" not in one], messages


def refused_without_consent(pods: Pods, client: str) -> None:
    """The driver's pod comes, and its run ends before the first change; `client` is named with what to set."""
    drivers = pods.drivers
    drivers.want(drivers.version, DEVICE_FREE_TIMEOUT="1s")
    since = pods.node_version()
    drivers.place_pod()
    message = wait_until(lambda: last_words(drivers), "the run is refused")
    drivers.machine.place.say(message)
    assert message.startswith("exit 4: "), message
    assert client in message, message
    assert OPERAND not in message, message
    assert "no pod was disturbed" in message, message
    assert "Let the run restart it with RESTART_CLIENTS=true (--restart-clients)." in message, message
    history = pods.node_since(since)
    assert [shown(node) for node in history][-1:] == [("failed", 4)]
    assert not [node["metadata"] for node in history if is_disturbed(node)]


def is_disturbed(node: Json) -> bool:
    """Whether it is cordoned, held by a run, or has an operand that is paused."""
    meta = node["metadata"]
    deploy = {text for key, text in meta["labels"].items() if key.startswith(PREFIX)}
    return bool(node["spec"].get("unschedulable")) or JOURNAL in meta.get("annotations", {}) or deploy != {"true"}
