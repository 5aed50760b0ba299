"""Docs and program keep to the words of the style file, and each of its rules finds what it is against."""

from __future__ import annotations

import pytest

from tests.assurance.mutants.catalogue import MUTANTS
from tests.support.docs import package_texts, style
from tests.support.docs.package_texts import Text
from tests.support.docs.style import Rule


@pytest.mark.submission
def test_no_page_has_words_that_the_style_file_is_against() -> None:
    assert [str(fault) for fault in style.faults_of_docs()] == []


@pytest.mark.shares(3)
@pytest.mark.submission
def test_no_text_of_the_program_has_words_that_the_style_file_is_against() -> None:
    assert [str(fault) for fault in style.faults_of(package_texts.texts())] == []


def test_no_name_and_no_promise_of_a_mutant_has_words_that_the_style_file_is_against() -> None:
    named = (Text(one.name, 1, f"{one.name.replace('-', ' ')}: {one.breaks}") for one in MUTANTS.values())
    assert [str(fault) for fault in style.faults_of(named)] == []


def finds_its_own(rule: Rule) -> bool:
    found = [fault.better for fault in style.faults("x.md", f"A paragraph begins.\n{rule.wrong.upper()}\n")]
    return rule.better in found and not rule.pattern.search(rule.right)


def test_each_rule_finds_what_is_wrong_and_lets_pass_what_is_right() -> None:
    rules = style.rules()
    assert len(rules) > 30
    assert [rule.pattern.pattern for rule in rules if not finds_its_own(rule)] == []


@pytest.mark.parametrize(
    "text",
    ["`mend` it", "```\nmend it\n```", "    - a\n\n      ```\n      mend it\n      ```\n", "[a](mend.md)"],
)
def test_code_and_addresses_are_no_prose(text: str) -> None:
    assert list(style.faults("x.md", text)) == []


def test_what_is_made_from_the_package_is_not_checked_and_what_stands_around_it_is() -> None:
    text = "mend\n<!-- begin: made by x -->\nmend\n<!-- end: made by x -->\nmends\n"
    assert [(fault.line, fault.words) for fault in style.faults("x.md", text)] == [(1, "mend"), (5, "mends")]


def test_words_on_two_lines_are_found() -> None:
    (fault,) = style.faults("x.md", "- Evict pods,\n  too, that stay.\n")
    assert str(fault) == "x.md:1: ', too,'; better: also, before the verb"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('raise ConfigError("it is not JSON", "Mend the file.")', 1),
        ('say(f"{name} cannot "\n    f"be told from {here}")', 1),
        ('LEVEL = text("LOG_LEVEL", "Least level.")', 1),
        ("say(f\"it is {'mend it' if broken else well}\")", 1),
        ('@click.command(name="x")\ndef x():\n    """Show x.\n\n    It tells y.\n    """', 5),
    ],
)
def test_a_text_of_the_program_is_found_wherever_it_is_handed_to(source: str, line: int) -> None:
    found = style.faults_of(package_texts.texts_of("x.py", source))
    assert {fault.line for fault in found} == {line}


@pytest.mark.parametrize(
    "source",
    [
        '"""It tells y."""',
        'def x():\n    """It tells y."""',
        "value = 1  # it tells y",
        'body["says"]',
    ],
)
def test_what_only_readers_of_the_code_see_is_no_text_of_the_program(source: str) -> None:
    assert style.faults_of(package_texts.texts_of("x.py", source)) == []
