"""The scenarios of one run on one node: their data, how each is played, and how its end is checked.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TextIO

from msgspec import Struct, field

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.node_state import NodeState
from driver_manager.profiles import builtin
from driver_manager.sandbox import fake_tools
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


class NamedScenario(Struct, frozen=True):
    """The name on the command line, and the content in one line."""

    name: str
    summary: str


# Hosts at the beginning of a scenario.

OLD, NEW = "1.2.92", "2.0.1"
OLD_DIGEST, NEW_DIGEST = "4d1f7c09a25e83b6", "9be2a06f4c31d758"
OLD_ROOT, NEW_ROOT = "/opt/rbln/1.2.92", "/run/rbln/driver"
ASCEND_ROOT = "/var/lib/Ascend/driver"
OLD_FIRMWARE, NEW_FIRMWARE = "25.2.0", "25.5.0"

Modules = dict[str, Sequence[str]]
Prepare = Callable[[HostTree], None]
RootAndVersion = tuple[str, str]

AMD: Modules = {"amdkcl": (), "amdttm": ("amdkcl",), "amdgpu": ("amdkcl", "amdttm")}
GAUDI: Modules = dict.fromkeys(("habanalabs", "habanalabs_cn", "habanalabs_ib", "habanalabs_en"), ())
"""Nothing in modules.dep orders these modules: they depend on a bus."""

FURIOSA: Modules = {"furiosa_rngd": ()}
TENSTORRENT: Modules = {"tenstorrent": ()}


def _host(  # noqa: PLR0913  # the parts of a host
    loaded: RootAndVersion | None = (OLD_ROOT, OLD),
    installed: RootAndVersion | None = (NEW_ROOT, NEW),
    *,
    digest: str = OLD_DIGEST,
    modules: Modules | None = None,
    fails: bool = False,
    seconds: float = 0.0,
    then: Prepare = lambda _: None,
) -> Prepare:
    """A host whose loaded driver has the recorded digest ("": no record); `installed` fails to load or is slow."""

    def prepare(tree: HostTree) -> None:
        if loaded is not None:
            tree.serve(*loaded, digest, modules)
        if installed is not None:
            tree.add_driver(*installed, modules=modules, fails=fails, seconds=seconds)
        then(tree)

    return prepare


def _vendor_host(vendor: str, modules: Modules, samples: int = 0) -> Prepare:
    """Both drivers are on disk, so they can be loaded after a reboot. Devices are at work for `samples` samples."""

    def then(tree: HostTree) -> None:
        tree.add_firmware_path()
        if samples:
            tree.write(fake_tools.AT_WORK, str(samples))

    return _host((f"/opt/{vendor}/{OLD}", OLD), (f"/opt/{vendor}/{NEW}", NEW), modules=modules, then=then)


def loaded_by_manager(root: str) -> dict[str, str]:
    return {"DRIVER_LOAD": "manager", "DRIVER_ROOT": root}


def _tenants(cluster: SandboxCluster) -> None:
    cluster.add_workload("training-0", app="training")
    cluster.add_workload("serving-0", app="serving")
    cluster.add_budget("serving")
    cluster.later(2.8, lambda: cluster.add_workload("serving-1", app="serving", node="another-node"))


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


# Scenarios of one node.


class Interference(Enum):
    """What happens after the first run begins."""

    NONE = "none"
    KILL_WITHOUT_DRIVER = "SIGKILL once the old driver is unloaded, then run again"
    REBOOT_AFTER = "reboot the host after the run, then run again"
    CONSENT_AFTER = "after a run that is refused, allow it to restart clients, then run again"


class Scenario(NamedScenario, frozen=True):
    """A scenario of one node; the defaults are those of an upgrade that ends well.

    `labels` are extra node labels, `changed_labels` the expected changes. `shows` is the expected state label, None for
    none. `restarts` are the clients that are restarted once, as namespace/DaemonSet. `devices_after` is the expected
    driver of all devices on `bus`. `kernel` is the expected kernel log (empty: not checked). `asks` is a command that
    runs at the end, with its options. `tries` are commands that only this scenario's shell names.
    """

    prepare: Prepare = _host()
    exit_code: ExitCode = ExitCode.DONE
    driver_after: str = NEW
    add_pods: Callable[[SandboxCluster], None] = lambda _: None
    profile: str = "rebellions"
    labels: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=lambda: loaded_by_manager(NEW_ROOT))
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
    tries: tuple[str, ...] = ()


ASKS = ("status", "--probe")


def _swap(tool: str, modules: Modules, *, unloads: bool = True) -> tuple[str, ...]:
    """The kernel log of a swap that unloads the modules backwards. The vendor's tool is asked before and after."""
    asked = f"{tool} sees a device"
    unloaded = [asked, *(f"module {name} unloaded" for name in reversed(modules))] if unloads else []
    return (*unloaded, *(f"module {name} {NEW} loaded" for name in modules), asked)


VENDOR_SCENARIOS = (
    Scenario(
        "amd-reboot",
        "AMD: the loaded driver is never unloaded; a reboot is requested, and after it the new driver is loaded",
        _vendor_host("amd", AMD),
        ExitCode.REBOOT_REQUIRED,
        profile="amd",
        env=loaded_by_manager(f"/opt/amd/{NEW}"),
        arguments=("--no-wait",),
        interference=Interference.REBOOT_AFTER,
        kernel=_swap("amd-smi", AMD, unloads=False),
        asks=ASKS,
    ),
    Scenario(
        "tenstorrent-upgrade",
        "Tenstorrent: an operand that runs without its label is paused; the driver is swapped, the label is removed",
        _vendor_host("tenstorrent", TENSTORRENT),
        profile="tenstorrent",
        env=loaded_by_manager(f"/opt/tenstorrent/{NEW}"),
        kernel=_swap("tt-smi", TENSTORRENT),
        asks=ASKS,
    ),
    Scenario(
        "gaudi-upgrade",
        "Gaudi: a tenant's pod leaves; four modules without dependencies are swapped in the profile's order",
        _vendor_host("habana", GAUDI),
        add_pods=lambda cluster: cluster.add_workload("training-0", app="training", resource=""),
        profile="gaudi",
        env=loaded_by_manager(f"/opt/habana/{NEW}") | {"ENABLE_NPU_POD_EVICTION": "true"},
        kernel=_swap("hl-smi", GAUDI),
        asks=ASKS,
    ),
    Scenario(
        "furiosa-upgrade",
        "Furiosa: the NPU is at work though no process has it open; the swap waits until it is idle",
        _vendor_host("furiosa", FURIOSA, samples=2),
        profile="furiosa",
        env=loaded_by_manager(f"/opt/furiosa/{NEW}"),
        kernel=("furiosa-smi sees a device at work", *_swap("furiosa-smi", FURIOSA)),
        asks=ASKS,
    ),
)

_MANAGER = loaded_by_manager(NEW_ROOT)
_EVICTS = {"ENABLE_NPU_POD_EVICTION": "true"}
_IMPATIENT = _MANAGER | {"DEVICE_FREE_TIMEOUT": "1s"}
_CUSTOM = {"rebellions.ai/npu.deploy.vfio-manager": "false", "rebellions.ai/npu.deploy.container-toolkit": "team-a"}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "upgrade", f"driver {OLD} is loaded, {NEW} is wanted: pause, wait, unload, load, release", labels=_CUSTOM
        ),
        Scenario(
            "container-upgrade",
            f"the same, but the driver's container loads {NEW} afterwards: unload, unmount its old root, release",
            _host(installed=None, then=HostTree.mount_driver_root),
            driver_after="not loaded",
            labels=_CUSTOM,
            env={},
        ),
        Scenario(
            "already-current",
            "the wanted driver is loaded: nothing is changed",
            _host((NEW_ROOT, NEW), None, digest=NEW_DIGEST),
            labels=_CUSTOM,
            shows=None,
        ),
        Scenario("first-install", "no driver is loaded: no pod is paused, the driver is loaded", _host(None)),
        Scenario(
            "stuck-pod",
            "an operand pod is held by a finalizer: it is named at the deadline, the node is released",
            exit_code=ExitCode.PODS_REMAIN,
            driver_after=OLD,
            add_pods=lambda cluster: cluster.pin_pod("rbln-device-plugin", "example.com/backup"),
            env=_MANAGER | {"POD_TERMINATION_TIMEOUT": "2s"},
            shows=NodeState.FAILED,
        ),
        Scenario(
            "workloads",
            "two tenants' pods use the driver, one guarded by a budget that frees up later: evict, then as an upgrade",
            add_pods=_tenants,
            env=_MANAGER | _EVICTS,
        ),
        Scenario(
            "blocked-workload",
            "a tenant's pod would lose its data: it is named with the remedy before anything is changed",
            exit_code=ExitCode.PODS_REMAIN,
            driver_after=OLD,
            add_pods=lambda cluster: cluster.add_workload("scratch-0", app="scratch", empty_dir=True),
            env=_MANAGER | _EVICTS,
            shows=NodeState.FAILED,
        ),
        Scenario(
            "busy-module",
            "something holds the device: the run waits until its timeout, then releases the node",
            _host(then=HostTree.hold_device),
            ExitCode.DRIVER_BUSY,
            OLD,
            env=_IMPATIENT,
            shows=NodeState.FAILED,
        ),
        Scenario(
            "held-device",
            "a process of the host has the device open: the run waits until its timeout, and no pod is paused",
            _host(then=lambda tree: tree.hold_device_by(4242, "trainer")),
            ExitCode.DRIVER_BUSY,
            OLD,
            env=_IMPATIENT,
            shows=NodeState.FAILED,
            tries=("systemctl stop trainer.service",),
        ),
        Scenario(
            "clients",
            "two teams' pods opened the old driver, one holds the device: refused; with consent each is restarted once",
            add_pods=add_clients,
            env=_IMPATIENT,
            interference=Interference.CONSENT_AFTER,
            restarts=tuple(sorted(f"{team}/{name}" for name, team in TEAMS.items())),
        ),
        Scenario(
            "bad-module-with-rollback",
            f"{NEW} does not load: {OLD} is loaded again, the node is released, the failure is reported",
            _host(fails=True),
            ExitCode.MODULE_FAILED,
            OLD,
            shows=NodeState.FAILED,
        ),
        Scenario(
            "crash-and-resume",
            "the manager is killed while no driver is loaded: the node stays paused, the next run finishes",
            _host(seconds=1.0),
            labels=_CUSTOM,
            interference=Interference.KILL_WITHOUT_DRIVER,
        ),
        Scenario(
            "host-driver",
            "the host has its own driver: report it to the operator and stand down",
            _host(("/", NEW), None, digest=""),
            ExitCode.STANDING_DOWN,
            env={},
            changed_labels={"rebellions.ai/npu.deploy.driver": "pre-installed"},
        ),
        Scenario(
            "immutable-host",
            f"the host ships and loads its driver, its image has {NEW} since: a reboot is required, nothing is changed",
            _host(("/", OLD), ("/", NEW), digest=""),
            ExitCode.REBOOT_REQUIRED,
            OLD,
            env={"DRIVER_LOAD": "none", "DRIVER_VERSION": NEW},
            shows=NodeState.REBOOT_REQUIRED,
        ),
        Scenario(
            "to-virtual-machines",
            "the devices are to serve virtual machines: all pods leave the driver, it is unloaded, vfio gets the "
            "devices",
            _host(installed=None, then=HostTree.mount_driver_root),
            driver_after="not loaded",
            add_pods=lambda cluster: cluster.add_workload("training-0", app="training"),
            env=_EVICTS | {"POD_NAME": ""},
            command="reconcile-vfio-state",
            bus=lambda tree: _bus(tree, "rebellions", "rebellions", ""),
            devices_after=VFIO_DRIVER,
        ),
        Scenario(
            "back-from-virtual-machines",
            "the devices are to serve containers again: vfio releases them, and the driver is loaded",
            _host(None),
            bus=_bus,
            devices_after="rebellions",
        ),
        Scenario(
            "virtual-machine-runs",
            "the same while a virtual machine has a device: it is named, it keeps its device, no pod is paused",
            _host(None),
            ExitCode.DRIVER_BUSY,
            "not loaded",
            env=_IMPATIENT,
            bus=_with_a_machine_that_runs,
            devices_after=VFIO_DRIVER,
            shows=NodeState.FAILED,
        ),
        Scenario(
            "ascend-reboot",
            "a driver that must never be unloaded: ask for a reboot; after it, clear the request",
            _host((ASCEND_ROOT, OLD_FIRMWARE), None),
            ExitCode.REBOOT_REQUIRED,
            "not loaded",
            profile="ascend",
            env={},
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
    if labels.get(tree.profile.keys.version) == tree.driver_version:
        del labels[tree.profile.keys.version]
    is_cordoned = bool(node.get("spec", {}).get("unschedulable"))
    if journal is None:
        journal = tree.profile.keys.journal in node["metadata"].get("annotations", {})
    return NodeSummary(labels, is_cordoned, journal, tree.driver_version, tree.digest)


class ScenarioReport(Struct):
    """The result. `problems` is empty if the scenario ended as expected; until the end, `after` is as `before`.

    `is_shown`: the timeline was printed while the scenario ran. `node` is the compared node if there are several.
    """

    scenario: NamedScenario
    before: NodeSummary
    after: NodeSummary
    exit_codes: list[int] = field(default_factory=list)
    timeline: list[Happening] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    is_shown: bool = False
    node: str = ""


def differences(compared: Iterable[tuple[str, object, object]]) -> list[str]:
    """A line for each row whose second part is not as expected, which is the third."""
    return [f"{what} {got!r}, expected {expected!r}" for what, got, expected in compared if got != expected]


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
                rows = [(f"device {one} has driver", bus.driver_of(one), scenario.devices_after) for one in DEVICES]
                report.problems += differences(rows)
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
        scenario, before = self._scenario, self._state()
        report = ScenarioReport(scenario, before, before)
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
        seen = [text for at_s, text in self._tree.kernel_log() if at_s >= begun_s]
        if scenario.asks:
            self._show.chapter(f"driver-manager {' '.join(scenario.asks)}")
            self._run(*scenario.asks)
        kernel, restarted = [*scenario.kernel] or seen, self._cluster.restarted()
        report.problems = [
            *_problems(scenario, before, report.after, report.exit_codes),
            *differences([("the kernel reports", seen, kernel)]),
            *differences([("restarted clients", restarted, [*scenario.restarts])]),
        ]
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
    expected_codes = {
        Interference.NONE: [int(scenario.exit_code)],
        Interference.KILL_WITHOUT_DRIVER: [-9, int(scenario.exit_code)],
        Interference.CONSENT_AFTER: [int(ExitCode.DRIVER_BUSY), int(scenario.exit_code)],
        Interference.REBOOT_AFTER: [int(scenario.exit_code), int(ExitCode.DONE)],
    }[scenario.interference]
    wanted = before.labels | scenario.changed_labels
    if scenario.shows is not None:
        wanted |= {builtin()[scenario.profile].keys.state: scenario.shows.value}
    keys = sorted(wanted | after.labels)
    return differences(
        [
            ("exit codes", exit_codes, expected_codes),
            *((f"label {key} is", after.labels.get(key), wanted.get(key)) for key in keys),
            ("cordoned:", after.cordoned, before.cordoned),
            ("journal:", after.journal, False),
            ("driver", after.driver, scenario.driver_after),
        ]
    )


DEFAULT_SHELL = "/bin/sh"
NOT_FOR_PEOPLE = ("LOG_FORMAT", "TERMINATION_LOG")
"""Variables of containers that a person does not need."""


def run_shell(env: Mapping[str, str]) -> None:
    """Run the user's shell to its end, with `env` of the driver pod's init container. Its exit status is ignored."""
    own = {name: value for name, value in env.items() if name not in NOT_FOR_PEOPLE}
    path = os.pathsep.join([str(Path(sys.executable).parent), own["PATH"]])
    # An interrupt at the prompt is for the shell: this process must not stop.
    before = signal.signal(signal.SIGINT, _ignored)
    try:
        shell = [os.environ.get("SHELL") or DEFAULT_SHELL]
        subprocess.Popen(shell, stdin=None, env={**os.environ, **own, "PATH": path}).wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _ignored(_: int, __: FrameType | None) -> None:
    """A handler instead of SIG_IGN, which the shell would inherit."""
