"""Owns how tests find and end the process of a run on a test node, and how they say what the kubelet did about it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.node.control_plane import NAMESPACE
from tests.support.node.drivers import Drivers, Seen
from tests.support.node.patience import wait_until


def run_process(drivers: Drivers) -> int:
    """The pid of the init container's driver-manager, as this process sees it; 0 where it does not run."""
    pod = drivers.pod()
    for pid in drivers.machine.containers.processes(pod.uid) if pod else ():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
        except OSError:
            continue
        if "reconcile-driver-state" in words:
            return pid
    return 0


def waiting_run(drivers: Drivers) -> int:
    """The pid of a run that waits, with everything but the gated operand gone."""
    wait_until(lambda: not drivers.running("device-plugin"), "the other operand has left")
    return wait_until(lambda: run_process(drivers), "the run's process")


def kill_run(drivers: Drivers) -> None:
    """SIGKILL the run as soon as there is one, and wait for its end."""
    pid = wait_until(lambda: run_process(drivers), "the run's process")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: run_process(drivers) != pid, "the end of the run's process")


def last_words(drivers: Drivers) -> str:
    """The termination message of the init container's last run; "" where there was none."""
    pod = drivers.pod()
    if pod is None:
        return ""
    status = drivers.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod.name}")["status"]
    (found,) = status.get("initContainerStatuses") or [{}]
    return str(found.get("lastState", {}).get("terminated", {}).get("message", ""))


def what_happened(before: Seen, after: Seen) -> str:
    """In the table's words."""
    pods = "same pod" if before.uid == after.uid else "new pod"
    restarts = {0: "init container not restarted", 1: "init container restarted once"}
    return f"{pods}, {restarts.get(after.restarts, f'init container restarted {after.restarts} times')}"
