"""The Lease: of any controllers, whatever their clocks and the network do, never two may act at once."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.kube.api import PROMPT_S, KubeApi
from driver_manager.adapters.kube.leases import ACT_S, ATTEMPT_S, LEASE_S, RENEW_S, LeaseLeadership
from driver_manager.domain.errors import ApiUnavailable
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.lease_api import LeaseApi, LeaseServer


def one(clock: FakeClock, server: LeaseServer, name: str) -> tuple[LeaseLeadership, LeaseApi]:
    """A controller with a way to the server of its own."""
    api = LeaseApi(clock, server)
    return LeaseLeadership(cast(KubeApi, api), clock, "rbln-system", "rollout", name), api


class Pair:
    """Two controllers, of which the first leads, and the first one's way to the server."""

    def __init__(self) -> None:
        self.clock, self.server = FakeClock(), LeaseServer()
        self.first, self.api = one(self.clock, self.server, "first")
        self.second, _ = one(self.clock, self.server, "second")
        assert self.first.hold()
        self.api.requests.clear()

    @property
    def lease(self) -> dict[str, Any]:
        assert self.server.lease is not None
        return self.server.lease


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_the_first_to_come_leads_and_the_lease_says_so_to_people(pair: Pair) -> None:
    assert pair.first.may_act()
    spec = pair.lease["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("first", 15, 0)
    assert spec["renewTime"].endswith("Z")
    assert not pair.second.hold()
    assert not pair.second.may_act()
    assert (pair.first.leader, pair.second.leader) == ("first", "first")


def test_a_leader_renews_with_one_request_every_five_seconds(pair: Pair) -> None:
    for _ in range(600):
        pair.clock.sleep(0.1)
        assert pair.first.hold()
        assert pair.first.may_act()
    assert set(pair.api.requests) == {"PATCH"}
    assert len(pair.api.requests) == pytest.approx(12, abs=1)


def test_a_lease_that_is_not_renewed_is_taken_after_it_has_run_out_and_not_before(pair: Pair) -> None:
    pair.second.hold()
    began = pair.clock.monotonic()
    while not pair.second.hold():
        pair.clock.sleep(0.1)
    assert LEASE_S <= pair.clock.monotonic() - began <= LEASE_S + 3.0
    assert not pair.first.may_act()
    assert not pair.first.hold()
    assert pair.first.leader == "second"
    assert pair.lease["spec"]["leaseTransitions"] == 1
    assert pair.second.last_renewed_s == pytest.approx(1_700_000_000.0 + began)


def test_a_late_candidate_waits_a_whole_lease_whatever_time_is_written_in_it(pair: Pair) -> None:
    pair.lease["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"
    assert not pair.second.hold()
    pair.clock.sleep(LEASE_S - 1.0)
    assert not pair.second.hold()


def test_a_lease_given_back_is_taken_at_the_next_look(pair: Pair) -> None:
    pair.second.hold()
    pair.first.release()
    assert not pair.first.may_act()
    pair.clock.sleep(max(0.0, pair.second.due_s - pair.clock.monotonic()))
    assert pair.second.hold()
    assert pair.second.may_act()


def test_giving_back_what_another_has_by_now_changes_nothing(pair: Pair) -> None:
    pair.second.hold()
    while not pair.second.hold():
        pair.clock.sleep(1.0)
    pair.first.release()
    assert pair.lease["spec"]["holderIdentity"] == "second"


def test_a_leader_that_cannot_renew_stops_before_anybody_can_follow(pair: Pair) -> None:
    began = pair.clock.monotonic()
    pair.api.is_away = True
    while pair.first.may_act():
        pair.clock.sleep(0.1)
        try:
            pair.first.hold()
        except ApiUnavailable:
            continue
    assert pair.clock.monotonic() - began <= ACT_S + 0.2
    assert ACT_S + PROMPT_S + ATTEMPT_S < LEASE_S, "an effect is over, also one that is sent again after a 401"
    pair.api.is_away = False
    pair.clock.sleep(3.0)
    assert pair.first.hold(), "nobody has taken it"
    assert pair.first.may_act()


def test_a_renewal_counts_from_when_it_was_asked_for_and_not_from_its_answer(pair: Pair) -> None:
    pair.clock.sleep(RENEW_S)
    pair.api.delays = [(0.0, 4.0)]
    assert pair.first.hold()
    pair.clock.sleep(ACT_S - 4.1)
    assert pair.first.may_act()
    pair.clock.sleep(0.2)
    assert not pair.first.may_act()


def test_a_slow_server_that_answers_leaves_a_leader_all_its_time(pair: Pair) -> None:
    for _ in range(40):  # an effect that takes two seconds as well, and what a turn asks before each
        pair.api.delays = [(1.0, 1.0)]
        assert pair.first.hold()
        assert pair.first.may_act()
        pair.clock.sleep(2.0)


def test_a_machine_that_slept_may_not_act_by_its_monotonic_clock(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = pair.clock.wall()
    monkeypatch.setattr(pair.clock, "wall", lambda: now_s + 3600.0)
    assert not pair.first.may_act()


def test_a_renewal_whose_answer_is_lost_counts_from_the_next_one(pair: Pair) -> None:
    pair.clock.sleep(RENEW_S)
    pair.api.is_lost = [True]
    with pytest.raises(ApiUnavailable):
        pair.first.hold()
    pair.clock.sleep(3.0)
    pair.api.requests.clear()
    assert pair.first.hold()
    assert pair.api.requests == ["PATCH", "GET", "PATCH"], "our own write was the other one"
    assert pair.first.may_act()


def test_an_edit_of_the_lease_by_a_user_does_not_cost_the_lead(pair: Pair) -> None:
    version = pair.lease["metadata"]["resourceVersion"]
    pair.server.answer("PATCH", {"metadata": {"resourceVersion": version, "annotations": {"a": "b"}}})
    pair.clock.sleep(RENEW_S)
    assert pair.first.hold()


def test_a_lease_that_was_deleted_is_not_made_again_while_who_had_it_may_act(pair: Pair) -> None:
    pair.second.hold()
    pair.server.lease = None
    pair.clock.sleep(RENEW_S - 1.0)
    assert not pair.second.hold()
    assert pair.first.may_act()
    pair.clock.sleep(LEASE_S)
    assert not pair.first.may_act()
    assert pair.second.hold()


PERIOD = st.floats(0.05, 6.0)
DELAY = st.one_of(st.just((0.0, 0.0)), st.tuples(st.floats(0.0, ATTEMPT_S), st.floats(0.0, ATTEMPT_S)))
HAPPENING = st.sampled_from(["nothing", "nothing", "nothing", "lost", "away", "release", "slept"])


def apart(common: FakeClock, server: LeaseServer, name: str, offset_s: float) -> tuple[LeaseLeadership, LeaseApi]:
    """A controller whose clocks have their own zero, and go as fast as the common one."""
    own: Any = SimpleNamespace(random=common.random, wall=lambda: common.wall() + offset_s)
    own.monotonic = lambda: common.monotonic() + abs(offset_s)
    leadership, api = one(own, server, name)
    api.clock = common
    return leadership, api


@given(
    offsets=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=4),
    steps=st.lists(st.tuples(st.integers(0, 3), PERIOD, DELAY, HAPPENING), min_size=5, max_size=120),
)
def test_never_two_may_act_at_once(offsets: list[float], steps: list[Any]) -> None:
    common, server = FakeClock(), LeaseServer()
    controllers = [apart(common, server, f"c{number}", offset_s) for number, offset_s in enumerate(offsets)]

    def check() -> None:
        assert sum(leadership.may_act() for leadership, _ in controllers) <= 1

    def watch(at_s: float) -> None:
        check()
        if at_s > 0:
            common.after(0.5, lambda: watch(at_s - 0.5))

    watch(sum(period + sum(delay) for _, period, delay, _ in steps))  # also while a request is under way
    for which, period_s, delay, happens in steps:
        common.sleep(period_s)
        leadership, api = controllers[which % len(controllers)]
        api.delays, api.is_lost, api.is_away = [delay], [happens == "lost"], happens == "away"
        if happens == "slept":
            common.sleep(LEASE_S * 2)
        with contextlib.suppress(ApiUnavailable):
            (leadership.release if happens == "release" else leadership.hold)()
        check()


def test_in_the_end_one_process_leads() -> None:
    clock, server = FakeClock(), LeaseServer()
    controllers = [one(clock, server, f"c{number}")[0] for number in range(3)]
    for _ in range(100):
        clock.sleep(0.5)
        for each in controllers:
            each.hold()
    assert sum(each.may_act() for each in controllers) == 1
