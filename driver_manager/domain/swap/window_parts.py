"""Which step of a plan is which part of the window, and which steps make somebody leave.

Owns that one table. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from driver_manager.domain import timestamps
from driver_manager.domain.journal import Journal
from driver_manager.domain.swap.plan import PlanAgain
from driver_manager.domain.swap.steps.base import Step
from driver_manager.domain.swap.steps.devices import (
    BindToVfio,
    KeepBindings,
    LoadVfio,
    MakeVirtualFunctions,
    OverrideDrivers,
    RemoveVirtualFunctions,
    ReturnDevices,
)
from driver_manager.domain.swap.steps.kmm import AskKmm, AwaitKmm
from driver_manager.domain.swap.steps.modules import (
    LoadModules,
    RecordDigest,
    RemoveConflicting,
    SetFirmwarePath,
    StopServices,
    UnloadModules,
    WaitForDevice,
)
from driver_manager.domain.swap.steps.mounts import RemoveArtifacts, UnmountDriverRoot
from driver_manager.domain.swap.steps.node import GiveBack, MarkCleared, PauseLast, StandDown, TakeNode
from driver_manager.domain.swap.steps.operator import AskOperator, WaitForSafeLoad, WithdrawSafeLoad
from driver_manager.domain.swap.steps.pods import (
    DrainNode,
    EvictWorkloads,
    WaitForCompletion,
    WaitForOperands,
    WaitForRestart,
)
from driver_manager.domain.swap.steps.reboot import (
    ClearRebootRequest,
    EndWithoutReboot,
    HoldForReboot,
    RequestReboot,
)
from driver_manager.domain.swap.steps.slots import FlipRoot, KeepRoot, RemoveSlots
from driver_manager.domain.swap.steps.waits import WaitAfterFailure, WaitForHolders, WaitForMachines, WaitForStuckPods
from driver_manager.domain.window import Part, Window

PARTS: Mapping[type[Step], Part] = MappingProxyType(
    {
        TakeNode: Part.OPERANDS,
        PauseLast: Part.OPERANDS,
        WaitForOperands: Part.OPERANDS,
        WaitForStuckPods: Part.OPERANDS,
        WaitForCompletion: Part.EVICT,
        EvictWorkloads: Part.EVICT,
        DrainNode: Part.EVICT,
        AskOperator: Part.EVICT,
        StopServices: Part.DEVICE,
        WaitForDevice: Part.DEVICE,
        WaitForHolders: Part.DEVICE,
        WaitForMachines: Part.DEVICE,
        RemoveConflicting: Part.UNLOAD,
        UnloadModules: Part.UNLOAD,
        WaitForRestart: Part.UNLOAD,
        UnmountDriverRoot: Part.INSTALL,
        RemoveArtifacts: Part.INSTALL,
        FlipRoot: Part.INSTALL,
        KeepBindings: Part.UNLOAD,
        OverrideDrivers: Part.UNLOAD,
        RemoveVirtualFunctions: Part.UNLOAD,
        LoadVfio: Part.LOAD,
        BindToVfio: Part.LOAD,
        ReturnDevices: Part.INSTALL,
        MakeVirtualFunctions: Part.LOAD,
        SetFirmwarePath: Part.LOAD,
        LoadModules: Part.LOAD,
        RecordDigest: Part.LOAD,
        AskKmm: Part.UNLOAD,
        AwaitKmm: Part.LOAD,
        GiveBack: Part.BACK,
        KeepRoot: Part.OTHER,
        RemoveSlots: Part.OTHER,
        MarkCleared: Part.OTHER,
        StandDown: Part.OTHER,
        WaitForSafeLoad: Part.OTHER,
        WithdrawSafeLoad: Part.OTHER,
        WaitAfterFailure: Part.OTHER,
        RequestReboot: Part.OTHER,
        HoldForReboot: Part.OTHER,
        ClearRebootRequest: Part.OTHER,
        EndWithoutReboot: Part.OTHER,
        PlanAgain: Part.OTHER,
    }
)
"""Every kind of step. The end of LoadModules, when the modules are in, is the part PROBE: who loads says when."""


def part_of(step: Step) -> Part:
    """What the time of `step` goes to while a window is open."""
    return PARTS.get(type(step), Part.OTHER)


def opens(step: Step) -> bool:
    """Whether somebody has to leave because of `step`: a window opens with it at the latest."""
    match step:
        case TakeNode():
            return bool(step.journal.paused)
        case EvictWorkloads():
            return bool(step.pods) or step.drains
    return isinstance(step, PauseLast | DrainNode | AskOperator | StopServices | UnloadModules)


def earlier(journal: Journal | None) -> Window | None:
    """The window that the run which wrote `journal` opened, None where it told nobody to go.

    A version that measured none has noted when it took the node, and what it paused.
    """
    if journal is None or journal.window is not None or not journal.paused:
        return None if journal is None else journal.window
    began_s = timestamps.seconds_of(journal.begin)
    return None if began_s is None else Window(began_s, 0.0)
