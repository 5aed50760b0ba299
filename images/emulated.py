"""Runs a command so that programs of arm64 run by emulation: `emulated.py COMMAND…`, as root.

The command is in a user namespace whose ids are the machine's own, with a binfmt_misc of its own (Linux 6.7), where
qemu-aarch64-static (Debian's package qemu-user-static) is the interpreter: nothing of the machine changes. In such a
namespace no device node can be made: a base image must not have any. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INTERPRETER = "qemu-aarch64-static"
MAGIC = bytes.fromhex("7f454c460201010000000000000000000200b700")
MASK = bytes.fromhex("ffffffffffffff00fffffffffffffffffeffffff")
"""An ELF file of 64 bits, little endian, executable or shared, for AArch64 (its version byte aside)."""

CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID = 0x10000000, 0x00020000, 0x20000000  # linux/sched.h
ALL_IDS = "0 0 4294967295\n"
PLACE = "/proc/sys/fs/binfmt_misc"


def registration(interpreter: str) -> bytes:
    """The registration for the kernel (Documentation/admin-guide/binfmt-misc.rst).

    By `F` the interpreter is opened at once, so that it is there in every root.
    """
    magic, mask = ("".join(f"\\x{byte:02x}" for byte in part).encode() for part in (MAGIC, MASK))
    return b":arm64:M::" + magic + b":" + mask + b":" + interpreter.encode() + b":OF"


def run(command: Sequence[str], interpreter: str) -> int:
    """The command's exit status; 128 and the signal where one ended it. Raises OSError."""
    told, ready = os.pipe()
    mapped, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        try:
            os._exit(_inside(command, interpreter, ready, mapped))
        except (OSError, subprocess.SubprocessError) as error:
            print(f"emulated: {error}", file=sys.stderr)
            os._exit(1)
    os.close(ready)
    os.close(mapped)
    if os.read(told, 1):
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(ALL_IDS)
        os.write(go, b"x")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def _inside(command: Sequence[str], interpreter: str, ready: int, mapped: int) -> int:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "a user namespace cannot be made")
    os.write(ready, b"x")
    if not os.read(mapped, 1):
        raise OSError("the ids could not be mapped")
    child = os.fork()
    if child == 0:
        # The first process of its namespaces, so that all of it ends with this one.
        for words in (["--make-rprivate", "/"], ["-t", "proc", "proc", "/proc"], ["-t", "binfmt_misc", "none", PLACE]):
            subprocess.run(["mount", *words], check=True)
        with Path(PLACE, "register").open("wb", buffering=0) as register:
            register.write(registration(interpreter))
        os.execvp(command[0], list(command))  # noqa: S606  # in place of this process
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def main() -> int:
    """The command's exit status, or 1 with what is missing."""
    interpreter = shutil.which(INTERPRETER)
    if interpreter is None:
        print(f"emulated: {INTERPRETER} is not installed (Debian package qemu-user-static)", file=sys.stderr)
        return 1
    if len(sys.argv) == 1 or os.geteuid() != 0:
        print("usage, as root: emulated.py COMMAND…", file=sys.stderr)
        return 1
    return run(sys.argv[1:], interpreter)


if __name__ == "__main__":
    sys.exit(main())
