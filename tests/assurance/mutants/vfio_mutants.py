"""Mutants of what is promised where devices go to virtual machines and come back."""

from __future__ import annotations

from tests.assurance.mutants.mutant import Mutant

PLANS = "unit/swap/test_plans.py"

VFIO_MUTANTS = (
    Mutant(
        "stuck-unbind-not-seen",
        "a device between two drivers that a process has open is not changed, and the process is named",
        "domain/swap/vfio.py",
        "        held = holders_of(situation, one) if not one.driver or one.is_stuck else ()\n",
        "        held = holders_of(situation, one) if one.driver or one.is_stuck else ()\n",
        (PLANS,),
    ),
    Mutant(
        "used-virtual-function-removed",
        "a virtual function that a virtual machine has is not removed with its physical function",
        "domain/swap/vfio.py",
        "    for one in _vanishing(situation):\n        held = holders_of(situation, one)\n",
        "    for one in _vanishing(situation):\n        held = ()\n",
        (PLANS,),
    ),
    Mutant(
        "machine-evicted",
        "a pod whose device is passed through to its virtual machine is never evicted",
        "domain/pods/workloads.py",
        "    return is_ours and not any(fnmatchcase(resource, pattern) for pattern in given_away)\n",
        "    return is_ours\n",
        (PLANS,),
    ),
    Mutant(
        "used-device-unbound",
        "a device that a virtual machine has is not taken back from vfio",
        "domain/swap/vfio.py",
        "    if not held and not stuck:\n        return ()\n",
        "    if held or not stuck:\n        return ()\n",
        (PLANS,),
    ),
    Mutant(
        "overrides-stay",
        "a run that fails before the unload restores the overrides and virtual functions of the devices",
        "core/swap/node.py",
        "                self.undo_devices(journal)\n",
        "",
        (
            "unit/swap/test_reconcile_vfio.py::test_a_failure_before_the_unload_gives_overrides_and_virtual_functions_back",
        ),
    ),
    Mutant(
        "devices-of-another-boot-restored",
        "the journal of an earlier boot changes no device",
        "core/swap/node.py",
        "if journal.devices and host is not None and journal.boot_id == host.boot_id:",
        "if journal.devices and host is not None:",
        ("unit/swap/test_node_lock.py::test_devices_that_a_boot_made_again_are_not_restored_from_the_journal",),
    ),
    Mutant(
        "stuck-device-not-seen",
        "a device whose unbind does not end is detected by a timeout, and no run waits for it",
        "adapters/host/pci.py",
        '        path.name: {"is_stuck": True} if at in silent',
        '        path.name: {"is_stuck": False} if at in silent',
        ("unit/adapters/test_pci_bus.py::test_a_device_that_is_stuck_between_two_drivers_holds_nobody_who_looks",),
    ),
    Mutant(
        "load-during-a-stuck-unbind",
        "no driver is loaded while one of its devices is stuck on its way from vfio",
        "domain/swap/vfio.py",
        "        if one.is_stuck or one.is_kept_for_vfio or",
        "        if one.is_kept_for_vfio or",
        (PLANS,),
    ),
    Mutant(
        "vgpu-manager-without-devices",
        "devices are taken back from vfio for a pod that brings a driver for virtual machines",
        "domain/swap/vfio.py",
        '    gives_away = places_us(situation) == f"{situation.profile.deploy.prefix}{modes.component}"\n',
        "    gives_away = bool(places_us(situation) or modes.component == '')\n",
        (PLANS,),
    ),
    Mutant(
        "virtual-functions-forgotten",
        "virtual functions are created again once their device has its driver",
        "domain/swap/vfio.py",
        "    return tuple(one for one in known if not there[one.address].virtual_count)\n",
        "    return tuple(one for one in known if not there)\n",
        ("unit/swap/test_reconcile_vfio.py::test_there_and_back_again",),
    ),
    Mutant(
        "sysfs-written-in-process",
        "a write to sysfs that never returns does not block the run",
        "adapters/host/pci.py",
        "        said = lines_within(max(deadline.left(), EFFECT_POLL_S), partial(",
        "        said = (lambda write, *told: list(write(*told)))(*(",
        ("unit/adapters/test_pci_bus.py::test_an_unbind_that_does_not_end_is_left_behind_at_its_deadline",),
        limit_s=60,
        hangs=True,
    ),
)
