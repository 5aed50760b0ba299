"""An Event's reason is declared once: nothing posts one that the table, and so the reference, does not know."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import driver_manager
from driver_manager.domain import events
from driver_manager.domain.events import EVENTS, ROLLOUT_EVENTS

PACKAGE = Path(driver_manager.__file__).parent
POSTS = {"post_event", "record_event", "_post"}
ASKED_FOR = "Announce"
"""The act of a rollout that asks for one."""

REASONS = EVENTS | ROLLOUT_EVENTS
NAMES = {name for name, value in vars(events).items() if isinstance(value, str) and value in REASONS}


def reasons(source: str) -> Iterator[str]:
    """The first argument of every call that posts an Event, as it is written."""
    for found in ast.walk(ast.parse(source)):
        match found:
            case ast.Call(func=ast.Attribute(attr=name)) if name in POSTS:
                yield ast.unparse(found.args[0])
            case ast.Call(func=ast.Name(id=name)) if name == ASKED_FOR:
                yield ast.unparse(found.args[0])


def literals(source: str) -> set[str]:
    """The reasons of the table that a source has as a text of its own."""
    return {
        found.value
        for found in ast.walk(ast.parse(source))
        if isinstance(found, ast.Constant) and found.value in REASONS
    }


@pytest.mark.submission
def test_no_other_module_writes_a_reason_out() -> None:
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "events.py"]
    assert [path for path in others if literals(path.read_text())] == []
    assert literals('post("RebootRequired")') == {"RebootRequired"}


def test_every_reason_of_the_table_is_posted() -> None:
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "events.py")
    assert {name for name in NAMES if f"events.{name}" in text} == NAMES
    assert len(NAMES) == len(REASONS) == len(EVENTS) + len(ROLLOUT_EVENTS)


@pytest.mark.submission
def test_what_is_posted_is_not_a_text_of_its_own() -> None:
    found = [reason for path in PACKAGE.rglob("*.py") for reason in reasons(path.read_text())]
    assert len(found) >= len(REASONS)
    assert [reason for reason in found if reason[0] in "'\"f"] == []


def test_a_text_of_its_own_is_found() -> None:
    assert list(reasons('cluster.post_event("Other", text)')) == ["'Other'"]
    assert list(reasons('[Announce("Other", text, key)]')) == ["'Other'"]
