"""Mutants of how long users are without their device, and of what is promised to keep that short."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

RECONCILE = "unit/swap/test_reconcile_window.py"

WINDOW_MUTANTS = (
    Mutant(
        "window-starts-again",
        "the run after a killed one continues its window",
        "core/swap/run.py",
        "log.resumes(before, clock.wall(), clock.monotonic())",
        "log.disturbs(clock.wall(), clock.monotonic())",
        (f"{RECONCILE}::test_the_run_after_one_that_was_killed_goes_on_with_its_window",),
    ),
    Mutant(
        "window-of-a-refused-patch",
        "a window starts with the patch that takes the node, not with one that was refused",
        "core/swap/node.py",
        "            ports.log.disturbed_nothing()\n",
        "",
        (f"{RECONCILE}::test_a_node_that_changes_under_the_first_patch_counts_from_the_second",),
    ),
    Mutant(
        "container-serves-at-once",
        "a window stays open until the container's driver is ready",
        "core/swap/node.py",
        "self._log.is_open and self._serves()",
        "self._log.is_open",
        (f"{RECONCILE}::test_a_container_loads_after_the_release_so_it_stays_open",),
    ),
    Mutant(
        "nothing-read-ahead",
        "files that a load needs are read before any pod has to leave",
        "core/swap/run.py",
        "            self._warm(now, decided)\n",
        "",
        (f"{RECONCILE}::test_files_are_read_ahead_before_anybody_has_to_leave",),
    ),
    Mutant(
        "evictions-in-a-row",
        "evictions are requested in parallel",
        "adapters/kube/node.py",
        "            if crew.under_way == at_once:\n",
        "            if crew.under_way:\n",
        ("unit/adapters/test_kube_node.py::test_so_many_are_under_way_at_once_and_no_more",),
    ),
    Mutant(
        "evicts-after-the-end",
        "an eviction is not repeated after its run has stopped",
        "adapters/kube/node.py",
        "        self._clock.end()\n",
        "",
        ("unit/adapters/test_kube_node.py::test_nobody_repeats_a_request_once_the_caller_has_stopped",),
    ),
)
