"""Worlds that a reconcile starts from, and how an undisturbed run leaves each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from driver_manager.domain import selectors
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.model import Claim, EvictionRules, Holder, Loader, Node, Policy
from tests.fakes.builders import (
    DRIVER,
    EXPORTER,
    NEW_DIGEST,
    NODE,
    OLD_DIGEST,
    PLUGIN,
    PROFILE,
    ROOT_MOUNT,
    key,
    workload,
)
from tests.fakes.cluster import DaemonSet, Tenant
from tests.fakes.world import State, World

LONG_VALUE = "a-custom-value-of-forty-five-characters-total"
DRA_PLUGIN = key("dra-kubelet-plugin")
LABELS = {
    PLUGIN: "true",
    EXPORTER: "true",
    key("custom-client"): "gold",
    key("long"): LONG_VALUE,
    key("off"): "false",
    key("empty"): "",
    DRA_PLUGIN: "true",
    DRIVER: "true",
    "kubernetes.io/hostname": NODE,
}
OPERANDS = (
    DaemonSet("plugin", {PLUGIN: "true"}, stop_s=3.0, uses_device=True, host_paths=(ROOT_MOUNT,)),
    DaemonSet("exporter", {EXPORTER: "true"}, stop_s=8.0, host_paths=("/run/rbln",)),
    DaemonSet("dra-plugin", {DRA_PLUGIN: "true"}, stop_s=2.0),
    DaemonSet("client", {key("custom-client"): "gold"}, namespace="tenant", stop_s=5.0, uses_device=True),
)
REQUESTED = PROFILE.keys.upgrade_requested
NEW_ROOT, OLD_ROOT = "/opt/new", "/opt/old"


def _world(loader: Loader, *, force: bool = False) -> World:
    world = World(LABELS, Policy(loader=loader, force_reinstall=force), OPERANDS, driver_root=NEW_ROOT)
    world.host.offers = {NEW_ROOT: "2.0", OLD_ROOT: "1.0", ROOT_MOUNT: "1.0"}
    return world


def _record(world: World, root: str, version: str) -> None:
    text = f'{{"bootId":"{world.host.boot_id}","root":"{root}","schema":1,"version":"{version}"}}'
    world.host.files[PROFILE.paths.load_record] = text


def replace_by_container() -> World:
    """An old driver whose container is about to bring a new one."""
    world = _world(Loader.CONTAINER)
    world.host.put_driver("1.0", OLD_DIGEST)
    world.host.mounts = [ROOT_MOUNT, f"{ROOT_MOUNT}/proc"]
    return world


def replace_by_manager() -> World:
    """An old driver, loaded by an earlier run of ours, and a root with a new one."""
    world = _world(Loader.MANAGER)
    world.host.put_driver("1.0", OLD_DIGEST, peer=False)
    _record(world, OLD_ROOT, "1.0")
    return world


def replace_with_a_peer() -> World:
    """As above, and a module of the driver is loaded above its root."""
    world = replace_by_manager()
    world.host.loaded["rebellions_peer"] = "1.0"
    return world


def replace_with_host_services() -> World:
    """As above, and a service of the host holds the device, which may be stopped."""
    world = replace_by_manager()
    world.policy = replace(world.policy, stop_host_services=True)
    world.host.services = {"rbln_daemon.service": True}
    return world


def rebind() -> World:
    """The wanted driver is loaded; its container starts anew and replaces the root that operands have mounted."""
    world = _world(Loader.CONTAINER)
    world.host.put_driver("2.0", NEW_DIGEST)
    world.host.mounts = [ROOT_MOUNT, f"{ROOT_MOUNT}/proc"]
    return world


def first_install_over_a_stale_root() -> World:
    """Nothing is loaded, but an earlier container left its root mounted, and operands are bound to it."""
    world = _world(Loader.CONTAINER)
    world.host.mounts = [ROOT_MOUNT]
    return world


def first_install_by_manager() -> World:
    """Nothing is loaded and a root offers the driver."""
    return _world(Loader.MANAGER)


def current() -> World:
    """The wanted driver is loaded and nothing is going to replace its root."""
    world = _world(Loader.MANAGER)
    world.host.put_driver("2.0", NEW_DIGEST, peer=False)
    del world.host.files[PROFILE.paths.ready_marker]
    return world


def replace_with_workloads() -> World:
    """As by the manager, and users' pods hold the device; the budget of one allows no eviction for a while."""
    world = replace_by_manager()
    world.policy = replace(world.policy, eviction=EvictionRules(is_enabled=True, forces=True))
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=7.0))
    world.cluster.add_tenant(workload("served"), Tenant(stop_s=2.0, blocked_until=world.clock.now + 20.0))
    world.cluster.add_tenant(workload("bare", owner_kind=""), Tenant(stop_s=1.0))
    return world


def replace_with_claims() -> World:
    """As above, and a pod holds a claim: the DRA plugin has to leave after it."""
    world = replace_with_workloads()
    world.cluster.all_claims = (Claim("tenant", "claim", PROFILE.device_classes),)
    world.cluster.add_tenant(workload("dra", resources=(), claims=("claim",)), Tenant(stop_s=9.0))
    return world


def replace_after_completion() -> World:
    """As with workloads, and one of them completes by itself within the time it is given."""
    world = replace_with_workloads()
    world.policy = replace(world.policy, completion=selectors.parse("job=yes"), completion_timeout_s=100.0)
    world.cluster.add_tenant(workload("ending", labels={"job": "yes"}))
    world.clock.after(40.0, lambda: world.cluster.remove_pod("ending"))
    return world


def replace_once_the_device_is_let_go() -> World:
    """As by the manager, and a process of the host has the device for a little while."""
    world = replace_by_manager()
    world.host.known_holders = (Holder(4242, "trainer", "/dev/rbln0", "open"),)
    world.host.stuck_users = {"rebellions": 1}

    def let_go() -> None:
        world.host.known_holders, world.host.stuck_users = (), {}

    world.clock.after(1.0, let_go)
    return world


def replace_after_a_failure() -> World:
    """As by the manager, and the last run failed a moment ago for what is not there any more."""
    world = replace_by_manager()
    world.policy = replace(world.policy, device_free_timeout_s=1.0)
    world.host.stuck_users = {"rebellions": 1}
    world.run()
    world.host.stuck_users = {}
    world.next_process()
    return world


def replace_with_safe_load() -> World:
    """As by the manager, and an operator says when it is safe to load."""
    world = replace_by_manager()
    world.policy = replace(world.policy, safe_load=True)

    def say_so(node: Node) -> None:
        if PROFILE.keys.safe_load in node.annotations:
            world.clock.after(5.0, lambda: world.cluster.edit(annotations={PROFILE.keys.safe_load: None}))

    world.cluster.operator = say_so
    return world


def replace_managed_by_operator() -> World:
    """An operator manages upgrades: once asked, it moves the workloads itself."""
    world = replace_by_manager()
    world.cluster.add_tenant(workload("job"))
    world.cluster.edit(annotations={PROFILE.keys.upgrade_enabled: "true"})

    def work(node: Node) -> None:
        if PROFILE.keys.upgrade_requested in node.annotations:
            world.clock.after(3.0, begin)

    def begin() -> None:
        world.cluster.edit({PROFILE.keys.upgrade_state: "drain-required"}, annotations={REQUESTED: None})
        job = world.cluster.listed.get("job")
        if job is not None:
            world.cluster.stop(job, 4.0)
        world.clock.after(60.0, lambda: world.cluster.edit({PROFILE.keys.upgrade_state: None}))

    world.cluster.operator = work
    return world


SCENARIOS: dict[str, Callable[[], World]] = {
    scenario.__name__: scenario
    for scenario in (
        replace_by_container,
        replace_by_manager,
        replace_with_a_peer,
        replace_with_host_services,
        replace_with_workloads,
        replace_with_claims,
        replace_after_completion,
        replace_once_the_device_is_let_go,
        replace_after_a_failure,
        replace_with_safe_load,
        rebind,
        first_install_over_a_stale_root,
        first_install_by_manager,
        current,
    )
}
TAKING = (
    "replace_by_container",
    "replace_by_manager",
    "replace_with_a_peer",
    "replace_with_host_services",
    "replace_with_workloads",
    "replace_with_claims",
    "replace_after_completion",
    "replace_once_the_device_is_let_go",
    "replace_after_a_failure",
    "rebind",
    "first_install_over_a_stale_root",
)
"""Those that pause labels."""


def settle_in(world: World) -> State:
    """The state once the driver container, where there is one, has started too."""
    if world.policy.loader is Loader.CONTAINER:
        world.host.start_driver_container("2.0", world.digest)
    return world.state()


@cache
def undisturbed(name: str) -> tuple[State, State, int, int]:
    """State after an undisturbed run, state once the driver container has started, number of effects, of calls."""
    world = SCENARIOS[name]()
    outcome = world.run()
    assert outcome is not None
    assert outcome.exit_code is ExitCode.DONE, outcome
    effects, calls = len(world.killer.effects), len(world.killer.calls)
    return world.state(), settle_in(world), effects, calls
