"""What a mutant replaces is in the code as it is: seen in the quick run, before the long one tries to kill it."""

from __future__ import annotations

from pathlib import Path

from tests.assurance.mutants.catalogue import MUTANTS
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


def test_one_that_cannot_is_named() -> None:
    stale = Mutant("stale", "", "__init__.py", "no such line", "", ())
    assert gone(stale) == "stale: what it replaces is 0 times in driver_manager/__init__.py"
