"""All mutants, by name."""

from __future__ import annotations

from tests.mutants.host_mutants import HOST_MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.node_mutants import NODE_MUTANTS

MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in (*NODE_MUTANTS, *HOST_MUTANTS)}
assert len(MUTANTS) == len(NODE_MUTANTS) + len(HOST_MUTANTS), "two mutants have one name"
