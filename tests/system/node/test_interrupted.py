"""A run that is interrupted in the middle of a wait, by a real kubelet too: it ends as an undisturbed one."""

from __future__ import annotations

import pytest

from tests.support.node.drivers import Drivers, Seen, kill_run, waiting_run
from tests.support.node.measured import Action, Row, Table, Timeline
from tests.support.node.place import wait_until

API_GONE_S = 8.0
TIMES = {1: Action.KILLED_ONCE, 4: Action.KILLED_FOUR_TIMES}


def ends_as_undisturbed(held: Drivers, row: Row) -> Seen:
    """Let the gated operand stop, and note in `row` what came of it; the driver's pod by then."""
    held.open_gate()
    held.wait_given_back()
    row.end = "as undisturbed"
    return held.a_pod()


@pytest.mark.shares(6)
@pytest.mark.parametrize("times", [1, 4])
def test_a_killed_run_is_followed_by_the_containers_restart(held: Drivers, table: Table, times: int) -> None:
    waiting_run(held)
    before = held.a_pod()
    with table.row(TIMES[times]) as row:
        for _ in range(times):
            kill_run(held)
        after = ends_as_undisturbed(held, row)
    assert after.uid == before.uid
    assert after.restarts == times
    held.wait_serving()


@pytest.mark.shares(6)
def test_a_deleted_pod_gives_back_and_its_successor_goes_on(held: Drivers, table: Table) -> None:
    with table.row(Action.POD_DELETED) as row:
        before = held.delete_pod()
        wait_until(lambda: (held.pod() or before).uid != before.uid, "another driver pod")
        ends_as_undisturbed(held, row)
    held.wait_serving()


def test_a_force_deleted_pod_is_followed_by_its_successor(held: Drivers, table: Table) -> None:
    with table.row(Action.POD_FORCED) as row:
        before = held.delete_pod(grace_s=0)
        wait_until(lambda: (held.pod() or before).uid != before.uid, "another driver pod")
        ends_as_undisturbed(held, row)
    held.wait_serving()


@pytest.mark.shares(6)
def test_a_restarted_kubelet_ends_the_operand_and_the_run_waits_for_its_processes(held: Drivers, table: Table) -> None:
    """A kubelet admits its pods again when it starts, and refuses the one whose label is paused by now.

    It reports that pod Failed, without a word of its containers, and ends them only after that, gate or not
    (kubernetes/kubernetes#76322). The driver's pod, whose label is unchanged, stays, and so does the run in it. Where
    the kubelet does not know its Node's labels yet it refuses that one too (#100467): then the successor goes on.
    """
    waiting_run(held)
    # A kubelet that finds an object of it left refuses that one first.
    wait_until(lambda: not held.pods("device-plugin"), "the other operand's object is removed")
    before = held.a_pod()
    (gated,) = held.pods("gated")
    with Timeline(held.machine) as seen, table.row(Action.KUBELET) as row:
        held.machine.kubelet.daemon.kill()
        held.machine.kubelet.start()
        wait_until(lambda: gated["metadata"]["uid"] in seen.refused("NodeAffinity"), "the refusal of the gated operand")
        held.wait_given_back()
        refused = list(seen.refused("NodeAffinity").values())
        after = held.a_pod()
        row.end = "as undisturbed"
        ended_s = seen.ended(gated["metadata"]["uid"])
    assert all((pod["status"]["phase"], pod["status"].get("containerStatuses")) == ("Failed", None) for pod in refused)
    assert held.unloaded_at() > ended_s, "the driver was unloaded while a process of the operand was there"
    if before.uid not in {pod["metadata"]["uid"] for pod in refused}:
        assert after == before, "the run was interrupted"
    held.wait_serving()


def test_a_restarted_containerd_does_not_interrupt_a_run(held: Drivers, table: Table) -> None:
    before, process = held.a_pod(), waiting_run(held)
    with table.row(Action.CONTAINERD) as row:
        held.machine.containers.daemon.kill()
        held.machine.containers.start()
        assert waiting_run(held) == process
        after = ends_as_undisturbed(held, row)
    assert after == before
    held.wait_serving()


@pytest.mark.shares(6)
def test_an_api_server_that_is_gone_for_a_while_is_waited_for(held: Drivers, table: Table) -> None:
    before, process = held.a_pod(), waiting_run(held)
    with table.row(Action.API_SERVER) as row:
        held.machine.plane.be_gone(API_GONE_S)
        assert waiting_run(held) == process
        after = ends_as_undisturbed(held, row)
    assert after == before
    held.wait_serving()
