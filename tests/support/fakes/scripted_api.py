"""A server on loopback that gives scripted answers in order, and the Cluster port's adapter talking to it."""

from __future__ import annotations

import json
import tempfile
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client as kube_client

from driver_manager.adapters.kube.kubeconfig import Library
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.objects import KINDS
from driver_manager.adapters.kube.transport import AUTHORITY, InPod, Transport
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.plain_pod import PlainInPod, make_account, variables

LIBRARY, IN_POD = "library", "in-pod"
TRANSPORTS = (LIBRARY, IN_POD)
"""What runs over both is promised for both."""

SECRET = "secret-token"  # of nothing
NODE = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}, "spec": {}}
BUDGET_S = 30.0


def by_library(host: str, token: str = SECRET, **settings: Any) -> Library:
    """The way through the client library, without a proxy and without retries of its own."""
    configuration = kube_client.Configuration(host=host)
    usual = {"proxy": None, "retries": False, "api_key": {"authorization": f"Bearer {token}"}}
    for name, value in (usual | settings).items():
        setattr(configuration, name, value)
    return Library(kube_client.ApiClient(configuration))


def transport_to(kind: str, port: int, folder: Path, token: str = SECRET, authority: bytes | None = None) -> Transport:
    """The way to a loopback server, with TLS if `authority` is its CA; `folder` becomes the service account."""
    account = make_account(folder, token, authority or b"none")
    if kind == IN_POD:
        return (InPod if authority else PlainInPod)(account, variables(port))
    host = f"http{'s' if authority else ''}://127.0.0.1:{port}"
    return by_library(host, token, **({"ssl_ca_cert": str(account / AUTHORITY)} if authority else {}))


@dataclass
class Answer:
    status: int = 200
    body: Any = field(default_factory=lambda: dict(NODE))
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


def status(message: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "message": message, **fields}


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


def with_kind(path: str, body: Any) -> Any:
    """`body` as the object or the list that a real server has at `path`, which always names its kind."""
    *_, before, last = urlsplit(path).path.removesuffix("/status").split("/")
    kind = KINDS[before] if before in KINDS else f"{KINDS[last]}List" if last in KINDS else ""
    return {"kind": kind, **body} if kind and isinstance(body, dict) else body


class Scripted:
    """A server that gives its answers in order, then the last one again, and the port that talks to it."""

    def __init__(self, kind: str = LIBRARY) -> None:
        self.answers: list[Answer] = []
        self.requests: list[Request] = []
        self.keeps_connections = False
        self.connections: list[int] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            @property
            def protocol_version(self) -> str:  # type: ignore[override]  # read again for each request
                return "HTTP/1.1" if scripted.keeps_connections else "HTTP/1.0"

            def _serve(self) -> None:
                scripted.serve(self)

            do_GET = do_PATCH = do_POST = _serve  # noqa: N815  # names that the base class calls

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.kind = kind
        self.folder = tempfile.TemporaryDirectory(prefix="account-")
        self.api = transport_to(kind, self.server.server_port, Path(self.folder.name))
        self.start_over()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        self.connections.append(handler.client_address[1])
        length = int(handler.headers.get("Content-Length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.command, url.path, parse_qs(url.query), headers, body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        data = answer.body if isinstance(answer.body, bytes) else json.dumps(with_kind(url.path, answer.body)).encode()
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data) + 100 if answer.cut else len(data)))
        handler.end_headers()
        handler.wfile.write(data)
        # A 304 has no body, whatever was written.
        handler.close_connection = handler.close_connection or answer.cut or answer.status == 304

    def answer(self, *answers: Answer) -> None:
        self.answers = list(answers)

    def close(self) -> None:
        self.api.renew()
        self.folder.cleanup()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def start_over(self) -> None:
        self.keeps_connections = False
        self.requests.clear()
        self.connections.clear()
        self.answer(Answer())
        self.clock, self.reporter = FakeClock(), RecordingReporter()
        self.cluster = KubeCluster(self.api, "n", self.clock, self.reporter, BUDGET_S)
