"""An upgrade on a real kubelet: operands leave and come back, users' pods are evicted as their budgets allow."""

from __future__ import annotations

from tests.node.drivers import OPERANDS, Drivers
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
