"""Preflight pods on a real API server: made with the controller's rights, read, deleted, collected with the object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane.api import Api, Json, wait_until
from tests.support.control_plane.rollout_fleet import (
    ROLLOUTS,
    RolloutFleet,
    TaskPods,
    restarted,
    serve_rollouts,
    writes,
)
from tests.support.control_plane.servers import ControlPlane
from tests.support.docs.rollout_object import definition

NODES = 4
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/driver-rollout"
REQUESTED = "rebellions.ai/npu-driver-upgrade-requested"


@pytest.fixture
def fleet(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[RolloutFleet]:
    """Four nodes that serve the first driver."""
    serve_rollouts(admin_api, definition())
    with RolloutFleet(control_plane, admin_api, tmp_path, NODES) as made:
        yield made


@pytest.fixture
def looks(admin_api: Api) -> Iterator[TaskPods]:
    """Whose preflights end well."""
    with TaskPods(admin_api, "preflight") as made:
        yield made


@pytest.mark.shares(6)
def test_a_node_that_would_fail_is_left_out_until_it_passes(fleet: RolloutFleet, looks: TaskPods) -> None:
    fleet.start()
    waves = [{"name": "canary", "count": 1}, {"name": "rest"}]
    fleet.make_rollout(waves=waves, maxParallel=0, preflight="require")
    wait_until(lambda: fleet.status().get("phase") == "Complete", f"the first revision: {fleet.status()}", 120)
    assert looks.seen == {}
    canary = min(fleet.nodes)
    looks.ends[canary] = (6, "module: none for this kernel")
    mark = fleet.plane.audit_mark()
    new = fleet.set_driver("driver:2")
    wait_until(lambda: list(fleet.serving().values()).count(new) == NODES - 1, "the others go", 120)
    wait_until(lambda: fleet.status().get("phase") == "WaitingForNodes", "the rest waits for somebody", 60)
    assert fleet.serving()[canary] != new
    assert fleet.status()["leftOut"] == [
        {"reason": "its preflight fails: module: none for this kernel", "count": 1, "nodes": [canary]}
    ]
    wait_until(lambda: [pod["spec"]["nodeName"] for pod in looks.there()] == [canary], "only its pod is kept", 60)
    looks.ends.clear()
    fleet.api.patch(f"/api/v1/nodes/{canary}", {"metadata": {"annotations": {REQUESTED: "true"}}})
    fleet.wait_complete(new)
    wait_until(lambda: not looks.there(), "no pod is left", 60)
    assert looks.seen == {**dict.fromkeys(fleet.nodes, 1), canary: 2}
    records = fleet.requests(mark)
    made = [one for one in records if (one.verb, one.resource, one.code) == ("create", "pods", 201)]
    assert len(made) == NODES + 1
    assert writes(records)["pods"] == NODES + 2 * (NODES + 1)
    deleted = restarted(records)
    drivers = {name: times for name, times in deleted.items() if "-preflight-" not in name}
    assert (len(drivers), set(drivers.values())) == (NODES, {1})
    spec = looks.bodies[canary]["spec"]
    assert spec["containers"][0]["args"] == ["preflight", "--driver-pod-leaves", "--output", "json"]
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", 300)


@pytest.mark.shares(6)
def test_without_the_right_to_make_pods_it_says_so_and_goes_on_once_it_has_it(
    fleet: RolloutFleet, looks: TaskPods
) -> None:
    fleet.start()
    fleet.make_rollout(waves=[{"name": "all"}], maxParallel=0, preflight="require")
    wait_until(lambda: fleet.status().get("phase") == "Complete", f"the first revision: {fleet.status()}", 120)
    rules = fleet.api.get(ROLE)["rules"]
    less = [
        {**rule, "verbs": [verb for verb in rule["verbs"] if verb != "create"]} for rule in rules if is_of_pods(rule)
    ]
    fleet.api.patch(ROLE, {"rules": [*less, *(rule for rule in rules if not is_of_pods(rule))]})
    try:
        new = fleet.set_driver("driver:2")
        wait_until(lambda: fleet.status().get("phase") == "Stalled", f"it says so: {fleet.status()}", 120)
        assert "create pods" in str(fleet.status()["conditions"])
        assert fleet.states() == {}
    finally:
        fleet.api.patch(ROLE, {"rules": rules})
    fleet.wait_complete(new)
    assert looks.seen == dict.fromkeys(fleet.nodes, 1)


def is_of_pods(rule: Json) -> bool:
    return bool(rule["resources"] == ["pods"])


@pytest.mark.shares(6)
def test_the_pods_go_with_the_object(fleet: RolloutFleet, looks: TaskPods) -> None:
    fleet.start()
    fleet.make_rollout(waves=[{"name": "all"}], preflight="require")
    wait_until(lambda: fleet.status().get("phase") == "Complete", f"the first revision: {fleet.status()}", 120)
    looks.ends = dict.fromkeys(fleet.nodes, (6, "no module"))
    fleet.set_driver("driver:2")
    wait_until(lambda: fleet.status().get("counts", {}).get("leftOut") == NODES, "all are left out", 120)
    assert len(looks.there()) == NODES
    fleet.api.delete(f"{ROLLOUTS}/{fleet.name}")
    wait_until(lambda: not looks.there(), "the garbage collector takes them", 120)
