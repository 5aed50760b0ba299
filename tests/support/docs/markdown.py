"""Tables, generated blocks inside of written pages, and the command line of the scripts that make them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
BEGIN, END = "<!-- begin: made by {} -->", "<!-- end: made by {} -->"


class Drift(Exception):
    """A page does not say what the code says."""


def anchors(text: str) -> set[str]:
    """The anchors that a code host gives the headings of a page."""
    heads = HEADING.findall(FENCED.sub("", text))
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a bar inside of a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def name_of(guard: Callable[..., object]) -> str:
    return guard.__name__.strip("_").replace("_", " ")


def codes(texts: Iterable[str]) -> str:
    return ", ".join(code(text) for text in texts)


def with_block(page: str, script: str, block: str) -> str:
    """`page` with `block` between the marks of `script`. Raises Drift where it has no such marks."""
    begin, end = BEGIN.format(script), END.format(script)
    before, has_begin, rest = page.partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
        raise Drift(f"the page lacks the marks {begin} and {end}")
    return f"{before}{begin}\n\n{block.strip()}\n\n{end}{after}"


def check(pages: Mapping[Path, str]) -> None:
    """Raise Drift for the first page that is not as it should be."""
    for path, text in pages.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            raise Drift(f"{path.relative_to(ROOT)} does not say what the code says")


def main(script: str, make: Callable[[], Mapping[Path, str]]) -> int:
    """Write what `make` makes, or with --check say whether it is there; the exit status."""
    match sys.argv[1:]:
        case []:
            for path, text in make().items():
                path.write_text(text, encoding="utf-8")
                print(f"wrote {path.relative_to(ROOT)}")
            return 0
        case ["--check"]:
            try:
                check(make())
            except Drift as drift:
                print(f"{drift}; run: {script}", file=sys.stderr)
                return 1
            return 0
    print(f"usage: {script} [--check]", file=sys.stderr)
    return 2
