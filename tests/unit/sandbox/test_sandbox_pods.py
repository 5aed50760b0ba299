"""Pods of the sandbox come, are evicted and go as a real kubelet and a real DaemonSet controller have them."""

from __future__ import annotations

import re
from functools import partial

import pytest

from driver_manager.sandbox.apiserver import ApiServer, DaemonSetController, Kubelet
from tests.support.fakes.sandbox_calls import (
    MERGE,
    PODS,
    call,
    daemonset,
    label_patch,
    node,
    pod,
    pods_of,
    until,
    watch,
)


def test_a_bound_pod_stays_until_its_kubelet_confirms(server: ApiServer) -> None:
    call(server, "POST", PODS, pod())
    code, deleting = call(server, "DELETE", f"{PODS}/p", {"gracePeriodSeconds": 7})
    assert (code, deleting["metadata"]["deletionGracePeriodSeconds"]) == (200, 7)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", deleting["metadata"]["deletionTimestamp"])
    rv = deleting["metadata"]["resourceVersion"]
    assert call(server, "DELETE", f"{PODS}/p")[1]["metadata"]["resourceVersion"] == rv
    with watch(server, PODS, resourceVersion=rv) as events:
        assert call(server, "DELETE", f"{PODS}/p?gracePeriodSeconds=0")[0] == 200
        assert next(events)["type"] == "DELETED"
    assert call(server, "GET", f"{PODS}/p")[0] == 404
    call(server, "POST", PODS, pod("unbound", node_name=""))
    call(server, "DELETE", f"{PODS}/unbound")
    assert call(server, "GET", f"{PODS}/unbound")[0] == 404


def test_a_finalizer_keeps_a_confirmed_pod(server: ApiServer) -> None:
    call(server, "POST", PODS, pod(finalizers=["x/y"]))
    call(server, "DELETE", f"{PODS}/p?gracePeriodSeconds=0")
    assert call(server, "GET", f"{PODS}/p")[0] == 200
    call(server, "PATCH", f"{PODS}/p", {"metadata": {"finalizers": None}}, content_type=MERGE)
    assert call(server, "GET", f"{PODS}/p")[0] == 404


@pytest.mark.parametrize("precondition", ["uid", "resourceVersion"])
def test_a_deletion_precondition_that_does_not_hold_is_a_conflict(server: ApiServer, precondition: str) -> None:
    metadata = call(server, "POST", PODS, pod())[1]["metadata"]
    wrong, right = ({"preconditions": {precondition: value}} for value in ("1", metadata[precondition]))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    for method, path, body in (
        ("DELETE", f"{PODS}/p", wrong),
        ("POST", f"{PODS}/p/eviction", eviction | {"deleteOptions": wrong}),
    ):
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
    dry = {"metadata": {"name": "a"}, "deleteOptions": {"dryRun": ["All"]}}
    for body in (dry, {"metadata": {"name": "a"}}):
        assert call(server, "POST", f"{PODS}/a/eviction", body)[0] == 201
    code, status = call(server, "POST", f"{PODS}/b/eviction", {"metadata": {"name": "b"}})
    assert (code, status["reason"]) == (429, "TooManyRequests")
    assert status["details"]["causes"][0]["message"].endswith("x needs 1 healthy pods and has 1 currently")


def test_a_daemonset_follows_the_node_label_both_ways(server: ApiServer) -> None:
    store = server.store
    with DaemonSetController(store), Kubelet(store, start_s=0, stop_s=0.05):
        owner = store.create("daemonsets", daemonset(deploy="true"))["metadata"]
        store.create("nodes", node("other", deploy="false"))
        call(server, "POST", "/api/v1/nodes", node(deploy="true"))
        until(store, lambda: [item["status"]["phase"] for item in pods_of(store)] == ["Running"])
        (first,) = pods_of(store)
        assert re.fullmatch(r"plugin-[a-z0-9]{5}", first["metadata"]["name"])
        assert (first["spec"]["nodeName"], first["metadata"]["labels"]["app"]) == ("n1", "plugin")
        (reference,) = first["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["uid"], reference["controller"]) == ("DaemonSet", owner["uid"], True)
        call(server, "PATCH", "/api/v1/nodes/n1", label_patch(deploy="paused"), content_type=MERGE)
        until(store, lambda: pods_of(store) == [])
        call(server, "PATCH", "/api/v1/nodes/n1", label_patch(deploy="true"), content_type=MERGE)
        until(store, lambda: len(pods_of(store)) == 1)
        assert pods_of(store)[0]["metadata"]["uid"] != first["metadata"]["uid"]
        call(server, "DELETE", "/apis/apps/v1/namespaces/ns/daemonsets/plugin")
        until(store, lambda: pods_of(store) == [])


@pytest.mark.parametrize(
    ("operator", "values", "wanted"),
    [
        ("NotIn", ["false"], {None, "true"}),
        ("In", ["true"], {"true"}),
        ("Exists", [], {"true", "false"}),
        ("DoesNotExist", [], {None}),
    ],
)
def test_a_daemonset_keeps_to_what_its_affinity_requires_of_a_nodes_labels(
    server: ApiServer, operator: str, values: list[str], wanted: set[str | None]
) -> None:
    store = server.store
    own = daemonset()
    terms = [{"matchExpressions": [{"key": "gate", "operator": operator, "values": values}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    own["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}

    def runs() -> bool:
        return any("deletionTimestamp" not in one["metadata"] for one in pods_of(store))

    with DaemonSetController(store), Kubelet(store, start_s=0, stop_s=0):
        store.create("nodes", node(gate="true"))
        store.create("daemonsets", own)
        for label in (None, "false", "true"):
            call(server, "PATCH", "/api/v1/nodes/n1", label_patch(gate=label), content_type=MERGE)
            until(store, runs if label in wanted else lambda: not runs())


def test_a_terminating_daemon_pod_is_replaced_only_when_it_is_gone(server: ApiServer) -> None:
    store = server.store

    def on(node_name: str) -> list[str]:
        return [item["metadata"]["uid"] for item in pods_of(store) if item["spec"]["nodeName"] == node_name]

    with DaemonSetController(store), Kubelet(store, start_s=0, stop_s=0):
        never = daemonset(deploy="true")
        never["spec"]["template"]["metadata"]["annotations"] = {"sandbox/stop-seconds": "never"}
        store.create("daemonsets", never)
        store.create("nodes", node(deploy="true"))
        until(store, lambda: [item["status"]["phase"] for item in pods_of(store)] == ["Running"])
        (first,) = pods_of(store)
        for value in ("paused", "true"):
            call(server, "PATCH", "/api/v1/nodes/n1", label_patch(deploy=value), content_type=MERGE)
            until(store, lambda: "deletionTimestamp" in pods_of(store)[0]["metadata"])
        for name in ("n2", "n3"):  # the second one's pod shows that the controller is past the first one's round
            store.create("nodes", node(name, deploy="true"))
            until(store, partial(on, name))
        assert on("n1") == [first["metadata"]["uid"]]
        path, body = f"{PODS}/{first['metadata']['name']}", {"metadata": {"annotations": None}}
        call(server, "PATCH", path, body, content_type=MERGE)
        until(store, lambda: len(on("n1")) == 1 and on("n1") != [first["metadata"]["uid"]])
