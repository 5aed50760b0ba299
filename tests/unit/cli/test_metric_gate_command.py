"""A gate that asks Prometheus, where nothing is played but kubelets: controller, server and scrape are real."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.sandbox.apiserver import ApiServer
from tests.support.deploy.prometheus import Prometheus, free_port, prometheus
from tests.support.fakes.fleet_processes import Processes
from tests.support.fakes.fleet_scene import FleetScene

pytestmark = pytest.mark.shares(3)

EXPOSED = b"""\
# TYPE npu_errors gauge
npu_errors{node="bad"} 3
npu_errors{node="good"} 0
"""
BAD, GOOD, UNKNOWN = "bad", "good", "unknown"


class Endpoint(http.server.BaseHTTPRequestHandler):
    """What an exporter shows."""

    def do_GET(self) -> None:  # the name is http.server's
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(EXPOSED)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is http.server's
        """Nobody reads it."""


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[tuple[Prometheus, int]]:
    """A Prometheus that scrapes the endpoint, and its port."""
    port = free_port()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as endpoint:
        thread = threading.Thread(target=endpoint.serve_forever, daemon=True)
        thread.start()
        try:
            with prometheus(tmp_path, {"npu": (endpoint.server_port, {})}, port) as running:
                yield running, port
        finally:
            endpoint.shutdown()
            thread.join(60)


@pytest.mark.submission
def test_a_node_is_done_once_a_real_prometheus_says_so_and_waits_with_the_reason(
    tmp_path: Path, scraped: tuple[Prometheus, int]
) -> None:
    running, port = scraped
    scene = FleetScene()
    scene.set_driver("driver:1")
    scene.add_nodes(BAD, GOOD, UNKNOWN)
    query = 'npu_errors{node="{node}"}'
    gate = {"name": "errors", "url": f"http://127.0.0.1:{port}", "query": query, "atMost": 0, "delay": "0s"}
    scene.add_rollout(waves=[{"name": "all"}], maxParallel=0, gates={"metrics": [gate]})
    with ApiServer(scene.store) as server:
        processes = Processes(server, scene, tmp_path)
        try:
            processes.until(lambda: len(running.query("npu_errors")) == 2, "it has scraped")
            processes.start()
            processes.until(lambda: scene.phase() == "Complete", "the first revision")
            scene.set_driver("driver:2")
            wanted = {BAD: "validation-required", GOOD: "upgrade-done", UNKNOWN: "validation-required"}
            processes.until(lambda: scene.upgrades() == wanted, "the good one is done, and the others wait")
            waiting = {
                BAD: "waits for metric errors: it is 3, and must be at most 0",
                UNKNOWN: "waits for metric errors: the query returns nothing",
            }
            processes.until(lambda: all(why in str(scene.rollout()["status"]) for why in waiting.values()), "and why")
            under_way = {one["node"]: one["reason"] for one in scene.rollout()["status"]["underWay"]}
            assert under_way == waiting
        finally:
            processes.stop()
