"""The control plane of the guest's node, which the host runs: emulated, an API server misses its own deadlines.

The host's end and the guest's. The guest's pods and kubelet find it where a node of the node tier has it, on addresses
of the node itself, and each connection is passed on as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.support.kernel.guest import HOST_ADDRESS
from tests.support.node.machine import PORT, Access, ControlPlane, Credentials
from tests.support.node.namespaces import Doorway, Namespaces
from tests.support.node.node_init import SERVICE_ADDRESS

VARIABLE = "GUEST_NODE_PLANE"
SERVICE = (SERVICE_ADDRESS, 443)


@contextlib.contextmanager
def on_host(assets: Path) -> Iterator[str]:
    """A control plane in namespaces of the host, and what the guest has to know of it."""
    with (
        Namespaces() as namespaces,
        ControlPlane(namespaces, assets) as plane,
        Doorway(SERVICE, namespaces.pid) as service,
    ):
        yield json.dumps({"api": plane.port, "service": service.port, "credentials": asdict(plane.credentials)})


@contextlib.contextmanager
def in_guest(namespaces: Namespaces) -> Iterator[Access]:
    """The way to it from the guest's node, and from the guest itself."""
    told = json.loads(os.environ[VARIABLE])
    server, service = ((HOST_ADDRESS, told[name]) for name in ("api", "service"))
    with (
        Doorway(server, at=("127.0.0.1", PORT), at_pid=namespaces.pid),
        Doorway(service, at=SERVICE, at_pid=namespaces.pid),
        Doorway(server) as own,
    ):
        access = Access(namespaces)
        access.reach(Credentials(**told["credentials"]), own.port)
        with access.api:
            yield access
