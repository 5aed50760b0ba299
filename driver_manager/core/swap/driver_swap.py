"""Swaps the driver in the kernel: the device is let go, the old modules are unloaded, the new ones loaded and verified.

Owns how each of these steps is done, and the way back to the old driver. Depends on ports only.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import assert_never

from driver_manager.core.pods.saying import said_meanwhile
from driver_manager.core.swap.client_gap import ClientGap
from driver_manager.core.swap.context import RunContext
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import (
    DriverBusy,
    ManagerError,
    ModuleBusy,
    ModuleFailed,
    ModuleStuck,
    OwnedElsewhere,
)
from driver_manager.domain.failure import process_blocker
from driver_manager.domain.host import UNREAD, DriverSource, Module
from driver_manager.domain.listing import several
from driver_manager.domain.modules import unload_order, users, users_of
from driver_manager.domain.pods.operands import named
from driver_manager.domain.probe_result import Health
from driver_manager.domain.profile import Strategy
from driver_manager.domain.swap.steps.modules import (
    AnyModuleStep,
    LoadModules,
    RecordDigest,
    RemoveConflicting,
    SetFirmwarePath,
    StopServices,
    UnloadModules,
    WaitForDevice,
)
from driver_manager.domain.window import Part

DEVICE_POLL_S = 0.2
"""The kernel has no event for a falling module reference count, so it is looked at."""

HOLDERS_LOOK_S = 5.0
"""Between two looks at all processes while the number of users stays the same."""

WORK_POLL_S = 2.0
"""Between two samples of a probe that tells whether devices are at work."""

DEVICE_NODES_S = 15.0
ROLLBACK_UNLOAD_S = 10.0

UNLOAD_S = 90.0
LOAD_S = 600.0
"""Of a whole tree, whose every module may take its time."""

PROBE_MORE_S = 30.0
"""What a probe's end may take beyond its own timeout."""

HOLDERS_S = 60.0
PARAMETERS_S = 10.0
EVIDENCE_S = 10.0
SERVICE_S = 90.0


class DriverSwap:
    """The driver of one host."""

    def __init__(self, context: RunContext, flip_back: Callable[[], None]) -> None:
        """`flip_back` makes the driver root lead to the old driver again."""
        self._context = context
        self._flip_back = flip_back
        self._free_by: Deadline | None = None
        self._gap: ClientGap | None = None
        self._in_use = "the device"
        self._has_loaded = False

    def do(self, step: AnyModuleStep) -> None:
        """Do `step`. Raises DriverBusy, ModuleFailed, ConfigError, OwnedElsewhere."""
        match step:
            case StopServices():
                self._stop_services(step)
            case WaitForDevice():
                self._wait_for_device(step)
            case RemoveConflicting():
                self._remove_conflicting(step)
            case SetFirmwarePath():
                with self._context.effect():
                    self._context.ports.host.set_firmware_path(step.path)
            case UnloadModules():
                self._gap = ClientGap(self._context, step.clients) if step.clients else None
                self._unload_all(self._context.situation.host.previous_source)
                self._gap = None
            case LoadModules():
                self._load_modules(step)
            case RecordDigest():
                self._record_digest(step)
            case _:
                assert_never(step)

    def _stop_services(self, step: StopServices) -> None:
        for name in step.names:
            with self._context.effect():
                self._context.ports.host.stop_service(name, self._context.soon(SERVICE_S))

    def _remove_conflicting(self, step: RemoveConflicting) -> None:
        for name in step.names:
            try:
                with self._context.effect():
                    self._context.ports.host.remove_conflicting(name, self._context.soon(UNLOAD_S))
            except ModuleBusy as error:
                raise DriverBusy(
                    error.what, f"Stop what uses {name}; or blacklist it on the host and reboot."
                ) from error
            self._context.ports.reporter.info(f"conflicting module {name} is unloaded")

    def _wait_for_device(self, step: WaitForDevice) -> None:
        ports, free_by = self._context.ports, self._context.deadline.within(step.timeout_s)
        self._free_by = free_by
        with said_meanwhile(ports.clock, ports.reporter, free_by, lambda: self._in_use):
            self._until_free(free_by, frozenset(step.apart))

    def _until_free(self, free_by: Deadline, apart: frozenset[str]) -> None:
        self._until_unused(free_by, apart)
        # What those pods do that stay until the unload is work as well.
        while at_work := () if apart else self._at_work():
            if free_by.is_over:
                raise self._busy(f"the devices are still at work after {free_by.allowed_s:g} s: {several(at_work)}")
            self._in_use = f"devices at work: {several(at_work)}"
            self._context.ports.clock.sleep(WORK_POLL_S)
            self._until_unused(free_by, apart)

    def _at_work(self) -> tuple[str, ...]:
        """What is at work on the devices though no process has them open, where the profile's probe tells."""
        situation = self._context.situation
        probe = situation.profile.probe
        if probe is None or not probe.tells_idle:
            return ()
        loaded_from = situation.host.previous_source
        root = loaded_from.root if loaded_from is not None else situation.profile.paths.driver_root
        return self._context.ports.host.probe(root, self._context.soon(PROBE_MORE_S + probe.timeout_s)).busy

    def _until_unused(self, free_by: Deadline, apart: frozenset[str]) -> None:
        ports, said = self._context.ports, ""
        look: Deadline | None = None
        while busy := [module for module in ports.host.modules().values() if users(module)]:
            text = ", ".join(f"{module.name} ({users(module)} user(s))" for module in busy)
            if apart and (text != said or look is None or look.is_over):
                if self._only_have_it(apart):
                    return
                look = self._context.soon(HOLDERS_LOOK_S)
            if free_by.is_over:
                raise self._busy(f"the device is still in use after {free_by.allowed_s:g} s: {text}")
            if text != said:
                self._in_use = f"device in use: {text}{self._named_holders()[0]}"
                ports.reporter.info(self._in_use)
                said = text
            ports.clock.sleep(DEVICE_POLL_S)

    def _only_have_it(self, uids: frozenset[str]) -> bool:
        """Whether every process that has the device is known, and is of one of these pods."""
        host = self._context.ports.host
        try:
            found = host.holders(self._context.soon(HOLDERS_S), users_of(host.modules()))
        except ManagerError:
            return False
        named_ones = named(found, self._context.situation.obs.pods.pods)
        return bool(named_ones) and all(one.how != UNREAD and one.pod_uid in uids for one in named_ones)

    def _named_holders(self) -> tuple[str, tuple[str, ...]]:
        """Who uses the device, for a message, and as blockers; "" and none where nobody can be seen."""
        host = self._context.ports.host
        count = users_of(host.modules())
        try:
            found = named(host.holders(self._context.soon(HOLDERS_S), count), self._context.situation.obs.pods.pods)
        except ManagerError as error:
            return f" (holders unknown: {error.what})", ()
        texts = [str(holder) for holder in found]
        sure = [holder for holder in found if holder.how != UNREAD]
        if sure and len(sure) < count:
            texts.append(f"{count - len(sure)} more could not be found")
        blockers = tuple(process_blocker(holder.pid, holder.process) for holder in sure)
        return ": " + "; ".join(texts) if texts else "", blockers

    def _busy(self, what: str) -> DriverBusy:
        named, blockers = self._named_holders()
        error = DriverBusy(
            what + named,
            "Stop what uses the device (`driver-manager holders` lists it; host services: --stop-host-services), "
            "then run again.",
        )
        error.blockers = blockers
        return error

    def _unload_all(self, source: DriverSource | None) -> None:
        """Unload the closure, looked up again before every module: a holder may have come meanwhile.

        `source` is where what is loaded now came from, to put back what went before a busy one.
        """
        host, removed = self._context.ports.host, list[str]()
        try:
            while loaded := host.modules():
                self._context.ports.clock.check()
                if not removed:
                    self._keep_evidence(loaded)
                    if self._gap is not None:
                        self._gap.open()
                name = unload_order(loaded, self._context.situation.profile.modules.order)[0]
                if name in removed:
                    raise ModuleFailed(f"module {name} came back after it was unloaded", "Find what loads it again.")
                self._unload_one(loaded[name])
                removed.append(name)
                self._context.ports.reporter.info(f"module {name} is unloaded")
        except ModuleStuck:  # a load would wait for it
            raise
        except ManagerError:
            self._reload(removed, source)
            raise

    def _keep_evidence(self, loaded: Mapping[str, Module]) -> None:
        """What nobody can see once the driver is gone, on the host's disk. Where it cannot be, the unload goes on."""
        ports, digest = self._context.ports, self._context.situation.obs.digest
        modules = (f"{name} {one.version or '(no version)'}, {users(one)} user(s)" for name, one in loaded.items())
        lines = ("before the unload of", *modules, f"wanted: {digest or 'unknown'}")
        try:
            path = ports.host.save_evidence("unload", lines, self._context.soon(EVIDENCE_S))
        except ManagerError as error:
            ports.reporter.warn(f"no evidence is kept: {error.what}")
            return
        if path:
            self._context.settler.kept_evidence(path)

    def _unload_one(self, module: Module) -> None:
        while True:
            try:
                with self._context.effect():
                    return self._context.ports.host.unload(module.name, self._context.soon(UNLOAD_S))
            except ModuleBusy as error:
                if not self._may_get_free():
                    raise self._busy(error.what) from error
                self._context.ports.clock.sleep(DEVICE_POLL_S)

    def _may_get_free(self) -> bool:
        """Whether a module that is busy may be free in a moment."""
        if self._gap is not None:
            return self._gap.goes_on()
        return self._free_by is not None and not self._free_by.is_over

    def _reload(self, removed: list[str], source: DriverSource | None) -> None:
        """Put back modules that went before one of them turned out to be busy, as long as the roots are there."""
        if not removed or not self._context.ports.host.modules():
            return
        if source is None:
            self._context.ports.reporter.warn(f"{', '.join(removed)} stay unloaded: their root is not known")
            return
        try:
            with self._context.effect():
                self._context.ports.host.reload(source, tuple(reversed(removed)), self._context.soon(LOAD_S))
            self._context.ports.reporter.info(f"{', '.join(removed)} loaded again")
        except ModuleFailed as error:
            self._context.ports.reporter.warn(f"{error.what}; {', '.join(removed)} stay unloaded")

    def _load_modules(self, step: LoadModules) -> None:
        never_unloaded = self._context.situation.profile.strategy is Strategy.REBOOT
        try:
            # Loaded in part it would have to wait for a reboot: whoever is killed here leaves the journal.
            with self._context.ports.clock.shielded() if never_unloaded else contextlib.nullcontext():
                self._load_and_verify(step.source, step.also)
            self._context.settler.driver_has_come()
        except ModuleStuck:
            raise
        except ModuleFailed as error:
            raise self.rolled_back(error, step) from error

    def _load_and_verify(self, source: DriverSource, also: tuple[str, ...]) -> None:
        """Load `source` and see it work. Raises ModuleFailed; a driver that loaded but does not work is left loaded."""
        host = self._context.ports.host
        with self._context.effect():
            host.load(source, self._context.soon(LOAD_S))
        self._load_again(source, also)
        self._context.ports.tally.window.turns_to(Part.PROBE, self._context.ports.clock.monotonic())
        if not host.await_device_nodes(self._context.soon(DEVICE_NODES_S)):
            raise ModuleFailed(
                f"driver {source.version} is loaded, but no device node appeared within {DEVICE_NODES_S:g} s",
                "Look at the kernel log (dmesg) for what the driver reports about the device.",
            )
        probe = self._context.situation.profile.probe
        result = host.probe(source.root, self._context.soon(PROBE_MORE_S + (probe.timeout_s if probe else 0.0)))
        if result.health is Health.UNHEALTHY:
            raise ModuleFailed(
                f"driver {source.version} is loaded, but its probe reports: {result.reason}",
                "Look at the kernel log (dmesg) and run the vendor's tool by hand.",
            )
        note = "" if result.health is Health.HEALTHY else f"; not probed: {result.reason}"
        self._context.ports.reporter.info(f"driver {source.version or '(no version)'} is loaded{note}")
        self._has_loaded = True

    def afterwards(self) -> None:
        """What can wait until the node is given back: which parameters of the old driver the new one does not have.

        What was set by hand is not set again.
        """
        if not self._has_loaded:
            return
        before = self._context.situation.host.parameters
        now = self._context.ports.host.parameters(self._context.soon(PARAMETERS_S)) if before else {}
        lost = [
            f"{name} was {value} and is {now[name]}" for name, value in before.items() if now.get(name, value) != value
        ]
        lost += [
            f"{name} was {value} and is no longer set" for name, value in before.items() if now and name not in now
        ]
        if lost:
            self._context.ports.reporter.warn(
                f"module parameters differ from those of the driver before: {several(lost, '; ')}. To keep one, set it "
                "in modprobe.d on the host."
            )

    def _load_again(self, source: DriverSource, names: tuple[str, ...]) -> None:
        """Load modules above the roots that were there before; one that this driver lacks is said, not fatal."""
        for name in names:
            try:
                if name not in self._context.ports.host.modules():
                    with self._context.effect():
                        self._context.ports.host.reload(source, (name,), self._context.soon(LOAD_S))
            except OwnedElsewhere:
                raise
            except ManagerError as error:
                self._context.ports.reporter.warn(f"{name} was loaded before and is not now: {error.what}")

    def rolled_back(self, error: ModuleFailed, step: LoadModules) -> ModuleFailed:
        """What to raise after trying to bring the old driver back."""
        previous = step.previous
        if previous is None:
            self._context.settler.driver_is_unusable()
            return ModuleFailed(f"{error.what}; there is no old driver to go back to", error.remedy)
        self._context.ports.tally.window.turns_to(Part.LOAD, self._context.ports.clock.monotonic())
        self._context.ports.reporter.warn(f"{error.what}; going back to {previous.version} from {previous.root}")
        try:
            # Told to end or not: between two drivers there is none, and the way back is short.
            with self._context.ports.clock.shielded():
                self._free_by = self._context.soon(ROLLBACK_UNLOAD_S)
                self._unload_all(step.source)
                self._flip_back()
                self._load_and_verify(previous, step.also)
                self.afterwards()
        except OwnedElsewhere:
            raise
        except ManagerError as second:
            self._context.settler.driver_is_unusable()
            return ModuleFailed(f"{error.what}; going back failed too: {second.what}", second.remedy)
        if step.previous_digest:
            paths = self._context.situation.profile.paths
            try:
                self._record_digest(RecordDigest(paths.state_file, step.previous_digest, paths.load_record, previous))
            except ManagerError as second:
                self._context.ports.reporter.warn(f"the old digest is not recorded again: {second.what}")
        return ModuleFailed(f"{error.what}; the old driver {previous.version} is loaded again", error.remedy)

    def _record_digest(self, step: RecordDigest) -> None:
        host, boot_id = self._context.ports.host, self._context.situation.host.boot_id
        record = {"schema": 1, "bootId": boot_id, "root": step.source.root, "version": step.source.version}
        with self._context.effect():
            host.write_text(step.record_path, json.dumps(record, sort_keys=True) + "\n")
            host.write_text(step.path, step.digest + "\n")
        self._context.settler.driver_is_proved()
