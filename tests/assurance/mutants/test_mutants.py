"""Every promise that is broken on purpose is missed by a test: one test here for each mutant of the list."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.assurance.mutants import __main__ as command
from tests.assurance.mutants.catalogue import MUTANTS
from tests.assurance.mutants.fork_server import BROKEN
from tests.assurance.mutants.laboratory import CHECKOUT, FORK_SERVER, SOME_FAILED, End, Laboratory, a_bench
from tests.assurance.mutants.line_mutants import LineMutant
from tests.assurance.mutants.mutant import PACKAGE

pytestmark = pytest.mark.submission

FITTING = MUTANTS["value-overflow"]


def by_rule(first: str) -> LineMutant:
    """The line below the imports of the future, changed, with the tests of FITTING."""
    search = "from __future__ import annotations\n"
    at = (CHECKOUT / PACKAGE / FITTING.path).read_text().index(search)
    return LineMutant("", FITTING.path, search, first, FITTING.tests, at=at)


@pytest.fixture(scope="module")
def laboratory() -> Iterator[Laboratory]:
    """One mutant at a time: a release has as many processes of pytest as there are processors."""
    with Laboratory(1) as running:
        yield running


@pytest.mark.release
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(name: str, laboratory: Laboratory) -> None:
    ended = laboratory.verdict(MUTANTS[name]).result()
    assert ended.end is End.KILLED, f"{MUTANTS[name].breaks}: {ended.says}"


@pytest.mark.release
def test_unit_tests_pass_in_a_copy_so_that_only_a_mutant_fails_them(laboratory: Laboratory) -> None:
    assert laboratory.control([replace(FITTING, tests=("unit",))]).result() == ""


@pytest.mark.release
def test_without_any_mutant_the_same_tests_pass(laboratory: Laboratory) -> None:
    assert laboratory.control(MUTANTS.values()).result() == ""


@pytest.mark.parametrize(
    ("change", "end", "says"),
    [
        ({"replace": FITTING.search}, End.SURVIVED, "passed all the same"),
        ({"search": "no such line"}, End.BROKEN, f"0 times in {PACKAGE}/{FITTING.path}"),
        ({"search": "return "}, End.BROKEN, "times in"),
        ({"tests": ("unit/pods/test_labels.py::test_gone",)}, End.BROKEN, "cannot be run"),
        ({"replace": "    )("}, End.BROKEN, "cannot be run"),
    ],
    ids=["it changes nothing", "its text is gone", "its text is there twice", "its test is gone", "it is no Python"],
)
def test_a_useless_mutant_is_reported(laboratory: Laboratory, change: dict[str, Any], end: End, says: str) -> None:
    ended = laboratory.verdict(replace(FITTING, **change)).result()
    assert (ended.end, says in ended.says) == (end, True), ended.says


def test_a_run_takes_every_case_whatever_the_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--run=quick --cases=1 -k 'not test_last'")
    with a_bench() as bench:
        marks = "@pytest.mark.release\n@pytest.mark.parametrize('case', range(9))\n"
        test = f"import pytest\n\n{marks}def test_last(case):\n    assert case != 8\n"
        (bench.root / "tests/unit/test_all.py").write_text(test)
        status, output = bench.pytest(["unit/test_all.py"], 60)
    assert (status, "1 failed, 8 passed" in output) == (SOME_FAILED, True), output


@pytest.mark.parametrize(
    ("first", "end"),
    [("pass", End.SURVIVED), ("raise ImportError", End.KILLED), ("from __future__ import annotations", End.SURVIVED)],
)
def test_a_mutant_made_by_rule_is_killed_if_it_cannot_be_imported(laboratory: Laboratory, first: str, end: End) -> None:
    ended = laboratory.verdict(by_rule(f"{first}\n")).result()
    assert ended.end is end, ended.says


@pytest.mark.release
def test_a_mutant_made_by_rule_that_comes_to_no_end_is_killed(laboratory: Laboratory) -> None:
    sleeps = replace(by_rule("__import__('time').sleep(3600)\n"), limit_s=15)
    ended = laboratory.verdict(sleeps).result()
    assert (ended.end, ended.says) == (End.KILLED, "the tests come to no end within 15 s")


def test_a_mutant_made_by_rule_is_killed_by_a_farther_test(laboratory: Laboratory) -> None:
    at = (CHECKOUT / PACKAGE / FITTING.path).read_text().index(FITTING.search)
    near = ("unit/pods/test_labels.py::test_only_the_forms_that_managers_write_count_as_paused",)
    mutant = LineMutant("", FITTING.path, FITTING.search, FITTING.replace, near, at=at, farther=FITTING.tests)
    assert laboratory.verdict(mutant).result().end is End.KILLED
    assert laboratory.verdict(replace(mutant, farther=())).result().end is End.SURVIVED


@pytest.mark.parametrize("hangs_in", ["nearest", "farther"])
def test_what_is_under_way_when_the_time_is_over_is_undecided(hangs_in: str) -> None:
    late = by_rule("__import__('time').sleep(3600)\n")
    if hangs_in == "farther":
        late = replace(late, tests=("unit/domain/test_window.py",), farther=late.tests)
    begun = time.monotonic()
    with Laboratory(1, begun + 5) as laboratory:
        assert laboratory.verdict(late).result().end is End.UNDECIDED
    assert time.monotonic() - begun < late.limit_s / 2


@pytest.mark.parametrize(("hangs", "end"), [(False, End.NO_END), (True, End.KILLED)])
def test_tests_without_an_end_prove_nothing_unless_the_mutant_hangs_by_design(
    laboratory: Laboratory, hangs: bool, end: End
) -> None:
    search, endless = "from __future__ import annotations\n", "while True:\n    pass\n"
    mutant = replace(FITTING, search=search, replace=endless, name="hanging", limit_s=3, hangs=hangs)
    ended = laboratory.verdict(mutant).result()
    assert (ended.end, "no end within" in ended.says) == (end, True), ended.says


@pytest.mark.parametrize(("line", "status"), [("assert False", SOME_FAILED), ("pass", BROKEN)], ids=["fail", "pass"])
def test_where_pytest_breaks_on_leaving_only_a_test_that_failed_has_killed_a_mutant(
    line: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_unconfigure():\n    raise RuntimeError('left open')\n")
    (tmp_path / "test_one.py").write_text(f"def test_one():\n    {line}\n")
    request = {"root": str(tmp_path), "arguments": ["-q", "-p", "no:cacheprovider", "test_one.py"], "limit_s": 60}
    sent = json.dumps(request) + "\n"
    done = subprocess.run([sys.executable, FORK_SERVER], input=sent, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["status"] == status


def test_what_is_near_the_last_changes_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutants", "--draw"])
    status = command.main()
    shown = capsys.readouterr().out
    with capsys.disabled():
        print(f"\n{shown}", file=sys.stderr)  # also from a worker, whose stdout leads nowhere
    assert status == 0, shown
