"""A fleet of thousands on the sandbox's API server, behind TLS as a pod meets it, for a controller in its own process.

Owns what its objects weigh: what a kubelet and the vendors' discovery write on a Node, what a driver's pod is made of.
"""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from driver_manager.domain.fleet.spec import PLURAL
from driver_manager.sandbox.apiserver import ApiServer, DaemonSetController, Kubelet, Obj, Store, hash_of
from driver_manager.sandbox.cluster import daemon_set, pod_template
from tests.support.control_plane.processes import Running
from tests.support.control_plane.servers import Authority
from tests.support.fakes.builders import PROFILE

NAMESPACE = PROFILE.namespace
NAME = "driver"
LABEL = {"accelerator": "true"}
TOKEN = "of-the-controller"
SITE = Path(__file__).parents[2] / "support/control_plane/pod_site"
SAID = "kubelet has what it needs, as its message says at some length on every one of all the nodes"
IMAGES, LABELS = 50, 40
"""A kubelet reports 50 images (kubelet, nodeStatusMaxImages); node-feature-discovery makes some dozens of labels."""


def heavy_node(name: str) -> Obj:
    """A Node as large as those of a real cluster: some 15 KiB."""
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{number}": "true" for number in range(LABELS)}
    fields: Obj = {f"f:{key}": {} for key in labels}
    managed = {"manager": "nfd-master", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": fields}}}
    images = [
        {
            "names": [
                f"registry.example/team/image-{number}@sha256:{number:064}",
                f"registry.example/team/image-{number}:v1",
            ],
            "sizeBytes": 1_000_000 * number,
        }
        for number in range(IMAGES)
    ]
    body = slim_node(name)
    body["metadata"]["labels"] |= labels
    body["metadata"] |= {"managedFields": [managed], "annotations": {"csi.volume/nodeid": SAID, "node.alpha/ttl": "0"}}
    pressures = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
    body["status"]["conditions"] += [
        {
            "type": kind,
            "status": "False",
            "reason": "AllIsWell",
            "message": SAID,
            "lastHeartbeatTime": "2026-01-02T03:04:05Z",
        }
        for kind in pressures
    ]
    body["status"] |= {"images": images, "addresses": [{"type": "Hostname", "address": name}]}
    return body


def slim_node(name: str) -> Obj:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": SAID}
    return {
        "metadata": {"name": name, "labels": {**LABEL, "kubernetes.io/hostname": name}},
        "status": {"nodeInfo": {"bootID": f"boot-of-{name}"}, "conditions": [ready]},
    }


def template(version: str) -> Obj:
    """Of the driver's pods: some KiB, as the vendors' are."""
    made = pod_template(NAME, {f"SETTING_{number}": "some value" for number in range(20)}, version)
    volumes: list[Any] = [
        {"name": f"host-{n}", "hostPath": {"path": f"/run/some/path/{n}", "type": "Directory"}} for n in range(10)
    ]
    mounts = [{"name": one["name"], "mountPath": one["hostPath"]["path"]} for one in volumes]
    main = {
        **made["spec"]["containers"][0],
        "volumeMounts": mounts,
        "env": made["spec"].pop("initContainers")[0]["env"],
    }
    return {**made, "spec": {**made["spec"], "containers": [main], "volumes": volumes}}


@dataclass(frozen=True)
class BigFleet:
    """Nodes that serve one driver, each with a ready pod, and a rollout of it."""

    store: Store
    server: ApiServer
    account: dict[str, str]

    @property
    def revision(self) -> str:
        return hash_of(self.store.get("daemonsets", NAME, NAMESPACE)["spec"]["template"])

    def set_driver(self, version: str) -> str:
        """Another template; the hash of its revision."""
        body = daemon_set(NAME, NAMESPACE, LABEL, template(version))
        self.store.patch("daemonsets", NAME, lambda one: {**one, "spec": body["spec"]}, namespace=NAMESPACE)
        return self.revision

    def status(self) -> Obj:
        found, _ = self.store.find_objects(PLURAL)
        return found[0].get("status") or {}

    def counted(self, word: str) -> int:
        found, _ = self.store.find_objects("nodes", labels=f"{PROFILE.keys.upgrade_state}={word}")
        return len(found)

    def wait_for(self, phase: str, revision: str, limit_s: float) -> None:
        """Until the object says so. SystemExit where that takes longer."""
        end_s = time.monotonic() + limit_s
        while (self.status().get("phase"), self.status().get("targetRevision")) != (phase, revision):
            if time.monotonic() > end_s:
                raise SystemExit(f"{phase} of {revision} did not come within {limit_s:g} s: {self.status()}")
            time.sleep(0.02)

    def start(self, folder: Path) -> Running:
        """The controller, in a pod as far as it can see."""
        last_line = folder / "last-line"
        last_line.touch()
        argv = [sys.executable, "-m", "driver_manager", "rollout", "controller", "--profile", PROFILE.name]
        argv += ["--namespace", NAMESPACE, "--log-format", "text", "--log-level", "warning"]
        return Running(argv, {"PATH": "/usr/bin:/bin", **self.account}, last_line)


@contextmanager
def big_fleet(folder: Path, size: int, *, heavy: bool, **spec: Any) -> Iterator[BigFleet]:
    """All of it, served until the end of the block."""
    store = Store(history_limit=20 * size)
    for number in range(size):
        name = f"node-{number:05}"
        store.create("nodes", heavy_node(name) if heavy else slim_node(name))
    store.create("daemonsets", daemon_set(NAME, NAMESPACE, LABEL, template("1")))
    store.create(PLURAL, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": {"daemonSet": NAME, **spec}})
    with (
        ApiServer(store, tokens={TOKEN: "controller"}) as server,
        Kubelet(store, start_s=0.1, stop_s=0.1),
        DaemonSetController(store),
    ):
        account = _behind_tls(server, folder)
        with store.changed:
            if not store.changed.wait_for(lambda: _running(store) == size, 600):
                raise SystemExit(f"only {_running(store)} of {size} pods run")
        yield BigFleet(store, server, account)


def _running(store: Store) -> int:
    found, _ = store.find_objects("pods", fields="status.phase=Running")
    return len(found)


def _behind_tls(server: ApiServer, folder: Path) -> dict[str, str]:
    """The environment of a process in a pod, to which the server answers as any API server does."""
    authority = Authority(folder)
    authority.establish()
    certificate, key = authority.sign("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    listening = server._http
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    (folder / "token").write_text(TOKEN)
    return {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(urlsplit(server.url).port),
        "TEST_SERVICE_ACCOUNT": str(folder),
        "PYTHONPATH": str(SITE),
    }
