"""Worlds that a reconcile starts from, and how an undisturbed run leaves each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.model import Loader, Policy
from tests.fakes.builders import DRIVER, EXPORTER, NEW_DIGEST, NODE, OLD_DIGEST, PLUGIN, PROFILE, ROOT_MOUNT, key
from tests.fakes.cluster import DaemonSet
from tests.fakes.world import State, World

LONG_VALUE = "a-custom-value-of-forty-five-characters-total"
LABELS = {
    PLUGIN: "true",
    EXPORTER: "true",
    key("custom-client"): "gold",
    key("long"): LONG_VALUE,
    key("off"): "false",
    key("empty"): "",
    DRIVER: "true",
    "kubernetes.io/hostname": NODE,
}
OPERANDS = (
    DaemonSet("plugin", {PLUGIN: "true"}, stop_s=3.0, uses_device=True, host_paths=(ROOT_MOUNT,)),
    DaemonSet("exporter", {EXPORTER: "true"}, stop_s=8.0, host_paths=("/run/rbln",)),
    DaemonSet("client", {key("custom-client"): "gold"}, namespace="tenant", stop_s=5.0, uses_device=True),
)
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


SCENARIOS: dict[str, Callable[[], World]] = {
    scenario.__name__: scenario
    for scenario in (
        replace_by_container,
        replace_by_manager,
        replace_with_a_peer,
        replace_with_host_services,
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
