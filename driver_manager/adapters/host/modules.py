"""Kernel modules: the loaded ones, those that a driver root offers, and rmmod, modprobe and insmod."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import lzma
import os
import re
import stat
import struct
import zlib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from msgspec.structs import replace

from driver_manager.adapters.host.files import HostFiles, HostRoots, becomes, names_in, target_of, text_of, translated
from driver_manager.adapters.host.holders import BY_NUMBER
from driver_manager.adapters.process.forked import lines_within
from driver_manager.adapters.process.run import TOOL_TIMEOUT_S, run
from driver_manager.adapters.process.tools import Result
from driver_manager.core.ports_base import Clock
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ConfigError, ModuleBusy, ModuleFailed, ModuleStuck
from driver_manager.domain.host import DriverSource, MissingFirmware, Module, ModuleFile
from driver_manager.domain.profile import LoadScope, Modules, Profile, RootsNeeded, closure, is_own

# ELF symbol table of a module file. A kernel module is a relocatable ELF file of the kernel's word size and byte order.
# Source: elf(5).

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_SYMTAB = 2
_GLOBAL = 1
_EXPORT = "__ksymtab_"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
MAX_BYTES = 512 * 1024 * 1024
MAX_NAME_BYTES = 1024
"""Maximum length of a symbol name, in bytes. The kernel's own limit is 512 (KSYM_NAME_LEN)."""


def needed_symbols(path: Path) -> frozenset[str] | None:
    """Symbols that another module or the kernel must export; None if the file cannot be read as a module.

    Weak symbols do not count. Modules of big-endian or 32-bit kernels cannot be read.
    """
    symbols = _symbols(path)
    return None if symbols is None else frozenset(name for name, is_needed in symbols if is_needed)


def exported_symbols(path: Path) -> frozenset[str]:
    """Symbols that the module exports (EXPORT_SYMBOL defines `__ksymtab_NAME`); empty if it cannot be read."""
    names = (name for name, _ in _symbols(path) or ())
    return frozenset(name.removeprefix(_EXPORT) for name in names if name.startswith(_EXPORT))


def _symbols(path: Path) -> list[tuple[str, bool]] | None:
    """The module's symbols, each as (name, True if it is an undefined global); None if the file is not a module."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = _unpacked(file, path.suffix, MAX_BYTES)
        return list(_table(data)) if data.startswith(_ELF64_LITTLE) else None
    except (OSError, EOFError, struct.error, lzma.LZMAError, zlib.error, IndexError, OverflowError, ValueError):
        return None


def _unpacked(file: BinaryIO, suffix: str, most: int) -> bytes:
    """At most `most` bytes of the content of a file that a kernel's build may have compressed. Raises as its reader."""
    match suffix:
        case ".gz":
            return gzip.open(file).read(most)
        case ".xz":
            return lzma.open(file).read(most)
        case ".zst":
            return _unpacked_zstd(file, most)
    return file.read(most)


def _unpacked_zstd(file: BinaryIO, most: int) -> bytes:
    """The same of Zstandard (RFC 8878), as Ubuntu compresses modules since 23.10. Raises OSError."""
    import zstandard  # noqa: PLC0415  # half a MiB that only such a host needs

    try:
        with zstandard.ZstdDecompressor().stream_reader(file) as reader:
            return io.BufferedReader(reader).read(most)
    except zstandard.ZstdError as error:
        raise OSError(errno.EINVAL, f"not Zstandard: {error}") from error


def _table(data: bytes) -> Iterator[tuple[str, bool]]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    if size < _SECTION.size or not count:
        raise ValueError("no section headers")
    sections = [_SECTION.unpack_from(data, table + number * size) for number in range(count)]
    # An object file has one table (elf(5)). A thousand tables that share their bytes would take an hour to read.
    tables = [section for section in sections if section[1] == _SYMTAB]
    if len(tables) > 1:
        raise ValueError("more than one symbol table")
    for _, _, _, _, offset, length, link, _, _, _ in tables:
        names = sections[link][4]
        for at in range(offset, offset + length, _SYMBOL.size):
            name, info, _, section, _, _ = _SYMBOL.unpack_from(data, at)
            if name:
                start = names + name
                text = data[start : data.index(b"\0", start, start + MAX_NAME_BYTES)].decode("ascii", "replace")
                yield text, section == 0 and info >> 4 == _GLOBAL


# Firmware files of modules.
#
# The kernel opens these paths in the mount namespace of the first process, regardless of the process that loads the
# module. It does not search a driver root. The file may be compressed. Source: drivers/base/firmware_loader/main.c
# (fw_path, fw_get_filesystem_firmware).

FIRMWARE_OF_A_ROOT = "lib/firmware"
FIRMWARE_PARAMETER = "module/firmware_class/parameters/path"
SUFFIXES = ("", ".zst", ".xz")


def custom_firmware_path(sys_root: Path) -> str | None:
    """The folder in firmware_class.path, "" if it is not set, None if this kernel does not have the parameter."""
    return text_of(sys_root / FIRMWARE_PARAMETER)


def set_firmware_path(sys_root: Path, path: str) -> None:
    """Set firmware_class.path to `path`, without a line feed, which would become part of it. Raises ModuleFailed."""
    what = f"cannot set firmware_class.path to {path}"
    with translated(ModuleFailed, what, "Mount the host's /sys read-write."):
        (sys_root / FIRMWARE_PARAMETER).write_text(path)


def firmware_search_path(sys_root: Path, kernel: str, wanted: str) -> tuple[str, ...]:
    """The folders in which the kernel looks for firmware, in its order, with firmware_class.path set to `wanted`."""
    custom = wanted or custom_firmware_path(sys_root)
    base = f"/{FIRMWARE_OF_A_ROOT}"
    return (*([custom] if custom else []), f"{base}/updates/{kernel}", f"{base}/updates", f"{base}/{kernel}", base)


def found_firmware(files: HostFiles, folders: tuple[str, ...], name: str) -> list[Path]:
    """The file that the kernel would read, as a path of this process; `name` may be a pattern (MODULE_FIRMWARE)."""
    there = next(filter(None, (_matching(files, folder, name) for folder in folders)), [])
    return [files.path(path) for path in there]


def _matching(files: HostFiles, folder: str, name: str) -> list[str]:
    """The host paths in `folder` that match `name`; empty if the folder cannot be read."""
    try:
        if "*" not in name:
            return [path for suffix in SUFFIXES if files.exists(path := f"{folder}/{name}{suffix}")]
        inner, _, pattern = f"{folder}/{name}".rpartition("/")
        there = files.names(inner)
    except OSError:
        return []
    return [f"{inner}/{one}" for one in there for suffix in SUFFIXES if fnmatchcase(one, f"{pattern}{suffix}")]


# Options of modules: those in the host's modprobe.d, and those of loaded modules.
#
# modprobe reads modprobe.d below this process's root, which in a container is not the host's. Sources: modprobe.d(5);
# Documentation/ABI/stable/sysfs-module.

FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
"""If two folders have a file of the same name, the file in the earlier folder counts."""

READ_S = 10.0
VALUE_CHARS = 256


def configured_options(files: HostFiles, root: str = "") -> dict[str, str]:
    """The options in the modprobe.d of the host, or of a driver root, by module, as modprobe passes them.

    Skips files that cannot be read.
    """
    # The empty line ends a last line that has no line feed, or a backslash.
    return options_in("\n\n".join(map(files.text, _config_files(files, root))))


def options_in(text: str) -> dict[str, str]:
    """The options in the text of files, by module. A backslash at the end of a line continues it."""
    found: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.rstrip("\\ \t").split(None, 2)
        if len(words) == 3 and words[0] == "options":
            name = words[1].replace("-", "_")
            found[name] = f"{found[name]} {words[2]}" if name in found else words[2]
    return found


def _config_files(files: HostFiles, root: str) -> list[str]:
    """The files that count, in the order in which modprobe reads them: by name, regardless of the folder."""
    by_name: dict[str, str] = {}
    for folder in (f"{root}{folder}" for folder in FOLDERS):
        with contextlib.suppress(OSError):
            for name in files.names(folder):
                if name.endswith(".conf"):
                    by_name.setdefault(name, f"{folder}/{name}")
    return [by_name[name] for name in sorted(by_name)]


def as_config(options: Mapping[str, str]) -> bytes:
    return "".join(f"options {name} {text}\n" for name, text in options.items()).encode(errors="replace")


def loaded_parameters(sys_root: Path, names: Iterable[str], timeout_s: float = READ_S) -> dict[str, str]:
    """Values by `module.parameter` of the loaded modules; empty if a driver does not answer in `timeout_s` seconds."""
    folders = [folder for name in names if (folder := sys_root / "module" / name / "parameters").is_dir()]
    found = lines_within(timeout_s, lambda: _parameters(folders)) if folders else None
    return dict(line.split("=", 1) for line in found or ())


def _parameters(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for parameter in sorted(names_in(folder)):
            value = text_of(folder / parameter)
            if value is not None and "\n" not in value[:VALUE_CHARS]:
                yield f"{folder.parent.name}.{parameter}={value[:VALUE_CHARS]}"


# Loaded kernel modules in /sys, and rmmod, modprobe and depmod.
#
# Sources: Documentation/ABI/stable/sysfs-module; kmod's modprobe(8), rmmod(8), depmod(8).

KMOD_TOOLS = ("rmmod", "modprobe", "insmod")

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})

COMING, GOING = "coming", "going"
"""`initstate` while a module's init or exit function runs (kernel/module/sysfs.c, show_initstate)."""

GOING_POLL_S = 0.2

_BUSY = ("in use", "resource temporarily unavailable", "device or resource busy")
"""rmmod's messages for EAGAIN and EBUSY. Kernels return EAGAIN for a module in use."""


def driver_modules(sys_root: Path, modules: Modules) -> dict[str, Module]:
    """The loaded modules of the driver, by name. Raises ConfigError when /sys/module cannot be read."""
    folder = sys_root / "module"
    with translated(ConfigError, f"cannot read {folder}", "Mount the host's /sys (SYS_ROOT), and run as root."):
        names = os.listdir(folder)  # noqa: PTH208  # a plain list of names, the folder has hundreds
    loaded: dict[str, Module] = {}
    queue = [name for name in names if is_own(name, modules)]
    while queue:
        name = queue.pop()
        if name in loaded:
            continue
        module = _module(folder / name)
        if module is not None:
            loaded[name] = module
            queue += module.holders
    return closure(loaded, modules)


def leaving_modules(sys_root: Path, modules: Modules) -> tuple[str, ...]:
    """Names of the driver's modules that the kernel is unloading. Raises ConfigError as `driver_modules`."""
    loaded = driver_modules(sys_root, modules)
    with_holders = {holder for module in loaded.values() for holder in module.holders}
    folder = sys_root / "module"
    named = {name for name in os.listdir(folder) if is_own(name, modules)}  # noqa: PTH208
    return tuple(sorted(name for name in named | with_holders if _is_going(folder / name)))


def loaded_among(sys_root: Path, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if _module(sys_root / "module" / name) is not None)


def permanent_modules(proc: Path, names: Iterable[str]) -> dict[str, str]:
    """The loaded modules in `names` that this kernel never unloads: reason by name; empty if it cannot be determined.

    /proc/modules has name, size, reference count and users. The count is `-` if the kernel is built without unloading.
    The users of a module without an exit function include `[permanent]` (kernel/module/procfs.c, print_unload_info).
    """
    rows = [line.split() for line in (text_of(proc / "modules") or "").splitlines()]
    wanted, found = set(names), dict[str, str]()
    for name, _, count, users in (row[:4] for row in rows if len(row) > 3 and row[0] in wanted):
        if "[permanent]" in users.split(","):
            found[name] = "it has no exit function (/proc/modules: [permanent])"
        elif count == "-":
            found[name] = "this kernel is built without CONFIG_MODULE_UNLOAD"
    return found


def _module(folder: Path) -> Module | None:
    """The module at `folder`; None if it is gone, is being unloaded, or is built in (then it has no `initstate`)."""
    # A module whose exit function runs is no longer in use, even if the function never returns.
    state = text_of(folder / "initstate")
    if state in (None, GOING):
        return None
    count = text_of(folder / "refcnt") or ""
    return Module(
        name=folder.name,
        version=text_of(folder / "version") or "",
        refcount=int(count) if count.isascii() and count.isdigit() else None,
        holders=tuple(sorted(names_in(folder / "holders"))),
        is_coming=state == COMING,
    )


_NUMBER = re.compile(r"[0-9]{1,4}:[0-9]{1,8}", re.ASCII)
_NODE_NAME = re.compile(r"[A-Za-z0-9_.:-]+(/[A-Za-z0-9_.:-]+)*")


def driver_nodes(roots: HostRoots, profile: Profile) -> tuple[str, ...]:
    """Patterns of the device nodes below /dev that lead to the driver: the profile's, and those that the kernel shows.

    The kernel shows the driver of each character device with a class, and the names of the others' majors: an NVIDIA
    GPU also has /dev/dri/card1 and /dev/nvidia-uvm. Each is there by number too (`holders.BY_NUMBER`).
    Sources: Documentation/ABI/testing/sysfs-dev, proc(5).
    """
    try:
        modules: Mapping[str, Module] = driver_modules(roots.sys, profile.modules)
    except ConfigError:
        modules = {}
    folder = roots.sys / "dev/char"
    found = [*profile.paths.device_nodes]
    for number in sorted(names_in(folder)):
        # An I2C adapter of a GPU has no driver: its parent, the PCI function, has.
        names = (target_of(folder / number / "device" / up / "driver/module") for up in (".", ".."))
        if _NUMBER.fullmatch(number) and not modules.keys().isdisjoint(names):
            found.append(BY_NUMBER + number)
            uevent = (text_of(folder / number / "uevent") or "").splitlines()
            found += (f"/dev/{line.removeprefix('DEVNAME=')}" for line in uevent if line.startswith("DEVNAME="))
    for line in (text_of(roots.proc / "devices") or "").partition("Block devices:")[0].splitlines():
        major, _, name = (word.strip() for word in line.strip().partition(" "))
        module = name.replace("-", "_")
        if module in modules or module.startswith(tuple(one for one in profile.modules.roots if one in modules)):
            found += (f"/dev/{name}*", f"/dev/{name}/*", *([f"{BY_NUMBER}{major}:*"] if major.isdecimal() else []))
    return tuple(dict.fromkeys(one for one in found if one in profile.paths.device_nodes or _is_node(one)))


def _is_node(pattern: str) -> bool:
    """True if `pattern`, whose name is the kernel's, has no part that leads out of /dev."""
    name = pattern.removeprefix("/dev/").removesuffix("*").rstrip("/:")
    return _NODE_NAME.fullmatch(name) is not None and ".." not in name


def _is_going(folder: Path) -> bool:
    return text_of(folder / "initstate") == GOING


def unload_module(sys_root: Path, name: str, deadline: Deadline, clock: Clock) -> None:
    """Unload a module with rmmod; /sys decides. Raises ModuleBusy, ModuleStuck, ModuleFailed, Terminated."""
    result = run(["rmmod", "--", name], timeout_s=deadline.bound(TOOL_TIMEOUT_S))
    folder = sys_root / "module" / name
    # The exit function continues after rmmod was killed, and may still finish.
    if not becomes(lambda: not _is_going(folder), deadline.left(), GOING_POLL_S, clock):
        raise ModuleStuck(
            f"module {name} is stuck while unloading: its exit function does not return",
            "Reboot the node; the next run continues. The kernel log (dmesg) may show what the module waits for.",
        )
    module = _module(folder)
    if module is None:
        return
    if result.status == 0:
        raise ModuleFailed(f"rmmod reported success, but {name} is still loaded", "Look at the kernel log (dmesg).")
    if module.refcount or any(word in f"{result.err} {result.out}".lower() for word in _BUSY):
        raise ModuleBusy(f"module {name} is in use: {result.last_line}", "Stop what uses the device, then run again.")
    raise ModuleFailed(f"module {name} cannot be unloaded: {result.last_line}", "Look at the kernel log (dmesg).")


def load_module(
    root: Path, kernel: str, name: str, deadline: Deadline, options: Mapping[str, str] = NO_OPTIONS
) -> None:
    """Load a module with modprobe from `root` for `kernel`; run depmod first if the tree has no modules.dep.

    `options` by module come before those of the modprobe.d below this process's root. Raises ModuleFailed.
    """
    make_module_list(root, kernel, deadline)
    result = _modprobe(root, kernel, name, deadline, options)
    if result.status:
        raise ModuleFailed(
            f"module {name} cannot be loaded from {root}: {result.last_line}",
            "Look at the kernel log (dmesg): was the driver built for this kernel, is it signed if it must be?",
        )


def make_module_list(root: Path, kernel: str, deadline: Deadline) -> None:
    """Run depmod if the tree has no modules.dep. Raises ModuleFailed."""
    if (root / "lib/modules" / kernel / "modules.dep").exists():
        return
    made = run(["depmod", "-b", str(root), "--", kernel], timeout_s=deadline.bound(TOOL_TIMEOUT_S))
    if made.status:
        raise ModuleFailed(
            f"the tree in {root} has no modules.dep and depmod cannot make it: {made.last_line}",
            "Run depmod when the driver tree is built.",
        )


def _modprobe(root: Path, kernel: str, name: str, deadline: Deadline, options: Mapping[str, str]) -> Result:
    argv = ["modprobe", "--dirname", str(root), "--set-version", kernel]
    timeout_s = deadline.bound(TOOL_TIMEOUT_S)
    if not options:
        return run([*argv, "--", name], timeout_s=timeout_s)
    config = os.memfd_create("modprobe.conf")
    try:
        os.write(config, as_config(options))
        # The first --config replaces modprobe's default folders, so add those after it.
        configs = (f"/proc/self/fd/{config}", *(folder for folder in FOLDERS if os.path.isdir(folder)))  # noqa: PTH112
        words = [word for path in configs for word in ("--config", path)]
        return run([*argv, *words, "--", name], timeout_s=timeout_s, pass_fds=(config,))
    finally:
        os.close(config)


def why_load_refused(root: Path, kernel: str, name: str) -> str:
    """Why modprobe would not load the module from a tree with a list, by `modprobe --show-depends`; "" if it would."""
    result = run(["modprobe", "--show-depends", "--dirname", str(root), "--set-version", kernel, "--", name])
    if result.status:
        return f"modprobe cannot find {name} in {root}: {result.last_line}"
    commands = [
        line.removeprefix("install ").strip() for line in result.out.splitlines() if line.startswith("install ")
    ]
    if commands:
        return f"modprobe would run `{commands[0]}` instead of loading a module: an install line in modprobe.d"
    return ""


def load_modules(
    sys_root: Path, files: Iterable[tuple[str, Path]], deadline: Deadline, options: Mapping[str, str] = NO_OPTIONS
) -> dict[str, str]:
    """Load `files` (name, path) with insmod, in passes until no further one loads; the errors of the others, by name.

    Modules may serve hardware that is absent, and a module file does not always name its dependencies.
    """
    left, problems = dict(files), dict[str, str]()
    while left:
        loaded = [
            name
            for name, path in left.items()
            if _is_inserted(sys_root / "module" / name, path, problems, deadline, options.get(name, ""))
        ]
        if not loaded:
            break
        left = {name: path for name, path in left.items() if name not in loaded}
    return {name: problems.get(name, "") for name in left}


def _is_inserted(folder: Path, path: Path, problems: dict[str, str], deadline: Deadline, options: str) -> bool:
    """Load the module at `folder` of /sys unless it is loaded; True if it is loaded. `problems` gets insmod's text."""
    if _module(folder) is not None:
        return True
    argv = ["insmod", "--", str(path), *([options] if options else [])]
    result = run(argv, timeout_s=deadline.bound(TOOL_TIMEOUT_S))
    problems[folder.name] = result.last_line
    return result.status == 0 or _module(folder) is not None


# Exported symbols, with checksums, of an installed kernel that does not run.
#
# Source of the format: Documentation/kbuild/modules.rst, "Symbols and Module.symvers".

PLACES = (
    "/lib/modules/{0}/build/Module.symvers",
    "/lib/modules/{0}/Module.symvers",
    "/lib/modules/{0}/symvers.gz",
    "/lib/modules/{0}/symvers.xz",
    "/usr/src/linux-headers-{0}/Module.symvers",
    "/usr/src/kernels/{0}/Module.symvers",
    "/boot/symvers-{0}.gz",
    "/boot/symvers-{0}.xz",
)
"""Paths of a kernel's symbol list in distributions, by release: with its headers, or beside its modules."""

MAX_SYMBOLS_BYTES = 64 * 1024 * 1024


class OtherKernel:
    """The kernel `release` on the host of `files`."""

    def __init__(self, files: HostFiles, release: str) -> None:
        self._files = files
        self.release = release

    @cached_property
    def checksums(self) -> dict[str, int] | None:
        """Checksum by exported symbol, 0 for a kernel without symbol versions; None if the host has no list."""
        for place in PLACES:
            found = self._read(place.format(self.release))
            if found:
                return found
        return None

    def _read(self, path: str) -> dict[str, int]:
        """The list at `path`; empty if it is missing or cannot be read."""
        try:
            there = self._files.path(path)
            if not there.is_file():
                return {}
            with there.open("rb") as file:
                text = _unpacked(file, there.suffix, MAX_SYMBOLS_BYTES).decode("ascii", "replace")
            rows = (line.split("\t") for line in text.splitlines())
            return {row[1]: int(row[0], 16) for row in rows if len(row) > 2}
        except (OSError, EOFError, ValueError, lzma.LZMAError):
            return {}


# The modules of a driver root, and whether this kernel can load them.
#
# Sources: kmod's modinfo(8), modprobe(8), modules.dep(5), depmod(8) (modules.symbols).

HOST = "/"
NO_MODULES = Modules(())
LAYOUT_SYMBOL = "module_layout"
MAX_LIST_BYTES = 16 * 1024 * 1024
"""Maximum size of a list, in bytes. A distribution's own lists have less than 1 MiB."""

LISTS = ("modules.dep", *(f"modules.{name}.bin" for name in ("dep", "alias", "symbols", "builtin")), "modules.softdep")
"""Files that modprobe reads in a tree."""

_DATA_KINDS = frozenset({b"D", b"d", b"B", b"b", b"R", b"r"})
_USE_ANOTHER = "Use a driver that was built for this kernel, or set DRIVER_ROOT to the tree that holds it."


class ModuleTrees:
    """Module trees on one host for one kernel; `other` is that kernel, if it does not run.

    The object keeps each tree's list and each tool's result: make one object for each observation of the host.
    """

    def __init__(
        self,
        roots: HostRoots,
        kernel: str,
        modules: Modules = NO_MODULES,
        firmware_folder: str = "",
        other: OtherKernel | None = None,
    ) -> None:
        self._other = other
        self.files = roots.files()
        self.kernel = kernel
        self._profile = modules
        self._firmware_folder = firmware_folder
        self._proc = roots.proc
        self._sys_root = roots.sys
        self._facts: dict[str, dict[str, str]] = {}
        self._firmware: dict[str, list[str]] = {}
        self._unread: dict[str, str] = {}
        self._lists: dict[str, tuple[str, ...]] = {}
        self._paths: dict[str, dict[str, str]] = {}

    def find(self, root: str, name: str) -> str:
        """Absolute host path of module `name` in the tree of `root`, by modules.dep, else by file name; "" if none."""
        if root not in self._paths:
            # The first entry of a name counts, so add it last.
            self._paths[root] = {_module_name(entry): entry for entry in reversed(self._entries(root))}
        return self._paths[root].get(name, "")

    def source(self, root: str, roots: Collection[str], *, in_depth: bool = True) -> DriverSource:
        """The modules in `root`; `problem` names a missing one. `in_depth` adds all facts that a load depends on."""
        found: list[ModuleFile] = []
        for name in roots:
            path = self.find(root, name)
            if not path and self._profile.roots_needed is RootsNeeded.ALL:
                return DriverSource(root, problem=self._nothing_for(root, name), remedy=_USE_ANOTHER)
            found += [self._outline(name, path)] if path else []
        if not found:
            return DriverSource(root, problem=self._nothing_for(root, " or ".join(roots)), remedy=_USE_ANOTHER)
        order = tuple(name for name in self._profile.order if self.find(root, name))
        if not in_depth:
            return DriverSource(root, tuple(found), real_root=self.files.real(root), load_order=order)
        problem = self._why_no_list(root, found)
        if problem:
            return DriverSource(root, problem=problem, remedy="Run depmod when the driver tree is built.")
        further = {name: self.find(root, name) for name in order}
        paths = self._with_dependencies(root, {file.name: file.path for file in found} | further)
        exported = self._exported(HOST) | self._exported(root)
        for path in paths.values():
            exported |= exported_symbols(self.files.path(path))
        needed = {name: needed_symbols(self.files.path(path)) for name, path in paths.items()}
        absent = self._absent(frozenset[str]().union(*(names for names in needed.values() if names)) - exported)
        inspected = [
            replace(self._inspect(name, path, paths), unknown_symbols=_unknown(needed[name], absent))
            for name, path in paths.items()
        ]
        return DriverSource(
            root,
            tuple(inspected[: len(found)]),
            real_root=self.files.real(root),
            load_order=order,
            dependencies=tuple(inspected[len(found) :]),
            tree=self._in_order(root) if self._is_whole(root) else (),
            refusal=self._why_refused(root, (*(file.name for file in found), *order)),
            given={} if root == HOST else _only(configured_options(self.files, root.rstrip("/")), paths),
            options=_only(self.options, paths),
            missing_firmware=self._missing_firmware(root, paths),
            is_pinned_out=root != HOST and self._is_pinned_out(paths.values()),
        )

    def _is_pinned_out(self, paths: Iterable[str]) -> bool:
        """Whether LoadPin is on, and a module is on another file system than the host's modules, which it pins.

        Its switch is a file in /proc only where the pinned file system can be written; else the boot options count.
        Source: kernel, Documentation/admin-guide/LSM/LoadPin.rst; security/loadpin/loadpin.c for both names.
        """
        values = [text_of(self._proc / f"sys/kernel/loadpin/{name}") for name in ("enabled", "enforce")]
        words = [word.partition("=") for word in (text_of(self._proc / "cmdline") or "").replace('"', "").split()]
        booted = {name.removeprefix("loadpin."): value for name, _, value in words if name.startswith("loadpin.")}
        is_on = "1" in values
        if not any(one is not None for one in values):
            is_off = "0" in (booted.get("enabled"), booted.get("enforce"))
            is_on = not is_off and "loadpin" in (text_of(self._sys_root / "kernel/security/lsm") or "").split(",")
        is_on &= "kernel-module" not in booted.get("exclude", "").split(",")
        try:
            pinned = self.files.path(self._reference or "/lib/modules").stat().st_dev
            return is_on and any(self.files.path(path).stat().st_dev != pinned for path in paths)
        except OSError:
            return False

    def _missing_firmware(self, root: str, paths: dict[str, str]) -> tuple[MissingFirmware, ...]:
        """The firmware that the modules at `paths` name and that the kernel would not find."""
        folders = firmware_search_path(self._sys_root, self.kernel, self._firmware_folder)
        own = f"{root.rstrip('/')}/{FIRMWARE_OF_A_ROOT}"
        found = []
        for name, path in paths.items():
            lost = tuple(one for one in self._firmware[path] if not found_firmware(self.files, folders, one))
            is_kept = any(found_firmware(self.files, (own,), one) for one in lost)
            found += [MissingFirmware(name, lost, folders, own if is_kept else "")] if lost else []
        return tuple(found)

    def files_of(self, source: DriverSource) -> Iterator[Path]:
        """The files that a load of `source` reads: the tree's lists, its modules, and the firmware that they name."""
        tree = self._tree(source.root)
        yield from (self.files.path(f"{tree}/{name}") for name in LISTS)
        modules = (*source.dependencies, *source.modules)
        paths = dict.fromkeys((*(path for _, path in source.tree), *(module.path for module in modules)))
        yield from (self.files.path(path) for path in paths)
        folders = firmware_search_path(self._sys_root, self.kernel, self._firmware_folder)
        for path in paths:
            self._modinfo(path)
            for name in self._firmware[path]:
                yield from found_firmware(self.files, folders, name)

    @cached_property
    def options(self) -> dict[str, str]:
        return configured_options(self.files)

    def one_by_one(self, root: str, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Name and path of each module to load with insmod for `names`, each after its dependencies in the tree's list.

        Empty if modprobe finds every file. It resolves links below this process's root, where a link of the host may
        dangle (weak-updates are absolute links from one kernel's tree into another's).
        """
        try:
            lines = {_module_name(path): (path, needs) for path, needs in reversed(self._lines(root))}
        except OSError:
            return ()
        order: dict[str, str] = {}
        for name in names:
            path, needs = lines.get(name, ("", ()))
            # modules.dep(5): each dependency comes after the modules that need it.
            for one in (*reversed(needs), *([path] if path else [])):
                order.setdefault(_module_name(one), one)
        return tuple(order.items()) if not all(map(self._is_seen_by_tools, order.values())) else ()

    def _is_seen_by_tools(self, path: str) -> bool:
        """True if a tool that resolves `path` below this process's root opens the same file as on the host."""
        try:
            return (self.files.root / path.lstrip("/")).samefile(self.files.path(path))
        except OSError:
            return False

    def _why_refused(self, root: str, names: Iterable[str]) -> str:
        """Why modprobe would not load one of `names`, from a dry run; "" if it would or if insmod loads them."""
        if self._is_whole(root) or not self._has_list(root) or self.one_by_one(root, names):
            return ""
        top = self.files.path(root)
        reasons = (why_load_refused(top, self.kernel, name) for name in names)
        return next((why for why in reasons if why), "")

    def _has_list(self, root: str) -> bool:
        return self.files.exists(f"{self._tree(root)}/modules.dep")

    def _is_whole(self, root: str) -> bool:
        """True if a load takes every module of the tree. The host's own tree is never loaded whole."""
        return self._profile.load is LoadScope.TREE and root != HOST

    def _in_order(self, root: str) -> tuple[tuple[str, str], ...]:
        """Name and path of every module in the tree, each after its declared dependencies in the tree."""
        paths = {_module_name(entry): entry for entry in self._entries(root)}
        done: dict[str, str] = {}
        begun: set[str] = set()
        left = list(reversed(paths))
        while left:
            name = left[-1]
            if name in begun:
                left.pop()
                done.setdefault(name, paths[name])
                continue
            begun.add(name)
            # Skip a dependency that is begun and not done: it needs this module too, and no order serves a cycle.
            needs = [need for need in _needs(self._modinfo(paths[name])) if need in paths and need not in begun]
            left += reversed(needs)
        return tuple(done.items())

    def _with_dependencies(self, root: str, paths: dict[str, str]) -> dict[str, str]:
        """`paths` by module name, followed by those of all their dependencies in the same tree."""
        found, queue = dict(paths), list(paths.values())
        while queue:
            for need in _needs(self._modinfo(queue.pop(0))):
                path = self.find(root, need) if need not in found else ""
                if path:
                    found[need] = path
                    queue.append(path)
        return found

    def _why_no_list(self, root: str, found: Iterable[ModuleFile]) -> str:
        """Why the run cannot load from a tree without modules.dep; "" if it has the list or depmod can write it."""
        if self._has_list(root) or self._is_whole(root):
            return ""
        why = self.files.why_not_writable(f"{self._tree(root)}/modules.dep")
        lost = [file.path for file in found if not self._is_seen_by_tools(file.path)]
        if lost and not why:
            why = f"depmod would not find {lost[0]}: it is a symlink that does not resolve in this container"
        return f"the driver tree {root} has no modules.dep, and {why}" if why else ""

    def _entries(self, root: str) -> tuple[str, ...]:
        """Absolute host paths of the tree's modules, in the order of its list."""
        if root not in self._lists:
            self._lists[root] = tuple(self._listed(root))
        return self._lists[root]

    def _lines(self, root: str) -> list[tuple[str, list[str]]]:
        """Host path of each module in the tree's list, and of its dependencies; empty without one. Raises OSError."""
        tree = self._tree(root)

        def whole(entry: str) -> str:
            return entry if entry.startswith("/") else f"{tree}/{entry}"

        text = self.files.read(f"{tree}/modules.dep", MAX_LIST_BYTES) or ""
        rows = (line.partition(":") for line in text.splitlines())
        return [(whole(entry.strip()), [whole(need) for need in needs.split()]) for entry, _, needs in rows]

    def _listed(self, root: str) -> Iterator[str]:
        tree = self._tree(root)
        try:
            lines, has_list = self._lines(root), self._has_list(root)
        except OSError:
            return
        yield from (path for path, _ in lines)
        # Only a driver tree, which is small, may lack the list. The host's own tree always has one.
        if not has_list and root != HOST:
            yield from self._found_below(tree)
            if self._is_whole(root) and not self.files.path(f"{root.rstrip('/')}/lib/modules").is_dir():
                yield from self._found_below(root.rstrip("/"))

    def _found_below(self, folder: str) -> Iterator[str]:
        if not self.files.exists(folder):
            return
        top = self.files.path(folder)
        for path in sorted(top.rglob("*.ko*")):
            yield f"{folder}/{path.relative_to(top).as_posix()}"

    def _tree(self, root: str) -> str:
        return f"{root.rstrip('/')}/lib/modules/{self.kernel}"

    def _nothing_for(self, root: str, name: str) -> str:
        try:
            kernels = sorted(entry.name for entry in self.files.path(f"{root.rstrip('/')}/lib/modules").iterdir())
        except (OSError, ValueError):  # ValueError: the path has a NUL
            where = "no module" if self._is_whole(root) else "no lib/modules"
            return f"driver root {root} has {where}{f' {name}' if self._is_whole(root) else ''}"
        return (
            f"driver root {root} has no module {name} for kernel {self.kernel} (it has: {', '.join(kernels) or 'none'})"
        )

    def _inspect(self, name: str, path: str, tree: dict[str, str]) -> ModuleFile:
        facts = self._modinfo(path)
        # modprobe looks for dependencies below the same root only, so any other must be in the kernel already.
        missing = tuple(need for need in _needs(facts) if need not in tree and not self._is_in_kernel(need))
        return replace(
            self._outline(name, path),
            is_signed=("sig_id" in facts or "signer" in facts) if facts else None,
            has_known_key=has_key(text_of(self._proc / "keys") or "", facts.get("signer", "")),
            layout_matches=self._layout_matches(self._checksums(path)),
            flags_match=self._flags_match(facts.get("vermagic", "")),
            missing_dependencies=missing,
        )

    def _is_in_kernel(self, name: str) -> bool:
        # A kernel that does not run yet can load the modules of its own host tree once it runs.
        return bool(self.find(HOST, name)) if self._other else (self._sys_root / "module" / name).is_dir()

    @cached_property
    def _reference(self) -> str:
        """A module of the host's tree to compare with: one that came with the kernel, and never the driver's; or ""."""
        others = [path for path in self._entries(HOST) if not is_own(_module_name(path), self._profile)]
        return next((path for path in others if path.startswith(f"{self._tree(HOST)}/kernel/")), next(iter(others), ""))

    def _flags_match(self, vermagic: str) -> bool | None:
        """True if the vermagic, without the release, equals that of a host module; None if there is none to compare."""
        theirs = self._modinfo(self._reference).get("vermagic", "") if self._reference else ""
        return vermagic.split()[1:] == theirs.split()[1:] if vermagic and theirs else None

    def _modinfo(self, path: str) -> dict[str, str]:
        """First value of each field of a module file; empty if modinfo fails, and `_unread` has the reason."""
        if path in self._facts:
            return self._facts[path]
        facts, self._firmware[path] = self._facts.setdefault(path, {}), []
        result = run(["modinfo", str(self.files.path(path))])
        if result.status:
            self._unread[path] = f"modinfo failed: {result.last_line}"
            return facts
        for line in result.out.splitlines():
            key, separator, value = line.partition(":")
            if separator:
                facts.setdefault(key.strip(), value.strip())
            if key == "firmware":
                self._firmware[path].append(value.strip())
        return facts

    def _outline(self, name: str, path: str) -> ModuleFile:
        facts = self._modinfo(path)
        return ModuleFile(
            name,
            path,
            facts.get("version", ""),
            facts.get("vermagic", ""),
            unread=self._unread.get(path, ""),
            stamp=self._stamp(path),
        )

    def _stamp(self, path: str) -> str:
        """A text that changes when the file is replaced or written; "" if stat fails."""
        try:
            status = self.files.path(path).stat()
        except OSError:
            return ""
        return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"

    def _checksums(self, path: str) -> dict[str, str]:
        """Checksum by imported symbol; empty for a module without symbol versions."""
        rows = (
            line.split()
            for line in run(["modprobe", "--dump-modversions", "--", str(self.files.path(path))]).out.splitlines()
        )
        return {row[1]: row[0] for row in rows if len(row) == 2}

    def _layout_matches(self, checksums: dict[str, str]) -> bool | None:
        """True if the checksum of `module_layout`, which the kernel compares, is a host module's; None if unknown."""
        if self._other is not None and (known := self._other.checksums):
            same = [known[name] == int(its, 16) for name, its in checksums.items() if known.get(name)]
            return all(same) if same else None
        mine = checksums.get(LAYOUT_SYMBOL)
        theirs = self._checksums(self._reference).get(LAYOUT_SYMBOL) if mine and self._reference else None
        return None if mine is None or theirs is None else mine == theirs

    def _absent(self, names: frozenset[str]) -> frozenset[str] | None:
        """The symbols in `names` that the kernel does not have; None if that cannot be determined."""
        if not names:
            return names
        if self._other is not None:
            return None if self._other.checksums is None else names - self._other.checksums.keys()
        try:
            words = set((self._proc / "kallsyms").read_bytes().split())
        except OSError:
            return None
        absent = frozenset(name for name in names if name.encode() not in words)
        # Without CONFIG_KALLSYMS_ALL the list lacks exported data, so a missing symbol may exist.
        return absent if not absent or not words.isdisjoint(_DATA_KINDS) else None

    def _exported(self, root: str) -> set[str]:
        """Symbols that the modules of a tree export, from its modules.symbols (`alias symbol:NAME MODULE`)."""
        try:
            text = self.files.read(f"{self._tree(root)}/modules.symbols", MAX_LIST_BYTES)
        except OSError:
            return set()
        rows = (line.split() for line in (text or "").splitlines())
        return {row[1].removeprefix("symbol:") for row in rows if len(row) == 3 and row[0] == "alias"}


def _only(options: Mapping[str, str], names: Container[str]) -> dict[str, str]:
    return {name: text for name, text in options.items() if name in names}


def has_key(keys: str, signer: str) -> bool:
    """True if `keys`, the content of /proc/keys, has a valid key with the name `signer`, as modinfo prints it.

    A certificate's key is described by organization and name, then its identifier (crypto/asymmetric_keys,
    x509_public_key.c; proc(5)). The kernel's own, the platform's and the machine owner's are all in the list.
    """
    for line in keys.splitlines():
        words = line.split(None, 8)
        is_valid = len(words) == 9 and words[7].startswith("asymmetri") and words[1].startswith("I--")
        if is_valid and signer and f": {signer}: " in f": {words[8]}":
            return True
    return False


def _unknown(needed: frozenset[str] | None, absent: frozenset[str] | None) -> tuple[str, ...] | None:
    return None if needed is None or absent is None else tuple(sorted(needed & absent))


def _needs(facts: dict[str, str]) -> list[str]:
    return [need.replace("-", "_") for need in facts.get("depends", "").split(",") if need]


def _module_name(path: str) -> str:
    """The module's name in the kernel: the file name without its endings, with underscores for dashes."""
    return path.rpartition("/")[2].split(".ko", 1)[0].replace("-", "_")
