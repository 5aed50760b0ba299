"""What the controller reports of itself, and how it is answered over HTTP."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from driver_manager.adapters.report.fleet_status import FleetEndpoint
from driver_manager.adapters.report.metrics import Heartbeat
from driver_manager.domain.fleet.acts import NodeView, Outlook, Phase, Place
from driver_manager.domain.fleet.metrics import FleetReport, RolloutFigures, families, figures
from tests.fakes.clock import FakeClock

NODES = (
    NodeView("a", Place.DONE, 1, ""),
    NodeView("b", Place.DONE, 1, ""),
    NodeView("c", Place.FAILED, 2, "it did not load"),
)
OUTLOOK = Outlook(Phase.HALTED, "Failed", "", "r2", 2, NODES, ())
REPORT = FleetReport(
    leads=True, why_not_ready="", rollouts={'npu/"odd"': figures(OUTLOOK, 0.25)}, acts={"MarkNode": 4, "RestartPod": 2}
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def endpoint(clock: FakeClock) -> FleetEndpoint:
    return FleetEndpoint(Heartbeat(clock, 60.0))


def test_every_place_and_phase_has_its_figure() -> None:
    found = figures(OUTLOOK, 0.25)
    assert found.places == {Place.DONE: 2, Place.FAILED: 1, Place.UNDER_WAY: 0, Place.LEFT_OUT: 0, Place.WAITING: 0}
    assert found == RolloutFigures(Phase.HALTED, found.places, 0.25)


def test_what_is_served_is_what_prometheus_reads(endpoint: FleetEndpoint) -> None:
    endpoint.publish(REPORT)
    answer = endpoint.respond("/metrics", "")
    assert (answer.status, answer.content_type.partition(";")[0]) == (200, "text/plain")
    read = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    rollout = ("rollout", 'npu/"odd"')
    assert read["driver_manager_rollout_leader",] == 1
    assert read["driver_manager_rollout_nodes", ("place", "failed"), rollout] == 1
    assert read["driver_manager_rollout_phase", ("phase", "Halted"), rollout] == 1
    assert read["driver_manager_rollout_phase", ("phase", "Complete"), rollout] == 0
    assert read["driver_manager_rollout_decision_seconds", rollout] == 0.25
    assert read["driver_manager_rollout_acts_total", ("act", "RestartPod")] == 2
    assert read["driver_manager_rollout_acts_total", ("act", "SetTemplate")] == 0
    assert {name for name, *_ in read} == {one.name for one in families(REPORT)}


def test_it_is_ready_while_it_does_its_work_be_it_to_stand_by(endpoint: FleetEndpoint) -> None:
    assert endpoint.respond("/readyz", "").status == 503, "it has not looked yet"
    endpoint.publish(FleetReport(leads=False, why_not_ready=""))
    assert (endpoint.respond("/readyz", "").status, endpoint.respond("/readyz", "").body) == (200, b"stands by\n")
    endpoint.publish(REPORT)
    assert endpoint.respond("/readyz", "").body == b"leads\n"
    endpoint.publish(FleetReport(leads=True, why_not_ready="no answer"))
    assert (endpoint.respond("/readyz", "").status, endpoint.respond("/readyz", "").body) == (503, b"no answer\n")


def test_a_loop_that_hangs_is_not_well(endpoint: FleetEndpoint, clock: FakeClock) -> None:
    endpoint.publish(REPORT)
    assert endpoint.respond("/healthz", "").status == 200
    clock.sleep(61.0)
    assert endpoint.respond("/healthz", "").status == 503
    assert endpoint.respond("/", "").status == 404
