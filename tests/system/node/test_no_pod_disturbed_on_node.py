"""Where an upgrade cannot succeed, a real kubelet tries again and again: no operand is paused, no pod is evicted."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.control_plane.api import Json, gone
from tests.support.control_plane.kubelet import of_others
from tests.support.control_plane.servers import AuditRecord
from tests.support.deploy.apply import applied
from tests.support.node.drivers import PREFIX, Drivers, last_words, stopping_after
from tests.support.node.images import OPERAND
from tests.support.node.machine import NAMESPACE
from tests.support.node.measured import Action, Table
from tests.support.node.namespaces import Daemon
from tests.support.node.node_init import STAND_INS
from tests.support.node.place import wait_until

DEVICE = "/dev/rbln0"
REFCOUNT = "run/rbln/.stand-ins/sys/module/rebellions/refcnt"
"""The stand-in for the kernel: who opens the device counts as a user of its module."""

RETRIES = 3
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
VFIO_MANAGER = Path(__file__).parents[2] / "support/deploy/dropin/vfio-manager.yaml"
APART = Path("/run/stand-ins")
"""Where stand_ins.py finds its tree in a pod that has no /run/rbln."""

VFIO_LABEL = f"{PREFIX}vfio-manager"


@dataclass(frozen=True)
class Busy:
    """A node with an operand and a user's pod, and who they are."""

    drivers: Drivers
    operand: str
    user: str
    version: str

    def assert_undisturbed(self, since: int) -> None:
        """Nothing was changed in the cluster since that place in the audit log, and both are still there."""
        assert not [str(one) for one in self.drivers.machine.plane.requests(since) if disturbs(one)]
        assert not self.drivers.is_paused()
        assert not self.drivers.machine.kubelet.node()["spec"].get("unschedulable")
        assert [pod["metadata"]["uid"] for pod in self.drivers.running("device-plugin")] == [self.operand]
        assert [pod["metadata"]["uid"] for pod in self.drivers.users("job")] == [self.user]
        assert self.drivers.loaded() == self.version


def disturbs(one: AuditRecord) -> bool:
    """Whether the request changes more than a record: an eviction that is only rehearsed does not.

    Nor does a patch of the Node that shows how a run ended.
    """
    if one.verb in ("get", "list", "watch") or not one.is_counted:
        return False
    if (one.verb, one.resource, one.subresource) == ("patch", "nodes", ""):
        return not _only_shows(one.body or {})
    return not (one.subresource == "eviction" and (one.body or {}).get("deleteOptions", {}).get("dryRun"))


def _only_shows(body: Any) -> bool:
    if not isinstance(body, dict):
        return False
    meta = body.get("metadata", {})
    changed = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    return "spec" not in body and not of_others(changed)


@pytest.fixture
def busy(drivers: Drivers) -> Busy:
    drivers.add_operand("device-plugin", stopping_after(0))
    drivers.offer_devices(1)
    drivers.add_users("job", replicas=1, min_available=0)
    (operand,), (user,) = drivers.running("device-plugin"), drivers.users("job")
    version = drivers.version
    drivers.want(drivers.other_version(), DEVICE_FREE_TIMEOUT="1s")
    return Busy(drivers, operand["metadata"]["uid"], user["metadata"]["uid"], version)


@pytest.fixture
def holder(busy: Busy) -> Iterator[Daemon]:
    """A process of the host, in no pod, that has the device open."""
    made = Daemon(busy.drivers.machine.namespaces, "holder", ["sh", "-c", f"exec sleep 3600 <{DEVICE}"])
    made.start()
    wait_until(lambda: made.is_running("sleep"), "the device is held")
    count = busy.drivers.machine.namespaces.root / REFCOUNT
    count.write_text("1\n")
    yield made
    made.end()


def wait_retried(drivers: Drivers, times: int) -> None:
    wait_until(lambda: (pod := drivers.pod()) and pod.restarts >= times, f"{times} retries")


@pytest.mark.shares(6)
def test_a_process_of_the_host_on_the_device_disturbs_no_pod_in_three_retries(
    busy: Busy, holder: Daemon, table: Table
) -> None:
    drivers, since = busy.drivers, busy.drivers.machine.plane.audit_mark()
    with table.row(Action.BUSY) as row:
        drivers.replace_pod()
        wait_retried(drivers, RETRIES)
        busy.assert_undisturbed(since)
        row.end = "exit 4 each time, no pod paused or evicted"
    message = last_words(drivers)
    assert message.startswith("exit 4: "), message
    assert "sleep" in message
    assert "no pod was disturbed" in message
    holder.end()
    (drivers.machine.namespaces.root / REFCOUNT).write_text("0\n")
    drivers.replace_pod()
    drivers.wait_serving()


@pytest.mark.shares(6)
def test_a_pod_that_no_label_moves_is_found_before_anybody_is_paused(busy: Busy, table: Table) -> None:
    drivers = busy.drivers
    container = {"name": "one", "image": OPERAND, "imagePullPolicy": "Never", "args": [stopping_after(0)]}
    spec = {"nodeSelector": {f"{PREFIX}device-plugin": "true"}, "containers": [container]}
    made = drivers.api.post(PODS, {"metadata": {"name": "lonely"}, "spec": spec})
    path = f"{PODS}/lonely"
    try:
        wait_until(lambda: drivers.api.get(path)["status"].get("phase") == "Running", "the pod runs")
        since = drivers.machine.plane.audit_mark()
        with table.row(Action.UNMOVED) as row:
            drivers.replace_pod()
            wait_retried(drivers, 1)
            busy.assert_undisturbed(since)
            row.end = "exit 3, no pod paused or evicted"
        message = last_words(drivers)
        assert message.startswith("exit 3: "), message
        assert "lonely" in message
        assert drivers.api.get(path)["metadata"]["uid"] == made["metadata"]["uid"]
    finally:
        gone(lambda: drivers.api.delete(path, grace_s=0))
    drivers.replace_pod()
    drivers.wait_serving()


@pytest.mark.shares(6)
def test_the_pod_of_a_vfio_manager_has_the_driver_uninstalled(drivers: Drivers, table: Table) -> None:
    """With the rights and the mounts of an older operator's manifest; its own label is never paused."""
    drivers.add_operand("device-plugin", stopping_after(0))
    since = drivers.machine.plane.audit_mark()
    with applied(drivers.api, vfio_manager()):
        try:
            with table.row(Action.VFIO) as row:
                drivers.label({f"{PREFIX}driver": None, VFIO_LABEL: "true"})
                wait_until(lambda: drivers.running("rbln-vfio-manager"), "the vfio-manager runs")
                row.end = "driver unloaded, other labels restored"
            assert drivers.loaded() == ""
            assert not drivers.is_paused()
            assert drivers.labels() == {"device-plugin": "true", "vfio-manager": "true"}
            assert not drivers.machine.kubelet.node()["spec"].get("unschedulable")
            sent = [one.body for one in drivers.machine.plane.requests(since) if one.verb == "patch" and one.is_counted]
            assert sent, "nothing was paused for it"
            assert not [body for body in sent if VFIO_LABEL in labels_in(body)]
        finally:
            drivers.label({VFIO_LABEL: None, f"{PREFIX}driver": "true"})
    drivers.wait_serving()


def labels_in(body: Any) -> set[str]:
    """The labels that a patch of the Node changes, be it a merge or a list of operations."""
    if isinstance(body, dict):
        return set(body.get("metadata", {}).get("labels") or {})
    start = "/metadata/labels/"
    paths = [one["path"] for one in body if one["op"] != "test" and one["path"].startswith(start)]
    return {path.removeprefix(start).replace("~1", "/") for path in paths}


def vfio_manager() -> list[Json]:
    """The manifest with the images of the node, and with a way for the stand-ins of kmod's tools to theirs."""
    objects: list[Json] = copy.deepcopy(list(yaml.safe_load_all(VFIO_MANAGER.read_text())))
    (one,) = [one for one in objects if one["kind"] == "DaemonSet"]
    spec = one["spec"]["template"]["spec"]
    (manager,) = spec["initContainers"]
    manager["image"] = "driver-manager:0.1.0"
    manager["volumeMounts"].append({"name": "stand-ins", "mountPath": str(APART)})
    spec["volumes"].append({"name": "stand-ins", "hostPath": {"path": str(STAND_INS)}})
    spec["containers"] = [
        {"name": "rbln-vfio-manager", "image": OPERAND, "imagePullPolicy": "Never", "args": [stopping_after(0)]}
    ]
    return objects
