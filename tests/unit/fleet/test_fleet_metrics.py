"""What the controller reports of itself and of its rollouts, under our names and under those of the operators."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from driver_manager.adapters.report.http import Heartbeat
from driver_manager.cli.rollout_controller import FleetEndpoint
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import Amount, Fleet, RevisionHistory, RolloutState, UpgradeState
from driver_manager.domain.fleet.state import Pace, Phase
from driver_manager.domain.fleet.status import FleetReport, RolloutFigures, figures, fleet_families, operator_families
from driver_manager.domain.metrics import exposition
from driver_manager.domain.profile import UpgradeMetrics
from driver_manager.profiles import builtin
from tests.support.exposition import samples
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.fleet_builders import NEW, NOW_S, fleet, new_pod, node, pod, policy, record

DONE, FAILED, RESTART, REBOOT = UpgradeState.DONE, UpgradeState.FAILED, UpgradeState.RESTART, UpgradeState.REBOOT
PROFILES = builtin()
NVIDIA, REBELLIONS = PROFILES["nvidia"].upgrade_metrics, PROFILES["rebellions"].upgrade_metrics
HISTORY = (RevisionHistory(NEW, NOW_S - 900.0),)


def some(**rules: Any) -> Fleet:
    """Two done, one failed, one restarting, one that waits for a reboot, two waiting, one cordoned, one operated."""
    nodes = [
        node("a", DONE),
        node("b", DONE, record=record("b", since_s=NOW_S - 20.0)),
        node("c", FAILED),
        node("d", RESTART),
        node("e", REBOOT, record=record("e", since_s=NOW_S - 40.0)),
        *(node("f"), node("g"), node("h", unschedulable=True), node("i", is_operated=True)),
    ]
    pods = [*(new_pod(name, is_ready=name in "abi") for name in "abcdei"), *map(pod, "fgh")]
    rules = {"max_parallel": 3, "failure_threshold": 2, "node_timeout_s": 1200.0, **rules}
    return fleet(nodes, pods, policy=policy(**rules), memory=RolloutState(target=NEW, history=HISTORY))


def counted(facts: Fleet, decision_s: float = 0.25) -> RolloutFigures:
    return figures(facts, advance(facts, NOW_S), decision_s)


def report(*found: RolloutFigures, leads: bool = True) -> FleetReport:
    """Of a controller that is well."""
    return FleetReport(leads, "", {f"npu/{number}": one for number, one in enumerate(found)}, now_s=NOW_S)


def read(text: str) -> dict[tuple[object, ...], float]:
    """What Prometheus reads: values by name and labels."""
    return {(name, *sorted(labels.items())): value for name, labels, value in samples(text)}


def of_operator(names: UpgradeMetrics, *found: RolloutFigures, leads: bool = True) -> dict[tuple[object, ...], float]:
    return read(exposition(operator_families(report(*found, leads=leads), names)))


def served(clock: FakeClock | None = None) -> FleetEndpoint:
    return FleetEndpoint(Heartbeat(clock or FakeClock(), 60.0), REBELLIONS)


def test_a_node_is_counted_where_it_stands_and_by_the_operators_word_for_that() -> None:
    found = counted(some())
    places = {"done": 3, "failed": 1, "under way": 2, "waiting": 2, "left out": 1}
    assert {place.value: count for place, count in found.places.items()} == places
    assert found.words == {
        "upgrade-done": 2,
        "upgrade-failed": 1,
        "pod-restart-required": 1,
        "reboot-required": 1,
        "validation-required": 0,
        "upgrade-required": 2,
        "unknown": 1,
    }, "the node of the operator is in none of them"
    assert (found.phase, found.target, found.decision_s, found.is_paused) == (Phase.PROGRESSING, NEW, 0.25, False)


def test_a_rollout_moves_when_a_node_comes_to_another_state_or_when_it_begins() -> None:
    found = counted(some())
    assert (found.progress_s, found.patience_s) == (NOW_S - 20.0, 1200.0)
    waits = fleet([node("a", unschedulable=True)], memory=RolloutState(target=NEW, history=HISTORY))
    assert counted(waits).progress_s == NOW_S - 900.0


def test_a_pace_that_is_unknown_is_served_as_0() -> None:
    known = counted(some())
    assert known.pace == Pace(40.0, left_s=2 * 40.0, free=1), "b took so long; four are left, three at a time"
    assert counted(some(paused=True)).pace == Pace(), "a rollout that does not go on has none"
    for one, values in ((known, (40.0, NOW_S + 80.0)), (replace(known, pace=Pace()), (0.0, 0.0))):
        found = {family.name: family.values for family in fleet_families(report(one))}
        served = ("node_seconds", "expected_end_timestamp_seconds")
        assert tuple(found[f"driver_manager_rollout_{name}"][0][1] for name in served) == values


def test_what_is_served_is_what_prometheus_reads() -> None:
    endpoint = served()
    fleet_report = FleetReport(True, "", {'npu/"odd"': counted(some())}, {"MarkNode": 4, "RestartPod": 2}, NOW_S)
    endpoint.publish(fleet_report)
    answer = endpoint.respond("/metrics")
    assert (answer.status, answer.content_type.partition(";")[0]) == (200, "text/plain")
    found, rollout = read(answer.body.decode()), ("rollout", 'npu/"odd"')
    ours = {
        ("leader",): 1,
        ("ready",): 1,
        ("nodes", ("place", "failed"), rollout): 1,
        ("phase", ("phase", "Progressing"), rollout): 1,
        ("phase", ("phase", "Complete"), rollout): 0,
        ("decision_seconds", rollout): 0.25,
        ("progress_timestamp_seconds", rollout): NOW_S - 20.0,
        ("patience_seconds", rollout): 1200.0,
        ("node_seconds", rollout): 40.0,
        ("expected_end_timestamp_seconds", ("revision", NEW), rollout): NOW_S + 80.0,
        ("acts_total", ("act", "RestartPod")): 2,
        ("acts_total", ("act", "SetTemplate")): 0,
    }
    assert {key: found[f"driver_manager_rollout_{key[0]}", *key[1:]] for key in ours} == ours
    assert found["rbln_operator_driver_upgrade_nodes", ("state", "upgrade-failed")] == 1
    every = (*fleet_families(fleet_report), *operator_families(fleet_report, REBELLIONS))
    assert {name for name, *_ in found} == {one.name for one in every}


# the operators' names


def test_nvidias_operator_has_a_number_for_each() -> None:
    assert of_operator(NVIDIA, counted(some())) == {
        ("gpu_operator_driver_auto_upgrade_enabled",): 1,
        ("gpu_operator_nodes_upgrades_in_progress",): 2,
        ("gpu_operator_nodes_upgrades_done",): 2,
        ("gpu_operator_nodes_upgrades_failed",): 1,
        ("gpu_operator_nodes_upgrades_available",): 1,
        ("gpu_operator_nodes_upgrades_pending",): 2,
    }


def test_rebellions_operator_has_one_metric_by_state_zeros_included() -> None:
    name, words = "rbln_operator_driver_upgrade_nodes", counted(some()).words
    assert of_operator(REBELLIONS, counted(some())) == {(name, ("state", word)): words[word] for word in words}


def test_several_rollouts_are_one_number_and_upgrades_are_on_unless_every_rollout_is_paused() -> None:
    name, paused = "gpu_operator_driver_auto_upgrade_enabled", counted(some(paused=True))
    assert [of_operator(NVIDIA, *found)[name,] for found in ((), (paused,), (paused, counted(some())))] == [0, 0, 1]
    found = of_operator(NVIDIA, counted(some()), counted(some()))
    assert found["gpu_operator_nodes_upgrades_pending",] == 4
    assert found["gpu_operator_nodes_upgrades_available",] == 2


def test_an_upgrade_can_start_where_a_node_waits_and_there_is_room() -> None:
    def available(**rules: Any) -> float:
        return of_operator(NVIDIA, counted(some(**rules)))["gpu_operator_nodes_upgrades_available",]

    assert [available(max_parallel=most) for most in (2, 3, 0)] == [0, 1, 2]
    assert available(max_parallel=9, max_unavailable=Amount(5)) == 1
    assert available(max_parallel=0, paused=True) == available(max_parallel=0, failure_threshold=1) == 0


def test_who_stands_by_says_nothing_under_these_names() -> None:
    assert of_operator(NVIDIA, counted(some()), leads=False) == {}
    assert of_operator(REBELLIONS, leads=False) == {}
    assert PROFILES["ascend"].upgrade_metrics == UpgradeMetrics(), "it has no such operator"
    assert of_operator(UpgradeMetrics(), counted(some())) == {}


# over HTTP


def test_it_is_ready_while_it_does_its_work_be_it_to_stand_by() -> None:
    endpoint = served()
    assert endpoint.respond("/readyz").status == 503, "it has not looked yet"
    for fleet_report, status, body in (
        (FleetReport(leads=False, why_not_ready=""), 200, b"standing by\n"),
        (report(counted(some())), 200, b"leads\n"),
        (FleetReport(leads=True, why_not_ready="no answer"), 503, b"no answer\n"),
    ):
        endpoint.publish(fleet_report)
        answer = endpoint.respond("/readyz")
        assert (answer.status, answer.body) == (status, body)
    assert endpoint.respond("/").status == 404


def test_a_loop_that_hangs_does_no_work_whatever_it_reported_before() -> None:
    clock = FakeClock()
    endpoint = served(clock)
    endpoint.publish(report(counted(some())))
    assert endpoint.respond("/healthz").status == 200
    clock.sleep(61.0)
    assert endpoint.respond("/healthz").status == 503
    assert endpoint.respond("/readyz").body == b"its loop hangs\n"
    assert read(endpoint.respond("/metrics").body.decode())["driver_manager_rollout_ready",] == 0
    endpoint.publish(report())
    assert endpoint.respond("/readyz").body == b"leads\n"
