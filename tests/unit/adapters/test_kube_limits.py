"""The API is never waited for longer than told, SIGTERM ends a read, and bad credentials are a configuration error."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as kube_client

from driver_manager.adapters.http import Bounded
from driver_manager.adapters.kube.api import ATTEMPT_S, CONNECT_S, SHORTEST_ATTEMPT_S, KubeApi, load_client
from driver_manager.adapters.kube.kubeconfig import Library
from driver_manager.adapters.kube.node import KubeCluster
from driver_manager.adapters.kube.transport import Transport, Unreachable, WireRequest
from driver_manager.domain.errors import ApiUnavailable, ConfigError, Terminated
from driver_manager.domain.node import NodeChange
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.pace import patient
from tests.support.fakes.plain_pod import PlainInPod, make_account, variables
from tests.support.fakes.scripted_api import LIBRARY, NODE, TRANSPORTS, Answer, Scripted, transport_to


class SilentPool:
    """A connection that only notes how long it was told to wait, of either transport."""

    def __init__(self) -> None:
        self.read_s: list[float] = []
        self.connect_s: list[float] = []
        self.rest_client = self
        self.pool_manager = self
        self.configuration = kube_client.Configuration(host="http://silent.invalid")

    def request(self, method: str, url: str, *, timeout: Any, **_: Any) -> Any:
        self.read_s.append(timeout.read_timeout)
        self.connect_s.append(timeout.connect_timeout)
        raise OSError("silent")


class SilentInPod(PlainInPod):
    """As above: its connections only note."""

    def __init__(self, folder: Path, noted: SilentPool) -> None:
        super().__init__(make_account(folder, "t"), variables(1))
        self._noted = noted

    def connection(self, _: ssl.SSLContext, connect_s: float) -> Bounded:
        noted = self._noted

        class Socket:
            def settimeout(self, read_s: float) -> None:
                noted.read_s.append(read_s)

        class Connection(Bounded):
            def connect(self) -> None:
                noted.connect_s.append(connect_s)
                self.sock = Socket()

            def request(self, *_: Any, **__: Any) -> None:
                self.sock = None
                raise OSError("silent")

        return Connection("silent.invalid", timeout=connect_s)


@pytest.fixture(params=TRANSPORTS)
def silent(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[SilentPool, Transport]:
    """What was noted, and the transport that notes it."""
    pool = SilentPool()
    return pool, Library(pool) if request.param == LIBRARY else SilentInPod(tmp_path, pool)


def assert_bounded(pool: SilentPool, read_s: float, since_s: float) -> None:
    """Each read had `read_s` seconds, but for what connecting took: less than all that was done since then."""
    took_s = time.monotonic() - since_s
    assert pool.read_s
    assert all(read_s - took_s <= one <= read_s + 0.01 for one in pool.read_s), (pool.read_s, read_s, took_s)


@pytest.mark.parametrize(("limits", "read_s"), [((), ATTEMPT_S), ((1.5,), 1.5), ((1.5, 60.0), 1.5), ((99.0,), 15)])
def test_a_limited_budget_bounds_each_read_too(
    silent: tuple[SilentPool, Transport], limits: tuple[float, ...], read_s: float
) -> None:
    pool, transport = silent
    begun_s = time.monotonic()
    cluster = KubeCluster(transport, "n", FakeClock(), RecordingReporter(), 60.0)
    for limit in limits:
        cluster.limit_retries(limit)
    with pytest.raises(ApiUnavailable):
        cluster.node()
    cluster.post_event("X", "y", warning=False)
    assert_bounded(pool, read_s, begun_s)
    assert max(pool.connect_s) <= CONNECT_S


@pytest.mark.parametrize(("budget_s", "read_s"), [(60.0, ATTEMPT_S), (5.0, 2.5), (0.0, SHORTEST_ATTEMPT_S)])
def test_a_hung_attempt_leaves_half_of_a_small_budget_for_another(
    silent: tuple[SilentPool, Transport], budget_s: float, read_s: float
) -> None:
    pool, transport = silent
    begun_s = time.monotonic()
    with pytest.raises(ApiUnavailable):
        KubeCluster(transport, "n", FakeClock(), RecordingReporter(), budget_s).node()
    assert_bounded(pool, read_s, begun_s)


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
            transport.send(WireRequest("GET", "/", None, {}), connect_s=5.0, read_s=0.2)
        with pytest.raises(Unreachable, match="TimeoutError: timed out"):
            transport.send(WireRequest("GET", "/", None, {}), connect_s=5.0, read_s=3.0)
    assert time.monotonic() - begun_s >= 3.2


def test_a_limited_budget_bounds_connecting_too(silent: tuple[SilentPool, Transport]) -> None:
    pool, transport = silent
    cluster = KubeCluster(transport, "n", FakeClock(), RecordingReporter(), 2.0)
    cluster.limit_retries(1.5)
    with pytest.raises(ApiUnavailable):
        cluster.node()
    assert max(pool.connect_s) <= 1.5


class Signalled(FakeClock):
    """A clock that notes which requests SIGTERM may end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False

    @contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False


def test_reads_end_with_sigterm_and_writes_do_not(running: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    running.start_over()
    clock, sent = Signalled(), list[tuple[str, bool]]()
    real = KubeApi._send

    def send(self: KubeApi, method: str, *rest: Any, **options: Any) -> Any:
        sent.append((method, clock.is_open))
        return real(self, method, *rest, **options)

    monkeypatch.setattr(KubeApi, "_send", send)
    cluster = KubeCluster(running.api, "n", clock, RecordingReporter(), 60.0)
    running.answer(*[Answer(body={**NODE, "items": []})] * 4, Answer(body=b""))
    cluster.node()
    cluster.pods()
    cluster.patch_node(NodeChange(labels={"a": "b"}), None)
    cluster.post_event("X", "y", warning=False)
    list(cluster.watch_pods("1", 1.0))
    assert sent == [("GET", True), ("GET", True), ("PATCH", False), ("POST", False), ("GET", True)]


def test_a_told_process_does_not_even_begin_to_read(running: Scripted) -> None:
    running.start_over()
    running.clock.ask_to_end()
    with pytest.raises(Terminated):
        running.cluster.node()
    assert running.requests == []
    with running.clock.shielded():
        assert running.cluster.node().uid == "u"


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("token", ["a\nb", "a\r\nX: y", "b\u2028c"])
def test_credentials_that_no_header_can_hold_are_a_configuration_error(
    running: Scripted, token: str, kind: str, tmp_path: Path
) -> None:
    running.start_over()
    transport = transport_to(kind, running.server.server_port, tmp_path, token)
    cluster = KubeCluster(transport, "n", FakeClock(), RecordingReporter(), 1.0)
    with pytest.raises(ConfigError, match="credentials cannot be sent") as caught:
        cluster.node()
    assert token not in f"{caught.value.what} {caught.value.remedy}"
    assert running.requests == []


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_server_that_accepts_and_says_nothing_is_given_up(kind: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[socket.socket] = []
        thread = threading.Thread(target=lambda: held.append(listener.accept()[0]))
        thread.start()
        transport = transport_to(kind, listener.getsockname()[1], tmp_path)
        cluster = KubeCluster(transport, "n", FakeClock(), RecordingReporter(), 30.0)
        cluster.limit_retries(0.2)
        begin = time.monotonic()
        cluster.post_event("X", "y", warning=True)
        assert time.monotonic() - begin < patient(2.0)
        thread.join()
        held[0].close()


GOOD_KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


def test_a_kubeconfig_is_used(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(GOOD_KUBECONFIG)
    transport = load_client(str(tmp_path / "config"))
    assert isinstance(transport, Library)
    assert transport.configuration.host == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"garbage",
        b"\xff\xfe\x00",
        b"[1, 2]",
        b"{unclosed: [",
        GOOD_KUBECONFIG.replace("current-context: c", "current-context: gone").encode(),
        GOOD_KUBECONFIG.replace("http:", "https:").replace("token: t", "client-certificate: /absent").encode(),
        GOOD_KUBECONFIG.replace("users: [{name: u, user: {token: t}}]", "users: 1").encode(),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_client(str(path))
    assert str(path) in caught.value.what
    assert "\n" not in caught.value.what
    assert "KUBECONFIG" in caught.value.remedy
