"""Mutants of how a driver is loaded and unloaded, and of what is known before it is."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

STUCK = "unit/swap/test_reconcile_properties.py::"
LOAD_AT_BOOT = "unit/swap/test_executor_reboot.py::"
REBOOT_HOST = "unit/adapters/test_reboot_host.py::"
PLANS = "unit/swap/test_plans.py"
TREE = "unit/adapters/test_kmod.py::"
WISHES = "unit/swap/test_executor_reboot.py::"
SEES_THE_ROOT = "unit/swap/test_executor.py::test_a_pod_is_named_that_still_sees_the_root_after_the_unmount"

DRIVER_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "hung-module-is-unloaded",
        "a module whose exit function does not return does not count as unloaded",
        "adapters/host/modules.py",
        '    while _is_going(sys_root / "module" / name):',
        '    while _is_going(sys_root / "module" / name) and False:',
        ("unit/adapters/test_kmod.py::test_a_module_whose_exit_does_not_return_is_stuck_and_not_gone",),
    ),
    Mutant(
        "load-during-a-stuck-unload",
        "nothing is loaded while the kernel is still unloading a module",
        "domain/swap/building.py",
        "    if situation.host.leaving:",
        "    if False:",
        (STUCK + "test_the_node_is_held_and_touched_no_more_until_a_reboot_after_which_all_is_as_undisturbed",),
    ),
    Mutant(
        "hosts-own-driver-rebooted",
        "a host with its own driver is not rebooted for another one",
        "domain/swap/planner.py",
        "    if _stands_down(situation):\n        return _stand_down(situation)\n    if situation.profile.strategy",
        "    if situation.profile.strategy",
        (WISHES + "test_a_hosts_own_driver_asks_for_no_reboot_at_any_boot",),
    ),
    Mutant(
        "reboot-requested-again",
        "a reboot that did not help is not requested again",
        "domain/swap/planner.py",
        "    if _has_rebooted_for_it(situation):",
        "    if False:",
        (
            WISHES + "test_a_reboot_after_which_another_driver_is_loaded_again_is_not_asked_for_again",
            WISHES + "test_a_forced_reinstall_asks_for_one_reboot_and_is_done_after_it",
        ),
    ),
    Mutant(
        "reboot-wish-never-ends",
        "a reboot for a driver can be requested again after its request was withdrawn",
        "domain/swap/planner.py",
        "(*clear, *_forget_wish(situation), *back))",
        "(*clear, *back))",
        (WISHES + "test_a_wish_that_was_given_up_is_forgotten",),
    ),
    Mutant(
        "load-at-boot-without-a-journal",
        "two runs never load a driver at the same time, even one that only a reboot changes",
        "domain/swap/planner.py",
        "    if not any(isinstance(step, LoadModules) for step in work):",
        "    if True:",
        (
            LOAD_AT_BOOT + "test_a_second_run_is_refused_at_every_moment_from_the_first_patch_to_the_last",
            LOAD_AT_BOOT + "test_an_undisturbed_run_loads_inside_the_fence_records_and_leaves_the_node_as_it_was",
        ),
    ),
    Mutant(
        "half-loaded-driver-rebooted",
        "a load at boot that was killed is completed by the next run, without a reboot",
        "domain/swap/planner.py",
        "    if is_half_loaded or not",
        "    if not",
        (LOAD_AT_BOOT + "test_killed_at_any_effect_the_next_run_ends_like_an_undisturbed_one",),
    ),
    Mutant(
        "node-left-taken-for-a-reboot",
        "a node that an earlier run left taken is released before a run waits for its reboot",
        "domain/swap/planner.py",
        "(request, *back, hold)",
        "(request, hold)",
        (PLANS,),
    ),
    Mutant(
        "dangling-link-handed-to-modprobe",
        "a module that modprobe cannot open through its link is loaded by its real path",
        "adapters/host/modules.py",
        "if not all(map(self._is_seen_by_tools, order.values())) else ()",
        "if False else ()",
        (TREE + "test_a_link_that_leads_elsewhere_in_this_container_means_file_by_file_each_after_what_it_needs",),
    ),
    Mutant(
        "install-line-not-seen",
        "an install line that modprobe would run instead of a load is found before anything is changed",
        "adapters/host/modules.py",
        "    if commands:",
        "    if False:",
        ("unit/adapters/test_kmod.py::test_what_modprobe_would_refuse_is_told_before",),
    ),
    Mutant(
        "lost-parameters-not-reported",
        "a run reports parameters of the old driver that the new one does not have",
        "core/swap/driver.py",
        "        if lost:",
        "        if False:",
        ("unit/swap/test_executor.py::test_parameters_that_the_new_driver_does_not_have_are_told",),
    ),
    Mutant(
        "old-root-looked-for-before-the-unmount",
        "a pod that the unmount reaches is not asked to be restarted",
        "core/swap/driver.py",
        "if uid in after and uid != obs.me.pod_uid)",
        "if uid != obs.me.pod_uid)",
        (SEES_THE_ROOT,),
    ),
    Mutant(
        "own-pod-still-sees-the-old-root",
        "no run asks for a restart of its own pod",
        "core/swap/driver.py",
        "if uid in after and uid != obs.me.pod_uid)",
        "if uid in after)",
        (SEES_THE_ROOT,),
    ),
    Mutant(
        "number-of-a-file-system-used-again",
        "a later file system with the old one's number is not taken for the old driver root",
        "core/swap/driver.py",
        "for pod_uid in (uid for uid in before if",
        "for pod_uid in (uid for uid in after if",
        (SEES_THE_ROOT,),
    ),
    Mutant(
        "user-space-nodes-waited-for",
        "a run does not wait for device nodes that only user space creates",
        "domain/profile.py",
        "        return self.paths.device_nodes if self.paths.device_nodes_made_by is NodeMaker.MODULE else ()",
        "        return self.paths.device_nodes",
        ("unit/adapters/test_host_system.py::test_nodes_that_user_space_makes_are_not_waited_for",),
    ),
    Mutant(
        "firmware-of-the-root-counts",
        "firmware that only the driver root has is reported, because the kernel does not look there",
        "adapters/host/modules.py",
        "        folders = firmware_search_path(self._sys_root, self.kernel, self._firmware_folder)\n        own",
        '        folders = (f"{root}/lib/firmware", *firmware_search_path(self._sys_root, self.kernel, ""))\n'
        "        own",
        ("unit/adapters/test_kmod.py::test_firmware_of_the_driver_root_is_not_found_by_the_kernel",),
    ),
    Mutant(
        "reboot-command-missing",
        "no reboot is granted if the host does not have the reboot command",
        "adapters/host/reboot.py",
        '        return "" if self._has_program() else self._no_program()',
        '        return ""',
        (REBOOT_HOST + "test_a_host_without_the_program_is_named_before_a_reboot_is_granted",),
    ),
    Mutant(
        "two-digests-unnoticed",
        "a run warns if the digests of the init container and of the driver container differ",
        "core/swap/run.py",
        'return own.main_digest if own is not None and is_init_container and own.main_digest != wanted else ""',
        'return ""',
        ("unit/swap/test_observe.py::test_the_digest_that_the_driver_container_records_is_known_where_it_is_another",),
    ),
    Mutant(
        "stuck-driver-released",
        "a node whose driver is stuck while unloading stays paused",
        "core/swap/node.py",
        "        if self._driver is DriverNow.STUCK:",
        "        if False:",
        (STUCK + "test_the_node_is_held_and_touched_no_more_until_a_reboot_after_which_all_is_as_undisturbed",),
    ),
)
