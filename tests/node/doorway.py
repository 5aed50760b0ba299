"""Owns the way from this process into a node's network: a port of the machine's loopback for one address inside.

A thread enters the network namespace before it connects; a socket belongs to the namespace that it was made in. Must
not import the product.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from types import TracebackType
from typing import Self

CLONE_NEWNET = 0x40000000  # linux/sched.h
CONNECT_S = 10.0


class Doorway:
    """Forwards connections to `address` in the network of the process `pid`, while the context lasts."""

    def __init__(self, pid: int, address: tuple[str, int]) -> None:
        self._pid = pid
        self._address = address

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="doorway", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), name="doorway-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):  # no server, or no node any more: the client is hung up on
            _enter_network(self._pid)
            with socket.create_connection(self._address, CONNECT_S) as server:
                server.settimeout(None)
                back = threading.Thread(target=_pump, args=(server, client), name="doorway-answers", daemon=True)
                back.start()
                _pump(client, server)
                back.join()


def _enter_network(pid: int) -> None:
    """Make the calling thread one of that network. Raises OSError."""
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
