"""What a host shows: its kernel and modules, who has devices open, what drivers it could load. Pure.

Reading it belongs to the adapters, judging it to the planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from driver_manager.domain.bindings import Binding
from driver_manager.domain.failure import PastFailure
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.markers import Marker
from driver_manager.domain.pci import PciBus
from driver_manager.domain.reboot_wish import RebootWish
from driver_manager.domain.staged import StagedSlots


class Module(Frozen):
    """A loaded kernel module. `refcount` counts users and holders; None where the kernel does not tell."""

    name: str
    version: str = ""
    refcount: int | None = None
    holders: tuple[str, ...] = ()


class ModuleFile(Frozen):
    """A module that a driver root offers. None means that it could not be found out.

    `layout_matches`: whether its checksum of `module_layout` is this kernel's, so that the kernel takes it although
    it was built for another release (kernel/module/version.c, check_modstruct_version). `flags_match`: whether the rest
    of its vermagic (SMP, preempt, …) is that of the host's own modules. `unread`: why it tells nothing of itself.
    `stamp` is another text for another file, and for one that was written to.
    """

    name: str
    path: str
    version: str = ""
    vermagic: str = ""
    is_signed: bool | None = None
    layout_matches: bool | None = None
    flags_match: bool | None = None
    missing_dependencies: tuple[str, ...] = ()
    unknown_symbols: tuple[str, ...] | None = None
    unread: str = ""
    stamp: str = field(default="", compare=False)


UNREAD = "unknown"
"""How a process uses the device whose /proc does not answer."""


class Holder(Frozen):
    """A process that uses a device; `how` is `open` or `mapped`, `pod` is namespace/name, "" while unknown.

    With UNREAD it may be one: that cannot be determined, `node` is "" and no pod is held responsible. `service` is the
    host's unit that it belongs to; `machine` is the virtual machine that it runs, "" where it runs none.
    """

    pid: int
    process: str
    node: str
    how: str
    container: str = ""
    pod_uid: str = ""
    pod: str = ""
    service: str = ""
    machine: str = ""

    def __str__(self) -> str:
        who = f"{self.process} (pid {self.pid})" if self.pid else self.process
        if self.how == UNREAD:
            return f"{who} may use the device: unknown, as /proc did not answer in time"
        if self.machine:
            who += f" of VM {self.machine}"
        if self.pod or self.pod_uid:
            who += f" in pod {self.pod or self.pod_uid}"
        elif self.service:
            who += f" of {self.service}"
        if self.container:
            who += f" container {self.container[:12]}"
        return f"{who} has {self.node} {self.how}"


class MissingFirmware(Frozen):
    """Firmware that `module` names and that is in none of `searched`, the folders in which this kernel looks.

    `kept_in` is the folder of the driver root that has some of it, "" where it has none.
    """

    module: str
    names: tuple[str, ...]
    searched: tuple[str, ...] = ()
    kept_in: str = ""


class DriverSource(Frozen):
    """A root (absolute on the host) that modules can be loaded from, and what it offers; problem "" if usable.

    `real_root` is the same without symlinks, as the mount table would name it. `dependencies` are what the modules pull
    in from the same tree. `tree` are name and path of every module to be loaded, those first that others need, where
    the whole tree is; empty where the modules and their dependencies are. `refusal`: why modprobe would not load them,
    "" where it would. `options` are those that the host's modprobe.d sets for the modules and what they pull in.
    `load_order` are the modules that the profile puts in an order, as far as they are here. `given` are further options
    by module, which come before those: of the profile, and what the driver before had.
    """

    root: str
    modules: tuple[ModuleFile, ...] = ()
    problem: str = ""
    remedy: str = ""
    real_root: str = ""
    load_order: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    dependencies: tuple[ModuleFile, ...] = ()
    tree: tuple[tuple[str, str], ...] = ()
    refusal: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    missing_firmware: tuple[MissingFirmware, ...] = ()

    @property
    def sequence(self) -> tuple[str, ...]:
        """Names of the modules to load one by one, each of which pulls in what it needs."""
        return (*self.load_order, *(one.name for one in self.modules if one.name not in self.load_order))

    @property
    def version(self) -> str:
        """Version of the first root module, or "" when unknown."""
        return self.modules[0].version if self.modules else ""


class LoadRecord(Frozen):
    """What a `DRIVER_LOAD=manager` run noted about the driver it loaded, valid for one boot."""

    boot_id: str
    root: str
    version: str


class Host(Frozen):
    """The host's side. `modules` is the driver's closure: roots, everything above them, their own modules below.

    `permanent`: those of them that cannot leave this kernel, each with why. `are_modules_frozen`: no module may be
    loaded or unloaded until the next boot. `failure` is what an earlier run of this boot noted.
    `leaving` are modules of the driver that the kernel is taking out, with or without an end to it: not in `modules`.
    `parameters` are those of its loaded modules, by `module.parameter`, where this run would load others instead.
    `reboot_wish` is what a reboot was last asked for, in this boot or an earlier one; None where nothing readable is.
    `granted_reboot` is the reason of the reboot out of this boot that the rebooter's record has granted, "" if none;
    None if that record cannot be read.
    `slots` are the staged drivers beside the driver root; None where there is no folder for them.
    `bus` are the vendor's functions, `bindings` what a run of this boot found them bound to that gave them to virtual
    machines.
    `removable` are loaded modules that have to go before the driver is loaded, and whatever holds them.
    `run_record` is what the run of the node's journal has to undo, None where that has no record in this boot.
    `left_records` are those of this boot that the journal does not name, of runs that may still live.
    `firmware_path` is where the kernel looks for firmware first; None where it cannot be told to.
    """

    boot_id: str
    kernel_release: str
    machine_id: str = ""
    modules: Mapping[str, Module] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    digest_problem: str = ""
    root_mounts: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    host_driver: str = ""
    source: DriverSource | None = None
    previous_source: DriverSource | None = None
    pci_devices: tuple[str, ...] = ()
    conflicting: tuple[str, ...] = ()
    marker: Marker | None = None
    marker_problem: str = ""
    reboot_wish: RebootWish | None = None
    granted_reboot: str | None = ""
    enforces_signatures: bool = False
    unwritable: Mapping[str, str] = field(default_factory=dict)
    active_services: tuple[str, ...] = ()
    permanent: Mapping[str, str] = field(default_factory=dict)
    are_modules_frozen: bool = False
    failure: PastFailure | None = None
    slots: StagedSlots | None = None
    bus: PciBus = field(default_factory=PciBus)
    bindings: tuple[Binding, ...] = ()
    removable: Mapping[str, Module] = field(default_factory=dict)
    firmware_path: str | None = ""
    run_record: HostRecord | None = None
    left_records: tuple[HostRecord, ...] = ()
