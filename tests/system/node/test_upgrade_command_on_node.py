"""`driver-manager upgrade NODE` as from a laptop, against a real kubelet: the plan, then the upgrade and its outage."""

from __future__ import annotations

import subprocess

from tests.support.node.drivers import Drivers
from tests.support.node.node_init import NAME, SERVICE_ADDRESS
from tests.support.node.place import CHECKOUT


def test_one_command_shows_the_plan_of_a_node_and_then_upgrades_it(drivers: Drivers) -> None:
    machine = drivers.machine
    path = f"PATH={CHECKOUT / '.venv/bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    config = machine.plane.kubeconfig("admin", f"https://{SERVICE_ADDRESS}:443")

    def upgrade(*words: str) -> subprocess.CompletedProcess[str]:
        return machine.namespaces.run(
            "env", path, f"KUBECONFIG={config}", "driver-manager", "upgrade", NAME, *words, timeout_s=300.0
        )

    old = drivers.a_pod()
    drivers.want(drivers.other_version())
    planned = upgrade("--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "unload" in planned.stdout, planned.stdout
    assert drivers.a_pod().uid == old.uid
    done = upgrade("--wait")
    assert done.returncode == 0, done.stderr
    assert f"node {NAME}: upgraded" in done.stdout
    assert "users" in done.stdout, done.stdout
    drivers.wait_serving()
    assert (drivers.a_pod().uid != old.uid, drivers.a_pod().restarts) == (True, 0)
    again = upgrade("--wait")
    assert (again.returncode, "nothing newer" in again.stdout) == (0, True), again.stderr
