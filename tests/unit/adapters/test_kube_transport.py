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
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from urllib3.util.ssl_ import create_urllib3_context

from driver_manager.adapters.http import Bounded, Limit, TooLarge, connected, whole
from driver_manager.adapters.kube import api as kube_api
from driver_manager.adapters.kube import kubeconfig as library
from driver_manager.adapters.kube import transport as in_pod
from driver_manager.adapters.kube.api import load_client
from driver_manager.adapters.kube.kubeconfig import Library, kubeconfig_namespace
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.transport import InPod, Transport, Unreachable, WireRequest
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.core.pods import PodWait
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ApiUnavailable, ConfigError, PodsRemain, WatchBroken
from driver_manager.domain.node import NodeChange
from tests.support.control_plane.servers import Authority
from tests.support.fakes.clock import RecordingReporter
from tests.support.fakes.dripping import ANSWERS, CHUNKED, OK, Dripping, Peer, Serve, certified, dripping, hello, server
from tests.support.fakes.pace import patient
from tests.support.fakes.plain_pod import PlainInPod, kubeconfig, make_account, variables
from tests.support.fakes.scripted_api import BUDGET_S, IN_POD, TRANSPORTS, Answer, Scripted, by_library, transport_to
from tests.support.selection import examples

Patch = pytest.MonkeyPatch
FLOOD = dripping(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n", 0.0)
LIMIT_S = 0.3
GET = WireRequest("GET", "/api/v1/nodes/n", None, {})
BODY = b" " * 16 * 2**20
LARGE = WireRequest("PATCH", "/api/v1/nodes/n", BODY, {})

Talk = Callable[[Serve], AbstractContextManager[tuple[Transport, Dripping]]]


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, ssl.SSLContext]:
    return certified(tmp_path_factory.mktemp("identity"))


@pytest.fixture(params=TRANSPORTS)
def talk(request: pytest.FixtureRequest, tmp_path: Path, identity: tuple[bytes, ssl.SSLContext]) -> Talk:
    authority, context = identity

    @contextmanager
    def talking(serve: Serve) -> Iterator[tuple[Transport, Dripping]]:
        with server(serve, None if serve is hello else context) as there:
            yield transport_to(request.param, there.port, tmp_path / "account", authority=authority), there
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


def reading_slowly(peer: Peer) -> None:
    while peer.sock.recv(4096):
        time.sleep(0.02)


SLOW: dict[str, tuple[Serve, WireRequest, float]] = {
    **{name: (serve, GET, 0.5) for name, serve in ANSWERS.items()},
    "request": (reading_slowly, LARGE, 0.5),
    "request-and-answer": (taking_its_time, LARGE, 1.2),
}


def assert_limited(transport: Transport, request: WireRequest, limit_s: float) -> None:
    with ending_within(limit_s), pytest.raises(Unreachable):
        transport.send(request, connect_s=limit_s, read_s=limit_s)


@pytest.mark.parametrize(
    ("serve", "request_", "limit_s"),
    [
        pytest.param(hello, GET, LIMIT_S, id="handshake"),
        *(pytest.param(*slow, id=name, marks=pytest.mark.submission) for name, slow in SLOW.items()),
    ],
)
def test_request_and_answer_share_one_limit(talk: Talk, serve: Serve, request_: WireRequest, limit_s: float) -> None:
    with talk(serve) as (transport, _):
        assert_limited(transport, request_, limit_s)


def test_a_proxy_whose_headers_drip_ends_with_the_limit() -> None:
    with server(dripping(OK, b"X: y\r\n")) as there:
        transport = by_library("https://server.invalid", proxy=f"http://127.0.0.1:{there.port}")
        assert_limited(transport, GET, LIMIT_S)
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


def test_a_name_that_is_looked_up_for_ever_ends_with_the_limit(monkeypatch: Patch) -> None:
    real = socket.getaddrinfo

    def look_up(host: str, *rest: Any) -> Any:
        if len(rest) < 5:
            time.sleep(5.0)
        return real(host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with ending_within(LIMIT_S), pytest.raises(TimeoutError, match=r"no result within 0\.[23]"):
        connected(("name.invalid", 1), LIMIT_S)


def test_all_addresses_of_a_name_share_one_limit(monkeypatch: Patch) -> None:
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


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("mode", ["body", "header", "flood"])
def test_a_run_ends_whatever_the_server_sends(mode: str, tmp_path: Path) -> None:
    with server({**ANSWERS, "flood": FLOOD}[mode]) as there:
        (tmp_path / "config").write_text(kubeconfig(server=f"http://127.0.0.1:{there.port}"))
        env = {"NODE_NAME": "n", "HOST_ROOT": str(tmp_path), "KUBECONFIG": str(tmp_path / "config")}
        env["API_TIMEOUT"] = "1s"
        begun_s = time.monotonic()
        argv = [sys.executable, "-m", "driver_manager", "reconcile-driver-state"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 8, done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - begun_s <= patient(15.0)


# size limits, and bodies that are none


def sized(body: bytes, headers: bytes = b"") -> bytes:
    return OK + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def answering(*parts: bytes) -> Serve:
    """The parts at once, and then nothing more until the client goes."""

    def serve(peer: Peer) -> None:
        while peer.take():
            for part in parts:
                peer.send(part)

    return serve


ENDLESS = {
    "chunked": FLOOD,
    "without-length": dripping(OK + b"\r\n", b" " * 65536, 0.0),
    "huge-length": dripping(OK + b"Content-Length: 999999999999999\r\n\r\n", b" " * 65536, 0.0),
}


@pytest.mark.parametrize("serve", ENDLESS.values(), ids=ENDLESS)
def test_a_body_without_an_end_is_not_read_to_it(serve: Serve, talk: Talk, monkeypatch: Patch) -> None:
    for module in (in_pod, library):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 1024 * 1024)
    with talk(serve) as (transport, _), pytest.raises(Unreachable, match="has more than 1024 KiB"):
        transport.send(GET, connect_s=30.0, read_s=60.0)


BAD_CHUNKS = [b"-1", b"-5", b"+5", b" 5", b"0x5", b"5_0", b"", b";5", b"5 5", b"f" * 17, b"5" * 70_000]
"""Lines before a chunk: `int` takes most of them, and of a negative size all that comes would be read at once."""

NO_LENGTH = "Content-Length is not one number"
BAD_LENGTHS = [b"-1", b"+2", b"2_0", b"0x2", b"two", b"2, 3", b"2\r\nContent-Length: 3"]
BAD_HEADS = {
    **{f"chunk {line[:20]!r}": (CHUNKED + line + b"\r\n", "IncompleteRead(0 bytes read)") for line in BAD_CHUNKS},
    **{f"length {text!r}": (OK + b"Content-Length: " + text + b"\r\n\r\n", NO_LENGTH) for text in BAD_LENGTHS},
}


@pytest.mark.parametrize(("head", "why"), BAD_HEADS.values(), ids=BAD_HEADS)
def test_a_chunk_or_an_answer_without_a_size_is_no_answer(head: bytes, why: str, talk: Talk) -> None:
    with talk(answering(head + b"{}" + b" " * 2**21)) as (transport, _), pytest.raises(Unreachable) as caught:
        transport.send(GET, connect_s=30.0, read_s=30.0)
    assert why in str(caught.value)


PADDED = (b"2", b"02", b"2  ", b"2;a=b", b"2 ; a")
PACKED = gzip.compress(b" " * 10_000_000)
WHOLE = {
    **{repr(line): (CHUNKED + line + b"\r\n{}\r\n0\r\n\r\n", b"{}") for line in PADDED},
    "at the limit": (sized(b"x" * 300_000), b"x" * 300_000),
    "packed": (sized(PACKED, b"Content-Encoding: gzip\r\n"), PACKED),
}


@pytest.mark.parametrize(("answer", "body"), WHOLE.values(), ids=WHOLE)
def test_a_body_up_to_the_limit_is_read_as_it_is(answer: bytes, body: bytes, talk: Talk, monkeypatch: Patch) -> None:
    for module in (in_pod, library):
        monkeypatch.setattr(module, "MAX_BODY_BYTES", 300_000)
    with talk(answering(answer)) as (transport, _):
        for _ in range(2):
            assert transport.send(GET, connect_s=30.0, read_s=60.0).data == body


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
def test_a_watch_that_is_kept_alive_with_nothing_delays_nothing(watch: Serve, talk: Talk, monkeypatch: Patch) -> None:
    def serve(peer: Peer) -> None:
        """One pod that does not leave, and `watch` for those who watch it."""
        if b"watch=1" in peer.take():
            watch(Peer(peer.sock, peer.tls, peer.incoming, peer.outgoing, has_taken=True))
        else:
            peer.send(sized(PODS, b"Connection: close\r\n"))

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
def test_an_event_without_an_end_is_not_read_to_it(serve: Serve, why: str, talk: Talk, monkeypatch: Patch) -> None:
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

    answer = SimpleNamespace(status=200, read_some=lambda: next(pieces), allow=lambda *_: None, close=lambda: None)
    transport: Any = SimpleNamespace(send=lambda *_, **__: answer)
    api = kube_api.KubeApi(transport, SystemClock(), RecordingReporter(), 1.0)
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

IN_A_POD = pytest.mark.parametrize("running", [IN_POD], indirect=True)
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


def test_a_reconcile_in_a_pod_imports_no_library_for_its_requests(tmp_path: Path, account: Path) -> None:
    env = {**variables(1), "NODE_NAME": "n", "HOST_ROOT": str(tmp_path), "API_TIMEOUT": "0s"}
    argv = [sys.executable, "-c", IMPORTING, str(account)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["code"], "Connection refused" in done.stderr) == (8, True), done.stderr
    assert "http" in found["modules"]
    assert not HEAVY & set(found["modules"])


@IN_A_POD
def test_calls_share_a_connection_until_the_server_ends_it_and_a_watch_has_its_own(api: Scripted) -> None:
    api.keeps_connections = True
    api.answer(Answer(), Answer(), Answer(body=b""), Answer())
    api.cluster.node()
    api.cluster.node()
    assert list(api.cluster.watch_pods("1", 5)) == []
    api.keeps_connections = False
    api.cluster.patch_node(NodeChange(labels={"a": "b"}), None)
    api.cluster.node()
    first, second, watch, last, another = api.connections
    assert first == second == last
    assert len({first, watch, another}) == 3
    assert api.clock.slept == []


@pytest.fixture
def account(tmp_path: Path, monkeypatch: Patch, identity: tuple[bytes, ssl.SSLContext]) -> Path:
    """The service account of this process, as in a pod without a proxy."""
    made = make_account(tmp_path / "account", "t", identity[0])
    monkeypatch.setattr(in_pod, "SERVICE_ACCOUNT", made)
    for name in (*in_pod.PROXIES, "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables(1).items():
        monkeypatch.setenv(name, value)
    return made


def test_where_a_proxy_is_to_be_asked_the_library_is_used(account: Path, monkeypatch: Patch) -> None:
    environ = {**variables(1), **PROXY}
    assert not in_pod.is_in_pod(account, environ)
    assert in_pod.is_in_pod(account, {**environ, "NO_PROXY": environ["KUBERNETES_SERVICE_HOST"]})
    for proxy in in_pod.PROXIES:
        assert not in_pod.is_in_pod(account, {proxy: "http://127.0.0.1:3128"})
    assert isinstance(load_client(), InPod)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:3128")
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(account / "token"))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", str(account / "ca.crt"))
    assert isinstance(load_client(), Library)


PROXY = {"HTTPS_PROXY": "http://127.0.0.1:3128"}


DIRECT = {
    "10.96.0.1": ["10.96.0.1", "localhost, 10.96.0.0/12", "10.96.0.0/16,.svc", "10.96.0.1:443", "10.96.0.0/12:443"],
    "fd00:10::1": ["fd00:10::/32", "fd00:10::7/32", "[fd00:10::1]:443", "FD00:10:0::1", "*"],
    "[fd00:10::1]": ["fd00:10::1"],
    "kubernetes.default.svc": [".svc", "svc", "*.svc", "default.svc:443", "10.0.0.0/8 .svc"],
    "Kubernetes.Default.SVC": [".Svc"],
}
PROXIED = {
    "10.96.0.1": ["10.97.0.0/16", "10.96.0.1:6443", "96.0.1,10.96.0", "", " ,, ", "["],
    "fd00:10::1": ["[fd00:10::1]:80", "10.0.0.0/8"],
    "kubernetes.default.svc": ["vc", "."],
}


@pytest.mark.parametrize(("hosts", "proxy"), [(DIRECT, ""), (PROXIED, "HTTPS_PROXY")], ids=["direct", "proxied"])
def test_no_proxy_names_hosts_networks_and_ports(hosts: dict[str, list[str]], proxy: str) -> None:
    for host, rules in ((host, rules) for host, all_rules in hosts.items() for rules in all_rules):
        for name in ("NO_PROXY", "no_proxy"):
            assert in_pod.proxy_for(host, "443", {**PROXY, name: rules}) == proxy, (host, rules)
        assert in_pod.proxy_for(host, "443", {"NO_PROXY": rules, "HTTPS_PROXY": ""}) == ""
    environ = {**PROXY, "no_proxy": "10.0.0.0/8", "NO_PROXY": "*"}  # the variable in small letters comes first
    assert in_pod.proxy_for("192.168.0.1", "443", environ) == "HTTPS_PROXY"
    assert in_pod.proxy_for("10.1.2.3", "443", environ) == ""


@pytest.mark.parametrize("rules", ["", "127.0.0.0/8"])
def test_a_server_out_of_reach_by_proxy_has_that_in_its_remedy(tmp_path: Path, monkeypatch: Patch, rules: str) -> None:
    (tmp_path / "config").write_text(kubeconfig("https://127.0.0.1:1"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", rules)
    api = kube_api.KubeApi(load_client(str(tmp_path / "config")), SystemClock(), RecordingReporter(), 1.0)
    with pytest.raises(ApiUnavailable) as caught:
        api.call("GET", "/api/v1/nodes/n", "get nodes")
    assert ("add the API server to NO_PROXY" in caught.value.remedy) is not bool(rules), caught.value


@pytest.mark.parametrize("signs", [True, False])
def test_a_ca_without_key_identifier_is_trusted(tmp_path: Path, monkeypatch: Patch, identity: Any, signs: bool) -> None:
    """On each Python as on 3.13, where urllib3 demands them."""

    def strict(*args: Any, **settings: Any) -> ssl.SSLContext:
        made: ssl.SSLContext = create_urllib3_context(*args, **settings)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    for place in ("urllib3.connection", library.__name__):
        monkeypatch.setattr(f"{place}.create_urllib3_context", strict)
    authority, context = certified(tmp_path, identifiers=False)

    with server(answering(sized(b"{}")), context if signs else identity[1]) as there:
        transport = by_library(f"https://127.0.0.1:{there.port}", ca_cert_data=authority.decode())
        with contextlib.nullcontext() if signs else pytest.raises(Unreachable) as caught:
            assert transport.send(GET, connect_s=5, read_s=5).status == 200
        assert caught is None or caught.value.doubt is not None


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_an_intermediate_ca_is_trusted_without_its_root(tmp_path: Path, kind: str) -> None:
    for name in ("root", "middle"):
        (tmp_path / name).mkdir()
    root = Authority(tmp_path / "root")
    root.establish()
    authority, context = certified(tmp_path / "middle", root=root)
    with server(answering(sized(b"{}")), context) as there:
        transport = transport_to(kind, there.port, tmp_path / "account", authority=authority)
        assert transport.send(GET, connect_s=5, read_s=5).status == 200


@pytest.mark.usefixtures("account")
def test_a_kubeconfig_is_followed_with_the_same_rules_for_proxies(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    for host, rules, proxy in (
        ("127.0.0.1", "127.0.0.1 .svc", None),
        ("127.0.0.1", "127.0.0.0/8:6443", None),
        ("[fd00::1]", "[fd00::/8]", None),
        ("127.0.0.1", "10.0.0.0/8", "http://127.0.0.1:1"),
    ):
        (tmp_path / "config").write_text(kubeconfig(f"https://{host}:6443"))
        monkeypatch.setenv("NO_PROXY", rules)
        assert library.load_kubeconfig(str(tmp_path / "config"))._client.configuration.proxy == proxy, rules


NO_ADDRESS, NO_CA = "do not name the API server", "its CA certificate cannot be read"


def test_an_unusable_account_is_a_config_error(tmp_path: Path, identity: tuple[bytes, ssl.SSLContext]) -> None:
    for environ, lost, authority, expected in (
        ({}, "", identity[0], NO_ADDRESS),
        ({"KUBERNETES_SERVICE_HOST": "h"}, "", identity[0], NO_ADDRESS),
        ({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "x"}, "", identity[0], NO_ADDRESS),
        (variables(1), "token", identity[0], "token"),
        (variables(1), "ca.crt", identity[0], NO_CA),
        (variables(1), "", b"", NO_CA),
        (variables(1), "", b"junk", NO_CA),
        (variables(1), "", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", NO_CA),
    ):
        account = make_account(tmp_path, "t", authority)
        if lost:
            (account / lost).unlink()
        with pytest.raises(ConfigError, match="cannot connect to the cluster") as caught:
            InPod(account, environ)
        assert expected in caught.value.what


@IN_A_POD
def test_a_newline_behind_the_token_is_not_sent(api: Scripted, tmp_path: Path) -> None:
    transport = PlainInPod(make_account(tmp_path, "t\n"), variables(api.server.server_port))
    assert cluster_at(transport).node().uid == "u"
    assert api.requests[0].headers["authorization"] == "Bearer t"
    transport.renew()


# by kubeconfig

SECURE = "https://127.0.0.1:1"
JUNK = ("anVuaw==", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=")
OWN = ("client-certificate-data", "client-key-data")
NO_KEY = "its client certificate and key cannot be read"


def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    for content, why in (
        (None, "no such file"),
        *((content, "") for content in (b"", b"garbage", b"\xff\xfe\x00", b"[1, 2]", b"{unclosed: [")),
        (kubeconfig().replace('"current-context": "c"', '"current-context": "gone"').encode(), ""),
        (kubeconfig().replace('"users": [', '"users": 1, "x": [').encode(), ""),
        (kubeconfig(SECURE, {"client-certificate": "/absent"}).encode(), ""),
        *((kubeconfig(SECURE, **{"certificate-authority-data": junk}).encode(), NO_CA) for junk in JUNK),
        *((kubeconfig(SECURE, dict.fromkeys(OWN, junk)).encode(), NO_KEY) for junk in JUNK),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_client(str(path))
        assert str(path) in caught.value.what
        assert why in caught.value.what
        assert "\n" not in caught.value.what
        assert "KUBECONFIG" in caught.value.remedy


@IN_A_POD
@pytest.mark.parametrize("code", [401, 403])
def test_a_refusal_without_credentials_names_the_plugin_or_a_token(api: Scripted, code: int, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(kubeconfig(f"http://127.0.0.1:{api.server.server_port}", {}))
    api.answer(Answer(code, {"message": 'User "system:anonymous" cannot get resource "nodes"'}))
    with pytest.raises(ConfigError, match="the kubeconfig has none") as caught:
        cluster_at(load_client(str(tmp_path / "config"))).node()
    assert "kubectl create token" in caught.value.remedy
    assert len(api.requests) == 1


def test_the_namespace_of_a_kubeconfig_is_that_of_its_context(tmp_path: Path) -> None:
    assert kubeconfig_namespace(str(tmp_path / "none")) == ""
    for context, namespace in (({"namespace": "mine"}, "mine"), ({}, ""), ({"namespace": 7}, "")):
        (tmp_path / "config").write_text(kubeconfig(context=context))
        assert kubeconfig_namespace(str(tmp_path / "config")) == namespace, context


@pytest.fixture
def two(tmp_path: Path) -> str:
    """The path of a kubeconfig with the contexts c and other, each with its server and namespace."""
    found = json.loads(kubeconfig(context={"namespace": "mine"}))
    found["contexts"].append({"name": "other", "context": {"cluster": "other", "namespace": "theirs"}})
    found["clusters"].append({"name": "other", "cluster": {"server": "http://127.0.0.1:2"}})
    (tmp_path / "config").write_text(json.dumps(found))
    return str(tmp_path / "config")


def test_a_context_chooses_server_and_namespace_and_one_that_is_missing_is_named(two: str) -> None:
    for context, port, namespace in (("", 1, "mine"), ("c", 1, "mine"), ("other", 2, "theirs")):
        client = load_client(two, context)
        assert isinstance(client, Library)
        for _ in range(2):
            assert client._client.configuration.host == f"http://127.0.0.1:{port}"
            assert client.renew()
        assert kubeconfig_namespace(two, context) == namespace
    Path(two).write_text(Path(two).read_text().replace('"current-context": "c", ', ""))
    assert isinstance(load_client(two, "other"), Library)
    assert kubeconfig_namespace(two, "other") == "theirs"
    with pytest.raises(ConfigError) as caught:
        load_client(two, "othr")
    assert caught.value.what == f"{two} has no context 'othr'"
    assert caught.value.remedy == "Name another one with --context (KUBE_CONTEXT): c, other."


@pytest.mark.usefixtures("account")
def test_with_a_context_a_pod_uses_a_kubeconfig_and_not_its_own_account(two: str, monkeypatch: Patch) -> None:
    assert isinstance(load_client(), InPod)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", two)
    client = load_client("", "other")
    assert isinstance(client, Library)
    assert client._client.configuration.host == "http://127.0.0.1:2"


def test_a_credential_plugin_that_does_not_end_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(library, "CREDENTIALS_S", LIMIT_S)
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["5"]}
    (tmp_path / "config").write_text(kubeconfig(user={"exec": plugin}))
    with ending_within(LIMIT_S), pytest.raises(ConfigError) as caught:
        library.load_kubeconfig(str(tmp_path / "config"))
    assert f"with {tmp_path / 'config'}: its credential plugin" in caught.value.what
    assert "gave no credentials: no result within 0." in caught.value.what


def test_connecting_has_a_limit_of_its_own(monkeypatch: Patch) -> None:
    transport, noted = by_library("http://a.invalid"), list[Any]()

    def request(*_: Any, timeout: Any, **__: Any) -> None:
        noted.append(timeout)
        raise OSError("silent")

    monkeypatch.setattr(transport._client.rest_client.pool_manager, "request", request)
    with pytest.raises(Unreachable, match="silent"):
        transport.send(GET, connect_s=2.0, read_s=9.0)
    assert noted[0].connect_timeout == 2.0
    assert 2.0 < noted[0].total <= 9.0


def test_a_token_that_is_refreshed_for_ever_ends_with_the_attempt() -> None:
    transport = by_library("http://127.0.0.1:1", refresh_api_key_hook=lambda _: time.sleep(5.0))
    with ending_within(LIMIT_S), pytest.raises(in_pod.CredentialsUnreadable, match=r"no result within 0\.[23]\d* s"):
        transport.send(GET, connect_s=LIMIT_S, read_s=LIMIT_S)


def test_credentials_that_take_all_the_time_of_a_request_are_tried_again(monkeypatch: Patch) -> None:
    """A starved process ended with advice to renew the kubeconfig: urllib3 refuses a limit of 0 s as a ValueError."""

    def authorization(*_: Any) -> dict[str, str]:
        time.sleep(0.05)
        return {}

    monkeypatch.setattr(library, "_authorization", authorization)
    with pytest.raises(in_pod.CredentialsUnreadable, match="all the time of the request"):
        by_library("http://127.0.0.1:1").send(GET, connect_s=LIMIT_S, read_s=0.01)
