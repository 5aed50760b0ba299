"""Kubernetes objects as JSON become facts: what a pod asks for, what a claim is of, who set a cordon."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.kube import objects as kube_objects
from driver_manager.adapters.kube.api import sent
from driver_manager.adapters.kube.fleet import _as_leader, as_daemon_set
from driver_manager.adapters.kube.leases import _as_record
from driver_manager.adapters.kube.objects import as_claim, as_node, as_pod
from driver_manager.domain.errors import ApiUnavailable, WatchBroken
from driver_manager.domain.node import Claim, Pod

ATOM = "rebellions.ai/ATOM"
MIRROR = "kubernetes.io/config.mirror"


def pod(spec: Any = None, status: Any = None, **more: Any) -> Pod:
    metadata = {"name": "p", "namespace": "ns", "uid": "u", **more}
    return as_pod({"metadata": metadata, "spec": spec, "status": status})


# a pod's fields


def digest(name: str = "c", **value: Any) -> dict[str, Any]:
    """A container with a digest in its environment."""
    return {"name": name, "env": [{"name": "DRIVER_CONFIG_DIGEST", **value}]}


def by_field(path: str) -> dict[str, Any]:
    return {"containers": [digest(valueFrom={"fieldRef": {"apiVersion": "v1", "fieldPath": path}})]}


def digests(containers: list[str], inits: list[str]) -> dict[str, Any]:
    """Containers whose digests are given, "" for one without."""
    mains, firsts = ([digest(value=value) if value else digest() for value in of] for of in (containers, inits))
    return {"containers": mains, "initContainers": firsts}


def asking(*mains: Any, inits: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    containers, firsts = ([{"resources": one} for one in of] for of in (mains, inits))
    return {"containers": containers, "initContainers": firsts}


def limits(amount: Any = "1", *names: str) -> dict[str, Any]:
    return {"limits": dict.fromkeys(names or (ATOM,), amount) | {"cpu": "2"}}


NAMED, OF_TEMPLATE = {"name": "a", "resourceClaimName": "shared"}, {"name": "a", "resourceClaimTemplateName": "t"}
OTHER = {"name": "b", "resourceClaimName": "other"}


def claiming(entries: Any, made: Any = None, extended: Any = None) -> dict[str, Any]:
    status = {"resourceClaimStatuses": made, "extendedResourceClaimStatus": extended}
    return {"spec": {"resourceClaims": entries}, "status": status}


RUNS: dict[str, Any] = {"running": {}}
ENDED = {"terminated": {"exitCode": 0}}
REMOVED, CRASHED = {"waiting": {"reason": "ContainerCreating"}}, {"waiting": {"reason": "CrashLoopBackOff"}}


def states(*of: Any) -> list[Any]:
    return [{"name": name, "state": state} for name, state in zip("abc", of, strict=False)]


def phase(phase: str, *of: Any, inits: tuple[Any, ...] = (), others: tuple[Any, ...] = ()) -> dict[str, Any]:
    """A pod of the containers a and b, in a phase with so many states."""
    status = {"phase": phase, "containerStatuses": states(*of) or None, "initContainerStatuses": states(*inits)}
    status["ephemeralContainerStatuses"] = states(*others)
    return {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}, "status": status}


def ran(*moments: str | None, inits: tuple[str | None, ...] = ()) -> dict[str, Any]:
    """Containers, each running since a moment or waiting; the second of the init containers stays."""

    def since(of: tuple[str | None, ...]) -> list[Any]:
        return states(*({"running": {"startedAt": one}} if one else {"waiting": {}} for one in of))

    status = {"containerStatuses": since(moments), "initContainerStatuses": since(inits)}
    return {"spec": {"initContainers": [{"name": "a"}, {"name": "b", "restartPolicy": "Always"}]}, "status": status}


EARLY, LATE, EARLY_S = "2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z", 1_767_323_045.0
DUE_S = 1_700_000_000.0
THING, SET, JOB = {"kind": "Thing"}, {"kind": "ReplicaSet", "controller": True}, {"kind": "Job", "controller": True}
STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
MOUNT = {"name": "v", "hostPath": {"path": "/x"}}
DIGESTS = "config_digest main_digest"
NO_DIGESTS = ("metadata.annotations['example.com/other']", "metadata.name", "metadata.annotations")
FIELDS: list[tuple[str, dict[str, Any], Any]] = [
    # the digest of the wanted driver, read where the kubelet reads it
    ("config_digest", {"spec": {"containers": [digest(value="ab12")]}}, "ab12"),
    ("config_digest", {"spec": by_field("metadata.annotations['driver-config-digest']")}, "cd34"),
    *(("config_digest", {"spec": by_field(path)}, "") for path in NO_DIGESTS),
    ("config_digest", {"spec": {"containers": [digest(valueFrom={"configMapKeyRef": {"name": "c"}})]}}, ""),
    (DIGESTS, {"spec": digests(["main", "side"], ["init"])}, ("main", "main")),
    (DIGESTS, {"spec": digests(["", "side"], ["init"])}, ("side", "")),
    (DIGESTS, {"spec": digests([""], ["init"])}, ("init", "")),
    (DIGESTS, {"spec": digests([], ["init"])}, ("init", "")),
    # extended resources that a container asks for
    *(("resources", {"spec": asking(limits(amount))}, (ATOM,)) for amount in ("1", "16", 1, "1k")),
    *(("resources", {"spec": asking(limits(amount))}, ()) for amount in ("0", 0)),
    *(("resources", {"spec": asking(limits("1", name))}, ()) for name in ("memory", "hugepages-2Mi")),
    ("resources", {"spec": asking({"requests": {ATOM: "1"}})}, (ATOM,)),
    ("resources", {"spec": asking(limits("0"), limits("1"))}, (ATOM,)),
    ("resources", {"spec": asking(inits=(limits("1"),))}, (ATOM,)),
    ("resources", {"spec": asking(limits() | {"requests": {ATOM: "1"}}, {"requests": {"a/b": "1"}})}, (ATOM, "a/b")),
    ("resources", {"spec": asking(limits("1"), inits=(limits("1", "a/i", ATOM),))}, (ATOM, "a/i")),
    *(("resources", {"spec": spec}, ()) for spec in (None, {}, {"containers": None, "initContainers": None})),
    ("resources", {"spec": asking({}, None, {"limits": None, "requests": {}})}, ()),
    # claims by name, by what a template made, and of the scheduler for an extended resource
    ("claims", claiming([NAMED]), ("shared",)),
    ("claims", claiming([OF_TEMPLATE], [{"name": "a", "resourceClaimName": "p-a-x7"}]), ("p-a-x7",)),
    *(("claims", claiming([OF_TEMPLATE], made), ()) for made in (None, [], [{"name": "a"}], [OTHER])),
    ("claims", claiming([OF_TEMPLATE, OTHER], [{"name": "a", "resourceClaimName": "p-a"}]), ("p-a", "other")),
    ("claims", claiming([NAMED, NAMED]), ("shared",)),
    ("claims", claiming(None), ()),
    ("claims", claiming([], [{"name": "a", "resourceClaimName": "left"}]), ()),
    ("claims", claiming(None, extended={"resourceClaimName": "p-extended-x"}), ("p-extended-x",)),
    ("claims", claiming(None, extended={}), ()),
    # volumes
    *(("has_empty_dir", {"spec": {"volumes": volumes}}, False) for volumes in (None, [], [MOUNT])),
    ("has_empty_dir host_paths", {"spec": {"volumes": [MOUNT, {"emptyDir": {}}, MOUNT]}}, (True, ("/x", "/x"))),
    ("has_empty_dir", {"spec": {"volumes": [{"configMap": {}}, {"emptyDir": {"medium": "Memory"}}]}}, True),
    ("has_empty_dir", {"spec": {"volumes": [{"name": "emptyDir", "secret": {}}]}}, False),
    ("selector_keys", {"spec": {"nodeSelector": {"a": "b"}}}, frozenset({"a"})),
    # when a pod that was told to end should have
    ("due_s", {"deletionTimestamp": "2023-11-14T22:13:20Z"}, DUE_S),
    ("due_s", {"deletionTimestamp": "2023-11-14T22:13:20+00:00"}, DUE_S),
    ("due_s", {"deletionTimestamp": "2023-11-14T23:13:20.5+01:00"}, DUE_S + 0.5),
    *(("due_s", {"deletionTimestamp": stamp}, None) for stamp in (None, "", "soon", "9999-99-99T00:00:00Z")),
    ("due_s", {"deletionTimestamp": "9999-12-31T23:59:59-23:59"}, None),
    *(("deleting", {"deletionTimestamp": stamp}, bool(stamp)) for stamp in ("soon", "", None)),
    *(("termination_grace_s", {"spec": {"terminationGracePeriodSeconds": one}}, one or 0) for one in (30, 0, None)),
    # only a controller makes a pod again
    ("owner_kind", {"ownerReferences": [SET]}, "ReplicaSet"),
    ("owner_kind", {"ownerReferences": [THING, JOB]}, "Job"),
    *(("owner_kind", {"ownerReferences": of}, "") for of in ([THING], [THING | {"controller": False}], [], None)),
    # a mirror pod, with the uid that the host has for it
    ("static_uid is_mirror", {"annotations": {MIRROR: "0c1f"}}, ("0c1f", True)),
    *(("is_mirror", {"annotations": notes}, False) for notes in ({"kubernetes.io/config.hash": "0c1f"}, {}, None)),
    *(("labels", {"labels": labels}, labels or {}) for labels in ({"a": "b"}, {}, None)),
    ("phase", {}, "Pending"),
    ("is_over", {"status": {"phase": "Succeeded"}}, True),
    # containers have ended if the status says so of each
    ("have_ended", phase("Running", ENDED, ENDED), True),
    ("have_ended", phase("Running", ENDED, RUNS), False),
    ("have_ended", phase("Running", ENDED), None),
    ("have_ended", phase("Running", ENDED, ENDED, RUNS), False),
    ("have_ended", phase("Failed"), None),
    ("have_ended", {"status": {"phase": "Failed"}}, None),
    ("have_ended", phase("Failed", ENDED, ENDED), True),
    ("have_ended", phase("Failed", RUNS, ENDED), False),
    ("have_ended", phase("Running", REMOVED, ENDED), True),  # by a kubelet of 1.20
    ("have_ended", phase("Pending", REMOVED, REMOVED), False),  # not made yet
    *(("have_ended", phase("Running", state, ENDED), False) for state in (CRASHED, {}, None)),
    ("have_ended", phase("Running", ENDED, ENDED, inits=(RUNS,)), False),
    ("have_ended", phase("Running", ENDED, ENDED, inits=(ENDED,), others=(RUNS,)), False),
    # a pod runs since the first of its containers does
    ("started_s", {}, None),
    *(("started_s", ran(*since), EARLY_S) for since in ([EARLY], [LATE, EARLY], [None, EARLY])),
    *(("started_s", ran(since), None) for since in (None, "no time")),
    ("started_s", ran(inits=(EARLY,)), None),
    ("started_s", ran(inits=(None, EARLY)), EARLY_S),
    *(("container_ids", {"status": {kind: [{"containerID": "containerd://0c"}]}}, ("0c",)) for kind in STATUSES),
    ("container_ids", {"status": {"containerStatuses": [{}, {"containerID": ""}, {"containerID": None}]}}, ()),
]


@pytest.mark.parametrize(("field", "body", "value"), FIELDS)
def test_a_field_of_a_pod_is_read(field: str, body: dict[str, Any], value: Any) -> None:
    found = pod(**{"annotations": {"driver-config-digest": "cd34"}, **body})
    assert (attrgetter(*field.split())(found), found.uid) == (value, "u")


# claims, in every version that is served

EXACT = {"name": "r", "exactly": {"deviceClassName": "npu", "count": 1}}
CHOICES = [{"name": "big", "deviceClassName": "big"}, {"name": "small", "deviceClassName": "npu"}]
CHOOSING = [{"name": "r", "firstAvailable": CHOICES}]


def allocated(*results: Any) -> dict[str, Any]:
    return {"allocation": {"devices": {"results": list(results)}}}


def claim(devices: Any, status: Any = None) -> Claim:
    return as_claim({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"devices": devices}, "status": status})


def test_the_classes_of_a_claim_are_read_in_every_served_version() -> None:
    for requests, allotted, classes in (
        ([EXACT], [], ("npu",)),
        ([{"name": "r", "firstAvailable": [CHOICES[0], {"deviceClassName": "npu"}]}], [], ("big", "npu")),
        ([{"name": "r", "deviceClassName": "npu", "allocationMode": "ExactCount"}], [], ("npu",)),
        ([{"exactly": {"deviceClassName": "npu"}}, {"exactly": {"deviceClassName": "nic"}}], [], ("npu", "nic")),
        ([EXACT, EXACT], [], ("npu",)),
        *((requests, [], ()) for requests in ([], None, [{"name": "r"}])),
        ([{"name": "r", "exactly": None, "firstAvailable": None}], [], ()),
        (CHOOSING, [], ("big", "npu")),
        (CHOOSING, ["r/big"], ("big",)),
        (CHOOSING, ["r/small"], ("npu",)),
        (CHOOSING, ["r"], ("big", "npu")),
        (CHOOSING, ["unknown"], ("big", "npu")),
    ):
        found = claim({"requests": requests}, allocated(*({"request": name, "driver": "d"} for name in allotted)))
        assert found == Claim("ns", "c", classes, ("d",) if allotted else ())


def test_the_drivers_of_what_was_allocated_are_read() -> None:
    for status, drivers in (
        (allocated({"driver": "npu.rebellions.ai", "device": "rbln0"}), ("npu.rebellions.ai",)),
        (allocated({"driver": "a"}, {"driver": "b"}, {"driver": "a"}), ("a", "b")),
        (allocated({"device": "x"}), ()),
        *(({"allocation": some}, ()) for some in ({"devices": {"results": None}}, {"devices": None}, {}, None)),
        ({"devices": [{"driver": "reported-not-allocated"}]}, ()),
        ({}, ()),
        (None, ()),
    ):
        assert claim({}, status).drivers == drivers
        assert claim(None, status).device_classes == ()


# who set the cordon


def cordoned(*entries: Any) -> str:
    metadata = {"name": "n", "managedFields": list(entries)}
    return as_node({"metadata": metadata, "spec": {"unschedulable": True}}).cordon_manager


def entry(manager: str, *fields: str) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {name: {} for name in fields}}}


KUBELET = {"manager": "kubelet", "fieldsV1": {"f:status": {}, "f:metadata": {}}}


def test_the_manager_of_the_field_is_who_set_the_cordon() -> None:
    entries: tuple[Any, ...]
    for entries, manager in (
        ((), ""),
        ((KUBELET, entry("kubectl-taint", "f:taints"), entry("kubectl-cordon", "f:unschedulable")), "kubectl-cordon"),
        ((entry("x", "f:taints"),), ""),
        *((({"manager": "x", **fields},), "") for fields in ({}, {"fieldsV1": None}, {"fieldsV1": {"f:spec": None}})),
        (({"fieldsV1": {"f:spec": {"f:unschedulable": {}}}},), ""),
    ):
        assert cordoned(*entries) == manager


PRESSED: dict[str, str] = {"type": "DiskPressure", "status": "False"}
READY = {"type": "Ready", "status": "True", "lastHeartbeatTime": "t"}


def test_a_node_is_ready_as_its_condition_says() -> None:
    for conditions, is_ready, has_heartbeat in (
        (None, None, False),
        ([PRESSED], None, False),
        ([PRESSED, READY], True, True),
        ([{"type": "Ready", "status": "Unknown"}], False, False),
    ):
        for fields in ({}, {"managedFields": None}):
            found = as_node({"metadata": {"name": "n", **fields}, "status": {"conditions": conditions}})
            assert (found.is_ready, found.has_heartbeat, found.cordon_manager) == (is_ready, has_heartbeat, "")


# garbage

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
POD_FIELDS = ("resourceClaims", "containers", "initContainers", "volumes", "terminationGracePeriodSeconds")
READ: list[tuple[Callable[[Any], object], type]] = [
    *((lambda value, name=name: pod({name: value}), Pod) for name in POD_FIELDS),
    (as_claim, Claim),
    (lambda value: as_claim({"metadata": {"name": "c"}, "spec": value}), Claim),
    (lambda value: as_claim({"metadata": {"name": "c"}, "status": value}), Claim),
    (cordoned, str),
]


@given(st.sampled_from(READ), JSON)
def test_an_object_with_garbage_is_read_or_refused(reader: tuple[Callable[[Any], object], type], value: Any) -> None:
    read, kind = reader
    try:
        assert isinstance(read(value), kind)
    except (KeyError, TypeError, AttributeError, ValueError):  # an answer that is not the object it asked for
        return


# numbers

HUGE = (2**63, -(2**63) - 1, 10**400, -(10**400))


def test_a_number_that_no_field_holds_or_that_cannot_be_converted_is_no_answer() -> None:
    body: Any
    for read, body in (
        *((as_pod, {"metadata": {"name": "p"}, "spec": {"terminationGracePeriodSeconds": number}}) for number in HUGE),
        *((as_pod, {"metadata": {"name": "p", "deletionGracePeriodSeconds": number}}) for number in HUGE),
        *((_as_record, {"spec": {"leaseDurationSeconds": number}}) for number in HUGE),
        *((_as_record, {"spec": {"leaseTransitions": number}}) for number in HUGE),
        *((_as_leader, {"spec": {"leaseDurationSeconds": number}}) for number in HUGE),
        *((as_daemon_set, {"metadata": {"name": "d", "generation": number}}) for number in HUGE),
        (lambda body: float(body["n"]), {"n": 10**400}),
    ):
        with pytest.raises(ApiUnavailable, match="not the object that was asked for"):
            kube_objects.understood(read, body)
        with pytest.raises(WatchBroken, match="not an event"):
            sent(read, body)
