"""The style checker: the rules of `style.toml` on docs, texts of the program, comments and docstrings.

`python -m tests.support.docs.style FILE…` prints the findings in these files, with line numbers. Without a file it
prints those in docs and package. `style-waiting.txt` lists the files that still have findings.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.docs.console import PAGES
from tests.support.docs.markdown import ROOT

RULES = Path(__file__).with_name("style.toml")
WAITING = Path(__file__).with_name("style-waiting.txt")
PACKAGE = "driver_manager"
FOLDERS = (PACKAGE, "deploy", "images", "scripts")
"""Folders of the program. In a file that is not Python every line is checked."""

_NO_PROSE = re.compile(
    r"^ *```.*?^ *```|<!-- begin: made by .*?<!-- end: made by .*?-->|`[^`\n]+`|\]\([^)\s]*\)|^#+ *`.*$",
    re.MULTILINE | re.DOTALL,
)
_WORDS = re.compile(r"\S\s+\S")
_SHOWN_BY = frozenset({"command", "group"})
"""Decorators of click that make a docstring help."""


@dataclass(frozen=True)
class Rule:
    """One rule. It finds the sentence `wrong` and accepts `right`. `code`: for comments and docstrings only."""

    pattern: re.Pattern[str]
    better: str
    wrong: str
    right: str
    code: bool


@dataclass(frozen=True)
class Text:
    """A text, with its file and first line. `is_code`: a comment or a docstring that users do not see."""

    place: str
    line: int
    words: str
    is_code: bool = False


@dataclass(frozen=True)
class Finding:
    place: str
    line: int
    words: str
    better: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {' '.join(self.words.split())!r}; better: {self.better}"


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(
        Rule(re.compile(one["not"], re.IGNORECASE), one["better"], one["wrong"], one["right"], one.get("code", False))
        for one in tomllib.loads(RULES.read_text(encoding="utf-8"))["rule"]
    )


def findings(text: Text) -> Iterator[Finding]:
    """The words of a text that a rule refuses. On pages and in comments, code and generated blocks do not count."""
    is_prose = text.is_code or text.place.endswith(".md")
    prose = _NO_PROSE.sub(lambda found: re.sub(r"[^\n]", "_", found[0]), text.words) if is_prose else text.words
    for rule in rules():
        for found in rule.pattern.finditer(prose) if text.is_code or not rule.code else ():
            line = text.line + prose.count("\n", 0, found.start())
            yield Finding(text.place, line, found[0], rule.better)


def findings_in(path: str) -> list[Finding]:
    source = (ROOT / path).read_text(encoding="utf-8")
    return sorted((one for text in texts_of(path, source) for one in findings(text)), key=lambda one: one.line)


def all_findings() -> list[Finding]:
    paths = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()} | set(PAGES)
    names = sorted(str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts)
    return [finding for name in names for finding in findings_in(name)]


def waiting() -> dict[str, int]:
    """The number of findings that each file on the list may have."""
    rows = (line.split() for line in WAITING.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {path: int(count) for count, path in rows}


def texts_of(path: str, source: str) -> Iterator[Text]:
    """Of Python, comments, docstrings, and strings of two words or more, with `{}` for the values of an f-string."""
    if path.endswith(".md"):
        yield Text(path, 1, source)
    elif not path.endswith(".py"):
        yield Text(path, 1, source.replace("#", " "))
    else:
        yield from _comments(path, source)
        yield from _strings(path, ast.parse(source))


def _comments(path: str, source: str) -> Iterator[Text]:
    """Consecutive comment lines are one text."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = enumerate((one.start[0], one.string) for one in tokens if one.type == tokenize.COMMENT)
    for _, lines in itertools.groupby(comments, lambda one: one[1][0] - one[0]):
        found = [one for _, one in lines]
        yield Text(path, found[0][0], "\n".join(text.lstrip("# ") for _, text in found), is_code=True)


def _strings(path: str, tree: ast.Module) -> Iterator[Text]:
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    alone -= {id(node.body[0].value) for node in ast.walk(tree) if _is_command(node)}  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = (str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
            yield Text(path, node.lineno, "".join(words))
        elif isinstance(node, ast.Constant) and id(node) not in parts and _WORDS.search(str(node.value)):
            yield Text(path, node.lineno, str(node.value), is_code=id(node) in alone)


def _is_command(node: ast.AST) -> bool:
    """True if `--help` prints the docstring of this function."""
    called = (one.func for one in getattr(node, "decorator_list", ()) if isinstance(one, ast.Call))
    made = {one.attr for one in called if isinstance(one, ast.Attribute)}
    return bool(made & _SHOWN_BY) and ast.get_docstring(node) is not None  # type: ignore[arg-type]


def main(files: list[str]) -> int:
    paths = [str(Path(file).resolve().relative_to(ROOT)) for file in files]
    found = [one for path in paths for one in findings_in(path)] if paths else all_findings()
    print("".join(f"{one}\n" for one in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
