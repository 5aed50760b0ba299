"""Programs of arm64 run by emulation, in namespaces of their own: so the image for arm64 is built and tried."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from images.emulated import INTERPRETER, MAGIC
from tests.support.image.builder import CHECKOUT

EMULATED = CHECKOUT / "images/emulated.py"


def program(code: int) -> bytes:
    """A program of arm64 that exits with `code`: `mov x0, #code; mov x8, #93; svc #0` in an ELF file."""
    text = struct.pack("<III", 0xD2800000 | code << 5, 0xD2800BA8, 0xD4000001)
    start, headers = 0x400000, 64 + 56
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, start + headers, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    size = headers + len(text)
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, start, start, size, size, 0x1000) + text


@pytest.fixture
def foreign(able: None, tmp_path: Path) -> Path:
    """Such a program, which this machine cannot run by itself."""
    found = tmp_path / "foreign"
    found.write_bytes(program(42))
    found.chmod(0o755)
    assert found.read_bytes()[: len(MAGIC)] == MAGIC
    if os.uname().machine != "aarch64":
        with pytest.raises(OSError, match="Exec format error"):
            subprocess.run([found], check=False)
    return found


def emulated(*command: str | Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"PATH": path} if path is not None else {})}
    words = [sys.executable, EMULATED, *command]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_a_foreign_program_runs_also_as_a_child_and_in_another_root(foreign: Path) -> None:
    assert emulated(foreign).returncode == 42
    assert emulated("sh", "-c", f"{foreign}; test $? = 42 && exit 7").returncode == 7
    assert emulated("chroot", str(foreign.parent), "/foreign").returncode == 42


def test_nothing_of_the_machine_is_changed_and_ids_are_its_own(foreign: Path) -> None:
    before = Path("/proc/self/mounts").read_text()
    owner = emulated("sh", "-c", f"{foreign}; chown 1234:5678 {foreign} && id -u")
    assert (owner.returncode, owner.stdout) == (0, "0\n")
    assert (foreign.stat().st_uid, foreign.stat().st_gid) == (1234, 5678)
    assert Path("/proc/self/mounts").read_text() == before
    if os.uname().machine != "aarch64":
        with pytest.raises(OSError, match="Exec format error"):
            subprocess.run([foreign], check=False)


def test_what_is_missing_is_named(foreign: Path) -> None:
    done = emulated(foreign, path="/nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert INTERPRETER in done.stderr
    assert "qemu-user-static" in done.stderr
