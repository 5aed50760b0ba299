"""The idle rebooter in its lean interpreter: reads marker and record, and executes the command when there is work.

Must not import the command line or the Kubernetes client.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.notes import RebootFiles
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.report.log import LogForm
from driver_manager.domain.errors import ExitCode, Terminated
from driver_manager.domain.reboot.state import Record, RecordUnreadable, is_idle

GRACE_S = 60.0
"""Seconds that a look at the files may take before the loop counts as hung."""


def run(document: Mapping[str, Any], log: LogForm) -> int:
    """Watch until there is work, then execute the command. On SIGTERM, return exit code 0."""
    clock = SystemClock()
    clock.install()
    reporter = log.reporter(clock.wall)
    files = RebootFiles(HostRoots(*map(Path, document["roots"])), document["marker"], document["record"])
    alive = None
    if document["alive_file"]:
        from driver_manager.adapters.report.publish import AliveFile  # noqa: PLC0415

        alive = AliveFile(Path(document["alive_file"]), reporter, document["interval_s"] + GRACE_S)
    last_problem = ""
    reporter.info(f"watching {document['marker']} every {document['interval_s']:g} s: no reboot is asked for")
    try:
        while True:
            if alive is not None:
                alive.beat()
            snapshot, (record, problem) = files.look(), _record(files)
            is_lost = document["keeps_record"] and not files.has_record()
            if is_lost or not is_idle(snapshot, record, document["node"]):
                become_command(document["argv"], clock)
            problem = snapshot.marker_problem or problem
            if problem and problem != last_problem:
                reporter.warn(problem)
            last_problem = problem
            clock.sleep(document["interval_s"])
    except Terminated as ended:
        reporter.info(ended.what)
        return ExitCode.DONE


def become_command(argv: list[str], clock: SystemClock) -> NoReturn:
    """Replace this process by the command, which keeps process id and environment, and never return.

    Signals are blocked until the command handles them. Raises Terminated for a signal that came before.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    clock.check()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "driver_manager", *argv])  # noqa: S606  # no shell is wanted


def _record(files: RebootFiles) -> tuple[Record | None, str]:
    try:
        return files.record(), ""
    except RecordUnreadable as error:
        return None, error.what
