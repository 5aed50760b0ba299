"""A run that is interrupted in the middle of a wait, as a real kubelet interrupts: the end is that of an undisturbed one.

Each test holds a run at an operand that does not stop yet, acts, lets the operand stop, and looks at the end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.cluster.api import wait_until
from tests.node.drivers import LONG_S, MANAGER, STOPPING_AT_GATE, Drivers, Seen, stopping_after
from tests.node.measured import Table

API_GONE_S = 8.0


@pytest.fixture(scope="module")
def gated(installed: Drivers) -> Iterator[Drivers]:
    """The driver with an operand that leaves when it is told to, and one that leaves when the gate is open."""
    installed.add_operand("device-plugin", stopping_after(0))
    installed.add_operand("gated", STOPPING_AT_GATE, grace_s=3600)
    yield installed
    installed.remove_operands()


@pytest.fixture
def held(gated: Drivers) -> Iterator[Drivers]:
    """A run under way that waits for an operand, until `drivers.open_gate()`."""
    drivers = gated
    drivers.wait_serving()
    drivers.close_gate()
    drivers.want(drivers.other_version())
    drivers.delete_pod()
    drivers.wait_paused()
    wait_for_wait(drivers)
    yield drivers
    drivers.put_right()


def wait_for_wait(drivers: Drivers) -> None:
    """Until nothing but the gated operand is left, and the run's container waits for it."""
    wait_until(lambda: not drivers.running("device-plugin"), "the other operand has left", LONG_S)
    wait_until(lambda: bool(run_process(drivers)), "the run's process", LONG_S)


def run_process(drivers: Drivers) -> int:
    """The pid of the init container's driver-manager, as this process sees it; 0 where it does not run."""
    pod = drivers.pod()
    for pid in drivers.machine.containers.processes(pod.uid) if pod else ():
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if "reconcile-driver-state" in words:
            return pid
    return 0


def kill_run(drivers: Drivers) -> int:
    """SIGKILL the run when it waits; its pid."""
    pid = wait_until(lambda: run_process(drivers), "the run's process", LONG_S)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: run_process(drivers) != pid, "the end of the run's process", LONG_S)
    return pid


def what_happened(before: Seen, after: Seen) -> str:
    """In the table's words."""
    pods = "same pod" if before.uid == after.uid else "new pod"
    return f"{pods}, init container restarted {after.restarts} time(s)"


@pytest.mark.parametrize("times", [1, 4])
def test_a_killed_run_is_followed_by_the_containers_restart(held: Drivers, table: Table, times: int) -> None:
    before = held.a_pod()
    with table.row(f"kill -9 of the run in a wait, {times} time(s)") as row:
        for _ in range(times):
            kill_run(held)
        held.open_gate()
        held.wait_serving()
        after = held.a_pod()
        row.kubelet, row.end = what_happened(before, after), "as undisturbed"
    assert after.uid == before.uid
    assert after.restarts == times


def test_a_deleted_pod_gives_back_and_its_successor_goes_on(held: Drivers, table: Table) -> None:
    with table.row("driver pod deleted in a wait") as row:
        before = held.delete_pod()
        wait_until(lambda: (held.pod() or before).uid != before.uid, "another driver pod", LONG_S)
        held.open_gate()
        held.wait_serving()
        row.kubelet, row.end = what_happened(before, held.a_pod()), "as undisturbed"


def test_a_force_deleted_pod_is_followed_by_its_successor(held: Drivers, table: Table) -> None:
    with table.row("driver pod force-deleted in a wait") as row:
        before = held.delete_pod(grace_s=0)
        wait_until(lambda: (held.pod() or before).uid != before.uid, "another driver pod", LONG_S)
        held.open_gate()
        held.wait_serving()
        row.kubelet, row.end = what_happened(before, held.a_pod()), "as undisturbed"


def test_a_restarted_kubelet_does_not_interrupt_a_run(held: Drivers, table: Table) -> None:
    before, process = held.a_pod(), run_process(held)
    with table.row("kubelet killed and started in a wait") as row:
        held.machine.kubelet.daemon.kill()
        held.machine.kubelet.start()
        assert run_process(held) == process
        held.open_gate()
        held.wait_serving()
        row.kubelet, row.end = what_happened(before, held.a_pod()), "as undisturbed"
    assert held.a_pod().uid == before.uid


def test_a_restarted_containerd_does_not_interrupt_a_run(held: Drivers, table: Table) -> None:
    before, process = held.a_pod(), run_process(held)
    with table.row("containerd killed and started in a wait") as row:
        held.machine.containers.daemon.kill()
        held.machine.containers.start()
        assert run_process(held) == process
        held.open_gate()
        held.wait_serving()
        row.kubelet, row.end = what_happened(before, held.a_pod()), "as undisturbed"
    assert held.a_pod().uid == before.uid


def test_an_api_server_that_is_gone_for_a_while_is_waited_for(held: Drivers, table: Table) -> None:
    before, process = held.a_pod(), run_process(held)
    with table.row(f"API server gone for {API_GONE_S:g} s in a wait") as row:
        held.machine.plane.be_gone(API_GONE_S)
        assert run_process(held) == process
        held.open_gate()
        held.wait_serving()
        row.kubelet, row.end = what_happened(before, held.a_pod()), "as undisturbed"
    assert held.a_pod().uid == before.uid


def test_what_a_run_said_last_outlives_its_container(held: Drivers) -> None:
    """`logs --previous` may be gone; the termination message is in the pod's status."""
    held.want(held.version, POD_TERMINATION_TIMEOUT="1s")
    pod = held.delete_pod(grace_s=0)

    def message() -> str:
        found = held.pod()
        if found is None or found.uid == pod.uid:
            return ""
        path = "{.status.initContainerStatuses[0].lastState.terminated.message}"
        words = ("get", "pod", "-n", "rbln-system", found.name, "-o", f"jsonpath={path}")
        return held.machine.kubectl(*words).stdout

    said = wait_until(message, f"a termination message of {MANAGER}", LONG_S, every_s=0.5)
    assert said.startswith("exit 3: "), said
    assert "gated" in said
    held.open_gate()
    held.wait_serving()
