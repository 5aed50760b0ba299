"""Every row of the table of reconcile-vfio-state: what a plan is for devices that are to serve virtual machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.errors import (
    ConfigError,
    DriverBusy,
    ManagerError,
    OwnedElsewhere,
    PreflightFailed,
    RebootRequired,
    StandingDown,
)
from driver_manager.domain.host import UNREAD, Holder, Module
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import EvictionRules, Loader, Mode, Observation, Policy, Situation
from driver_manager.domain.pci import Binding, PciBus, PciFunction
from driver_manager.domain.profile import ChangeBy, Transition
from driver_manager.domain.swap.planner import plan, wants_users
from driver_manager.domain.swap.preflight import rights
from driver_manager.domain.swap.steps import (
    BindToVfio,
    Decision,
    EvictWorkloads,
    GiveBack,
    KeepBindings,
    LoadVfio,
    OverrideDrivers,
    PauseLast,
    Plan,
    RemoveArtifacts,
    RemoveVirtualFunctions,
    StopServices,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitForDevice,
    WaitForHolders,
    WaitForOperands,
)
from tests.support.fakes.builders import (
    ASCEND,
    DRIVER,
    EXPORTER,
    LABELS,
    PAUSED,
    PLUGIN,
    PROFILE,
    ROOT_MOUNT,
    SOMEBODY,
    host,
    journal,
    key,
    modules,
    node,
    observation,
    pod,
    source,
    workload,
)
from tests.support.fakes.pci import VFIO_DRIVER, function
from tests.support.fakes.plans import READY, STATE, WITHDRAWN, one

MANAGER, SANDBOX = key("vfio-manager"), key("sandbox-device-plugin")
OURS = pod("vfio-a", MANAGER)
WORKLOAD = "rebellions.ai/npu.workload.config"
VFIO = Policy(mode=Mode.VFIO, driver_pod_leaves=True, eviction=EvictionRules(is_enabled=True))
NATIVE, GIVEN, BARE = (function(driver=name) for name in ("rebellions", VFIO_DRIVER, ""))
MACHINE = Holder(
    4711, "qemu-system-x86", "/dev/vfio/10", "open", pod_uid="vm-1", pod="vms/virt-launcher-a", machine="a"
)
UNLOADED: dict[str, Any] = {"modules": {}, "digest": None}


def seen(*functions: PciFunction, neighbours: tuple[PciFunction, ...] = (), **fields: Any) -> Observation:
    """What our vfio-manager pod sees of a node with these functions; the driver is loaded unless `fields` say other."""
    facts = fields.pop("host", {})
    labels = fields.pop("labels", {**LABELS, MANAGER: "true", WORKLOAD: "vm-passthrough"})
    bus = PciBus(functions, neighbours)
    return observation(own_pod=OURS, host=host(bus=bus, **facts), node=node(labels), **fields)


def planned(obs: Observation, policy: Policy = VFIO) -> Plan:
    return plan(Situation.of(obs, PROFILE, policy))


def kinds(found: Plan) -> list[type]:
    return [type(step) for step in found.steps]


# no device on the bus


def test_without_a_device_it_is_done_with_a_warning_and_gives_back_what_a_dead_run_took() -> None:
    found = planned(seen())
    assert (found.decision, found.steps) == (Decision.NO_DEVICE, ())
    assert "no device of profile rebellions" in found.warnings[0]
    assert kinds(planned(seen(journal=journal()))) == [GiveBack]


def test_without_a_device_a_living_runs_node_stays_as_it_is() -> None:
    assert planned(seen(journal=journal(owner=SOMEBODY), owner_alive=True)).steps == ()


# the workload label says something else


@pytest.mark.parametrize("wanted", ["container", "vm-vgpu"])
def test_a_node_that_is_wanted_for_something_else_is_left_alone(wanted: str) -> None:
    obs = seen(NATIVE, labels={**LABELS, WORKLOAD: wanted}, journal=journal(owner=SOMEBODY), owner_alive=True)
    with pytest.raises(StandingDown, match=f"labelled {WORKLOAD}={wanted}"):
        planned(obs)


@pytest.mark.parametrize("labels", [LABELS, {**LABELS, WORKLOAD: ""}, {**LABELS, WORKLOAD: "vm-passthrough"}])
def test_a_node_without_the_label_or_with_the_right_one_is_not(labels: dict[str, str]) -> None:
    assert planned(seen(NATIVE, labels=labels)).decision is Decision.SWITCH


def test_a_profile_that_knows_of_no_virtual_machines_is_an_error() -> None:
    with pytest.raises(ConfigError, match="profile ascend does not define how"):
        plan(Situation.of(seen(NATIVE), ASCEND, VFIO))


# another run lives


def test_a_living_run_of_either_mode_has_the_node() -> None:
    obs = seen(function(group=""), journal=journal(owner=SOMEBODY), owner_alive=True)
    with pytest.raises(OwnedElsewhere, match="is taken by pod rbln-system/driver-b"):
        planned(obs)
    assert planned(seen(NATIVE, journal=journal(owner=SOMEBODY), owner_alive=True), replace(VFIO, take_over=True))


# virtual machines could not have the devices


@pytest.mark.parametrize(
    ("functions", "neighbours", "facts", "said"),
    [
        ((function(driver="rebellions", group=""),), (), {}, "0000:c0:00.0 has no IOMMU group"),
        ((function(vfio_module=""),), (), UNLOADED, "kernel 6.1.0-fake has no vfio module for 0000:c0:00.0"),
        (
            (GIVEN,),
            (PciFunction("0000:c0:01.0", "e1000", "e1000", group="10"),),
            UNLOADED,
            r"IOMMU group 10 is shared with 0000:c0:01.0 \(e1000\)",
        ),
        ((function(driver="uio_pci_generic"),), (), UNLOADED, "0000:c0:00.0 is bound to uio_pci_generic, which is not"),
        ((NATIVE,), (), {"modules": modules(foreign=Module("foreign", "", 0, ()))}, "foreign module foreign uses"),
        ((NATIVE,), (), {"permanent": {"rebellions": "it has no exit"}}, "cannot be unloaded"),
        ((BARE,), (), {**UNLOADED, "are_modules_frozen": True}, "kernel.modules_disabled is 1"),
    ],
    ids=["no group", "no module", "shared group", "foreign driver", "foreign module", "permanent", "frozen"],
)
def test_what_could_not_be_given_is_refused_before_anything_changes(
    functions: tuple[PciFunction, ...], neighbours: tuple[PciFunction, ...], facts: dict[str, Any], said: str
) -> None:
    with pytest.raises(PreflightFailed, match=said):
        planned(seen(*functions, neighbours=neighbours, host=facts))


@pytest.mark.parametrize("driver", ["", "pcieport", "pci-stub", VFIO_DRIVER])
def test_a_neighbour_that_leaves_the_group_viable_is_no_obstacle(driver: str) -> None:
    beside = PciFunction("0000:c0:01.0", driver, group="10")
    assert planned(seen(NATIVE, neighbours=(beside,))).decision is Decision.SWITCH


def test_a_driver_that_only_a_reboot_changes_is_never_unloaded() -> None:
    never = replace(ASCEND, passthrough=PROFILE.passthrough)
    loaded = {"modules": {"drv_pcie_host": Module("drv_pcie_host", "", 0, ())}}
    with pytest.raises(
        PreflightFailed, match="the ascend driver is loaded, and is never unloaded from a running kernel"
    ):
        plan(Situation.of(seen(function(driver="drv_pcie_host"), host=loaded), never, VFIO))


# all on vfio already


def test_devices_that_are_on_vfio_already_cost_nothing() -> None:
    found = planned(seen(GIVEN, function(1, driver="nvgrace_gpu_vfio_pci"), host=UNLOADED))
    assert (found.decision, found.steps, found.workloads) == (Decision.ON_VFIO, (), ())
    assert kinds(planned(seen(GIVEN, host=UNLOADED, journal=journal()))) == [GiveBack]


def test_a_virtual_machine_that_runs_changes_nothing_of_that() -> None:
    assert planned(seen(GIVEN, host=UNLOADED, group_holders=(MACHINE,))).steps == ()


# a stuck unbind


@pytest.mark.parametrize("facts", [UNLOADED, {}], ids=["unloaded", "another device is native"])
def test_a_device_between_two_drivers_that_somebody_has_is_named_and_left_alone(facts: dict[str, Any]) -> None:
    obs = seen(BARE, function(1, driver="" if facts else "rebellions"), host=facts, group_holders=(MACHINE,))
    with pytest.raises(DriverBusy) as caught:
        planned(obs)
    assert "the unbind of 0000:c0:00.0 is stuck, because it is in use" in caught.value.what
    assert "qemu-system-x86 (pid 4711) of VM a in pod vms/virt-launcher-a has /dev/vfio/10 open" in caught.value.what
    assert "reboot" in caught.value.remedy
    assert caught.value.blockers == ("process 4711 qemu-system-x86",)


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        ("", "the unbind of 0000:c0:00.0 is stuck, because it is in use: unknown by whom"),
        ("rebellions", "the kernel has not finished changing the driver of 0000:c0:00.0, which is now rebellions"),
    ],
)
def test_a_device_that_the_kernel_does_not_answer_for_is_left_alone(driver: str, said: str) -> None:
    with pytest.raises(DriverBusy) as caught:
        planned(seen(function(driver=driver, is_stuck=True), host={} if driver else UNLOADED))
    assert said in caught.value.what
    assert "reboot" in caught.value.remedy


def test_a_process_that_may_have_the_group_keeps_nobody() -> None:
    maybe = replace(MACHINE, how=UNREAD, node="")
    assert planned(seen(BARE, host=UNLOADED, group_holders=(maybe,))).decision is Decision.BIND


# unloaded, some devices unbound


def test_devices_that_nobody_has_are_bound_without_pausing_anybody() -> None:
    found = planned(seen(BARE, function(1, driver=VFIO_DRIVER), host=UNLOADED, pods=(workload("tenant"),)))
    assert found.decision is Decision.BIND
    assert kinds(found) == [TakeNode, KeepBindings, OverrideDrivers, LoadVfio, BindToVfio, GiveBack]
    taken = one(found, TakeNode)
    assert (taken.change.labels, taken.change.unschedulable) == ({}, None)
    assert taken.journal.devices == (Binding("0000:c0:00.0"),)
    assert [step.functions for step in found.steps if isinstance(step, BindToVfio)] == [(BARE,)]
    assert one(found, LoadVfio).modules == ("vfio_pci",)
    assert not rights([step for step in found.steps if not isinstance(step, TakeNode | GiveBack)])


def test_the_container_after_us_may_bind_them_itself() -> None:
    found = planned(seen(BARE, host=UNLOADED), replace(VFIO, binds=False))
    assert kinds(found) == [TakeNode, KeepBindings, OverrideDrivers, GiveBack]


def test_a_device_that_is_kept_for_vfio_is_not_kept_twice_nor_forgotten() -> None:
    old = (Binding("0000:c0:00.0", "rebellions", "", 4),)
    kept = replace(BARE, override=VFIO_DRIVER)
    found = planned(seen(kept, host={**UNLOADED, "bindings": old}, journal=journal(devices=old)))
    assert kinds(found) == [TakeNode, LoadVfio, BindToVfio, GiveBack]
    assert one(found, TakeNode).journal.devices == old


def test_the_journal_of_an_earlier_boot_says_nothing_of_its_devices() -> None:
    old = (Binding("0000:c0:00.0", "rebellions", "", 4),)
    found = planned(seen(BARE, host=UNLOADED, journal=journal(boot_id="boot-0", devices=old)))
    assert one(found, TakeNode).journal.devices == (Binding("0000:c0:00.0"),)


def test_what_an_earlier_driver_left_is_cleaned_and_who_would_bring_it_back_leaves() -> None:
    driver = pod("driver-x", DRIVER, main_started=True)
    bound = pod("plugin", PLUGIN, host_paths=(ROOT_MOUNT,))
    facts = {**UNLOADED, "root_mounts": (ROOT_MOUNT,), "artifacts": (STATE, READY)}
    found = planned(seen(BARE, host=facts, pods=(driver, bound, pod("exporter", EXPORTER))))
    assert kinds(found)[:2] == [TakeNode, WaitForOperands]
    assert one(found, TakeNode).change.labels == {DRIVER: PAUSED, PLUGIN: PAUSED}
    assert one(found, WaitForOperands).pods == ("rbln-system/driver-x", "rbln-system/plugin")
    assert one(found, UnmountDriverRoot).mounts == (ROOT_MOUNT,)
    assert one(found, RemoveArtifacts).paths == (READY, WITHDRAWN, STATE)


def test_a_driver_that_has_no_device_left_is_only_unloaded() -> None:
    found = planned(seen(GIVEN))
    assert found.decision is Decision.BIND
    assert kinds(found) == [TakeNode, WaitForDevice, UnloadModules, GiveBack]
    assert (one(found, TakeNode).change.labels, one(found, TakeNode).change.unschedulable) == ({}, None)


@pytest.mark.parametrize(("functions", "users"), [((GIVEN,), 1), ((BARE,), 0)], ids=["in use", "a device between"])
def test_a_driver_that_may_serve_somebody_takes_the_full_path(functions: tuple[PciFunction, ...], users: int) -> None:
    found = planned(seen(*functions, host={"modules": modules(users=users)}))
    assert found.decision is Decision.SWITCH
    assert one(found, TakeNode).change.unschedulable is True


# the driver is loaded, the container's or the host's

SWITCHED = {**LABELS, MANAGER: "true", SANDBOX: "true", WORKLOAD: "vm-passthrough"}


@pytest.mark.parametrize("facts", [{}, {"host_driver": "/lib/m.ko", "digest": None}], ids=["the container's", "host's"])
def test_the_full_path_in_its_order(facts: dict[str, Any]) -> None:
    pods = (pod("plugin", PLUGIN), pod("driver-x", DRIVER, main_started=True), workload("tenant"), virtual_machine())
    facts = {**facts, "root_mounts": (ROOT_MOUNT,), "active_services": ("rbln_daemon.service",)}
    obs = seen(NATIVE, host=facts, labels=SWITCHED, pods=pods)
    found = planned(obs, replace(VFIO, stop_host_services=True))
    assert found.decision is Decision.SWITCH
    assert kinds(found) == [
        *(TakeNode, WaitForOperands, EvictWorkloads, StopServices, WaitForDevice),
        *(KeepBindings, OverrideDrivers, UnloadModules, UnmountDriverRoot, LoadVfio, BindToVfio, GiveBack),
    ]
    taken = one(found, TakeNode)
    assert taken.change.labels == dict.fromkeys((PLUGIN, EXPORTER, DRIVER, SANDBOX), PAUSED), "all but ours"
    assert taken.change.unschedulable is True
    assert taken.journal.devices == (Binding("0000:c0:00.0", "rebellions"),)
    assert taken.journal.driver is not None
    assert one(found, WaitForOperands).pods == ("rbln-system/driver-x", "rbln-system/plugin")
    assert one(found, EvictWorkloads).pods == ("tenant/tenant",), "and never the virtual machine"
    assert one(found, KeepBindings) == KeepBindings(PROFILE.paths.bindings, taken.journal.devices)
    assert one(found, GiveBack).journal == taken.journal


def virtual_machine() -> Pod:
    """A pod that has a device passed through to its machine."""
    return workload("virt-launcher-a", resources=("rebellions.ai/RBLN-CA22_VF",), owner_kind="VirtualMachineInstance")


def test_pods_whose_labels_the_operator_has_taken_away_are_waited_for_too() -> None:
    labels = {MANAGER: "true", WORKLOAD: "vm-passthrough"}
    pods = (pod("driver-x", DRIVER, deleting=True), pod("plugin", PLUGIN, deleting=True))
    found = planned(seen(NATIVE, labels=labels, pods=pods))
    assert one(found, TakeNode).change.labels == {}
    assert one(found, WaitForOperands).pods == ("rbln-system/driver-x", "rbln-system/plugin")


def test_a_switch_that_is_on_while_absent_is_paused_for_virtual_machines_and_speaks_of_nobody_who_is_gone() -> None:
    gate, label_less = "example.com/deploy.telemetry", {MANAGER: "true", WORKLOAD: "vm-passthrough"}
    profile = replace(PROFILE, deploy=replace(PROFILE.deploy, on_unless_false=(gate,)))
    pods = (pod("telemetry", gate), pod("driver-x", DRIVER, main_started=True))
    found = plan(Situation.of(seen(NATIVE, labels={**label_less, DRIVER: "true"}, pods=pods), profile, VFIO))
    assert one(found, TakeNode).change.labels == {gate: "false", DRIVER: PAUSED}
    assert one(found, TakeNode).journal.gates == {gate: None}
    assert one(found, WaitForOperands).pods == ("rbln-system/driver-x", "rbln-system/telemetry")
    stays = plan(Situation.of(seen(BARE, labels=label_less, pods=pods[:1], host=UNLOADED), profile, VFIO))
    assert WaitForOperands not in kinds(stays), "nobody switched it off, and its pod does not leave"


def test_the_driver_is_unloaded_against_the_profiles_order() -> None:
    loaded = {name: Module(name) for name in ("rebellions", "rebellions_a", "rebellions_b")}
    ordered = replace(PROFILE, modules=replace(PROFILE.modules, order=("rebellions_b", "rebellions", "rebellions_a")))
    found = plan(Situation.of(seen(NATIVE, host={"modules": loaded}), ordered, VFIO))
    assert one(found, UnloadModules).names == ("rebellions_a", "rebellions", "rebellions_b")


@pytest.mark.parametrize(("new", "is_held"), [("2.*", False), ("*", True)])
def test_no_driver_follows_so_only_what_holds_for_every_version_holds(new: str, is_held: bool) -> None:
    policy = replace(VFIO, loader=Loader.MANAGER)
    for by in (ChangeBy.REFUSE, ChangeBy.REBOOT):
        paths = replace(PROFILE.paths, reboot_marker="/var/lib/own/.reboot-required")
        pairs = replace(PROFILE, transitions=(Transition("1.*", new, by),), paths=paths)
        obs = seen(NATIVE, host={"source": source()})
        if is_held:
            with pytest.raises(PreflightFailed):
                plan(Situation.of(obs, pairs, policy))
        else:
            assert plan(Situation.of(obs, pairs, policy)).decision is Decision.SWITCH


@pytest.mark.parametrize("value", ["false", "pre-installed", ""])
def test_a_drivers_label_that_is_not_on_is_left_alone(value: str) -> None:
    found = planned(seen(NATIVE, labels={**LABELS, DRIVER: value, MANAGER: "true"}))
    assert DRIVER not in one(found, TakeNode).journal.labels


def test_the_dra_plugin_leaves_after_the_last_claim() -> None:
    dra = key("dra-kubelet-plugin")
    holder = workload("tenant", resources=(), claims=("npu",))
    obs = seen(NATIVE, labels={**SWITCHED, dra: "true"}, pods=(holder, pod("dra", dra)))
    found = planned(replace(obs, has_unread_claims=True))
    assert dra not in one(found, TakeNode).change.labels
    assert kinds(found).index(PauseLast) < kinds(found).index(OverrideDrivers)


def test_virtual_functions_go_before_the_driver_does() -> None:
    parent = function(driver="rebellions", virtual_count=2)
    children = tuple(function(number, driver="rebellions", physical=parent.address) for number in (1, 2))
    found = planned(seen(parent, *children))
    assert one(found, RemoveVirtualFunctions).functions == (parent,)
    assert one(found, OverrideDrivers).functions == (parent,)
    assert one(found, BindToVfio).functions == (parent,), "its virtual ones are gone by then"
    assert one(found, TakeNode).journal.devices == (Binding(parent.address, "rebellions", "", 2),)
    order = kinds(found)
    assert order.index(OverrideDrivers) < order.index(RemoveVirtualFunctions) < order.index(UnloadModules)


def test_a_virtual_function_that_a_machine_has_keeps_its_physical_one() -> None:
    parent = function(driver="rebellions", virtual_count=1)
    child = function(1, driver=VFIO_DRIVER, physical=parent.address)
    used = replace(MACHINE, node="/dev/vfio/11")
    with pytest.raises(DriverBusy, match=r"virtual function 0000:c1:00\.0 is in use: qemu"):
        planned(seen(parent, child, group_holders=(used,)))
    assert planned(seen(parent, child)).decision is Decision.SWITCH


def test_auxiliary_functions_go_where_their_device_goes() -> None:
    audio = function(1, driver="snd_hda_intel", is_auxiliary=True, group="10")
    found = planned(seen(GIVEN, audio, host=UNLOADED))
    assert found.decision is Decision.BIND
    assert one(found, BindToVfio).functions == (audio,)


def test_whoever_holds_the_driver_and_is_not_ours_to_end_is_waited_for_first() -> None:
    daemon = Holder(99, "trainer", "/dev/rbln0", "open")
    found = planned(seen(NATIVE, holders=(daemon,)))
    assert kinds(found)[0] is WaitForHolders


def test_claims_and_holders_matter_only_where_the_driver_serves_a_device() -> None:
    for functions, facts, matter in (((NATIVE,), {}, True), ((GIVEN,), {}, False), ((BARE,), UNLOADED, False)):
        assert wants_users(Situation.of(seen(*functions, host=facts), PROFILE, VFIO)) is matter


# mixed


def test_what_vfio_has_is_not_touched() -> None:
    kept = function(1, driver=VFIO_DRIVER)
    used = replace(MACHINE, node="/dev/vfio/11")
    found = planned(seen(NATIVE, kept, group_holders=(used,), pods=(virtual_machine(),)))
    assert found.decision is Decision.SWITCH
    for step in found.steps:
        if isinstance(step, OverrideDrivers | BindToVfio):
            assert step.functions == (NATIVE,)
    assert one(found, TakeNode).journal.devices == (Binding("0000:c0:00.0", "rebellions"),)
    assert EvictWorkloads not in kinds(found)


# as every plan


def test_a_node_whose_reboot_was_granted_is_not_taken() -> None:
    labels = {WORKLOAD: "vm-passthrough"}
    granted = {ASCEND.keys.reboot_in_progress: "upgrade", ASCEND.keys.pre_reboot_boot_id: "boot-1"}
    profile = replace(PROFILE, keys=replace(PROFILE.keys, **{name: getattr(ASCEND.keys, name) for name in REBOOTS}))
    obs = replace(seen(NATIVE, host={"granted_reboot": "upgrade"}), node=node(labels, annotations=granted))
    with pytest.raises(RebootRequired):
        plan(Situation.of(obs, profile, VFIO))


REBOOTS = ("reboot_in_progress", "pre_reboot_boot_id")


@pytest.mark.parametrize("loader", list(Loader))
def test_no_driver_is_looked_for_nor_loaded(loader: Loader) -> None:
    found = planned(seen(NATIVE), replace(VFIO, loader=loader))
    assert [type(step).__name__ for step in found.steps if type(step).__name__ in ("LoadModules", "RecordDigest")] == []


@pytest.mark.parametrize("obs", [seen(), seen(GIVEN, host=UNLOADED), seen(BARE, host=UNLOADED), seen(NATIVE)])
def test_every_plan_can_be_shown(obs: Observation) -> None:
    found = planned(obs)
    assert found.to_json()["decision"] in found.to_text()
    assert all(step.describe() for step in found.steps)


def test_errors_are_of_the_wire_contract() -> None:
    codes: dict[type[ManagerError], int] = {StandingDown: 10, OwnedElsewhere: 11, PreflightFailed: 6, DriverBusy: 4}
    assert all(int(kind.exit_code) == code for kind, code in codes.items())
