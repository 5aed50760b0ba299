"""Commands that a test starts, as processes of their own or forked by `fork_server`, and what they print."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from tests.support.control_plane.api import wait_until

API = ("node", "pods", "claims", "watch_pods", "watch_node", "evict", "patch_node", "patch_node_where", "post_event")
EFFECTS = ("unload", "load", "reload", "unmount", "remove", "write_text", "stop_service", "start_service")
LOG = ("step",)
FLEET = ("patch_node", "delete_pod", "create_pod", "set_template", "patch_status", "post_event")


RUN_TIMEOUT_S = 300.0
"""A run takes seconds; on a busy machine ten times as many."""


@dataclass(frozen=True)
class Ended:
    """How a run ended; `at_s` is when its end was seen, on the monotonic clock, `took_s` since its start."""

    code: int
    out: str
    err: str
    last_line: str
    at_s: float
    took_s: float


class Running:
    def __init__(self, argv: list[str], env: Mapping[str, str], last_line: Path, out: int = subprocess.PIPE) -> None:
        self._last_line = last_line
        self._began_s = time.monotonic()
        self._err = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process is, closed at its end
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=self._err, text=True, env=dict(env)
        )
        STARTED.append(self)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def output(self) -> str:
        return os.pread(self._err.fileno(), os.fstat(self._err.fileno()).st_size, 0).decode(errors="replace")

    @property
    def lines(self) -> list[str]:
        output = self._output if self._err.closed else self.output()
        return [json.loads(line)["message"] for line in output.splitlines() if line.endswith("}")]

    def says(self, text: str, after: int = 0) -> None:
        """Wait until it has logged this, in a line after the first `after`."""
        wait_until(lambda: any(text in line for line in self.lines[after:]), f"says {text!r}")

    def end(self) -> Ended:
        try:
            out, _ = self.process.communicate(timeout=RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, _ = self.process.communicate()
            raise AssertionError(f"timed out after {RUN_TIMEOUT_S:g} s\n{out}\n{self.output()}") from None
        at_s, err = time.monotonic(), self.output()
        self._output = err
        self._err.close()
        STARTED.remove(self)
        return Ended(self.process.returncode, out or "", err, self._last_line.read_text(), at_s, at_s - self._began_s)

    def kill(self) -> Ended:
        self.process.send_signal(signal.SIGKILL)
        return self.end()

    def terminate(self) -> Ended:
        """SIGTERM, as the kubelet sends it."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()


@dataclass(frozen=True)
class Orders:
    """What is done to a forked command, which stops itself at the points in `stops`; `mutant` breaks it.

    `turn_s` shortens what it waits for another run's effect, `attempt_s` what it waits for an answer that hangs.
    `records`: it notes its effects on the host, and dies at the one with the number `kill_at`, or `after` it.
    """

    stops: tuple[str, ...] = ()
    turn_s: float | None = None
    attempt_s: float | None = None
    mutant: str = ""
    records: bool = False
    kill_at: int = -1
    after: bool = False


PLAIN = Orders()


class ForkedCommand:
    """A command under way. `pid` is its process'."""

    def __init__(self, folder: Path, last_line: Path) -> None:
        self.folder = folder
        self.pid = 0
        self._last_line = last_line
        self._changed = threading.Condition()
        self._code: int | None = None
        self._stops = 0
        self._began_s = time.monotonic()
        self._at_s = 0.0

    @property
    def log(self) -> str:
        path = self.folder / "err"
        return path.read_text() if path.exists() else ""

    def output(self) -> str:
        return self.log

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().split() if path.exists() else []

    @property
    def effects(self) -> list[tuple[float, str]]:
        path = self.folder / "effects"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at_s), str(name)) for at_s, name in map(json.loads, lines)]

    @property
    def has_ended(self) -> bool:
        return self._code is not None

    @property
    def has_stopped(self) -> bool:
        """True if it stopped itself and was not continued."""
        return bool(self._stops) and not self.has_ended

    def wait_log(self, text: str) -> None:
        """Wait until it has logged `text`. AssertionError where it ends before."""
        wait_until(lambda: text in self.log or self.has_ended, f"logged: {text}", RUN_TIMEOUT_S)
        assert text in self.log, f"ended with {self._code} before {text!r}\n{self.log}"

    def wait_stopped(self) -> bool:
        """Whether it stopped; False where it ended first."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._stops or self.has_ended, RUN_TIMEOUT_S)
            assert done, f"neither stopped nor ended\n{self.log}"
            return bool(self._stops) and not self.has_ended

    def stop(self) -> None:
        """SIGSTOP, in force on return."""
        os.kill(self.pid, signal.SIGSTOP)
        assert self.wait_stopped()

    def go_on(self) -> None:
        with self._changed:
            self._stops = 0
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> Ended:
        """SIGKILL; it may have ended without a report yet."""
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        return self.end()

    def terminate(self) -> Ended:
        """SIGTERM, as the kubelet sends it; it may have ended without a report yet."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        return self.end()

    def end(self) -> Ended:
        with self._changed:
            done = self._changed.wait_for(lambda: self.has_ended, RUN_TIMEOUT_S)
        assert done, f"timed out after {RUN_TIMEOUT_S:g} s\n{self.log}"
        assert self._code is not None
        if self in STARTED:
            STARTED.remove(self)
        out, last = (self.folder / "out").read_text(), self._last_line.read_text()
        return Ended(self._code, out, self.log, last, self._at_s, self._at_s - self._began_s)

    def take(self, words: Mapping[str, Any]) -> None:
        with self._changed:
            if "stopped" in words:
                self._stops += 1
            if "code" in words:
                self._code, self._at_s = int(words["code"]), time.monotonic()
            self._changed.notify_all()


Command = Running | ForkedCommand

STARTED: list[Command] = []
"""Every command that a test began, or another one for it, and that was not yet seen to end."""


class ForkServer:
    """The process that forks commands, for as long as the context lasts. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._began = threading.Condition(self._lock)
        self._count = 0
        self._by_folder: dict[str, ForkedCommand] = {}
        self._by_pid: dict[int, ForkedCommand] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.control_plane.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._listener = threading.Thread(target=self._listen, name="fork-server")
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._listener.join(timeout=60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self, argv: list[str], env: Mapping[str, str], last_line: Path, orders: Orders = PLAIN) -> ForkedCommand:
        """Start `driver-manager` with `argv`."""
        assert self._process.stdin is not None
        with self._lock:
            self._count += 1
            folder = self._folder / f"run-{self._count}"
            folder.mkdir()
            run = ForkedCommand(folder, last_line)
            self._by_folder[str(folder)] = run
            order = {"argv": argv, "env": dict(env), "folder": str(folder), **asdict(orders)}
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            assert self._began.wait_for(lambda: run.pid, 75.0), "the fork server does not begin"
        STARTED.append(run)
        return run

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = json.loads(line)
            with self._lock:
                if "began" in words:
                    run = self._by_folder[words["began"]]
                    run.pid = words["pid"]
                    self._by_pid[run.pid] = run
                    self._began.notify_all()
                run = self._by_pid[words["pid"]]
            run.take(words)


@contextlib.contextmanager
def running(command: str, env: Mapping[str, str], last_line: Path) -> Iterator[Running]:
    """`driver-manager command` in a process of its own while the context lasts. It may be killed meanwhile."""
    argv = [sys.executable, "-m", "driver_manager", command]
    loop = Running(argv, env, last_line, subprocess.DEVNULL)  # what it leaves behind would keep a pipe open
    try:
        yield loop
        assert loop.process.poll() in (None, -signal.SIGKILL, -signal.SIGTERM, 0), f"{command} ended by itself"
    finally:
        print(f"{command}:\n{loop.kill().err}")
