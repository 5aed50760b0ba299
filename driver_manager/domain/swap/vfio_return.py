"""The way back: devices that virtual machines had are returned before the driver is loaded, or used again.

Owns which devices those are, and what stands in the way. Pure. Must not import the planner.
"""

from __future__ import annotations

from collections.abc import Iterable

from driver_manager.domain.bindings import Binding, merged
from driver_manager.domain.listing import several
from driver_manager.domain.pci import PciFunction
from driver_manager.domain.policy import Mode
from driver_manager.domain.swap.driver_state import places_us
from driver_manager.domain.swap.node_patches import original_bindings
from driver_manager.domain.swap.node_taking import releasing, taking
from driver_manager.domain.swap.plan import AnyStep, PlanAgain
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.devices import MakeVirtualFunctions, ReturnDevices
from driver_manager.domain.swap.steps.waits import WaitForMachines
from driver_manager.domain.swap.vfio_rows import END_IT, STUCK, busy, holders_of, why_stuck

MACHINES = "machines"
"""What is waited for before devices are returned; once in a run."""


def returning(now: Situation) -> tuple[PciFunction, ...]:
    """The functions that this run takes back from vfio.

    None where the node's label wants them for virtual machines, or our pod is there to give them away. What is on vfio
    without an override, and was not put there by a run of this boot, was bound by its ids: that is the administrator's.
    One that is stuck on its way is among them: a driver that knows it could not be loaded.
    """
    if not _serves_containers(now):
        return ()
    known = {one.address for one in _originals(now)}
    return tuple(
        one
        for one in now.host.bus.functions
        if one.is_stuck or one.is_kept_for_vfio or (one.is_on_vfio and one.address in known)
    )


def _serves_containers(now: Situation) -> bool:
    """Whether this run brings a driver, or makes way for one, and the node's devices are for it.

    A vgpu-manager's container has a driver of its own, which shares them among virtual machines.
    """
    modes = now.profile.passthrough
    if modes is None or now.policy.mode is not Mode.CONTAINER or now.policy.clear_for:
        return False
    gives_away = places_us(now) == f"{now.profile.deploy.prefix}{modes.component}"
    return not gives_away and not modes.is_wanted(now.obs.node.labels)


def nodes_to_return(now: Situation) -> frozenset[str]:
    """Device nodes of which it matters who has them open."""
    return frozenset[str]().union(*(one.user_nodes for one in returning(now)))


def wait_for_machines(now: Situation) -> tuple[AnyStep, ...]:
    """The wait for whoever has one of the devices; () where nobody has. Raises DriverBusy after it."""
    found = returning(now)
    held = tuple(dict.fromkeys(holder for one in found for holder in holders_of(now, one)))
    stuck = tuple(one for one in found if one.is_stuck)
    if not held and not stuck:
        return ()
    unnamed = tuple(why_stuck(one, ()) for one in stuck if not holders_of(now, one))
    named = (*map(str, held), *unnamed)
    if MACHINES in now.waited:
        remedy = STUCK if stuck else END_IT
        raise busy(f"devices cannot be taken back from vfio: {several(named, '; ')}", remedy, held)
    nodes = tuple(sorted({one.node for one in held}))
    return (WaitForMachines(nodes, named, now.policy.device_free_timeout_s), PlanAgain(MACHINES))


def return_devices(now: Situation, *, probes: bool = False) -> tuple[AnyStep, ...]:
    """The step that takes the devices back; () where there are none, and no record of them that a killed run left.

    `probes`: the driver is there and stays.
    """
    found, left = returning(now), _without_virtual(now)
    is_done = any(one not in left for one in now.host.bindings) and _serves_containers(now)
    if not found and not is_done:
        return ()
    return (ReturnDevices(found, _originals(now), now.profile.paths.bindings, probes, left),)


def make_virtual_again(now: Situation) -> tuple[AnyStep, ...]:
    """The step that gives devices, which have their driver by then, their virtual functions again; () without any."""
    left = _without_virtual(now) if _serves_containers(now) else ()
    return (MakeVirtualFunctions(left, now.profile.paths.bindings),) if left else ()


def undisturbed(now: Situation, work: Iterable[AnyStep]) -> tuple[AnyStep, ...]:
    """`work` on a node whose driver stays; it is taken, with nobody paused, only where devices come back from vfio."""
    back = (*return_devices(now, probes=True), *make_virtual_again(now))
    taken = taking(now, frozenset(), cordon=False) if back else ()
    return (*wait_for_machines(now), *taken, *work, *back, *releasing(now, taken))


def _without_virtual(now: Situation) -> tuple[Binding, ...]:
    """Devices that had virtual functions before virtual machines got them, and have none now."""
    there = {one.address: one for one in now.host.bus.functions}
    known = (one for one in _originals(now) if one.virtual_count and one.address in there)
    return tuple(one for one in known if not there[one.address].virtual_count)


def _originals(now: Situation) -> tuple[Binding, ...]:
    """The devices as they were, as far as a run of this boot noted it."""
    return merged(now.host.bindings, original_bindings(now.obs))
