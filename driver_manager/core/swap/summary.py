"""What a run that succeeded says it has done, and the state in which it leaves the driver. Changes nothing."""

from __future__ import annotations

from driver_manager.domain.node_state import NodeState, state_of
from driver_manager.domain.swap.plan import Decision, Plan
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.base import Step
from driver_manager.domain.swap.steps.devices import BindToVfio, MakeVirtualFunctions, OverrideDrivers, ReturnDevices
from driver_manager.domain.swap.steps.kmm import AwaitKmm
from driver_manager.domain.swap.steps.modules import LoadModules, UnloadModules
from driver_manager.domain.swap.steps.mounts import RemoveArtifacts, UnmountDriverRoot
from driver_manager.domain.swap.steps.node import GiveBack
from driver_manager.domain.swap.steps.reboot import ClearRebootRequest
from driver_manager.domain.swap.steps.slots import RemoveSlots
from driver_manager.ports.node import Ports

_DONE: tuple[tuple[type[Step], str], ...] = (
    (BindToVfio, "the devices are on vfio"),
    (OverrideDrivers, "the devices are kept for vfio"),
    (ReturnDevices, "devices were taken back from vfio"),
    (MakeVirtualFunctions, "virtual functions were created again"),
    (AwaitKmm, "KMM loaded the driver"),
    (UnloadModules, "the old driver was unloaded"),
    (UnmountDriverRoot, "the old driver root was unmounted"),
    (GiveBack, "the node was released"),
    (ClearRebootRequest, "an earlier reboot request was cleared"),
    (RemoveArtifacts, "files of an earlier driver were removed"),
    (RemoveSlots, "old slots were removed"),
)
"""What a run that loaded nothing has done: the first of these steps that it had says it."""


def summary(decided: Plan) -> str:
    """The last line of a run that succeeded."""
    if not decided.steps:
        return f"nothing to do: {decided.reason}"
    if decided.decision is Decision.CLEAR:
        return f"done: the node is cleared ({decided.reason})"
    loaded = [step.source.version for step in decided.steps if isinstance(step, LoadModules)]
    there = (text for kind, text in _DONE if any(isinstance(step, kind) for step in decided.steps))
    done = f"driver {loaded[0]} loaded" if loaded else next(there, "a request to the operator was withdrawn")
    if decided.decision is Decision.UNINSTALL:
        done = "the driver was unloaded"
    if decided.decision is Decision.CURRENT and any(isinstance(step, AwaitKmm) for step in decided.steps):
        done = "KMM has the driver loaded"
    is_first = loaded and decided.decision is Decision.NOT_LOADED
    return f"done: {done} ({'none was loaded before' if is_first else decided.reason})"


def measured(ports: Ports) -> str:
    """How long nobody was served, as the end of a sentence; "" where nobody was told to go."""
    window = ports.tally.window.at(ports.clock.monotonic())
    return "" if window is None else f"; {window.sentence()}"


def state_after(decided: Plan, now: Situation) -> NodeState:
    """The driver's state after a run that ended well: one that changed no driver ends neither a wedge nor a wish."""
    stays = decided.decision in (Decision.CURRENT, Decision.REBIND)
    clears = any(isinstance(step, ClearRebootRequest) for step in decided.steps)
    return state_of(now.host, now.profile) if stays and not clears else NodeState.READY
