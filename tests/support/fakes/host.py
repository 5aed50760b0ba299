"""A host in memory: modules with dependencies and users, files on disk and on tmpfs, mounts, reboots."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import cast

from driver_manager.adapters.host.modules import ModuleTrees
from driver_manager.adapters.host.system import Sources
from driver_manager.domain import host_record
from driver_manager.domain.baseline import Baseline, baseline_of_boot
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ModuleBusy, ModuleFailed, ModuleStuck, OwnedElsewhere
from driver_manager.domain.host import (
    UNREAD,
    DriverSource,
    Health,
    Holder,
    Host,
    Marker,
    Module,
    ModuleFile,
    ProbeResult,
    ReloadRequest,
    decode_marker,
    decode_reboot_wish,
    decode_reload_request,
    encode_reload_request,
    noted_failure,
)
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, OldDriver, Owner
from driver_manager.domain.pci import noted_bindings
from driver_manager.domain.profile import RUN_RECORD, Profile, closure, has_root
from driver_manager.domain.reboot.state import Record, decode_reboot_record
from tests.support.fakes.killer import Killer
from tests.support.fakes.pci import FakePci
from tests.support.fakes.slots import FakeSlots

KERNEL = "6.1.0-fake"
VERMAGIC = f"{KERNEL} SMP mod_unload"
TMPFS = "/run/"
DEVICE = "/dev/rbln0"


@dataclass
class FakeHost:
    """See `driver_manager.core.ports.HostSystem`; `facts` is what an adapter would read.

    `offers` is the driver version by root. `dying_services` end soon after their start with these versions. `needs`
    names what each module depends on; no root has those in `lacking`. Modules in `hanging` do not end their exit
    functions: they stay in `leaving` until a reboot. `kernel_users` are users of modules that are no process; users
    that are, and of which no holder is known, have no readable /proc. Modules in `coming` are in their init functions.
    """

    killer: Killer
    profile: Profile
    holding: Callable[[], tuple[Holder, ...]] = tuple
    machine_id: str = "machine"
    boots: int = 1
    loaded: dict[str, str] = field(default_factory=dict)
    needs: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"rebellions": ("rebellions_core",), "rebellions_peer": ("rebellions",)}
    )
    offers: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    mounts: list[str] = field(default_factory=list)
    host_driver: str = ""
    stuck_users: dict[str, int] = field(default_factory=dict)
    kernel_users: dict[str, int] = field(default_factory=dict)
    coming: frozenset[str] = frozenset()
    broken: set[str] = field(default_factory=set)
    sick: set[str] = field(default_factory=set)
    has_device_nodes: bool = True
    unload_attempts: list[str] = field(default_factory=list)
    modules_error: Exception | None = None
    seen_before: tuple[str, ...] = ()
    seen_after: tuple[str, ...] = ()
    known_holders: tuple[Holder, ...] = ()
    services: dict[str, bool] = field(default_factory=dict)
    broken_services: set[str] = field(default_factory=set)
    dying_services: dict[str, set[str]] = field(default_factory=dict)
    lacking: set[str] = field(default_factory=set)
    awaited_s: list[float] = field(default_factory=list)
    is_at_work: bool = False
    can_be_locked: bool = True
    tunables: dict[str, dict[str, str]] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    leaving: dict[str, str] = field(default_factory=dict)
    claimed_by: Owner | None = None
    is_owned: bool = False
    evidence: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    evidence_error: Exception | None = None
    refused_files: dict[str, str] = field(default_factory=dict)
    permanent: dict[str, str] = field(default_factory=dict)
    are_modules_frozen: bool = False
    given: dict[str, str] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    foreign_at_boot: frozenset[str] = frozenset()
    foreign_users: int = 0
    work: tuple[str, ...] = ()
    firmware_path: str = ""
    loads: int = 0

    def __post_init__(self) -> None:
        self.slots = FakeSlots(self.killer)
        self.pci = FakePci(self.killer, self.root, lambda: self.root in self.loaded)

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    @property
    def root(self) -> str:
        return self.profile.modules.roots[0]

    # the port

    def modules(self) -> Mapping[str, Module]:
        with self.killer.call("modules"):
            if self.modules_error is not None:
                raise self.modules_error
            return self._modules()

    def unload(self, name: str, deadline: Deadline) -> None:
        self.unload_attempts.append(name)
        with self.killer.call(f"unload {name}", effect=True):
            module = self._all()[name]
            if module.refcount:
                raise ModuleBusy(f"module {name} is in use", "Stop what uses the device.")
            version = self.loaded.pop(name)
            if name in self.hanging:
                self.leaving[name] = version
                raise ModuleStuck(f"module {name} is stuck while unloading", "Reboot.")

    def remove_conflicting(self, name: str, deadline: Deadline) -> None:
        with self.killer.call(f"remove {name}", effect=True):
            assert name in self.profile.modules.conflicting_removable
            if self.foreign_users:
                raise ModuleBusy(f"module {name} is in use", "Stop what uses it.")
            self.foreign.discard(name)

    def set_firmware_path(self, path: str) -> None:
        with self.killer.call("write firmware_class.path", effect=True):
            self.firmware_path = path

    def warm(self, source: DriverSource, deadline: Deadline) -> int:
        with self.killer.call("warm"):
            return 2**20 if source.root in self.offers else 0

    def load(self, source: DriverSource, deadline: Deadline) -> None:
        before = set(self.loaded)
        self.given = dict(source.given)
        for wanted in source.modules:
            for name in (*self.needs.get(wanted.name, ()), wanted.name):
                with self.killer.call(f"load {name}", effect=True):
                    if name == wanted.name and source.version in self.broken:
                        for extra in set(self.loaded) - before:
                            del self.loaded[extra]
                        raise ModuleFailed(f"module {name} cannot be loaded from {source.root}", "Look at dmesg.")
                    self._refuse_leaving(name)
                    self.loads += name == self.root and name not in self.loaded
                    self.loaded.setdefault(name, self._offered(source.root))
            if self.loaded[wanted.name] != wanted.version:
                raise ModuleFailed(f"{wanted.name} is loaded in version {self.loaded[wanted.name]}", "Reboot.")

    def reload(self, source: DriverSource, names: tuple[str, ...], deadline: Deadline) -> None:
        for name in names:
            with self.killer.call(f"reload {name}", effect=True):
                if source.root == "/" and name in self.foreign_at_boot:
                    self.foreign.add(name)
                    continue
                if name in self.lacking or not set(self.needs.get(name, ())) <= self.loaded.keys():
                    raise ModuleFailed(f"module {name} cannot be loaded from {source.root}", "Look at dmesg.")
                self._refuse_leaving(name)
                self.loaded[name] = self._offered(source.root)

    def _offered(self, root: str) -> str:
        version = self._version_at(root)
        assert version is not None, f"nothing is at {root}"
        return version

    def _refuse_leaving(self, name: str) -> None:
        if name in self.leaving:
            raise ModuleFailed(f"modprobe: no end of loading {name}", "Look at dmesg.")

    def parameters(self, deadline: Deadline) -> Mapping[str, str]:
        return self.tunables.get(self.loaded.get(self.root, ""), {})

    def await_device_nodes(self, deadline: Deadline) -> bool:
        self.awaited_s.append(deadline.allowed_s)
        with self.killer.call("device nodes"):
            return self.has_device_nodes

    def probe(self, root: str, deadline: Deadline) -> ProbeResult:
        has_loaded = any(call.startswith(("load ", "reload ")) for call in self.killer.calls)
        with self.killer.call("probe" if has_loaded else "first probe"):
            version = self.loaded.get(self.root, "")
            health = Health.UNHEALTHY if version in self.sick else Health.HEALTHY
            return ProbeResult(health, f"{self.root} {version} is {health.value}", busy=self.work)

    def load_text(self) -> str:
        return str(self.loads) if self.root in self.loaded else ""

    def ask_for_reload(self, load: str = "", reason: str = "rbln0 is error", boot_id: str = "") -> None:
        """As health-watch writes it, about the driver that is loaded unless another load is given."""
        request = ReloadRequest(boot_id or self.boot_id, load or self.load_text(), reason)
        self.files[self.profile.paths.reload_request] = encode_reload_request(request)

    def _reload(self) -> str | None:
        text = self.files.get(self.profile.paths.reload_request)
        request = decode_reload_request(text) if text is not None else None
        wanted = (self.boot_id, self.load_text())
        return request.reason if request is not None and (request.boot_id, request.load) == wanted else None

    def baseline(self) -> Baseline | None:
        return baseline_of_boot(self.files.get(self.profile.paths.baseline, ""), self.boot_id)

    def unmount(self, mount_point: str, deadline: Deadline) -> None:
        with self.killer.call(f"unmount {mount_point}", effect=True):
            self.mounts.remove(mount_point)

    def file_systems(self, mount_points: tuple[str, ...]) -> frozenset[str]:
        return frozenset(mount_points) & frozenset(self.mounts)

    def pods_that_see(self, file_systems: frozenset[str], deadline: Deadline) -> tuple[str, ...]:
        with self.killer.call("pods that see"):
            return self.seen_before if file_systems & frozenset(self.mounts) else self.seen_after

    def holders(self, deadline: Deadline, enough: int | None = None) -> tuple[Holder, ...]:
        with self.killer.call("holders"):
            unread = () if self.known_holders else (Holder(1, "unread", "", UNREAD),) * len(self.stuck_users)
            services = (Holder(1, "", DEVICE, "open", service=name) for name, runs in self.services.items() if runs)
            return (*self.known_holders, *self.holding(), *services, *unread)

    def stop_service(self, name: str, deadline: Deadline) -> None:
        with self.killer.call(f"stop {name}", effect=True):
            if name in self.broken_services:
                raise ModuleFailed(f"cannot stop host service {name}", "Stop it by hand.")
            self.services[name] = False

    def is_active(self, name: str) -> bool:
        with self.killer.call(f"is {name} active"):
            if self.loaded.get(self.root, "") in self.dying_services.get(name, ()):
                self.services[name] = False
            return self.services[name]

    def start_service(self, name: str, deadline: Deadline) -> None:
        with self.killer.call(f"start {name}", effect=True):
            if name in self.broken_services:
                raise ModuleFailed(f"cannot start host service {name}", "Start it by hand.")
            self.services[name] = True

    def remove(self, path: str) -> None:
        with self.killer.call(f"remove {path}", effect=True):
            self.files.pop(path, None)

    def exists(self, path: str) -> bool:
        with self.killer.call(f"exists {path}"):
            return path in self.files

    def unwritable(self, paths: tuple[str, ...]) -> Mapping[str, str]:
        return {path: why for path, why in self.refused_files.items() if path in paths}

    def write_text(self, path: str, text: str, *, is_secret: bool = False) -> None:
        with self.killer.call(f"write {path}", effect=True):
            self.files[path] = text

    def save_evidence(self, name: str, lines: tuple[str, ...], deadline: Deadline) -> str:
        with self.killer.call("evidence", effect=True):
            if self.evidence_error is not None:
                raise self.evidence_error
            if not self.profile.paths.evidence:
                return ""
            self.evidence.append((name, lines))
            return f"{self.profile.paths.evidence}/{name}"

    @contextlib.contextmanager
    def at_work(self) -> Generator[bool, None, None]:
        self.is_at_work = True
        try:
            yield self.can_be_locked
        finally:
            self.is_at_work = False

    def remove_marker(self, seen: Marker) -> None:
        with self.killer.call("remove marker", effect=True):
            if self._marker() == seen:
                del self.files[self.profile.paths.reboot_marker]

    @contextlib.contextmanager
    def turn(self) -> Generator[Callable[[Owner], bool], None, None]:
        with self.killer.call("turn"):
            pass
        self.is_owned = True
        try:
            yield self._noted
        finally:
            self.is_owned = False

    def _noted(self, owner: Owner) -> bool:
        with self.killer.call("note", effect=True):
            if self.can_be_locked:
                self.claimed_by = owner
            return self.can_be_locked

    @contextlib.contextmanager
    def owned(self, owner: Owner) -> Generator[None, None, None]:
        if self.claimed_by != owner:
            raise OwnedElsewhere(f"the driver was taken over by {self.claimed_by}", "Nothing to do.")
        self.is_owned = True
        try:
            yield
        finally:
            self.is_owned = False

    # the world

    def reboot(self) -> None:
        self.boots += 1
        self.loaded, self.leaving, self.mounts = {}, {}, []
        self.foreign, self.firmware_path = set(self.foreign_at_boot), ""
        self.services = dict.fromkeys(self.services, True)
        self.pci.reboot()
        self.files = {path: text for path, text in self.files.items() if not path.startswith(TMPFS)}

    def put_driver(self, version: str, digest: str, *, peer: bool = True) -> None:
        """The driver is loaded, recorded and ready, as some earlier run left it."""
        self.loads += self.root not in self.loaded
        self.loaded = dict.fromkeys([*self.needs.get(self.root, ()), self.root], version)
        if peer:
            self.loaded["rebellions_peer"] = version
        self.files[self.profile.paths.state_file] = f"{digest}\n"
        self.files[self.profile.paths.ready_marker] = ""

    def start_driver_container(self, version: str, digest: str) -> None:
        """What the driver container does once its init container has ended well."""
        self.mounts = [self.profile.paths.driver_root]
        self.put_driver(self.loaded.get(self.root, version), digest)

    def source_of(self, root: str) -> DriverSource | None:
        version = self._version_at(root)
        if version is None:
            return None
        files = tuple(ModuleFile(name, root, version, VERMAGIC) for name in self.profile.modules.roots)
        return DriverSource(root, files, real_root=root)

    def source(self, root: str, names: tuple[str, ...], *, in_depth: bool = True) -> DriverSource:
        """See `driver_manager.adapters.host.modules.ModuleTrees`."""
        return self.source_of(root) or DriverSource(root, problem="there is none")

    def _version_at(self, root: str) -> str | None:
        staged = self.slots.version_at(root)
        return self.offers.get(root) if staged is None else staged

    def _wanted(self, driver_root: str, wanted: str) -> DriverSource | None:
        """The slot of the wanted driver where it is staged, else what the driver root offers."""
        seen = self.slots.seen(wanted)
        if seen is None or not seen.wanted:
            return self.source_of(driver_root)
        slot = seen.named(seen.wanted)
        problem = slot.problem if slot is not None else ""
        path = seen.path(seen.wanted)
        return DriverSource(path, problem=problem, remedy="Stage it again.") if problem else self.source_of(path)

    def facts(
        self, journal: Journal | None, *, driver_root: str, loads: bool, ships: bool = False, wanted: str = ""
    ) -> Host:
        """All facts of the host, as one read. The way back is the journaled driver's, else the loaded one's."""
        with self.killer.call("host"):
            paths = self.profile.paths
            wish, rebooter = self.files.get(paths.reboot_wish), self.files.get(paths.rebooter_record)
            granted = decode_reboot_record(rebooter) if rebooter is not None else Record()
            run, left = host_record.parted(self._run_records(), journal.record if journal else "")
            digest = self.files.get(paths.state_file)
            is_loaded = has_root(self._modules(), self.profile.modules)
            old = (run.driver if run else None) or host_record.lost_driver(left, is_loaded=is_loaded, digest=digest)
            if old is None and journal is not None and journal.driver is not None:
                old = OldDriver(journal.driver.version, digest=journal.driver.digest)
            digest = digest.strip() if digest is not None else None
            slots = self.slots.seen(wanted if loads else "")
            version = self.loaded.get(self.root, "")
            sources = Sources(cast("ModuleTrees", self), self.profile, slots)
            return Host(
                boot_id=self.boot_id,
                kernel_release=KERNEL,
                machine_id=self.machine_id,
                modules=self._modules(),
                leaving=tuple(sorted(self.leaving)),
                parameters=self.tunables.get(self.loaded.get(self.root, ""), {}) if loads else {},
                digest=digest,
                root_mounts=tuple(reversed(self.mounts)),
                artifacts=tuple(sorted(self.files)),
                host_driver=self.host_driver,
                source=self._wanted(driver_root, wanted) if loads else self.source_of(driver_root) if ships else None,
                slots=slots,
                previous_source=sources.before(driver_root, old, self._loaded_root(), digest, version),
                marker=self._marker(),
                reboot_wish=decode_reboot_wish(wish) if wish is not None else None,
                granted_reboot=granted.granted(self.boot_id),
                active_services=tuple(sorted(name for name, runs in self.services.items() if runs)),
                permanent=dict(self.permanent),
                are_modules_frozen=self.are_modules_frozen,
                failure=noted_failure(self.files.get(paths.failure_note, ""), self.boot_id),
                bus=self.pci.see(),
                bindings=noted_bindings(self.files.get(paths.bindings, ""), self.boot_id),
                removable={name: Module(name, "", 0) for name in sorted(self.foreign)},
                firmware_path=self.firmware_path,
                run_record=run,
                left_records=left,
                reload=self._reload(),
            )

    def _run_records(self) -> tuple[HostRecord, ...]:
        paths = (path for path in sorted(self.files) if RUN_RECORD in path)
        found = ((path, host_record.record_of_boot(self.files[path], self.boot_id)) for path in paths)
        return tuple(one for path, one in found if one is not None and path == self.profile.paths.run_record(one.run))

    def _loaded_root(self) -> str:
        body = json.loads(self.files.get(self.profile.paths.load_record, "null"))
        return str(body["root"]) if body else ""

    def _marker(self) -> Marker | None:
        text = self.files.get(self.profile.paths.reboot_marker)
        return decode_marker(text) if text is not None else None

    def _modules(self) -> dict[str, Module]:
        return closure(self._all(), self.profile.modules)

    def _all(self) -> dict[str, Module]:
        found = {}
        there = {*self.loaded, *self.leaving}
        for name, version in self.loaded.items():
            holders = tuple(sorted(other for other in there if name in self.needs.get(other, ())))
            users = self.stuck_users.get(name, 0) + self.kernel_users.get(name, 0) + (name in self.coming)
            if name == self.root:
                users += len(self.holding()) + sum(self.services.values())
            found[name] = Module(name, version, len(holders) + users, holders, is_coming=name in self.coming)
        return found
