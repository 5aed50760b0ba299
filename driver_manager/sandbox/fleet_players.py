"""Who starts the driver pods of the sandbox's fleet: kubelets that run init containers.

Owns when a driver pod gets ready. On one node its init container is the real command on a host tree; on the others it
is played: it takes its time and ends well, unless the driver does not load.
Must not import the API server or a client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from driver_manager.sandbox.containers import Container
from driver_manager.sandbox.controllers import Controller, run_pod, set_status
from driver_manager.sandbox.fleet_scenarios import Release
from driver_manager.sandbox.store import Event, Obj, Store

INIT_S = 0.6
"""What a played init container takes."""

_IDLE_S = 3600.0


def version_of(pod: Obj) -> str:
    """The driver's version that the pod is for: the tag of its image."""
    return str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2]


@dataclass
class Host:
    """The node whose runs are real: `run` starts the init container of a pod there, and tells its exit status."""

    node: str
    run: Callable[[Obj, Callable[[int], None]], Container]
    containers: dict[str, Container] = field(default_factory=dict)

    @property
    def is_at_rest(self) -> bool:
        """Whether none of them runs now."""
        return all(container.has_ended for container in list(self.containers.values()))


class DriverStarter(Controller):
    """Runs the init containers of pods that have any, then their containers. Until `begin` they have run before.

    An init container that failed is not started again: whoever looks at it is faster than a kubelet's back-off.
    """

    resources = ("pods",)

    def __init__(self, store: Store, releases: dict[str, Release], host: Host) -> None:
        super().__init__(store)
        self._releases = releases
        self._host = host
        self._is_begun = False
        self._due: dict[str, tuple[float, Obj]] = {}

    def begin(self) -> None:
        """From now on each new pod's init container takes place."""
        self._is_begun = True

    def _handle(self, events: Sequence[Event]) -> float:
        for event in events:
            if event.obj["spec"].get("initContainers"):
                self._consider(event)
        now_s = time.monotonic()
        for uid in [uid for uid, (at_s, _) in self._due.items() if at_s <= now_s]:
            _, pod = self._due.pop(uid)
            self._end(pod, 0 if self._releases[version_of(pod)].loads else 1)
        return max(0.0, min([_IDLE_S, *(at_s - now_s for at_s, _ in self._due.values())]))

    def _consider(self, event: Event) -> None:
        pod, uid = event.obj, event.obj["metadata"]["uid"]
        if event.type == "DELETED" or "deletionTimestamp" in pod["metadata"]:
            self._due.pop(uid, None)
            container = self._host.containers.pop(uid, None)
            if container is not None:
                container.stop()
        elif event.type == "ADDED" and not self._is_begun:
            run_pod(self._store, pod)
        elif event.type == "ADDED" and pod["spec"]["nodeName"] == self._host.node:
            self._host.containers[uid] = self._host.run(pod, lambda status: self._end(pod, status))
        elif event.type == "ADDED":
            self._due[uid] = (time.monotonic() + INIT_S, pod)

    def _end(self, pod: Obj, status: int) -> None:
        if status == 0:
            run_pod(self._store, pod)
            return
        name = pod["spec"]["initContainers"][0]["name"]
        state = {"waiting": {"reason": "CrashLoopBackOff"}}
        last = {"terminated": {"exitCode": status, "reason": "Error"}}
        failed = {"name": name, "ready": False, "restartCount": 1, "state": state, "lastState": last}
        set_status(self._store, pod, {"phase": "Pending", "initContainerStatuses": [failed]})
