"""The texts of the program that people meet: help, options, log lines, errors, Events, what commands print, manifests.

Owns which texts these are. Of a module every string of two words or more, whatever it is handed to, and the docstrings
of commands, which `--help` prints; other docstrings and comments are for readers of the code. Of a manifest, a profile,
a schema or a script everything. Pure, but for reading files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.docs.markdown import ROOT

PACKAGE = "driver_manager"
WHOLE = ("deploy", "images", "scripts", f"{PACKAGE}/profiles", f"{PACKAGE}/schemas")
"""Where a file that is no module is text from its first line to its last one."""

_SHOWN_BY = frozenset({"command", "group"})
"""The decorators of click that make a docstring help."""

_VALUE = "{}"
_MORE_WORDS = re.compile(r"\S\s+\S")


@dataclass(frozen=True)
class Text:
    """One text: the file, the line that it begins in, and its words."""

    place: str
    line: int
    words: str


def texts() -> Iterator[Text]:
    """Every text of the program, file by file."""
    for path in _files(PACKAGE, *WHOLE):
        source = (ROOT / path).read_text(encoding="utf-8")
        if not path.endswith(".py"):
            yield Text(path, 1, source.replace("#", " "))
        elif path.startswith(f"{PACKAGE}/"):
            yield from texts_of(path, source)


def texts_of(path: str, source: str) -> Iterator[Text]:
    """Those of a module. The parts of an f-string are one text, and each value in it is `{}`."""
    tree = ast.parse(source)
    apart = {id(part) for part in _docstrings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            apart.update(map(id, node.values))
            yield Text(path, node.lineno, "".join(_words(part) for part in node.values))
        elif isinstance(node, ast.Constant) and id(node) not in apart and _MORE_WORDS.search(str(node.value)):
            yield Text(path, node.lineno, str(node.value))


def _words(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else _VALUE


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    """Strings that stand alone and that `--help` does not print: docstrings, and those below a constant."""
    shown = {id(node.body[0]) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_command(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and id(node) not in shown:
            yield node.value


def _is_command(node: ast.FunctionDef) -> bool:
    made = (one.func for one in node.decorator_list if isinstance(one, ast.Call))
    return any(isinstance(one, ast.Attribute) and one.attr in _SHOWN_BY for one in made)


def _files(*folders: str) -> list[str]:
    found = {path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()}
    return sorted(str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts)
