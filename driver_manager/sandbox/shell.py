"""A shell on the sandbox's node, for as long as its user likes: the one process of the sandbox that has our terminal.

Must not import anything but the standard library and what a story leaves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from driver_manager.sandbox.runner import Stay

DEFAULT_SHELL = "/bin/sh"
NOT_FOR_PEOPLE = ("LOG_FORMAT", "TERMINATION_LOG")
"""Variables by which a container speaks to machines."""


def environment(stay: Stay) -> dict[str, str]:
    """What the shell has: everything that this process has, and what the init container of the driver pod has."""
    own = {name: value for name, value in stay.env.items() if name not in NOT_FOR_PEOPLE}
    tools = str(Path(sys.executable).parent)
    return {**os.environ, **own, "PATH": os.pathsep.join([tools, own["PATH"]])}


def run_shell(stay: Stay) -> None:
    """Run the user's shell to its end. How it ended changes nothing."""
    # An interrupt at the prompt is the shell's: this process has nothing to stop, and must not be stopped.
    before = signal.signal(signal.SIGINT, _ignored)
    try:
        shell = [os.environ.get("SHELL") or DEFAULT_SHELL]
        subprocess.Popen(shell, stdin=None, env=environment(stay)).wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _ignored(_: int, __: FrameType | None) -> None:
    """A handler, and not SIG_IGN, which the shell would inherit."""
