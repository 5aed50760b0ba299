"""Facts of a host: kernel, modules, driver sources, holders, probe results, markers, failures, staged slots."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.pci import Binding, PciBus
from driver_manager.domain.text import in_words, several
from driver_manager.domain.wire import LAST_MOMENT_S, Form, Part, Unreadable, body_of, parsed

# The note of the last failure: a run that took the node and then failed writes it under /run, so a boot removes it.
#
# `driver_manager.domain.swap.retry_wait` decides whether a later run waits because of it.

MAX_ATTEMPTS = 10_000
MAX_WHAT_CHARS = 300


class PastFailure(Struct, frozen=True):
    """The failure of a run; `attempts` is the number of failures in a row with the same `wish`.

    `wish` identifies the wanted driver and everything that decides how a run installs it. `pod_uid` is the uid of the
    run's pod, "" for a run by hand. `blockers` are the pods and processes that blocked the run, as `pod_blocker` and
    `process_blocker` name them; empty if unknown. `failed_s` is the time of the failure in seconds since boot.
    """

    boot_id: str
    wish: str
    exit_code: Annotated[int, Part(least=0, most=255)]
    what: Annotated[str, Part(chars=MAX_WHAT_CHARS)]
    failed_s: Annotated[float, Part("failedAt")]
    attempts: Annotated[int, Part(least=1, most=MAX_ATTEMPTS)] = 1
    pod_uid: str = ""
    blockers: tuple[str, ...] = ()


FAILURE_FORM = Form("the note of the last failure", Unreadable, "No action needed: the next failure replaces it.")


def pod_blocker(uid: str) -> str:
    return f"pod {uid}"


def process_blocker(pid: int, name: str) -> str:
    """The name of a process that blocks a run. It has the process name too, as the kernel reuses pids."""
    return f"process {pid} {name}"


def is_process(blocker: str) -> bool:
    return blocker.startswith("process ")


def encode_failure(failure: PastFailure) -> str:
    bounded = replace(failure, what=failure.what[:MAX_WHAT_CHARS], attempts=min(failure.attempts, MAX_ATTEMPTS))
    return FAILURE_FORM.write(body_of(bounded)) + "\n"


def decode_failure(text: str) -> PastFailure:
    """The failure in `text`. Raises Unreadable for garbage and for newer versions."""
    return FAILURE_FORM.read(text).record(PastFailure)


def noted_failure(text: str, boot_id: str) -> PastFailure | None:
    """The failure in `text`; None for no text, for garbage and for another boot."""
    try:
        failure = decode_failure(text) if text else None
    except Unreadable:
        return None
    return failure if failure is not None and failure.boot_id == boot_id else None


# The reboot-required marker: the file by which reconcile and health-watch ask the rebooter for a reboot.
#
# Every version ever written stays readable, and so is the plain text of an older operator.

UPGRADE_REASON = "upgrade"
RECOVERY = "recovery"
REASONS = (UPGRADE_REASON, RECOVERY)
MAX_CHARS = 64 * 1024
"""Maximum length of a marker with its evidence; readers read no more of a file."""

_LEGACY = re.compile(r"(?!\s*[{\[\"])[^\x00-\x08\x0e-\x1f\x7f\ufffd]{0,300}")
"""A line of text that does not begin like JSON: broken JSON is a truncated marker, whose boot is unknown."""

_NAMES_REASON = re.compile(r"\b(upgrad|recover)", re.IGNORECASE)


class Marker(Struct, frozen=True):
    """A request for a reboot because of `reason`. `boot_id` is "" in the marker of an older operator: boot unknown.

    `written_s` is in seconds since the epoch. `evidence` has lines of text, such as the last samples of a probe.
    """

    reason: Annotated[str, Part(choices=REASONS)]
    boot_id: str
    node: Annotated[str, Part(is_optional=True)] = ""
    from_driver: Annotated[str, Part("from", is_optional=True)] = ""
    to_driver: Annotated[str, Part("to", is_optional=True)] = ""
    writer: Annotated[str, Part(is_optional=True)] = ""
    written_s: Annotated[int, Part("time", least=0, most=LAST_MOMENT_S, is_optional=True)] = 0
    evidence: Annotated[tuple[str, ...], Part(is_omitted=True)] = ()

    def is_stale(self, boot_id: str) -> bool:
        return self.boot_id not in ("", boot_id)


MARKER_FORM = Form(
    "the reboot-required marker",
    Unreadable,
    "Look at the file on the host and remove it if nothing needs it; it has no effect.",
)


def encode_marker(marker: Marker) -> str:
    """The content of the file: one line of JSON, without the oldest evidence if it would exceed MAX_CHARS."""
    evidence = marker.evidence
    while True:
        text = MARKER_FORM.write(body_of(replace(marker, evidence=evidence))) + "\n"
        if len(text) <= MAX_CHARS or not evidence:
            return text
        evidence = evidence[1:]


def decode_marker(text: str) -> Marker:
    """The marker in `text`: JSON, or the plain text of an older operator that names a reason.

    Raises Unreadable for anything else: an unreadable marker must not reboot a node.
    """
    if len(text) > MAX_CHARS:
        raise MARKER_FORM.refused(f"it is longer than {MAX_CHARS} characters")
    try:
        value = parsed(text)
    except ValueError:
        return _legacy(text)
    body = MARKER_FORM.opened(value)
    if not body.text("bootId", ""):
        raise MARKER_FORM.refused("it does not name a boot")
    return body.record(Marker)


def _legacy(text: str) -> Marker:
    """The marker in plain text of the Alauda operator (v1.2.4), which names a reason and no boot."""
    found = _NAMES_REASON.search(text) if _LEGACY.fullmatch(text) else None
    if found is None:
        raise MARKER_FORM.refused("it is neither JSON nor a line that names upgrade or recovery")
    return Marker(UPGRADE_REASON if found.group(1).lower() == "upgrad" else RECOVERY, boot_id="")


# The request to the next run of this boot to reload the driver


class ReloadRequest(Struct, frozen=True):
    """A request to replace the driver of the load `load` in the boot `boot_id`, because of `reason`."""

    boot_id: str
    load: str
    reason: Annotated[str, Part(chars=400)] = ""


RELOAD_FORM = Form("the request to reload the driver", Unreadable, "Remove the file on the host; it has no effect.")


def encode_reload_request(request: ReloadRequest) -> str:
    return RELOAD_FORM.write(body_of(request)) + "\n"


def decode_reload_request(text: str) -> ReloadRequest:
    """The request in `text`. Raises Unreadable."""
    return RELOAD_FORM.read(text).record(ReloadRequest)


# The record of the last reboot request, in a JSON file on the host's disk, which survives the reboot.
#
# Without it, a run whose wanted driver is not loaded after the reboot (the host loads its own driver, or a reinstall
# stays forced) would ask for another reboot after each one.


class RebootWish(Struct, frozen=True):
    """A request of the boot `boot_id` for a reboot to load `to_driver`; `is_forced`: even if it was loaded already."""

    boot_id: str
    node: str
    to_driver: Annotated[str, Part("to")]
    is_forced: Annotated[bool, Part("forced")] = False


REBOOT_WISH_FORM = Form(
    "the record of the last reboot request",
    Unreadable,
    "Remove the file on the host; the reboot may then be requested once more.",
)


def encode_reboot_wish(wish: RebootWish) -> str:
    return REBOOT_WISH_FORM.write(body_of(wish)) + "\n"


def decode_reboot_wish(text: str) -> RebootWish:
    """The wish in `text`. Raises Unreadable for garbage and for newer versions."""
    return REBOOT_WISH_FORM.read(text).record(RebootWish)


# Staged drivers: the driver root, with the next and the previous driver beside it. Each tree has a record.

NEXT, PREVIOUS = ".next", ".previous"
"""Suffixes of the driver root in the paths of the other two trees."""

FOLDER_END = ".slots"
"""Suffix of the driver root in the path of the folder in which an earlier version kept staged drivers.

In that version the driver root was a symlink to one of them.
"""

RECORD = ".driver-slot.json"
"""Name of the record at the top of each tree: it moves with the tree."""

STAGE_AGAIN = "Stage it again: `driver-manager stage` replaces a slot that does not match its record. Then run again."


class SlotRecord(Struct, frozen=True):
    """The content of a tree: the driver's digest ("" if unknown) and version, and the kernel that it is built for.

    `tree` has each regular file by path, with its size and, if known, its checksum, and each symlink with its target.
    `is_kept`: a run recorded the tree that it found at the driver root; `stage` did not make it. `has_served`: the tree
    was at the driver root when a run began, and its driver was loaded, or none, as after a reboot.
    """

    digest: str
    kernel: str
    version: str
    tree: Mapping[str, str] = field(default_factory=dict)
    is_kept: Annotated[bool, Part("kept")] = False
    has_served: Annotated[bool, Part("served")] = False

    def why_other(self, found: Mapping[str, str]) -> str:
        """Why the tree with the files `found` differs from this record, "" if it matches. More files are allowed."""
        wrong = [path for path, what in self.tree.items() if not _is_same(found.get(path, ""), what)]
        return f"it is not complete: {several(wrong)} differs from its record or is missing" if wrong else ""

    def why_unusable(self, kernel: str, found: Mapping[str, str]) -> str:
        """Why `kernel` cannot use the tree with the files `found`, "" if it can."""
        if self.kernel != kernel:
            return f"it is for kernel {self.kernel or 'unknown'}, this one is {kernel}"
        return self.why_other(found)


STAGED_FORM = Form("the record of the slot", Unreadable, STAGE_AGAIN, version=2, is_compact=True)


def encode_staged(record: SlotRecord) -> str:
    return STAGED_FORM.write(body_of(record)) + "\n"


def decode_staged(text: str) -> SlotRecord:
    """The record in `text`, without files if it has version 1. Raises Unreadable."""
    body = STAGED_FORM.read(text)
    is_first = body.whole("schema") == 1
    return body.record(SlotRecord, **{"tree": {}, "is_kept": False, "has_served": False} if is_first else {})


def _is_same(found: str, recorded: str) -> bool:
    """True if both are the same file or link; without a checksum on both sides, the size decides."""
    sizes = found.partition(" ")[0] == recorded.partition(" ")[0]
    return found == recorded or (sizes and not (" " in found and " " in recorded))


class StagedSlot(Struct, frozen=True):
    """A driver tree at the driver root or beside it, by its `name`; `problem` is why it cannot be used."""

    name: str
    digest: str = ""
    version: str = ""
    kernel: str = ""
    problem: str = ""
    has_served: bool = False

    @property
    def text(self) -> str:
        return f"{in_words(self.digest) or self.name}, driver {self.version or '(no version)'}"


class StagedSlots(Struct, frozen=True):
    """The staged drivers at `root` and beside it. `wanted` names the slot of the wanted driver, "" if there is none.

    `left` is the path at which an earlier version staged the wanted driver, "" if it did not. `obstacle` is why a run
    cannot exchange the root, "" if it can, and `remedy` what to do about that.
    """

    root: str
    slots: tuple[StagedSlot, ...] = ()
    wanted: str = ""
    left: str = ""
    obstacle: str = ""
    remedy: str = ""

    def path(self, name: str) -> str:
        return f"{self.root.rpartition('/')[0]}/{name}"

    def named(self, name: str) -> StagedSlot | None:
        return next((slot for slot in self.slots if slot.name == name), None)

    def at(self, path: str) -> StagedSlot | None:
        return next((slot for slot in self.slots if self.path(slot.name) == path), None)


class Module(Struct, frozen=True):
    """A loaded kernel module. `refcount` counts users and holders; None if the kernel does not show it.

    `is_coming`: its init function has not returned, so the kernel has a reference to it and does not unload it.
    """

    name: str
    version: str = ""
    refcount: int | None = None
    holders: tuple[str, ...] = ()
    is_coming: bool = False


class ModuleFile(Struct, frozen=True):
    """A module file below a driver root. None means unknown.

    `layout_matches`: True if its checksum of `module_layout` is that of this kernel, which then accepts a module built
    for another release (kernel/module/version.c, check_modstruct_version). `flags_match`: True if the rest of its
    vermagic (SMP, preempt, …) equals that of the host's own modules. `has_known_key`: this kernel has a key of the name
    of its signer. `unread` is why modinfo failed, "" if it did not.
    `stamp` changes if the file is replaced or written; "" if unknown.
    """

    name: str
    path: str
    version: str = ""
    vermagic: str = ""
    is_signed: bool | None = None
    has_known_key: bool = False
    layout_matches: bool | None = None
    flags_match: bool | None = None
    missing_dependencies: tuple[str, ...] = ()
    unknown_symbols: tuple[str, ...] | None = None
    unread: str = ""
    stamp: str = ""


UNREAD = "unknown"
"""`Holder.how` of a process whose files in /proc cannot be read in time."""


class Holder(Struct, frozen=True):
    """A process that uses the device node `node`; `how` is `open` or `mapped`, `pod` is namespace/name, "" if unknown.

    `how` is UNREAD if it cannot be determined whether the process uses a device: no run evicts a pod for
    that, so `node`, `pod_uid` and `pod` are "" then.
    `service` is the host's unit of the process; `machine` is the virtual machine that it runs, "" if none.
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


class MissingFirmware(Struct, frozen=True):
    """Firmware that `module` names and that is in none of `searched`, the folders that this kernel searches.

    `kept_in` is the folder of the driver root that has at least one of the files, "" if it has none.
    """

    module: str
    names: tuple[str, ...]
    searched: tuple[str, ...] = ()
    kept_in: str = ""


class DriverSource(Struct, frozen=True):
    """A root (absolute on the host) from which a run can load modules, and its content; `problem` is "" if usable.

    `real_root` is the root without symlinks, as the mount table names it. `dependencies` are modules of the same tree
    that `modules` need. `tree` has name and path of each module, dependencies first, if a run loads the whole tree;
    else it is empty, and the run loads `modules` and `load_order` with modprobe. `refusal` is why modprobe would refuse
    them, "" if it would not. `options` are the options that the host's modprobe.d sets for these modules and their
    dependencies. `load_order` are the modules here for which the profile sets an order. `given` has more options by
    module, from the modprobe.d of the root itself, and in a step from the profile and the driver before; they come
    before `options`, so `options` override them. `noexec` is the mount point that keeps the probe's tool from being
    executed, else "". `is_pinned_out`: LoadPin accepts no module from the root's file system.
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
    noexec: str = ""
    is_pinned_out: bool = False

    def moved_to(self, root: str) -> DriverSource:
        def moved(path: str) -> str:
            return root + path.removeprefix(self.root) if path.startswith(f"{self.root}/") else path

        return replace(
            self,
            root=root,
            real_root="",
            modules=tuple(replace(one, path=moved(one.path)) for one in self.modules),
            dependencies=tuple(replace(one, path=moved(one.path)) for one in self.dependencies),
            tree=tuple((name, moved(path)) for name, path in self.tree),
        )

    @property
    def sequence(self) -> tuple[str, ...]:
        """Names of the modules to load one by one; modprobe loads the dependencies of each."""
        return (*self.load_order, *(one.name for one in self.modules if one.name not in self.load_order))

    @property
    def version(self) -> str:
        """Version of the first root module, "" if unknown."""
        return self.modules[0].version if self.modules else ""


class Host(Struct, frozen=True):
    """The facts of the host. `modules` are the driver's modules: roots, all that use them, and own modules below them.

    `permanent` are those of them that this kernel cannot unload, each with the reason. `are_modules_frozen`: the kernel
    loads and unloads no module until the next boot. `failure` is the note of an earlier run of this boot.
    `leaving` are modules of the driver that the kernel is unloading, perhaps without end; `modules` is without them.
    `parameters` are the values by `module.parameter` of its loaded modules; empty if this run does not load a driver.
    `digest` is the recorded digest of the driver, None without a usable record; `digest_problem` is why it is unusable.
    `reboot_wish` is the last reboot request, of this boot or an earlier one; None if there is no readable one.
    `granted_reboot` is the reason for which the rebooter's record grants a reboot in this boot, "" if it grants none;
    None if that record cannot be read.
    `slots` are the staged drivers at the driver root and beside it; None if the root cannot have any.
    `bus` are the vendor's PCI functions. `bindings` are their drivers before a run of this boot gave them to virtual
    machines.
    `removable` are loaded modules that a run must unload before it loads the driver, and the modules that use them.
    `run_record` is the host record that the node's journal names, None if there is none of this boot.
    `left_records` are host records of this boot that the journal does not name; their runs may still be running.
    `firmware_path` is the folder that the kernel searches first for firmware, "" if none is set or the profile needs
    none; None if this kernel has no such setting.
    `reload` is the reason of a request to load the driver again, None if no request is about the loaded driver.
    """

    boot_id: str
    kernel_release: str
    machine_id: str = ""
    system_uuid: str = ""
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
    reload: str | None = None


# The result of a probe.


class Health(Enum):
    """The health of the devices that a probe reports. UNKNOWN never counts as one of the others."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class DeviceVerdict(Struct, frozen=True):
    """The health of one device. `address` is its PCI address as sysfs writes it, "" if the tool reports none.

    `is_lost`: the driver or the PCI bus has it, and the tool does not list it, or it has left both.
    """

    name: str
    health: Health
    reason: Annotated[str, Part(chars=200)]
    address: str = ""
    is_lost: Annotated[bool, Part("lost", is_omitted=True)] = False


class ProbeResult(Struct, frozen=True):
    """One sample. `is_tool_broken`: UNKNOWN until a person repairs the tool. `busy` names the work on the devices.

    `is_slow`: the tool timed out, or reports that a device is not ready yet. `served` are the addresses of the physical
    PCI functions that the driver has. `on_bus` has the driver of each of the vendor's functions on the bus by address,
    "" for none; None if the bus cannot be read. `rest` is what the tool reports beside single devices: UNHEALTHY if it
    failed as a whole or does not list all devices, UNKNOWN if its answer is not complete. `remarks` are what is wrong
    and does not count, as sentences.
    """

    health: Health
    reason: str
    devices: tuple[DeviceVerdict, ...] = ()
    is_tool_broken: bool = False
    is_slow: bool = False
    busy: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    on_bus: Mapping[str, str] | None = None
    rest: Health = Health.HEALTHY
    remarks: tuple[str, ...] = ()


# Results of a tool that did not run to its end: exit statuses, and messages of the dynamic loader.

TIMED_OUT = 124
NO_TOOL = (126, 127)
"""Exit statuses of a shell, and of a failed exec, for a command that cannot run or does not exist (sh(1))."""

_LOADER = re.compile(
    r"error while loading shared libraries:"
    r"|version `[^']*' not found"
    r"|cannot open shared object file"
    r"|symbol lookup error:"
    r"|relocation error:"
    r"|Inconsistency detected by ld\.so"
    r"|FATAL: kernel too old"
    r"|LD_PRELOAD cannot be preloaded"
    r"|wrong ELF class|invalid ELF header"
    r"|Error loading shared library"
    r"|Error relocating"
    r"|[Ee]xec format error|cannot execute binary file"
)
"""Messages of ld.so(8) in glibc 2.31 to 2.41, of musl's loader, and of a shell that starts a program of another
machine type. With `version ... not found` the exit status is 1, as for a tool that has found a fault."""


def loader_failure(status: int, err: str) -> str:
    """The first line of `err` with a message of the loader; "" if there is none, or if `status` is 0."""
    if not status:
        return ""
    return next((line.strip() for line in err.splitlines() if _LOADER.search(line)), "")
