"""Host services: which are active, stop, start. systemctl runs in the host's mount namespace, argv only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from driver_manager.adapters.host.namespaces import in_host_mounts
from driver_manager.adapters.process.run import run
from driver_manager.domain.errors import ModuleFailed
from driver_manager.ports import Clock

SYSTEMCTL_TIMEOUT_S = 10.0
STOP_S = 60.0
START_S = 1.0
POLL_S = 0.05


def active(sys_root: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that run, by their cgroup: nothing of the host is executed to find out."""
    folders = (sys_root / "fs/cgroup/system.slice", sys_root / "fs/cgroup/systemd/system.slice")
    return tuple(name for name in names if any((folder / name).is_dir() for folder in folders))


def stop(proc: Path, sys_root: Path, name: str, clock: Clock) -> None:
    """Stop a service and wait until its processes have ended. Raises ModuleFailed, Terminated."""
    _systemctl(proc, "stop", name)
    if not _becomes(sys_root, name, clock, STOP_S, wanted=False):
        raise ModuleFailed(
            f"host service {name} does not stop within {STOP_S:g} s", f"Look at `systemctl status {name}`."
        )


def start(proc: Path, sys_root: Path, name: str, clock: Clock) -> None:
    """Start a service; waits only shortly, as this is on every way out. Raises ModuleFailed."""
    _systemctl(proc, "start", name)
    if not _becomes(sys_root, name, clock, START_S, wanted=True):
        raise ModuleFailed(f"host service {name} was told to start and does not run yet", f"`systemctl status {name}`.")


def _becomes(sys_root: Path, name: str, clock: Clock, timeout_s: float, *, wanted: bool) -> bool:
    end = clock.monotonic() + timeout_s
    while bool(active(sys_root, [name])) is not wanted:
        if clock.monotonic() >= end:
            return False
        clock.sleep(POLL_S)
    return True


def _systemctl(proc: Path, verb: str, name: str) -> None:
    """Queue the job and come back at once: a wait of ours can be interrupted, one of systemctl cannot."""
    argv = [*in_host_mounts(proc), "systemctl", verb, "--no-block", "--", name]
    result = run(argv, timeout_s=SYSTEMCTL_TIMEOUT_S)
    if result.status:
        raise ModuleFailed(
            f"cannot {verb} host service {name}: {result.last_line}", f"Run `systemctl {verb} {name}` there."
        )
