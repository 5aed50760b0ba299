"""Proves that the fault proxy does each fault as scripted, at the request it was scripted for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3

from tests.support.control_plane.api import Api, refusal, status_of, wait_until
from tests.support.control_plane.faults import (
    ALWAYS,
    Action,
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
from tests.support.control_plane.kubelet import Node, NodeFactory, OperandsFactory
from tests.support.control_plane.proxy import Proxy, opened, read_on, watch_path
from tests.support.control_plane.runner import JOURNAL, NEW, PREFIX, CommandRunner
from tests.support.control_plane.servers import ControlPlane, User, all_certificates
from tests.support.fakes.pace import patient


@pytest.fixture
def through(control_plane: ControlPlane, agent: User, proxy: Proxy) -> Iterator[Api]:
    """The agent's client, through the proxy."""
    with Api(proxy.url, control_plane.ca, agent.token, "agent-under-test") as api:
        yield api


@pytest.fixture
def target(node: NodeFactory) -> Node:
    """A node to ask for."""
    return node({"a": "0"})


@pytest.mark.parametrize("status", [401, 403, 404, 409, 410, 422, 429, 500, 503])
def test_a_scripted_status_is_answered_with_a_status_object(
    control_plane: ControlPlane, agent: User, proxy: Proxy, through: Api, target: Node, status: int
) -> None:
    proxy.add(Fault(Answer(status), verb="get", resource="nodes"))
    mark = control_plane.audit_mark()
    answer = refusal(lambda: through.get(target.path))
    assert (answer.status, answer.body["kind"], answer.body["code"]) == (status, "Status", status)
    assert answer.body["reason"]
    assert control_plane.audit(agent.name, since=mark) == []
    through.get(target.path)
    proxy.assert_all_fired()
    assert [exchange.status for exchange in proxy.exchanges()] == [status, 200]


@pytest.mark.parametrize("retry_after_s", [None, 7])
def test_a_scripted_429_says_when_to_come_again_if_told_to(
    control_plane: ControlPlane, agent: User, proxy: Proxy, target: Node, retry_after_s: int | None
) -> None:
    proxy.add(Fault(Answer(429, retry_after_s=retry_after_s)))
    with opened(proxy, control_plane, agent, target.path) as answer:
        wanted = None if retry_after_s is None else str(retry_after_s)
        assert (answer.status, answer.headers.get("Retry-After")) == (429, wanted)


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


@pytest.mark.parametrize(("applied", "label"), [(False, "0"), (True, "1")])
def test_a_dropped_request_is_lost_before_or_after_it_is_applied(
    proxy: Proxy, through: Api, target: Node, applied: bool, label: str
) -> None:
    proxy.add(Fault(Drop(applied), verb="patch", resource="nodes"))
    with pytest.raises(urllib3.exceptions.ProtocolError):
        through.patch(target.path, {"metadata": {"labels": {"a": "1"}}})
    assert target.labels() == {"a": label}
    (lost,) = proxy.exchanges()
    assert lost.status is None
    assert lost.served == (200 if applied else None)
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


def test_retry_after_may_be_a_date(control_plane: ControlPlane, agent: User, proxy: Proxy, target: Node) -> None:
    proxy.add(Fault(Answer(429, retry_after_s=7, as_date=True)))
    with opened(proxy, control_plane, agent, target.path) as answer:
        then, now = map(parsedate_to_datetime, (answer.headers["Retry-After"], answer.headers["Date"]))
        assert (then - now).total_seconds() == 7


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


@pytest.mark.parametrize(
    "action",
    [
        Answer(429, retry_after_s=1),
        Delay(0.5, applied=True),
        Hold(),
        Drop(applied=True),
        Gone(30),
        CutLine(2, clean=True),
        Silence(headers=False),
        ErrorEvent(),
    ],
)
def test_a_fault_prints_as_the_python_that_makes_it_again(action: Action) -> None:
    fault = Fault(action, verb="watch", resource="pods", path="/n-[0-9]", nth=3, times=2)
    assert eval(repr(fault)) == fault  # noqa: S307 - the text is our own


@pytest.mark.shares(6)
def test_the_real_command_runs_through_the_proxy_and_survives_a_fault(
    control_plane: ControlPlane,
    agent_for_workloads: User,
    tmp_path: Path,
    proxy: Proxy,
    node: NodeFactory,
    operands: OperandsFactory,
) -> None:
    command_runner = CommandRunner(control_plane, agent_for_workloads, tmp_path, proxy=proxy).with_upgrade()
    command_runner.node = node({f"{PREFIX}driver": "true"}, boot_id=command_runner.tree.boot_id)
    operands(command_runner.node, ("device-plugin",))
    labels = command_runner.node.labels()
    proxy.add(Fault(Answer(503), verb="patch", resource="nodes"))
    ended = command_runner.reconcile()
    assert ended.code == 0, ended.err
    assert (command_runner.tree.driver_version, command_runner.node.labels()) == (NEW, labels)
    assert JOURNAL not in command_runner.node.annotations()
    proxy.assert_all_fired()
    assert [e.status for e in proxy.exchanges("patch", "nodes", user=agent_for_workloads.name)] == [503, 200, 200]
