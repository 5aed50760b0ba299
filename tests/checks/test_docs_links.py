"""Every link of README.md and docs/ leads somewhere, the README is short, every symptom has its three answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docs.console import PAGES
from tests.support.docs.markdown import DOCS, FENCED, ROOT, anchors

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
README_LINES = 200
ANSWERS = ("- **Looks like:** ", "- **Why:** ", "- **Do:** ")


def broken(page: Path) -> Iterator[str]:
    """The links of `page` that lead nowhere; those to other hosts are not followed."""
    text = page.read_text(encoding="utf-8")
    for link in LINK.findall(FENCED.sub("", text)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_elsewhere = re.match(r"[a-z]+:", link)
        if not is_elsewhere and (
            not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8")))
        ):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A head, or two\n[a](#a-head-or-two) [b](#b) [c](c.md) [d](page.md#b) [e](https://example.com/x)\n"
    )
    assert list(broken(page)) == ["#b", "c.md", "page.md#b"]


def test_every_page_is_linked_from_the_readme() -> None:
    links = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    linked = {link.partition("#")[0] for link in links}
    assert {f"docs/{page.name}" for page in PAGES if page.parent == DOCS} <= linked


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def unanswered(text: str) -> list[str]:
    """Symptoms (headings of the third level) that lack one of the three answers."""
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    own = [section.partition("\n## ")[0] for section in sections]
    return [section.splitlines()[0] for section in own if not all(answer in section for answer in ANSWERS)]


def test_every_symptom_says_what_it_looks_like_why_and_what_to_do() -> None:
    text = (DOCS / "operate.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^### ", text, re.MULTILINE)) >= 25
    assert unanswered(text) == []
    assert unanswered("### One\n\n- **Looks like:** x\n- **Why:** y\n") == ["One"]
