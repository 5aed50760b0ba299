"""Mutants of staged drivers: how one is filled, and how it gets to the root and back."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

SLOTS = "unit/adapters/test_host_slots.py::"
STAGING = "unit/adapters/test_host_slots.py::"
SWAP = "unit/swap/test_staged_swap.py::"

STAGED_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "slot-filled-in-place",
        "a staged driver is either complete or absent",
        "adapters/host/slots.py",
        '            new = f".{name}.{os.urandom(6).hex()}"\n',
        "            new = name\n",
        (STAGING + "test_killed_anywhere_the_slot_is_not_there_or_complete_and_the_next_one_ends_alike",),
    ),
    Mutant(
        "previous-driver-given-up",
        "the driver to go back to stays the previous one when a third driver comes",
        "core/swap/driver.py",
        "                if step.brings_back and self.old_source is not None:",
        "                if False:",
        (SWAP + "test_a_third_driver_after_a_killed_swap_leaves_the_first_as_the_way_back",),
    ),
    Mutant(
        "root-not-restored",
        "a rollback brings the old driver to the driver root again",
        "core/swap/driver.py",
        "                self._slots.go_back()\n",
        "",
        (SWAP + "test_a_driver_that_does_not_work_takes_the_root_back_too",),
    ),
    Mutant(
        "slot-of-another-kernel-loaded",
        "a staged driver for another kernel is not used until it is staged again",
        "domain/host.py",
        "        if self.kernel != kernel:",
        "        if False:",
        (SLOTS + "test_the_wanted_driver_is_found_with_its_problem",),
    ),
    Mutant(
        "root-replaced-in-two-steps",
        "the driver root is complete whenever a run is killed",
        "adapters/host/slots.py",
        "        exchange(folder, name, folder, other)\n    except",
        '        os.rename(other, f"{other}.old", src_dir_fd=folder, dst_dir_fd=folder)\n'
        "        os.rename(name, other, src_dir_fd=folder, dst_dir_fd=folder)\n"
        '        os.rename(f"{other}.old", name, src_dir_fd=folder, dst_dir_fd=folder)\n'
        "    except",
        (SLOTS + "test_killed_anywhere_the_root_is_whole_and_the_next_run_ends_alike",),
    ),
    Mutant(
        "slot-with-a-mount-removed",
        "the files of a mount in a staged driver are not removed with it",
        "adapters/host/slots.py",
        "    if mounts:\n        raise OSError(errno.EBUSY",
        "    if False:\n        raise OSError(errno.EBUSY",
        (STAGING + "test_a_tree_that_something_is_mounted_in_is_not_removed",),
    ),
    Mutant(
        "foreign-folder-removed",
        "a folder that `stage` did not make is not replaced",
        "adapters/host/slots.py",
        "        if before is None and here.exists()",
        "        if False and here.exists()",
        (STAGING + "test_what_stage_did_not_make_is_not_removed",),
    ),
    Mutant(
        "another-driver-brought",
        "a driver that was staged after the plan was made is not brought to the driver root",
        "adapters/host/slots.py",
        "if found is None or found.digest != digest or not os.path.samestat(before, after):",
        "if False:",
        (SLOTS + "test_what_was_staged_in_between_is_not_brought",),
    ),
    Mutant(
        "replaced-files-are-the-old-driver",
        "files that were replaced in the driver root are not recorded as the driver that is loaded",
        "domain/swap/building.py",
        "    if not is_known:",
        "    if False:",
        (SWAP + "test_files_that_were_replaced_in_a_folder_are_not_recorded_as_the_driver_that_is_loaded",),
    ),
)
