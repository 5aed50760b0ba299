"""Measures what the two loops cost where nothing happens: resident memory, and requests to the API server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from driver_manager.domain.reboot.state import Record, encode_reboot_record
from tests.assurance.bench.health_watch import TOOL, resident_mib
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import CommandRunner
from tests.support.control_plane.servers import ControlPlane
from tests.support.fakes.ascend_tree import AscendTree

ROUNDS_S = 5.0
INTERVAL = "10ms"
LEAN = b"rebooter_idle"


@dataclass(frozen=True)
class Idle:
    """The most memory seen, and how often the API server was asked for anything."""

    rss_mib: float
    requests: int


def measure_rebooter(plane: ControlPlane, folder: Path) -> Idle:
    """An idle rebooter over some hundred looks for its marker; its way to the API server is a proxy that counts."""
    with Proxy.before(plane) as proxy:
        command_runner = CommandRunner(plane, plane.rebooter, folder, "ascend", proxy=proxy)
        record = command_runner.tree.root / "var/lib/ascend/.rebooter.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(encode_reboot_record(Record()))
        running = command_runner.start_process(
            "rebooter", REBOOTER_INTERVAL=INTERVAL, NODE_NAME="bench", DRIVER_PROFILE="ascend"
        )
        pid = running.process.pid
        wait_until(lambda: LEAN in Path(f"/proc/{pid}/cmdline").read_bytes(), "the rebooter is idle")
        idle = Idle(_most_mib(pid), len(proxy.exchanges()))
        ended = running.terminate()
        if ended.code:
            raise SystemExit(f"the rebooter did not end as it has to: {ended.err}")
    return idle


def measure_watch_requests(plane: ControlPlane, folder: Path) -> int:
    """How often health-watch asks an API server that it is told of, over some hundred probes."""
    tree = AscendTree(folder)
    starts = folder / "starts"
    starts.touch()
    tree.tool.path.write_text(TOOL.format(starts=starts, table=(tree.tool.folder / "table").read_text().rstrip()))
    with Proxy.before(plane) as proxy:
        environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(plane.kubeconfig(plane.agent.token, proxy.url))}
        with _watching(tree, environment):
            wait_until(lambda: starts.stat().st_size >= 200, "200 probes", 60)
        return len(proxy.exchanges())


@contextmanager
def _watching(tree: AscendTree, environment: dict[str, str]) -> Iterator[None]:
    argv = [sys.executable, "-m", "driver_manager", "health-watch", *tree.options, "--interval", INTERVAL]
    process = subprocess.Popen([*argv, "--log-level", "warning"], env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait(150)


def _most_mib(pid: int) -> float:
    """The most resident memory of the lean interpreter, looked at for `ROUNDS_S` seconds."""
    end, most = time.monotonic() + ROUNDS_S, 0.0
    while time.monotonic() < end:
        most = max(most, resident_mib(pid))
        time.sleep(0.05)
    return most
