"""Kernel modules: what /sys says of them, what a driver root offers, and rmmod, modprobe and modinfo.

Sources: Documentation/ABI/stable/sysfs-module; kmod's modprobe(8), rmmod(8), modinfo(8), modules.dep(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from driver_manager.adapters.commands import run
from driver_manager.adapters.rooted import HostFiles
from driver_manager.domain.errors import ConfigError, ModuleBusy, ModuleFailed
from driver_manager.domain.model import DriverSource, Module, ModuleFile
from driver_manager.domain.profile import Modules
from driver_manager.domain.unloading import closure

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
    queue = [name for name in names if name in modules.roots or _matches(name, modules.own)]
    while queue:
        name = queue.pop()
        if name in loaded:
            continue
        module = _module(folder / name)
        if module is not None:
            loaded[name] = module
            queue += module.holders
    return closure(loaded, modules)


def loaded_among(sys_root: Path, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that are loaded modules."""
    return tuple(name for name in names if _module(sys_root / "module" / name) is not None)


def _module(folder: Path) -> Module | None:
    """The module at `folder`; None where it is gone or built in (then it has no `initstate`)."""
    state = _line(folder / "initstate")
    if state is None:
        return None
    count = _line(folder / "refcnt") or ""
    try:
        holders = tuple(sorted(os.listdir(folder / "holders")))  # noqa: PTH208
    except OSError:
        holders = ()
    return Module(
        name=folder.name,
        version=_line(folder / "version") or "",
        refcount=int(count) if count.lstrip("-").isdigit() else None,
        holders=holders,
        live=state == "live",
    )


def _line(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def unload(name: str) -> None:
    """rmmod. Raises ModuleBusy, ModuleFailed."""
    result = run(["rmmod", name])
    if result.status == 0:
        return
    if any(word in f"{result.err} {result.out}".lower() for word in _BUSY):
        raise ModuleBusy(f"module {name} is in use: {result.said}", "Stop what uses the device, then run again.")
    raise ModuleFailed(f"module {name} cannot be unloaded: {result.said}", "Look at the kernel log (dmesg).")


def load(root: Path, kernel: str, name: str) -> None:
    """modprobe from `root` for `kernel`. Raises ModuleFailed."""
    result = run(["modprobe", "--dirname", str(root), "--set-version", kernel, name])
    if result.status:
        raise ModuleFailed(
            f"module {name} cannot be loaded from {root}: {result.said}",
            "Look at the kernel log (dmesg): was the driver built for this kernel, is it signed if it must be?",
        )


def find_in_tree(files: HostFiles, root: str, kernel: str, name: str) -> str:
    """Absolute host path of module `name` in the tree of `root` for `kernel`, by its modules.dep; "" if none."""
    tree = f"{root.rstrip('/')}/lib/modules/{kernel}"
    try:
        with files.path(f"{tree}/modules.dep").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                entry = line.split(":", 1)[0]
                if entry.rpartition("/")[2].split(".", 1)[0].replace("-", "_") == name:
                    return entry if entry.startswith("/") else f"{tree}/{entry}"
    except OSError:
        return ""
    return ""


def source(files: HostFiles, root: str, kernel: str, roots: Iterable[str]) -> DriverSource:
    """What `root` offers for `kernel`; its `problem` says why it cannot be loaded from."""
    found: list[ModuleFile] = []
    for name in roots:
        path = find_in_tree(files, root, kernel, name)
        if not path:
            return DriverSource(root, problem=_nothing_for(files, root, kernel, name), remedy=_BUILD_IT)
        facts = _modinfo(files.path(path))
        vermagic = facts.get("vermagic", "")
        if vermagic.split(" ")[0] != kernel:
            problem = f"module {path} is built for kernel {vermagic.split(' ')[0] or 'unknown'}, this one is {kernel}"
            return DriverSource(root, problem=problem, remedy=_BUILD_IT)
        found.append(ModuleFile(name, path, facts.get("version", ""), vermagic))
    return DriverSource(root, tuple(found))


_BUILD_IT = "Use a driver image that was built for this kernel, or set DRIVER_ROOT to the tree that holds it."


def _nothing_for(files: HostFiles, root: str, kernel: str, name: str) -> str:
    try:
        kernels = sorted(entry.name for entry in files.path(f"{root.rstrip('/')}/lib/modules").iterdir())
    except OSError:
        return f"driver root {root} has no lib/modules"
    return f"driver root {root} has no module {name} for kernel {kernel} (it has: {', '.join(kernels) or 'none'})"


def _modinfo(path: Path) -> dict[str, str]:
    """Fields of a module file, first occurrence each; empty where modinfo fails."""
    facts: dict[str, str] = {}
    for line in run(["modinfo", str(path)]).out.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            facts.setdefault(key.strip(), value.strip())
    return facts
