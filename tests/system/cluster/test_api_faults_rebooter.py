"""Every request of the rebooter, its Lease's too, meets every fault: it reboots once, and keeps nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from driver_manager.core.rebooter import MAX_ACTS
from driver_manager.domain.reboot.state import RebootPolicy
from tests.support.control_plane.api import Api
from tests.support.control_plane.fault_kinds import SHARES, Cell, Family, cells
from tests.support.control_plane.fault_matrix import enumerate_requests
from tests.support.control_plane.faults import Fault, to_text
from tests.support.control_plane.pod_transport import pod_transport
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.reboot_fleet import KEYS, RealFleet, RealSite, real_fleet
from tests.support.control_plane.servers import ControlPlane, all_certificates
from tests.support.selection import Share, share

POLICY = RebootPolicy("", KEYS, cordon=True, max_attempts=1000)
ROUNDS_DISTURBED, ROUNDS = 5, 10
MOST_REQUESTS = ROUNDS_DISTURBED * 2 * MAX_ACTS
"""Of one verb and resource in the disturbed rounds: a round ends after so many acts, each with a look."""

ONLY = "FAULT_CELLS"


def rounds(driver_node: RealSite, most: int) -> None:
    """So many rounds at most, until its reboot is behind it."""
    for _ in range(most):
        if not driver_node.is_done:
            driver_node.round()


class Track:
    """A fleet that grows by a node for each cell, before the real API server."""

    def __init__(self, plane: ControlPlane, fleet: RealFleet, folder: Path) -> None:
        """`folder` is for the proxy's certificates: a pod speaks TLS only."""
        self._certificates = all_certificates(plane.authority, folder)
        self._plane = plane
        self._fleet = fleet
        self._good = fleet.client

    def run(self, *faults: Fault) -> tuple[RealSite, Proxy]:
        """A node asks for its reboot, is disturbed for some rounds, and then left alone until it is done."""
        driver_node = RealSite(self._fleet, len(self._fleet.sites))
        self._fleet.sites.append(driver_node)
        driver_node.request()
        with Proxy(self._plane.url, self._plane.ca, self._certificates, faults=faults) as proxy:
            self._fleet.client = pod_transport(self._plane, self._plane.rebooter.token, proxy.url)
            rounds(driver_node, ROUNDS_DISTURBED if faults else ROUNDS)
        self._fleet.client = self._good
        rounds(driver_node, ROUNDS)
        return driver_node, proxy

    def problems(self, cell: Cell) -> list[str]:
        """What is not as undisturbed after the cell."""
        fault = cell.fault("")
        self._fleet.api.delete(self._fleet.lease_path)  # as where it was recorded: the first one makes it
        driver_node, proxy = self.run(fault)
        node = driver_node.fleet.api.get(driver_node.path)
        asked = [one for one in proxy.exchanges(cell.asked.verb) if one.request.target.resource == cell.asked.resource]
        seen = {
            "rebooted once": len(driver_node.reboots) == 1 and driver_node.is_done,
            "nothing left on the Node": driver_node.notes() == {},
            "shown as ready": driver_node.state() == "ready",
            "not cordoned": "unschedulable" not in node["spec"],
            "no slot kept": self._fleet.holders() == [],
            "the fault met a request": proxy.fired(fault) > 0,
            "few requests": len(asked) <= MOST_REQUESTS,
        }
        wrong = [what for what, is_so in seen.items() if not is_so]
        return [f"{cell}: not {', not '.join(wrong)}\n  {to_text([fault])}"] if wrong else []


def is_quick(cell: Cell) -> bool:
    """Whether its fault needs neither TLS nor a token on disk, nor real time to pass."""
    return not cell.by.needs and cell.by.family is not Family.WATCH and cell.kind not in ("mute", "away", "slow")


def test_every_request_of_the_rebooter_meets_every_fault(
    control_plane: ControlPlane, admin_api: Api, tmp_path: Path
) -> None:
    with real_fleet(control_plane, admin_api, 0, POLICY) as fleet:
        track = Track(control_plane, fleet, tmp_path)
        driver_node, proxy = track.run()
        assert driver_node.is_done
        asked = enumerate_requests(proxy.exchanges())
        assert {"leases", "nodes", "events"} == {one.resource for one in asked}
        part = share(SHARES)
        chosen = [cell for cell in cells({"rebooter": asked}, part) if is_quick(cell)]
        every = sum(map(is_quick, cells({"rebooter": asked}, Share())))
        print(f"rebooter: {len(asked)} requests; share {part}: {len(chosen)} of {every} cells")
        only = re.compile(os.environ.get(ONLY, ""))
        problems = [problem for cell in chosen if only.search(str(cell)) for problem in track.problems(cell)]
        for left in fleet.sites:
            admin_api.delete(left.path)
    assert problems == [], "\n".join(problems)


def test_the_rebooters_matrix_can_fail(
    control_plane: ControlPlane, admin_api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that forgets to give its slot back would be noticed."""
    monkeypatch.setattr("driver_manager.core.rebooter.Rebooter._leave_slot", lambda *_: None)
    with real_fleet(control_plane, admin_api, 0, POLICY) as fleet:
        track = Track(control_plane, fleet, tmp_path)
        driver_node, _ = track.run()
        assert fleet.holders() == [driver_node.name]
        admin_api.delete(driver_node.path)
