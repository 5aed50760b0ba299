"""The rules of the code base: packages and imports, sizes, names of classes and vendors, the layout of the tests."""

from __future__ import annotations

import ast
import collections
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import driver_manager
from driver_manager.domain.profile import Profile
from driver_manager.profiles import builtin

NAME = "driver_manager"
PACKAGE = Path(driver_manager.__file__).parent
TESTS = Path(__file__).parents[1]

# Sizes. A change that needs more raises these figures in the same commit, with the reason.

MODULES = 125
PACKAGE_LINES = 46_600
TEST_LINES = 81_000

CHOICES_AMONG_STEPS = 9
SHORT_LINES = 60
SHORT = {
    "__main__.py": "`python -m driver_manager`",
    "cli/lean_entry.py": "starts without site-packages, before anything else is imported",
    "domain/metrics.py": "health-watch's loop has it in memory",
    "schemas/__init__.py": "the package of the schema files",
}
"""Modules of at most SHORT_LINES lines, each with its reason."""

# Packages and imports.

LAYERS = {
    "domain": set[str](),
    "domain/pods": {"domain"},
    "domain/health": {"domain"},
    "domain/reboot": {"domain"},
    "domain/fleet": {"domain", "domain/reboot"},
    "domain/swap": {"domain", "domain/pods", "domain/reboot"},
    "domain/status": {"domain", "domain/health", "domain/pods", "domain/reboot", "domain/swap"},
    "domain/recovery": {"domain", "domain/fleet", "domain/health", "domain/reboot"},
    "schemas": set[str](),
    "profiles": {"domain", "domain/health", "domain/pods"},
    "core": {"domain", "domain/fleet", "domain/health", "domain/pods", "domain/reboot", "domain/recovery"},
    "core/swap": {"core", "domain", "domain/pods", "domain/reboot", "domain/swap"},
    "core/fleet": {"core", "domain", "domain/fleet"},
    "adapters/process": {"core", "domain"},
    "adapters": {"adapters/process", "core", "domain", "domain/fleet"},
    "adapters/kube": {"adapters", "adapters/process", "core", "domain", "domain/fleet", "domain/reboot"},
    "adapters/host": {"adapters/process", "core", "domain", "domain/health", "domain/reboot", "domain/recovery"},
    "adapters/report": {"adapters/host", "adapters/process", "core", "domain", "domain/fleet", "domain/health"},
}
"""What each package may import besides itself, from the ground up: only packages above it in this table. `cli` and
`sandbox` are the edge and wire the rest."""

PORTS = {"core/fleet_ports.py", "core/ports.py", "core/ports_base.py"}
"""The protocols of the core: all that adapters may import from it."""

EDGE = {"cli", "sandbox", "__main__", "__init__"}
FLOORS = {"domain", "core", "adapters"}
"""Folders whose folders are packages of their own."""

OWN_PACKAGES = {"domain/recovery.py", "domain/status.py"}
"""Modules that are packages of their own, because they import packages beside them."""

THIRD_PARTY = {"click", "kubernetes", "psutil", "pyudev", "tenacity", "urllib3", "yaml", "zstandard"}
KUBERNETES = {"adapters/kube/kubeconfig.py"}
"""The only importer of the kubernetes package, for kubeconfigs: no pod loads it."""

PURE = {"abc", "__future__", "collections", "datetime", "difflib", "enum", "fnmatch", "functools", "hashlib"} | {
    *("heapq", "itertools", "json", "math", "msgspec", "operator", "re", "types", "typing")
}
"""What the domain may import: no clock, environment, process, network, file or randomness."""

STARTERS_AND_CLOCKS = {"subprocess", "socket", "signal", "time", "random", "threading", "multiprocessing"}

TAKES_OBSERVATIONS = {
    "core/swap/run.py": "plans from it",
    "core/swap/node.py": "releases a node that has no plan",
    "domain/pods/workloads.py": "pods of the node",
    "domain/swap/preflight.py": "whether the node may be taken, also by hand",
    "domain/swap/node_patches.py": "patches that take and release",
    "domain/observation.py": "makes a Situation of it",
}
"""Modules of domain and core with a function that takes an Observation. Others take a Situation."""


@functools.cache
def texts() -> dict[str, str]:
    files = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: path.read_text(encoding="utf-8") for name, path in files.items()}


@functools.cache
def tree_of(text: str) -> ast.Module:
    return ast.parse(text)


def package_of(module: str) -> str:
    """The package of a module: its folder, or its own name at the top."""
    first, *rest = module.split("/")
    if module in OWN_PACKAGES:
        return module.removesuffix(".py")
    return f"{first}/{rest[0]}" if first in FLOORS and len(rest) > 1 else first.removesuffix(".py")


@functools.cache
def imports(text: str) -> frozenset[str]:
    found = set[str]()
    for node in ast.walk(tree_of(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def own_modules(text: str) -> set[str]:
    """Modules of the package that a text imports, without the bare package (its version)."""
    found = set()
    for parts in (name.split(".")[1:] for name in imports(text) if name.split(".")[0] == NAME):
        ends = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
        files = [file for end in ends for file in (f"{end}.py", f"{end}/__init__.py") if file in texts()]
        found |= set(files[:1])
    return found


def own_packages(text: str) -> set[str]:
    return {package_of(module) for module in own_modules(text)}


def outside(text: str) -> set[str]:
    return {name.split(".")[0] for name in imports(text)}


def inside(*packages: str) -> dict[str, str]:
    """The modules of these top packages and of the packages in them."""
    return {name: text for name, text in texts().items() if name.split("/")[0].removesuffix(".py") in packages}


@pytest.mark.submission
def test_a_package_imports_only_packages_above_it_in_the_table() -> None:
    packages = {name: package_of(name) for name in texts()}
    inner = {name for name, package in packages.items() if package not in EDGE and not name.endswith("__init__.py")}
    assert {packages[name] for name in inner} == set(LAYERS) - {"profiles", "schemas"}, (
        "a package without a row in LAYERS"
    )
    inner |= {"profiles/__init__.py", "schemas/__init__.py"}
    wrong = {name: own_packages(texts()[name]) - LAYERS[packages[name]] - {packages[name]} for name in inner}
    assert not {name: found for name, found in wrong.items() if found}
    order = list(LAYERS)
    assert not [
        (package, one) for package in order for one in LAYERS[package] if order.index(one) > order.index(package)
    ]


def test_protocols_and_adapters_import_only_protocols_of_the_core() -> None:
    core = {name for name in texts() if name.startswith("core/") and not name.endswith("__init__.py")}
    bound = {name: text for name, text in texts().items() if name in PORTS or name.startswith("adapters/")}
    assert {name: wrong for name, text in bound.items() if (wrong := own_modules(text) & core - PORTS)} == {}


def test_no_circle_of_imports() -> None:
    graph = {name: own_modules(text) - {name} for name, text in texts().items()}
    graphlib.TopologicalSorter(graph).prepare()
    added = "if TYPE_CHECKING:\n    from driver_manager.sandbox.apiserver import ApiServer\n"
    graph["sandbox/apiserver.py"] |= own_modules(added)
    with pytest.raises(graphlib.CycleError, match=r"sandbox/apiserver\.py"):
        graphlib.TopologicalSorter(graph).prepare()


def test_the_domain_is_pure() -> None:
    wrong = {name: outside(text) - {NAME} - PURE for name, text in inside("domain").items()}
    assert not {name: found for name, found in wrong.items() if found}
    for module, text in inside("domain").items():
        nodes = list(ast.walk(tree_of(text)))
        called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert not called & {"open", "print", "input", "exec", "eval", "__import__"}, module
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert not attributes & {"now", "utcnow", "today", "environ"}, module


def test_third_party_packages_processes_and_sockets_are_outside_of_the_core() -> None:
    for module, text in texts().items():
        package = module.split("/")[0].removesuffix(".py")
        forbidden = set[str]()
        if package in ("core", "domain", "profiles", "__init__", "__main__"):
            forbidden |= THIRD_PARTY
        if package not in ("adapters", "sandbox"):
            forbidden |= {"subprocess"} if package == "cli" else STARTERS_AND_CLOCKS
        assert not outside(text) & forbidden, module
    assert {name for name, text in texts().items() if "kubernetes" in outside(text)} == KUBERNETES


def test_only_the_edge_imports_the_edge() -> None:
    inner = {name: text for name, text in texts().items() if package_of(name) not in EDGE}
    assert [name for name, text in inner.items() if own_packages(text) & {"cli", "sandbox"}] == []


def takers(*kinds: str) -> set[str]:
    """Modules of domain and core with a function that has a parameter of each of these types."""
    found = set()
    for name, text in inside("domain", "core").items():
        for node in ast.walk(tree_of(text)) if all(kind in text for kind in kinds) else ():
            if isinstance(node, ast.FunctionDef):
                given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                types = {part for one in given if one.annotation for part in ast.unparse(one.annotation).split(" | ")}
                if types >= set(kinds):
                    found.add(name)
    return found


def test_few_modules_take_an_observation() -> None:
    assert takers("Observation") == TAKES_OBSERVATIONS.keys()
    assert takers("Observation", "Profile", "Policy") == {"core/swap/run.py", "domain/observation.py"}


def test_every_choice_among_steps_ends_so_that_the_type_checker_finds_a_step_without_a_handler() -> None:
    found = [(name, end) for name, text in inside("core").items() for end in ends_of_choices(tree_of(text))]
    assert len(found) == CHOICES_AMONG_STEPS
    assert [name for name, end in found if "assert_never(step)" not in end] == []


def ends_of_choices(tree: ast.Module) -> Iterator[str]:
    """The last branch of each `match` among steps, and of each chain of `elif` that asks for their kind."""
    nodes = list(ast.walk(tree))
    inner = {id(node.orelse[0]) for node in nodes if isinstance(node, ast.If) and node.orelse}
    for node in nodes:
        if isinstance(node, ast.Match) and ast.unparse(node.subject) == "step":
            yield ast.unparse(node.cases[-1])
        elif isinstance(node, ast.If) and node.orelse and id(node) not in inner:
            last = node
            while last.orelse and isinstance(last.orelse[0], ast.If):
                last = last.orelse[0]
            if last is not node and ast.unparse(node.test).startswith("isinstance(step, "):
                yield "\n".join(map(ast.unparse, last.orelse or last.body))


def test_package_and_tests_have_the_size_of_the_day() -> None:
    modules = {name: text.count("\n") for name, text in texts().items() if len(tree_of(text).body) > 1}
    assert len(modules) <= MODULES
    assert sum(modules.values()) <= PACKAGE_LINES
    assert {name for name, lines in modules.items() if lines <= SHORT_LINES} == SHORT.keys()
    assert sum(path.read_text(encoding="utf-8").count("\n") for path in TESTS.rglob("*.py")) <= TEST_LINES


def test_no_class_name_exists_twice() -> None:
    nodes = [node for text in texts().values() for node in ast.walk(tree_of(text))]
    counts = collections.Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert len(counts) > 100
    assert {name for name, count in counts.items() if count > 1} == set()


# Vendors.

NAMES_A_VENDOR = {
    "domain/health/parsers.py": "parsers of the vendors' tools",
    "domain/fleet/spec.py": "the API group of DriverRollout, for all vendors",
    "domain/swap/vfio.py": "amd_iommu, an option of the kernel",
    "sandbox/cluster.py": "data of a scenario",
    "sandbox/fake_tools.py": "stand-ins for the vendors' tools",
    "sandbox/fleet.py": "the profile of a scenario",
    "sandbox/loops.py": "the profiles of the scenarios",
    "sandbox/scenarios.py": "the profile of the scenarios",
}
"""Modules that name a vendor, each with its reason. In other modules vendors are data of profiles."""


def vendor_words(profile: Profile) -> set[str]:
    """The profile's name, the domains of its keys and resources, its modules and its tool."""
    domains = (key.partition("/")[0] for key in (profile.keys.journal, *profile.resource_prefixes))
    tool = {profile.probe.tool} if profile.probe else set()
    return {profile.name, *(domain.split(".")[-2] for domain in domains), *profile.modules.roots, *tool}


VENDOR_WORDS = sorted({word for profile in builtin().values() for word in vendor_words(profile)})


def vendors_in(code: str) -> set[str]:
    """The words of vendors in names and strings, without comments and docstrings. `amd64` does not count."""
    docstrings = {id(node.value) for node in ast.walk(tree_of(code)) if isinstance(node, ast.Expr)}
    fields = ("id", "attr", "name", "arg", "module", "value")
    nodes = (node for node in ast.walk(tree_of(code)) if id(node) not in docstrings)
    found = [getattr(node, field, None) for node in nodes for field in fields]
    words = "\n".join(text for text in found if isinstance(text, str)).lower()
    there = {one for one in VENDOR_WORDS if one in words}
    return {one for one in there if re.search(rf"(?<![a-z]){re.escape(one)}(?![a-z0-9])", words)}


@pytest.mark.submission
def test_vendors_are_named_only_where_there_is_a_reason() -> None:
    assert {name for name, text in texts().items() if vendors_in(text)} == NAMES_A_VENDOR.keys()


# The layout of the tests.

FOLDERS = ("unit", "system", "checks", "assurance")
"""Folders of test modules. `assurance` also has its tools for mutants, fuzzing and measuring."""

UNIT_PARTS = {"adapters", "cli", "domain", "fleet", "harness", "health", "pods", "reboot", "sandbox", "status", "swap"}
IMPORT = re.compile(r"^\s*(?:from\s+(tests[\w.]*)\s+import\s+(\([^)]*\)|.*)|import\s+(tests[\w.]*))", re.MULTILINE)
BORROWED = re.compile(r"\b(?:test_\w+|conftest)\b")


def layout_faults(tests: Path) -> list[str]:
    found = []
    for file in sorted(tests.rglob("*.py")):
        path = file.relative_to(tests)
        is_test = path.name.startswith("test_")
        if is_test and path.parts[0] not in FOLDERS:
            found.append(f"{path}: a test module belongs to one of {', '.join(FOLDERS)}")
        if path.parts[0] in FOLDERS[:3] and not is_test and path.name not in ("conftest.py", "__init__.py"):
            found.append(f"{path}: a helper module belongs to support")
        for names in IMPORT.findall(file.read_text()):
            found += [f"{path}: imports {name}" for name in BORROWED.findall(" ".join(names))]
    return found


def test_every_test_module_is_in_its_folder_with_a_name_of_its_own_and_none_imports_another(tmp_path: Path) -> None:
    assert layout_faults(TESTS) == []
    assert {path.parent.name for path in (TESTS / "unit").rglob("test_*.py")} == UNIT_PARTS
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names)), "pytest identifies modules without packages by their names"
    (tmp_path / "support").mkdir()
    (tmp_path / "support/test_x.py").touch()
    (tmp_path / "support/x.py").write_text("from tests.checks.test_house import FOLDERS\n")
    assert layout_faults(tmp_path) == [
        "support/test_x.py: a test module belongs to one of unit, system, checks, assurance",
        "support/x.py: imports test_house",
    ]
