"""The plan for each situation, whole: the rows are in `tests/unit/golden/plans`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.deadline import Moment
from driver_manager.domain.errors import ManagerError, OwnedElsewhere, PodsRemain
from driver_manager.domain.host import UNREAD, Holder
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import EvictionRules, Loader, Policy, Situation
from driver_manager.domain.pods.workloads import UNMOVED_OWNERS, node_pods
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.eviction import HOLDERS, STUCK, drain, is_completing, is_managed
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.preflight import places_us, refuse_if_owned
from driver_manager.domain.swap.steps import PlanAgain, TakeNode, UnloadModules, WaitForOperands
from tests.support.fakes.builders import (
    ASCEND,
    DRIVER,
    EXPORTER,
    NEW_DIGEST,
    PLUGIN,
    PROFILE,
    PROFILES,
    ROOT_MOUNT,
    SOMEBODY,
    driver_pod,
    host,
    journal,
    key,
    node,
    observation,
    pod,
    workload,
)
from tests.support.fakes.plans import GOLDEN, Row, rows, shown, written

FILES = sorted(GOLDEN.glob("*.txt"))
ROWS = [(path.stem, row) for path in FILES for row in rows(path)]


@pytest.mark.parametrize(("_", "row"), ROWS, ids=[f"{stem}: {row.title}" for stem, row in ROWS])
def test_the_plan_of_a_row(_: str, row: Row) -> None:
    for facts in row.facts:
        assert shown(facts) == row.plan, (
            f"for the facts\n{facts}\nIf it should be so: .venv/bin/python -m tests.support.fakes.plans"
        )


def test_no_two_rows_have_a_title_or_their_facts_in_common() -> None:
    assert [path.name for path in FILES if written(list(rows(path))) != path.read_text(encoding="utf-8")] == []
    titles = [(stem, row.title) for stem, row in ROWS]
    facts = [text for _, row in ROWS for text in row.facts]
    assert (len(titles), len(facts)) == (len(set(titles)), len(set(facts)))


# plans for machines

MANAGED = node(annotations={PROFILE.keys.upgrade_enabled: "true"})
EVICTS = Policy(eviction=EvictionRules(is_enabled=True))
COMPLETES = replace(EVICTS, completion=selectors.parse("job in (a,1),!x"), completion_timeout_s=60.0)
JOB = workload("j", labels={"job": "1"})


@pytest.mark.parametrize(
    "policy", [EVICTS, replace(EVICTS, safe_load=True), COMPLETES, Policy(eviction=EvictionRules(drains=True))]
)
@pytest.mark.parametrize("where", [node(), MANAGED])
def test_a_plan_is_json_with_each_step_and_each_pod(policy: Policy, where: Any) -> None:
    obs = observation(node=where, pods=(JOB, workload("a"), workload("d", deleting=True)))
    found = plan(Situation.of(obs, PROFILE, policy))
    body = json.loads(json.dumps(found.to_json()))
    assert [step["step"] for step in body["steps"]] == [type(step).__name__ for step in found.steps]
    assert all(step["text"] for step in body["steps"])
    assert [(user["pod"], user["fate"]) for user in body["workloads"]] == [
        (str(one.pod), one.action.value) for one in found.workloads
    ]
    assert all(user["uses"] and user["why"] for user in body["workloads"])


# what the planner asks of the facts


@pytest.mark.parametrize("take_over", [False, True])
def test_an_owner_that_may_be_running_is_refused_off_the_node(take_over: bool) -> None:
    obs = observation(journal=journal(owner=SOMEBODY), owner_alive=None, host=None, own_pod=None)
    if take_over:
        refuse_if_owned(obs, take_over=True)
        return
    with pytest.raises(OwnedElsewhere, match="cannot determine whether it is still running") as caught:
        refuse_if_owned(obs, take_over=False)
    assert "--take-over" in caught.value.remedy


NVIDIA = PROFILES["nvidia"]


@pytest.mark.parametrize(
    ("own", "profile", "label"),
    [
        (pod("vfio-a", key("vfio-manager")), PROFILE, key("vfio-manager")),
        (pod("v", "nvidia.com/gpu.deploy.vgpu-manager"), NVIDIA, "nvidia.com/gpu.deploy.vgpu-manager"),
        (pod("v", "nvidia.com/gpu.deploy.vfio-manager", "zone"), NVIDIA, "nvidia.com/gpu.deploy.vfio-manager"),
        (driver_pod(), PROFILE, ""),
        (pod("driver-a", DRIVER, key("vfio-manager")), PROFILE, ""),
        (pod("debugger"), PROFILE, ""),
        (pod("own-manifest", "example.com/npu"), PROFILE, ""),
        (None, PROFILE, ""),
        (pod("v", "openfuyao.com/npu.present"), ASCEND, ""),
    ],
)
def test_only_a_pod_that_another_deploy_label_places_uninstalls(own: Pod | None, profile: Profile, label: str) -> None:
    assert places_us(Situation.of(observation(own_pod=own), profile, Policy())) == label


def test_a_drain_during_the_run_is_judged_as_one_before_it() -> None:
    policy = Policy(eviction=EvictionRules(drains=True, drain_selector=selectors.parse("drain")))
    outside = observation(pods=(workload("a"), workload("d", labels={"drain": ""})))
    with pytest.raises(PodsRemain, match="tenant/a"):
        drain(Situation.of(outside, PROFILE, policy), node_pods(outside))


@pytest.mark.parametrize(
    ("fields", "may"),
    [
        ({}, True),
        ({"phase": "Pending"}, True),
        ({"deleting": True}, True),
        ({"phase": "Succeeded"}, False),
        ({"phase": "Failed"}, False),
        ({"labels": {}}, False),
        ({"uid": "driver-a"}, False),
    ],
)
def test_which_pods_may_complete(fields: dict[str, Any], may: bool) -> None:
    found = workload("p", **{"labels": {"job": "x"}, **fields})
    assert is_completing(found, selectors.parse("job"), driver_pod()) is may
    assert is_completing(replace(found, uid="p"), selectors.parse("job"), None) is ("uid" in fields or may)


@pytest.mark.parametrize(
    ("value", "answer"), [("true", True), ("false", False), ("True", False), ("", False), (None, False)]
)
def test_only_the_annotation_true_makes_a_node_managed(value: str | None, answer: bool) -> None:
    notes = {} if value is None else {PROFILE.keys.upgrade_enabled: value}
    assert is_managed(Situation.of(observation(node=node(annotations=notes)), PROFILE, Policy())) is answer
    assert not is_managed(Situation.of(observation(node=node(annotations=notes)), ASCEND, Policy()))


# a property

NOW_S = 10_000.0
SERVICE = PROFILE.host_services[0]
REBOUND: dict[str, Any] = {"host": host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,))}
STALE: dict[str, Any] = {"host": host(modules={}, digest=None, root_mounts=(ROOT_MOUNT,))}
OWNERS_OF_ANY_KIND = st.sampled_from(["DaemonSet", "ReplicaSet", "", "Job", "Custom"])


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Pod, ...]:
    """Pods that deploy labels placed, of any owner, some of them going."""
    return tuple(
        pod(
            f"p{number}",
            draw(st.sampled_from([PLUGIN, EXPORTER, DRIVER, "zone"])),
            owner_kind=draw(OWNERS_OF_ANY_KIND),
            deleting=draw(st.booleans()),
            due_s=draw(st.sampled_from([None, 0.0, NOW_S])),
            is_mirror=draw(st.sampled_from([False, False, True])),
            host_paths=draw(st.sampled_from([(), (ROOT_MOUNT,)])),
        )
        for number in range(draw(st.integers(0, 4)))
    )


HELD = st.lists(
    st.builds(
        Holder,
        pid=st.integers(1, 3),
        process=st.just("x"),
        node=st.just("/dev/rbln0"),
        how=st.sampled_from(["open", "mapped", UNREAD]),
        pod_uid=st.sampled_from(["", "p0", "p1", "gone"]),
        service=st.sampled_from(["", SERVICE, "sshd.service"]),
    ),
    max_size=3,
).map(tuple)


@pytest.mark.submission
@given(
    pods=crowds(),
    holders=HELD,
    fields=st.sampled_from([{}, REBOUND, STALE]),
    loader=st.sampled_from(Loader),
    evicts=st.booleans(),
    stops=st.booleans(),
    waited=st.frozensets(st.sampled_from([HOLDERS, STUCK])),
)
def test_nobody_is_disturbed_while_something_known_is_in_the_way(
    pods: tuple[Pod, ...],
    holders: tuple[Holder, ...],
    fields: dict[str, Any],
    loader: Loader,
    evicts: bool,
    stops: bool,
    waited: frozenset[str],
) -> None:
    policy = Policy(loader=loader, stop_host_services=stops, eviction=EvictionRules(is_enabled=evicts))
    at = Moment(wall_s=NOW_S)
    obs = observation(pods=pods, holders=holders, at=at, **fields)
    try:
        found = plan(Situation.of(obs, PROFILE, policy, waited))
    except ManagerError:
        return
    first = found.steps[: next((at for at, step in enumerate(found.steps) if isinstance(step, PlanAgain)), None)]
    if not any(isinstance(step, TakeNode) for step in first):
        return
    assert obs.host is not None
    if any(isinstance(step, UnloadModules) for step in found.steps):
        stopped = obs.host.active_services if stops else ()
        on_host = [one for one in holders if not one.pod_uid and one.how != UNREAD and one.service not in stopped]
        assert not on_host, "it takes the node though a process of the host has the device"
    paused = {key for step in first if isinstance(step, WaitForOperands) for key in step.keys}
    for other in pods:
        if not other.selector_keys & paused:
            continue
        if other.deleting and other.due_s == 0.0:
            assert STUCK in waited, "it takes the node though an operand is stuck"
        stays = not other.deleting and (other.is_mirror or other.owner_kind in UNMOVED_OWNERS)
        evicted = {str(user.pod) for user in found.workloads if user.action.value == "evict"}
        if stays and str(other) not in evicted:
            assert not other.host_paths, "it takes the node though nothing makes this pod leave"
            assert not any(isinstance(step, UnloadModules) for step in found.steps)
