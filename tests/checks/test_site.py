"""The docs as a site: links lead somewhere, every page is listed, pictures can be drawn, nothing is external."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.docs.console import PAGES
from tests.support.docs.markdown import DOCS
from tests.support.docs.site import __main__ as site
from tests.support.docs.site.__main__ import SiteError
from tests.support.tiers import skip_or_fail

pytestmark = pytest.mark.shares(3)

TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
GLOSSARY = DOCS / "glossary.md"
PICTURE = "```mermaid\nsequenceDiagram\n    a->>b: one; two\n```"


@pytest.fixture(scope="module")
def npm() -> None:
    """What brings mermaid is there."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        skip_or_fail("npm is not on PATH")


@pytest.mark.submission
def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(npm: None, tmp_path: Path) -> None:
    html = site.build(tmp_path)
    built = {path.name: path.read_text(encoding="utf-8") for path in html.glob("*.html")}
    assert built.keys() == {"404.html", "index.html", *(f"{page.stem}.html" for page in PAGES if page.parent == DOCS)}
    for name, text in built.items():
        assert "Content-Security-Policy" in text, name
        assert re.search(r'<script src="[./]*mermaid\.js">', text), name
    assert (html / "mermaid.js").stat().st_size > 1_000_000
    drawn = sum(text.count('<pre class="mermaid">') for text in built.values())
    assert drawn == sum(text.count("```mermaid") for text in TEXTS.values()) > 2


@pytest.mark.submission
@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ("[a](nowhere.md#b) [c](install.md#no-such-head)", "(?s)(?=.*page does not exist)(?=.*anchor does not exist)"),
        (PICTURE, r"glossary\.md: a picture \(sequenceDiagram\) cannot be drawn: Parse error"),
    ],
    ids=["link and anchor", "picture"],
)
def test_what_leads_nowhere_or_cannot_be_drawn_is_refused(npm: None, tmp_path: Path, added: str, expected: str) -> None:
    with pytest.raises(SiteError, match=expected):
        site.build(tmp_path, {**TEXTS, GLOSSARY: f"{TEXTS[GLOSSARY]}\n{added}\n"})


@pytest.mark.parametrize("change", [{DOCS / "other.md": "# Other\n"}, {GLOSSARY: None}], ids=["unlisted", "absent"])
def test_a_page_that_the_navigation_lacks_or_has_in_vain_is_refused(tmp_path: Path, change: dict[Path, str]) -> None:
    pages = {page: text for page, text in {**TEXTS, **change}.items() if text is not None}
    with pytest.raises(SiteError, match=r"(other|glossary)\.md: in the navigation"):
        site.stage(tmp_path, pages)


def test_a_package_that_is_not_the_pinned_one_is_refused_and_not_kept(tmp_path: Path) -> None:
    kept = tmp_path / f"{site.MERMAID.replace('/', '-')}.tgz"
    kept.write_bytes(b"something else")
    with pytest.raises(SiteError, match="its hash is another one"):
        site.mermaid(tmp_path)
    assert not kept.exists()


def test_what_would_be_asked_of_others_is_seen() -> None:
    page = '<a href="https://example.com"><script src="https://example.com/x.js"><script src="mermaid.js">'
    assert site.outside(page) == ["https://example.com/x.js"]
