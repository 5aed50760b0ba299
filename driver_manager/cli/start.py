"""Where the command begins: what has to hold before the first library is imported."""

from __future__ import annotations

import io
import os
import signal
import sys

LOOPS = frozenset({"health-watch", "rebooter"})
"""Commands that take signals by themselves, and end well when told to."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def entry() -> None:
    """The console script: run, and end with the exit code of the wire contract."""
    if sys.argv[1:2] and sys.argv[1] in LOOPS:
        # From here until the loop takes them they wait; the first process of a container would not even keep them.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    _fill_streams()
    from driver_manager.cli import main  # noqa: PLC0415  # a tenth of a second, in which a signal may come

    main.entry()


def _fill_streams() -> None:
    """Leave none of the three standard descriptors closed: the next file that is opened would be printed into.

    What no encoding has is spelled out on standard output, as Python does on standard error.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        os.set_inheritable(descriptor, True)  # a loop becomes another program
        descriptor = os.dup(descriptor)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  # as long as we live
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
