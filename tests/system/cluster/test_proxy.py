"""Proves that the fault proxy passes everything on as it comes, records it, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3

from tests.support.control_plane import proxy as proxy_connection
from tests.support.control_plane.api import Api, refusal, wait_until
from tests.support.control_plane.faults import Answer, Delay, Drop, Fault, Hold, Silence
from tests.support.control_plane.kubelet import Node, NodeFactory
from tests.support.control_plane.proxy import CLOSE_LIMIT_S, Proxy, opened, read_on, watch_path
from tests.support.control_plane.servers import ControlPlane, User
from tests.support.fakes.pace import patient

PODS = "/api/v1/pods"
ABSENT = "/api/v1/nodes/none"  # no node: its kubelet's own threads and connections would disturb the counting
QUIET = "/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dnone"
ROUNDS = 20


@pytest.fixture
def through(control_plane: ControlPlane, agent: User, proxy: Proxy) -> Iterator[Api]:
    """The agent's client, through the proxy."""
    with Api(proxy.url, control_plane.ca, agent.token, "agent-under-test") as api:
        yield api


@pytest.fixture
def target(node: NodeFactory) -> Node:
    """A node to ask for."""
    return node({"a": "0"})


def test_answers_and_refusals_pass_unchanged_and_every_request_is_on_record(
    control_plane: ControlPlane, agent: User, proxy: Proxy, through: Api, target: Node
) -> None:
    with control_plane.api(agent) as straight:
        assert through.get(target.path) == straight.get(target.path)
        missing = f"{target.path}-x"
        assert refusal(lambda: through.get(missing)).body == refusal(lambda: straight.get(missing)).body
        assert refusal(lambda: through.delete(target.path)).body == refusal(lambda: straight.delete(target.path)).body
    patch = {"metadata": {"labels": {"a": "1"}}}
    through.patch(target.path, patch)
    assert target.labels() == {"a": "1"}
    with Api(proxy.url, control_plane.ca, "wrong") as stranger:
        assert refusal(lambda: stranger.get(target.path)).status == 401

    seen = [(e.request.target.verb, e.request.target.name, e.request.user, e.status) for e in proxy.exchanges()]
    assert seen == [
        ("get", target.name, agent.name, 200),
        ("get", f"{target.name}-x", agent.name, 404),
        ("delete", target.name, agent.name, 403),
        ("patch", target.name, agent.name, 200),
        ("get", target.name, "", 401),
    ]
    (written,) = proxy.exchanges("patch", "nodes", user=agent.name)
    assert (written.request.body, written.request.user_agent) == (patch, "agent-under-test")
    assert proxy.exchanges(since=proxy.mark()) == []


def test_the_server_sees_the_clients_own_token_and_agent(
    control_plane: ControlPlane, agent: User, through: Api, target: Node
) -> None:
    mark = control_plane.audit_mark()
    through.list(PODS, fieldSelector=f"spec.nodeName={target.name}")
    (record,) = control_plane.audit(agent.name, since=mark)
    assert (record.verb, record.resource, record.user_agent, record.code) == ("list", "pods", "agent-under-test", 200)


def test_a_watch_passes_line_by_line_as_the_lines_come(
    control_plane: ControlPlane, agent: User, proxy: Proxy, target: Node
) -> None:
    waits_s: list[float] = []
    with opened(proxy, control_plane, agent, watch_path(target)) as stream:
        for round_ in range(1, ROUNDS + 1):
            target.set_labels({"a": str(round_)})
            began_s = time.monotonic()
            line = stream.read1()
            waits_s.append(time.monotonic() - began_s)
            assert f'"a":"{round_}"'.encode() in line
            assert line.endswith(b"\n")
    print(f"a watch's line after the answer to the write: median {1000 * statistics.median(waits_s):.1f} ms")
    assert statistics.median(waits_s) < patient(0.05)


def test_a_proxy_that_holds_a_line_back_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch, control_plane: ControlPlane, agent: User, proxy: Proxy, target: Node
) -> None:
    lines = proxy_connection._lines

    def late(response: HTTPResponse) -> Iterator[bytes]:
        held = b""
        for line in lines(response):
            if held:
                yield held
            held = line
        yield held

    monkeypatch.setattr(proxy_connection, "_lines", late)
    with opened(proxy, control_plane, agent, watch_path(target), patience_s=0.3) as stream:
        target.set_labels({"a": "1"})
        with pytest.raises(TimeoutError):
            stream.read1()


def test_a_client_that_hangs_up_ends_its_watch_at_the_server(
    control_plane: ControlPlane, agent: User, proxy: Proxy, target: Node
) -> None:
    mark = control_plane.audit_mark()
    with opened(proxy, control_plane, agent, watch_path(target)):
        (record,) = control_plane.audit(agent.name, since=mark)
        assert record.code is None
    wait_until(lambda: control_plane.audit(agent.name, since=mark)[0].code == 200, "the server's end of the watch")
    (exchange,) = proxy.exchanges("watch")
    wait_until(lambda: proxy.exchanges("watch")[0].ended_at_s, "the proxy's end of the watch")
    assert exchange.status == 200


def test_a_watch_that_the_server_ends_ends_regularly(through: Api, target: Node) -> None:
    with through.watch("/api/v1/nodes", timeout_s=1, fieldSelector=f"metadata.name={target.name}") as stream:
        assert [kind for kind, _ in stream] == ["ADDED"]


def _fds() -> int:
    """Open descriptors. A client's are closed when its urllib3 pool is collected, and errors refer to the pool."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def _leave_while_in_use(control_plane: ControlPlane, agent: User) -> None:
    """Leave a proxy with a held, a delayed and a silenced request, a watch, and two connections that ask nothing."""
    hold, silence, slow = Fault(Hold(), verb="patch"), Fault(Silence()), Fault(Delay(60), verb="list")
    with ThreadPoolExecutor(3) as aside, contextlib.ExitStack() as clients:
        with Proxy.before(control_plane, hold, silence, slow) as proxy:
            api = clients.enter_context(Api(proxy.url, control_plane.ca, agent.token))
            streams = [clients.enter_context(opened(proxy, control_plane, agent, QUIET)) for _ in range(2)]
            address = urlsplit(proxy.url)
            clients.enter_context(socket.create_connection((address.hostname or "", address.port or 0)))
            waiting: list[Future[object]] = [aside.submit(api.patch, ABSENT, {}), aside.submit(api.list, PODS)]
            api.answers(ABSENT)
            for fault in (hold, silence, slow):
                proxy.wait_fired(fault)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < patient(CLOSE_LIMIT_S)
        for done in waiting:
            with pytest.raises(urllib3.exceptions.HTTPError):
                done.result(timeout=25)
        for stream in streams:
            with pytest.raises((IncompleteRead, OSError)):
                read_on(stream, bytearray())


def test_leaving_ends_whatever_is_open_within_half_a_second_and_leaks_nothing(
    control_plane: ControlPlane, agent: User
) -> None:
    threads, fds = threading.enumerate(), _fds()
    _leave_while_in_use(control_plane, agent)
    assert threading.enumerate() == threads
    assert _fds() == fds


def test_connections_that_have_ended_leave_no_thread_and_no_descriptor(
    control_plane: ControlPlane, agent: User, proxy: Proxy
) -> None:
    def count() -> tuple[int, int]:
        return threading.active_count(), _fds()

    idle = count()
    for fault in (Fault(Drop()), Fault(Drop(applied=True)), Fault(Answer(500)), None):
        proxy.add(*([fault] if fault else []))
        with Api(proxy.url, control_plane.ca, agent.token) as api, contextlib.suppress(Exception):
            api.get(ABSENT)
        with opened(proxy, control_plane, agent, QUIET):
            pass
    proxy.assert_all_fired()
    wait_until(lambda: count() == idle, "as many threads and descriptors as before")


def test_plain_http_serves_where_no_certificate_is_given(
    control_plane: ControlPlane, agent: User, target: Node
) -> None:
    with Proxy(control_plane.url, control_plane.ca) as proxy, Api(proxy.url, None, agent.token) as api:
        assert proxy.url.startswith("http://")
        assert api.get(target.path)["metadata"]["name"] == target.name


def test_several_clients_at_once_are_each_answered_with_their_own(
    proxy: Proxy, control_plane: ControlPlane, agent: User, reader_nodes: list[Node]
) -> None:
    def ask(node: Node) -> list[str]:
        with Api(proxy.url, control_plane.ca, agent.token) as api:
            return [str(api.get(node.path)["metadata"]["name"]) for _ in range(10)]

    with ThreadPoolExecutor(8) as aside:
        answers = list(aside.map(ask, reader_nodes * 4))
    assert answers == [[node.name] * 10 for node in reader_nodes * 4]
    assert len(proxy.exchanges("get", "nodes")) == 10 * len(answers)


@pytest.fixture
def reader_nodes(node: NodeFactory) -> list[Node]:
    """Two nodes to tell apart."""
    return [node(), node()]
