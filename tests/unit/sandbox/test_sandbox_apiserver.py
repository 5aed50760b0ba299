"""The sandbox's API server, seen through real HTTP: it must refuse, order and delete as kube-apiserver does."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from typing import Any
from urllib.parse import quote

import kubernetes
import pytest

from driver_manager.domain.fleet.spec import PLURAL
from driver_manager.sandbox import apiserver as store_module
from driver_manager.sandbox.apiserver import ApiServer, Deny, Obj, Store, apply_merge_patch
from tests.support.fakes.pace import patient
from tests.support.fakes.sandbox_calls import (
    LIMIT_S,
    MERGE,
    PODS,
    TOKENS,
    call,
    daemonset,
    label_patch,
    node,
    pod,
    watch,
)


def test_a_stale_resource_version_is_a_conflict(server: ApiServer) -> None:
    _, created = call(server, "POST", "/api/v1/nodes", node())
    rv = created["metadata"]["resourceVersion"]
    change = {"metadata": {"resourceVersion": rv, "labels": {"a": "1"}}}
    code, changed = call(server, "PATCH", "/api/v1/nodes/n1", change, content_type=MERGE)
    assert (code, int(changed["metadata"]["resourceVersion"]) > int(rv)) == (200, True)
    body = {"metadata": {"resourceVersion": rv, "labels": {"a": "2"}}}
    code, status = call(server, "PATCH", "/api/v1/nodes/n1", body, content_type=MERGE)
    assert (code, status["kind"], status["reason"], status["code"]) == (409, "Status", "Conflict", 409)
    assert "the object has been modified" in status["message"]
    assert server.store.get("nodes", "n1") == changed


def test_a_patch_that_changes_nothing_keeps_the_resource_version(server: ApiServer) -> None:
    created = server.store.create("nodes", node(a="1"))
    unchanging: list[Obj] = [label_patch(a="1"), label_patch(b=None), {"metadata": {"annotations": {}}}]
    for body in unchanging:
        assert call(server, "PATCH", "/api/v1/nodes/n1", body, content_type=MERGE) == (200, created)
    body = {"spec": {"unschedulable": True}}
    _, cordoned = call(server, "PATCH", "/api/v1/nodes/n1", body, content_type=MERGE)
    assert cordoned["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]


def test_a_dry_run_changes_nothing(server: ApiServer) -> None:
    created = server.store.create("nodes", node())
    code, shown = call(server, "PATCH", "/api/v1/nodes/n1?dryRun=All", label_patch(a="1"), content_type=MERGE)
    assert (code, shown["metadata"]["labels"]) == (200, {"a": "1"})
    assert call(server, "DELETE", "/api/v1/nodes/n1?dryRun=All")[0] == 200
    assert call(server, "POST", "/api/v1/nodes?dryRun=All", node("n2"))[0] == 201
    assert server.store.list_objects("nodes")[0] == [created]


def test_null_in_a_merge_patch_removes(server: ApiServer) -> None:
    server.store.create("nodes", node(a="1", b="2"))
    for content_type in (MERGE, "application/strategic-merge-patch+json"):
        code, _ = call(server, "PATCH", "/api/v1/nodes/n1", label_patch(a=None, c="3"), content_type=content_type)
        assert code == 200
    assert server.store.get("nodes", "n1")["metadata"]["labels"] == {"b": "2", "c": "3"}


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": "foo"}, {"b": {"c": None, "d": 1}}, {"a": "foo", "b": {"d": 1}}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        (["x"], {"a": 1}, {"a": 1}),
    ],
)
def test_merge_patch_follows_rfc_7386(target: Any, patch: Any, result: Any) -> None:
    assert apply_merge_patch(target, patch) == result


def test_a_json_patch_applies_whole_or_not_at_all(server: ApiServer) -> None:
    server.store.create("nodes", {**node(**{"x/a": "1", "b": "2"}), "spec": {"podCIDRs": ["0", "1"]}})

    def patch(*operations: Obj) -> tuple[int, Obj]:
        return call(server, "PATCH", "/api/v1/nodes/n1", operations, content_type="application/json-patch+json")

    remove = {"op": "remove", "path": "/metadata/labels/b"}
    for failing in (
        {"op": "test", "path": "/metadata/labels/x~1a", "value": "2"},
        {"op": "replace", "path": "/metadata/labels/absent", "value": ""},
        {"op": "add", "path": "/metadata/annotations/a", "value": "no parent"},
        {"op": "add", "path": "x/metadata/labels/c", "value": "1"},
    ):
        code, status = patch(remove, failing)
        assert (code, status["reason"]) == (422, "Invalid"), failing
    assert server.store.get("nodes", "n1")["metadata"]["labels"] == {"x/a": "1", "b": "2"}
    test = {"op": "test", "path": "/metadata/labels/x~1a", "value": "1"}
    replace = {"op": "replace", "path": "/metadata/labels/x~1a", "value": "3"}
    adds = [{"op": "add", "path": f"/spec/podCIDRs/{at}", "value": at} for at in ("0", "-")]
    code, patched = patch(test, remove, replace, *adds)
    assert (code, patched["metadata"]["labels"]) == (200, {"x/a": "3"})
    assert patched["spec"]["podCIDRs"] == ["0", "0", "1", "-"]


def test_status_and_the_rest_are_written_apart(server: ApiServer) -> None:
    server.store.create("nodes", node(a="1") | {"status": {"phase": "old"}})
    body: Obj = {"metadata": {"labels": {"a": "2"}}, "status": {"phase": "new"}}
    _, changed = call(server, "PATCH", "/api/v1/nodes/n1", body, content_type=MERGE)
    assert (changed["metadata"]["labels"], changed["status"]) == ({"a": "2"}, {"phase": "old"})
    body["metadata"]["labels"]["a"] = "3"
    _, changed = call(server, "PATCH", "/api/v1/nodes/n1/status", body, content_type=MERGE)
    assert (changed["metadata"]["labels"], changed["status"]) == ({"a": "2"}, {"phase": "new"})
    assert call(server, "POST", PODS, pod() | {"status": {"phase": "Running"}})[1]["status"] == {"phase": "Pending"}


@pytest.mark.parametrize("value", ["x" * 64, "-a", "a_", "a b"])
def test_a_label_value_outside_the_rules_is_invalid(server: ApiServer, value: str) -> None:
    created = server.store.create("nodes", node(a="x" * 63))
    code, status = call(server, "PATCH", "/api/v1/nodes/n1", label_patch(a=value), content_type=MERGE)
    assert (code, status["reason"]) == (422, "Invalid")
    assert status["message"].startswith(f'Node "n1" is invalid: metadata.labels: Invalid value: "{value}": ')
    assert server.store.get("nodes", "n1") == created


def test_what_is_absent_present_or_unserved_is_said_as_a_status(server: ApiServer) -> None:
    server.store.create("daemonsets", daemonset())
    base = "/apis/apps/v1/namespaces/ns/daemonsets"
    answers = {
        ("GET", "/api/v1/nodes/no"): (404, "NotFound", 'nodes "no" not found'),
        ("DELETE", f"{base}/no"): (404, "NotFound", 'daemonsets.apps "no" not found'),
        ("POST", base): (409, "AlreadyExists", 'daemonsets.apps "plugin" already exists'),
        ("GET", "/apis/none/v1/things"): (404, "NotFound", "the server could not find the requested resource"),
        ("PATCH", f"{base}/plugin"): (415, "UnsupportedMediaType", "the body of the request was in an unknown"),
        ("POST", f"{PODS}/p/status"): (405, "MethodNotAllowed", "the server does not allow this method"),
        ("GET", "/api/v1/nodes?fieldSelector=spec.x%3D1"): (400, "BadRequest", "field label not supported: spec.x"),
    }
    for (method, path), (code, reason, message) in answers.items():
        got, status = call(server, method, path, daemonset() if method in ("POST", "PATCH") else None)
        assert (got, status["code"], status["reason"], status["status"]) == (code, code, reason, "Failure"), path
        assert status["message"].startswith(message)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("labelSelector=a=1", ["n1"]),
        ("labelSelector=a==1", ["n1"]),
        ("labelSelector=a!=1", ["n2", "n3"]),
        ("labelSelector=a", ["n1", "n2"]),
        ("labelSelector=!a", ["n3"]),
        ("labelSelector=a in (1, 2),b", ["n2"]),
        ("labelSelector=a notin (1,3)", ["n2", "n3"]),
        ("fieldSelector=metadata.name=n2", ["n2"]),
        ("fieldSelector=metadata.name!=n2,metadata.name!=n3", ["n1"]),
        ("fieldSelector=metadata.name!=n2&labelSelector=a", ["n1"]),
    ],
)
def test_a_list_holds_what_the_selectors_match(server: ApiServer, selector: str, names: list[str]) -> None:
    for item in (node("n1", a="1"), node("n2", a="2", b=""), node("n3", b="x")):
        server.store.create("nodes", item)
    code, found = call(server, "GET", f"/api/v1/nodes?{quote(selector, safe='=&')}")
    assert (code, found["kind"], [item["metadata"]["name"] for item in found["items"]]) == (200, "NodeList", names)


@pytest.mark.parametrize(("limit", "pages"), [(1, 3), (2, 2), (3, 1), (0, 1)])
def test_a_list_comes_in_pages_of_one_version(server: ApiServer, limit: int, pages: int) -> None:
    for name in ("n2", "n1", "n3"):
        server.store.create("nodes", node(name))
    names: list[str] = []
    versions: list[str] = []
    token = ""
    while not versions or token:
        _, found = call(server, "GET", f"/api/v1/nodes?limit={limit}&continue={quote(token)}")
        names += [item["metadata"]["name"] for item in found["items"]]
        versions.append(found["metadata"]["resourceVersion"])
        token = found["metadata"].get("continue", "")
        server.store.create("nodes", node(f"a-later-one-{len(versions)}"))
    assert names == ["n1", "n2", "n3"]
    assert (len(versions), len(set(versions))) == (pages, 1)


def test_a_page_that_was_never_begun_is_a_bad_request(server: ApiServer) -> None:
    assert call(server, "GET", "/api/v1/nodes?limit=2&continue=x")[0] == 400
    assert call(server, "GET", "/api/v1/nodes?limit=many")[0] == 400


@pytest.mark.parametrize("resource", ["daemonsets", PLURAL])
def test_a_generation_counts_the_changes_of_the_spec_alone(server: ApiServer, resource: str) -> None:
    server.store.create(resource, {"metadata": {"name": "x"}, "spec": {"a": 1}})

    def generation(patch: Obj, *, status: bool = False) -> int:
        changed = server.store.patch(
            resource, "x", lambda one: apply_merge_patch(one, patch), namespace="default", status=status
        )
        return int(changed["metadata"]["generation"])

    patches: list[Obj] = [{"spec": {"a": 2}}, {"spec": {"a": 2}}, {"metadata": {"labels": {"b": "c"}}}]
    assert [generation(patch) for patch in patches] == [2, 2, 2]
    assert generation({"status": {"s": 1}, "spec": {"a": 3}}, status=True) == 2


def test_a_watch_from_a_list_sees_every_later_change_exactly_once(server: ApiServer) -> None:
    """Mutants this caught: an event log searched from the left; a cursor advanced past unread events."""
    store, total, started = server.store, 300, threading.Event()

    def write() -> None:
        for index in range(total):
            store.create("pods", pod(f"p{index}"))
            if index % 10 == 0:
                store.create("nodes", node(f"n{index}"))  # other resources share the revisions
            if index == 21:
                started.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert started.wait(LIMIT_S)
    _, listed = call(server, "GET", PODS)
    seen = [item["metadata"]["name"] for item in listed["items"]]
    with watch(server, PODS, resourceVersion=listed["metadata"]["resourceVersion"]) as events:
        while len(seen) < total:
            event = next(events)
            assert event["type"] == "ADDED"
            seen.append(event["object"]["metadata"]["name"])
        writer.join(LIMIT_S)
        for index in range(3):  # one wait per event
            store.create("pods", pod(f"q{index}"))
            assert next(events)["object"]["metadata"]["name"] == f"q{index}"
    assert sorted(seen) == sorted(f"p{index}" for index in range(total))


def test_a_watch_with_no_resource_version_begins_with_what_is_there(server: ApiServer) -> None:
    server.store.create("nodes", node())
    server.store.compact()
    with watch(server, "/api/v1/nodes") as events:
        assert next(events)["type"] == "ADDED"
        call(server, "DELETE", "/api/v1/nodes/n1")
        assert next(events)["type"] == "DELETED"


def test_an_object_that_enters_or_leaves_a_selection_is_added_or_deleted(server: ApiServer) -> None:
    server.store.create("nodes", node(a="0"))
    with watch(server, "/api/v1/nodes", labelSelector="a=1", resourceVersion=2) as events:
        for labels in ({"b": "unseen"}, {"a": "1"}, {"b": "2"}, {"a": "2"}, {"b": "unseen"}, {"a": "1"}):
            call(server, "PATCH", "/api/v1/nodes/n1", label_patch(**labels), content_type=MERGE)
        got = [next(events) for _ in range(4)]
    assert [event["type"] for event in got] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    left = got[2]["object"]["metadata"]
    assert (left["labels"], left["resourceVersion"]) == ({"a": "1", "b": "2"}, "6")


def test_a_watch_from_a_compacted_revision_gets_a_410_event_and_ends(server: ApiServer) -> None:
    for name in ("n1", "n2", "n3"):
        server.store.create("nodes", node(name))
    server.store.compact(keep=1)
    with watch(server, "/api/v1/nodes", resourceVersion=2) as events:
        (error,) = events
    assert (error["type"], error["object"]["kind"], error["object"]["code"]) == ("ERROR", "Status", 410)
    assert error["object"]["reason"] == "Expired"
    with watch(server, "/api/v1/nodes", resourceVersion=3) as events:
        assert next(events)["object"]["metadata"]["name"] == "n3"


def test_the_event_log_is_bounded() -> None:
    store = Store(history_limit=2)
    for name in ("n1", "n2", "n3"):
        store.create("nodes", node(name))
    with ApiServer(store, tokens=TOKENS) as server, watch(server, "/api/v1/nodes", resourceVersion=1) as events:
        assert next(events)["object"]["code"] == 410


@pytest.mark.submission
@pytest.mark.shares(3)
def test_bookmarks_carry_the_newest_revision_while_idle_and_at_the_end() -> None:
    store = Store()
    with ApiServer(store, tokens=TOKENS, bookmark_interval_s=0.05) as server:
        options: dict[str, Any] = {"resourceVersion": 1, "timeoutSeconds": 1}
        with watch(server, "/api/v1/nodes", allowWatchBookmarks="true", **options) as events:
            first = next(events)
            assert (first["type"], first["object"]["kind"]) == ("BOOKMARK", "Node")
            other = store.create("pods", pod())["metadata"]["resourceVersion"]
            last = [*events][-1]
        assert (last["type"], last["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", other)
        with watch(server, "/api/v1/nodes", **options) as events:
            assert list(events) == []


def test_an_unknown_token_is_unauthorized(server: ApiServer) -> None:
    code, status = call(server, "GET", "/api/v1/nodes", token="stolen")
    assert (code, status["kind"], status["reason"], status["message"]) == (401, "Status", *["Unauthorized"] * 2)


def test_a_denied_verb_is_forbidden_in_the_real_words_and_in_access_reviews(server: ApiServer) -> None:
    server.deny += [Deny("patch", "nodes", "manager"), Deny("create", "pods/eviction", "manager")]
    server.store.create("nodes", node())

    def patch(token: str) -> tuple[int, Obj]:
        return call(server, "PATCH", "/api/v1/nodes/n1", label_patch(), content_type=MERGE, token=token)

    code, status = patch("manager-token")
    assert (code, status["reason"], status["details"]["kind"]) == (403, "Forbidden", "nodes")
    assert status["message"] == (
        'nodes "n1" is forbidden: User "manager" cannot patch resource "nodes" in API group "" at the cluster scope'
    )
    assert patch("admin-token")[0] == 200
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    for verb, resource, subresource, allowed in (
        ("patch", "nodes", "", False),
        ("get", "nodes", "", True),
        ("create", "pods", "eviction", False),
        ("create", "pods", "", True),
    ):
        wanted = {"verb": verb, "resource": resource, "subresource": subresource}
        code, review = call(server, "POST", reviews, {"spec": {"resourceAttributes": wanted}}, token="manager-token")
        assert (code, review["status"]["allowed"]) == (201, allowed), wanted


def test_every_request_is_recorded_once(server: ApiServer) -> None:
    call(server, "POST", PODS, pod())
    call(server, "POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}, token="manager-token")
    call(server, "GET", "/api/v1/nodes/no")
    call(server, "GET", "/version")
    with watch(server, "/api/v1/nodes"):
        rows = [(r.verb, r.resource, r.subresource, r.name, r.user, r.code) for r in server.requests]
    assert rows == [
        ("create", "pods", "", "", "admin", 201),
        ("create", "pods", "eviction", "p", "manager", 201),
        ("get", "nodes", "", "no", "admin", 404),
        ("watch", "nodes", "", "", "admin", 200),
    ]
    assert server.counts()["create", "pods/eviction", "manager"] == 1


def test_fifty_requests_on_one_connection_wait_for_no_delayed_ack(server: ApiServer) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=LIMIT_S)
    with contextlib.closing(connection):
        began_s = time.monotonic()
        for _ in range(50):
            connection.request("GET", "/api/v1/nodes", headers={"Authorization": "Bearer admin-token"})
            connection.getresponse().read()
        took_s = time.monotonic() - began_s
    assert took_s < patient(1.0), "each response waited for an acknowledgement (40 ms)"


def test_the_server_stops_at_once_with_an_open_watch_and_an_idle_connection() -> None:
    threads = set(threading.enumerate())
    with contextlib.ExitStack() as clients:
        with ApiServer(Store(), tokens=TOKENS) as server:
            events = clients.enter_context(watch(server, "/api/v1/nodes"))
            idle = clients.enter_context(contextlib.closing(http.client.HTTPConnection(server.url[7:])))
            idle.request("GET", "/readyz")
            assert idle.getresponse().read() == b"ok"
            began_s = time.monotonic()
        assert time.monotonic() - began_s < patient(0.5)
        for thread in set(threading.enumerate()) - threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), thread
        assert list(events) == []


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.usefixtures("whole_client")
def test_the_official_client_lists_watches_patches_and_reports(server: ApiServer) -> None:
    server.store.create("nodes", node(a="1"))
    api_client = kubernetes.config.new_client_from_config_dict(server.kubeconfig("manager-token"))
    core = kubernetes.client.CoreV1Api(api_client)
    version = core.list_node().metadata.resource_version
    assert core.patch_node("n1", label_patch(a="2")).metadata.labels == {"a": "2"}
    stream = kubernetes.watch.Watch().stream(core.list_node, resource_version=version, timeout_seconds=1)
    assert [(event["type"], event["object"].metadata.name) for event in stream] == [("MODIFIED", "n1")]
    event = {"metadata": {"generateName": "n1."}, "involvedObject": {"kind": "Node", "name": "n1"}, "reason": "R"}
    assert core.create_namespaced_event("default", event).metadata.name.startswith("n1.")
    (found,) = core.list_namespaced_event("default", field_selector="involvedObject.name=n1").items
    assert found.reason == "R"
    with pytest.raises(kubernetes.client.ApiException, match="NotFound"):
        core.read_node("no")
    api_client.rest_client.pool_manager.clear()


def test_generated_names_do_not_collide(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_SUFFIX_ALPHABET", "ab")
    bodies = [call(server, "POST", PODS, {"metadata": {"generateName": "p-"}, "spec": {}}) for _ in range(32)]
    assert [code for code, _ in bodies] == [201] * 32
    assert len({body["metadata"]["name"] for _, body in bodies}) == 32
