"""The node tier's table has a row for each action, and each action has a test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.node.measured import Action, recorded

TESTS = Path(__file__).parents[1] / "system/node"


def test_the_docs_show_every_action_and_no_other() -> None:
    assert [one["action"] for one in recorded()["rows"]] == [action.value for action in Action]


def test_every_action_is_measured_by_one_test() -> None:
    used = [name for path in TESTS.glob("*.py") for name in re.findall(r"Action\.(\w+)", path.read_text())]
    assert sorted(used) == sorted(action.name for action in Action)
