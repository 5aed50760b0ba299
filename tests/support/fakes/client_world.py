"""A node in memory whose driver has clients: DaemonSets that make an evicted pod again, and whoever restarts them."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from driver_manager.core.clients import ClientRestarter, ClientTurn
from driver_manager.domain import selectors
from driver_manager.domain.node import Pod
from driver_manager.domain.node_state import Sighting
from driver_manager.domain.pods import client_record
from driver_manager.domain.pods.client_record import ClientRecord
from driver_manager.domain.pods.workloads import ClientRules
from driver_manager.domain.profile import Profile
from driver_manager.domain.wire import written_time
from tests.support.fakes.builders import NEW_DIGEST, PROFILE, node, pod
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.killer import Killed, Killer

START_S = 30.0
"""How long a new pod takes until its container runs."""


class ClientCluster(FakeCluster):
    """Whose pods are made again once they are gone, as `name+`; their containers run some time later."""

    def remove_pod(self, uid: str) -> None:
        gone = self.listed.get(uid)
        super().remove_pod(uid)
        if gone is not None and gone.owner_kind:
            created = written_time(self.clock.wall())
            successor = replace(gone, uid=uid + "+", name=gone.name + "+", deleting=False, created=created)
            self.add_tenant(replace(successor, started_s=None), self.tenants.get(uid))
            self.clock.after(START_S, lambda: self.start(successor.uid))

    def start(self, uid: str) -> None:
        """Its container runs from now on."""
        if uid in self.listed:
            self.add_pod(replace(self.listed[uid], started_s=float(int(self.clock.wall()))))


@dataclass
class ClientWorld:
    """`seen` is what the host says of its driver; `busy`: somebody else restarts clients."""

    selector: str = "app=exporter"
    profile: Profile = PROFILE
    text: str = ""
    busy: bool = False
    seen: Sighting = field(init=False)

    def __post_init__(self) -> None:
        self.killer = Killer()
        self.clock = FakeClock(self.killer)
        self.reporter = RecordingReporter()
        self.cluster = ClientCluster(self.killer, self.clock, node())
        self.load("17")

    def load(self, name: str) -> None:
        """A driver gets ready now, another load than before."""
        self.seen = Sighting("boot-1", name, NEW_DIGEST, (self.clock.wall(),))

    def add(self, name: str, *, labels: dict[str, str] | None = None, blocked_s: float = 0.0, **fields: object) -> Pod:
        """A pod that has run for a while; its budget allows an eviction in `blocked_s` seconds."""
        known = {
            "namespace": "monitoring",
            "labels": {"app": "exporter"} if labels is None else labels,
            "created": written_time(self.clock.wall() - 200.0),
            "started_s": self.clock.wall() - 100.0,
        }
        made = pod(name, **{**known, **fields})
        self.cluster.add_tenant(made)
        self.cluster.tenants[name] = dataclasses.replace(
            self.cluster.tenants[name], blocked_until=self.clock.now + blocked_s if blocked_s else 0.0
        )
        return made

    @property
    def rules(self) -> ClientRules:
        """Who is a client."""
        return ClientRules.of(self.profile, selectors.parse(self.selector))

    @property
    def restarter(self) -> ClientRestarter:
        return ClientRestarter(self.cluster, self, self.clock, self.reporter, self.rules)

    def turn(self) -> ClientTurn | None:
        """One turn of one process, None where it was killed; the next one is another process."""
        try:
            return self.restarter.turn()
        except Killed:
            return None
        finally:
            self.killer.revive()

    @property
    def record(self) -> ClientRecord | None:
        """What is noted on the host."""
        return client_record.recorded(self.text)

    @property
    def told(self) -> list[str]:
        """The clients that Events say were restarted."""
        return [message.split()[1] for reason, message, _ in self.cluster.posted if reason == "DriverClientRestarted"]

    # the ClientNotes port

    @contextmanager
    def alone(self) -> Generator[bool, None, None]:
        with self.killer.call("alone"):
            yield not self.busy

    def sighting(self) -> Sighting:
        with self.killer.call("sighting"):
            return self.seen

    def recall(self) -> str:
        with self.killer.call("recall"):
            return self.text

    def remember(self, text: str) -> None:
        with self.killer.call("remember", effect=True):
            self.text = text
