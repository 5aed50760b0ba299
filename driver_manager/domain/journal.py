"""The journal: what a run that took a node must remember, and nothing that can be observed again.

Owns the JSON form of the annotation. Every version ever written stays readable. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driver_manager.domain.errors import ConfigError

VERSION = 1


@dataclass(frozen=True)
class Owner:
    """Who runs: a process (pid and start time within a pid namespace of one boot), by hand or in a pod (by uid)."""

    pod: str = ""
    pod_uid: str = ""
    pid: int = 0
    start_ticks: int = 0
    pid_namespace: int = 0
    boot_id: str = ""

    @property
    def process(self) -> str:
        """A word for the process that no other one of this host has."""
        return f"{self.boot_id}:{self.pid_namespace}:{self.pid}:{self.start_ticks}"

    def __str__(self) -> str:
        return f"pod {self.pod}" if self.pod_uid else f"process {self.pid} run by hand"


@dataclass(frozen=True)
class OldDriver:
    """The driver that was loaded when the node was taken; `root` is where its modules came from, "" if unknown."""

    version: str = ""
    root: str = ""
    modules: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True)
class Journal:
    """Originals and ownership of one taken node. `driver` is None where none was loaded at the time.

    `services` are the host's services that this node may have lost to us, to be started again. `cordon_manager` is the
    field manager that our cordon is on record for, on the Node of `node_uid`; "" where that is not known.
    """

    owner: Owner
    boot_id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False
    driver: OldDriver | None = None
    services: tuple[str, ...] = ()
    cordon_manager: str = ""
    node_uid: str = ""


class JournalUnreadable(ConfigError):
    """The annotation is not a journal that this version can act on."""


def encode(journal: Journal) -> str:
    """The annotation's value: compact JSON with sorted keys."""
    owner = journal.owner
    process = {
        "pid": owner.pid,
        "startTicks": owner.start_ticks,
        "pidNamespace": owner.pid_namespace,
        "bootId": owner.boot_id,
    }
    body: dict[str, Any] = {
        "v": VERSION,
        "bootId": journal.boot_id,
        "owner": {
            **({"pod": owner.pod, "uid": owner.pod_uid} if owner.pod_uid else {}),
            **(process if owner.pid else {}),
        },
        "labels": dict(journal.labels),
        "cordoned": journal.cordoned,
    }
    if journal.driver is not None:
        driver = journal.driver
        body["driver"] = {
            "version": driver.version,
            "root": driver.root,
            "modules": list(driver.modules),
            **({"digest": driver.digest} if driver.digest else {}),
        }
    if journal.services:
        body["services"] = list(journal.services)
    if journal.cordon_manager:
        body["cordonManager"] = journal.cordon_manager
    if journal.node_uid:
        body["nodeUid"] = journal.node_uid
    return json.dumps(body, sort_keys=True, separators=(",", ":"))


def decode(text: str) -> Journal:
    """The journal in `text`. Raises JournalUnreadable for garbage and for versions newer than this one."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(f"it is not JSON ({error})") from error
    if not isinstance(body, dict):
        raise _unreadable("it is not a JSON object")
    version = body.get("v")
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        raise JournalUnreadable(
            f"the node's journal has version {version}, this driver-manager knows up to {VERSION}",
            "Run a driver-manager at least as new as the one that wrote it; nothing was changed.",
        )
    if version != VERSION or isinstance(version, bool):
        raise _unreadable(f"its version is {version!r}")
    return Journal(
        owner=_owner(_typed(body, "owner", dict)),
        boot_id=_typed(body, "bootId", str),
        labels=_labels(_typed(body, "labels", dict)),
        cordoned=_typed(body, "cordoned", bool),
        driver=_driver(body["driver"]) if body.get("driver") is not None else None,
        services=_names(body, "services") if "services" in body else (),
        cordon_manager=_typed(body, "cordonManager", str) if "cordonManager" in body else "",
        node_uid=_typed(body, "nodeUid", str) if "nodeUid" in body else "",
    )


def _unreadable(why: str) -> JournalUnreadable:
    return JournalUnreadable(
        f"the node's journal cannot be read: {why}",
        "Look at it with `driver-manager status`; `driver-manager restore --ignore-journal` gives the labels back "
        "from their own values. Nothing was changed.",
    )


def _typed(body: Mapping[str, Any], key: str, kind: type) -> Any:
    value = body.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _unreadable(f"{key} is {value!r}, expected {kind.__name__}")
    return value


def _owner(body: Mapping[str, Any]) -> Owner:
    in_pod = "uid" in body
    pod, pod_uid = (_typed(body, "pod", str), _typed(body, "uid", str)) if in_pod else ("", "")
    if in_pod and "pid" not in body:
        return Owner(pod=pod, pod_uid=pod_uid)
    return Owner(
        pod=pod,
        pod_uid=pod_uid,
        pid=_typed(body, "pid", int),
        start_ticks=_typed(body, "startTicks", int),
        pid_namespace=_typed(body, "pidNamespace", int),
        boot_id=_typed(body, "bootId", str),
    )


def _labels(body: Mapping[str, Any]) -> dict[str, str]:
    if not all(isinstance(value, str) for value in body.values()):
        raise _unreadable("labels holds something else than text")
    return dict(body)


def _driver(body: Any) -> OldDriver:
    if not isinstance(body, dict):
        raise _unreadable(f"driver is {body!r}, expected an object")
    version, root = _typed(body, "version", str), _typed(body, "root", str)
    digest = _typed(body, "digest", str) if "digest" in body else ""
    return OldDriver(version=version, root=root, modules=_names(body, "modules"), digest=digest)


def _names(body: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = _typed(body, key, list)
    if not all(isinstance(name, str) for name in names):
        raise _unreadable(f"{key} holds something else than text")
    return tuple(names)
