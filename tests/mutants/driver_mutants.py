"""Mutants of how a driver is loaded and unloaded, and of what is known before it is."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DRIVER_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "hung-exit-is-gone",
        "a module whose exit function does not return is not taken for unloaded",
        "adapters/host/modules/kmod.py",
        '    while _is_going(sys_root / "module" / name):',
        '    while _is_going(sys_root / "module" / name) and False:',
        ("unit/adapters/test_kmod.py::test_a_module_whose_exit_does_not_return_is_stuck_and_not_gone",),
    ),
    Mutant(
        "stuck-driver-loaded-over",
        "nothing is loaded over a module that the kernel is still unloading",
        "domain/swap/loading.py",
        "    if now.host.leaving:",
        "    if False:",
        ("unit/swap/test_reconcile_stuck.py::test_the_next_run_says_so_again_and_touches_nothing",),
    ),
    Mutant(
        "stuck-driver-given-back",
        "a node whose driver is stuck while unloading stays paused",
        "core/swap/settling.py",
        "        if self._is_driver_stuck:",
        "        if False:",
        (
            "unit/swap/test_reconcile_stuck.py"
            "::test_the_node_is_held_and_the_message_says_that_only_a_reboot_helps",
        ),
    ),
)
