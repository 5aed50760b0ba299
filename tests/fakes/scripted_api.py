"""A server on loopback that gives scripted answers in order, and the Cluster port's adapter talking to it."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client as kube_client

from driver_manager.adapters.kube.cluster import KubeCluster
from tests.fakes.clock import FakeClock, RecordingReporter

NODE = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}, "spec": {}}
BUDGET_S = 30.0


@dataclass
class Answer:
    """One scripted answer; `body` is sent as JSON unless it is bytes. `cut` ends the connection before its end."""

    status: int = 200
    body: Any = field(default_factory=lambda: dict(NODE))
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


class Scripted:
    """A server that gives its answers in order, then the last one again, and the port that talks to it."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[Request] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                scripted.serve(self)

            def do_PATCH(self) -> None:
                scripted.serve(self)

            def do_POST(self) -> None:
                scripted.serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        configuration = kube_client.Configuration(host=f"http://127.0.0.1:{self.server.server_port}")
        configuration.proxy = None
        configuration.retries = False
        configuration.api_key = {"authorization": "Bearer secret-token"}
        self.api = kube_client.ApiClient(configuration)
        self.start_over()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        url = urlsplit(handler.path)
        length = int(handler.headers.get("Content-Length") or 0)
        body = json.loads(handler.rfile.read(length)) if length else None
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.command, url.path, parse_qs(url.query), headers, body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data) + 100 if answer.cut else len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def answer(self, *answers: Answer) -> None:
        self.answers = list(answers)

    def close(self) -> None:
        self.api.rest_client.pool_manager.clear()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def start_over(self) -> None:
        """Forget what was asked, answer with the Node again, and talk through a new port."""
        self.requests.clear()
        self.answer(Answer())
        self.clock, self.reporter = FakeClock(), RecordingReporter()
        self.cluster = KubeCluster(self.api, "n", self.clock, self.reporter, BUDGET_S)
