"""Measures health-watch and the idle loops: memory after many probes, its growth, processor time, requests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from driver_manager.domain.reboot.state import Record, encode_reboot_record
from tests.assurance.bench.figure import Figure, Target
from tests.support.control_plane.api import wait_until
from tests.support.control_plane.proxy import Proxy
from tests.support.control_plane.runner import CommandRunner
from tests.support.control_plane.servers import ControlPlane
from tests.support.deploy.prometheus import free_port
from tests.support.fakes.ascend_tree import AscendTree

FIRST_PROBES = 1_000
ALL_PROBES = 10_000
DEFAULT_INTERVAL_S = 60.0
BOUND_S = 600.0
TOOL = """#!/bin/sh
echo >> "{starts}"
echo '{table}'
"""


def counting_tree(folder: Path) -> tuple[AscendTree, Path]:
    """A host whose stand-in npu-smi prints a real table at once, and a file that grows by a byte at each probe."""
    tree, starts = AscendTree(folder), folder / "starts"
    starts.touch()
    tree.tool.path.write_text(TOOL.format(starts=starts, table=(tree.tool.folder / "table").read_text().rstrip()))
    return tree, starts


def measure_watch(folder: Path) -> list[Figure]:
    """Figures of one process over 10,000 probes.

    Memory goes up and down by half a MiB as the allocator gives pages back or keeps them: so the highest counts, and
    growth is the highest of the second half less the highest of the first.
    """
    tree, starts = counting_tree(folder)
    port = free_port()
    with watching(tree, "1ms", "--metrics-addr", f"127.0.0.1:{port}") as process:
        early_mib = _highest_mib(process, port, starts, FIRST_PROBES)
        begun_s, begun = cpu_s(process.pid), starts.stat().st_size
        first_mib = _highest_mib(process, port, starts, (FIRST_PROBES + ALL_PROBES) // 2)
        second_mib = _highest_mib(process, port, starts, ALL_PROBES)
        probe_s = (cpu_s(process.pid) - begun_s) / (starts.stat().st_size - begun)
    if not tree.is_ready or tree.marker is not None:
        raise SystemExit("the watch did not hold the driver for healthy")
    highest_mib = max(early_mib, first_mib, second_mib)
    how = "VmRSS, a probe every millisecond, /metrics scraped 50 times a second"
    growth = "most memory in probes 5,500 to 10,000 less that in 1,000 to 5,500"
    share = "processor time of a probe over 9,000, as a share of 60 s; the tool's own aside"
    return [
        Figure(Target.WATCH_MEMORY, (highest_mib,), how),
        Figure(Target.WATCH_GROWTH, (second_mib - first_mib,), growth),
        Figure(Target.WATCH_PROCESSOR, (probe_s / DEFAULT_INTERVAL_S * 100,), share),
    ]


@contextlib.contextmanager
def watching(tree: AscendTree, interval: str, *options: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "driver_manager", "health-watch", *tree.options, "--interval", interval]
    argv += ["--log-level", "warning", *options]
    process = subprocess.Popen(argv, env={"PATH": os.environ["PATH"], **env})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(150)


def resident_mib(pid: int) -> float:
    """VmRSS of a process (proc(5))."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def cpu_s(pid: int) -> float:
    """Processor time of a process itself, in user and kernel mode: fields 14 and 15 of /proc/pid/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _highest_mib(process: subprocess.Popen[bytes], port: int, starts: Path, probes: int) -> float:
    """Wait until `probes` probes were started; the most memory seen meanwhile, once the lean interpreter runs."""
    end, highest_mib = time.monotonic() + BOUND_S, 0.0
    while starts.stat().st_size < probes:
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit("the watch ended, or is too slow")
        if starts.stat().st_size:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=BOUND_S).close()
            highest_mib = max(highest_mib, resident_mib(process.pid))
        time.sleep(0.02)
    return highest_mib


ROUNDS_S = 5.0
INTERVAL = "10ms"
LEAN = b"rebooter_idle"
COUNTED = "through a proxy that counts"


def measure_rebooter(plane: ControlPlane, folder: Path) -> list[Figure]:
    """An idle rebooter over some hundred looks for its marker; its way to the API server is a proxy that counts."""
    with Proxy.before(plane) as proxy:
        command_runner = CommandRunner(plane, plane.rebooter, folder, "ascend", proxy=proxy)
        record = command_runner.tree.root / "var/lib/ascend/.rebooter.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(encode_reboot_record(Record()))
        env = {"REBOOTER_INTERVAL": INTERVAL, "NODE_NAME": "bench", "DRIVER_PROFILE": "ascend"}
        running = command_runner.start_process("rebooter", **env)
        status = Path(f"/proc/{running.process.pid}")
        wait_until(lambda: LEAN in (status / "cmdline").read_bytes(), "the rebooter is idle")
        end_s, most_mib = time.monotonic() + ROUNDS_S, 0.0
        while time.monotonic() < end_s:
            most_mib = max(most_mib, resident_mib(running.process.pid))
            time.sleep(0.05)
        requests = float(len(proxy.exchanges()))
        ended = running.terminate()
        if ended.code:
            raise SystemExit(f"the rebooter did not end as it has to: {ended.err}")
    return [
        Figure(Target.REBOOTER_MEMORY, (most_mib,), "the most in 500 looks, VmRSS"),
        Figure(Target.REBOOTER_REQUESTS, (requests,), f"in 500 looks, {COUNTED}"),
    ]


def measure_watch_requests(plane: ControlPlane, folder: Path) -> list[Figure]:
    """How often health-watch asks the API server of its kubeconfig, over some hundred probes."""
    tree, starts = counting_tree(folder)
    with Proxy.before(plane) as proxy:
        with watching(tree, INTERVAL, KUBECONFIG=str(plane.kubeconfig(plane.agent.token, proxy.url))):
            wait_until(lambda: starts.stat().st_size >= 200, "200 probes", 60)
        how = f"in 200 probes, KUBECONFIG set, {COUNTED}"
        return [Figure(Target.WATCH_REQUESTS, (float(len(proxy.exchanges())),), how)]
