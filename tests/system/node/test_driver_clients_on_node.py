"""Another team's client on a real kubelet: the sidecar of a driver that its container loads has it restarted, once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.control_plane.api import Json
from tests.support.control_plane.servers import AuditRecord
from tests.support.node.drivers import CLIENT, OTHER_NAMESPACE, Drivers, OtherTeam, stopping_after
from tests.support.node.place import wait_until

GENERATION = "rebellions.ai/npu-driver-manager.generation"
EXPORTER, BYSTANDER = "exporter", "bystander"


@pytest.fixture
def team(drivers: Drivers) -> Iterator[OtherTeam]:
    """A client and another pod, in a namespace that is not the driver's."""
    made = OtherTeam(drivers)
    made.add(EXPORTER, stopping_after(0), CLIENT)
    made.add(BYSTANDER, stopping_after(0))
    yield made
    made.remove()


def evictions(drivers: Drivers, since: int) -> list[AuditRecord]:
    """Those that were asked for since that place in the audit log."""
    return [one for one in drivers.machine.plane.requests(since) if one.subresource == "eviction"]


def generation(drivers: Drivers) -> str:
    """Of the driver, as the Node shows it; "" where it shows none."""
    return str(drivers.machine.kubelet.node()["metadata"].get("annotations", {}).get(GENERATION, ""))


def uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


@pytest.mark.shares(6)
def test_a_client_is_restarted_once_by_the_watch_after_the_ready_marker(drivers: Drivers, team: OtherTeam) -> None:
    (client,), (bystander,) = team.running(EXPORTER), team.running(BYSTANDER)
    drivers.want(drivers.other_version(), HEALTH_WATCH_INTERVAL="1s")
    since, shown = drivers.machine.plane.audit_mark(), generation(drivers)
    drivers.replace_pod()
    drivers.wait_serving()
    ready_s = drivers.ready_at()
    wait_until(lambda: evictions(drivers, since), "the client is evicted")
    (successor,) = wait_until(
        lambda: [pod for pod in team.running(EXPORTER) if uid(pod) != uid(client)], "the client's successor runs"
    )
    wait_until(lambda: generation(drivers) != shown, "the Node shows the generation, which comes last")
    (eviction,) = evictions(drivers, since)
    assert (eviction.namespace, eviction.name) == (OTHER_NAMESPACE, client["metadata"]["name"])
    assert eviction.received_at.timestamp() >= ready_s
    assert [uid(pod) for pod in team.running(EXPORTER)] == [uid(successor)]
    assert [uid(pod) for pod in team.running(BYSTANDER)] == [uid(bystander)]
