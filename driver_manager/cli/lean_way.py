"""How a process in a pod reaches its Node, as data: a loop passes it to the processes that send the requests."""

from __future__ import annotations

from driver_manager.domain.records import Frozen


class NodeWay(Frozen):
    """The Node's name, the folder of the pod's service account, and where the API server listens."""

    node: str
    account: str
    host: str
    port: str
