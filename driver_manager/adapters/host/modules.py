"""Kernel modules: what is loaded, what a driver root offers, and rmmod, modprobe and insmod."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import stat
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from msgspec.structs import replace

from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.process.forked import lines_within
from driver_manager.adapters.process.run import TOOL_TIMEOUT_S, run
from driver_manager.adapters.process.tools import Result
from driver_manager.core.ports_base import Clock
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ConfigError, ModuleBusy, ModuleFailed, ModuleStuck
from driver_manager.domain.host import DriverSource, MissingFirmware, Module, ModuleFile
from driver_manager.domain.profile import LoadScope, Modules, RootsNeeded, closure, is_own

# Which symbols a module file needs from others: the undefined ones of its ELF symbol table.
#
# Own reader, because it is one table of one format: a kernel module is a relocatable ELF file of the kernel's own word
# size and byte order. Source: elf(5).

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_SYMTAB = 2
_GLOBAL = 1
_EXPORT = "__ksymtab_"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
MAX_BYTES = 512 * 1024 * 1024
MAX_NAME_BYTES = 1024
"""The kernel's own limit is 512 (KSYM_NAME_LEN): a longer one is none."""


def needed_symbols(path: Path) -> frozenset[str] | None:
    """Names that must be exported by somebody for the module to load; None for what cannot be read as one.

    Weak symbols do not count. Not read: zstd-compressed modules and big-endian or 32-bit kernels.
    """
    symbols = _symbols(path)
    return None if symbols is None else frozenset(name for name, is_needed in symbols if is_needed)


def exported_symbols(path: Path) -> frozenset[str]:
    """Names that the module exports (EXPORT_SYMBOL leaves `__ksymtab_NAME`); none for what cannot be read."""
    names = (name for name, _ in _symbols(path) or ())
    return frozenset(name.removeprefix(_EXPORT) for name in names if name.startswith(_EXPORT))


def _symbols(path: Path) -> list[tuple[str, bool]] | None:
    """(name, whether it is an undefined global) of the module's symbols; None for what is no module."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = _content(file, path.suffix)
        return list(_table(data)) if data.startswith(_ELF64_LITTLE) else None
    except (OSError, EOFError, struct.error, lzma.LZMAError, zlib.error, IndexError, OverflowError, ValueError):
        return None


def _content(file: BinaryIO, suffix: str) -> bytes:
    if suffix == ".gz":
        with gzip.open(file) as packed:
            return packed.read(MAX_BYTES)
    if suffix == ".xz":
        with lzma.open(file) as packed:
            return packed.read(MAX_BYTES)
    return file.read(MAX_BYTES)


def _table(data: bytes) -> Iterator[tuple[str, bool]]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    if size < _SECTION.size or not count:
        raise ValueError("no section headers")
    sections = [_SECTION.unpack_from(data, table + number * size) for number in range(count)]
    # An object file has one (elf(5)); a thousand that share their bytes would be read for an hour.
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


# Where this kernel looks for the firmware that a module asks for, which is never in a driver root by itself.
#
# The kernel opens these paths among the mounts of the first process, whoever loads the module, and the file may be
# compressed. Source: drivers/base/firmware_loader/main.c (fw_path, fw_get_filesystem_firmware). Changes nothing but
# that path.

FIRMWARE_OF_A_ROOT = "lib/firmware"
SUFFIXES = ("", ".zst", ".xz")


def custom_firmware_path(sys_root: Path) -> str | None:
    """The folder that firmware_class.path names, "" where it names none, None where this kernel has no such thing."""
    try:
        return _parameter(sys_root).read_text(errors="replace").strip()
    except OSError:
        return None


def set_firmware_path(sys_root: Path, path: str) -> None:
    """Let firmware_class.path name `path`: without a line feed, which would be part of it. Raises ModuleFailed."""
    try:
        _parameter(sys_root).write_text(path)
    except OSError as error:
        raise ModuleFailed(
            f"cannot set firmware_class.path to {path}: {error.strerror}", "Mount the host's /sys read-write."
        ) from error


def _parameter(sys_root: Path) -> Path:
    return sys_root / "module/firmware_class/parameters/path"


def firmware_search_path(sys_root: Path, kernel: str, wanted: str) -> tuple[str, ...]:
    """The folders of the host in which the kernel looks, in its order: the one that firmware_class.path names first.

    `wanted` is what it is to name by the time of the load, "" where that is left as it is.
    """
    custom = wanted or custom_firmware_path(sys_root)
    base = f"/{FIRMWARE_OF_A_ROOT}"
    return (*([custom] if custom else []), f"{base}/updates/{kernel}", f"{base}/updates", f"{base}/{kernel}", base)


def has_firmware(files: HostFiles, folders: tuple[str, ...], name: str) -> bool:
    """Whether one of `folders` has the file, or one that a pattern in its place means (MODULE_FIRMWARE takes both)."""
    return next(found_firmware(files, folders, name), None) is not None


def found_firmware(files: HostFiles, folders: tuple[str, ...], name: str) -> Iterator[Path]:
    """The file that the kernel would read, or all that a pattern in its place means, as paths of this process."""
    there = next(filter(None, (_matching(files, folder, name) for folder in folders)), [])
    yield from map(files.path, there)


def _matching(files: HostFiles, folder: str, name: str) -> list[str]:
    """The paths that `name` means in `folder`."""
    try:
        if "*" not in name:
            return [path for suffix in SUFFIXES if files.exists(path := f"{folder}/{name}{suffix}")]
        inner, _, pattern = f"{folder}/{name}".rpartition("/")
        there = files.names(inner)
    except OSError:
        return []
    return [f"{inner}/{one}" for one in there for suffix in SUFFIXES if fnmatchcase(one, f"{pattern}{suffix}")]


# Options of modules: those that the host's modprobe.d sets, and those that loaded modules have now.
#
# modprobe reads modprobe.d below our own root, which in a container is not the host's. Changes nothing. Sources:
# modprobe.d(5); Documentation/ABI/stable/sysfs-module.

FOLDERS = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
"""Of two files of one name the one in the earlier folder counts."""

READ_S = 10.0
VALUE_CHARS = 256


def configured_options(files: HostFiles) -> dict[str, str]:
    """What the host's modprobe.d sets, by module, as modprobe would hand it over; nothing of what cannot be read."""
    found: dict[str, str] = {}
    for path in _config_files(files):
        try:
            text = files.read(path) or ""
        except OSError:
            continue
        for name, options in options_in(text).items():
            found[name] = f"{found[name]} {options}" if name in found else options
    return found


def options_in(text: str) -> dict[str, str]:
    """What one file sets, by module; a line that ends with a backslash goes on in the next."""
    found: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.rstrip("\\ \t").split(None, 2)
        if len(words) == 3 and words[0] == "options":
            name = words[1].replace("-", "_")
            found[name] = f"{found[name]} {words[2]}" if name in found else words[2]
    return found


def _config_files(files: HostFiles) -> list[str]:
    """The files that count, in the order in which they are read: by name, whichever folder they are in."""
    by_name: dict[str, str] = {}
    for folder in FOLDERS:
        with contextlib.suppress(OSError):
            for name in files.names(folder):
                if name.endswith(".conf"):
                    by_name.setdefault(name, f"{folder}/{name}")
    return [by_name[name] for name in sorted(by_name)]


def as_config(options: Mapping[str, str]) -> bytes:
    """`options` as a file of modprobe.d."""
    return "".join(f"options {name} {text}\n" for name, text in options.items()).encode(errors="replace")


def loaded_parameters(sys_root: Path, names: Iterable[str], timeout_s: float = READ_S) -> dict[str, str]:
    """Value of each parameter of the loaded modules `names` that can be read, as `module.parameter`.

    Each is asked of the driver itself, which may not answer: nothing then, after `timeout_s` seconds.
    """
    folders = [folder for name in names if (folder := sys_root / "module" / name / "parameters").is_dir()]
    found = lines_within(timeout_s, lambda: _parameters(folders)) if folders else None
    return dict(line.split("=", 1) for line in found or ())


def _parameters(folders: Iterable[Path]) -> Iterator[str]:
    for folder in folders:
        for parameter in sorted(os.listdir(folder)):  # noqa: PTH208  # plain names
            with contextlib.suppress(OSError):
                value = (folder / parameter).read_text(errors="replace").strip()[:VALUE_CHARS]
                if "\n" not in value:
                    yield f"{folder.parent.name}.{parameter}={value}"


# Loaded kernel modules: what /sys says of them, and rmmod, modprobe and depmod.
#
# Sources: Documentation/ABI/stable/sysfs-module; kmod's modprobe(8), rmmod(8), depmod(8).

KMOD_TOOLS = ("rmmod", "modprobe", "insmod")

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})

GOING = "going"
"""What `initstate` says while a module's exit function runs (kernel/module/sysfs.c, show_initstate)."""

GOING_POLL_S = 0.2

_BUSY = ("in use", "resource temporarily unavailable", "device or resource busy")
"""How rmmod words EAGAIN and EBUSY; kernels answer EAGAIN for a module in use."""


def driver_modules(sys_root: Path, modules: Modules) -> dict[str, Module]:
    """The loaded modules of the driver, by name. Raises ConfigError when /sys/module cannot be read."""
    folder = sys_root / "module"
    try:
        names = os.listdir(folder)  # noqa: PTH208  # a plain list of names, the folder has hundreds
    except OSError as error:
        raise ConfigError(
            f"cannot read {folder}: {error.strerror}", "Mount the host's /sys (SYS_ROOT), and run as root."
        ) from error
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
    """Names of the driver's modules that the kernel is taking out. Raises ConfigError as `driver_modules`."""
    loaded = driver_modules(sys_root, modules)
    with_holders = {holder for module in loaded.values() for holder in module.holders}
    folder = sys_root / "module"
    named = {name for name in os.listdir(folder) if is_own(name, modules)}  # noqa: PTH208
    return tuple(sorted(name for name in named | with_holders if _is_going(folder / name)))


def loaded_among(sys_root: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that are loaded modules."""
    return tuple(name for name in names if _module(sys_root / "module" / name) is not None)


def permanent_modules(proc: Path, names: Iterable[str]) -> dict[str, str]:
    """Those of `names` that are loaded and that this kernel never unloads, with the reason; none where it cannot tell.

    /proc/modules has name, size, reference count and users: `-` for a count where the kernel is built without
    unloading, `[permanent]` among the users of a module without an exit function (kernel/module/procfs.c,
    print_unload_info).
    """
    try:
        rows = [line.split() for line in (proc / "modules").read_text(errors="replace").splitlines()]
    except OSError:
        return {}
    wanted, found = set(names), dict[str, str]()
    for name, _, count, users in (row[:4] for row in rows if len(row) > 3 and row[0] in wanted):
        if "[permanent]" in users.split(","):
            found[name] = "it has no exit function (/proc/modules: [permanent])"
        elif count == "-":
            found[name] = "this kernel is built without CONFIG_MODULE_UNLOAD"
    return found


def _module(folder: Path) -> Module | None:
    """The module at `folder`; None where it is gone or built in (then it has no `initstate`)."""
    # One that is going serves nobody any more, whether or not it ever ends.
    if _line(folder / "initstate") in (None, GOING):
        return None
    count = _line(folder / "refcnt") or ""
    try:
        holders = tuple(sorted(os.listdir(folder / "holders")))  # noqa: PTH208
    except OSError:
        holders = ()
    return Module(
        name=folder.name,
        version=_line(folder / "version") or "",
        refcount=int(count) if count.isascii() and count.isdigit() else None,
        holders=holders,
    )


def _is_going(folder: Path) -> bool:
    return _line(folder / "initstate") == GOING


def _line(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def unload_module(sys_root: Path, name: str, deadline: Deadline, clock: Clock) -> None:
    """rmmod. What /sys says decides how it ended, before the words of the tool.

    Raises ModuleBusy, ModuleStuck, ModuleFailed, Terminated.
    """
    result = run(["rmmod", "--", name], timeout_s=deadline.bound(TOOL_TIMEOUT_S))
    # A tool that was killed leaves the exit function running: the kernel goes on, and may yet finish.
    while _is_going(sys_root / "module" / name):
        if deadline.is_over:
            raise ModuleStuck(
                f"module {name} is stuck while unloading: its exit function does not return",
                "Reboot the node; the next run continues. The kernel log (dmesg) may show what the module waits for.",
            )
        clock.sleep(GOING_POLL_S)
    module = _module(sys_root / "module" / name)
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
    """modprobe from `root` for `kernel`, after depmod where the tree has no modules.dep. Raises ModuleFailed.

    `options` by module come before those of the modprobe.d that modprobe reads below our own root.
    """
    make_module_list(root, kernel, deadline)
    result = _modprobe(root, kernel, name, deadline, options)
    if result.status:
        raise ModuleFailed(
            f"module {name} cannot be loaded from {root}: {result.last_line}",
            "Look at the kernel log (dmesg): was the driver built for this kernel, is it signed if it must be?",
        )


def make_module_list(root: Path, kernel: str, deadline: Deadline) -> None:
    """depmod where the tree has no modules.dep. Raises ModuleFailed."""
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
        # The first of these replaces the folders that modprobe knows by itself.
        configs = (f"/proc/self/fd/{config}", *(folder for folder in FOLDERS if os.path.isdir(folder)))  # noqa: PTH112
        words = [word for path in configs for word in ("--config", path)]
        return run([*argv, *words, "--", name], timeout_s=timeout_s, pass_fds=(config,))
    finally:
        os.close(config)


def why_load_refused(root: Path, kernel: str, name: str) -> str:
    """Why modprobe would not load the module from a tree with a list, "" where it would, as far as it tells before."""
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
    """insmod what of `files` can be loaded, pass by pass until nothing changes; what was said of those that cannot.

    Some modules of a driver serve hardware that is not there, and what a module needs it does not always say.
    """
    left, said = dict(files), dict[str, str]()
    while left:
        loaded = [
            name
            for name, path in left.items()
            if _is_inserted(sys_root / "module" / name, path, said, deadline, options.get(name, ""))
        ]
        if not loaded:
            break
        left = {name: path for name, path in left.items() if name not in loaded}
    return {name: said.get(name, "") for name in left}


def _is_inserted(folder: Path, path: Path, said: dict[str, str], deadline: Deadline, options: str) -> bool:
    """Whether the module at `folder` of /sys is loaded, now at the latest; `said` is told what insmod said."""
    if _module(folder) is not None:
        return True
    argv = ["insmod", "--", str(path), *([options] if options else [])]
    result = run(argv, timeout_s=deadline.bound(TOOL_TIMEOUT_S))
    said[folder.name] = result.last_line
    return result.status == 0 or _module(folder) is not None


# What is known on a host of a kernel that does not run: the symbols that it exports, with their checksums.
#
# Changes nothing. Source of the form: Documentation/kbuild/modules.rst, "Symbols and Module.symvers".

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
"""Where distributions have the list of a kernel's release: with its headers, or beside its modules."""

MAX_SYMBOLS_BYTES = 64 * 1024 * 1024


class OtherKernel:
    """The kernel `release` on the host whose files these are."""

    def __init__(self, files: HostFiles, release: str) -> None:
        self._files = files
        self.release = release

    @cached_property
    def checksums(self) -> dict[str, int] | None:
        """Checksum by exported symbol, 0 for a kernel without symbol versions; None where the host has no list."""
        for place in PLACES:
            found = self._read(place.format(self.release))
            if found:
                return found
        return None

    def _read(self, path: str) -> dict[str, int]:
        """The list at `path`; empty where there is none, or none that can be read."""
        try:
            there = self._files.path(path)
            if not there.is_file():
                return {}
            with there.open("rb") as file:
                text = _unpacked(file, there.suffix).read(MAX_SYMBOLS_BYTES).decode("ascii", "replace")
            rows = (line.split("\t") for line in text.splitlines())
            return {row[1]: int(row[0], 16) for row in rows if len(row) > 2}
        except (OSError, EOFError, ValueError, lzma.LZMAError):
            return {}


def _unpacked(file: BinaryIO, suffix: str) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    match suffix:
        case ".gz":
            return gzip.open(file)
        case ".xz":
            return lzma.open(file)
    return file


# What a driver root offers: the modules of its tree, their facts, and whether this kernel would take them.
#
# Nothing is loaded or written. Sources: kmod's modinfo(8), modprobe(8), modules.dep(5), depmod(8) (modules.symbols).

HOST = "/"
NO_MODULES = Modules(())
LAYOUT_SYMBOL = "module_layout"
MAX_LIST_BYTES = 16 * 1024 * 1024
"""A distribution's own lists have less than one."""

LISTS = ("modules.dep", *(f"modules.{name}.bin" for name in ("dep", "alias", "symbols", "builtin")), "modules.softdep")
"""What modprobe reads of a tree."""

_DATA_KINDS = frozenset({b"D", b"d", b"B", b"b", b"R", b"r"})
_USE_ANOTHER = "Use a driver that was built for this kernel, or set DRIVER_ROOT to the tree that holds it."


class ModuleTrees:
    """Module trees on one host for one kernel. `proc` and `sys_root` are the host's /proc and /sys.

    `other` is that kernel where it is not the one that runs.
    A tree's list, and what a tool said of a file, are kept as long as the object, which is one look at the host.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # one host, one kernel, and what one profile says of its modules
        self,
        files: HostFiles,
        proc: Path,
        sys_root: Path,
        kernel: str,
        modules: Modules = NO_MODULES,
        firmware_folder: str = "",
        other: OtherKernel | None = None,
    ) -> None:
        self._other = other
        self.files = files
        self.kernel = kernel
        self._profile = modules
        self._firmware_folder = firmware_folder
        self._proc = proc
        self._sys_root = sys_root
        self._options: dict[str, str] | None = None
        self._facts: dict[str, dict[str, str]] = {}
        self._firmware: dict[str, list[str]] = {}
        self._unread: dict[str, str] = {}
        self._lists: dict[str, tuple[str, ...]] = {}
        self._paths: dict[str, dict[str, str]] = {}

    def find(self, root: str, name: str) -> str:
        """Absolute host path of module `name` in the tree of `root`, "" if none: by modules.dep, else by its name."""
        if root not in self._paths:
            # The first of a name counts, so it is written last.
            self._paths[root] = {_module_name(entry): entry for entry in reversed(self._entries(root))}
        return self._paths[root].get(name, "")

    def source(self, root: str, roots: Collection[str], *, in_depth: bool = True) -> DriverSource:
        """What `root` offers; its `problem` says what is not there. `in_depth` adds all that decides about loading."""
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
            options={name: text for name, text in self.options().items() if name in paths},
            missing_firmware=self._missing_firmware(root, paths),
        )

    def _missing_firmware(self, root: str, paths: dict[str, str]) -> tuple[MissingFirmware, ...]:
        """What the modules at `paths` name and the kernel would not find."""
        folders = firmware_search_path(self._sys_root, self.kernel, self._firmware_folder)
        own = f"{root.rstrip('/')}/{FIRMWARE_OF_A_ROOT}"
        found = []
        for name, path in paths.items():
            lost = tuple(one for one in self._firmware[path] if not has_firmware(self.files, folders, one))
            is_kept = any(has_firmware(self.files, (own,), one) for one in lost)
            found += [MissingFirmware(name, lost, folders, own if is_kept else "")] if lost else []
        return tuple(found)

    def files_of(self, source: DriverSource) -> Iterator[Path]:
        """What a load of `source` reads: the tree's lists, its modules, and the firmware that they name."""
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

    def options(self) -> dict[str, str]:
        """Options that the host's modprobe.d sets, by module."""
        if self._options is None:
            self._options = configured_options(self.files)
        return self._options

    def one_by_one(self, root: str, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Name and path of the modules to load file by file for `names`, each after what it needs, by the tree's list.

        Empty where modprobe finds every file: it follows links from our own root, where one of the host's may lead
        nowhere (weak-updates are links from one kernel's tree into another's, and absolute).
        """
        try:
            lines = {_module_name(path): (path, needs) for path, needs in reversed(self._lines(root))}
        except OSError:
            return ()
        order: dict[str, str] = {}
        for name in names:
            path, needs = lines.get(name, ("", ()))
            # modules.dep(5): what comes last is needed by what comes before it.
            for one in (*reversed(needs), *([path] if path else [])):
                order.setdefault(_module_name(one), one)
        return tuple(order.items()) if not all(map(self._is_seen_by_tools, order.values())) else ()

    def _is_seen_by_tools(self, path: str) -> bool:
        """Whether a tool that is given the path below our own root opens the file that it is on the host."""
        try:
            return (self.files.root / path.lstrip("/")).samefile(self.files.path(path))
        except OSError:
            return False

    def _why_refused(self, root: str, names: Iterable[str]) -> str:
        """Why modprobe, which is not to insert what it finds yet, would not load one of `names`; "" where it would."""
        if self._is_whole(root) or not self._has_list(root) or self.one_by_one(root, names):
            return ""
        top = self.files.path(root)
        said = (why_load_refused(top, self.kernel, name) for name in names)
        return next((why for why in said if why), "")

    def _has_list(self, root: str) -> bool:
        return self.files.exists(f"{self._tree(root)}/modules.dep")

    def _is_whole(self, root: str) -> bool:
        """Whether every module of the tree is loaded: never all that a host has."""
        return self._profile.load is LoadScope.TREE and root != HOST

    def _in_order(self, root: str) -> tuple[tuple[str, str], ...]:
        """Name and path of every module in the tree, each after those of the tree that it says it needs."""
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
            # One that is begun and not done needs this one in turn: no order serves both.
            needs = [need for need in _needs(self._modinfo(paths[name])) if need in paths and need not in begun]
            left += reversed(needs)
        return tuple(done.items())

    def _with_dependencies(self, root: str, paths: dict[str, str]) -> dict[str, str]:
        """`paths` by module name, and after them those of all modules they pull in from the same tree."""
        found, queue = dict(paths), list(paths.values())
        while queue:
            for need in _needs(self._modinfo(queue.pop(0))):
                path = self.find(root, need) if need not in found else ""
                if path:
                    found[need] = path
                    queue.append(path)
        return found

    def _why_no_list(self, root: str, found: Iterable[ModuleFile]) -> str:
        """Why a tree without modules.dep cannot be loaded from, "" if it has one or can be given one."""
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
        """Absolute host path of each module in the tree's list, and of those that it needs; empty without a list.

        Raises OSError.
        """
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
        # The host's own tree always has its list; only a driver tree may come without, and is small.
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
        except (OSError, ValueError):  # a name with NUL is no file's
            where = "no module" if self._is_whole(root) else "no lib/modules"
            return f"driver root {root} has {where}{f' {name}' if self._is_whole(root) else ''}"
        return (
            f"driver root {root} has no module {name} for kernel {self.kernel} (it has: {', '.join(kernels) or 'none'})"
        )

    def _inspect(self, name: str, path: str, tree: dict[str, str]) -> ModuleFile:
        facts = self._modinfo(path)
        # modprobe looks for dependencies below the same root only: another one serves if it is in the kernel already.
        missing = tuple(need for need in _needs(facts) if need not in tree and not self._is_in_kernel(need))
        return replace(
            self._outline(name, path),
            is_signed=("sig_id" in facts or "signer" in facts) if facts else None,
            layout_matches=self._layout_matches(self._checksums(path)),
            flags_match=self._flags_match(facts.get("vermagic", "")),
            missing_dependencies=missing,
        )

    def _is_in_kernel(self, name: str) -> bool:
        # What the host brings for a kernel that does not run yet is there by then.
        return bool(self.find(HOST, name)) if self._other else (self._sys_root / "module" / name).is_dir()

    def _flags_match(self, vermagic: str) -> bool | None:
        """Compared with a module of the host's own tree, without the release; None where there is none to compare."""
        reference = next(iter(self._entries(HOST)), "")
        theirs = self._modinfo(reference).get("vermagic", "") if reference else ""
        return vermagic.split()[1:] == theirs.split()[1:] if vermagic and theirs else None

    def _modinfo(self, path: str) -> dict[str, str]:
        """Fields of a module file, first occurrence each; empty where modinfo fails, and `_unread` says why."""
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
        """Another text whenever the file is replaced or written to, "" where it cannot be looked at."""
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
        """Compared with a module of the host's own tree for this kernel: the kernel compares the same number."""
        if self._other is not None and (known := self._other.checksums):
            same = [known[name] == int(its, 16) for name, its in checksums.items() if known.get(name)]
            return all(same) if same else None
        mine = checksums.get(LAYOUT_SYMBOL)
        reference = next(iter(self._entries(HOST)), "")
        theirs = self._checksums(reference).get(LAYOUT_SYMBOL) if mine and reference else None
        return None if mine is None or theirs is None else mine == theirs

    def _absent(self, names: frozenset[str]) -> frozenset[str] | None:
        """Those of `names` that the kernel does not know; None if unknowable."""
        if not names:
            return names
        if self._other is not None:
            return None if self._other.checksums is None else names - self._other.checksums.keys()
        try:
            words = set((self._proc / "kallsyms").read_bytes().split())
        except OSError:
            return None
        absent = frozenset(name for name in names if name.encode() not in words)
        # Without CONFIG_KALLSYMS_ALL exported data is not listed: what is missing may be there all the same.
        return absent if not absent or not words.isdisjoint(_DATA_KINDS) else None

    def _exported(self, root: str) -> set[str]:
        """Symbols exported by modules of a tree, by its modules.symbols (`alias symbol:NAME MODULE`)."""
        try:
            text = self.files.read(f"{self._tree(root)}/modules.symbols", MAX_LIST_BYTES)
        except OSError:
            return set()
        rows = (line.split() for line in (text or "").splitlines())
        return {row[1].removeprefix("symbol:") for row in rows if len(row) == 3 and row[0] == "alias"}


def _unknown(needed: frozenset[str] | None, absent: frozenset[str] | None) -> tuple[str, ...] | None:
    return None if needed is None or absent is None else tuple(sorted(needed & absent))


def _needs(facts: dict[str, str]) -> list[str]:
    return [need.replace("-", "_") for need in facts.get("depends", "").split(",") if need]


def _module_name(path: str) -> str:
    """The module's name in the kernel: without directories and endings, dashes as underscores."""
    return path.rpartition("/")[2].split(".ko", 1)[0].replace("-", "_")
