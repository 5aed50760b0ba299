"""Many nodes reconcile at once against one API server, each served as one alone is. scripts/bench has 1,000 of them."""

from __future__ import annotations

import json

import pytest

from tests.support.control_plane.api import Api
from tests.support.control_plane.kubelet import COMPONENTS, LAST_OUTCOME, STATE, of_others
from tests.support.control_plane.many_nodes import PREFIX, Crowd
from tests.support.control_plane.servers import ControlPlane

NODES = 100
LIMIT_S = 600.0
SEQUENCE = ("get nodes", "list pods", "patch nodes", "watch pods", "patch nodes")


@pytest.mark.shares(6)
def test_of_a_hundred_nodes_at_once_each_asks_as_often_as_one_alone(
    control_plane: ControlPlane, admin_api: Api
) -> None:
    with Crowd(control_plane, admin_api, control_plane.agent_with_events, NODES) as crowd:
        done = crowd.reconcile(LIMIT_S)
        left = crowd.notes()
    assert sorted(run.node for run in done.runs) == sorted(crowd.nodes)
    assert {(run.code, run.is_unloaded) for run in done.runs} == {(0, True)}, {run.what for run in done.runs}
    assert {run.requests for run in done.runs} == {SEQUENCE}
    assert all(run.gone_s <= run.ended_s for run in done.runs), "no driver goes while a pod is there"
    assert len(left) == NODES
    given_back = {PREFIX + component: "true" for component in COMPONENTS}
    for notes in left:
        assert {key: text for key, text in of_others(notes).items() if "rebellions.ai/" in key} == given_back
        assert (notes[STATE], json.loads(notes[LAST_OUTCOME])["exitCode"]) == ("ready", 0)
        assert "unschedulable" not in notes


def test_lists_of_pods_come_from_the_servers_memory(control_plane: ControlPlane, admin_api: Api) -> None:
    with Crowd(control_plane, admin_api, control_plane.agent_with_events, 2) as crowd:
        mark = control_plane.audit_mark()
        crowd.reconcile(LIMIT_S)
        lists = [one.uri for one in control_plane.audit(since=mark) if (one.verb, one.resource) == ("list", "pods")]
    agents = [uri for uri in lists if any(node in uri for node in crowd.nodes)]
    assert len(agents) == 2
    assert all("resourceVersion=0" in uri for uri in agents)
