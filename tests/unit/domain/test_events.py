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
POSTS = {"post_event": 0, "record_event": 0, "post_once": 1, "Announce": 0}
"""What posts an Event, and the act of a rollout that asks for one: the index of the argument that is the reason."""

REASONS = EVENTS | ROLLOUT_EVENTS
NAMES = {name for name, value in vars(events).items() if isinstance(value, str) and value in REASONS}


def posted(source: str) -> Iterator[str]:
    """The reason in every call that posts an Event, as it is written."""
    for found in ast.walk(ast.parse(source)):
        if isinstance(found, ast.Call) and (name := ast.unparse(found.func).rpartition(".")[2]) in POSTS:
            yield ast.unparse(found.args[POSTS[name]])


def literals(source: str) -> set[str]:
    """The reasons of the table that a source has as a text of its own."""
    return REASONS.keys() & {found.value for found in ast.walk(ast.parse(source)) if isinstance(found, ast.Constant)}


def test_every_reason_of_the_table_is_posted() -> None:
    text = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "events.py")
    assert {name for name in NAMES if f"events.{name}" in text} == NAMES
    assert len(NAMES) == len(REASONS) == len(EVENTS) + len(ROLLOUT_EVENTS)


@pytest.mark.submission
def test_what_is_posted_is_of_the_table_and_no_other_module_writes_a_reason_out() -> None:
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "events.py"}
    assert [path for path, source in sources.items() if literals(source)] == []
    found = [reason for source in sources.values() for reason in posted(source)]
    assert len(found) >= len(REASONS)
    assert [reason for reason in found if reason[0] in "'\"f"] == []
    assert literals('post("RebootRequired")') == {"RebootRequired"}
    for call in ('cluster.post_event("Other", text)', '[Announce("Other", text, key)]'):
        assert list(posted(call)) == ["'Other'"]
