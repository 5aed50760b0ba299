"""`rollout status --watch`: the same screen at each change, from the watches that a controller has.

In a terminal the screen is drawn again; elsewhere each change is a line: of text, or of JSON.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from driver_manager import settings
from driver_manager.adapters.kube.client import KubeApi, load_client
from driver_manager.adapters.kube.fleet import KubeFleet, Letter
from driver_manager.adapters.kube.fleet_objects import readers
from driver_manager.adapters.kube.transport import Transport
from driver_manager.adapters.process.inbox import Inbox
from driver_manager.adapters.process.loop_clock import LoopClock
from driver_manager.adapters.report.screen import LiveScreen
from driver_manager.adapters.report.terminal import is_capable
from driver_manager.cli import rollout_text
from driver_manager.cli.printing import put
from driver_manager.cli.rollout_body import Shown, body, outlook_of
from driver_manager.cli.rollout_session import RolloutSession, open_rollouts
from driver_manager.cli.zones import zone
from driver_manager.core.fleet.looking import Sight, chosen
from driver_manager.core.fleet.world import FleetWorld
from driver_manager.domain import timestamps
from driver_manager.domain.errors import ExitCode, Terminated
from driver_manager.domain.escaping import json_text, words_on_one_line
from driver_manager.domain.fleet.acts import Phase
from driver_manager.domain.fleet.status_form import STANDING
from driver_manager.domain.setting import Values
from driver_manager.ports.fleet import FactKind, FleetCluster, Lost

Json = dict[str, Any]

PACE_S = 1.0
"""Between two decisions at the least: many nodes change at the same time."""

TICK_S = 5.0
"""After so long without a change it is decided again, as time alone opens windows and ends soak times."""


def watch(values: Values, name: str, *, as_json: bool) -> int:
    """Show the rollout until it has ended; the exit code. Raises ManagerError."""
    clock = LoopClock()
    session = open_rollouts(values, clock)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a terminal that is closed ends what is shown in it
    first = session.look(name)  # whatever is wrong with the way to the cluster is said as for any other command

    def connect() -> Transport:
        return load_client(values[settings.KUBECONFIG] or None)

    inbox: Inbox[Letter] = Inbox(clock)
    api = KubeApi(connect(), clock, session.log, settings.BY_HAND_API_TIMEOUT_S)
    cluster = KubeFleet(api, connect, inbox, clock, readers(session.profile.keys, zone))
    try:
        return Watching(session, clock, cluster, first.rollout.name, _view(as_json=as_json)).run(first)
    except Terminated:
        return ExitCode.STANDING_DOWN


def _view(*, as_json: bool) -> Callable[[Json, float, bool], None]:
    """What is done with each picture: its JSON, the time, and whether it is the last one."""
    if as_json:
        return JsonLines().show
    return Redrawn(LiveScreen(sys.stdout)).show if is_capable(sys.stdout) else Lines().show


@dataclass
class Watching:
    """Follows one rollout."""

    session: RolloutSession
    clock: LoopClock
    cluster: FleetCluster
    name: str
    show: Callable[[Json, float, bool], None]
    _phase: Phase = Phase.PROGRESSING

    def run(self, first: Sight) -> int:
        """Show it until it has ended; the exit code. Raises ManagerError where it is gone."""
        world = FleetWorld(self.session.namespace, clears_first=self.session.profile.container_unloads)
        sight: Sight | None = first
        try:
            while sight is None or not self._has_ended(sight):
                self.clock.sleep(PACE_S)
                self._follow(world)
                sight = self._sight(world)
        finally:
            self.cluster.follow(frozenset())
        return ExitCode.DONE if self._phase is Phase.COMPLETE else ExitCode.ROLLOUT_STUCK

    def _has_ended(self, sight: Sight) -> bool:
        """Whether nothing more will come by itself. It is shown in any case."""
        shown = Shown(sight, self.session.profile.name, self.clock.wall())
        outlook = outlook_of(shown)
        self._phase = outlook.phase
        is_last = outlook.phase is Phase.COMPLETE or outlook.phase in STANDING
        self.show(body(shown, outlook), shown.now_s, is_last)
        return is_last

    def _follow(self, world: FleetWorld) -> None:
        """Take what has changed."""
        subjects = {world.of(FactKind.ROLLOUTS)}
        for one in world.rollouts():
            if one.name == self.name and one.policy is not None:
                subjects |= world.needed(one.policy)
        self.cluster.follow(frozenset(subjects))
        for change in self.cluster.changes(self.clock.monotonic() + TICK_S):
            if isinstance(change, Lost):
                self.session.log.warn(f"{change.subject} cannot be read now: {change.why}")
            world.apply(change)

    def _sight(self, world: FleetWorld) -> Sight | None:
        """The rollout as it is known now, None where not all of it is."""
        if not world.is_listed(world.of(FactKind.ROLLOUTS)):
            return None
        rollout = chosen(world, self.session.namespace, self.name)
        if rollout.policy is None:
            return Sight(rollout, None)
        if world.why_blind(rollout.policy):
            return None
        return Sight(rollout, world.fleet(rollout, rollout.policy))


class Lines:
    """A line of text for each change."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, found: Json, now_s: float, is_last: bool) -> None:
        """Print `found` where it says something new."""
        found = words_on_one_line(found)
        line = f"{rollout_text.headline(found)} [{rollout_text.in_short(found['counts'])}]"
        if line != self._last:
            self._last = line
            put(f"{timestamps.written(now_s)} {line}")


class JsonLines:
    """A line of JSON for each change."""

    def __init__(self) -> None:
        self._last: Json = {}

    def show(self, found: Json, now_s: float, is_last: bool) -> None:
        """Print `found` where it is another one."""
        if found != self._last:
            self._last = found
            put(json_text(found, separators=(",", ":")))


class Redrawn:
    """The screen, drawn again; the last one stays whole."""

    def __init__(self, screen: LiveScreen) -> None:
        self._screen = screen

    def show(self, found: Json, now_s: float, is_last: bool) -> None:
        """Draw `found`."""
        drawn = rollout_text.text(words_on_one_line(found), now_s)
        if is_last:
            self._screen.end()
            put(drawn)
        else:
            self._screen.draw(drawn)
