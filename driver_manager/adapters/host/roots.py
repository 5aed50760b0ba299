"""Where this process sees the host, and the plain facts that everybody asks for. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from driver_manager.adapters.host.files import HostFiles
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.frozen import Frozen


class HostRoots(Frozen):
    """Where this process sees the host: its root, /proc, /sys and /dev."""

    root: Path
    proc: Path
    sys: Path
    dev: Path

    def files(self) -> HostFiles:
        """The host's files."""
        return HostFiles(self.root, self.proc)

    def to_document(self) -> dict[str, str]:
        """For another interpreter of this version."""
        return {name: str(path) for name, path in asdict(self).items()}

    @classmethod
    def from_document(cls, document: Mapping[str, str]) -> HostRoots:
        """What `to_document` made."""
        return cls(**{name: Path(path) for name, path in document.items()})


def boot_id(roots: HostRoots) -> str:
    """The kernel's id of this boot. Raises ConfigError."""
    return kernel_fact(roots, "random/boot_id")


def machine_id(roots: HostRoots) -> str:
    """The host's machine id (machine-id(5)), "" if it has none. Raises OSError."""
    return (roots.files().read("/etc/machine-id") or "").strip()


def kernel_fact(roots: HostRoots, name: str) -> str:
    """One line of /proc/sys/kernel. Raises ConfigError."""
    path = roots.proc / "sys/kernel" / name
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}", "Mount the host's /proc (PROC_ROOT)."
        ) from error
