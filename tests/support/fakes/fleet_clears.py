"""A simulated cluster whose nodes are cleared before their driver pods are deleted, by short-lived pods that may die.

Asserts that no driver pod is deleted on a node that is not cleared.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from driver_manager.domain.fleet.spec import DriverPod, Fleet, Task, TaskPod
from driver_manager.domain.fleet.state import TASK_REVISION_LABEL, Act, CreatePod, DeletePod, RestartPod
from driver_manager.domain.node_state import NodeState
from tests.support.fakes.fleet_world import Machine, World

TAKES_S, CLEARS_S = 5.0, 20.0
BUSY, AWAY, KILLED = 4, 8, 137
CLEAR_EVENTS = ("clear-well", "clear-busy", "clear-dies", "clear-away", "clear-never", "clear-lost")
GIVEN_BACK: dict[str, Any] = {"is_taken_by_run": False, "cleared_by": ""}


class ClearingWorld(World):
    """A World with the pods that clear, by name. `ends` is how those of a node end; all others clear it."""

    def __init__(self, *said: Any) -> None:
        super().__init__(*said)
        self.clears: dict[str, TaskPod] = {}
        self.ends: dict[str, str] = {}
        self.made = 0
        self.is_late = False

    def fleet(self) -> Fleet:
        """What the watches show now."""
        found = super().fleet()
        return replace(found, clears_first=True, task_pods=(*found.task_pods, *self.clears.values()))

    def happens_to_pods(self, event: str, node: str) -> None:
        """One of `CLEAR_EVENTS`: how clearing ends on a node from now on, or its pods are gone without a word."""
        if event == "clear-lost":
            self.clears = {name: pod for name, pod in self.clears.items() if pod.node != node}
        else:
            self.ends[node] = event.removeprefix("clear-")

    def act(self, act: Act) -> bool:
        """One act, as an API server does it; whether it was done."""
        match act:
            case CreatePod() if act.task is Task.CLEAR:
                return self._create(act)
            case DeletePod() if act.name in self.clears:
                return self._delete(act)
            case RestartPod() if not self.is_late:
                self._check_cleared(act)
        return super().act(act)

    def _create(self, act: CreatePod) -> bool:
        if self.looks.refusal or act.name in self.clears or act.node not in self.machines:
            return False
        self.made += 1
        uid, revision = f"{act.name}-{self.made}", act.body["metadata"]["labels"][TASK_REVISION_LABEL]
        self.clears[act.name] = TaskPod(act.namespace, act.name, uid, act.node, revision, Task.CLEAR, self.now_s)
        return True

    def _delete(self, act: DeletePod) -> bool:
        """Told to end, a run gives the node back, unless the driver pod goes."""
        pod, machine = self.clears[act.name], self.machines.get(act.node)
        if pod.uid != act.uid:
            return False
        del self.clears[act.name]
        if machine is not None and not pod.has_ended and machine.facts.is_taken_by_run and not _is_going(machine.pod):
            self._give_back(machine)
        return True

    def _check_cleared(self, act: RestartPod) -> None:
        machine = self.machines.get(act.node)
        if machine is None or machine.pod is None or machine.pod.uid != act.uid or machine.pod.is_deleting:
            return
        pods = [pod for pod in self.clears.values() if pod.node == act.node]
        is_cleared = machine.facts.cleared_by in {pod.uid for pod in pods if not pod.has_ended}
        assert is_cleared or any(pod.exit_code == 0 for pod in pods), f"{act.node}: restarted and not cleared"

    def _live(self, machine: Machine) -> None:
        for name, pod in list(self.clears.items()):
            if pod.node not in self.machines:
                del self.clears[name]
            elif pod.node == machine.facts.name and not pod.has_ended:
                self._clear(machine, pod)
        super()._live(machine)

    def _clear(self, machine: Machine, pod: TaskPod) -> None:
        node, age_s = machine.facts, self.now_s - pod.made_s
        if _is_going(machine.pod):
            self._ended(pod, 0)
        elif not node.is_taken_by_run and age_s >= TAKES_S:
            cordon = {} if node.unschedulable else {"unschedulable": True, "is_cordoned_by_run": True}
            self.change(machine, is_taken_by_run=True, driver_state=NodeState.UPGRADING, **cordon)
        elif age_s >= CLEARS_S and not node.cleared_by:
            match self.ends.get(node.name, "well"):
                case "well":
                    self.change(machine, cleared_by=pod.uid)
                case "dies":
                    self._ended(pod, KILLED)
                case "busy" | "away" as end:
                    self._give_back(machine)
                    self._ended(pod, BUSY if end == "busy" else AWAY)

    def _ended(self, pod: TaskPod, code: int) -> None:
        ended = replace(pod, exit_code=code, has_ended=True, message=f"exit {code}", ended_s=self.now_s)
        self.clears[pod.name] = ended

    def _give_back(self, machine: Machine) -> None:
        cordon = {"unschedulable": False, "is_cordoned_by_run": False} if machine.facts.is_cordoned_by_run else {}
        self.change(machine, driver_state=NodeState.READY, outcome_s=self.clock_of(machine), **cordon, **GIVEN_BACK)

    def help(self, machine: Machine) -> None:
        """Beside a retry: what a run has left taken, and no other is to take, is given back by hand."""
        super().help(machine)
        pods = [pod for pod in self.clears.values() if pod.node == machine.facts.name and not pod.has_ended]
        has_target = machine.pod is not None and machine.pod.revision == self.template
        if machine.facts.is_taken_by_run and has_target and not pods:
            self._give_back(machine)

    def _run(self, machine: Machine, pod: DriverPod) -> None:
        """The next driver pod's run goes on from what it finds, and gives the node back."""
        super()._run(machine, pod)
        if machine.pod is not None and machine.pod.is_ready:
            self.change(machine, **GIVEN_BACK)


def _is_going(driver: DriverPod | None) -> bool:
    return driver is None or driver.is_deleting or not driver.is_ready
