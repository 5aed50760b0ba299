"""One output of a command, read as it comes and kept up to a limit: what it prints beyond that is read and discarded.

Owns no process: who waits for the command says when to read.
"""

from __future__ import annotations

import fcntl
import os

CHUNK_BYTES = 16 * 1024


class Output:
    """What comes from `reader`, the reading end of a pipe, up to `limit_bytes`. The descriptor is the caller's."""

    def __init__(self, reader: int, limit_bytes: int) -> None:
        os.set_blocking(reader, False)
        self.reader = reader
        self.is_cut = False
        self.is_over = False
        self._limit_bytes = limit_bytes
        self._kept = bytearray()

    def read(self) -> int:
        """Take what is there, at most one chunk; how many bytes it was. At its end it is over."""
        try:
            chunk = os.read(self.reader, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        self.is_over = not chunk
        room = self._limit_bytes - len(self._kept)
        self._kept += chunk[:room]
        self.is_cut = self.is_cut or len(chunk) > room
        return len(chunk)

    def drain(self) -> None:
        """Take what a command left in the pipe that has ended: a pipe full at most, even if something still writes."""
        left_bytes = fcntl.fcntl(self.reader, fcntl.F_GETPIPE_SZ)
        while left_bytes > 0 and (taken := self.read()):
            left_bytes -= taken

    def text(self) -> str:
        """What was printed, as far as it is kept."""
        return self._kept.decode(errors="replace")
