"""A container of our pods as a process, with the pod's command, environment, mounts, host name and service account.

The API server and its tokens are real, the host is a sandbox tree.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from driver_manager.domain.profile import Profile
from driver_manager.sandbox.host import HostTree
from tests.support.control_plane.api import Api, Json, wait_until
from tests.support.control_plane.container import Mount, Spec
from tests.support.control_plane.kubelet import Node
from tests.support.control_plane.processes import Ended, Running
from tests.support.control_plane.servers import ControlPlane

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_S = 3600
_TOKEN_VOLUME: Json = {
    "name": "kube-api-access",
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]
    },
}
"""What admission adds to pods whose service account does not say otherwise (plugin/pkg/admission/serviceaccount)."""


class PodRunner:
    def __init__(self, plane: ControlPlane, api: Api, tree: HostTree, folder: Path, server: str = "") -> None:
        self._plane = plane
        self._api = api
        self._tree = tree
        self._folder = folder
        self._server = server or plane.url
        self._count = 0
        self._let_unmount_see_the_hosts_paths()

    def start(self, pod: Json, name: str) -> Running:
        spec = pod["spec"]
        (container,) = [one for one in (*spec.get("initContainers", []), *spec["containers"]) if one["name"] == name]
        self._count += 1
        folder = self._folder / f"container-{self._count}"
        (folder / "root").mkdir(parents=True)
        last_line = folder / "termination-log"
        last_line.touch()
        argv = (*container["command"], *container.get("args", []))
        assert not any("$(" in word for word in argv), f"the kubelet would expand {argv}"
        made = Spec(
            root=str(folder / "root"),
            hostname=pod["metadata"]["name"],
            last_line=str(last_line),
            mounts=tuple(sorted(self._mounts(pod, container, folder), key=lambda one: one.target)),
            env=self._env(pod, container),
            argv=argv,
        )
        return Running(made.command(), {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, last_line)

    def run(self, pod: Json, name: str) -> Ended:
        return self.start(pod, name).end()

    def _env(self, pod: Json, container: Json) -> Mapping[str, str]:
        """The image's PATH, the variables of the service `kubernetes`, and the container's own."""
        host, _, port = self._server.partition("://")[2].partition(":")
        # Nothing else on PATH: what the product starts by name can only be a stand-in.
        path = f"{self._tree.bin}:{Path(sys.executable).parent}"
        own = {one["name"]: _value(one, pod) for one in container.get("env", [])}
        return {"PATH": path, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, **own}

    def _mounts(self, pod: Json, container: Json, folder: Path) -> list[Mount]:
        volumes = {one["name"]: one for one in (*pod["spec"]["volumes"], _TOKEN_VOLUME)}
        mounts = list(container.get("volumeMounts", []))
        if self._automounts(pod) and SERVICE_ACCOUNT not in {one["mountPath"] for one in mounts}:
            mounts.append({"name": _TOKEN_VOLUME["name"], "mountPath": SERVICE_ACCOUNT, "readOnly": True})
        return [
            Mount(str(self._source(volumes[one["name"]], pod, folder)), one["mountPath"], one.get("readOnly", False))
            for one in mounts
        ]

    def _automounts(self, pod: Json) -> bool:
        """Whether every container gets a token, which the API server's admission would have added."""
        namespace, name = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
        account = self._api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
        return bool(account.get("automountServiceAccountToken", True))

    def _source(self, volume: Json, pod: Json, folder: Path) -> Path:
        if "hostPath" in volume:
            path = self._tree.root / str(volume["hostPath"]["path"]).lstrip("/")
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)
            return path
        if "emptyDir" in volume:
            empty = self._folder / f"volume-{pod['metadata']['uid']}-{volume['name']}"
            empty.mkdir(exist_ok=True)
            return empty
        projected = folder / str(volume["name"])
        if not projected.exists():
            projected.mkdir()
            for source in volume["projected"]["sources"]:
                self._project(source, pod, projected)
        return projected

    def _project(self, source: Json, pod: Json, folder: Path) -> None:
        match source:
            case {"serviceAccountToken": wanted}:
                token = request_token(self._api, pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"], pod)
                (folder / wanted["path"]).write_text(token)
            case {"configMap": {"name": "kube-root-ca.crt", "items": [item]}}:
                (folder / item["path"]).write_bytes(self._plane.ca.read_bytes())
            case {"downwardAPI": {"items": items}}:
                for item in items:
                    (folder / item["path"]).write_text(_field(item["fieldRef"]["fieldPath"], pod))
            case _:
                raise AssertionError(f"a kubelet would know {source}, this one does not")

    def _let_unmount_see_the_hosts_paths(self) -> None:
        """umount runs among the host's mounts, where the host's root is `/` and not `/host`."""
        path = self._tree.bin / "umount"
        given = path.read_text()
        assert given.endswith('"$@"\n'), given
        mapped = f'for last; do :; done\nset -- -- "{self._tree.root}${{last#/host}}"\n'
        path.write_text(given.replace("exec ", f"{mapped}exec ", 1))


def request_token(api: Api, namespace: str, account: str, pod: Json | None = None) -> str:
    """A fresh token of the service account, bound to the pod where there is one (TokenRequest)."""
    spec: Json = {"expirationSeconds": _TOKEN_S, "audiences": []}
    if pod is not None:
        meta = pod["metadata"]
        spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return str(api.post(path, body)["status"]["token"])


def _value(variable: Json, pod: Json) -> str:
    if "value" in variable:
        assert "$(" not in variable["value"], f"the kubelet would expand {variable}"
        return str(variable["value"])
    if "valueFrom" not in variable:
        return ""  # the API server drops an empty value
    return _field(variable["valueFrom"]["fieldRef"]["fieldPath"], pod)


def _field(path: str, pod: Json) -> str:
    section, _, name = path.partition(".")
    assert section in ("metadata", "spec"), path
    field, is_one, key = name.partition("['")
    if is_one:
        assert (field, key[-2:]) == ("annotations", "']"), path
        return str(pod[section].get(field, {}).get(key[:-2], ""))
    return str(pod[section][name])


def wait_pod(api: Api, node: str, daemon_set: str) -> Json:
    """The DaemonSet's pod on the node, once it is bound."""

    def found() -> Json | None:
        listed = api.list("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")
        ours = [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]
        return next((pod for pod in ours if daemon_set in _owners(pod)), None)

    return wait_until(found, f"a pod of {daemon_set} on {node}")


def _owners(pod: Json) -> list[str]:
    return [owner["name"] for owner in pod["metadata"].get("ownerReferences", [])]


OLD = "1.2.92"
MANAGER = "k8s-driver-manager"


@dataclass(frozen=True)
class DriverNode:
    """`pod` is the driver pod, bound and Pending."""

    tree: HostTree
    node: Node
    runner: PodRunner
    pod: Json

    def install(self, version: str, digest: str) -> None:
        """What the driver container does after the init container: load, record, say that it is ready."""
        paths = self.tree.profile.paths
        self.tree.add_driver(paths.driver_root, version)
        self.tree.load(paths.driver_root)
        self.tree.record(digest, paths.driver_root, version)
        if paths.ready_marker:
            marker = self.tree.root / paths.ready_marker.lstrip("/")
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()

    def clear(self, expected: str) -> Ended:
        """Run the init container, whose last line begins so once it is done; the node is as it was before."""
        labels = self.node.labels()
        ended = self.runner.run(self.pod, MANAGER)
        assert ended.code == 0, ended.err
        assert ended.last_line.startswith(f"exit 0: done: {expected}"), ended.last_line
        assert (self.node.labels(), self.node.read()["spec"].get("unschedulable")) == (labels, None)
        assert not [key for key in self.node.annotations() if "driver-manager" in key]
        meta = self.pod["metadata"]
        now = self.node.api.get(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}")
        assert "deletionTimestamp" not in now["metadata"], "it paused its own label"
        return ended

    def serve(self, version: str, digest: str) -> None:
        """Install, and run the init container again, which has nothing to do then."""
        self.install(version, digest)
        self.node.kubelet.report_running(self.pod)
        again = self.runner.run(self.pod, MANAGER)
        assert (again.code, "nothing to do: driver is current" in again.last_line) == (0, True), again.err

    def boot(self, *running: Running) -> None:
        """The machine goes down with all that runs on it, and comes up again."""
        for one in running:
            one.kill()
        self.tree.reboot()
        (self.tree.root / self.tree.profile.paths.state_file.lstrip("/")).parent.mkdir(exist_ok=True)
        self.node.report_boot(self.tree.boot_id)

    def is_mounted(self) -> bool:
        return f" {self.tree.profile.paths.driver_root} " in (self.tree.root / "proc/1/mountinfo").read_text()


def old_driver(folder: Path, profile: Profile, digest: str) -> HostTree:
    """A host on which a driver container has loaded the old driver, from a mount that is still there."""
    tree = HostTree(folder / "host", folder / "bin", profile)
    tree.build()
    root = profile.paths.driver_root
    tree.add_driver(root, OLD)
    tree.load(root)
    tree.record(digest, root, OLD)
    tree.mount_driver_root()
    return tree


def settled(node: Node, daemon_set: Json, tree: HostTree, runner: PodRunner) -> DriverNode:
    """The node once the DaemonSet controller has made the pod: the node is chosen only now, and nothing runs yet."""
    name = daemon_set["metadata"]["name"]
    node.kubelet.start_by_hand(f"{name}-")
    node.set_labels(daemon_set["spec"]["template"]["spec"]["nodeSelector"])
    return DriverNode(tree, node, runner, wait_pod(node.api, node.name, name))
