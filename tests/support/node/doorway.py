"""The way into a node's network, and out of it: an address in one network that stands for one in another.

A thread enters a network namespace before it listens or connects; a socket belongs to the namespace that it was made
in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

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
