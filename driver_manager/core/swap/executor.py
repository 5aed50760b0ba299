"""Walks a plan's steps through the ports: the only place with effects on a taken node.

Owns how each step is done. What happens when one fails belongs to `driver_manager.core.swap.settling`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from driver_manager.core.swap.fence import Fence
from driver_manager.core.swap.operator_handoff import Handoff
from driver_manager.core.swap.pod_removal import Departures
from driver_manager.core.swap.reboot_request import RebootRequests
from driver_manager.core.swap.settling import ATTEMPTS, Settler
from driver_manager.domain.errors import (
    ApiUnavailable,
    Conflict,
    DriverBusy,
    ManagerError,
    ModuleBusy,
    ModuleFailed,
    OwnedElsewhere,
    StandingDown,
    Terminated,
)
from driver_manager.domain.model import DriverSource, Health, Module, NodeChange, Observation, Policy
from driver_manager.domain.modules import unload_order, users
from driver_manager.domain.pods.operands import named
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.node_patches import pause_more
from driver_manager.domain.swap.steps import (
    AskOperator,
    ClearRebootRequest,
    Decision,
    DrainNode,
    EvictWorkloads,
    GiveBack,
    HoldForReboot,
    LoadModules,
    PauseLast,
    Plan,
    PlanAgain,
    RecordDigest,
    RemoveArtifacts,
    RequestReboot,
    StandDown,
    Step,
    StopServices,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitForCompletion,
    WaitForDevice,
    WaitForOperands,
    WaitForSafeLoad,
    WithdrawSafeLoad,
)
from driver_manager.ports import Clock, Cluster, HostSystem, Reporter

DEVICE_POLL_S = 0.2
"""The kernel has no event for a falling module reference count, so it is looked at."""

DEVICE_NODES_S = 15.0
ROLLBACK_UNLOAD_S = 10.0
NEWCOMERS = "newcomers"
"""Why to plan again: pods came between the observation and the cordon."""


@dataclass(frozen=True)
class Ports:
    """The outside, wired once by the command line."""

    cluster: Cluster
    host: HostSystem
    clock: Clock
    reporter: Reporter


class Executor:
    """Executes one plan for one observation."""

    def __init__(
        self,
        ports: Ports,
        profile: Profile,
        policy: Policy,
        obs: Observation,
        settler: Settler,
        fence: Fence,
        deadline: float,
    ) -> None:
        self._ports = ports
        self._profile = profile
        self._obs = obs
        self._settler = settler
        self._fence = fence
        self._deadline = deadline
        outside = (ports.cluster, ports.clock, ports.reporter)
        self._reboots = RebootRequests(*outside, ports.host, profile, obs)
        self._handoff = Handoff(*outside, obs, self._bounded)
        self._departures = Departures(*outside, ports.host, profile, policy, obs, self._bounded, self._check_owner)
        self._unload_end: float | None = None
        self._paused_at = ""
        self._replaces = False

    def run(self, plan: Plan) -> str:
        """Do every step of `plan` in order, up to one after which to plan again: what for; "" at the end.

        Raises the ManagerError of the step that failed.
        """
        self._replaces = plan.decision is Decision.REPLACE
        with contextlib.ExitStack() as work:
            if plan.steps and not work.enter_context(self._ports.host.at_work()):
                self._ports.reporter.warn("health-watch on this host, if it runs, cannot be told of this run")
            if not self._fence.is_claimed:
                self._claim_what_is_ours()
            for number, step in enumerate(plan.steps, 1):
                if not isinstance(step, RecordDigest):  # a verified driver without its digest would be replaced again
                    self._ports.clock.check()
                if isinstance(step, PlanAgain):
                    return step.after
                if isinstance(step, StandDown | HoldForReboot):  # nothing is done to the driver while we wait there
                    work.close()
                self._ports.reporter.step(number, len(plan.steps), step.describe())
                if self._do(step):
                    return NEWCOMERS
        return ""

    def _do(self, step: Step) -> bool:
        """Whether the step found that the plan does not hold any more."""
        handlers: dict[type, Callable[..., object]] = {
            TakeNode: self._take_node,
            WaitForOperands: self._wait_for_operands,
            WaitForSafeLoad: self._handoff.wait_for_safe_load,
            WithdrawSafeLoad: self._handoff.withdraw,
            AskOperator: self._handoff.ask,
            WaitForCompletion: self._departures.of_completing,
            EvictWorkloads: self._departures.of_workloads,
            DrainNode: self._departures.of_everybody,
            PauseLast: self._pause_last,
            StopServices: self._stop_services,
            WaitForDevice: self._wait_for_device,
            UnloadModules: self._unload_modules,
            UnmountDriverRoot: self._unmount,
            RemoveArtifacts: self._remove,
            LoadModules: self._load_modules,
            RecordDigest: self._record_digest,
            GiveBack: self._give_back,
            StandDown: self._stand_down,
            RequestReboot: self._reboots.request,
            HoldForReboot: self._reboots.hold,
            ClearRebootRequest: self._reboots.clear,
        }
        return bool(handlers[type(step)](step))

    def _bounded(self, timeout_s: float) -> float:
        """`timeout_s`, cut to what is left of the run's deadline."""
        return max(0.0, min(timeout_s, self._deadline - self._ports.clock.monotonic()))

    def _claim_what_is_ours(self) -> None:
        """The node may be ours by a patch whose answer was lost. Raises OwnedElsewhere."""
        journal = self._obs.journal
        if journal is not None and journal.owner == self._obs.me:
            with self._fence.taking(self._obs.me):
                self._ask_node()

    def _effect(self) -> AbstractContextManager[None]:
        """Within it the driver may be changed. Raises OwnedElsewhere."""
        return self._fence.effect(self._ask_node)

    def _check_owner(self) -> None:
        """Raise OwnedElsewhere where another run took over."""
        with self._effect():
            pass

    def _ask_node(self) -> None:
        journal = self._settler.held
        if journal is not None:
            self._settler.refuse_foreign(self._ports.cluster.node(), journal)

    def _take_node(self, step: TakeNode) -> None:
        # Noted before it is done: a patch whose answer is lost may have been applied.
        self._settler.took(step.journal)
        with self._fence.taking(step.journal.owner):
            self._paused_at = self._ports.cluster.patch_node(step.change, step.resource_version).resource_version

    def _wait_for_operands(self, step: WaitForOperands) -> bool:
        return self._departures.of_operands(step, paused_at=self._paused_at, replaces=self._replaces)

    def _pause_last(self, step: PauseLast) -> None:
        """By a fresh look at the Node: a label that was edited meanwhile is paused, and restored, as it is now."""
        for _ in range(ATTEMPTS):
            node, journal = self._ports.cluster.node(), self._settler.held
            if journal is None:
                raise OwnedElsewhere("the node is not taken by this run", "Run again.")
            self._settler.refuse_foreign(node, journal)
            longer, change = pause_more(node, journal, self._profile, frozenset(step.keys))
            if change.is_empty:
                return
            self._settler.took(longer)
            try:
                self._paused_at = self._ports.cluster.patch_node(change, node.resource_version).resource_version
                return
            except Conflict as error:
                self._ports.reporter.info(f"{error.what}; looking again")
        raise ApiUnavailable(f"the Node kept changing: {ATTEMPTS} patches conflicted", "Run again.")

    def _wait_for_device(self, step: WaitForDevice) -> None:
        clock = self._ports.clock
        self._unload_end = clock.monotonic() + self._bounded(step.timeout_s)
        said = ""
        while busy := [module for module in self._ports.host.modules().values() if users(module)]:
            text = ", ".join(f"{module.name} ({users(module)} user(s))" for module in busy)
            if clock.monotonic() >= self._unload_end:
                raise self._busy(f"the device is still in use after {step.timeout_s:g} s: {text}")
            if text != said:
                self._ports.reporter.info(f"device in use: {text}{self._named_holders()}")
                said = text
            clock.sleep(DEVICE_POLL_S)

    def _stop_services(self, step: StopServices) -> None:
        for name in step.names:
            with self._effect():
                self._ports.host.stop_service(name)

    def _named_holders(self) -> str:
        """Who uses the device, for a message; "" where nobody can be seen."""
        count = sum(users(module) for module in self._ports.host.modules().values())
        try:
            found = named(self._ports.host.holders(count), self._obs.pods.pods)
        except ManagerError as error:
            return f" (holders unknown: {error.what})"
        texts = [str(holder) for holder in found]
        if found and len(found) < count:
            texts.append(f"{count - len(found)} more could not be found")
        return ": " + "; ".join(texts) if texts else ""

    def _busy(self, what: str) -> DriverBusy:
        return DriverBusy(
            what + self._named_holders(),
            "Stop what uses the device (`driver-manager holders` lists it; host services: --stop-host-services), "
            "then run again.",
        )

    def _unload_modules(self, _: UnloadModules) -> None:
        self._unload_all(self._obs.host.previous_source if self._obs.host else None)

    def _unload_all(self, source: DriverSource | None) -> None:
        """Unload the closure, looked up again before every module: a holder may have come meanwhile.

        `source` is where what is loaded now came from, to put back what went before a busy one.
        """
        host, removed = self._ports.host, list[str]()
        try:
            while loaded := host.modules():
                self._ports.clock.check()
                name = unload_order(loaded)[0]
                if name in removed:
                    raise ModuleFailed(f"module {name} came back after it was unloaded", "Find what loads it again.")
                self._unload_one(loaded[name])
                removed.append(name)
                self._ports.reporter.info(f"module {name} is unloaded")
        except ManagerError:
            self._reload(removed, source)
            raise

    def _unload_one(self, module: Module) -> None:
        clock = self._ports.clock
        end = self._unload_end if self._unload_end is not None else clock.monotonic()
        while True:
            try:
                with self._effect():
                    return self._ports.host.unload(module.name)
            except ModuleBusy as error:
                if clock.monotonic() >= end:
                    raise self._busy(error.what) from error
                clock.sleep(DEVICE_POLL_S)

    def _reload(self, removed: list[str], source: DriverSource | None) -> None:
        """Put back modules that went before one of them turned out to be busy, as long as the roots are there."""
        if not removed or not self._ports.host.modules():
            return
        if source is None:
            self._ports.reporter.warn(f"{', '.join(removed)} stay unloaded: their root is not known")
            return
        try:
            with self._effect():
                self._ports.host.reload(source, tuple(reversed(removed)))
            self._ports.reporter.info(f"{', '.join(removed)} loaded again")
        except ModuleFailed as error:
            self._ports.reporter.warn(f"{error.what}; {', '.join(removed)} stay unloaded")

    def _unmount(self, step: UnmountDriverRoot) -> None:
        bound = self._ports.host.still_bound(step.mounts)
        for mount in step.mounts:
            with self._effect():
                self._ports.host.unmount(mount)
        names = {pod.uid: str(pod) for pod in self._obs.pods.pods}
        for pod_uid in bound:
            self._ports.reporter.warn(
                f"pod {names.get(pod_uid, pod_uid)} still sees the old driver root: restart it to give it the new one"
            )

    def _remove(self, step: RemoveArtifacts) -> None:
        for path in step.paths:
            with self._effect():
                self._ports.host.remove(path)

    def _load_modules(self, step: LoadModules) -> None:
        try:
            self._load_and_verify(step.source, step.also)
        except ModuleFailed as error:
            raise self._rolled_back(error, step) from error

    def _load_and_verify(self, source: DriverSource, also: tuple[str, ...]) -> None:
        """Load `source` and see it work. Raises ModuleFailed; a driver that loaded but does not work is left loaded."""
        host = self._ports.host
        with self._effect():
            host.load(source)
        self._load_again(source, also)
        if not host.await_device_nodes(DEVICE_NODES_S):
            raise ModuleFailed(
                f"driver {source.version} is loaded, but no device node appeared within {DEVICE_NODES_S:g} s",
                "Look at the kernel log (dmesg) for what the driver says of the device.",
            )
        result = host.probe(source.root)
        if result.health is Health.UNHEALTHY:
            raise ModuleFailed(
                f"driver {source.version} is loaded, but its probe says: {result.reason}",
                "Look at the kernel log (dmesg) and run the vendor's tool by hand.",
            )
        note = "" if result.health is Health.HEALTHY else f"; not probed: {result.reason}"
        self._ports.reporter.info(f"driver {source.version or '(no version)'} is loaded{note}")

    def _load_again(self, source: DriverSource, names: tuple[str, ...]) -> None:
        """Load modules above the roots that were there before; one that this driver lacks is said, not fatal."""
        for name in names:
            try:
                if name not in self._ports.host.modules():
                    with self._effect():
                        self._ports.host.reload(source, (name,))
            except OwnedElsewhere:
                raise
            except ManagerError as error:
                self._ports.reporter.warn(f"{name} was loaded before and is not now: {error.what}")

    def _rolled_back(self, error: ModuleFailed, step: LoadModules) -> ModuleFailed:
        """What to raise after trying to bring the old driver back."""
        previous = step.previous
        if previous is None:
            self._settler.driver_is_unusable()
            return ModuleFailed(f"{error.what}; there is no old driver to go back to", error.remedy)
        self._ports.reporter.warn(f"{error.what}; going back to {previous.version} from {previous.root}")
        try:
            # Told to end or not: between two drivers there is none, and the way back is short.
            with self._ports.clock.shielded():
                self._unload_end = self._ports.clock.monotonic() + ROLLBACK_UNLOAD_S
                self._unload_all(step.source)
                self._load_and_verify(previous, step.also)
        except OwnedElsewhere:
            raise
        except ManagerError as second:
            self._settler.driver_is_unusable()
            return ModuleFailed(f"{error.what}; going back failed too: {second.what}", second.remedy)
        if step.previous_digest:
            paths = self._profile.paths
            try:
                self._record_digest(RecordDigest(paths.state_file, step.previous_digest, paths.load_record, previous))
            except ManagerError as second:
                self._ports.reporter.warn(f"the old digest is not recorded again: {second.what}")
        return ModuleFailed(f"{error.what}; the old driver {previous.version} is loaded again", error.remedy)

    def _record_digest(self, step: RecordDigest) -> None:
        host, boot_id = self._ports.host, self._obs.host.boot_id if self._obs.host else ""
        record = {"schema": 1, "bootId": boot_id, "root": step.source.root, "version": step.source.version}
        with self._effect():
            host.write_text(step.record_path, json.dumps(record, sort_keys=True) + "\n")
            host.write_text(step.path, step.digest + "\n")

    def _give_back(self, step: GiveBack) -> None:
        self._settler.give_back(self._settler.held or step.journal)

    def _stand_down(self, step: StandDown) -> None:
        if not step.already_labelled:
            self._ports.cluster.patch_node(NodeChange(labels={step.key: step.value}), None)
        with contextlib.suppress(Terminated):  # this is what we wait for
            self._ports.clock.sleep(self._bounded(step.timeout_s))
        raise StandingDown(
            step.why, "Remove the host's driver if a container shall install one; nothing else is needed."
        )
