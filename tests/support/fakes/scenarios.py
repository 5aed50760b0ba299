"""Worlds that a reconcile starts from, and how an undisturbed run leaves each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.host import PREVIOUS, Holder
from driver_manager.domain.node import Claim, Node
from driver_manager.domain.observation import EvictionRules, Loader, Mode, Policy
from driver_manager.domain.pci import Binding, encode_bindings, noted_bindings
from tests.support.fakes import builders
from tests.support.fakes.builders import NEW_DIGEST, OLD_DIGEST, PROFILE, ROOT_MOUNT, key, workload
from tests.support.fakes.cluster import DaemonSet, Tenant
from tests.support.fakes.pci import VFIO_DRIVER, VFIO_MODULE, function
from tests.support.fakes.world import State, World

LONG_VALUE = "a-custom-value-of-forty-five-characters-total"
DRA_PLUGIN = key("dra-kubelet-plugin")
LABELS = {
    builders.PLUGIN: "true",
    builders.EXPORTER: "true",
    key("custom-client"): "gold",
    key("long"): LONG_VALUE,
    key("off"): "false",
    key("empty"): "",
    DRA_PLUGIN: "true",
    builders.DRIVER: "true",
    "example.com/deploy.open": "yes",
    "example.com/deploy.shut": "false",
    "kubernetes.io/hostname": builders.NODE,
}
OPERANDS = (
    DaemonSet("plugin", {builders.PLUGIN: "true"}, stop_s=3.0, uses_device=True, host_paths=(ROOT_MOUNT,)),
    DaemonSet("exporter", {builders.EXPORTER: "true"}, stop_s=8.0, host_paths=("/run/rbln",)),
    DaemonSet("dra-plugin", {DRA_PLUGIN: "true"}, stop_s=2.0),
    DaemonSet("client", {key("custom-client"): "gold"}, namespace="tenant", stop_s=5.0, uses_device=True),
)
GATE, OPEN_GATE, SHUT_GATE = (f"example.com/deploy.{name}" for name in ("telemetry", "open", "shut"))
"""Switches that are on unless they say `false`: the first is not on the Node."""

TELEMETRY = DaemonSet(
    "telemetry",
    {"kubernetes.io/hostname": builders.NODE},
    stop_s=4.0,
    uses_device=True,
    unless_false=frozenset({GATE, OPEN_GATE}),
)
REQUESTED = PROFILE.keys.upgrade_requested
NEW_ROOT, OLD_ROOT = "/opt/new", "/opt/old"


def _world(loader: Loader, operands: tuple[DaemonSet, ...] = OPERANDS) -> World:
    world = World(LABELS, Policy(loader=loader), operands, driver_root=NEW_ROOT)
    return world.given(offers={NEW_ROOT: "2.0", OLD_ROOT: "1.0", ROOT_MOUNT: "1.0"})


def _record(world: World, root: str, version: str) -> None:
    text = f'{{"bootId":"{world.host.boot_id}","root":"{root}","schema":1,"version":"{version}"}}'
    world.host.files[PROFILE.paths.load_record] = text


def replace_by_container() -> World:
    """An old driver whose container is about to bring a new one."""
    world = _world(Loader.CONTAINER)
    world.host.put_driver("1.0", OLD_DIGEST)
    world.host.mounts = [ROOT_MOUNT, f"{ROOT_MOUNT}/proc"]
    return world


def replace_by_manager(operands: tuple[DaemonSet, ...] = OPERANDS) -> World:
    """An old driver, loaded by an earlier run of ours, and a root with a new one."""
    world = _world(Loader.MANAGER, operands)
    world.host.put_driver("1.0", OLD_DIGEST, peer=False)
    _record(world, OLD_ROOT, "1.0")
    return world


def replace_with_a_peer() -> World:
    """As above, and a module of the driver is loaded above its root."""
    world = replace_by_manager()
    world.host.loaded["rebellions_peer"] = "1.0"
    return world


def replace_with_more_of_the_profile() -> World:
    """As by the manager, and the profile says more of the driver than the shipped one."""
    world = replace_by_manager((*OPERANDS, TELEMETRY))
    modules = replace(PROFILE.modules, parameters=("rebellions.mode=2",), keep_parameters=("rebellions.dep*",))
    modules = replace(modules, conflicting_removable=("generic_npu",))
    paths = replace(PROFILE.paths, firmware="/var/lib/firmware")
    deploy = replace(PROFILE.deploy, on_unless_false=(GATE, OPEN_GATE, SHUT_GATE))
    tunables = {"1.0": {"rebellions.depth": "7 x", "rebellions.speed": "3"}, "2.0": {"rebellions.depth": "1"}}
    world.given(profile=replace(PROFILE, modules=modules, paths=paths, deploy=deploy), tunables=tunables)
    return world.given(foreign_at_boot=frozenset({"generic_npu"}), foreign={"generic_npu"})


def replace_with_host_services() -> World:
    """As above, and a service of the host holds the device, which may be stopped."""
    return replace_by_manager().given(stop_host_services=True, services={"rbln_daemon.service": True})


def rebind() -> World:
    """The wanted driver is loaded; its container starts again and replaces the root that operands have mounted."""
    world = _world(Loader.CONTAINER)
    world.host.put_driver("2.0", NEW_DIGEST)
    world.host.mounts = [ROOT_MOUNT, f"{ROOT_MOUNT}/proc"]
    return world


def first_install_over_a_stale_root() -> World:
    """Nothing is loaded, but an earlier container left its root mounted, and operands are bound to it."""
    return _world(Loader.CONTAINER).given(mounts=[ROOT_MOUNT])


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
    world = replace_by_manager().given(is_enabled=True, forces=True)
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=7.0))
    world.cluster.add_tenant(workload("served"), Tenant(stop_s=2.0, blocked_until=world.clock.now + 20.0))
    world.cluster.add_tenant(workload("bare", owner_kind=""), Tenant(stop_s=1.0))
    return world


def replace_with_claims() -> World:
    """As above, and a pod holds a claim: the DRA plugin has to leave after it."""
    world = replace_with_workloads().given(all_claims=(Claim("tenant", "claim", PROFILE.device_classes),))
    world.cluster.add_tenant(workload("dra", resources=(), claims=("claim",)), Tenant(stop_s=9.0))
    return world


def replace_after_completion() -> World:
    """As with workloads, and one of them completes by itself within the time it is given."""
    world = replace_with_workloads().given(completion=selectors.parse("job=yes"), completion_timeout_s=100.0)
    world.cluster.add_tenant(workload("ending", labels={"job": "yes"}))
    world.clock.after(40.0, lambda: world.cluster.remove_pod("ending"))
    return world


def _staged() -> World:
    """An old driver at the root, the new one staged, and the driver before the old one."""
    world = _world(Loader.MANAGER)
    slots = world.host.slots
    world.driver_root = slots.root
    slots.trees = {slots.root: (OLD_DIGEST, "1.0"), slots.root + PREVIOUS: ("1" * 64, "0.1")}
    slots.stage(NEW_DIGEST, "2.0")
    world.host.put_driver("1.0", OLD_DIGEST, peer=False)
    _record(world, slots.root, "1.0")
    return world


def swap_to_a_slot() -> World:
    """The old driver at the root was staged as well."""
    return _staged()


def swap_a_folder_for_a_slot() -> World:
    """The old driver at the root has no record, as before anything was staged."""
    world = _staged()
    world.host.slots.trees[world.driver_root] = (None, "1.0")
    del world.host.slots.trees[world.driver_root + PREVIOUS]
    return world


def replace_once_the_device_is_let_go() -> World:
    """As by the manager, and a process of the host has the device for a little while."""
    holders = (Holder(4242, "trainer", "/dev/rbln0", "open"),)
    world = replace_by_manager().given(known_holders=holders, stuck_users={"rebellions": 1})
    world.clock.after(1.0, lambda: world.given(known_holders=(), stuck_users={}))
    return world


def replace_after_a_failure() -> World:
    """As by the manager, and the last run failed a moment ago for what no longer exists."""
    world = replace_by_manager().given(device_free_timeout_s=1.0, stuck_users={"rebellions": 1})
    world.ended(ExitCode.DRIVER_BUSY)
    world.next_process()
    return world.given(stuck_users={})


def reload_by_manager() -> World:
    """The wanted driver is loaded, its devices are sick until it is loaded again, and that was asked for."""
    world = _world(Loader.MANAGER)
    world.host.put_driver("2.0", NEW_DIGEST, peer=False)
    _record(world, NEW_ROOT, "2.0")
    world.host.ask_for_reload()
    return world


def reload_by_container() -> World:
    """As above, with the driver of a container."""
    world = rebind()
    world.host.ask_for_reload()
    return world


def replace_with_safe_load() -> World:
    """As by the manager, and an operator says when it is safe to load."""
    world = replace_by_manager().given(safe_load=True)

    def say_so(node: Node) -> None:
        if PROFILE.keys.safe_load in node.annotations:
            world.clock.after(5.0, lambda: world.cluster.edit(annotations={PROFILE.keys.safe_load: None}))

    return world.given(operator=say_so)


def _for_machines() -> World:
    """Four devices: two with the driver, of which one has virtual functions, one on vfio, one without a driver."""
    world = _world(Loader.CONTAINER)
    world.gate = key("vfio-manager")
    world.move_to_new_pod()
    world.policy = Policy(mode=Mode.VFIO, driver_pod_leaves=True, eviction=EvictionRules(is_enabled=True, forces=True))
    kept = function(2, driver=VFIO_DRIVER, override=VFIO_DRIVER)
    world.host.pci.held = {kept.group: Holder(4711, "qemu", f"/dev/vfio/{kept.group}", "open", machine="a")}
    world.host.pci.put(kept, function(3))
    return world


def switch_to_vfio() -> World:
    """The driver is loaded and users' pods have it; one device is a virtual machine's already."""
    world = _for_machines()
    world.host.put_driver("1.0", OLD_DIGEST)
    world.host.mounts = [ROOT_MOUNT]
    parent = function(driver="rebellions", virtual_count=1)
    child = function(4, driver="rebellions", physical=parent.address)
    world.host.pci.put(parent, child, function(1, driver="rebellions"))
    world.cluster.add_tenant(workload("job"), Tenant(stop_s=7.0))
    return world


def bind_to_vfio() -> World:
    """No driver is loaded: the devices only have to be bound."""
    world = _for_machines()
    world.host.pci.put(function(), function(1))
    return world


def return_from_vfio() -> World:
    """A driver container is about to start, and the devices are still kept for virtual machines, which have ended."""
    world = _world(Loader.CONTAINER)
    given = [function(number, driver=VFIO_DRIVER, override=VFIO_DRIVER) for number in (0, 1)]
    world.host.pci.loaded = {VFIO_MODULE}
    by_ids = function(3, driver=VFIO_DRIVER)
    world.host.pci.put(*given, replace(function(2), override=VFIO_DRIVER), by_ids)
    world.host.pci.by_ids = frozenset({by_ids.address})
    noted = [Binding(one.address, "rebellions") for one in given]
    world.host.files[PROFILE.paths.bindings] = encode_bindings(world.host.boot_id, noted)
    return world


def return_from_vfio_by_manager() -> World:
    """As above, and the manager loads the driver; one device had virtual functions."""
    world = return_from_vfio().given(policy=Policy(loader=Loader.MANAGER))
    first, *others = noted_bindings(world.host.files[PROFILE.paths.bindings], world.host.boot_id)
    noted = [replace(first, virtual_count=2), *others]
    world.host.files[PROFILE.paths.bindings] = encode_bindings(world.host.boot_id, noted)
    return world


SCENARIOS: dict[str, Callable[[], World]] = {
    name: one for name, one in list(globals().items()) if getattr(one, "__module__", "") == __name__ and name[0] != "_"
}
"""The public functions above, by their names."""

LOADING_ONLY = ("replace_with_safe_load", "first_install_by_manager", "current", "bind_to_vfio")
RETURNING = ("return_from_vfio", "return_from_vfio_by_manager")
TAKING = tuple(name for name in SCENARIOS if name not in (*LOADING_ONLY, *RETURNING))


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

    return world.given(operator=work)


def made(name: str, **changes: Any) -> World:
    """The world of a scenario, with these fields changed. See `World.given`."""
    return SCENARIOS[name]().given(**changes)


def by_reboot(**changes: Any) -> World:
    """An old driver that only a reboot replaces. The run does not wait for the reboot."""
    labels = {"openfuyao.com/npu.present": "true"}
    world = World(labels, Policy(no_wait=True), profile=builders.ASCEND).given(
        needs={}, loaded={"drv_pcie_host": "23.0"}
    )
    world.host.files[builders.ASCEND.paths.state_file] = OLD_DIGEST
    return world.given(**changes)


def settle_in(world: World) -> State:
    """The state once the driver container, where there is one, has started too."""
    if world.policy.loader is Loader.CONTAINER and world.policy.mode is Mode.CONTAINER:
        world.host.start_driver_container("2.0", world.digest)
    return world.state()


@cache
def undisturbed(name: str) -> tuple[State, State, int, int]:
    """State after an undisturbed run, state once the driver container has started, number of effects, of calls."""
    world = SCENARIOS[name]()
    world.ended()
    effects, calls = len(world.killer.effects), len(world.killer.calls)
    return world.state(), settle_in(world), effects, calls
