"""Facts of a host: kernel, modules, driver sources, holders, probe results, markers, failures, staged slots. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host_record import HostRecord
from driver_manager.domain.pci import Binding, PciBus
from driver_manager.domain.text import in_words, several, writable
from driver_manager.domain.wire import LAST_MOMENT_S, Form, parsed

# What a run that failed after it had disturbed somebody notes on the host, for the runs that follow in the same boot.
#
# Owns the JSON form of the note. Whether a later run waits because of it belongs to
# `driver_manager.domain.swap.retry_wait`. The note lies under /run, so a boot ends it. Pure.

MAX_ATTEMPTS = 10_000
MAX_WHAT_CHARS = 300


class PastFailure(Struct, frozen=True):
    """The failure of a run, and how many in a row came to the same end.

    `wish` tells what was wanted, and all that decides how it is done, from anything else. `pod_uid` is the pod that the
    run was in, "" by hand. `blockers` are what stood in its way, as `pod_blocker` and `process_blocker` name them; none
    where that is not known. `failed_s` is when, in seconds of the boot.
    """

    boot_id: str
    wish: str
    exit_code: int
    what: str
    failed_s: float
    attempts: int = 1
    pod_uid: str = ""
    blockers: tuple[str, ...] = ()


class FailureUnreadable(ConfigError):
    """The file is no note that this version can act on."""


FAILURE_FORM = Form(
    "the note of the last failure", FailureUnreadable, "No action needed: the next failure replaces it."
)


def pod_blocker(uid: str) -> str:
    """The name of a pod that stands in the way."""
    return f"pod {uid}"


def process_blocker(pid: int, name: str) -> str:
    """The name of a process that stands in the way: numbers of processes come again."""
    return f"process {pid} {name}"


def is_process(blocker: str) -> bool:
    """Whether it names a process."""
    return blocker.startswith("process ")


def encode_failure(failure: PastFailure) -> str:
    """The note: one line of JSON."""
    body = {
        "bootId": failure.boot_id,
        "wish": failure.wish,
        "exitCode": failure.exit_code,
        "what": failure.what[:MAX_WHAT_CHARS],
        "failedAt": failure.failed_s,
        "attempts": min(failure.attempts, MAX_ATTEMPTS),
        "podUid": failure.pod_uid,
        "blockers": list(failure.blockers),
    }
    return FAILURE_FORM.write(body) + "\n"


def decode_failure(text: str) -> PastFailure:
    """What `encode` wrote. Raises FailureUnreadable for garbage and for newer versions."""
    body = FAILURE_FORM.read(text)
    return PastFailure(
        boot_id=body.text("bootId"),
        wish=body.text("wish"),
        exit_code=body.whole("exitCode", least=0, most=255),
        what=writable(body.text("what"))[:MAX_WHAT_CHARS],
        failed_s=body.seconds("failedAt"),
        attempts=body.whole("attempts", least=1, most=MAX_ATTEMPTS),
        pod_uid=body.text("podUid"),
        blockers=body.texts("blockers"),
    )


def noted_failure(text: str, boot_id: str) -> PastFailure | None:
    """The note in `text`, where it is one of this boot: anything else is none."""
    try:
        failure = decode_failure(text) if text else None
    except FailureUnreadable:
        return None
    return failure if failure is not None and failure.boot_id == boot_id else None


# The reboot-required marker: the one file by which reconcile, health watch and rebooter speak to each other.
#
# Owns its JSON form and what is taken for a marker of an older operator. Every version ever written stays readable.
# Pure.

UPGRADE_REASON = "upgrade"
RECOVERY = "recovery"
REASONS = (UPGRADE_REASON, RECOVERY)
MAX_CHARS = 64 * 1024
"""No marker is larger, evidence and all: readers look at no more of a file."""

_LEGACY = re.compile(r"(?!\s*[{\[\"])[^\x00-\x08\x0e-\x1f\x7f\ufffd]{0,300}")
"""A line of text. What begins like JSON and is none is a marker that was cut short: its boot is not known."""

_NAMES_REASON = re.compile(r"\b(upgrad|recover)", re.IGNORECASE)


class Marker(Struct, frozen=True):
    """A reboot is required for `reason`. `boot_id` "" is an older operator's, whose boot cannot be told.

    `written_s` is in seconds since the epoch. `evidence` are lines: the last samples of a probe, for instance.
    """

    reason: str
    boot_id: str
    node: str = ""
    from_driver: str = ""
    to_driver: str = ""
    writer: str = ""
    written_s: int = 0
    evidence: tuple[str, ...] = ()

    def is_stale(self, boot_id: str) -> bool:
        """Whether it was written before this boot, as far as it tells."""
        return self.boot_id not in ("", boot_id)


class MarkerUnreadable(ConfigError):
    """The file is not a marker that this version can act on."""


MARKER_FORM = Form(
    "the reboot-required marker",
    MarkerUnreadable,
    "Look at the file on the host and remove it if nobody needs it; it has no effect.",
)


def encode_marker(marker: Marker) -> str:
    """The file's content: one line of JSON. The oldest evidence is left out where it would be too long."""
    evidence = marker.evidence
    while True:
        text = _encoded(marker, evidence)
        if len(text) <= MAX_CHARS or not evidence:
            return text
        evidence = evidence[1:]


def decode_marker(text: str) -> Marker:
    """The marker in `text`, JSON or an older operator's plain text that names a reason.

    Raises MarkerUnreadable for anything else: what is not understood must not reboot a node.
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
    return Marker(
        reason=body.choice("reason", REASONS),
        boot_id=body.text("bootId"),
        node=body.text("node", ""),
        from_driver=body.text("from", ""),
        to_driver=body.text("to", ""),
        writer=body.text("writer", ""),
        written_s=body.whole("time", 0, least=0, most=LAST_MOMENT_S),
        evidence=body.texts("evidence", ()),
    )


def _encoded(marker: Marker, evidence: tuple[str, ...]) -> str:
    body = {
        "reason": marker.reason,
        "bootId": marker.boot_id,
        "node": marker.node,
        "from": marker.from_driver,
        "to": marker.to_driver,
        "writer": marker.writer,
        "time": marker.written_s,
        **({"evidence": list(evidence)} if evidence else {}),
    }
    return MARKER_FORM.write(body) + "\n"


def _legacy(text: str) -> Marker:
    """Plain text of the Alauda operator (v1.2.4): no boot, no schema, but a word for why."""
    found = _NAMES_REASON.search(text) if _LEGACY.fullmatch(text) else None
    if found is None:
        raise MARKER_FORM.refused("it is neither JSON nor a line that names upgrade or recovery")
    return Marker(UPGRADE_REASON if found.group(1).lower() == "upgrad" else RECOVERY, boot_id="")


# What a reboot was asked for, kept on the host's disk over that reboot: one versioned JSON file.
#
# Without it, a wish that a reboot does not fulfil (the host loads a driver of its own, a reinstall stays forced) would
# ask for the next reboot after each. Pure.


class RebootWish(Struct, frozen=True):
    """In the boot `boot_id` of `node`, a reboot was asked for so that the driver with the digest `to_driver` is loaded.

    `is_forced`: whether it was loaded already, or not.
    """

    boot_id: str
    node: str
    to_driver: str
    is_forced: bool = False


class WishUnreadable(ConfigError):
    """The file is not one that this version can act on."""


REBOOT_WISH_FORM = Form(
    "the record of the last reboot request",
    WishUnreadable,
    "Remove the file on the host; the reboot may then be requested once more.",
)


def encode_reboot_wish(wish: RebootWish) -> str:
    """The file's content: one line of JSON."""
    body = {"bootId": wish.boot_id, "node": wish.node, "to": wish.to_driver, "forced": wish.is_forced}
    return REBOOT_WISH_FORM.write(body) + "\n"


def decode_reboot_wish(text: str) -> RebootWish:
    """The wish in `text`. Raises WishUnreadable."""
    body = REBOOT_WISH_FORM.read(text)
    return RebootWish(body.text("bootId"), body.text("node"), body.text("to"), body.flag("forced"))


# Staged drivers: the driver root with the next and the previous driver beside it, each with a record of what it is.

NEXT, PREVIOUS = ".next", ".previous"
"""What is appended to the driver root."""

FOLDER_END = ".slots"
"""The folder in which an earlier version kept staged drivers, with a symlink to one of them at the driver root."""

RECORD = ".driver-slot.json"
"""At the top of each tree: it comes and goes with it."""

STAGE_AGAIN = "Stage it again: `driver-manager stage` replaces a slot that does not match its record. Then run again."


class SlotRecord(Struct, frozen=True):
    """What a tree holds: the driver's digest ("" if unknown) and version, and the kernel that it is for.

    `tree` has each regular file by path, with its size and, if known, its checksum, and each symlink with its target.
    `is_kept`: a run has recorded what it found at the driver root; `stage` did not make the tree. `has_served`: it was
    at the driver root as the loaded driver when a run began.
    """

    digest: str
    kernel: str
    version: str
    tree: Mapping[str, str] = field(default_factory=dict)
    is_kept: bool = False
    has_served: bool = False

    def why_other(self, found: Mapping[str, str]) -> str:
        """Why the tree in which `found` is does not match, "" if it does. Further files do no harm."""
        wrong = [path for path, what in self.tree.items() if not _is_same(found.get(path, ""), what)]
        return f"it is not complete: {several(wrong)} differs from its record or is missing" if wrong else ""

    def why_unusable(self, kernel: str, found: Mapping[str, str]) -> str:
        """Why the tree in which `found` is does not serve on `kernel`, "" if it does."""
        if self.kernel != kernel:
            return f"it is for kernel {self.kernel or 'unknown'}, this one is {kernel}"
        return self.why_other(found)


class SlotRecordUnreadable(ConfigError):
    """The record of a slot is not one that this version can act on."""


STAGED_FORM = Form("the record of the slot", SlotRecordUnreadable, STAGE_AGAIN, version=2, is_compact=True)


def encode_staged(record: SlotRecord) -> str:
    """The record's file: one line of JSON."""
    names = {"digest": record.digest, "kernel": record.kernel, "version": record.version}
    flags = {"kept": record.is_kept, "served": record.has_served}
    return STAGED_FORM.write({**names, **flags, "tree": dict(record.tree)}) + "\n"


def decode_staged(text: str) -> SlotRecord:
    """The record in `text`; that of version 1 without its files. Raises SlotRecordUnreadable."""
    body = STAGED_FORM.read(text)
    names = body.text("digest"), body.text("kernel"), body.text("version")
    if body.whole("schema") == 1:
        return SlotRecord(*names)
    return SlotRecord(*names, body.texts_by_name("tree"), body.flag("kept"), body.flag("served"))


def _is_same(found: str, recorded: str) -> bool:
    """True if both are the same file or link; without a checksum on both sides, the size decides."""
    sizes = found.partition(" ")[0] == recorded.partition(" ")[0]
    return found == recorded or (sizes and not (" " in found and " " in recorded))


class StagedSlot(Struct, frozen=True):
    """A driver tree at or beside the root, `name` in that folder; `problem` keeps it from being used.

    For `has_served` see `SlotRecord`.
    """

    name: str
    digest: str = ""
    version: str = ""
    kernel: str = ""
    problem: str = ""
    has_served: bool = False

    @property
    def text(self) -> str:
        """For people: digest and version."""
        return f"{in_words(self.digest) or self.name}, driver {self.version or '(no version)'}"


class StagedSlots(Struct, frozen=True):
    """The staged drivers at `root` and beside it. `wanted` names that of the wanted driver, "" if there is none.

    `left` is where an earlier version staged the wanted driver, "" if it did not. `obstacle`: why the root cannot be
    exchanged, with `remedy`.
    """

    root: str
    slots: tuple[StagedSlot, ...] = ()
    wanted: str = ""
    left: str = ""
    obstacle: str = ""
    remedy: str = ""

    def path(self, name: str) -> str:
        """The absolute path of a slot on the host."""
        return f"{self.root.rpartition('/')[0]}/{name}"

    def named(self, name: str) -> StagedSlot | None:
        """The slot, None if it does not exist."""
        return next((slot for slot in self.slots if slot.name == name), None)

    def at(self, path: str) -> StagedSlot | None:
        """The slot at this path, None if there is none."""
        return next((slot for slot in self.slots if self.path(slot.name) == path), None)


class Module(Struct, frozen=True):
    """A loaded kernel module. `refcount` counts users and holders; None where the kernel does not tell."""

    name: str
    version: str = ""
    refcount: int | None = None
    holders: tuple[str, ...] = ()


class ModuleFile(Struct, frozen=True):
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
    stamp: str = ""


UNREAD = "unknown"
"""How a process uses the device whose /proc does not answer."""


class Holder(Struct, frozen=True):
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


class MissingFirmware(Struct, frozen=True):
    """Firmware that `module` names and that is in none of `searched`, the folders in which this kernel looks.

    `kept_in` is the folder of the driver root that has some of it, "" where it has none.
    """

    module: str
    names: tuple[str, ...]
    searched: tuple[str, ...] = ()
    kept_in: str = ""


class DriverSource(Struct, frozen=True):
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

    def moved_to(self, root: str) -> DriverSource:
        """The same driver, once its tree is at `root`."""

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
        """Names of the modules to load one by one, each of which pulls in what it needs."""
        return (*self.load_order, *(one.name for one in self.modules if one.name not in self.load_order))

    @property
    def version(self) -> str:
        """Version of the first root module, or "" when unknown."""
        return self.modules[0].version if self.modules else ""


class LoadRecord(Struct, frozen=True):
    """What a `DRIVER_LOAD=manager` run noted about the driver it loaded, valid for one boot."""

    boot_id: str
    root: str
    version: str


class Host(Struct, frozen=True):
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


# What a probe says of the devices. Pure.


class Health(Enum):
    """What a probe says of the devices. Unknown is never folded into one of the others."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class DeviceVerdict(Struct, frozen=True):
    """What a probe says of one device. `address` is its PCI address as sysfs writes it, "" if it was not told."""

    name: str
    health: Health
    reason: str
    address: str = ""


class ProbeResult(Struct, frozen=True):
    """One sample of a probe. `is_tool_broken`: unknown for as long as nobody repairs the tool itself.

    `busy` names what is at work on the devices, as far as the tool tells.
    """

    health: Health
    reason: str
    devices: tuple[DeviceVerdict, ...] = ()
    is_tool_broken: bool = False
    busy: tuple[str, ...] = ()


# How a tool's run ended where the tool itself had no say: exit statuses, and the words of the dynamic loader. Pure.

TIMED_OUT = 124
NO_TOOL = (126, 127)
"""What a shell says for a command that cannot be run, or is not there (sh(1)); a failed exec ends so too."""

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
"""Words of ld.so(8), glibc 2.31 to 2.41, of musl's loader, and of a shell that starts what is no program of this
machine. With `version ... not found` the exit status is 1, as for a tool that has found a fault."""


def loader_failure(status: int, err: str) -> str:
    """The first line of `err` in which the loader says why a tool that ended with `status` could not work, or ""."""
    if not status:
        return ""
    return next((line.strip() for line in err.splitlines() if _LOADER.search(line)), "")
