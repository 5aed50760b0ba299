"""HTTP requests with a total time limit and a size limit for the answer."""

from __future__ import annotations

import http.client
import io
import re
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from driver_manager.adapters.process.forked import within

# Time and size limits of HTTP answers.
#
# A socket's timeout limits the whole of a send or TLS handshake, but only each single wait for an answer: a peer that
# sends a byte before each timeout blocks the reader without end. Here the timeout of the socket at the begin of an
# answer limits the whole answer: status line, headers, body and trailers. Connections of urllib3 are subclasses of
# those of `http.client`, so `Bounded` serves both.

CHUNK_BYTES = 65536

_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?\r?\n", re.DOTALL)
"""The line before a chunk: its size and extensions (RFC 9112, 7.1). Some servers pad the size with spaces."""

_LENGTH = re.compile(r"[0-9]{1,19}")
"""A Content-Length (RFC 9110, 8.6)."""


class TooLarge(Exception):
    """A body has more bytes than its reader accepts."""


class Limit:
    """The time limits of one answer: in total, and for each wait."""

    def __init__(self, total_s: float) -> None:
        self.allow(total_s, total_s)

    def allow(self, silence_s: float, total_s: float) -> None:
        """Allow `total_s` more seconds from now, and `silence_s` seconds for each wait."""
        self._silence_s = silence_s
        self._total_s = total_s
        self._end_s = time.monotonic() + total_s

    def wait_s(self) -> float:
        """Maximum duration of the next wait, in seconds. Raises TimeoutError at the end of the total."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"not complete after {self._total_s:.3g} s")
        return min(left_s, self._silence_s)


class _BoundedReader(io.RawIOBase):
    """The bytes of one socket, within a limit."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, limit: Limit) -> None:
        self._raw = raw
        self._sock = sock
        self._limit = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._limit.wait_s())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class BoundedAnswer(http.client.HTTPResponse):
    """An answer whose total limit is the current timeout of its socket. The reader may change `limit` meanwhile."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        timeout_s = sock.gettimeout()
        if timeout_s is None:
            raise ValueError("a socket without a timeout gives no limit")
        self.limit = Limit(timeout_s)
        reader = _BoundedReader(self.fp.detach(), sock, self.limit)
        self.fp = io.BufferedReader(reader)

    def begin(self) -> None:
        """See http.client, which ignores an invalid Content-Length. Raises HTTPException for one."""
        super().begin()
        lengths = {length.strip() for length in self.headers.get_all("Content-Length", [])}
        if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
            raise http.client.HTTPException("the answer's Content-Length is not one number")

    def _read_next_chunk_size(self) -> int:
        """The size of the next chunk. Raises ValueError, which http.client translates to IncompleteRead.

        Replaces a method of http.client, which accepts every text that `int` accepts: a chunk of negative size would be
        read without limit.
        """
        line = self.fp.readline(CHUNK_BYTES + 1)
        found = _CHUNK.fullmatch(line)
        if found is None:
            raise ValueError("the line before a chunk has no size")
        return int(found[1], 16)


class Bounded(http.client.HTTPConnection):
    """A connection with limits for its answers. `limit` is that of the latest answer."""

    limit: Limit

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._create_connection = connected

    @property
    def response_class(self) -> Callable[..., BoundedAnswer]:  # type: ignore[override]  # it is only called
        """The factory of answers, also for the answer of a proxy."""
        return self._answer

    def _answer(self, sock: socket.socket, *args: Any, **options: Any) -> BoundedAnswer:
        answer = BoundedAnswer(sock, *args, **options)
        self.limit = answer.limit
        return answer


class BoundedHttps(Bounded, http.client.HTTPSConnection):
    """A bounded connection with TLS. The socket's timeout limits the whole handshake."""


def connected(
    address: tuple[str, int],
    timeout_s: float,
    source_address: tuple[str, int] | None = None,
    socket_options: Iterable[tuple[int, int, int | bytes]] = (),
) -> socket.socket:
    """A socket to the first address that answers; `timeout_s` limits look-up and attempts. Raises OSError."""
    limit = Limit(timeout_s)
    failed: OSError | None = None
    for family, kind, protocol, _, there in _addresses(*address, limit):
        sock = socket.socket(family, kind, protocol)
        try:
            for option in socket_options:
                sock.setsockopt(*option)
            sock.settimeout(limit.wait_s())
            if source_address:
                sock.bind(source_address)
            sock.connect(there)
        except OSError as error:
            sock.close()
            failed = error
            continue
        except BaseException:
            sock.close()
            raise
        sock.settimeout(timeout_s)
        return sock
    raise failed or OSError("the name has no address")


def _addresses(host: str, port: int, limit: Limit) -> list[Any]:
    """The result of `socket.getaddrinfo` within `limit`; none for an IP address. Raises OSError."""
    host = host.strip("[]")
    try:
        return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except OSError:
        return within(limit.wait_s(), lambda: socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
    except UnicodeError as error:
        raise OSError("the host is not a name that can be looked up") from error


def whole(read: Callable[[int], bytes], most_bytes: int) -> bytes:
    """All bytes from `read` until its end. Raises TooLarge beyond `most_bytes`, and the errors of `read`."""
    parts, size = list[bytes](), 0
    while chunk := read(CHUNK_BYTES):
        size += len(chunk)
        if size > most_bytes:
            raise TooLarge(f"the answer has more than {most_bytes // 1024} KiB")
        parts.append(chunk)
    return b"".join(parts)
