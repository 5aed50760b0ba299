"""Reboots on a real API server: many nodes and one slot, killed processes, lost answers, races, nodes that die."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from driver_manager.domain.errors import ApiUnavailable
from driver_manager.domain.reboot.decision import RebootAct
from driver_manager.domain.reboot.state import RebootPolicy, Record, encode_reboot_record
from driver_manager.profiles import builtin
from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.kubelet import NodeFactory
from tests.support.control_plane.pod_transport import pod_transport
from tests.support.control_plane.reboot_fleet import KEYS, RealFleet, RealSite, real_fleet
from tests.support.control_plane.runner import JOURNAL, CommandRunner, node_of
from tests.support.control_plane.servers import AuditRecord, ControlPlane, User
from tests.support.fakes.killer import Killer

ASCEND = builtin()["ascend"]
ROOT, OLD = "/var/lib/Ascend/driver", "25.2.0"
WANTED = "digest-of-25.5.0"


@pytest.fixture
def one(control_plane: ControlPlane, agent_with_events: User, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """A node with such a driver in its root, not loaded yet."""
    made = CommandRunner(control_plane, agent_with_events, tmp_path, "ascend")
    made.tree.add_driver(ROOT, OLD)
    made.node = node({"openfuyao.com/npu.present": "true"}, boot_id=made.tree.boot_id)
    return made


def reconcile(one: CommandRunner, **env: str) -> tuple[int, str]:
    wanted = {"DRIVER_LOAD": "container", "DRIVER_ROOT": "", "DRIVER_CONFIG_DIGEST": WANTED, **env}
    ended = one.reconcile("--no-wait", DRIVER_PROFILE="ascend", POD_TERMINATION_TIMEOUT="0s", **wanted)
    return ended.code, ended.last_line


def boot(one: CommandRunner, *roots: str) -> None:
    """A reboot; the driver of the first of `roots` is loaded after it."""
    one.tree.reboot()
    node = node_of(one)
    info = node.read()["status"]["nodeInfo"] | {"bootID": one.tree.boot_id}
    node.api.patch(f"{node.path}/status", {"status": {"nodeInfo": info}})
    for root in roots:
        one.tree.load(root)


def is_asked(one: CommandRunner) -> bool:
    """Whether marker and label ask for a reboot: both or none."""
    marker = (one.tree.root / ASCEND.paths.reboot_marker.lstrip("/")).exists()
    assert marker is (ASCEND.keys.reboot_required in node_of(one).labels())
    return marker


def test_a_host_with_its_own_driver_is_never_asked_to_reboot(one: CommandRunner) -> None:
    one.tree.add_driver("/", OLD)
    labels = node_of(one).labels()
    for _ in range(2):
        boot(one, "/")
        code, last_line = reconcile(one)
        assert code == 10, last_line
        assert "the host has its own driver" in last_line
        assert not is_asked(one)
        assert node_of(one).labels() == labels
    assert JOURNAL not in node_of(one).annotations()


def test_a_reboot_that_brought_the_same_driver_again_is_not_asked_for_again(one: CommandRunner) -> None:
    boot(one, ROOT)
    assert reconcile(one)[0] == 9
    assert is_asked(one)
    for _ in range(2):
        boot(one, ROOT)
        code, last_line = reconcile(one)
        assert code == 5, last_line
        assert "another reboot would not help" in last_line
        assert ASCEND.paths.reboot_wish in last_line
        assert not is_asked(one)
    (one.tree.root / ASCEND.paths.reboot_wish.lstrip("/")).unlink()
    assert reconcile(one)[0] == 9, "as the message says"


def test_a_reinstall_that_stays_forced_reboots_once(one: CommandRunner) -> None:
    boot(one, ROOT)
    one.tree.record(WANTED, ROOT, OLD)
    assert reconcile(one, FORCE_REINSTALL="true")[0] == 9
    for _ in range(2):
        boot(one)
        assert reconcile(one, FORCE_REINSTALL="true")[0] == 0, "its container loads it"
        one.tree.load(ROOT)
        one.tree.record(WANTED, ROOT, OLD)
        code, last_line = reconcile(one, FORCE_REINSTALL="true")
        assert code == 0, last_line
        assert "after the reboot for the forced reinstall" in last_line
        assert not is_asked(one)


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
    except BaseException as error:  # noqa: BLE001  # told by the test's own thread
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
            counted = [name for name, said in ours if said == reason and name.startswith(fleet.prefix)]
            assert sorted(counted) == sorted(driver_node.name for driver_node in fleet.sites), reason


def test_a_node_that_dies_with_the_slot_keeps_it_until_it_is_ready_again(
    control_plane: ControlPlane, admin_api: Api
) -> None:
    with real_fleet(control_plane, admin_api, 2, POLICY) as fleet:
        dead, other = fleet.sites
        dead.request()
        other.request()
        dead.round()
        for _ in range(5):
            decision = other.round()
            assert decision is not None
            assert decision.reason == f"waits for a slot: 1 of 1 in use, by {dead.name}"
        dead.come_back()
        other.round()
        assert other.reboots == []  # Ready, and its own rebooter has not seen its driver yet
        dead.round()
        other.round()
        assert (len(dead.reboots), len(other.reboots)) == (1, 1)


def test_a_deleted_nodes_slot_is_free_and_a_node_of_the_same_name_does_not_inherit_it(
    control_plane: ControlPlane, admin_api: Api
) -> None:
    with real_fleet(control_plane, admin_api, 3, POLICY) as fleet:
        dead, other, third = fleet.sites
        for driver_node in fleet.sites:
            driver_node.request()
        dead.round()
        admin_api.delete(dead.path)
        fleet.deleted.add(dead.name)
        other.round()
        assert other.host.is_down
        assert fleet.holders() == [other.name]
        admin_api.post("/api/v1/nodes", {"metadata": {"name": dead.name}})
        decision = third.round()
        assert decision is not None
        assert f"by {other.name}" in decision.reason


def consuming(record: AuditRecord, driver_node: RealSite) -> bool:
    """Whether the request took the approval away, successfully."""
    if record.name != driver_node.name or record.verb != "patch" or record.code != 200:
        return False
    notes = record.body["metadata"].get("annotations", {})
    return KEYS.approve_reboot in notes and notes[KEYS.approve_reboot] is None


def meet_at(barrier: threading.Barrier) -> None:
    """Both come here before either goes on."""
    barrier.wait(60)


def test_two_rebooters_that_race_on_one_node_consume_one_approval_once(
    control_plane: ControlPlane, admin_api: Api
) -> None:
    with real_fleet(control_plane, admin_api, 8, RebootPolicy("", KEYS, max_concurrent=100)) as fleet:
        for driver_node in fleet.sites:
            driver_node.host.obeys = ()
            driver_node.request()
            mark, meet = control_plane.audit_mark(), threading.Barrier(2)

            def race(driver_node: RealSite = driver_node, meet: threading.Barrier = meet) -> None:
                killer = Killer()
                killer.at("lease", lambda: meet_at(meet))
                killer.at("patch", lambda: meet_at(meet))
                driver_node.rebooter(killer).round()

            threads = [threading.Thread(target=race) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(150)
            records = control_plane.audit(control_plane.rebooter.name, mark)
            assert sum(consuming(record, driver_node) for record in records) == 1
            assert driver_node.notes()[KEYS.pre_reboot_boot_id] == driver_node.host.boot_id


@pytest.fixture
def command_runner(control_plane: ControlPlane, tmp_path: Path, node: NodeFactory) -> CommandRunner:
    """An Ascend node with its driver loaded, for the real command line with the rebooter's rights."""
    made = CommandRunner(control_plane, control_plane.rebooter, tmp_path, "ascend")
    made.tree.add_driver("/var/lib/Ascend/driver", "25.2.0")
    made.tree.load("/var/lib/Ascend/driver")
    made.node = node({"openfuyao.com/npu.present": "true"}, boot_id=made.tree.boot_id)
    return made


def rss_mib(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def is_lean(pid: int) -> bool:
    return b"rebooter_idle" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.shares(6)
def test_the_command_is_idle_in_little_memory_reboots_when_approved_and_is_idle_again(
    control_plane: ControlPlane, command_runner: CommandRunner
) -> None:
    assert command_runner.node is not None
    mark = control_plane.audit_mark()
    record = command_runner.tree.root / "var/lib/ascend/.rebooter.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(encode_reboot_record(Record()))
    running = command_runner.start_process("rebooter", REBOOTER_INTERVAL="0.1s")
    pid = running.process.pid
    wait_until(lambda: is_lean(pid), "the rebooter is idle")
    wait_until(lambda: "no reboot is asked for" in running.said(), "it has imported what it needs")
    assert rss_mib(pid) <= 16
    assert control_plane.audit(control_plane.rebooter.name, mark) == []
    marker = command_runner.tree.root / "var/lib/ascend/.reboot-required"
    asked = command_runner.reconcile("--no-wait", DRIVER_LOAD="container", DRIVER_PROFILE="ascend", POD_NAME="")
    assert asked.code == 7, asked.err  # the rebooter's rights do not let it read pods
    shown = command_runner.run("status", DRIVER_PROFILE="ascend", POD_NAME="")
    assert shown.code == 0, shown.err
    assert 'cannot list resource "pods"' in shown.out
    assert "drv_pcie_host 25.2.0" in shown.out
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text("upgrade\n")
    node = command_runner.node
    wait_until(lambda: node.labels().get(KEYS.reboot_required) == "true", "the request is announced")
    node.api.patch(node.path, {"metadata": {"annotations": {KEYS.approve_reboot: "true"}}})
    wait_until(lambda: command_runner.tree.is_reboot_requested, "the reboot command is given")
    assert KEYS.approve_reboot not in node.annotations()
    assert running.kill().code == -9
    command_runner.tree.reboot()
    command_runner.tree.load("/var/lib/Ascend/driver")
    ready = {"type": "Ready", "status": "True"}
    info = node.read()["status"]["nodeInfo"] | {"bootID": command_runner.tree.boot_id}
    status = {"status": {"nodeInfo": info, "conditions": [ready]}}
    node.api.request("PATCH", f"{node.path}/status", status, content_type="application/merge-patch+json")
    again = command_runner.start_process("rebooter", REBOOTER_INTERVAL="0.1s")
    wait_until(lambda: is_lean(again.process.pid), "everything is cleaned up")
    assert not marker.exists()
    assert not {key for key in {**node.labels(), **node.annotations()} if key.startswith("npu.openfuyao.com/")}
    assert node.shown()[0] == "ready"
    ended = again.terminate()
    assert (ended.code, "complete the reboot" in ended.err) == (0, True)


def test_a_dead_api_server_is_waited_for(control_plane: ControlPlane, admin_api: Api) -> None:
    with real_fleet(control_plane, admin_api, 1, POLICY) as fleet:
        (driver_node,) = fleet.sites
        driver_node.request()
        good = fleet.client
        fleet.client = pod_transport(control_plane, control_plane.rebooter.token, "https://127.0.0.1:9")
        decision = driver_node.round()
        assert decision is not None
        assert (decision.act, "no usable answer" in decision.reason) == (RebootAct.WAIT, True)
        fleet.client = good
        driver_node.round()
        assert driver_node.host.is_down
