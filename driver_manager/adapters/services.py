"""Host services: which are active, stop, start. systemctl runs in the host's mount namespace, argv only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from driver_manager.adapters.commands import run
from driver_manager.adapters.namespaces import in_host_mounts
from driver_manager.domain.errors import ModuleFailed

SYSTEMCTL_TIMEOUT_S = 90.0


def active(sys_root: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that run, by their cgroup: nothing of the host is executed to find out."""
    folders = (sys_root / "fs/cgroup/system.slice", sys_root / "fs/cgroup/systemd/system.slice")
    return tuple(name for name in names if any((folder / name).is_dir() for folder in folders))


def stop(proc: Path, name: str) -> None:
    """Stop a service and wait for it. Raises ModuleFailed."""
    _systemctl(proc, "stop", name)


def start(proc: Path, name: str) -> None:
    """Start a service. Raises ModuleFailed."""
    _systemctl(proc, "start", name)


def _systemctl(proc: Path, verb: str, name: str) -> None:
    argv = [*in_host_mounts(proc), "systemctl", verb, "--", name]
    result = run(argv, timeout_s=SYSTEMCTL_TIMEOUT_S)
    if result.status:
        raise ModuleFailed(f"cannot {verb} host service {name}: {result.said}", f"Run `systemctl {verb} {name}` there.")
