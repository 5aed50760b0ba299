"""Owns how a test node's parts reach its API server: the users, their tokens, and their kubeconfigs in the node.

Must not import the product.
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.control_plane.api import Api, Json
from tests.support.node import releases
from tests.support.node.namespaces import Namespaces
from tests.support.node.node_init import NAME

PORT = 6443
"""Of the API server, on the node's loopback."""

SEEN_INSIDE = Path("/run/control-plane")
"""Below the node's own /run: keys and tokens go with it."""

USERS = {
    "admin": ("node-tests", "system:masters"),
    "kubelet": (f"system:node:{NAME}", "system:nodes"),
    "controllers": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", "system:masters"),
}
"""Name and group by role."""


@dataclass(frozen=True)
class Credentials:
    """The certificate of who signed the server's, PEM, and the users' tokens by role."""

    ca: str
    tokens: dict[str, str]

    @classmethod
    def made(cls, ca: str) -> Self:
        """With fresh tokens."""
        return cls(ca, {role: secrets.token_hex(16) for role in USERS})


class Access:
    """The API server for one node: `api` is an administrator's, once `reach()` has said where the server is."""

    api: Api
    credentials: Credentials

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._folder = namespaces.root / SEEN_INSIDE.relative_to("/")

    def reach(self, credentials: Credentials, port: int) -> None:
        """The server is at this port of our loopback."""
        self.credentials = credentials
        # That folder is the node's; whoever talks to the server from outside needs the certificate there.
        ca = self._namespaces.logs / "ca.crt"
        ca.write_text(credentials.ca)
        self._folder.mkdir(exist_ok=True)
        self.api = Api(f"https://127.0.0.1:{port}", ca, credentials.tokens["admin"])

    def policy(self) -> str:
        """The API version of disruption budgets and evictions that the server has."""
        return releases.policy_of(self.api.get("/apis/policy"))

    def kubeconfig(self, role: str, server: str = f"https://127.0.0.1:{PORT}") -> str:
        """The path, inside of the node, of a self-contained kubeconfig for one of the users."""
        ca = base64.b64encode(self.credentials.ca.encode()).decode()
        config: Json = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "node",
            "contexts": [{"name": "node", "context": {"cluster": "node", "user": role}}],
            "clusters": [{"name": "node", "cluster": {"server": server, "certificate-authority-data": ca}}],
            "users": [{"name": role, "user": {"token": self.credentials.tokens[role]}}],
        }
        name = f"{role}-{server.rpartition(':')[2]}.kubeconfig"
        (self._folder / name).write_text(json.dumps(config))
        return str(SEEN_INSIDE / name)
