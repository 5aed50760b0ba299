"""Evictions go out at once, each for exactly one pod; a refusal is tried again until the deadline, with jitter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from driver_manager.core.pods import Evictor
from driver_manager.domain.deadline import Deadline
from driver_manager.domain.errors import ApiRefused, ExitCode, PodsRemain, Terminated
from driver_manager.domain.node import Eviction, EvictionOutcome
from driver_manager.domain.pods.workloads import PodAction, Workload
from tests.support.fakes.builders import node, workload
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import FakeCluster, Tenant
from tests.support.fakes.killer import Killer

NEVER = float("inf")


class Case:
    """A node with users' pods, and what evicts them."""

    def __init__(self, **tenants: Tenant) -> None:
        killer = Killer()
        self.clock = FakeClock(killer)
        self.reporter = RecordingReporter()
        self.cluster = FakeCluster(killer, self.clock, node())
        for name, tenant in tenants.items():
            self.cluster.add_tenant(workload(name), tenant)

    def clear(self, *actions: PodAction, timeout_s: float = 60.0) -> None:
        """Evict every pod there is, the first ones by `fates`."""
        known = self.cluster.pods()
        wanted = [*actions, *[PodAction.EVICT] * len(known.pods)]
        leaving = [Workload(pod, "", fate, "") for pod, fate in zip(known.pods, wanted, strict=False)]
        limit = self.deadline(1_000.0)
        self.evictor().clear(known, leaving, limit.within(timeout_s), limit)

    def deadline(self, seconds: float) -> Deadline:
        return Deadline.after(seconds, self.clock.monotonic)

    def evictor(self) -> Evictor:
        return Evictor(self.cluster, self.clock, self.reporter)


def test_all_pods_are_asked_to_leave_before_the_first_one_is_waited_for() -> None:
    case = Case(a=Tenant(stop_s=30.0), b=Tenant(stop_s=20.0), c=Tenant(stop_s=25.0))
    case.clear()
    assert case.cluster.evicted == ["tenant/a", "tenant/b", "tenant/c"]
    assert case.clock.now == 1_000.0 + 30.0
    assert case.cluster.listed == {}


def test_one_request_a_pod_and_one_watch() -> None:
    names = [f"pod-{number}" for number in range(60)]
    case = Case(**{name: Tenant() for name in names})
    case.cluster.killer.calls.clear()
    case.clear()
    assert sorted(case.cluster.killer.calls) == sorted(["pods", "watch", *["evict"] * 60])


def test_a_pod_that_terminates_already_is_waited_for_and_not_evicted_again() -> None:
    case = Case(a=Tenant(stop_s=3.0))
    case.cluster.stop(case.cluster.listed["a"], 9.0)
    case.clear(PodAction.WAIT)
    assert case.cluster.evicted == []
    assert case.clock.now == 1_000.0 + 9.0


def test_a_refusal_does_not_keep_the_others_and_is_tried_again_until_its_budget_allows_it() -> None:
    case = Case(a=Tenant(blocked_until=1_040.0), b=Tenant(stop_s=1.0))
    case.clear()
    assert case.cluster.evicted == ["tenant/b", "tenant/a"]
    said = [text for text in case.reporter.infos if "is refused" in text]
    assert said == ["the eviction of tenant/a is refused: its budget allows no disruption; trying again"]


def test_a_pod_that_is_never_allowed_to_leave_is_named_at_the_deadline() -> None:
    case = Case(a=Tenant(blocked_until=NEVER), b=Tenant())
    with pytest.raises(PodsRemain) as caught:
        case.clear(timeout_s=60.0)
    assert caught.value.exit_code is ExitCode.PODS_REMAIN
    assert caught.value.what == ("1 pod(s) could not be evicted within 60 s: tenant/a: its budget allows no disruption")
    assert "PodDisruptionBudget" in caught.value.remedy
    assert 1_060.0 <= case.clock.now < 1_061.0


def test_the_pauses_grow_and_are_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(a=Tenant(blocked_until=NEVER))
    numbers = iter([0.0, 0.999, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    monkeypatch.setattr(case.clock, "random", lambda: next(numbers))
    with pytest.raises(PodsRemain):
        case.clear(timeout_s=50.0)
    assert [round(seconds, 1) for seconds in case.clock.slept[:6]] == [0.5, 3.0, 4.0, 4.0, 7.5, 7.5]


def test_the_servers_wish_to_wait_longer_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(a=Tenant())
    answers = iter([Eviction(EvictionOutcome.BLOCKED, "busy", 12.0), Eviction(EvictionOutcome.GONE)])
    monkeypatch.setattr(case.cluster, "evict", lambda *_, **__: next(answers))
    case.clock.after(1.0, lambda: case.cluster.remove_pod("a"))
    case.clear()
    assert case.clock.slept == [12.0 * 1.5], "and jitter above it, for those who were told the same"


def test_a_wish_to_wait_for_an_hour_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(a=Tenant())
    answers = iter([Eviction(EvictionOutcome.BLOCKED, "busy", 3_600.0), Eviction(EvictionOutcome.ACCEPTED)])
    monkeypatch.setattr(case.cluster, "evict", lambda *_, **__: next(answers))
    case.clock.after(20.0, lambda: case.cluster.remove_pod("a"))
    case.clear()
    assert case.clock.slept == [15.0 * 1.5]


def test_a_pod_that_is_let_go_late_still_gets_its_grace() -> None:
    case = Case(a=Tenant(blocked_until=1_058.0, stop_s=20.0))
    case.clear(timeout_s=60.0)
    assert case.cluster.listed == {}


def test_a_refusal_is_not_tried_longer_for_a_pods_long_grace() -> None:
    case = Case()
    case.cluster.add_tenant(workload("a", termination_grace_s=600), Tenant(blocked_until=NEVER))
    with pytest.raises(PodsRemain, match="within 60 s"):
        case.clear(timeout_s=60.0)
    assert case.clock.now < 1_061.0


def test_a_pod_that_terminates_already_gets_the_grace_it_was_given() -> None:
    case = Case()
    pod = workload("a", deleting=True, grace_period_s=120)
    case.cluster.add_tenant(pod)
    case.clock.after(115.0, lambda: case.cluster.remove_pod("a"))
    case.clear(PodAction.WAIT, timeout_s=60.0)
    assert case.clock.now == 1_115.0


def test_slow_answers_do_not_overrun_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(**{f"pod-{number}": Tenant(blocked_until=NEVER) for number in range(30)})
    monkeypatch.setattr(case.cluster, "evict", slowly(case))
    with pytest.raises(PodsRemain, match="not attempted in time"):
        case.clear(timeout_s=5.0)
    assert case.clock.now <= 1_007.0


def test_a_slow_rehearsal_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(**{f"pod-{number}": Tenant(blocked_until=NEVER) for number in range(60)})
    monkeypatch.setattr(case.cluster, "evict", slowly(case))
    said = case.evictor().rehearse(case.cluster.pods().pods).warnings
    assert said[-1] == "not every eviction was checked within 15 s"
    assert case.clock.now <= 1_016.0


def slowly(case: Case) -> Callable[..., Eviction]:
    def evict(*_: object, **__: object) -> Eviction:
        case.clock.now += 1.0
        return Eviction(EvictionOutcome.BLOCKED, "busy")

    return evict


def test_a_pod_that_is_gone_already_counts_as_gone() -> None:
    case = Case(a=Tenant())
    known = case.cluster.pods()
    case.cluster.remove_pod("a")
    limit = case.deadline(10.0)
    case.evictor().clear(known, [Workload(known.pods[0], "", PodAction.EVICT, "")], limit, limit)
    assert case.reporter.infos[0] == "tenant/a was gone already"


@pytest.mark.parametrize("at_once", [True, False])
def test_another_pod_of_the_same_name_is_neither_evicted_nor_waited_for(at_once: bool) -> None:
    case = Case(a=Tenant(blocked_until=0.0 if at_once else 1_010.0))

    def replaced() -> None:
        case.cluster.remove_pod("a")
        case.cluster.add_tenant(replace(workload("a"), uid="a-again"))

    if at_once:
        case.cluster.killer.at("pods", replaced, after=True)
    else:
        case.clock.after(5.0, replaced)
    case.clear()
    assert case.cluster.evicted == []
    assert list(case.cluster.listed) == ["a-again"]


def test_a_pod_that_left_by_itself_is_not_asked_for_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namesake's budget would be asked before the uid."""
    case, asked = Case(a=Tenant()), list[float]()

    def always_refused(*_: object, **__: object) -> Eviction:
        asked.append(case.clock.now)
        return Eviction(EvictionOutcome.BLOCKED, "its budget allows no disruption")

    monkeypatch.setattr(case.cluster, "evict", always_refused)
    case.clock.after(10.0, lambda: case.cluster.remove_pod("a"))
    case.clear(timeout_s=600.0)
    assert max(asked) < 1_010.0
    assert case.clock.now < 1_030.0


def test_a_pod_that_does_not_stop_is_named_with_its_reason() -> None:
    case = Case()
    case.cluster.add_tenant(workload("a", finalizers=("example.com/hold",)))
    with pytest.raises(PodsRemain, match=r"tenant/a: terminating, held by finalizer example\.com/hold"):
        case.clear(timeout_s=10.0)


def test_a_pod_whose_containers_ended_is_not_waited_for() -> None:
    case = Case()
    ended = workload("a", finalizers=("example.com/hold",), phase="Succeeded")
    case.cluster.add_tenant(ended)
    case.clear(timeout_s=10.0)
    assert case.clock.now == 1_000.0


def test_sigterm_ends_the_wait_at_once() -> None:
    case = Case(a=Tenant(blocked_until=NEVER))
    case.clock.after(7.0, case.clock.ask_to_end)
    with pytest.raises(Terminated):
        case.clear(timeout_s=600.0)
    assert case.clock.now == 1_007.0


def test_a_rehearsal_evicts_nothing_and_names_who_would_be_refused() -> None:
    case = Case(a=Tenant(blocked_until=NEVER), b=Tenant())
    found = case.evictor().rehearse(case.cluster.pods().pods).warnings
    assert found == ("the eviction of tenant/a would be refused now: its budget allows no disruption",)
    assert case.cluster.evicted == []
    assert all(not pod.deleting for pod in case.cluster.listed.values())


def test_a_missing_right_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(a=Tenant(), b=Tenant())

    def refuse(*_: object, **__: object) -> Eviction:
        raise ApiRefused("the API server refused to create pods/eviction (403)", "Give it.")

    monkeypatch.setattr(case.cluster, "evict", refuse)
    with pytest.raises(ApiRefused):
        case.clear()
    assert case.clock.slept == []


def test_every_half_minute_a_refusal_is_said_again_with_its_reason_and_the_time_that_is_left() -> None:
    case = Case(a=Tenant(blocked_until=1_070.0), b=Tenant(stop_s=1.0))
    case.clear(timeout_s=120.0)
    said = [line for line in case.reporter.infos if line.startswith("still waiting")]
    why = "1 pod(s) may not be evicted yet: tenant/a: its budget allows no disruption"
    assert said[:2] == [f"still waiting, at most 1 min more: {why}"] * 2
    assert case.cluster.evicted == ["tenant/b", "tenant/a"]
