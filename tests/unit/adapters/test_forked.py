"""A question to the kernel that is never answered costs a child, and no time of the caller."""

from __future__ import annotations

import fcntl
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from driver_manager.adapters.process import forked
from driver_manager.adapters.process.forked import Asked, each_within, lines_within, within
from tests.support.fakes.pace import patient, with_time_enough


@pytest.fixture
def others() -> set[str]:
    """Children that this process has anyway: a control plane, for instance."""
    return children()


def test_an_answer_in_a_thread_is_its_value_or_its_error_and_that_of_a_child_its_lines(others: set[str]) -> None:
    assert within(60.0, lambda: 7) == 7
    with pytest.raises(ValueError, match="x"):
        within(60.0, lambda: int("x"))
    me = os.getpid()
    assert lines_within(10.0, lambda: ["one", "zwö"]) == ["one", "zwö"]
    assert lines_within(10.0, list) == []
    assert lines_within(10.0, lambda: [str(int("x"))]) == [], "its error does not come back into the caller"
    began = time.monotonic()
    assert lines_within(600.0, lambda: itertools.repeat("x" * 1000)) is None
    assert time.monotonic() - began < patient(30.0), "its size ends it, not its time"
    assert (os.getpid(), children()) == (me, others)


def test_no_answer_in_time_is_none_and_leaves_no_child(others: set[str]) -> None:
    began_s = time.monotonic()

    def never() -> Iterator[str]:
        yield "begun"
        time.sleep(3_600)

    assert lines_within(0.2, never) is None
    assert time.monotonic() - began_s < patient(2.0)
    assert children() == others


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_child_that_is_left_holds_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: set[str]) -> None:
    path = tmp_path / "lock"
    began = tmp_path / "began"

    def never() -> list[str]:
        began.touch()
        time.sleep(3_600)
        return []

    def asked(limit_s: float) -> list[str] | None:
        tries.append(limit_s)
        return lines_within(limit_s, never)

    tries: list[float] = []
    monkeypatch.setattr(os, "kill", lambda *_: None)  # as for a process that no signal reaches
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert with_time_enough(asked, lambda _: began.exists()) is None
        assert began.exists()
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    monkeypatch.undo()
    left = children() - others
    assert len(left) == len(tries)
    for child in left:
        os.kill(int(child), signal.SIGKILL)
        os.waitpid(int(child), 0)


def answered(item: int) -> Iterator[str]:
    """Of item 3, nothing more after the first line; item 5 fails, and 6 ends its process."""
    yield f"{item}a"
    if item == 3:
        time.sleep(60)
    if item == 5:
        raise ValueError("in the child")
    if item == 6:
        os._exit(3)
    yield f"{item}b\nno more"


def test_an_item_that_gives_no_answer_is_left_out_and_hides_no_other(others: set[str]) -> None:
    asked = with_time_enough(
        lambda stall_s: each_within(300.0, stall_s, [1, 3, 4, 5, 6, 7], answered),
        lambda asked: asked.stuck == [3],
        (1.0, 5.0, 20.0),
    )
    whole = {item: [f"{item}a", f"{item}b"] for item in (1, 4, 7)}
    assert asked.lines == {**whole, 3: ["3a"], 5: ["5a"], 6: ["6a"]}
    assert (asked.stuck, asked.left) == ([3], [])
    assert children() == others


def test_items_there_is_no_time_for_are_named(others: set[str]) -> None:
    asked = with_time_enough(
        lambda limit_s: each_within(limit_s, 100.0, [3, 4], answered), lambda asked: bool(asked.lines)
    )
    assert (asked.lines, asked.stuck, asked.left) == ({3: ["3a"]}, [], [3, 4])
    assert children() == others


def test_on_a_signal_a_question_ends_within_a_moment(others: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def answers(ending_s: float) -> Asked:
        monkeypatch.setattr(forked, "ENDING_S", ending_s)
        return each_within(600.0, 600.0, [1, 3, 4], answered, is_ending=lambda: True)

    began_s = time.monotonic()
    asked = with_time_enough(answers, lambda asked: 3 in asked.lines, (1.0, 5.0, 20.0))
    assert (asked.lines[1], asked.left) == (["1a", "1b"], [3, 4])
    assert time.monotonic() - began_s < 60.0
    assert children() == others


def children() -> set[str]:
    """Process ids of our children, zombies among them."""
    me = os.getpid()
    with open(f"/proc/{me}/task/{me}/children", encoding="utf-8") as file:  # noqa: PTH123  # proc(5)
        return set(file.read().split())


def test_who_has_answered_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that has given its last answer is about to end, and gone in far less than one long look."""
    slept: list[float] = []
    sleep = time.sleep

    def look_again_after(seconds: float) -> None:
        slept.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", look_again_after)
    for _ in range(1_000):
        assert each_within(10.0, 10.0, [1], lambda _: ["x"]).lines == {1: ["x"]}
        if slept:
            break
    assert slept, "none of them was met before it had ended"
    assert slept[0] < 0.001
