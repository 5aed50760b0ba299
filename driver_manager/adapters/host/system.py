"""The HostSystem port on a real host or on the sandbox's tree."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from driver_manager.adapters.host import modules as kmod
from driver_manager.adapters.host.evidence import holders_within, save_evidence
from driver_manager.adapters.host.files import (
    OWN_ROOT,
    HostFiles,
    HostRoots,
    WorkLock,
    becomes,
    boot_id,
    kernel_fact,
    machine_id,
    names_in,
    system_uuid,
    text_of,
    translated,
)
from driver_manager.adapters.host.holders import (
    HOST_SLICE,
    LOOK_S,
    MOUNTS,
    Looks,
    bound_to,
    device_nodes,
    devices_of,
    find_holders,
    host_path,
    in_host,
    is_of_a_kernel,
    mount_points_below,
    why_not_unmounted,
)
from driver_manager.adapters.host.modules import HOST, ModuleTrees, driver_nodes
from driver_manager.adapters.host.notes import load_numbers, load_text, read_baseline, read_marker, remove_marker
from driver_manager.adapters.host.pci import DeviceEvents, pci_devices, read_bus
from driver_manager.adapters.host.probe import probe_command, why_no_tool, with_devices, with_noexec
from driver_manager.adapters.host.slots import look, may_have_slots, warm
from driver_manager.adapters.process.run import TOOL_TIMEOUT_S, run
from driver_manager.core.ports_base import Clock
from driver_manager.domain import host, host_record
from driver_manager.domain.baseline import Baseline
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ConfigError, ManagerError, ModuleFailed, ModuleStuck, OwnedElsewhere
from driver_manager.domain.health.parsers import parse
from driver_manager.domain.health.watch import decode_watch_record
from driver_manager.domain.host import decode_reload_request
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, OldDriver, Owner
from driver_manager.domain.pci import noted_bindings
from driver_manager.domain.profile import (
    RUN_RECORD,
    HostPaths,
    Modules,
    Profile,
    has_root,
    is_safe_root,
    joined,
    unload_order,
    users,
)
from driver_manager.domain.reboot.state import RecordUnreadable, decode_reboot_record
from driver_manager.domain.text import is_digest, one_line
from driver_manager.domain.wire import Unreadable

# Sources of a driver: the wanted one, the host's own, and the previous one for a rollback.


_STAGE_FIRST = "Stage the wanted driver first (`driver-manager stage`), then run again."


class Sources:
    """The sources on one host; `slots` are the staged ones, None if no wanted driver is known."""

    def __init__(self, trees: ModuleTrees, profile: Profile, slots: host.StagedSlots | None) -> None:
        self._trees = trees
        self._profile = profile
        self._slots = slots

    def host_driver(self) -> str:
        """Path of the driver's module in the host's own module tree, "" if none. Executes no program."""
        found = (self._trees.find(HOST, name) for name in self._profile.modules.roots)
        return next((path for path in found if path), "")

    def wanted(self, driver_root: str) -> host.DriverSource:
        """The source: the wanted slot, else DRIVER_ROOT, else the profile's root, else the host's own tree."""
        names = self._profile.modules.roots
        if self._slots is not None and (staged := self._staged(self._slots)):
            return staged
        if driver_root:
            return self._trees.source(driver_root, names)
        own = self._trees.source(self._profile.paths.driver_root, names)
        return own if not own.problem or not self.host_driver() else self._trees.source(HOST, names)

    def shipped(self, driver_root: str) -> host.DriverSource:
        """The source that the host itself loads at its next boot: DRIVER_ROOT, else its own tree."""
        return self._trees.source(driver_root or HOST, self._profile.modules.roots, in_depth=False)

    def _staged(self, slots: host.StagedSlots) -> host.DriverSource | None:
        """The slot of the wanted driver, with `problem` if unusable or missing; None if nothing is staged."""
        slot, current = slots.named(slots.wanted), slots.at(slots.root)
        if slot is not None and not slot.problem:
            return self._trees.source(slots.path(slot.name), self._profile.modules.roots)
        if slot is not None:
            why, remedy = f"the staged slot {slot.name} cannot be used: {slot.problem}", host.STAGE_AGAIN
        elif slots.left:
            why, remedy = f"an earlier version staged the wanted driver in {slots.left}", _STAGE_FIRST
        elif current is not None:
            why = f"no slot is staged for the wanted driver: {slots.root} has the staged driver {current.text}"
            remedy = _STAGE_FIRST
        else:
            return None
        if current is not None:
            remedy += (
                f" If the wanted driver was installed in {slots.root} without `stage`, remove {host.RECORD} there."
            )
        return host.DriverSource(slots.root, problem=why, remedy=remedy)

    def before(
        self, driver_root: str, old: OldDriver | None, loaded_root: str, digest: str | None, version: str
    ) -> host.DriverSource | None:
        """The driver to return to, None if no root offers it.

        It is `old`, which a run recorded on this host, if its root still offers it, else the loaded one with `digest`
        and `version`. If nothing is loaded, `old` may come from the Node and have no root: then a known root that
        offers it.
        """
        if old is not None and old.root and (found := self._offering([old.root], old.version, old.digest)):
            return found
        known = [loaded_root, self._profile.paths.driver_root, driver_root, HOST]
        if not version and old is not None:
            version, digest = old.version, old.digest
        return self._offering(known, version, digest or "") if version else None

    def _offering(self, roots: list[str], version: str, digest: str) -> host.DriverSource | None:
        """The source of driver `version`: the slot recorded as `digest`, else the first of `roots` that offers it."""
        slots = self._slots
        found = {slots.path(slot.name): slot for slot in slots.slots} if slots is not None else {}
        wanted = slots.path(slots.wanted) if slots is not None and slots.wanted else ""
        same = [path for path, slot in found.items() if (slot.digest == digest if digest else slot.has_served)]
        others = {path for path in found if path not in same and (digest or path == wanted)}
        # Try the next and the wanted slot only after all other places.
        first = [path for path in same if path != wanted and not path.endswith(host.NEXT)]
        for root in dict.fromkeys([*first, *filter(None, roots), *same]):
            offered = self._trees.source(root, self._profile.modules.roots, in_depth=False)
            is_other = not others.isdisjoint((root.rstrip("/"), offered.real_root))
            if not offered.problem and offered.version == version and not is_other:
                return offered
        return None


# The host's part of an observation: modules, digest, mounts, artifacts and sources.

MAX_BINDINGS_BYTES = 1024 * 1024
"""Maximum size of the file in bytes: a host may have thousands of functions."""


def read_host(  # noqa: PLR0913  # the source of the driver depends on all of them
    roots: HostRoots,
    profile: Profile,
    driver_root: str,
    journal: Journal | None,
    *,
    loads: bool,
    ships: bool = False,
    wanted: str = "",
    picks_vfio: bool = False,
) -> host.Host:
    """All facts of the host.

    `loads`: this run loads the driver, so find its source. `ships`: the host loads the driver, so the source is the one
    on its disk. `wanted` is the digest of the wanted driver. `picks_vfio`: find the vfio module of each device. Raises
    ConfigError if the host cannot be read.
    """
    try:
        files, paths = roots.files(), profile.paths
        this_boot, kernel = boot_id(roots), kernel_fact(roots, "osrelease")
        wanted = wanted if loads else ""
        trees = ModuleTrees(roots, kernel, profile.modules, paths.firmware)
        modules = kmod.driver_modules(roots.sys, profile.modules)
        digest, digest_problem = _digest(files, paths.state_file)
        marker, marker_problem = read_marker(files, paths.reboot_marker)
        loaded_root = _loaded_root(files.text(paths.load_record), this_boot)
        run, left = host_record.parted(_run_records(files, paths, this_boot), journal.record if journal else "")
        old = run.driver if run is not None else None
        old = old or host_record.lost_driver(left, is_loaded=has_root(modules, profile.modules), digest=digest)
        if old is None and journal is not None and journal.driver is not None:
            # The Node has no root. Its digest only selects one of this host's known roots.
            old = OldDriver(journal.driver.version, digest=journal.driver.digest)
        artifacts = tuple(path for path in _artifacts(paths) if files.exists(path))
        version = next((modules[name].version for name in profile.modules.roots if name in modules), "")
        root = driver_root or paths.driver_root
        slots = look(files, roots.proc, root, wanted, kernel) if may_have_slots(profile, files.real(root)) else None
        sources = Sources(trees, profile, slots if wanted else None)
        return host.Host(
            boot_id=this_boot,
            kernel_release=kernel,
            machine_id=machine_id(roots),
            system_uuid=system_uuid(roots),
            modules=modules,
            leaving=kmod.leaving_modules(roots.sys, profile.modules),
            parameters=kmod.loaded_parameters(roots.sys, modules) if loads else {},
            digest=digest,
            digest_problem=digest_problem,
            root_mounts=_root_mounts(roots, files.real(paths.driver_root)),
            artifacts=artifacts,
            host_driver=sources.host_driver(),
            source=with_noexec(files, profile.probe, sources.wanted(driver_root))
            if loads
            else sources.shipped(driver_root)
            if ships
            else None,
            previous_source=sources.before(driver_root, old, loaded_root, digest, version),
            pci_devices=pci_devices(roots, profile),
            bus=read_bus(roots, profile, kernel, picks_vfio=picks_vfio),
            conflicting=kmod.loaded_among(roots.sys, profile.modules.conflicting),
            marker=marker,
            marker_problem=marker_problem,
            reboot_wish=_reboot_wish(files.text(paths.reboot_wish)),
            granted_reboot=_granted_reboot(files, paths.rebooter_record, this_boot),
            enforces_signatures=enforces_signatures(roots.sys),
            unwritable=unwritable(
                files, profile, (*paths.records(journal.record if journal else ""), *artifacts, *paths.reboot_files())
            ),
            active_services=active_services(roots.sys, profile.host_services),
            permanent=kmod.permanent_modules(roots.proc, modules),
            are_modules_frozen=text_of(roots.proc / "sys/kernel/modules_disabled") == "1",
            failure=host.noted_failure(files.text(paths.failure_note), this_boot),
            bindings=noted_bindings(files.text(paths.bindings, MAX_BINDINGS_BYTES), this_boot),
            slots=slots,
            removable=kmod.driver_modules(roots.sys, Modules(profile.modules.conflicting_removable)),
            firmware_path=kmod.custom_firmware_path(roots.sys) if paths.firmware else "",
            run_record=run,
            left_records=left,
            reload=_reload(roots, profile, this_boot),
        )
    except OSError as error:
        raise ConfigError(
            f"cannot read {error.filename or roots.root} of the host: {error.strerror}",
            "Run as root with the host's root mounted (HOST_ROOT); check that path on the host.",
        ) from error


def unwritable(files: HostFiles, profile: Profile, paths: Iterable[str], *, tries: bool = False) -> Mapping[str, str]:
    """Reason by path, of `paths`, locks and evidence that a run cannot write or remove; `tries`: by writing."""
    known, tried = profile.paths, set[str]()
    evidence = f"{known.evidence}/any"
    found = {path: files.why_no_lock(path) for path in known.locks()}
    for path in dict.fromkeys((*paths, *([evidence] if known.evidence else []))):
        folder = path.rpartition("/")[0]
        found[path] = files.why_not_writable(path, tries=tries and folder not in tried)
        tried.add(folder)
    return {path: why for path, why in found.items() if why}


def _run_records(files: HostFiles, paths: HostPaths, this_boot: str) -> tuple[HostRecord, ...]:
    """The records of this boot's runs by file name, without unreadable ones and those in another run's file."""
    folder, found = paths.run_record("").rpartition("/")[0], list[HostRecord]()
    try:
        names = sorted(name for name in files.names(folder) if name.startswith(RUN_RECORD) and name.endswith(".json"))
    except OSError:
        return ()
    for path in (f"{folder}/{name}" for name in names):
        record = host_record.record_of_boot(files.text(path, MAX_BINDINGS_BYTES), this_boot)
        if record is not None and paths.run_record(record.run) == path:
            found.append(record)
    return tuple(found)


def enforces_signatures(sys_root: Path) -> bool:
    """True if this kernel refuses unsigned modules: by sig_enforce, or by lockdown (kernel_lockdown(7))."""
    lockdown = text_of(sys_root / "kernel/security/lockdown") or ""
    is_enforced = text_of(sys_root / "module/module/parameters/sig_enforce") == "Y"
    return is_enforced or "[integrity]" in lockdown or "[confidentiality]" in lockdown


def _artifacts(paths: HostPaths) -> tuple[str, ...]:
    known = (paths.ready_marker, paths.ready_withdrawn, paths.state_file, paths.load_record, paths.failure_note)
    return tuple(filter(None, (*paths.artifacts, *known, paths.reload_request)))


def _digest(files: HostFiles, path: str) -> tuple[str | None, str]:
    """The recorded digest, or why it cannot be used; (None, "") if there is none."""
    try:
        text = files.read(path)
    except OSError as error:
        return None, f"{path}: {error.strerror}"
    if text is None:
        return None, ""
    value = text.strip()
    if not is_digest(value):
        return None, f"{path} does not contain exactly one digest"
    return value, ""


def _loaded_root(text: str, this_boot: str) -> str:
    """The root in the record of a `DRIVER_LOAD=manager` run of this boot; "" if unreadable or of another boot."""
    try:
        body = json.loads(text)
        boot, root, _ = (str(body[key]) for key in ("bootId", "root", "version"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return root if boot == this_boot and root.startswith("/") else ""


def _reboot_wish(text: str) -> host.RebootWish | None:
    """The last reboot request; None if there is none or it is unreadable, which causes at most one more request."""
    try:
        return host.decode_reboot_wish(text)
    except Unreadable:
        return None


def _granted_reboot(files: HostFiles, path: str, this_boot: str) -> str | None:
    """The reason of the reboot that the rebooter's record grants, "" if none, None if it cannot be read."""
    try:
        text = files.read(path) if path else None
        return decode_reboot_record(text).granted(this_boot) if text is not None else ""
    except (OSError, RecordUnreadable):
        return None


def _reload(roots: HostRoots, profile: Profile, this_boot: str) -> str | None:
    """The reason of the request to load the loaded driver again; None without one, and if it is unreadable.

    It counts in its boot, until all root modules of the load that it names are unloaded: the run after one that was
    killed between two of them continues.
    """
    try:
        request = decode_reload_request(roots.files().read(profile.paths.reload_request) or "")
    except (OSError, Unreadable):
        return None
    is_left = set(request.load.split(",")) & set(load_numbers(roots, profile.modules).values())
    return one_line(request.reason) if is_left and request.boot_id == this_boot else None


_OF_A_POD = re.compile(r"/pods/[^/]+/(volumes|volume-subpaths)(/|$)|/plugins/kubernetes\.io/|/io\.containerd\.")
"""Where a kubelet mounts the volumes of its pods (kubernetes, pkg/kubelet/kubelet_getters.go; pkg/volume/csi,
globalmount) and containerd its containers (docs/ops.md, state and root), below any folder."""


def _root_mounts(roots: HostRoots, driver_root: str) -> tuple[str, ...]:
    """Mount points at and below the driver root. `driver_root` is its path without symlinks. Raises ConfigError."""
    if not is_safe_root(driver_root):
        raise ConfigError(
            f"the driver root resolves to the system directory {driver_root}",
            "Remove the symlink that leads there. Nothing was changed.",
        )
    path = roots.proc / "1/mountinfo"
    with translated(ConfigError, f"cannot read {path}", "Run as root with the host's /proc."):
        found = mount_points_below(path.read_text(errors="surrogateescape"), driver_root)
    if of_a_pod := next(filter(_OF_A_POD.search, found), ""):
        raise ConfigError(
            f"the driver root {driver_root} has mounts of pods in it, such as {one_line(of_a_pod)}",
            "Set DRIVER_ROOT (--driver-root) to a folder of the driver's own. Nothing was changed.",
        )
    return found


# The owner note: a file on the host that names the run that may change the driver, guarded by the effect lock.
#
# A run that another one superseded while it was suspended detects it before its next effect, without a request to the
# API server. The lock is a flock(2): the kernel releases it if the process dies.

TURN_S = 10.0
"""Seconds that a run waits until another run finishes an effect or takes the node."""


class Ownership:
    def __init__(self, files: HostFiles, paths: HostPaths, clock: Clock) -> None:
        self._files = files
        self._note = paths.owner_note
        self._lock = WorkLock(files, paths.effect_lock)
        self._clock = clock

    @contextmanager
    def turn(self) -> Generator[Callable[[Owner], bool], None, None]:
        with contextlib.ExitStack() as stack:
            try:
                is_alone = stack.enter_context(self._lock.alone(self._clock, TURN_S))
            except OSError:
                yield lambda _: False
                return
            if not is_alone:
                raise OwnedElsewhere(
                    "another run is changing the driver and has not finished",
                    f"`lslocks` shows the process that holds {self._lock.path}: wait for it to end or kill it, then "
                    "run again.",
                )
            yield self._noted

    @contextmanager
    def owned(self, owner: Owner) -> Generator[None, None, None]:
        with self.turn():
            self._refuse_other(owner)
            yield

    def _noted(self, owner: Owner) -> bool:
        try:
            self._files.write(self._note, _fence_text(owner), 0o600)
        except ConfigError:
            # The run in the old note must stop. A full file system refuses a new note but allows the removal.
            with contextlib.suppress(OSError):
                self._files.remove(self._note)
            return False
        return True

    def _refuse_other(self, owner: Owner) -> None:
        """Raise OwnedElsewhere unless the note names `owner`. An unreadable note does not."""
        found = self._files.text(self._note)
        if found != _fence_text(owner):
            who = found.partition("\n")[2].strip() or "another run"
            raise OwnedElsewhere(
                f"the driver was taken over by {who} meanwhile",
                "No action needed: this run stopped changing the driver, and that run releases the node.",
            )


def _fence_text(owner: Owner) -> str:
    return f"{owner.process}\n{owner}\n"


# Services of the host. systemctl runs in the host's mount namespace.

SYSTEMCTL_TIMEOUT_S = 10.0
SERVICE_STOP_S = 60.0
SERVICE_START_S = 1.0
SERVICE_POLL_S = 0.05


def active_services(sys_root: Path, names: Collection[str]) -> tuple[str, ...]:
    """The running services in `names`, in any slice of the host. Reads cgroups and executes no program of the host."""
    folders = [sys_root / "fs/cgroup", sys_root / "fs/cgroup/systemd"]
    found: set[str] = set()
    wanted = set(names)
    while folders and found != wanted:
        folder = folders.pop()
        there = names_in(folder)
        found.update(name for name in wanted.intersection(there) if (folder / name).is_dir())
        folders += [folder / name for name in there if re.fullmatch(HOST_SLICE, name)]
    return tuple(name for name in names if name in found)


def _not_loaded(name: str, root: str, why: str) -> ModuleFailed:
    return ModuleFailed(
        f"module {name} cannot be loaded from {root}: {why}",
        "Look at the kernel log (dmesg): was the driver built for this kernel?",
    )


WORK_LOCK_S = 5.0
EVIDENCE_HOLDERS_S = 5.0
WARM_S = 20.0
NODE_POLL_S = 0.25
"""Seconds between two looks at /dev without an event: not every container gets the kernel's events."""


class LinuxHost(Ownership):
    """See `driver_manager.core.ports.HostSystem`."""

    def __init__(self, roots: HostRoots, profile: Profile, clock: Clock) -> None:
        super().__init__(roots.files(), profile.paths, clock)
        self._roots = roots
        self._profile = profile
        self._unread: set[int] = set()

    def modules(self) -> Mapping[str, host.Module]:
        return kmod.driver_modules(self._roots.sys, self._profile.modules)

    def unload(self, name: str, deadline: Deadline) -> None:
        """See the port. Refuses to unload a driver that only a reboot can change."""
        if self._profile.never_unloads:
            raise ModuleFailed(
                f"refused to unload {name}: the {self._profile.name} driver must not be unloaded from a running kernel",
                "This is a bug; report it. Reboot the node to change its driver.",
            )
        kmod.unload_module(self._roots.sys, name, deadline, self._clock)

    def remove_conflicting(self, name: str, deadline: Deadline) -> None:
        """See the port. Refuses modules that the profile does not name."""
        if name not in self._profile.modules.conflicting_removable:
            raise ModuleFailed(f"refused to unload {name}: the profile does not allow it", "This is a bug; report it.")
        kmod.unload_module(self._roots.sys, name, deadline, self._clock)

    def set_firmware_path(self, path: str) -> None:
        kmod.set_firmware_path(self._roots.sys, path)

    def load(self, source: host.DriverSource, deadline: Deadline) -> None:
        """See the port. Compares versions afterwards, as modprobe does nothing and returns 0 for a loaded module."""
        before = set(self.modules())
        try:
            failed = self._inserted(source.tree, source, self._trees(), deadline)
            for name in () if source.tree else source.sequence:
                self._load_one(source, name, deadline)
            for wanted in source.modules:
                if wanted.name in failed:
                    raise _not_loaded(wanted.name, source.root, failed[wanted.name])
                self._verify_version(wanted.name, wanted.version)
        except ModuleFailed:
            self._unload_new(before, deadline)
            raise

    def _load_one(self, source: host.DriverSource, name: str, deadline: Deadline) -> None:
        """Load a module and its dependencies, with its and the host's options. Raises ModuleFailed."""
        trees, root = self._trees(), source.root
        by_hand = trees.one_by_one(root, (name,))
        if not by_hand:
            # If the host's root is this process's root, modprobe reads the host's modprobe.d itself.
            options = source.given if self._files.root == OWN_ROOT else joined(source.given, trees.options)
            kmod.load_module(self._files.path(root), trees.kernel, name, deadline, options)
            return
        failed = self._inserted(by_hand, source, trees, deadline)
        if name in failed:
            raise _not_loaded(name, root, failed[name])

    def _inserted(
        self, modules: Iterable[tuple[str, str]], source: host.DriverSource, trees: ModuleTrees, deadline: Deadline
    ) -> dict[str, str]:
        """Load `modules` (name and path) with insmod; the errors of those that do not load, by name."""
        files = ((name, self._files.path(path)) for name, path in modules)
        return kmod.load_modules(self._roots.sys, files, deadline, joined(source.given, trees.options))

    def _trees(self) -> ModuleTrees:
        kernel, profile = kernel_fact(self._roots, "osrelease"), self._profile
        return ModuleTrees(self._roots, kernel, profile.modules, profile.paths.firmware)

    def warm(self, source: host.DriverSource, deadline: Deadline) -> int:
        return warm(lambda: self._read_by(source), deadline.bound(WARM_S))

    def _read_by(self, source: host.DriverSource) -> Iterator[Path]:
        """The files that a load of `source` and its probe read: tools, modules, then the probe. Some may be missing."""
        yield from (Path(found) for name in kmod.KMOD_TOOLS if (found := shutil.which(name)))
        yield from self._trees().files_of(source)
        probe = self._profile.probe
        with contextlib.suppress(OSError):
            command = probe_command(self._files, probe, source.root) if probe is not None else None
            yield from (Path(word) for word in (command.argv if command is not None else ()) if word[:1] == "/")

    def reload(self, source: host.DriverSource, names: tuple[str, ...], deadline: Deadline) -> None:
        for name in names:
            self._load_one(source, name, deadline)

    def load_of_host(self, name: str, deadline: Deadline) -> None:
        """Load a module of the host's own kernel tree unless it is loaded. Raises ModuleFailed."""
        if not (self._roots.sys / "module" / name).is_dir():
            self._load_one(host.DriverSource("/"), name, deadline)

    def parameters(self, deadline: Deadline) -> Mapping[str, str]:
        return kmod.loaded_parameters(self._roots.sys, self.modules(), deadline.bound(kmod.READ_S))

    def await_device_nodes(self, deadline: Deadline) -> bool:
        if not self._profile.expected_nodes or not pci_devices(self._roots, self._profile):
            return True
        events = None
        while not device_nodes(self._roots.dev, self._profile.expected_nodes):
            if deadline.is_over:
                return False
            events = events or DeviceEvents(self._clock)
            events.wait(NODE_POLL_S)
        return True

    def probe(self, root: str, deadline: Deadline) -> host.ProbeResult:
        probe = self._profile.probe
        command, why = None, "the profile has no probe"
        try:
            command = probe_command(self._files, probe, root) if probe is not None else None
            if probe is not None and command is None:
                why = why_no_tool(self._files, probe, root)
        except OSError as error:  # a loop of symlinks, or a dead file system
            why = f"{root} cannot be read: {error.strerror}"
        if probe is None or command is None:
            return with_devices(self._roots, self._profile, lambda _: host.ProbeResult(host.Health.UNKNOWN, why))
        ran = run(command.argv, timeout_s=max(probe.timeout_s, deadline.left()), env=command.env)
        return with_devices(
            self._roots,
            self._profile,
            lambda present: parse(probe, ran.status, ran.out, ran.last_line, present, err=ran.err),
        )

    def load_text(self) -> str:
        return load_text(self._roots, self._profile.modules)

    def baseline(self) -> Baseline | None:
        return read_baseline(self._files, self._profile.paths, boot_id(self._roots))

    def unmount(self, mount_point: str, deadline: Deadline) -> None:
        """See the port. Detaches a busy mount lazily: only the processes that use it keep the old view."""
        if not is_safe_root(mount_point):
            raise ModuleFailed(
                f"refused to unmount {mount_point}: it is a system directory of the host", "Report this bug."
            )
        before = self._times_mounted(mount_point)
        why = self._why_not_unmounted(mount_point, deadline)
        if why:
            why = self._why_not_unmounted(mount_point, deadline, lazily=True)
        if before and self._times_mounted(mount_point) >= before:
            raise ModuleFailed(
                f"cannot unmount {mount_point}: {why}", "Find what holds it with `fuser -vm` on the host."
            )

    def _why_not_unmounted(self, mount_point: str, deadline: Deadline, *, lazily: bool = False) -> str:
        here, timeout_s = self._files.path(mount_point), deadline.bound(TOOL_TIMEOUT_S)
        if is_of_a_kernel(self._roots.proc):
            return why_not_unmounted(self._roots.proc, mount_point, here, timeout_s, lazily=lazily)
        words = ["umount", *(["--lazy"] if lazily else []), "--", str(here)]
        result = run(words, timeout_s=timeout_s)
        return result.last_line if result.status else ""

    def file_systems(self, mount_points: tuple[str, ...]) -> frozenset[str]:
        table = (self._roots.proc / "1/mountinfo").read_text(errors="surrogateescape")
        return devices_of(table, mount_points)

    def pods_that_see(self, file_systems: frozenset[str], deadline: Deadline) -> tuple[str, ...]:
        looks = self._looks(deadline.bound(LOOK_S))
        return tuple(dict.fromkeys(pod_uid for _, pod_uid in bound_to(self._roots.proc, file_systems, looks)))

    def holders(self, deadline: Deadline, enough: int | None = None) -> tuple[host.Holder, ...]:
        nodes = driver_nodes(self._roots, self._profile)
        return find_holders(
            self._roots.proc, self._roots.dev, nodes, enough=enough, looks=self._looks(deadline.bound(LOOK_S))
        )

    def _looks(self, timeout_s: float) -> Looks:
        """One look at all processes, without those that did not answer an earlier one of this run."""
        return Looks(self._clock.is_ending, self._unread, timeout_s)

    def stop_service(self, name: str, deadline: Deadline) -> None:
        """See the port. Waits up to `SERVICE_STOP_S` until the service's processes have ended. Raises Terminated."""
        self._systemctl("stop", name, deadline)
        ended = deadline.within(SERVICE_STOP_S)
        if not becomes(lambda: not self._is_active(name), ended.left(), SERVICE_POLL_S, self._clock):
            raise ModuleFailed(
                f"host service {name} did not stop within {ended.allowed_s:g} s", f"Look at `systemctl status {name}`."
            )

    def is_active(self, name: str) -> bool:
        return bool(active_services(self._roots.sys, [name]))

    def start_service(self, name: str, deadline: Deadline) -> None:
        """See the port. Waits up to `SERVICE_START_S`, a short time, for the service."""
        self._systemctl("start", name, deadline)
        if not becomes(lambda: self._is_active(name), deadline.bound(SERVICE_START_S), SERVICE_POLL_S, self._clock):
            raise ModuleFailed(
                f"host service {name} was started but is not running yet", f"Look at `systemctl status {name}`."
            )

    def _is_active(self, name: str) -> bool:
        return bool(active_services(self._roots.sys, [name]))

    def _systemctl(self, verb: str, name: str, deadline: Deadline) -> None:
        """Queue the job without waiting: a signal would not interrupt systemctl's wait. Raises ModuleFailed."""
        argv = [*in_host(self._roots.proc, MOUNTS), "systemctl", verb, "--no-block", "--", name]
        result = run(argv, timeout_s=deadline.bound(SYSTEMCTL_TIMEOUT_S), env=host_path())
        if result.status in host.NO_TOOL:
            raise ModuleFailed(
                f"cannot {verb} host service {name}: the host has no systemctl",
                f"{verb.capitalize()} it with the host's own tools, then run again.",
            )
        if result.status:
            raise ModuleFailed(
                f"cannot {verb} host service {name}: {result.last_line}", f"Run `systemctl {verb} {name}` there."
            )

    def remove(self, path: str) -> None:
        what = f"cannot remove {path} on the host"
        with translated(ModuleFailed, what, "Remove it by hand, then run again."):
            self._files.remove(path)

    def save_evidence(self, name: str, lines: tuple[str, ...], deadline: Deadline) -> str:
        """See the port. Looks for users of the device only while a module has users."""
        roots, paths = self._roots, self._profile.paths
        if not paths.evidence:
            return ""
        is_used = any(users(module) for module in self.modules().values())
        nodes, timeout_s = driver_nodes(roots, self._profile), deadline.bound(EVIDENCE_HOLDERS_S)
        holders = holders_within(roots, nodes, timeout_s) if is_used else ["none: no module of the driver has a user"]
        known = (*lines, "", "health-watch's last samples:", *self._samples())
        name = f"{int(self._clock.wall())}-{self._profile.name}-{name}"
        return save_evidence(roots, paths.evidence, name, known, holders)

    def _samples(self) -> tuple[str, ...]:
        """Health-watch's last samples of this boot; empty if the driver was healthy or health-watch does not run."""
        text = self._files.text(self._profile.paths.health_record)
        return decode_watch_record(text, boot_id(self._roots)).evidence

    def unwritable(self, paths: tuple[str, ...]) -> Mapping[str, str]:
        return unwritable(self._files, self._profile, paths, tries=True)

    def exists(self, path: str) -> bool:
        with translated(ConfigError, f"cannot access {path} on the host", "Check that path."):
            return self._files.exists(path)

    def write_text(self, path: str, text: str, *, is_secret: bool = False) -> None:
        self._files.write(path, text, 0o600 if is_secret else 0o644)

    @contextlib.contextmanager
    def at_work(self) -> Generator[bool, None, None]:
        with contextlib.ExitStack() as stack:
            try:
                lock = WorkLock(self._files, self._profile.paths.work_lock)
                held = stack.enter_context(lock.working(self._clock, WORK_LOCK_S))
            except OSError:
                held = False
            yield held

    def remove_marker(self, seen: host.Marker) -> None:
        remove_marker(self._files, self._profile.paths.reboot_marker, seen)

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
        """Unload what a failed modprobe left, the modules not in `before`, except those in use. Raises ModuleStuck."""
        loaded = self.modules()
        new = {name: module for name, module in loaded.items() if name not in before}
        for name in unload_order(new, self._profile.modules.order):
            try:
                self.unload(name, deadline)
            except ModuleStuck:
                raise
            except ManagerError:
                continue

    def _times_mounted(self, mount_point: str) -> int:
        mountinfo = (self._roots.proc / "1/mountinfo").read_text(errors="surrogateescape")
        return mount_points_below(mountinfo, mount_point).count(mount_point)
