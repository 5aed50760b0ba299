"""The words of the docs and of the program: what `style.toml` has rules against, and where a text has it.

Owns what of a page is prose: code, in blocks and in lines, and what is made from the package is not. Pure, but for
reading the rules. Which texts of the program people meet belongs to `tests.support.docs.package_texts`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.docs.console import PAGES
from tests.support.docs.package_texts import Text

FILE = Path(__file__).with_name("style.toml")
_NO_PROSE = re.compile(
    r"^ *```.*?^ *```|<!-- begin: made by .*?<!-- end: made by .*?-->|`[^`\n]+`|\]\([^)\s]*\)|^#+ *`.*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Rule:
    """One rule. `wrong` is a sentence that it finds, `right` one that it lets pass."""

    pattern: re.Pattern[str]
    better: str
    wrong: str
    right: str


@dataclass(frozen=True)
class Fault:
    """Words that a rule is against."""

    place: str
    line: int
    words: str
    better: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {' '.join(self.words.split())!r}; better: {self.better}"


@cache
def rules() -> tuple[Rule, ...]:
    """All rules of the style file."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))["rule"]
    return tuple(
        Rule(re.compile(one["not"], re.IGNORECASE), one["better"], one["wrong"], one["right"]) for one in found
    )


def prose(text: str) -> str:
    """The text of a page with what is no prose blanked out, line by line as long as before."""
    return _NO_PROSE.sub(lambda found: re.sub(r"[^\n]", "_", found[0]), text)


def faults(page: str, text: str) -> Iterator[Fault]:
    """What the rules are against in a page; several lines of a paragraph are one text."""
    return _faults(Text(page, 1, prose(text)))


def faults_of_docs() -> list[Fault]:
    """Those of README.md and docs/."""
    return [fault for page in PAGES for fault in faults(page.name, page.read_text(encoding="utf-8"))]


def faults_of(texts: Iterable[Text]) -> list[Fault]:
    """Those of texts of the program."""
    return [fault for text in texts for fault in _faults(text)]


def _faults(text: Text) -> Iterator[Fault]:
    for rule in rules():
        for found in rule.pattern.finditer(text.words):
            line = text.line + text.words.count("\n", 0, found.start())
            yield Fault(text.place, line, found[0], rule.better)
