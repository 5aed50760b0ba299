"""For any pods on a node: each that uses the accelerator has one fate, and nobody is evicted without consent.

The mutants at the end show that these properties can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.host import Holder
from driver_manager.domain.node import Claim, Pod
from driver_manager.domain.observation import EvictionRules
from driver_manager.domain.pods import workloads as module
from driver_manager.domain.pods.workloads import NodePods, PodAction, Workload, asks_by_itself, drained, workloads
from tests.support.fakes.builders import DRIVER, PLUGIN, PROFILE, workload
from tests.support.selection import examples

(CLASS,) = PROFILE.device_classes
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


# mutants


def is_caught() -> bool:
    """Whether any property fails."""

    @settings(max_examples=9_999, database=None, derandomize=True, report_multiple_bugs=False, phases=(Phase.generate,))
    @given(scenes(), RULES)
    def holds(scene: NodePods, rules: EvictionRules) -> None:
        for check in CHECKS:
            check(scene, rules)

    try:
        holds()
    except AssertionError:
        return True
    return False


EVICTABLE = module._evictable


def test_a_consent_that_takes_another_one_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def exclusive(pod: Pod, uses: str, rules: EvictionRules) -> Workload:
        return EVICTABLE(pod, uses, replace(rules, forces=rules.forces and not rules.evicts_holders))

    monkeypatch.setattr(module, "_evictable", exclusive)
    assert is_caught()
