"""Owns noticing that a client has hung up while its watch sends nothing. Must not import the product."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator

_POLLRDHUP = 0x2000  # Linux: the peer closed its side; the select module names it for epoll only


class Hangups:
    """Calls back, once, when a client closes its connection: one thread for all of them, until `close()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll()
        self._wake = os.eventfd(0)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="proxy-hangups")
        self._thread.start()

    @contextlib.contextmanager
    def calling(self, client: socket.socket, callback: Callable[[], None]) -> Iterator[None]:
        """Call back if `client` hangs up before the context ends; never after it."""
        fd = client.fileno()
        with self._lock:
            self._callbacks[fd] = callback
            self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.pop(fd, None)
                self._epoll.unregister(fd)

    def _run(self) -> None:
        while True:
            for fd, _ in self._epoll.poll():
                if fd == self._wake:
                    return
                with self._lock:
                    callback = self._callbacks.pop(fd, None)
                    if callback:
                        callback()

    def close(self) -> None:
        """End the thread."""
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._epoll.close()
        os.close(self._wake)


def wait_for_hangup(client: socket.socket) -> None:
    """Block until the client, or this process's other threads, shut the connection."""
    poll = select.poll()
    poll.register(client, _POLLRDHUP)
    poll.poll()
