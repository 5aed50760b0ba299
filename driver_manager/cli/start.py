"""Entry point: signals and streams are set up before the first library is imported."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys

LOOPS = frozenset({"health-watch", "rebooter", "rollout controller"})
"""Commands that take signals by themselves, and end well when told to."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NEVER_TAKES = "sandbox"
"""The command that takes no signal, and starts processes that would inherit a blocked one."""

STARTS_NO_TOOL = frozenset({NEVER_TAKES, "rollout", "profile", "completion"})
"""Commands that need not see what a tool leaves behind."""

FIRST_PID = 1
"""The process of a container for which the kernel drops signals that nobody takes (pid_namespaces(7))."""

COLLECT_AFTER = 100_000
"""New objects after which a command that ends looks for garbage: imports make 30,000 to 90,000, and hardly any."""


def entry() -> None:
    """The console script: run, and end with the exit code of the wire contract."""
    words = sys.argv[1:3]
    signal.pthread_sigmask(signal.SIG_BLOCK, _kept(words))
    if not _is_loop(words):
        gc.set_threshold(COLLECT_AFTER)
    _fill_streams()
    if words and words[0] not in STARTS_NO_TOOL:
        from driver_manager.adapters.process.tools import adopt  # noqa: PLC0415  # signals come first

        adopt()
    from driver_manager.cli import main  # noqa: PLC0415  # a tenth of a second, in which a signal may come

    main.entry()


def plugin_entry() -> None:
    """The console script by which kubectl finds `kubectl driver-rollout`: the commands about rollouts."""
    sys.argv.insert(1, "rollout")
    entry()


def _is_loop(words: list[str]) -> bool:
    return not LOOPS.isdisjoint((*words[:1], " ".join(words)))


def _kept(words: list[str]) -> tuple[signal.Signals, ...]:
    """Signals that wait from now on until the command takes them, whose first words these are."""
    command = words[0] if words else ""
    if _is_loop(words):
        return SIGNALS
    # Otherwise a run whose pod is deleted as it starts would go on to take the node, until it is killed.
    return (signal.SIGTERM,) if os.getpid() == FIRST_PID and command != NEVER_TAKES else ()


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
