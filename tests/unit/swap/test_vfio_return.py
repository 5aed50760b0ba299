"""The way back from virtual machines: which devices a driver's run takes from vfio, and who stands in the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.errors import DriverBusy
from driver_manager.domain.host import Holder
from driver_manager.domain.observation import Policy, Situation
from driver_manager.domain.pci import Binding, PciBus, PciFunction
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.steps import (
    Decision,
    GiveBack,
    LoadModules,
    Plan,
    PlanAgain,
    RecordDigest,
    ReturnDevices,
    TakeNode,
    UnloadModules,
    WaitForMachines,
)
from driver_manager.domain.swap.vfio import MACHINES
from tests.support.fakes.builders import (
    LABELS,
    NEW_DIGEST,
    PROFILE,
    host,
    journal,
    key,
    node,
    observation,
    pod,
    source,
)
from tests.support.fakes.pci import VFIO_DRIVER, function
from tests.support.fakes.plans import CONTAINER, MANAGER, one

WORKLOAD = "rebellions.ai/npu.workload.config"
KEPT = function(driver=VFIO_DRIVER, override=VFIO_DRIVER)
BY_IDS = function(1, driver=VFIO_DRIVER)
MACHINE = Holder(4711, "qemu", "/dev/vfio/10", "open", pod_uid="vm", pod="vms/virt-launcher-a", machine="a")
UNLOADED: dict[str, Any] = {"modules": {}, "digest": None}


def planned(
    *functions: PciFunction,
    policy: Policy = CONTAINER,
    waited: frozenset[str] = frozenset(),
    facts: dict[str, Any] = UNLOADED,
    **fields: Any,
) -> Plan:
    obs = observation(host=host(bus=PciBus(functions), **facts), **fields)
    return plan(Situation.of(obs, PROFILE, policy, waited))


def kinds(found: Plan) -> list[type]:
    return [type(step) for step in found.steps]


@pytest.mark.parametrize(("policy", "loads"), [(CONTAINER, []), (MANAGER, [LoadModules, RecordDigest])])
def test_devices_come_back_before_the_driver_can_be_loaded(policy: Policy, loads: list[type]) -> None:
    found = planned(KEPT, policy=policy, facts={**UNLOADED, "source": source()})
    assert found.decision is Decision.NOT_LOADED
    assert kinds(found) == [TakeNode, ReturnDevices, *loads, GiveBack]
    assert not one(found, TakeNode).change.labels, "nobody is paused for it"
    back = one(found, ReturnDevices)
    assert (back.functions, back.path, back.probes) == ((KEPT,), PROFILE.paths.bindings, False)


def test_what_was_bound_by_its_ids_is_the_administrators() -> None:
    assert kinds(planned(BY_IDS)) == []
    assert one(planned(KEPT, BY_IDS), ReturnDevices).functions == (KEPT,)


@pytest.mark.parametrize("where", ["record", "journal"])
def test_what_a_run_of_this_boot_gave_away_comes_back_though_its_override_is_gone(where: str) -> None:
    was = (Binding(BY_IDS.address, "rebellions", "", 3),)
    known: dict[str, Any] = {"facts": {**UNLOADED, "bindings": was}}
    if where == "journal":
        known = {"journal": journal(devices=was)}
    back = one(planned(BY_IDS, **known), ReturnDevices)
    assert (back.functions, back.originals) == ((BY_IDS,), was)


def test_a_journal_of_an_earlier_boot_says_nothing_of_who_bound_what() -> None:
    old = journal(boot_id="boot-0", devices=(Binding(BY_IDS.address, "rebellions"),))
    assert ReturnDevices not in kinds(planned(BY_IDS, journal=old))


@pytest.mark.parametrize(
    "fields",
    [
        {"node": node({**LABELS, WORKLOAD: "vm-passthrough"})},
        {"own_pod": pod("vfio-a", key("vfio-manager"))},
    ],
    ids=["wanted for virtual machines", "a pod that gives them away"],
)
def test_a_node_that_serves_virtual_machines_keeps_them(fields: dict[str, Any]) -> None:
    assert ReturnDevices not in kinds(planned(KEPT, **fields))


def test_devices_come_back_for_a_pod_that_brings_a_driver_for_virtual_machines() -> None:
    """NVIDIA's vgpu-manager: its init container is `uninstall_driver`, and nobody else takes them from vfio."""
    labels = {**LABELS, key("vgpu-manager"): "true", WORKLOAD: "vm-vgpu"}
    found = planned(KEPT, own_pod=pod("vgpu-a", key("vgpu-manager")), node=node(labels), digest="")
    assert kinds(found) == [TakeNode, ReturnDevices, GiveBack]
    with pytest.raises(DriverBusy, match="of VM a"):
        planned(
            KEPT,
            own_pod=pod("vgpu-a", key("vgpu-manager")),
            node=node(labels),
            digest="",
            group_holders=(MACHINE,),
            waited=frozenset({MACHINES}),
        )


def test_devices_come_back_to_a_driver_that_is_loaded_and_is_the_wanted_one() -> None:
    found = planned(function(2, driver="rebellions"), KEPT, policy=MANAGER, facts={"digest": NEW_DIGEST})
    assert found.decision is Decision.CURRENT
    assert kinds(found) == [TakeNode, ReturnDevices, GiveBack]
    assert one(found, ReturnDevices).probes


def test_devices_come_back_once_the_old_driver_is_out() -> None:
    order = kinds(planned(function(2, driver="rebellions"), KEPT, facts={}))
    assert order.index(UnloadModules) < order.index(ReturnDevices) < order.index(GiveBack)


def test_a_virtual_machine_is_waited_for_and_then_named() -> None:
    found = planned(KEPT, group_holders=(MACHINE,))
    assert kinds(found)[:2] == [WaitForMachines, PlanAgain]
    assert one(found, WaitForMachines).nodes == ("/dev/vfio/10",)
    with pytest.raises(DriverBusy, match="of VM a in pod vms/virt-launcher-a has /dev/vfio/10 open") as caught:
        planned(KEPT, group_holders=(MACHINE,), waited=frozenset({MACHINES}))
    assert "Shut that virtual machine down" in caught.value.remedy


def test_a_virtual_machine_that_has_the_device_itself_and_not_its_group_is_waited_for() -> None:
    by_itself = replace(KEPT, own_node="vfio3")
    found = planned(by_itself, group_holders=(replace(MACHINE, node="/dev/vfio/devices/vfio3"),))
    assert one(found, WaitForMachines).nodes == ("/dev/vfio/devices/vfio3",)


def test_a_virtual_machine_that_has_another_device_is_in_nobodys_way() -> None:
    other = replace(MACHINE, node="/dev/vfio/11")
    assert WaitForMachines not in kinds(planned(KEPT, group_holders=(other,)))


STUCK = function(is_stuck=True)


def test_no_driver_is_loaded_while_a_device_is_stuck_on_its_way_from_a_virtual_machine() -> None:
    found = planned(STUCK, group_holders=(MACHINE,))
    assert kinds(found)[:2] == [WaitForMachines, PlanAgain]
    with pytest.raises(DriverBusy, match="of VM a in pod vms/virt-launcher-a") as caught:
        planned(STUCK, group_holders=(MACHINE,), waited=frozenset({MACHINES}))
    assert "reboot the node" in caught.value.remedy
    with pytest.raises(
        DriverBusy, match=f"the unbind of {STUCK.address} is stuck, because it is in use: unknown by whom"
    ):
        planned(STUCK, waited=frozenset({MACHINES}))
