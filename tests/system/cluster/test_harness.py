"""What the cluster tier rests on: the servers, the kubelet stand-in, the audit log, and the fault proxy."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import IncompleteRead
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3

from tests.support.control_plane.api import Api, refusal, status_of, wait_until
from tests.support.control_plane.faults import Answer, CutLine, Delay, Drop, ErrorEvent, Fault, Gone, Hold, Silence
from tests.support.control_plane.kubelet import COMPONENTS, NEVER, Node, NodeFactory, OperandsFactory
from tests.support.control_plane.proxy import CLOSE_LIMIT_S, Proxy, opened
from tests.support.control_plane.runner import PAUSED
from tests.support.control_plane.servers import ControlPlane, ControlPlaneError, User
from tests.support.fakes.pace import patient

PODS = "/api/v1/pods"
ABSENT = "/api/v1/nodes/none"  # no node: its kubelet's own threads and connections would disturb the counting
QUIET = "/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dnone"
LABELLED = {"metadata": {"labels": {"a": "1"}}}


@pytest.fixture
def through(control_plane: ControlPlane, proxy: Proxy) -> Iterator[Api]:
    """The agent's client, through the proxy."""
    with Api(proxy.url, control_plane.ca, control_plane.agent.token) as api:
        yield api


@pytest.fixture
def target(node: NodeFactory) -> Node:
    return node({"a": "0"})


# the servers


@pytest.mark.parametrize(
    ("etcd", "expected", "starts"),
    [
        ('echo "no space left on device" >&2; exit 3', r"(?s)etcd ended with status 3.*no space left on device", 1),
        ('echo "bind: address already in use" >&2; exit 1', "address already in use", 3),
    ],
)
def test_a_component_that_fails_is_reported_and_one_whose_port_was_taken_is_tried_with_others(
    tmp_path: Path, etcd: str, expected: str, starts: int
) -> None:
    tried = tmp_path / "tried"
    for name in ("etcd", "kube-apiserver", "kube-controller-manager"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$*" >> {tried}\n{etcd}\n')
        (tmp_path / name).chmod(0o755)
    plane = ControlPlane(tmp_path)
    with pytest.raises(ControlPlaneError, match=expected):
        plane.__enter__()
    assert plane.pids == ()
    assert not plane.ca.parent.exists()
    assert len(tried.read_text().splitlines()) == len(set(tried.read_text().splitlines())) == starts


def test_the_audit_log_has_each_request_once_and_an_open_watch_without_a_status(
    control_plane: ControlPlane, target: Node
) -> None:
    with control_plane.api(control_plane.agent) as api:
        api.get(target.path)
        since = control_plane.audit_mark()
        api.get(target.path)
        api.patch(target.path, LABELLED)
        assert status_of(lambda: api.delete(target.path)) == 403
        with api.watch(PODS):
            records = control_plane.audit(control_plane.agent.name, since)
    assert [(r.verb, r.resource, r.name, r.code) for r in records] == [
        ("get", "nodes", target.name, 200),
        ("patch", "nodes", target.name, 200),
        ("delete", "nodes", target.name, 403),
        ("watch", "pods", "", None),
    ]
    assert records[1].body == LABELLED


# the kubelet stand-in


def test_a_paused_operand_stays_until_its_kubelet_confirms_and_a_restored_label_brings_a_new_pod(
    node: NodeFactory, operands: OperandsFactory
) -> None:
    target, other = node(), node()
    made, elsewhere = operands(target), operands(other, ("device-plugin",))
    assert (made.running(), elsewhere.running(), len(other.pods())) == (set(COMPONENTS), {"device-plugin"}, 1)
    target.kubelet.stop_after("device-plugin", NEVER)
    target.kubelet.stop_after("rbln-daemon", 0.5)
    paused_s = time.monotonic()
    target.set_labels(dict.fromkeys(made.deploy_labels.values(), PAUSED))
    made.wait_gone(*(set(COMPONENTS) - {"device-plugin"}))
    wait_until(lambda: made.running() == set(), "all pods are terminating")
    (held,) = made.pods()["device-plugin"]
    first = {one.app: one for one in target.kubelet.deletions()}
    assert first.keys() == set(COMPONENTS) - {"device-plugin"}
    assert first["rbln-daemon"].gone_at_s - paused_s >= 0.5
    target.kubelet.release("device-plugin")
    made.wait_gone()
    last = target.kubelet.deletions()[-1]
    assert (last.app, last.uid) == ("device-plugin", held["metadata"]["uid"])
    target.set_labels(dict.fromkeys(made.deploy_labels.values(), "true"))
    made.wait_running()
    assert made.pods()["device-plugin"][0]["metadata"]["uid"] != held["metadata"]["uid"]


# the fault proxy


def test_answers_and_refusals_pass_unchanged_and_every_request_is_on_record(
    control_plane: ControlPlane, proxy: Proxy, through: Api, target: Node
) -> None:
    with control_plane.api(control_plane.agent) as straight:
        assert through.get(target.path) == straight.get(target.path)
        assert refusal(lambda: through.delete(target.path)).body == refusal(lambda: straight.delete(target.path)).body
    mark = control_plane.audit_mark()
    through.patch(target.path, LABELLED)
    (record,) = control_plane.audit(control_plane.agent.name, since=mark)
    assert (record.verb, record.body) == ("patch", LABELLED)
    with Api(proxy.url, control_plane.ca, "wrong") as stranger:
        assert refusal(lambda: stranger.get(target.path)).status == 401
    seen = [(one.request.target.verb, one.status) for one in proxy.exchanges()]
    assert seen == [("get", 200), ("delete", 403), ("patch", 200), ("get", 401)]
    assert proxy.exchanges("patch", "nodes")[0].request.body == LABELLED
    assert proxy.exchanges(since=proxy.mark()) == []


def test_a_watch_passes_line_by_line_and_ends_at_the_server_where_its_client_hangs_up(
    control_plane: ControlPlane, proxy: Proxy, target: Node
) -> None:
    mark, version = control_plane.audit_mark(), target.read()["metadata"]["resourceVersion"]
    path = f"/api/v1/nodes?watch=1&fieldSelector=metadata.name%3D{target.name}&resourceVersion={version}"
    with opened(proxy, control_plane, control_plane.agent, path) as stream:
        for value in ("1", "2"):
            target.set_labels({"a": value})
            line = stream.read1()
            assert f'"a":"{value}"'.encode() in line
            assert line.endswith(b"\n")
        (record,) = control_plane.audit(control_plane.agent.name, since=mark)
        assert record.code is None
    asked = control_plane.agent.name
    wait_until(lambda: control_plane.audit(asked, since=mark)[0].code == 200, "the server's end of the watch")
    wait_until(lambda: proxy.exchanges("watch")[0].ended_at_s, "the proxy's end of the watch")


def test_a_request_is_held_or_lost_before_or_after_it_is_applied(proxy: Proxy, through: Api, target: Node) -> None:
    for value, applied in (("1", False), ("2", True)):
        hold = Fault(Hold(applied), verb="patch")
        proxy.script.add(hold)
        with ThreadPoolExecutor(1) as aside:
            patching = aside.submit(through.patch, target.path, {"metadata": {"labels": {"a": value}}})
            proxy.script.wait_fired(hold)
            assert (target.labels()["a"] == value) is applied
            proxy.script.release(hold)
            assert patching.result()["metadata"]["labels"] == {"a": value}
    for applied in (False, True):
        proxy.script.add(Fault(Drop(applied), verb="patch", resource="nodes"))
        with pytest.raises(urllib3.exceptions.ProtocolError):
            through.patch(target.path, {"metadata": {"labels": {"a": "3"}}})
        assert (target.labels()["a"] == "3") is applied
        lost = proxy.exchanges()[-1]
        assert (lost.status, lost.served) == (None, 200 if applied else None)


def test_scripted_answers_have_a_status_and_a_time_to_wait(
    control_plane: ControlPlane, proxy: Proxy, through: Api, target: Node
) -> None:
    mark = control_plane.audit_mark()
    for status in (401, 409, 422, 503):
        proxy.script.add(Fault(Answer(status), verb="get", resource="nodes"))
        answer = refusal(lambda: through.get(target.path))
        assert (answer.status, answer.body["kind"], answer.body["code"]) == (status, "Status", status)
    proxy.script.add(Fault(Answer(429, retry_after_s=7)))
    with opened(proxy, control_plane, control_plane.agent, target.path) as limited:
        assert (limited.status, limited.headers.get("Retry-After")) == (429, "7")
    assert control_plane.audit(control_plane.agent.name, since=mark) == []
    through.get(target.path)
    assert [exchange.status for exchange in proxy.exchanges()][-2:] == [429, 200]


def test_a_watch_is_cut_in_the_middle_of_a_line_or_ended_because_its_version_is_too_old(
    control_plane: ControlPlane, proxy: Proxy, through: Api, target: Node
) -> None:
    proxy.script.add(Fault(CutLine(), "watch"), Fault(CutLine(clean=True), "watch", nth=2))
    path = f"/api/v1/nodes?watch=1&fieldSelector=metadata.name%3D{target.name}"
    with opened(proxy, control_plane, control_plane.agent, path) as stream, pytest.raises(IncompleteRead) as caught:
        stream.read()
    with opened(proxy, control_plane, control_plane.agent, path) as stream:
        whole = stream.read()
    for half in (whole, caught.value.partial):
        assert half.startswith(b'{"type":"ADDED"')
        assert b"\n" not in half
    proxy.script.add(Fault(ErrorEvent(), resource="nodes"))
    with through.watch("/api/v1/nodes", fieldSelector=f"metadata.name={target.name}") as events:
        ((kind, status),) = list(events)
    assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")


def test_a_server_that_is_gone_refuses_and_is_back_after_its_time(proxy: Proxy, through: Api, target: Node) -> None:
    proxy.script.add(Fault(Gone(0.3), verb="patch"))
    began_s = time.monotonic()
    with pytest.raises(urllib3.exceptions.ProtocolError):
        through.patch(target.path, LABELLED)
    with pytest.raises(urllib3.exceptions.NewConnectionError):
        through.get(target.path)
    wait_until(lambda: through.answers(target.path), "the server is back")
    assert 0.3 <= time.monotonic() - began_s < patient(3.0)
    assert target.labels() == {"a": "0"}


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
                proxy.script.wait_fired(fault)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < patient(CLOSE_LIMIT_S)
        for done in waiting:
            with pytest.raises(urllib3.exceptions.HTTPError):
                done.result(timeout=25)
        for stream in streams:
            with pytest.raises((IncompleteRead, OSError)):
                stream.read()


def test_leaving_ends_whatever_is_open_within_half_a_second_and_leaks_nothing(control_plane: ControlPlane) -> None:
    threads, fds = threading.enumerate(), _fds()
    _leave_while_in_use(control_plane, control_plane.agent)
    assert threading.enumerate() == threads
    assert _fds() == fds
