"""Two wedged drivers, one slot: a real kubelet's sidecar evicts its own pod, another node's process waits for it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import asdict

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.notes import load_text
from driver_manager.adapters.kube.leases import RECOVERY_LEASE
from driver_manager.adapters.report.log import LogForm
from driver_manager.cli import lean
from driver_manager.cli.health_watch_loop import TASK, RecoverySettings
from driver_manager.domain.health.watch import WedgeSeen
from driver_manager.domain.profile import RecoveryStep, encode_profile
from driver_manager.profiles import builtin
from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import Json, gone
from tests.support.control_plane.kubelet import node_body
from tests.support.control_plane.pod_process import request_token
from tests.support.deploy.apply import apply, path_of
from tests.support.node.drivers import MODULE, Drivers, daemon_set, shell
from tests.support.node.machine import NAMESPACE, Machine
from tests.support.node.node_init import NAME, SERVICE_ADDRESS
from tests.support.node.place import wait_until

PROFILE = builtin()["rebellions"]
KEYS = PROFILE.keys
ACCOUNT = "rebellions-driver"
LABEL = {"node-tests/other": "true"}
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
WELL = json.dumps({"devices": [{"npu": 0, "name": "RBLN-CA12", "status": "normal", "device": "rbln0"}]})
SICK_UNTIL_RELOADED = """\
#!/bin/sh
[ "$(stat -c %i /run/rbln/.stand-ins/sys/module/{module})" != {load} ] || {{ echo npu 0 does not answer >&2; exit 1; }}
[ -e /run/rbln/.stand-ins/answers ] || exit 2
echo '{well}'
"""
"""The vendor's tool. After the reload its answer is unknown until the file `answers` is there."""


class Chip:
    def __init__(self, drivers: Drivers) -> None:
        self._root = drivers.machine.namespaces.root / "run/rbln"
        self._module = drivers.modules / MODULE
        self._tool = self._root / "driver/usr/bin/rbln-smi"
        self._answers = self._root / ".stand-ins/answers"
        self._record = drivers.machine.namespaces.root / PROFILE.paths.health_record.lstrip("/")
        self._tool.parent.mkdir(parents=True, exist_ok=True)
        self.answer()
        self._say(0)

    def load(self) -> int:
        """A number that each load of the driver has for itself."""
        return self._module.stat().st_ino

    def wedge(self) -> None:
        self._answers.unlink()
        self._say(self.load())

    def is_seen_well(self) -> bool:
        """Whether health-watch's record says so."""
        with contextlib.suppress(OSError):
            return bool(json.loads(self._record.read_text())["state"] == "healthy")
        return False

    def answer(self) -> None:
        self._answers.touch()

    def _say(self, load: int) -> None:
        fresh = self._tool.with_suffix(".fresh")
        fresh.write_text(SICK_UNTIL_RELOADED.format(module=MODULE, load=load, well=WELL))
        fresh.chmod(0o755)
        fresh.rename(self._tool)


class OtherNode:
    """A Node without a kubelet, its driver pod, and the process that its health-watch would start for its recovery."""

    name = "node-2"

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine, self._folder, self.api = machine, folder, machine.api
        tree = HostTree(folder / "host", folder / "bin", PROFILE)
        tree.build()
        tree.serve(PROFILE.paths.driver_root, "1.0", "")
        self._roots = HostRoots(tree.root, tree.root / "proc", tree.root / "sys", tree.root / "dev")
        self.path = f"/api/v1/nodes/{self.name}"
        self.api.post("/api/v1/nodes", node_body(self.name, LABEL, {}, tree.boot_id))
        (folder / "token").write_text(request_token(self.api, NAMESPACE, ACCOUNT))
        (folder / "ca.crt").write_text(machine.access.credentials.ca)
        spec = {"nodeSelector": LABEL, "tolerations": [{"operator": "Exists"}], "containers": [shell("driver", "")]}
        self._set = daemon_set("driver-2", NAMESPACE, {"app": "driver-2"}, spec)
        apply(self.api, self._set)
        self._uid = wait_until(self._pods, "its driver pod")[0]["metadata"]["uid"]

    def _pods(self) -> list[Json]:
        found = self.api.list(PODS, labelSelector="app=driver-2")
        return [one for one in found if one["spec"].get("nodeName") == self.name]

    def turn(self) -> Json:
        """One turn of the recovery of its wedge; what it answers."""
        way = lean.NodeWay(self.name, str(self._folder), SERVICE_ADDRESS, "443")
        settings = RecoverySettings(namespace=NAMESPACE)
        document: Json = {
            "task": "recover",
            "way": asdict(way),
            "roots": self._roots.to_document(),
            "driver_root": PROFILE.paths.driver_root,
            "recovery": {**asdict(settings), "patience_s": 60.0},
            "profile": encode_profile(PROFILE),
            "seen": asdict(WedgeSeen(is_wedged=True, since_s=int(time.time()) - 60, reason="npu 0 does not answer")),
        }
        document["seen"]["load"] = load_text(self._roots, PROFILE.modules)
        # Its pod, as the kernel shows it to a process in it.
        group = self._folder / "cgroup"
        group.write_text(f"0::/kubepods/pod{self._uid}/{'c' * 64}\n")
        within = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/$$/cgroup && exec "$@"', str(group))
        given = lean.handed(document, LogForm(as_json=True)).decode()
        output = self._machine.namespaces.checked(*within, *lean.argv(TASK, 0), given=given)
        found: Json = json.loads(output)
        return found

    def is_leaving(self) -> bool:
        return any(
            "deletionTimestamp" in one["metadata"] for one in self._pods() if one["metadata"]["uid"] == self._uid
        )

    def remove(self) -> None:
        gone(lambda: self.api.delete(path_of(self._set)))
        for one in self._pods():
            gone(lambda one=one: self.api.delete(f"{PODS}/{one['metadata']['name']}", grace_s=0))  # type: ignore[misc]
        gone(lambda: self.api.delete(self.path))


@pytest.fixture
def recovering(drivers: Drivers) -> Iterator[Drivers]:
    """The driver with components/recovery, and a health-watch that looks every second and may reload it."""
    record = drivers.machine.namespaces.root / PROFILE.paths.recovery_record.lstrip("/")
    with drivers.with_component("recovery"):
        drivers.want(drivers.version, HEALTH_WATCH_INTERVAL="1s", AUTO_RECOVER=RecoveryStep.RELOAD.value)
        drivers.replace_pod()
        drivers.wait_serving()
        yield drivers
    drivers.replace_pod()  # a rollout of a later test would find a pod of an earlier revision
    drivers.wait_serving()
    gone(lambda: drivers.api.delete(f"{LEASES}/{RECOVERY_LEASE}"))
    record.unlink(missing_ok=True)


@pytest.fixture
def other(recovering: Drivers, tmp_path: Path) -> Iterator[OtherNode]:
    made = OtherNode(recovering.machine, tmp_path)
    yield made
    made.remove()


def shown(drivers: Drivers, path: str) -> Json:
    """What a Node shows of its recovery."""
    found: Json = json.loads(drivers.api.get(path)["metadata"].get("annotations", {}).get(KEYS.recovery, "{}"))
    return found


def holders(drivers: Drivers) -> list[str]:
    """The nodes that hold the slot for a reload."""
    lease = next(iter(drivers.api.list(LEASES, fieldSelector=f"metadata.name={RECOVERY_LEASE}")), None)
    notes = lease["metadata"].get("annotations", {}) if lease else {}
    return [one["node"] for one in json.loads(notes.get(f"{KEYS.recovery_slots}.reload", "{}")).get("holders", [])]


def events(drivers: Drivers, reason: str) -> list[str]:
    selector = f"reason={reason},involvedObject.name={NAME}"
    return [one["message"] for one in drivers.api.list("/api/v1/namespaces/default/events", fieldSelector=selector)]


@pytest.mark.shares(6)
def test_a_wedged_driver_is_reloaded_by_the_successor_of_its_pod_and_another_node_waits_meanwhile(
    recovering: Drivers, other: OtherNode
) -> None:
    chip, machine, pod, labels = Chip(recovering), recovering.machine, recovering.a_pod(), recovering.labels()
    wait_until(chip.is_seen_well, "health-watch sees it healthy")
    load, version, mark = chip.load(), recovering.loaded(), machine.plane.audit_mark()

    chip.wedge()
    wait_until(lambda: holders(recovering) == [NAME], "the node holds the slot")
    recovering.api.patch(other.path, {"metadata": {"annotations": {KEYS.approve_recovery: "reload"}}})
    answer = other.turn()
    assert f"waits for the slot, which {NAME} holds" in answer["recovery"], answer
    assert f"waits for the slot, which {NAME} holds" in shown(recovering, other.path)["reason"]
    wait_until(lambda: recovering.a_pod().uid != pod.uid, "another driver pod")
    recovering.wait_serving()
    assert "waits for the slot" in other.turn()["recovery"]
    assert (holders(recovering), other.is_leaving()) == ([NAME], False)
    assert shown(recovering, machine.kubelet.path)["state"] == "under-way"

    chip.answer()
    wait_until(lambda: events(recovering, "RecoverySucceeded"), "the Event")
    wait_until(lambda: not shown(recovering, machine.kubelet.path), "the Node shows no recovery any more")
    wait_until(lambda: machine.kubelet.node()["metadata"]["labels"].get(KEYS.state) == "ready", "the Node is ready")
    assert (recovering.labels(), recovering.loaded()) == (labels, version)
    assert chip.load() != load
    assert holders(recovering) == []
    recovering.wait_logged("a reload was requested to recover the driver")
    evicted = [one for one in machine.plane.requests(mark) if (one.verb, one.subresource) == ("create", "eviction")]
    # With those that are only rehearsed.
    assert (pod.name, 201) in [(one.name, one.code) for one in evicted]

    assert '"under-way"' in other.turn()["recovery"]
    assert (holders(recovering), other.is_leaving()) == ([other.name], True)
    assert KEYS.approve_recovery not in recovering.api.get(other.path)["metadata"]["annotations"]
