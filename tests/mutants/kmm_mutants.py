"""Mutants of what is promised where Kernel Module Management (KMM) loads the driver."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RUNS = "unit/swap/test_reconcile_kmm.py"
PLANS = "unit/swap/test_planner_properties.py::test_any_plan_leaves_the_modules_to_kmm_where_kmm_loads"

KMM_MUTANTS = (
    Mutant(
        "released-while-kmm-changes",
        "a node is not given back while KMM is still changing modules",
        "core/swap/settling.py",
        "            if why := self._why_kmm() or self._why_hold(journal):\n",
        "            if why := self._why_hold(journal):\n",
        (f"{RUNS}::test_an_unload_that_hangs_holds_the_node_and_names_the_worker",),
    ),
    Mutant(
        "kmm-label-believed",
        "KMM's label is not believed without the kernel",
        "core/swap/kmm_handoff.py",
        "            if self._is_in_kernel(module, deadline):\n",
        "            if module.is_ready(node.labels) or self._is_in_kernel(module, deadline):\n",
        (f"{RUNS}::test_a_label_that_stays_stale_is_not_believed",),
    ),
    Mutant(
        "kmm-old-load-believed",
        "the driver that KMM was to replace is not taken for the new one",
        "core/swap/kmm_handoff.py",
        "        return not is_same_load or driver_version(loaded) != journal.driver.version\n",
        "        return True\n",
        (f"{RUNS}::test_a_version_that_is_shown_over_the_old_driver_is_not_believed",),
    ),
    Mutant(
        "kmm-asked-early",
        "KMM is asked only when nobody uses the driver any more",
        "domain/swap/kmm_rows.py",
        "        *before,\n        WaitForDevice(now.policy.device_free_timeout_s),\n        *_change(now, module),\n",
        "        *before,\n        *_change(now, module),\n        WaitForDevice(now.policy.device_free_timeout_s),\n",
        (f"{RUNS}::test_a_failure_before_kmm_is_asked_gives_everything_back",),
    ),
    Mutant(
        "modules-unloaded-beside-kmm",
        "no module is removed by a run whose driver KMM loads, nor noted as removed",
        "domain/swap/kmm_rows.py",
        "    now = _without_conflicting(now)\n",
        "",
        (PLANS,),
    ),
    Mutant(
        "cordoned-for-kmm",
        "a node is not cordoned before KMM is done: KMM unloads there at once",
        "domain/swap/node_taking.py",
        "not is_managed(now) and now.policy.kmm is None\n",
        "not is_managed(now)\n",
        (f"{RUNS}::test_kmm_changes_the_driver_of_a_node_that_is_cleared",),
    ),
    Mutant(
        "kmm-unloads-what-must-stay",
        "KMM is not asked to change a driver that must never be unloaded",
        "domain/swap/kmm_rows.py",
        "    if now.profile.strategy is Strategy.REBOOT:\n",
        "    if not module.version:\n",
        (f"{RUNS}::test_a_driver_that_must_never_be_unloaded_is_not_left_to_kmm",),
    ),
    Mutant(
        "resumed-kmm-unverified",
        "a run after a killed one verifies what KMM has loaded before it gives the node back",
        "domain/swap/kmm_rows.py",
        "(AwaitKmm(module),) if now.obs.journal is not None else ()\n",
        "()\n",
        (f"{RUNS}::test_what_a_killed_run_has_asked_for_is_verified_by_the_next",),
    ),
)
