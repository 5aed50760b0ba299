"""A FleetCluster over HTTP: the product's own adapter, its threads and its inbox, on the sandbox's server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from driver_manager.adapters.kube.api import KubeApi
from driver_manager.adapters.kube.fleet import KubeFleet, Letter, readers
from driver_manager.adapters.kube.transport import Transport
from driver_manager.adapters.process.clock import EventQueue, LoopClock
from driver_manager.cli.options import zone
from driver_manager.core.fleet_ports import Change
from driver_manager.sandbox.apiserver import ApiServer, Store
from tests.support.fakes.clock import RecordingReporter
from tests.support.fakes.fleet_scene import KEYS
from tests.support.fakes.pace import patient
from tests.support.fakes.plain_pod import PlainInPod, make_account, variables

WAIT_S = 20.0


@dataclass
class FleetOverHttp:
    """What a test looks at: the cluster, the server behind it, and everything that was told so far."""

    cluster: KubeFleet
    server: ApiServer
    clock: LoopClock
    told: list[Change] = field(default_factory=list)

    @property
    def store(self) -> Store:
        """The server's objects."""
        return self.server.store

    def until(self, holds: Callable[[list[Change]], bool], what: str) -> list[Change]:
        """What was told until `holds`. Raises AssertionError after a while."""
        end_s = time.monotonic() + patient(WAIT_S)
        while not holds(self.told):
            assert time.monotonic() < end_s, f"{what}: {self.told}"
            self.told += self.cluster.changes(self.clock.monotonic() + 0.2)
        return self.told

    def until_one(self, kind: type[Change]) -> Change:
        """The first of what was told that is of a kind; nothing that was told before it is told again."""
        self.until(lambda told: any(isinstance(one, kind) for one in told), f"no {kind.__name__}")
        at = next(number for number, one in enumerate(self.told) if isinstance(one, kind))
        found = self.told[at]
        del self.told[: at + 1]
        return found


@contextlib.contextmanager
def over_http(folder: Path, store: Store | None = None) -> Iterator[FleetOverHttp]:
    """A cluster on a server of its own; at the end nothing is followed any more."""
    with ApiServer(store or Store(), tokens={"token": "controller"}) as server:
        port = urlsplit(server.url).port
        assert port is not None

        account = make_account(folder / "account", "token")

        def connect() -> Transport:
            return PlainInPod(account, variables(port))

        clock = LoopClock()
        inbox: EventQueue[Letter] = EventQueue(clock)
        api = KubeApi(connect(), clock, RecordingReporter(), 2.0)
        found = FleetOverHttp(KubeFleet(api, connect, inbox, clock, readers(KEYS, zone)), server, clock)
        try:
            yield found
        finally:
            found.cluster.follow(frozenset())
            inbox.close()
