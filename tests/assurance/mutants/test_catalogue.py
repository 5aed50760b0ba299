"""What a mutant replaces is in the code as it is: seen in the quick run, before the long one tries to kill it."""

from __future__ import annotations

from pathlib import Path

from tests.assurance.mutants.catalogue import MUTANTS
from tests.assurance.mutants.line_mutants import EQUIVALENTS, every_line_mutant
from tests.assurance.mutants.mutant import Mutant, NoLongerAppliesError

CHECKOUT = Path(__file__).parents[3]


def gone(mutant: Mutant) -> str:
    """Why the mutant can no longer be made, "" where it can."""
    try:
        mutant.mutated(CHECKOUT)
    except NoLongerAppliesError as error:
        return str(error)
    return ""


def test_every_mutant_can_still_be_made() -> None:
    assert [why for why in map(gone, MUTANTS.values()) if why] == []


def test_every_mutant_names_a_promise_and_its_tests() -> None:
    faults = [
        f"{mutant.name}: {what}"
        for mutant in MUTANTS.values()
        for what, is_wrong in {
            "breaks no promise": not mutant.breaks,
            "names no test": not mutant.tests,
            "changes nothing": mutant.search == mutant.replace,
        }.items()
        if is_wrong
    ]
    assert faults == []


def test_every_line_that_is_declared_equivalent_is_there_and_has_a_reason() -> None:
    made = {one.key() for path, _, _ in EQUIVALENTS for one in every_line_mutant(CHECKOUT, path)}
    assert [key for key, reason in EQUIVALENTS.items() if key not in made or not reason] == []
