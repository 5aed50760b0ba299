"""What a mutant replaces is in the code as it is: seen in the quick run, before the long one tries to kill it."""

from __future__ import annotations

from pathlib import Path

from tests.assurance.mutants.catalogue import MUTANTS
from tests.assurance.mutants.line_mutants import EQUIVALENTS, every_line_mutant
from tests.assurance.mutants.mutant import NoLongerAppliesError

CHECKOUT = Path(__file__).parents[3]


def test_every_mutant_can_still_be_made() -> None:
    gone = list[str]()
    for mutant in MUTANTS.values():
        try:
            mutant.mutated(CHECKOUT)
        except NoLongerAppliesError as error:
            gone.append(str(error))
    assert gone == []


def test_every_mutant_names_a_promise_and_its_tests() -> None:
    for mutant in MUTANTS.values():
        assert mutant.breaks, f"{mutant.name} breaks no promise"
        assert all(mutant.tests or [""]), f"{mutant.name} names no test"
        assert mutant.search != mutant.replace, f"{mutant.name} changes nothing"


def test_every_line_that_is_declared_equivalent_is_there_and_has_a_reason() -> None:
    made = {one.key() for path, _, _ in EQUIVALENTS for one in every_line_mutant(CHECKOUT, path)}
    assert [key for key, reason in EQUIVALENTS.items() if key not in made or not reason] == []
