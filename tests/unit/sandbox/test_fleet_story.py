"""The sandbox's fleet: its story ends as it is told, and each line by which that is judged can fail."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from driver_manager.profiles import builtin
from driver_manager.sandbox.cluster import Process, command_line, environment
from driver_manager.sandbox.fleet import (
    FLEET_SCENARIOS,
    FleetCourse,
    FleetPlay,
    FleetScenario,
    FleetWatcher,
    NodeRow,
    Picture,
    SandboxFleet,
    Taken,
    problems,
)
from driver_manager.sandbox.scenarios import ScenarioReport

pytestmark = pytest.mark.shares(3)

STORY = FLEET_SCENARIOS["fleet"]
SMALL = replace(STORY, nodes=STORY.nodes[:2])


@dataclass
class Listener:
    """A show that remembers what it was told."""

    chapters: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    news: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    def chapter(self, title: str) -> None:
        self.chapters.append(title)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def picture(self, picture: Picture, news: Sequence[str]) -> None:
        self.pictures.append(picture)
        self.news += news


@dataclass
class Played:
    """A story that is over, or is about to be told."""

    fleet: SandboxFleet
    watcher: FleetWatcher
    play: FleetPlay
    show: Listener


@contextlib.contextmanager
def stage(story: FleetScenario, folder: Path) -> Generator[Played, None, None]:
    show = Listener()
    with (
        SandboxFleet(story, builtin()["rebellions"], folder, show.line) as fleet,
        FleetWatcher(fleet, show) as watcher,
    ):
        yield Played(fleet, watcher, FleetPlay(story, fleet, watcher, show), show)


@dataclass(frozen=True)
class Told:
    """The whole story once."""

    report: ScenarioReport
    course: FleetCourse
    show: Listener


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with stage(STORY, tmp_path_factory.mktemp("fleet")) as played:
        yield Told(played.play.report(), played.watcher.course, played.show)


@pytest.mark.submission
def test_the_story_ends_as_it_is_told(told: Told) -> None:
    assert told.report.problems == []
    assert told.report.timeline
    assert told.report.after is not None
    assert (told.report.after.driver, told.report.after.digest) == (STORY.good.version, STORY.good.digest)


@pytest.mark.submission
def test_its_chapters_are_a_bad_driver_the_way_back_and_a_good_driver(told: Told) -> None:
    _, bad, look, back, good = told.show.chapters
    assert [word in title for word, title in (("status", look), ("undo", back))] == [True, True]
    assert [one.version in title for one, title in ((STORY.bad, bad), (STORY.good, good))] == [True, True]


@pytest.mark.submission
def test_the_runs_of_the_canary_are_real(told: Told) -> None:
    ends = [line for line in told.show.lines if "done: driver" in line or "error: module" in line]
    assert [STORY.bad.version in end for end in ends] == [False, False, False]
    assert ["cannot be loaded" in end for end in ends] == [True, False, False]
    assert [f"driver {one.version} " in end for one, end in zip((STORY.old, STORY.good), ends[1:], strict=True)] == [
        True,
        True,
    ]


@pytest.mark.submission
def test_each_change_is_told_once_and_the_last_picture_is_the_end(told: Told) -> None:
    assert len(told.show.news) == len(told.report.timeline)
    assert told.show.pictures[-1] == told.course.end
    assert told.show.news[-1].endswith(told.show.pictures[-1].headline)
    repeated = [
        line
        for line, after in zip(told.report.timeline, told.report.timeline[1:], strict=False)
        if line.text == after.text
    ]
    assert not repeated


def row(picture: Picture | None, node: str, **changes: str) -> Picture:
    """The picture with another row of that node."""
    assert picture is not None
    rows = tuple(replace(one, **changes) if one.node == node else one for one in picture.rows)
    return replace(picture, rows=rows)


def more_pods(node: str, version: str, change: int) -> Callable[[FleetCourse], FleetCourse]:
    return lambda course: replace(course, pods=course.pods + Counter({(node, version): change}))


def swapped(course: FleetCourse) -> FleetCourse:
    """The last wave's first node goes in the second wave's place."""
    good = [number for number, one in enumerate(course.taken) if one.version == STORY.good.version]
    taken = list(course.taken)
    taken[good[1]], taken[good[-1]] = taken[good[-1]], taken[good[1]]
    return replace(course, taken=taken)


def too_early(course: FleetCourse) -> FleetCourse:
    """A node of the last wave is taken while one of the second has not ended."""
    last = course.taken[-1]
    second = next(one for one in course.taken if one.version == STORY.good.version and one.wave == 2)
    return replace(course, taken=[*course.taken[:-1], replace(last, unfinished=(second.node,))])


CANARY, OTHER = STORY.canary, STORY.nodes[-1]
SPOILED: dict[str, tuple[str, Callable[[FleetCourse], FleetCourse]]] = {
    "a second node gets the bad driver": ("reached", more_pods(OTHER, STORY.bad.version, 1)),
    "the canary gets it twice": ("reached", more_pods(CANARY, STORY.bad.version, 1)),
    "the halt names nobody": ("the halt shows", lambda course: replace(course, halted="held: no module")),
    "the halt shows no reason": ("the halt shows", lambda course: replace(course, halted=f"failed: {CANARY}")),
    "somebody who looks is not told to act": (
        "rollout status and undo",
        lambda course: replace(course, answers=(0, 0)),
    ),
    "the wish is refused": (
        "rollout status and undo",
        lambda course: replace(course, answers=(*course.answers[:1], 2)),
    ),
    "it is not undone": (
        "after the undo",
        lambda course: replace(course, undone=row(course.undone, CANARY, driver=STORY.bad.version)),
    ),
    "a node is down after it": (
        "after the undo",
        lambda course: replace(course, undone=row(course.undone, OTHER, pod="Terminating")),
    ),
    "a node is restarted for nothing": ("for the undo", more_pods(OTHER, STORY.old.version, 1)),
    "a node is restarted twice": ("restarts for", more_pods(OTHER, STORY.good.version, 1)),
    "a node keeps the old driver": (
        "in the end the nodes serve",
        lambda course: replace(course, end=row(course.end, OTHER, driver=STORY.old.version)),
    ),
    "the waves change places": ("the nodes were taken in the waves", swapped),
    "a wave does not wait for the one before": ("was taken before", too_early),
    "a wave is left out": (
        "the nodes were taken in the waves",
        lambda course: replace(course, taken=[replace(one, wave=1) for one in course.taken]),
    ),
    "one too many at once": ("were under way", lambda course: replace(course, most_at_once=course.most_at_once + 1)),
    "one at a time": ("were under way", lambda course: replace(course, most_at_once=1)),
    "a label says something else": (
        "the labels are",
        lambda course: replace(course, end=row(course.end, OTHER, upgrade="validation-required")),
    ),
    "the object is not ready": (
        "the object's conditions",
        lambda course: replace(course, shown={**course.shown, "Ready": "False"}),
    ),
    "the controller fails": ("the controller ended", lambda course: replace(course, controller_status=1)),
}


@pytest.mark.submission
@pytest.mark.parametrize(("what", "spoil"), SPOILED.values(), ids=SPOILED.keys())
def test_a_story_that_goes_otherwise_is_noticed(
    what: str, spoil: Callable[[FleetCourse], FleetCourse], told: Told
) -> None:
    found = problems(STORY, spoil(copy.deepcopy(told.course)))
    assert [what in one for one in found].count(True) >= 1, found


@pytest.mark.submission
@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, driver=STORY.old.version),
        lambda one: replace(one, digest=""),
        lambda one: replace(one, journal=True),
        lambda one: replace(one, cordoned=True),
        lambda one: replace(one, labels={}),
    ],
    ids=["driver", "digest", "journal", "cordon", "labels"],
)
def test_what_a_real_run_leaves_behind_is_noticed(change: Callable[..., object], told: Told, tmp_path: Path) -> None:
    assert told.report.after is not None
    play = FleetPlay(STORY, SandboxFleet(STORY, builtin()["rebellions"], tmp_path, print), None, told.show)  # type: ignore[arg-type]  # nothing is watched
    assert play._left_on_host(told.report.before, told.report.after) == []
    assert play._left_on_host(told.report.before, change(told.report.after)) != []  # type: ignore[arg-type]  # a summary


def test_a_controller_that_ends_by_itself_ends_the_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stage(SMALL, tmp_path) as played:
        fleet = played.fleet
        env = environment(fleet.tree, fleet.kubeconfig, "", {})
        monkeypatch.setattr(
            fleet,
            "rollout_command",
            lambda say, *_: Process(command_line("--version"), env, fleet.tree.root, say, lambda _: fleet.store.wake()),
        )
        report = played.play.report()
    assert report.problems == [f"the controller ended before Complete of driver {STORY.old.version}"]


@pytest.mark.submission
def test_a_node_that_comes_back_with_a_driver_that_does_not_load_crashes_like_the_real_one(tmp_path: Path) -> None:
    with stage(SMALL, tmp_path) as played:
        fleet, name = played.fleet, SMALL.nodes[1]

        def pod() -> NodeRow:
            return played.watcher.picture.rows[1]

        fleet.set_release(SMALL.bad)
        old = next(one for one in fleet.store.list_objects("pods", fields=f"spec.nodeName={name}")[0])
        fleet.store.delete("pods", old["metadata"]["name"], namespace=fleet.namespace)
        fleet.wait_for(
            lambda: played.watcher.picture.rows[1:] != () and pod().pod == "Init:CrashLoopBackOff", "a crash"
        )
        assert (pod().node, pod().driver) == (name, SMALL.bad.version)
    assert played.watcher.course.pods == {(name, SMALL.bad.version): 1}
    assert played.watcher.course.taken == list[Taken]()
