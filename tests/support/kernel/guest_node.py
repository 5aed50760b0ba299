"""The node tier's node inside of the guest: modules and devices are its kernel's, images come from the host.

So does the control plane: emulated, an API server misses its own deadlines. The guest's pods and kubelet find it where
a node of the node tier has it, on addresses of the node itself, and each connection is passed on as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.support.kernel.guest import HOST_ADDRESS
from tests.support.kernel.guest_fixtures import say
from tests.support.kernel.inside import require_guest
from tests.support.node.drivers import Drivers
from tests.support.node.machine import PORT, Access, ControlPlane, Credentials, Machine
from tests.support.node.namespaces import Doorway, Namespaces
from tests.support.node.node_init import SERVICE_ADDRESS
from tests.support.node.place import Place

STOCK_VARIABLE = "GUEST_NODE_STOCK"
WITHOUT_VARIABLE = "GUEST_WITHOUT_NODE"

FOLDER = Path("/node")
"""A tmpfs: the guest's other files are in an overlay, which can hold no other one's upper folder."""

TELLS_EVERY_S = 60.0


PLANE_VARIABLE = "GUEST_NODE_PLANE"
SERVICE = (SERVICE_ADDRESS, 443)


@contextlib.contextmanager
def plane_on_host(assets: Path) -> Iterator[str]:
    """A control plane in namespaces of the host, and what the guest has to know of it."""
    with (
        Namespaces() as namespaces,
        ControlPlane(namespaces, assets) as plane,
        Doorway(SERVICE, namespaces.pid) as service,
    ):
        yield json.dumps({"api": plane.port, "service": service.port, "credentials": asdict(plane.credentials)})


@contextlib.contextmanager
def _plane_in_guest(namespaces: Namespaces) -> Iterator[Access]:
    """The way to it from the guest's node, and from the guest itself."""
    plane = json.loads(os.environ[PLANE_VARIABLE])
    server, service = ((HOST_ADDRESS, plane[name]) for name in ("api", "service"))
    with (
        Doorway(server, at=("127.0.0.1", PORT), at_pid=namespaces.pid),
        Doorway(service, at=SERVICE, at_pid=namespaces.pid),
        Doorway(server) as own,
    ):
        access = Access(namespaces)
        access.reach(Credentials(**plane["credentials"]), own.port)
        with access.api:
            yield access


@contextlib.contextmanager
def driver_node() -> Iterator[Drivers]:
    """The node with deploy/ applied and no driver's pod yet, as long as the context lasts. Modules stay loaded."""
    require_guest()
    stock = Path(os.environ[STOCK_VARIABLE])
    place = Place(FOLDER, has_stand_ins=False, stock=stock, node_status_every="10s", say=say)
    with _telling(), _tmpfs(), Machine(place, list, _plane_in_guest) as machine:
        drivers = Drivers(machine)
        drivers.deploy()
        yield drivers


@contextlib.contextmanager
def _tmpfs() -> Iterator[None]:
    FOLDER.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755,size=2g", "tmpfs", str(FOLDER)], check=True, timeout=150)
    try:
        yield
    finally:
        subprocess.run(["umount", str(FOLDER)], check=True, timeout=150)


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Says once a minute that this guest is alive; how long it waits for what is bounded by each wait itself."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(TELLS_EVERY_S):
            say(f"load {os.getloadavg()[0]:.1f}")

    thread = threading.Thread(target=tell, name="telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
