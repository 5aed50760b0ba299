"""In which order loaded modules can be unloaded, from who holds whom. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from driver_manager.domain.host import Module
from driver_manager.domain.profile import Modules


def closure(loaded: Mapping[str, Module], modules: Modules) -> dict[str, Module]:
    """The driver's modules among `loaded`: the roots, all that holds them, and its own modules that nobody else holds.

    The latter also finds what a failed load left behind, with no root above it any more.
    """
    found: dict[str, Module] = {}
    queue = [name for name in modules.roots if name in loaded]
    while queue:
        name = queue.pop()
        if name in found or name not in loaded:
            continue
        found[name] = loaded[name]
        queue += loaded[name].holders
    below = True
    while below:
        below = False
        for name, module in loaded.items():
            if is_own(name, modules) and name not in found and set(module.holders) <= found.keys():
                found[name] = module
                below = True
    return found


def is_own(name: str, modules: Modules) -> bool:
    """Whether the profile counts the module as part of the driver."""
    return name in (*modules.roots, *modules.order) or any(fnmatchcase(name, pattern) for pattern in modules.own)


def has_root(loaded: Mapping[str, Module], modules: Modules) -> bool:
    """Whether the driver is in the kernel: any of its root modules."""
    return any(root in loaded for root in modules.roots)


def driver_version(loaded: Mapping[str, Module]) -> str:
    """The first version that a loaded module of the driver tells, "" if none does."""
    return next((module.version for module in loaded.values() if module.version), "")


def unload_order(modules: Mapping[str, Module], load_order: Sequence[str]) -> tuple[str, ...]:
    """Names so that every module comes after all its holders; names alone decide between equals.

    Of two in `load_order` the later one comes first, unless it is the other that holds it.
    """
    order: list[str] = []
    left = dict(modules)
    while left:
        free = sorted(name for name, module in left.items() if not any(holder in left for holder in module.holders))
        if not free:  # a cycle cannot exist in a live kernel; whatever is read, end
            free = sorted(left)
        later = [name for name in load_order if name in left]
        # One whose later fellow is still held waits for it, where anything else can go.
        free = [name for name in free if name not in later[:-1]] or [next(n for n in reversed(later) if n in free)]
        order += free
        for name in free:
            del left[name]
    return tuple(order)


def beside(modules: Mapping[str, Module], roots: Iterable[str], load_order: Sequence[str]) -> tuple[str, ...]:
    """Names that loading `roots` does not bring back by itself, in the order to load them."""
    pulled_in = set(roots)
    for name in unload_order(modules, load_order):  # holders come first
        if pulled_in & set(modules[name].holders):
            pulled_in.add(name)
    return tuple(name for name in reversed(unload_order(modules, load_order)) if name not in pulled_in)


def users(module: Module) -> int:
    """How many users other than modules `module` has: open devices, mappings, kernel users. 0 where unknown."""
    return max(0, (module.refcount or 0) - len(module.holders))


def users_of(modules: Mapping[str, Module]) -> int:
    """The same of all of them together."""
    return sum(map(users, modules.values()))
