"""The sandbox's API server through real HTTP: it answers as kube-apiserver does, also to kubectl.

The contracts of the ports (test_contract_on_sandbox.py) hold what the adapters use of it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from driver_manager.sandbox import apiserver
from driver_manager.sandbox.apiserver import KINDS, ApiServer, DaemonSetController, Deny, Kubelet, Obj, Store
from tests.support.fakes.pace import patient

ADMIN, MANAGER = "admin-token", "manager-token"
TOKENS = {ADMIN: "admin", MANAGER: "manager"}
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/ns/pods"
JSON, MERGE = "application/json", "application/merge-patch+json"
LIMIT_S = 25.0
DAY_S = 86400.0
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(Store(), tokens=TOKENS) as running:
        yield running


def connected(server: ApiServer) -> contextlib.closing[http.client.HTTPConnection]:
    return contextlib.closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=LIMIT_S))


def call(
    server: ApiServer, method: str, path: str, body: Any = None, kind: str = JSON, token: str = ADMIN, **more: str
) -> tuple[int, Obj]:
    """Status and answer. `more` are headers; an empty token sends none."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with connected(server) as connection:
        sent = json.dumps(body) if body is not None else None
        connection.request(method, path, sent, {**headers, "Content-Type": kind, **more})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def patch_node(server: ApiServer, body: Obj, path: str = "", token: str = ADMIN) -> tuple[int, Obj]:
    return call(server, "PATCH", f"/api/v1/nodes/n1{path}", body, MERGE, token)


@contextlib.contextmanager
def watch(server: ApiServer, path: str, **options: object) -> Iterator[Iterator[Obj]]:
    query = "&".join(f"{name}={quote(str(value))}" for name, value in options.items())
    with connected(server) as connection:
        connection.request("GET", f"{path}?watch=true&{query}", headers={"Authorization": f"Bearer {ADMIN}"})
        response = connection.getresponse()
        assert response.status == 200
        yield (json.loads(line) for line in iter(response.readline, b""))


def node(name: str = "n1", **labels: str) -> Obj:
    return {"metadata": {"name": name, "labels": labels}}


def pod(name: str = "p", node_name: str = "n1", **metadata: Any) -> Obj:
    return {"metadata": {"name": name, "namespace": "ns", **metadata}, "spec": {"nodeName": node_name}}


def daemonset(**selector: str) -> Obj:
    template = {"metadata": {"labels": {"app": "plugin"}}, "spec": {"nodeSelector": selector, "containers": []}}
    return {"metadata": {"name": "plugin", "namespace": "ns"}, "spec": {"template": template}}


def until(store: Store, is_so: Callable[[], object]) -> None:
    with store.changed:
        assert store.changed.wait_for(is_so, LIMIT_S)


def pods_of(store: Store) -> list[Obj]:
    return store.list_objects("pods")[0]


def label_patch(**labels: str | None) -> Obj:
    return {"metadata": {"labels": labels}}


def test_a_patch_of_nothing_new_keeps_the_resource_version_and_a_dry_run_everything(server: ApiServer) -> None:
    created = server.store.create("nodes", node(a="1"))
    unchanging: list[Obj] = [label_patch(a="1"), label_patch(b=None), {"metadata": {"annotations": {}}}]
    assert [patch_node(server, body) for body in unchanging] == [(200, created)] * 3
    code, shown = patch_node(server, label_patch(a="2"), "?dryRun=All")
    assert (code, shown["metadata"]["labels"]) == (200, {"a": "2"})
    assert call(server, "DELETE", f"{NODES}/n1?dryRun=All")[0] == 200
    assert server.store.list_objects("nodes")[0] == [created]
    _, cordoned = patch_node(server, {"spec": {"unschedulable": True}})
    assert cordoned["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]


def test_merge_patch_follows_rfc_7386() -> None:
    for target, patch, result in (
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"a": "foo"}, {"b": {"c": None, "d": 1}}, {"a": "foo", "b": {"d": 1}}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        (["x"], {"a": 1}, {"a": 1}),
    ):
        assert apiserver.apply_merge_patch(target, patch) == result


def test_a_json_patch_applies_to_escaped_keys_and_refuses_a_pointer_that_leads_nowhere(server: ApiServer) -> None:
    server.store.create("nodes", node(**{"x/a": "1", "b": "2"}))

    def patch(*operations: Obj) -> tuple[int, Obj]:
        return call(server, "PATCH", f"{NODES}/n1", operations, "application/json-patch+json")

    no_parent, no_slash = "/metadata/annotations/a", "x/metadata/labels/c"
    for op, path in (("replace", "/metadata/labels/absent"), ("add", no_parent), ("add", no_slash)):
        code, status = patch({"op": "remove", "path": "/metadata/labels/b"}, {"op": op, "path": path, "value": ""})
        assert (code, status["reason"]) == (422, "Invalid"), path
    code, patched = patch({"op": "replace", "path": "/metadata/labels/x~1a", "value": "3"})
    assert (code, patched["metadata"]["labels"]) == (200, {"x/a": "3", "b": "2"})


def test_the_status_is_written_apart_and_a_new_pod_has_its_own(server: ApiServer) -> None:
    server.store.create("nodes", node(a="1") | {"status": {"phase": "old"}})
    body: Obj = {**label_patch(a="2"), "status": {"phase": "new"}}
    for path, phase in (("", "old"), ("/status", "new")):
        _, changed = patch_node(server, body, path)
        assert (changed["metadata"]["labels"], changed["status"]) == ({"a": "2"}, {"phase": phase})
        body |= label_patch(a="3")
    assert call(server, "POST", PODS, pod() | {"status": {"phase": "Running"}})[1]["status"] == {"phase": "Pending"}


def test_invalid_absent_existing_or_unserved_objects_are_answered_by_a_status(server: ApiServer) -> None:
    created = server.store.create("nodes", node(a="x" * 63))
    for value in ("x" * 64, "-a", "a_", "a b"):
        code, status = patch_node(server, label_patch(a=value))
        assert (code, status["reason"]) == (422, "Invalid")
        assert status["message"].startswith(f'Node "n1" is invalid: metadata.labels: Invalid value: "{value}": ')
    assert server.store.get("nodes", "n1") == created
    server.store.create("daemonsets", daemonset())
    base = "/apis/apps/v1/namespaces/ns/daemonsets"
    answers = {
        ("GET", "/api/v1/nodes/no"): (404, "NotFound", 'nodes "no" not found'),
        ("DELETE", f"{base}/no"): (404, "NotFound", 'daemonsets.apps "no" not found'),
        ("POST", base): (409, "AlreadyExists", 'daemonsets.apps "plugin" already exists'),
        ("GET", "/apis/none/v1/things"): (404, "NotFound", "the server could not find the requested resource"),
        ("PATCH", f"{base}/plugin"): (415, "UnsupportedMediaType", "the body of the request was in an unknown"),
        ("POST", f"{PODS}/p/status"): (405, "MethodNotAllowed", "the server does not allow this method"),
        ("GET", "/api/v1/nodes?fieldSelector=spec"): (400, "BadRequest", "invalid selector: 'spec'"),
    }
    for (method, path), (code, reason, message) in answers.items():
        got, status = call(server, method, path, daemonset() if method in ("POST", "PATCH") else None)
        assert (got, status["code"], status["reason"], status["status"]) == (code, code, reason, "Failure"), path
        assert status["message"].startswith(message)


def test_a_list_holds_what_the_selectors_match(server: ApiServer) -> None:
    for item in (node("n1", a="1"), node("n2", a="2", b=""), node("n3", b="x")):
        server.store.create("nodes", item)
    for selector, names in {
        "labelSelector=a=1": ["n1"],
        "labelSelector=a==1": ["n1"],
        "labelSelector=a!=1": ["n2", "n3"],
        "labelSelector=a": ["n1", "n2"],
        "labelSelector=!a": ["n3"],
        "labelSelector=a in (1, 2),b": ["n2"],
        "labelSelector=a notin (1,3)": ["n2", "n3"],
        "fieldSelector=metadata.name=n2": ["n2"],
        "fieldSelector=metadata.name!=n2,metadata.name!=n3": ["n1"],
        "fieldSelector=metadata.name!=n2&labelSelector=a": ["n1"],
    }.items():
        code, found = call(server, "GET", f"/api/v1/nodes?{quote(selector, safe='=&')}")
        listed = [item["metadata"]["name"] for item in found["items"]]
        assert (code, found["kind"], listed) == (200, "NodeList", names), selector


@pytest.mark.parametrize(("limit", "pages"), [(1, 3), (2, 2), (3, 1), (0, 1)])
def test_a_list_comes_in_pages_of_one_version(server: ApiServer, limit: int, pages: int) -> None:
    for name in ("n2", "n1", "n3"):
        server.store.create("nodes", node(name))
    found, token = list[Obj](), ""
    while not found or token:
        found.append(call(server, "GET", f"/api/v1/nodes?limit={limit}&continue={quote(token)}")[1])
        token = found[-1]["metadata"].get("continue", "")
        server.store.create("nodes", node(f"a-later-one-{len(found)}"))
    assert [item["metadata"]["name"] for page in found for item in page["items"]] == ["n1", "n2", "n3"]
    assert (len(found), len({page["metadata"]["resourceVersion"] for page in found})) == (pages, 1)
    for query in ("limit=2&continue=x", "limit=many"):
        assert call(server, "GET", f"/api/v1/nodes?{query}")[0] == 400


def test_a_watch_begins_with_what_is_there_or_after_a_revision_of_the_bounded_log() -> None:
    store = Store(history_limit=2)
    for name in ("n1", "n2", "n3"):
        store.create("nodes", node(name))
    with ApiServer(store, tokens=TOKENS) as server:
        with watch(server, NODES) as events:
            assert [next(events)["object"]["metadata"]["name"] for _ in range(3)] == ["n1", "n2", "n3"]
        with watch(server, NODES, resourceVersion=2) as events:
            assert next(events)["object"]["metadata"]["name"] == "n2"
        with watch(server, NODES, resourceVersion=1) as events:
            (error,) = events
        assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_a_watch_from_a_list_sees_every_later_change_exactly_once(server: ApiServer) -> None:
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


def test_an_object_that_enters_or_leaves_a_selection_is_added_or_deleted(server: ApiServer) -> None:
    server.store.create("nodes", node(a="0"))
    with watch(server, NODES, labelSelector="a=1", resourceVersion=2) as events:
        for labels in ({"b": "unseen"}, {"a": "1"}, {"b": "2"}, {"a": "2"}, {"b": "unseen"}, {"a": "1"}):
            patch_node(server, label_patch(**labels))
        got = [next(events) for _ in range(4)]
    assert [event["type"] for event in got] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    left = got[2]["object"]["metadata"]
    assert (left["labels"], left["resourceVersion"]) == ({"a": "1", "b": "2"}, "6")


@pytest.mark.submission
@pytest.mark.shares(3)
def test_bookmarks_carry_the_newest_revision_while_idle_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apiserver, "BOOKMARK_S", 0.05)
    store = Store()
    with ApiServer(store, tokens=TOKENS) as server:
        options: dict[str, Any] = {"resourceVersion": 1, "timeoutSeconds": 1}
        with watch(server, NODES, allowWatchBookmarks="true", **options) as events:
            first = next(events)
            assert (first["type"], first["object"]["kind"]) == ("BOOKMARK", "Node")
            other = store.create("pods", pod())["metadata"]["resourceVersion"]
            last = [*events][-1]
        assert (last["type"], last["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", other)
        with watch(server, NODES, **options) as events:
            assert list(events) == []


def test_a_denied_verb_is_forbidden_in_the_real_words_and_in_access_reviews(server: ApiServer) -> None:
    server.deny += [Deny("patch", "nodes", "manager"), Deny("create", "pods/eviction", "manager")]
    server.store.create("nodes", node())

    code, status = patch_node(server, label_patch(), token=MANAGER)
    assert (code, status["reason"], status["details"]["kind"]) == (403, "Forbidden", "nodes")
    what = 'User "manager" cannot patch resource "nodes" in API group "" at the cluster scope'
    assert (status["message"], patch_node(server, label_patch())[0]) == (f'nodes "n1" is forbidden: {what}', 200)
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    on_pods = (("create", "pods", "eviction", False), ("create", "pods", "", True))
    for verb, resource, subresource, allowed in (("patch", "nodes", "", False), ("get", "nodes", "", True), *on_pods):
        wanted = {"verb": verb, "resource": resource, "subresource": subresource}
        code, review = call(server, "POST", reviews, {"spec": {"resourceAttributes": wanted}}, token=MANAGER)
        assert (code, review["status"]["allowed"]) == (201, allowed), wanted


def test_every_request_is_recorded_once(server: ApiServer) -> None:
    call(server, "POST", PODS, pod())
    call(server, "POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}, token=MANAGER)
    call(server, "GET", "/api/v1/nodes/no")
    call(server, "GET", "/version")
    with watch(server, NODES):
        rows = [(r.verb, r.resource, r.subresource, r.name, r.user, r.code) for r in server.requests]
    made, evicted = ("create", "pods", "", "", "admin", 201), ("create", "pods", "eviction", "p", "manager", 201)
    assert rows == [made, evicted, ("get", "nodes", "", "no", "admin", 404), ("watch", "nodes", "", "", "admin", 200)]


def test_fifty_requests_on_one_connection_wait_for_no_delayed_ack(server: ApiServer) -> None:
    with connected(server) as connection:
        began_s = time.monotonic()
        for _ in range(50):
            connection.request("GET", NODES, headers={"Authorization": f"Bearer {ADMIN}"})
            connection.getresponse().read()
        took_s = time.monotonic() - began_s
    assert took_s < patient(1.0), "each response waited for an acknowledgement (40 ms)"


def test_the_server_stops_at_once_with_an_open_watch_and_an_idle_connection() -> None:
    threads = set(threading.enumerate())
    with contextlib.ExitStack() as clients:
        with ApiServer(Store(), tokens=TOKENS) as server:
            events = clients.enter_context(watch(server, NODES))
            idle = clients.enter_context(connected(server))
            idle.request("GET", "/readyz")
            assert idle.getresponse().read() == b"ok"
            began_s = time.monotonic()
        assert time.monotonic() - began_s < patient(0.5)
        for thread in set(threading.enumerate()) - threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), thread
        assert list(events) == []


def test_generated_names_do_not_collide(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apiserver, "_SUFFIX_ALPHABET", "ab")
    bodies = [call(server, "POST", PODS, {"metadata": {"generateName": "p-"}, "spec": {}}) for _ in range(32)]
    assert [code for code, _ in bodies] == [201] * 32
    assert len({body["metadata"]["name"] for _, body in bodies}) == 32


def test_a_bound_pod_stays_until_its_kubelet_confirms_and_no_finalizer_keeps_it(server: ApiServer) -> None:
    call(server, "POST", PODS, pod())
    code, deleting = call(server, "DELETE", f"{PODS}/p", {"gracePeriodSeconds": 7})
    assert (code, deleting["metadata"]["deletionGracePeriodSeconds"]) == (200, 7)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", deleting["metadata"]["deletionTimestamp"])
    rv = deleting["metadata"]["resourceVersion"]
    assert call(server, "DELETE", f"{PODS}/p")[1]["metadata"]["resourceVersion"] == rv
    with watch(server, PODS, resourceVersion=rv) as events:
        assert (call(server, "DELETE", f"{PODS}/p?gracePeriodSeconds=0")[0], next(events)["type"]) == (200, "DELETED")
    assert call(server, "GET", f"{PODS}/p")[0] == 404
    call(server, "POST", PODS, pod("unbound", node_name=""))
    call(server, "DELETE", f"{PODS}/unbound")
    assert call(server, "GET", f"{PODS}/unbound")[0] == 404
    call(server, "POST", PODS, pod(finalizers=["x/y"]))
    call(server, "DELETE", f"{PODS}/p?gracePeriodSeconds=0")
    assert call(server, "GET", f"{PODS}/p")[0] == 200
    call(server, "PATCH", f"{PODS}/p", {"metadata": {"finalizers": None}}, MERGE)
    assert call(server, "GET", f"{PODS}/p")[0] == 404


@pytest.mark.parametrize("precondition", ["uid", "resourceVersion"])
def test_a_deletion_precondition_that_does_not_hold_is_a_conflict(server: ApiServer, precondition: str) -> None:
    metadata = call(server, "POST", PODS, pod())[1]["metadata"]
    wrong, right = ({"preconditions": {precondition: value}} for value in ("1", metadata[precondition]))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    evicts = ("POST", f"{PODS}/p/eviction", eviction | {"deleteOptions": wrong})
    for method, path, body in (("DELETE", f"{PODS}/p", wrong), evicts):
        code, status = call(server, method, path, body)
        assert (code, status["reason"]) == (409, "Conflict")
    assert "deletionTimestamp" not in server.store.get("pods", "p", "ns")["metadata"]
    assert call(server, "POST", f"{PODS}/p/eviction", eviction | {"deleteOptions": right})[0] == 201
    assert "deletionTimestamp" in server.store.get("pods", "p", "ns")["metadata"]


def test_an_exhausted_disruption_budget_refuses_an_eviction(server: ApiServer) -> None:
    with Kubelet(server.store, start_s=0):
        for name in ("a", "b"):
            call(server, "POST", PODS, pod(name, labels={"app": "x"}))
        until(server.store, lambda: all(item["status"]["phase"] == "Running" for item in pods_of(server.store)))
    budget = {"metadata": {"name": "x"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    assert call(server, "POST", "/apis/policy/v1/namespaces/ns/poddisruptionbudgets", budget)[0] == 201
    for options in ({"dryRun": ["All"]}, {}):
        body = {"metadata": {"name": "a"}, "deleteOptions": options}
        assert call(server, "POST", f"{PODS}/a/eviction", body)[0] == 201
    code, status = call(server, "POST", f"{PODS}/b/eviction", {"metadata": {"name": "b"}})
    assert (code, status["reason"]) == (429, "TooManyRequests")
    assert status["details"]["causes"][0]["message"].endswith("x needs 1 healthy pods and has 1 currently")


def test_a_daemonset_follows_the_node_label_both_ways(server: ApiServer) -> None:
    store = server.store
    with DaemonSetController(store), Kubelet(store, start_s=0, stop_s=0.05):
        owner = store.create("daemonsets", daemonset(deploy="true"))["metadata"]
        store.create("nodes", node("other", deploy="false"))
        call(server, "POST", NODES, node(deploy="true"))
        until(store, lambda: [item["status"]["phase"] for item in pods_of(store)] == ["Running"])
        (first,) = pods_of(store)
        (owned,) = first["metadata"]["ownerReferences"]
        assert re.fullmatch(r"plugin-[a-z0-9]{5}", first["metadata"]["name"])
        assert (first["spec"]["nodeName"], first["metadata"]["labels"]["app"]) == ("n1", "plugin")
        assert (owned["kind"], owned["uid"], owned["controller"]) == ("DaemonSet", owner["uid"], True)
        patch_node(server, label_patch(deploy="paused"))
        until(store, lambda: pods_of(store) == [])
        patch_node(server, label_patch(deploy="true"))
        until(store, lambda: len(pods_of(store)) == 1)
        assert pods_of(store)[0]["metadata"]["uid"] != first["metadata"]["uid"]
        call(server, "DELETE", "/apis/apps/v1/namespaces/ns/daemonsets/plugin")
        until(store, lambda: pods_of(store) == [])


def test_a_daemonset_keeps_to_what_its_affinity_requires_of_a_nodes_labels(server: ApiServer) -> None:
    store, own = server.store, daemonset()
    terms = [{"matchExpressions": [{"key": "gate", "operator": "NotIn", "values": ["false"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    own["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}

    def runs() -> bool:
        return any("deletionTimestamp" not in one["metadata"] for one in pods_of(store))

    with DaemonSetController(store), Kubelet(store, start_s=0, stop_s=0):
        store.create("nodes", node(gate="true"))
        store.create("daemonsets", own)
        for label in (None, "false", "true"):
            patch_node(server, label_patch(gate=label))
            until(store, runs if label != "false" else lambda: not runs())


def test_a_terminating_daemon_pod_is_replaced_only_when_it_is_gone(server: ApiServer) -> None:
    store = server.store

    def on(node_name: str) -> list[str]:
        return [item["metadata"]["uid"] for item in pods_of(store) if item["spec"]["nodeName"] == node_name]

    with DaemonSetController(store), Kubelet(store, start_s=0, stop_s=0):
        store.create("daemonsets", daemonset(deploy="true"))
        store.create("nodes", node(deploy="true"))
        until(store, lambda: [item["status"]["phase"] for item in pods_of(store)] == ["Running"])
        (first,) = pods_of(store)
        path = f"{PODS}/{first['metadata']['name']}"
        call(server, "PATCH", path, {"metadata": {"finalizers": ["x/y"]}}, MERGE)
        for value in ("paused", "true"):
            patch_node(server, label_patch(deploy=value))
            until(store, lambda: "deletionTimestamp" in pods_of(store)[0]["metadata"])
        for name in ("n2", "n3"):  # the second one's pod shows that the controller is past the first one's round
            store.create("nodes", node(name, deploy="true"))
            until(store, partial(on, name))
        assert on("n1") == [first["metadata"]["uid"]]
        call(server, "PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
        until(store, lambda: len(on("n1")) == 1 and on("n1") != [first["metadata"]["uid"]])


@pytest.fixture
def there(server: ApiServer) -> ApiServer:
    """A cordoned node and a pod that is on its way out."""
    server.store.create("nodes", {**node(), "spec": {"unschedulable": True}})
    server.store.create("pods", pod(finalizers=["example.com/held"]))
    server.store.delete("pods", "p", namespace="ns")
    return server


def test_a_token_in_the_address_is_as_good_as_one_in_the_header_but_no_body_in_protobuf(there: ApiServer) -> None:
    path = "/api/v1/nodes/n1"
    server = there.kubeconfig(in_address=True)["clusters"][0]["cluster"]["server"]
    assert (server, there.kubeconfig(in_address=True)["users"][0]["user"]) == (f"{there.url}/admin-token", {})
    assert call(there, "GET", f"/admin-token{path}", token="") == call(there, "GET", path)
    for wrong, token in (("", ""), ("/stolen", ""), ("", "stolen")):
        code, status = call(there, "GET", f"{wrong}{path}", token=token)
        assert (code, status["kind"], status["reason"], status["message"]) == (401, "Status", *["Unauthorized"] * 2)
    assert there.requests[0].user == "admin"
    with connected(there) as connection:
        sent = b'k8s\x00\n\x13\n\x02v1\x12\rDeleteOptions\x12\x02\x08\x07\x1a\x00"\x00'
        connection.request("DELETE", f"/admin-token{PODS}/p", sent)
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["message"]) == (415, "the sandbox does not serve protobuf")


def test_every_kind_is_found_with_its_verbs_below_its_group(server: ApiServer) -> None:
    for kind in KINDS.values():
        code, found = call(server, "GET", (f"/apis/{kind.api_version}" if kind.group else "/api/v1"))
        (own,) = [one for one in found["resources"] if one["name"] == kind.plural]
        assert (code, found["groupVersion"]) == (200, kind.api_version)
        assert (own["kind"], own["namespaced"], own["singularName"]) == (kind.kind, kind.namespaced, kind.kind.lower())
    _, found = call(server, "GET", "/api/v1")
    (eviction,) = [one for one in found["resources"] if one["name"] == "pods/eviction"]
    assert (eviction["kind"], eviction["group"], eviction["version"]) == ("Eviction", "policy", "v1"), "drain needs it"


def cells(found: Obj) -> list[dict[str, str]]:
    """The rows of a table by the names of its columns."""
    assert (found["kind"], found["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    names = [column["name"] for column in found["columnDefinitions"]]
    return [dict(zip(names, row["cells"], strict=True)) for row in found["rows"]]


def tables_read_the_time(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    """Ages are those at this moment, in Unix seconds: two requests may lie on two sides of a second."""
    monkeypatch.setattr(apiserver, "time", SimpleNamespace(time=lambda: now, strptime=time.strptime))


def test_a_list_and_an_object_are_tables_on_request(there: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tables_read_the_time(monkeypatch, time.time() + 3.5 * DAY_S)
    asked = partial(call, there, "GET", Accept=TABLE)
    (listed,), (row,) = cells(asked(NODES)[1]), asked(NODES)[1]["rows"]
    assert (listed["Name"], listed["Status"], listed["Age"]) == ("n1", "NotReady,SchedulingDisabled", "3d")
    assert row["object"]["metadata"]["name"] == "n1", "kubectl -L takes labels from there"
    assert cells(asked(f"{NODES}/n1")[1]) == [listed]
    (leaving,) = cells(asked(PODS)[1])
    assert (leaving["Name"], leaving["Status"], leaving["Ready"]) == ("p", "Terminating", "0/0")
    assert call(there, "GET", NODES)[1]["kind"] == "NodeList", "who asks for no table gets objects"
    code, refusal = asked(f"{NODES}/absent")
    assert (code, refusal["kind"]) == (404, "Status")


def test_ages_are_in_the_largest_unit_of_two_and_pods_in_the_states_of_kubectl(monkeypatch: pytest.MonkeyPatch) -> None:
    tables_read_the_time(monkeypatch, DAY_S)
    ages = {"1970-01-02T00:00:01Z": "0s", "1970-01-02T00:00:00Z": "0s"}  # the first one is of a clock that is ahead
    ages |= {"1970-01-01T23:58:01Z": "119s", "1970-01-01T23:58:00Z": "2m", "1970-01-01T22:00:01Z": "119m"}
    ages |= {"1970-01-01T22:00:00Z": "2h", "1969-12-31T00:00:01Z": "47h", "1969-12-31T00:00:00Z": "2d"}
    ages |= {"yesterday": "<unknown>", "": "<unknown>"}
    nodes = ({"kind": "Node", "metadata": {"name": "n1", "creationTimestamp": made}} for made in ages)
    found = (cells(apiserver.printed_table(KINDS["nodes"], one))[0]["Age"] for one in nodes)
    assert dict(zip(ages, found, strict=True)) == ages
    crashes = {"initContainerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}
    for inits, status, word in (
        (0, {}, "Pending"),
        (0, {"phase": "Running"}, "Running"),
        (2, {}, "Init:0/2"),
        (1, {"phase": "Running"}, "Running"),
        (1, crashes, "Init:CrashLoopBackOff"),
    ):
        spec: Obj = {"initContainers": [{}] * inits} if inits else {}
        assert apiserver.state_of({"metadata": {}, "spec": spec, "status": status}) == word


READY, OTHER = {"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}
OURS = {"type": "example.com/DriverReady", "status": "False", "reason": "Held"}


def test_a_strategic_patch_merges_conditions_by_type_and_deletes_them_and_takes_no_other_directive() -> None:
    target = {"status": {"conditions": [READY, OURS], "phase": "x"}}
    for sent, after in (
        ({**OURS, "status": "True"}, [READY, {**OURS, "status": "True"}]),
        (OTHER, [READY, OURS, OTHER]),
        ({"type": OURS["type"], "$patch": "delete"}, [READY]),
        ({"type": "Other", "$patch": "delete"}, [READY, OURS]),
    ):
        merged = apiserver.strategic_merge_patch(target, {"status": {"conditions": [sent]}})
        assert merged == {"status": {"conditions": after, "phase": "x"}}
        assert target["status"]["conditions"] == [READY, OURS]
    for refused in ([{**OURS, "$patch": "replace"}], [{"$patch": "replace", "type": "x"}, OURS]):
        with pytest.raises(apiserver.ApiError, match="directives"):
            apiserver.strategic_merge_patch({}, {"status": {"conditions": refused}})
