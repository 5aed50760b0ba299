"""A node is cleared for a reboot of pods that use its accelerator, and of no others."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from driver_manager.core.rebooter import NodeDrain
from driver_manager.domain.errors import PodsRemain
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import EvictionRules
from tests.support.fakes.builders import ASCEND, node
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.killer import Killer

RULES = EvictionRules(is_enabled=True, timeout_s=60.0)


def job(name: str, **fields: object) -> Pod:
    known: dict[str, object] = {"owner_kind": "Job", "resources": ("huawei.com/Ascend910",), "termination_grace_s": 30}
    return Pod("tenant", name, name, **{**known, **fields})  # type: ignore[arg-type]  # fields of a Pod


def cluster(*pods: Pod) -> FakeCluster:
    made = FakeCluster(Killer(), FakeClock(), node({}))
    for pod in pods:
        made.add_pod(pod)
    return made


def clearance(on: FakeCluster, rules: EvictionRules = RULES) -> NodeDrain:
    return NodeDrain(on, on.clock, RecordingReporter(), ASCEND, rules)


def test_pods_that_use_the_accelerator_leave_and_the_others_stay() -> None:
    on = cluster(job("training"), job("web", resources=("cpu",)), job("over", phase="Succeeded"))
    assert clearance(on).blockers() == ()
    clearance(on).clear()
    assert set(on.listed) == {"web", "over"}


def test_what_comes_back_with_the_node_neither_leaves_nor_blocks() -> None:
    on = cluster(job("agent", owner_kind="DaemonSet"), job("static", is_mirror=True, owner_kind="Node"))
    assert clearance(on).blockers() == ()
    clearance(on).clear()
    assert set(on.listed) == {"agent", "static"}


def test_a_pod_that_nobody_makes_anew_blocks_with_its_remedy_unless_forced() -> None:
    on = cluster(job("lonely", owner_kind=""), job("training"))
    (blocker,) = clearance(on).blockers()
    assert "tenant/lonely" in blocker
    assert "NPU_POD_EVICTION_FORCE" in blocker
    with pytest.raises(PodsRemain, match="lonely"):
        clearance(on).clear()
    assert set(on.listed) == {"lonely", "training"}
    forced = clearance(on, replace(RULES, forces=True))
    assert forced.blockers() == ()
    forced.clear()
    assert on.listed == {}
