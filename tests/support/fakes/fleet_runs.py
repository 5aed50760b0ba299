"""Controllers on a fleet in memory: one that runs until something holds, and what every rollout has to keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from driver_manager.core.fleet.controller import FleetController, FleetPorts
from driver_manager.core.fleet_ports import Leadership
from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.status import FleetReport
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.fleet_scene import NAMESPACE, FleetScene, StoreFleet
from tests.support.fakes.killer import Killed, Killer

LIMIT_S = 3600.0
"""Of simulated time: a rollout of a few nodes is over long before."""


@dataclass
class FakeLeadership:
    """See `driver_manager.core.fleet_ports.Leadership`: it has the lead as the test says."""

    clock: FakeClock
    is_ours: bool = True
    is_sure: bool = True
    leader: str = "somebody"
    error: Exception | None = None
    asked: int = 0
    released: int = 0

    @property
    def due_s(self) -> float:
        return self.clock.monotonic() + 5.0

    def hold(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.is_ours

    def may_act(self) -> bool:
        self.asked += 1
        return self.is_ours and self.is_sure

    def release(self) -> None:
        self.released += 1
        self.is_ours = False


@dataclass
class ControllerRun:
    """One controller process on a scene."""

    scene: FleetScene
    killer: Killer = field(default_factory=Killer)
    leadership: Leadership | None = None
    reports: list[FleetReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster = StoreFleet(self.scene, self.killer)
        self.reporter = RecordingReporter()
        self.lead = self.leadership or FakeLeadership(self.scene.clock)
        ports = FleetPorts(self.cluster, self.lead, self.scene.clock, self.reporter)
        self.controller = FleetController(ports, NAMESPACE, PROFILE, advance, self.reports.append)

    def turn(self) -> None:
        """One turn of its loop."""
        self.controller.turn()

    def until(self, holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        """Turns until `holds`. Raises AssertionError after `limit_s` simulated seconds."""
        end_s = self.scene.clock.monotonic() + limit_s
        while not holds():
            assert self.scene.clock.monotonic() < end_s, f"not within {limit_s:g} s: {what}; {self.scene.rollout()}"
            self.turn()

    def until_phase(self, phase: str, limit_s: float = LIMIT_S) -> None:
        """Turns until the object shows this phase."""
        self.until(lambda: self.scene.phase() == phase, f"phase {phase}", limit_s)

    def until_complete(self, revision: str, limit_s: float = LIMIT_S) -> None:
        """Turns until the object says that the rollout of this revision is complete."""
        self.until(lambda: self.scene.is_complete(revision), f"{revision} is complete", limit_s)

    def idle_for(self, seconds: float) -> None:
        """Turns for so much simulated time."""
        end_s = self.scene.clock.monotonic() + seconds
        while self.scene.clock.monotonic() < end_s:
            self.turn()


def fleet(nodes: int = 4, **spec: Any) -> FleetScene:
    """A fleet that serves one revision, with a rollout of it."""
    scene = FleetScene()
    scene.set_driver("driver:1")
    scene.add_nodes(*(f"node-{number}" for number in range(nodes)))
    scene.add_rollout(**{"waves": [{"name": "all"}], "maxParallel": 2, **spec})
    return scene


def killed_again_and_again(scene: FleetScene, at: Callable[[int], tuple[int, bool] | None], revision: str) -> int:
    """Controllers one after the other, each killed as `at` says of its number, until it is complete; how many died."""
    for number in range(200):
        killer = Killer()
        planned = at(number)
        if planned is not None:
            killer.kill_at(planned[0], after=planned[1])
        try:
            ControllerRun(scene, killer).until_complete(revision)
        except Killed:
            continue
        return number
    raise AssertionError("it never came to an end")


def check_each_once(scene: FleetScene, revision: str) -> None:
    """Raise AssertionError unless every node serves the revision, and came to it by one restart."""
    assert set(scene.serving().values()) == {revision}
    assert {node: scene.restarts[node, revision] for node in scene.serving()} == dict.fromkeys(scene.serving(), 1)
