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


def test_help_messages_and_values_are_held_to_the_rules() -> None:
    sources = {
        '@cli.command("a")\ndef a() -> None:\n    """Mend it."""\n': "driver_manager/help.py",
        'raise ConfigError(f"{path} is {bad}", "Mend it.")\n': "driver_manager/message.py",
        "# Mend it.\na: 1\n": "deploy/charts/driver-manager/values.yaml",
    }
    texts = [text for source, path in sources.items() for text in style.texts_of(path, source) if not text.is_code]
    assert [one.place for text in texts for one in style.findings(text)] == list(sources.values())
    assert all(path.startswith(style.FOLDERS) for path in sources.values())


def test_no_name_and_no_promise_of_a_mutant_has_findings() -> None:
    named = (Text(one.name, 1, f"{one.name.replace('-', ' ')}: {one.breaks}") for one in MUTANTS.values())
    assert [str(one) for text in named for one in style.findings(text)] == []


def test_each_rule_finds_its_wrong_sentence_and_accepts_its_right_one() -> None:
    assert len(style.rules()) > 50
    for rule in style.rules():
        found = style.findings(Text("x.py", 2, f"{rule.wrong}\n", is_code=True))
        assert rule.better in {one.better for one in found}, rule
        assert not rule.pattern.search(rule.right), rule
