"""Mutants of the preflight for a kernel that does not run yet."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

KERNEL = "unit/cli/test_preflight_kernel.py::"

KERNEL_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "unknown-kernel-passes",
        "a check of the next kernel does not pass if its result is unknown",
        "cli/by_hand.py",
        "[check for check in decisive if not check.ok]",
        "[check for check in decisive if check.ok is False]",
        (KERNEL + "test_what_cannot_be_determined_is_no_pass",),
    ),
    Mutant(
        "symbols-of-the-running-kernel",
        "symbols are checked in the kernel that is given, not in the running one",
        "adapters/host/modules.py",
        "        if self._other is not None:\n            return None",
        "        if False:\n            return None",
        (KERNEL + "test_a_symbol_that_the_next_kernel_lacks_does_not_fit",),
    ),
    Mutant(
        "checksums-ignored",
        "a module with a symbol whose checksum differs does not fit that kernel",
        "adapters/host/modules.py",
        "            return all(same) if same else None",
        "            return True",
        (KERNEL + "test_a_checksum_that_differs_does_not_fit",),
    ),
)
