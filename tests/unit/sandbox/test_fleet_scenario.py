"""The fleet scenario: its course and end, and a wrong course for each check."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

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

FLEET = FLEET_SCENARIOS["fleet"]
SMALL = replace(FLEET, nodes=FLEET.nodes[:2])


class Listener:
    """A show that keeps everything."""

    def __init__(self) -> None:
        self.chapters, self.lines, self.news = list[str](), list[str](), list[str]()
        self.pictures = list[Picture]()
        self.chapter, self.line = self.chapters.append, self.lines.append

    def picture(self, picture: Picture, news: Sequence[str]) -> None:
        self.pictures.append(picture)
        self.news += news


@dataclass
class Stage:
    """A scenario that is ready to be played; `report` is set by the fixture `played`."""

    fleet: SandboxFleet
    watcher: FleetWatcher
    play: FleetPlay
    show: Listener
    report: ScenarioReport | None = None


@contextlib.contextmanager
def stage(scenario: FleetScenario, folder: Path) -> Generator[Stage, None, None]:
    show = Listener()
    with (
        SandboxFleet(scenario, builtin()["rebellions"], folder, show.line) as fleet,
        FleetWatcher(fleet, show) as watcher,
    ):
        yield Stage(fleet, watcher, FleetPlay(scenario, fleet, watcher, show), show)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(FLEET, tmp_path_factory.mktemp("fleet")) as found:
        found.report = found.play.report()
        yield found


@pytest.mark.submission
def test_a_bad_driver_is_undone_and_a_good_one_reaches_all_nodes_in_real_runs(played: Stage) -> None:
    report, show = played.report, played.show
    assert report is not None
    assert report.problems == []
    assert report.after is not None
    assert (report.after.driver, report.after.digest) == (FLEET.good.version, FLEET.good.digest)
    _, bad, look, back, good = show.chapters
    assert ("status" in look, "undo" in back) == (True, True)
    assert (FLEET.bad.version in bad, FLEET.good.version in good) == (True, True)
    failed, undone, upgraded = (line for line in show.lines if "done: driver" in line or "error: module" in line)
    assert "cannot be loaded" in failed
    assert f"driver {FLEET.old.version} " in undone
    assert f"driver {FLEET.good.version} " in upgraded
    texts = [one.text for one in report.timeline]
    assert len(show.news) == len(texts) > 0, "each change is shown once"
    assert show.pictures[-1] == played.watcher.course.end
    assert show.news[-1].endswith(show.pictures[-1].headline)
    assert not [text for text, after in itertools.pairwise(texts) if text == after]


Spoil = Callable[[FleetCourse], FleetCourse]
CANARY, OTHER = FLEET.canary, FLEET.nodes[-1]
WAVES = "the nodes were taken in the waves"


def changed(**changes: Any) -> Spoil:
    return lambda course: replace(course, **changes)


def row(name: str, node: str, **changes: str) -> Spoil:
    """Another row of that node in the picture `name`."""

    def spoil(course: FleetCourse) -> FleetCourse:
        picture: Picture = getattr(course, name)
        rows = tuple(replace(one, **changes) if one.node == node else one for one in picture.rows)
        return replace(course, **{name: replace(picture, rows=rows)})

    return spoil


def one_more_pod(node: str, version: str) -> Spoil:
    return lambda course: replace(course, pods=course.pods + Counter({(node, version): 1}))


def swapped(course: FleetCourse) -> FleetCourse:
    """The last wave's first node goes in the second wave's place."""
    good = [number for number, one in enumerate(course.taken) if one.version == FLEET.good.version]
    taken = list(course.taken)
    taken[good[1]], taken[good[-1]] = taken[good[-1]], taken[good[1]]
    return replace(course, taken=taken)


def too_early(course: FleetCourse) -> FleetCourse:
    """A node of the last wave is taken while one of the second has not ended."""
    last = course.taken[-1]
    second = next(one for one in course.taken if one.version == FLEET.good.version and one.wave == 2)
    return replace(course, taken=[*course.taken[:-1], replace(last, unfinished=(second.node,))])


SPOILED: dict[str, tuple[str, Spoil]] = {
    "a second node gets the bad driver": ("reached", one_more_pod(OTHER, FLEET.bad.version)),
    "the canary gets it twice": ("reached", one_more_pod(CANARY, FLEET.bad.version)),
    "the halt names no node": ("the halt shows", changed(halted="held: no module")),
    "the halt shows no reason": ("the halt shows", changed(halted=f"failed: {CANARY}")),
    "status reports success at the halt": ("rollout status and undo", changed(answers=(0, 0))),
    "the undo is refused": (
        "rollout status and undo",
        lambda course: replace(course, answers=(*course.answers[:1], 2)),
    ),
    "it is not undone": ("after the undo", row("undone", CANARY, driver=FLEET.bad.version)),
    "a node is down after it": ("after the undo", row("undone", OTHER, pod="Terminating")),
    "a node is restarted for the undo without need": ("for the undo", one_more_pod(OTHER, FLEET.old.version)),
    "a node is restarted twice": ("restarts for", one_more_pod(OTHER, FLEET.good.version)),
    "a node keeps the old driver": ("in the end the nodes serve", row("end", OTHER, driver=FLEET.old.version)),
    "the waves change places": (WAVES, swapped),
    "a wave does not wait for the one before": ("was taken before", too_early),
    "a wave is left out": (
        WAVES,
        lambda course: replace(course, taken=[replace(one, wave=1) for one in course.taken]),
    ),
    "one too many at once": ("were under way", lambda course: replace(course, most_at_once=course.most_at_once + 1)),
    "one at a time": ("were under way", changed(most_at_once=1)),
    "a label has another state": ("the labels are", row("end", OTHER, upgrade="validation-required")),
    "the object is not ready": (
        "the object's conditions",
        lambda course: replace(course, shown={**course.shown, "Ready": "False"}),
    ),
    "the controller fails": ("the controller ended", changed(controller_status=1)),
}


@pytest.mark.submission
@pytest.mark.parametrize(("what", "spoil"), SPOILED.values(), ids=SPOILED.keys())
def test_a_wrong_course_is_found(what: str, spoil: Spoil, played: Stage) -> None:
    found = problems(FLEET, spoil(copy.deepcopy(played.watcher.course)))
    assert any(what in one for one in found), found


@pytest.mark.submission
@pytest.mark.parametrize(
    "change",
    [{"driver": FLEET.old.version}, {"digest": ""}, {"journal": True}, {"cordoned": True}, {"labels": {}}],
    ids=lambda change: next(iter(change)),
)
def test_a_wrong_end_of_the_real_runs_is_found(change: dict[str, Any], played: Stage) -> None:
    assert played.report is not None
    assert played.report.after is not None
    before, after = played.report.before, played.report.after
    assert played.play._left_on_host(before, after) == []
    assert played.play._left_on_host(before, replace(after, **change)) != []


def test_a_controller_that_ends_by_itself_ends_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stage(SMALL, tmp_path) as small:
        fleet = small.fleet
        env = environment(fleet.tree, fleet.kubeconfig, "", {})
        monkeypatch.setattr(
            fleet,
            "rollout_command",
            lambda say, *_: Process(command_line("--version"), env, fleet.tree.root, say, lambda _: fleet.store.wake()),
        )
        report = small.play.report()
    assert report.problems == [f"the controller ended before Complete of driver {FLEET.old.version}"]


@pytest.mark.submission
def test_a_node_that_comes_back_with_a_driver_that_does_not_load_crashes_like_the_real_one(tmp_path: Path) -> None:
    with stage(SMALL, tmp_path) as small:
        fleet, name = small.fleet, SMALL.nodes[1]

        def pod() -> NodeRow:
            return small.watcher.picture.rows[1]

        fleet.set_release(SMALL.bad)
        old = next(one for one in fleet.store.list_objects("pods", fields=f"spec.nodeName={name}")[0])
        fleet.store.delete("pods", old["metadata"]["name"], namespace=fleet.namespace)
        fleet.wait_for(lambda: small.watcher.picture.rows[1:] != () and pod().pod == "Init:CrashLoopBackOff", "a crash")
        assert (pod().node, pod().driver) == (name, SMALL.bad.version)
    assert small.watcher.course.pods == {(name, SMALL.bad.version): 1}
    assert small.watcher.course.taken == list[Taken]()
