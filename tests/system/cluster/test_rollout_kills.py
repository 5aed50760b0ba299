"""The controller is killed right before and right after every write of a rollout that fails and goes back.

Each successor goes on from what is on the objects: nothing is done twice, nothing is lost, and the rollout ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.processes import FLEET, ForkServer
from tests.support.control_plane.rollout_fleet import RolloutFleet, TaskPods, Witness, serve_rollouts
from tests.support.control_plane.servers import NAMESPACE, ControlPlane
from tests.support.docs.rollout_object import definition

NODES = 3
RESTART = "pod-restart-required"
MOST_KILLS = 200
"""Three times as many as it takes."""

UNTOLD = tuple(name for name in FLEET if name != "post_event")
"""What changes more than what people are told."""

TURNS = (("before", FLEET), ("after", FLEET), ("before", UNTOLD), ("after", UNTOLD))
"""At which first write one controller after the other is killed. An Event may be posted again by each."""


@pytest.fixture
def fleet(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[RolloutFleet]:
    """Nodes that serve the first driver, as a complete rollout says; the second will not serve on the second node."""
    serve_rollouts(admin_api, definition())
    with ExitStack() as stack:
        made = stack.enter_context(RolloutFleet(control_plane, admin_api, tmp_path, NODES))
        stack.enter_context(TaskPods(admin_api, "preflight"))
        made.kubelets.wedging.add((made.nodes[1], "driver:2"))
        controller = made.start()
        waves = [{"name": "canary", "count": 1}, {"name": "rest"}]
        made.make_rollout(waves=waves, maxParallel=1, maxUnavailable=2, onHalt="undo", preflight="require")
        wait_until(lambda: made.status().get("phase") == "Complete", f"the first revision: {made.status()}", 120)
        assert controller.terminate().code == 0
        yield made


def kill_at_each(fleet: RolloutFleet, fork_server: ForkServer, good: str, bad: str) -> Counter[str]:
    """Kill one controller after the other at its first write until none is left; at which writes, before or after."""
    killed: Counter[str] = Counter()
    for when, names in islice(cycle(TURNS), MOST_KILLS):
        fleet.free_lease()
        mark = fleet.plane.audit_mark()
        run = fleet.fork(fork_server, stops=tuple(f"{name} {when}" for name in names))
        run.wait_log("leading")
        wait_until(
            lambda run=run, mark=mark: (
                run.has_stopped  # type: ignore[misc]
                or run.has_ended
                or (fleet.is_complete(good) and bad in str(fleet.status()) and fleet.renewals(mark) > 1)
            ),
            f"a write, or the end: {run.log}",
            240,
        )
        is_over = not run.has_stopped
        assert run.kill().code == -9, run.log
        if is_over:
            return killed
        killed[f"{when} {run.calls[-1]}"] += 1
    raise AssertionError(f"no end after {killed.total()} kills: {dict(killed)}")


def told(fleet: RolloutFleet) -> Counter[str]:
    """The Events about the object so far: how often each text."""
    path, about = f"/api/v1/namespaces/{NAMESPACE}/events", f"involvedObject.name={fleet.name}"
    return Counter(one["message"] for one in fleet.api.list(path, fieldSelector=about))


@pytest.mark.shares(6)
def test_killed_before_and_after_every_write_the_next_one_goes_on(
    fleet: RolloutFleet, admin_api: Api, tmp_path: Path
) -> None:
    (good,) = set(fleet.serving().values())
    (tmp_path / "runs").mkdir()
    told_before = told(fleet)
    with Witness(admin_api, fleet.name) as witness, ForkServer(tmp_path / "runs") as fork_server:
        bad = fleet.set_driver("driver:2")
        killed = kill_at_each(fleet, fork_server, good, bad)
        witness.caught_up()
    print(f"killed {killed.total()} times: {dict(killed)}")
    assert {f"{when} {name}" for when in ("before", "after") for name in FLEET} == set(killed)
    canary, broken, last = fleet.nodes
    assert witness.served() == {canary: [good, bad, good], broken: [good, bad, good], last: [good]}
    assert fleet.serving() == dict.fromkeys(fleet.nodes, good)
    assert witness.words() == {
        canary: [RESTART, "upgrade-done", RESTART, "upgrade-done"],
        broken: [RESTART, "upgrade-failed", RESTART, "upgrade-done"],
    }
    assert witness.labels_lost({"fleet": fleet.name}) == []
    assert witness.most_under_way() == 1
    assert witness.most_unavailable() <= 2
    said = told(fleet) - told_before
    assert said.total() == len(said), f"told twice: {said}"
