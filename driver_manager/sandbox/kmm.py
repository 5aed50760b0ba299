"""A stand-in for Kernel Module Management (KMM): it follows a Node's version label on a sandbox host.

What it does, in which order and by which labels is that of `driver_manager.domain.kmm`, without its pods. Imports only
the domain and the sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from driver_manager.domain.frozen import Frozen
from driver_manager.domain.kmm import KmmModule
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.controllers import Controller
from driver_manager.sandbox.host_tree import HostTree
from driver_manager.sandbox.store import Event, Store

WORK_S = 0.3
"""What a worker pod takes at least."""


class KmmStatus(Frozen):
    """What KMM knows of a node.

    `has` is the version that it has loaded, "" for none, in an earlier boot where the node `is_rebooted`; `offers` are
    those that it can load. A node that is no target, as a cordoned one, only loses its driver.
    """

    has: str
    offers: Collection[str]
    is_target: bool
    is_rebooted: bool

    def next_work(self, module: KmmModule, labels: Mapping[str, str]) -> str:
        """What it does next about `labels`, "" for nothing."""
        workers = module.at_work(labels)
        goal = workers if self.is_target else ""
        due = {
            "withdraw": bool(workers) and workers != module.asked(labels),
            "forget": bool(self.has) and self.is_rebooted and goal != self.has,
            "unload": bool(self.has) and goal != self.has,
            "hide": bool(module.ready(labels)) and not self.has,
            "begin": bool(module.asked(labels)) and not workers and not module.ready(labels),
            "load": goal in self.offers and (not self.has or self.is_rebooted),
            "show": bool(self.has) and module.ready(labels) != self.has,
        }
        return next((work for work, is_due in due.items() if is_due), "")


def changed_labels(work: str, module: KmmModule, labels: Mapping[str, str], has: str) -> dict[str, str | None]:
    """The labels that a piece of `work` changes; {} for one that is about the kernel."""
    changes: dict[str, dict[str, str | None]] = {
        "withdraw": {module.worker_key: None},
        "begin": {module.worker_key: module.asked(labels)},
        "hide": {module.ready_key: None},
        "show": {module.ready_key: has},
    }
    return changes.get(work, {})


class KmmWorkers:
    """KMM's controllers and worker pods for one host.

    `roots` are the driver trees that it has images of, by version; `has` is the version that it has loaded, "" for
    none. It loads what the label of the workers names, and unloads only what it has loaded.
    """

    def __init__(self, tree: HostTree, module: KmmModule, roots: Mapping[str, str], has: str = "") -> None:
        self._tree = tree
        self._module = module
        self._roots = roots
        self._has, self._boot_id = has, tree.boot_id

    def next_work(self, labels: Mapping[str, str], *, cordoned: bool) -> str:
        """What it does next, "" for nothing. On a cordoned node it only unloads."""
        is_rebooted = self._boot_id != self._tree.boot_id
        return KmmStatus(self._has, self._roots, not cordoned, is_rebooted).next_work(self._module, labels)

    def act(self, labels: Mapping[str, str], *, cordoned: bool = False) -> dict[str, str | None]:
        """Do it; the labels that it changes. What cannot be done changes nothing."""
        work = self.next_work(labels, cordoned=cordoned)
        match work:
            case "load":
                self._load(self._module.at_work(labels))
            case "unload":
                self._has = "" if self._unload() else self._has
            case "forget":
                self._has = ""
        return changed_labels(work, self._module, labels, self._has)

    def _load(self, version: str) -> None:
        """Over another driver that is as modprobe: it does nothing, and ends well."""
        if self._tree.driver_version == "not loaded":
            self._tree.load(self._roots[version])
        self._has, self._boot_id = version, self._tree.boot_id

    def _unload(self) -> bool:
        """Whether the modules went; a device that is in use keeps them."""
        main = self._tree.profile.modules.roots[0]
        return not any(fake_tools.rmmod(self._tree.root, [name]) for name in (main, f"{main}_core"))


class KmmController(Controller):
    """KMM in a sandbox's cluster."""

    resources = ("nodes",)

    def __init__(self, store: Store, node: str, workers: KmmWorkers) -> None:
        super().__init__(store)
        self._node = node
        self._workers = workers

    def _handle(self, events: Sequence[Event]) -> float:
        if self._is_due():
            time.sleep(WORK_S)  # what KMM's pods take to load or unload
            node = self._store.get("nodes", self._node)
            changed = self._workers.act(_labels(node), cordoned=_is_cordoned(node))
            if changed:
                self._store.patch("nodes", self._node, lambda found: _with(found, changed))
        return WORK_S

    def _is_due(self) -> bool:
        node = self._store.get("nodes", self._node)
        return bool(self._workers.next_work(_labels(node), cordoned=_is_cordoned(node)))


def _labels(node: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = node["metadata"].get("labels", {})
    return labels


def _is_cordoned(node: dict[str, Any]) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))


def _with(node: dict[str, Any], changed: Mapping[str, str | None]) -> dict[str, Any]:
    labels = {key: value for key, value in {**_labels(node), **changed}.items() if value is not None}
    return {**node, "metadata": {**node["metadata"], "labels": labels}}
