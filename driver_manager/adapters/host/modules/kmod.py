"""Loaded kernel modules: what /sys says of them, and rmmod, modprobe and depmod.

Sources: Documentation/ABI/stable/sysfs-module; kmod's modprobe(8), rmmod(8), depmod(8).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from driver_manager.adapters.host.modules.options import FOLDERS, as_config
from driver_manager.adapters.process.run import TOOL_TIMEOUT_S, Result, run
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ConfigError, ModuleBusy, ModuleFailed, ModuleStuck
from driver_manager.domain.host import Module
from driver_manager.domain.modules import closure, is_own
from driver_manager.domain.profile import Modules
from driver_manager.ports.base import Clock

TOOLS = ("rmmod", "modprobe", "insmod")

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


def permanent(proc: Path, names: Iterable[str]) -> dict[str, str]:
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


def unload(sys_root: Path, name: str, deadline: Deadline, clock: Clock) -> None:
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


def load(root: Path, kernel: str, name: str, deadline: Deadline, options: Mapping[str, str] = NO_OPTIONS) -> None:
    """modprobe from `root` for `kernel`, after depmod where the tree has no modules.dep. Raises ModuleFailed.

    `options` by module come before those of the modprobe.d that modprobe reads below our own root.
    """
    make_list(root, kernel, deadline)
    result = _modprobe(root, kernel, name, deadline, options)
    if result.status:
        raise ModuleFailed(
            f"module {name} cannot be loaded from {root}: {result.last_line}",
            "Look at the kernel log (dmesg): was the driver built for this kernel, is it signed if it must be?",
        )


def make_list(root: Path, kernel: str, deadline: Deadline) -> None:
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


def why_refused(root: Path, kernel: str, name: str) -> str:
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


def load_all(
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
