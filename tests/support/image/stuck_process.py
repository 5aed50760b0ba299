"""A real process that does not answer in /proc: it sleeps in a mmap(2), holding the lock of its memory.

What reads its /proc/pid/cmdline or maps waits for that lock, as for a process that is stuck in a driver: the mapping
that it replaces is of a file whose server (FUSE, another process) never confirms a write. All ends with the server.
As a program: both. Needs root and /dev/fuse. Sources: fuse(4), linux/fuse.h (protocol 7.31), mount(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NAME = b"vendor-tool-wrk"
"""As long as a name gets in stat: who wants the rest of it reads the command line."""

PAGE = 4096
CLONE_NEWNS, MS_REC_PRIVATE = 0x20000, 0x44000
PROT_READ_WRITE, MAP_SHARED, MAP_FIXED_PRIVATE_ANONYMOUS = 3, 0x01, 0x32
PR_SET_NAME = 15
HEADER = struct.Struct("<IIQQIIIHH")
ANSWER = struct.Struct("<IiQ")
FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, INIT = 2, 3, 4, 14, 15, 16, 26
ENOSYS = 38
ATTRIBUTES = struct.pack("<QII 6Q 10I", 3600, 0, 0, 1, PAGE, 8, 0, 0, 0, 0, 0, 0, 0o100644, 1, 0, 0, 0, PAGE, 0)
ANSWERS = {
    INIT: struct.pack("<IIIIHHIIHHI7I", 7, 31, PAGE, 0, 8, 8, PAGE, 1, 1, 0, 0, *[0] * 7),
    GETATTR: ATTRIBUTES,
    SETATTR: ATTRIBUTES,
    READ: bytes(PAGE),
    OPEN: struct.pack("<QII", 1, 0, 0),
}


def serve(device: int) -> None:
    """Answer what is asked of the one file, except for a write; say so when that was asked."""
    while True:
        request = os.read(device, 1024 * 1024)
        _, code, number, *_ = HEADER.unpack_from(request)
        if code == WRITE:
            os.write(1, b"stuck\n")
        elif code != FORGET:
            body = ANSWERS.get(code, b"")
            os.write(device, ANSWER.pack(ANSWER.size + len(body), 0 if code in ANSWERS else -ENOSYS, number) + body)


def get_stuck(libc: ctypes.CDLL, device: str, place: str) -> None:
    """Open `device`, then wait for ever with the memory's lock held."""
    os.open(device, os.O_RDONLY)
    libc.prctl(PR_SET_NAME, NAME, 0, 0, 0)
    file = os.open(place, os.O_RDWR)
    os.fstat(file)  # its size is not known before
    start = libc.mmap(None, PAGE, PROT_READ_WRITE, MAP_SHARED, file, 0)
    ctypes.memset(start, 1, 1)
    libc.mmap(start, PAGE, PROT_READ_WRITE, MAP_FIXED_PRIVATE_ANONYMOUS, -1, 0)


def main(device: str, place: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.unshare(CLONE_NEWNS)
    libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None)
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=100644,user_id=0,group_id=0".encode()
    if libc.mount(b"test", place.encode(), b"fuse", 0, options):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    pid = os.fork()
    if pid == 0:
        os.close(fuse)
        get_stuck(libc, device, place)
        os._exit(0)
    os.write(1, f"{pid}\n".encode())
    serve(fuse)


@contextlib.contextmanager
def stuck(device: Path, place: Path) -> Iterator[int]:
    """Such a process, which has `device` open; yields its pid and ends it. `place` is where its file is made."""
    place.write_text("")
    argv = [sys.executable, "-I", "-S", __file__, str(device), str(place)]
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert server.stdout.readline() == "stuck\n"
        yield pid
    finally:
        server.kill()
        server.communicate(timeout=20)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
