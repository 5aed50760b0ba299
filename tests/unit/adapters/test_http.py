"""The server inside the loop: answers while the loop waits, and no client, however slow or wild, holds the loop."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from driver_manager.adapters.process.clock import LoopClock
from driver_manager.adapters.report import http as report_http
from driver_manager.adapters.report.http import HttpResponse, StatusServer, parse_address
from driver_manager.domain.errors import ConfigError
from tests.support.fakes.pace import patient

BOUND_S = 25.0


@pytest.fixture
def server(clock: LoopClock) -> Iterator[StatusServer]:
    made = StatusServer(clock, "127.0.0.1:0", lambda path: HttpResponse(200, "OK", f"{path}\n".encode()))
    yield made
    made.close()


def connect(server: StatusServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=BOUND_S)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def turn(clock: LoopClock, times: int = 6) -> None:
    for _ in range(times):
        clock.turn(clock.monotonic() + 0.02)


def talk(clock: LoopClock, server: StatusServer, request: bytes) -> bytes:
    with connect(server) as client:
        client.sendall(request)
        turn(clock)
        client.settimeout(BOUND_S)
        answer = b""
        while chunk := client.recv(65536):
            answer += chunk
        return answer


def test_a_request_gets_one_whole_answer(clock: LoopClock, server: StatusServer) -> None:
    for request, status, body in (
        (b"GET /x?y=1 HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\n\r\n", b"200 OK", b"/x\n"),
        (b"GET /x HTTP/1.0\r\n\r\n", b"200 OK", b"/x\n"),
        (b"POST /x HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"only GET\n"),
        (b"GET /x\r\n\r\n", b"400 Bad Request", b"not understood\n"),
        (b"\xff\x00 garbage\r\n\r\n", b"400 Bad Request", b"not understood\n"),
        (b"GET /x HTTP/1.1\r\n" + b"A: b\r\n" * 2000, b"431 Request Header Fields Too Large", b"too large\n"),
    ):
        head, _, rest = talk(clock, server, request).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status)
        assert f"Content-Length: {len(body)}".encode() in head
        assert rest == body


def test_a_client_that_sends_nothing_delays_no_other(clock: LoopClock, server: StatusServer) -> None:
    with connect(server), connect(server) as half:
        half.sendall(b"GET /x HT")
        turn(clock)
        begun = clock.monotonic()
        assert talk(clock, server, b"GET /y HTTP/1.1\r\n\r\n").endswith(b"/y\n")
        assert clock.monotonic() - begun < patient(1.0)


def test_a_client_that_goes_away_is_forgotten(clock: LoopClock, server: StatusServer) -> None:
    before = descriptors()
    for _ in range(50):
        client = connect(server)
        client.sendall(b"GET /")
        turn(clock, 2)
        client.close()
        turn(clock, 2)
    assert descriptors() == before


def test_one_client_more_than_allowed_takes_the_place_of_the_oldest(clock: LoopClock, server: StatusServer) -> None:
    with contextlib.ExitStack() as idle:
        clients = [idle.enter_context(connect(server)) for _ in range(report_http.MAX_CLIENTS)]
        turn(clock, 2 * report_http.MAX_CLIENTS)
        before = descriptors()
        assert talk(clock, server, b"GET /x HTTP/1.1\r\n\r\n").endswith(b"/x\n")
        assert clients[0].recv(1) == b""
        assert descriptors() == before - 1
        clients[1].sendall(b"GET /y HTTP/1.1\r\n\r\n")
        turn(clock)
        assert clients[1].recv(8) == b"HTTP/1.1", "the others stay"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_without_a_host_both_families_are_served(clock: LoopClock, host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this kernel has no IPv6")
    server = StatusServer(clock, ":0", lambda *_: HttpResponse(200, "OK", b"both\n"))
    with socket.create_connection((host, server.port), timeout=BOUND_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        turn(clock)
        assert client.recv(4096).endswith(b"both\n")
    server.close()


def test_a_large_answer_to_a_slow_reader_is_sent_piece_by_piece(clock: LoopClock) -> None:
    body = b"x" * 8_000_000
    server = StatusServer(clock, "127.0.0.1:0", lambda *_: HttpResponse(200, "OK", body))
    with connect(server) as client:
        client.sendall(b"GET /x HTTP/1.1\r\n\r\n")
        client.setblocking(False)
        got, end = 0, clock.monotonic() + BOUND_S
        while got < len(body) and clock.monotonic() < end:
            turn(clock, 1)
            with contextlib.suppress(BlockingIOError):
                got += len(client.recv(1_000_000))
    server.close()
    assert got > len(body)


def test_an_address_has_a_host_and_a_port() -> None:
    found = [parse_address(good) for good in (":9400", "127.0.0.1:9400", "[::1]:9400", "node:0")]
    assert found == [("", 9400), ("127.0.0.1", 9400), ("::1", 9400), ("node", 0)]
    for text in ("", "9400", "host", "host:", "host:x", "host:-1", "host:65536", "host:١", ":" + "9" * 5000):
        with pytest.raises(ConfigError, match="is not an address such as"):
            parse_address(text)
