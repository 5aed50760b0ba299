"""What docs/ takes from the code is what the code says, and the pictures leave nothing out."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest
from msgspec.structs import asdict

from driver_manager.domain import settings
from driver_manager.domain.events import EVENTS
from driver_manager.domain.fleet import waves as holds
from driver_manager.domain.fleet.advance import OUTLOOK_GUARDS
from driver_manager.domain.fleet.nodes import FOREIGN, JUDGE_CASES, PHASE_CASES, UNFIT
from driver_manager.domain.fleet.spec import UpgradeState
from driver_manager.domain.fleet.state import NodePhase, Phase
from driver_manager.domain.health.watch import HealthState, MarkChange
from driver_manager.domain.profile import HostPaths, OwnFile, Strategy
from driver_manager.domain.reboot.decision import ASKS, GUARDS, RebootAct
from driver_manager.domain.swap.steps import AnyStep, Decision
from driver_manager.profiles import builtin
from tests.support.docs import fleet_picture, health_picture, plan_picture, profile_keys, reboot_picture, reference
from tests.support.docs.markdown import DOCS, Drift, check, with_block
from tests.support.docs.pictures import pages


@pytest.mark.shares(3)
@pytest.mark.parametrize(
    "make", [reference.pages, pytest.param(pages, marks=pytest.mark.submission)], ids=["reference", "pictures"]
)
def test_the_pages_say_what_the_code_says(make: typing.Callable[[], typing.Mapping[Path, str]]) -> None:
    check(make())


def test_a_page_that_says_something_else_or_lacks_the_marks_is_an_error() -> None:
    with pytest.raises(Drift, match=r"docs/reference\.md"):
        check({DOCS / "reference.md": "x"})
    with pytest.raises(Drift, match="lacks the marks"):
        with_block("# Page\n", "scripts/reference", "x")


def test_steps_in_an_order_that_no_plan_may_have_are_noticed() -> None:
    plans: list[tuple[str, ...]] = [("TakeNode", "UnloadModules"), ("UnloadModules", "TakeNode")]
    with pytest.raises(ValueError, match="contradict each other about TakeNode, UnloadModules"):
        plan_picture.merged(Strategy.IN_PLACE, Decision.REPLACE, plans)


@pytest.mark.submission
def test_the_order_of_steps_is_kept_by_every_plan() -> None:
    profiles = {profile.strategy: profile for profile in plan_picture.DRAWN}
    for order in plan_picture.orders():
        for found in plan_picture.sequences(profiles[order.strategy])[order.decision]:
            assert list(found) == [name for name in order.steps if name in found]
            assert not found or order.always <= set(found)


@pytest.mark.submission
def test_the_pictures_have_every_step_state_guard_and_act() -> None:
    drawn = {step for order in plan_picture.orders() for name in order.steps for step in re.findall(r"[A-Z]\w+", name)}
    assert drawn == {kind.__name__ for kind in typing.get_args(AnyStep)}
    assert {order.decision for order in plan_picture.orders()} == set(Decision)
    assert set(health_picture.acts()) == set(HealthState)
    assert set().union(*health_picture.acts().values()) == set(MarkChange)
    by_guard = reboot_picture.seen().by_guard
    assert len(by_guard) == len(GUARDS)
    assert set().union(*by_guard.values()) == set(RebootAct)
    names = set(re.findall(r"^    (\w+): ", reboot_picture.picture(), re.MULTILINE))
    assert names == {act.name.lower() for act in set(RebootAct) - ASKS}


@pytest.mark.submission
def test_the_tables_of_the_rollout_have_every_case_guard_place_and_phase() -> None:
    seen = fleet_picture.seen()
    asked = (PHASE_CASES, JUDGE_CASES, (*FOREIGN, *UNFIT), holds.HOLD_GUARDS, OUTLOOK_GUARDS)
    tables = (seen.places, seen.cases, seen.obstacles, seen.holds, seen.phases)
    assert [len(found) for found in tables] == [len(guards) for guards in asked]
    assert {place for found in seen.places.values() for place in found} == {place.value for place in NodePhase}
    phases = {result.split(":")[0] for found in seen.phases.values() for result in found}
    assert phases == {phase.value for phase in Phase}
    words = {state.value for state in UpgradeState}
    assert {word for found in seen.followers.values() for word in found} - {fleet_picture.NONE} == words


def test_the_reference_has_every_option_event_key_and_path() -> None:
    text = reference.pages()[DOCS / "reference.md"]
    declared = [setting for _, group in settings.HEADINGS for setting in group]
    assert not [one for one in declared if f"`{one.env}`" not in text]
    typed = [one for one in declared if one.env not in settings.ONLY_VARIABLES]
    assert not [one for one in typed if f"`{one.flag}`" not in text]
    assert not [reason for reason in EVENTS if f"`{reason}`" not in text]
    derived = {name for name, value in vars(HostPaths).items() if isinstance(value, property | OwnFile)}
    assert set(reference.DERIVED) == derived
    for profile in builtin().values():
        words = [*asdict(profile.keys).values(), *(getattr(profile.paths, name) for name in derived)]
        assert not [word for word in words if word and f"`{word}`" not in text]
    assert [one.env for one in declared if not reference.takers(one)] == []


def test_every_key_of_a_profile_has_a_meaning_and_no_meaning_is_left_over() -> None:
    assert {key.path for key in profile_keys.every_key()} == set(profile_keys.MEANINGS)
