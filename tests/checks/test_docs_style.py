"""Docs, texts of the program, comments and docstrings keep the rules of `style.toml`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.assurance.mutants.catalogue import MUTANTS
from tests.support.docs import style
from tests.support.docs.style import Text


@pytest.mark.submission
def test_no_file_has_more_findings_than_the_list_allows() -> None:
    found, waiting = style.all_findings(), style.waiting()
    counts = Counter(one.place for one in found)
    assert [str(one) for one in found if counts[one.place] > waiting.get(one.place, 0)] == []
    assert waiting.keys() <= counts.keys(), "clean files leave style-waiting.txt"


def test_no_name_and_no_promise_of_a_mutant_has_findings() -> None:
    named = (Text(one.name, 1, f"{one.name.replace('-', ' ')}: {one.breaks}") for one in MUTANTS.values())
    assert [str(one) for text in named for one in style.findings(text)] == []


def test_each_rule_finds_its_wrong_sentence_and_accepts_its_right_one() -> None:
    assert len(style.rules()) > 50
    for rule in style.rules():
        found = style.findings(Text("x.py", 2, f"{rule.wrong}\n", is_code=True))
        assert rule.better in {one.better for one in found}, rule
        assert not rule.pattern.search(rule.right), rule


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("x.md", "`mend` it", []),
        ("x.md", "```\nmend it\n```", []),
        ("x.md", "    - a\n\n      ```\n      mend it\n      ```\n", []),
        ("x.md", "[a](mend.md)", []),
        ("x.md", "<!-- begin: made by x -->\nmend\n<!-- end: made by x -->\nmends\n", [(4, "mends")]),
        ("x.md", "- Evict pods,\n  too, that stay.\n", [(1, ",\n  too,")]),
        ("x.md", "The controller owns it. Owns what it creates.", []),
        ("x.yaml", "# Mend it.\na: 1\n", [(1, "Mend")]),
        ("x.py", 'raise ConfigError("it is not JSON", "Mend the file.")', [(1, "Mend")]),
        ("x.py", 'say(f"{name} cannot "\n    f"be told from {here}")', [(1, "cannot be told"), (1, "be told")]),
        ("x.py", "say(f\"it is {'mend it' if broken else well}\")", [(1, "mend")]),
        ("x.py", '@click.command(name="x")\ndef x():\n    """Show x.\n\n    It tells y.\n    """', [(5, "tells")]),
        ("x.py", 'def x():\n    """It tells y."""', [(2, "tells")]),
        ("x.py", "value = 1  # it tells y", [(1, "tells")]),
        ("x.py", "# The rest cannot\n# be told.\n", [(1, "cannot\nbe told"), (2, "be told")]),
        ("x.py", "# A section.\n#\n# Owns the rules.\n", [(3, "Owns ")]),
        ("x.py", 'say("Owns the lease.")', []),
        ("x.py", 'body["says"]', []),
    ],
)
def test_findings_of_a_file(path: str, source: str, found: list[tuple[int, str]]) -> None:
    assert [(one.line, one.words) for text in style.texts_of(path, source) for one in style.findings(text)] == found
