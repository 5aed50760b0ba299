"""Imports go one way: cli → core → ports → domain; adapters implement ports; only the edge wires them."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import driver_manager

PACKAGE = Path(driver_manager.__file__).parent
NAME = "driver_manager"
THIRD_PARTY = {"click", "kubernetes", "psutil", "pyudev", "tenacity", "urllib3"}

PURE = {
    "abc",
    "__future__",
    "collections",
    "dataclasses",
    "datetime",
    "enum",
    "fnmatch",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "types",
    "typing",
}
"""What the domain may use of the standard library: no clock, environment, process, network, file or randomness."""

LAYERS = {
    "domain": set[str](),
    "domain/pods": {"domain"},
    "domain/health": {"domain"},
    "domain/reboot": {"domain"},
    "domain/fleet": {"domain", "domain/reboot"},
    "domain/swap": {"domain", "domain/pods", "domain/reboot"},
    "domain/status": {"domain", "domain/health", "domain/pods", "domain/reboot", "domain/swap"},
    "schemas": set[str](),
    "profiles": {"domain", "domain/health", "domain/pods"},
    "core": {"domain", "domain/fleet", "domain/health", "domain/pods", "domain/reboot"},
    "core/swap": {"core", "domain", "domain/pods", "domain/reboot", "domain/swap"},
    "core/fleet": {"core", "domain", "domain/fleet"},
    "adapters/process": {"core", "domain"},
    "adapters": {"adapters/process", "core", "domain", "domain/fleet"},
    "adapters/kube": {"adapters", "adapters/process", "core", "domain", "domain/fleet", "domain/reboot"},
    "adapters/host": {"adapters/process", "core", "domain", "domain/health", "domain/reboot"},
    "adapters/report": {"adapters/host", "adapters/process", "core", "domain", "domain/fleet", "domain/health"},
}
"""What each room may import besides itself. Written from the ground up: a room names only rooms above it in this table.
`cli` and `sandbox` are the edge and wire the rest."""

PORTS = {"core/fleet_ports.py", "core/ports.py", "core/ports_base.py"}
"""The protocols of the core: all that adapters may import from it."""

EDGE = {"cli", "sandbox", "__main__", "__init__"}
FLOORS = {"domain", "core", "adapters"}
"""Folders whose folders are rooms of their own."""

OWN_ROOMS = {"domain/status.py"}
"""Modules that import rooms beside them, and are therefore rooms of their own."""

KUBERNETES = {"adapters/kube/kubeconfig.py"}
"""Imported for kubeconfigs only: in a pod, nothing of it is."""


@functools.cache
def modules() -> dict[str, Path]:
    """Every module by its path inside the package."""
    return {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}


def room_of(module: str) -> str:
    """The room that a module belongs to: its folder, or its own name at the top."""
    first, *rest = module.split("/")
    if module in OWN_ROOMS:
        return module.removesuffix(".py")
    return f"{first}/{rest[0]}" if first in FLOORS and len(rest) > 1 else first.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Full names of all modules imported anywhere in a file, also inside functions."""
    return iter(_imports(path, path.stat().st_mtime_ns))


@functools.cache
def _imports(path: Path, _changed_ns: int) -> tuple[str, ...]:
    return tuple(_found(path))


def _found(path: Path) -> Iterator[str]:
    for found in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            assert found.level == 0, f"{path.name}: relative import"
            yield from (f"{found.module}.{alias.name}" for alias in found.names)


def own_modules(path: Path) -> set[str]:
    """Modules of the package that a file imports; the bare package (its version) is none."""
    known = modules()
    names = [name.split(".")[1:] for name in imports(path) if name.split(".")[0] == NAME]
    found = set()
    for parts in names:
        ends = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
        module = next((end for end in ends if f"{end}.py" in known or f"{end}/__init__.py" in known), None)
        if module is not None:
            found.add(f"{module}.py" if f"{module}.py" in known else f"{module}/__init__.py")
    return found


def own_rooms(path: Path) -> set[str]:
    """Rooms of those modules."""
    return {room_of(module) for module in own_modules(path)}


def outside(path: Path) -> set[str]:
    """Packages that a file imports, by their first names."""
    return {name.split(".")[0] for name in imports(path)}


def inside(*rooms: str) -> dict[str, Path]:
    """The modules of `rooms` and of the rooms in them."""
    return {name: path for name, path in modules().items() if name.split("/")[0].removesuffix(".py") in rooms}


@pytest.mark.submission
def test_a_module_imports_only_what_lies_below_it() -> None:
    rooms = {name: room_of(name) for name in modules()}
    inner = {name for name, room in rooms.items() if room not in EDGE and not name.endswith("__init__.py")}
    assert {rooms[name] for name in inner} == set(LAYERS) - {"profiles", "schemas"}, (
        "say in LAYERS what a room may import"
    )
    inner |= {"profiles/__init__.py", "schemas/__init__.py"}
    wrong = {name: own_rooms(modules()[name]) - LAYERS[rooms[name]] - {rooms[name]} for name in inner}
    assert not {name: found for name, found in wrong.items() if found}


def test_protocols_import_no_other_module_of_the_core_and_adapters_import_only_protocols() -> None:
    wrong = {
        name: {other for other in own_modules(path) if other.startswith("core/") and not other.endswith("__init__.py")}
        - PORTS
        for name, path in modules().items()
        if name in PORTS or name.startswith("adapters/")
    }
    assert not {name: found for name, found in wrong.items() if found}


def test_the_table_of_rooms_goes_one_way() -> None:
    order = list(LAYERS)
    upward = {
        (room, other) for room, below in LAYERS.items() for other in below if order.index(other) > order.index(room)
    }
    assert not upward, "so there is no circle"


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The names on a way that comes back to where it began, none where there is no such way."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_by_way_of_another() -> None:
    assert circle({name: own_modules(path) - {name} for name, path in modules().items()}) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("if TYPE_CHECKING:\n    from driver_manager.sandbox.apiserver import ApiServer\n")
    graph = {name: own_modules(path) - {name} for name, path in modules().items()}
    graph["sandbox/apiserver.py"] |= own_modules(file)
    assert {"sandbox/apiserver.py"} <= set(circle(graph))


def test_the_domain_uses_only_the_pure_part_of_the_standard_library() -> None:
    wrong = {name: outside(path) - {NAME} - PURE for name, path in inside("domain").items()}
    assert not {name: found for name, found in wrong.items() if found}


def test_the_domain_reads_no_clock_file_or_environment() -> None:
    for module, path in inside("domain").items():
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert not called & {"open", "print", "input", "exec", "eval", "__import__"}, module
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert not attributes & {"now", "utcnow", "today", "environ"}, module


def test_the_core_uses_no_third_party_package() -> None:
    core = inside("core", "domain", "profiles", "__init__", "__main__")
    wrong = {name: outside(path) & THIRD_PARTY for name, path in core.items()}
    assert not {name: found for name, found in wrong.items() if found}


def test_only_the_edge_imports_the_edge() -> None:
    wrong = [
        name for name, path in modules().items() if room_of(name) not in EDGE and own_rooms(path) & {"cli", "sandbox"}
    ]
    assert not wrong


def test_the_kubernetes_client_is_imported_in_one_place() -> None:
    for package in ("kubernetes", "urllib3"):
        assert {name for name, path in modules().items() if package in outside(path)} == KUBERNETES


def test_only_adapters_start_processes_or_open_sockets() -> None:
    for module, path in modules().items():
        match module.split("/")[0]:
            case "adapters" | "sandbox":
                continue
            case "cli":
                forbidden = {"subprocess"}
            case _:
                forbidden = {"subprocess", "socket", "signal", "time", "random", "threading", "multiprocessing"}
        assert not outside(path) & forbidden, module


@pytest.mark.parametrize("source", ["import driver_manager.cli.main", "import os"])
def test_this_test_sees_an_import_inside_of_a_function(tmp_path: Path, source: str) -> None:
    file = tmp_path / "x.py"
    file.write_text(f"def later():\n    {source}\n")
    assert list(imports(file)) == [source.removeprefix("import ")]


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("from driver_manager.domain.swap import planner", {"domain/swap"}),
        ("from driver_manager.domain.swap.planner import plan", {"domain/swap"}),
        ("from driver_manager.domain.health.parsers import parse", {"domain/health"}),
        ("from driver_manager import profiles, schemas", {"profiles", "schemas"}),
        ("from driver_manager.core.ports_base import Clock", {"core"}),
        ("import driver_manager.adapters.host.modules", {"adapters/host"}),
        ("from driver_manager import __version__", set[str]()),
    ],
)
def test_this_test_knows_the_room_behind_a_name(tmp_path: Path, source: str, rooms: set[str]) -> None:
    file = tmp_path / "x.py"
    file.write_text(source + "\n")
    assert own_rooms(file) - {"__init__"} == rooms


TAKES_OBSERVATIONS = {
    "core/swap/run.py": "what was observed, from the command line",
    "core/swap/node.py": "to give back where nothing could be planned",
    "domain/pods/workloads.py": "pods of the node",
    "domain/swap/preflight.py": "whether the node may be taken at all, also by hand",
    "domain/swap/node_patches.py": "what is taken and given back",
    "domain/observation.py": "from here on it travels inside of a Situation",
}
"""Modules of domain and core that are handed an Observation, and what for. The way of one to the step that uses it is
`reconcile`, the planner or the step's handler, and what they ask: three."""


def takers(*kinds: str) -> set[str]:
    """Modules of domain and core with a function that has a parameter of each of these types."""
    found = set()
    texts = {name: path.read_text(encoding="utf-8") for name, path in inside("domain", "core").items()}
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)) if all(kind in text for kind in kinds) else ():
            if isinstance(node, ast.FunctionDef):
                given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                types = {part for one in given if one.annotation for part in ast.unparse(one.annotation).split(" | ")}
                if types >= set(kinds):
                    found.add(name)
    return found


def test_an_observation_is_handed_to_few_modules() -> None:
    assert takers("Observation") == TAKES_OBSERVATIONS.keys()


def test_no_function_takes_the_parts_of_a_situation() -> None:
    assert takers("Observation", "Profile", "Policy") == {"core/swap/run.py", "domain/observation.py"}
