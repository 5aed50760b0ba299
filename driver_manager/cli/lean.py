"""A loop that runs for ever, in a lean interpreter of its own: the same process, without the command line's libraries.

Owns the hand-over. The command line checks the options, then replaces itself by an interpreter without site-packages
that imports what the loop needs and nothing else. What was decided goes with it as one JSON document in a memory file:
neither in the environment nor on the command line, where other processes could read it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from driver_manager.adapters.process.tools import adopts_orphans, has_adopted_orphans
from driver_manager.adapters.report.log import LogForm
from driver_manager.domain.errors import ManagerError

ENTRY = Path(__file__).with_name("lean_entry.py")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MAX_DOCUMENT_BYTES = 1024 * 1024


def become(target: str, document: Mapping[str, Any], log: LogForm) -> NoReturn:
    """Replace this process by `function(document, log)`; what it returns is the exit status. `target`: module:function.

    `document` must survive JSON. The process id, the environment and the working directory stay. SIGTERM, SIGINT and
    SIGHUP are blocked from here until the loop takes them (SystemClock.install): none is lost, none kills in between.
    Raises OSError if the interpreter cannot be started.
    """
    # Inheritable on purpose: the next program of this process reads it.
    descriptor = os.memfd_create("driver-manager", 0)
    os.write(descriptor, handed(document, log, adopts=adopts_orphans()))
    os.lseek(descriptor, 0, os.SEEK_SET)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, _argv(target, descriptor))  # noqa: S606  # without a shell is what is wanted


def handed(document: Mapping[str, Any], log: LogForm, *, adopts: bool = False) -> bytes:
    """What a lean interpreter of this version is handed over; `adopts`: it is this process, and orphans come to it."""
    path = [entry for entry in sys.path if entry]
    return json.dumps({"path": path, "log": asdict(log), "adopts": adopts, "document": document}).encode()


def child_argv(target: str) -> list[str]:
    """What starts `target` (module:function) in a process of its own, to which `handed` is given as standard input."""
    return _argv(target, 0)


def _argv(target: str, descriptor: int) -> list[str]:
    return [sys.executable, "-I", "-S", str(ENTRY), str(ENTRY.parents[2]), target, str(descriptor)]


def main(target: str, descriptor: str) -> int:
    """The lean side: run `target` with the document in `descriptor`; its exit status. A ManagerError is two lines."""
    with os.fdopen(int(descriptor), "rb") as file:
        handed = json.loads(file.read(MAX_DOCUMENT_BYTES))
    # Behind the standard library, for what a loop imports only in need.
    sys.path += [entry for entry in handed["path"] if entry not in sys.path]
    if handed["adopts"]:
        has_adopted_orphans()
    log = LogForm(**handed["log"])
    try:
        module, _, function = target.partition(":")
        return int(getattr(importlib.import_module(module), function)(handed["document"], log))
    except ManagerError as error:
        return log.fail(time.time, error.exit_code, error.what, error.remedy)
