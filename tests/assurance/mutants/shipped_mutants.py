"""Mutants of runs on a host that ships and loads its driver itself (`DRIVER_LOAD=none`)."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

SHIPPED = "unit/swap/test_shipped.py::"
PLANS = "unit/swap/test_plans.py"

SHIPPED_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "hosts-own-driver-unloaded",
        "with DRIVER_LOAD=none no module is unloaded and no node is taken",
        "domain/swap/planner.py",
        "    if situation.policy.loader is Loader.NONE:\n"
        "        return _with_no_request(situation, _verify(situation))\n",
        "",
        (SHIPPED + "test_a_run_changes_nothing_but_what_the_node_shows",),
    ),
    Mutant(
        "module-loaded-on-an-immutable-host",
        "with DRIVER_LOAD=none what an earlier run unloaded is not loaded again",
        "core/swap/node.py",
        "if self._may_load and not self._has_new_driver(journal)",
        "if not self._has_new_driver(journal)",
        (SHIPPED + "test_a_failed_run_loads_nothing_again_that_an_earlier_one_unloaded",),
    ),
    Mutant(
        "pod-digest-expected-of-host",
        "a digest that is derived from a pod's spec is not expected of the host",
        "domain/swap/preflight.py",
        "    if situation.obs.digest_source == FROM_ENVIRONMENT:",
        "    if situation.obs.digest:",
        (PLANS,),
    ),
    Mutant(
        "reboot-for-an-image-without-the-driver",
        "no reboot is required if the host's disk does not have the wanted driver",
        "domain/swap/preflight.py",
        "has_wanted=on_disk == wanted if on_disk else None)",
        "has_wanted=True)",
        (PLANS,),
    ),
)
