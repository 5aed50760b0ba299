"""Two controllers, and a leader that is cut off from its Lease alone: what it would do wrongly would arrive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.faults import ALWAYS, Drop, Exchange, Fault
from tests.support.control_plane.processes import ForkServer
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.rollout_fleet import RolloutFleet, Witness, serve_rollouts
from tests.support.control_plane.servers import ControlPlane
from tests.support.docs.rollout_object import definition

NODES = 30
"""One after the other: as long as a leader may act without its Lease, and another one after it."""


@pytest.fixture
def fleet(control_plane: ControlPlane, admin_api: Api, tmp_path: Path) -> Iterator[RolloutFleet]:
    """Nodes that serve the first driver."""
    serve_rollouts(admin_api, definition())
    with RolloutFleet(control_plane, admin_api, tmp_path, NODES) as made:
        yield made


def effects(proxy: Proxy, since: int = 0) -> list[Exchange]:
    """What the controller behind the proxy has changed, or tried to change, of the rollout."""
    verbs = ("patch", "delete", "create")
    return [
        one
        for one in proxy.exchanges(since=since)
        if one.request.target.verb in verbs and one.request.target.resource != "leases"
    ]


@pytest.mark.shares(6)
def test_a_leader_cut_off_from_its_lease_stops_before_another_begins(
    fleet: RolloutFleet, admin_api: Api, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    cut = Fault(Drop(), resource="leases", times=ALWAYS)
    with (
        ForkServer(tmp_path / "runs") as fork_server,
        Proxy.before(fleet.plane) as of_first,
        Proxy.before(fleet.plane) as of_second,
    ):
        first = fleet.fork(fork_server, of_first.url)
        fleet.make_rollout(waves=[{"name": "all"}])
        wait_until(lambda: fleet.status().get("phase") == "Complete", f"the first revision: {fleet.status()}", 120)
        (good,) = set(fleet.serving().values())
        second = fleet.fork(fork_server, of_second.url)
        second.wait_log("as ")
        with Witness(admin_api, fleet.name) as witness:
            new = fleet.set_driver("driver:2")
            wait_until(lambda: len(fleet.states()) > 1, "it is under way", 120)
            at_cut = of_first.mark()
            of_first.add(cut)
            second.wait_log("leading")
            wait_until(lambda: effects(of_second), "the second acts", 120)
            took_s = effects(of_second)[0].at_s
            of_first.lift(cut)
            first.wait_log("standing by")
            at_heal = of_first.mark()
            late = effects(of_first, at_cut)
            assert late, "its way to everything else was open"
            assert max(one.ended_at_s or took_s for one in late) < took_s
            assert second.terminate().code == 0
            handed = len(effects(of_second))
            wait_until(lambda: effects(of_first, at_heal), "the first acts again", 120)
            fleet.wait_complete(new)
            assert len(effects(of_second)) == handed
            witness.caught_up()
        assert first.terminate().code == 0
    last = max(one.ended_at_s or 0.0 for one in effects(of_second))
    assert last < effects(of_first, at_heal)[0].at_s
    assert witness.served() == {name: [good, new] for name in fleet.nodes}
    assert {tuple(words) for words in witness.words().values()} == {("pod-restart-required", "upgrade-done")}
    assert witness.most_under_way() == 1
    assert witness.labels_lost({"fleet": fleet.name}) == []
