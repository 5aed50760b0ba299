"""Every call ends within a total time and a total size, whatever the peer sends and however slowly."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes import client as kube_client

from driver_manager.adapters.http import Limit, TooLarge, connected, whole
from driver_manager.adapters.kube import api as kube_api
from driver_manager.adapters.kube import kubeconfig as library
from driver_manager.adapters.kube import transport as in_pod
from driver_manager.adapters.kube.kubeconfig import Library
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.transport import CredentialsUnreadable, InPod, Transport, Unreachable, WireRequest
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.process.forked import within
from driver_manager.core.pods import PodWait
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ApiUnavailable, ConfigError, PodsRemain, WatchBroken
from tests.support.fakes.clock import RecordingReporter
from tests.support.fakes.dripping import (
    ANSWERS,
    CHUNKED,
    OK,
    Peer,
    Serve,
    certified,
    dripping,
    hello,
    reading_slowly,
    server,
)
from tests.support.fakes.pace import patient
from tests.support.fakes.plain_pod import make_account, variables
from tests.support.fakes.scripted_api import IN_POD, TRANSPORTS
from tests.support.selection import examples

LIMIT_S = 0.3
GET = WireRequest("GET", "/api/v1/nodes/n", None, {})
POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "1"}, "spec": {"containers": [{"name": "c"}]}}
PODS = {"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": [POD]}

BODY = b" " * 16 * 2**20

Way = Callable[[int], Transport]


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, ssl.SSLContext]:
    return certified(tmp_path_factory.mktemp("identity"))


@pytest.fixture(params=TRANSPORTS)
def way(request: pytest.FixtureRequest, tmp_path: Path, identity: tuple[bytes, ssl.SSLContext]) -> Way:
    """A transport over TLS to a port of this host, of each kind."""

    def to(port: int) -> Transport:
        account = make_account(tmp_path / "account", "t", identity[0])
        if request.param == IN_POD:
            return InPod(account, variables(port))
        configuration = kube_client.Configuration(host=f"https://127.0.0.1:{port}")
        configuration.proxy, configuration.retries = None, False
        configuration.ssl_ca_cert = str(account / "ca.crt")
        configuration.api_key = {"authorization": "Bearer t"}
        return Library(kube_client.ApiClient(configuration))

    return to


@contextlib.contextmanager
def ending_within(limit_s: float) -> Iterator[None]:
    begun_s = time.monotonic()
    yield
    took_s = time.monotonic() - begun_s
    assert took_s <= patient(limit_s + 1.0), took_s


def sent(transport: Transport, request: WireRequest, limit_s: float = LIMIT_S) -> None:
    """A request with enough time to connect, of which nothing comes within `limit_s`."""
    with ending_within(limit_s), pytest.raises(Unreachable):
        transport.send(request, connect_s=limit_s, read_s=limit_s)


@pytest.mark.submission
@pytest.mark.parametrize("serve", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_drips_ends_with_its_limit(
    serve: Serve, way: Way, identity: tuple[bytes, ssl.SSLContext]
) -> None:
    with server(serve, identity[1]) as there:
        sent(way(there.port), GET, 0.5)
        assert there.is_reached.is_set()


def test_a_handshake_that_drips_ends_with_its_limit(way: Way) -> None:
    with server(hello) as there:
        sent(way(there.port), GET)
        assert there.is_reached.is_set()


@pytest.mark.submission
def test_a_request_that_is_taken_slowly_ends_with_its_limit(way: Way, identity: tuple[bytes, ssl.SSLContext]) -> None:
    with server(reading_slowly, identity[1]) as there:
        sent(way(there.port), WireRequest("PATCH", "/api/v1/nodes/n", BODY, {}), 0.5)
        assert there.is_reached.is_set()


def taking_its_time(peer: Peer) -> None:
    """The request is taken after a while, and the answer drips."""
    time.sleep(1.0)
    size = 0
    while size < len(BODY):
        size += len(peer.take())
    ANSWERS["body"](Peer(peer.sock, peer.tls, peer.incoming, peer.outgoing, has_taken=True))


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_request_and_its_answer_share_one_limit(way: Way, identity: tuple[bytes, ssl.SSLContext]) -> None:
    with server(taking_its_time, identity[1]) as there:
        transport = way(there.port)
        begun_s = time.monotonic()
        with pytest.raises(Unreachable):
            transport.send(WireRequest("PATCH", "/api/v1/nodes/n", BODY, {}), connect_s=1.2, read_s=1.2)
        assert time.monotonic() - begun_s <= patient(1.7)


def test_a_wait_is_the_shorter_one_of_silence_and_total() -> None:
    limit = Limit(60.0)
    assert 59.0 < limit.wait_s() <= 60.0
    limit.allow(0.5, 60.0)
    assert limit.wait_s() == 0.5
    limit.allow(60.0, 0.5)
    assert limit.wait_s() <= 0.5
    limit.allow(60.0, 0.0)
    with pytest.raises(TimeoutError, match="not complete after 0 s"):
        limit.wait_s()


@pytest.mark.submission
def test_a_proxy_whose_headers_drip_ends_with_the_limit() -> None:
    configuration = kube_client.Configuration(host="https://server.invalid")
    with server(dripping(OK, b"X: y\r\n")) as there:
        configuration.proxy, configuration.retries = f"http://127.0.0.1:{there.port}", False
        sent(Library(kube_client.ApiClient(configuration)), GET)
        assert there.is_reached.is_set()


def answering(*parts: bytes) -> Serve:
    """The parts at once, and then nothing more until the client goes."""

    def serve(peer: Peer) -> None:
        while peer.take():
            for part in parts:
                peer.send(part)

    return serve


@pytest.mark.parametrize(
    "serve",
    [
        dripping(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n", 0.0),
        dripping(OK + b"\r\n", b" " * 65536, 0.0),
        dripping(OK + b"Content-Length: 999999999999999\r\n\r\n", b" " * 65536, 0.0),
    ],
    ids=["chunked", "without-length", "huge-length"],
)
def test_a_body_without_an_end_is_not_read_to_it(
    serve: Serve, way: Way, identity: tuple[bytes, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (in_pod, library):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 1024 * 1024)
    with (
        server(serve, identity[1]) as there,
        pytest.raises(Unreachable, match="has more than 1024 KiB"),
    ):
        way(there.port).send(GET, connect_s=30.0, read_s=60.0)


BAD_CHUNKS = [b"-1", b"-5", b"+5", b" 5", b"0x5", b"5_0", b"", b";5", b"5 5", b"f" * 17, b"5" * 70_000]
"""Lines before a chunk: `int` takes most of them, and of a negative size all that comes would be read at once."""

BAD_LENGTHS = [b"-1", b"+2", b"2_0", b"0x2", b"two", b"2, 3", b"2\r\nContent-Length: 3"]


def answered_with(head: bytes, way: Way, identity: tuple[bytes, ssl.SSLContext]) -> str:
    """Why an answer that begins with `head` counts for none."""
    with server(answering(head + b"{}" + b" " * 2**21), identity[1]) as there, pytest.raises(Unreachable) as caught:
        way(there.port).send(GET, connect_s=30.0, read_s=30.0)
    return str(caught.value)


@pytest.mark.parametrize("line", BAD_CHUNKS, ids=lambda line: repr(line[:20]))
def test_a_chunk_without_a_size_ends_the_answer(line: bytes, way: Way, identity: tuple[bytes, ssl.SSLContext]) -> None:
    said = answered_with(CHUNKED + line + b"\r\n", way, identity)
    assert "IncompleteRead(0 bytes read)" in said


@pytest.mark.parametrize("length", BAD_LENGTHS, ids=repr)
def test_an_answer_whose_length_is_no_number_is_none(
    length: bytes, way: Way, identity: tuple[bytes, ssl.SSLContext]
) -> None:
    said = answered_with(OK + b"Content-Length: " + length + b"\r\n\r\n", way, identity)
    assert "Content-Length is not one number" in said


@pytest.mark.parametrize("line", [b"2", b"02", b"2  ", b"2;a=b", b"2 ; a"], ids=repr)
def test_a_chunk_with_padding_and_extensions_is_read(
    line: bytes, way: Way, identity: tuple[bytes, ssl.SSLContext]
) -> None:
    whole_body = CHUNKED + line + b"\r\n{}\r\n0\r\n\r\n"
    with server(answering(whole_body), identity[1]) as there:
        assert way(there.port).send(GET, connect_s=30.0, read_s=30.0).data == b"{}"


def test_a_chunk_without_a_size_is_tried_again_and_ends_as_no_answer(
    way: Way, identity: tuple[bytes, ssl.SSLContext]
) -> None:
    with server(answering(CHUNKED + b"-5\r\n{}\r\n"), identity[1]) as there:
        cluster = KubeCluster(way(there.port), "n", SystemClock(), RecordingReporter(), 1.0)
        with pytest.raises(ApiUnavailable, match="no usable answer within 1 s"):
            cluster.node()


@pytest.mark.parametrize("line", BAD_CHUNKS[:6], ids=repr)
def test_a_chunk_without_a_size_ends_a_watch(line: bytes, way: Way, identity: tuple[bytes, ssl.SSLContext]) -> None:
    with server(answering(CHUNKED + line + b"\r\n" + b"\n" * 2**16), identity[1]) as there:
        cluster = KubeCluster(way(there.port), "n", SystemClock(), RecordingReporter(), 30.0)
        with pytest.raises(WatchBroken, match="the watch was interrupted"):
            list(cluster.watch_pods("1", 60.0))


def test_a_body_at_the_limit_is_read_and_the_connection_serves_again(
    way: Way, identity: tuple[bytes, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (in_pod, library):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 300_000)
    body = b"x" * 300_000
    with server(answering(OK + b"Content-Length: 300000\r\n\r\n" + body), identity[1]) as there:
        transport = way(there.port)
        for _ in range(2):
            assert transport.send(GET, connect_s=30.0, read_s=60.0).data == body


def test_a_body_that_says_it_is_compressed_is_not_unpacked(way: Way, identity: tuple[bytes, ssl.SSLContext]) -> None:
    packed = gzip.compress(b" " * 10_000_000)
    head = OK + f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    with server(answering(head + packed), identity[1]) as there:
        assert way(there.port).send(GET, connect_s=30.0, read_s=60.0).data == packed


@pytest.mark.submission
@pytest.mark.shares(3)
def test_all_attempts_together_keep_the_budget(way: Way, identity: tuple[bytes, ssl.SSLContext]) -> None:
    """The last attempt begins within the budget, and has the time of one attempt."""
    with server(ANSWERS["body"], identity[1]) as there, ending_within(1.0 + 0.5):
        cluster = KubeCluster(way(there.port), "n", SystemClock(), RecordingReporter(), 1.0)
        with pytest.raises(ApiUnavailable, match="no usable answer within 1 s"):
            cluster.node()


def pods_and(watch: Serve) -> Serve:
    """A server with one pod that does not leave, and `watch` for those who watch it."""
    body = json.dumps(PODS).encode()
    whole_list = OK + f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body

    def serve(peer: Peer) -> None:
        request = peer.take()
        if b"watch=1" not in request:
            peer.send(whole_list)
            return
        watch(Peer(peer.sock, peer.tls, peer.incoming, peer.outgoing, has_taken=True))

    return serve


LINES: dict[str, Serve] = {
    "line-feeds": dripping(CHUNKED, b"1\r\n\n\r\n"),
    "spaces": dripping(CHUNKED, b"1\r\n \r\n"),
    "flood-of-line-feeds": dripping(CHUNKED, b"1000\r\n" + b"\n" * 4096 + b"\r\n", 0.0),
    "chunk-size": dripping(CHUNKED + b"1;", b"x"),
}


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("serve", LINES.values(), ids=LINES)
def test_a_watch_that_is_kept_alive_with_nothing_keeps_nobody_waiting(
    serve: Serve, way: Way, identity: tuple[bytes, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_api, "WATCH_END_S", 0.2)
    with server(pods_and(serve), identity[1]) as there:
        clock, reporter = SystemClock(), RecordingReporter()
        cluster = KubeCluster(way(there.port), "n", clock, reporter, 30.0)
        known = cluster.pods()
        with ending_within(1.2 + 0.5), pytest.raises(PodsRemain, match="after 1 s: ns/p"):
            PodWait(cluster, clock, reporter, lambda _: True).until_gone(known, Deadline.after(1.0, clock.monotonic))
        assert there.is_reached.is_set()


def test_an_event_without_an_end_is_not_read_to_it(
    way: Way, identity: tuple[bytes, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_api, "MAX_LINE_BYTES", 2**20)
    with server(dripping(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n", 0.0), identity[1]) as there:
        cluster = KubeCluster(way(there.port), "n", SystemClock(), RecordingReporter(), 30.0)
        with pytest.raises(WatchBroken, match="an event of more than 1 MiB"):
            list(cluster.watch_pods("1", 60.0))


@given(st.lists(st.binary(max_size=9), max_size=6), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_lines_of_a_watch_are_the_same_however_they_arrive(lines: list[bytes], data: st.DataObject) -> None:
    """Cut anywhere, a stream has the same lines."""
    lines = [line.replace(b"\n", b"") for line in lines]
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    chunks = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    pieces = iter([*(chunk for chunk in chunks if chunk), b""])

    class Stream:
        status, headers, data = 200, dict[str, str](), b""

        def read_some(self) -> bytes:
            return next(pieces)

        def allow(self, *_: float) -> None:
            pass

        def close(self) -> None:
            pass

    class Streams:
        def send(self, *_: Any, **__: Any) -> Stream:
            return Stream()

        def renew(self) -> bool:
            return False

    api = kube_api.KubeApi(Streams(), SystemClock(), RecordingReporter(), 1.0)
    found = api._stream("/api/v1/pods", "watch pods", 1.0, 1.0, lambda: None)
    assert list(found) == [line for line in lines if line.strip()]


@given(st.binary(max_size=300), st.integers(1, 64), st.integers(0, 300))
@settings(max_examples=examples(200), deadline=None)
def test_a_body_is_whole_or_too_large(body: bytes, step: int, most: int) -> None:
    pieces = iter([*(body[at : at + step] for at in range(0, len(body), step)), b""])
    if len(body) <= most:
        assert whole(lambda _: next(pieces), most) == body
        return
    with pytest.raises(TooLarge):
        whole(lambda _: next(pieces), most)


# names, credentials


def test_a_name_that_is_looked_up_for_ever_ends_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def look_up(host: str, *rest: Any) -> Any:
        if len(rest) < 5:
            time.sleep(5.0)
        return real(host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with ending_within(LIMIT_S), pytest.raises(TimeoutError, match=r"no result within 0\.3"):
        connected(("name.invalid", 1), LIMIT_S)


def test_all_addresses_of_a_name_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        port = full.getsockname()[1]
        for _ in range(4):  # what the kernel cannot queue gets no answer
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        one = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [one] * 50)
        with ending_within(LIMIT_S), pytest.raises(TimeoutError):
            connected(("127.0.0.1", port), LIMIT_S)


def test_a_question_aside_gives_its_answer_and_its_error() -> None:
    assert within(60.0, lambda: 7) == 7
    with pytest.raises(ValueError, match="x"):
        within(60.0, lambda: int("x"))


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: sleep, args: ["5"]}}}]
"""


def test_a_credential_plugin_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "CREDENTIALS_S", LIMIT_S)
    (tmp_path / "config").write_text(KUBECONFIG)
    with ending_within(LIMIT_S), pytest.raises(ConfigError, match=r"gave no credentials: no result within 0\.3 s"):
        library.load_kubeconfig(str(tmp_path / "config"))


def test_a_token_that_is_refreshed_for_ever_ends_with_the_attempt() -> None:
    configuration = kube_client.Configuration(host="http://127.0.0.1:1")
    configuration.refresh_api_key_hook = lambda _: time.sleep(5.0)
    transport = Library(kube_client.ApiClient(configuration))
    with ending_within(LIMIT_S), pytest.raises(CredentialsUnreadable, match=r"no result within 0\.3 s"):
        transport.send(GET, connect_s=LIMIT_S, read_s=LIMIT_S)


RUN = """
import sys
from driver_manager.cli import main
sys.exit(main.run(["reconcile-driver-state", "--api-timeout", "1s", "--termination-log", ""]))
"""


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("mode", ["body", "header", "flood"])
def test_a_run_ends_whatever_the_server_sends(mode: str, tmp_path: Path) -> None:
    serve = {**ANSWERS, "flood": dripping(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n", 0.0)}[mode]
    with server(serve) as there:
        config = tmp_path / "config"
        config.write_text(
            KUBECONFIG.replace(':1"', f':{there.port}"').partition("users:")[0]
            + "users: [{name: u, user: {token: t}}]\n"
        )
        env = {"NODE_NAME": "n", "HOST_ROOT": str(tmp_path), "KUBECONFIG": str(config)}
        begun_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", RUN], env=env, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 8, done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - begun_s <= patient(15.0)
