"""A stand-in for Kernel Module Management (KMM): it follows a Node's version label on a sandbox host.

What it does and when is that of `driver_manager.domain.kmm`, without its pods. Imports only the domain and the sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driver_manager.domain.kmm import KmmModule
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.controllers import Controller
from driver_manager.sandbox.host_tree import HostTree
from driver_manager.sandbox.store import Event, Store

WORK_S = 0.3
"""What a worker pod takes at least."""


@dataclass(frozen=True)
class KmmWorkers:
    """The worker pods of one host; `roots` are the driver trees that KMM has images of, by version."""

    tree: HostTree
    module: KmmModule
    roots: Mapping[str, str]

    def is_due(self, labels: Mapping[str, str], *, cordoned: bool) -> bool:
        """Whether there is something to do."""
        if cordoned:
            return self._is_loaded() or bool(self.module.ready(labels))
        asked = self.module.asked(labels)
        return asked != self.module.ready(labels) or (bool(asked) and not self._is_loaded())

    def act(self, labels: Mapping[str, str], *, cordoned: bool = False) -> dict[str, str | None]:
        """Do the next piece of work; the labels that it changes. One that cannot be done changes nothing."""
        asked, ready = ("" if cordoned else self.module.asked(labels)), self.module.ready(labels)
        if ready and ready != asked:
            return {self.module.ready_key: None}
        if self._is_loaded() and self.tree.driver_version != asked and not self._unload():
            return {}
        if asked in self.roots:
            self.tree.load(self.roots[asked])
        return {self.module.ready_key: asked} if asked in self.roots and asked != ready else {}

    def _is_loaded(self) -> bool:
        return self.tree.driver_version != "not loaded"

    def _unload(self) -> bool:
        """Whether the modules went; a device that is in use keeps them."""
        main = self.tree.profile.modules.roots[0]
        return not any(fake_tools.rmmod(self.tree.root, [name]) for name in (main, f"{main}_core"))


class KmmController(Controller):
    """KMM in a sandbox's cluster."""

    resources = ("nodes",)

    def __init__(self, store: Store, node: str, workers: KmmWorkers) -> None:
        super().__init__(store)
        self._node = node
        self._workers = workers

    def _handle(self, events: Sequence[Event]) -> float:
        if self._is_due():
            time.sleep(WORK_S)
            node = self._store.get("nodes", self._node)
            changed = self._workers.act(_labels(node), cordoned=_is_cordoned(node))
            if changed:
                self._store.patch("nodes", self._node, lambda found: _with(found, changed))
        return WORK_S

    def _is_due(self) -> bool:
        node = self._store.get("nodes", self._node)
        return self._workers.is_due(_labels(node), cordoned=_is_cordoned(node))


def _labels(node: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = node["metadata"].get("labels", {})
    return labels


def _is_cordoned(node: dict[str, Any]) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))


def _with(node: dict[str, Any], changed: Mapping[str, str | None]) -> dict[str, Any]:
    labels = {key: value for key, value in {**_labels(node), **changed}.items() if value is not None}
    return {**node, "metadata": {**node["metadata"], "labels": labels}}
