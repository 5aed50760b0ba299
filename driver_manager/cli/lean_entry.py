"""Start of the lean interpreter: `lean_entry.py <folder of the package> <module:function of the loop> <descriptor>`."""

import importlib
import sys
from types import ModuleType
from typing import Any


class LoadedWhenUsed(ModuleType):
    """Stands for the module of its name until one of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        """The attribute of the real module, which is imported now and replaces this one."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def annotations(of: type) -> dict[str, Any]:
    """The part of `inspect.get_annotations` that dataclasses use."""
    return dict(of.__dict__.get("__annotations__", {}))  # noqa: RUF063  # this replaces inspect.get_annotations


def stand_in() -> None:
    """Replace two modules that the standard library imports and a loop does not use.

    inspect takes 1.3 MiB: dataclasses use it for annotations (since Python 3.12) and for a class without a docstring.
    ipaddress takes 0.6 MiB: urllib.parse, which pathlib imports, uses it for IPv6 addresses.
    """
    for name in ("inspect", "ipaddress"):
        sys.modules[name] = LoadedWhenUsed(name)
    sys.modules["inspect"].__dict__["get_annotations"] = annotations


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    stand_in()
    from driver_manager.cli.lean import main

    sys.exit(main(*sys.argv[2:]))
