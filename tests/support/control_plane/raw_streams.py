"""Owns reading an answer as a raw stream of bytes, for what a JSON client would hide: where lines end, and cuts."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from http.client import HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from tests.support.control_plane.api import PATIENCE_S
from tests.support.control_plane.kubelet import Node
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.servers import ControlPlane, User


def watch_path(target: Node) -> str:
    """All states of the node from now on, as they come."""
    version = target.read()["metadata"]["resourceVersion"]
    return f"/api/v1/nodes?watch=1&fieldSelector=metadata.name%3D{target.name}&resourceVersion={version}"


@contextlib.contextmanager
def opened(
    proxy: Proxy, plane: ControlPlane, user: User, path: str, patience_s: float = PATIENCE_S, head_s: float = PATIENCE_S
) -> Iterator[HTTPResponse]:
    """The raw answer of the proxy, as a stream. Gives up on its head after `head_s`, then after `patience_s`."""
    address, context = urlsplit(proxy.url), ssl.create_default_context(cafile=str(plane.ca))
    connection = HTTPSConnection(address.hostname or "", address.port, timeout=PATIENCE_S, context=context)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {user.token}"})
        sock = connection.sock  # the answer's, from when its head has been read
        sock.settimeout(head_s)
        with connection.getresponse() as response:
            sock.settimeout(patience_s)
            yield response


def read_on(stream: HTTPResponse, got: bytearray) -> None:
    """Read to the end. Raises what ended it otherwise, with what came before in `got`."""
    while chunk := stream.read1():
        got += chunk
