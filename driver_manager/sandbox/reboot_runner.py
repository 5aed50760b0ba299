"""Plays a story of reboots: the real rebooter on each node, health-watch too, and hosts that go down when told to.

Owns what the hardware, the kubelet and the administrator do. Prints nothing: a `Show` does.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from driver_manager.adapters.kube.leases import LEASE
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.health.record import recorded
from driver_manager.domain.markers import RECOVERY, UPGRADE, Marker, encode
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.reboot.patches import APPROVED
from driver_manager.domain.reboot.record import Record, decode
from driver_manager.profiles import builtin
from driver_manager.sandbox.cluster import NODE, SandboxCluster
from driver_manager.sandbox.containers import Container, environment
from driver_manager.sandbox.host_tree import HostTree
from driver_manager.sandbox.reboot_scenarios import RebootStory
from driver_manager.sandbox.runner import NodeSummary, ScenarioReport, Show
from driver_manager.sandbox.scenario import NEW_DIGEST, OLD_DIGEST
from driver_manager.sandbox.store import ApiError

ROOT = "/var/lib/Ascend/driver"
OLD, NEW = "25.2.0", "25.5.0"
INTERVAL = "0.2s"
PLAY_TIMEOUT_S = 150.0
COMMAND_TIMEOUT_S = 90.0
POLL_S = 0.01
AGENTS = {"reconcile-driver-state": "reconcile"}
"""Programs that are known by a shorter name."""

WIDEST = len("health-watch")
REST_OF_STATUS = "devices"
"""Where `status` goes on to what has nothing to do with the reboot."""


class Machine:
    """One node: its host, and the rebooter that runs on it."""

    def __init__(self, name: str, folder: Path, show: Show, prefix: str) -> None:
        self.name = name
        self.tree = HostTree(folder / "host", folder / "bin", builtin()["ascend"])
        self.tree.build()
        self.tree.add_driver(ROOT, OLD)
        self.tree.load(ROOT)
        self.tree.record(OLD_DIGEST, ROOT, OLD)
        self.reboots = 0
        self.marker = self.tree.root / self.tree.profile.paths.reboot_marker.lstrip("/")
        self._show = show
        self._prefix = prefix
        self._loops: list[Container] = []

    def environment(self, kubeconfig: Path, env: dict[str, str]) -> dict[str, str]:
        """What the container of a driver-manager has here."""
        return environment(self.tree, kubeconfig, self.name, env)

    def start(self, command: list[str], env: dict[str, str]) -> None:
        """The container of a loop starts."""
        self._loops.append(Container(command, env, self.tree.root, self._speaker(command[0])))

    def stop(self) -> None:
        """The loops are gone, as everything is when the power is."""
        for loop in self._loops:
            loop.kill()
        self._loops.clear()

    @property
    def has_ended(self) -> bool:
        """Whether a loop ended by itself, which it never should."""
        return any(loop.has_ended for loop in self._loops)

    @property
    def is_watched(self) -> bool:
        """Whether health-watch has seen the chip healthy in this boot."""
        path = self.tree.root / self.tree.profile.paths.health_record.lstrip("/")
        return path.exists() and recorded(path.read_text(), self.tree.boot_id).was_healthy

    def run(self, command: list[str], env: dict[str, str], *, up_to: str = "") -> int:
        """Run another command to its end, its lines shown as they come; its exit status, negative for a signal.

        `up_to`: a line that begins so is not shown, nor is any after it.
        """
        speak, is_over = self._speaker(command[0]), False

        def say(line: str) -> None:
            nonlocal is_over
            is_over = is_over or (bool(up_to) and line.startswith(up_to))
            if not is_over:
                speak(line)

        return Container(command, env, self.tree.root, say).wait(COMMAND_TIMEOUT_S)

    def _speaker(self, agent: str) -> Callable[[str], None]:
        """Shows the lines of one of the programs on this node, each with its name."""
        prefix = f"{self._prefix}{AGENTS.get(agent, agent):<{WIDEST}} | "
        return lambda line: self._show.line(prefix + line)

    @property
    def record(self) -> Record:
        """What the rebooter remembers."""
        path = self.tree.root / self.tree.profile.paths.rebooter_record.lstrip("/")
        return decode(path.read_text()) if path.exists() else Record()

    @property
    def is_settled(self) -> bool:
        """Whether its rebooter has nothing under way."""
        return self.record.is_empty and not self.marker.exists()


def run_reboot_story(story: RebootStory, show: Show) -> ScenarioReport:
    """Play `story` and judge its end. Raises RuntimeError when the sandbox itself does not work."""
    with tempfile.TemporaryDirectory(prefix="driver-manager-sandbox-") as name, ExitStack() as stack:
        folder = Path(name).resolve()
        names = [NODE, *(f"{NODE}-{number}" for number in range(2, story.nodes + 1))]
        machines = [
            Machine(one, folder / one, show, f"{one:<{len(names[-1])}}  " if story.nodes > 1 else "") for one in names
        ]
        first = machines[0].tree
        cluster = stack.enter_context(SandboxCluster(first.profile, first, folder, digest=NEW_DIGEST))
        for machine in machines[1:]:
            cluster.add_node(machine.name, machine.tree)
        for machine in machines:
            stack.callback(machine.stop)
        return RebootPlay(story, cluster, machines, show).report()


class RebootPlay:
    """One story under way."""

    def __init__(self, story: RebootStory, cluster: SandboxCluster, machines: list[Machine], show: Show) -> None:
        self._story = story
        self._cluster = cluster
        self._machines = machines
        self._show = show
        self._keys = cluster.profile.keys
        self._problems: list[str] = []
        self._approved: set[str] = set()

    def report(self) -> ScenarioReport:
        """Ask, wait for what has to come, compare."""
        begun_s, first_request = time.monotonic(), len(self._cluster.server.requests)
        report = ScenarioReport(self._story, self._state())
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
        """The loops of a node start, as they do at each boot."""
        machine.start(["rebooter"], self._env(machine, **self._story.env))
        if self._story.wedges:
            machine.start(["health-watch", "--profile=ascend"], self._env(machine, HEALTH_WATCH_INTERVAL=INTERVAL))

    def _env(self, machine: Machine, **env: str) -> dict[str, str]:
        return machine.environment(self._cluster.kubeconfig, {"REBOOTER_INTERVAL": INTERVAL, **env})

    def _ask(self, machine: Machine) -> list[int]:
        """A marker appears; the exit code of the reconcile that wrote it, where one did."""
        if self._story.reason == UPGRADE:
            machine.tree.add_driver(ROOT, NEW)
            self._show.chapter(f"driver {NEW} is installed on {machine.name}; plan: what driver-manager would do")
            machine.run(["plan", "--no-wait"], self._driver_env(machine))
            return [self._reconcile(machine)]
        machine.marker.parent.mkdir(parents=True, exist_ok=True)
        if self._story.wedges:
            self._wedge(machine)
            return []
        self._show.chapter(f"the chip of {machine.name} is wedged, and the marker asks for a reboot")
        samples = ("npu-smi: dcmi module initialize failed. ret is -8005",) * 3
        machine.marker.write_text(encode(Marker(RECOVERY, machine.tree.boot_id, machine.name, evidence=samples)))
        return []

    def _wedge(self, machine: Machine) -> None:
        """Once health-watch has seen the chip healthy, it wedges."""
        end_s = time.monotonic() + PLAY_TIMEOUT_S
        while not machine.is_watched and time.monotonic() < end_s:
            time.sleep(POLL_S)  # the tree's files have no events
        self._show.chapter("the chip wedges: npu-smi fails from now on")
        machine.tree.wedge()

    def _reconcile(self, machine: Machine) -> int:
        self._show.chapter(f"driver-manager reconcile-driver-state --no-wait on {machine.name}")
        return machine.run(["reconcile-driver-state", "--no-wait"], self._driver_env(machine))

    def _driver_env(self, machine: Machine) -> dict[str, str]:
        """What the init container of the driver pod has."""
        settings = {"DRIVER_CONFIG_DIGEST": NEW_DIGEST, "DRIVER_LOAD": "manager", "DRIVER_ROOT": ROOT}
        pod = {"POD_NAME": self._cluster.driver_pod(), "POD_NAMESPACE": self._cluster.namespace}
        return self._env(machine, **settings, **pod)

    def _play(self, begun_s: float) -> None:
        """Be hardware, kubelet and administrator until everything has come to rest."""
        while time.monotonic() < begun_s + PLAY_TIMEOUT_S:
            for machine in self._machines:
                self._follow(machine)
            if self._is_over():
                return
            time.sleep(POLL_S)  # the trees' files have no events
        self._problems.append(f"not over after {PLAY_TIMEOUT_S:g} s")

    def _follow(self, machine: Machine) -> None:
        if machine.has_ended:
            self._problems.append(f"a loop on {machine.name} ended by itself")
            machine.stop()
            self._start(machine)
        if machine.tree.is_told_to_reboot:
            self._reboot(machine)
        if machine.record.reason and machine.name not in self._approved:
            self._approved.add(machine.name)
            self._answer(machine)

    def _answer(self, machine: Machine) -> None:
        """What comes of the request once the rebooter waits: an approval, or a chip that recovers by itself."""
        if self._story.recovers:
            self._show.chapter("the chip recovers by itself: health-watch withdraws its marker")
            machine.marker.unlink()
        elif self._story.approves:
            if len(self._approved) == 1:
                self._show.chapter(f"driver-manager status on {machine.name}, its first lines")
                wanted = NEW_DIGEST if self._story.reason == UPGRADE else OLD_DIGEST
                machine.run(["status"], self._env(machine, DRIVER_CONFIG_DIGEST=wanted), up_to=REST_OF_STATUS)
            self._show.chapter(f"kubectl annotate node {machine.name} {self._keys.approve_reboot}=true")
            self._annotate(machine, self._keys.approve_reboot, APPROVED)

    def _annotate(self, machine: Machine, key: str, value: str) -> None:
        def change(node: dict[str, Any]) -> dict[str, Any]:
            notes = {**node["metadata"].get("annotations", {}), key: value}
            return {**node, "metadata": {**node["metadata"], "annotations": notes}}

        self._cluster.store.patch("nodes", machine.name, change)

    def _reboot(self, machine: Machine) -> None:
        """The host goes down with everything on it, comes up, and its driver is loaded by whoever does that."""
        others = [other.name for other in self._machines if other is not machine and other.tree.driver_version != OLD]
        machine.stop()
        machine.reboots += 1
        if any(name for name in others if self._holds_slot(name)):
            self._problems.append(f"{machine.name} reboots while {', '.join(others)} does")
        self._show.chapter(f"{machine.name} reboots")
        self._cluster.new_boot(machine.name, machine.tree, is_ready=False)
        machine.tree.reboot()
        self._start(machine)
        self._cluster.new_boot(machine.name, machine.tree)
        if self._story.reason == UPGRADE:
            if self._reconcile(machine) != ExitCode.DONE:
                self._problems.append("the new driver was not loaded after the boot")
        else:
            machine.tree.load(ROOT)
            machine.tree.record(OLD_DIGEST, ROOT, OLD)

    def _lease(self) -> dict[str, Any]:
        try:
            return self._cluster.store.get("leases", LEASE, self._cluster.namespace)
        except ApiError:
            return {}

    def _holds_slot(self, name: str) -> bool:
        return name in (self._lease().get("spec", {}).get("holderIdentity") or "").split(", ")

    def _is_over(self) -> bool:
        if any(machine.reboots < self._story.reboots or not machine.is_settled for machine in self._machines):
            return False
        return len(self._approved) == len(self._machines) or not (self._story.approves or self._story.recovers)

    def _state(self) -> NodeSummary:
        node, tree = self._cluster.node(), self._machines[0].tree
        metadata: dict[str, Any] = node["metadata"]
        return NodeSummary(
            labels=dict(metadata.get("labels", {})),
            cordoned=bool(node.get("spec", {}).get("unschedulable")),
            journal=bool(self._left_on(node)),
            driver=tree.driver_version,
            digest=tree.digest,
        )

    def _left_on(self, node: dict[str, Any]) -> dict[str, str]:
        """Annotations that speak of something taken or asked for: how the last run ended stays."""
        last_outcome = self._cluster.profile.keys.last_outcome
        return {key: text for key, text in (node["metadata"].get("annotations") or {}).items() if key != last_outcome}

    def _judge(self, report: ScenarioReport) -> list[str]:
        """How the end differs from how it has to be."""
        found = [
            f"{machine.name} rebooted {machine.reboots} time(s), expected {self._story.reboots}"
            for machine in self._machines
            if machine.reboots != self._story.reboots
        ]
        for machine in self._machines:
            node = self._cluster.store.get("nodes", machine.name)
            if self._left_on(node) or node.get("spec", {}).get("unschedulable"):
                found.append(f"something is left on {machine.name}: {self._left_on(node)}")
        wanted = report.before.labels | {self._cluster.profile.keys.state: NodeState.READY.value}
        if report.after is not None and report.after.labels != wanted:
            found.append(f"labels are {report.after.labels}, expected {wanted}")
        expected = NEW if self._story.reason == UPGRADE else OLD
        if report.after is not None and report.after.driver != expected:
            found.append(f"driver {report.after.driver}, expected {expected}")
        if self._lease().get("spec", {}).get("holderIdentity"):
            found.append("a slot is still held")
        codes = [int(ExitCode.REBOOT_REQUIRED)] if self._story.reason == UPGRADE else []
        return found + ([f"exit codes {report.exit_codes}, expected {codes}"] if report.exit_codes != codes else [])
