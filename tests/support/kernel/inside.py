"""The guest's side of a run: pytest on the node ids the host chose, and the results sent back.

Runs in the guest only: everything here refuses to work where the kernel command line lacks the guest's marker.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.kernel.results import NODE_ID_PROPERTY, framed

MARKER = "driver_manager.guest=1"
RESULTS_PORT = Path("/dev/ttyS1")
REBOOT_VARIABLE = "GUEST_REBOOT"
SHARE_VARIABLE = "GUEST_SHARE"
"""K/N: the share to run of what the guest's tests divide."""
JUNIT_FILE = Path("/run/driver-manager-guest.xml")


def require_guest(command_line: Path = Path("/proc/cmdline")) -> None:
    """Raises RuntimeError unless this kernel was started as the test guest: real modules are unloaded here."""
    if MARKER not in command_line.read_text().split():
        raise RuntimeError(f"not the test guest: {command_line} has no {MARKER}")


class NodeIds:
    """Puts each test's node id into its JUnit case, so that the host need not guess it from the class name."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        item.user_properties.append((NODE_ID_PROPERTY, item.nodeid))


def main(node_ids: list[str]) -> int:
    """pytest's exit status; the results are sent only where pytest came to its end."""
    require_guest()
    options = [
        f"--junit-xml={JUNIT_FILE}",
        "--override-ini=junit_logging=all",
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
    status = pytest.main([*options, *node_ids], plugins=[NodeIds()]) if node_ids else pytest.ExitCode.OK
    RESULTS_PORT.write_bytes(framed(JUNIT_FILE.read_bytes() if node_ids else b"<testsuites/>"))
    if REBOOT_VARIABLE in os.environ:
        # Last, and in this process, which has imported everything already: nothing here comes back from it.
        from tests.support.kernel.first_boot import ask_for_a_reboot  # noqa: PLC0415  # with all that the command line imports

        ask_for_a_reboot()
    return int(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).read_text().splitlines()))
