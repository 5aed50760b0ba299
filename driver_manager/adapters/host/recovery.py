"""The host side of a recovery: its files, the device nodes of one device, their users, and the vendor's reset."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec.structs import replace

from driver_manager.adapters.host.files import HostRoots, WorkLock, changing, names_in, target_of, text_of, translated
from driver_manager.adapters.host.holders import BY_NUMBER, LOOK_S, Looks, device_nodes, find_holders, whose
from driver_manager.adapters.host.modules import driver_nodes
from driver_manager.adapters.host.notes import MAX_RECORD_BYTES, DriverFiles, uptime_s
from driver_manager.adapters.host.pci import devices_folder
from driver_manager.adapters.host.probe import ProbeCommand, probe_command, stays_ready, why_no_tool
from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.process.forked import lines_within
from driver_manager.adapters.process.supervisor import OUT_BYTES, StillStuckError, Supervisor
from driver_manager.domain.errors import ConfigError, ManagerError
from driver_manager.domain.host import TIMED_OUT, UNREAD, Holder, ReloadRequest, encode_reload_request
from driver_manager.domain.profile import ADDRESS, Probe, Profile, Reset
from driver_manager.domain.recovery import (
    RecoveryRecord,
    RecoveryRecordUnreadable,
    ResetAnswer,
    decode_recovery_record,
    encode_recovery_record,
)
from driver_manager.domain.text import one_line

_PCI_ADDRESS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]", re.ASCII)

# The device nodes of one device. A driver that does not answer may block a read, so a disposable child makes them all.

NODES_S = 5.0
AROUND_S = 30.0
"""Maximum seconds of a command before or after a reset."""
MAX_DEPTH = 12
MAX_FOLDERS = 10_000

_DEVICE_NUMBER = re.compile(r"[0-9]{1,4}:[0-9]{1,8}", re.ASCII)
_DEVICE_NAME = re.compile(r"^DEVNAME=([A-Za-z0-9_-][A-Za-z0-9_.:/-]*)$", re.MULTILINE)
_MINOR = re.compile(r"[0-9]{1,8}", re.ASCII)
_LAST_NUMBER = re.compile(r"[0-9]+$", re.ASCII)


def nodes_of(roots: HostRoots, profile: Profile, address: str) -> tuple[str, ...]:
    """Patterns, for `find_holders`, of the device nodes of one PCI function; empty if they are unknown.

    A user of the device may have any of them open: with `minor_in` both the node that it leads to and those in sysfs,
    as an NVIDIA GPU has /dev/nvidia0 and may have /dev/dri/card0. All are unknown if one part cannot be read, or if
    none is one of the profile's.
    """
    if not _PCI_ADDRESS.fullmatch(address):
        return ()
    return tuple(dict.fromkeys(lines_within(NODES_S, lambda: _nodes(roots, profile, address)) or ()))


def _nodes(roots: HostRoots, profile: Profile, address: str) -> list[str]:
    """As `nodes_of`. Raises OSError and ValueError."""
    found = [one for folder in _device_folders(devices_folder(roots.sys) / address) for one in _in_sysfs(folder)]
    if profile.reset is not None and profile.reset.minor_in:
        found += _by_minor(roots, profile, profile.reset, address)
    patterns = profile.paths.device_nodes
    if patterns and not any(fnmatchcase(name, pattern) for name in found for pattern in patterns):
        raise ValueError(found)  # an I2C adapter alone is not what programs open
    return found


def _device_folders(function: Path) -> Iterator[Path]:
    """The folders below a PCI function that have a `dev` file (sysfs-dev). Follows no link, and enters no function."""
    left, count = [(function, 0)], 0
    while left:
        folder, depth = left.pop()
        count += 1
        if depth > MAX_DEPTH or count > MAX_FOLDERS:
            raise ValueError(folder)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == "dev":
                    yield folder
                elif entry.is_dir(follow_symlinks=False) and not _PCI_ADDRESS.fullmatch(entry.name):
                    left.append((folder / entry.name, depth + 1))


def _in_sysfs(folder: Path) -> Iterator[str]:
    if target_of(folder / "subsystem") == "block":
        return  # its number is not that of a character device
    number = text_of(folder / "dev") or ""
    if not _DEVICE_NUMBER.fullmatch(number):
        raise ValueError(number)
    yield BY_NUMBER + number
    # The name too: a node that is bound to another path is found by its last part.
    name = _DEVICE_NAME.search(text_of(folder / "uevent") or "")
    if name is not None and ".." not in name.group(1):
        yield f"/dev/{name.group(1)}"


def _by_minor(roots: HostRoots, profile: Profile, reset: Reset, address: str) -> list[str]:
    """The profile's device nodes with the number in the device's file of the driver. Raises ValueError if none has."""
    file = roots.proc / reset.minor_in.replace(ADDRESS, address).removeprefix("/proc/")
    rows = (line.partition(":") for line in (text_of(file) or "").splitlines())
    wanted = reset.minor_line.rstrip(": ").split()
    minors = {value.strip() for key, _, value in rows if key.split() == wanted}
    if len(minors) != 1 or not _MINOR.fullmatch(minor := minors.pop()):
        raise ValueError(file)
    nodes = [name for name, number in _numbered(roots, profile) if number == int(minor)]
    if not nodes:
        raise ValueError(minor)
    return nodes


def _numbered(roots: HostRoots, profile: Profile) -> Iterator[tuple[str, int]]:
    """The profile's device nodes whose names end in a number, as patterns, with it."""
    for node in device_nodes(roots.dev, profile.paths.device_nodes):
        number = _LAST_NUMBER.search(node.name)
        if number is not None:
            yield f"/dev/{glob.escape(str(node.relative_to(roots.dev)))}", int(number.group())


def _keeps_ready(process: Path, paths: tuple[str, ...]) -> Iterator[str]:
    """A line if a process serves a socket at one of `paths`. Source: unix_seq_show in net/unix/af_unix.c."""
    rows = (line.split() for line in (text_of(process / "net/unix") or "").splitlines())
    sockets = {f"socket:[{row[6]}]" for row in rows if len(row) > 7 and row[7] in paths}
    if sockets and not sockets.isdisjoint(target_of(process / "fd" / name) for name in names_in(process / "fd")):
        yield process.name


class HostRecovery(DriverFiles):
    """See `driver_manager.core.recovery.RecoveryHost`. `driver_root` is absolute on the host; `clock` is installed.

    `warn` is called with the problem of each call before and after a reset that fails.
    """

    def __init__(
        self,
        roots: HostRoots,
        profile: Profile,
        clock: LoopClock,
        driver_root: str,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(roots, profile, clock, profile.paths.work_lock)
        self._profile = profile
        self._root = driver_root
        self._turn_lock = WorkLock(self._files, profile.paths.recovery_lock)
        self._warn = warn
        self._tool = (profile.reset and profile.reset.tool) or (profile.probe.tool if profile.probe else "")
        self._supervisor = Supervisor(clock, roots.proc)

    def only_turn(self) -> AbstractContextManager[bool]:
        return self._held(self._turn_lock)

    def alone(self) -> AbstractContextManager[bool]:
        return self._locked()

    def uptime_s(self) -> float:
        return uptime_s(self._roots)

    def record(self) -> RecoveryRecord:
        path = self._paths.recovery_record
        with translated(RecoveryRecordUnreadable, f"cannot read {path} on the host", "Look at that path on the host."):
            text = self._files.read(path, MAX_RECORD_BYTES) if path else None
        return decode_recovery_record(text) if text is not None else RecoveryRecord()

    def keep(self, record: RecoveryRecord) -> None:
        self._files.write(self._paths.recovery_record, encode_recovery_record(record), 0o600)

    def request_reload(self, request: ReloadRequest) -> None:
        self._files.write(self._paths.reload_request, encode_reload_request(request), 0o600)

    def withdraw_reload(self) -> None:
        with changing(self._paths.reload_request):
            self._files.remove(self._paths.reload_request)

    def users(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """See the port. Without the processes of this container, and of one that serves a `stays_ready_with`."""
        found, problem = self._holders(devices)
        paths = self._profile.probe.stays_ready_with if self._profile.probe is not None else ()
        pids = [one.pid for one in found if one.pid and one.how != UNREAD] if paths else []
        looks = Looks(self._clock.is_ending, timeout_s=NODES_S)
        keepers = looks.at(pids, lambda pid: _keeps_ready(self._roots.proc / str(pid), paths))
        return (*problem, *(str(one) for one in found if one.pid not in keepers))

    def _holders(self, devices: tuple[str, ...]) -> tuple[list[Holder], tuple[str, ...]]:
        """The processes that have the devices open, or may have, and why there may be more.

        If the nodes of one device are unknown, or `devices` is empty, all device nodes of the driver count.
        """
        virtual = [one for one in devices if any((devices_folder(self._roots.sys) / one).glob("virtfn*"))]
        own = [nodes_of(self._roots, self._profile, device) for device in devices]
        nodes = tuple(node for nodes in own for node in nodes)
        if not own or not all(own):
            nodes = driver_nodes(self._roots, self._profile)
        looks = Looks(self._clock.is_ending, timeout_s=LOOK_S)
        try:
            found = find_holders(self._roots.proc, self._roots.dev, nodes, looks=looks)
        except ManagerError as error:
            return [], (f"unknown: {error.what}",)
        # A probe that is stuck in the kernel is no user.
        _, container = whose(self._roots.proc / "self")
        others = [one for one in found if not container or one.container != container]
        return others, tuple(f"{one} has virtual functions, whose users cannot be determined" for one in virtual)

    def reset(self, devices: tuple[str, ...], begin: Callable[[], None]) -> ResetAnswer:
        """See the port. Ends at the first problem. Raises Terminated, and what `begin` raises."""
        reset, probe = self._profile.reset, self._profile.probe
        if reset is None or probe is None or not devices:
            return ResetAnswer(problem="there is no command or no device for it")
        try:
            resets = self._commands(probe, reset, reset.args, devices)
            is_kept_open = bool(probe.stays_ready_with) and stays_ready(self._files, probe, self._root)
            before = self._commands(probe, reset, reset.before, devices if is_kept_open else ())
            after = self._commands(probe, reset, reset.after, devices if is_kept_open else ())
        except ConfigError as error:
            return ResetAnswer(problem=error.what)
        except OSError as error:
            return ResetAnswer(problem=f"{self._root} on the host cannot be read: {error.strerror}")
        try:
            self._call("before", before)
            users = self._in_use(devices)
            if users:
                return ResetAnswer(users)
            begin()
            return ResetAnswer(problem=self._reset_each(resets, reset))
        finally:
            if not self._clock.is_ending():
                self._call("after", after)

    def _in_use(self, devices: tuple[str, ...]) -> tuple[str, ...]:
        """Everything that prevents a reset now."""
        found, problem = self._holders(devices)
        return (*problem, *map(str, found))

    def _call(self, when: str, commands: dict[str, ProbeCommand]) -> None:
        for device, command in commands.items():
            problem = self._problem(command, AROUND_S)
            if problem:
                self._warn(f"{device}, {when} the reset: {problem}")

    def _reset_each(self, commands: dict[str, ProbeCommand], reset: Reset) -> str:
        """Run the commands by device; the first problem, "" for none."""
        for number, (device, command) in enumerate(commands.items()):
            # The reset of the device before it may have taken minutes.
            users = self._in_use((device,)) if number else ()
            problem = f"in use: {users[0]}" if users else self._problem(command, reset.timeout_s)
            if problem:
                return f"{device}: {problem}"
        return ""

    def _commands(
        self, probe: Probe, reset: Reset, args: tuple[str, ...], devices: tuple[str, ...]
    ) -> dict[str, ProbeCommand]:
        """The vendor's command with `args` by device; none without `args`. Raises ConfigError and OSError."""
        found = {}
        for device in devices if args else ():
            if not _PCI_ADDRESS.fullmatch(device):
                raise ConfigError(f"{device!r} is no PCI address", "Look at the record of recoveries on the host.")
            words = tuple(arg.replace(ADDRESS, device) for arg in args)
            tool = replace(probe, tool=self._tool, args=words)
            command = probe_command(self._files, tool, self._root)
            if command is None:
                raise ConfigError(why_no_tool(self._files, tool, self._root), "Install the vendor's tool.")
            found[device] = command
        return found

    def _problem(self, command: ProbeCommand, limit_s: float) -> str:
        """Why the command failed, "" if it did not. Raises Terminated."""
        try:
            ran = self._supervisor.run(command.argv, command.env, limit_s)
        except StillStuckError as error:
            return f"an earlier {self._tool} (process {error.args[0]}) is stuck in the kernel"
        except OSError as error:
            return f"{self._tool} cannot be run: {error.strerror}"
        if ran.is_cut:
            return f"{self._tool} printed more than {OUT_BYTES // 1024} KiB"
        if ran.status == TIMED_OUT:
            return f"{self._tool} did not end within {limit_s:g} s"
        return one_line(f"{self._tool} failed with exit status {ran.status}: {ran.last_line}") if ran.status else ""
