"""Reboot of the host: the check that it is possible, and the command that starts it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence

from driver_manager.adapters.host.evidence import holders_within, save_evidence
from driver_manager.adapters.host.files import HostFiles, HostRoots, WorkLock, machine_id, system_uuid, translated
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


INHIBITORS = "/run/systemd/inhibit"
CONFIGS = tuple(f"{folder}/systemd/logind.conf.d" for folder in ("/usr/lib", "/usr/local/lib", "/run", "/etc"))
DELAY_S = 5.0
"""logind's default (logind.conf(5), InhibitDelayMaxSec)."""

LONGEST_DELAY_S = 3600.0
_DELAY = re.compile(r"^[ \t]*InhibitDelayMaxSec[ \t]*=(.*)$", re.MULTILINE)
_UNITS_S = {
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("us", "usec", "\N{GREEK SMALL LETTER MU}s", "\N{MICRO SIGN}s"), 1e-6),
}
"""Units of a time span of less than `LONGEST_DELAY_S` (systemd.time(7); M is a month)."""


def shutdown_delay_s(files: HostFiles) -> float:
    """How long logind may delay a shutdown: a kubelet asks for it, so that its pods end (kubernetes.io, node shutdown).

    0 if no program has asked for it. Source: systemd-inhibit(1); logind.conf(5), of whose files the last one counts.
    """
    with contextlib.suppress(OSError):
        asked = (files.read(f"{INHIBITORS}/{name}") or "" for name in files.names(INHIBITORS) if "." not in name)
        if any(_delays_shutdown(text) for text in asked):
            return min(LONGEST_DELAY_S, _longest_delay_s(files))
    return 0.0


def _delays_shutdown(text: str) -> bool:
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return fields.get("MODE") == "delay" and "shutdown" in fields.get("WHAT", "").split(":")


def _longest_delay_s(files: HostFiles) -> float:
    found: dict[str, str] = {}
    for folder in CONFIGS:  # a file in a later folder takes the place of one with its name
        with contextlib.suppress(OSError):
            found |= {name: f"{folder}/{name}" for name in files.names(folder) if name.endswith(".conf")}
    delay_s = DELAY_S
    for path in ("/etc/systemd/logind.conf", *(found[name] for name in sorted(found))):
        with contextlib.suppress(OSError):
            for text in _DELAY.findall(files.read(path) or ""):
                delay_s = _span_s(text) if text.strip() else DELAY_S
    return delay_s


def _span_s(text: str) -> float:
    """Seconds of a time span; the longest one for what is not one, and for days and more."""
    parts = re.findall(r"([0-9.]+)\s*([^\s0-9.]*)", text)
    try:
        return sum(float(number) * _UNITS_S[unit] for number, unit in parts) if parts else LONGEST_DELAY_S
    except (KeyError, ValueError):
        return LONGEST_DELAY_S


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

    def shutdown_delay_s(self) -> float:
        return shutdown_delay_s(self._files)

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
