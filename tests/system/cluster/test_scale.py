"""Many nodes reconcile at once against one API server, each served as one alone is. scripts/bench has 1,000 of them."""

from __future__ import annotations

import json

import pytest

from tests.support.control_plane.api import Api
from tests.support.control_plane.kubelet import COMPONENTS, LAST_OUTCOME, STATE, of_others
from tests.support.control_plane.many_nodes import PREFIX, Crowd
from tests.support.control_plane.rollout_fleet import IDLE, FleetFactory, Witness, most_under_way, peak_mib, writes
from tests.support.control_plane.servers import ControlPlane

ROLLOUT_NODES, TENTH = 200, 20
PEAK_MIB = 64.0
LIMIT_S = 600.0


@pytest.mark.shares(6)
def test_two_hundred_nodes_go_in_waves_within_the_budget_at_every_write(
    rollout_fleet: FleetFactory, admin_api: Api
) -> None:
    fleet = rollout_fleet(ROLLOUT_NODES)
    (good,) = set(fleet.serving().values())
    controller = fleet.start()
    fleet.make_complete(maxParallel=0, maxUnavailable="10%")
    mark = fleet.plane.audit_mark()
    with Witness(admin_api, fleet.name) as witness:
        new = fleet.set_driver("driver:2")
        fleet.wait_complete(new, LIMIT_S)
        witness.caught_up()
    records = fleet.requests(mark)
    idle = fleet.while_idle(renewals=2)
    peak = peak_mib(controller.process.pid)
    assert controller.terminate().code == 0
    assert witness.served() == {name: [good, new] for name in fleet.nodes}
    turns = witness.turns()
    assert len(turns) == ROLLOUT_NODES
    assert turns[1][1] >= 1, "the canary is done before anybody else begins"
    assert turns[1 + TENTH][1] >= 1 + TENTH, "and so is the tenth"
    most, taken = witness.most_unavailable(), most_under_way(records)
    found = writes(records)
    print(f"{ROLLOUT_NODES} nodes: {dict(found)}, {most} unavailable at most, {taken} taken, {peak:.1f} MiB")
    assert 1 < most <= TENTH, "by the watches, in the order of the store"
    assert most <= taken <= TENTH, "by the audit log"
    assert (found["nodes"], found["pods"]) == (2 * ROLLOUT_NODES, ROLLOUT_NODES)
    assert sum(found.values()) - found["events"] <= 4 * ROLLOUT_NODES
    assert idle <= IDLE
    assert peak < PEAK_MIB


NODES = 100
SEQUENCE = ("get nodes", "list pods", "patch nodes", "watch pods", "get nodes", "get nodes", "patch nodes")


@pytest.mark.shares(6)
def test_of_a_hundred_nodes_at_once_each_asks_as_often_as_one_alone(
    control_plane: ControlPlane, admin_api: Api
) -> None:
    with Crowd(control_plane, admin_api, control_plane.agent_with_events, NODES) as crowd:
        mark = control_plane.audit_mark()
        done = crowd.reconcile(LIMIT_S)
        left = crowd.notes()
        lists = [one.uri for one in control_plane.audit(since=mark) if (one.verb, one.resource) == ("list", "pods")]
    assert sorted(run.node for run in done.runs) == sorted(crowd.nodes)
    assert {(run.code, run.is_unloaded) for run in done.runs} == {(0, True)}, {run.what for run in done.runs}
    assert {run.requests for run in done.runs} == {SEQUENCE}
    agents = [uri for uri in lists if f"spec.nodeName%3D{crowd.nodes[0].rpartition('-')[0]}" in uri]
    assert len(agents) == NODES
    assert all("resourceVersion=0" in uri for uri in agents), "they come from the server's memory"
    assert all(run.gone_s <= run.ended_s for run in done.runs), "no driver goes while a pod is there"
    assert len(left) == NODES
    given_back = {PREFIX + component: "true" for component in COMPONENTS}
    for notes in left:
        assert {key: text for key, text in of_others(notes).items() if "rebellions.ai/" in key} == given_back
        assert (notes[STATE], json.loads(notes[LAST_OUTCOME])["exitCode"]) == ("ready", 0)
        assert "unschedulable" not in notes
