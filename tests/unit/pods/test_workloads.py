"""Which pods use the accelerator, and what becomes of each: every way to use it, every reason to stay."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.host import Holder
from driver_manager.domain.node import Claim, Pod
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.pods.workloads import (
    DELETE_DATA,
    ENABLE_IT,
    EVICT_HOLDERS,
    FORCE_IT,
    MIRROR,
    RESTART_IT,
    USE_LABEL,
    NodePods,
    PodAction,
    Workload,
    drained,
    holds_claim,
    namespaces_with_claims,
    refusal,
    staying,
    with_action,
    workloads,
)
from driver_manager.domain.profile import Profile
from driver_manager.domain.text import MOST_NAMED
from tests.support.fakes.builders import ASCEND, DRIVER, PLUGIN, PROFILE, PROFILES, driver_pod, key, workload

NVIDIA = PROFILES["nvidia"]
EVICTS = EvictionRules(is_enabled=True)
(CLASS,) = PROFILE.device_classes


def scene(*pods: Pod, claims: tuple[Claim, ...] = (), holders: tuple[Holder, ...] = (), **fields: Any) -> NodePods:
    return NodePods(pods, claims, holders, fields.pop("own_pod", None), **fields)


def holds(pod: Pod, how: str = "open") -> Holder:
    """A process of `pod` that uses the device."""
    return Holder(7, "python", "/dev/rbln0", how, pod_uid=pod.uid)


def found_in(seen: NodePods, rules: EvictionRules = EVICTS, profile: Profile = PROFILE) -> list[Workload]:
    return list(workloads(seen, profile, rules))


def judged(pod: Pod, rules: EvictionRules = EVICTS, **rest: Any) -> Workload:
    """What becomes of the one pod that uses the accelerator."""
    (one,) = found_in(scene(pod, **rest), rules)
    assert one.pod == pod
    return one


# who uses it


@pytest.mark.parametrize(
    ("profile", "resource", "uses"),
    [
        (PROFILE, "rebellions.ai/ATOM", True),
        (PROFILE, "rebellions.ai.example/ATOM", False),
        (PROFILE, "nvidia.com/gpu", False),
        (NVIDIA, "nvidia.com/gpu", True),
        (NVIDIA, "nvidia.com/gpu.shared", True),
        (NVIDIA, "nvidia.com/mig-1g.5gb", True),
        (NVIDIA, "nvidia.com/hostdev", False),
        (NVIDIA, "rdma/nvidia.com/gpu", False),
        (ASCEND, "huawei.com/Ascend910", True),
        (ASCEND, "huawei.com/Ascend310P", True),
        (ASCEND, "huawei.com/npu", True),
        (ASCEND, "huawei.com/disk", False),
    ],
)
def test_a_resource_of_the_profile_is_a_use(profile: Profile, resource: str, uses: bool) -> None:
    pod = workload("p", resources=("cpu.example.com/shares", resource))
    found = found_in(scene(pod), profile=profile)
    assert [(one.uses, one.action) for one in found] == [(f"requests {resource}", PodAction.EVICT)] * uses


def test_a_profile_without_prefixes_finds_nobody_by_resource() -> None:
    bare = replace(PROFILE, resource_prefixes=())
    assert found_in(scene(workload("p")), profile=bare) == []


OURS = Claim("tenant", "c", (CLASS,))


@pytest.mark.parametrize(
    ("claim", "uses"),
    [
        (OURS, True),
        (replace(OURS, device_classes=("other.example.com", CLASS)), True),
        (replace(OURS, device_classes=("other.example.com",)), False),
        (replace(OURS, device_classes=()), False),
        (replace(OURS, namespace="elsewhere"), False),
        (replace(OURS, name="d"), False),
        (replace(OURS, device_classes=(f"vfio-{CLASS}",)), False),
        (replace(OURS, device_classes=(f"vfio.{CLASS}",)), False),
        (replace(OURS, device_classes=(f"vfio-{CLASS}", CLASS)), True),
    ],
)
def test_a_claim_of_the_profiles_class_is_a_use(claim: Claim, uses: bool) -> None:
    pod = workload("p", resources=(), claims=("c",))
    found = found_in(scene(pod, claims=(claim,)))
    assert [(one.uses, one.action) for one in found] == [("holds claim c", PodAction.EVICT)] * uses
    assert holds_claim(scene(pod, claims=(claim,)), PROFILE, EVICTS) is uses


@pytest.mark.parametrize(
    ("classes", "drivers", "uses"),
    [
        (("team-a",), ("gpu.nvidia.com",), True),
        (("team-a",), ("other", "gpu.nvidia.com"), True),
        (("team-a",), (), False),
        (("team-a",), ("compute-domain.nvidia.com",), False),
        (("vfio.gpu.nvidia.com",), ("gpu.nvidia.com",), False),
        (("mig.nvidia.com",), (), True),
        ((), ("gpu.nvidia.com",), True),
    ],
)
def test_a_claim_through_somebodys_own_class_is_known_by_the_driver_of_its_devices(
    classes: tuple[str, ...], drivers: tuple[str, ...], uses: bool
) -> None:
    pod = workload("p", resources=(), claims=("c",))
    found = found_in(scene(pod, claims=(Claim("tenant", "c", classes, drivers),)), profile=NVIDIA)
    assert bool(found) is uses


def test_a_profile_without_a_dra_driver_takes_no_claim_without_drivers_for_its_own() -> None:
    pod = workload("p", resources=(), claims=("c",))
    assert PROFILE.dra_driver == ""
    assert found_in(scene(pod, claims=(Claim("tenant", "c", ("x",), ("",)),))) == []


def test_given_device_classes_stand_in_for_the_profiles() -> None:
    pod = workload("p", resources=(), claims=("c",))
    rules = replace(EVICTS, device_classes=("mine",))
    assert found_in(scene(pod, claims=(OURS,)), rules) == []
    assert found_in(scene(pod, claims=(replace(OURS, device_classes=("vfio-mine",)),)), rules) == []
    assert found_in(scene(pod, claims=(replace(OURS, device_classes=("mine",)),)), rules) != []


def test_a_resource_and_a_claim_are_both_told() -> None:
    pod = workload("p", resources=("rebellions.ai/ATOM", "rebellions.ai/REBEL"), claims=("c", "unknown"))
    one = judged(pod, claims=(OURS,))
    assert one.uses == "requests rebellions.ai/ATOM, rebellions.ai/REBEL and holds claim c"
    assert str(one) == f"tenant/p ({one.uses})"
    assert one.to_text() == f"tenant/p {one.uses}: evict, its ReplicaSet recreates it"


def test_a_pod_that_has_ended_holds_no_claim() -> None:
    pod = workload("p", claims=("c",))
    for phase, held in (("Running", True), ("Pending", True), ("Succeeded", False), ("Failed", False)):
        seen = scene(replace(pod, phase=phase), claims=(OURS,))
        assert holds_claim(seen, PROFILE, EVICTS) is held
        assert namespaces_with_claims(seen.pods, PROFILE, EVICTS) == (("tenant",) if held else ())


def test_claims_are_looked_for_once_in_each_namespace_that_has_some() -> None:
    pods = [workload(str(number), namespace=name, claims=("c",)) for number, name in enumerate("bab")]
    assert namespaces_with_claims([*pods, workload("x", namespace="z")], PROFILE, EVICTS) == ("a", "b")


@pytest.mark.parametrize(
    ("fields", "classes", "looked_for"),
    [
        ({}, (), True),
        ({"device_classes": ()}, (), False),
        ({"device_classes": ()}, ("mine",), True),
        ({"device_classes": (), "dra_driver": "npu.example.com"}, (), True),
    ],
)
def test_claims_are_looked_for_where_one_could_be_ours(
    fields: dict[str, Any], classes: tuple[str, ...], looked_for: bool
) -> None:
    rules = replace(EVICTS, device_classes=classes)
    assert bool(namespaces_with_claims([workload("p", claims=("c",))], replace(PROFILE, **fields), rules)) is looked_for


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_pod_that_has_the_device_without_asking_is_found_and_told_so(how: str) -> None:
    pod = workload("p", resources=())
    one = judged(pod, holders=(holds(pod, how), Holder(9, "x", "/dev/rbln1", "open", pod_uid=pod.uid)))
    assert one.uses == f"has /dev/rbln0 {how} without requesting it"
    assert not one.has_asked


def test_a_pod_that_asked_is_told_by_what_it_asked_for_whoever_has_the_device() -> None:
    pod = workload("p")
    one = judged(pod, holders=(holds(pod),))
    assert (one.uses, one.has_asked) == ("requests rebellions.ai/ATOM", True)


def test_holders_that_are_in_no_pod_or_in_one_elsewhere_make_no_workload() -> None:
    host = Holder(7, "python", "/dev/rbln0", "open")
    assert found_in(scene(workload("p", resources=()), holders=(host, replace(host, pod_uid="gone")))) == []


def test_pods_are_told_by_namespace_and_name() -> None:
    pods = (workload("b"), workload("a"), workload("c", namespace="a"))
    assert [str(one.pod) for one in found_in(scene(*pods))] == ["a/c", "tenant/a", "tenant/b"]


# what becomes of it

BARE: dict[str, Any] = {"owner_kind": ""}
SCRATCH: dict[str, Any] = {"has_empty_dir": True}
DAEMON: dict[str, Any] = {"owner_kind": "DaemonSet"}
FORCES: dict[str, Any] = {"forces": True}
DELETES: dict[str, Any] = {"deletes_empty_dirs": True}
CLIENT: dict[str, Any] = {"labels": {"rebellions.ai/npu-driver-manager.client": "true"}}
ALL: dict[str, Any] = {**FORCES, **DELETES, "evicts_holders": True}


@pytest.mark.parametrize(
    ("fields", "rules", "fate", "why", "remedy"),
    [
        ({}, {}, PodAction.EVICT, "its ReplicaSet recreates it", ""),
        ({"owner_kind": "Job"}, {}, PodAction.EVICT, "its Job recreates it", ""),
        ({"phase": "Pending"}, {}, PodAction.EVICT, "its ReplicaSet recreates it", ""),
        ({}, {"is_enabled": False}, PodAction.BLOCK, "eviction is not enabled", ENABLE_IT),
        (BARE, {}, PodAction.BLOCK, "no controller recreates it elsewhere", FORCE_IT),
        (BARE, FORCES, PodAction.EVICT, "forced", ""),
        (SCRATCH, {}, PodAction.BLOCK, "the data of its emptyDir volume would be lost", DELETE_DATA),
        (SCRATCH, FORCES, PodAction.BLOCK, "the data of its emptyDir volume would be lost", DELETE_DATA),
        (SCRATCH, DELETES, PodAction.EVICT, "its ReplicaSet recreates it", ""),
        ({**BARE, **SCRATCH}, FORCES, PodAction.BLOCK, "the data of its emptyDir volume would be lost", DELETE_DATA),
        ({**BARE, **SCRATCH}, DELETES, PodAction.BLOCK, "no controller recreates it elsewhere", FORCE_IT),
        (DAEMON, ALL, PodAction.BLOCK, "its DaemonSet would recreate it at once", USE_LABEL),
        (DAEMON, {"is_enabled": False}, PodAction.BLOCK, "its DaemonSet would recreate it at once", USE_LABEL),
        ({"deleting": True}, {}, PodAction.WAIT, "it is terminating already", ""),
        ({"deleting": True, **BARE, **SCRATCH}, {"is_enabled": False}, PodAction.WAIT, "it is terminating already", ""),
        ({"deleting": True, **DAEMON}, {}, PodAction.WAIT, "it is terminating already", ""),
        ({"phase": "Succeeded"}, ALL, PodAction.STAY, "it has ended (Succeeded)", ""),
        ({"phase": "Failed", "deleting": True}, ALL, PodAction.STAY, "it has ended (Failed)", ""),
        ({"is_mirror": True, "owner_kind": "Node"}, ALL, PodAction.STAY, "mirror pod of a static manifest", ""),
        ({"selector_keys": frozenset({PLUGIN}), **DAEMON}, ALL, PodAction.STAY, "an operand", ""),
        ({"selector_keys": frozenset({DRIVER}), **DAEMON}, ALL, PodAction.STAY, "an operand", ""),
        ({"selector_keys": frozenset({key("dra-kubelet-plugin")}), **DAEMON}, ALL, PodAction.STAY, "an operand", ""),
        ({"selector_keys": frozenset({PLUGIN})}, {}, PodAction.EVICT, "its ReplicaSet", ""),
        ({"selector_keys": frozenset({"kubernetes.io/arch"})}, {}, PodAction.EVICT, "its ReplicaSet", ""),
    ],
)
def test_the_fate_of_a_pod_that_asked(
    fields: dict[str, Any], rules: dict[str, Any], fate: PodAction, why: str, remedy: str
) -> None:
    one = judged(workload("p", **fields), replace(EVICTS, **rules))
    assert (one.action, one.remedy) == (fate, remedy)
    assert one.why.startswith(why)


def test_a_label_of_another_prefix_that_leaves_last_makes_an_operand_too() -> None:
    switch = "nvidia.com/dra-kubelet-plugin"
    assert switch in NVIDIA.deploy.last_keys
    pod = workload("p", resources=("nvidia.com/gpu",), selector_keys=frozenset({switch}), **DAEMON)
    assert [one.action for one in found_in(scene(pod), profile=NVIDIA)] == [PodAction.STAY]
    assert [one.action for one in found_in(scene(replace(pod, resources=("rebellions.ai/ATOM",))))] == [PodAction.BLOCK]


@pytest.mark.parametrize(
    ("fields", "rules", "fate", "why", "remedy"),
    [
        ({}, {}, PodAction.BLOCK, "evicted only with EVICT_HOLDERS", EVICT_HOLDERS),
        ({}, {"evicts_holders": True}, PodAction.EVICT, "its ReplicaSet recreates it", ""),
        ({}, {"evicts_holders": True, "is_enabled": False}, PodAction.EVICT, "its ReplicaSet recreates it", ""),
        (BARE, {}, PodAction.BLOCK, "evicted only with EVICT_HOLDERS", EVICT_HOLDERS),
        (BARE, {"evicts_holders": True}, PodAction.BLOCK, "no controller recreates it elsewhere", FORCE_IT),
        (DAEMON, {}, PodAction.BLOCK, "its DaemonSet would recreate it at once", USE_LABEL),
        (DAEMON, ALL, PodAction.BLOCK, "its DaemonSet would recreate it at once", USE_LABEL),
        ({"deleting": True}, {}, PodAction.WAIT, "it is terminating already", ""),
        ({"is_mirror": True}, ALL, PodAction.BLOCK, "mirror pod of a static manifest", MIRROR),
        ({"phase": "Failed"}, ALL, PodAction.STAY, "it has ended", ""),
        ({"selector_keys": frozenset({PLUGIN})}, {}, PodAction.STAY, "an operand", ""),
        (
            {**DAEMON, **CLIENT},
            {},
            PodAction.BLOCK,
            "a client of the driver, restarted only with RESTART_CLIENTS",
            RESTART_IT,
        ),
        (CLIENT, {"restarts_clients": True}, PodAction.RESTART, "a client of the driver", ""),
        ({**DAEMON, **CLIENT}, {"restarts_clients": True}, PodAction.RESTART, "a client of the driver", ""),
        ({**CLIENT, "deleting": True}, {"restarts_clients": True}, PodAction.WAIT, "it is terminating already", ""),
        (CLIENT, {"evicts_holders": True}, PodAction.EVICT, "its ReplicaSet recreates it", ""),
        (
            {**BARE, **CLIENT},
            {"restarts_clients": True},
            PodAction.BLOCK,
            "evicted only with EVICT_HOLDERS",
            EVICT_HOLDERS,
        ),
        (DAEMON, {"restarts_clients": True}, PodAction.BLOCK, "its DaemonSet would recreate it at once", USE_LABEL),
    ],
)
def test_the_fate_of_a_pod_that_only_holds_the_device(
    fields: dict[str, Any], rules: dict[str, Any], fate: PodAction, why: str, remedy: str
) -> None:
    pod = workload("p", resources=(), **fields)
    one = judged(pod, replace(EVICTS, **rules), holders=(holds(pod),))
    assert (one.action, one.remedy) == (fate, remedy)
    assert one.why.startswith(why)


@pytest.mark.parametrize(
    ("fields", "fate"),
    [
        ({}, PodAction.BLOCK),
        ({"selector_keys": frozenset({PLUGIN})}, PodAction.BLOCK),
        ({"phase": "Failed"}, PodAction.STAY),
    ],
)
def test_a_mirror_pod_that_has_the_device_open_blocks_as_nothing_makes_it_leave(
    fields: dict[str, Any], fate: PodAction
) -> None:
    pod = workload("p", is_mirror=True, **fields)
    one = judged(pod, replace(EVICTS, **ALL), holders=(holds(pod),))
    assert one.action is fate
    assert ("has /dev/rbln0 open" in one.why) is (fate is PodAction.BLOCK)


@pytest.mark.parametrize("whose", ["own_pod", "enclosing_uid"])
@pytest.mark.parametrize("fields", [{}, {"is_mirror": True}, {"deleting": True}, DAEMON])
def test_our_own_pod_stays_whatever_it_uses(fields: dict[str, Any], whose: str) -> None:
    pod = workload("p", **fields)
    us: dict[str, Any] = {"own_pod": pod} if whose == "own_pod" else {"enclosing_uid": pod.uid}
    for asks in (pod, replace(pod, resources=())):
        (one,) = found_in(scene(asks, holders=(holds(pod),), **us), replace(EVICTS, **ALL))
        assert (one.action, one.why) == (PodAction.STAY, "our own pod")


def test_a_pod_of_another_uid_but_our_name_is_not_ours() -> None:
    own = workload("p", uid="old")
    assert judged(workload("p", uid="new"), own_pod=own).action is PodAction.EVICT


def test_where_nobody_has_to_leave_every_user_stays_for_the_same_reason() -> None:
    pods = (workload("a"), workload("b", owner_kind=""), workload("c", phase="Failed"), workload("d", resources=()))
    found = staying(scene(*pods), PROFILE, EvictionRules(), "no need")
    assert [(one.pod.name, one.action, one.why, one.remedy) for one in found] == [
        (name, PodAction.STAY, "no need", "") for name in "ab"
    ]


# a drain


@pytest.mark.parametrize(
    ("fields", "fate"),
    [
        ({}, PodAction.EVICT),
        ({"resources": ()}, PodAction.EVICT),
        ({"deleting": True}, PodAction.WAIT),
        (BARE, PodAction.BLOCK),
        (SCRATCH, PodAction.BLOCK),
        (DAEMON, None),
        ({"is_mirror": True}, None),
        ({"phase": "Succeeded"}, None),
        ({"phase": "Failed"}, None),
        ({"labels": {"app": "web", "tier": "db"}}, None),
        ({"labels": {}}, None),
        ({"selector_keys": frozenset({PLUGIN})}, PodAction.EVICT),
    ],
)
def test_a_drain_concerns_all_pods_but_those_it_ignores(fields: dict[str, Any], fate: PodAction | None) -> None:
    rules = EvictionRules(drains=True, drain_selector=selectors.parse("app=web,tier!=db"))
    pod = workload("p", **{"labels": {"app": "web"}, **fields})
    own = replace(driver_pod(), labels={"app": "web"}, owner_kind="ReplicaSet")
    found = drained(scene(pod, own, own_pod=own), PROFILE, rules)
    assert [one.action for one in found] == ([] if fate is None else [fate])
    debugger = replace(own, uid="around-us")
    assert drained(scene(debugger, enclosing_uid="around-us"), PROFILE, rules) == ()


def test_a_drain_without_a_selector_concerns_everybody_and_tells_what_uses_the_accelerator() -> None:
    found = drained(scene(workload("a"), workload("b", resources=())), PROFILE, EvictionRules(drains=True))
    assert [(str(one), one.action) for one in found] == [
        ("tenant/a (requests rebellions.ai/ATOM)", PodAction.EVICT),
        ("tenant/b", PodAction.EVICT),
    ]
    assert found[1].to_text() == "tenant/b: evict, its ReplicaSet recreates it"


# how a refusal reads


def blocked(number: int, *remedies: str) -> list[Workload]:
    return [
        Workload(workload(f"p{index}"), "u", PodAction.BLOCK, f"why {index}", remedies[index % len(remedies)])
        for index in range(number)
    ]


def test_a_refusal_names_each_pod_once_with_its_reason_and_each_remedy_once() -> None:
    error = refusal(blocked(4, FORCE_IT, DELETE_DATA), "4 pods")
    assert error.what == "4 pods: " + "; ".join(f"tenant/p{index} (u): why {index}" for index in range(4))
    assert error.remedy.startswith("Allow it with NPU_POD_EVICTION_FORCE=true")
    assert error.remedy.endswith(".")
    assert [error.remedy.count(name) for name in ("_FORCE=", "_EMPTYDIR_DATA=")] == [1, 1]


@pytest.mark.parametrize(
    ("number", "named"), [(1, 1), (MOST_NAMED, MOST_NAMED), (MOST_NAMED + 1, MOST_NAMED), (60, 10)]
)
def test_at_most_ten_pods_are_named_and_the_rest_is_counted(number: int, named: int) -> None:
    error = refusal(blocked(number, MIRROR), "why")
    assert error.what.count("tenant/p") == named
    assert error.what.endswith(f"; and {number - named} more") is (number > named)
    assert len(error.what) < 1_000, "an Event holds no more"


def test_pods_are_chosen_by_their_fates() -> None:
    found = [Workload(workload(fate.value), "", fate, "") for fate in PodAction]
    assert [one.action for one in with_action(found, PodAction.WAIT, PodAction.EVICT)] == [
        PodAction.EVICT,
        PodAction.WAIT,
    ]
    assert with_action(found) == ()
