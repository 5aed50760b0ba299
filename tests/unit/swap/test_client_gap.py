"""Clients that hold the device and that no label moves: evicted right before the unload, with consent only."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from driver_manager.core.swap.driver import ATTEMPTS
from driver_manager.core.swap.run import Outcome, decide
from driver_manager.domain import selectors
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.host import Holder
from driver_manager.domain.node import Pod
from driver_manager.domain.swap.steps import UnloadModules
from tests.support.fakes.builders import pod
from tests.support.fakes.cluster import Tenant
from tests.support.fakes.executions import only_showed_its_end
from tests.support.fakes.scenarios import LABELS, replace_with_workloads
from tests.support.fakes.world import World

NAME = "monitoring/exporter"
STOP_S = 5.0


class Clients:
    """A world with a client that holds the device; whoever follows it opens the device `back_s` seconds later."""

    def __init__(self, *back_s: float, consents: bool = True) -> None:
        self.world = replace_with_workloads()
        rules = replace(self.world.policy.eviction, clients=selectors.parse("app=exporter"), restarts_clients=consents)
        self.world.policy = replace(self.world.policy, eviction=rules)
        self._back_s = list(back_s)
        self._arrive("exporter")

    def _arrive(self, name: str) -> None:
        made = pod(name, namespace="monitoring", labels={"app": "exporter"})
        self.world.cluster.add_tenant(made, Tenant(stop_s=STOP_S))
        holder = Holder(7, "exporter", "/dev/rbln0", "open", pod_uid=name)
        self.world.host.known_holders = (*self.world.host.known_holders, holder)
        self.world.killer.at("evict", lambda: self._on_eviction(made), after=True)

    def _on_eviction(self, gone: Pod) -> None:
        """Called after any eviction: those of users' pods come first."""
        if str(gone) not in self.world.cluster.evicted:
            self.world.killer.at("evict", lambda: self._on_eviction(gone), after=True)
            return
        self.world.clock.after(STOP_S, lambda: self._left(gone.uid))
        if self._back_s:
            self.world.clock.after(STOP_S + self._back_s.pop(0), lambda: self._arrive(gone.name + "+"))

    def _left(self, uid: str) -> None:
        host = self.world.host
        host.known_holders = tuple(one for one in host.known_holders if one.pod_uid != uid)

    def run(self) -> Outcome:
        outcome = self.world.run()
        assert outcome is not None
        return outcome


def clients_evicted(world: World) -> list[str]:
    return [name for name in world.cluster.evicted if name.startswith("monitoring/")]


def test_the_client_is_evicted_last_and_the_driver_is_swapped_in_the_gap() -> None:
    found = Clients(3.0)
    world = found.world
    outcome = found.run()
    assert outcome.exit_code is ExitCode.DONE, outcome.what
    assert world.host.loaded["rebellions"] == "2.0"
    assert world.cluster.evicted[-1] == NAME
    assert clients_evicted(world) == [NAME]
    assert [one for one in world.cluster.posted if one[0] == "DriverClientRestarted"] == [
        (
            "DriverClientRestarted",
            f"client {NAME} (DaemonSet) was restarted: it held the driver that is being replaced",
            False,
        )
    ]
    assert world.state().labels == LABELS


def test_a_successor_that_is_faster_is_evicted_too() -> None:
    found = Clients(0.0, 3.0)
    assert found.run().exit_code is ExitCode.DONE
    assert clients_evicted(found.world) == [NAME, NAME + "+"]


def test_one_that_is_always_faster_keeps_its_driver() -> None:
    found = Clients(*[0.0] * 10)
    outcome = found.run()
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert f"opened the device again before the driver could be unloaded, {ATTEMPTS} times" in outcome.what
    assert len(clients_evicted(found.world)) == ATTEMPTS
    assert found.world.host.loaded["rebellions"] == "1.0"
    assert found.world.state().labels == LABELS


def test_without_consent_nothing_is_changed_and_the_option_is_named() -> None:
    found = Clients(consents=False)
    outcome = found.run()
    assert outcome.exit_code in (ExitCode.DRIVER_BUSY, ExitCode.PODS_REMAIN)
    assert NAME in outcome.what
    assert "RESTART_CLIENTS=true (--restart-clients)" in outcome.remedy
    assert only_showed_its_end(found.world)


def test_where_nobody_else_is_evicted_it_is_exit_code_four() -> None:
    found = Clients(consents=False)
    for uid in [uid for uid in found.world.cluster.listed if uid in found.world.cluster.tenants and uid != "exporter"]:
        found.world.cluster.remove_pod(uid)
    outcome = found.run()
    assert outcome.exit_code is ExitCode.DRIVER_BUSY
    assert "RESTART_CLIENTS=true (--restart-clients)" in outcome.remedy
    assert not clients_evicted(found.world)


def test_the_plan_names_the_clients_and_needs_the_right_to_evict() -> None:
    world = Clients().world
    _, decided = decide(world.ports, world.observe(), world.profile, world.policy)
    (step,) = (step for step in decided.steps if isinstance(step, UnloadModules))
    assert step.pods == (NAME,)
    assert step.describe().startswith(f"evict client(s) {NAME}, and unload ")
    assert ("create", "pods/eviction") in step.rights()
    assert f"{NAME} has /dev/rbln0 open without requesting it: restart, a client of the driver" in decided.to_text()


def block(world: World) -> None:
    """From now on no budget lets the client go."""
    world.cluster.tenants["exporter"] = dataclasses.replace(world.cluster.tenants["exporter"], blocked_until=1e9)


def test_a_budget_that_would_refuse_the_client_disturbs_nobody() -> None:
    found = Clients()
    block(found.world)
    outcome = found.run()
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert outcome.what.startswith(f"the eviction of client(s) that hold the device would be refused now: {NAME}: ")
    assert found.world.cluster.evicted == []
    assert only_showed_its_end(found.world)


def test_a_budget_that_refuses_in_the_gap_leaves_the_old_driver() -> None:
    found = Clients()
    world = found.world
    world.killer.at("evict", lambda: block(world), after=True)
    outcome = found.run()
    assert world.cluster.evicted, "users' pods have left by then"
    assert outcome.exit_code is ExitCode.PODS_REMAIN
    assert world.host.loaded["rebellions"] == "1.0"
    assert world.state().labels == LABELS


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", range(14))
def test_killed_anywhere_the_next_run_ends_the_same(effect: int, after: bool) -> None:
    found = Clients(3.0, 3.0, 3.0)
    world = found.world
    world.killer.kill_at(effect, after=after)
    for _ in range(5):
        outcome = world.run()
        world.next_process()
        world.clock.sleep(60.0)
        if outcome is not None and outcome.exit_code is ExitCode.DONE:
            break
    assert world.host.loaded["rebellions"] == "2.0"
    assert world.state().labels == LABELS
    assert len(clients_evicted(world)) <= 2
