"""A real control plane on loopback (etcd, kube-apiserver, kube-controller-manager), its certificates, users, audit log.

Leaving the context kills its processes by id and removes the temporary folder that has all they write.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import urllib3

from tests.support import assets
from tests.support.control_plane.api import Api, Json, wait_until
from tests.support.control_plane.processes import ForkServer
from tests.support.tiers import TierError


@dataclass(frozen=True)
class AuditRecord:
    """One request, once, however many stages the log has of it. `code` is None while it runs, as an open watch does."""

    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user: str
    uri: str
    received_at: datetime
    code: int | None
    body: Any  # what was sent, for service accounts of the policy's namespace only

    @property
    def is_counted(self) -> bool:
        """Whether it is one of a run's requests: Events, access reviews and the condition are counted apart."""
        is_condition = (self.resource, self.subresource) == ("nodes", "status")
        return self.resource not in {"events", "selfsubjectaccessreviews"} and not is_condition

    def __str__(self) -> str:
        path = "/".join(part for part in (self.resource, self.name, self.subresource) if part)
        return f"{self.verb} {path or self.uri} {self.code}"


def policy(namespace: str, others: str = "Metadata") -> Json:
    """The audit policy: requests of this namespace's service accounts with what was sent, `others` at that level.

    In blocking mode RequestReceived is logged before the handler runs: what was answered is in the log.
    """
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "rules": [
            {"level": "None", "users": ["system:apiserver"]},
            {"level": "Request", "userGroups": [f"system:serviceaccounts:{namespace}"]},
            {"level": others},
        ],
    }


def settled(log: Path, user: str | None, since: int, settle_s: float) -> list[AuditRecord]:
    """The requests of `user` (None: of all) after byte `since`, in the order they came in, each once.

    Waits until each but open watches has its status. AssertionError naming those without one after `settle_s`.
    """
    deadline_s = time.monotonic() + settle_s
    while True:
        records = [record for record in read(log, since) if user in (None, record.user)]
        # 1.20 logs a watch's ResponseStarted when the watch ends, not when it starts: nothing to wait for.
        pending = [record for record in records if record.code is None and record.verb != "watch"]
        if not pending:
            return records
        assert time.monotonic() < deadline_s, f"unanswered after {settle_s:g} s: {', '.join(map(str, pending))}"
        time.sleep(0.01)


def read(log: Path, since: int = 0) -> list[AuditRecord]:
    """The requests whose first stage is after byte `since`, in order, with the latest stage's status."""
    with log.open("rb") as file:
        file.seek(since)
        lines = file.read().split(b"\n")[:-1]  # what follows the last newline is still being written
    first: dict[str, Json] = {}
    last: dict[str, Json] = {}
    for line in lines:
        event = json.loads(line)
        if event["stage"] == "RequestReceived":
            first[event["auditID"]] = event
        last[event["auditID"]] = event
    return [_record(first[audit_id], last[audit_id]) for audit_id in first]


def _record(first: Json, last: Json) -> AuditRecord:
    target = first.get("objectRef", {})
    return AuditRecord(
        verb=first["verb"],
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        user=first["user"]["username"],
        uri=first["requestURI"],
        received_at=datetime.fromisoformat(first["requestReceivedTimestamp"]),
        code=last.get("responseStatus", {}).get("code"),
        body=last.get("requestObject"),
    )


_NAMES = "subjectAltName=IP:127.0.0.1,IP:10.0.2.2,DNS:localhost"  # 10.0.2.2: the host as a QEMU guest sees it
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class CertificateError(Exception):
    """openssl failed; the message ends with its output."""


@dataclass(frozen=True)
class Authority:
    """A CA in a folder of its own: `ca.crt` and `ca.key`, PEM. `names` are those of the servers that it signs for.

    Without `identifiers` its certificates have no key identifiers, as those of EKS. Its own is signed by `above`.
    """

    folder: Path
    names: str = _NAMES
    identifiers: bool = True
    above: Authority | None = None

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def establish(self) -> None:
        extensions = ["-addext", "keyUsage=critical,keyCertSign", "-subj", "/CN=cluster-tests-ca"]
        extensions += [] if self.identifiers else ["-addext", "subjectKeyIdentifier=none"]
        if self.above is not None:
            above = ["-CA", str(self.above.certificate), "-CAkey", str(self.above.certificate.with_name("ca.key"))]
            extensions += [*above, "-addext", "basicConstraints=critical,CA:true"]
        self._openssl("req", "-x509", *_NEW_KEY, *extensions, "-days", "2", "-keyout", "ca.key", "-out", "ca.crt")

    def sign(self, name: str, *, days: int = 2) -> tuple[Path, Path]:
        """Certificate and key of a server on loopback, or of its client, PEM; with 0 `days` it has expired."""
        extensions = self.folder / "extensions"
        extensions.write_text(
            f"{self.names}\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
            + ("authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n" if self.identifiers else "")
        )
        key, request, signed = f"{name}.key", f"{name}.csr", f"{name}.crt"
        self._openssl("req", *_NEW_KEY, "-subj", "/CN=127.0.0.1", "-keyout", key, "-out", request)
        signing = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", str(extensions)]
        self._openssl("x509", "-req", "-in", request, *signing, "-days", str(days), "-out", signed)
        return self.folder / signed, self.folder / key

    def _openssl(self, *args: str) -> None:
        done = subprocess.run(
            ["openssl", *args], cwd=self.folder, capture_output=True, text=True, timeout=150, check=False
        )
        if done.returncode:
            raise CertificateError(f"openssl {args[0]} ended with status {done.returncode}:\n{done.stderr}")


def all_certificates(good: Authority, folder: Path) -> dict[str, tuple[Path, Path]]:
    """Of one server: `good`, `expired` by the same CA, and `strange` by another one, which is made in `folder`."""
    other = Authority(folder)
    other.establish()
    return {"good": good.sign("proxy"), "expired": good.sign("expired", days=0), "strange": other.sign("strange")}


NAMESPACE = "rbln-system"

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_START_ATTEMPTS = 3
_READY_TIMEOUT_S = 200.0


class ControlPlaneError(Exception):
    """A component did not come up; the message ends with the last lines of its log."""


class _PortTakenError(ControlPlaneError):
    """Another process bound the port between our choosing it and the component's binding it."""


@dataclass(frozen=True)
class User:
    name: str
    groups: tuple[str, ...]
    token: str


class _Component:
    def __init__(self, argv: list[str], log: Path) -> None:
        self.name = Path(argv[0]).name
        self.log = log
        # Should this process be killed outright, the kernel kills the component with it.
        guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        with log.open("wb") as out:
            # A session of its own: an interrupt at the terminal ends pytest first, which then ends the component.
            self.process = subprocess.Popen(
                [*guard, *argv],
                cwd=log.parent,
                env={**os.environ, "GOGC": "400"},  # memory is there, and collecting garbage took a fifth of their time
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def check_alive(self) -> None:
        """ControlPlaneError if the process has ended; _PortTakenError if that was for want of its port."""
        if self.process.poll() is None:
            return
        kind = _PortTakenError if "address already in use" in self.tail() else ControlPlaneError
        raise kind(f"{self.name} ended with status {self.process.returncode}; its log ends:\n{self.tail()}")

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """End it at once: its data is thrown away, so there is nothing to shut down in order."""
        self.process.kill()
        self.process.wait(timeout=60)


class ControlPlane:
    """A control plane of its own for as long as the context lasts. Ready on entry, in some 5 seconds.

    `server_certificate` is certificate and key of the server, PEM, good for a proxy on loopback too.
    """

    def __init__(self, assets: Path, server_options: tuple[str, ...] = ()) -> None:
        self._assets = assets.resolve()
        self._server_options = server_options
        self._components: list[_Component] = []
        self.admin = _user("cluster-tests", "system:masters")
        self.agent = _service_account("driver-manager")
        self.agent_with_events = _service_account("driver-manager-events")
        self.rebooter = _service_account("rebooter")
        self.agent_for_workloads = _service_account("driver-manager-workloads")
        self.rollout = _service_account("driver-rollout")
        self.nobody = _service_account("nobody")
        self.reader = _service_account("reader")
        self._controllers = _user("system:kube-controller-manager", "system:masters")
        # The agents have no rights of their own: the fixtures bind roles to them.
        agents = (self.agent, self.agent_with_events, self.agent_for_workloads, self.rebooter, self.rollout)
        self.users = (self.admin, *agents, self.nobody, self.reader, self._controllers)

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="control-plane-"))
        self._others = contextlib.ExitStack()
        try:
            self.authority.establish()
            self.server_certificate = self.authority.sign("server")
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def ca(self) -> Path:
        return self.authority.certificate

    @property
    def authority(self) -> Authority:
        return Authority(self._folder)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(component.process.pid for component in self._components)

    @cached_property
    def fork_server(self) -> ForkServer:
        """Forks commands of the product that reach this control plane; begun when it is first asked for."""
        folder = self._folder / "commands"
        folder.mkdir()
        return self._others.enter_context(ForkServer(folder))

    def api(self, user: User) -> Api:
        return Api(self.url, self.ca, user.token)

    def kubeconfig(self, token: str, server: str | None = None) -> Path:
        """A self-contained kubeconfig file (the CA inline), for `server` where the client must take another way."""
        server = server or self.url
        ca = base64.b64encode(self.ca.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority-data": ca}}],
            "users": [{"name": "test", "user": {"token": token}}],
        }
        path = self._folder / f"kubeconfig-{secrets.token_hex(4)}"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config))  # JSON is YAML
        return path

    def service_account(self, token: str, server: str | None = None) -> dict[str, str]:
        """The environment of a process that finds itself in a pod: see `pod_site`. `server` as for `kubeconfig`."""
        folder = self._folder / f"account-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700)
        (folder / "token").write_text(token)
        (folder / "ca.crt").write_bytes(self.ca.read_bytes())
        url = urlsplit(server or self.url)
        return {
            "KUBERNETES_SERVICE_HOST": str(url.hostname),
            "KUBERNETES_SERVICE_PORT": str(url.port),
            "TEST_SERVICE_ACCOUNT": str(folder),
            "PYTHONPATH": str(Path(__file__).with_name("pod_site")),
        }

    def audit_mark(self) -> int:
        """A place in the audit log: `audit(since=…)` counts the requests received after it, and no other."""
        return self._audit_log.stat().st_size

    def audit(self, user: str | None = None, since: int = 0, settle_s: float = 60.0) -> list[AuditRecord]:
        """See `settled`; an open watch counts, and has no `code` yet."""
        return settled(self._audit_log, user, since, settle_s)

    def restart_server(self) -> None:
        """Kill the API server alone, and start it again."""
        etcd, server, *_ = self._components
        server.kill()
        server = self._components[1] = _Component([str(self._assets / server.name), *self._server_args], server.log)
        self._wait_served(etcd, server)

    def _start(self) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                return self._launch(self._folder / f"run{attempt}")
            except _PortTakenError:
                self._kill_components()
                if attempt == _START_ATTEMPTS:
                    raise
        return None

    def _launch(self, run: Path) -> None:
        run.mkdir()
        etcd_port, peer_port, port = _free_ports(3)
        self.url = f"https://127.0.0.1:{port}"
        self._audit_log = run / "audit.log"
        etcd = self._run("etcd", _etcd_args(run, etcd_port, peer_port), run)
        self._wait("etcd with a past", lambda: _write_history(etcd_port), etcd)
        self._server_args = self._apiserver_args(run, etcd_port, port)
        server = self._run("kube-apiserver", self._server_args, run)
        self._wait_served(etcd, server)
        controllers = self._run("kube-controller-manager", self._controller_args(), run)
        self._wait("kube-controller-manager watches", self._controllers_watch, etcd, server, controllers)

    def _wait_served(self, etcd: _Component, server: _Component) -> None:
        with Api(self.url, self.ca, self.admin.token) as api:
            self._wait("kube-apiserver ready", lambda: api.answers("/readyz"), etcd, server)
            self._wait("namespace default", lambda: api.answers("/api/v1/namespaces/default"), etcd, server)

    def _wait(self, what: str, check: Any, *components: _Component) -> None:
        def checked() -> bool:
            for component in components:
                component.check_alive()
            return bool(check())

        try:
            wait_until(checked, what, _READY_TIMEOUT_S, every_s=0.05)
        except AssertionError as error:
            tails = "\n".join(f"--- {component.name} ---\n{component.tail()}" for component in components)
            raise ControlPlaneError(f"{error}\n{tails}") from error

    def _controllers_watch(self) -> bool:
        watched = {r.resource for r in read(self._audit_log) if r.verb == "watch"}
        return {"daemonsets", "pods", "nodes", "poddisruptionbudgets"} <= watched

    def _run(self, name: str, args: list[str], run: Path) -> _Component:
        component = _Component([str(self._assets / name), *args], run / f"{name}.log")
        self._components.append(component)
        return component

    def _apiserver_args(self, run: Path, etcd_port: int, port: int) -> list[str]:
        audited, tokens = run / "audit-policy.json", run / "tokens.csv"
        audited.write_text(json.dumps(policy(NAMESPACE)))
        tokens.touch(mode=0o600)
        tokens.write_text("".join(f'{u.token},{u.name},{u.name},"{",".join(u.groups)}"\n' for u in self.users))
        self._audit_log.touch()
        certificate, key = self.server_certificate
        return [
            f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            "--insecure-port=0",
            "--allow-privileged=true",  # as every cluster that loads drivers by pods
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--service-account-key-file={certificate}",
            f"--service-account-signing-key-file={key}",
            f"--service-account-issuer={self.url}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=Node,RBAC",
            # With TaintNodesByCondition a new node is tainted not-ready and no DaemonSet pod appears on it.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--audit-policy-file={audited}",
            f"--audit-log-path={self._audit_log}",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=4096",  # MiB; the default rotates the file at 100
            f"--cert-dir={run}",
            *self._server_options,
        ]

    def _controller_args(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig(self._controllers.token)}",
            "--leader-elect=false",
            "--controllers=daemonset,garbagecollector,disruption",
            "--port=0",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ]

    def _kill_components(self) -> None:
        while self._components:
            self._components.pop().kill()

    def _stop(self) -> None:
        self._others.close()
        self._kill_components()
        shutil.rmtree(self._folder, ignore_errors=True)


def _etcd_args(run: Path, port: int, peer_port: int) -> list[str]:
    peer = f"http://127.0.0.1:{peer_port}"
    return [
        f"--data-dir={run / 'etcd'}",
        "--unsafe-no-fsync",
        "--heartbeat-interval=100",  # ms; a single member waits one election timeout before it serves
        "--election-timeout=500",  # ms
        f"--listen-client-urls=http://127.0.0.1:{port}",
        f"--advertise-client-urls=http://127.0.0.1:{port}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def _write_history(etcd_port: int) -> bool:
    """Whether a few revisions could be written: a cluster's first ones are long gone for a watch, so also here."""
    key, url = base64.b64encode(b"history").decode(), f"http://127.0.0.1:{etcd_port}/v3/kv/put"
    try:
        with urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(10)) as pool:
            return all(pool.request("POST", url, json={"key": key, "value": key}).status == 200 for _ in range(5))
    except urllib3.exceptions.HTTPError:
        return False


def _user(name: str, *groups: str) -> User:
    return User(name, groups, secrets.token_hex(16))


def _service_account(name: str) -> User:
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
    return _user(f"system:serviceaccount:{NAMESPACE}:{name}", *groups)


def _free_ports(count: int) -> list[int]:
    """Free ports. All are held until all are chosen, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _may(verbs: str, resources: str, group: str = "") -> Json:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


_EVENTS, _LEASES = _may("create", "events"), _may("get create patch", "leases", "coordination.k8s.io")
READ_ONLY = [_may("get list", "nodes pods")]
EVENTS = [_may("create patch update", "events"), _may("create patch update", "events", "events.k8s.io")]
GENERATION_1 = [
    _may("get list watch patch update", "nodes"),
    _may("get list watch", "pods"),
    _may("create", "pods/eviction"),
    _may("get", "daemonsets", "apps"),
]
"""The rights the operator's first generation gives its driver pods, to the letter."""

WORKLOADS = [*GENERATION_1, _may("get list", "resourceclaims", "resource.k8s.io")]
"""With claims, which the second generation's manager reads to find the pods that hold a device."""

REBOOTER = [_may("get patch", "nodes"), _may("list", "pods"), _EVENTS, _LEASES]
"""The rights that the README gives the rebooter, without those for evicting."""

ROLLOUT = [
    _may("list watch patch", "nodes"),
    _may("list watch create delete", "pods"),
    _may("list watch", "driverrollouts", "driver-manager.rebellions.ai"),
    _may("patch", "driverrollouts/status", "driver-manager.rebellions.ai"),
    _may("list watch patch", "daemonsets", "apps"),
    _may("list watch", "controllerrevisions", "apps"),
    _EVENTS,
    _LEASES,
]
"""What deploy/components/rollout gives the controller, over all namespaces."""


def _account(user: User) -> str:
    return user.name.rpartition(":")[2]


def bind(api: Api, user: User) -> None:
    """Bind the service account to the ClusterRole of its name."""
    _, _, namespace, account = user.name.split(":")
    subject = {"kind": "ServiceAccount", "namespace": namespace, "name": account}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account}
    api.post(f"{_RBAC}/clusterrolebindings", {"metadata": {"name": account}, "roleRef": role, "subjects": [subject]})


@contextlib.contextmanager
def unbound(api: Api, user: User) -> Iterator[None]:
    """The API server refuses the user everything, as it does until it has loaded its RBAC rules (here 0.1 s)."""
    api.delete(f"{_RBAC}/clusterrolebindings/{_account(user)}")
    yield
    _bind_known(api, user)


def bind_rights(api: Api, user: User, rules: list[Json]) -> None:
    """Bind a ClusterRole of these rules to the service account, and wait until the authorizer knows it."""
    api.post(f"{_RBAC}/clusterroles", {"metadata": {"name": _account(user)}, "rules": rules})
    _bind_known(api, user)


def _bind_known(api: Api, user: User) -> None:
    bind(api, user)
    last = api.get(f"{_RBAC}/clusterroles/{_account(user)}")["rules"][-1]
    attributes = {"verb": last["verbs"][-1], "group": last["apiGroups"][0], "resource": last["resources"][0]}
    review = {"spec": {"user": user.name, "groups": list(user.groups), "resourceAttributes": attributes}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    wait_until(lambda: api.post(path, review)["status"]["allowed"], f"the rights of {user.name}")


@contextlib.contextmanager
def plane_with_rights(server_options: tuple[str, ...] = ()) -> Iterator[ControlPlane]:
    """A control plane with the namespace `rbln-system` and the roles of its accounts. Raises TierError."""
    folder = assets.control_plane()
    if shutil.which("openssl") is None:
        raise TierError("the openssl command is not on PATH")
    with ControlPlane(folder, server_options) as plane:
        with plane.api(plane.admin) as api:
            api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            bind_rights(api, plane.agent, GENERATION_1)
            bind_rights(api, plane.reader, READ_ONLY)
            bind_rights(api, plane.rebooter, REBOOTER)
            bind_rights(api, plane.rollout, ROLLOUT)
            bind_rights(api, plane.agent_with_events, GENERATION_1 + EVENTS)
            bind_rights(api, plane.agent_for_workloads, WORKLOADS + EVENTS)
        yield plane
