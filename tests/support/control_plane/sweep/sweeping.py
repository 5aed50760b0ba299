"""Owns the sweep of one path: the recorded run, every kill that follows from it, and what each of them left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TypeVar

from tests.support.control_plane.shown import NOTHING
from tests.support.control_plane.sweep.judging import Verdict, judge
from tests.support.control_plane.sweep.outcome import Outcome, after_a_boot, outcome
from tests.support.control_plane.sweep.paths import Path
from tests.support.control_plane.sweep.recording import Effect, uncovered
from tests.support.control_plane.sweep.scene import EDITED, Kill, Scene, SweepNode
from tests.support.selection import Share

PATCH = "patch nodes"
EDIT = {EDITED: "false"}
"""What an administrator changes between the kill and the next run."""

SHARES = 9
"""A submission kills at one share of the points of every path. It is odd for the reason that `points` gives."""

T = TypeVar("T")


@dataclass(frozen=True)
class Recording:
    """One undisturbed run: its effects, what it left, and what is left when a reboot and another run follow it."""

    path: Path
    effects: tuple[Effect, ...]
    at_the_end: Outcome
    after_a_boot: Outcome

    @property
    def kills(self) -> tuple[Kill, ...]:
        """Right before and right after every effect."""
        return tuple(Kill(effect, after) for effect in self.effects for after in (False, True))


@dataclass(frozen=True)
class Point:
    """One kill, with a reboot between it and the next run or without."""

    kill: Kill
    reboots: bool

    def __str__(self) -> str:
        return f"{self.kill}{', then a reboot' if self.reboots else ''}"


@dataclass(frozen=True)
class Judged:
    """What one point was found to leave."""

    path: Path
    point: Point
    verdict: Verdict
    interrupted: int

    def __str__(self) -> str:
        return "\n".join(f"{self.path}, {self.point}: {line}" for line in str(self.verdict).splitlines())


def record(sweep_node: SweepNode, path: Path) -> Recording:
    """Run the path undisturbed. AssertionError where it does not end as the path says."""
    with sweep_node.scene(path) as scene:
        ended = scene.start().end()
        assert ended.code == path.code, f"{path}: it ended with {ended.code}\n{ended.err}"
        effects, at_the_end = scene.effects(ended), outcome(scene, ended.code)
        scene.reboot()
        return Recording(path, effects, at_the_end, after_a_boot(outcome(scene, scene.start().end().code)))


def points(recording: Recording, share: Share) -> list[Point]:
    """The share of all kills. A reboot follows each effect and precedes the first: two effects have one state between.

    With an odd number of shares each of them has kills before effects, and kills after effects.
    """
    booted = [kill for kill in recording.kills if kill.after or kill.effect == recording.effects[0]]
    return share.of([Point(kill, False) for kill in recording.kills] + [Point(kill, True) for kill in booted])


def strike(sweep_node: SweepNode, recording: Recording, point: Point, mutant: str = "") -> Judged:
    """Kill a run at this point, run once more to the end, and judge what is there then."""
    with sweep_node.scene(recording.path, mutant=mutant) as scene:
        died = scene.killed(point.kill)
        gap = uncovered(recording.effects, scene.effects(died))
        if point.reboots:
            scene.reboot()
        sweep_node.node.set_labels(EDIT)
        got = outcome(scene, scene.start().end().code)
        got = after_a_boot(got) if point.reboots else got
        wanted = _wanted(recording, point, got)
        verdict = judge(wanted, got, edits=EDIT, uncovered=gap, pods=_may_go(scene))
        return Judged(recording.path, point, verdict, got.interrupted)


def _wanted(recording: Recording, point: Point, got: Outcome) -> Outcome:
    """What has to be there."""
    if not point.reboots:
        return recording.at_the_end
    wanted = recording.after_a_boot
    # A boot may leave nothing to do: a Node that was never patched then shows nothing.
    is_silent = got.shown == NOTHING and not _was_patched(recording, point.kill)
    return replace(wanted, shown=NOTHING) if is_silent else wanted


def _was_patched(recording: Recording, kill: Kill) -> bool:
    """Whether the killed run had patched the Node."""
    first = next((place for place, one in enumerate(recording.effects) if one.name == PATCH), len(recording.effects))
    at = recording.effects.index(kill.effect)
    return at > first or (at == first and kill.after)


def _may_go(scene: Scene) -> frozenset[str]:
    return frozenset(job.uid for job in scene.jobs) if not scene.path.is_managed else frozenset()


class Workers:
    """Several grounds that work through a list at once."""

    def __init__(self, grounds: Iterable[SweepNode]) -> None:
        self._free: SimpleQueue[SweepNode] = SimpleQueue()
        self._count = 0
        for sweep_node in grounds:
            self._free.put(sweep_node)
            self._count += 1

    def each(self, work: Iterable[Callable[[SweepNode], T]]) -> list[T]:
        """The results in order. Raises what the first that failed raised."""

        def on_a_free_one(one: Callable[[SweepNode], T]) -> T:
            sweep_node = self._free.get()
            try:
                return one(sweep_node)
            finally:
                self._free.put(sweep_node)

        with ThreadPoolExecutor(self._count) as pool:
            return list(pool.map(on_a_free_one, work))
