"""Where the lean interpreter starts: `lean_entry.py <folder of the package> <module of the loop> <descriptor>`."""

import importlib
import sys
from types import ModuleType
from typing import Any


class LoadedWhenUsed(ModuleType):
    """Stands for the module of its name until one of its attributes is asked for."""

    def __getattr__(self, name: str) -> Any:
        """The attribute of the real module, which is imported now and takes this one's place."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def annotations(of: type) -> dict[str, Any]:
    """The annotations of a class as they are written: `inspect.get_annotations`, as far as dataclasses use it."""
    return dict(of.__dict__.get("__annotations__", {}))  # noqa: RUF063  # that is what this stands for


def stand_in() -> None:
    """Put stand-ins in the place of modules that others import, and hardly ever use.

    1.3 MiB that dataclasses import, and use for annotations (since Python 3.12) and for a class without a docstring;
    0.6 MiB that urllib.parse imports, which pathlib imports, and uses for addresses of IPv6 only.
    """
    for name in ("inspect", "ipaddress"):
        sys.modules[name] = LoadedWhenUsed(name)
    sys.modules["inspect"].__dict__["get_annotations"] = annotations


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    stand_in()
    from driver_manager.cli.lean import main

    sys.exit(main(*sys.argv[2:]))
