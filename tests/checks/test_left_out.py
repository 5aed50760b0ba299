"""What the image leaves out of its Python packages is imported by nothing that is kept: every import is read."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import driver_manager
from images import prune

OWN = Path(driver_manager.__file__).parent
SITE_PACKAGES = Path(importlib.util.find_spec("kubernetes").origin or "").parents[1]  # type: ignore[union-attr]
PATTERNS = prune.patterns(prune.LIST.read_text())

EXPORTS = "kubernetes/client/__init__.py"
"""Its table `_exports` names the module of each class, which is imported on first use."""

NEVER_CALLED = {
    ("kubernetes/utils/create_from_yaml.py", "kubernetes/client/api"): "applies files of manifests",
    ("kubernetes/utils/metrics.py", "kubernetes/client/api"): "reads the metrics API",
    ("msgspec/_utils.py", "attrs"): "decodes classes of attrs",
}
"""Functions of libraries that would import something left out, and what they are for. Nothing here calls them."""


def is_left_out(path: str) -> bool:
    """Whether the list names this path (relative to site-packages, without .py) or a folder above it."""
    parts, folders = path.split("/"), [pattern for pattern in PATTERNS if "." not in pattern]
    return any(fnmatchcase("/".join(parts[: pattern.count("/") + 1]), pattern) for pattern in folders)


def source(module: str) -> Path | None:
    """The file of a module of ours or of site-packages; None for one of the standard library, and in binary form."""
    bases = [root.joinpath(*module.split(".")) for root in (OWN.parent, SITE_PACKAGES)]
    files = (file for base in bases for file in (base / "__init__.py", base.with_suffix(".py")))
    return next((file for file in files if file.exists()), None)


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """All modules that may be imported when code in `tree` runs, what is for type checkers only left aside."""
    for node in running(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def running(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those below `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from (other, *running(other))
        else:
            yield from (node, *running(node))


def exported() -> dict[str, str]:
    """The client's lazy names, each with its module's path below site-packages."""
    tree = ast.parse((SITE_PACKAGES / EXPORTS).read_text())
    assigned = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    (table,) = (node.value for node in assigned if ast.unparse(node.targets[0]) == "_exports")
    names: dict[str, str] = ast.literal_eval(table)
    return {name: f"kubernetes/client{module.replace('.', '/')}" for name, module in names.items()}


def lazy_uses(tree: ast.AST, names: dict[str, str]) -> Iterator[str]:
    """The left-out modules behind the client's lazy names that code in `tree` uses, and those of a computed name."""
    for node in running(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="client" | "kube_client"), attr=attr) if attr in names:
                yield names[attr]
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id="client"), *_]):
                yield "kubernetes/client/api"


def leading(modules: Iterable[str]) -> set[tuple[str, str]]:
    """Who of `modules` would import something left out, and what."""
    names = exported()
    led: set[tuple[str, str]] = set()
    for module, file in ((module, source(module)) for module in modules):
        if file is None:
            continue
        tree = ast.parse(file.read_text())
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        shown = file.relative_to(OWN.parent if file.is_relative_to(OWN) else SITE_PACKAGES).as_posix()
        found = {path for path in lazy_uses(tree, names) if is_left_out(path)}
        led |= {(shown, path.rpartition("/")[0] if path.count("/") > 2 else path) for path in found}
        for name in imported(tree, package):
            path = name.replace(".", "/")
            above = (path[:end] for end, character in enumerate(f"{path}/") if character == "/")
            led |= {(shown, out) for out in [next(filter(is_left_out, above), "")] if out}
    return led


def kept_modules() -> list[str]:
    """Every module of the package and of the distributions in the lock, as some are imported by computed names."""
    locked = re.findall(r"^([\w.-]+)==", Path("requirements/runtime.lock").read_text(), re.MULTILINE)
    installed = {dist.name.lower().replace("_", "-"): dist for dist in importlib.metadata.distributions()}
    listed = [file for name in locked if name in installed for file in installed[name].files or ()]
    files = [file for file in listed if file.suffix == ".py" and ".." not in file.parts]
    own = [path.relative_to(OWN.parent) for path in OWN.rglob("*.py")]
    return [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in (*own, *files)]


@pytest.mark.shares(3)
@pytest.mark.submission
def test_no_import_of_what_is_kept_leads_to_what_is_left_out() -> None:
    kept = kept_modules()
    assert leading(kept) == set(NEVER_CALLED)
    assert {"kubernetes.config.exec_provider", "oauthlib.oauth2", "websocket", "pydantic.main"} <= set(kept)


def test_this_environment_is_pruned_as_the_image_is() -> None:
    assert [pattern for pattern in PATTERNS if list(SITE_PACKAGES.glob(pattern))] == []
    assert not {"aiohttp", "yarl"} & {dist.name.lower() for dist in importlib.metadata.distributions()}
    assert not {"aiohttp", "kubernetes.aio"} & sys.modules.keys()


def test_pruning_forgets_what_it_removed_or_keeps_it_aside(tmp_path: Path) -> None:
    site, info = tmp_path / "site", tmp_path / "site/x-1.dist-info"
    for folder in (info, site / "x/aio"):
        folder.mkdir(parents=True)
    for file in ("x/aio/a.py", "x/b.py"):
        (site / file).touch()
    (info / "RECORD").write_text('x/aio/a.py,sha256=1,1\nx/b.py,sha256=2,1\n"x-1.dist-info/RECORD",,\n')
    assert prune.prune(site, ["x/aio"], tmp_path / "aside") == [site / "x/aio"]
    assert (info / "RECORD").read_text() == "x/b.py,sha256=2,1\nx-1.dist-info/RECORD,,\n"
    assert [path.name for path in (site / "x").iterdir()] == ["b.py"]
    assert (tmp_path / "aside/x/aio/a.py").exists()
    assert prune.prune(site, ["x/b.py"]) == [site / "x/b.py"]
    with pytest.raises(ValueError, match="x/aio finds nothing"):
        prune.prune(site, ["x/aio"])
    assert prune.patterns("# why\n\n a/b \n") == ["a/b"]
