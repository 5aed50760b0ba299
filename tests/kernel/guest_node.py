"""Owns the node tier's node inside of the guest: modules and devices are its kernel's, images come from the host.

Runs in the guest only. Must not import the product.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.control_plane.api import Api, Json
from tests.kernel import far_plane
from tests.kernel.inside import require_guest
from tests.node.control_plane import NAMESPACE
from tests.node.drivers import Drivers
from tests.node.machine import Machine
from tests.node.patience import wait_until
from tests.node.place import Place

STOCK_VARIABLE = "GUEST_NODE_STOCK"
WITHOUT_VARIABLE = "GUEST_WITHOUT_NODE"

FOLDER = Path("/node")
"""A tmpfs: the guest's other files are in an overlay, which can hold no other one's upper folder."""

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CONSOLE = Path("/dev/console")
WATCH_S = 3600


def say(what: str) -> None:
    """To the console, past pytest: the host ends a guest that says nothing for too long."""
    with CONSOLE.open("w") as console:
        console.write(f"node, {time.monotonic():.0f} s: {what}\n")


@contextlib.contextmanager
def driver_node() -> Iterator[Drivers]:
    """The node with the driver of deploy/ installed, as long as the context lasts. The modules stay loaded."""
    require_guest()
    stock = Path(os.environ[STOCK_VARIABLE])
    place = Place(FOLDER, has_stand_ins=False, stock=stock, node_status_every="10s", say=say)
    with _tmpfs(), Machine(place, list, far_plane.in_guest) as machine, _heeding(machine.api, PODS, _tell):
        drivers = Drivers(machine)
        drivers.install()
        yield drivers


@contextlib.contextmanager
def _tmpfs() -> Iterator[None]:
    FOLDER.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,size=2g", "tmpfs", str(FOLDER)], check=True, timeout=150)
    try:
        yield
    finally:
        subprocess.run(["umount", str(FOLDER)], check=True, timeout=150)


def _tell(kind: str, pod: Json) -> None:
    """Says what the kubelet reports of a pod: one wait for it has many steps."""
    say(f"{kind} {pod['metadata']['name']}: {_states(pod)}")


@contextlib.contextmanager
def node_states(drivers: Drivers) -> Iterator[list[Json]]:
    """Every state of the Node while the context lasts; all of them are there when it ends."""
    seen: list[Json] = []
    with _heeding(drivers.api, "/api/v1/nodes", lambda _, node: seen.append(node)):
        yield seen
        last = drivers.machine.kubelet.node()["metadata"]["resourceVersion"]
        wait_until(lambda: any(node["metadata"]["resourceVersion"] == last for node in seen), "the Node's last state")


@contextlib.contextmanager
def _heeding(api: Api, path: str, heed: Callable[[str, Json], None]) -> Iterator[None]:
    """Gives every event of a watch to `heed`, in order, while the context lasts."""
    watch = api.watch(path, timeout_s=WATCH_S)

    def read() -> None:
        for kind, body in watch:
            heed(kind, body)

    thread = threading.Thread(target=read, name=path, daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.stop()
        thread.join()
        watch.close()


def _states(pod: Json) -> str:
    status = pod["status"]
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    states = [f"{one['name']} {next(iter(one['state']), 'unknown')}" for one in containers]
    return ", ".join([status.get("phase", ""), *states])
