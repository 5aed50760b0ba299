"""renameat2(2) with RENAME_EXCHANGE: two names change places in one operation, so that neither is ever missing."""

from __future__ import annotations

import os

RENAME_EXCHANGE = 2
"""include/uapi/linux/fs.h"""


def exchange(folder: int, name: str, other_folder: int, other: str) -> None:
    """Let the two names, each in an open folder, change places. Raises OSError: EINVAL where there is no such thing."""
    import ctypes  # noqa: PLC0415  # half a MiB that few runs need

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(folder, os.fsencode(name), other_folder, os.fsencode(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name, None, other)
