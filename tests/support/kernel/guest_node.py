"""The node tier's node inside of the guest: modules and devices are its kernel's, images come from the host.

Runs in the guest only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.kernel import far_plane
from tests.support.kernel.guest_fixtures import say
from tests.support.kernel.inside import require_guest
from tests.support.node.drivers import Drivers
from tests.support.node.machine import Machine
from tests.support.node.place import Place

STOCK_VARIABLE = "GUEST_NODE_STOCK"
WITHOUT_VARIABLE = "GUEST_WITHOUT_NODE"

FOLDER = Path("/node")
"""A tmpfs: the guest's other files are in an overlay, which can hold no other one's upper folder."""

TELLS_EVERY_S = 60.0


@contextlib.contextmanager
def driver_node() -> Iterator[Drivers]:
    """The node with deploy/ applied and no driver's pod yet, as long as the context lasts. Modules stay loaded."""
    require_guest()
    stock = Path(os.environ[STOCK_VARIABLE])
    place = Place(FOLDER, has_stand_ins=False, stock=stock, node_status_every="10s", say=say)
    with _telling(), _tmpfs(), Machine(place, list, far_plane.in_guest) as machine:
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
