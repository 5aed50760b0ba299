"""Owns the paths that are swept: what the host and the Node are like before a run, and how the run is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from driver_manager.adapters.host.slots import record_of
from driver_manager.domain.host import FOLDER_END, RECORD, encode_staged, folder_of, slot_name
from driver_manager.domain.pci import Binding, encode_bindings
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import KERNEL, VFIO_DRIVER, VFIO_MODULE, HostTree, PciTree
from tests.support.control_plane.runner import NEW, NEW_DIGEST, NEW_ROOT, OLD, OLD_DIGEST, OLD_ROOT
from tests.support.control_plane.sweep.clients import SELECTOR

SERVICE = "rbln_daemon.service"
BAD_ROOT = "/opt/rbln/bad"
ASCEND_ROOT, ASCEND_OLD = "/var/lib/Ascend/driver", "25.2.0"
STAGED_ROOT = "/var/lib/rbln/driver"
DEVICES = ("0000:c1:00.0", "0000:c2:00.0")
MANAGED = "rebellions.ai/npu-driver-upgrade-enabled"


@dataclass(frozen=True)
class Path:
    """One path through the decision table. `lay_out` makes the host, `lay_anew` what a boot brings back to it.

    `code` is the exit code of an undisturbed run. `jobs` pods use the accelerator. `runs_in_pod`: as the init container
    of the driver pod on the node, else by hand. `is_managed`: an operator moves the pods when it is asked.
    `has_clients`: the exporter on the node is a client of the driver. `is_held`: another client has the device open.
    `devices` puts functions on the PCI bus, whose kernel answers then.
    """

    name: str
    lay_out: Callable[[HostTree], None]
    lay_anew: Callable[[HostTree], None]
    command: str = "reconcile-driver-state"
    devices: Callable[[PciTree], None] | None = None
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    words: tuple[str, ...] = ()
    code: int = 0
    profile: str = "rebellions"
    runs_in_pod: bool = False
    is_cordoned: bool = False
    is_managed: bool = False
    has_clients: bool = False
    is_held: bool = False
    jobs: int = 0

    def __str__(self) -> str:
        return self.name


def _boot(tree: HostTree) -> None:
    """What a boot brings back: the driver's tree below /run, from its container, and the host's services."""
    tree.add_driver(NEW_ROOT, NEW)
    tree.start_service(SERVICE)


def _ready(tree: HostTree) -> None:
    """The marker that a driver container leaves when its driver serves."""
    marker = tree.root / tree.profile.paths.ready_marker.lstrip("/")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text("")


def _outdated(tree: HostTree) -> None:
    """The old driver is loaded, recorded and ready."""
    _boot(tree)
    tree.add_driver(OLD_ROOT, OLD)
    tree.load(OLD_ROOT)
    tree.record(OLD_DIGEST, OLD_ROOT, OLD)
    _ready(tree)


def _outdated_in_a_container(tree: HostTree) -> None:
    _outdated(tree)
    tree.mount_driver_root()


def _current_in_a_container(tree: HostTree) -> None:
    _boot(tree)
    tree.load(NEW_ROOT)
    tree.record(NEW_DIGEST, NEW_ROOT, NEW)
    _ready(tree)
    tree.mount_driver_root()


def _empty_with_a_stale_root(tree: HostTree) -> None:
    _boot(tree)
    _ready(tree)
    tree.mount_driver_root()


def _outdated_with_a_bad_driver(tree: HostTree) -> None:
    _outdated(tree)
    tree.add_driver(BAD_ROOT, "3.0.0", fails=True)


def _staged(tree: HostTree) -> None:
    """The driver root leads to the old driver's slot, and the new one is staged beside it, both on disk."""
    for version, digest in ((OLD, OLD_DIGEST), (NEW, NEW_DIGEST)):
        slot = f"{folder_of(STAGED_ROOT)}/{slot_name(digest)}"
        tree.add_driver(slot, version)
        folder = tree.root / slot.lstrip("/")
        record = record_of(folder, digest, KERNEL, version)
        # The tools in it differ from host to host here.
        modules = tuple(one for one in record.files if one.path.startswith("lib/"))
        (folder / RECORD).write_text(encode_staged(replace(record, files=modules)))
    link = tree.root / STAGED_ROOT.lstrip("/")
    link.symlink_to(f"{link.name}{FOLDER_END}/{slot_name(OLD_DIGEST)}")
    tree.load(STAGED_ROOT)
    tree.record(OLD_DIGEST, f"{folder_of(STAGED_ROOT)}/{slot_name(OLD_DIGEST)}", OLD)
    _ready(tree)


def _outdated_ascend(tree: HostTree) -> None:
    tree.add_driver(ASCEND_ROOT, ASCEND_OLD)
    tree.load(ASCEND_ROOT)
    tree.record("old", ASCEND_ROOT, ASCEND_OLD)


def _fresh_ascend(tree: HostTree) -> None:
    tree.add_driver(ASCEND_ROOT, ASCEND_OLD)


def _for_machines(tree: HostTree) -> None:
    """No driver, and what an earlier run left that gave the devices to virtual machines."""
    _boot(tree)
    module = PciTree(tree.root, "").add_vfio(KERNEL)
    fake_tools.insert(tree.root, VFIO_MODULE, {VFIO_MODULE: (module, [])})
    record = tree.root / tree.profile.paths.bindings.lstrip("/")
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(encode_bindings(tree.boot_id, [Binding(one, "rebellions") for one in DEVICES]))


def _native(bus: PciTree) -> None:
    """One device with the driver, one that nobody has."""
    bus.add_vfio(KERNEL)
    bus.add(DEVICES[0], group="10", driver="rebellions", module="rebellions")
    bus.add(DEVICES[1], group="11")


def _given(bus: PciTree) -> None:
    for number, address in enumerate(DEVICES):
        bus.add(address, group=str(10 + number), driver=VFIO_DRIVER, module=VFIO_MODULE, override=VFIO_DRIVER)


def _nothing(_: HostTree) -> None:
    """Everything that this path needs outlives a boot."""


_BY_CONTAINER = {"DRIVER_LOAD": "container", "DRIVER_ROOT": ""}

PATHS = (
    Path("replace-by-manager", _outdated, _boot, words=("--stop-host-services",)),
    Path(
        "replace-by-container",
        _outdated_in_a_container,
        _boot,
        env=_BY_CONTAINER,
        runs_in_pod=True,
        is_cordoned=True,
    ),
    Path("digest-equal", _current_in_a_container, _boot, env=_BY_CONTAINER, runs_in_pod=True),
    Path("first-install-by-container", _empty_with_a_stale_root, _boot, env=_BY_CONTAINER, runs_in_pod=True),
    Path("first-install-by-manager", _boot, _boot),
    Path("eviction", _outdated, _boot, env={"ENABLE_NPU_POD_EVICTION": "true"}, jobs=2),
    Path("operator-managed", _outdated, _boot, jobs=1, is_managed=True),
    Path(
        "rollback",
        _outdated_with_a_bad_driver,
        _boot,
        env={"DRIVER_ROOT": BAD_ROOT, "RETRY_WAIT": "1s"},
        code=5,
    ),
    Path(
        "reboot-required",
        _outdated_ascend,
        _nothing,
        env={"DRIVER_LOAD": "container", "DRIVER_ROOT": ""},
        words=("--no-wait",),
        code=9,
        profile="ascend",
    ),
    Path("staged", _staged, _nothing, env={"DRIVER_ROOT": STAGED_ROOT}),
    Path("clients", _outdated, _boot, env=SELECTOR, has_clients=True),
    Path(
        "client-that-holds-the-device",
        _outdated,
        _boot,
        env={**SELECTOR, "RESTART_CLIENTS": "true"},
        has_clients=True,
        is_held=True,
    ),
    Path("to-virtual-machines", _outdated, _boot, command="reconcile-vfio-state", devices=_native),
    Path("back-from-virtual-machines", _for_machines, _boot, devices=_given),
    Path("load-at-boot", _fresh_ascend, _nothing, env={"DRIVER_ROOT": ASCEND_ROOT}, profile="ascend"),
)
