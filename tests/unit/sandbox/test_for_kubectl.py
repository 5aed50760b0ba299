"""What kubectl needs of the sandbox's API server beside the objects: discovery, tables, and a token in the address."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from types import SimpleNamespace

import pytest

from driver_manager.sandbox import apiserver as tables
from driver_manager.sandbox.apiserver import KINDS, ApiServer, Obj
from tests.support.fakes.sandbox_calls import LIMIT_S, PODS, call, node, pod

DAY_S = 86400.0
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@pytest.fixture
def there(server: ApiServer) -> ApiServer:
    """A cordoned node and a pod that is on its way out."""
    server.store.create("nodes", {**node(), "spec": {"unschedulable": True}})
    server.store.create("pods", pod(finalizers=["example.com/held"]))
    server.store.delete("pods", "p", namespace="ns")
    return server


def asked(server: ApiServer, path: str, **headers: str) -> tuple[int, Obj]:
    """What is answered to a GET with these headers alone."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=LIMIT_S)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_a_token_in_the_address_is_as_good_as_one_in_the_header_and_no_other_is(there: ApiServer) -> None:
    path = "/api/v1/nodes/n1"
    server = there.kubeconfig(in_address=True)["clusters"][0]["cluster"]["server"]
    assert server == f"{there.url}/admin-token"
    assert there.kubeconfig(in_address=True)["users"][0]["user"] == {}
    assert asked(there, f"/admin-token{path}") == (200, call(there, "GET", path)[1])
    for wrong in ("", "/stolen"):
        assert asked(there, f"{wrong}{path}")[0] == 401
    assert there.requests[0].user == "admin"


def test_every_kind_is_found_with_its_verbs_below_its_group(server: ApiServer) -> None:
    for kind in KINDS.values():
        path = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
        code, found = call(server, "GET", path)
        (own,) = [one for one in found["resources"] if one["name"] == kind.plural]
        assert (code, found["groupVersion"]) == (200, kind.api_version)
        assert (own["kind"], own["namespaced"], own["singularName"]) == (kind.kind, kind.namespaced, kind.kind.lower())


def test_drain_finds_the_eviction_of_pods(server: ApiServer) -> None:
    _, found = call(server, "GET", "/api/v1")
    (eviction,) = [one for one in found["resources"] if one["name"] == "pods/eviction"]
    assert (eviction["kind"], eviction["group"], eviction["version"]) == ("Eviction", "policy", "v1")


def test_a_body_in_protobuf_is_refused(there: ApiServer) -> None:
    connection = http.client.HTTPConnection(there.url.removeprefix("http://"), timeout=LIMIT_S)
    with contextlib.closing(connection):
        sent = b'k8s\x00\n\x13\n\x02v1\x12\rDeleteOptions\x12\x02\x08\x07\x1a\x00"\x00'
        connection.request("DELETE", f"/admin-token{PODS}/p", sent)
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["message"]) == (415, "the sandbox does not serve protobuf")


def cells(found: Obj) -> list[dict[str, str]]:
    """The rows of a table by the names of its columns."""
    assert (found["kind"], found["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    names = [column["name"] for column in found["columnDefinitions"]]
    return [dict(zip(names, row["cells"], strict=True)) for row in found["rows"]]


def tables_read_the_time(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    """Ages are those at this moment, in Unix seconds: two requests may lie on two sides of a second."""
    monkeypatch.setattr(tables, "time", SimpleNamespace(time=lambda: now, strptime=time.strptime))


def test_a_table_is_given_to_who_asks_for_one_of_a_list_or_of_one_object(
    there: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables_read_the_time(monkeypatch, time.time() + 3.5 * DAY_S)
    ours = {"Accept": TABLE, "Authorization": "Bearer admin-token"}
    (listed,) = cells(asked(there, "/api/v1/nodes", **ours)[1])
    assert (listed["Name"], listed["Status"], listed["Age"]) == ("n1", "NotReady,SchedulingDisabled", "3d")
    assert cells(asked(there, "/api/v1/nodes/n1", **ours)[1]) == [listed]
    (leaving,) = cells(asked(there, PODS, **ours)[1])
    assert (leaving["Name"], leaving["Status"], leaving["Ready"]) == ("p", "Terminating", "0/0")
    assert call(there, "GET", "/api/v1/nodes")[1]["kind"] == "NodeList", "who asks for no table gets objects"
    code, refusal = asked(there, "/api/v1/nodes/absent", **ours)
    assert (code, refusal["kind"]) == (404, "Status")
    rows = asked(there, "/api/v1/nodes", **ours)[1]["rows"]
    assert rows[0]["object"]["metadata"]["name"] == "n1", "kubectl -L takes labels from there"


@pytest.mark.parametrize(
    ("made", "age"),
    [
        ("1970-01-02T00:00:01Z", "0s"),  # a clock that runs ahead of ours
        ("1970-01-02T00:00:00Z", "0s"),
        ("1970-01-01T23:58:01Z", "119s"),
        ("1970-01-01T23:58:00Z", "2m"),
        ("1970-01-01T22:00:01Z", "119m"),
        ("1970-01-01T22:00:00Z", "2h"),
        ("1969-12-31T00:00:01Z", "47h"),
        ("1969-12-31T00:00:00Z", "2d"),
        ("yesterday", "<unknown>"),
        ("", "<unknown>"),
    ],
)
def test_an_age_is_in_the_largest_unit_that_there_are_two_of(
    monkeypatch: pytest.MonkeyPatch, made: str, age: str
) -> None:
    tables_read_the_time(monkeypatch, DAY_S)
    made_then = {"kind": "Node", "metadata": {"name": "n1", "creationTimestamp": made}}
    (row,) = cells(tables.printed_table(KINDS["nodes"], made_then))
    assert row["Age"] == age


@pytest.mark.parametrize(
    ("spec", "status", "word"),
    [
        ({}, {}, "Pending"),
        ({}, {"phase": "Running"}, "Running"),
        ({"initContainers": [{}, {}]}, {}, "Init:0/2"),
        ({"initContainers": [{}]}, {"phase": "Running"}, "Running"),
        (
            {"initContainers": [{}]},
            {"initContainerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
            "Init:CrashLoopBackOff",
        ),
    ],
)
def test_a_pod_is_in_the_state_that_kubectl_shows(spec: Obj, status: Obj, word: str) -> None:
    assert tables.state_of({"metadata": {}, "spec": spec, "status": status}) == word
