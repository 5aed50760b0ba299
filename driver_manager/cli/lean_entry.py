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


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    # 1.3 MiB that dataclasses import, and use for a class without a docstring only; 0.6 MiB that urllib.parse imports,
    # which pathlib imports, and uses for addresses of IPv6 only.
    for name in ("inspect", "ipaddress"):
        sys.modules[name] = LoadedWhenUsed(name)
    from driver_manager.cli.lean import main

    sys.exit(main(*sys.argv[2:]))
