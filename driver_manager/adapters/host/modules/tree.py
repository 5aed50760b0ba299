"""What a driver root offers: the modules of its tree, their facts, and whether this kernel would take them.

Nothing is loaded or written. Sources: kmod's modinfo(8), modprobe(8), modules.dep(5), depmod(8) (modules.symbols).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.host.modules import firmware, kmod
from driver_manager.adapters.host.modules.elf import exported_symbols, needed_symbols
from driver_manager.adapters.host.modules.options import configured_options
from driver_manager.adapters.host.modules.other_kernel import OtherKernel
from driver_manager.adapters.process.run import run
from driver_manager.domain.host import DriverSource, MissingFirmware, ModuleFile
from driver_manager.domain.profile import LoadScope, Modules, RootsNeeded

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
        folders = firmware.search_path(self._sys_root, self.kernel, self._firmware_folder)
        own = f"{root.rstrip('/')}/{firmware.OF_A_ROOT}"
        found = []
        for name, path in paths.items():
            lost = tuple(one for one in self._firmware[path] if not firmware.is_there(self.files, folders, one))
            is_kept = any(firmware.is_there(self.files, (own,), one) for one in lost)
            found += [MissingFirmware(name, lost, folders, own if is_kept else "")] if lost else []
        return tuple(found)

    def files_of(self, source: DriverSource) -> Iterator[Path]:
        """What a load of `source` reads: the tree's lists, its modules, and the firmware that they name."""
        tree = self._tree(source.root)
        yield from (self.files.path(f"{tree}/{name}") for name in LISTS)
        modules = (*source.dependencies, *source.modules)
        paths = dict.fromkeys((*(path for _, path in source.tree), *(module.path for module in modules)))
        yield from (self.files.path(path) for path in paths)
        folders = firmware.search_path(self._sys_root, self.kernel, self._firmware_folder)
        for path in paths:
            self._modinfo(path)
            for name in self._firmware[path]:
                yield from firmware.found(self.files, folders, name)

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
        said = (kmod.why_refused(top, self.kernel, name) for name in names)
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
