"""Runs the command line in a child forked from a process that has its imports already: emulation makes those slow.

The child is a process of its own with its own environment, descriptors and signals; only start-up is saved.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubernetes import client, config  # noqa: F401  # imported here so that no child has to

from driver_manager.adapters.kube import node as kube_cluster  # noqa: F401  # likewise
from driver_manager.cli import health_watch, main, reconcile, status  # noqa: F401  # likewise

RUN_TIMEOUT_S = 280.0  # below the guest's limit on silence: the test says what it waited for


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class Forked:
    """A command under way in a child, which calls `before` first."""

    def __init__(
        self,
        arguments: tuple[str, ...],
        env: Mapping[str, str],
        folder: Path,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        number = len(list(folder.glob("run-*")))
        self._out, self._err = folder / f"run-{number}.out", folder / f"run-{number}.err"
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_command(arguments, env, self._out, self._err, before)

    def said(self) -> str:
        """What it has written to standard error so far."""
        return self._err.read_text() if self._err.exists() else ""

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> Ended:
        """Wait for its end; one that takes over RUN_TIMEOUT_S is killed, and the test fails."""
        deadline_s = time.monotonic() + RUN_TIMEOUT_S
        while True:
            pid, status_word = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline_s:
                self.kill()
                os.waitpid(self.pid, 0)
                raise AssertionError(f"timed out after {RUN_TIMEOUT_S:g} s: {self._err.read_text()}")
            time.sleep(0.01)
        ended = Ended(os.waitstatus_to_exitcode(status_word), self._out.read_text(), self._err.read_text())
        print(ended.err, file=sys.stderr)
        return ended


def _be_command(
    arguments: tuple[str, ...], env: Mapping[str, str], out: Path, err: Path, before: Callable[[], None]
) -> None:
    """The child's life: never returns."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(env)
        for descriptor, path in ((1, out), (2, err)):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.dup2(opened, descriptor)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        before()
        code = main.run(list(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  # a child must not come back into pytest
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
