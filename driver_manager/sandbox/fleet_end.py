"""How the story of a fleet went, and what of it is not as it has to be.

Owns what is written down while it goes on, and the promises that it is measured by: each is one function, and can fail.
Pure. Must not import anything but the standard library and the sandbox.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.fleet.model import UpgradeState
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.node_state import NodeState
from driver_manager.sandbox.fleet_picture import Picture
from driver_manager.sandbox.fleet_scenarios import FleetStory


class Taken(Frozen):
    """A node was taken for a driver, in a wave, while so many others of that driver had not ended."""

    node: str
    version: str
    wave: int
    unfinished: tuple[str, ...] = ()


@dataclass
class FleetCourse:
    """What was seen. `pods` counts the driver pods that were made, by node and version, the first ones apart.

    `halted` is what the object said when it halted, `undone` the picture once the way back was gone, `end` the last.
    `answers` are the exit codes of `rollout status` while it was halted, and of `rollout undo`.
    """

    taken: list[Taken] = field(default_factory=list)
    pods: Counter[tuple[str, str]] = field(default_factory=Counter)
    most_at_once: int = 0
    halted: str = ""
    undone: Picture | None = None
    end: Picture | None = None
    shown: Mapping[str, str] = field(default_factory=dict)
    answers: Sequence[int] = ()
    controller_status: int | None = None

    def versions(self, picture: Picture | None) -> dict[str, str]:
        """The driver of each node that runs there."""
        return {row.node: row.driver for row in picture.rows if row.pod == "Running"} if picture is not None else {}


Promise = Callable[[FleetStory, FleetCourse], Iterator[str]]


def _canary_alone(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """A driver that fails reaches one node."""
    got = {node: count for (node, version), count in course.pods.items() if version == story.bad.version}
    if got != {story.canary: 1}:
        yield f"driver {story.bad.version} reached {got}, expected {story.canary} alone"


def _halt_says_why(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """Whoever reads the object knows which node it was, and what its own run said."""
    wanted = (story.canary, NodeState.HELD.value)
    if not all(word in course.halted for word in wanted):
        yield f"the halt shows {course.halted!r}, expected it to name {' and '.join(wanted)}"


def _verbs_answer(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """Who looks at a halted rollout learns by the exit code that somebody has to act; what is asked for is taken."""
    wanted = (ExitCode.ROLLOUT_STUCK, ExitCode.DONE)
    if tuple(course.answers) != wanted:
        yield f"rollout status and undo ended with {list(course.answers)}, expected {[int(code) for code in wanted]}"


def _way_back(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """The old driver is everywhere again, and only where it was not, a pod was restarted for it."""
    found = course.versions(course.undone)
    if found != dict.fromkeys(story.nodes, story.old.version):
        yield f"after the undo the nodes serve {found}, expected {story.old.version} everywhere"
    got = {node: count for (node, version), count in course.pods.items() if version == story.old.version}
    if got != {story.canary: 1}:
        yield f"for the undo pods were restarted on {got}, expected {story.canary} alone"


def _each_once(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """The good driver reaches every node by one restart."""
    got = {node: course.pods[node, story.good.version] for node in story.nodes}
    if got != dict.fromkeys(story.nodes, 1):
        yield f"restarts for {story.good.version}: {got}, expected one on each node"
    found = course.versions(course.end)
    if found != dict.fromkeys(story.nodes, story.good.version):
        yield f"in the end the nodes serve {found}, expected {story.good.version} everywhere"


def _wave_by_wave(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """No node begins before the wave before its own has ended."""
    good = [one for one in course.taken if one.version == story.good.version]
    numbers = [one.wave for one in good]
    if numbers != sorted(numbers) or set(numbers) != set(range(1, len(story.waves) + 1)):
        yield f"the nodes were taken in the waves {numbers}, expected all of {len(story.waves)} in their order"
    wave_of = {one.node: one.wave for one in good}
    for one in good:
        early = [other for other in one.unfinished if wave_of[other] < one.wave]
        if early:
            yield f"{one.node} of wave {one.wave} was taken before {', '.join(early)} had ended"


def _never_too_many(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """maxParallel holds, and is made use of."""
    if course.most_at_once != story.most_at_once:
        yield f"at most {course.most_at_once} nodes were under way, expected {story.most_at_once}"


def _all_is_said(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """The Nodes' labels and the object show that it is over."""
    words = {row.node: row.upgrade for row in course.end.rows} if course.end is not None else {}
    if words != dict.fromkeys(story.nodes, UpgradeState.DONE.value):
        yield f"the labels are {words}, expected {UpgradeState.DONE.value} everywhere"
    if course.shown != {"Ready": "True", "Reconciling": "False", "Stalled": "False"}:
        yield f"the object's conditions are {dict(course.shown)}, expected Ready alone"


def _controller_ends(story: FleetStory, course: FleetCourse) -> Iterator[str]:
    """Told to end, the controller hands over and ends well."""
    if course.controller_status != 0:
        yield f"the controller ended with {course.controller_status}, expected 0"


PROMISES: tuple[Promise, ...] = (
    _canary_alone,
    _halt_says_why,
    _verbs_answer,
    _way_back,
    _each_once,
    _wave_by_wave,
    _never_too_many,
    _all_is_said,
    _controller_ends,
)


def problems(story: FleetStory, course: FleetCourse) -> list[str]:
    """What is not as it has to be, empty where all is."""
    return [problem for promise in PROMISES for problem in promise(story, course)]
