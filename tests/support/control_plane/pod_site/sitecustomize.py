"""Python imports this at its start where PYTHONPATH names this folder: the process finds itself in a pod.

The product looks for its service account at one fixed place, which only a container can have. Here that place is the
folder in the environment; all else is the product's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

MODULE = "driver_manager.adapters.kube.transport"
FOLDER = os.environ.get("TEST_SERVICE_ACCOUNT", "")


class Finder(MetaPathFinder):
    """Finds the one module, and has its constant say where the service account is."""

    def find_spec(self, name: str, path: Sequence[str] | None, _: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                plain(module)
                module.__dict__["SERVICE_ACCOUNT"] = Path(FOLDER)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader
        return spec


if FOLDER:
    sys.meta_path.insert(0, Finder())
