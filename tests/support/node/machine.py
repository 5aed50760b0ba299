"""One whole test node: control plane, containerd and kubelet in one process's namespaces, and what it needs.

As a program: `python -m tests.support.node.machine --check` says what the machine lacks, `--prepare` makes the images.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import assets
from tests.support.control_plane.api import Api, Json
from tests.support.control_plane.servers import AuditRecord, Authority, policy, settled
from tests.support.image import builder
from tests.support.node import images, node_keeper, releases
from tests.support.node.images import PAUSE
from tests.support.node.namespaces import COMMAND_S, Daemon, Doorway, Namespaces, NodeTierError
from tests.support.node.node_init import ADDRESS, NAME, SERVICE_ADDRESS
from tests.support.node.place import CHECKOUT, HERE, Place, run, wait_until
from tests.support.tiers import TierError, answer

PORT = 6443
"""Of the API server, on the node's loopback."""

SEEN_INSIDE = Path("/run/control-plane")
"""Below the node's own /run: keys and tokens go with it."""

USERS = {
    "admin": ("node-tests", "system:masters"),
    "kubelet": (f"system:node:{NAME}", "system:nodes"),
    "controllers": ("system:kube-controller-manager", "system:masters"),
    "scheduler": ("system:kube-scheduler", "system:masters"),
}
"""Name and group by role."""


@dataclass(frozen=True)
class Credentials:
    """The certificate of who signed the server's, PEM, and the users' tokens by role."""

    ca: str
    tokens: dict[str, str]

    @classmethod
    def made(cls, ca: str) -> Self:
        return cls(ca, {role: secrets.token_hex(16) for role in USERS})


class Access:
    """The API server for one node: `api` is an administrator's, once `reach()` knows where the server is."""

    api: Api
    credentials: Credentials

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        self._folder = namespaces.root / SEEN_INSIDE.relative_to("/")

    def reach(self, credentials: Credentials, port: int) -> None:
        self.credentials = credentials
        # That folder is the node's; a client outside needs the certificate there.
        ca = self._namespaces.logs / "ca.crt"
        ca.write_text(credentials.ca)
        self._folder.mkdir(exist_ok=True)
        self.api = Api(f"https://127.0.0.1:{port}", ca, credentials.tokens["admin"])

    def policy(self) -> str:
        return releases.policy_of(self.api.get("/apis/policy"))

    def kubeconfig(self, role: str, server: str = f"https://127.0.0.1:{PORT}") -> str:
        """The path, inside of the node, of a self-contained kubeconfig for one of the users."""
        ca = base64.b64encode(self.credentials.ca.encode()).decode()
        config: Json = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "node",
            "contexts": [{"name": "node", "context": {"cluster": "node", "user": role}}],
            "clusters": [{"name": "node", "cluster": {"server": server, "certificate-authority-data": ca}}],
            "users": [{"name": role, "user": {"token": self.credentials.tokens[role]}}],
        }
        name = f"{role}-{server.rpartition(':')[2]}.kubeconfig"
        (self._folder / name).write_text(json.dumps(config))
        return str(SEEN_INSIDE / name)


SOCKET = "/run/containerd/containerd.sock"
ROOT = "/var/lib/containerd"
CNI_PROGRAMS = "/usr/lib/cni"
CONTAINERD_READY_S = 60.0

# restrict_oom_score_adj: without CAP_SYS_RESOURCE no process may lower its score, and every sandbox would die of it.
_CONFIG = f"""\
version = 2
root = "{ROOT}"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PROGRAMS}"
    conf_dir = "/etc/cni/net.d"
"""
_NETWORK = """\
{
  "cniVersion": "0.4.0",
  "name": "node",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "pods",
      "isGateway": true,
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "ranges": [[{ "subnet": "10.78.0.0/24" }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dataDir": "/run/cni"
      }
    }
  ]
}
"""


# Layers tell by extended attributes which folders hide those below, and files which capabilities they have.
_TAR = ("--xattrs", "--xattrs-include=*", "--numeric-owner")


class Containers:
    """containerd in the node; `start()`, and then images."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        root = namespaces.root
        (root / "etc/containerd").mkdir(exist_ok=True)
        (root / "etc/containerd/config.toml").write_text(_CONFIG)
        (root / "etc/cni/net.d").mkdir(parents=True)
        (root / "etc/cni/net.d/10-node.conflist").write_text(_NETWORK)
        words = ["containerd", "--config", "/etc/containerd/config.toml"]
        self.daemon = Daemon(namespaces, "containerd", words)
        if namespaces.place.stock:
            namespaces.checked("tar", *_TAR, "-C", ROOT, "-xf", str(namespaces.place.stock))
            namespaces.place.say("the images are there")

    def start(self) -> None:
        self.daemon.start()

        def answers() -> bool:
            self.daemon.check_alive()
            return self._namespaces.run("ctr", "--timeout=10s", "version").returncode == 0

        wait_until(answers, f"containerd answers; its log is {self.daemon.log}", CONTAINERD_READY_S)
        self._namespaces.place.say("containerd answers")

    def load(self, archives: Iterable[Path]) -> None:
        """Put the images of docker archives into the node. Raises NodeTierError."""
        for archive in archives:
            self._namespaces.checked("ctr", "-n", "k8s.io", "images", "import", str(archive))
            self._namespaces.place.say(f"images of {archive.name} are loaded")

    def packed_to(self, stock: Path) -> None:
        """End containerd, and put all that it has in a file for another node of the same containerd. NodeTierError."""
        self.daemon.kill(signal.SIGTERM)
        root = self._namespaces.root / ROOT.lstrip("/")
        done = run(["tar", *_TAR, "-C", str(root), "-cf", str(stock), "."], "", COMMAND_S)
        if done.returncode:
            raise NodeTierError(f"containerd's folder could not be packed: {done.stderr}")

    def processes(self, pod_uid: str) -> list[int]:
        """The pids, as this process sees them, in a pod's control groups."""
        roots = node_keeper.hierarchies()
        hierarchy = next((one for one in roots if one.name == "pids"), roots[0])
        found = set[int]()
        for folder, _, _ in os.walk(hierarchy / self._namespaces.group):  # which passes over what goes meanwhile
            if f"pod{pod_uid}" in folder:
                with contextlib.suppress(OSError):  # it went between the two
                    found |= {int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()}
        return sorted(found)


def is_there(programs: str = CNI_PROGRAMS) -> bool:
    return all((Path(programs) / name).exists() for name in ("bridge", "host-local", "loopback"))


NAMESPACE = "rbln-system"
"""Of the driver's pods, whose requests are in the audit log."""

BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
CONTROL_PLANE_READY_S = 120.0

_NAMES = f"subjectAltName=IP:127.0.0.1,IP:{SERVICE_ADDRESS},IP:{ADDRESS},DNS:kubernetes.default"


class ControlPlane(Access):
    """Ready on entry, with `api` for an administrator, also at our loopback's `port`; it ends with the node."""

    def __init__(self, namespaces: Namespaces, assets: Path) -> None:
        super().__init__(namespaces)
        self._assets = assets.resolve()
        self._audit_log = self._folder / "audit.log"

    def __enter__(self) -> Self:
        self._folder.mkdir()
        authority = Authority(self._folder, _NAMES)
        authority.establish()
        authority.sign("server")
        credentials = Credentials.made(authority.certificate.read_text())
        lines = [f"{credentials.tokens[role]},{user},{user},{group}\n" for role, (user, group) in USERS.items()]
        (self._folder / "tokens.csv").write_text("".join(lines))
        self._doorway = Doorway(("127.0.0.1", PORT), self._namespaces.pid).__enter__()
        self.port = self._doorway.port
        self.reach(credentials, self.port)
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.api.close()
        self._doorway.__exit__(None, None, None)

    def audit_mark(self) -> int:
        return self._audit_log.stat().st_size

    def requests(self, since: int) -> list[AuditRecord]:
        return settled(self._audit_log, None, since, CONTROL_PLANE_READY_S)

    def be_gone(self, seconds: float) -> None:
        """Kill the API server, refuse connections for so long, and start it again."""
        self.server.kill()
        time.sleep(seconds)
        self.start_server()

    def start_server(self) -> None:
        self.server.start()
        self._wait("kube-apiserver ready", lambda: self.api.answers("/readyz"), self.server)

    def _start(self) -> None:
        inside = SEEN_INSIDE
        certificate, key = inside / "server.crt", inside / "server.key"
        (self._folder / "audit-policy.json").write_text(json.dumps(policy(NAMESPACE, others="None")))
        self._audit_log.touch()
        etcd = self._daemon(
            "etcd",
            f"--data-dir={inside / 'etcd'}",
            "--unsafe-no-fsync",
            "--heartbeat-interval=100",
            "--election-timeout=1000",
        )
        self.server = self._daemon("kube-apiserver", *self._server_arguments())
        etcd.start()
        self.start_server()
        controllers = self._daemon(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig('controllers')}",
            "--leader-elect=false",
            "--controllers=*",
            "--use-service-account-credentials=false",
            f"--root-ca-file={inside / 'ca.crt'}",
            f"--service-account-private-key-file={key}",
            *self._without_plain_port("kube-controller-manager"),
        )
        scheduler = self._daemon(
            "kube-scheduler",
            f"--kubeconfig={self.kubeconfig('scheduler')}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            *self._without_plain_port("kube-scheduler"),
        )
        words = [sys.executable, "-m", "tests.support.node.front", SERVICE_ADDRESS, f"https://127.0.0.1:{PORT}"]
        words += [str(inside / "ca.crt"), str(certificate), str(key), self.policy()]
        self.front = Daemon(self._namespaces, "front", ["env", f"--chdir={CHECKOUT}", *words])
        for one in (controllers, scheduler, self.front):
            one.start()
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait("service accounts", lambda: self.api.answers(account), etcd, self.server, controllers, self.front)

    def _server_arguments(self) -> list[str]:
        inside = SEEN_INSIDE
        certificate, key = inside / "server.crt", inside / "server.key"
        return [
            "--etcd-servers=http://127.0.0.1:2379",
            "--bind-address=0.0.0.0",
            f"--advertise-address={ADDRESS}",
            f"--secure-port={PORT}",
            "--allow-privileged=true",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--service-account-key-file={certificate}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default",
            f"--token-auth-file={inside / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--kubelet-preferred-address-types=InternalIP",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--cert-dir={inside}",
            f"--audit-policy-file={inside / 'audit-policy.json'}",
            f"--audit-log-path={inside / self._audit_log.name}",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=4096",  # MiB; the default rotates the file at 100
        ]

    def _without_plain_port(self, name: str) -> list[str]:
        """Before 1.24 a program also serves without TLS, unless a flag forbids it."""
        return releases.known_flags(self._assets / name, "--port=0")

    def _daemon(self, name: str, *arguments: str) -> Daemon:
        return Daemon(self._namespaces, name, [str(self._assets / name), *arguments])

    def _wait(self, what: str, check: Callable[[], bool], *daemons: Daemon) -> None:
        def checked() -> bool:
            for one in daemons:
                one.check_alive()
            return check()

        try:
            wait_until(checked, what, CONTROL_PLANE_READY_S)
        except AssertionError as error:
            raise NodeTierError(f"{error}; logs are in {self._namespaces.logs}\n{daemons[0].tail()}") from error
        self._namespaces.place.say(what)


KUBELET_READY_S = 120.0


class Kubelet:
    """The kubelet of the node; `start()` waits until the Node is Ready."""

    path = f"/api/v1/nodes/{NAME}"

    def __init__(self, namespaces: Namespaces, program: Path, kubeconfig: str, api: Api) -> None:
        self._api, self._say = api, namespaces.place.say
        self.release = releases.Release.of(program)
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{namespaces.group}",
            "failSwapOn": False,
            "nodeStatusUpdateFrequency": namespaces.place.node_status_every,
            "nodeStatusReportFrequency": "5m",  # the default where the other one is not set
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "clusterDomain": "cluster.local",
            **releases.kubelet_settings(self.release, SOCKET),
        }
        (namespaces.root / "etc/kubernetes").mkdir(exist_ok=True)
        (namespaces.root / "etc/kubernetes/kubelet.json").write_text(json.dumps(config))
        words = [str(program), "--config=/etc/kubernetes/kubelet.json", f"--kubeconfig={kubeconfig}"]
        words += releases.kubelet_flags(self.release, SOCKET)
        words += [f"--hostname-override={NAME}", f"--node-ip={ADDRESS}", "--v=2"]
        self.daemon = Daemon(namespaces, "kubelet", words)

    def start(self) -> None:
        """Start it, and wait until the Node is Ready by a report that is newer than the last one."""
        before = self._heartbeat()
        self.daemon.start()

        def ready() -> bool:
            self.daemon.check_alive()
            return self._heartbeat() not in ("", before)

        wait_until(ready, f"the Node is Ready; the kubelet's log is {self.daemon.log}", KUBELET_READY_S, every_s=0.1)
        self._say("the Node is Ready")

    def node(self) -> Json:
        return self._api.get(self.path)

    def _heartbeat(self) -> str:
        """When the kubelet last reported itself ready; "" where it has not."""
        if not self._api.answers(self.path):
            return ""
        conditions = self.node()["status"].get("conditions", [])
        (found,) = [one for one in conditions if one["type"] == "Ready"] or [{"status": "False"}]
        return str(found["lastHeartbeatTime"]) if found["status"] == "True" else ""


ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
KUBELET_VARIABLE = assets.KUBELET.variable

PACKAGE_OF = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "kubectl": "kubernetes-client",
    "busybox": "busybox-static",
    "gcc-12": "gcc-12",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "openssl": "openssl",
}


def own_archives() -> list[Path]:
    return [*images.tiny_archives(), images.driver_archive(images.with_stand_ins())]


def own_plane(namespaces: Namespaces) -> ControlPlane:
    return ControlPlane(namespaces, Path(os.environ[ASSETS_VARIABLE]))


class Machine:
    """A node that is Ready, with the images of `archives`, for as long as the context lasts.

    `access` is the way to its API server, which `plane` makes.
    """

    def __init__(
        self,
        place: Place = HERE,
        archives: Callable[[], list[Path]] = own_archives,
        plane: Callable[[Namespaces], AbstractContextManager[Access]] = own_plane,
    ) -> None:
        self.place = place
        self._archives = archives
        self._plane = plane

    def __enter__(self) -> Self:
        with ThreadPoolExecutor() as threads, contextlib.ExitStack() as stack:
            archives = threads.submit(self._archives)
            self.namespaces = stack.enter_context(Namespaces(self.place))
            self.containers = Containers(self.namespaces)
            self.containers.start()
            loading = threads.submit(lambda: self.containers.load(archives.result()))
            self.access = stack.enter_context(self._plane(self.namespaces))
            self.api = self.access.api
            self.kubelet = Kubelet(self.namespaces, kubelet_program(), self.access.kubeconfig("kubelet"), self.api)
            self.kubelet.start()
            loading.result()
            self._admin = self.access.kubeconfig("admin")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    @property
    def plane(self) -> ControlPlane:
        """The control plane, which only a node of its own can be asked for."""
        assert isinstance(self.access, ControlPlane)
        return self.access

    def kubectl(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return self.namespaces.run("kubectl", f"--kubeconfig={self._admin}", *words, given=given)


def kubelet_program() -> Path:
    """The kubelet of the tests. Raises TierError where there is none."""
    return assets.kubelet() / "kubelet"


def missing() -> list[str]:
    lines = [f"{one} (Debian package {name})" for one, name in PACKAGE_OF.items() if shutil.which(one) is None]
    if not is_there():
        lines.append(f"network plugins in {CNI_PROGRAMS} (Debian package containernetworking-plugins)")
    try:
        kubelet_program()
    except TierError as error:
        lines.append(str(error))
    plane = os.environ.get(ASSETS_VARIABLE)
    absent = [name for name in BINARIES if not os.access(Path(plane or "/absent", name), os.X_OK)]
    if absent:
        lines.append(f"{', '.join(absent)} in {ASSETS_VARIABLE}" if plane else f"{ASSETS_VARIABLE} is not set")
    return [*lines, *builder.missing()]


if __name__ == "__main__":
    sys.exit(answer("node", missing(), lambda: images.driver_archive(images.with_stand_ins()).name))
