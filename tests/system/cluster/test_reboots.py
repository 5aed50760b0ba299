"""Reboots on a real API server: many nodes and one slot, killed processes, lost answers, races, nodes that die."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from driver_manager.domain import selectors
from driver_manager.domain.errors import ApiUnavailable
from driver_manager.domain.reboot.decision import RebootAct
from driver_manager.domain.reboot.state import RebootPolicy, Record, encode_reboot_record
from tests.support.control_plane.api import MERGE_PATCH, Api, wait_until
from tests.support.control_plane.reboot_fleet import KEYS, RealFleet, RealSite, real_fleet
from tests.support.control_plane.runner import RunnerFactory
from tests.support.control_plane.servers import AuditRecord, ControlPlane
from tests.support.fakes.killer import Killer

NODES = 50
WORKERS = 4
LIMIT_S = 450.0
SEED = 20
POLICY = RebootPolicy("", KEYS, cordon=True, max_attempts=1000)


def blow(chance: random.Random) -> Callable[[Killer], None]:
    """What happens to one round: nothing, a kill before or after some effect, an answer that is lost or never comes."""
    at, kind = chance.randrange(20), chance.random()

    def unavailable() -> None:
        raise ApiUnavailable("no answer", "Wait.")

    if kind < 0.45:
        return lambda killer: killer.kill_at(at % 10, after=chance.random() < 0.5)
    if kind < 0.65:
        return lambda killer: killer.at_call(at, unavailable, after=chance.random() < 0.5)
    return lambda _: None


def worker(fleet: RealFleet, seed: int, problems: list[BaseException], end_s: float) -> None:
    """Rounds of random nodes until all are done; those that have something under way come more often."""
    chance = random.Random(seed)  # noqa: S311  # which blow comes next is no secret
    try:
        while time.monotonic() < end_s and not problems:
            left = [driver_node for driver_node in fleet.sites if not driver_node.is_done]
            if not left:
                return
            busy = [driver_node for driver_node in left if driver_node.is_away or driver_node.host.remembered().pending]
            driver_node = chance.choice(busy if busy and chance.random() < 0.6 else left)
            if driver_node.lock.acquire(blocking=False):
                try:
                    driver_node.round(blow(chance))
                finally:
                    driver_node.lock.release()
    except BaseException as error:  # noqa: BLE001  # raised again in the test's own thread
        problems.append(error)


@pytest.mark.shares(6)
def test_of_fifty_nodes_and_one_slot_never_two_reboot_at_once_and_each_does_once(
    control_plane: ControlPlane, admin_api: Api
) -> None:
    with real_fleet(control_plane, admin_api, NODES, POLICY) as fleet:
        for driver_node in fleet.sites:
            driver_node.request()
        problems: list[BaseException] = []
        end_s = time.monotonic() + LIMIT_S
        with ThreadPoolExecutor(WORKERS) as pool:
            for number in range(WORKERS):
                pool.submit(worker, fleet, SEED + number, problems, end_s)
        assert problems == []
        assert [driver_node.name for driver_node in fleet.sites if not driver_node.is_done] == []
        assert [len(driver_node.reboots) for driver_node in fleet.sites] == [1] * NODES
        assert fleet.holders() == []
        assert sum(driver_node.killed for driver_node in fleet.sites) > NODES, "too few kills to mean something"
        for driver_node in fleet.sites:
            assert driver_node.notes() == {}
            assert driver_node.state() == "ready"
            assert "unschedulable" not in admin_api.get(driver_node.path)["spec"]
        events = admin_api.list("/api/v1/namespaces/default/events")
        ours = [(event["involvedObject"]["name"], event["reason"]) for event in events]
        for reason in ("RebootRequired", "RebootCompleted"):
            counted = [name for name, posted in ours if posted == reason and name.startswith(fleet.prefix)]
            assert sorted(counted) == sorted(driver_node.name for driver_node in fleet.sites), reason


def _pod(fleet: RealFleet, name: str, labels: dict[str, str]) -> str:
    """The path of a pod that runs on the fleet's first node."""
    body = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": fleet.sites[0].name, "containers": [{"name": "c", "image": "x"}]},
    }
    pods = f"/api/v1/namespaces/{fleet.namespace}/pods"
    fleet.api.post(pods, body)
    return f"{pods}/{name}"


def end_pod(api: Api, path: str) -> None:
    """The status that a kubelet gives a pod that has ended."""
    body = {"status": {"phase": "Succeeded"}}
    api.request("PATCH", f"{path}/status", body, content_type=MERGE_PATCH)


def consuming(record: AuditRecord, driver_node: RealSite) -> bool:
    """Whether the request took the approval away, successfully."""
    if record.name != driver_node.name or record.verb != "patch" or record.code != 200:
        return False
    notes = record.body["metadata"].get("annotations", {})
    return KEYS.approve_reboot in notes and notes[KEYS.approve_reboot] is None


def test_two_rebooters_that_race_on_one_node_consume_one_approval_once(
    control_plane: ControlPlane, admin_api: Api
) -> None:
    with real_fleet(control_plane, admin_api, 8, RebootPolicy("", KEYS, max_concurrent=100)) as fleet:
        for driver_node in fleet.sites:
            driver_node.host.obeys = ()
            driver_node.request()
            mark, barrier = control_plane.audit_mark(), threading.Barrier(2)

            def race(driver_node: RealSite = driver_node, barrier: threading.Barrier = barrier) -> None:
                def meet() -> None:
                    barrier.wait(60)

                killer = Killer()
                for call in ("lease", "patch"):  # both come here before either goes on
                    killer.at(call, meet)
                driver_node.rebooter(killer).round()

            threads = [threading.Thread(target=race) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(150)
            records = control_plane.audit(control_plane.rebooter.name, mark)
            assert sum(consuming(record, driver_node) for record in records) == 1
            assert driver_node.notes()[KEYS.pre_reboot_boot_id] == driver_node.host.boot_id


def test_a_job_gets_its_time_and_a_blocking_pod_blocks_before_the_approval_is_consumed(
    control_plane: ControlPlane, admin_api: Api
) -> None:
    policy = RebootPolicy("", KEYS, completion=selectors.parse("job=yes"), blocking=selectors.parse("stays"))
    with real_fleet(control_plane, admin_api, 1, policy) as fleet:
        (driver_node,) = fleet.sites
        job, stays = (_pod(fleet, name, labels) for name, labels in (("job", {"job": "yes"}), ("db", {"stays": ""})))
        driver_node.request()
        mark = control_plane.audit_mark()

        def waits() -> str:
            decision = driver_node.round()
            assert decision is not None
            assert (decision.act, driver_node.reboots) == (RebootAct.WAIT, [])
            assert driver_node.notes()[KEYS.approve_reboot] == "true"
            return decision.reason

        assert waits() == f"is blocked: pods that match stays are on the node: {fleet.namespace}/db"
        end_pod(admin_api, stays)
        assert waits().endswith(f"at most for pods to complete: {fleet.namespace}/job")
        end_pod(admin_api, job)
        assert driver_node.round() is None
        assert len(driver_node.reboots) == 1
        asked = {(record.verb, record.code) for record in control_plane.audit(control_plane.rebooter.name, mark)}
        assert ("list", 200) in asked


@pytest.mark.shares(6)
def test_an_idle_rebooter_has_at_most_16_mib(runner_for: RunnerFactory, control_plane: ControlPlane) -> None:
    runner = runner_for({"openfuyao.com/npu.present": "true"}, "ascend", user=control_plane.rebooter)
    record = runner.tree.root / "var/lib/ascend/.rebooter.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(encode_reboot_record(Record()))
    running = runner.start_process("rebooter", REBOOTER_INTERVAL="0.1s")
    wait_until(lambda: "no reboot is asked for" in running.output(), "it has imported what it needs")
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    assert int(status.partition("VmRSS:")[2].split()[0]) <= 16 * 1024
    assert running.terminate().code == 0
