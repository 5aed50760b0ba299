"""Start of the lean interpreter: `lean_entry.py <folder of the package> <module:function of the loop> <descriptor>`."""

import importlib
import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

MAX_DOCUMENT_BYTES = 1024 * 1024

LAZY = (
    *("ipaddress", "ntpath", "threading"),
    *(f"msgspec.{name}" for name in ("inspect", "json", "msgpack", "toml", "yaml")),
)
"""Modules that are imported and hardly ever used. ipaddress takes 0.6 MiB: urllib.parse, which pathlib imports, uses it
for IPv6 addresses. threading takes 0.2 MiB: a loop has one thread."""

FOREIGN_TYPES: dict[str, dict[str, Any]] = {
    "decimal": {"Decimal": type("Decimal", (), {})},
    "uuid": {"UUID": type("UUID", (), {}), "SafeUUID": SimpleNamespace(unknown=None)},
}
"""Types that msgspec supports and reads from their modules when it is imported. No record here has a field of one."""


class LoadedWhenUsed(ModuleType):
    """Stands for the module of its name until one of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        """The attribute of the real module, which is imported now and replaces this one."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def stand_in() -> None:
    """Import msgspec, without 2.5 MiB of modules that it and the standard library import and a loop does not use."""
    for name in LAZY:
        sys.modules[name] = LoadedWhenUsed(name)
    for name, attributes in FOREIGN_TYPES.items():
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(attributes)
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # its import fails, and typing does instead
    importlib.import_module("msgspec")
    for name in (*FOREIGN_TYPES, "typing_extensions"):
        del sys.modules[name]


if __name__ == "__main__":
    folder, target, descriptor = sys.argv[1:]
    with os.fdopen(int(descriptor), "rb") as file:
        handed = json.loads(file.read(MAX_DOCUMENT_BYTES))
    # Behind the standard library.
    sys.path += [entry for entry in (folder, *handed["path"]) if entry not in sys.path]
    stand_in()
    from driver_manager.cli.lean import main

    sys.exit(main(target, handed))
