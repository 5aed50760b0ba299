"""Runs the real command line inside this process: its own options, wiring, adapters, output and exit code.

Two seams are used, so that hundreds of runs are possible: pauses pass in simulated time, and the stand-in tools of the
host tree are called instead of started. Everything that talks to the API server is the product's. Main thread only: the
command takes over SIGTERM.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

from driver_manager.adapters.host import modules, services
from driver_manager.adapters.host import system as host_system
from driver_manager.adapters.kube import transport as in_pod
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.process.run import Result
from driver_manager.cli import by_hand as restore
from driver_manager.cli import main, reconcile
from driver_manager.cli import session as wiring
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import TOOLS, HostTree
from tests.support.fakes.signals import signals_kept

COMMANDS = (reconcile, restore)
"""Imported here, so that no run pays for it."""

NAP_S = 0.002
"""What is left of a pause: other threads get their turn."""


class SkippingClock(SystemClock):
    """The system's clock, on which a pause takes no time of its own: it ends once `settle` returns.

    Real seconds would be enough for what others do meanwhile. Skipped, they are not: they have to be waited for.
    """

    def __init__(self, settle: Callable[[], object]) -> None:
        super().__init__()
        self._settle = settle
        self._skipped_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._skipped_s

    def sleep(self, seconds: float) -> None:
        began_s = time.monotonic()
        super().sleep(min(seconds, NAP_S))
        self._settle()
        self._skipped_s += seconds - (time.monotonic() - began_s)


@dataclass(frozen=True)
class Said:
    """How a command ended: its code, the lines of its log, and what it left for `kubectl describe pod`."""

    code: int
    lines: tuple[str, ...]
    errors: tuple[str, ...]
    err: str
    last_line: str


def run(
    argv: Sequence[str], env: Mapping[str, str], tree: HostTree, folder: Path, settle: Callable[[], object]
) -> Said:
    """Run `driver-manager argv` on `tree` with `env` as its whole environment; `folder` is for the termination log.

    In each of its pauses `settle` is called, which returns once everybody else has done what they have to do by now.
    """
    log = folder / "termination-log"
    log.write_text("")
    out, err = io.StringIO(), io.StringIO()
    environment = {"PATH": os.environ["PATH"], "HOST_ROOT": str(tree.root), "TERMINATION_LOG": str(log), **env}
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(wiring, "SystemClock", partial(SkippingClock, settle)),
        mock.patch.object(in_pod, "SERVICE_ACCOUNT", Path(env.get("TEST_SERVICE_ACCOUNT", in_pod.SERVICE_ACCOUNT))),
        _tools_called(tree),
        signals_kept(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main.run(list(argv))
    records = [json.loads(line) for line in err.getvalue().splitlines() if line.startswith("{")]
    errors = tuple(record["message"] for record in records if record["level"] == "error")
    lines = tuple(record["message"] for record in records)
    return Said(code, lines, errors, out.getvalue() + err.getvalue(), log.read_text())


@contextlib.contextmanager
def _tools_called(tree: HostTree) -> Iterator[None]:
    """Within it, tools of the host are called instead of started."""
    tools = {*TOOLS, tree.profile.probe.tool if tree.profile.probe else ""}

    def call(argv: Sequence[str], *, timeout_s: float = 0.0, env: Mapping[str, str] | None = None) -> Result:
        name = Path(argv[0]).name
        assert name in tools, f"no stand-in for {argv}"
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = fake_tools.main([name, str(tree.root), *argv[1:]])
        return Result(status, out.getvalue(), err.getvalue())

    with contextlib.ExitStack() as stack:
        for module in (host_system, modules, services):
            stack.enter_context(mock.patch.object(module, "run", call))
        yield
