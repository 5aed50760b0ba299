"""Owns who plays the kubelets of a rollout's short-lived pods, each of which ends as the test says.

Must not import the product.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self

from tests.support.control_plane.api import Api, Json, gone
from tests.support.control_plane.servers import NAMESPACE

TASK = "driver-manager.rebellions.ai/task"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class TaskPods:
    """Ends the pods of one task, while the context lasts.

    `ends` is the exit code and the message of a node's pod; well on all others. `seen` counts pods by node.
    """

    def __init__(self, api: Api, task: str) -> None:
        self.ends: dict[str, tuple[int, str]] = {}
        self.seen: Counter[str] = Counter()
        self.bodies: dict[str, Json] = {}
        self._api, self._selector = api, f"{TASK}={task}"
        self._uids: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "a kubelet did not end"

    def there(self) -> list[Json]:
        """The pods that there are."""
        return self._api.list(PODS, labelSelector=self._selector)

    def _run(self) -> None:
        while not self._stopping.wait(0.1):
            for pod in self.there():
                self._handle(pod)

    def _handle(self, pod: Json) -> None:
        meta, node = pod["metadata"], pod["spec"]["nodeName"]
        if "deletionTimestamp" in meta:
            gone(lambda: self._api.delete(f"{PODS}/{meta['name']}", grace_s=0, uid=meta["uid"]), 409)
        elif meta["uid"] not in self._uids:
            self._uids.add(meta["uid"])
            self.seen[node] += 1
            self.bodies[node] = pod
            code, message = self.ends.get(node, (0, ""))
            gone(lambda: self._api.patch(f"{PODS}/{meta['name']}/status", ended(pod, code, message)), 409)


def ended(pod: Json, code: int, message: str = "") -> Json:
    """The status patch of a pod whose first container has ended so, and whose images are all there."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result = {"exitCode": code, "reason": "Error" if code else "Completed", "startedAt": now, "finishedAt": now}
    pulled = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    shown = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": pulled if number else {**result, "message": message}},
        }
        for number, container in enumerate(pod["spec"]["containers"])
    ]
    status = {"phase": "Failed" if code else "Succeeded", "startTime": now, "containerStatuses": shown}
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
