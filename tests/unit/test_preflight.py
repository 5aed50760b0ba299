"""What would make a run fail is found before the first effect, and each problem says what to do about it."""

from __future__ import annotations

import pytest

from driver_manager.domain.model import Loader, Policy
from driver_manager.domain.preflight import problems
from tests.fakes.builders import PROFILE, host, source

MANAGER = Policy(loader=Loader.MANAGER)


@pytest.mark.parametrize("policy", [Policy(), Policy(deadline_s=360.0)])
def test_a_run_that_can_succeed_has_no_problem(policy: Policy) -> None:
    assert problems(host(), PROFILE, policy) == ()
    assert problems(host(source=source()), PROFILE, MANAGER) == ()


def test_a_deadline_that_cannot_hold_its_waits_names_both_figures() -> None:
    (problem,) = problems(host(), PROFILE, Policy(deadline_s=359.9))
    assert "359.9 s" in problem.what
    assert "360 s" in problem.what
    assert "RECONCILE_DEADLINE" in problem.remedy


def test_a_manager_without_a_root_is_told_to_set_one() -> None:
    (problem,) = problems(host(), PROFILE, MANAGER)
    assert "DRIVER_ROOT" in problem.remedy


def test_the_problem_of_a_root_is_passed_on_with_its_remedy() -> None:
    (problem,) = problems(host(source=source(problem="built for 5.15", remedy="build it")), PROFILE, MANAGER)
    assert (problem.what, problem.remedy) == ("built for 5.15", "build it")


def test_a_bad_root_does_not_matter_where_the_container_loads() -> None:
    assert problems(host(source=source(problem="built for 5.15")), PROFILE, Policy()) == ()


def test_every_conflicting_module_is_a_problem_of_its_own() -> None:
    found = problems(host(conflicting=("nouveau", "other")), PROFILE, Policy(deadline_s=1.0))
    assert [part for problem in found for part in ("nouveau", "other") if part in problem.what] == ["nouveau", "other"]
    assert len(found) == 3
    assert all(problem.remedy for problem in found)
