"""Runs the command line in children forked from a process that has its imports: real processes, without the start.

Run as a program. One JSON line in: `argv`, `env`, files `out` and `err`, what `callpoints.gate` takes. One JSON line
out for each child begun (`pid`), stopped (`stopped`) or ended (`code`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from kubernetes import client, config  # noqa: F401  # imported here so that no child has to

from driver_manager.adapters.kube import node as kube_cluster  # noqa: F401  # likewise
from driver_manager.cli import main
from tests.support.control_plane import call_points, mutants
from tests.support.control_plane.pod_transport import enter_pod


def serve() -> None:
    """Until standard input ends; children that are left are killed then."""
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    orders: Any = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  # for as long as the process lives
    rest = b""
    while True:
        ready, _, _ = select.select([orders, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _report(children)
        if orders in ready:
            got = orders.read(65536)
            if not got:
                break
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                children.add(_begin(json.loads(line)))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _report(children: set[int]) -> None:
    """Say what became of children."""
    while children:
        try:
            pid, word = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if not pid:
            return
        if os.WIFSTOPPED(word):
            _say({"pid": pid, "stopped": True})
        else:
            children.discard(pid)
            _say({"pid": pid, "code": os.waitstatus_to_exitcode(word)})


def _say(words: dict[str, Any]) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def _begin(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _be_command(order)
    _say({"pid": pid, "began": order["err"]})
    return pid


def _be_command(order: dict[str, Any]) -> None:
    """The child's life: never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(order["env"])
        enter_pod(order["env"])
        for descriptor, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, order["out"], os.O_WRONLY | os.O_CREAT),
            (2, order["err"], os.O_WRONLY | os.O_CREAT),
        ):
            opened = os.open(path, flags, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        call_points.gate(Path(order["record"]), order["stops"], order["turn_s"], order["attempt_s"])
        mutants.apply(order["mutant"])
        code = main.run(order["argv"])
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  # a child must not come back into the fork server
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
