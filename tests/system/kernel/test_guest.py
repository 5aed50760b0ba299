"""The harness's own facts, on the host: what counts as a result, what does not, and that the host stays untouched."""

from __future__ import annotations

import bisect
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.kernel import driver_roots, guest_fixtures, inside, results, tools
from tests.support.kernel.guest import (
    LOOKS_EVERY_S,
    GuestModule,
    GuestReport,
    ReplayedCase,
    read_only_view,
    replaying,
    wait_while_changing,
)
from tests.support.tiers import skip_or_fail

NODE_ID = "tests/system/kernel/guest_tests/test_x.py::test_it"
PASSED = {NODE_ID: results.GuestCase(1.5)}
TESTS = """
import pytest
@pytest.fixture
def broken():
    yield
    raise ValueError("left loaded")
def test_it(broken): pass
def test_passes(): pass
def test_skipped(): pytest.skip("no device")
"""


def test_cases_come_out_as_they_went_in() -> None:
    assert results.parsed(b"boot noise" + results.framed(PASSED)) == PASSED


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", "no results"),
        (b"Kernel panic", "no results"),
        (results.BEGIN + b"{}", "no end marker"),
        (results.framed(PASSED)[:-1], "checksum"),
        (results.framed(PASSED).replace(b"test_it", b"test_in"), "checksum"),
    ],
)
def test_results_without_begin_end_or_checksum_are_refused(sent: bytes, expected: str) -> None:
    with pytest.raises(tools.KernelTierError, match=expected):
        results.parsed(sent)


def test_a_case_is_kept_as_it_ends_and_a_module_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    (tmp_path / "test_y.py").write_text("import no_such_module")
    options = ["-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir", str(tmp_path)]
    pytest.main([*options, str(tmp_path)], plugins=[cases := inside.Cases()])
    teardown, passed, skipped = (cases.found[f"test_x.py::test_{name}"] for name in ("it", "passes", "skipped"))
    assert ("left loaded" in teardown.failure, passed.failure, "no device" in skipped.skipped) == (True, "", True)
    with pytest.raises(tools.KernelTierError, match=r"(?s)test_y.*no_such_module"):
        results.parsed(results.framed(cases.found))


@pytest.mark.parametrize(
    ("case", "outcome", "expected"),
    [
        ({NODE_ID: results.GuestCase(1.0, failure="assert 1 == 2")}, pytest.fail, "assert 1 == 2"),
        ({NODE_ID: results.GuestCase(skipped="no device")}, pytest.skip, "no device"),
        ({}, pytest.fail, r"(?s)did not report.*Kernel panic"),
    ],
    ids=["failed", "skipped", "not reported"],
)
def test_a_case_ends_as_it_did_in_the_guest_and_no_other_does(
    case: dict[str, results.GuestCase], outcome: Any, expected: str
) -> None:
    report = GuestReport({**case, "other": results.GuestCase(1.0)}, console="Kernel panic")
    replaying("other")(report)
    with pytest.raises(outcome.Exception, match=expected):
        replaying(NODE_ID)(report)


def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "SEARCH_PATH", "")
    monkeypatch.setattr(tools, "VIRTIOFSD_PLACES", ())
    lines = "\n".join(tools.missing())
    for package in ("qemu-system-x86", "kmod", "cpio", "busybox-static", "qemu-system-common"):
        assert package in lines


class Machine:
    """A process and a clock: it says a word at each second in `words` and ends at `ends_s`, or never."""

    def __init__(self, words: Sequence[int], ends_s: float = float("inf")) -> None:
        self.now_s = 0.0
        self._words, self._ends_s = words, ends_s

    def wait(self, timeout: float) -> int:
        self.now_s = min(self.now_s + timeout, self._ends_s)
        if self.now_s < self._ends_s:
            raise subprocess.TimeoutExpired("qemu", timeout)
        return 0

    def progress(self) -> int:
        return bisect.bisect_right(self._words, self.now_s)

    def outcome(self) -> int | None:
        return wait_while_changing(self, self.progress, 100.0, lambda: self.now_s)


def test_a_guest_that_says_something_is_never_ended_however_long_it_takes() -> None:
    machine = Machine(range(0, 100_000, 99), ends_s=100_000.5)
    assert (machine.outcome(), machine.now_s) == (0, 100_000.5)


@pytest.mark.parametrize("last_word_s", [0, 5_000])
def test_a_guest_that_falls_silent_is_given_up_after_the_limit(last_word_s: int) -> None:
    machine = Machine(range(0, last_word_s + 1, 50))
    assert machine.outcome() is None
    assert 100.0 < machine.now_s - last_word_s <= 100.0 + 2 * LOOKS_EVERY_S


def test_guest_code_refuses_to_touch_this_kernel(tmp_path: Path) -> None:
    command_line = tmp_path / "cmdline"
    command_line.write_text("quiet driver_manager.guest=10\n")
    acts = (guest_fixtures.rmmod, guest_fixtures.delete_module)
    for act in (*(partial(one, "rebellions") for one in acts), partial(inside.require_guest, command_line)):
        with pytest.raises(RuntimeError, match="not the test guest"):
            act()
    command_line.write_text("quiet driver_manager.guest=1\n")
    inside.require_guest(command_line)


def test_guest_tests_are_replayed_here_and_never_run(request: pytest.FixtureRequest) -> None:
    of_guest = [item for item in request.session.items if item.path.is_relative_to(tools.GUEST_TESTS)]
    assert all(isinstance(item, ReplayedCase) for item in of_guest)
    # pytest needs a line to report a skip.
    assert all(item.reportinfo()[1] is not None for item in of_guest)


def test_a_replayed_case_has_the_markers_of_its_guest_test(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    file = tmp_path / "test_marked.py"
    file.write_text("import pytest\n@pytest.mark.release\ndef test_it(guest_kernel): pass\n")
    (case,) = GuestModule.from_parent(request.session, path=file).collect()
    assert isinstance(case, ReplayedCase)
    assert case.get_closest_marker("release")


def test_what_runs_on_the_guests_node_belongs_to_both_tiers(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        if item.path.is_relative_to(tools.TESTS):
            on_node = item.path.is_relative_to(tools.ON_NODE)
            assert {mark.name for mark in item.iter_markers()} >= {"kernel", *(["node"] if on_node else [])}
            assert on_node or item.get_closest_marker("node") is None


def test_another_kernels_release_has_the_same_length() -> None:
    assert driver_roots.foreign_release("6.1.0-56-cloud-amd64") == "7.1.0-56-cloud-amd64"
    assert driver_roots.foreign_release("7.0.1") == "8.0.1"


def test_the_guests_view_of_the_host_cannot_be_written(tmp_path: Path) -> None:
    if lacking := tools.missing():
        skip_or_fail(f"kernel tier: missing {'; '.join(lacking)}")
    view = tmp_path / "view"
    view.mkdir()
    seen = view / tmp_path.relative_to("/")
    (tmp_path / "written-on-the-host").touch()
    shown = tools.run(read_only_view(view, [tmp_path], ["ls", str(seen)]), timeout_s=60)
    assert b"written-on-the-host" in shown
    with pytest.raises(tools.KernelTierError, match="Read-only file system"):
        tools.run(read_only_view(view, [tmp_path], ["touch", str(seen / "written")]), timeout_s=60)
    assert list(view.iterdir()) == []
