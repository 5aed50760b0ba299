"""Access to servers of loopback tests: the service account of a pod, its transport without TLS, and a kubeconfig."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

from driver_manager.adapters.http import Bounded
from driver_manager.adapters.kube.transport import AUTHORITY, SERVICE_HOST, SERVICE_PORT, TOKEN_FILE, InPod


def make_account(folder: Path, token: str, authority: bytes = b"of the cluster") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / TOKEN_FILE).write_text(token)
    (folder / AUTHORITY).write_bytes(authority)
    return folder


def variables(port: int) -> dict[str, str]:
    return {SERVICE_HOST: "127.0.0.1", SERVICE_PORT: str(port)}


class PlainInPod(InPod):
    """The product's own transport, but for TLS."""

    def connection(self, _: ssl.SSLContext, connect_s: float) -> Bounded:
        return Bounded(self._host, self._port, timeout=connect_s)

    def _context(self) -> ssl.SSLContext:
        (self._account / AUTHORITY).read_bytes()
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def kubeconfig(server: str = "http://127.0.0.1:1", user: Any = None, context: Any = None, **cluster: str) -> str:
    return json.dumps(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", **(context or {})}}],
            "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
            "users": [{"name": "u", "user": {"token": "t"} if user is None else user}],
        }
    )
