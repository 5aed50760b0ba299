"""Connections to an API server, in a pod and by kubeconfig: credentials, time limits and size limits of every call."""

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
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes import client as kube_client
from urllib3.util.ssl_ import create_urllib3_context

from driver_manager.adapters.http import Bounded, Limit, TooLarge, connected, whole
from driver_manager.adapters.kube import api as kube_api
from driver_manager.adapters.kube import kubeconfig as library
from driver_manager.adapters.kube import transport as in_pod
from driver_manager.adapters.kube.api import load_client
from driver_manager.adapters.kube.kubeconfig import Library, kubeconfig_namespace
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.transport import (
    CredentialsUnreadable,
    InPod,
    Transport,
    Unreachable,
    WireRequest,
    is_in_pod,
)
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.core.pods import PodWait
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ApiUnavailable, ConfigError, PodsRemain, WatchBroken
from driver_manager.domain.node import NodeChange
from tests.support.control_plane.servers import Authority
from tests.support.fakes.clock import RecordingReporter
from tests.support.fakes.dripping import (
    ANSWERS,
    CHUNKED,
    OK,
    Dripping,
    Peer,
    Serve,
    certified,
    dripping,
    hello,
    reading_slowly,
    server,
)
from tests.support.fakes.pace import patient
from tests.support.fakes.plain_pod import PlainInPod, kubeconfig, make_account, variables
from tests.support.fakes.scripted_api import BUDGET_S, IN_POD, TRANSPORTS, Answer, Scripted, status, transport_to
from tests.support.selection import examples

LIMIT_S = 0.3
GET = WireRequest("GET", "/api/v1/nodes/n", None, {})
BODY = b" " * 16 * 2**20
LARGE = WireRequest("PATCH", "/api/v1/nodes/n", BODY, {})

Talk = Callable[[Serve], AbstractContextManager[tuple[Transport, Dripping]]]


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, ssl.SSLContext]:
    """A certificate, and a server's context with it."""
    return certified(tmp_path_factory.mktemp("identity"))


@pytest.fixture(params=TRANSPORTS)
def talk(request: pytest.FixtureRequest, tmp_path: Path, identity: tuple[bytes, ssl.SSLContext]) -> Talk:
    """A transport of each kind over TLS to a server of this host."""
    authority, context = identity
    account = make_account(tmp_path / "account", "t", authority)

    def to(port: int) -> Transport:
        if request.param == IN_POD:
            return InPod(account, variables(port))
        configuration = kube_client.Configuration(host=f"https://127.0.0.1:{port}")
        configuration.proxy, configuration.retries = None, False
        configuration.ssl_ca_cert = str(account / "ca.crt")
        configuration.api_key = {"authorization": "Bearer t"}
        return Library(kube_client.ApiClient(configuration))

    @contextmanager
    def talking(serve: Serve) -> Iterator[tuple[Transport, Dripping]]:
        with server(serve, None if serve is hello else context) as there:
            yield to(there.port), there
            assert there.is_reached.is_set()

    return talking


@contextmanager
def ending_within(limit_s: float) -> Iterator[None]:
    begun_s = time.monotonic()
    yield
    took_s = time.monotonic() - begun_s
    assert took_s <= patient(limit_s + 1.0), took_s


# time limits


def taking_its_time(peer: Peer) -> None:
    """The request is taken after a while, and the answer drips."""
    time.sleep(1.0)
    size = 0
    while size < len(BODY):
        size += len(peer.take())
    ANSWERS["body"](Peer(peer.sock, peer.tls, peer.incoming, peer.outgoing, has_taken=True))


SLOW: dict[str, tuple[Serve, WireRequest, float]] = {
    **{name: (serve, GET, 0.5) for name, serve in ANSWERS.items()},
    "request": (reading_slowly, LARGE, 0.5),
    "request-and-answer": (taking_its_time, LARGE, 1.2),
}


def assert_limited(transport: Transport, request: WireRequest, limit_s: float) -> None:
    with ending_within(limit_s), pytest.raises(Unreachable):
        transport.send(request, connect_s=limit_s, read_s=limit_s)


def test_a_handshake_that_drips_ends_with_its_limit(talk: Talk) -> None:
    with talk(hello) as (transport, _):
        assert_limited(transport, GET, LIMIT_S)


@pytest.mark.submission
@pytest.mark.parametrize(("serve", "request_", "limit_s"), SLOW.values(), ids=SLOW)
def test_a_request_and_an_answer_that_drip_share_one_limit(
    talk: Talk, serve: Serve, request_: WireRequest, limit_s: float
) -> None:
    with talk(serve) as (transport, _):
        assert_limited(transport, request_, limit_s)


@pytest.mark.submission
def test_a_proxy_whose_headers_drip_ends_with_the_limit() -> None:
    configuration = kube_client.Configuration(host="https://server.invalid")
    with server(dripping(OK, b"X: y\r\n")) as there:
        configuration.proxy, configuration.retries = f"http://127.0.0.1:{there.port}", False
        assert_limited(Library(kube_client.ApiClient(configuration)), GET, LIMIT_S)
        assert there.is_reached.is_set()


@pytest.mark.submission
@pytest.mark.shares(3)
def test_what_connecting_took_is_not_there_for_the_answer(tmp_path: Path) -> None:
    """Or else a request could take several times as long as its sender reckons with."""

    class Slow(PlainInPod):
        def _connected(self, connect_s: float) -> Bounded:
            time.sleep(0.3)
            return super()._connected(connect_s)

    with socket.create_server(("127.0.0.1", 0)) as mute:
        transport = Slow(make_account(tmp_path, "t"), variables(mute.getsockname()[1]))
        begun_s = time.monotonic()
        with pytest.raises(Unreachable, match="no time was left after connecting"):
            transport.send(GET, connect_s=5.0, read_s=0.2)
        with pytest.raises(Unreachable, match="TimeoutError: timed out"):
            transport.send(GET, connect_s=5.0, read_s=3.0)
    assert time.monotonic() - begun_s >= 3.2


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


def test_a_name_that_is_looked_up_for_ever_ends_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def look_up(host: str, *rest: Any) -> Any:
        if len(rest) < 5:
            time.sleep(5.0)
        return real(host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with ending_within(LIMIT_S), pytest.raises(TimeoutError, match=r"no result within 0\.[23]"):
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


RUN = """
import sys
from driver_manager.cli import main
sys.exit(main.run(["reconcile-driver-state"]))
"""


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("mode", ["body", "header", "flood"])
def test_a_run_ends_whatever_the_server_sends(mode: str, tmp_path: Path) -> None:
    serve = {**ANSWERS, "flood": dripping(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n", 0.0)}[mode]
    with server(serve) as there:
        (tmp_path / "config").write_text(kubeconfig(server=f"http://127.0.0.1:{there.port}"))
        env = {"NODE_NAME": "n", "HOST_ROOT": str(tmp_path), "KUBECONFIG": str(tmp_path / "config")}
        env["API_TIMEOUT"] = "1s"
        begun_s = time.monotonic()
        argv = [sys.executable, "-c", RUN]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 8, done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - begun_s <= patient(15.0)


# size limits, and bodies that are none


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
def test_a_body_without_an_end_is_not_read_to_it(serve: Serve, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (in_pod, library):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 1024 * 1024)
    with talk(serve) as (transport, _), pytest.raises(Unreachable, match="has more than 1024 KiB"):
        transport.send(GET, connect_s=30.0, read_s=60.0)


BAD_CHUNKS = [b"-1", b"-5", b"+5", b" 5", b"0x5", b"5_0", b"", b";5", b"5 5", b"f" * 17, b"5" * 70_000]
"""Lines before a chunk: `int` takes most of them, and of a negative size all that comes would be read at once."""

BAD_LENGTHS = [b"-1", b"+2", b"2_0", b"0x2", b"two", b"2, 3", b"2\r\nContent-Length: 3"]
BAD_HEADS = {
    **{f"chunk {line[:20]!r}": (CHUNKED + line + b"\r\n", "IncompleteRead(0 bytes read)") for line in BAD_CHUNKS},
    **{
        f"length {text!r}": (OK + b"Content-Length: " + text + b"\r\n\r\n", "Content-Length is not one number")
        for text in BAD_LENGTHS
    },
}


@pytest.mark.parametrize(("head", "why"), BAD_HEADS.values(), ids=BAD_HEADS)
def test_a_chunk_or_an_answer_without_a_size_is_no_answer(head: bytes, why: str, talk: Talk) -> None:
    with talk(answering(head + b"{}" + b" " * 2**21)) as (transport, _), pytest.raises(Unreachable) as caught:
        transport.send(GET, connect_s=30.0, read_s=30.0)
    assert why in str(caught.value)


@pytest.mark.parametrize("line", [b"2", b"02", b"2  ", b"2;a=b", b"2 ; a"], ids=repr)
def test_a_chunk_with_padding_and_extensions_is_read(line: bytes, talk: Talk) -> None:
    with talk(answering(CHUNKED + line + b"\r\n{}\r\n0\r\n\r\n")) as (transport, _):
        assert transport.send(GET, connect_s=30.0, read_s=30.0).data == b"{}"


def test_a_body_at_the_limit_is_read_and_the_connection_serves_again(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (in_pod, library):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 300_000)
    body = b"x" * 300_000
    with talk(answering(OK + b"Content-Length: 300000\r\n\r\n" + body)) as (transport, _):
        for _ in range(2):
            assert transport.send(GET, connect_s=30.0, read_s=60.0).data == body


def test_a_body_that_says_it_is_compressed_is_not_unpacked(talk: Talk) -> None:
    packed = gzip.compress(b" " * 10_000_000)
    head = OK + f"Content-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    with talk(answering(head + packed)) as (transport, _):
        assert transport.send(GET, connect_s=30.0, read_s=60.0).data == packed


@given(st.binary(max_size=300), st.integers(1, 64), st.integers(0, 300))
@settings(max_examples=examples(200), deadline=None)
def test_a_body_is_whole_or_too_large(body: bytes, step: int, most: int) -> None:
    pieces = iter([*(body[at : at + step] for at in range(0, len(body), step)), b""])
    if len(body) <= most:
        assert whole(lambda _: next(pieces), most) == body
        return
    with pytest.raises(TooLarge):
        whole(lambda _: next(pieces), most)


# watches


def cluster_at(transport: Transport, budget_s: float = BUDGET_S) -> KubeCluster:
    return KubeCluster(transport, "n", SystemClock(), RecordingReporter(), budget_s)


POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "1"}, "spec": {"containers": [{"name": "c"}]}}
PODS = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": [POD]}).encode()
LINES: dict[str, Serve] = {
    "line-feeds": dripping(CHUNKED, b"1\r\n\n\r\n"),
    "spaces": dripping(CHUNKED, b"1\r\n \r\n"),
    "flood-of-line-feeds": dripping(CHUNKED, b"1000\r\n" + b"\n" * 4096 + b"\r\n", 0.0),
    "chunk-size": dripping(CHUNKED + b"1;", b"x"),
}


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("watch", LINES.values(), ids=LINES)
def test_a_watch_that_is_kept_alive_with_nothing_keeps_nobody_waiting(
    watch: Serve, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(peer: Peer) -> None:
        """One pod that does not leave, and `watch` for those who watch it."""
        if b"watch=1" in peer.take():
            watch(Peer(peer.sock, peer.tls, peer.incoming, peer.outgoing, has_taken=True))
        else:
            peer.send(OK + f"Content-Length: {len(PODS)}\r\nConnection: close\r\n\r\n".encode() + PODS)

    monkeypatch.setattr(kube_api, "WATCH_END_S", 0.2)
    with talk(serve) as (transport, _):
        clock, cluster = SystemClock(), cluster_at(transport)
        known = cluster.pods()
        wait = PodWait(cluster, clock, RecordingReporter(), lambda _: True)
        with ending_within(1.2 + 0.5), pytest.raises(PodsRemain, match="after 1 s: ns/p"):
            wait.until_gone(known, Deadline.after(1.0, clock.monotonic))


@pytest.mark.parametrize(
    ("serve", "why"),
    [
        (dripping(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n", 0.0), "an event of more than 1 MiB"),
        (answering(CHUNKED + b"-1\r\n" + b"\n" * 2**16), "the watch was interrupted"),
    ],
    ids=["line", "chunk"],
)
def test_an_event_without_an_end_is_not_read_to_it(
    serve: Serve, why: str, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_api, "MAX_LINE_BYTES", 2**20)
    with talk(serve) as (transport, _), pytest.raises(WatchBroken, match=why):
        list(cluster_at(transport).watch_pods("1", 60.0))


@given(st.lists(st.binary(max_size=9), max_size=6), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_lines_of_a_watch_are_the_same_wherever_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    chunks = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    pieces = iter([*(chunk for chunk in chunks if chunk), b""])

    class Stream:
        """The transport, and its one answer."""

        status, headers, data = 200, dict[str, str](), b""

        def send(self, *_: Any, **__: Any) -> Stream:
            return self

        def renew(self) -> bool:
            return False

        def read_some(self) -> bytes:
            return next(pieces)

        def allow(self, *_: float) -> None:
            pass

        def close(self) -> None:
            pass

    api = kube_api.KubeApi(Stream(), SystemClock(), RecordingReporter(), 1.0)
    found = api._stream("/api/v1/pods", "watch pods", 1.0, 1.0, lambda: None)
    assert list(found) == [line for line in lines if line.strip()]


# both kinds


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_server_that_is_not_there_is_api_unavailable(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ApiUnavailable, match=r"cannot connect to 127\.0\.0\.1:1: .*Connection refused"):
        cluster_at(transport_to(kind, 1, tmp_path), 1.0).node()


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("token", ["a\nb", "a\r\nX: y", "b\u2028c"])
def test_credentials_that_no_header_can_hold_are_a_configuration_error(token: str, kind: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unasked:
        transport = transport_to(kind, unasked.getsockname()[1], tmp_path, token)
        with pytest.raises(ConfigError, match="credentials cannot be sent") as caught:
            cluster_at(transport, 1.0).node()
    assert token not in f"{caught.value.what} {caught.value.remedy}"


# in a pod


@pytest.fixture
def pod() -> Iterator[Scripted]:
    scripted = Scripted(IN_POD)
    scripted.keeps_connections = True
    yield scripted
    scripted.close()


HEAVY = {"kubernetes", "oauthlib", "psutil", "pydantic", "pyudev", "requests", "urllib3", "websocket", "yaml"}
IMPORTING = """
import json, sys
from pathlib import Path
from driver_manager.adapters.kube import transport
transport.SERVICE_ACCOUNT = Path(sys.argv[1])
from driver_manager.cli import main
code = main.run(["reconcile-driver-state"])
print(json.dumps({"code": code, "modules": sorted({name.partition(".")[0] for name in sys.modules})}))
"""


@pytest.mark.submission
def test_a_reconcile_in_a_pod_imports_no_library_for_its_requests(
    tmp_path: Path, identity: tuple[bytes, ssl.SSLContext]
) -> None:
    env = {**variables(1), "NODE_NAME": "n", "HOST_ROOT": str(tmp_path), "API_TIMEOUT": "0s"}
    argv = [sys.executable, "-c", IMPORTING, str(make_account(tmp_path / "account", "t", identity[0]))]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["code"], "Connection refused" in done.stderr) == (8, True), done.stderr
    assert "http" in said["modules"]
    assert not HEAVY & set(said["modules"])


def test_calls_share_a_connection_and_a_watch_has_its_own(pod: Scripted) -> None:
    pod.answer(Answer(), Answer(), Answer(body=b""), Answer())
    pod.cluster.node()
    pod.cluster.node()
    assert list(pod.cluster.watch_pods("1", 5)) == []
    pod.cluster.patch_node(NodeChange(labels={"a": "b"}), None)
    first, second, watch, last = pod.connections
    assert first == second == last != watch


def test_a_connection_that_the_server_ended_is_not_used_again(pod: Scripted) -> None:
    pod.cluster.node()
    pod.keeps_connections = False
    pod.cluster.node()
    pod.cluster.node()
    assert len(pod.requests) == 3
    assert pod.clock.slept == []
    assert len(set(pod.connections)) == 2


def test_where_a_proxy_is_to_be_asked_the_library_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: tuple[bytes, ssl.SSLContext]
) -> None:
    account = make_account(tmp_path / "account", "t", identity[0])
    monkeypatch.setattr(in_pod, "SERVICE_ACCOUNT", account)
    for key, value in variables(1).items():
        monkeypatch.setenv(key, value)
    for proxy in in_pod.PROXIES:
        monkeypatch.delenv(proxy, raising=False)
        assert not is_in_pod(account, {proxy: "http://127.0.0.1:3128"})
    assert isinstance(load_client(), InPod)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3128")
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(account / "token"))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", str(account / "ca.crt"))
    assert isinstance(load_client(), Library)


PROXY = {"HTTPS_PROXY": "http://127.0.0.1:3128"}


@pytest.mark.parametrize(
    ("host", "rules", "is_direct"),
    [
        ("10.96.0.1", "10.96.0.1", True),
        ("10.96.0.1", "localhost, 10.96.0.0/12", True),
        ("10.96.0.1", "10.96.0.0/16,.svc", True),
        ("10.96.0.1", "10.97.0.0/16", False),
        ("10.96.0.1", "10.96.0.1:443", True),
        ("10.96.0.1", "10.96.0.1:6443", False),
        ("10.96.0.1", "10.96.0.0/12:443", True),
        ("10.96.0.1", "96.0.1,10.96.0", False),
        ("10.96.0.1", "*", True),
        ("10.96.0.1", "", False),
        ("10.96.0.1", " ,, ", False),
        ("10.96.0.1", "[", False),
        ("fd00:10::1", "fd00:10::/32", True),
        ("[fd00:10::1]", "fd00:10::1", True),
        ("fd00:10::1", "[fd00:10::1]:443", True),
        ("fd00:10::1", "[fd00:10::1]:80", False),
        ("fd00:10::1", "FD00:10:0::1", True),
        ("fd00:10::1", "10.0.0.0/8", False),
        ("kubernetes.default.svc", ".svc", True),
        ("kubernetes.default.svc", "svc", True),
        ("kubernetes.default.svc", "*.svc", True),
        ("Kubernetes.Default.SVC", ".Svc", True),
        ("kubernetes.default.svc", "default.svc:443", True),
        ("kubernetes.default.svc", "vc", False),
        ("kubernetes.default.svc", ".", False),
        ("kubernetes.default.svc", "10.0.0.0/8 .svc", True),
    ],
)
def test_no_proxy_names_hosts_networks_and_ports(host: str, rules: str, is_direct: bool) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        assert in_pod.proxy_for(host, "443", {**PROXY, name: rules}) == ("" if is_direct else "HTTPS_PROXY")
    assert in_pod.proxy_for(host, "443", {"NO_PROXY": rules, "HTTPS_PROXY": ""}) == ""


def test_the_variable_in_small_letters_comes_first() -> None:
    environ = {**PROXY, "no_proxy": "10.0.0.0/8", "NO_PROXY": "*"}
    assert in_pod.proxy_for("192.168.0.1", "443", environ) == "HTTPS_PROXY"
    assert in_pod.proxy_for("10.1.2.3", "443", environ) == ""


def test_a_server_that_no_proxy_names_is_asked_directly(tmp_path: Path, identity: tuple[bytes, ssl.SSLContext]) -> None:
    account = make_account(tmp_path / "account", "t", identity[0])
    environ = {**variables(1), **PROXY}
    assert not is_in_pod(account, environ)
    assert is_in_pod(account, {**environ, "NO_PROXY": environ["KUBERNETES_SERVICE_HOST"]})


@pytest.mark.parametrize("rules", ["", "127.0.0.0/8"])
def test_an_unreachable_server_behind_a_proxy_has_no_proxy_in_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: str
) -> None:
    (tmp_path / "config").write_text(kubeconfig("https://127.0.0.1:1"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", rules)
    api = kube_api.KubeApi(load_client(str(tmp_path / "config")), SystemClock(), RecordingReporter(), 1.0)
    with pytest.raises(ApiUnavailable) as caught:
        api.call("GET", "/api/v1/nodes/n", "get nodes")
    assert ("add the API server to NO_PROXY" in caught.value.remedy) is not bool(rules), caught.value


@pytest.mark.parametrize("signs_server", [True, False])
def test_a_ca_without_key_identifiers_is_trusted_and_another_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: tuple[bytes, ssl.SSLContext], signs_server: bool
) -> None:
    """On each Python as on 3.13, where urllib3 demands them."""

    def strict(*args: Any, **settings: Any) -> ssl.SSLContext:
        made: ssl.SSLContext = create_urllib3_context(*args, **settings)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    for place in ("urllib3.connection", library.__name__):
        monkeypatch.setattr(f"{place}.create_urllib3_context", strict)
    authority, context = certified(tmp_path, identifiers=False)

    def answers(peer: Peer) -> None:
        peer.take()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with server(answers, context if signs_server else identity[1]) as there:
        configuration = kube_client.Configuration(host=f"https://127.0.0.1:{there.port}")
        configuration.proxy, configuration.ca_cert_data = None, authority.decode()
        configuration.api_key = {"authorization": "Bearer t"}
        transport = Library(kube_client.ApiClient(configuration))
        if signs_server:
            assert transport.send(GET, connect_s=5, read_s=5).status == 200
        else:
            with pytest.raises(in_pod.Unreachable) as caught:
                transport.send(GET, connect_s=5, read_s=5)
            assert caught.value.doubt is not None


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_an_intermediate_ca_is_trusted_without_its_root(tmp_path: Path, kind: str) -> None:
    for name in ("root", "middle"):
        (tmp_path / name).mkdir()
    root = Authority(tmp_path / "root")
    root.establish()
    authority, context = certified(tmp_path / "middle", above=root)
    account = make_account(tmp_path / "account", "t", authority)

    def answers(peer: Peer) -> None:
        peer.take()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with server(answers, context) as there:
        configuration = kube_client.Configuration(host=f"https://127.0.0.1:{there.port}")
        configuration.proxy, configuration.ssl_ca_cert = None, str(account / "ca.crt")
        configuration.api_key = {"authorization": "Bearer t"}
        in_a_pod = kind == IN_POD
        transport = InPod(account, variables(there.port)) if in_a_pod else Library(kube_client.ApiClient(configuration))
        assert transport.send(GET, connect_s=5, read_s=5).status == 200


@pytest.mark.parametrize(
    ("host", "rules", "proxy"),
    [
        ("127.0.0.1", "127.0.0.1 .svc", None),
        ("127.0.0.1", "127.0.0.0/8:6443", None),
        ("[fd00::1]", "[fd00::/8]", None),
        ("127.0.0.1", "10.0.0.0/8", "http://127.0.0.1:1"),
    ],
)
def test_a_kubeconfig_is_followed_with_the_same_rules_for_proxies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, rules: str, proxy: str | None
) -> None:
    (tmp_path / "config").write_text(kubeconfig(f"https://{host}:6443"))
    for name in in_pod.PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", rules)
    monkeypatch.delenv("no_proxy", raising=False)
    assert library.load_kubeconfig(str(tmp_path / "config"))._client.configuration.proxy == proxy


NO_ADDRESS, NO_CA = "do not name the API server", "its CA certificate cannot be read"


@pytest.mark.parametrize(
    ("environ", "lost", "junk", "said"),
    [
        ({}, "", None, NO_ADDRESS),
        ({"KUBERNETES_SERVICE_HOST": "h"}, "", None, NO_ADDRESS),
        ({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "x"}, "", None, NO_ADDRESS),
        (variables(1), "token", None, "token"),
        (variables(1), "ca.crt", None, NO_CA),
        (variables(1), "", b"", NO_CA),
        (variables(1), "", b"junk", NO_CA),
        (variables(1), "", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", NO_CA),
    ],
)
def test_an_account_that_cannot_be_used_is_a_configuration_error(
    environ: dict[str, str],
    lost: str,
    junk: bytes | None,
    said: str,
    tmp_path: Path,
    identity: tuple[bytes, ssl.SSLContext],
) -> None:
    account = make_account(tmp_path, "t", identity[0] if junk is None else junk)
    if lost:
        (account / lost).unlink()
    with pytest.raises(ConfigError, match="cannot connect to the cluster") as caught:
        InPod(account, environ)
    assert said in caught.value.what


def test_a_newline_behind_the_token_is_not_sent(pod: Scripted, tmp_path: Path) -> None:
    transport = PlainInPod(make_account(tmp_path, "t\n"), variables(pod.server.server_port))
    assert cluster_at(transport).node().uid == "u"
    assert pod.requests[0].headers["authorization"] == "Bearer t"
    transport.renew()


# by kubeconfig


SECURE, JUNK = "https://127.0.0.1:1", "anVuaw=="
JUNK_PEM = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo="


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "no such file"),
        (b"", ""),
        (b"garbage", ""),
        (b"\xff\xfe\x00", ""),
        (b"[1, 2]", ""),
        (b"{unclosed: [", ""),
        (kubeconfig().replace('"current-context": "c"', '"current-context": "gone"').encode(), ""),
        (kubeconfig().replace('"users": [', '"users": 1, "x": [').encode(), ""),
        (kubeconfig(SECURE, {"client-certificate": "/absent"}).encode(), ""),
        *(
            (kubeconfig(SECURE, **{"certificate-authority-data": junk}).encode(), "its CA certificate cannot be read")
            for junk in (JUNK, JUNK_PEM)
        ),
        *(
            (
                kubeconfig(SECURE, {"client-certificate-data": junk, "client-key-data": junk}).encode(),
                "its client certificate and key cannot be read",
            )
            for junk in (JUNK, JUNK_PEM)
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_client(str(path))
    assert str(path) in caught.value.what
    assert why in caught.value.what
    assert "\n" not in caught.value.what
    assert "KUBECONFIG" in caught.value.remedy


@pytest.mark.parametrize("code", [401, 403])
def test_a_refusal_without_any_credentials_names_the_plugin_that_may_be_missing_and_the_token_instead(
    pod: Scripted, code: int, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(kubeconfig(f"http://127.0.0.1:{pod.server.server_port}", {}))
    pod.answer(Answer(code, status('User "system:anonymous" cannot get resource "nodes"')))
    with pytest.raises(ConfigError, match="the kubeconfig has none") as caught:
        cluster_at(load_client(str(tmp_path / "config"))).node()
    assert "kubectl create token" in caught.value.remedy
    assert len(pod.requests) == 1


@pytest.mark.parametrize(
    ("context", "namespace"), [({"namespace": "mine"}, "mine"), ({}, ""), ({"namespace": 7}, "")], ids=str
)
def test_the_namespace_of_a_kubeconfig_is_that_of_its_context(
    tmp_path: Path, context: dict[str, Any], namespace: str
) -> None:
    (tmp_path / "config").write_text(kubeconfig(context=context))
    assert kubeconfig_namespace(str(tmp_path / "config")) == namespace
    assert kubeconfig_namespace(str(tmp_path / "none")) == ""


@pytest.fixture
def two(tmp_path: Path) -> str:
    """The path of a kubeconfig with the contexts c and other, each with its server and namespace."""
    found = json.loads(kubeconfig(context={"namespace": "mine"}))
    found["contexts"].append({"name": "other", "context": {"cluster": "other", "namespace": "theirs"}})
    found["clusters"].append({"name": "other", "cluster": {"server": "http://127.0.0.1:2"}})
    (tmp_path / "config").write_text(json.dumps(found))
    return str(tmp_path / "config")


@pytest.mark.parametrize(
    ("context", "port", "namespace"), [("", 1, "mine"), ("c", 1, "mine"), ("other", 2, "theirs")], ids=str
)
def test_a_context_chooses_server_and_namespace(two: str, context: str, port: int, namespace: str) -> None:
    client = load_client(two, context)
    assert isinstance(client, Library)
    assert client._client.configuration.host == f"http://127.0.0.1:{port}"
    assert client.renew()
    assert client._client.configuration.host == f"http://127.0.0.1:{port}"
    assert kubeconfig_namespace(two, context) == namespace


def test_a_context_that_is_not_there_is_named_with_those_that_are(two: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_client(two, "othr")
    assert caught.value.what == f"{two} has no context 'othr'"
    assert caught.value.remedy == "Name another one with --context (KUBE_CONTEXT): c, other."


def test_with_a_context_a_pod_uses_a_kubeconfig_and_not_its_own_account(
    two: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: tuple[bytes, ssl.SSLContext]
) -> None:
    monkeypatch.setattr(in_pod, "SERVICE_ACCOUNT", make_account(tmp_path / "account", "t", identity[0]))
    for key, value in variables(1).items():
        monkeypatch.setenv(key, value)
    assert isinstance(load_client(), InPod)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", two)
    client = load_client("", "other")
    assert isinstance(client, Library)
    assert client._client.configuration.host == "http://127.0.0.1:2"


def test_a_context_is_used_where_none_is_current(two: str) -> None:
    Path(two).write_text(Path(two).read_text().replace('"current-context": "c", ', ""))
    assert isinstance(load_client(two, "other"), Library)
    assert kubeconfig_namespace(two, "other") == "theirs"


def test_a_credential_plugin_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "CREDENTIALS_S", LIMIT_S)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["5"]}
    (tmp_path / "config").write_text(kubeconfig(user={"exec": plugin}))
    with ending_within(LIMIT_S), pytest.raises(ConfigError) as caught:
        library.load_kubeconfig(str(tmp_path / "config"))
    assert f"with {tmp_path / 'config'}: its credential plugin" in caught.value.what
    assert "gave no credentials: no result within 0." in caught.value.what


def test_connecting_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, noted = Library(kube_client.ApiClient(kube_client.Configuration(host="http://a.invalid"))), list[Any]()

    def request(*_: Any, timeout: Any, **__: Any) -> None:
        noted.append(timeout)
        raise OSError("silent")

    monkeypatch.setattr(transport._client.rest_client.pool_manager, "request", request)
    with pytest.raises(Unreachable, match="silent"):
        transport.send(GET, connect_s=2.0, read_s=9.0)
    assert noted[0].connect_timeout == 2.0
    assert 2.0 < noted[0].total <= 9.0


def test_a_token_that_is_refreshed_for_ever_ends_with_the_attempt() -> None:
    configuration = kube_client.Configuration(host="http://127.0.0.1:1")
    configuration.refresh_api_key_hook = lambda _: time.sleep(5.0)
    transport = Library(kube_client.ApiClient(configuration))
    with ending_within(LIMIT_S), pytest.raises(CredentialsUnreadable, match=r"no result within 0\.[23]\d* s"):
        transport.send(GET, connect_s=LIMIT_S, read_s=LIMIT_S)


def test_credentials_that_take_all_the_time_of_a_request_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A starved process ended with advice to renew the kubeconfig: urllib3 refuses a limit of 0 s as a ValueError."""

    def authorization(*_: Any) -> dict[str, str]:
        time.sleep(0.05)
        return {}

    monkeypatch.setattr(library, "_authorization", authorization)
    transport = Library(kube_client.ApiClient(kube_client.Configuration(host="http://127.0.0.1:1")))
    with pytest.raises(CredentialsUnreadable, match="all the time of the request"):
        transport.send(GET, connect_s=LIMIT_S, read_s=0.01)
