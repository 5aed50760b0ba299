"""Steps on the driver: release the device, unload modules, load modules, verify, flip slots, bind to vfio-pci.

Includes the way back to the old driver.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from driver_manager.core.pods import Evictor, progress_logged
from driver_manager.core.swap.node import DriverNow, RunContext
from driver_manager.domain import events
from driver_manager.domain.baseline import Baseline, of_new_driver
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import DriverBusy, ManagerError, ModuleBusy, ModuleFailed, ModuleStuck, OwnedElsewhere
from driver_manager.domain.host import UNREAD, DriverSource, Health, Module, ProbeResult, process_blocker
from driver_manager.domain.node import Pod
from driver_manager.domain.outage import OutagePart
from driver_manager.domain.pci import Binding, PciFunction, encode_bindings, is_vfio
from driver_manager.domain.pods.workloads import ClientRules, PodAction, Workload, clients
from driver_manager.domain.profile import Strategy, unload_order, users, users_of
from driver_manager.domain.swap import steps
from driver_manager.domain.text import several

# Unload of a driver that clients hold: they are evicted, and the unload comes before their successors open the device.

ATTEMPTS = 3
LOOK_S = 1.0
"""Between two looks at who is there; the unload is tried more often."""


class ClientEviction:
    def __init__(self, context: RunContext, uids: Iterable[str]) -> None:
        self._context = context
        self._ports = context.ports
        now = context.situation
        self._rules = ClientRules.of(now.profile, now.policy.eviction.clients, now.obs.enclosing_uid)
        self._uids = frozenset(uids)
        self._asked: set[str] = set()
        self._attempts = 0
        self._gone_by = context.deadline
        self._next_look = context.soon(0.0)

    def open(self) -> None:
        """Evict the clients. Raises EvictionRefused, ApiRefused, OwnedElsewhere: then the driver is untouched."""
        listed = self._ports.cluster.pods().pods
        self._evict([pod for pod in clients(listed, self._rules) if pod.uid in self._uids])

    def goes_on(self) -> bool:
        """Whether the device may be free in a moment; a successor that was faster is evicted, too.

        Raises DriverBusy where one was once too often, and as `open`.
        """
        if not self._next_look.is_over:
            return True
        self._next_look = self._context.soon(LOOK_S)
        listed = self._ports.cluster.pods().pods
        if not any(pod.uid in self._asked and not pod.has_left for pod in listed):
            faster = self._holding(listed)
            if faster and self._attempts >= ATTEMPTS:
                raise DriverBusy(
                    f"client(s) {several(map(str, faster))} opened the device again before the driver could be "
                    f"unloaded, {ATTEMPTS} times",
                    "Give its controller a nodeSelector on a deploy label of the node, so that the pause moves it.",
                )
            if faster:
                self._evict(faster)
        return not self._gone_by.is_over

    def _holding(self, listed: tuple[Pod, ...]) -> list[Pod]:
        found = self._context.holders(listed, users_of(self._ports.host.modules()))
        uids = {holder.pod_uid for holder in found if holder.how != UNREAD}
        return [pod for pod in clients(listed, self._rules) if pod.uid in uids]

    def _evict(self, pods: list[Pod]) -> None:
        ports, context = self._ports, self._context
        self._attempts += 1
        leaving = [Workload(pod, "client of the driver", PodAction.EVICT, "it holds the device") for pod in pods]
        evictor = Evictor(ports.cluster, ports.clock, ports.reporter, context.check_owner)
        gone_by = evictor.ask(leaving, context.deadline.within(context.situation.policy.eviction.timeout_s))
        self._asked |= {pod.uid for pod in pods}
        self._gone_by = context.deadline.until(gone_by)
        for pod in pods:
            what = f"client {pod} ({pod.owner_kind}) was restarted: it held the driver that is being replaced"
            key = events.client_key(pod.uid)
            ports.cluster.post_event(events.DRIVER_CLIENT_RESTARTED, what, warning=False, key=key)


# Gives devices to virtual machines and takes them back: the steps that change drivers on the PCI bus.

WRITE_S = 30.0
"""Seconds for one write to a function: a driver may take long to release or reset a device."""

VIRTUAL_S = 120.0
"""Of hundreds of virtual functions that go one by one."""

LOAD_VFIO_S = 60.0

NO_BIND = "Look at the kernel log (dmesg) for why vfio did not take the device, then run again."


class DeviceSteps:
    """The vendor's functions on one host."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._devices = context.ports.devices

    def do(self, step: steps.DeviceStep) -> None:
        """Do `step`. Raises ModuleFailed, ModuleStuck, ConfigError, OwnedElsewhere."""
        devices, change = self._devices, self._context.change
        match step:
            case steps.KeepBindings():
                self._write_record(step.path, step.bindings)
            case steps.OverrideDrivers():
                for one in step.functions:
                    change(devices.override, one.address, one.vfio_driver, within_s=WRITE_S)
            case steps.RemoveVirtualFunctions():
                for one in step.functions:
                    change(devices.set_virtual, one.address, 0, within_s=VIRTUAL_S)
            case steps.LoadVfio():
                for module in step.modules:
                    change(devices.load, module, within_s=LOAD_VFIO_S)
            case steps.BindToVfio():
                self._bind(step)
            case steps.ReturnDevices():
                self._return(step)
            case steps.MakeVirtualFunctions():
                self._make_virtual(step)
            case _:
                assert_never(step)

    def _bind(self, step: steps.BindToVfio) -> None:
        for one in step.functions:
            if one.is_auxiliary and one.driver:
                self._context.change(self._devices.unbind, one.address, within_s=WRITE_S)
            self._context.change(self._devices.bind, one.address, one.vfio_driver, within_s=WRITE_S)
        now = {one.address: one for one in self._devices.bus().functions}
        wrong = [what for one in step.functions if (what := _why_not_given(one, now.get(one.address)))]
        if wrong:
            raise ModuleFailed("; ".join(wrong), NO_BIND)
        self._context.lock.driver = DriverNow.ON_VFIO

    def _return(self, step: steps.ReturnDevices) -> None:
        known, devices, change = {one.address: one for one in step.originals}, self._devices, self._context.change
        for one in step.functions:
            before = known.get(one.address, Binding(one.address))
            # As long as it is kept for vfio the next run knows it for one that was to come back.
            if one.is_on_vfio:
                change(devices.unbind, one.address, within_s=WRITE_S)
            if one.override:
                override = "" if is_vfio(before.override) else before.override
                change(devices.override, one.address, override, within_s=WRITE_S)
            if step.probes or one.is_auxiliary:
                change(devices.probe, one.address, within_s=WRITE_S)
        for was in step.left:
            had = f"{was.address} had {was.virtual_count} virtual function(s)"
            self._context.ports.reporter.info(f"{had}: the next run that finds its driver loaded creates them again")
        self._write_record(step.path, step.left)

    def _make_virtual(self, step: steps.MakeVirtualFunctions) -> None:
        """Warn of each that cannot be created, and leave it to the next run: the driver serves without it."""
        left = []
        for was in step.bindings:
            try:
                self._context.change(self._devices.set_virtual, was.address, was.virtual_count, within_s=VIRTUAL_S)
            except ModuleStuck:
                raise
            except ModuleFailed as error:
                left.append(was)
                self._context.ports.reporter.warn(f"{error.what}. {error.remedy}")
        self._write_record(step.path, tuple(left))

    def _write_record(self, path: str, left: tuple[Binding, ...]) -> None:
        """Let the record of original bindings have what is still to be undone; without any it goes."""
        boot_id, host = self._context.situation.host.boot_id, self._context.ports.host
        with self._context.effect():
            if left:
                host.write_text(path, encode_bindings(boot_id, left))
            else:
                host.remove(path)


def _why_not_given(wanted: PciFunction, now: PciFunction | None) -> str:
    """Why virtual machines cannot have the function, "" where they can."""
    if now is None:
        return f"{wanted.address} is not on the PCI bus any more"
    if now.driver != wanted.vfio_driver:
        return f"{wanted.address} is not bound to {wanted.vfio_driver}: its driver is {now.driver or 'none'}"
    return "" if now.group else f"{wanted.address} is bound to {now.driver}, but has no IOMMU group"


# Clears the host of what an earlier driver left mounted or written, brings a staged driver to the driver root, and goes
# back to the one before.

TOOL_S = 150.0
"""Of one unmount, which may take two attempts, and of the look for who still sees a mount."""


class DriverRoot:
    """Mounts and files of the old driver on one host, and the slots of staged ones."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._flipped: steps.FlipRoot | None = None
        self.old_source = context.situation.host.previous_source
        """Where the driver that is loaded now can be loaded from."""

    def do(self, step: steps.RootStep) -> None:
        """Do `step`. Raises PreflightFailed, ModuleFailed, OwnedElsewhere."""
        match step:
            case steps.UnmountDriverRoot():
                self._unmount(step)
            case steps.RemoveArtifacts():
                for path in step.paths:
                    with self._context.effect():
                        self._context.ports.host.remove(path)
            case steps.KeepRoot():
                self._keep(step)
            case steps.FlipRoot():
                if not step.is_done:
                    self._flip(step.root)
                self._flipped = step
            case _:
                assert_never(step)

    def _unmount(self, step: steps.UnmountDriverRoot) -> None:
        obs, host = self._context.situation.obs, self._context.ports.host
        file_systems = host.file_systems(step.mounts)
        before = host.pods_that_see(file_systems, self._context.soon(TOOL_S))
        for mount in step.mounts:
            self._context.change(host.unmount, mount, within_s=TOOL_S)
        # Pods whose mounts follow the host's do not see it any more. The kernel uses a file system's number again, so a
        # pod that did not see it before has another one. What our own pod sees goes with this container.
        after = host.pods_that_see(file_systems, self._context.soon(TOOL_S)) if before else ()
        names = {pod.uid: str(pod) for pod in obs.pods.pods}
        for pod_uid in (uid for uid in before if uid in after and uid != obs.me.pod_uid):
            what = f"pod {names.get(pod_uid, pod_uid)} still sees the old driver root"
            self._context.ports.reporter.warn(f"{what}: restart it so that it sees the new one")

    def _keep(self, step: steps.KeepRoot) -> None:
        slots = self._context.ports.slots
        if step.brings_back and self.old_source is not None:
            self._flip(step.root)
            self.old_source = self.old_source.moved_to(step.root)
        with self._context.effect():
            slots.keep_root(step.root, step.digest, step.version)
        if step.takes:
            with self._context.effect():
                slots.take_next(step.root, step.takes)

    def _flip(self, root: str) -> None:
        with self._context.effect():
            self._context.ports.slots.flip(root)

    def go_back(self) -> None:
        """Bring back what was at the root before this run, or an earlier one. Raises ModuleFailed, OwnedElsewhere."""
        step = self._flipped
        if step is None or not step.has_way_back:
            return
        self._flip(step.root)
        self._context.ports.reporter.info(f"the previous driver is at {step.root} again")


DEVICE_POLL_S = 0.2
"""The kernel has no event for a falling module reference count, so it is looked at."""

HOLDERS_LOOK_S = 5.0
"""Between two looks at all processes while the number of users stays the same."""

WORK_POLL_S = 2.0
"""Seconds between two samples of a probe that shows whether devices are at work."""

DEVICE_NODES_S = 15.0
ROLLBACK_UNLOAD_S = 10.0

UNLOAD_S = 90.0
LOAD_S = 600.0
"""Seconds for a whole tree, in which each module may take long."""

SLOW_POLL_S = 2.0
"""Seconds between two samples of a device that is not ready yet."""

PARAMETERS_S = 10.0
EVIDENCE_S = 10.0
SERVICE_S = 90.0
SERVICE_SETTLE_S = 5.0
"""Seconds after which a started service is looked at: nvidia-fabricmanager of another version ends after two."""
SERVICE_START_S = 30.0
"""Seconds in which it may come up, or systemd start it again."""


class DriverSwap:
    def __init__(self, context: RunContext, root: DriverRoot, keep_paused: Callable[[], bool]) -> None:
        """`root` brings the old driver back to the root if the new one does not work.

        `keep_paused` is called before each module of the old driver is unloaded. It pauses operands again that another
        writer has switched on, and returns True after their pods have left. Raises PodsRemain.
        """
        self._keep_paused = keep_paused
        self._context = context
        self._root = root
        self._free_by: Deadline | None = None
        self._gap: ClientEviction | None = None
        self._in_use = "the device"
        self._has_loaded = False
        self._is_reload = False

    def do(self, step: steps.ModuleStep) -> None:
        """Do `step`. Raises DriverBusy, ModuleFailed, ConfigError, OwnedElsewhere."""
        match step:
            case steps.StopServices():
                for name in step.names:
                    self._context.change(self._context.ports.host.stop_service, name, within_s=SERVICE_S)
            case steps.WaitForDevice():
                self._wait_for_device(step)
            case steps.RemoveConflicting():
                self._remove_conflicting(step)
            case steps.SetFirmwarePath():
                with self._context.effect():
                    self._context.ports.host.set_firmware_path(step.path)
            case steps.UnloadModules():
                self._gap = ClientEviction(self._context, step.clients) if step.clients else None
                self._unload_all(self._root.old_source, self._look_at_labels)
                self._gap = None
            case steps.LoadModules():
                self._load_modules(step)
            case steps.RecordDigest():
                self._record_digest(step)
            case _:
                assert_never(step)

    def _remove_conflicting(self, step: steps.RemoveConflicting) -> None:
        for name in step.names:
            try:
                self._context.change(self._context.ports.host.remove_conflicting, name, within_s=UNLOAD_S)
            except ModuleBusy as error:
                remedy = f"Stop what uses {name}; or blacklist it on the host and reboot."
                raise DriverBusy(error.what, remedy) from error
            self._context.ports.reporter.info(f"conflicting module {name} is unloaded")

    def _wait_for_device(self, step: steps.WaitForDevice) -> None:
        ports = self._context.ports
        self._free_by = free_by = self._context.deadline.within(step.timeout_s)
        with progress_logged(ports.clock, ports.reporter, free_by, lambda: self._in_use):
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
        """What is at work on the devices though no process has them open, if the profile's probe shows that."""
        situation = self._context.situation
        probe = situation.profile.probe
        if probe is None or not probe.tells_idle:
            return ()
        loaded_from = self._root.old_source
        root = loaded_from.root if loaded_from is not None else situation.profile.paths.driver_root
        return self._context.ports.host.probe(root, self._context.soon(probe.timeout_s)).busy

    def _until_unused(self, free_by: Deadline, apart: frozenset[str]) -> None:
        ports, logged = self._context.ports, ""
        look: Deadline | None = None
        while busy := [module for module in ports.host.modules().values() if users(module)]:
            text = ", ".join(f"{module.name} ({users(module)} user(s))" for module in busy)
            if apart and (text != logged or look is None or look.is_over):
                if self._only_have_it(apart):
                    return
                look = self._context.soon(HOLDERS_LOOK_S)
            if free_by.is_over:
                raise self._busy(f"the device is still in use after {free_by.allowed_s:g} s: {text}")
            if text != logged:
                self._in_use = f"device in use: {text}{self._named_holders()[0]}"
                ports.reporter.info(self._in_use)
                logged = text
            ports.clock.sleep(DEVICE_POLL_S)

    def _only_have_it(self, uids: frozenset[str]) -> bool:
        """Whether every process that has the device is known, and is of one of these pods."""
        try:
            count = users_of(self._context.ports.host.modules())
            found = self._context.holders(self._context.situation.obs.pods.pods, count)
        except ManagerError:
            return False
        return bool(found) and all(one.how != UNREAD and one.pod_uid in uids for one in found)

    def _named_holders(self) -> tuple[str, tuple[str, ...]]:
        """The processes that use the device, as text and as blockers; "" and () if none can be seen."""
        count = users_of(self._context.ports.host.modules())
        try:
            found = self._context.holders(self._context.situation.obs.pods.pods, count)
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
        option = "" if self._context.situation.policy.stop_host_services else "; host services: STOP_HOST_SERVICES=true"
        return DriverBusy(
            what + named,
            f"Stop what uses the device (`driver-manager holders` lists it{option}), then run again.",
            blockers,
        )

    def _look_at_labels(self) -> None:
        """Let operands leave again that another writer has switched on; they may have opened the device."""
        if self._keep_paused() and self._free_by is not None:
            self._free_by = self._context.deadline.within(self._context.situation.policy.device_free_timeout_s)

    def _unload_all(self, source: DriverSource | None, before_each: Callable[[], None] = lambda: None) -> None:
        """Unload the closure, looked up again before every module: a holder may have come meanwhile.

        `source` is where what is loaded now came from, to put back what went before a busy one.
        """
        host, removed = self._context.ports.host, list[str]()
        try:
            while loaded := host.modules():
                before_each()
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
        """Save facts that are lost with the driver on the host's disk. If that fails, the unload continues."""
        ports, digest = self._context.ports, self._context.situation.obs.digest
        modules = (f"{name} {one.version or '(no version)'}, {users(one)} user(s)" for name, one in loaded.items())
        lines = ("before the unload of", *modules, f"wanted: {digest or 'unknown'}")
        try:
            path = ports.host.save_evidence("unload", lines, self._context.soon(EVIDENCE_S))
        except ManagerError as error:
            ports.reporter.warn(f"no evidence is kept: {error.what}")
            return
        if path:
            self._context.lock.evidence.append(path)

    def _unload_one(self, module: Module) -> None:
        while True:
            try:
                return self._context.change(self._context.ports.host.unload, module.name, within_s=UNLOAD_S)
            except ModuleBusy as error:
                if not self._may_get_free():
                    raise self._busy(error.what) from error
                self._context.ports.clock.sleep(DEVICE_POLL_S)

    def _may_get_free(self) -> bool:
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
            self._context.change(self._context.ports.host.reload, source, tuple(reversed(removed)), within_s=LOAD_S)
            self._context.ports.reporter.info(f"{', '.join(removed)} loaded again")
        except ModuleFailed as error:
            self._context.ports.reporter.warn(f"{error.what}; {', '.join(removed)} stay unloaded")

    def _load_modules(self, step: steps.LoadModules) -> None:
        situation = self._context.situation
        never_unloaded = situation.profile.strategy is Strategy.REBOOT
        before = self._before()
        # A run that resumes may want a driver other than the one that it continues with.
        is_same = bool(step.previous_digest) and step.previous_digest == situation.obs.digest
        self._is_reload = is_same and before is not None and before.is_reload
        try:
            # A part of it could not be unloaded without a reboot. A run that is killed here leaves the journal.
            with self._context.ports.clock.shielded() if never_unloaded else contextlib.nullcontext():
                self._load_and_verify(step.source, step.also)
                self._start_services()
            self._context.lock.driver = DriverNow.NEW
        except ModuleStuck:
            raise
        except ModuleFailed as error:
            raise self.rolled_back(error, step) from error

    def _load_and_verify(self, source: DriverSource, also: tuple[str, ...]) -> None:
        """Load `source` and see it work. Raises ModuleFailed; a driver that loaded but does not work is left loaded.

        One that was reloaded and does not work raises nothing: the way back leads to the same driver.
        """
        self._context.change(self._context.ports.host.load, source, within_s=LOAD_S)
        self._load_again(source, also)
        self._context.turns_to(OutagePart.PROBE)
        try:
            note = self._verified(source)
        except ModuleFailed as error:
            if not self._is_reload:
                raise
            self._remark((f"{error.what}; the reload did not recover it",))
            note = ""
        self._context.ports.reporter.info(f"driver {source.version or '(no version)'} is loaded{note}")
        self._has_loaded = True

    def _before(self) -> Baseline | None:
        situation = self._context.situation
        return situation.obs.baseline or (self._context.ports.host.baseline() if situation.obs.is_resumed else None)

    def _verified(self, source: DriverSource) -> str:
        """Why it is unknown whether the driver from `source` works, as the end of a sentence, "" if it does.

        Raises ModuleFailed if it does not.
        """
        host = self._context.ports.host
        if not host.await_device_nodes(self._context.soon(DEVICE_NODES_S)):
            raise ModuleFailed(
                f"driver {source.version} is loaded, but no device node appeared within {DEVICE_NODES_S:g} s",
                "Look at the kernel log (dmesg) for what the driver reports about the device.",
            )
        result = self._settled(source.root)
        if result.health is Health.UNHEALTHY:
            raise ModuleFailed(
                f"driver {source.version} is loaded, but its probe reports: {result.reason}",
                "Look at the kernel log (dmesg) and run the vendor's tool by hand.",
            )
        self._remark(result.remarks)
        return "" if result.health is Health.HEALTHY else f"; not probed: {result.reason}"

    def _remark(self, remarks: tuple[str, ...]) -> None:
        for remark in remarks:
            self._context.ports.reporter.warn(remark)
        self._context.lock.state.remarks(remarks)

    def _settled(self, root: str) -> ProbeResult:
        """The probe of the driver that was just loaded, compared with the baseline, once its devices are ready.

        A device that is still not ready after the profile's `settle_s` is unhealthy.
        """
        situation, host, clock = self._context.situation, self._context.ports.host, self._context.ports.clock
        before = self._before()
        settled_by = self._context.soon(situation.profile.probe.settle_s if situation.profile.probe else 0.0)
        while True:
            result = of_new_driver(host.probe(root, settled_by), before)
            if not result.is_slow or settled_by.is_over:
                return result
            self._context.ports.reporter.info(f"not ready yet: {result.reason}; at most {settled_by.left():.0f} s more")
            clock.sleep(settled_by.bound(SLOW_POLL_S))

    def _start_services(self) -> None:
        """Start the host services again and look at them after a moment. Raises ModuleFailed for one that has ended."""
        context = self._context
        with context.effect():
            names = context.lock.start_services()
        if not names:
            return
        clock, host, started_by = context.ports.clock, context.ports.host, context.soon(SERVICE_START_S)
        clock.sleep(SERVICE_SETTLE_S)
        while (ended := [name for name in names if not host.is_active(name)]) and not started_by.is_over:
            clock.sleep(SLOW_POLL_S)
        if ended:
            raise ModuleFailed(
                f"host service {several(ended)} was active before the swap and ended after its start",
                "Look at `journalctl -u NAME`: it may need the version that belongs to this driver.",
            )

    def afterwards(self) -> None:
        """After the release, warn of parameters that the new driver lacks or sets otherwise."""
        if not self._has_loaded:
            return
        before = self._context.situation.host.parameters
        now = self._context.ports.host.parameters(self._context.soon(PARAMETERS_S)) if before else {}
        pairs = before.items()
        lost = [f"{name} was {value} and is {now[name]}" for name, value in pairs if now.get(name, value) != value]
        lost += [f"{name} was {value} and is no longer set" for name, value in pairs if now and name not in now]
        if lost:
            what = f"module parameters differ from those of the driver before: {several(lost, '; ')}"
            self._context.ports.reporter.warn(f"{what}. To keep one, set it in modprobe.d on the host.")

    def _load_again(self, source: DriverSource, names: tuple[str, ...]) -> None:
        """Load modules above the roots that were there before; warn of one that this driver lacks."""
        for name in names:
            try:
                if name not in self._context.ports.host.modules():
                    self._context.change(self._context.ports.host.reload, source, (name,), within_s=LOAD_S)
            except OwnedElsewhere:
                raise
            except ManagerError as error:
                self._context.ports.reporter.warn(f"{name} was loaded before and is not now: {error.what}")

    def rolled_back(self, error: ModuleFailed, step: steps.LoadModules) -> ModuleFailed:
        """What to raise after trying to bring the old driver back."""
        previous = step.previous
        if previous is None:
            self._context.lock.driver = DriverNow.UNUSABLE
            return ModuleFailed(f"{error.what}; there is no old driver to go back to", error.remedy)
        self._context.turns_to(OutagePart.LOAD)
        self._context.ports.reporter.warn(f"{error.what}; going back to {previous.version} from {previous.root}")
        try:
            # SIGTERM waits: the node has no driver now, and the way back is short.
            with self._context.ports.clock.shielded():
                self._free_by = self._context.soon(ROLLBACK_UNLOAD_S)
                self._context.lock.stop_services()
                self._unload_all(step.source)
                self._root.go_back()
                self._load_and_verify(previous, step.also)
                self.afterwards()
        except OwnedElsewhere:
            raise
        except ManagerError as second:
            self._context.lock.driver = DriverNow.UNUSABLE
            return ModuleFailed(f"{error.what}; going back failed too: {second.what}", second.remedy)
        if step.previous_digest:
            paths = self._context.situation.profile.paths
            try:
                self._record_digest(
                    steps.RecordDigest(paths.state_file, step.previous_digest, paths.load_record, previous)
                )
            except ManagerError as second:
                self._context.ports.reporter.warn(f"the old digest is not recorded again: {second.what}")
        return ModuleFailed(f"{error.what}; the old driver {previous.version} is loaded again", error.remedy)

    def _record_digest(self, step: steps.RecordDigest) -> None:
        host, boot_id = self._context.ports.host, self._context.situation.host.boot_id
        record = {"schema": 1, "bootId": boot_id, "root": step.source.root, "version": step.source.version}
        with self._context.effect():
            host.write_text(step.record_path, json.dumps(record, sort_keys=True) + "\n")
            host.write_text(step.path, step.digest + "\n")
        self._context.lock.driver_is_recorded()
