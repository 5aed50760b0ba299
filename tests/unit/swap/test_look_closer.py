"""Claims and holders of the device are read where somebody may have to leave, and are never silently taken for none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.core.ports import Ports
from driver_manager.core.swap.run import read_holders
from driver_manager.domain.errors import ApiRefused, ConfigError
from driver_manager.domain.host import Holder
from driver_manager.domain.node import Claim
from driver_manager.domain.observation import EvictionRules, Observation, Policy, Situation
from tests.support.fakes.builders import NEW_DIGEST, NODE, PROFILE, host, modules, observation, pod, workload
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.host import FakeHost
from tests.support.fakes.killer import Killer

CLAIM = Claim("tenant", "c", PROFILE.device_classes)
HOLDING = workload("h", resources=(), claims=("c",))
IN_USE = host(modules=modules(users=1))


class Case:
    """A cluster with one claim, and a host on which one process has the device."""

    def __init__(self, holders: tuple[Holder, ...] = (Holder(7, "x", "/dev/rbln0", "open", pod_uid="h"),)) -> None:
        killer = Killer()
        self.killer, self.reporter = killer, RecordingReporter()
        self.clock = FakeClock(killer)
        self.cluster = FakeCluster(killer, self.clock, None, all_claims=(CLAIM,))
        self.host = FakeHost(killer, PROFILE, lambda: 1)
        self.host.known_holders = holders

    def look(self, obs: Observation, policy: Policy | None = None, **profile: Any) -> Observation:
        now = Situation.of(obs, replace(PROFILE, **profile), policy or Policy())
        return read_holders(
            now, Ports(self.cluster, self.host, self.clock, self.reporter, self.host.slots, self.host.pci)
        ).obs


def test_claims_and_named_holders_are_added_where_the_driver_is_to_be_replaced() -> None:
    case = Case()
    seen = case.look(observation(pods=(HOLDING,), host=IN_USE))
    assert seen.claims == (CLAIM,)
    assert [(holder.pod, holder.pod_uid) for holder in seen.holders] == [("tenant/h", "h")]
    assert case.killer.calls == ["claims", "holders"]


def test_the_holder_in_a_static_pod_is_known_by_its_mirror_pod() -> None:
    case = Case((Holder(7, "x", "/dev/rbln0", "open", pod_uid="hash"),))
    mirror = pod("mirror-pod", is_mirror=True, static_uid="hash")
    (holder,) = case.look(observation(pods=(mirror,), host=IN_USE)).holders
    assert (holder.pod, holder.pod_uid) == ("rbln-system/mirror-pod", "mirror-pod")


@pytest.mark.parametrize(
    ("pods", "facts", "asked"),
    [
        ((HOLDING,), host(), ["claims"]),
        ((workload("a"),), IN_USE, ["holders"]),
        ((workload("a"),), host(), []),
        ((replace(HOLDING, phase="Failed"),), host(), []),
        ((HOLDING,), host(digest=NEW_DIGEST, modules=modules(users=1)), []),
        ((HOLDING,), host(modules={}), []),
    ],
)
def test_nothing_is_asked_that_does_not_matter(pods: Iterable[Any], facts: Any, asked: list[str]) -> None:
    case = Case()
    obs = observation(pods=tuple(pods), host=facts)
    case.look(obs)
    assert case.killer.calls == asked


@pytest.mark.parametrize(
    ("classes", "given", "asked"), [((), (), []), ((), ("mine",), ["claims"]), (("npu",), (), ["claims"])]
)
def test_given_classes_are_looked_for_though_the_profile_has_none(
    classes: tuple[str, ...], given: tuple[str, ...], asked: list[str]
) -> None:
    case = Case()
    policy = Policy(eviction=EvictionRules(device_classes=given))
    case.look(observation(pods=(HOLDING,)), policy, device_classes=classes)
    assert case.killer.calls == asked


def test_holders_that_cannot_be_seen_are_said() -> None:
    case = Case()

    def blind() -> None:
        raise ConfigError("/proc shows no process", "Run as root.")

    case.killer.at("holders", blind)
    assert case.look(observation(pods=(HOLDING,), host=IN_USE)).holders == ()
    assert case.reporter.warnings == ["unknown which processes have the device open: /proc shows no process"]


@pytest.mark.parametrize("rules", [EvictionRules(is_enabled=True), EvictionRules(drains=True)])
def test_claims_that_may_not_be_read_end_the_run_where_pods_would_be_evicted(rules: EvictionRules) -> None:
    case = Case()
    case.killer.at("claims", refuse)
    with pytest.raises(ApiRefused):
        case.look(observation(pods=(HOLDING,)), Policy(eviction=rules))


def test_claims_that_may_not_be_read_are_not_taken_for_none_where_nobody_is_evicted() -> None:
    case = Case()
    case.killer.at("claims", refuse)
    seen = case.look(observation(pods=(HOLDING,)))
    assert (seen.claims, seen.has_unread_claims) == ((), True)


def refuse() -> None:
    raise ApiRefused(f"node {NODE}: no", "Give the right.")
