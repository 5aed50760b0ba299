"""How a guest's case becomes a pytest result on the host, and when the tier is refused.

Apart from conftest.py, which pytest imports under a name of its own: the classes here exist once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.support.kernel import guest, tools

# In the guest this fixture checks the kernel; on the host only replayed cases get past it.
GUARD = "guest_kernel"


class ReplayedCase(pytest.Function):
    """A guest test on the host: it runs nothing itself and reports what the guest said about it."""

    line = 0  # of the guest test in its file, counted from 0

    @property
    def inside_s(self) -> float:
        """How long it took in the guest, in seconds of its clock."""
        report = self.funcargs.get("guest_report")
        case = report.cases.get(self.nodeid) if isinstance(report, guest.GuestReport) else None
        return case.duration_s if case else 0.0

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Where it stands: the guest test's file, not the replaying function's."""
        return self.path, self.line, self.name


class GuestModule(pytest.Module):
    """A file of guest tests: collected as usual for their names, but yielding replayed cases."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """One replayed case per test function, with its markers, which decide whether a run takes it.

        Raises CollectError for anything but a function, and for one that could run on a host (see guest_kernel).
        """
        for found in super().collect():
            if not isinstance(found, pytest.Function):
                raise self.CollectError(f"guest tests are plain functions, and {found.name} is none")
            if GUARD not in found.fixturenames:
                raise self.CollectError(
                    f"{found.name} does not use the fixture {GUARD}: nothing keeps it off a real host"
                )
            case: ReplayedCase = ReplayedCase.from_parent(self, name=found.name, callobj=replaying(found.nodeid))
            case.own_markers = list(found.own_markers)
            case.line = found.reportinfo()[1] or 0
            yield case


def replaying(node_id: str) -> Callable[[guest.GuestReport], None]:
    """The test function that stands in for a guest test: passes, fails or skips as the guest's case did."""

    def replay(guest_report: guest.GuestReport) -> None:
        case = guest_report.cases.get(node_id)
        if case is None:
            said = tools.tail(guest_report.console)
            pytest.fail(f"the guest did not report this test; console:\n{said}", pytrace=False)
        if case.failure:
            pytest.fail(f"in the guest, after {case.duration_s:.1f} s:\n{case.failure}", pytrace=False)
        if case.skipped:
            pytest.skip(f"in the guest: {case.skipped}")

    return replay


def refuse(lacking: list[str], *, is_ci: bool) -> None:
    """Skips the test where the machine lacks something, and fails it where CI promised that it lacks nothing."""
    if not lacking:
        return
    reason = "kernel tier: missing " + "; ".join(lacking)
    if is_ci:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
