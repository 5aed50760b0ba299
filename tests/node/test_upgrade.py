"""An upgrade on a real kubelet: operands leave and come back, users' pods are evicted as their budgets allow."""

from __future__ import annotations

from tests.control_plane.api import wait_until
from tests.node.drivers import LONG_S, OPERANDS, Drivers
from tests.node.measured import Table


def test_six_operands_leave_and_come_back(with_operands: Drivers, table: Table) -> None:
    drivers = with_operands
    before = {name: drivers.running(name)[0]["metadata"]["uid"] for name in OPERANDS}
    drivers.want(drivers.other_version())
    with table.row("upgrade, six operands that stop in 3 s: driver pod deleted → ready") as row:
        old = drivers.delete_pod()
        drivers.wait_ready()
        row.kubelet = "new pod"
        row.end = "driver ready"
    drivers.wait_serving()
    pod = drivers.a_pod()
    assert pod.uid != old.uid
    assert pod.restarts == 0
    for name in OPERANDS:
        assert before[name] not in [one["metadata"]["uid"] for one in drivers.running(name)]


def test_users_pods_leave_as_their_budget_allows(drivers: Drivers, table: Table) -> None:
    """Two pods that use the accelerator, of which the budget lets one go; the other leaves when it lets both."""
    drivers.offer_devices(2)
    budget = drivers.add_users("job", replicas=2, min_available=1)
    before = {pod["metadata"]["uid"] for pod in drivers.users("job")}
    drivers.want(drivers.other_version())
    with table.row("upgrade, two users' pods with a budget of one") as row:
        drivers.delete_pod()
        wait_until(lambda: len(stayed(drivers, before)) == 1, "one of the users' pods has left", LONG_S)
        drivers.wait_said("is refused")
        assert len(stayed(drivers, before)) == 1
        assert drivers.loaded() != drivers.version
        drivers.api.patch(budget, {"spec": {"minAvailable": 0}})
        drivers.wait_serving()
        row.kubelet, row.end = "evicted pods stopped one after the other", "driver ready, users' pods run again"
    assert not stayed(drivers, before)
    wait_until(lambda: len(drivers.users("job")) == 2, "the users' pods run again", LONG_S)


def stayed(drivers: Drivers, before: set[str]) -> set[str]:
    """Those of the users' pods that are still the same."""
    return before & {pod["metadata"]["uid"] for pod in drivers.users("job")}
