"""One line of text for people: what happened, a stop, what to do."""

from __future__ import annotations

import pytest

from driver_manager.domain.text import sentences


@pytest.mark.parametrize(
    ("what", "remedy", "line"),
    [
        ("the device is busy", "Stop what uses it.", "the device is busy. Stop what uses it."),
        ("the device is busy.", "Stop what uses it.", "the device is busy. Stop what uses it."),
        ("is it busy?", "Stop what uses it.", "is it busy? Stop what uses it."),
        ("the device is busy", "", "the device is busy"),
    ],
)
def test_what_and_remedy_are_two_sentences(what: str, remedy: str, line: str) -> None:
    assert sentences(what, remedy) == line
