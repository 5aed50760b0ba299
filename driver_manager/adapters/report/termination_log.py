"""The kubelet's termination log: the last line of a command, for `kubectl describe pod`."""

from __future__ import annotations

import contextlib
import os

from driver_manager.domain.escaping import one_line
from driver_manager.domain.listing import sentences

TERMINATION_LOG_BYTES = 4000


def write_termination_log(path: str, what: str, remedy: str = "") -> None:
    """Write the last line for `kubectl describe pod`; only into a file that is already there (the kubelet made it).

    The kubelet keeps 4,096 bytes: a long `what` is cut so that the remedy is seen. What cannot be written is let go.
    """
    what, remedy = one_line(what), one_line(remedy)
    whole = sentences(what, remedy).encode()
    ending = whole[len(what.encode()) :][: TERMINATION_LOG_BYTES // 2]
    text = what.encode()[: TERMINATION_LOG_BYTES - len(ending)] + ending
    with contextlib.suppress(OSError):
        # Not blocking: a FIFO that nobody reads must not hold the end of a run.
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.strip())
