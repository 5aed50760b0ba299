"""The sandbox's scenarios as data: how host and cluster begin, what is run, and how it has to end.

Imports only the domain and the sandbox.
"""

from __future__ import annotations

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.policy import Loader
from driver_manager.sandbox.cluster import NODE, SandboxCluster
from driver_manager.sandbox.driver_clients import TEAMS, add_clients
from driver_manager.sandbox.host_tree import KERNEL, HostTree
from driver_manager.sandbox.kmm import KmmController, KmmWorkers
from driver_manager.sandbox.pci_tree import VFIO_DRIVER, VFIO_MODULE, PciTree
from driver_manager.sandbox.scenario import NEW, NEW_DIGEST, OLD, OLD_DIGEST, Interference, Scenario
from driver_manager.sandbox.vendor_scenarios import VENDOR_SCENARIOS

OLD_ROOT, NEW_ROOT = "/opt/rbln/1.2.92", "/run/rbln/driver"
ASCEND_ROOT = "/var/lib/Ascend/driver"


_MANAGER = {"DRIVER_LOAD": "manager", "DRIVER_ROOT": NEW_ROOT}
_MODULE = KmmModule("rbln-system", "rebellions", NEW)
_KMM_LABELS = (_MODULE.asked_key, _MODULE.worker_key, _MODULE.ready_key)
_KMM = {"DRIVER_LOAD": Loader.KMM.value, "KMM_MODULE": str(_MODULE), "KMM_VERSION": NEW}
_CUSTOM = {
    "rebellions.ai/npu.deploy.vfio-manager": "false",
    "rebellions.ai/npu.deploy.container-toolkit": "team-a",
}


def _old_loaded(tree: HostTree) -> None:
    tree.add_driver(OLD_ROOT, OLD)
    tree.load(OLD_ROOT)
    tree.record(OLD_DIGEST, OLD_ROOT, OLD)


def _upgrade(tree: HostTree) -> None:
    _old_loaded(tree)
    tree.add_driver(NEW_ROOT, NEW)


def _container_upgrade(tree: HostTree) -> None:
    _old_loaded(tree)
    tree.mount_driver_root()


def _current(tree: HostTree) -> None:
    tree.add_driver(NEW_ROOT, NEW)
    tree.load(NEW_ROOT)
    tree.record(NEW_DIGEST, NEW_ROOT, NEW)


def _bad_module(tree: HostTree) -> None:
    _old_loaded(tree)
    tree.add_driver(NEW_ROOT, NEW, fails=True)


def _slow_module(tree: HostTree) -> None:
    _old_loaded(tree)
    tree.add_driver(NEW_ROOT, NEW, seconds=1.0)


def _busy(tree: HostTree) -> None:
    _upgrade(tree)
    tree.hold_device()


def _held(tree: HostTree) -> None:
    _upgrade(tree)
    tree.hold_device_by(4242, "trainer")


def _tenants(cluster: SandboxCluster) -> None:
    cluster.add_workload("training-0", app="training")
    cluster.add_workload("serving-0", app="serving")
    cluster.add_budget("serving")
    cluster.later(2.8, lambda: cluster.add_workload("serving-1", app="serving", node="another-node"))


def _kmm(cluster: SandboxCluster) -> None:
    workers = KmmWorkers(cluster.tree, _MODULE, {OLD: OLD_ROOT, NEW: NEW_ROOT}, OLD)
    cluster.play(KmmController(cluster.store, NODE, workers))


def _host_driver(tree: HostTree) -> None:
    tree.add_driver("/", NEW)
    tree.load("/")


def _updated_image(tree: HostTree) -> None:
    tree.add_driver("/", OLD)
    tree.load("/")
    tree.add_driver("/", NEW)


DEVICES = ("0000:c1:00.0", "0000:c2:00.0")
MACHINE = 4711


def _bus(tree: HostTree, driver: str, module: str, override: str = "") -> PciTree:
    bus = PciTree(tree.root, tree.profile.modules.roots[0])
    bus.add_vfio(KERNEL)
    for number, address in enumerate(DEVICES):
        bus.add(address, group=str(10 + number), driver=driver, module=module, override=override)
    return bus


def _with_driver(tree: HostTree) -> PciTree:
    return _bus(tree, "rebellions", "rebellions")


def _with_machines(tree: HostTree) -> PciTree:
    return _bus(tree, VFIO_DRIVER, VFIO_MODULE, VFIO_DRIVER)


def _with_a_machine_that_runs(tree: HostTree) -> PciTree:
    bus = _with_machines(tree)
    bus.hold_group("10", MACHINE, "web")
    return bus


def _ascend(tree: HostTree) -> None:
    tree.add_driver(ASCEND_ROOT, "25.2.0")
    tree.load(ASCEND_ROOT)
    tree.record(OLD_DIGEST, ASCEND_ROOT, "25.2.0")


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "upgrade",
            f"driver {OLD} is loaded, {NEW} is wanted: pause, wait, unload, load, release",
            ExitCode.DONE,
            NEW,
            _upgrade,
            labels=_CUSTOM,
            env=_MANAGER,
        ),
        Scenario(
            "container-upgrade",
            f"the same, but the driver's container loads {NEW} afterwards: unload, unmount its old root, release",
            ExitCode.DONE,
            "not loaded",
            _container_upgrade,
            labels=_CUSTOM,
        ),
        Scenario(
            "kmm-upgrade",
            "Kernel Module Management (KMM) unloads and loads: clear the node, ask KMM, verify by the kernel, release",
            ExitCode.DONE,
            NEW,
            _upgrade,
            meddle=_kmm,
            labels={**_CUSTOM, **dict.fromkeys(_KMM_LABELS, OLD)},
            env=_KMM,
            changed_labels=dict.fromkeys(_KMM_LABELS, NEW),
        ),
        Scenario(
            "already-current",
            "the wanted driver is loaded: nothing is changed",
            ExitCode.DONE,
            NEW,
            _current,
            labels=_CUSTOM,
            env=_MANAGER,
            shows=None,
        ),
        Scenario(
            "first-install",
            "no driver is loaded: no pod is paused, the driver is loaded",
            ExitCode.DONE,
            NEW,
            lambda tree: tree.add_driver(NEW_ROOT, NEW),
            env=_MANAGER,
        ),
        Scenario(
            "stuck-pod",
            "an operand pod is held by a finalizer: it is named at the deadline, the node is released",
            ExitCode.PODS_REMAIN,
            OLD,
            _upgrade,
            meddle=lambda cluster: cluster.pin_pod("rbln-device-plugin", "example.com/backup"),
            env={**_MANAGER, "POD_TERMINATION_TIMEOUT": "2s"},
            shows=NodeState.FAILED,
        ),
        Scenario(
            "workloads",
            "two tenants' pods use the driver, one guarded by a budget that frees up later: evict, then as an upgrade",
            ExitCode.DONE,
            NEW,
            _upgrade,
            meddle=_tenants,
            env={**_MANAGER, "ENABLE_NPU_POD_EVICTION": "true"},
        ),
        Scenario(
            "blocked-workload",
            "a tenant's pod would lose its data: it is named with the remedy before anything is changed",
            ExitCode.PODS_REMAIN,
            OLD,
            _upgrade,
            meddle=lambda cluster: cluster.add_workload("scratch-0", app="scratch", empty_dir=True),
            env={**_MANAGER, "ENABLE_NPU_POD_EVICTION": "true"},
            shows=NodeState.FAILED,
        ),
        Scenario(
            "busy-module",
            "something holds the device: the run waits until its timeout, then releases the node",
            ExitCode.DRIVER_BUSY,
            OLD,
            _busy,
            env={**_MANAGER, "DEVICE_FREE_TIMEOUT": "1s"},
            shows=NodeState.FAILED,
        ),
        Scenario(
            "held-device",
            "a process of the host has the device open: the run waits until its timeout, and no pod is paused",
            ExitCode.DRIVER_BUSY,
            OLD,
            _held,
            env={**_MANAGER, "DEVICE_FREE_TIMEOUT": "1s"},
            shows=NodeState.FAILED,
        ),
        Scenario(
            "clients",
            "two teams' pods opened the old driver, one holds the device: refused; with consent each is restarted once",
            ExitCode.DONE,
            NEW,
            _upgrade,
            meddle=add_clients,
            env={**_MANAGER, "DEVICE_FREE_TIMEOUT": "1s"},
            interference=Interference.CONSENT_AFTER,
            restarts=tuple(sorted(f"{team}/{name}" for name, team in TEAMS.items())),
        ),
        Scenario(
            "bad-module-with-rollback",
            f"{NEW} does not load: {OLD} is loaded again, the node is released, the failure is reported",
            ExitCode.MODULE_FAILED,
            OLD,
            _bad_module,
            env=_MANAGER,
            shows=NodeState.FAILED,
        ),
        Scenario(
            "crash-and-resume",
            "the manager is killed while no driver is loaded: the node stays paused, the next run finishes",
            ExitCode.DONE,
            NEW,
            _slow_module,
            labels=_CUSTOM,
            env=_MANAGER,
            interference=Interference.KILL_WITHOUT_DRIVER,
        ),
        Scenario(
            "host-driver",
            "the host has its own driver: report it to the operator and stand down",
            ExitCode.STANDING_DOWN,
            NEW,
            _host_driver,
            changed_labels={"rebellions.ai/npu.deploy.driver": "pre-installed"},
        ),
        Scenario(
            "immutable-host",
            f"the host ships and loads its driver, its image has {NEW} since: a reboot is required, nothing is changed",
            ExitCode.REBOOT_REQUIRED,
            OLD,
            _updated_image,
            env={"DRIVER_LOAD": "none", "DRIVER_VERSION": NEW},
            shows=NodeState.REBOOT_REQUIRED,
        ),
        Scenario(
            "to-virtual-machines",
            "the devices are to serve virtual machines: all pods leave the driver, it is unloaded, vfio gets the "
            "devices",
            ExitCode.DONE,
            "not loaded",
            _container_upgrade,
            meddle=lambda cluster: cluster.add_workload("training-0", app="training"),
            env={"ENABLE_NPU_POD_EVICTION": "true", "POD_NAME": ""},
            command="reconcile-vfio-state",
            bus=_with_driver,
            devices_after=VFIO_DRIVER,
        ),
        Scenario(
            "back-from-virtual-machines",
            "the devices are to serve containers again: vfio releases them, and the driver is loaded",
            ExitCode.DONE,
            NEW,
            lambda tree: tree.add_driver(NEW_ROOT, NEW),
            env=_MANAGER,
            bus=_with_machines,
            devices_after="rebellions",
        ),
        Scenario(
            "virtual-machine-runs",
            "the same while a virtual machine has a device: it is named, it keeps its device, no pod is paused",
            ExitCode.DRIVER_BUSY,
            "not loaded",
            lambda tree: tree.add_driver(NEW_ROOT, NEW),
            env={**_MANAGER, "DEVICE_FREE_TIMEOUT": "1s"},
            bus=_with_a_machine_that_runs,
            devices_after=VFIO_DRIVER,
            shows=NodeState.FAILED,
        ),
        Scenario(
            "ascend-reboot",
            "a driver that must never be unloaded: ask for a reboot; after it, clear the request",
            ExitCode.REBOOT_REQUIRED,
            "not loaded",
            _ascend,
            profile="ascend",
            arguments=("--no-wait",),
            interference=Interference.REBOOT_AFTER,
        ),
        *VENDOR_SCENARIOS,
    )
}
