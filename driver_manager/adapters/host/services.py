"""Services of the host: show, stop and start them. systemctl runs in the host's mount namespace."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.holders import host_path, in_host_mounts
from driver_manager.adapters.process.run import run
from driver_manager.core.ports_base import Clock
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ModuleFailed
from driver_manager.domain.host import NO_TOOL

SYSTEMCTL_TIMEOUT_S = 10.0
STOP_S = 60.0
START_S = 1.0
POLL_S = 0.05


def active(sys_root: Path, names: Iterable[str]) -> tuple[str, ...]:
    """The running services in `names`. Reads their cgroups and executes no program of the host."""
    folders = (sys_root / "fs/cgroup/system.slice", sys_root / "fs/cgroup/systemd/system.slice")
    return tuple(name for name in names if any((folder / name).is_dir() for folder in folders))


def stop(roots: HostRoots, name: str, clock: Clock, deadline: Deadline) -> None:
    """Stop a service and wait until its processes have ended. Raises ModuleFailed, Terminated."""
    _systemctl(roots.proc, "stop", name, deadline)
    ended = deadline.within(STOP_S)
    if not _becomes(roots.sys, name, clock, ended, wanted=False):
        raise ModuleFailed(
            f"host service {name} did not stop within {ended.allowed_s:g} s", f"Look at `systemctl status {name}`."
        )


def start(roots: HostRoots, name: str, clock: Clock, deadline: Deadline) -> None:
    """Start a service and wait up to `START_S`, a short time, for it. Raises ModuleFailed."""
    _systemctl(roots.proc, "start", name, deadline)
    if not _becomes(roots.sys, name, clock, deadline.within(START_S), wanted=True):
        raise ModuleFailed(
            f"host service {name} was started but is not running yet", f"Look at `systemctl status {name}`."
        )


def _becomes(sys_root: Path, name: str, clock: Clock, deadline: Deadline, *, wanted: bool) -> bool:
    while bool(active(sys_root, [name])) is not wanted:
        if deadline.is_over:
            return False
        clock.sleep(POLL_S)
    return True


def _systemctl(proc: Path, verb: str, name: str, deadline: Deadline) -> None:
    """Queue the job without waiting: a signal would not interrupt systemctl's wait. Raises ModuleFailed."""
    argv = [*in_host_mounts(proc), "systemctl", verb, "--no-block", "--", name]
    result = run(argv, timeout_s=deadline.bound(SYSTEMCTL_TIMEOUT_S), env=host_path())
    if result.status in NO_TOOL:
        raise ModuleFailed(
            f"cannot {verb} host service {name}: the host has no systemctl",
            f"{verb.capitalize()} it with the host's own tools, then run again.",
        )
    if result.status:
        raise ModuleFailed(
            f"cannot {verb} host service {name}: {result.last_line}", f"Run `systemctl {verb} {name}` there."
        )
