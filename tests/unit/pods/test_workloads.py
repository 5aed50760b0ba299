"""Which pods use the accelerator, and what becomes of each: every way to use it, every reason to stay."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
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
from driver_manager.domain.pods.workloads import NodePods, PodAction, Workload, drained, is_placed_by, workloads
from driver_manager.domain.profile import Profile
from driver_manager.domain.selectors import Selector
from driver_manager.domain.text import MOST_NAMED
from tests.support.fakes import builders
from tests.support.fakes.builders import DRIVER, EXPORTER, PLUGIN, PROFILE, PROFILES, driver_pod, pod, workload
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


def test_a_resource_of_the_profile_is_a_use() -> None:
    atom, ascend, bare = "rebellions.ai/ATOM", PROFILES["ascend"], replace(PROFILE, resource_prefixes=())
    uses = [
        (PROFILE, atom),
        *((NVIDIA, f"nvidia.com/{name}") for name in ("gpu", "gpu.shared", "mig-1g.5gb")),
        *((ascend, f"huawei.com/{name}") for name in ("Ascend910", "Ascend310P", "npu")),
    ]
    others = [
        *((PROFILE, "rebellions.ai.example/ATOM"), (PROFILE, "nvidia.com/gpu"), (NVIDIA, "nvidia.com/hostdev")),
        *((NVIDIA, "rdma/nvidia.com/gpu"), (ascend, "huawei.com/disk"), (bare, atom)),
    ]
    for profile, name in (*uses, *others):
        found = found_in(scene(workload("p", resources=("cpu.example.com/shares", name))), profile=profile)
        wanted = [(f"requests {name}", EVICT)] if (profile, name) in uses else []
        assert [(one.uses, one.action) for one in found] == wanted, (profile.name, name)


OURS = Claim("tenant", "c", (CLASS,))


def test_a_claim_of_the_profiles_class_is_a_use() -> None:
    pod, other, vfio = workload("p", resources=(), claims=("c",)), "other.example.com", f"vfio-{CLASS}"
    rows: dict[Claim, bool] = {OURS: True, replace(OURS, namespace="elsewhere"): False, replace(OURS, name="d"): False}
    for classes, uses in (
        *(((other, CLASS), True), ((other,), False), ((), False)),
        *(((vfio,), False), ((f"vfio.{CLASS}",), False), ((vfio, CLASS), True)),
    ):
        rows[replace(OURS, device_classes=classes)] = uses
    for claim, uses in rows.items():
        found = found_in(scene(pod, claims=(claim,)))
        assert [(one.uses, one.action) for one in found] == [("holds claim c", EVICT)] * uses, claim
        assert module.holds_claim(scene(pod, claims=(claim,)), PROFILE, EVICTS) is uses, claim


def test_a_claim_is_known_by_the_driver_of_its_devices_or_by_a_class_that_is_given() -> None:
    mine, gpu, domain = replace(EVICTS, device_classes=("mine",)), "gpu.nvidia.com", "compute-domain.nvidia.com"
    rows: list[tuple[Profile, EvictionRules, tuple[str, ...], tuple[str, ...], bool]] = [
        *((NVIDIA, EVICTS, ("team-a",), drivers, True) for drivers in ((gpu,), ("other", gpu), (domain,))),
        *((NVIDIA, EVICTS, ("team-a",), (), False), (NVIDIA, EVICTS, (f"vfio.{gpu}",), (gpu,), False)),
        (NVIDIA, EVICTS, ("compute-domain-default-channel.nvidia.com",), (), True),
        *((NVIDIA, EVICTS, ("mig.nvidia.com",), (), True), (NVIDIA, EVICTS, (), (gpu,), True)),
        *((replace(PROFILE, dra_driver=()), EVICTS, ("x",), ("",), False), (PROFILE, mine, (CLASS,), (), False)),
        *((PROFILE, mine, ("vfio-mine",), (), False), (PROFILE, mine, ("mine",), (), True)),
    ]
    pod = workload("p", resources=(), claims=("c",))
    for profile, rules, classes, drivers, uses in rows:
        found = found_in(scene(pod, claims=(Claim("tenant", "c", classes, drivers),)), rules, profile)
        assert bool(found) is uses, (classes, drivers)


def test_a_daemon_that_a_dra_driver_makes_for_claims_leaves_after_their_pods() -> None:
    classes = ("compute-domain-daemon.nvidia.com",)
    daemon = workload("daemon", resources=(), claims=("d",), **DAEMON)
    user = workload("user", resources=(), claims=("c",))
    serves = Claim("tenant", "d", classes, ("compute-domain.nvidia.com",))
    used = Claim("tenant", "c", ("compute-domain-default-channel.nvidia.com",))
    for pods, claims, fates in (
        *(((daemon, user), (serves, used), [WAIT, EVICT]), ((daemon,), (serves,), [BLOCK])),
        ((daemon, replace(user, phase="Succeeded")), (serves, used), [BLOCK, STAY]),
        ((replace(daemon, owner_kind="ReplicaSet"), user), (serves, used), [EVICT, EVICT]),
        ((daemon, user), (replace(serves, device_classes=()), used), [BLOCK, EVICT]),
        ((daemon, user), (replace(serves, device_classes=("gpu.nvidia.com",)), used), [BLOCK, EVICT]),
    ):
        found = found_in(scene(*pods, claims=claims), profile=NVIDIA)
        assert [one.action for one in found] == fates
    slow = replace(daemon, termination_grace_s=30)
    going = found_in(scene(slow, user, claims=(serves, used)), profile=NVIDIA)
    assert module.after_others_s(going) == 30 + module.AFTER_GRACE_S
    assert module.after_others_s(found_in(scene(user, claims=(used,)), profile=NVIDIA)) == 0


def test_a_dra_plugin_is_known_by_its_mounts_and_its_placement() -> None:
    registry, root, plugins = "/var/lib/kubelet/plugins_registry", "/run/nvidia/driver", "/var/lib/kubelet/plugins"
    operand, switch = "nvidia.com/gpu.deploy.dra-driver", "nvidia.com/dra-kubelet-plugin"
    rows: list[tuple[tuple[str, ...], tuple[str, ...], bool]] = [
        *(((registry, plugins, root), (), True), ((registry, "/run/nvidia"), (), True)),
        *(((registry, f"{root}/usr"), (), True), ((registry, "/data/kubelet/plugins/gpu.nvidia.com/"), (), True)),
        ((registry, f"{plugins}/compute-domain.nvidia.com"), (), True),
        *(((registry,), (operand,), True), ((f"{registry}/",), (switch,), True)),
        ((registry,), ("nvidia.com/gpu.deploy.client",), True),
        # A CSI node plugin, and a DRA plugin of another vendor.
        ((registry, plugins, "/dev", "/"), (), False),
        ((registry, f"{plugins}/net.example.com", "/run", "/sys"), ("net.example.com/on",), False),
        # An operand that is no plugin.
        (("/var/lib/kubelet/device-plugins", root), ("nvidia.com/gpu.deploy.device-plugin",), False),
    ]
    for paths, keys, is_plugin in rows:
        pod = workload("p", resources=(), host_paths=paths, selector_keys=frozenset(keys), **DAEMON)
        assert module.is_dra_plugin(pod, NVIDIA) is is_plugin, paths
        assert module.is_client(pod, module.ClientRules.of(NVIDIA, Selector())) is (is_plugin and not keys), paths
        more = frozenset(keys) if is_plugin else frozenset[str]()
        assert module.plugin_keys([pod], NVIDIA) == NVIDIA.deploy.last_keys | more, paths


def test_a_resource_and_a_claim_are_both_named() -> None:
    pod = workload("p", resources=("rebellions.ai/ATOM", "rebellions.ai/REBEL"), claims=("c", "unknown"))
    one = judged(pod, claims=(OURS,))
    assert one.uses == "requests rebellions.ai/ATOM, rebellions.ai/REBEL and holds claim c"
    assert str(one) == f"tenant/p ({one.uses})"
    assert one.to_text() == f"tenant/p {one.uses}: evict, its ReplicaSet recreates it"


def test_a_pod_that_has_ended_holds_no_claim() -> None:
    pod = workload("p", claims=("c",))
    for phase, held in (("Running", True), ("Pending", True), ("Succeeded", False), ("Failed", False)):
        seen = scene(replace(pod, phase=phase), claims=(OURS,))
        assert module.holds_claim(seen, PROFILE, EVICTS) is held
        assert module.namespaces_with_claims(seen.pods, PROFILE, EVICTS) == (("tenant",) if held else ())


def test_claims_are_looked_for_once_in_each_namespace_that_has_some_where_one_could_be_ours() -> None:
    pods = [workload(str(number), namespace=name, claims=("c",)) for number, name in enumerate("bab")]
    pods.append(workload("x", namespace="z"))
    assert module.namespaces_with_claims(pods, PROFILE, EVICTS) == ("a", "b")
    without = replace(PROFILE, device_classes=())
    for profile, classes, wanted in (
        *((without, (), ()), (without, ("mine",), ("a", "b"))),
        (replace(without, dra_driver=("npu.example.com",)), (), ("a", "b")),
    ):
        rules = replace(EVICTS, device_classes=classes)
        assert module.namespaces_with_claims(pods, profile, rules) == wanted


def test_a_pod_that_has_the_device_without_a_request_is_found_and_named_as_such() -> None:
    for resources, how, uses in (
        *(((), how, f"has /dev/rbln0 {how} without requesting it") for how in ("open", "mapped")),
        (("rebellions.ai/ATOM",), "open", "requests rebellions.ai/ATOM"),
    ):
        pod = workload("p", resources=resources)
        one = judged(pod, holders=(holds(pod, how), Holder(9, "x", "/dev/rbln1", "open", pod_uid=pod.uid)))
        assert (one.uses, one.has_asked) == (uses, bool(resources))
    host = Holder(7, "python", "/dev/rbln0", "open")  # in no pod, or in one elsewhere
    assert found_in(scene(workload("p", resources=()), holders=(host, replace(host, pod_uid="gone")))) == []


def test_pods_are_listed_by_namespace_and_name() -> None:
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

Why = tuple[str, str]
"""How the reason begins, and the remedy."""

AGAIN: Why = ("its ReplicaSet recreates it", "")
AT_ONCE: Why = ("its DaemonSet would recreate it at once", module.USE_LABEL)
LOST: Why = ("the data of its emptyDir volume would be lost", module.DELETE_DATA)
ALONE: Why = ("no controller recreates it elsewhere", module.FORCE_IT)
CONSENT: Why = ("evicted only with EVICT_HOLDERS", module.EVICT_HOLDERS)
RESTARTED: Why = ("a client of the driver, restarted only with RESTART_CLIENTS", module.RESTART_IT)
OF_DRIVER: Why = ("a client of the driver", "")
ENDING: Why = ("it is terminating already", "")
OPERAND: Why = ("an operand", "")
MIRRORS = "mirror pod of a static manifest"
RESTARTS: dict[str, Any] = {"restarts_clients": True}
HOLDERS: dict[str, Any] = {"evicts_holders": True}
OFF: dict[str, Any] = {"is_enabled": False}
ENDS: dict[str, Any] = {"deleting": True}


def of(*keys: str, **fields: Any) -> dict[str, Any]:
    """Fields of a pod that these labels place."""
    return {"selector_keys": frozenset(keys), **fields}


Row = tuple[dict[str, Any], dict[str, Any], PodAction, Why]
ASKED: list[Row] = [
    *(({}, {}, EVICT, AGAIN), ({"owner_kind": "Job"}, {}, EVICT, ("its Job recreates it", ""))),
    *(({"phase": "Pending"}, {}, EVICT, AGAIN), ({}, OFF, BLOCK, ("eviction is not enabled", module.ENABLE_IT))),
    *((BARE, {}, BLOCK, ALONE), (BARE, FORCES, EVICT, ("forced", ""))),
    *((SCRATCH, {}, BLOCK, LOST), (SCRATCH, FORCES, BLOCK, LOST), (SCRATCH, DELETES, EVICT, AGAIN)),
    *(({**BARE, **SCRATCH}, FORCES, BLOCK, LOST), ({**BARE, **SCRATCH}, DELETES, BLOCK, ALONE)),
    *((DAEMON, ALL, BLOCK, AT_ONCE), (DAEMON, OFF, BLOCK, AT_ONCE)),
    *((ENDS, {}, WAIT, ENDING), ({**ENDS, **DAEMON}, {}, WAIT, ENDING)),
    ({**ENDS, **BARE, **SCRATCH}, OFF, WAIT, ENDING),
    ({"phase": "Succeeded"}, ALL, STAY, ("it has ended (Succeeded)", "")),
    ({"phase": "Failed", **ENDS}, ALL, STAY, ("it has ended (Failed)", "")),
    ({"is_mirror": True, "owner_kind": "Node"}, ALL, STAY, (MIRRORS, "")),
    *((of(one, **DAEMON), ALL, STAY, OPERAND) for one in (PLUGIN, DRIVER, builders.key("dra-kubelet-plugin"))),
    *((of(one), {}, EVICT, AGAIN) for one in (PLUGIN, "kubernetes.io/arch")),
]
ONLY_HOLDS: list[Row] = [
    *(({}, {}, BLOCK, CONSENT), ({}, HOLDERS, EVICT, AGAIN), ({}, HOLDERS | OFF, EVICT, AGAIN)),
    *((BARE, {}, BLOCK, CONSENT), (BARE, HOLDERS, BLOCK, ALONE), (ENDS, {}, WAIT, ENDING)),
    *((DAEMON, {}, BLOCK, AT_ONCE), (DAEMON, ALL, BLOCK, AT_ONCE), (DAEMON, RESTARTS, BLOCK, AT_ONCE)),
    ({"is_mirror": True}, ALL, BLOCK, (MIRRORS, module.MIRROR)),
    *(({"phase": "Failed"}, ALL, STAY, ("it has ended", "")), (of(PLUGIN), {}, STAY, OPERAND)),
    *(({**DAEMON, **CLIENT}, {}, BLOCK, RESTARTED), ({**DAEMON, **CLIENT}, RESTARTS, RESTART, OF_DRIVER)),
    *((CLIENT, RESTARTS, RESTART, OF_DRIVER), ({**CLIENT, **ENDS}, RESTARTS, WAIT, ENDING)),
    *((CLIENT, HOLDERS, EVICT, AGAIN), ({**BARE, **CLIENT}, RESTARTS, BLOCK, CONSENT)),
]


def test_the_fate_of_a_pod_that_asked_or_that_only_holds_the_device() -> None:
    rows = [*(({}, True, *row) for row in ASKED), *(({"resources": ()}, False, *row) for row in ONLY_HOLDS)]
    for resources, asks, fields, rules, fate, (why, remedy) in rows:
        pod = workload("p", **fields, **resources)
        one = judged(pod, replace(EVICTS, **rules), holders=() if asks else (holds(pod),))
        assert (one.action, one.remedy, one.why.startswith(why)) == (fate, remedy, True), (fields, rules, one)


def test_a_label_of_another_prefix_that_leaves_last_makes_an_operand_too() -> None:
    switch = "nvidia.com/dra-kubelet-plugin"
    assert switch in NVIDIA.deploy.last_keys
    pod = workload("p", resources=("nvidia.com/gpu",), selector_keys=frozenset({switch}), **DAEMON)
    assert [one.action for one in found_in(scene(pod), profile=NVIDIA)] == [STAY]
    assert [one.action for one in found_in(scene(replace(pod, resources=("rebellions.ai/ATOM",))))] == [BLOCK]


def test_a_mirror_pod_that_has_the_device_open_blocks_as_nothing_makes_it_leave() -> None:
    rows: list[tuple[dict[str, Any], PodAction]] = [({}, BLOCK), (of(PLUGIN), BLOCK), ({"phase": "Failed"}, STAY)]
    for fields, fate in rows:
        pod = workload("p", is_mirror=True, **fields)
        one = judged(pod, replace(EVICTS, **ALL), holders=(holds(pod),))
        assert (one.action, "has /dev/rbln0 open" in one.why) == (fate, fate is BLOCK), fields


def test_our_own_pod_stays_whatever_it_uses_and_one_of_another_uid_but_our_name_is_not_ours() -> None:
    fields: dict[str, Any]
    for fields in ({}, {"is_mirror": True}, ENDS, DAEMON):
        pod = workload("p", **fields)
        by: tuple[dict[str, Any], ...] = ({"own_pod": pod}, {"enclosing_uid": pod.uid})
        for asks, us in product((pod, replace(pod, resources=())), by):
            (one,) = found_in(scene(asks, holders=(holds(pod),), **us), replace(EVICTS, **ALL))
            assert (one.action, one.why) == (STAY, "our own pod"), (fields, us)
    assert judged(workload("p", uid="new"), own_pod=workload("p", uid="old")).action is EVICT


def test_if_no_user_has_to_leave_every_user_stays_for_the_same_reason() -> None:
    pods = (workload("a"), workload("b", owner_kind=""), workload("c", phase="Failed"), workload("d", resources=()))
    found = module.staying(scene(*pods), PROFILE, EvictionRules(), "no need")
    wanted = [(name, STAY, "no need", "") for name in "ab"]
    assert [(one.pod.name, one.action, one.why, one.remedy) for one in found] == wanted


def test_a_drain_concerns_all_pods_but_those_it_ignores() -> None:
    rules = EvictionRules(drains=True, drain_selector=selectors.parse("app=web,tier!=db"))
    own = replace(driver_pod(), labels={"app": "web"}, owner_kind="ReplicaSet")
    rows: list[tuple[dict[str, Any], list[PodAction]]] = [
        *(({}, [EVICT]), ({"resources": ()}, [EVICT]), (ENDS, [WAIT]), (BARE, [BLOCK]), (SCRATCH, [BLOCK])),
        *((DAEMON, []), ({"is_mirror": True}, []), ({"phase": "Succeeded"}, []), ({"phase": "Failed"}, [])),
        *(({"labels": {"app": "web", "tier": "db"}}, []), ({"labels": {}}, []), (of(PLUGIN), [EVICT])),
    ]
    for fields, fates in rows:
        pod = workload("p", **{"labels": {"app": "web"}, **fields})
        assert [one.action for one in drained(scene(pod, own, own_pod=own), PROFILE, rules)] == fates, fields
    debugger = replace(own, uid="around-us")
    assert drained(scene(debugger, enclosing_uid="around-us"), PROFILE, rules) == ()


def test_a_drain_without_a_selector_concerns_everybody_and_tells_what_uses_the_accelerator() -> None:
    found = drained(scene(workload("a"), workload("b", resources=())), PROFILE, EvictionRules(drains=True))
    assert [str(one) for one in found] == ["tenant/a (requests rebellions.ai/ATOM)", "tenant/b"]
    assert [one.action for one in found] == [EVICT, EVICT]
    assert found[1].to_text() == "tenant/b: evict, its ReplicaSet recreates it"


def blocked(number: int, *remedies: str) -> list[Workload]:
    return [
        Workload(workload(f"p{index}"), "u", BLOCK, f"why {index}", remedies[index % len(remedies)])
        for index in range(number)
    ]


def test_a_refusal_names_each_pod_once_with_its_reason_and_each_remedy_once() -> None:
    error = module.refusal(blocked(4, module.FORCE_IT, module.DELETE_DATA), "4 pods")
    assert error.what == "4 pods: " + "; ".join(f"tenant/p{index} (u): why {index}" for index in range(4))
    assert error.remedy.startswith("Allow it with NPU_POD_EVICTION_FORCE=true")
    assert error.remedy.endswith(".")
    assert [error.remedy.count(name) for name in ("_FORCE=", "_EMPTYDIR_DATA=")] == [1, 1]


def test_at_most_ten_pods_are_named_and_the_rest_is_counted() -> None:
    for number, named in ((1, 1), (MOST_NAMED, MOST_NAMED), (MOST_NAMED + 1, MOST_NAMED), (60, 10)):
        error = module.refusal(blocked(number, module.MIRROR), "why")
        assert error.what.count("tenant/p") == named
        assert error.what.endswith(f"; and {number - named} more") is (number > named)
        assert len(error.what) < 1_000, "an Event holds no more"


def test_pods_are_chosen_by_their_fates() -> None:
    found = [Workload(workload(fate.value), "", fate, "") for fate in PodAction]
    assert [one.action for one in module.with_action(found, WAIT, EVICT)] == [EVICT, WAIT]
    assert module.with_action(found) == ()


# pods that a label places


def test_a_pod_is_placed_by_a_label_in_any_namespace_and_our_own_is_never_waited_for() -> None:
    client = pod("client", "kubernetes.io/arch", PLUGIN, namespace="tenant", owner_kind="ReplicaSet")
    assert is_placed_by(client, {PLUGIN}, None)
    assert not is_placed_by(client, {EXPORTER}, None)
    own = driver_pod()
    assert not is_placed_by(own, {DRIVER}, own)
    assert is_placed_by(own, {DRIVER}, None)
    assert is_placed_by(pod("driver-b", DRIVER), {DRIVER}, own)


def test_a_pod_is_waited_for_as_long_as_a_container_of_it_may_run() -> None:
    rows: list[tuple[dict[str, Any], bool]] = [
        *(({"phase": "Succeeded"}, False), ({"phase": "Failed"}, False), ({"phase": "Pending"}, True)),
        *(({**ENDS, "have_ended": True}, False), ({**ENDS, "have_ended": False}, True)),
        ({**ENDS, "have_ended": None}, True),
        ({"have_ended": True}, True),  # its kubelet starts them again
        ({**ENDS, "have_ended": True, "claims": ("npu",)}, True),  # its devices are not given back yet
        *(({"phase": "Failed", "have_ended": None}, True), ({"phase": "Failed", "have_ended": False}, True)),
        ({"phase": "Failed", "have_ended": None, **ENDS}, True),
    ]
    for fields, answer in rows:
        assert is_placed_by(pod("p", PLUGIN, **fields), {PLUGIN}, None) is answer, fields


def test_a_users_pod_that_failed_without_a_word_of_its_containers_is_over() -> None:
    """Its object may stay for ever, as a record of an eviction does; that of a DaemonSet's pod is removed."""
    assert workload("w", phase="Failed", have_ended=None).is_over
    assert not pod("p", phase="Failed", have_ended=None).is_over


def test_pods_keep_their_order() -> None:
    pods = (pod("b", PLUGIN), pod("x"), pod("a", EXPORTER))
    assert [str(found) for found in module.placed_by(pods, {PLUGIN, EXPORTER}, None)] == [
        "rbln-system/b",
        "rbln-system/a",
    ]


def test_a_pod_is_bound_to_the_root_by_a_mount_that_shows_it() -> None:
    shows = (builders.ROOT_MOUNT, f"{builders.ROOT_MOUNT}/usr/bin", "/run/rbln", "/run/rbln/", "/")
    for path in (*shows, "/run/rbln/driver-old", "/run/rbl", "/run/rbln/validations"):
        obs = builders.observation(pods=(pod("p", PLUGIN, host_paths=("/etc", path)),))
        assert module.bound_to_root(obs, PROFILE) == ({PLUGIN} if path in shows else frozenset()), path


def test_only_deploy_labels_of_the_node_are_bounced_never_the_drivers_own() -> None:
    bound = {"host_paths": (builders.ROOT_MOUNT,)}
    pods = (
        pod("a", DRIVER, "zone", **bound),
        pod("b", builders.key("not-on-this-node"), **bound),
        pod("c", EXPORTER, **bound),
    )
    assert module.bound_to_root(builders.observation(pods=pods), PROFILE) == {EXPORTER}
    assert module.bound_to_root(builders.observation(pods=pods, node=builders.node({})), PROFILE) == frozenset()


def test_the_reason_why_a_pod_stays_is_shown() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        *(({"is_mirror": True, **ENDS}, "mirror pod"), ({"reason": "NodeLost", **ENDS}, "node lost")),
        *(({}, "DaemonSet controller has not reacted"), (BARE, "it has no controller")),
        ({"owner_kind": "Job"}, "owned by a Job, so a label does not move it"),
        ({**ENDS, "finalizers": ("a/b", "c/d"), "grace_period_s": 30}, "held by finalizer a/b, c/d"),
        ({**ENDS, "grace_period_s": 45}, "grace period of 45 s"),
        ({**ENDS, "grace_period_s": None}, "grace period of 0 s"),
    ]
    for fields, expected in rows:
        assert expected in module.why_still_there(pod("p", PLUGIN, **fields)), fields


def test_a_holder_gets_the_name_and_the_uid_that_the_api_has_for_its_pod() -> None:
    mirror = pod("m", uid="mirror-uid", is_mirror=True, static_uid="static-uid")
    pods, plain = (pod("p", uid="api-uid", container_ids=("c1",)), mirror), ("rbln-system/p", "api-uid")
    rows = {("api-uid", "c1"): plain, ("api-uid", "of docker in the pod"): plain, ("", "c1"): plain}
    rows |= {(uid, ""): ("rbln-system/m", "mirror-uid") for uid in ("static-uid", "mirror-uid")}
    rows |= {("unknown", "c1"): ("", "unknown"), ("", "unknown"): ("", ""), ("", ""): ("", "")}
    for (seen, container), wanted in rows.items():
        (found,) = module.named([Holder(7, "x", "/dev/rbln0", "open", container, seen)], pods)
        assert (found.pod, found.pod_uid) == wanted, (seen, container)


# for any pods on a node: each that uses the accelerator has one fate, and no pod is evicted without consent

CONSENTS = ("is_enabled", "forces", "deletes_empty_dirs", "evicts_holders")
CLASSES = {
    "ours": (CLASS,),
    "vfio": (f"vfio-{CLASS}",),
    "mixed": (f"vfio.{CLASS}", CLASS),
    "theirs": ("gpu.example.com",),
}
CLAIMS = tuple(Claim("tenant", name, classes) for name, classes in CLASSES.items())
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
            assert rules.is_enabled if one.has_asked else rules.evicts_holders, "its eviction was not allowed"
            assert module.asks_by_itself(one.pod) or not one.pod.selector_keys & {PLUGIN, DRIVER}, "an operand"
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
    assert pod.owner_kind or rules.forces, "no controller creates it again"
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
    """Each round asks for a consent that was not given yet, until none is left."""
    remedies = (module.ENABLE_IT, module.FORCE_IT, module.DELETE_DATA, module.EVICT_HOLDERS)
    consent_of = dict(zip(remedies, CONSENTS, strict=True))
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
