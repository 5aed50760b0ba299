"""Plays the story of a fleet: the real controller of rollouts against the sandbox's cluster, and judges how it ends.

Owns the chapters, and what is written down on the way. Prints nothing: a `FleetShow` does.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from driver_manager.domain.fleet.acts import Phase
from driver_manager.domain.fleet.fields import PLURAL
from driver_manager.domain.fleet.model import UpgradeState
from driver_manager.profiles import builtin
from driver_manager.sandbox.cluster import Happening
from driver_manager.sandbox.containers import Container
from driver_manager.sandbox.controllers import Controller
from driver_manager.sandbox.fleet_cluster import DRIVER, SandboxFleet
from driver_manager.sandbox.fleet_end import FleetCourse, Taken, problems
from driver_manager.sandbox.fleet_picture import NodeRow, Picture, picture_of, record_of
from driver_manager.sandbox.fleet_players import version_of
from driver_manager.sandbox.fleet_scenarios import FleetStory, Release
from driver_manager.sandbox.runner import NodeSummary, ScenarioReport, Show
from driver_manager.sandbox.store import Event

STEP_S = 150.0
"""What one chapter may take on the slowest of machines."""

END_S = 10.0
_IDLE_S = 3600.0


class FleetShow(Show, Protocol):
    """Where the story of a fleet goes while it happens."""

    def picture(self, picture: Picture, news: Sequence[str]) -> None:
        """How the fleet looks now, and what of it is new, in lines."""
        ...


class FleetWatcher(Controller):
    """Tells a show what the objects show, and writes down the course. `picture` is the last that was told."""

    resources = ("nodes", "pods", PLURAL)

    def __init__(self, fleet: SandboxFleet, show: FleetShow) -> None:
        super().__init__(fleet.store)
        self.course = FleetCourse()
        self.timeline: list[Happening] = []
        self._fleet = fleet
        self._show = show
        self._begun_s = time.monotonic()
        self._first = {pod["metadata"]["uid"] for pod in fleet.store.list_objects("pods")[0]}
        self._versions = fleet.revisions
        self._words: dict[str, str] = {}
        self._unfinished: set[str] = set()
        self.picture = Picture()

    def _handle(self, events: Sequence[Event]) -> float:
        for event in events:
            if event.previous is not None and event.resource == "nodes":
                self._note_node(event)
            elif event.type == "ADDED" and event.resource == "pods":
                self._note_pod(event)
        now = self._now()
        news = self._news(now)
        if now != self.picture:
            with contextlib.suppress(BrokenPipeError):  # nobody reads any more: the next chapter's line says so
                self._show.picture(now, news)
            self.picture = now
            self._store.wake()  # for whoever waits for this picture
        return _IDLE_S

    def _now(self) -> Picture:
        pods = self._store.list_objects("pods", labels=f"app={DRIVER}")[0]
        nodes = self._store.list_objects("nodes")[0]
        return picture_of(nodes, pods, self._fleet.rollout(), self._fleet.profile.keys)

    def _note_node(self, event: Event) -> None:
        """A node's word has changed: it was taken, or has ended."""
        keys, name = self._fleet.profile.keys, event.obj["metadata"]["name"]
        word = event.obj["metadata"].get("labels", {}).get(keys.upgrade_state, "")
        if word == self._words.get(name, ""):
            return
        self._words[name] = word
        record = record_of(event.obj, keys)
        if word == UpgradeState.RESTART.value and record is not None:
            version = self._versions.get(record.revision, record.revision)
            self.course.taken.append(Taken(name, version, record.wave, tuple(sorted(self._unfinished))))
            self._unfinished.add(name)
        elif word in (UpgradeState.DONE.value, UpgradeState.FAILED.value):
            self._unfinished.discard(name)
        self.course.most_at_once = max(self.course.most_at_once, len(self._unfinished))

    def _note_pod(self, event: Event) -> None:
        pod = event.obj
        if pod["metadata"]["labels"].get("app") == DRIVER and pod["metadata"]["uid"] not in self._first:
            self.course.pods[pod["spec"]["nodeName"], version_of(pod)] += 1

    def _news(self, now: Picture) -> list[str]:
        """One line for each change."""
        at_s = time.monotonic() - self._begun_s
        before = {row.node: row for row in self.picture.rows}
        news = [_told(row) for row in now.rows if row.differs(before.get(row.node))]
        if now.headline != self.picture.headline:
            news.append(now.headline)
        self.timeline += [Happening(at_s, line) for line in news]
        return [f"{at_s:6.2f} s  {line}" for line in news]


def _told(row: NodeRow) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row.cells, (8, 8, 21, 7, 0), strict=False))


def run_fleet_story(story: FleetStory, show: FleetShow) -> ScenarioReport:
    """Play `story` and judge its end. Raises RuntimeError when the sandbox itself does not work."""
    with tempfile.TemporaryDirectory(prefix="driver-manager-sandbox-") as name:
        folder, profile = Path(name).resolve(), builtin()["rebellions"]
        with (
            SandboxFleet(story, profile, folder, lambda line: show.line(f"{story.canary}: {line}")) as fleet,
            FleetWatcher(fleet, show) as watcher,
        ):
            return FleetPlay(story, fleet, watcher, show).report()


class FleetPlay:
    """One story under way."""

    def __init__(self, story: FleetStory, fleet: SandboxFleet, watcher: FleetWatcher, show: FleetShow) -> None:
        self._story = story
        self._fleet = fleet
        self._watcher = watcher
        self._show = show

    def report(self) -> ScenarioReport:
        """Each chapter until it is over, then the end beside the beginning."""
        story, fleet, course = self._story, self._fleet, self._watcher.course
        report = ScenarioReport(story, self._state(), is_told=True, node=story.canary)
        begun_s = time.monotonic()
        self._show.chapter(f"{len(story.nodes)} nodes serve driver {story.old.version}; rollout controller starts")
        controller = fleet.rollout_command(lambda line: self._show.line(f"controller: {line}"), "controller")
        try:
            self._play(controller, report)
        except RuntimeError as error:
            report.problems.append(str(error))
        course.controller_status = controller.terminate(END_S)
        course.end = self._watcher.picture
        course.shown = {one["type"]: one["status"] for one in fleet.status().get("conditions", ())}
        report.seconds = time.monotonic() - begun_s
        report.requests = sum(record.resource != "events" for record in fleet.server.requests)
        report.timeline = list(self._watcher.timeline)
        report.after = self._state()
        if not report.problems:  # else what follows from that is no news
            report.problems = [*problems(story, course), *self._left_on_host(report.before, report.after)]
        return report

    def _play(self, controller: Container, report: ScenarioReport) -> None:
        """The chapters. Raises RuntimeError when one of them does not end."""
        story, fleet, course = self._story, self._fleet, self._watcher.course
        self._until(controller, Phase.COMPLETE, story.old)
        self._show.chapter(f"kubectl apply: driver {story.bad.version}, whose module does not load")
        fleet.set_release(story.bad)
        self._until(controller, Phase.HALTED, story.bad)
        course.halted = self._watcher.picture.message
        report.exit_codes = [self._ask("status"), self._ask("undo")]
        course.answers = tuple(report.exit_codes)
        self._until(controller, Phase.COMPLETE, story.old)
        course.undone = self._watcher.picture
        self._show.chapter(f"kubectl apply: driver {story.good.version}, which is good")
        fleet.set_release(story.good)
        self._until(controller, Phase.COMPLETE, story.good)

    def _ask(self, verb: str) -> int:
        """What somebody types; its exit status."""
        self._show.chapter(f"driver-manager rollout {verb}")
        return self._fleet.rollout_command(self._show.line, verb).wait(STEP_S)

    def _until(self, controller: Container, phase: Phase, release: Release) -> None:
        """Wait until the object says this about this driver. Raises RuntimeError where it does not come to that."""
        fleet, watcher = self._fleet, self._watcher
        revision = next(one for one, version in fleet.revisions.items() if version == release.version)

        def holds() -> bool:
            shown = watcher.picture
            return (shown.phase, shown.target) == (phase.value, revision) and fleet.host.is_at_rest

        what = f"{phase.value} of driver {release.version}"
        fleet.wait_for(lambda: holds() or controller.has_ended, what, STEP_S)
        if not holds():
            raise RuntimeError(f"the controller ended before {what}")

    def _state(self) -> NodeSummary:
        """The node whose runs are real."""
        node = self._fleet.store.get("nodes", self._story.canary)
        metadata, keys, tree = node["metadata"], self._fleet.profile.keys, self._fleet.tree
        return NodeSummary(
            labels=dict(metadata.get("labels", {})),
            cordoned=bool(node.get("spec", {}).get("unschedulable")),
            journal=keys.journal in metadata.get("annotations", {}),
            driver=tree.driver_version,
            digest=tree.digest,
        )

    def _left_on_host(self, before: NodeSummary, after: NodeSummary) -> list[str]:
        """What the real runs should have left as it was, or changed, and have not."""
        good, keys = self._story.good, self._fleet.profile.keys
        labels = before.labels | {keys.state: "ready", keys.upgrade_state: UpgradeState.DONE.value}
        expected = NodeSummary(labels, before.cordoned, before.journal, good.version, good.digest)
        return [] if after == expected else [f"{self._story.canary} is {after}, expected {expected}"]
