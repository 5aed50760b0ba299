"""A test node's process: its namespaces from start to end, the commands run in them, and the logs that stay.

Everything of the node ends with this process, by whatever it is ended (`node_keeper`); only logs are kept. What a
keeper that was killed itself has left is removed before the next node starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.support.node import node_keeper
from tests.support.node.node_init import READY, WITH_STAND_INS
from tests.support.node.place import HERE, Place, ended, run, wait_until
from tests.support.tiers import TierError

Address = tuple[str, int]

ANY_PORT = ("127.0.0.1", 0)
CLONE_NEWNET = 0x40000000  # linux/sched.h
CONNECT_S = 10.0


class Doorway:
    """Forwards connections from `at` to `to`, while the context lasts.

    Each is in the network of a process, `at_pid` and `to_pid`; None for that of this one.
    """

    def __init__(
        self, to: Address, to_pid: int | None = None, at: Address = ANY_PORT, at_pid: int | None = None
    ) -> None:
        self._to, self._to_pid = to, to_pid
        self._at, self._at_pid = at, at_pid

    def __enter__(self) -> Self:
        with ThreadPoolExecutor(1) as threads:  # one that may end in another network
            self._listener = threads.submit(self._listen).result()
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="doorway", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _listen(self) -> socket.socket:
        _enter_network(self._at_pid)
        return socket.create_server(self._at, backlog=64)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), name="doorway-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):  # no server, or no node any more: the client is hung up on
            _enter_network(self._to_pid)
            with socket.create_connection(self._to, CONNECT_S) as server:
                server.settimeout(None)
                back = threading.Thread(target=_pump, args=(server, client), name="doorway-answers", daemon=True)
                back.start()
                _pump(client, server)
                back.join()


def _enter_network(pid: int | None) -> None:
    """Make the calling thread one of that network. Raises OSError."""
    if pid is None:
        return
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes, until either side ends; then both end."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


GROUP_PREFIX = "driver-manager-node-"
START_S = 60.0
COMMAND_S = 120.0
LOGS_KEPT = 5


class NodeTierError(TierError):
    """A part of the node did not come up or a command in it failed; the message says which and names the log."""


class Namespaces:
    """The node's namespaces, for as long as the context lasts."""

    def __init__(self, place: Place = HERE) -> None:
        self.place = place
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        folder = self.place.folder
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self.logs = folder / "logs" / name
        self.logs.mkdir(parents=True)
        self.group = f"{GROUP_PREFIX}{name}"
        self._lock = _locked(folder / "states" / f"{name}.lock")
        _remove_leftovers(folder)
        words = [sys.executable, "-I", "-S", str(Path(node_keeper.__file__)), str(folder / "states" / name), self.group]
        words += [WITH_STAND_INS] if self.place.has_stand_ins else []
        with (self.logs / "keeper.log").open("wb") as log:
            self._keeper = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # an interrupt at the terminal ends pytest first, which then ends the node
                pass_fds=[self._lock.fileno()],
            )
        assert self._keeper.stdout
        self.pid = int(self._keeper.stdout.readline() or 0)
        if not self.pid or self._keeper.stdout.readline().strip() != READY:
            self.__exit__(None, None, None)
            raise NodeTierError(f"the node's namespaces were not made: see {self.logs / 'keeper.log'}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._keeper.stdin
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.close()
        ended(self._keeper, START_S)
        assert self._keeper.stdout
        self._keeper.stdout.close()
        for process in self.started:
            ended(process, START_S)
        self._lock.close()
        Path(self._lock.name).unlink(missing_ok=True)
        if self._keeper.returncode:
            raise NodeTierError(f"something of the node may have stayed: see {self.logs / 'keeper.log'}")

    @property
    def root(self) -> Path:
        """The node's files, as this process reaches them."""
        return Path(f"/proc/{self.pid}/root")

    def words(self, *argv: str) -> list[str]:
        """`argv` as a command in the node."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--uts", "--ipc", "--wd=/", "--", *argv]

    def run(self, *argv: str, timeout_s: float = COMMAND_S, given: str = "") -> subprocess.CompletedProcess[str]:
        """The command with what it wrote; any exit status. Raises NodeTierError where it does not end in time."""
        try:
            return run(self.words(*argv), given, timeout_s)
        except subprocess.TimeoutExpired as error:
            raise NodeTierError(f"{' '.join(argv[:6])}: no end within {timeout_s:g} s of an idle machine") from error

    def checked(self, *argv: str, timeout_s: float = COMMAND_S, given: str = "") -> str:
        """The command's output. Raises NodeTierError where it fails."""
        done = self.run(*argv, timeout_s=timeout_s, given=given)
        if done.returncode:
            raise NodeTierError(f"{' '.join(argv[:6])} … ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


class Daemon:
    """One long-running program of the node, which tests may kill and start again. All its runs share a log."""

    def __init__(
        self, namespaces: Namespaces, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = namespaces.logs / f"{name}.log"
        self._namespaces = namespaces
        self._argv = tuple(argv)
        self._env = env or {}

    def start(self) -> None:
        """Start it; it need not be of use yet."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._namespaces.words(*self._argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._env},
                start_new_session=True,
            )
        self._namespaces.started.append(self._process)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal that ends it, and wait for its end."""
        pid = wait_until(lambda: node_keeper.child_of(self._process.pid), f"a process of {self.name}")
        os.kill(pid, number)
        ended(self._process, START_S)

    def end(self) -> None:
        """Kill it unless it has ended."""
        if self._process.poll() is None:
            self.kill()

    def is_running(self, program: str) -> bool:
        self.check_alive()
        pid = node_keeper.child_of(self._process.pid)
        return bool(pid) and Path(f"/proc/{pid}/comm").read_text().strip() == program

    def check_alive(self) -> None:
        """Raises NodeTierError if it has ended."""
        status = self._process.poll()
        if status is not None:
            raise NodeTierError(f"{self.name} ended with {status}, {self.log} ends:\n{self.tail()}")

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _locked(path: Path) -> IO[str]:
    """A lock file, held for as long as it is open here or in the keeper."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return lock


def _remove_leftovers(folder: Path) -> None:
    """What nodes of this folder left whose keeper was killed, and all but the youngest logs of those that ended."""
    alive = set()
    for lock_file in (folder / "states").glob("*.lock"):
        with lock_file.open("r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                alive.add(lock_file.stem)
                continue
            node_keeper.remove_groups(f"{GROUP_PREFIX}{lock_file.stem}")
            shutil.rmtree(lock_file.with_suffix(""), ignore_errors=True)
            lock_file.unlink()
    for old in sorted(one for one in (folder / "logs").iterdir() if one.name not in alive)[:-LOGS_KEPT]:
        shutil.rmtree(old)
