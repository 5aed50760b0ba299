"""A pytest plugin that names each failure as it comes: the summary of a long run may be an hour away, or never come."""

from __future__ import annotations

import pytest


class Failures:
    def __init__(self) -> None:
        self._terminal: pytest.TerminalReporter | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._terminal = session.config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._terminal is not None and report.failed:
            self._terminal.write_line(f"\n{report.nodeid}: failed in {report.when}: {_headline(report)}")


def _headline(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:  # a worker that died, say: what it was at comes last
        return report.longreprtext.strip().rpartition("\n")[2]
    return str(crash.message).partition("\n")[0]
