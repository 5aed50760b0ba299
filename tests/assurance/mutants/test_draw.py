"""What a submission draws, in small repositories; and that what was begun is judged."""

from __future__ import annotations

import contextlib
import subprocess
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from tests.assurance.mutants import __main__ as command
from tests.assurance.mutants import draw as drawing
from tests.assurance.mutants.draw import Draw, changed_lines, draw, try_in_time
from tests.assurance.mutants.laboratory import End, Verdict
from tests.assurance.mutants.line_mutants import edits, every_line_mutant, unit_tests_of
from tests.assurance.mutants.mutant import Mutant
from tests.support.selection import Share

PODS = '''"""Pods."""

from __future__ import annotations


def is_due(age_s: int, limit_s: int) -> bool:
    return age_s > limit_s


def names_of_the_pods_that_are_due(ages: dict[str, int], limit_s: int) -> list[str]:
    return [name for name, age_s in ages.items() if is_due(age_s, limit_s)]
'''
CHANGED = PODS.replace("> limit_s", ">= limit_s")
FILES = {
    "driver_manager/core/pods.py": PODS,
    "driver_manager/core/units.py": "ONE = 1\n",
    "driver_manager/core/nodes.py": "from driver_manager.core import pods\n\nMOST_PODS = 3\n",
    "tests/unit/core/test_pods.py": "from driver_manager.core.pods import is_due\n\n\ndef test_one():\n    assert 1\n",
    "tests/unit/core/test_nodes.py": "from driver_manager.core.nodes import MOST_PODS\n",
}
POD = Mutant("a", "core/pods.py", "age_s > limit_s", "True", ("unit/core/test_pods.py::test_one",), name="pod")
NODE = Mutant("b", "core/nodes.py", "3", "4", ("unit/core/test_nodes.py",), name="node")
CATALOGUE = (POD, NODE)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init", "--quiet")
    commit(root, FILES)
    return root


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", root, "-c", "user.name=t", "-c", "user.email=t@t", *arguments], check=True)


def commit(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "a change")


def drawn(root: Path) -> Draw:
    return draw(CATALOGUE, root, "HEAD~1", Share(1, 2))


def test_a_changed_line_has_its_number_and_counts_before_it_is_committed(checkout: Path) -> None:
    (checkout / "driver_manager/core/nodes.py").write_text("MOST_PODS = 4\n")
    assert changed_lines(checkout, "HEAD") == {"driver_manager/core/nodes.py": {1}}
    commit(checkout, {"driver_manager/core/pods.py": CHANGED})
    assert changed_lines(checkout, "HEAD~1")["driver_manager/core/pods.py"] == {7}


@pytest.mark.parametrize(("condition", "changed"), [("if is_due", set()), ("if not is_due", {2})])
def test_of_lines_that_moved_to_another_file_those_have_changed_that_differ(
    checkout: Path, condition: str, changed: set[int]
) -> None:
    head, moved = PODS.replace("if is_due", condition).split("\n\n\ndef names")
    commit(checkout, {"driver_manager/core/pods.py": f"{head}\n", "driver_manager/core/due.py": f"def names{moved}"})
    found = changed_lines(checkout, "HEAD~1")
    assert (found.pop("driver_manager/core/due.py", set()), set().union(*found.values())) == (changed, set())


def test_without_a_base_only_the_share_is_drawn(checkout: Path) -> None:
    commit(checkout, {"driver_manager/core/pods.py": CHANGED})
    shallow = checkout.parent / "shallow"
    git(checkout, "clone", "--quiet", "--depth=1", checkout.as_uri(), str(shallow))
    one = drawn(shallow)
    assert (one.changed, one.lines, one.share) == ([], [], [POD])
    assert "HEAD~1 is no commit here" in one.why
    outside = checkout.parent / "outside"
    outside.mkdir()
    assert drawn(outside).share == [POD]


def test_mutants_near_a_change_come_first_and_in_turn(checkout: Path) -> None:
    commit(checkout, {"driver_manager/core/nodes.py": "MOST_PODS = 4\nHAS_PODS = True\n"})
    one = drawn(checkout)
    assert [mutant.name for mutant in one.in_turn()] == ["node", "core/nodes.py:2:1", "pod"]
    assert one.why == "mutants: 1 of the catalogue and 1 by rule for changes since HEAD~1, 1 by share 1/2"


def test_mutants_by_rule_are_those_of_changed_lines_of_the_package(checkout: Path) -> None:
    commit(checkout, {"tests/unit/core/test_pods.py": "def test_one():\n    assert 2\n"})
    one = drawn(checkout)
    assert (one.changed, one.lines, one.share) == ([POD], [], [NODE]), "a changed test draws its mutant"
    commit(checkout, {"driver_manager/core/pods.py": CHANGED})
    assert {mutant.line for mutant in drawn(checkout).lines} == {7}


def test_a_mutant_that_is_new_or_changed_is_drawn(checkout: Path) -> None:
    for replacement in ("4", "5"):
        text = f"node: a promise\ncore/nodes.py, by unit/core/test_nodes.py\n-n: int = 3\n+n: int = {replacement}\n"
        commit(checkout, {"tests/assurance/mutants/catalogue.py": text})
        assert drawn(checkout).changed == [NODE]


def test_the_commit_decides_the_order(checkout: Path) -> None:
    many = [Mutant("a", "core/pods.py", "", "", (), name=f"pod-{number}") for number in range(50)]
    orders = []
    for text in ("MOST_PODS = 4\n", "MOST_PODS = 5\n"):
        commit(checkout, {"driver_manager/core/nodes.py": text})
        one, again = (draw(many, checkout, "HEAD", Share()).share for _ in range(2))
        assert one == again
        orders.append(one)
    assert orders[0] != orders[1]
    assert sorted(one.name for one in orders[0]) == sorted(one.name for one in many)


def test_a_line_that_is_declared_equivalent_is_not_drawn(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(checkout, {"driver_manager/core/nodes.py": "from driver_manager.core import pods\n\nHAS_PODS = True\n"})
    key = ("core/nodes.py", "HAS_PODS = True", "HAS_PODS = False")
    assert [mutant.key() for mutant in drawn(checkout).lines] == [key]
    monkeypatch.setattr(drawing, "EQUIVALENTS", {key: "it is not read"})
    assert drawn(checkout).lines == []


class Slow:
    """A laboratory in which each mutant takes ten seconds and ends as its promise says."""

    now = 0.0

    def verdict(self, mutant: Mutant) -> Future[Verdict]:
        self.now += 10
        ended: Future[Verdict] = Future()
        ended.set_result(Verdict(mutant.name, End(mutant.breaks), 10, "it passed"))
        return ended


@pytest.mark.parametrize(("seconds", "begun"), [(0, 0), (1, 1), (10, 1), (20, 1), (21, 2), (1000, 4)])
def test_what_does_not_fit_into_the_time_is_not_begun(seconds: int, begun: int) -> None:
    slow = Slow()
    mutants = [Mutant("killed", "", "", "", (), name=str(number)) for number in range(4)]
    verdicts, left_out = try_in_time(mutants, slow.verdict, 1, seconds, lambda: slow.now)
    assert [one.mutant for one in verdicts] == [one.name for one in mutants[:begun]]
    assert left_out == mutants[begun:]


def test_a_survivor_fails_the_run_and_is_shown(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Laboratory", lambda *_: contextlib.nullcontext(Slow()))
    killed, other = replace(POD, breaks="killed"), replace(NODE, breaks="killed")
    (first,) = [one for one in every_line_mutant(checkout, "core/pods.py") if one.name.endswith(":7:2")]
    first = replace(first, breaks="survived")
    assert command.tried([killed, first, other], 1, end=1e9) == 1
    shown = capsys.readouterr().out
    assert (
        "driver_manager/core/pods.py:7\n"
        "  - return age_s > limit_s\n"
        "  + return age_s >= limit_s\n"
        "  survived: it passed\n"
        "  again: scripts/mutants core/pods.py:7:2\n"
        "mutants: 2 of 3 killed, 0 not decided in time, 0 left out for lack of time\n"
    ) in shown
    assert command.tried([killed, other], 1, end=1e9) == 0


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("x = a < b", ["x = a <= b"]),
        ("x = a <= b < c", ["x = a < b < c", "x = a <= b <= c"]),
        ("x = (a) == (b)", ["x = (a) != (b)"]),
        ("x = a is not b", ["x = a is b"]),
        ("x = a not in b", ["x = a in b"]),
        ("x = a and not b", ["x = a or not b", "x = a and b"]),
        ("x = a or b or c", ["x = a and b or c", "x = a or b and c"]),
        ("x = (a  # or\n    or b)", []),
        ("f('é', check=False)", ["f('é', check=True)"]),
        ("@dataclass(frozen=True)\nclass A: pass", []),
        ("def f(): return a + b", ["def f(): return None"]),
        ("def f(): return 1", []),
    ],
)
def test_what_becomes_of_a_line(line: str, after: list[str]) -> None:
    found = sorted(edits(line), key=lambda edit: edit.start)
    assert [line[: edit.start] + edit.text + line[edit.end :] for edit in found] == after


def test_the_nearest_tests_are_those_that_import_the_module(checkout: Path) -> None:
    commit(checkout, {"driver_manager/core/main.py": 'TABLE = {"nodes": "driver_manager.core.nodes"}\n'})
    commit(checkout, {"tests/unit/core/test_main.py": "from driver_manager.core.main import (\n    TABLE,\n)\n"})
    assert unit_tests_of(checkout, "core/pods.py") == (
        ("unit/core/test_pods.py",),
        ("unit/core/test_nodes.py", "unit/core/test_main.py"),
    )


@pytest.mark.parametrize(("place", "numbers"), [("7", [1, 2]), ("7:2", [2]), ("7:3", []), ("1", [])])
def test_a_mutant_made_by_rule_has_its_place_as_name(
    checkout: Path, place: str, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "CHECKOUT", checkout)
    names = [mutant.name for mutant in command.named(f"core/pods.py:{place}")]
    assert names == [f"core/pods.py:7:{number}" for number in numbers]
