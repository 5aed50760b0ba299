"""The scenarios of one node and of reboots: their data, how each runs, and how its end is checked.

This module plays the hardware, the kubelet and the administrator. A `Show` prints.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TextIO

from msgspec import Struct, field

from driver_manager.adapters.kube.leases import LEASE
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.health.watch import decode_watch_record
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, Marker, encode_marker
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.reboot.decision import APPROVED
from driver_manager.domain.reboot.state import Record, decode_reboot_record
from driver_manager.profiles import builtin
from driver_manager.sandbox.apiserver import ApiError
from driver_manager.sandbox.cluster import (
    NODE,
    TEAMS,
    Happening,
    Process,
    SandboxCluster,
    add_clients,
    command_line,
    environment,
)
from driver_manager.sandbox.host import KERNEL, VFIO_DRIVER, VFIO_MODULE, HostTree, PciTree


class RebootScenario(Struct, frozen=True):
    """A scenario of reboots. Every node reboots `reboots` times. `recovers`: the chip recovers before the approval.

    A reconcile requests an upgrade. health-watch requests a recovery if the chip `wedges`, else the scenario writes the
    marker.
    """

    name: str
    summary: str
    reason: str
    nodes: int = 1
    approves: bool = True
    recovers: bool = False
    wedges: bool = False
    reboots: int = 1
    env: Mapping[str, str] = field(default_factory=dict)


REBOOT_SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        RebootScenario(
            "reboot-approved",
            "an upgrade requests a reboot: the node waits for approval, reboots once, loads the new driver and cleans "
            "up",
            UPGRADE_REASON,
        ),
        RebootScenario(
            "reboot-recovery",
            "a wedged chip, and recoveries need no approval: the node reboots at once and cleans up",
            RECOVERY,
            approves=False,
            env={"AUTO_RECOVER": "true"},
        ),
        RebootScenario(
            "wedge-to-reboot",
            "a chip wedges: health-watch requests a reboot, the rebooter waits for approval, reboots and cleans up",
            RECOVERY,
            wedges=True,
        ),
        RebootScenario(
            "reboot-one-slot",
            "two nodes have to reboot, one at a time: the second waits until the first serves again",
            RECOVERY,
            nodes=2,
            env={"REBOOT_CORDON": "true"},
        ),
        RebootScenario(
            "reboot-withdrawn",
            "the chip recovers before the approval: the request is withdrawn everywhere, nothing reboots",
            RECOVERY,
            approves=False,
            recovers=True,
            reboots=0,
        ),
    )
}


OLD, NEW = "1.2.92", "2.0.1"
OLD_DIGEST, NEW_DIGEST = "4d1f7c09a25e83b6", "9be2a06f4c31d758"


class Interference(Enum):
    """What happens after the first run begins."""

    NONE = "none"
    KILL_WITHOUT_DRIVER = "SIGKILL once the old driver is unloaded, then run again"
    REBOOT_AFTER = "reboot the host after the run, then run again"
    CONSENT_AFTER = "after a run that is refused, allow it to restart clients, then run again"


class Scenario(Struct, frozen=True):
    """A scenario of one node. `labels` are extra node labels, `changed_labels` the expected changes.

    `shows` is the expected state label, None for none. `restarts` are the clients that are restarted once, as
    namespace/DaemonSet. `devices_after` is the expected driver of all devices on `bus`. `kernel` is the expected kernel
    log (empty: not checked). `asks` is a command that runs at the end, with its options.
    """

    name: str
    summary: str
    exit_code: ExitCode
    driver_after: str
    prepare: Callable[[HostTree], None]
    add_pods: Callable[[SandboxCluster], None] = lambda _: None
    profile: str = "rebellions"
    labels: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    changed_labels: dict[str, str] = field(default_factory=dict)
    interference: Interference = Interference.NONE
    command: str = "reconcile-driver-state"
    bus: Callable[[HostTree], PciTree] | None = None
    devices_after: str | None = None
    shows: NodeState | None = NodeState.READY
    restarts: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()


ASKS = ("status", "--probe")

AMD: Mapping[str, Sequence[str]] = {"amdkcl": (), "amdttm": ("amdkcl",), "amdgpu": ("amdkcl", "amdttm")}
GAUDI: Mapping[str, Sequence[str]] = dict.fromkeys(
    ("habanalabs", "habanalabs_cn", "habanalabs_ib", "habanalabs_en"), ()
)
"""Nothing in modules.dep orders these modules: they depend on a bus."""

FURIOSA: Mapping[str, Sequence[str]] = {"furiosa_rngd": ()}
TENSTORRENT: Mapping[str, Sequence[str]] = {"tenstorrent": ()}


def _old_and_new(vendor: str, modules: Mapping[str, Sequence[str]], samples: int = 0) -> Callable[[HostTree], None]:
    """Load the old driver and install the new one. The tool reports devices at work for `samples` samples."""

    def prepare(tree: HostTree) -> None:
        old, new = _root(vendor, OLD), _root(vendor, NEW)
        tree.add_driver(old, OLD, modules=modules)
        tree.load(old)
        tree.record(OLD_DIGEST, old, OLD)
        tree.add_driver(new, NEW, modules=modules)
        tree.add_firmware_path()
        if samples:
            tree.put_to_work(samples)

    return prepare


def _root(vendor: str, version: str) -> str:
    """A root on disk, so that the driver can be loaded after a reboot."""
    return f"/opt/{vendor}/{version}"


def _manager(vendor: str) -> dict[str, str]:
    return {"DRIVER_LOAD": "manager", "DRIVER_ROOT": _root(vendor, NEW)}


def _unloaded(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"module {name} unloaded" for name in names)


def _loaded(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"module {name} {NEW} loaded" for name in names)


VENDOR_SCENARIOS = (
    Scenario(
        "amd-reboot",
        "AMD: the loaded driver is never unloaded; a reboot is requested, and after it the new driver is loaded",
        ExitCode.REBOOT_REQUIRED,
        NEW,
        _old_and_new("amd", AMD),
        profile="amd",
        env=_manager("amd"),
        arguments=("--no-wait",),
        interference=Interference.REBOOT_AFTER,
        kernel=(*_loaded(("amdkcl", "amdttm", "amdgpu")), "amd-smi sees a device"),
        asks=ASKS,
    ),
    Scenario(
        "tenstorrent-upgrade",
        "Tenstorrent: an operand that runs without its label is paused; the driver is swapped, the label is removed",
        ExitCode.DONE,
        NEW,
        _old_and_new("tenstorrent", TENSTORRENT),
        profile="tenstorrent",
        env=_manager("tenstorrent"),
        kernel=(*_unloaded(("tenstorrent",)), *_loaded(("tenstorrent",)), "tt-smi sees a device"),
        asks=ASKS,
    ),
    Scenario(
        "gaudi-upgrade",
        "Gaudi: a tenant's pod leaves; four modules without dependencies are swapped in the profile's order",
        ExitCode.DONE,
        NEW,
        _old_and_new("habana", GAUDI),
        add_pods=lambda cluster: cluster.add_workload("training-0", app="training", resource=""),
        profile="gaudi",
        env={**_manager("habana"), "ENABLE_NPU_POD_EVICTION": "true"},
        kernel=(*_unloaded(tuple(GAUDI)[::-1]), *_loaded(tuple(GAUDI)), "hl-smi sees a device"),
        asks=ASKS,
    ),
    Scenario(
        "furiosa-upgrade",
        "Furiosa: the NPU is at work though no process has it open; the swap waits until it is idle",
        ExitCode.DONE,
        NEW,
        _old_and_new("furiosa", FURIOSA, samples=2),
        profile="furiosa",
        env=_manager("furiosa"),
        kernel=(
            "furiosa-smi sees a device at work",
            "furiosa-smi sees a device",
            *_unloaded(("furiosa_rngd",)),
            *_loaded(("furiosa_rngd",)),
            "furiosa-smi sees a device",
        ),
        asks=ASKS,
    ),
)


OLD_ROOT, NEW_ROOT = "/opt/rbln/1.2.92", "/run/rbln/driver"
ASCEND_ROOT = "/var/lib/Ascend/driver"


_MANAGER = {"DRIVER_LOAD": "manager", "DRIVER_ROOT": NEW_ROOT}
_CUSTOM = {"rebellions.ai/npu.deploy.vfio-manager": "false", "rebellions.ai/npu.deploy.container-toolkit": "team-a"}


def _old_loaded(tree: HostTree) -> None:
    tree.add_driver(OLD_ROOT, OLD)
    tree.load(OLD_ROOT)
    tree.record(OLD_DIGEST, OLD_ROOT, OLD)


def _new_installed(tree: HostTree) -> None:
    tree.add_driver(NEW_ROOT, NEW)


def _upgrade(tree: HostTree, *, fails: bool = False, seconds: float = 0.0) -> None:
    _old_loaded(tree)
    tree.add_driver(NEW_ROOT, NEW, fails=fails, seconds=seconds)


def _container_upgrade(tree: HostTree) -> None:
    _old_loaded(tree)
    tree.mount_driver_root()


def _current(tree: HostTree) -> None:
    _new_installed(tree)
    tree.load(NEW_ROOT)
    tree.record(NEW_DIGEST, NEW_ROOT, NEW)


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


def _host_driver(tree: HostTree, version: str = NEW) -> None:
    tree.add_driver("/", version)
    tree.load("/")


def _updated_image(tree: HostTree) -> None:
    _host_driver(tree, OLD)
    tree.add_driver("/", NEW)


DEVICES = ("0000:c1:00.0", "0000:c2:00.0")
MACHINE = 4711


def _bus(tree: HostTree, driver: str = VFIO_DRIVER, module: str = VFIO_MODULE, override: str = VFIO_DRIVER) -> PciTree:
    bus = PciTree(tree.root, tree.profile.modules.roots[0])
    bus.add_vfio(KERNEL)
    for number, address in enumerate(DEVICES):
        bus.add(address, group=str(10 + number), driver=driver, module=module, override=override)
    return bus


def _with_a_machine_that_runs(tree: HostTree) -> PciTree:
    bus = _bus(tree)
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
            _new_installed,
            env=_MANAGER,
        ),
        Scenario(
            "stuck-pod",
            "an operand pod is held by a finalizer: it is named at the deadline, the node is released",
            ExitCode.PODS_REMAIN,
            OLD,
            _upgrade,
            add_pods=lambda cluster: cluster.pin_pod("rbln-device-plugin", "example.com/backup"),
            env={**_MANAGER, "POD_TERMINATION_TIMEOUT": "2s"},
            shows=NodeState.FAILED,
        ),
        Scenario(
            "workloads",
            "two tenants' pods use the driver, one guarded by a budget that frees up later: evict, then as an upgrade",
            ExitCode.DONE,
            NEW,
            _upgrade,
            add_pods=_tenants,
            env={**_MANAGER, "ENABLE_NPU_POD_EVICTION": "true"},
        ),
        Scenario(
            "blocked-workload",
            "a tenant's pod would lose its data: it is named with the remedy before anything is changed",
            ExitCode.PODS_REMAIN,
            OLD,
            _upgrade,
            add_pods=lambda cluster: cluster.add_workload("scratch-0", app="scratch", empty_dir=True),
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
            add_pods=add_clients,
            env={**_MANAGER, "DEVICE_FREE_TIMEOUT": "1s"},
            interference=Interference.CONSENT_AFTER,
            restarts=tuple(sorted(f"{team}/{name}" for name, team in TEAMS.items())),
        ),
        Scenario(
            "bad-module-with-rollback",
            f"{NEW} does not load: {OLD} is loaded again, the node is released, the failure is reported",
            ExitCode.MODULE_FAILED,
            OLD,
            partial(_upgrade, fails=True),
            env=_MANAGER,
            shows=NodeState.FAILED,
        ),
        Scenario(
            "crash-and-resume",
            "the manager is killed while no driver is loaded: the node stays paused, the next run finishes",
            ExitCode.DONE,
            NEW,
            partial(_upgrade, seconds=1.0),
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
            add_pods=lambda cluster: cluster.add_workload("training-0", app="training"),
            env={"ENABLE_NPU_POD_EVICTION": "true", "POD_NAME": ""},
            command="reconcile-vfio-state",
            bus=lambda tree: _bus(tree, "rebellions", "rebellions", ""),
            devices_after=VFIO_DRIVER,
        ),
        Scenario(
            "back-from-virtual-machines",
            "the devices are to serve containers again: vfio releases them, and the driver is loaded",
            ExitCode.DONE,
            NEW,
            _new_installed,
            env=_MANAGER,
            bus=_bus,
            devices_after="rebellions",
        ),
        Scenario(
            "virtual-machine-runs",
            "the same while a virtual machine has a device: it is named, it keeps its device, no pod is paused",
            ExitCode.DRIVER_BUSY,
            "not loaded",
            _new_installed,
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


RUN_TIMEOUT_S = 150.0
POLL_S = 0.005
CONSENT = {"RESTART_CLIENTS": "true"}
VFIO_COMMAND = "reconcile-vfio-state"


class Show(Protocol):
    """Prints a scenario while it runs."""

    def chapter(self, title: str) -> None:
        """Begin a part."""

    def line(self, text: str) -> None:
        """Print a line."""


class NodeSummary(Struct, frozen=True):
    """The facts that are compared before and after."""

    labels: dict[str, str]
    cordoned: bool
    journal: bool
    driver: str
    digest: str


def summary_of(node: dict[str, Any], tree: HostTree, *, journal: bool | None = None) -> NodeSummary:
    labels = dict(node["metadata"].get("labels", {}))
    is_cordoned = bool(node.get("spec", {}).get("unschedulable"))
    if journal is None:
        journal = tree.profile.keys.journal in node["metadata"].get("annotations", {})
    return NodeSummary(labels, is_cordoned, journal, tree.driver_version, tree.digest)


class Named(Protocol):
    @property
    def name(self) -> str:
        """The name on the command line."""

    @property
    def summary(self) -> str:
        """The content in one line."""


class ScenarioReport(Struct):
    """The result. `problems` is empty if the scenario ended as expected.

    `is_shown`: the timeline was printed while the scenario ran. `node` is the compared node if there are several.
    """

    scenario: Named
    before: NodeSummary
    after: NodeSummary | None = None
    exit_codes: list[int] = field(default_factory=list)
    timeline: list[Happening] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    is_shown: bool = False
    node: str = ""


def run_scenario(
    scenario: Scenario,
    show: Show,
    terminal: TextIO | None = None,
    then: Callable[[ScenarioReport, Mapping[str, str]], None] = lambda _, __: None,
) -> ScenarioReport:
    """Play `scenario` and check its end. Raises RuntimeError if the sandbox itself fails.

    Commands draw on `terminal`. `then` gets the report and the environment of commands while server and host exist.
    """
    with tempfile.TemporaryDirectory(prefix="driver-manager-sandbox-") as name:
        folder = Path(name).resolve()
        profile = builtin()[scenario.profile]
        tree = HostTree(folder / "host", folder / "bin", profile)
        tree.build()
        tree.keep_kernel_log()
        scenario.prepare(tree)
        bus = scenario.bus(tree) if scenario.bus is not None else None
        with (
            bus.running() if bus is not None else contextlib.nullcontext(),
            SandboxCluster(profile, tree, folder, scenario.labels, NEW_DIGEST) as cluster,
        ):
            scenario.add_pods(cluster)
            play = _Play(scenario, cluster, tree, show, terminal)
            report = play.report()
            if bus is not None:
                drivers = {address: bus.driver_of(address) for address in DEVICES}
                report.problems += [
                    f"device {address} has driver {driver or 'none'}, expected {scenario.devices_after or 'none'}"
                    for address, driver in drivers.items()
                    if driver != scenario.devices_after
                ]
            then(report, {**play.environment(), "KUBECONFIG": str(cluster.kubectl_config)})
        return report


class _Play:
    def __init__(
        self, scenario: Scenario, cluster: SandboxCluster, tree: HostTree, show: Show, terminal: TextIO | None
    ) -> None:
        self._terminal = terminal
        self._scenario = scenario
        self._cluster = cluster
        self._tree = tree
        self._show = show
        self._pod = cluster.driver_pod()
        self._env = dict(scenario.env)

    def report(self) -> ScenarioReport:
        scenario = self._scenario
        report = ScenarioReport(scenario, self._state())
        self._show.chapter("plan: what driver-manager would do")
        self._run("plan", *(("--mode", "vfio") if self._gives_devices else ()))
        begun_s = time.monotonic()
        first_request = len(self._cluster.server.requests)
        self._show.chapter(f"run: {self._command()}")
        report.exit_codes.append(self._reconcile())
        self._interfere(report)
        report.seconds = time.monotonic() - begun_s
        report.requests = sum(
            record.resource not in ("events", "selfsubjectaccessreviews")
            for record in self._cluster.server.requests[first_request:]
        )
        report.timeline = self._cluster.timeline(begun_s)
        report.after = self._state()
        report.problems = _problems(scenario, report.before, report.after, report.exit_codes)
        seen = [text for at_s, text in self._tree.kernel_log() if at_s >= begun_s]
        if scenario.kernel and seen != list(scenario.kernel):
            report.problems.append(f"the kernel reports {seen}, expected {list(scenario.kernel)}")
        if scenario.asks:
            self._show.chapter(f"driver-manager {' '.join(scenario.asks)}")
            self._run(*scenario.asks)
        if (restarted := self._cluster.restarted()) != list(scenario.restarts):
            report.problems.append(f"restarted clients {restarted}, expected {list(scenario.restarts)}")
        return report

    def _command(self) -> str:
        """The command line, without the settings that every init container has."""
        settings = [f"{name}={value}" for name, value in self._env.items()]
        return " ".join([*settings, f"driver-manager {self._scenario.command}", *self._scenario.arguments])

    def _reconcile(self) -> int:
        if self._scenario.interference is Interference.KILL_WITHOUT_DRIVER:
            return self._run(
                self._scenario.command, act=Process.kill, is_time=lambda: self._tree.driver_version == "not loaded"
            )
        # A run by hand is not in the driver's pod.
        return self._run(self._scenario.command) if self._gives_devices else self._run_in_pod()

    def _run_in_pod(self) -> int:
        """Run the command; terminate it when the driver's pod is deleted, as a kubelet does."""
        return self._run(
            self._scenario.command, act=Process.stop, is_time=lambda: self._pod not in self._cluster.pods()
        )

    @property
    def _gives_devices(self) -> bool:
        return self._scenario.command == VFIO_COMMAND

    def _interfere(self, report: ScenarioReport) -> None:
        match self._scenario.interference:
            case Interference.NONE:
                return
            case Interference.KILL_WITHOUT_DRIVER:
                self._show.chapter("killed (SIGKILL) without a driver; what status shows now")
                self._run("status")
            case Interference.REBOOT_AFTER:
                self._show.chapter("the node reboots")
                self._tree.reboot()
                self._cluster.new_boot()
            case Interference.CONSENT_AFTER:
                self._env |= CONSENT
                self._show.chapter("the administrator allows it; the plan now")
                self._run("plan")
        self._show.chapter(f"run again: {self._command()}")
        report.exit_codes.append(self._run_in_pod())
        if self._scenario.interference is Interference.CONSENT_AFTER:
            self._show.chapter("what status shows now")
            self._run("status")

    def _run(
        self,
        command: str,
        *arguments: str,
        act: Callable[[Process], object] | None = None,
        is_time: Callable[[], bool] = lambda: True,
    ) -> int:
        """The exit status of a command (negative: a signal). `act` on it as soon as `is_time`."""
        arguments = (*arguments, *(self._scenario.arguments if command != "status" else ()))
        argv = command_line(command, *arguments)
        process = Process(argv, self.environment(), self._tree.root, self._show.line, terminal=self._terminal)
        end_s = time.monotonic() + RUN_TIMEOUT_S
        while act is not None and not process.has_ended and time.monotonic() < end_s:
            if is_time():
                act(process)
                break
            time.sleep(POLL_S)  # the tree's files have no events
        return process.wait(RUN_TIMEOUT_S)

    def environment(self) -> dict[str, str]:
        """The environment of the driver pod's init container."""
        pod = {
            "POD_NAME": self._pod,
            "POD_NAMESPACE": self._cluster.namespace,
            "OPERATOR_NAMESPACE": self._cluster.namespace,
            "DRIVER_CONFIG_DIGEST": NEW_DIGEST,
        }
        return environment(self._tree, self._cluster.kubeconfig, NODE, {**pod, **self._env})

    def _state(self) -> NodeSummary:
        return summary_of(self._cluster.node(), self._tree)


def _problems(scenario: Scenario, before: NodeSummary, after: NodeSummary, exit_codes: list[int]) -> list[str]:
    found: list[str] = []
    expected_codes = {
        Interference.NONE: [int(scenario.exit_code)],
        Interference.KILL_WITHOUT_DRIVER: [-9, int(scenario.exit_code)],
        Interference.CONSENT_AFTER: [int(ExitCode.DRIVER_BUSY), int(scenario.exit_code)],
        Interference.REBOOT_AFTER: [int(scenario.exit_code), int(ExitCode.DONE)],
    }[scenario.interference]
    if exit_codes != expected_codes:
        found.append(f"exit codes {exit_codes}, expected {expected_codes}")
    wanted = before.labels | scenario.changed_labels
    if scenario.shows is not None:
        wanted |= {builtin()[scenario.profile].keys.state: scenario.shows.value}
    for key in sorted(wanted | after.labels):
        if wanted.get(key) != after.labels.get(key):
            found.append(f"label {key} is {after.labels.get(key)!r}, expected {wanted.get(key)!r}")
    if after.cordoned != before.cordoned:
        found.append("the cordon changed")
    if after.journal:
        found.append("the journal is still there")
    if after.driver != scenario.driver_after:
        found.append(f"driver {after.driver}, expected {scenario.driver_after}")
    return found


ROOT = "/var/lib/Ascend/driver"
OLD_FIRMWARE, NEW_FIRMWARE = "25.2.0", "25.5.0"
INTERVAL = "0.2s"
PLAY_TIMEOUT_S = 150.0
COMMAND_TIMEOUT_S = 90.0
REBOOT_POLL_S = 0.01
AGENTS = {"reconcile-driver-state": "reconcile"}
WIDEST = len("health-watch")
REST_OF_STATUS = "devices"
"""The first line of `status` that has nothing to do with the reboot."""


class Machine:
    """A node: its host, and the loops that run on it."""

    def __init__(self, name: str, folder: Path, show: Show, prefix: str) -> None:
        self.name = name
        self.tree = HostTree(folder / "host", folder / "bin", builtin()["ascend"])
        self.tree.build()
        self.tree.keep_kernel_log()
        self.tree.add_driver(ROOT, OLD_FIRMWARE)
        self.tree.load(ROOT)
        self.tree.record(OLD_DIGEST, ROOT, OLD_FIRMWARE)
        self.reboots = 0
        self.marker = self.tree.root / self.tree.profile.paths.reboot_marker.lstrip("/")
        self._show = show
        self._prefix = prefix
        self._loops: list[Process] = []

    def environment(self, kubeconfig: Path, env: dict[str, str]) -> dict[str, str]:
        return environment(self.tree, kubeconfig, self.name, env)

    def start(self, command: list[str], env: dict[str, str]) -> None:
        self._loops.append(Process(command_line(*command), env, self.tree.root, self._printer(command[0])))

    def stop(self) -> None:
        """Kill the loops, as a power cut does."""
        for loop in self._loops:
            loop.kill()
        self._loops.clear()

    @property
    def has_ended(self) -> bool:
        return any(loop.has_ended for loop in self._loops)

    @property
    def is_watched(self) -> bool:
        """True if health-watch has had a healthy sample in this boot."""
        path = self.tree.root / self.tree.profile.paths.health_record.lstrip("/")
        return path.exists() and decode_watch_record(path.read_text(), self.tree.boot_id).was_healthy

    def run(self, command: list[str], env: dict[str, str], *, up_to: str = "") -> int:
        """The exit status of a command, negative for a signal. Lines are shown up to one that begins with `up_to`."""
        show, is_over = self._printer(command[0]), False

        def say(line: str) -> None:
            nonlocal is_over
            is_over = is_over or (bool(up_to) and line.startswith(up_to))
            if not is_over:
                show(line)

        return Process(command_line(*command), env, self.tree.root, say).wait(COMMAND_TIMEOUT_S)

    def _printer(self, agent: str) -> Callable[[str], None]:
        prefix = f"{self._prefix}{AGENTS.get(agent, agent):<{WIDEST}} | "
        return lambda line: self._show.line(prefix + line)

    @property
    def record(self) -> Record:
        path = self.tree.root / self.tree.profile.paths.rebooter_record.lstrip("/")
        return decode_reboot_record(path.read_text()) if path.exists() else Record()

    @property
    def is_settled(self) -> bool:
        return self.record.is_empty and not self.marker.exists()


def run_reboot_scenario(scenario: RebootScenario, show: Show) -> ScenarioReport:
    """Play `scenario` and check its end. Raises RuntimeError if the sandbox itself fails."""
    with tempfile.TemporaryDirectory(prefix="driver-manager-sandbox-") as name, ExitStack() as stack:
        folder = Path(name).resolve()
        names = [NODE, *(f"{NODE}-{number}" for number in range(2, scenario.nodes + 1))]
        machines = [
            Machine(one, folder / one, show, f"{one:<{len(names[-1])}}  " if scenario.nodes > 1 else "")
            for one in names
        ]
        first = machines[0].tree
        cluster = stack.enter_context(SandboxCluster(first.profile, first, folder, digest=NEW_DIGEST))
        for machine in machines[1:]:
            cluster.add_node(machine.name, machine.tree)
        for machine in machines:
            stack.callback(machine.stop)
        return RebootPlay(scenario, cluster, machines, show).report()


class RebootPlay:
    def __init__(self, scenario: RebootScenario, cluster: SandboxCluster, machines: list[Machine], show: Show) -> None:
        self._scenario = scenario
        self._cluster = cluster
        self._machines = machines
        self._show = show
        self._keys = cluster.profile.keys
        self._problems: list[str] = []
        self._approved: set[str] = set()

    def report(self) -> ScenarioReport:
        begun_s, first_request = time.monotonic(), len(self._cluster.server.requests)
        report = ScenarioReport(self._scenario, self._state())
        self._show.chapter("the rebooter starts on each node, and waits for a marker that asks for a reboot")
        for machine in self._machines:
            self._start(machine)
        for machine in self._machines:
            report.exit_codes += self._ask(machine)
        self._play(begun_s)
        for machine in self._machines:
            machine.stop()
        report.seconds = time.monotonic() - begun_s
        report.requests = sum(record.resource != "events" for record in self._cluster.server.requests[first_request:])
        report.timeline = self._cluster.timeline(begun_s)
        report.after = self._state()
        report.problems = [*self._problems, *self._judge(report)]
        return report

    def _start(self, machine: Machine) -> None:
        machine.start(["rebooter"], self._env(machine, **self._scenario.env))
        if self._scenario.wedges:
            machine.start(["health-watch", "--profile=ascend"], self._env(machine, HEALTH_WATCH_INTERVAL=INTERVAL))

    def _env(self, machine: Machine, **env: str) -> dict[str, str]:
        return machine.environment(self._cluster.kubeconfig, {"REBOOTER_INTERVAL": INTERVAL, **env})

    def _ask(self, machine: Machine) -> list[int]:
        """Let a marker appear; the exit code of the reconcile that wrote it, if any."""
        if self._scenario.reason == UPGRADE_REASON:
            machine.tree.add_driver(ROOT, NEW_FIRMWARE)
            self._show.chapter(
                f"driver {NEW_FIRMWARE} is installed on {machine.name}; plan: what driver-manager would do"
            )
            machine.run(["plan", "--no-wait"], self._driver_env(machine))
            return [self._reconcile(machine)]
        machine.marker.parent.mkdir(parents=True, exist_ok=True)
        if self._scenario.wedges:
            self._wedge(machine)
            return []
        self._show.chapter(f"the chip of {machine.name} is wedged, and the marker asks for a reboot")
        samples = ("npu-smi: dcmi module initialize failed. ret is -8005",) * 3
        machine.marker.write_text(encode_marker(Marker(RECOVERY, machine.tree.boot_id, machine.name, evidence=samples)))
        return []

    def _wedge(self, machine: Machine) -> None:
        """Wedge the chip after health-watch has had a healthy sample."""
        end_s = time.monotonic() + PLAY_TIMEOUT_S
        while not machine.is_watched and time.monotonic() < end_s:
            time.sleep(REBOOT_POLL_S)  # the tree's files have no events
        self._show.chapter("the chip wedges: npu-smi fails from now on")
        machine.tree.wedge()

    def _reconcile(self, machine: Machine) -> int:
        self._show.chapter(f"driver-manager reconcile-driver-state --no-wait on {machine.name}")
        return machine.run(["reconcile-driver-state", "--no-wait"], self._driver_env(machine))

    def _driver_env(self, machine: Machine) -> dict[str, str]:
        """The environment of the driver pod's init container."""
        settings = {"DRIVER_CONFIG_DIGEST": NEW_DIGEST, "DRIVER_LOAD": "manager", "DRIVER_ROOT": ROOT}
        pod = {"POD_NAME": self._cluster.driver_pod(), "POD_NAMESPACE": self._cluster.namespace}
        return self._env(machine, **settings, **pod)

    def _play(self, begun_s: float) -> None:
        """Play hardware, kubelet and administrator until all is settled."""
        while time.monotonic() < begun_s + PLAY_TIMEOUT_S:
            for machine in self._machines:
                self._follow(machine)
            if self._is_over():
                return
            time.sleep(REBOOT_POLL_S)  # the trees' files have no events
        self._problems.append(f"not over after {PLAY_TIMEOUT_S:g} s")

    def _follow(self, machine: Machine) -> None:
        if machine.has_ended:
            self._problems.append(f"a loop on {machine.name} ended by itself")
            machine.stop()
            self._start(machine)
        if machine.tree.is_reboot_requested:
            self._reboot(machine)
        if machine.record.reason and machine.name not in self._approved:
            self._approved.add(machine.name)
            self._answer(machine)

    def _answer(self, machine: Machine) -> None:
        """Answer the request once the rebooter waits: approve it, or let the chip recover."""
        if self._scenario.recovers:
            self._show.chapter("the chip recovers by itself: health-watch withdraws its marker")
            machine.marker.unlink()
        elif self._scenario.approves:
            if len(self._approved) == 1:
                self._show.chapter(f"driver-manager status on {machine.name}, its first lines")
                wanted = NEW_DIGEST if self._scenario.reason == UPGRADE_REASON else OLD_DIGEST
                machine.run(["status"], self._env(machine, DRIVER_CONFIG_DIGEST=wanted), up_to=REST_OF_STATUS)
            self._show.chapter(f"kubectl annotate node {machine.name} {self._keys.approve_reboot}=true")
            self._annotate(machine, self._keys.approve_reboot, APPROVED)

    def _annotate(self, machine: Machine, key: str, value: str) -> None:
        def change(node: dict[str, Any]) -> dict[str, Any]:
            notes = {**node["metadata"].get("annotations", {}), key: value}
            return {**node, "metadata": {**node["metadata"], "annotations": notes}}

        self._cluster.store.patch("nodes", machine.name, change)

    def _reboot(self, machine: Machine) -> None:
        """Stop the host and start it again; load its driver."""
        others = [
            other.name for other in self._machines if other is not machine and other.tree.driver_version != OLD_FIRMWARE
        ]
        machine.stop()
        machine.reboots += 1
        if any(name for name in others if self._holds_slot(name)):
            self._problems.append(f"{machine.name} reboots while {', '.join(others)} does")
        self._show.chapter(f"{machine.name} reboots")
        self._cluster.new_boot(machine.name, machine.tree, is_ready=False)
        machine.tree.reboot()
        self._start(machine)
        self._cluster.new_boot(machine.name, machine.tree)
        if self._scenario.reason == UPGRADE_REASON:
            if self._reconcile(machine) != ExitCode.DONE:
                self._problems.append("the new driver was not loaded after the boot")
        else:
            machine.tree.load(ROOT)
            machine.tree.record(OLD_DIGEST, ROOT, OLD_FIRMWARE)

    def _lease(self) -> dict[str, Any]:
        try:
            return self._cluster.store.get("leases", LEASE, self._cluster.namespace)
        except ApiError:
            return {}

    def _holds_slot(self, name: str) -> bool:
        return name in (self._lease().get("spec", {}).get("holderIdentity") or "").split(", ")

    def _is_over(self) -> bool:
        if any(machine.reboots < self._scenario.reboots or not machine.is_settled for machine in self._machines):
            return False
        return len(self._approved) == len(self._machines) or not (self._scenario.approves or self._scenario.recovers)

    def _state(self) -> NodeSummary:
        node = self._cluster.node()
        return summary_of(node, self._machines[0].tree, journal=bool(self._left_on(node)))

    def _left_on(self, node: dict[str, Any]) -> dict[str, str]:
        """Annotations that should be gone at the end: all but the last outcome."""
        last_outcome = self._cluster.profile.keys.last_outcome
        return {key: text for key, text in (node["metadata"].get("annotations") or {}).items() if key != last_outcome}

    def _judge(self, report: ScenarioReport) -> list[str]:
        found = [
            f"{machine.name} rebooted {machine.reboots} time(s), expected {self._scenario.reboots}"
            for machine in self._machines
            if machine.reboots != self._scenario.reboots
        ]
        for machine in self._machines:
            node = self._cluster.store.get("nodes", machine.name)
            if self._left_on(node) or node.get("spec", {}).get("unschedulable"):
                found.append(f"something is left on {machine.name}: {self._left_on(node)}")
        wanted = report.before.labels | {self._cluster.profile.keys.state: NodeState.READY.value}
        if report.after is not None and report.after.labels != wanted:
            found.append(f"labels are {report.after.labels}, expected {wanted}")
        expected = NEW_FIRMWARE if self._scenario.reason == UPGRADE_REASON else OLD_FIRMWARE
        if report.after is not None and report.after.driver != expected:
            found.append(f"driver {report.after.driver}, expected {expected}")
        if self._lease().get("spec", {}).get("holderIdentity"):
            found.append("a slot is still held")
        codes = [int(ExitCode.REBOOT_REQUIRED)] if self._scenario.reason == UPGRADE_REASON else []
        return found + ([f"exit codes {report.exit_codes}, expected {codes}"] if report.exit_codes != codes else [])


DEFAULT_SHELL = "/bin/sh"
NOT_FOR_PEOPLE = ("LOG_FORMAT", "TERMINATION_LOG")
"""Variables of containers that a person does not need."""


def shell_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The shell's environment: that of this process, and that of the driver pod's init container."""
    own = {name: value for name, value in env.items() if name not in NOT_FOR_PEOPLE}
    tools = str(Path(sys.executable).parent)
    return {**os.environ, **own, "PATH": os.pathsep.join([tools, own["PATH"]])}


def run_shell(env: Mapping[str, str]) -> None:
    """Run the user's shell to its end. Its exit status is ignored."""
    # An interrupt at the prompt is for the shell: this process must not stop.
    before = signal.signal(signal.SIGINT, _ignored)
    try:
        shell = [os.environ.get("SHELL") or DEFAULT_SHELL]
        subprocess.Popen(shell, stdin=None, env=shell_environment(env)).wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _ignored(_: int, __: FrameType | None) -> None:
    """A handler instead of SIG_IGN, which the shell would inherit."""
