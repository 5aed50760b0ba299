"""A run that is interrupted in the middle of a wait, by a real kubelet too: it ends as an undisturbed one.

Each test holds a run at an operand that does not stop yet, acts, lets the operand stop, and looks at the end.
"""

from __future__ import annotations

import pytest

from tests.control_plane.api import wait_until
from tests.node.drivers import LONG_S, Drivers
from tests.node.measured import Table
from tests.node.runs import kill_run, waiting_run, what_happened

API_GONE_S = 8.0
TIMES = {1: "once", 4: "four times"}


@pytest.mark.parametrize("times", [1, 4])
def test_a_killed_run_is_followed_by_the_containers_restart(held: Drivers, table: Table, times: int) -> None:
    waiting_run(held)
    before = held.a_pod()
    with table.row(f"kill -9 of the run in a wait, {TIMES[times]}") as row:
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


def test_a_restarted_kubelet_ends_as_undisturbed(held: Drivers, table: Table) -> None:
    """A kubelet admits its pods again when it starts; this one refuses those whose node it has no labels of yet."""
    waiting_run(held)
    before = held.a_pod()
    with table.row("kubelet killed and started in a wait") as row:
        held.machine.kubelet.daemon.kill()
        held.machine.kubelet.start()
        held.open_gate()
        held.wait_serving()
        row.kubelet, row.end = what_happened(before, held.a_pod()), "as undisturbed"
        refused = held.refused()
        if refused:
            row.kubelet += f"; refused with NodeAffinity: {', '.join(refused)}"


def test_a_restarted_containerd_does_not_interrupt_a_run(held: Drivers, table: Table) -> None:
    before, process = held.a_pod(), waiting_run(held)
    with table.row("containerd killed and started in a wait") as row:
        held.machine.containers.daemon.kill()
        held.machine.containers.start()
        assert waiting_run(held) == process
        held.open_gate()
        held.wait_serving()
        row.kubelet, row.end = what_happened(before, held.a_pod()), "as undisturbed"
    assert held.a_pod().uid == before.uid


def test_an_api_server_that_is_gone_for_a_while_is_waited_for(held: Drivers, table: Table) -> None:
    before, process = held.a_pod(), waiting_run(held)
    with table.row(f"API server gone for {API_GONE_S:g} s in a wait") as row:
        held.machine.plane.be_gone(API_GONE_S)
        assert waiting_run(held) == process
        held.open_gate()
        held.wait_serving()
        row.kubelet, row.end = what_happened(before, held.a_pod()), "as undisturbed"
    assert held.a_pod().uid == before.uid
