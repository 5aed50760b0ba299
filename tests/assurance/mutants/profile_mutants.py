"""Mutants of what a profile says of its driver: order, conflicts, gates, pairs of versions; and of a file's reading."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

CONFLICTING = "unit/swap/test_executor.py::"
GATES = "unit/pods/test_labels.py::"
ORDER = "unit/adapters/test_load_order.py::"

PROFILE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "unloaded-in-load-order",
        "modules that do not depend on each other are unloaded in the reverse of the profile's load order",
        "domain/profile.py",
        "if name not in later[:-1]]",
        "if name not in later[1:]]",
        (
            ORDER + "test_modules_that_nothing_else_orders_are_loaded_in_the_profiles_order_and_unloaded_backwards",
            "unit/swap/test_plans.py::test_any_plan_is_sound",
        ),
    ),
    Mutant(
        "conflicting-module-lost",
        "a conflicting module is loaded again if the driver does not load",
        "core/swap/node.py",
        "self._to_reload = journal.removed if",
        "self._to_reload = () if",
        (
            CONFLICTING + "test_a_driver_that_does_not_load_on_a_fresh_node_brings_it_back",
            CONFLICTING + "test_a_run_killed_after_it_went_and_followed_by_one_that_cannot_load_brings_it_back",
        ),
    ),
    Mutant(
        "absent-gate-left-behind",
        "a label that was created to pause an operand is removed with the release",
        "domain/swap/node_patches.py",
        "    restored |= label_rules.gates_restored(node.labels, journal.gates)\n",
        "",
        (GATES + "test_afterwards_the_one_that_was_absent_is_absent_again_and_the_shut_one_stays_shut",),
    ),
    Mutant(
        "gates-in-an-old-form",
        "a journal with created labels is refused by a version that would lose them",
        "domain/journal.py",
        "        body[FORM.key] = 2 if journal.gates else 1",
        "        body[FORM.key] = 1",
        (GATES + "test_an_older_manager_refuses_a_journal_with_gates_and_reads_any_other",),
    ),
    Mutant(
        "pair-by-reboot-unloaded",
        "a change of versions that needs a reboot is not made in place",
        "domain/observation.py",
        "for_this_change(obs.host, profile, policy)",
        "profile",
        ("unit/swap/test_plans.py",),
    ),
    Mutant(
        "only-the-first-mistake",
        "all mistakes in a profile file are reported at once",
        "profiles/__init__.py",
        "        return ProfileReading(None, tuple(reader.problems))",
        "        return ProfileReading(None, tuple(reader.problems[:1]))",
        ("unit/cli/test_profile_file.py::test_all_that_is_wrong_is_said_at_once",),
    ),
)
