"""The runner of `scripts/test`: every test belongs to one part, and no failure and no skipped test is lost."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support import assets, runner
from tests.support.image import builder
from tests.support.kernel import tools
from tests.support.node import machine
from tests.support.runner import QUICK, RELEASE, SUBMISSION, Part, Result, Running
from tests.support.tiers import skip_or_fail

TESTS = Path(__file__).parents[2]
PYTHONS = {"3.12": ".venv-3.12/bin/python", "3.13": ".venv-3.13/bin/python"}


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "LOGS", tmp_path)
    monkeypatch.setattr(runner, "CHECKOUT", tmp_path)
    return tmp_path


@pytest.mark.parametrize("run", [SUBMISSION, RELEASE])
def test_every_test_belongs_to_one_part(run: str) -> None:
    parts = [part for lane in runner.lanes(run, PYTHONS) for part in lane if part.python == ".venv/bin/python"]
    for file in TESTS.rglob("test_*.py"):
        found = [part.name for part in parts for path in part.paths if file.is_relative_to(TESTS.parent / path)]
        assert len(found) == 1, f"{file.relative_to(TESTS)} belongs to {found}"


@pytest.mark.parametrize(
    ("run", "others"), [(RELEASE, set(PYTHONS.values())), (SUBMISSION, {PYTHONS["3.13"]}), (QUICK, set[str]())]
)
def test_a_release_has_every_python_and_a_submission_the_one_that_counts_lines(run: str, others: set[str]) -> None:
    parts = [part for lane in runner.lanes(run, PYTHONS) for part in lane]
    assert {part.python for part in parts} == {".venv/bin/python", *others}
    counting = [part.name for lane in runner.lanes(run, {}) for part in lane if "--cov" in part.options]
    assert counting == ([] if run == QUICK else ["coverage"]), "also where no other python is there"


def test_the_quick_run_names_tests_that_exist() -> None:
    (unit,), (cluster,) = runner.lanes(QUICK, {})
    for test in cluster.paths:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS.parent / file).read_text()
    assert all((TESTS.parent / path).is_dir() for path in unit.paths)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("9650 passed in 152.31s (0:02:32)", {"passed": 9650}),
        ("==== 1 failed, 2 passed, 1 warning in 3.10s ====", {"failed": 1, "passed": 2}),
        ("1 failed, 3 passed, 2 skipped, 1 error in 0.10s", {"failed": 1, "passed": 3, "skipped": 2, "error": 1}),
        ("2 errors in 0.50s", {"error": 2}),
        ("a test printed 5 passed in vain\n3 passed, 4 deselected in 1.00s", {"passed": 3}),
        ("Success: no issues found in 12 source files", {}),
        ("", {}),
    ],
)
def test_the_closing_line_is_counted(text: str, counts: dict[str, int]) -> None:
    assert Result("it", 0, runner.closing_line(text)).counts == counts


def test_a_part_that_fails_or_dies_is_printed_and_decides(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running, bad = Running(QUICK), "echo it is broken; echo '1 failed, 2 passed in 0.1s'; exit 1"
    scripts = {"bad": bad, "good": "echo 3 passed in 0.1s", "dies": "kill -9 $$"}
    runner.together(running, [[Part(name, argv=("sh", "-c", script)) for name, script in scripts.items()]])
    assert runner.report(running.results, 1.0) == runner.report(running.results[2:], 1.0) == 1
    output = capsys.readouterr().out
    wanted = ("it is broken", "bad failed with status 1", "dies failed with status -9", "\n5 passed, 1 failed\n")
    assert [text for text in wanted if text not in output] == []


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_skipped_test_fails_in_ci(ci: str, status: int, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)
    (logs / "it.log").write_text("1 passed, 1 skipped in 0.1s")
    assert runner.report([Result("it", 0, "1 passed, 1 skipped in 0.1s")], 1.0) == status


def test_what_a_test_needs_skips_it_and_fails_it_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for ci, outcome in (("", pytest.skip.Exception), ("true", pytest.fail.Exception)):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(outcome, match="no cpio"):
            skip_or_fail("no cpio")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("", ("quick", [], None)),
        ("--all", ("submission", [], None)),
        ("--release", ("release", [], None)),
        ("--part sweep --share 1/3", ("release", ["sweep"], "1/3")),
        ("--all --share 2/3", ("submission", [], "2/3")),
        ("--share 2/3 -x", (["--share", "2/3", "-x"],)),
    ],
)
def test_the_arguments_name_a_run(
    arguments: str, wanted: tuple[object, ...], logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Mock(return_value=0)
    monkeypatch.setattr(runner, "whole", ask)
    monkeypatch.setattr(runner, "named", ask)
    assert runner.main(arguments.split()) == 0
    ask.assert_called_once_with(*wanted)


@pytest.fixture
def capable(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lacks nothing."""
    monkeypatch.setattr(runner, "lacking", dict)
    monkeypatch.setattr(runner, "other_pythons", lambda _: {})


@pytest.fixture
def only(capable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with one part that prints how pytest would be called."""
    part = Part("it", ("tests",), tiers=("node",), python="echo")
    monkeypatch.setattr(runner, "lanes", lambda *_: [[part]])
    monkeypatch.setattr(runner, "LINT", Part("lint", argv=("true",)))


def test_tests_run_after_a_finding_of_lint_which_fails_the_run(
    only: None, logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "LINT", Part("lint", argv=("sh", "-c", "echo too long; exit 1")))
    assert runner.whole(SUBMISSION, [], None) == 1
    assert (logs / "it.log").exists()
    assert "too long" in capsys.readouterr().out.partition("test: it ")[2], "the finding is reported at the end"


def test_a_share_is_passed_on_to_pytest(only: None, logs: Path) -> None:
    assert runner.whole(SUBMISSION, [], "2/3") == 0
    assert (logs / "it.log").read_text() == "-m pytest -q --run submission --share 2/3 tests\n"


@pytest.mark.parametrize(
    ("ci", "names", "status", "ran"),
    [
        ("true", [], 1, []),
        ("", [], 0, ["free"]),
        ("", ["bound"], 1, []),
        ("", ["bound", "free"], 1, []),
        ("true", ["free"], 0, ["free"]),
    ],
    ids=["in CI", "on a laptop", "asked for by name", "asked for with another", "a tier of another part"],
)
def test_a_tier_that_cannot_run_fails_in_ci_and_where_its_part_is_asked_for(
    ci: str, names: list[str], status: int, ran: list[str], only: None, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [Part("bound", ("tests",), tiers=("node",), python="echo"), Part("free", ("tests",), python="echo")]
    monkeypatch.setattr(runner, "lanes", lambda *_: [parts])
    monkeypatch.setattr(runner, "lacking", lambda: {"node": "no binary"})
    monkeypatch.setenv("CI", ci)
    assert runner.whole(SUBMISSION, names, None) == status
    assert [part.name for part in parts if (logs / f"{part.name}.log").exists()] == ran


def test_the_node_tier_is_asked_once_the_control_plane_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(assets, "control_plane", lambda: Path("/binaries"))
    for tier in (builder, tools):
        monkeypatch.setattr(tier, "missing", list)
    monkeypatch.setattr(machine, "missing", lambda: [] if "KUBEBUILDER_ASSETS" in os.environ else ["a server"])
    assert runner.lacking() == {}


def test_an_interrupted_run_is_not_green(only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "GRACE_S", 1.0)
    monkeypatch.setattr(runner, "LINT", Part("lint", argv=("sh", "-c", "kill -TERM $PPID; exec sleep 600")))
    assert runner.whole(SUBMISSION, [], None) == runner.INTERRUPTED


def test_an_unknown_part_is_refused_with_the_names_that_exist(
    capable: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runner.main(["--part", "swep"]) == 2
    assert "no part swep; there are unit, " in capsys.readouterr().err
