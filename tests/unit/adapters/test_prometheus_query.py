"""One query is asked of the server that is named and of nobody else, bounded in time and in size."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from driver_manager.adapters.prometheus import MAX_BYTES, ask
from driver_manager.domain.fleet.spec import MetricAnswer, MetricQuestion
from tests.support.deploy.prometheus import free_port, prometheus

QUERY = 'sum(errors{node="a"}) or vector(0) # ü%&+'
GOOD = json.dumps({"status": "success", "data": {"resultType": "scalar", "result": [1, "7"]}}).encode()
Serve = Callable[[socket.socket], None]


@contextlib.contextmanager
def server(serve: Serve) -> Iterator[tuple[str, list[bytes]]]:
    """Takes one connection after the other, notes the request's head, and does `serve`."""
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, contextlib.suppress(OSError):
                        heads.append(connection.recv(65536))
                        serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/base/", heads
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def answering(body: bytes, head: str = "200 OK") -> Serve:
    """The whole answer at once."""
    text = f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda connection: connection.sendall(text + body)


def test_the_query_is_sent_as_it_is_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with server(answering(GOOD)) as (url, heads):
        answer, is_reached = ask(MetricQuestion(url, QUERY))
    assert (answer.value, is_reached) == (7.0, True)
    assert abs(answer.asked_s - time.time()) < 60
    line, *headers = heads[0].decode().split("\r\n")
    path = urlsplit(line.split(" ")[1])
    assert (path.path, parse_qs(path.query)) == ("/base/api/v1/query", {"query": [QUERY], "timeout": ["10s"]})
    assert {one.partition(":")[0].lower() for one in headers if one} == {"host", "accept", "accept-encoding"}


def test_a_redirect_is_followed_nowhere() -> None:
    with contextlib.ExitStack() as stack:
        other, asked = stack.enter_context(server(answering(GOOD)))
        url, _ = stack.enter_context(server(answering(b"", f"302 Found\r\nLocation: {other}")))
        answer, is_reached = ask(MetricQuestion(url, "q"))
    assert "redirects (HTTP 302)" in answer.problem
    assert (is_reached, asked) == (True, [])


def dribbling(connection: socket.socket) -> None:
    """A byte now and then, for ever."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.02)


def silent(connection: socket.socket) -> None:
    """Says nothing for as long as it is listened to."""
    connection.recv(1)


def endless(connection: socket.socket) -> None:
    """A body without an end."""
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


BAD: dict[str, tuple[Serve, float, str]] = {
    "silent": (silent, 0.3, "cannot be queried: no answer within 0.3 s"),
    "dribbling": (dribbling, 0.3, "cannot be queried: no answer within 0.3 s"),
    "no-http": (lambda connection: connection.sendall(b"SSH-2.0\r\n"), 60.0, "cannot be queried: BadStatusLine"),
    "gone": (lambda connection: None, 60.0, "cannot be queried: "),
}


@pytest.mark.parametrize(("serve", "limit_s", "problem"), BAD.values(), ids=BAD)
def test_what_cannot_be_asked_is_unknown(serve: Serve, limit_s: float, problem: str) -> None:
    with server(serve) as (url, _):
        answer, is_reached = ask(MetricQuestion(url, "q"), limit_s)
    assert (answer.value, is_reached) == (None, False)
    assert problem in answer.problem
    assert answer.problem.startswith("127.0.0.1:")


def test_half_an_answer_is_none() -> None:
    with server(
        lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + GOOD[:20])
    ) as (url, _):
        answer, _ = ask(MetricQuestion(url, "q"))
    assert answer.value is None


def test_an_answer_without_an_end_is_not_read_to_it() -> None:
    with server(endless) as (url, _):
        answer, is_reached = ask(MetricQuestion(url, "q"), 60.0)
    assert (answer.value, answer.problem, is_reached) == (
        None,
        f"the answer has more than {MAX_BYTES // 1024} KiB",
        True,
    )


def test_a_server_that_is_not_there_or_is_nobody_is_unknown() -> None:
    port = free_port()
    refused, _ = ask(MetricQuestion(f"http://127.0.0.1:{port}", "q"))
    assert refused.problem == f"127.0.0.1:{port} cannot be queried: Connection refused"
    nobody, _ = ask(MetricQuestion("http://no-such-host.invalid", "q"))
    assert nobody.problem.startswith("no-such-host.invalid cannot be queried: ")
    assert ask(MetricQuestion("http://127.0.0.1:99999", "q"))[0].value is None


def test_no_password_is_said() -> None:
    assert "secret" not in ask(MetricQuestion(f"http://me:secret@127.0.0.1:{free_port()}", "q"))[0].problem


def test_a_real_prometheus_is_asked(tmp_path: Path) -> None:
    """It scrapes itself; its answers are those that the judgement knows."""
    port = free_port()
    with prometheus(tmp_path, {}, port) as running:
        url = f"http://127.0.0.1:{port}"

        def answered(query: str) -> MetricAnswer:
            found, is_reached = ask(MetricQuestion(url, query))
            assert is_reached
            return found

        assert running.is_ready()
        assert answered("2 * 21").value == 42.0
        assert answered("vector(1.5)").value == 1.5
        assert answered("no_such_metric").problem == "the query returns nothing"
        assert answered("0 / 0").problem == "the query returns NaN"
        assert answered('label_replace(vector(1), "a", "b", "", "") or vector(2)').problem.endswith("one is needed")
        assert answered('"text"').problem == "the query does not return a number"
        assert "(HTTP 400): invalid parameter" in answered("sum(").problem
