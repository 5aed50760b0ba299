"""Reads the host's side of an observation: modules, digest, mounts, artifacts, sources. Changes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from driver_manager.adapters import kmod, procfs
from driver_manager.adapters.rooted import HostFiles
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.journal import Journal
from driver_manager.domain.model import DriverSource, Host, LoadRecord, RebootMarker
from driver_manager.domain.profile import Profile

MAX_DIGEST_CHARS = 256
HOST = "/"


@dataclass(frozen=True)
class HostRoots:
    """Where this process sees the host: its root, /proc, /sys and /dev."""

    root: Path
    proc: Path
    sys: Path
    dev: Path

    def files(self) -> HostFiles:
        """The host's files."""
        return HostFiles(self.root, self.proc)


def boot_id(roots: HostRoots) -> str:
    """The kernel's id of this boot. Raises ConfigError."""
    return _kernel_fact(roots, "random/boot_id")


def _kernel_fact(roots: HostRoots, name: str) -> str:
    path = roots.proc / "sys/kernel" / name
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}", "Mount the host's /proc (PROC_ROOT)."
        ) from error


def pci_devices(roots: HostRoots, profile: Profile) -> tuple[str, ...]:
    """PCI addresses of the vendor's accelerators, by vendor id and class (sysfs-bus-pci)."""
    found = []
    folder = roots.sys / "bus/pci/devices"
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return ()
    for entry in entries:
        vendor, kind = _hex(entry / "vendor"), _hex(entry / "class")
        device = _hex(entry / "device")
        wanted_class = not profile.pci_classes or any(kind.startswith(prefix) for prefix in profile.pci_classes)
        wanted_device = not profile.pci_devices or device in profile.pci_devices
        if vendor == profile.pci_vendor and wanted_class and wanted_device:
            found.append(entry.name)
    return tuple(found)


def _hex(path: Path) -> str:
    try:
        return path.read_text().strip().removeprefix("0x").lower()
    except (OSError, ValueError):
        return ""


def read_host(roots: HostRoots, profile: Profile, driver_root: str, journal: Journal | None, *, loads: bool) -> Host:
    """All facts of the host. `loads` says whether this run loads the driver, so that its source matters.

    Raises ConfigError where /proc or /sys cannot be read.
    """
    files, paths = roots.files(), profile.paths
    this_boot, kernel = boot_id(roots), _kernel_fact(roots, "osrelease")
    modules = kmod.driver_modules(roots.sys, profile.modules)
    digest, digest_problem = _digest(files, paths.state_file)
    record = _record(files, paths.load_record, this_boot)
    offered = _source(files, profile, kernel, driver_root) if loads else None
    version = next((modules[name].version for name in profile.modules.roots if name in modules), "")
    return Host(
        boot_id=this_boot,
        kernel_release=kernel,
        machine_id=(files.read("/etc/machine-id") or "").strip(),
        modules=modules,
        digest=digest,
        digest_problem=digest_problem,
        record=record,
        root_mounts=_root_mounts(roots, files.real(paths.driver_root)),
        artifacts=tuple(path for path in _artifacts(profile) if files.exists(path)),
        host_driver=_host_driver(files, profile, kernel),
        source=offered,
        previous_source=_previous(
            files, profile, kernel, _previous_roots(profile, driver_root, record, journal), version
        )
        if modules
        else _previous_of(files, profile, kernel, journal),
        pci_devices=pci_devices(roots, profile),
        conflicting=kmod.loaded_among(roots.sys, profile.modules.conflicting),
        marker=_marker(files, paths.reboot_marker),
    )


def _artifacts(profile: Profile) -> tuple[str, ...]:
    paths = profile.paths
    known = (*paths.artifacts, paths.ready_marker, paths.state_file, paths.load_record)
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
    if not value or len(value) > MAX_DIGEST_CHARS or not value.isprintable() or " " in value:
        return None, f"{path} does not hold one digest"
    return value, ""


def _record(files: HostFiles, path: str, this_boot: str) -> LoadRecord | None:
    """The note of an earlier `DRIVER_LOAD=manager` run of this boot; None for garbage and other boots."""
    try:
        body = json.loads(files.read(path) or "null")
        record = LoadRecord(str(body["bootId"]), str(body["root"]), str(body["version"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return record if record.boot_id == this_boot and record.root.startswith("/") else None


def _root_mounts(roots: HostRoots, driver_root: str) -> tuple[str, ...]:
    path = roots.proc / "1/mountinfo"
    try:
        return procfs.mount_points_below(path.read_text(errors="surrogateescape"), driver_root)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "Run as root with the host's /proc.") from error


def _host_driver(files: HostFiles, profile: Profile, kernel: str) -> str:
    """Path of the driver's module in the host's own module tree, "" if it has none; nothing is run to find out."""
    found = (kmod.find_in_tree(files, HOST, kernel, name) for name in profile.modules.roots)
    return next((path for path in found if path), "")


def _source(files: HostFiles, profile: Profile, kernel: str, driver_root: str) -> DriverSource:
    """Where the manager loads from: DRIVER_ROOT, else the profile's root where it has modules, else the host's."""
    roots = profile.modules.roots
    if driver_root:
        return kmod.source(files, driver_root, kernel, roots)
    own = kmod.source(files, profile.paths.driver_root, kernel, roots)
    return (
        own if not own.problem or not _host_driver(files, profile, kernel) else kmod.source(files, HOST, kernel, roots)
    )


def _previous_roots(
    profile: Profile, driver_root: str, record: LoadRecord | None, journal: Journal | None
) -> list[str]:
    """Roots that the loaded driver may have come from, the likeliest first."""
    journaled = journal.driver.root if journal and journal.driver else ""
    known = [record.root if record else "", journaled, profile.paths.driver_root, driver_root, HOST]
    return list(dict.fromkeys(root for root in known if root))


def _previous(files: HostFiles, profile: Profile, kernel: str, roots: list[str], version: str) -> DriverSource | None:
    """The first of `roots` that still offers the loaded `version`."""
    for root in roots:
        offered = kmod.source(files, root, kernel, profile.modules.roots)
        if not offered.problem and offered.version == version:
            return offered
    return None


def _previous_of(files: HostFiles, profile: Profile, kernel: str, journal: Journal | None) -> DriverSource | None:
    """The old driver that the journal remembers, where its root still offers it."""
    driver = journal.driver if journal else None
    if driver is None or not driver.root:
        return None
    return _previous(files, profile, kernel, [driver.root], driver.version)


def _marker(files: HostFiles, path: str) -> RebootMarker | None:
    """The reboot-required marker. Plain text is the form of an older operator: it has no boot id and no schema."""
    try:
        text = files.read(path) if path else None
    except OSError:
        return None
    if text is None:
        return None
    try:
        body = json.loads(text)
        return RebootMarker(str(body.get("reason", "")), str(body.get("bootId", "")), text.strip()[:300])
    except (ValueError, AttributeError, RecursionError):
        return RebootMarker("upgrade", "", text.strip()[:300])
