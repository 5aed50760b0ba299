"""The plan of reconcile-vfio-state: devices for virtual machines. The first row that matches wins.

Must not import the planner, which calls it.
"""

from __future__ import annotations

from collections.abc import Iterable

from driver_manager.domain.errors import ConfigError, DriverBusy, StandingDown
from driver_manager.domain.host import UNREAD, Holder, process_blocker
from driver_manager.domain.observation import Mode, Situation
from driver_manager.domain.pci import Binding, PciFunction, bindings_of, merged_bindings
from driver_manager.domain.pods.workloads import bound_to_root
from driver_manager.domain.profile import Strategy, unload_order, users_of
from driver_manager.domain.swap import building
from driver_manager.domain.swap.eviction import driver_pods, refuse_unmoved
from driver_manager.domain.swap.node_patches import original_bindings
from driver_manager.domain.swap.preflight import (
    Check,
    is_loaded,
    is_owned_elsewhere,
    places_us,
    refuse,
    refuse_if_owned,
)
from driver_manager.domain.swap.steps import (
    AnyStep,
    BindToVfio,
    Decision,
    KeepBindings,
    LoadVfio,
    MakeVirtualFunctions,
    OverrideDrivers,
    Plan,
    PlanAgain,
    RemoveVirtualFunctions,
    ReturnDevices,
    UnloadModules,
    WaitForDevice,
    WaitForMachines,
)
from driver_manager.domain.text import several

END_IT = "Shut that virtual machine down, or end the process that has the IOMMU group open, then run again."
STUCK = (
    "End that process: the unbind then continues by itself, and so does the next run. If the process does not end, "
    "reboot the node."
)


def plan_vfio(situation: Situation) -> Plan:
    """What a run would do now so that virtual machines can have the devices, and why.

    Raises ConfigError, StandingDown, OwnedElsewhere, PreflightFailed, DriverBusy, PodsRemain: all before any effect.
    """
    if not situation.host.bus.accelerators:
        return _no_device(situation)
    modes = situation.profile.passthrough
    if modes is None:
        raise ConfigError(
            f"profile {situation.profile.name} does not define how its devices are given to virtual machines",
            "Add a table [passthrough] to the profile; docs/profiles.md has its keys.",
        )
    wanted = situation.obs.node.labels.get(modes.mode_key, "") if modes.mode_key else ""
    if wanted not in ("", modes.mode_value):
        raise StandingDown(
            f"node {situation.obs.node.name} is labelled {modes.mode_key}={wanted}: its devices are not for virtual "
            "machines",
            f"No action needed, unless that is wrong: then set the label to {modes.mode_value}.",
        )
    refuse_if_owned(situation.obs, take_over=situation.policy.take_over)
    waiting = pending(situation)
    refuse(impossible(situation))
    building.check(situation, keeps_driver=not situation.host.modules and not waiting)
    if not waiting and not situation.host.modules:
        why = f"{_counted(situation.host.bus.functions)} on vfio already, and the driver is not loaded"
        return Plan(Decision.ON_VFIO, why, building.releasing(situation))
    # Raise DriverBusy where a device without a driver is in use: its unbind from vfio has begun and does not end.
    for one in waiting:
        held = holders_of(situation, one) if not one.driver or one.is_stuck else ()
        if held or one.is_stuck:
            raise busy(f"{why_stuck(one, held)}; nothing was changed", STUCK, held)
    _refuse_used_virtual(situation)
    if is_switch(situation):
        return _switch(situation, waiting)
    return _bind(situation, waiting)


def is_switch(situation: Situation) -> bool:
    """Whether claims and holders of the device matter: the driver is loaded, and may serve a process. Raises nothing.

    It may where not all devices are on vfio, or its modules are in use.
    """
    host = situation.host
    may_serve = any(not one.is_on_vfio for one in host.bus.accelerators) or users_of(host.modules) > 0
    return may_serve and is_loaded(host, situation.profile)


def pending(situation: Situation) -> tuple[PciFunction, ...]:
    """The functions that vfio is still to get; none that vanishes with the native driver of its physical function."""
    bus = situation.host.bus
    going = {one.address for one in bus.functions if not one.is_on_vfio}
    return tuple(one for one in bus.functions if not one.is_on_vfio and one.physical not in going)


def nodes_in_doubt(situation: Situation) -> frozenset[str]:
    """Device nodes of which it matters who has them open: an unbind may be stuck, or a virtual function be used."""
    bare = (one for one in situation.host.bus.functions if not one.driver or one.is_stuck)
    return frozenset[str]().union(*(one.user_nodes for one in (*bare, *_vanishing(situation))))


def _vanishing(situation: Situation) -> tuple[PciFunction, ...]:
    """Virtual functions on vfio whose physical function is still to change hands, and takes them along."""
    bus = situation.host.bus
    return tuple(one for owner in pending(situation) for one in bus.virtual_of(owner.address) if one.is_on_vfio)


def _counted(functions: tuple[PciFunction, ...]) -> str:
    return f"{len(functions)} device(s) {several(one.address for one in functions)}"


def _no_device(situation: Situation) -> Plan:
    why = f"no device of profile {situation.profile.name} is on the PCI bus"
    is_others = is_owned_elsewhere(situation.obs, take_over=situation.policy.take_over)
    left = () if is_others else building.releasing(situation)
    return Plan(Decision.NO_DEVICE, why, left, (f"{why}: no device is given to virtual machines",))


def impossible(situation: Situation) -> tuple[Check, ...]:
    """Why virtual machines could not have the devices in the end."""
    bus, found = situation.host.bus, dict[str, str]()
    iommu = "Enable the IOMMU in the firmware and on the kernel's command line (intel_iommu=on; amd_iommu=on)."
    for one in bus.functions:
        if not one.group:
            found[f"{one.address} has no IOMMU group"] = iommu
        if not one.vfio_module:
            found[f"kernel {situation.host.kernel_release} has no vfio module for {one.address}"] = (
                "Install the kernel's own modules (vfio-pci) on the host."
            )
        if _is_foreign(situation, one):
            found[
                f"{one.address} is bound to {one.driver}, which is not the driver of profile {situation.profile.name}"
            ] = f"Unbind it from {one.driver} by hand first."
    for group in sorted({one.group for one in bus.functions if one.group}):
        others = bus.in_the_way(group)
        if others:
            named = several(f"{one.address} ({one.driver})" for one in others)
            found[f"IOMMU group {group} is shared with {named}, so no virtual machine can have it"] = (
                "Put the device into another slot, or unbind its neighbours from their drivers by hand."
            )
    if situation.profile.strategy is Strategy.REBOOT and is_loaded(situation.host, situation.profile):
        found[f"the {situation.profile.name} driver is loaded, and is never unloaded from a running kernel"] = (
            "Prevent the host from loading the driver at boot, then reboot the node."
        )
    return tuple(Check("devices", False, what, remedy) for what, remedy in found.items())


def _is_foreign(situation: Situation, one: PciFunction) -> bool:
    """True if a driver that is neither the vendor's nor a vfio driver has an accelerator."""
    is_ours = one.is_auxiliary or one.is_on_vfio or not one.driver
    return not is_ours and one.module not in situation.host.modules


def why_stuck(one: PciFunction, held: tuple[Holder, ...]) -> str:
    """The message about a device that is stuck between two drivers, and about its holders."""
    if one.driver:
        return f"the kernel has not finished changing the driver of {one.address}, which is now {one.driver}"
    who = several(held, "; ") if held else "unknown by whom"
    return f"the unbind of {one.address} is stuck, because it is in use: {who}"


def _refuse_used_virtual(situation: Situation) -> None:
    """Raise DriverBusy where a virtual function that would vanish is a virtual machine's."""
    for one in _vanishing(situation):
        held = holders_of(situation, one)
        if held:
            what = f"virtual function {one.address} is in use: {several(held, '; ')}; nothing was changed"
            raise busy(what, END_IT, held)


def holders_of(situation: Situation, one: PciFunction) -> tuple[Holder, ...]:
    """Known holders of a device, or of its IOMMU group, in user space."""
    return tuple(held for held in situation.obs.group_holders if held.how != UNREAD and held.node in one.user_nodes)


def busy(what: str, remedy: str, held: tuple[Holder, ...]) -> DriverBusy:
    return DriverBusy(what, remedy, tuple(process_blocker(one.pid, one.process) for one in held))


def _bind(situation: Situation, waiting: tuple[PciFunction, ...]) -> Plan:
    """The native driver has no device, so no pod uses one: only pods that would bring the driver back are paused."""
    old = tuple(map(bindings_of, waiting))
    unload: tuple[AnyStep, ...] = ()
    if situation.host.modules:
        order = unload_order(situation.host.modules, situation.profile.modules.order)
        unload = (WaitForDevice(situation.policy.device_free_timeout_s), UnloadModules(order))
    mounted = bound_to_root(situation.obs, situation.profile) if situation.host.root_mounts else frozenset[str]()
    pause = mounted | (building.driver_gate(situation) if driver_pods(situation) else frozenset())
    refuse_unmoved(situation, pause, bound_only=True)
    taken = building.taking(situation, pause, cordon=False, bindings=old)
    work = (
        *_keeping(situation, old, waiting),
        *unload,
        *building.clean(situation, building.driver_files(situation.profile)),
        *_binding(situation, waiting),
    )
    users = building.users_stay(situation, "no device has its own driver")
    why = "no device is bound to the driver"
    why += f": {_counted(waiting)} go to vfio" if waiting else ", and it is loaded: unload it"
    return Plan(Decision.BIND, why, (*taken, *work, *building.releasing(situation, taken)), workloads=users)


def _switch(situation: Situation, waiting: tuple[PciFunction, ...]) -> Plan:
    """The full path: everybody leaves the driver, it is unloaded by its reference count, and vfio gets its devices."""
    old = tuple(map(bindings_of, waiting))
    before, taken, cleared = building.before_the_unload(situation, old)
    steps: tuple[AnyStep, ...] = (
        *before,
        WaitForDevice(situation.policy.device_free_timeout_s),
        *_keeping(situation, old, waiting),
        # Never an unbind: a native driver releases an open device, and its state after that is undefined.
        UnloadModules(unload_order(situation.host.modules, situation.profile.modules.order)),
        *building.clean(situation, building.driver_files(situation.profile)),
        *_binding(situation, waiting),
        *building.releasing(situation, taken),
    )
    kept = len(situation.host.bus.functions) - len(waiting)
    why = f"the driver is loaded: {_counted(waiting)} go to vfio" + (f", {kept} stay as they are" if kept else "")
    return Plan(Decision.SWITCH, why, steps, cleared.warnings, cleared.found)


def _keeping(situation: Situation, old: tuple[Binding, ...], waiting: tuple[PciFunction, ...]) -> tuple[AnyStep, ...]:
    """What keeps the devices for vfio while they still have the drivers that they had."""
    if not waiting:
        return ()
    first = merged_bindings(situation.host.bindings, original_bindings(situation, old))
    missing = tuple(one for one in waiting if one.override != one.vfio_driver)
    parents = tuple(one for one in waiting if one.virtual_count)
    return (
        *((KeepBindings(situation.profile.paths.bindings, first),) if first != situation.host.bindings else ()),
        *((OverrideDrivers(missing),) if missing else ()),
        *((RemoveVirtualFunctions(parents),) if parents else ()),
    )


def _binding(situation: Situation, waiting: tuple[PciFunction, ...]) -> tuple[AnyStep, ...]:
    """What gives the devices to vfio; nothing where the container after us does that."""
    if not waiting or not situation.policy.binds:
        return ()
    modules = tuple(dict.fromkeys(one.vfio_module for one in waiting))
    return (LoadVfio(modules), BindToVfio(waiting))


# The way back: devices of virtual machines are returned before the driver is loaded or used again.

MACHINES = "machines"
"""What is waited for before devices are returned; once in a run."""


def returning(situation: Situation) -> tuple[PciFunction, ...]:
    """The functions that this run takes back from vfio.

    None where the node's label wants them for virtual machines, or our pod is there to give them away. What is on vfio
    without an override, and was not put there by a run of this boot, was bound by its ids: that is the administrator's.
    One that is stuck on its way is among them: a driver that knows it could not be loaded.
    """
    if not _serves_containers(situation):
        return ()
    known = {one.address for one in _original_bindings(situation)}
    return tuple(
        one
        for one in situation.host.bus.functions
        if one.is_stuck or one.is_kept_for_vfio or (one.is_on_vfio and one.address in known)
    )


def _serves_containers(situation: Situation) -> bool:
    """Whether this run brings a driver, or makes way for one, and the node's devices are for it.

    A vgpu-manager's container has a driver of its own, which shares them among virtual machines.
    """
    modes = situation.profile.passthrough
    if modes is None or situation.policy.mode is not Mode.CONTAINER or situation.policy.clear_for:
        return False
    gives_away = places_us(situation) == f"{situation.profile.deploy.prefix}{modes.component}"
    return not gives_away and not modes.is_wanted(situation.obs.node.labels)


def nodes_to_return(situation: Situation) -> frozenset[str]:
    """Device nodes of which it matters who has them open."""
    return frozenset[str]().union(*(one.user_nodes for one in returning(situation)))


def wait_for_machines(situation: Situation) -> tuple[AnyStep, ...]:
    """The wait for the holders of one of the devices; () if there are none. Raises DriverBusy after it."""
    found = returning(situation)
    held = tuple(dict.fromkeys(holder for one in found for holder in holders_of(situation, one)))
    stuck = tuple(one for one in found if one.is_stuck)
    if not held and not stuck:
        return ()
    unnamed = tuple(why_stuck(one, ()) for one in stuck if not holders_of(situation, one))
    named = (*map(str, held), *unnamed)
    if MACHINES in situation.waited:
        remedy = STUCK if stuck else END_IT
        raise busy(f"devices cannot be taken back from vfio: {several(named, '; ')}", remedy, held)
    nodes = tuple(sorted({one.node for one in held}))
    return (WaitForMachines(nodes, named, situation.policy.device_free_timeout_s), PlanAgain(MACHINES))


def return_devices(situation: Situation, *, probes: bool = False) -> tuple[AnyStep, ...]:
    """The step that takes the devices back; () where there are none, and no record of them that a killed run left.

    `probes`: the driver is there and stays.
    """
    found, left = returning(situation), _without_virtual(situation)
    is_done = any(one not in left for one in situation.host.bindings) and _serves_containers(situation)
    if not found and not is_done:
        return ()
    return (ReturnDevices(found, _original_bindings(situation), situation.profile.paths.bindings, probes, left),)


def make_virtual_again(situation: Situation) -> tuple[AnyStep, ...]:
    """The step that gives devices, which have their driver by then, their virtual functions again; () without any."""
    left = _without_virtual(situation) if _serves_containers(situation) else ()
    return (MakeVirtualFunctions(left, situation.profile.paths.bindings),) if left else ()


def undisturbed(situation: Situation, work: Iterable[AnyStep]) -> tuple[AnyStep, ...]:
    """`work` on a node whose driver stays; it acquires the node, without a pause, only if devices return from vfio."""
    back = (*return_devices(situation, probes=True), *make_virtual_again(situation))
    taken = building.taking(situation, frozenset(), cordon=False) if back else ()
    return (*wait_for_machines(situation), *taken, *work, *back, *building.releasing(situation, taken))


def _without_virtual(situation: Situation) -> tuple[Binding, ...]:
    """Devices that had virtual functions before virtual machines got them, and have none now."""
    there = {one.address: one for one in situation.host.bus.functions}
    known = (one for one in _original_bindings(situation) if one.virtual_count and one.address in there)
    return tuple(one for one in known if not there[one.address].virtual_count)


def _original_bindings(situation: Situation) -> tuple[Binding, ...]:
    """The devices as they were before this boot's runs, from their record."""
    return merged_bindings(situation.host.bindings, original_bindings(situation))
