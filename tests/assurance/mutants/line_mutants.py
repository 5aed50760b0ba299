"""Mutants made by rule from any line: comparisons, and/or, not, return, flags."""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.assurance.mutants.mutant import PACKAGE, Mutant, NoLongerAppliesError

PAIRS: dict[tuple[type[ast.AST], type[ast.AST]], tuple[str, str]] = {
    (ast.Lt, ast.LtE): ("<", "<="),
    (ast.Gt, ast.GtE): (">", ">="),
    (ast.Eq, ast.NotEq): ("==", "!="),
    (ast.In, ast.NotIn): ("in", "not in"),
    (ast.Is, ast.IsNot): ("is", "is not"),
    (ast.And, ast.Or): ("and", "or"),
}
OPPOSITES = {kind: words[::step] for kinds, words in PAIRS.items() for kind, step in zip(kinds, (1, -1), strict=True)}
EQUIVALENTS: dict[tuple[str, str, str], str] = {}
"""Changes that no test could notice, each with its reason: module, line and what it becomes, without indentation."""

IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]*)|import ([\w., ]+))", re.MULTILINE)
LIMIT_S = 60
FARTHER = 40
"""Files of tests that a mutant has to survive beyond the nearest ones. They take two minutes of a processor."""


@dataclass(frozen=True)
class LineMutant(Mutant):
    """A mutant whose `search` stands at offset `at` of its module: what is `before` on `line` becomes `after`.

    `tests` are the unit tests that import the module most directly, `farther` the next ones that depend on it.
    """

    at: int = 0
    line: int = 0
    before: str = ""
    after: str = ""
    farther: tuple[str, ...] = ()

    def shown(self) -> str:
        """The place and the change, for a reader."""
        lines = [f"  - {line}" for line in self.before.split("\n")] + [f"  + {line}" for line in self.after.split("\n")]
        return "\n".join([f"{PACKAGE}/{self.path}:{self.line}", *lines])

    def mutated(self, root: Path) -> str:
        """What becomes of the module in the package below `root`. Raises NoLongerAppliesError."""
        source = (root / PACKAGE / self.path).read_text()
        if not source.startswith(self.search, self.at):
            raise NoLongerAppliesError(f"{self.name}: {PACKAGE}/{self.path} has changed")
        return source[: self.at] + self.replace + source[self.at + len(self.search) :]

    @property
    def lines(self) -> set[int]:
        """The lines that it replaces."""
        return set(range(self.line, self.line + self.search.count("\n") + 1))

    def key(self) -> tuple[str, str, str]:
        """What declares it equivalent in EQUIVALENTS."""
        return self.path, self.before, self.after


class Edit(NamedTuple):
    """The text from offset `start` to `end` becomes `text`."""

    start: int
    end: int
    text: str


@cache
def every_line_mutant(checkout: Path, path: str) -> list[LineMutant]:
    """All of a module below the package, by line, with names such as core/swap/node.py:41:2."""
    source = (checkout / PACKAGE / path).read_text()
    tests, farther = unit_tests_of(checkout, path)
    found: list[LineMutant] = []
    of_line: dict[int, int] = defaultdict(int)
    for edit in sorted(edits(source)):
        start, end = source.rfind("\n", 0, edit.start) + 1, f"{source}\n".find("\n", edit.end)
        line = source.count("\n", 0, start) + 1
        of_line[line] += 1
        before, after = source[start:end], source[start : edit.start] + edit.text + source[edit.end : end]
        place: dict[str, Any] = {"name": f"{path}:{line}:{of_line[line]}", "at": edit.start, "line": line}
        place |= {"before": before.strip(), "after": after.strip(), "farther": farther}
        search, breaks = source[edit.start : edit.end], "a changed line is tested"
        found.append(LineMutant(breaks, path, search, edit.text, tests, LIMIT_S, **place))
    return found


def edits(source: str) -> Iterator[Edit]:
    """What can be changed in a module. Decorators stay: a class that is not frozen does the same."""
    tree = ast.parse(source)
    place = _Places(source)
    decorators = [one for node in ast.walk(tree) for one in getattr(node, "decorator_list", ())]
    left_out = {id(inner) for decorator in decorators for inner in ast.walk(decorator)}
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        start, end = place.span(node)
        match node:
            case ast.Compare(left, ops, operands):
                for left, operator, right in zip([left, *operands], ops, operands, strict=False):  # noqa: B020
                    yield from place.between(left, operator, right)
            case ast.BoolOp(operator, operands):
                for left, right in itertools.pairwise(operands):
                    yield from place.between(left, operator, right)
            case ast.UnaryOp(ast.Not()):
                yield Edit(start, start + len("not "), "")
            case ast.Return(value) if value is not None and not isinstance(value, ast.Constant):
                yield Edit(start, end, "return None")
            case ast.Constant(bool() as flag):
                yield Edit(start, end, str(not flag))


class _Places:
    """Offsets in a source of what its tree gives by line and byte."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines = source.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Start and end, 0 and 0 of a node without a place."""
        if not isinstance(node, (ast.expr, ast.stmt)):
            return 0, 0
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno or 0, node.end_col_offset or 0)

    def between(self, left: ast.expr, operator: ast.AST, right: ast.expr) -> Iterator[Edit]:
        """The operator between two operands becomes its opposite."""
        token, other = OPPOSITES[type(operator)]
        first, last = self.span(left)[1], self.span(right)[0]
        found = list(re.finditer(rf"(?<![\w<>=!]){token}(?![\w<>=!])", self._source[first:last]))
        if len(found) == 1:  # none or two where a comment is between them
            yield Edit(first + found[0].start(), first + found[0].end(), other)

    def _offset(self, line: int, byte: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:byte].decode())


def unit_tests_of(checkout: Path, path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The unit tests that import a module most directly, its namesakes first, and the next that depend on it."""
    importers, sizes = _importers(checkout)
    stem, reached, seen, levels = Path(path).stem, {f"{PACKAGE}/{path}"}, set[str](), list[list[str]]()
    while reached:
        seen |= reached
        tests = [file.removeprefix("tests/") for file in reached if re.match(r"tests/unit/.*/test_\w+\.py", file)]
        tests.sort(key=lambda test: (stem not in test, sizes["tests/" + test], test))
        if tests:
            levels.append(tests)
        reached = {importer for file in reached for importer in importers[file]} - seen
    nearest, *others = levels or [[]]
    return tuple(nearest), tuple(itertools.chain.from_iterable(others))[:FARTHER]


@cache
def _importers(checkout: Path) -> tuple[dict[str, set[str]], dict[str, int]]:
    """By file, the files that import it, and how many it imports."""
    files = [file for root in (PACKAGE, "tests/unit", "tests/support") for file in (checkout / root).rglob("*.py")]
    names = {file: file.relative_to(checkout).as_posix() for file in files}
    modules = {re.sub(r"(/__init__)?\.py$", "", name).replace("/", "."): name for name in names.values()}
    importers: dict[str, set[str]] = defaultdict(set)
    sizes: dict[str, int] = {}
    for file, importer in names.items():
        imported = {modules[name] for name in _imported(file.read_text()) if name in modules}
        sizes[importer] = len(imported)
        for one in imported:
            importers[one].add(importer)
    return importers, sizes


def _imported(source: str) -> Iterator[str]:
    """The names that may be modules, also those in tables of what is imported when needed. Parsing would take long."""
    yield from re.findall(rf'"({PACKAGE}(?:\.\w+)+)"', source)
    for origin, names, plain in IMPORT.findall(source):
        yield from re.findall(r"[\w.]+", plain)
        yield from (f"{origin}.{name}" for name in re.findall(r"\w+", names))
        yield origin
