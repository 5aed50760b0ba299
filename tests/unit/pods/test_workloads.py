"""Which pods use the accelerator, and what becomes of each: every way to use it, every reason to stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.host import Holder
from driver_manager.domain.node import Claim, Pod
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.pods import workloads as module
from driver_manager.domain.pods.workloads import (
    AFTER_GRACE_S,
    DELETE_DATA,
    ENABLE_IT,
    EVICT_HOLDERS,
    FORCE_IT,
    MIRROR,
    RESTART_IT,
    USE_LABEL,
    ClientRules,
    NodePods,
    PodAction,
    Workload,
    after_others_s,
    asks_by_itself,
    bound_to_root,
    drained,
    holds_claim,
    is_client,
    is_dra_plugin,
    is_placed_by,
    named,
    namespaces_with_claims,
    placed_by,
    plugin_keys,
    refusal,
    staying,
    why_still_there,
    with_action,
    workloads,
)
from driver_manager.domain.profile import Profile
from driver_manager.domain.selectors import Selector
from driver_manager.domain.text import MOST_NAMED
from tests.support.fakes.builders import (
    ASCEND,
    DRIVER,
    EXPORTER,
    PLUGIN,
    PROFILE,
    PROFILES,
    ROOT_MOUNT,
    driver_pod,
    key,
    node,
    observation,
    pod,
    workload,
)
from tests.support.selection import examples

NVIDIA = PROFILES["nvidia"]
EVICT, WAIT, STAY = PodAction.EVICT, PodAction.WAIT, PodAction.STAY
BLOCK, RESTART = PodAction.BLOCK, PodAction.RESTART
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
        (replace(PROFILE, resource_prefixes=()), "rebellions.ai/ATOM", False),
    ],
)
def test_a_resource_of_the_profile_is_a_use(profile: Profile, resource: str, uses: bool) -> None:
    pod = workload("p", resources=("cpu.example.com/shares", resource))
    found = found_in(scene(pod), profile=profile)
    assert [(one.uses, one.action) for one in found] == [(f"requests {resource}", EVICT)] * uses


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
    assert [(one.uses, one.action) for one in found] == [("holds claim c", EVICT)] * uses
    assert holds_claim(scene(pod, claims=(claim,)), PROFILE, EVICTS) is uses


MINE = replace(EVICTS, device_classes=("mine",))


@pytest.mark.parametrize(
    ("profile", "rules", "classes", "drivers", "uses"),
    [
        (NVIDIA, EVICTS, ("team-a",), ("gpu.nvidia.com",), True),
        (NVIDIA, EVICTS, ("team-a",), ("other", "gpu.nvidia.com"), True),
        (NVIDIA, EVICTS, ("team-a",), (), False),
        (NVIDIA, EVICTS, ("team-a",), ("compute-domain.nvidia.com",), True),
        (NVIDIA, EVICTS, ("compute-domain-default-channel.nvidia.com",), (), True),
        (NVIDIA, EVICTS, ("vfio.gpu.nvidia.com",), ("gpu.nvidia.com",), False),
        (NVIDIA, EVICTS, ("mig.nvidia.com",), (), True),
        (NVIDIA, EVICTS, (), ("gpu.nvidia.com",), True),
        (replace(PROFILE, dra_driver=()), EVICTS, ("x",), ("",), False),
        (PROFILE, MINE, (CLASS,), (), False),
        (PROFILE, MINE, ("vfio-mine",), (), False),
        (PROFILE, MINE, ("mine",), (), True),
    ],
)
def test_a_claim_is_known_by_the_driver_of_its_devices_or_by_a_class_that_is_given(
    profile: Profile, rules: EvictionRules, classes: tuple[str, ...], drivers: tuple[str, ...], uses: bool
) -> None:
    pod = workload("p", resources=(), claims=("c",))
    found = found_in(scene(pod, claims=(Claim("tenant", "c", classes, drivers),)), rules, profile)
    assert bool(found) is uses


def test_a_daemon_that_a_dra_driver_makes_for_claims_leaves_after_their_pods() -> None:
    classes = ("compute-domain-daemon.nvidia.com",)
    daemon = workload("daemon", resources=(), claims=("d",), **DAEMON)
    user = workload("user", resources=(), claims=("c",))
    serves = Claim("tenant", "d", classes, ("compute-domain.nvidia.com",))
    used = Claim("tenant", "c", ("compute-domain-default-channel.nvidia.com",))
    evict, wait = PodAction.EVICT, PodAction.WAIT
    for pods, claims, fates in (
        ((daemon, user), (serves, used), [wait, evict]),
        ((daemon,), (serves,), [BLOCK]),
        ((daemon, replace(user, phase="Succeeded")), (serves, used), [BLOCK, STAY]),
        ((replace(daemon, owner_kind="ReplicaSet"), user), (serves, used), [evict, evict]),
        ((daemon, user), (replace(serves, device_classes=()), used), [BLOCK, evict]),
        ((daemon, user), (replace(serves, device_classes=("gpu.nvidia.com",)), used), [BLOCK, evict]),
    ):
        found = found_in(scene(*pods, claims=claims), profile=NVIDIA)
        assert [one.action for one in found] == fates
    slow = replace(daemon, termination_grace_s=30)
    going = found_in(scene(slow, user, claims=(serves, used)), profile=NVIDIA)
    assert after_others_s(going) == 30 + AFTER_GRACE_S
    assert after_others_s(found_in(scene(user, claims=(used,)), profile=NVIDIA)) == 0


REGISTRY, ROOT = "/var/lib/kubelet/plugins_registry", "/run/nvidia/driver"


@pytest.mark.parametrize(
    ("paths", "keys", "is_plugin"),
    [
        ((REGISTRY, "/var/lib/kubelet/plugins", ROOT), (), True),
        ((REGISTRY, "/run/nvidia"), (), True),
        ((REGISTRY, f"{ROOT}/usr"), (), True),
        ((REGISTRY, "/data/kubelet/plugins/gpu.nvidia.com/"), (), True),
        ((REGISTRY, "/var/lib/kubelet/plugins/compute-domain.nvidia.com"), (), True),
        ((REGISTRY,), ("nvidia.com/gpu.deploy.dra-driver",), True),
        ((f"{REGISTRY}/",), ("nvidia.com/dra-kubelet-plugin",), True),
        ((REGISTRY,), ("nvidia.com/gpu.deploy.client",), True),
        # A CSI node plugin, and a DRA plugin of another vendor.
        ((REGISTRY, "/var/lib/kubelet/plugins", "/dev", "/"), (), False),
        ((REGISTRY, "/var/lib/kubelet/plugins/net.example.com", "/run", "/sys"), ("net.example.com/on",), False),
        # An operand that is no plugin.
        (("/var/lib/kubelet/device-plugins", ROOT), ("nvidia.com/gpu.deploy.device-plugin",), False),
    ],
)
def test_a_dra_plugin_is_known_by_its_mounts_and_its_placement(
    paths: tuple[str, ...], keys: tuple[str, ...], is_plugin: bool
) -> None:
    pod = workload("p", resources=(), host_paths=paths, selector_keys=frozenset(keys), **DAEMON)
    assert is_dra_plugin(pod, NVIDIA) is is_plugin
    assert is_client(pod, ClientRules.of(NVIDIA, Selector())) is (is_plugin and not keys)
    assert plugin_keys([pod], NVIDIA) == NVIDIA.deploy.last_keys | (frozenset(keys) if is_plugin else frozenset())


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
        ({"device_classes": (), "dra_driver": ("npu.example.com",)}, (), True),
    ],
)
def test_claims_are_looked_for_where_one_could_be_ours(
    fields: dict[str, Any], classes: tuple[str, ...], looked_for: bool
) -> None:
    rules = replace(EVICTS, device_classes=classes)
    assert bool(namespaces_with_claims([workload("p", claims=("c",))], replace(PROFILE, **fields), rules)) is looked_for


@pytest.mark.parametrize(
    ("resources", "how", "uses"),
    [
        ((), "open", "has /dev/rbln0 open without requesting it"),
        ((), "mapped", "has /dev/rbln0 mapped without requesting it"),
        (("rebellions.ai/ATOM",), "open", "requests rebellions.ai/ATOM"),
    ],
)
def test_a_pod_that_has_the_device_without_asking_is_found_and_told_so(
    resources: tuple[str, ...], how: str, uses: str
) -> None:
    pod = workload("p", resources=resources)
    one = judged(pod, holders=(holds(pod, how), Holder(9, "x", "/dev/rbln1", "open", pod_uid=pod.uid)))
    assert (one.uses, one.has_asked) == (uses, bool(resources))


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


AGAIN, AT_ONCE = "its ReplicaSet recreates it", "its DaemonSet would recreate it at once"
LOST, ALONE = "the data of its emptyDir volume would be lost", "no controller recreates it elsewhere"
ENDING, CONSENT = "it is terminating already", "evicted only with EVICT_HOLDERS"
RESTARTED = "a client of the driver, restarted only with RESTART_CLIENTS"
RESTARTS: dict[str, Any] = {"restarts_clients": True}
HOLDERS: dict[str, Any] = {"evicts_holders": True}
OFF: dict[str, Any] = {"is_enabled": False}


@pytest.mark.parametrize(
    ("asks", "fields", "rules", "fate", "why", "remedy"),
    [
        (True, {}, {}, EVICT, AGAIN, ""),
        (True, {"owner_kind": "Job"}, {}, EVICT, "its Job recreates it", ""),
        (True, {"phase": "Pending"}, {}, EVICT, AGAIN, ""),
        (True, {}, OFF, BLOCK, "eviction is not enabled", ENABLE_IT),
        (True, BARE, {}, BLOCK, ALONE, FORCE_IT),
        (True, BARE, FORCES, EVICT, "forced", ""),
        (True, SCRATCH, {}, BLOCK, LOST, DELETE_DATA),
        (True, SCRATCH, FORCES, BLOCK, LOST, DELETE_DATA),
        (True, SCRATCH, DELETES, EVICT, AGAIN, ""),
        (True, {**BARE, **SCRATCH}, FORCES, BLOCK, LOST, DELETE_DATA),
        (True, {**BARE, **SCRATCH}, DELETES, BLOCK, ALONE, FORCE_IT),
        (True, DAEMON, ALL, BLOCK, AT_ONCE, USE_LABEL),
        (True, DAEMON, OFF, BLOCK, AT_ONCE, USE_LABEL),
        (True, {"deleting": True}, {}, WAIT, ENDING, ""),
        (True, {"deleting": True, **BARE, **SCRATCH}, OFF, WAIT, ENDING, ""),
        (True, {"deleting": True, **DAEMON}, {}, WAIT, ENDING, ""),
        (True, {"phase": "Succeeded"}, ALL, STAY, "it has ended (Succeeded)", ""),
        (True, {"phase": "Failed", "deleting": True}, ALL, STAY, "it has ended (Failed)", ""),
        (True, {"is_mirror": True, "owner_kind": "Node"}, ALL, STAY, "mirror pod of a static manifest", ""),
        (True, {"selector_keys": frozenset({PLUGIN}), **DAEMON}, ALL, STAY, "an operand", ""),
        (True, {"selector_keys": frozenset({DRIVER}), **DAEMON}, ALL, STAY, "an operand", ""),
        (True, {"selector_keys": frozenset({key("dra-kubelet-plugin")}), **DAEMON}, ALL, STAY, "an operand", ""),
        (True, {"selector_keys": frozenset({PLUGIN})}, {}, EVICT, "its ReplicaSet", ""),
        (True, {"selector_keys": frozenset({"kubernetes.io/arch"})}, {}, EVICT, "its ReplicaSet", ""),
        (False, {}, {}, BLOCK, CONSENT, EVICT_HOLDERS),
        (False, {}, HOLDERS, EVICT, AGAIN, ""),
        (False, {}, HOLDERS | OFF, EVICT, AGAIN, ""),
        (False, BARE, {}, BLOCK, CONSENT, EVICT_HOLDERS),
        (False, BARE, HOLDERS, BLOCK, ALONE, FORCE_IT),
        (False, DAEMON, {}, BLOCK, AT_ONCE, USE_LABEL),
        (False, DAEMON, ALL, BLOCK, AT_ONCE, USE_LABEL),
        (False, {"deleting": True}, {}, WAIT, ENDING, ""),
        (False, {"is_mirror": True}, ALL, BLOCK, "mirror pod of a static manifest", MIRROR),
        (False, {"phase": "Failed"}, ALL, STAY, "it has ended", ""),
        (False, {"selector_keys": frozenset({PLUGIN})}, {}, STAY, "an operand", ""),
        (False, {**DAEMON, **CLIENT}, {}, BLOCK, RESTARTED, RESTART_IT),
        (False, CLIENT, RESTARTS, RESTART, "a client of the driver", ""),
        (False, {**DAEMON, **CLIENT}, RESTARTS, RESTART, "a client of the driver", ""),
        (False, {**CLIENT, "deleting": True}, RESTARTS, WAIT, ENDING, ""),
        (False, CLIENT, HOLDERS, EVICT, AGAIN, ""),
        (False, {**BARE, **CLIENT}, RESTARTS, BLOCK, CONSENT, EVICT_HOLDERS),
        (False, DAEMON, RESTARTS, BLOCK, AT_ONCE, USE_LABEL),
    ],
)
def test_the_fate_of_a_pod_that_asked_or_that_only_holds_the_device(
    asks: bool, fields: dict[str, Any], rules: dict[str, Any], fate: PodAction, why: str, remedy: str
) -> None:
    pod = workload("p", **fields) if asks else workload("p", resources=(), **fields)
    one = judged(pod, replace(EVICTS, **rules), holders=() if asks else (holds(pod),))
    assert (one.action, one.remedy) == (fate, remedy)
    assert one.why.startswith(why)


def test_a_label_of_another_prefix_that_leaves_last_makes_an_operand_too() -> None:
    switch = "nvidia.com/dra-kubelet-plugin"
    assert switch in NVIDIA.deploy.last_keys
    pod = workload("p", resources=("nvidia.com/gpu",), selector_keys=frozenset({switch}), **DAEMON)
    assert [one.action for one in found_in(scene(pod), profile=NVIDIA)] == [STAY]
    assert [one.action for one in found_in(scene(replace(pod, resources=("rebellions.ai/ATOM",))))] == [BLOCK]


@pytest.mark.parametrize(
    ("fields", "fate"), [({}, BLOCK), ({"selector_keys": frozenset({PLUGIN})}, BLOCK), ({"phase": "Failed"}, STAY)]
)
def test_a_mirror_pod_that_has_the_device_open_blocks_as_nothing_makes_it_leave(
    fields: dict[str, Any], fate: PodAction
) -> None:
    pod = workload("p", is_mirror=True, **fields)
    one = judged(pod, replace(EVICTS, **ALL), holders=(holds(pod),))
    assert one.action is fate
    assert ("has /dev/rbln0 open" in one.why) is (fate is BLOCK)


@pytest.mark.parametrize("whose", ["own_pod", "enclosing_uid"])
@pytest.mark.parametrize("fields", [{}, {"is_mirror": True}, {"deleting": True}, DAEMON])
def test_our_own_pod_stays_whatever_it_uses(fields: dict[str, Any], whose: str) -> None:
    pod = workload("p", **fields)
    us: dict[str, Any] = {"own_pod": pod} if whose == "own_pod" else {"enclosing_uid": pod.uid}
    for asks in (pod, replace(pod, resources=())):
        (one,) = found_in(scene(asks, holders=(holds(pod),), **us), replace(EVICTS, **ALL))
        assert (one.action, one.why) == (STAY, "our own pod")


def test_a_pod_of_another_uid_but_our_name_is_not_ours() -> None:
    own = workload("p", uid="old")
    assert judged(workload("p", uid="new"), own_pod=own).action is EVICT


def test_where_nobody_has_to_leave_every_user_stays_for_the_same_reason() -> None:
    pods = (workload("a"), workload("b", owner_kind=""), workload("c", phase="Failed"), workload("d", resources=()))
    found = staying(scene(*pods), PROFILE, EvictionRules(), "no need")
    assert [(one.pod.name, one.action, one.why, one.remedy) for one in found] == [
        (name, STAY, "no need", "") for name in "ab"
    ]


# a drain


@pytest.mark.parametrize(
    ("fields", "fate"),
    [
        ({}, EVICT),
        ({"resources": ()}, EVICT),
        ({"deleting": True}, WAIT),
        (BARE, BLOCK),
        (SCRATCH, BLOCK),
        (DAEMON, None),
        ({"is_mirror": True}, None),
        ({"phase": "Succeeded"}, None),
        ({"phase": "Failed"}, None),
        ({"labels": {"app": "web", "tier": "db"}}, None),
        ({"labels": {}}, None),
        ({"selector_keys": frozenset({PLUGIN})}, EVICT),
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
        ("tenant/a (requests rebellions.ai/ATOM)", EVICT),
        ("tenant/b", EVICT),
    ]
    assert found[1].to_text() == "tenant/b: evict, its ReplicaSet recreates it"


# how a refusal reads


def blocked(number: int, *remedies: str) -> list[Workload]:
    return [
        Workload(workload(f"p{index}"), "u", BLOCK, f"why {index}", remedies[index % len(remedies)])
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
    assert [one.action for one in with_action(found, WAIT, EVICT)] == [EVICT, WAIT]
    assert with_action(found) == ()


# pods that a label places


def test_a_pod_is_placed_by_a_label_in_any_namespace_and_our_own_is_never_waited_for() -> None:
    client = pod("client", "kubernetes.io/arch", PLUGIN, namespace="tenant", owner_kind="ReplicaSet")
    assert is_placed_by(client, {PLUGIN}, None)
    assert not is_placed_by(client, {EXPORTER}, None)
    own = driver_pod()
    assert not is_placed_by(own, {DRIVER}, own)
    assert is_placed_by(own, {DRIVER}, None)
    assert is_placed_by(pod("driver-b", DRIVER), {DRIVER}, own)


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"phase": "Succeeded"}, False),
        ({"phase": "Failed"}, False),
        ({"phase": "Pending"}, True),
        ({"deleting": True, "have_ended": True}, False),
        ({"deleting": True, "have_ended": False}, True),
        ({"deleting": True, "have_ended": None}, True),
        ({"have_ended": True}, True),  # its kubelet starts them again
        ({"deleting": True, "have_ended": True, "claims": ("npu",)}, True),  # its devices are not given back yet
        ({"phase": "Failed", "have_ended": None}, True),
        ({"phase": "Failed", "have_ended": False}, True),
        ({"phase": "Failed", "have_ended": None, "deleting": True}, True),
    ],
)
def test_a_pod_is_waited_for_as_long_as_a_container_of_it_may_run(fields: dict[str, Any], answer: bool) -> None:
    assert is_placed_by(pod("p", PLUGIN, **fields), {PLUGIN}, None) is answer


def test_a_users_pod_that_failed_without_a_word_of_its_containers_is_over() -> None:
    """Its object may stay for ever, as a record of an eviction does; that of a DaemonSet's pod is removed."""
    assert workload("w", phase="Failed", have_ended=None).is_over
    assert not pod("p", phase="Failed", have_ended=None).is_over


def test_pods_keep_their_order() -> None:
    pods = (pod("b", PLUGIN), pod("x"), pod("a", EXPORTER))
    assert [str(found) for found in placed_by(pods, {PLUGIN, EXPORTER}, None)] == ["rbln-system/b", "rbln-system/a"]


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        (ROOT_MOUNT, True),
        (f"{ROOT_MOUNT}/usr/bin", True),
        ("/run/rbln", True),
        ("/run/rbln/", True),
        ("/", True),
        ("/run/rbln/driver-old", False),
        ("/run/rbl", False),
        ("/run/rbln/validations", False),
    ],
)
def test_a_pod_is_bound_to_the_root_by_a_mount_that_shows_it(path: str, answer: bool) -> None:
    obs = observation(pods=(pod("p", PLUGIN, host_paths=("/etc", path)),))
    assert bound_to_root(obs, PROFILE) == (frozenset({PLUGIN}) if answer else frozenset())


def test_only_deploy_labels_of_the_node_are_bounced_never_the_drivers_own() -> None:
    bound = {"host_paths": (ROOT_MOUNT,)}
    pods = (pod("a", DRIVER, "zone", **bound), pod("b", key("not-on-this-node"), **bound), pod("c", EXPORTER, **bound))
    assert bound_to_root(observation(pods=pods), PROFILE) == {EXPORTER}
    assert bound_to_root(observation(pods=pods, node=node({})), PROFILE) == frozenset()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"is_mirror": True, "deleting": True}, "mirror pod"),
        ({"reason": "NodeLost", "deleting": True}, "node lost"),
        ({}, "DaemonSet controller has not reacted"),
        ({"owner_kind": "Job"}, "owned by a Job, so a label does not move it"),
        ({"owner_kind": ""}, "it has no controller"),
        ({"deleting": True, "finalizers": ("a/b", "c/d"), "grace_period_s": 30}, "held by finalizer a/b, c/d"),
        ({"deleting": True, "grace_period_s": 45}, "grace period of 45 s"),
        ({"deleting": True, "grace_period_s": None}, "grace period of 0 s"),
    ],
)
def test_the_reason_why_a_pod_stays_is_told(fields: dict[str, object], said: str) -> None:
    assert said in why_still_there(pod("p", PLUGIN, **fields))


@pytest.mark.parametrize(
    ("seen", "container", "pod_name", "uid"),
    [
        ("api-uid", "c1", "rbln-system/p", "api-uid"),
        ("api-uid", "of docker in the pod", "rbln-system/p", "api-uid"),
        ("static-uid", "", "rbln-system/m", "mirror-uid"),
        ("mirror-uid", "", "rbln-system/m", "mirror-uid"),
        ("unknown", "c1", "", "unknown"),
        ("", "c1", "rbln-system/p", "api-uid"),
        ("", "unknown", "", ""),
        ("", "", "", ""),
    ],
)
def test_a_holder_gets_the_name_and_the_uid_that_the_api_has_for_its_pod(
    seen: str, container: str, pod_name: str, uid: str
) -> None:
    pods = (
        pod("p", uid="api-uid", container_ids=("c1",)),
        pod("m", uid="mirror-uid", is_mirror=True, static_uid="static-uid"),
    )
    (found,) = named([Holder(7, "x", "/dev/rbln0", "open", container, seen)], pods)
    assert (found.pod, found.pod_uid) == (pod_name, uid)


# for any pods on a node: each that uses the accelerator has one fate, and nobody is evicted without consent

CONSENTS = ("is_enabled", "forces", "deletes_empty_dirs", "evicts_holders")
CLAIMS = tuple(
    Claim("tenant", name, classes)
    for name, classes in (
        ("ours", (CLASS,)),
        ("vfio", (f"vfio-{CLASS}",)),
        ("mixed", (f"vfio.{CLASS}", CLASS)),
        ("theirs", ("gpu.example.com",)),
    )
)
USING_CLAIMS = frozenset({"ours", "mixed"})
DRAINED = selectors.parse("drain")


@st.composite
def pods(draw: st.DrawFn, uid: str) -> Pod:
    """A pod of any kind."""
    return workload(
        uid,
        phase=draw(st.sampled_from(["Running", "Running", "Pending", "Succeeded", "Failed"])),
        owner_kind=draw(st.sampled_from(["ReplicaSet", "Job", "DaemonSet", ""])),
        resources=draw(st.sampled_from([(), (), ("rebellions.ai/ATOM",), ("nvidia.com/gpu",)])),
        claims=draw(st.sampled_from([(), (), (), (), ("ours",), ("vfio",), ("mixed",), ("theirs",), ("unmade",)])),
        has_empty_dir=draw(st.booleans()),
        is_mirror=draw(st.sampled_from([False, False, False, True])),
        deleting=draw(st.sampled_from([False, False, True])),
        selector_keys=draw(
            st.sampled_from([frozenset(), frozenset({"zone"}), frozenset({PLUGIN}), frozenset({DRIVER})])
        ),
        labels=draw(st.sampled_from([{}, {"drain": "yes"}])),
    )


@st.composite
def scenes(draw: st.DrawFn) -> NodePods:
    """Up to five pods, some of which hold the device, and one of which may be ours."""
    uids = [f"pod-{number}" for number in range(draw(st.integers(0, 5)))]
    found = tuple(draw(pods(uid)) for uid in uids)
    some = st.sampled_from([*uids, ""])
    holding = draw(st.lists(some, max_size=3))
    own = draw(st.sampled_from([None, *found]))
    holders = tuple(Holder(number, "x", "/dev/rbln0", "open", pod_uid=uid) for number, uid in enumerate(holding))
    return NodePods(found, CLAIMS, holders, own, enclosing_uid=draw(some))


RULES = st.builds(EvictionRules, **{name: st.booleans() for name in CONSENTS}, drain_selector=st.just(DRAINED))


def asks(pod: Pod) -> bool:
    return "rebellions.ai/ATOM" in pod.resources or not USING_CLAIMS.isdisjoint(pod.claims)


def check_each_user_has_one_fate(scene: NodePods, rules: EvictionRules) -> None:
    holding = {holder.pod_uid for holder in scene.holders}
    found = workloads(scene, PROFILE, rules)
    assert sorted(one.pod.uid for one in found) == [pod.uid for pod in scene.pods if asks(pod) or pod.uid in holding]
    for one in found:
        assert one.has_asked is asks(one.pod)
        assert one.uses
        assert one.why
        assert bool(one.remedy) is (one.action is PodAction.BLOCK)


def check_only_the_right_pods_are_evicted(scene: NodePods, rules: EvictionRules) -> None:
    for one in workloads(scene, PROFILE, rules):
        if one.action is PodAction.EVICT:
            assert rules.is_enabled if one.has_asked else rules.evicts_holders, "nobody allowed to evict it"
            assert asks_by_itself(one.pod) or not one.pod.selector_keys & {PLUGIN, DRIVER}, "an operand"
            check_evicted(one, scene, rules)
    for one in drained(scene, PROFILE, rules):
        if one.action is PodAction.EVICT:
            assert "drain" in one.pod.labels
            check_evicted(one, scene, rules)


def check_evicted(one: Workload, scene: NodePods, rules: EvictionRules) -> None:
    pod = one.pod
    assert not any((pod.is_mirror, pod.is_over, pod.deleting)), "it cannot be evicted, or need not"
    assert pod.owner_kind != "DaemonSet", "it would come back"
    assert pod.uid not in (scene.enclosing_uid, scene.own_pod.uid if scene.own_pod else None), "our own end"
    assert pod.owner_kind or rules.forces, "nobody makes it anew"
    assert not pod.has_empty_dir or rules.deletes_empty_dirs, "its data is lost"


def with_consent(rules: EvictionRules, name: str) -> EvictionRules:
    consent: dict[str, Any] = {name: True}
    return replace(rules, **consent)


def check_consent_only_adds(scene: NodePods, rules: EvictionRules) -> None:
    for judge in (workloads, drained):
        before = {one.pod.uid for one in judge(scene, PROFILE, rules) if one.action is PodAction.EVICT}
        for name in CONSENTS:
            more = with_consent(rules, name)
            assert before <= {one.pod.uid for one in judge(scene, PROFILE, more) if one.action is PodAction.EVICT}, name


def check_blocked_ones_name_a_consent_that_helps(scene: NodePods, rules: EvictionRules) -> None:
    """Whoever is told to give consents until none is left to give has given one each time, and then is told none."""
    consent_of = {
        module.ENABLE_IT: "is_enabled",
        module.FORCE_IT: "forces",
        module.DELETE_DATA: "deletes_empty_dirs",
        module.EVICT_HOLDERS: "evicts_holders",
    }
    for _ in range(len(CONSENTS) + 1):
        found = workloads(scene, PROFILE, rules)
        asked = {consent_of[one.remedy] for one in found if one.remedy in consent_of}
        for name in asked:
            assert not getattr(rules, name), f"{name} is given already"
            rules = with_consent(rules, name)
    assert {one.remedy for one in found if one.action is PodAction.BLOCK} <= {module.USE_LABEL, module.MIRROR}


CHECKS = (
    check_each_user_has_one_fate,
    check_only_the_right_pods_are_evicted,
    check_consent_only_adds,
    check_blocked_ones_name_a_consent_that_helps,
)


@pytest.mark.shares(3)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_any_pods_fate_is_sound(check: Callable[[NodePods, EvictionRules], None]) -> None:
    @settings(max_examples=examples(300))
    @given(scenes(), RULES)
    def holds(scene: NodePods, rules: EvictionRules) -> None:
        check(scene, rules)

    holds()
