"""The guest's side of a run: pytest on the node ids the host chose, and the results sent back.

Runs in the guest only: everything here refuses to work where the kernel command line lacks the guest's marker.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.kernel.results import GuestCase, framed

MARKER = "driver_manager.guest=1"
RESULTS_PORT = Path("/dev/ttyS1")
REBOOT_VARIABLE = "GUEST_REBOOT"
SHARE_VARIABLE = "GUEST_SHARE"
"""K/N: the share to run of what the guest's tests divide."""


def require_guest(command_line: Path = Path("/proc/cmdline")) -> None:
    """Raises RuntimeError unless this kernel was started as the test guest: real modules are unloaded here."""
    if MARKER not in command_line.read_text().split():
        raise RuntimeError(f"not the test guest: {command_line} has no {MARKER}")


class Cases:
    """Keeps how each test ends, by its node id; a test whose teardown fails has failed."""

    def __init__(self) -> None:
        self.found: dict[str, GuestCase] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found[report.nodeid] = GuestCase(failure=report.longreprtext, is_collected=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        case = self.found.setdefault(report.nodeid, GuestCase())
        case.duration_s += report.duration
        if report.failed:
            parts = (case.failure, report.longreprtext, report.capstdout, report.capstderr)
            case.failure = "\n".join(filter(None, parts))
        if report.skipped:
            case.skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext


def main(node_ids: list[str]) -> int:
    """pytest's exit status; the results are sent only where pytest came to its end."""
    require_guest()
    options = [
        # The host's conftest replays results; here the tests themselves run.
        "--confcutdir=tests/system/kernel/guest_tests",
        "-p",
        "tests.support.kernel.guest_fixtures",
        "-p",
        "tests.support.kernel.guest_command",
        "-p",
        "tests.support.kernel.guest_vfio",
        "-p",
        "no:cacheprovider",
        "--color=no",
        # Names each test on the console before it runs: the last one named is where a guest died.
        "-v",
    ]
    cases = Cases()
    status = pytest.main([*options, *node_ids], plugins=[cases]) if node_ids else pytest.ExitCode.OK
    RESULTS_PORT.write_bytes(framed(cases.found))
    if REBOOT_VARIABLE in os.environ:
        # Last, and in this process, which has imported everything already: nothing here comes back from it.
        from tests.support.kernel.first_boot import ask_for_a_reboot  # noqa: PLC0415  # with all that the command line imports

        ask_for_a_reboot()
    return int(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).read_text().splitlines()))
