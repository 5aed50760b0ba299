"""Parameters of modules: which are given to a module when it is loaded, and which of its old values are kept.

Pure. A parameter is written `module.name`, as on the kernel's command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

_NAME = re.compile(r"[A-Za-z0-9_]+\.[A-Za-z0-9_.-]+")

_UNFIT = frozenset("\"'\\#")
"""What no option of modprobe.d can hold, even in quotes."""

NOT_SET = "(null)"
"""How sysfs writes a text that was never set (kernel/params.c, param_get_charp)."""


def kept(values: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """Those of `values`, by `module.parameter`, that a new driver is to have as well."""
    wanted = tuple(patterns)
    return {
        name: value
        for name, value in values.items()
        if _NAME.fullmatch(name) and any(fnmatchcase(name, pattern) for pattern in wanted) and _is_fit(value)
    }


def _is_fit(value: str) -> bool:
    return bool(value) and value != NOT_SET and value.isprintable() and not _UNFIT & set(value)


def options(fixed: Iterable[str], values: Mapping[str, str]) -> dict[str, str]:
    """What each module is to be given, as modprobe.d writes it: `fixed` are `module.parameter=value`."""
    found: dict[str, list[str]] = {}
    for text in fixed:
        name, _, value = text.partition("=")
        _add(found, name, value)
    for name, value in values.items():
        _add(found, name, value)
    return {module: " ".join(words) for module, words in found.items()}


def _add(found: dict[str, list[str]], name: str, value: str) -> None:
    module, _, parameter = name.partition(".")
    text = f'"{value}"' if " " in value else value
    found.setdefault(module, []).append(f"{parameter}={text}")


def joined(first: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str]:
    """Options of both by module; of one parameter that both set, the kernel takes the last."""
    return {
        name: " ".join(filter(None, (first.get(name, ""), then.get(name, ""))))
        for name in dict.fromkeys((*first, *then))
    }
