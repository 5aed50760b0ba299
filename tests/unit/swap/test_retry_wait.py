"""After a failure that nothing has changed since, a plan waits before it disturbs anybody; any change acts at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import host_record
from driver_manager.domain.deadline import Moment
from driver_manager.domain.errors import (
    ApiUnavailable,
    Conflict,
    DriverBusy,
    ManagerError,
    ModuleFailed,
    NodeMissing,
    OwnedElsewhere,
    PodsRemain,
    RebootRequired,
    StandingDown,
    Terminated,
)
from driver_manager.domain.host import UNREAD, Holder, ModuleFile, pod_blocker, process_blocker
from driver_manager.domain.journal import Owner
from driver_manager.domain.observation import EvictionRules, Observation, Policy, Situation
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.retry_wait import AFTER_FAILURE, FIRST_S, failure_to_record, wait_s, wish
from driver_manager.domain.swap.steps import AskOperator, Plan, PlanAgain, TakeNode, WaitAfterFailure
from tests.support.fakes.builders import (
    DRIVER,
    EXPORTER,
    LABELS,
    ME,
    NEW_DIGEST,
    PAUSED,
    PLUGIN,
    PROFILE,
    ROOT_MOUNT,
    driver_pod,
    failed_before,
    host,
    journal,
    key,
    node,
    observation,
    pod,
    source,
    workload,
)
from tests.support.fakes.plans import CONTAINER, MANAGER, TAKEN

KEYS = PROFILE.keys
MOST_S = CONTAINER.retry_wait_s
AT = Moment(1_000.0, 1_700_000_000.0)
TRAINER = Holder(4242, "trainer", "/dev/rbln0", "open", pod_uid="operand")
OPERAND = pod("operand", PLUGIN)


def seen(**fields: Any) -> Observation:
    return observation(**{"at": AT, **fields})


def situation(policy: Policy = CONTAINER, **fields: Any) -> Situation:
    return Situation.of(seen(**fields), PROFILE, policy)


def waiting(found: Plan) -> WaitAfterFailure | None:
    """The wait that a plan begins with."""
    first = found.steps[0] if found.steps else None
    if not isinstance(first, WaitAfterFailure):
        assert WaitAfterFailure not in [type(step) for step in found.steps]
        return None
    assert found.steps[1] == PlanAgain(AFTER_FAILURE)
    return first


def later(situation: Situation, seconds: float) -> Situation:
    at = Moment(situation.obs.at.monotonic_s + seconds, situation.obs.at.wall_s + seconds)
    return replace(situation, obs=replace(situation.obs, at=at))


# how long


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(1, 30.0), (2, 60.0), (3, 120.0), (6, 960.0), (7, 1800.0), (8, 1800.0), (9_999, 1800.0)]
)
def test_each_wait_is_twice_the_one_before_up_to_the_longest(attempts: int, seconds: float) -> None:
    assert wait_s(attempts, 1800.0) == seconds
    found = waiting(plan(failed_before(situation(), attempts=attempts)))
    assert found is not None
    assert (found.left_s, found.attempts) == (seconds, attempts)


@given(attempts=st.integers(1, 10_000), most_s=st.floats(0, 1e6))
def test_a_wait_is_bounded_and_never_shorter_than_the_one_before(attempts: int, most_s: float) -> None:
    assert 0 <= wait_s(attempts, most_s) <= wait_s(attempts + 1, most_s) <= most_s


def test_what_is_left_shrinks_with_time_and_then_the_run_goes_on() -> None:
    failed = failed_before(situation())
    for seconds, left in ((0.0, FIRST_S), (10.0, FIRST_S - 10.0), (FIRST_S - 0.5, 0.5)):
        found = waiting(plan(later(failed, seconds)))
        assert found is not None
        assert found.left_s == left
    assert waiting(plan(later(failed, FIRST_S))) is None
    assert waiting(plan(later(failed, -1.0))) is None, "a failure that is still to come is garbage"


def test_the_step_says_until_when_why_and_how_to_skip_it() -> None:
    error = DriverBusy("the device is still in use", "Stop it.")
    one = waiting(plan(failed_before(situation(), error)))
    assert one is not None
    assert one.describe() == (
        "wait until 22:13:50 UTC (30 s), before anything is changed, as the last run failed (exit 4: the device is "
        "still "
        "in use) and nothing has changed since; --retry-wait=0s (RETRY_WAIT) skips this"
    )
    many = waiting(plan(failed_before(situation(), error, attempts=3)))
    assert many is not None
    assert "as the last 3 runs failed" in many.describe()


@pytest.mark.parametrize(("most_s", "left_s"), [(0.0, None), (5.0, 5.0), (3_600.0, 30.0)])
def test_the_longest_wait_is_the_users_and_none_skips_it(most_s: float, left_s: float | None) -> None:
    found = waiting(plan(failed_before(situation(replace(CONTAINER, retry_wait_s=most_s)))))
    assert (found.left_s if found else None) == left_s


def test_a_run_that_was_let_go_does_not_wait_again() -> None:
    failed = failed_before(situation())
    assert waiting(plan(replace(failed, waited=frozenset({AFTER_FAILURE})))) is None


# who would be disturbed


@pytest.mark.parametrize(
    ("fields", "policy", "waits"),
    [
        ({}, CONTAINER, True),
        ({"host": host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,))}, CONTAINER, True),
        ({"node": node({}, unschedulable=True), "pods": (workload("w"),)}, Policy(eviction=EvictionRules(True)), True),
        ({"node": node({})}, CONTAINER, True),
        ({"node": node({}, unschedulable=True)}, CONTAINER, False),
        ({"host": host(digest=NEW_DIGEST)}, CONTAINER, False),
        ({"host": host(modules={}, digest=None, source=source())}, MANAGER, False),
        ({"node": node(TAKEN, unschedulable=True), "journal": journal()}, CONTAINER, False),
        (
            {
                "node": node(unschedulable=True),
                "journal": journal(labels={}, cordoned=True),
                "host": host(run_record=host_record.of(journal(record="boot-1:1:9:9"))),
            },
            CONTAINER,
            False,
        ),
        ({"node": node(unschedulable=True), "journal": journal(labels={}, cordoned=True)}, CONTAINER, True),
    ],
    ids=[
        "pause",
        "rebind",
        "evict",
        "cordon",
        "nobody-there",
        "current",
        "load-alone",
        "taken-already",
        "cordoned-already",
        "cordoned-by-the-nodes-word-alone",
    ],
)
def test_only_a_plan_that_would_disturb_somebody_waits(fields: dict[str, Any], policy: Policy, waits: bool) -> None:
    assert (waiting(plan(failed_before(situation(policy, **fields)))) is not None) is waits


def test_an_operator_is_not_asked_for_an_upgrade_before_the_wait_is_over() -> None:
    managed = node(annotations={KEYS.upgrade_enabled: "true"})
    now = failed_before(situation(node=managed, pods=(workload("w"),)))
    assert [type(step) for step in plan(now).steps][:3] == [WaitAfterFailure, PlanAgain, AskOperator]


# what is a change


def changed(situation: Situation, policy: Policy | None = None, **fields: Any) -> Situation:
    """The same failure, seen by a run for which something else holds."""
    after = Situation.of(replace(situation.obs, **fields), PROFILE, policy or situation.policy)
    return replace(after, host=replace(after.host, failure=situation.host.failure))


SAME: dict[str, dict[str, Any]] = {
    "nothing": {},
    "another-moment": {"at": Moment(1_010.0, 5.0)},
    "another-process": {"me": replace(ME, pid=77, start_ticks=5)},
    "by-hand": {"me": Owner(pid=77), "own_pod": None},
    "users-pods-came": {
        "pods": replace(observation().pods, pods=(*observation().pods.pods, workload("new", deleting=True)))
    },
    "a-label-of-others": {"node": node({**LABELS, "zone": "b"})},
    "an-annotation-of-others": {"node": node(annotations={"example.com/x": "y"})},
    "the-operators-state": {"node": node({**LABELS, KEYS.upgrade_state: "upgrade-failed"})},
    "an-older-version": {"node": node(resource_version="5")},
}
CHANGED: dict[str, dict[str, Any]] = {
    "digest": {"digest": "a" * 64},
    "new-pod": {"me": Owner("rbln-system/driver-a", "driver-a2")},
    "boot": {"host": host(boot_id="boot-2")},
    "operators-annotation-set": {"node": node(annotations={KEYS.upgrade_enabled: "true"})},
    "deploy-label-off": {"node": node({**LABELS, EXPORTER: "false"})},
    "deploy-label-gone": {"node": node({PLUGIN: "true", DRIVER: "true"})},
    "deploy-label-new": {"node": node({**LABELS, key("new"): "true"})},
    "drivers-label": {"node": node({**LABELS, DRIVER: "pre-installed"})},
    "skip": {"node": node({**LABELS, KEYS.skip: "false"})},
}


@pytest.mark.parametrize("fields", SAME.values(), ids=list(SAME))
def test_what_does_not_bear_on_the_failure_is_no_change(fields: dict[str, Any]) -> None:
    assert waiting(plan(changed(failed_before(situation()), **fields))) is not None


@pytest.mark.parametrize("fields", CHANGED.values(), ids=list(CHANGED))
def test_a_change_acts_at_once(fields: dict[str, Any]) -> None:
    found = plan(changed(failed_before(situation()), **fields))
    assert waiting(found) is None
    assert any(isinstance(step, TakeNode) for step in found.steps)


def test_an_operators_annotation_that_is_removed_acts_at_once() -> None:
    managed = failed_before(situation(node=node(annotations={KEYS.upgrade_enabled: "true"})))
    assert waiting(plan(managed)) is not None
    assert waiting(plan(changed(managed, node=node()))) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"force_reinstall": True},
        {"stop_host_services": True},
        {"eviction": EvictionRules(is_enabled=True)},
        {"eviction": EvictionRules(forces=True)},
        {"pod_termination_timeout_s": 400.0},
        {"device_free_timeout_s": 90.0},
        {"deadline_s": 3_600.0},
    ],
)
def test_another_setting_acts_at_once(settings: dict[str, Any]) -> None:
    policy = replace(CONTAINER, **settings)
    assert waiting(plan(changed(failed_before(situation()), policy))) is None
    assert waiting(plan(failed_before(situation(policy)))) is not None, "and is what is wanted from then on"


@pytest.mark.parametrize("settings", [{"take_over": True}, {"ignore_skip": True}, {"retry_wait_s": 900.0}])
def test_who_may_go_on_is_no_part_of_what_is_wanted(settings: dict[str, Any]) -> None:
    assert waiting(plan(changed(failed_before(situation()), replace(CONTAINER, **settings)))) is not None


def test_a_driver_file_that_was_replaced_acts_at_once() -> None:
    first = source()
    now = failed_before(situation(MANAGER, host=host(source=first)))
    assert waiting(plan(now)) is not None
    (file,) = first.modules
    repaired: ModuleFile = replace(file, stamp="1:2:3:4")
    assert waiting(plan(changed(now, host=host(source=replace(first, modules=(repaired,)))))) is None


def test_what_is_wanted_is_the_same_before_and_during_a_pause() -> None:
    labels = {PLUGIN: "true", EXPORTER: "a-custom-value-of-forty-five-characters-total", DRIVER: "true"}
    paused = {**labels, PLUGIN: PAUSED, EXPORTER: PAUSED}
    held = journal(labels={name: labels[name] for name in (PLUGIN, EXPORTER)})
    before = situation(node=node(labels))
    during = situation(node=node(paused, unschedulable=True), journal=held)
    assert wish(before) == wish(during)


# what stood in the way


@pytest.mark.parametrize(
    ("blockers", "holders", "pods", "waits"),
    [
        ((), (), (), True),
        ((pod_blocker("operand"),), (), (OPERAND,), True),
        ((pod_blocker("operand"),), (), (pod("other", PLUGIN),), False),
        ((pod_blocker("operand"), pod_blocker("gone")), (), (OPERAND,), True),
        ((process_blocker(4242, "trainer"),), (TRAINER,), (OPERAND,), True),
        ((process_blocker(4242, "trainer"),), (), (OPERAND,), False),
        ((process_blocker(4242, "trainer"),), (replace(TRAINER, process="other"),), (OPERAND,), False),
        ((process_blocker(4242, "trainer"),), (replace(TRAINER, how=UNREAD),), (OPERAND,), False),
        ((process_blocker(4242, "trainer"), pod_blocker("operand")), (), (OPERAND,), True),
    ],
)
def test_where_none_of_what_stood_in_the_way_is_there_any_more_the_run_goes_on(
    blockers: tuple[str, ...], holders: tuple[Holder, ...], pods: tuple[Any, ...], waits: bool
) -> None:
    error = DriverBusy("busy", "Stop it.")
    error.blockers = blockers
    now = failed_before(situation(holders=holders, pods=pods), error)
    assert (waiting(plan(now)) is not None) is waits


# what is noted


@pytest.mark.parametrize("kind", [ApiUnavailable, Conflict, NodeMissing, OwnedElsewhere, RebootRequired])
def test_an_end_that_says_nothing_about_the_next_run_is_not_noted(kind: type[ManagerError]) -> None:
    assert failure_to_record(situation(), kind("x", "y"), 5.0) is None


@pytest.mark.parametrize("kind", [StandingDown, Terminated])
def test_who_was_told_to_end_did_not_fail(kind: type[ManagerError]) -> None:
    assert failure_to_record(situation(), kind("x", "y"), 5.0) is None


@pytest.mark.parametrize("kind", [PodsRemain, DriverBusy, ModuleFailed])
def test_a_failure_is_noted_with_what_it_was_about(kind: type[ManagerError]) -> None:
    error = kind("why", "y")
    error.blockers = (pod_blocker("u"),)
    past = failure_to_record(situation(), error, 1_007.0)
    assert past is not None
    assert (past.boot_id, past.exit_code, past.what) == ("boot-1", int(kind.exit_code), "why")
    assert (past.failed_s, past.attempts, past.pod_uid, past.blockers) == (1_007.0, 1, ME.pod_uid, ("pod u",))


def test_the_same_end_counts_on_and_another_wish_begins_anew() -> None:
    error = ModuleFailed("why", "y")
    again = failure_to_record(failed_before(situation(), attempts=4), error, 0.0)
    other = failure_to_record(changed(failed_before(situation(), attempts=4), digest="a" * 64), error, 0.0)
    by_others = changed(failed_before(situation(), attempts=4), me=Owner("rbln-system/x", "x"), own_pod=driver_pod())
    new_pod = failure_to_record(by_others, error, 0.0)
    assert [one.attempts for one in (again, other, new_pod) if one is not None] == [5, 1, 5]
