"""Entry point: sets up signals and streams before it imports the first library."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import warnings

LOOPS = frozenset({"health-watch", "rebooter", "rollout controller"})
"""Commands that handle signals, and end with exit code 0 on SIGTERM."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WITHOUT_HANDLERS = "sandbox"
"""The command that handles no signal, and starts processes that would inherit a blocked one."""

STARTS_NO_TOOL = frozenset({WITHOUT_HANDLERS, "rollout", "profile", "completion"})
"""Commands that start no tools, so that no orphans come to them."""

FIRST_PID = 1
"""The first process of a container: the kernel drops its signals without a handler (pid_namespaces(7))."""

COLLECT_AFTER = 100_000
"""The threshold of Python's garbage collection in short commands: imports create 30,000 to 90,000 objects that stay."""


def entry() -> None:
    words = sys.argv[1:3]
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # warnings of libraries are for developers
    signal.pthread_sigmask(signal.SIG_BLOCK, _kept(words))
    if not _is_loop(words):
        gc.set_threshold(COLLECT_AFTER)
    _fill_streams()
    if words and words[0] not in STARTS_NO_TOOL:
        from driver_manager.adapters.process.tools import adopt  # noqa: PLC0415  # after the signals

        adopt()
    from driver_manager.cli import main  # noqa: PLC0415  # after the signals: it takes a tenth of a second

    main.entry()


def plugin_entry() -> None:
    """The console script by which kubectl finds `kubectl driver-rollout`: the commands about rollouts."""
    sys.argv.insert(1, "rollout")
    entry()


def _is_loop(words: list[str]) -> bool:
    return not LOOPS.isdisjoint((*words[:1], " ".join(words)))


def _kept(words: list[str]) -> tuple[signal.Signals, ...]:
    """The signals to block until the command with these first words handles them."""
    command = words[0] if words else ""
    if _is_loop(words):
        return SIGNALS
    # Without this, a run whose pod is deleted as it starts would take the node, until it is killed.
    return (signal.SIGTERM,) if os.getpid() == FIRST_PID and command != WITHOUT_HANDLERS else ()


def _fill_streams() -> None:
    """Open closed standard streams on /dev/null: otherwise output would go into the next file that is opened.

    Standard output escapes characters that its encoding lacks, as standard error does.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        os.set_inheritable(descriptor, True)  # a loop becomes another program
        descriptor = os.dup(descriptor)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  # stays open
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
