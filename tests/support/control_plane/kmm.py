"""KMM beside a real API server: the sandbox's workers, told by a look at the Node every now and then.

Owns the thread that looks. Must not import the product, but for the sandbox.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import Self

from driver_manager.sandbox.cluster import KmmWorkers
from tests.support.control_plane.kubelet import Node

LOOK_S = 0.05


class Kmm:
    """A context manager; `hang` keeps it from any work. `wrong`: what it met and must never meet."""

    def __init__(self, node: Node, workers: KmmWorkers, *, journal: str = "") -> None:
        self.hang = threading.Event()
        self.wrong: list[str] = []
        self._node = node
        self._workers = workers
        self._journal = journal
        self._is_over = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"kmm-{node.name}")
        self._problems: list[BaseException] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        assert self._problems == []

    @contextlib.contextmanager
    def away(self) -> Generator[None, None, None]:
        """Within it no worker runs, as while the node boots."""
        with self._turn:
            yield

    def _run(self) -> None:
        try:
            while not self._is_over.wait(LOOK_S):
                with self._turn:
                    if not self.hang.is_set():
                        self._work()
        except BaseException as error:  # noqa: BLE001  # told by the test's own thread
            self._problems.append(error)

    def _work(self) -> None:
        found = self._node.read()
        labels, cordoned = found["metadata"]["labels"], bool(found["spec"].get("unschedulable"))
        work = self._workers.next_work(labels, cordoned=cordoned)
        is_taken = self._journal in found["metadata"].get("annotations", {})
        if work == "unload" and self._journal and not is_taken:
            self.wrong.append(f"the node is not taken, and has {labels}")
        changed = self._workers.act(labels, cordoned=cordoned)
        if changed:
            self._node.set_labels(changed)
