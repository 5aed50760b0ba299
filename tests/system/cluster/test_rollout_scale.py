"""Two hundred nodes in waves on a real API server: budgets at every write, few writes, little memory, then silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.rollout_fleet import (
    IDLE,
    RolloutFleet,
    Witness,
    most_under_way,
    peak_mib,
    serve_rollouts,
    writes,
)
from tests.support.control_plane.servers import ControlPlane
from tests.support.docs.rollout_object import definition

NODES, TENTH = 200, 20
PEAK_MIB = 64.0
LIMIT_S = 600.0


@pytest.mark.shares(6)
def test_two_hundred_nodes_go_in_waves_within_the_budget_at_every_write(
    control_plane: ControlPlane, admin_api: Api, tmp_path: Path
) -> None:
    serve_rollouts(admin_api, definition())
    with RolloutFleet(control_plane, admin_api, tmp_path, NODES) as fleet:
        (good,) = set(fleet.serving().values())
        controller = fleet.start()
        fleet.make_rollout(maxParallel=0, maxUnavailable="10%")
        wait_until(lambda: fleet.status().get("phase") == "Complete", "the first revision", LIMIT_S, every_s=0.2)
        mark = control_plane.audit_mark()
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
    assert len(turns) == NODES
    assert turns[1][1] >= 1, "the canary is done before anybody else begins"
    assert turns[1 + TENTH][1] >= 1 + TENTH, "and so is the tenth"
    most, taken = witness.most_unavailable(), most_under_way(records)
    found = writes(records)
    print(f"{NODES} nodes: {dict(found)}, {most} unavailable at most, {taken} taken, {peak:.1f} MiB")
    assert 1 < most <= TENTH, "by the watches, in the order of the store"
    assert most <= taken <= TENTH, "by the audit log"
    assert (found["nodes"], found["pods"]) == (2 * NODES, NODES)
    assert sum(found.values()) - found["events"] <= 4 * NODES
    assert idle <= IDLE
    assert peak < PEAK_MIB
