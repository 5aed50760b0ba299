"""One node through a rollout on a real kubelet: the controller in its pods, `kubectl set env`, and nothing by hand."""

from __future__ import annotations

import pytest

from tests.support.node.drivers import DAEMON_SET, Drivers, Rollouts, rollouts, stopping_after
from tests.support.node.measured import Action, Table
from tests.support.node.place import wait_until

STATE = "rebellions.ai/npu-driver-upgrade-state"
OPERAND = "device-plugin"
WAITS = "has cleared the node; waiting until it ends"
CLEARS, LOOKS = "driver-clear-", "driver-preflight-"
ACTS = ["create pods", "patch nodes", "create pods", "delete pods", "patch nodes"]
"""Looked at, taken, cleared, restarted, done."""


@pytest.mark.shares(6)
def test_kubectl_set_env_takes_a_node_through_a_rollout(drivers: Drivers, table: Table) -> None:
    drivers.add_operand(OPERAND, stopping_after(0))
    drivers.offer_devices(1)
    drivers.add_users("job", replicas=1, min_available=0)
    with rollouts(drivers) as rollout:
        try:
            rollout.make(waves=[{"name": "all"}], preflight="require")
            goes_through(drivers, rollout, table)
        finally:
            rollout.set_env("DRIVER_CONFIG_DIGEST-")
    drivers.want(drivers.version)
    drivers.replace_pod()
    drivers.wait_serving()


def goes_through(drivers: Drivers, rollout: Rollouts, table: Table) -> None:
    """From `kubectl set env` to `Ready=True`."""
    (operand,), (user,), driver = drivers.running(OPERAND), drivers.users("job"), drivers.a_pod()
    old, since = rollout.status()["targetRevision"], drivers.machine.plane.audit_mark()
    with table.row(Action.ROLLOUT) as row:
        rollout.set_env("DRIVER_CONFIG_DIGEST=sample-by-rollout")
        new = rollout.wait_new_target(old)
        rollout.wait_complete(new)
        row.end = "Ready=True, phase Complete"
    drivers.wait_serving()
    wait_until(lambda: drivers.users("job"), "the user's pod runs again")
    for before, after in ((operand, drivers.running(OPERAND)), (user, drivers.users("job"))):
        assert [one["metadata"]["uid"] for one in after] != [before["metadata"]["uid"]]
    served = drivers.a_pod()
    assert (served.uid != driver.uid, served.restarts) == (True, 0)
    node = drivers.machine.kubelet.node()["metadata"]
    assert node["labels"][STATE] == "upgrade-done"
    asked = [one for one in rollout.requests(since) if one.resource in ("nodes", "pods")]
    acts = [one for one in asked if not one.name.startswith((CLEARS, LOOKS))]
    assert [f"{one.verb} {one.resource}" for one in acts] == ACTS, [str(one) for one in asked]
    assert (acts[3].name, len(asked)) == (driver.name, len(ACTS) + 2), "and its short-lived pods are removed"
    shown = rollout.shown()
    assert f"{DAEMON_SET}" in shown, shown
    assert "Complete" in shown, shown


def test_the_next_driver_pod_waits_for_the_reported_end_of_the_pod_that_cleared_the_node(drivers: Drivers) -> None:
    """On its first run: current kubelets report that end when the next driver pod has started already."""
    with rollouts(drivers) as rollout:
        try:
            rollout.make(waves=[{"name": "all"}])
            old, driver = rollout.status()["targetRevision"], drivers.a_pod()
            drivers.close_gate()
            drivers.end_at_gate()
            new = rollout.wait_new_target(old)
            wait_until(lambda: drivers.a_pod().uid != driver.uid, "the next driver pod")
            drivers.wait_logged(WAITS)
            drivers.open_gate()
            rollout.wait_complete(new)
        finally:
            drivers.open_gate()
            drivers.load_as_deployed()
            drivers.want(drivers.version)
    drivers.wait_serving()
    assert drivers.a_pod().restarts == 0
    drivers.replace_pod()
    drivers.wait_serving()
