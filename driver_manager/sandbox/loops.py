"""The scenarios of the loops on nodes, which reboot and recover them: their data, how each is played and checked.

This module plays the hardware, the kubelet and the administrator around real `health-watch` and `rebooter` processes.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec import field

from driver_manager import profiles
from driver_manager.adapters.kube.leases import LEASE, RECOVERY_LEASE
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.events import NEEDS_SERVICE
from driver_manager.domain.health.watch import decode_watch_record
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, Marker, encode_marker
from driver_manager.domain.node_state import (
    NO_RECOVERY,
    WAITS_FOR_APPROVAL,
    NodeState,
    Recovery,
    RecoveryState,
    decode_note,
)
from driver_manager.domain.profile import RecoveryStep
from driver_manager.domain.reboot.decision import APPROVED
from driver_manager.domain.reboot.state import Record, decode_reboot_record
from driver_manager.domain.recovery import RecoveryRecord, decode_recovery_record
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.apiserver import ApiError, run_pod
from driver_manager.sandbox.cluster import NODE, Process, SandboxCluster, command_line, environment
from driver_manager.sandbox.host import HostTree, PciTree
from driver_manager.sandbox.pod import command_line_in
from driver_manager.sandbox.scenarios import (
    ASCEND_ROOT,
    DEVICES,
    NEW_DIGEST,
    NEW_FIRMWARE,
    OLD,
    OLD_DIGEST,
    OLD_FIRMWARE,
    TENSTORRENT,
    NamedScenario,
    NodeSummary,
    ScenarioReport,
    Show,
    differences,
    loaded_by_manager,
    summary_of,
)

# Scenarios of reboots.


class RebootScenario(NamedScenario, frozen=True):
    """A scenario of reboots. Every node reboots `reboots` times. `recovers`: the chip recovers before the approval.

    A reconcile requests an upgrade. health-watch requests a recovery if the chip `wedges`, else the scenario writes the
    marker.
    """

    reason: str = RECOVERY
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
            approves=False,
            env={"AUTO_RECOVER": "true"},
        ),
        RebootScenario(
            "wedge-to-reboot",
            "a chip wedges: health-watch requests a reboot, the rebooter waits for approval, reboots and cleans up",
            wedges=True,
        ),
        RebootScenario(
            "reboot-one-slot",
            "two nodes have to reboot, one at a time: the second waits until the first serves again",
            nodes=2,
            env={"REBOOT_CORDON": "true"},
        ),
        RebootScenario(
            "reboot-withdrawn",
            "the chip recovers before the approval: the request is withdrawn everywhere, nothing reboots",
            approves=False,
            recovers=True,
            reboots=0,
        ),
    )
}

INTERVAL = "0.2s"
PLAY_TIMEOUT_S = 150.0
COMMAND_TIMEOUT_S = 90.0
GRACE_S = 30.0
REBOOT_POLL_S = 0.01
AGENTS = {"reconcile-driver-state": "reconcile"}
WIDEST = len("health-watch")
REST_OF_STATUS = "devices"
"""The first line of `status` that has nothing to do with the reboot."""


class Machine:
    """A node: its host, and the loops that run on it by the name of their command."""

    def __init__(self, name: str, tree: HostTree, show: Show, prefix: str = "") -> None:
        self.name = name
        self.tree = tree
        tree.build()
        tree.keep_kernel_log()
        self.reboots = 0
        self.marker = tree.inside(tree.profile.paths.reboot_marker)
        self._show = show
        self._prefix = prefix
        self._loops: dict[str, Process] = {}

    def start(self, command: list[str], env: dict[str, str], account: Path | None = None) -> None:
        """Start a loop, in the pod with the service account in the folder `account` if one is given."""
        argv = command_line_in(account, *command) if account is not None else command_line(*command)
        self._loops[command[0]] = Process(argv, env, self.tree.root, self._printer(command[0]))

    def end(self, name: str) -> None:
        """Terminate a loop, as a kubelet does."""
        self._loops[name].stop()
        self._loops.pop(name).wait(GRACE_S)

    def stop(self) -> None:
        """Kill the loops, as a power cut does."""
        for loop in self._loops.values():
            loop.kill()
        self._loops.clear()

    @property
    def has_ended(self) -> bool:
        return any(loop.has_ended for loop in self._loops.values())

    @property
    def is_watched(self) -> bool:
        """True if health-watch has had a healthy sample in this boot."""
        path = self.tree.inside(self.tree.profile.paths.health_record)
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
        path = self.tree.inside(self.tree.profile.paths.rebooter_record)
        return decode_reboot_record(path.read_text()) if path.is_file() else Record()

    @property
    def is_settled(self) -> bool:
        """True if nothing of a reboot is left on the host."""
        return self.record.is_empty and not self.marker.is_file()


def run_reboot_scenario(scenario: RebootScenario, show: Show) -> ScenarioReport:
    """Play `scenario` and check its end. Raises RuntimeError if the sandbox itself fails."""
    with tempfile.TemporaryDirectory(prefix="driver-manager-sandbox-") as name, ExitStack() as stack:
        folder = Path(name).resolve()
        names = [NODE, *(f"{NODE}-{number}" for number in range(2, scenario.nodes + 1))]
        machines = []
        for one in names:
            tree = HostTree(folder / one / "host", folder / one / "bin", profiles.builtin()["ascend"])
            machines.append(Machine(one, tree, show, f"{one:<{len(names[-1])}}  " if scenario.nodes > 1 else ""))
            tree.serve(ASCEND_ROOT, OLD_FIRMWARE, OLD_DIGEST)
        first = machines[0].tree
        cluster = stack.enter_context(SandboxCluster(first.profile, first, folder, digest=NEW_DIGEST))
        for machine in machines[1:]:
            cluster.add_node(machine.name, machine.tree)
        for machine in machines:
            stack.callback(machine.stop)
        return RebootPlay(scenario, cluster, machines, show).report()


class LoopPlay:
    """Plays hardware, kubelet and administrator around the loops of nodes until all is over."""

    _scenario: NamedScenario

    def __init__(self, cluster: SandboxCluster, machines: list[Machine], show: Show) -> None:
        self._cluster = cluster
        self._machines = machines
        self._show = show
        self._keys = cluster.profile.keys
        self._problems: list[str] = []
        self._exit_codes: list[int] = []
        self._begun_s = time.monotonic()

    def report(self) -> ScenarioReport:
        begun_s, first_request = self._begun_s, len(self._cluster.server.requests)
        before = self._state()
        report = ScenarioReport(self._scenario, before, before)
        self._begin()
        self._play()
        for machine in self._machines:
            machine.stop()
        report.seconds = time.monotonic() - begun_s
        report.requests = sum(record.resource != "events" for record in self._cluster.server.requests[first_request:])
        report.exit_codes = self._exit_codes
        report.timeline = self._cluster.timeline(begun_s)
        report.after = self._state()
        report.problems = [*self._problems, *self._judge(report)]
        return report

    def _begin(self) -> None:
        raise NotImplementedError

    def _is_over(self) -> bool:
        raise NotImplementedError

    def _judge(self, report: ScenarioReport) -> list[str]:
        raise NotImplementedError

    def _start(self, machine: Machine) -> None:
        """Start the loops of the node."""
        raise NotImplementedError

    def _load_driver(self, machine: Machine) -> None:
        """Load the driver after a boot."""
        raise NotImplementedError

    def _play(self) -> None:
        while time.monotonic() < self._begun_s + PLAY_TIMEOUT_S:
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

    def _reboot(self, machine: Machine) -> None:
        """Stop the host and start it again; load its driver."""
        machine.stop()
        machine.reboots += 1
        self._show.chapter(f"{machine.name} reboots")
        self._cluster.new_boot(machine.name, machine.tree, is_ready=False)
        machine.tree.reboot()
        self._start(machine)
        self._cluster.new_boot(machine.name, machine.tree)
        self._load_driver(machine)

    def _wedge(self, machine: Machine, title: str, healed_by: str = "") -> None:
        """Let the chip wedge once it has been healthy."""
        end_s = time.monotonic() + PLAY_TIMEOUT_S
        while not machine.is_watched and time.monotonic() < end_s:
            time.sleep(REBOOT_POLL_S)  # the tree's files have no events
        self._show.chapter(title)
        machine.tree.wedge(healed_by)

    def _show_status(self, machine: Machine, digest: str) -> None:
        self._show.chapter(f"driver-manager status on {machine.name}, its first lines")
        machine.run(["status"], self._env(machine, DRIVER_CONFIG_DIGEST=digest), up_to=REST_OF_STATUS)

    def _annotate(self, machine: Machine, key: str, value: str) -> None:
        self._show.chapter(f"kubectl annotate node {machine.name} {key}={value}")
        self._cluster.store.merge("nodes", machine.name, {"metadata": {"annotations": {key: value}}})

    def _env(self, machine: Machine, **env: str) -> dict[str, str]:
        return environment(machine.tree, self._cluster.kubeconfig, machine.name, {"REBOOTER_INTERVAL": INTERVAL, **env})

    def _driver_env(self, machine: Machine, root: str, digest: str) -> dict[str, str]:
        """The environment of the driver pod's init container."""
        pod = {"POD_NAME": self._cluster.driver_pod(), "POD_NAMESPACE": self._cluster.namespace}
        return self._env(machine, DRIVER_CONFIG_DIGEST=digest, **loaded_by_manager(root), **pod)

    def _holders(self, name: str = LEASE) -> list[str]:
        """The nodes that hold a slot in the Lease."""
        with contextlib.suppress(ApiError):  # no node has asked for one
            lease = self._cluster.store.get("leases", name, self._cluster.namespace)
            return [name for name in (lease["spec"].get("holderIdentity") or "").split(", ") if name]
        return []

    def _state(self) -> NodeSummary:
        node = self._cluster.node()
        return summary_of(node, self._machines[0].tree, journal=self._keys.journal in self._left_on(node))

    def _left_on(self, node: dict[str, Any]) -> dict[str, str]:
        """Annotations that should be gone at the end: all but those about the last run."""
        lasting = (self._keys.last_outcome, self._keys.generation)
        return {key: text for key, text in (node["metadata"].get("annotations") or {}).items() if key not in lasting}


class RebootPlay(LoopPlay):
    def __init__(self, scenario: RebootScenario, cluster: SandboxCluster, machines: list[Machine], show: Show) -> None:
        super().__init__(cluster, machines, show)
        self._scenario: RebootScenario = scenario
        self._is_upgrade = scenario.reason == UPGRADE_REASON
        self._approved: set[str] = set()

    def _begin(self) -> None:
        self._show.chapter("the rebooter starts on each node, and waits for a marker that asks for a reboot")
        for machine in self._machines:
            self._start(machine)
        for machine in self._machines:
            self._ask(machine)

    def _start(self, machine: Machine) -> None:
        machine.start(["rebooter"], self._env(machine, **self._scenario.env))
        if self._scenario.wedges:
            machine.start(["health-watch", "--profile=ascend"], self._env(machine, HEALTH_WATCH_INTERVAL=INTERVAL))

    def _ask(self, machine: Machine) -> None:
        """Let a marker appear."""
        if self._is_upgrade:
            machine.tree.add_driver(ASCEND_ROOT, NEW_FIRMWARE)
            self._show.chapter(
                f"driver {NEW_FIRMWARE} is installed on {machine.name}; plan: what driver-manager would do"
            )
            machine.run(["plan"], self._driver_env(machine, ASCEND_ROOT, NEW_DIGEST))
            self._exit_codes.append(self._reconcile(machine))
            return
        machine.marker.parent.mkdir(parents=True, exist_ok=True)
        if self._scenario.wedges:
            self._wedge(machine, "the chip wedges: npu-smi fails from now on")
            return
        self._show.chapter(f"the chip of {machine.name} is wedged, and the marker asks for a reboot")
        samples = ("npu-smi: dcmi module initialize failed. ret is -8005",) * 3
        machine.marker.write_text(encode_marker(Marker(RECOVERY, machine.tree.boot_id, machine.name, evidence=samples)))

    def _reconcile(self, machine: Machine) -> int:
        self._show.chapter(f"driver-manager reconcile-driver-state --no-wait on {machine.name}")
        return machine.run(["reconcile-driver-state", "--no-wait"], self._driver_env(machine, ASCEND_ROOT, NEW_DIGEST))

    def _follow(self, machine: Machine) -> None:
        super()._follow(machine)
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
                self._show_status(machine, NEW_DIGEST if self._is_upgrade else OLD_DIGEST)
            self._annotate(machine, self._keys.approve_reboot, APPROVED)

    def _reboot(self, machine: Machine) -> None:
        others = [
            other.name for other in self._machines if other is not machine and other.tree.driver_version != OLD_FIRMWARE
        ]
        if any(name in self._holders() for name in others):
            self._problems.append(f"{machine.name} reboots while {', '.join(others)} does")
        super()._reboot(machine)

    def _load_driver(self, machine: Machine) -> None:
        if not self._is_upgrade:
            machine.tree.serve(ASCEND_ROOT, OLD_FIRMWARE, OLD_DIGEST)
        elif self._reconcile(machine) != ExitCode.DONE:
            self._problems.append("the new driver was not loaded after the boot")

    def _is_over(self) -> bool:
        if any(machine.reboots < self._scenario.reboots or not machine.is_settled for machine in self._machines):
            return False
        return len(self._approved) == len(self._machines) or not (self._scenario.approves or self._scenario.recovers)

    def _judge(self, report: ScenarioReport) -> list[str]:
        rows: list[tuple[str, object, object]] = []
        for machine in self._machines:
            node = self._cluster.store.get("nodes", machine.name)
            rows += [
                (f"reboots of {machine.name}:", machine.reboots, self._scenario.reboots),
                (f"annotations left on {machine.name}:", self._left_on(node), {}),
                (f"{machine.name} is cordoned:", bool(node.get("spec", {}).get("unschedulable")), False),
            ]
        wanted = report.before.labels | {self._keys.state: NodeState.READY.value}
        codes = [int(ExitCode.REBOOT_REQUIRED)] if self._is_upgrade else []
        return differences(
            [
                *rows,
                ("labels are", report.after.labels, wanted),
                ("driver", report.after.driver, NEW_FIRMWARE if self._is_upgrade else OLD_FIRMWARE),
                ("slots are held by", self._holders(), []),
                ("exit codes", report.exit_codes, codes),
            ]
        )


# Scenarios of recoveries.


class RecoveryScenario(NamedScenario, frozen=True):
    """A scenario of a wedged chip, healed by the step `healed_by`, or by itself while the recovery waits ("").

    An administrator approves the steps in `approves`, each as soon as the node waits for an approval; `automatic` is
    AUTO_RECOVER. `steps` are the expected attempts as `step.outcome`. `is_in_use`: a process has the device open until
    the recovery names it. `can_reboot`: the profile has the step.
    """

    healed_by: str = ""
    approves: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    automatic: str = ""
    reboots: int = 0
    is_in_use: bool = False
    can_reboot: bool = True

    @property
    def is_healed(self) -> bool:
        return self.healed_by != NEVER

    def count(self, step: RecoveryStep) -> int:
        """The expected number of attempts of `step`."""
        return sum(attempt.startswith(f"{step.value}.") for attempt in self.steps)


NEVER = "never"
PROFILE = "profile.toml"
USER, USER_NAME = 4242, "trainer"
VENDOR = "tenstorrent"
DRIVER_ROOT = f"/opt/{VENDOR}/{OLD}"
RECOVERY_TIMEOUT = "1s"
"""A step may take four intervals and timeouts to help."""

RECOVERY_SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        RecoveryScenario(
            "recovery-reset",
            "a chip wedges: once that is approved, it is reset, which heals it; no pod is stopped",
            healed_by="reset",
            approves=("reset",),
            steps=("reset.healed",),
        ),
        RecoveryScenario(
            "recovery-in-use",
            "the same while a process has the device open: it is named, and the reset waits until it ends",
            healed_by="reset",
            approves=("reset",),
            steps=("reset.healed",),
            is_in_use=True,
        ),
        RecoveryScenario(
            "recovery-reload",
            "a reset does not help: health-watch evicts its own driver pod, and the next pod's run reloads the driver",
            healed_by="reload",
            approves=("reset", "reload"),
            steps=("reset.failed", "reload.healed"),
        ),
        RecoveryScenario(
            "recovery-reboot",
            "a reload does not help: the rebooter reboots the node once it is approved",
            healed_by="reboot",
            approves=("reload",),
            steps=("reload.failed",),
            reboots=1,
        ),
        RecoveryScenario("recovery-by-itself", "the chip recovers before a reset is approved: nothing is done"),
        RecoveryScenario(
            "recovery-exhausted",
            "nothing helps, and no reboot is allowed: steps are tried up to their limits, then the node needs service",
            healed_by=NEVER,
            automatic="reset,reload",
            steps=("reset.failed", "reset.failed", "reload.failed"),
            can_reboot=False,
        ),
    )
}


def run_recovery_scenario(scenario: RecoveryScenario, show: Show) -> ScenarioReport:
    """Play `scenario` and check its end. Raises RuntimeError if the sandbox itself fails."""
    with tempfile.TemporaryDirectory(prefix="driver-manager-sandbox-") as name, ExitStack() as stack:
        folder = Path(name).resolve()
        text = Path(profiles.__file__).with_name(f"{VENDOR}.toml").read_text()
        text = text.replace("[probe]\n", "[probe]\nsettle_s = 0.5\n")  # a step that does not help takes as long
        if not scenario.can_reboot:
            text = re.sub(r"^reboot.*\n", "", text.replace(', "reboot"]', "]"), flags=re.MULTILINE)
        (folder / PROFILE).write_text(text)
        tree = HostTree(folder / "host", folder / "bin", profiles.parse(text, PROFILE))
        machine = Machine(NODE, tree, show)
        tree.serve(DRIVER_ROOT, OLD, OLD_DIGEST, TENSTORRENT)
        bus = PciTree(tree.root, VENDOR)
        bus.add(DEVICES[0], vendor=tree.profile.pci_vendor, driver=VENDOR, module=VENDOR)
        stack.enter_context(bus.running())
        cluster = stack.enter_context(SandboxCluster(tree.profile, tree, folder, digest=OLD_DIGEST))
        stack.callback(machine.stop)
        return RecoveryPlay(scenario, cluster, machine, show).report()


class RecoveryPlay(LoopPlay):
    def __init__(self, scenario: RecoveryScenario, cluster: SandboxCluster, machine: Machine, show: Show) -> None:
        super().__init__(cluster, [machine], show)
        self._scenario: RecoveryScenario = scenario
        self._machine = machine
        self._pod = ""
        self._approvals = [*scenario.approves]
        self._is_answered = False
        self._is_reboot_approved = False
        self._was_shown = False

    def _begin(self) -> None:
        self._show.chapter("the rebooter and the driver pod start")
        self._start(self._machine)
        self._run_pod()
        self._wedge(self._machine, "the chip wedges", self._scenario.healed_by)
        if self._scenario.is_in_use:
            self._machine.tree.hold_device_by(USER, USER_NAME)

    def _start(self, machine: Machine) -> None:
        if self._scenario.can_reboot:
            machine.start(["rebooter"], self._loop_env())

    def _load_driver(self, machine: Machine) -> None:
        self._run_pod()

    def _run_pod(self) -> None:
        """Run the init container of the driver pod, then its sidecar."""
        self._pod = self._cluster.driver_pod()
        self._show.chapter(f"pod {self._pod} runs driver-manager reconcile-driver-state, then health-watch")
        env = {**self._driver_env(self._machine, DRIVER_ROOT, OLD_DIGEST), **self._profile_env()}
        self._exit_codes.append(self._machine.run(["reconcile-driver-state"], env))
        run_pod(self._cluster.store, self._pod_object())
        self._watch()

    def _watch(self) -> None:
        """Start the sidecar of the driver pod."""
        account = self._cluster.service_account(self._pod_object())
        self._machine.start(["health-watch"], self._loop_env(), account)

    def _pod_object(self) -> dict[str, Any]:
        return self._cluster.store.get("pods", self._pod, self._cluster.namespace)

    def _profile_env(self) -> dict[str, str]:
        return {"DRIVER_PROFILE": VENDOR, "PROFILE_FILE": str(self._cluster.folder / PROFILE)}

    def _loop_env(self) -> dict[str, str]:
        return self._env(
            self._machine,
            **self._profile_env(),
            **self._cluster.service_env(),
            AUTO_RECOVER=self._scenario.automatic,
            DRIVER_ROOT=DRIVER_ROOT,
            HEALTH_WATCH_INTERVAL=INTERVAL,
            HEALTH_WATCH_TIMEOUT=RECOVERY_TIMEOUT,
            POD_NAMESPACE=self._cluster.namespace,
        )

    def _follow(self, machine: Machine) -> None:
        machine.tree.pass_time(time.monotonic() - self._begun_s)
        super()._follow(machine)
        if self._pod not in self._cluster.pods():
            machine.end("health-watch")
            self._cluster.store.wait_until(lambda: self._cluster.driver_pod() != "", "the next driver pod")
            self._run_pod()
        reason = self._shown.reason
        self._was_shown = self._was_shown or bool(reason)
        if reason.startswith(WAITS_FOR_APPROVAL) and self._keys.approve_recovery not in self._notes:
            self._answer()
        elif USER_NAME in reason:
            self._end_wait()
        if machine.record.reason and not self._is_reboot_approved:
            self._is_reboot_approved = True
            self._annotate(machine, self._keys.approve_recovery, RecoveryStep.REBOOT.value)

    def _answer(self) -> None:
        """Approve the next step. Without any, the chip recovers."""
        if not self._is_answered:
            self._is_answered = True
            self._show_status(self._machine, OLD_DIGEST)
        if self._approvals:
            self._annotate(self._machine, self._keys.approve_recovery, self._approvals.pop(0))
        else:
            self._recover()

    def _end_wait(self) -> None:
        if not self._scenario.healed_by:
            self._recover()
        elif self._machine.tree.has_process(USER):
            self._show.chapter(f"process {USER} ({USER_NAME}) ends")
            self._machine.tree.end_process(USER)

    def _recover(self) -> None:
        if not self._scenario.healed_by and self._machine.tree.is_wedged:
            self._show.chapter("the chip recovers by itself")
            self._machine.tree.heal()

    @property
    def _notes(self) -> dict[str, str]:
        return dict(self._cluster.node()["metadata"].get("annotations") or {})

    @property
    def _shown(self) -> Recovery:
        """The recovery that the Node shows."""
        return decode_note(self._notes.get(self._keys.recovery, "")) or NO_RECOVERY

    @property
    def _record(self) -> RecoveryRecord:
        path = self._machine.tree.inside(self._cluster.profile.paths.recovery_record)
        return decode_recovery_record(path.read_text()) if path.exists() else RecoveryRecord()

    def _is_over(self) -> bool:
        if not self._scenario.is_healed:
            return self._shown.state is RecoveryState.NEEDS_SERVICE
        is_calm = not self._left_on(self._cluster.node()) and self._record.open is None
        return self._was_shown and is_calm and self._machine.is_settled and not self._machine.tree.is_wedged

    def _judge(self, report: ScenarioReport) -> list[str]:
        scenario, tree, node = self._scenario, self._machine.tree, self._cluster.node()
        seen = [text for at_s, text in tree.kernel_log() if at_s >= self._begun_s]
        report.timeline = [one for one in report.timeline if not one.text.endswith(fake_tools.SEES)]
        state = NodeState.READY if scenario.is_healed else NodeState.WEDGED
        reasons = [one["reason"] for one in node["status"]["conditions"] if one["type"] == self._keys.condition]
        record, left = self._record, self._left_on(node)
        if not scenario.is_healed:
            left.pop(self._keys.recovery, None)
        runs = 1 + scenario.count(RecoveryStep.RELOAD) + scenario.reboots
        steps = [f"{one.step.value}.{one.outcome.value if one.outcome else 'open'}" for one in record.attempts]
        return differences(
            [
                ("attempts", steps, [*scenario.steps]),
                ("resets:", sum(fake_tools.RESETS in text for text in seen), scenario.count(RecoveryStep.RESET)),
                ("unloads:", sum("unloaded" in text for text in seen), scenario.count(RecoveryStep.RELOAD)),
                ("reboots:", self._machine.reboots, scenario.reboots),
                ("exit codes", report.exit_codes, [int(ExitCode.DONE)] * runs),
                ("labels are", report.after.labels, report.before.labels | {self._keys.state: state.value}),
                ("reasons of the condition", reasons, ["Ready" if scenario.is_healed else NEEDS_SERVICE]),
                ("annotations left:", left, {}),
                ("slots are held by", [*self._holders(), *self._holders(RECOVERY_LEASE)], []),
                ("cordoned:", report.after.cordoned, False),
                ("driver", (report.after.driver, report.after.digest), (OLD, OLD_DIGEST)),
                ("a reload is requested:", tree.inside(tree.profile.paths.reload_request).exists(), False),
            ]
        )
