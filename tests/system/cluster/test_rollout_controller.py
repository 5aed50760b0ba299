"""The real controller beside the real DaemonSet controller, on a real API server: waves, kills, two at once, a halt."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.rollout_fleet import (
    IDLE,
    RolloutFleet,
    most_under_way,
    restarted,
    serve_rollouts,
    writes,
)
from tests.support.control_plane.servers import ControlPlane
from tests.support.docs.rollout_object import definition

NODES = 10
WAVES = [{"name": "canary", "count": 1, "soak": "2s"}, {"name": "tenth", "percent": 10}, {"name": "rest"}]


@pytest.fixture
def fleet(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[RolloutFleet]:
    """Ten nodes that serve the first driver, and nobody who would roll another one out."""
    serve_rollouts(admin_api, definition())
    with RolloutFleet(control_plane, admin_api, tmp_path, NODES) as made:
        yield made


def begun(fleet: RolloutFleet, **spec: object) -> int:
    """The first revision is complete by the object; a mark of the audit log after that."""
    fleet.make_rollout(**{"waves": WAVES, "maxParallel": 3, **spec})
    wait_until(lambda: fleet.status().get("phase") == "Complete", f"the first revision: {fleet.status()}", 120)
    return fleet.plane.audit_mark()


def check_each_once(fleet: RolloutFleet, revision: str, mark: int) -> None:
    """Raise AssertionError unless every node serves the revision after one restart."""
    assert fleet.serving() == dict.fromkeys(fleet.nodes, revision)
    assert fleet.states() == dict.fromkeys(fleet.nodes, "upgrade-done")
    deleted = restarted(fleet.requests(mark))
    assert (len(deleted), set(deleted.values())) == (NODES, {1})


def test_a_rollout_goes_through_its_waves_in_few_writes_and_is_idle_afterwards(fleet: RolloutFleet) -> None:
    controller = fleet.start()
    mark = begun(fleet)
    new = fleet.set_driver("driver:2")
    fleet.wait_complete(new)
    check_each_once(fleet, new, mark)
    records = fleet.requests(mark)
    marked = [one.name for one in records if (one.verb, one.resource) == ("patch", "nodes")]
    assert marked[0] == marked[1], "the canary has ended before anybody else begins"
    assert 1 < most_under_way(records) <= 3
    found = writes(records)
    print(f"writes of {NODES} nodes: {dict(found)}")
    assert found["nodes"] == 2 * NODES
    assert found["pods"] == NODES
    assert found["driverrollouts/status"] <= NODES
    assert sum(found.values()) - found["events"] <= 4 * NODES
    counts = fleet.status()["counts"]
    assert (counts["updated"], counts["total"]) == (NODES, NODES)
    assert fleet.while_idle(renewals=3) <= IDLE
    ended = controller.terminate()
    assert ended.code == 0, ended.err


@pytest.mark.shares(6)
def test_killed_in_the_middle_again_and_again_the_next_one_goes_on(fleet: RolloutFleet) -> None:
    controller = fleet.start()
    mark = begun(fleet, waves=[{"name": "all"}], maxParallel=2)
    chance = random.Random(4)  # noqa: S311  # when it is killed is no secret
    new = fleet.set_driver("driver:2")
    for _ in range(3):
        done = sum(state == "upgrade-done" for state in fleet.states().values())
        wait_until(
            lambda done=done: len(fleet.states()) > done or fleet.is_complete(new),  # type: ignore[misc]
            "another node goes",
            120,
        )
        since, more = fleet.plane.audit_mark(), chance.randrange(4)
        wait_until(
            lambda since=since, more=more: (  # type: ignore[misc]
                writes(fleet.requests(since)).total() >= more or fleet.is_complete(new)
            ),
            f"{more} writes more",
            120,
        )
        assert controller.kill().code == -9
        controller = fleet.start()
    fleet.wait_complete(new)
    check_each_once(fleet, new, mark)
    assert most_under_way(fleet.requests(mark)) <= 2


@pytest.mark.shares(6)
def test_of_two_at_once_one_acts_and_the_other_takes_over_when_it_is_told_to_end(fleet: RolloutFleet) -> None:
    first = fleet.start("first")
    mark = begun(fleet, waves=[{"name": "all"}], maxParallel=2)
    second = fleet.start("second")
    wait_until(lambda: "as " in second.said(), "the second is there", 60)
    new = fleet.set_driver("driver:2")
    wait_until(lambda: len(fleet.states()) >= 2, "it is under way", 60)
    assert "leading" not in second.said()
    assert first.terminate().code == 0
    handed_s = time.monotonic()
    wait_until(lambda: "leading" in second.said(), "the second leads", 60)
    assert time.monotonic() - handed_s < 12.0, "before the Lease would have run out"
    fleet.wait_complete(new)
    check_each_once(fleet, new, mark)
    assert most_under_way(fleet.requests(mark)) <= 2


@pytest.mark.shares(6)
def test_a_node_that_fails_halts_the_rollout_and_a_repaired_one_completes_it(fleet: RolloutFleet) -> None:
    fleet.start()
    begun(fleet, nodeTimeout="5s")
    canary = min(fleet.nodes)
    fleet.kubelets.broken.add(canary)
    new = fleet.set_driver("driver:2")
    wait_until(lambda: fleet.status().get("phase") == "Halted", "it halts", 120)
    assert fleet.states() == {canary: "upgrade-failed"}
    (stalled,) = [one for one in fleet.status()["conditions"] if one["type"] == "Stalled"]
    assert stalled["status"] == "True"
    assert canary in str(fleet.status()["failures"])
    fleet.kubelets.broken.clear()
    fleet.wait_complete(new)
