"""Runs a scenario: the real command line as its own process against the sandbox's cluster and host tree.

Owns the processes, the timeline and the comparison with how it has to end. Prints nothing: a `Show` does.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.frozen import Frozen
from driver_manager.profiles import builtin
from driver_manager.sandbox.cluster import NODE, Happening, SandboxCluster
from driver_manager.sandbox.containers import environment
from driver_manager.sandbox.foreground import Foreground
from driver_manager.sandbox.host_tree import HostTree
from driver_manager.sandbox.scenario import NEW_DIGEST, Interference, Scenario
from driver_manager.sandbox.scenarios import DEVICES

RUN_TIMEOUT_S = 150.0
POLL_S = 0.005
CONSENT = {"RESTART_CLIENTS": "true"}
VFIO_COMMAND = "reconcile-vfio-state"


class Show(Protocol):
    """Where the story goes while it happens."""

    def chapter(self, title: str) -> None:
        """A new part begins."""
        ...

    def line(self, text: str) -> None:
        """One line of it."""
        ...


class NodeSummary(Frozen):
    """What is compared between beginning and end."""

    labels: dict[str, str]
    cordoned: bool
    journal: bool
    driver: str
    digest: str


class Story(Protocol):
    """What a report is about."""

    @property
    def name(self) -> str:
        """Its name on the command line."""
        ...

    @property
    def tells(self) -> str:
        """What happens in it, in one line."""
        ...


@dataclass
class ScenarioReport:
    """How a scenario went. `problems` is empty when it ended as it has to.

    `is_told`: what is in the timeline was shown while it happened. `node` is named where there are several.
    """

    scenario: Story
    before: NodeSummary
    after: NodeSummary | None = None
    exit_codes: list[int] = field(default_factory=list)
    timeline: list[Happening] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    is_told: bool = False
    node: str = ""


class Stay(Frozen):
    """Where a story took place, while it lasts: what a command has in its environment there."""

    env: dict[str, str]


def run_scenario(
    scenario: Scenario,
    show: Show,
    terminal: TextIO | None = None,
    then: Callable[[ScenarioReport, Stay], None] = lambda _, __: None,
) -> ScenarioReport:
    """Play `scenario` and judge its end. Raises RuntimeError when the sandbox itself does not work.

    `terminal`: what the commands draw goes there as it is. `then` is called while server and host are still there.
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
            scenario.meddle(cluster)
            play = _Play(scenario, cluster, tree, show, terminal)
            report = play.report()
            if bus is not None:
                drivers = {address: bus.driver_of(address) for address in DEVICES}
                report.problems += _problems_of_devices(scenario, drivers)
            then(report, Stay({**play.environment(), "KUBECONFIG": str(cluster.kubectl_config)}))
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
        """Plan, run, interfere, compare."""
        report = ScenarioReport(self._scenario, self._state())
        self._show.chapter("plan: what driver-manager would do")
        self._run("plan", arguments=("--mode", "vfio") if self._gives_devices else ())
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
        report.problems = _problems(self._scenario, report)
        seen = tuple(text for at_s, text in self._tree.kernel_log() if at_s >= begun_s)
        if self._scenario.kernel and seen != self._scenario.kernel:
            report.problems.append(f"the kernel reports {list(seen)}, expected {list(self._scenario.kernel)}")
        if self._scenario.asks:
            self._show.chapter(f"driver-manager {' '.join(self._scenario.asks)}")
            self._run(self._scenario.asks[0], arguments=self._scenario.asks[1:])
        if (restarted := self._cluster.restarted()) != list(self._scenario.restarts):
            report.problems.append(f"restarted clients {restarted}, expected {list(self._scenario.restarts)}")
        return report

    def _command(self) -> str:
        """The command as one would type it, apart from what every init container has."""
        settings = [f"{name}={value}" for name, value in self._env.items()]
        return " ".join([*settings, f"driver-manager {self._scenario.command}", *self._scenario.arguments])

    def _reconcile(self) -> int:
        watch = self._kill_without_driver if self._scenario.interference is Interference.KILL_WITHOUT_DRIVER else None
        # By hand it is in no pod that could be told to stop.
        return self._run(self._scenario.command, watch or (None if self._gives_devices else self._end_with_pod))

    @property
    def _gives_devices(self) -> bool:
        return self._scenario.command == VFIO_COMMAND

    def _interfere(self, report: ScenarioReport) -> None:
        if self._scenario.interference is Interference.KILL_WITHOUT_DRIVER:
            self._show.chapter("killed (SIGKILL) without a driver; what status shows now")
            self._run("status")
        elif self._scenario.interference is Interference.REBOOT_AFTER:
            self._show.chapter("the node reboots")
            self._tree.reboot()
            self._cluster.new_boot()
        elif self._scenario.interference is Interference.CONSENT_AFTER:
            self._env |= CONSENT
            self._show.chapter("the administrator allows it; the plan now")
            self._run("plan")
        else:
            return
        self._show.chapter(f"run again: {self._command()}")
        report.exit_codes.append(self._run(self._scenario.command, self._end_with_pod))
        if self._scenario.interference is Interference.CONSENT_AFTER:
            self._show.chapter("what status shows now")
            self._run("status")

    def _run(
        self,
        command: str,
        watch: Callable[[subprocess.Popen[bytes]], None] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> int:
        """Run one command to its end, its lines shown as they come; its exit status (negative: a signal)."""
        arguments = (*arguments, *(self._scenario.arguments if command != "status" else ()))
        argv = [sys.executable, "-m", "driver_manager", command, *arguments]
        running = Foreground(argv, self.environment(), self._tree.root, self._show.line, self._terminal)
        watcher = threading.Thread(target=watch or self._time_out, args=(running.process,), daemon=True)
        watcher.start()
        status = running.follow()
        watcher.join()
        return status

    def environment(self) -> dict[str, str]:
        """What the init container of the driver pod has."""
        pod = {
            "POD_NAME": self._pod,
            "POD_NAMESPACE": self._cluster.namespace,
            "OPERATOR_NAMESPACE": self._cluster.namespace,
            "DRIVER_CONFIG_DIGEST": NEW_DIGEST,
        }
        return environment(self._tree, self._cluster.kubeconfig, NODE, {**pod, **self._env})

    def _time_out(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()

    def _end_with_pod(self, process: subprocess.Popen[bytes]) -> None:
        """As a kubelet: when the driver's pod is told to stop, terminate its init container."""
        self._once(lambda: self._pod not in self._cluster.pods(), process.terminate, process)

    def _kill_without_driver(self, process: subprocess.Popen[bytes]) -> None:
        self._once(lambda: self._tree.driver_version == "not loaded", process.kill, process)

    def _once(self, is_time: Callable[[], bool], act: Callable[[], None], process: subprocess.Popen[bytes]) -> None:
        """`act` as soon as `is_time`, while the process runs; then wait for its end."""
        end_s = time.monotonic() + RUN_TIMEOUT_S
        while process.poll() is None and time.monotonic() < end_s:
            if is_time():
                act()
                break
            time.sleep(POLL_S)  # the tree's files have no events
        self._time_out(process)

    def _state(self) -> NodeSummary:
        node = self._cluster.node()
        metadata: dict[str, Any] = node["metadata"]
        keys = self._cluster.profile.keys
        return NodeSummary(
            labels=dict(metadata.get("labels", {})),
            cordoned=bool(node.get("spec", {}).get("unschedulable")),
            journal=keys.journal in metadata.get("annotations", {}),
            driver=self._tree.driver_version,
            digest=self._tree.digest,
        )


def _problems_of_devices(scenario: Scenario, drivers: dict[str, str]) -> list[str]:
    """The devices that have another driver than they have to."""
    wanted = scenario.devices_after
    return [
        f"device {address} has driver {driver or 'none'}, expected {wanted or 'none'}"
        for address, driver in drivers.items()
        if driver != wanted
    ]


def _problems(scenario: Scenario, report: ScenarioReport) -> list[str]:
    """How the end differs from how it has to be."""
    found: list[str] = []
    before, after = report.before, report.after
    assert after is not None  # noqa: S101  # set just before
    expected_codes = {
        Interference.NONE: [int(scenario.exit_code)],
        Interference.KILL_WITHOUT_DRIVER: [-9, int(scenario.exit_code)],
        Interference.CONSENT_AFTER: [int(ExitCode.DRIVER_BUSY), int(scenario.exit_code)],
        Interference.REBOOT_AFTER: [int(scenario.exit_code), int(ExitCode.DONE)],
    }[scenario.interference]
    if report.exit_codes != expected_codes:
        found.append(f"exit codes {report.exit_codes}, expected {expected_codes}")
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
