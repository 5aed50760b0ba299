"""Owns who is on a test node beside a run that cannot succeed, and how it is seen that nobody of them was disturbed.

Must not import the product.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from tests.control_plane.api import Json
from tests.control_plane.audit import AuditRecord
from tests.control_plane.shown import of_others
from tests.node.control_plane import NAMESPACE
from tests.node.drivers import DEVICE, JOURNAL, PAUSED, Drivers
from tests.node.namespaces import Daemon
from tests.node.patience import wait_until

USERS = "job"
"""The ReplicaSet of users' pods, where there is one."""

_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass(frozen=True)
class Bystanders:
    """The pods of operands and of users by their uids, and the version of the driver that is loaded."""

    drivers: Drivers
    operands: frozenset[str]
    users: frozenset[str]
    version: str

    @classmethod
    def of(cls, drivers: Drivers) -> Self:
        """Those of now."""
        return cls(drivers, *_present(drivers), drivers.loaded())

    def assert_undisturbed(self, since: int) -> None:
        """Nothing was changed in the cluster since that place in the audit log, and all are still there."""
        assert not [str(one) for one in self.drivers.machine.plane.requests(since) if disturbs(one)]
        self.assert_there()

    def assert_there(self) -> None:
        """All are still the same, none on its way out, and the node is as it was."""
        assert not is_disturbed(self.drivers.machine.kubelet.node())
        assert _present(self.drivers) == (self.operands, self.users)
        assert self.drivers.loaded() == self.version


def is_disturbed(node: Json) -> bool:
    """Whether this state of the Node has a journal, a cordon or a paused label."""
    meta = node["metadata"]
    notes, labels = meta.get("annotations", {}), meta.get("labels", {})
    return JOURNAL in notes or PAUSED in labels.values() or bool(node["spec"].get("unschedulable"))


def _present(drivers: Drivers) -> tuple[frozenset[str], frozenset[str]]:
    operands = [pod for name in drivers.operand_names() for pod in drivers.running(name)]
    return (
        frozenset(pod["metadata"]["uid"] for pod in operands),
        frozenset(pod["metadata"]["uid"] for pod in drivers.users(USERS)),
    )


def disturbs(one: AuditRecord) -> bool:
    """Whether the request changes more than what is told of: an eviction that is only rehearsed does not.

    Nor does a patch of the Node that shows how a run ended.
    """
    if one.verb in ("get", "list", "watch") or one.resource in ("selfsubjectaccessreviews", "events"):
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


@contextlib.contextmanager
def holding_device(drivers: Drivers) -> Iterator[Daemon]:
    """A process of the host, in no pod, that has the device open; it ends with the context at the latest."""
    made = Daemon(drivers.machine.namespaces, "holder", ["sh", "-c", f"exec sleep 3600 <{DEVICE}"])
    made.start()
    try:
        wait_until(lambda: made.is_running("sleep"), "the device is held")
        yield made
    finally:
        made.end()


def last_words(drivers: Drivers) -> str:
    """The termination message of the init container's last run, waited for."""
    drivers.wait(lambda: _told(drivers), "the kubelet reports what the run said last")
    return _told(drivers)


def _told(drivers: Drivers) -> str:
    pod = drivers.pod()
    if pod is None:
        return ""
    (status,) = drivers.api.get(f"{_PODS}/{pod.name}")["status"].get("initContainerStatuses") or [{}]
    return str(status.get("lastState", {}).get("terminated", {}).get("message", ""))


def wait_retried(drivers: Drivers, times: int) -> None:
    """Wait until the kubelet has started the run so often again."""
    drivers.wait(lambda: (pod := drivers.pod()) and pod.restarts >= times, f"{times} retries")
