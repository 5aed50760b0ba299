"""The PciDevices port on a real host: writes to sysfs, each in a disposable child, and who has an IOMMU group open.

An unbind from vfio waits in the kernel, where no signal reaches it, for as long as a process has the device open
(drivers/vfio/vfio_main.c, vfio_unregister_group_dev): no write is done in this process. Sources: sysfs-bus-pci, and
qemu(1) for `-name`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import replace
from functools import partial
from pathlib import Path

from driver_manager.adapters.host.holders import LOOK_S, Looks, find_holders
from driver_manager.adapters.host.pci_bus import devices_folder, read_bus
from driver_manager.adapters.host.roots import HostRoots, kernel_fact
from driver_manager.adapters.process.forked import lines_within
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ModuleFailed, ModuleStuck
from driver_manager.domain.host import Holder
from driver_manager.domain.pci import PciBus
from driver_manager.domain.profile import Profile
from driver_manager.ports.base import Clock

OWN_SYS = Path("/sys")

EFFECT_S = 2.0
"""Until a write shows. The kernel's own are done when the write is."""

EFFECT_POLL_S = 0.02
NAMES_S = 5.0
DMESG = "Look at the kernel log (dmesg)."


class LinuxPciDevices:
    """See `driver_manager.ports.devices.PciDevices`. `load` loads a module of the host's own tree."""

    def __init__(self, roots: HostRoots, profile: Profile, clock: Clock, load: Callable[[str, Deadline], None]) -> None:
        self._roots = roots
        self._profile = profile
        self._clock = clock
        self._load = load
        self._unread: set[int] = set()

    def bus(self) -> PciBus:
        """See the port."""
        return read_bus(self._roots, self._profile, kernel_fact(self._roots, "osrelease"), picks_vfio=False)

    def holders(self, nodes: Set[str], deadline: Deadline) -> tuple[Holder, ...]:
        """See the port."""
        looks = Looks(self._clock.is_ending, self._unread, deadline.bound(LOOK_S))
        found = find_holders(self._roots.proc, self._roots.dev, tuple(sorted(nodes)), looks=looks)
        machines = machines_of(self._roots.proc, {one.pid for one in found if one.pid})
        return tuple(replace(one, machine=machines.get(one.pid, "")) for one in found)

    def override(self, address: str, driver: str, deadline: Deadline) -> None:
        """See the port."""
        self._write(
            self._path(address) / "driver_override",
            driver,
            f"set driver_override of {address} to {driver or 'none'}",
            deadline,
        )

    def set_virtual(self, address: str, count: int, deadline: Deadline) -> None:
        """See the port."""
        what = f"set {address} to {count} virtual function(s)"
        self._write(self._path(address) / "sriov_numvfs", str(count), what, deadline)

    def load(self, module: str, deadline: Deadline) -> None:
        """See the port."""
        self._load(module, deadline)

    def bind(self, address: str, driver: str, deadline: Deadline) -> None:
        """See the port."""
        if self._driver(address) == driver:
            return
        self._offer(address, deadline)
        if not self._shows(lambda: self._driver(address) == driver):
            now = self._driver(address) or "none"
            raise ModuleFailed(f"{address} is not bound to {driver}: its driver is {now}", DMESG)

    def unbind(self, address: str, deadline: Deadline) -> None:
        """See the port."""
        driver = self._driver(address)
        if not driver:
            return
        self._write(self._path(address) / "driver/unbind", address, f"unbind {address} from {driver}", deadline)
        if not self._shows(lambda: not self._driver(address)):
            raise ModuleFailed(f"{address} is still bound to {driver} after an unbind", DMESG)

    def probe(self, address: str, deadline: Deadline) -> None:
        """See the port."""
        self._offer(address, deadline)

    def _offer(self, address: str, deadline: Deadline) -> None:
        """Whatever the kernel answers, which driver has the function afterwards says more."""
        probing = self._roots.sys / "bus/pci/drivers_probe"
        self._write(
            probing, address, f"probe the drivers of {address}", deadline, tolerated=(errno.EINVAL, errno.ENODEV)
        )

    def _path(self, address: str) -> Path:
        return devices_folder(self._roots.sys) / address

    def _ways_to(self, path: Path) -> tuple[Path, ...]:
        """`path`, and further views of the same file, which may be writable where that one is not.

        The operators' pods have the host's root read-only, and its /sys, writable, at its own path.
        """
        within = path.relative_to(self._roots.sys)
        ours, hosts = OWN_SYS / within, self._roots.proc / "1/root/sys" / within
        return (path, *((ours,) if _is_same(ours, path) else ()), hosts)

    def _driver(self, address: str) -> str:
        try:
            return (self._path(address) / "driver").readlink().name
        except OSError:
            return ""

    def _shows(self, is_done: Callable[[], bool]) -> bool:
        """Whether what was written took effect, at once or within a moment."""
        end_s = time.monotonic() + EFFECT_S
        while not is_done():
            if time.monotonic() >= end_s:
                return False
            time.sleep(EFFECT_POLL_S)  # not the clock's: whoever is told to end still has to know
        return True

    def _write(self, path: Path, text: str, what: str, deadline: Deadline, tolerated: tuple[int, ...] = ()) -> None:
        """Write one line. Raises ModuleFailed where the kernel refuses it, ModuleStuck where it does not answer."""
        said = lines_within(max(deadline.left(), EFFECT_POLL_S), partial(_written, self._ways_to(path), f"{text}\n"))
        if said is None:
            raise ModuleStuck(
                f"the kernel has not finished this: {what}. A process may still have the device open",
                "End the process that has it open (`driver-manager status` shows it); the kernel then continues by "
                "itself. If the process does not end, reboot the node.",
            )
        number = int(said[0]) if said and said[0].isdigit() else errno.EIO
        if number and number not in tolerated:
            raise ModuleFailed(f"cannot {what}: {path}: {os.strerror(number)}", DMESG)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _written(paths: Iterable[Path], text: str) -> Iterable[str]:
    """The errno of the write as a line, 0 for none: for a child that may never come back from it.

    The next of `paths`, which are views of one file, is tried where one is read-only.
    """
    number = errno.ENOENT
    for path in paths:
        try:
            # Never made: a file that sysfs does not have is an answer.
            os.write(os.open(path, os.O_WRONLY | os.O_TRUNC), text.encode())
        except OSError as error:
            number = error.errno or errno.EIO
            if number != errno.EROFS:
                break
        else:
            return ["0"]
    return [str(number)]


def machines_of(proc: Path, pids: Set[int]) -> dict[int, str]:
    """The virtual machine that each process runs, by its `-name`; none for those that run none, or do not answer."""
    lines = Looks(timeout_s=NAMES_S).at(sorted(pids), partial(_machine, proc))
    return {pid: found[0] for pid, found in lines.items() if found}


def _machine(proc: Path, pid: int) -> Iterator[str]:
    words = (proc / str(pid) / "cmdline").read_text(errors="replace").split("\0")
    if "-name" in words[:-1]:
        told = words[words.index("-name") + 1].split(",")
        named = [part.removeprefix("guest=") for part in told if part.startswith("guest=")]
        name = (named or told)[0]
        if name:
            yield "".join(letter if letter.isprintable() else "?" for letter in name)
