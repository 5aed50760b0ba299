"""The API server alone is killed and started again, and has no RBAC rules for a moment, as each one."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress

from driver_manager.domain.reboot.state import RebootPolicy
from tests.support.control_plane.api import Api, wait_until
from tests.support.control_plane.kubelet import NEVER, OperandsFactory
from tests.support.control_plane.reboot_fleet import KEYS, real_fleet
from tests.support.control_plane.rollout_fleet import FleetFactory
from tests.support.control_plane.runner import PREFIX, RunnerFactory, assert_untouched, start_and_take
from tests.support.control_plane.servers import ControlPlane, unbound
from tests.support.fakes.killer import Killed, Killer
from tests.support.fakes.pace import patient

REFUSED_S = 3.0
PLUGIN = f"{PREFIX}device-plugin"
REMEDY = "Grant this account"


def test_a_run_a_rebooter_and_a_controller_outlast_a_server_that_starts_without_its_rules(
    control_plane: ControlPlane,
    admin_api: Api,
    runner_for: RunnerFactory,
    operands: OperandsFactory,
    rollout_fleet: FleetFactory,
) -> None:
    one = runner_for({PLUGIN: "true"})
    operands(one.node, ("device-plugin",))
    labels = one.node.labels()
    fleet = rollout_fleet(2)
    controller = fleet.fork()
    mark = control_plane.audit_mark()
    fleet.make_complete(maxParallel=1)
    with ExitStack() as stack, real_fleet(control_plane, admin_api, 1, RebootPolicy("", KEYS)) as reboots:
        (site,) = reboots.sites
        rebooter = site.rebooter(Killer())
        site.request(approved=False)
        rebooter.round()
        one.node.kubelet.stop_after("device-plugin", NEVER)
        run = start_and_take(one)
        wait_until(lambda: fleet.renewals(mark), "the controller may patch its Lease")

        admin_api.patience_s = 60.0
        stack.callback(setattr, admin_api, "patience_s", 0.0)
        refused, rights = stack.enter_context(ExitStack()), stack.enter_context(ExitStack())
        for user in (control_plane.agent_with_events, control_plane.rollout):
            refused.enter_context(unbound(admin_api, user))
        rights.enter_context(unbound(admin_api, control_plane.rebooter))
        control_plane.restart_server()
        site.clock.after(REFUSED_S, rights.close)
        admin_api.patch(site.path, {"metadata": {"annotations": {KEYS.approve_reboot: "true"}}})
        new = fleet.set_driver("driver:2")
        one.node.kubelet.release()
        with suppress(Killed):  # the host goes down
            rebooter.round()
        time.sleep(REFUSED_S)
        refused.close()

        begun_s = time.monotonic()
        wait_until(fleet.states, "the controller takes a node")
        assert time.monotonic() - begun_s < patient(6.0)
        ended = run.end()
        assert ended.code == 0, ended.err
        assert_untouched(one, labels)
        fleet.wait_complete(new)
        assert controller.terminate().code == 0
        assert len(site.reboots) == 1
        lines = (*ended.err.splitlines(), *controller.log.splitlines(), *site.reporter.warnings)
        assert [line for line in lines if REMEDY in line] == []
