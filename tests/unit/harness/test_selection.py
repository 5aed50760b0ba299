"""What a run takes: by its name, by shares, by the number of cases and examples."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import selection
from tests.support.selection import FEWEST_EXAMPLES, Selection, Share

REPOSITORY = Path(__file__).parents[3]

TESTS = """
from pytest import mark

def test_plain(): pass
@mark.submission
def test_later(): pass
@mark.release
def test_last(): pass
@mark.parametrize("case", range(10))
def test_table(case): pass
@mark.shares(3)
@mark.parametrize("case", range(9))
def test_divided(case): pass
"""


@given(st.lists(st.integers()), st.integers(1, 9))
def test_the_shares_together_are_everything(items: list[int], count: int) -> None:
    parts = [Share(index, count).of(items) for index in range(1, count + 1)]
    assert sorted(item for part in parts for item in part) == sorted(items)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "3", "a/b", "-1/3", "1/3/5"])
def test_a_share_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a share is K/N"):
        selection.parsed(text)


def test_consecutive_commits_take_all_shares_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for commits in (7, 8, 9):
        monkeypatch.setattr(selection, "commits", lambda at=commits: at)
        taken.append(Selection("submission").share(3))
    assert sorted(taken, key=str) == [Share(1, 3), Share(2, 3), Share(3, 3)]
    assert Selection("release").share(3) == Share()
    assert Selection("release", Share(2, 3)).share(5) == Share(2, 3)


@pytest.mark.parametrize(
    ("run", "wanted"),
    [
        ("release", {1: 1, 25: 25, 60: 60, 500: 500}),
        ("submission", {1: 1, 25: 10, 60: 20, 500: 166}),
        ("quick", {1: 1, 25: FEWEST_EXAMPLES, 60: 12, 500: 100}),
    ],
)
def test_how_many_examples_there_are(run: str, wanted: dict[int, int]) -> None:
    assert {count: Selection(run).examples(count) for count in wanted} == wanted


@given(st.integers(1, 40), st.integers(1, 5), st.text(), st.integers(0, 9), st.integers(1, 3))
def test_cases_are_spread_and_the_shares_of_a_function_are_every_case_once(
    length: int, count: int, name: str, at: int, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "commits", lambda: at)
        limited = Selection(cases=count).chosen(range(length), 1, name)
        halves = itertools.product(range(1, count + 1), (False, True))
        runs = [Selection("submission", Share(index, count), most, is_other) for index, is_other in halves]
        taken = [case for one in runs for case in one.chosen(range(length), count, name)]
    assert len(limited) == len(set(limited)) == min(length, count)
    assert sorted(taken) == list(range(length))


def test_this_run_tries_as_many_examples_as_it_says(request: pytest.FixtureRequest) -> None:
    tried = 0

    @settings(max_examples=selection.examples(100), database=None)
    @given(st.integers())
    def holds(_: int) -> None:
        nonlocal tried
        tried += 1

    holds()
    assert tried == {"quick": 20, "submission": 33, "release": 100}[request.config.getoption("--run")]


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("", {"plain": 1, "later": 1, "last": 1, "table": 10, "divided": 9}),
        ("--run submission", {"plain": 1, "later": 1, "table": 10, "divided": 3}),
        ("--run submission --cases 1", {"plain": 1, "later": 1, "table": 1, "divided": 1}),
        ("--run submission --cases 1 --other-cases", {"table": 9, "divided": 2}),
        ("--run submission --cases 2 --other-cases", {"table": 8, "divided": 1}),
        ("--run quick", {"plain": 1, "table": 3, "divided": 3}),
        ("--run quick --cases 1", {"plain": 1, "table": 1, "divided": 1}),
        ("--share 2/9", {"plain": 1, "later": 1, "last": 1, "table": 10, "divided": 1}),
        ("--share 4/3", {}),
    ],
)
def test_a_run_takes_what_its_options_say(options: str, wanted: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(REPOSITORY / "pyproject.toml")]
    argv += ["-p", "tests.conftest", "--rootdir", str(tmp_path), "--collect-only", *options.split(), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert Counter(re.findall(r"::test_(\w+)", done.stdout)) == wanted, done.stdout
    assert (done.returncode == pytest.ExitCode.USAGE_ERROR) == ("a share is K/N" in done.stderr) == (not wanted)


def test_a_share_that_is_asked_for_before_the_options_are_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection._Current, "selection", None)
    for ask in (selection.share, selection.examples):
        with pytest.raises(RuntimeError, match="before"):
            ask(3)
