"""Which lines of the checkout changed since a commit. A line that only moved, or only imports, has not changed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.support.git import git

HUNK = re.compile(r"@@ -(\d+)\S* \+(\d+)")
IDLE = re.compile(r".\s*(?:from \S+ import |import |#|$)")
"""A line of a diff that does nothing. Most need no look at the whole module."""
COLOURS = {"old": "red", "oldMoved": "yellow", "new": "green", "newMoved": "blue"}
COLOURED = re.compile(r"\x1b\[(\d*)m")
OLD, NEW = "\x1b[31m", "\x1b[32m"  # red and green; lines that git finds to have moved are yellow and blue


def base_commit(checkout: Path, ref: str) -> str | None:
    """The commit that `ref` and HEAD have in common. None without it, as in a shallow clone or outside of git."""
    return (git(checkout, "merge-base", ref, "HEAD") or "").strip() or None


def head_commit(checkout: Path) -> str:
    """The commit of the checkout, "" outside of git."""
    return (git(checkout, "rev-parse", "HEAD") or "").strip()


def changed_lines(checkout: Path, base: str) -> dict[str, set[int]]:
    """By file below `checkout`, the numbers of the lines of code that differ from those of the commit `base`.

    Changes that are not committed count too. A file in which lines were only removed has no numbers.
    """
    changed: dict[str, set[int]] = {}
    for path, number in _added(_diff(checkout, base, "-M", "-C")):
        if number in _code((checkout / path).read_text()):
            changed.setdefault(path, set()).add(number)
    # Lines that a copy of a file does not have are not removed, so without copies.
    for path, origin, number in _removed(_diff(checkout, base, "-M")):
        if path not in changed and number in _code(git(checkout, "show", f"{base}:{origin}") or ""):
            changed[path] = set()
    return changed


def _diff(checkout: Path, base: str, *options: str) -> list[str]:
    colours = [option for name, colour in COLOURS.items() for option in ("-c", f"color.diff.{name}={colour}")]
    moved = ("--color=always", "--color-moved=blocks", "--color-moved-ws=allow-indentation-change")
    fixed = ("--no-ext-diff", "--src-prefix=a/", "--dst-prefix=b/", "--unified=0", "-l0", *moved)
    argv = ("-c", "core.quotePath=false", *colours, "diff", *fixed, *options, base, "--", "*.py")
    return (git(checkout, *argv) or "").split("\n")


def _added(diff: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Files and numbers of lines that are new and did not only move."""
    path, number = "", 0
    for line in diff:
        plain = COLOURED.sub("", line)
        if plain.startswith("+++ "):
            path = _path(plain)
        elif hunk := HUNK.match(plain):
            number = int(hunk[2])
        elif plain.startswith("+"):
            if line.startswith(NEW) and not IDLE.match(plain):
                yield path, number
            number += 1


def _removed(diff: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Files, what they were called, and numbers there of lines that are gone and did not only move."""
    path, origin, number = "", "", 0
    for line in diff:
        plain = COLOURED.sub("", line)
        if plain.startswith("--- "):
            origin = _path(plain)
        elif plain.startswith("+++ "):
            path = _path(plain)
        elif hunk := HUNK.match(plain):
            number = int(hunk[1])
        elif plain.startswith("-"):
            if line.startswith(OLD) and path and not IDLE.match(plain):
                yield path, origin, number
            number += 1


def _path(header: str) -> str:
    """Of a header such as `+++ b/README.md`; "" of /dev/null."""
    return header.partition("/")[2].rstrip("\t") if header[4:6] in {"a/", "b/"} else ""


@cache
def _code(source: str) -> set[int]:
    """The lines of a module that do something: no import, no docstring, no comment."""
    idle = {
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and _is_idle(node)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(source.split("\n"), 1)
    return {number for number, line in lines if line.strip() and not line.lstrip().startswith("#")} - idle


def _is_idle(node: ast.stmt) -> bool:
    """True for an import and a docstring."""
    return isinstance(node, (ast.Import, ast.ImportFrom)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
