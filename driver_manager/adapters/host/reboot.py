"""Reboot of the host: the check that it is possible, and the command that starts it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from driver_manager.adapters.host.evidence import holders_within, save_evidence
from driver_manager.adapters.host.files import HostRoots, WorkLock, machine_id, system_uuid, translated
from driver_manager.adapters.host.holders import device_nodes, host_path, in_host
from driver_manager.adapters.host.modules import driver_modules, driver_nodes
from driver_manager.adapters.host.notes import RebootFiles, remove_marker
from driver_manager.adapters.host.pci import pci_devices
from driver_manager.adapters.process.run import run
from driver_manager.core.ports_base import Clock
from driver_manager.domain.errors import ManagerError, ModuleFailed
from driver_manager.domain.host import TIMED_OUT, Marker
from driver_manager.domain.profile import Profile, has_root
from driver_manager.domain.reboot.state import RebootAnswer, Record

COMMAND_TIMEOUT_S = 60.0
"""A reboot command queues the reboot and returns. If it hangs, the rebooter waits for the grace period."""

SYSRQ = "sub"
"""Sync, remount read-only, reboot at once (admin-guide/sysrq)."""

BETWEEN_SYSRQ_S = 2.0
WAY_IN_S = 10.0
FOUND_NO_PROGRAM = "failed to execute"
"""Message of nsenter(1) if it entered the namespaces and the program is missing (util-linux, lib/exec_shell.c,
errexec)."""

HOLDERS_S = 10.0


class HostRebooter(RebootFiles):
    """See `driver_manager.core.ports.RebootHost`. `command` is the reboot's argv; `publish` as in `RebootFiles`."""

    def __init__(
        self,
        roots: HostRoots,
        profile: Profile,
        clock: Clock,
        command: Sequence[str],
        publish: Callable[[Record], None] = lambda _: None,
    ) -> None:
        super().__init__(roots, profile.paths.reboot_marker, profile.paths.rebooter_record, publish)
        self._profile = profile
        self._clock = clock
        self._command = tuple(command)
        self._lock = WorkLock(self._files, profile.paths.work_lock)

    def machine_id(self) -> str:
        try:
            return machine_id(self._roots)
        except OSError:
            return ""

    def system_uuid(self) -> str:
        return system_uuid(self._roots)

    def why_not_ready(self) -> str:
        profile, roots = self._profile, self._roots
        if not has_root(driver_modules(roots.sys, profile.modules), profile.modules):
            return f"the {profile.name} driver is not loaded"
        patterns = profile.expected_nodes
        if patterns and pci_devices(roots, profile) and not device_nodes(roots.dev, patterns):
            return "the driver has not created a device node yet"
        ready = profile.paths.ready_marker
        is_ready = not ready or self._files.exists(ready)
        return "" if is_ready else f"the driver's ready marker {ready} is not there yet"

    def remove_marker(self, seen: Marker) -> None:
        with contextlib.ExitStack() as stack:
            is_alone = True
            with contextlib.suppress(OSError):  # without a lock, the comparison in `remove_marker` still protects it
                is_alone = stack.enter_context(self._lock.alone(self._clock))
            if not is_alone:
                raise ModuleFailed(
                    f"{self._marker} stays: another run is working on the driver", "No action needed; it is retried."
                )
            remove_marker(self._files, self._marker, seen)

    def save_evidence(self, name: str, lines: tuple[str, ...]) -> None:
        roots, paths = self._roots, self._profile.paths
        if paths.reboot_evidence:
            holders = holders_within(roots, driver_nodes(roots, self._profile), HOLDERS_S)
            save_evidence(roots, paths.reboot_evidence, name, lines, holders)

    def why_no_way_in(self) -> str:
        try:
            words = in_host(self._roots.proc)
        except ModuleFailed as error:
            return f"{error.what} ({error.remedy})"
        if not words:
            return ""
        # The host need not have this program: nsenter fails before it looks for it.
        result = run([*words, "true"], timeout_s=WAY_IN_S)
        if result.status and FOUND_NO_PROGRAM not in result.err:
            return f"the host's namespaces cannot be entered: {result.last_line} (the pod needs hostPID and privileged)"
        return "" if self._has_program() else self._no_program()

    def _has_program(self) -> bool:
        """True if the host has the program of the reboot command, or if that is unknown. Some hosts have no systemd."""
        name = self._command[0]
        folders = [""] if "/" in name else [f"{folder}/" for folder in host_path()["PATH"].split(os.pathsep)]
        try:
            return any(self._files.exists(f"{folder}{name}") for folder in folders)
        except OSError:
            return True

    def _no_program(self) -> str:
        return f"the host has no {self._command[0]} to reboot with: set REBOOT_COMMAND to a command that the host has"

    def reboot(self) -> RebootAnswer:
        """See the port. A command that was killed or that hangs may have requested the reboot already."""
        try:
            enter = in_host(self._roots.proc)
            result = run([*enter, *self._command], timeout_s=COMMAND_TIMEOUT_S, env=host_path(), may_leave=True)
        except ManagerError as error:
            return RebootAnswer(error.what, is_refused=True)
        is_refused = result.status > 0 and result.status != TIMED_OUT
        problem = self._no_program() if FOUND_NO_PROGRAM in result.err else result.last_line
        return RebootAnswer(problem if result.status else "", is_refused)

    def force_reboot(self) -> None:
        path = self._roots.proc / "sysrq-trigger"
        for letter in SYSRQ:
            with translated(ModuleFailed, f"cannot write {path}", "Reboot the node by hand."):
                descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
                with os.fdopen(descriptor, "w") as trigger:
                    trigger.write(letter)
            with self._clock.shielded():
                self._clock.sleep(BETWEEN_SYSRQ_S)
