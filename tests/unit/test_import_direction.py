"""Imports go one way: cli → loops and executor → ports → domain; adapters implement ports; only the edge wires them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import driver_manager

PACKAGE = Path(driver_manager.__file__).parent
NAME = "driver_manager"
THIRD_PARTY = {"click", "kubernetes", "prometheus_client", "psutil", "pyudev", "tenacity", "urllib3"}

PURE = {
    "__future__",
    "collections",
    "dataclasses",
    "datetime",
    "enum",
    "fnmatch",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "re",
    "types",
    "typing",
}
"""What the domain may use of the standard library: no clock, environment, process, network, file or randomness."""

LAYERS = {
    "domain": {"domain"},
    "ports": {"domain"},
    "waiting": {"domain", "ports"},
    "observe": {"domain", "ports"},
    "evicting": {"domain", "ports", "waiting"},
    "departing": {"domain", "ports", "evicting", "waiting"},
    "handoff": {"domain", "ports", "settling", "waiting"},
    "settling": {"domain", "ports"},
    "rebootrequests": {"domain", "ports"},
    "owning": {"domain", "ports"},
    "executor": {"domain", "ports", "departing", "handoff", "owning", "rebootrequests", "settling"},
    "reconcile": {"domain", "ports", "evicting", "executor", "observe", "owning", "settling"},
    "clearance": {"domain", "ports", "evicting"},
    "rebooter": {"domain", "ports", "observe"},
    "settings": {"domain"},
    "profiles": {"domain"},
    "adapters": {"adapters", "domain", "ports"},
}
"""What each part of the package may import of it. `cli` and `sandbox` are the edge and wire the rest."""

EDGE = {"cli", "sandbox", "__main__", "__init__"}
LOOPS = {"health_watch"}
"""Loops to come; like `reconcile`, they see ports and domain."""

KUBERNETES = {"adapters/kube_api.py"}


def modules() -> dict[str, Path]:
    """Every module by its path inside the package."""
    return {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}


def part_of(module: str) -> str:
    """The part of the package that a module belongs to: its folder, or its own name at the top."""
    first = module.split("/", maxsplit=1)[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Full names of all modules imported anywhere in a file, also inside functions."""
    for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            assert found.level == 0, f"{path.name}: relative import"
            yield from (f"{found.module}.{alias.name}" for alias in found.names)


def own_parts(path: Path) -> set[str]:
    """Parts of the package that a file imports; the bare package (its version) is no part."""
    names = (name.split(".") for name in imports(path))
    return {name[1] for name in names if name[0] == NAME and len(name) > 1}


@pytest.mark.parametrize("module", [name for name in modules() if part_of(name) not in EDGE | LOOPS])
def test_a_module_imports_only_what_lies_below_it(module: str) -> None:
    part = part_of(module)
    assert part in LAYERS, f"{module}: say in LAYERS what it may import"
    assert own_parts(modules()[module]) <= LAYERS[part], module


@pytest.mark.parametrize("module", [name for name in modules() if part_of(name) == "domain"])
def test_the_domain_uses_only_the_pure_part_of_the_standard_library(module: str) -> None:
    used = {name.split(".")[0] for name in imports(modules()[module])} - {NAME}
    assert used <= PURE, f"{module}: {used - PURE}"


@pytest.mark.parametrize("module", [name for name in modules() if part_of(name) == "domain"])
def test_the_domain_reads_no_clock_file_or_environment(module: str) -> None:
    tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"open", "print", "input", "exec", "eval", "__import__"}, module
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not attributes & {"now", "utcnow", "today", "environ"}, module


@pytest.mark.parametrize("module", [name for name in modules() if part_of(name) not in {"adapters", "cli", "sandbox"}])
def test_the_core_uses_no_third_party_package(module: str) -> None:
    assert not {name.split(".")[0] for name in imports(modules()[module])} & THIRD_PARTY, module


@pytest.mark.parametrize("module", modules())
def test_only_the_edge_imports_the_edge(module: str) -> None:
    if part_of(module) not in EDGE:
        assert not own_parts(modules()[module]) & {"cli", "sandbox"}, module


@pytest.mark.parametrize("module", modules())
def test_the_kubernetes_client_is_imported_in_one_place(module: str) -> None:
    used = {name.split(".")[0] for name in imports(modules()[module])}
    assert ("kubernetes" not in used) or module in KUBERNETES, module


@pytest.mark.parametrize("module", [name for name in modules() if part_of(name) not in {"adapters", "sandbox"}])
def test_only_adapters_start_processes_or_open_sockets(module: str) -> None:
    if part_of(module) == "cli":
        forbidden = {"subprocess"}
    else:
        forbidden = {"subprocess", "socket", "signal", "time", "random", "threading", "multiprocessing"}
    assert not {name.split(".")[0] for name in imports(modules()[module])} & forbidden, module


@pytest.mark.parametrize(("module", "source"), [("x.py", "import driver_manager.cli.main"), ("x.py", "import os")])
def test_this_test_sees_what_it_forbids(tmp_path: Path, module: str, source: str) -> None:
    file = tmp_path / module
    file.write_text(f"def later():\n    {source}\n")
    assert list(imports(file)) == [source.removeprefix("import ")]
