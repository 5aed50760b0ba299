"""Reads the host's side of an observation: modules, digest, mounts, artifacts, sources. Changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from driver_manager.adapters.host import mounts, services
from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.host.marker_file import read_marker
from driver_manager.adapters.host.modules import firmware, kmod
from driver_manager.adapters.host.modules.options import loaded_parameters
from driver_manager.adapters.host.modules.tree import ModuleTrees
from driver_manager.adapters.host.pci import pci_devices
from driver_manager.adapters.host.pci_bus import read_bus
from driver_manager.adapters.host.roots import HostRoots, boot_id, kernel_fact, machine_id
from driver_manager.adapters.host.slots import look, may_have_slots
from driver_manager.adapters.host.sources import Sources
from driver_manager.domain import bindings, host_record, reboot_wish
from driver_manager.domain.bindings import Binding
from driver_manager.domain.digest import is_digest
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.failure import PastFailure, noted
from driver_manager.domain.host import Host, LoadRecord
from driver_manager.domain.host_paths import RUN_RECORD, HostPaths
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.journal import Journal, OldDriver
from driver_manager.domain.modules import has_root
from driver_manager.domain.profile import Modules, Profile
from driver_manager.domain.reboot import record as reboot_record
from driver_manager.domain.reboot.record import RecordUnreadable
from driver_manager.domain.reboot_wish import RebootWish, WishUnreadable
from driver_manager.domain.safe_root import is_safe_root

MAX_BINDINGS_BYTES = 1024 * 1024
"""Of a host with thousands of functions."""


def read_host(  # noqa: PLR0913  # what the source of the driver depends on
    roots: HostRoots,
    profile: Profile,
    driver_root: str,
    journal: Journal | None,
    *,
    loads: bool,
    ships: bool = False,
    wanted: str = "",
    picks_vfio: bool = False,
) -> Host:
    """All facts of the host. `loads` says whether this run loads the driver, so that its source matters; `ships`
    whether the host does: then the source is what it has on disk.

    `wanted` is the digest of the wanted driver. `picks_vfio`: which vfio module serves each device matters. Raises
    ConfigError where the host cannot be read.
    """
    try:
        host = _read_host(roots, profile, driver_root, journal, wanted if loads else "", loads=loads, ships=ships)
        return replace(host, bus=read_bus(roots, profile, host.kernel_release, picks_vfio=picks_vfio))
    except OSError as error:
        raise ConfigError(
            f"cannot read {error.filename or roots.root} of the host: {error.strerror}",
            "Run as root with the host's root mounted (HOST_ROOT); check that path on the host.",
        ) from error


def _read_host(  # noqa: PLR0913  # as above
    roots: HostRoots,
    profile: Profile,
    driver_root: str,
    journal: Journal | None,
    wanted: str,
    *,
    loads: bool,
    ships: bool,
) -> Host:
    files, paths = roots.files(), profile.paths
    this_boot, kernel = boot_id(roots), kernel_fact(roots, "osrelease")
    trees = ModuleTrees(files, roots.proc, roots.sys, kernel, profile.modules, paths.firmware)
    modules = kmod.driver_modules(roots.sys, profile.modules)
    digest, digest_problem = _digest(files, paths.state_file)
    marker, marker_problem = read_marker(files, paths.reboot_marker)
    record = _record(files, paths.load_record, this_boot)
    run, left = host_record.parted(_run_records(files, paths, this_boot), journal.record if journal else "")
    old = run.driver if run is not None else None
    old = old or host_record.lost_driver(left, is_loaded=has_root(modules, profile.modules), digest=digest)
    if old is None and journal is not None and journal.driver is not None:
        old = OldDriver(journal.driver.version)  # of a root that this host knows without the Node
    artifacts = tuple(path for path in _artifacts(profile) if files.exists(path))
    version = next((modules[name].version for name in profile.modules.roots if name in modules), "")
    root = driver_root or paths.driver_root
    slots = look(files, roots.proc, root, wanted, kernel) if may_have_slots(profile, files.real(root)) else None
    sources = Sources(trees, profile, slots if wanted else None, wanted)
    return Host(
        boot_id=this_boot,
        kernel_release=kernel,
        machine_id=machine_id(roots),
        modules=modules,
        leaving=kmod.leaving_modules(roots.sys, profile.modules),
        parameters=loaded_parameters(roots.sys, modules) if loads else {},
        digest=digest,
        digest_problem=digest_problem,
        root_mounts=_root_mounts(roots, files.real(paths.driver_root)),
        artifacts=artifacts,
        host_driver=sources.host_driver(),
        source=sources.wanted(driver_root) if loads else sources.shipped(driver_root) if ships else None,
        previous_source=sources.before(driver_root, old, record, digest, version),
        pci_devices=pci_devices(roots, profile),
        conflicting=kmod.loaded_among(roots.sys, profile.modules.conflicting),
        marker=marker,
        marker_problem=marker_problem,
        reboot_wish=_reboot_wish(files, paths.reboot_wish),
        granted_reboot=_granted_reboot(files, paths.rebooter_record, this_boot),
        enforces_signatures=enforces_signatures(roots.sys),
        unwritable=unwritable(
            files, profile, (*paths.records(journal.record if journal else ""), *artifacts, *paths.reboot_files())
        ),
        active_services=services.active(roots.sys, profile.host_services),
        permanent=kmod.permanent(roots.proc, modules),
        are_modules_frozen=_text(roots.proc / "sys/kernel/modules_disabled") == "1",
        failure=_failure(files, paths.failure_note, this_boot),
        bindings=_bindings(files, paths.bindings, this_boot),
        slots=slots,
        removable=kmod.driver_modules(roots.sys, Modules(profile.modules.conflicting_removable)),
        firmware_path=firmware.custom_path(roots.sys) if paths.firmware else "",
        run_record=run,
        left_records=left,
    )


def unwritable(files: HostFiles, profile: Profile, paths: Iterable[str], *, tries: bool = False) -> Mapping[str, str]:
    """Why a run cannot write, remove or lock each file of `paths`, of the profile's locks and evidence where it cannot.

    `tries`: write a file in each folder to find out.
    """
    known, tried = profile.paths, set[str]()
    evidence = f"{known.evidence}/any"
    found = {path: files.why_no_lock(path) for path in known.locks()}
    for path in dict.fromkeys((*paths, *([evidence] if known.evidence else []))):
        folder = path.rpartition("/")[0]
        found[path] = files.why_not_writable(path, tries=tries and folder not in tried)
        tried.add(folder)
    return {path: why for path, why in found.items() if why}


def _failure(files: HostFiles, path: str, this_boot: str) -> PastFailure | None:
    """What an earlier run of this boot noted; None for garbage and for other boots."""
    try:
        return noted(files.read(path) or "", this_boot)
    except OSError:
        return None


def _run_records(files: HostFiles, paths: HostPaths, this_boot: str) -> tuple[HostRecord, ...]:
    """What runs of this boot have to undo; garbage is none, and so is a record in the file of another run."""
    folder, found = paths.run_record("").rpartition("/")[0], list[HostRecord]()
    try:
        names = sorted(name for name in files.names(folder) if name.startswith(RUN_RECORD) and name.endswith(".json"))
    except OSError:
        return ()
    for name in names:
        try:
            record = host_record.noted(files.read(f"{folder}/{name}", MAX_BINDINGS_BYTES) or "", this_boot)
        except OSError:
            continue
        if record is not None and paths.run_record(record.run) == f"{folder}/{name}":
            found.append(record)
    return tuple(found)


def _bindings(files: HostFiles, path: str, this_boot: str) -> tuple[Binding, ...]:
    """What a run of this boot found the devices bound to; none for garbage and for other boots."""
    try:
        return bindings.noted(files.read(path, MAX_BINDINGS_BYTES) or "", this_boot)
    except OSError:
        return ()


def enforces_signatures(sys_root: Path) -> bool:
    """Whether this kernel refuses unsigned modules: by its own switch, or locked down (kernel_lockdown(7))."""
    enforced = _text(sys_root / "module/module/parameters/sig_enforce") == "Y"
    lockdown = _text(sys_root / "kernel/security/lockdown")
    return enforced or "[integrity]" in lockdown or "[confidentiality]" in lockdown


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _artifacts(profile: Profile) -> tuple[str, ...]:
    paths = profile.paths
    known = (*paths.artifacts, paths.ready_marker, paths.ready_withdrawn, paths.state_file, paths.load_record)
    known += (paths.failure_note,)
    return tuple(path for path in known if path)


def _digest(files: HostFiles, path: str) -> tuple[str | None, str]:
    """The recorded digest, and why it cannot be used."""
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


def _record(files: HostFiles, path: str, this_boot: str) -> LoadRecord | None:
    """The note of an earlier `DRIVER_LOAD=manager` run of this boot; None for garbage and other boots."""
    try:
        body = json.loads(files.read(path) or "null")
        record = LoadRecord(str(body["bootId"]), str(body["root"]), str(body["version"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return record if record.boot_id == this_boot and record.root.startswith("/") else None


def _reboot_wish(files: HostFiles, path: str) -> RebootWish | None:
    """What a reboot was last asked for; None for garbage, which costs one more request at most."""
    try:
        text = files.read(path) if path else None
        return reboot_wish.decode(text) if text is not None else None
    except (OSError, WishUnreadable):
        return None


def _granted_reboot(files: HostFiles, path: str, this_boot: str) -> str | None:
    """The reason of the reboot that the rebooter's record has granted, "" if none, None if it cannot be read."""
    try:
        text = files.read(path) if path else None
        return reboot_record.decode(text).granted(this_boot) if text is not None else ""
    except (OSError, RecordUnreadable):
        return None


def _root_mounts(roots: HostRoots, driver_root: str) -> tuple[str, ...]:
    """Mounts at and below the driver root, `driver_root` being its path without symlinks."""
    if not is_safe_root(driver_root):
        raise ConfigError(
            f"the driver root resolves to the system directory {driver_root}",
            "Remove the symlink that leads there. Nothing was changed.",
        )
    path = roots.proc / "1/mountinfo"
    try:
        return mounts.mount_points_below(path.read_text(errors="surrogateescape"), driver_root)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "Run as root with the host's /proc.") from error
