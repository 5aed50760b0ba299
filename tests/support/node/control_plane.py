"""Owns the control plane inside of a test node: etcd, API server, controllers, scheduler, and the door to them.

Pods reach it as `kubernetes.default` at 10.0.0.1:443, through the tests' proxy, which gives a server that is older than
policy/v1 the eviction of today's. Everything else talks to port 6443. Must not import the product.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.control_plane import audit
from tests.support.control_plane.certificates import Authority
from tests.support.node import releases
from tests.support.node.access import PORT, SEEN_INSIDE, USERS, Access, Credentials
from tests.support.node.doorway import Doorway
from tests.support.node.namespaces import Daemon, Namespaces, NodeTierError
from tests.support.node.node_init import ADDRESS, SERVICE_ADDRESS
from tests.support.node.patience import wait_until
from tests.support.node.place import CHECKOUT

NAMESPACE = "rbln-system"
"""Of the driver's pods, whose requests are in the audit log."""

BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
READY_S = 120.0

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
        """A place in the audit log: `requests(since=…)` has what came after it."""
        return self._audit_log.stat().st_size

    def requests(self, since: int) -> list[audit.AuditRecord]:
        """What the driver's pods have asked of the API server, in order."""
        return audit.settled(self._audit_log, None, since, READY_S)

    def be_gone(self, seconds: float) -> None:
        """Kill the API server, refuse connections for so long, and start it again."""
        self.server.kill()
        time.sleep(seconds)
        self.start_server()

    def start_server(self) -> None:
        """Start it again, and wait until it serves."""
        self.server.start()
        self._wait("kube-apiserver ready", lambda: self.api.answers("/readyz"), self.server)

    def _start(self) -> None:
        inside = SEEN_INSIDE
        certificate, key = inside / "server.crt", inside / "server.key"
        (self._folder / "audit-policy.json").write_text(json.dumps(audit.policy(NAMESPACE, others="None")))
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
        """Before 1.24 a program also serves without TLS, unless it is told not to."""
        return releases.known_flags(self._assets / name, "--port=0")

    def _daemon(self, name: str, *arguments: str) -> Daemon:
        return Daemon(self._namespaces, name, [str(self._assets / name), *arguments])

    def _wait(self, what: str, check: Callable[[], bool], *daemons: Daemon) -> None:
        def checked() -> bool:
            for one in daemons:
                one.check_alive()
            return check()

        try:
            wait_until(checked, what, READY_S)
        except AssertionError as error:
            raise NodeTierError(f"{error}; logs are in {self._namespaces.logs}\n{daemons[0].tail()}") from error
        self._namespaces.place.say(what)
