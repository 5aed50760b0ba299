"""A TLS server on loopback that answers byte by byte, or without an end: what a slow or hostile middlebox can do."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.control_plane.servers import Authority

DRIP_S = 0.02
"""Between two bytes: far below each timeout."""

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

Send = Callable[[bytes], object]
Serve = Callable[["Peer"], None]


@dataclass
class Peer:
    """One connection: its socket, and TLS on it by hand, so that parts of a record can be sent."""

    sock: socket.socket
    tls: ssl.SSLObject | None = None
    incoming: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    outgoing: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    has_taken: bool = False

    def shake_hands(self, context: ssl.SSLContext) -> None:
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self._until_done(self.tls.do_handshake)

    def take(self) -> bytes:
        """The next bytes of the request; none where it has been taken."""
        if self.has_taken:
            return b""
        if self.tls is None:
            return self.sock.recv(65536)
        tls = self.tls
        return self._until_done(lambda: tls.read(65536))

    def records(self, data: bytes) -> bytes:
        """`data` as it goes over the wire."""
        if self.tls is None:
            return data
        self.tls.write(data)
        return self.outgoing.read()

    def send(self, data: bytes) -> None:
        self.sock.sendall(self.records(data))

    def _until_done(self, step: Callable[[], bytes | None]) -> bytes:
        while True:
            try:
                found = step()
            except ssl.SSLWantReadError:
                self.sock.sendall(self.outgoing.read())
                data = self.sock.recv(65536)
                if not data:
                    raise ConnectionError("the client has gone") from None
                self.incoming.write(data)
                continue
            self.sock.sendall(self.outgoing.read())
            return found or b""


def dripping(head: bytes, drop: bytes, after_s: float = DRIP_S) -> Serve:
    """`head` at once, then `drop` again and again."""

    def serve(peer: Peer) -> None:
        peer.take()
        peer.send(head)
        while True:
            peer.send(drop)
            time.sleep(after_s)

    return serve


def one_record(peer: Peer) -> None:
    peer.take()
    wire = peer.records(OK + b"Content-Length: 9000\r\n\r\n" + b" " * 9000)
    for byte in wire:
        peer.sock.sendall(bytes([byte]))
        time.sleep(DRIP_S)


ANSWERS: dict[str, Serve] = {
    "status-line": dripping(b"HTTP/1.1 200 O", b"K"),
    "header": dripping(OK + b"X: ", b"x"),
    "header-lines": dripping(OK, b"X: y\r\n"),
    "interim-answers": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": dripping(OK + b"Content-Length: 100000\r\n\r\n{", b" "),
    "body-without-length": dripping(OK + b"\r\n{", b" "),
    "chunks": dripping(CHUNKED, b"1\r\n \r\n"),
    "chunk-size": dripping(CHUNKED + b"1;", b"x"),
    "trailers": dripping(CHUNKED + b"0\r\n", b"X: y\r\n"),
    "many-trailers": dripping(CHUNKED + b"0\r\n", b"X: y\r\n" * 500, 0.0),
    "error-body": dripping(b"HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n{", b" "),
    "tls-record": one_record,
}


def hello(peer: Peer) -> None:
    """The first message of the TLS handshake, byte by byte."""
    peer.sock.recv(65536)
    for byte in itertools.chain(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03", itertools.repeat(0)):
        peer.sock.sendall(bytes([byte]))
        time.sleep(DRIP_S)


@dataclass
class Dripping:
    """The server's port, and whether a connection came to the part that drips."""

    port: int
    is_reached: threading.Event


@contextlib.contextmanager
def server(serve: Serve, context: ssl.SSLContext | None = None) -> Iterator[Dripping]:
    """Takes connections, each in a thread of its own, until the end. With `context` there is TLS before `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = Dripping(listening.getsockname()[1], threading.Event())

        def one(sock: socket.socket) -> None:
            with sock, contextlib.suppress(OSError):
                peer = Peer(sock)
                if context is not None:
                    peer.shake_hands(context)
                found.is_reached.set()
                serve(peer)

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listening.accept()
                    threading.Thread(target=one, args=(sock,), daemon=True).start()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield found
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def certified(folder: Path, *, identifiers: bool = True, root: Authority | None = None) -> tuple[bytes, ssl.SSLContext]:
    """The certificate of a CA, and the context of a server of 127.0.0.1 that it has signed for."""
    authority = Authority(folder, identifiers=identifiers, above=root)
    authority.establish()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server"))
    return authority.certificate.read_bytes(), context
