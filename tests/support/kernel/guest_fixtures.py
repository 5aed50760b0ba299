"""What guest tests have at hand: raw modprobe and rmmod, processes that hold the device, the driver roots.

A pytest plugin of the guest's own run. Everything that touches a kernel asks first whether it is the guest's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.kernel.inside import require_guest

CONSOLE = Path("/dev/console")


def say(what: str) -> None:
    """One line with the guest's seconds, past pytest, which keeps what a test prints to itself."""
    with CONSOLE.open("w") as console:
        console.write(f"{time.monotonic():.0f} s: {what}\n")


DEVICE = Path("/dev/rbln0")
SYS_MODULE = Path("/sys/module")
STAND_INS = ("rebellions", "rebellions_core")  # in the order in which they can be unloaded
ALL_STAND_INS = (*STAND_INS, "habanalabs_en", "habanalabs_ib", "habanalabs_cn", "habanalabs", "furiosa_rngd")
COMMAND_TIMEOUT_S = 150.0
SYS_DELETE_MODULE = 176  # x86-64 (arch/x86/entry/syscalls/syscall_64.tbl); glibc has no wrapper


@dataclass(frozen=True)
class CommandResult:
    """How a command ended: its exit status and what it wrote to standard error."""

    status: int
    stderr: str


@dataclass(frozen=True)
class DriverRoots:
    """The driver trees of driver_roots.VARIANTS, by name: `roots["v1"]`."""

    folder: Path

    def __getitem__(self, variant: str) -> Path:
        root = self.folder / variant
        if not root.is_dir():
            raise KeyError(variant)
        return root

    def module_file(self, variant: str, module: str) -> Path:
        return self[variant] / f"lib/modules/{os.uname().release}/updates/{module}.ko"


def boot_id() -> str:
    require_guest()
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def run(*argv: str | Path) -> CommandResult:
    """Runs a kmod tool in the guest. Raises RuntimeError on any other machine."""
    require_guest()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    return CommandResult(done.returncode, done.stderr)


def modprobe(root: Path, module: str, *options: str) -> CommandResult:
    return run("modprobe", "-d", root, *options, module)


def rmmod(module: str) -> CommandResult:
    return run("rmmod", module)


def delete_module(module: str) -> int:
    """The errno of delete_module(2) without waiting, 0 where it removed the module: what kmod's own checks hide."""
    require_guest()
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(SYS_DELETE_MODULE, module.encode(), os.O_NONBLOCK)
    return ctypes.get_errno() if result == -1 else 0


def is_loaded(module: str) -> bool:
    return (SYS_MODULE / module / "refcnt").exists()


def module_fact(module: str, name: str) -> str:
    """One file of /sys/module/<module>, as `version` or `refcnt`."""
    return (SYS_MODULE / module / name).read_text().strip()


def holders(module: str) -> list[str]:
    return sorted(path.name for path in (SYS_MODULE / module / "holders").iterdir())


def open_files(pid: int) -> list[Path]:
    """What the descriptors of a process lead to."""
    return [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()]


@contextlib.contextmanager
def holding_open() -> Iterator[int]:
    """The id of a process that has the device open; it is gone, and waited for, at the end."""
    with DEVICE.open("rb") as opened:
        process = subprocess.Popen(["sleep", "3600"], stdin=opened)
    with ended(process):
        yield process.pid


@contextlib.contextmanager
def holding_mapped() -> Iterator[int]:
    """The id of a process that has the device mapped and no longer open."""
    program = "import mmap, os, sys; f = os.open(sys.argv[1], os.O_RDWR); m = mmap.mmap(f, mmap.PAGESIZE); os.close(f)"
    # Without its own copies of the file: Python's mmap keeps a duplicate of the descriptor.
    program += "; os.closerange(3, 64); print('mapped', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-I", "-S", "-c", program, str(DEVICE)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with ended(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "mapped\n"
        yield process.pid


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.communicate(timeout=COMMAND_TIMEOUT_S)


@pytest.fixture
def roots() -> DriverRoots:
    return DriverRoots(Path(os.environ["GUEST_DRIVER_ROOTS"]))


@pytest.fixture
def guest_kernel() -> Iterator[None]:
    """The guest's kernel without a stand-in module, before and after. Every guest test must use it.

    On a real host a guest test does not start: there the fixture is absent, or lets only replayed cases pass.
    """
    require_guest()
    assert [module for module in ALL_STAND_INS if is_loaded(module)] == []
    yield
    left = [rmmod(module) for module in ALL_STAND_INS if is_loaded(module)]
    assert [done.stderr for done in left if done.status != 0] == []
