"""An account whose rights to pods are a Role's sees those of one namespace, says so once, and asks nowhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from driver_manager.domain.errors import ApiRefused
from tests.support.fakes.scripted_api import Answer, Scripted

HOME = "rbln-system"
EVERYWHERE, AT_HOME = "/api/v1/pods", f"/api/v1/namespaces/{HOME}/pods"
POD = {"metadata": {"name": "p", "namespace": HOME, "uid": "u"}}
PODS = {"metadata": {"resourceVersion": "9"}, "items": [POD]}
FORBIDDEN = Answer(403, {"kind": "Status", "message": 'cannot list resource "pods" at the cluster scope'})


@pytest.fixture
def api(running: Scripted) -> Scripted:
    """The one server, and an account whose home is known."""
    running.start_over()
    running.cluster.home = HOME
    return running


def paths(api: Scripted) -> list[str]:
    return [request.path for request in api.requests]


def test_all_pods_are_listed_where_that_is_allowed(api: Scripted) -> None:
    api.answer(Answer(body=PODS))
    assert (api.cluster.pods().namespace, paths(api)) == ("", [EVERYWHERE])
    assert api.reporter.warnings == []


@pytest.mark.parametrize("recent", [False, True])
def test_where_all_may_not_be_listed_those_at_home_are_and_it_is_said_once(api: Scripted, recent: bool) -> None:
    api.answer(FORBIDDEN, Answer(body=PODS))
    for _ in range(3):
        listed = api.cluster.pods(recent=recent)
        assert (listed.namespace, [pod.name for pod in listed.pods], listed.resource_version) == (HOME, ["p"], "9")
    assert paths(api) == [EVERYWHERE, AT_HOME, AT_HOME, AT_HOME]
    selectors = {tuple(request.query["fieldSelector"]) for request in api.requests}
    assert selectors == {("spec.nodeName=n",)}
    (said,) = api.reporter.warnings
    assert said == (
        f"this account may list pods in namespace {HOME} only: pods of other namespaces are not seen, waited for or "
        "evicted"
    )


def test_then_pods_are_watched_and_rights_to_them_reviewed_at_home(api: Scripted) -> None:
    api.answer(FORBIDDEN, Answer(body=PODS))
    api.cluster.pods()
    event = {"type": "DELETED", "object": {"metadata": {"name": "p", "resourceVersion": "10"}}}
    api.answer(Answer(body=json.dumps(event).encode() + b"\n"))
    (seen,) = api.cluster.watch_pods("9", 5)
    assert seen.pod is not None
    api.answer(Answer(201, {"status": {"allowed": True}}))
    assert api.cluster.refused((("create", "pods/eviction"), ("patch", "nodes"))) == ()
    watched, evicting, patching = api.requests[-3:]
    assert (watched.path, watched.query["watch"]) == (AT_HOME, ["1"])
    assert evicting.body["spec"]["resourceAttributes"]["namespace"] == HOME
    assert "namespace" not in patching.body["spec"]["resourceAttributes"]


def test_who_may_list_neither_is_told_of_the_right_to_all(api: Scripted) -> None:
    at_home = Answer(403, {"kind": "Status", "message": "nor here"})
    api.answer(FORBIDDEN, at_home, FORBIDDEN, Answer(body=PODS))
    with pytest.raises(ApiRefused, match=r"refused to list pods \(403\): cannot list .* at the cluster scope"):
        api.cluster.pods()
    assert api.reporter.warnings == []
    assert api.cluster.pods().namespace == HOME, "rights come and go: the next look tries both again"


@pytest.mark.parametrize(
    ("home", "answer"),
    [("", FORBIDDEN), (HOME, Answer(401, {"kind": "Status", "message": "who are you"}))],
    ids=["no-home", "unauthenticated"],
)
def test_without_a_home_or_credentials_a_refusal_is_one(api: Scripted, home: str, answer: Answer) -> None:
    api.cluster.home = home
    api.answer(answer)
    with pytest.raises(ApiRefused):
        api.cluster.pods()
    assert AT_HOME not in paths(api)


@pytest.mark.parametrize("code", [500, 503])
def test_a_server_that_fails_is_no_reason_to_look_at_less(api: Scripted, code: int) -> None:
    later: dict[str, Any] = {"kind": "Status", "message": "later"}
    api.answer(Answer(code, later), Answer(body=PODS))
    assert api.cluster.pods().namespace == ""
    assert set(paths(api)) == {EVERYWHERE}
