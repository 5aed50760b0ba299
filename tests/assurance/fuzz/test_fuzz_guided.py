"""The coverage-guided engine runs every target a bounded number of times, and finds a bug that is planted for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.assurance.fuzz import guided
from tests.support.selection import share

REPOSITORY = Path(__file__).parents[3]
WHOLE_S = 1_500.0
"""For a slow machine that does other things too; alone it takes a tenth of that."""

PLANTED = """
import sys
from tests.assurance.fuzz import guided
guided.instrument()
from tests.assurance.fuzz.target import Form, Target

def read(data):
    # Four letters that no seed has, one after the other: no blind guess gets there.
    if data[:1] == b"B":
        if data[1:2] == b"O":
            if data[2:3] == b"O":
                if data[3:4] == b"T":
                    raise KeyError("planted")

import atheris
target = Target("planted", atheris.instrument_func(read), (b"aaaa",), Form.BYTES)
found = guided.campaign(target, runs=500_000, seconds=90.0, seed=1)
print(found.runs, [path.read_bytes()[:4] for path in found.saved], "planted" in found.output)
for path in found.saved:
    path.unlink()
"""

pytestmark = [
    pytest.mark.submission,
    pytest.mark.skipif(bool(guided.why_not()) and not os.environ.get("CI"), reason=guided.why_not() or "it is there"),
]


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], cwd=REPOSITORY, capture_output=True, text=True, timeout=WHOLE_S, check=False
    )


def test_no_target_has_a_finding_in_a_bounded_number_of_runs() -> None:
    chosen = share(3).of(run("-m", "tests.assurance.fuzz", "--list").stdout.split())
    done = run("-m", "tests.assurance.fuzz", "--bounded", *chosen)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert all(int(row[1]) > 0 and row[-1] == "none" for row in rows)
    assert chosen
    assert [row[0] for row in rows] == chosen


@pytest.mark.shares(3)
def test_a_planted_bug_behind_four_letters_is_found_and_its_input_saved() -> None:
    done = run("-c", PLANTED)
    assert done.returncode == 0, done.stderr
    runs, *rest = done.stdout.split(" ", 1)
    assert int(runs) < 500_000
    assert rest == ["[b'BOOT'] True\n"]
