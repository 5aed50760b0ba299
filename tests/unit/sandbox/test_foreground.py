"""A command in the foreground of a story: lines if nothing is drawn, a terminal of its own on a screen."""

from __future__ import annotations

import io
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import Generator
from fcntl import ioctl
from pathlib import Path

import pytest

from driver_manager.sandbox.cluster import Process

ASK = "import os, sys; print(sys.stdout.isatty(), *os.get_terminal_size(1)); print(os.environ.get('LOG_FORMAT'))"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Generator[io.StringIO, None, None]:
    """What a terminal was sent; its size is that of a real one."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 97, 0, 0))
    monkeypatch.setattr(made := io.StringIO(), "fileno", lambda: slave, raising=False)
    yield made
    os.close(slave)
    os.close(master)


def run(code: str, folder: Path, terminal: io.StringIO | None) -> tuple[int, list[str]]:
    lines: list[str] = []
    env = {"LOG_FORMAT": "text", "PYTHONUNBUFFERED": "1"}
    return Process([sys.executable, "-c", code], env, folder, lines.append, terminal=terminal).wait(60.0), lines


def test_on_a_terminal_it_finds_one_of_the_same_size_and_may_draw(terminal: io.StringIO, tmp_path: Path) -> None:
    assert (run(ASK, tmp_path, terminal), terminal.getvalue()) == ((0, []), "True 97 33\nNone\n")
    drawn = "▸ one\\r\\x1b[2K✓ one\\ntwo\\r\\n"
    run(f"import sys; sys.stdout.reconfigure(encoding='utf-8'); sys.stdout.write('{drawn}')", tmp_path, terminal)
    assert terminal.getvalue().partition("None\n")[2] == "▸ one\r\x1b[2K✓ one\ntwo\r\n", "as it was drawn"


def test_without_a_terminal_nothing_is_drawn_and_each_line_is_passed_on_with_the_last_one(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.stdout.isatty(), os.environ['LOG_FORMAT'])"
    code += "; os.write(1, b'one\\ntw'); os.write(2, b'o\\nthree')"
    assert run(code, tmp_path, None) == (0, ["False text", "one", "two", "three"])


@pytest.mark.parametrize("is_shown", [True, False], ids=["on a terminal", "in lines"])
def test_a_command_that_is_killed_ends_it(terminal: io.StringIO, tmp_path: Path, is_shown: bool) -> None:
    code = "import os, signal; print('begun', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    status, lines = run(code, tmp_path, terminal if is_shown else None)
    assert (status, terminal.getvalue() or f"{lines[0]}\n") == (-signal.SIGKILL, "begun\n")


def test_a_command_that_is_not_there_leaves_nothing_open(terminal: io.StringIO, tmp_path: Path) -> None:
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for shown in (terminal, None):
        with pytest.raises(FileNotFoundError):
            Process(["/absent"], {}, tmp_path, print, terminal=shown)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
