"""On which nodes a DaemonSet creates pods: templates and nodes as the API server has them, and the reason for none."""

from __future__ import annotations

from typing import Any

import pytest

from driver_manager.adapters.kube.fleet import as_daemon_set, as_driver_pod, as_fleet_node
from tests.support.fakes.builders import PROFILE

Json = dict[str, Any]

IN_A: Json = {"key": "zone", "operator": "In", "values": ["a"]}
NAMED_N: Json = {"key": "metadata.name", "operator": "In", "values": ["n"]}


def selector(**labels: str) -> Json:
    return {"nodeSelector": labels}


def affinity(*terms: Json) -> Json:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def expressions(*found: Json) -> Json:
    return affinity({"matchExpressions": list(found)})


def compared(operator: str, *values: str) -> Json:
    return expressions({"key": "memory", "operator": operator, "values": list(values)})


def tolerating(**toleration: str) -> Json:
    return {"tolerations": [toleration]}


def labelled(**labels: str) -> Json:
    return {"metadata": {"name": "n", "labels": labels}}


def tainted(key: str, effect: str = "NoSchedule", **more: str) -> Json:
    return {"metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "effect": effect, **more}]}}


BARE: Json = labelled()
IN_ZONE_A, IN_ZONE_B, LARGE = labelled(zone="a"), labelled(zone="b"), labelled(memory="80")
NO_ZONE, ANY_ZONE = {"key": "zone", "operator": "DoesNotExist"}, {"key": "zone", "operator": "Exists"}
NOT_IN_A: Json = {**IN_A, "operator": "NotIn"}
PREFERRED: Json = {"preferredDuringSchedulingIgnoredDuringExecution": []}
NOT_N: Json = {**NAMED_N, "operator": "NotIn"}
GPU = tainted("gpu", value="present")
NETWORK = tainted("node.kubernetes.io/network-unavailable")
NO_SELECTOR = "match the nodeSelector"
NO_AFFINITY, NO_TOLERATION = "does not match the required node affinity: ", " is not tolerated"

ROWS: dict[str, tuple[Json, Json, str]] = {
    "no rule": ({}, BARE, ""),
    "selector": (selector(driver="true"), labelled(driver="true"), ""),
    "selector, another value": (selector(driver="true"), labelled(driver="false"), f"{NO_SELECTOR} driver=true"),
    "selector, no label": (selector(driver="true"), BARE, f"{NO_SELECTOR} driver=true"),
    "In": (expressions(IN_A), IN_ZONE_A, ""),
    "In, another value": (expressions(IN_A), IN_ZONE_B, f"{NO_AFFINITY}zone In a"),
    "In, no label": (expressions(IN_A), BARE, f"{NO_AFFINITY}zone In a"),
    "NotIn": (expressions(NOT_IN_A), IN_ZONE_A, f"{NO_AFFINITY}zone NotIn a"),
    "NotIn, no label": (expressions(NOT_IN_A), BARE, ""),
    "Exists": (expressions(ANY_ZONE), IN_ZONE_B, ""),
    "Exists, no label": (expressions(ANY_ZONE), BARE, f"{NO_AFFINITY}zone Exists"),
    "DoesNotExist": (expressions(NO_ZONE), IN_ZONE_A, f"{NO_AFFINITY}zone DoesNotExist"),
    "DoesNotExist, no label": (expressions(NO_ZONE), BARE, ""),
    "Gt": (compared("Gt", "79"), LARGE, ""),
    "Gt, as much": (compared("Gt", "80"), LARGE, f"{NO_AFFINITY}memory Gt 80"),
    "Gt, no number": (compared("Gt", "79"), labelled(memory="8_0"), NO_AFFINITY),
    "Gt, no label": (compared("Gt", "-1"), BARE, NO_AFFINITY),
    "Lt": (compared("Lt", "100"), LARGE, ""),
    "Lt, as much": (compared("Lt", "80"), LARGE, f"{NO_AFFINITY}memory Lt 80"),
    "an operator that is not known": (compared("Around", "80"), LARGE, NO_AFFINITY),
    "all expressions of a term": (expressions(IN_A, ANY_ZONE), IN_ZONE_A, ""),
    "one expression of a term": (expressions(ANY_ZONE, IN_A), IN_ZONE_B, f"{NO_AFFINITY}zone Exists and zone In a"),
    "one of two terms": (affinity({"matchExpressions": [IN_A]}, {"matchExpressions": [NO_ZONE]}), BARE, ""),
    "none of two terms": (affinity({"matchExpressions": [IN_A]}, {"matchFields": [NOT_N]}), BARE, "zone In a or meta"),
    "the name": (affinity({"matchFields": [NAMED_N]}), BARE, ""),
    "another name": (affinity({"matchFields": [NOT_N]}), BARE, f"{NO_AFFINITY}metadata.name NotIn n"),
    "the name and a label": (affinity({"matchFields": [NAMED_N], "matchExpressions": [IN_A]}), IN_ZONE_B, NO_AFFINITY),
    "an empty term": (affinity({}), BARE, NO_AFFINITY),
    "no term": (affinity(), BARE, f"{NO_AFFINITY}no term"),
    "a preference only": ({"affinity": {"nodeAffinity": PREFERRED}}, BARE, ""),
    "selector and affinity": (selector(driver="true") | expressions(IN_A), IN_ZONE_A, NO_SELECTOR),
    "a taint": ({}, GPU, f"its taint gpu=present:NoSchedule{NO_TOLERATION}"),
    "a taint without a value": ({}, tainted("gpu", "NoExecute"), f"its taint gpu:NoExecute{NO_TOLERATION}"),
    "a taint that only prefers": ({}, tainted("gpu", "PreferNoSchedule"), ""),
    "tolerates all": (tolerating(operator="Exists"), GPU, ""),
    "tolerates the effect": (tolerating(operator="Exists", effect="NoSchedule"), GPU, ""),
    "tolerates another effect": (tolerating(operator="Exists", effect="NoExecute"), GPU, NO_TOLERATION),
    "tolerates the key": (tolerating(key="gpu", operator="Exists"), GPU, ""),
    "tolerates another key": (tolerating(key="npu", operator="Exists"), GPU, NO_TOLERATION),
    "tolerates the value": (tolerating(key="gpu", operator="Equal", value="present"), GPU, ""),
    "tolerates the value by default": (tolerating(key="gpu", value="present"), GPU, ""),
    "tolerates another value": (tolerating(key="gpu", value="absent"), GPU, NO_TOLERATION),
    "an alpha operator": (tolerating(key="gpu", operator="Gt", value="2"), tainted("gpu", value="2"), NO_TOLERATION),
    **{
        f"{name}, tolerated by every DaemonSet": ({}, tainted(f"node.kubernetes.io/{name}", effect), "")
        for effect, names in {
            "NoExecute": ("not-ready", "unreachable"),
            "NoSchedule": ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"),
        }.items()
        for name in names
    },
    "not-ready with another effect": ({}, tainted("node.kubernetes.io/not-ready"), NO_TOLERATION),
    "network-unavailable": ({}, NETWORK, NO_TOLERATION),
    "network-unavailable, in the host's network": ({"hostNetwork": True}, NETWORK, ""),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_daemon_set_creates_pods_where_its_template_allows_it(name: str) -> None:
    pod, node, why = ROWS[name]
    placement = as_daemon_set({"metadata": {"name": "d"}, "spec": {"template": {"spec": pod}}}).places
    reason = placement.why_not(as_fleet_node(node, PROFILE.keys))
    assert (why in reason) if why else not reason, reason


LEAVES = (
    tainted("ToBeDeletedByClusterAutoscaler"),
    tainted("karpenter.sh/disrupted"),
    tainted("karpenter.sh/disruption", value="disrupting"),
    tainted("node.cluster.x-k8s.io/outdated-revision", "PreferNoSchedule"),
)
STAYS = (
    *(BARE, GPU, tainted("node.cluster.x-k8s.io/uninitialized")),
    tainted("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),
)


def test_a_node_that_is_being_removed_has_a_mark() -> None:
    assert [as_fleet_node(node, PROFILE.keys).why_leaving for node in STAYS] == [""] * 4
    for node in LEAVES:
        assert as_fleet_node(node, PROFILE.keys).why_leaving == f"it has the taint {node['spec']['taints'][0]['key']}"
    deleted = {"metadata": {"name": "n", "deletionTimestamp": "2026-01-02T03:04:05Z"}}
    assert as_fleet_node(deleted, PROFILE.keys).why_leaving == "it has a deletionTimestamp"


def test_a_pod_that_is_not_scheduled_has_its_node_and_the_message_of_the_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 Insufficient cpu."}
    pod: Json = {"metadata": {"name": "p"}, "spec": affinity({"matchFields": [NAMED_N]})}
    found = as_driver_pod({**pod, "status": {"phase": "Pending", "conditions": [condition]}})
    assert (found.node, found.why_waiting) == ("n", "1 Insufficient cpu.")
    bound = {"spec": {**pod["spec"], "nodeName": "m"}, "status": {"conditions": [{**condition, "status": "True"}]}}
    found = as_driver_pod({**pod, **bound})
    assert (found.node, found.why_waiting) == ("m", "")
    assert as_driver_pod({"metadata": {"name": "p"}, "spec": affinity({"matchFields": [NOT_N]})}).node == ""
