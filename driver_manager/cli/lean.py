"""Run a loop in a lean interpreter: the same process, without the command line's libraries.

The command checks its options, then replaces itself by an interpreter without site-packages that imports only what the
loop needs. The settings go in a memory file, as others could read the environment and the command line.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import asdict

from driver_manager.adapters.process.tools import adopts_orphans, has_adopted_orphans
from driver_manager.adapters.report.log import LogForm
from driver_manager.domain.errors import ManagerError


class NodeWay(Struct, frozen=True):
    """How a process in a pod reaches its Node: a loop passes it to the processes that send the requests.

    `account` is the folder of the pod's service account; the API server listens on `host` and `port`.
    """

    node: str
    account: str
    host: str
    port: str


ENTRY = Path(__file__).with_name("lean_entry.py")
HEAP = {"MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "16384"}
"""Free bytes at the end of the heap that glibc keeps. By default it keeps twice the largest mapped block that was ever
freed, such as a compiled module (mallopt(3)): 0.4 MiB, which made the peak of a loop a matter of chance."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def become(target: str, document: Mapping[str, Any], log: LogForm) -> NoReturn:
    """Replace this process by `function(document, log)`, which returns the exit status. `target`: module:function.

    `document` is JSON. The process id, the environment and the working directory stay. SIGTERM, SIGINT and SIGHUP are
    blocked from here until the loop handles them (SystemClock.install), so that none is lost and none kills the process
    in between. Raises OSError if the interpreter cannot be started.
    """
    # Inheritable: the next program of this process reads it.
    descriptor = os.memfd_create("driver-manager", 0)
    os.write(descriptor, handed(document, log, adopts=adopts_orphans()))
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.environ.update(HEAP)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, argv(target, descriptor))  # noqa: S606  # no shell is wanted


def handed(document: Mapping[str, Any], log: LogForm, *, adopts: bool = False) -> bytes:
    """The input of a lean interpreter of this version. `adopts`: it replaces this process, to which orphans come."""
    path = [entry for entry in sys.path if entry]
    return json.dumps({"path": path, "log": asdict(log), "adopts": adopts, "document": document}).encode()


def argv(target: str, descriptor: int) -> list[str]:
    """The command line that runs `target` (module:function); `handed` is in the open file `descriptor`."""
    return [sys.executable, "-I", "-S", str(ENTRY), str(ENTRY.parents[2]), target, str(descriptor)]


def main(target: str, handed: Mapping[str, Any]) -> int:
    """In the lean interpreter: run `target` with the document in `handed`; its exit status. Logs a ManagerError."""
    if handed["adopts"]:
        has_adopted_orphans()
    log = LogForm(**handed["log"])
    try:
        module, _, function = target.partition(":")
        return int(getattr(importlib.import_module(module), function)(handed["document"], log))
    except ManagerError as error:
        return log.fail(time.time, error.exit_code, error.what, error.remedy)
