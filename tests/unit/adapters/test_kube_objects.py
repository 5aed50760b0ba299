"""Kubernetes objects as JSON become facts: what a pod asks for, what a claim is of, who set a cordon."""

from __future__ import annotations

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


def pod(spec: Any = None, status: Any = None, **metadata: Any) -> Pod:
    return as_pod(
        {"metadata": {"name": "p", "namespace": "ns", "uid": "u", **metadata}, "spec": spec, "status": status}
    )


def asking(where: str, kind: str, amount: Any = "1", name: str = ATOM) -> dict[str, Any]:
    return {where: [{"name": "c", "resources": {kind: {name: amount, "cpu": "2"}}}]}


# the digest of the wanted driver


def variable(**value: Any) -> dict[str, Any]:
    return {"containers": [{"env": [{"name": "DRIVER_CONFIG_DIGEST", **value}]}]}


def field(path: str) -> dict[str, Any]:
    return variable(valueFrom={"fieldRef": {"apiVersion": "v1", "fieldPath": path}})


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        (variable(value="ab12"), "ab12"),
        (field("metadata.annotations['driver-config-digest']"), "cd34"),
        (field("metadata.annotations['example.com/other']"), ""),
        (field("metadata.name"), ""),
        (field("metadata.annotations"), ""),
        (variable(valueFrom={"configMapKeyRef": {"name": "c", "key": "k"}}), ""),
        (variable(), ""),
    ],
)
def test_the_digest_is_read_where_the_kubelet_reads_it(spec: dict[str, Any], digest: str) -> None:
    assert pod(spec, annotations={"driver-config-digest": "cd34"}).config_digest == digest


# a pod's resources


@pytest.mark.parametrize("where", ["containers", "initContainers"])
@pytest.mark.parametrize("kind", ["limits", "requests"])
@pytest.mark.parametrize(
    ("amount", "asks"), [("1", True), ("16", True), (1, True), ("1k", True), ("0", False), (0, False)]
)
def test_a_resource_is_asked_for_by_any_container_with_an_amount(
    where: str, kind: str, amount: Any, asks: bool
) -> None:
    assert pod(asking(where, kind, amount)).resources == ((ATOM,) if asks else ())


@pytest.mark.parametrize("name", ["cpu", "memory", "ephemeral-storage", "hugepages-2Mi"])
def test_what_every_node_has_is_no_extended_resource(name: str) -> None:
    assert pod(asking("containers", "limits", "1", name)).resources == ()


def test_the_digest_of_the_driver_container_is_known_apart() -> None:
    def container(value: str | None) -> dict[str, Any]:
        return {"name": "c", "env": [{"name": "DRIVER_CONFIG_DIGEST", **({"value": value} if value else {})}]}

    for containers, inits, both in (
        (["main", "side"], ["init"], ("main", "main")),
        ([None, "side"], ["init"], ("", "side")),
        ([None], ["init"], ("", "init")),
        ([], ["init"], ("", "init")),
    ):
        spec = {"containers": list(map(container, containers)), "initContainers": list(map(container, inits))}
        found = pod(spec)
        assert (found.main_digest, found.config_digest) == both


def test_each_resource_is_told_once_in_the_order_of_containers() -> None:
    spec = {
        "initContainers": [{"resources": {"limits": {"a/init": "1", ATOM: "1"}}}],
        "containers": [
            {"resources": {"limits": {ATOM: "1"}, "requests": {ATOM: "1"}}},
            {"resources": {"requests": {"a/other": "1"}}},
        ],
    }
    assert pod(spec).resources == (ATOM, "a/other", "a/init")


def test_an_amount_of_nothing_in_one_place_takes_nothing_from_another() -> None:
    spec = {"containers": [{"resources": {"limits": {ATOM: "0"}}}, {"resources": {"limits": {ATOM: "1"}}}]}
    assert pod(spec).resources == (ATOM,)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"containers": None, "initContainers": None},
        {"containers": [{}]},
        {"containers": [{"resources": None}]},
        {"containers": [{"resources": {"limits": None, "requests": {}}}]},
    ],
)
def test_a_pod_that_asks_for_nothing_has_no_resources(spec: Any) -> None:
    assert pod(spec).resources == ()


# a pod's claims


@pytest.mark.parametrize(
    ("entries", "made", "claims"),
    [
        ([{"name": "a", "resourceClaimName": "shared"}], None, ("shared",)),
        (
            [{"name": "a", "resourceClaimTemplateName": "t"}],
            [{"name": "a", "resourceClaimName": "p-a-x7"}],
            ("p-a-x7",),
        ),
        ([{"name": "a", "resourceClaimTemplateName": "t"}], None, ()),
        ([{"name": "a", "resourceClaimTemplateName": "t"}], [], ()),
        ([{"name": "a", "resourceClaimTemplateName": "t"}], [{"name": "a"}], ()),
        ([{"name": "a", "resourceClaimTemplateName": "t"}], [{"name": "b", "resourceClaimName": "p-b"}], ()),
        (
            [{"name": "a", "resourceClaimTemplateName": "t"}, {"name": "b", "resourceClaimName": "shared"}],
            [{"name": "a", "resourceClaimName": "p-a"}],
            ("p-a", "shared"),
        ),
        ([{"name": "a", "resourceClaimName": "x"}, {"name": "b", "resourceClaimName": "x"}], None, ("x",)),
        (None, None, ()),
        ([], [{"name": "a", "resourceClaimName": "left"}], ()),
    ],
)
def test_claims_are_known_by_name_or_by_what_a_template_made(entries: Any, made: Any, claims: tuple[str, ...]) -> None:
    assert pod({"resourceClaims": entries}, {"resourceClaimStatuses": made}).claims == claims


@pytest.mark.parametrize(
    ("extended", "claims"),
    [({"resourceClaimName": "p-extended-resources-x"}, ("p-extended-resources-x",)), ({}, ()), (None, ())],
)
def test_a_claim_that_the_scheduler_made_for_an_extended_resource_is_one_too(
    extended: Any, claims: tuple[str, ...]
) -> None:
    assert pod(asking("containers", "limits"), {"extendedResourceClaimStatus": extended}).claims == claims


# what else decides about a pod


@pytest.mark.parametrize(
    ("volumes", "has"),
    [
        (None, False),
        ([], False),
        ([{"name": "v", "hostPath": {"path": "/x"}}], False),
        ([{"name": "v", "emptyDir": {}}], True),
        ([{"name": "v", "configMap": {}}, {"name": "w", "emptyDir": {"medium": "Memory"}}], True),
        ([{"name": "emptyDir", "secret": {}}], False),
    ],
)
def test_an_empty_dir_is_seen_whatever_is_in_it(volumes: Any, has: bool) -> None:
    assert pod({"volumes": volumes}).has_empty_dir is has


@pytest.mark.parametrize(
    ("stamp", "due_s"),
    [
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000.0),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000.5),
        (None, None),
        ("", None),
        ("soon", None),
        ("9999-99-99T00:00:00Z", None),
        ("9999-12-31T23:59:59-23:59", None),
    ],
)
def test_a_pod_that_was_told_to_end_is_known_with_when_that_is_due(stamp: str | None, due_s: float | None) -> None:
    found = as_pod({"metadata": {"name": "p", "deletionTimestamp": stamp}})
    assert (found.due_s, found.deleting) == (due_s, bool(stamp))


@pytest.mark.parametrize(("grace", "seconds"), [(30, 30), (0, 0), (3_600, 3_600), (None, 0)])
def test_the_grace_that_a_pod_asks_for_is_read(grace: int | None, seconds: int) -> None:
    assert pod({"terminationGracePeriodSeconds": grace}).termination_grace_s == seconds


@pytest.mark.parametrize(
    ("owners", "kind"),
    [
        ([{"kind": "ReplicaSet", "controller": True}], "ReplicaSet"),
        ([{"kind": "Thing"}, {"kind": "Job", "controller": True}], "Job"),
        ([{"kind": "Thing"}], ""),
        ([{"kind": "Thing", "controller": False}], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_only_a_controller_makes_a_pod_anew(owners: Any, kind: str) -> None:
    assert pod(ownerReferences=owners).owner_kind == kind


@pytest.mark.parametrize(
    ("annotations", "is_mirror", "uid"),
    [
        ({MIRROR: "0c1f"}, True, "0c1f"),
        ({"kubernetes.io/config.hash": "0c1f"}, False, ""),
        ({}, False, ""),
        (None, False, ""),
    ],
)
def test_a_mirror_pod_is_known_with_the_uid_that_the_host_has_for_it(
    annotations: Any, is_mirror: bool, uid: str
) -> None:
    found = pod(annotations=annotations)
    assert (found.is_mirror, found.static_uid, found.uid) == (is_mirror, uid, "u")


@pytest.mark.parametrize(("labels", "read"), [({"a": "b"}, {"a": "b"}), ({}, {}), (None, {})])
def test_labels_are_read(labels: Any, read: dict[str, str]) -> None:
    assert pod(labels=labels).labels == read


def test_the_phase_is_pending_until_it_is_told() -> None:
    assert pod().phase == "Pending"
    assert pod(status={"phase": "Succeeded"}).is_over


RUNS: dict[str, Any] = {"running": {}}
ENDED = {"terminated": {"exitCode": 0}}
REMOVED, CRASHED = {"waiting": {"reason": "ContainerCreating"}}, {"waiting": {"reason": "CrashLoopBackOff"}}


def states(*of: Any) -> list[Any]:
    return [{"name": name, "state": state} for name, state in zip("abc", of, strict=False)]


@pytest.mark.parametrize(
    ("status", "have_ended"),
    [
        ({"phase": "Running", "containerStatuses": states(ENDED, ENDED)}, True),
        ({"phase": "Running", "containerStatuses": states(ENDED, RUNS)}, False),
        ({"phase": "Running", "containerStatuses": states(ENDED)}, None),
        ({"phase": "Running", "containerStatuses": states(ENDED, ENDED, RUNS)}, False),
        ({"phase": "Failed"}, None),
        ({"phase": "Failed", "containerStatuses": None}, None),
        ({"phase": "Failed", "containerStatuses": states(ENDED, ENDED)}, True),
        ({"phase": "Failed", "containerStatuses": states(RUNS, ENDED)}, False),
        # removed by a kubelet of 1.20, or not made yet
        ({"phase": "Running", "containerStatuses": states(REMOVED, ENDED)}, True),
        ({"phase": "Pending", "containerStatuses": states(REMOVED, REMOVED)}, False),
        ({"phase": "Running", "containerStatuses": states(CRASHED, ENDED)}, False),
        ({"phase": "Running", "containerStatuses": states({}, ENDED)}, False),
        ({"phase": "Running", "containerStatuses": states(None, ENDED)}, False),
        ({"phase": "Running", "containerStatuses": states(ENDED, ENDED), "initContainerStatuses": states(RUNS)}, False),
        (
            {
                "phase": "Running",
                "containerStatuses": states(ENDED, ENDED),
                "initContainerStatuses": states(ENDED),
                "ephemeralContainerStatuses": states(RUNS),
            },
            False,
        ),
    ],
)
def test_containers_have_ended_where_the_status_says_so_of_each(status: Any, have_ended: bool | None) -> None:
    spec = {"containers": [{"name": "a"}, {"name": "b"}]}
    assert pod(spec=spec, status=status).have_ended is have_ended


# claims, in every version that is served

RESULTS = {"allocation": {"devices": {"results": [{"driver": "npu.rebellions.ai", "device": "rbln0", "pool": "n"}]}}}
V1 = {"requests": [{"name": "r", "exactly": {"deviceClassName": "npu", "count": 1}}]}
V1_ALTERNATIVES = {
    "requests": [{"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "big"}, {"deviceClassName": "npu"}]}]
}
V1BETA1 = {"requests": [{"name": "r", "deviceClassName": "npu", "allocationMode": "ExactCount"}]}
TWO = {"requests": [{"exactly": {"deviceClassName": "npu"}}, {"exactly": {"deviceClassName": "nic"}}]}


def claim(devices: Any, status: Any = None) -> Claim:
    return as_claim({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"devices": devices}, "status": status})


@pytest.mark.parametrize(
    ("devices", "classes"),
    [
        (V1, ("npu",)),
        (V1_ALTERNATIVES, ("big", "npu")),
        (V1BETA1, ("npu",)),
        (TWO, ("npu", "nic")),
        ({"requests": [*V1["requests"], *V1["requests"]]}, ("npu",)),
        ({"requests": []}, ()),
        ({"requests": None}, ()),
        ({"requests": [{"name": "r"}]}, ()),
        ({"requests": [{"name": "r", "exactly": None, "firstAvailable": None}]}, ()),
        ({}, ()),
        (None, ()),
    ],
)
def test_the_classes_of_a_claim_are_read_from_every_served_version(devices: Any, classes: tuple[str, ...]) -> None:
    assert claim(devices) == Claim("ns", "c", classes)


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        ([], ("big", "npu")),
        (["r/big"], ("big",)),
        (["r/small"], ("npu",)),
        (["r"], ("big", "npu")),
        (["unknown"], ("big", "npu")),
    ],
)
def test_of_several_choices_those_count_that_were_given(given: list[str], classes: tuple[str, ...]) -> None:
    choices = [{"name": "big", "deviceClassName": "big"}, {"name": "small", "deviceClassName": "npu"}]
    results = [{"request": name, "driver": "d"} for name in given]
    found = claim(
        {"requests": [{"name": "r", "firstAvailable": choices}]}, {"allocation": {"devices": {"results": results}}}
    )
    assert found.device_classes == classes


@pytest.mark.parametrize(
    ("status", "drivers"),
    [
        (RESULTS, ("npu.rebellions.ai",)),
        ({"allocation": {"devices": {"results": [{"driver": "a"}, {"driver": "b"}, {"driver": "a"}]}}}, ("a", "b")),
        ({"allocation": {"devices": {"results": [{"device": "x"}]}}}, ()),
        ({"allocation": {"devices": {"results": None}}}, ()),
        ({"allocation": {"devices": None}}, ()),
        ({"allocation": {}}, ()),
        ({"allocation": None}, ()),
        ({"devices": [{"driver": "reported-not-allocated"}]}, ()),
        ({}, ()),
        (None, ()),
    ],
)
def test_the_drivers_of_what_was_allocated_are_read(status: Any, drivers: tuple[str, ...]) -> None:
    assert claim(V1, status).drivers == drivers


# who set the cordon


def cordoned(*entries: Any) -> str:
    metadata = {"name": "n", "managedFields": list(entries)}
    return as_node({"metadata": metadata, "spec": {"unschedulable": True}}).cordon_manager


def entry(manager: str, *fields: str) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {name: {} for name in fields}}}


def test_the_manager_of_the_field_is_who_set_the_cordon() -> None:
    kubelet = {"manager": "kubelet", "fieldsV1": {"f:status": {}, "f:metadata": {}}}
    assert cordoned(kubelet, entry("kubectl-taint", "f:taints"), entry("kubectl-cordon", "f:unschedulable")) == (
        "kubectl-cordon"
    )


@pytest.mark.parametrize(
    "entries",
    [
        (),
        (entry("x", "f:taints"),),
        ({"manager": "x"},),
        ({"manager": "x", "fieldsV1": None},),
        ({"manager": "x", "fieldsV1": {"f:spec": None}},),
        ({"fieldsV1": {"f:spec": {"f:unschedulable": {}}}},),
    ],
)
def test_a_server_that_does_not_tell_leaves_the_manager_unknown(entries: tuple[Any, ...]) -> None:
    assert cordoned(*entries) == ""


@pytest.mark.parametrize("fields", [{"managedFields": None}, {}])
def test_a_node_without_managed_fields_is_read(fields: dict[str, Any]) -> None:
    assert as_node({"metadata": {"name": "n", **fields}}).cordon_manager == ""


# mutants


def main_containers_only(spec: dict[str, Any]) -> tuple[str, ...]:
    return RESOURCES({**spec, "initContainers": []})


def spec_alone(spec: dict[str, Any], _: object) -> tuple[str, ...]:
    return CLAIMS(spec, {})


RESOURCES, CLAIMS = kube_objects._resources, kube_objects._claims


@pytest.mark.parametrize(
    ("name", "mutant", "check"),
    [
        (
            "_resources",
            main_containers_only,
            lambda: test_a_resource_is_asked_for_by_any_container_with_an_amount("initContainers", "limits", "1", True),
        ),
        (
            "_claims",
            spec_alone,
            lambda: test_a_claim_that_the_scheduler_made_for_an_extended_resource_is_one_too(
                {"resourceClaimName": "x"}, ("x",)
            ),
        ),
        ("_cordon_manager", lambda _: ("", 0), test_the_manager_of_the_field_is_who_set_the_cordon),
        (
            "MIRROR_ANNOTATION",
            "x",
            lambda: test_a_mirror_pod_is_known_with_the_uid_that_the_host_has_for_it({MIRROR: "u"}, True, "u"),
        ),
    ],
    ids=["init", "template", "manager", "mirror"],
)
def test_a_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, mutant: object, check: Any) -> None:
    check()
    monkeypatch.setattr(kube_objects, name, mutant)
    with pytest.raises(AssertionError):
        check()


# garbage

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
POD_FIELDS = ("resourceClaims", "containers", "initContainers", "volumes", "terminationGracePeriodSeconds")
UNDERSTOOD = (KeyError, TypeError, AttributeError, ValueError)
"""What the adapter takes for an answer that is not the object it asked for."""


@given(st.sampled_from(POD_FIELDS), JSON)
def test_a_pod_with_one_wrong_field_is_read_or_refused(field: str, value: Any) -> None:
    try:
        found = pod({field: value})
    except UNDERSTOOD:
        return
    assert isinstance(found, Pod)


@given(JSON)
def test_a_claim_of_garbage_is_read_or_refused(value: Any) -> None:
    for body in (value, {"metadata": {"name": "c"}, "spec": value}, {"metadata": {"name": "c"}, "status": value}):
        try:
            found = as_claim(body)
        except UNDERSTOOD:
            continue
        assert isinstance(found, Claim)


@given(JSON)
def test_managed_fields_of_garbage_are_read_or_refused(value: Any) -> None:
    try:
        assert isinstance(cordoned(value), str)
    except UNDERSTOOD:
        return


# since when it runs


def ran(*moments: str | None) -> list[dict[str, Any]]:
    """Containers called c0, c1, …, each running since a moment, or waiting."""
    return [
        {"name": f"c{number}", "state": {"running": {"startedAt": moment}} if moment else {"waiting": {}}}
        for number, moment in enumerate(moments)
    ]


@pytest.mark.parametrize(
    ("status", "started_s"),
    [
        (None, None),
        ({"containerStatuses": ran("2026-01-02T03:04:05Z")}, 1_767_323_045.0),
        ({"containerStatuses": ran("2026-01-02T03:04:06Z", "2026-01-02T03:04:05Z")}, 1_767_323_045.0),
        ({"containerStatuses": ran(None, "2026-01-02T03:04:05Z")}, 1_767_323_045.0),
        ({"containerStatuses": ran(None)}, None),
        ({"containerStatuses": ran("no time")}, None),
        ({"initContainerStatuses": ran("2026-01-02T03:04:05Z")}, None),
        ({"initContainerStatuses": ran(None, "2026-01-02T03:04:05Z")}, 1_767_323_045.0),
    ],
    ids=["none", "one", "first", "one waits", "all wait", "garbage", "init container", "init container that stays"],
)
def test_a_pod_runs_since_the_first_of_its_containers_does(status: Any, started_s: float | None) -> None:
    spec = {"initContainers": [{"name": "c0"}, {"name": "c1", "restartPolicy": "Always"}]}
    assert pod(spec=spec, status=status).started_s == started_s


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400, -(10**400)])
@pytest.mark.parametrize(
    ("read", "body"),
    [
        (as_pod, lambda number: {"metadata": {"name": "p"}, "spec": {"terminationGracePeriodSeconds": number}}),
        (as_pod, lambda number: {"metadata": {"name": "p", "deletionGracePeriodSeconds": number}}),
        (_as_record, lambda number: {"spec": {"leaseDurationSeconds": number}}),
        (_as_record, lambda number: {"spec": {"leaseTransitions": number}}),
        (_as_leader, lambda number: {"spec": {"leaseDurationSeconds": number}}),
        (
            as_daemon_set,
            lambda number: {"metadata": {"name": "d"}, "status": {"desiredNumberScheduled": number}},
        ),
    ],
)
def test_a_number_that_no_field_holds_is_no_answer(read: Any, body: Any, number: int) -> None:
    with pytest.raises(ApiUnavailable, match="not the object that was asked for"):
        kube_objects.understood(read, body(number))
    with pytest.raises(WatchBroken, match="not an event"):
        sent(read, body(number))


def test_a_number_that_cannot_be_converted_is_no_answer() -> None:
    for guard, refusal in ((kube_objects.understood, ApiUnavailable), (sent, WatchBroken)):
        with pytest.raises(refusal):
            guard(lambda body: float(body["n"]), {"n": 10**400})
