"""The HostSystem port on a real host (or the sandbox's tree): modules, mounts, files, probe."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

from driver_manager.adapters.host import mounts, services
from driver_manager.adapters.host.evidence import EvidenceFolder, holders_within, with_surroundings
from driver_manager.adapters.host.facts import unwritable
from driver_manager.adapters.host.fence import Ownership
from driver_manager.adapters.host.holders import LOOK_S, Looks, bound_to, find_holders
from driver_manager.adapters.host.loads import load_text
from driver_manager.adapters.host.locks import WorkLock
from driver_manager.adapters.host.marker_file import remove_marker
from driver_manager.adapters.host.modules import firmware, kmod
from driver_manager.adapters.host.modules.options import READ_S, loaded_parameters
from driver_manager.adapters.host.modules.tree import ModuleTrees
from driver_manager.adapters.host.namespaces import is_of_a_kernel
from driver_manager.adapters.host.pci import pci_devices
from driver_manager.adapters.host.probe_command import probe_command
from driver_manager.adapters.host.roots import HostRoots, boot_id
from driver_manager.adapters.host.udev import DeviceEvents
from driver_manager.adapters.host.unmount import why_not_unmounted
from driver_manager.adapters.host.warming import warm
from driver_manager.adapters.process.run import TOOL_TIMEOUT_S, run
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ConfigError, ManagerError, ModuleFailed, ModuleStuck
from driver_manager.domain.health.probe_output import parse
from driver_manager.domain.health.record import recorded
from driver_manager.domain.host import DriverSource, Holder, Module
from driver_manager.domain.journal import Owner
from driver_manager.domain.markers import Marker
from driver_manager.domain.modules import unload_order, users
from driver_manager.domain.parameters import joined
from driver_manager.domain.probe_result import Health, ProbeResult
from driver_manager.domain.profile import Profile
from driver_manager.domain.safe_root import is_safe_root
from driver_manager.ports.base import Clock

WORK_LOCK_S = 5.0
EVIDENCE_HOLDERS_S = 5.0
WARM_S = 20.0
NODE_POLL_S = 0.25
"""Between two looks at /dev where no event comes: not every container gets the kernel's events."""


class LinuxHost:
    """See `driver_manager.ports.node.HostSystem`."""

    def __init__(self, roots: HostRoots, profile: Profile, clock: Clock) -> None:
        self._roots = roots
        self._files = roots.files()
        self._profile = profile
        self._clock = clock
        self._unread: set[int] = set()
        self._ownership = Ownership(self._files, profile.paths, clock)

    def modules(self) -> Mapping[str, Module]:
        """See the port."""
        return kmod.driver_modules(self._roots.sys, self._profile.modules)

    def load_id(self) -> str:
        """See the port."""
        return load_text(self._roots, self._profile.modules)

    def unload(self, name: str, deadline: Deadline) -> None:
        """See the port. A driver that only a reboot changes is never unloaded, whatever asked for it."""
        if self._profile.never_unloads:
            raise ModuleFailed(
                f"refused to unload {name}: the {self._profile.name} driver must not be unloaded from a running kernel",
                "This is a bug; report it. Reboot the node to change its driver.",
            )
        kmod.unload(self._roots.sys, name, deadline, self._clock)

    def remove_conflicting(self, name: str, deadline: Deadline) -> None:
        """See the port. Nothing that the profile does not name is ever unloaded by this."""
        if name not in self._profile.modules.conflicting_removable:
            raise ModuleFailed(f"refused to unload {name}: the profile does not allow it", "This is a bug; report it.")
        kmod.unload(self._roots.sys, name, deadline, self._clock)

    def set_firmware_path(self, path: str) -> None:
        """See the port."""
        firmware.set_path(self._roots.sys, path)

    def load(self, source: DriverSource, deadline: Deadline) -> None:
        """See the port. A modprobe over a loaded module does nothing and returns 0: the version is compared."""
        before = set(self.modules())
        try:
            failed = self._load_tree(source, deadline)
            for name in () if source.tree else source.sequence:
                self._load_one(source, name, deadline)
            for wanted in source.modules:
                if wanted.name in failed:
                    raise ModuleFailed(
                        f"module {wanted.name} cannot be loaded from {source.root}: {failed[wanted.name]}",
                        "Look at the kernel log (dmesg): was the driver built for this kernel?",
                    )
                self._verify_version(wanted.name, wanted.version)
        except ModuleFailed:
            self._unload_new(before, deadline)
            raise

    def _load_tree(self, source: DriverSource, deadline: Deadline) -> dict[str, str]:
        """Load what can be loaded of a whole tree; what was said of the rest, by name."""
        files = ((name, self._files.path(path)) for name, path in source.tree)
        return kmod.load_all(self._roots.sys, files, deadline, joined(source.given, self._trees().options()))

    def _load_one(self, source: DriverSource, name: str, deadline: Deadline) -> None:
        """Load a module and what it needs, with its options and those of the host's modprobe.d. Raises ModuleFailed."""
        trees, root = self._trees(), source.root
        by_hand = trees.one_by_one(root, (name,))
        if not by_hand:
            # On the host itself modprobe reads the host's by itself.
            options = source.given if self._files.is_own_root else joined(source.given, trees.options())
            kmod.load(self._files.path(root), self._kernel, name, deadline, options)
            return
        files = [(one, self._files.path(path)) for one, path in by_hand]
        failed = kmod.load_all(self._roots.sys, files, deadline, joined(source.given, trees.options()))
        if name in failed:
            raise ModuleFailed(
                f"module {name} cannot be loaded from {root}: {failed[name]}",
                "Look at the kernel log (dmesg): was the driver built for this kernel?",
            )

    def _trees(self) -> ModuleTrees:
        return ModuleTrees(
            self._files,
            self._roots.proc,
            self._roots.sys,
            self._kernel,
            self._profile.modules,
            self._profile.paths.firmware,
        )

    def warm(self, source: DriverSource, deadline: Deadline) -> int:
        """See the port."""
        return warm(lambda: self._read_by(source), deadline.bound(WARM_S))

    def _read_by(self, source: DriverSource) -> Iterator[Path]:
        """The files that a load of `source` and its probe read, tools first, as far as they can be found."""
        yield from (Path(found) for name in kmod.TOOLS if (found := shutil.which(name)))
        yield from self._trees().files_of(source)
        probe = self._profile.probe
        with contextlib.suppress(OSError):
            command = probe_command(self._files, probe, source.root) if probe is not None else None
            yield from (Path(word) for word in (command.argv if command is not None else ()) if word[:1] == "/")

    def reload(self, source: DriverSource, names: tuple[str, ...], deadline: Deadline) -> None:
        """See the port."""
        for name in names:
            self._load_one(source, name, deadline)

    def load_of_host(self, name: str, deadline: Deadline) -> None:
        """Load a module of the host's own kernel tree; nothing where it is loaded. Raises ModuleFailed."""
        if not (self._roots.sys / "module" / name).is_dir():
            self._load_one(DriverSource("/"), name, deadline)

    def parameters(self, deadline: Deadline) -> Mapping[str, str]:
        """See the port."""
        return loaded_parameters(self._roots.sys, self.modules(), deadline.bound(READ_S))

    def await_device_nodes(self, deadline: Deadline) -> bool:
        """See the port."""
        if not self._profile.expected_nodes or not pci_devices(self._roots, self._profile):
            return True
        events = None
        while not self._device_nodes():
            if deadline.is_over:
                return False
            events = events or DeviceEvents(self._clock)
            events.wait(NODE_POLL_S)
        return True

    def probe(self, root: str, deadline: Deadline) -> ProbeResult:
        """See the port."""
        probe = self._profile.probe
        if probe is None:
            return ProbeResult(Health.UNKNOWN, "the profile has no probe")
        command = probe_command(self._files, probe, root)
        if command is None:
            return ProbeResult(Health.UNKNOWN, f"{probe.tool} is not in {root}")
        result = run(command.argv, timeout_s=deadline.bound(probe.timeout_s), env=command.env)
        return parse(probe.parser, result.status, result.out, result.last_line, err=result.err)

    def unmount(self, mount_point: str, deadline: Deadline) -> None:
        """See the port. A busy mount is detached lazily: only what still uses it keeps the dead view."""
        if not is_safe_root(mount_point):
            raise ModuleFailed(
                f"refused to unmount {mount_point}: it is a system directory of the host", "Report this bug."
            )
        before, why = self._times_mounted(mount_point), ""
        for lazily in (False, True):
            why = self._why_not_unmounted(mount_point, deadline, lazily=lazily)
            if not why:
                break
        if before and self._times_mounted(mount_point) >= before:  # whatever was answered
            raise ModuleFailed(
                f"cannot unmount {mount_point}: {why}", "Find what holds it with `fuser -vm` on the host."
            )

    def _why_not_unmounted(self, mount_point: str, deadline: Deadline, *, lazily: bool) -> str:
        here, timeout_s = self._files.path(mount_point), deadline.bound(TOOL_TIMEOUT_S)
        if is_of_a_kernel(self._roots.proc):
            return why_not_unmounted(self._roots.proc, mount_point, here, timeout_s, lazily=lazily)
        words = ["umount", *(["--lazy"] if lazily else []), "--", str(here)]
        result = run(words, timeout_s=timeout_s)
        return result.last_line if result.status else ""

    def file_systems(self, mount_points: tuple[str, ...]) -> frozenset[str]:
        """See the port."""
        table = (self._roots.proc / "1/mountinfo").read_text(errors="surrogateescape")
        return mounts.devices_of(table, mount_points)

    def pods_that_see(self, file_systems: frozenset[str], deadline: Deadline) -> tuple[str, ...]:
        """See the port."""
        looks = self._looks(deadline.bound(LOOK_S))
        return tuple(dict.fromkeys(pod_uid for _, pod_uid in bound_to(self._roots.proc, file_systems, looks)))

    def holders(self, deadline: Deadline, enough: int | None = None) -> tuple[Holder, ...]:
        """See the port."""
        nodes = self._profile.paths.device_nodes
        return find_holders(
            self._roots.proc, self._roots.dev, nodes, enough=enough, looks=self._looks(deadline.bound(LOOK_S))
        )

    def _looks(self, timeout_s: float) -> Looks:
        """One look at all processes, without those that did not answer an earlier one of this run."""
        return Looks(self._clock.is_ending, self._unread, timeout_s)

    def stop_service(self, name: str, deadline: Deadline) -> None:
        """See the port."""
        services.stop(self._roots, name, self._clock, deadline)

    def start_service(self, name: str, deadline: Deadline) -> None:
        """See the port."""
        services.start(self._roots, name, self._clock, deadline)

    def remove(self, path: str) -> None:
        """See the port."""
        try:
            self._files.remove(path)
        except OSError as error:
            raise ModuleFailed(
                f"cannot remove {path} on the host: {error.strerror}", "Remove it by hand, then run again."
            ) from error

    def save_evidence(self, name: str, lines: tuple[str, ...], deadline: Deadline) -> str:
        """See the port. Who uses the device is looked for only while a module has users."""
        roots, paths = self._roots, self._profile.paths
        if not paths.evidence:
            return ""
        is_used = any(users(module) for module in self.modules().values())
        nodes, timeout_s = paths.device_nodes, deadline.bound(EVIDENCE_HOLDERS_S)
        holders = holders_within(roots, nodes, timeout_s) if is_used else ["none: no module of the driver has a user"]
        kept = with_surroundings((*lines, "", "health-watch's last samples:", *self._samples()), holders, roots)
        folder = EvidenceFolder(self._files, paths.evidence)
        return folder.save(f"{int(self._clock.wall())}-{self._profile.name}-{name}", kept)

    def _samples(self) -> tuple[str, ...]:
        """What health-watch has noted of this boot; nothing where all was well, or it does not run."""
        with contextlib.suppress(OSError):
            text = self._files.read(self._profile.paths.health_record) or ""
            return recorded(text, boot_id(self._roots)).evidence
        return ()

    def unwritable(self, paths: tuple[str, ...]) -> Mapping[str, str]:
        """See the port."""
        return unwritable(self._files, self._profile, paths, tries=True)

    def exists(self, path: str) -> bool:
        """See the port."""
        try:
            return self._files.exists(path)
        except OSError as error:
            raise ConfigError(f"cannot access {path} on the host: {error.strerror}", "Check that path.") from error

    def write_text(self, path: str, text: str, *, is_secret: bool = False) -> None:
        """See the port."""
        self._files.write(path, text, 0o600 if is_secret else 0o644)

    @contextlib.contextmanager
    def at_work(self) -> Generator[bool, None, None]:
        """See the port."""
        with contextlib.ExitStack() as stack:
            try:
                lock = WorkLock(self._files, self._profile.paths.work_lock)
                held = stack.enter_context(lock.working(self._clock, WORK_LOCK_S))
            except OSError:
                held = False
            yield held

    def remove_marker(self, seen: Marker) -> None:
        """See the port."""
        remove_marker(self._files, self._profile.paths.reboot_marker, seen)

    def turn(self) -> contextlib.AbstractContextManager[Callable[[Owner], bool]]:
        """See the port."""
        return self._ownership.turn()

    def owned(self, owner: Owner) -> contextlib.AbstractContextManager[None]:
        """See the port."""
        return self._ownership.owned(owner)

    @property
    def _kernel(self) -> str:
        return (self._roots.proc / "sys/kernel/osrelease").read_text().strip()

    def _verify_version(self, name: str, version: str) -> None:
        module = self.modules().get(name)
        if module is None:
            raise ModuleFailed(f"modprobe reported success, but {name} is not loaded", "Look at dmesg.")
        if version and module.version and module.version != version:
            raise ModuleFailed(
                f"module {name} is loaded in version {module.version}, not {version}",
                "Reboot the node, then run again.",
            )

    def _unload_new(self, before: set[str], deadline: Deadline) -> None:
        """A failed modprobe leaves the dependencies it loaded: take them out again, as far as they go."""
        loaded = self.modules()
        new = {name: module for name, module in loaded.items() if name not in before}
        for name in unload_order(new, self._profile.modules.order):
            try:
                self.unload(name, deadline)
            except ModuleStuck:
                raise
            except ManagerError:
                continue

    def _device_nodes(self) -> list[Path]:
        patterns = self._profile.expected_nodes
        return [node for pattern in patterns for node in self._roots.dev.glob(pattern.removeprefix("/dev/"))]

    def _times_mounted(self, mount_point: str) -> int:
        mountinfo = (self._roots.proc / "1/mountinfo").read_text(errors="surrogateescape")
        return mounts.mount_points_below(mountinfo, mount_point).count(mount_point)
