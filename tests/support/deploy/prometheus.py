"""Owns a real Prometheus for tests, which scrapes loopback and has the shipped alerts. Must not import the product."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.releasing.kustomize import DEPLOY
from tests.support.control_plane.api import wait_until
from tests.support.tiers import skip_or_fail

COMPONENT = DEPLOY / "components/metrics"
BOUND_S = 100.0
CONFIG = """\
global:
  scrape_interval: 200ms
  scrape_timeout: 200ms
  evaluation_interval: 200ms
rule_files: [{rules}]
scrape_configs:
"""
JOB = """\
  - job_name: {name}
    static_configs:
      - targets: [{target}]
        labels: {labels}
"""


def tool(name: str) -> str:
    """The path of one of Prometheus' programs; skips without it, or fails where every tier is required."""
    found = shutil.which(name)
    if found is None:
        skip_or_fail(f"{name} is not installed (Debian's package prometheus)")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Prometheus:
    def __init__(self, port: int) -> None:
        self._port = port

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return bool(self._get("/-/ready"))
        return False

    def query(self, expression: str) -> list[Any]:
        """The result of an instant query. AssertionError for one that it does not understand."""
        body = json.loads(self._get("/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
        assert body["status"] == "success", body
        result: list[Any] = body["data"]["result"]
        return result

    def alerts(self) -> set[str]:
        body = json.loads(self._get("/api/v1/alerts"))
        return {one["labels"]["alertname"] for one in body["data"]["alerts"]}

    def unhealthy_rules(self) -> list[Any]:
        groups = json.loads(self._get("/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"] if rule["health"] == "err"]

    def _get(self, path: str) -> str:
        """The body of an answer; "" for a server that is not ready yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=BOUND_S)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode()
        return "" if answer.status >= 500 else body


@contextlib.contextmanager
def prometheus(folder: Path, targets: Mapping[str, tuple[int, Mapping[str, str]]]) -> Iterator[Prometheus]:
    """One that scrapes these ports of loopback, each by a job's name with labels, while the context lasts."""
    program, port = tool("prometheus"), free_port()
    config = CONFIG.format(rules=COMPONENT / "rules.yaml")
    for name, (target, labels) in targets.items():
        config += JOB.format(name=name, target=f"127.0.0.1:{target}", labels=json.dumps(dict(labels)))
    (folder / "prometheus.yml").write_text(config)
    argv = [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    argv += [f"--web.listen-address=127.0.0.1:{port}"]
    log, env = folder / "prometheus.log", {"PATH": os.environ["PATH"]}
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env)
    try:
        running = Prometheus(port)
        wait_until(lambda: running.is_ready() or process.poll() is not None, f"Prometheus is ready: {log}", BOUND_S)
        assert process.poll() is None, log.read_text()
        yield running
    finally:
        process.terminate()
        try:
            process.wait(BOUND_S)
        finally:
            process.kill()
            process.wait(BOUND_S)
