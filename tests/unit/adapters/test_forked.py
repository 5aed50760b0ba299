"""A question to the kernel that is never answered costs a child, and nobody's time."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.process.forked import ANSWER_BYTES, lines_within
from tests.fakes.pace import patient


@pytest.fixture
def others() -> set[str]:
    """Children that this process has anyway: a control plane, for instance."""
    return children()


def test_an_answer_is_its_lines() -> None:
    assert lines_within(10.0, lambda: ["one", "zwö"]) == ["one", "zwö"]
    assert lines_within(10.0, list) == []


def test_no_answer_in_time_is_none_and_leaves_no_child(others: set[str]) -> None:
    began_s = time.monotonic()

    def never() -> Iterator[str]:
        yield "begun"
        time.sleep(3_600)

    assert lines_within(0.2, never) is None
    assert time.monotonic() - began_s < patient(2.0)
    assert children() == others


def test_a_question_that_fails_has_no_lines_and_does_not_come_back_into_the_caller(others: set[str]) -> None:
    def fails() -> list[str]:
        raise ValueError("in the child")

    me = os.getpid()
    assert lines_within(10.0, fails) == []
    assert os.getpid() == me
    assert children() == others


def test_a_child_that_stays_behind_holds_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: set[str]
) -> None:
    path = tmp_path / "lock"
    began = tmp_path / "began"

    def never() -> list[str]:
        began.touch()
        time.sleep(3_600)
        return []

    monkeypatch.setattr(os, "kill", lambda *_: None)  # as for a process that no signal reaches
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert lines_within(0.5, never) is None
        assert began.exists()
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    monkeypatch.undo()
    (child,) = children() - others
    os.kill(int(child), signal.SIGKILL)
    os.waitpid(int(child), 0)


def test_an_endless_answer_is_cut() -> None:
    found = lines_within(10.0, lambda: ["x" * 1000] * 10_000)
    assert found is not None
    assert sum(len(line) + 1 for line in found) <= ANSWER_BYTES + 1


def children() -> set[str]:
    """Process ids of our children, the dead that nobody waited for among them."""
    me = os.getpid()
    with open(f"/proc/{me}/task/{me}/children", encoding="utf-8") as file:  # noqa: PTH123  # proc(5)
        return set(file.read().split())
