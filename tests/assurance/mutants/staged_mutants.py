"""Mutants of staged drivers: how a slot is filled, how the root gets there and back, and which slots go."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

SLOTS = "unit/adapters/test_host_slots.py::"
STAGING = "unit/adapters/test_staging.py::"
SWAP = "unit/swap/test_staged_swap.py::"

STAGED_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "slot-filled-in-place",
        "a slot is either complete or absent",
        "adapters/host/slots.py",
        "        new = beside(name)\n",
        "        new = name\n",
        (STAGING + "test_killed_anywhere_the_slot_is_not_there_or_complete_and_the_next_one_ends_alike",),
    ),
    Mutant(
        "current-slot-removed",
        "neither the current nor the previous slot is removed",
        "domain/host.py",
        "if slot.name not in (current, previous)]",
        "if slot.name != current]",
        ("unit/domain/test_staged.py::test_whatever_there_is_the_current_one_and_the_one_before_stay",),
    ),
    Mutant(
        "root-not-restored",
        "a rollback points the driver root to the old slot again",
        "core/swap/driver.py",
        "                self._flip_back()\n",
        "",
        (SWAP + "test_a_driver_that_does_not_work_takes_the_root_back_too",),
    ),
    Mutant(
        "slot-of-another-kernel-loaded",
        "a slot for another kernel is not used until it is staged again",
        "domain/host.py",
        "    if record.kernel != kernel:",
        "    if False:",
        ("unit/adapters/test_host_slots.py::test_a_slot_of_another_kernel_is_no_use_until_it_is_staged_again",),
    ),
    Mutant(
        "root-replaced-in-two-steps",
        "the driver root is complete whenever a run is killed",
        "adapters/host/slots.py",
        "            exchange(at.slots, link, at.above, at.name)\n            if not kept:",
        '            os.rename(at.name, f"{link}.old", src_dir_fd=at.above, dst_dir_fd=at.slots)\n'
        "            os.rename(link, at.name, src_dir_fd=at.slots, dst_dir_fd=at.above)\n"
        '            os.rename(f"{link}.old", link, src_dir_fd=at.slots, dst_dir_fd=at.slots)\n'
        "            if not kept:",
        ("unit/adapters/test_host_slots.py::test_killed_anywhere_the_root_is_whole_and_the_next_flip_ends_alike",),
    ),
    Mutant(
        "slot-with-a-mount-removed",
        "the files of a mount in an old slot are not removed with the slot",
        "adapters/host/slots.py",
        "    if _mount_id(descriptor) != here:",
        "    if False:",
        (SLOTS + "test_a_slot_that_something_is_mounted_in_stays_and_so_does_what_is_mounted",),
    ),
    Mutant(
        "replaced-files-are-the-old-driver",
        "files that were replaced in the driver root are not recorded as the driver that is loaded",
        "domain/swap/building.py",
        "    if previous is None:\n        return False",
        "    if previous is None:\n        return True",
        (SWAP + "test_files_that_were_replaced_in_a_folder_are_not_recorded_as_the_driver_that_is_loaded",),
    ),
)
