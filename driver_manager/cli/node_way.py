"""How a process in a pod reaches its Node, as data: for a loop that hands it on, and never goes that way itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeWay:
    """The Node's name, the folder of the pod's service account, and where the API server listens."""

    node: str
    account: str
    host: str
    port: str
