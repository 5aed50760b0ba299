"""The fault proxy passes everything on as it comes, does each fault as scripted, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import gc
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3

from tests.support.control_plane.api import Api, refusal, status_of, wait_until
from tests.support.control_plane.faults import (
    ALWAYS,
    Answer,
    Certificate,
    CutLine,
    Delay,
    Drop,
    ErrorEvent,
    Fault,
    Gone,
    Hold,
    Rotate,
    Silence,
)
from tests.support.control_plane.kubelet import Node, NodeFactory
from tests.support.control_plane.proxy import CLOSE_LIMIT_S, Proxy, opened, read_on, watch_path
from tests.support.control_plane.servers import ControlPlane, User, all_certificates
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
    mark = control_plane.audit_mark()
    through.patch(target.path, patch)
    (record,) = control_plane.audit(agent.name, since=mark)
    assert (record.verb, record.user_agent, record.body) == ("patch", "agent-under-test", patch)
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


def test_a_scripted_status_is_answered_with_a_status_object(
    control_plane: ControlPlane, agent: User, proxy: Proxy, through: Api, target: Node
) -> None:
    mark = control_plane.audit_mark()
    for status in (401, 403, 404, 409, 410, 422, 429, 500, 503):
        proxy.add(Fault(Answer(status), verb="get", resource="nodes"))
        answer = refusal(lambda: through.get(target.path))
        assert (answer.status, answer.body["kind"], answer.body["code"]) == (status, "Status", status)
        assert answer.body["reason"]
    assert control_plane.audit(agent.name, since=mark) == []
    through.get(target.path)
    proxy.assert_all_fired()
    assert [exchange.status for exchange in proxy.exchanges()][-2:] == [503, 200]


def test_a_scripted_429_has_the_scripted_retry_after(
    control_plane: ControlPlane, agent: User, proxy: Proxy, target: Node
) -> None:
    for wanted in (None, 7):
        proxy.add(Fault(Answer(429, retry_after_s=wanted)))
        with opened(proxy, control_plane, agent, target.path) as answer:
            found = answer.headers.get("Retry-After")
            assert (answer.status, found) == (429, None if wanted is None else str(wanted))
    proxy.add(Fault(Answer(429, retry_after_s=7, as_date=True)))
    with opened(proxy, control_plane, agent, target.path) as answer:
        then, now = map(parsedate_to_datetime, (answer.headers["Retry-After"], answer.headers["Date"]))
        assert (then - now).total_seconds() == 7


def test_a_fault_meets_the_nth_match_and_the_following_and_no_other(
    control_plane: ControlPlane, agent: User, proxy: Proxy, through: Api, target: Node
) -> None:
    proxy.add(
        Fault(Answer(503), verb="get", resource="nodes", path=f"/{target.name}$", nth=2, times=2),
        Fault(Answer(500), user="somebody else", times=ALWAYS),
        Fault(Answer(409), verb="patch", resource="nodes/status"),
    )
    through.list("/api/v1/nodes", labelSelector="no=such")

    assert [status_of(lambda: through.get(target.path)) for _ in range(5)] == [200, 503, 503, 200, 200]
    with pytest.raises(AssertionError, match=r"(?s)did not fire: .*500.*409") as caught:
        proxy.assert_all_fired()
    assert "Answer(status=503" not in str(caught.value).splitlines()[0]
    assert agent.name == proxy.exchanges()[0].request.user


def test_a_delay_keeps_the_request_or_the_answer_back(proxy: Proxy, through: Api, target: Node) -> None:
    proxy.add(Fault(Delay(0.2), verb="get"), Fault(Delay(0.2, applied=True), verb="patch"))
    began_s = time.monotonic()
    through.get(target.path)
    assert time.monotonic() - began_s >= 0.2
    with ThreadPoolExecutor(1) as aside:
        began_s = time.monotonic()
        patching = aside.submit(through.patch, target.path, {"metadata": {"labels": {"a": "1"}}})
        wait_until(lambda: target.labels() == {"a": "1"}, "the write is applied")
        assert not patching.done()
        patching.result()
        assert time.monotonic() - began_s >= 0.2
    proxy.assert_all_fired()


def test_a_held_request_waits_for_its_release(proxy: Proxy, through: Api, target: Node) -> None:
    hold = Fault(Hold(), verb="patch")
    proxy.add(hold, Fault(Answer(409), verb="patch", nth=2))
    with ThreadPoolExecutor(1) as aside:
        patching = aside.submit(through.patch, target.path, {"metadata": {"labels": {"a": "1"}}})
        proxy.wait_fired(hold)
        assert target.labels() == {"a": "0"}
        assert proxy.exchanges("patch")[0].status is None
        proxy.release(hold)
        assert patching.result()["metadata"]["labels"] == {"a": "1"}
    assert refusal(lambda: through.patch(target.path, {})).status == 409


def test_a_dropped_request_is_lost_before_or_after_it_is_applied(proxy: Proxy, through: Api, target: Node) -> None:
    for applied, label in ((False, "0"), (True, "1")):
        proxy.add(Fault(Drop(applied), verb="patch", resource="nodes"))
        with pytest.raises(urllib3.exceptions.ProtocolError):
            through.patch(target.path, {"metadata": {"labels": {"a": "1"}}})
        assert target.labels() == {"a": label}
        lost = proxy.exchanges()[-1]
        assert (lost.status, lost.served) == (None, 200 if applied else None)
    proxy.assert_all_fired()


def test_a_dropped_connection_is_reset_and_not_closed_in_order(control_plane: ControlPlane, target: Node) -> None:
    """Seen on plain HTTP: over TLS, Python's client tells of both in the same way."""
    with Proxy(control_plane.url, control_plane.ca, faults=[Fault(Drop())]) as proxy:
        address = urlsplit(proxy.url)
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=25) as client:
            client.sendall(f"GET {target.path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            with pytest.raises(ConnectionResetError):
                client.recv(1)


def test_a_watch_is_cut_in_the_middle_of_a_line(
    control_plane: ControlPlane, agent: User, proxy: Proxy, target: Node
) -> None:
    proxy.add(Fault(CutLine(after=1)), Fault(CutLine(clean=True), nth=2))
    path = watch_path(target)
    target.set_labels({"a": "1"})
    target.set_labels({"a": "2"})
    with opened(proxy, control_plane, agent, path) as stream:
        got = bytearray()
        with pytest.raises(IncompleteRead):
            read_on(stream, got)
    first, half = got.split(b"\n")
    assert b'"a":"1"' in first
    assert half.startswith(b'{"type":"MODIFIED"')
    with opened(proxy, control_plane, agent, path) as stream:
        whole = stream.read()
    assert b"\n" not in whole
    assert whole.startswith(b'{"type":"MODIFIED"')
    proxy.assert_all_fired()


@pytest.mark.shares(6)
def test_a_silent_watch_neither_speaks_nor_ends(
    control_plane: ControlPlane, agent: User, proxy: Proxy, target: Node
) -> None:
    mute = Fault(Silence(headers=False))
    proxy.add(Fault(Silence(after=1)), Fault(Silence(), nth=2), Fault(Silence(headers=False), nth=3))
    path = watch_path(target) + "&timeoutSeconds=1"
    target.set_labels({"a": "1"})
    target.set_labels({"a": "2"})
    with opened(proxy, control_plane, agent, path, 5.0) as stream:
        assert b'"a":"1"' in stream.read1()
        with pytest.raises(TimeoutError):
            stream.read1()
    with opened(proxy, control_plane, agent, path, 0.3) as stream, pytest.raises(TimeoutError):
        stream.read1()
    with (
        pytest.raises(TimeoutError),
        opened(proxy, control_plane, agent, path, head_s=0.3),
    ):
        pass
    assert proxy.fired(mute) == 0  # a fault is told by all that it says, so this one is not the third
    proxy.assert_all_fired()


def test_a_watch_is_told_that_its_version_is_too_old(proxy: Proxy, through: Api, target: Node) -> None:
    proxy.add(Fault(ErrorEvent(), resource="nodes"))
    with through.watch("/api/v1/nodes", fieldSelector=f"metadata.name={target.name}") as stream:
        ((kind, status),) = list(stream)
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")


def test_a_watch_without_a_line_to_cut_leaves_the_fault_for_the_next(proxy: Proxy, through: Api, target: Node) -> None:
    cut = Fault(CutLine())
    proxy.add(cut)
    only = f"metadata.name={target.name}"
    version = target.read()["metadata"]["resourceVersion"]
    with through.watch("/api/v1/nodes", timeout_s=1, resourceVersion=version, fieldSelector=only) as stream:
        assert list(stream) == []
    assert proxy.fired(cut) == 0
    with (
        through.watch("/api/v1/nodes", timeout_s=2, fieldSelector=only) as stream,
        pytest.raises(urllib3.exceptions.ProtocolError),
    ):
        list(stream)
    assert proxy.fired(cut) == 1


def test_a_server_that_is_gone_refuses_and_is_back_after_its_time(
    control_plane: ControlPlane, agent: User, proxy: Proxy, through: Api, target: Node
) -> None:
    proxy.add(Fault(Gone(0.3), verb="patch"))
    url = proxy.url
    with opened(proxy, control_plane, agent, watch_path(target)) as stream:
        began_s = time.monotonic()
        with pytest.raises(urllib3.exceptions.ProtocolError):
            through.patch(target.path, {"metadata": {"labels": {"a": "1"}}})
        with pytest.raises((IncompleteRead, OSError)):
            read_on(stream, bytearray())
    with pytest.raises(urllib3.exceptions.NewConnectionError):
        through.get(target.path)
    wait_until(lambda: through.answers(target.path), "the server is back")
    assert 0.3 <= time.monotonic() - began_s < patient(3.0)
    assert proxy.url == url
    assert target.labels() == {"a": "0"}


@pytest.mark.parametrize(("name", "why"), [("expired", "has expired"), ("strange", "unable to get local issuer")])
def test_a_bad_certificate_is_presented_for_so_many_handshakes_and_then_the_good_one(
    control_plane: ControlPlane, agent: User, tmp_path: Path, target: Node, name: str, why: str
) -> None:
    certificates = all_certificates(control_plane.authority, tmp_path)
    with (
        Proxy(control_plane.url, control_plane.ca, certificates) as proxy,
        Api(proxy.url, control_plane.ca, agent.token) as client,
    ):
        proxy.add(Fault(Certificate(name, handshakes=2), verb="get"))
        with pytest.raises(urllib3.exceptions.ProtocolError):
            client.get(target.path)
        for _ in range(2):
            with pytest.raises(urllib3.exceptions.SSLError, match=why):
                client.get(target.path)
        assert client.get(target.path)["metadata"]["name"] == target.name


def test_a_rotated_token_is_on_disk_before_the_old_one_is_refused(
    control_plane: ControlPlane, agent: User, proxy: Proxy, through: Api, target: Node, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    proxy.add(Fault(Rotate(str(token), "rotated"), verb="get"))
    assert [status_of(lambda: through.get(target.path)) for _ in range(2)] == [401, 401]
    with Api(proxy.url, control_plane.ca, token.read_text()) as renewed:
        assert renewed.get(target.path)["metadata"]["name"] == target.name
    assert {exchange.request.user for exchange in proxy.exchanges()} == {agent.name}
