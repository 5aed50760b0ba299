"""The scenarios of the sandbox: clients, reboots, further vendors and a fleet: their end, course and output."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

import pytest
from msgspec.structs import replace

from driver_manager.domain.node_state import NodeState
from driver_manager.profiles import builtin
from driver_manager.sandbox import fleet as story
from driver_manager.sandbox import loops
from driver_manager.sandbox.cluster import Process, command_line, environment
from driver_manager.sandbox.fleet import FLEET_SCENARIOS, FleetCourse, FleetScenario, Picture, SandboxFleet
from driver_manager.sandbox.host import HostTree
from driver_manager.sandbox.scenarios import OLD, SCENARIOS, VENDOR_SCENARIOS, ScenarioReport, run_scenario

pytestmark = pytest.mark.shares(3)


class Played:
    """A show that keeps the lines of each chapter, and the report."""

    report: ScenarioReport

    def __init__(self) -> None:
        self.chapters = list[list[str]]()

    def chapter(self, title: str) -> None:
        self.chapters.append([title])

    def line(self, text: str) -> None:
        self.chapters[-1].append(text)

    @property
    def lines(self) -> list[str]:
        return [line for chapter in self.chapters for line in chapter[1:]]

    @property
    def texts(self) -> list[str]:
        return [happening.text for happening in self.report.timeline]


CLIENTS = SCENARIOS["clients"]


@pytest.mark.submission
def test_a_client_leaves_before_the_swap_or_after_it_is_reported_and_named_by_the_refusal() -> None:
    clients = Played()
    clients.report = run_scenario(replace(CLIENTS, restarts=()), clients)  # checked as if none might be restarted
    assert (clients.report.exit_codes, CLIENTS.restarts) == ([4, 0], ("monitoring/npu-exporter", "telemetry/npu-agent"))
    assert clients.report.problems == [f"restarted clients {list(CLIENTS.restarts)}, expected []"]
    _, refused, _, again, status = clients.chapters
    *_, what, remedy = refused
    assert ("in pod telemetry/npu-agent-" in what, what.endswith("no pod was disturbed")) == (True, True)
    assert ("RESTART_CLIENTS=true" in remedy, "RESTART_CLIENTS=true" in again[0]) == (True, True)
    assert any("client monitoring/npu-exporter-" in line and line.endswith("was restarted") for line in status)
    texts = clients.texts
    stops = [text.split()[1].rpartition("-")[0] for text in texts if text.endswith("is being stopped")]
    names = [name for name in stops if name.startswith("npu-")]
    assert names == ["npu-agent", "npu-exporter"], "each once, and the first one has an open device"
    taken, back = texts.index("journal written"), texts.index("journal removed")
    agent, exporter = (next(n for n, text in enumerate(texts) if text.startswith(f"pod {name}")) for name in names)
    assert taken < agent < back < exporter


NAMED = re.compile(r"(?:(?P<node>sandbox-node\S*) +)?(?P<agent>[a-z-]+) +\| (?P<words>.*)")
MOMENT = re.compile(r"\d\d:\d\d:\d\d\.\d{3} ")


def rebooted(name: str) -> tuple[Played, list[tuple[str, str, str]]]:
    """The scenario, and node, program and words of each line."""
    played = Played()
    played.report = loops.run_reboot_scenario(loops.REBOOT_SCENARIOS[name], played)
    found = [NAMED.fullmatch(line) for line in played.lines]
    assert all(found), [line for line, one in zip(played.lines, found, strict=True) if one is None]
    assert played.report.problems == []
    return played, [(one["node"] or "", one["agent"], one["words"]) for one in found if one is not None]


@pytest.mark.submission
def test_an_approved_reboot_shows_each_program_in_order_and_only_the_first_lines_of_status() -> None:
    played, lines = rebooted("reboot-approved")
    assert {agent for _, agent, _ in lines} == {"rebooter", "plan", "reconcile", "status"}
    assert {node for node, _, _ in lines} == {""}
    # The rebooter releases the slot after a reconcile has loaded the driver: both run at that time.
    shown = [f"{agent}: {words}" for _, agent, words in lines]
    loaded = [at for at, line in enumerate(shown) if line.startswith("reconcile: ") and "load drv_pcie_host" in line]
    ended = [at for at, line in enumerate(shown) if line.startswith("rebooter: ") and "complete the reboot" in line]
    assert loaded[0] < ended[0]
    assert sum("approve-reboot=true" in title for title, *_ in played.chapters) == 1
    status = [words for _, agent, words in lines if agent == "status"]
    assert status[0].startswith("reboot-required")
    assert any("Approve the reboot" in words for words in status)
    assert len(status) <= 4


@pytest.mark.submission
def test_with_two_nodes_each_line_and_each_change_names_its_node() -> None:
    played, lines = rebooted("reboot-one-slot")
    nodes = {"sandbox-node", "sandbox-node-2"}
    assert {node for node, _, _ in lines} == nodes
    for node in nodes:
        times = [MOMENT.match(words) for who, agent, words in lines if (who, agent) == (node, "rebooter")]
        assert len([one for one in times if one is not None]) > 3
    changes = [text for text in played.texts if "reboot-in-progress" in text]
    assert {text.partition(": ")[0] for text in changes} == nodes
    assert sum("its first lines" in title for title, *_ in played.chapters) == 1, "both nodes show the same"


RELOADED = replace(loops.RECOVERY_SCENARIOS["recovery-reload"], approves=(), steps=("reload.healed",))


def recovered(scenario: loops.RecoveryScenario) -> Played:
    played = Played()
    played.report = loops.run_recovery_scenario(scenario, played)
    return played


@pytest.mark.release
@pytest.mark.parametrize("name", loops.RECOVERY_SCENARIOS)
def test_a_recovery_ends_as_expected(name: str) -> None:
    played = recovered(loops.RECOVERY_SCENARIOS[name])
    assert played.report.problems == []
    users = [line for line in played.lines if "recovery: next step reset: " in line and "trainer (pid 4242)" in line]
    assert len(users) == (name == "recovery-in-use")


@pytest.mark.submission
def test_the_next_driver_pod_reloads_the_driver_with_the_same_digest() -> None:
    played = recovered(replace(RELOADED, approves=("reload",)))
    assert played.report.problems == []
    texts = [re.sub("rbln-driver-.....", "POD", text) for text in played.texts]
    order = ("pod POD is gone", "journal written", "module tenstorrent unloaded")
    assert sorted(order, key=texts.index) == [*order]
    (done,) = [line for line in played.lines if "done: driver" in line]
    assert f"driver {OLD} loaded (a reload was requested to recover the driver" in done


@pytest.mark.submission
def test_an_approval_is_removed_with_its_wedge_and_a_wrong_course_is_found() -> None:
    healed = replace(loops.RECOVERY_SCENARIOS["recovery-by-itself"], is_in_use=True, approves=("reset",))
    played = recovered(replace(healed, steps=("reset.healed",)))
    assert played.report.problems == ["attempts [], expected ['reset.healed']", "resets: 0, expected 1"]


class KilledPlay(loops.RecoveryPlay):
    """A play in which the sidecar's container is killed at random moments of the recovery, and started again."""

    moments: ClassVar[Random]

    def _begin(self) -> None:
        super()._begin()
        self._kills = [self.moments.uniform(0.0, 0.6), *(self.moments.uniform(0.6, 1.6) for _ in range(3))]
        self._last_s = 0.0

    def _follow(self, machine: loops.Machine) -> None:
        is_wedged = self._cluster.node()["metadata"]["labels"].get(self._keys.state) == NodeState.WEDGED.value
        if is_wedged and not self._last_s:
            self._last_s = time.monotonic()
        is_due = self._last_s and self._kills and time.monotonic() > self._last_s + self._kills[0]
        if is_due and self._pod in self._cluster.pods():
            self._kills.pop(0)
            kill_container(machine._loops["health-watch"]._process.pid)
            self._watch()
            self._last_s = time.monotonic()
        super()._follow(machine)


def kill_container(pid: int) -> None:
    """Kill the process and its descendants, each of which is stopped first, so that it starts no more."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(one, signal.SIGSTOP)
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    for one in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


@pytest.mark.release
@pytest.mark.parametrize("seed", range(4))
def test_a_reload_is_done_once_although_its_container_is_killed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_time = HostTree.pass_time
    # The clock of the host is fast: a pod that stays is evicted again after a minute.
    monkeypatch.setattr(HostTree, "pass_time", lambda tree, seconds: pass_time(tree, 10 * seconds))
    monkeypatch.setattr(KilledPlay, "moments", Random(seed), raising=False)  # noqa: S311  # no secret
    monkeypatch.setattr(loops, "RecoveryPlay", KilledPlay)
    assert recovered(replace(RELOADED, automatic="reload")).report.problems == []


VENDORS = {scenario.name: scenario for scenario in VENDOR_SCENARIOS}
WRONG = ("nothing happens",)

SWITCHED = {
    "amd-reboot": [
        "amd.com/gpu-driver-manager.reboot-required: (absent) → true",
        "amd.com/gpu-driver-manager.reboot-required: true → (absent)",
    ],
    "tenstorrent-upgrade": [
        "tenstorrent.com/deploy.tt-telemetry: (absent) → false",
        "pod tt-telemetry is being stopped",
        "pod tt-telemetry is gone",
        "tenstorrent.com/deploy.tt-telemetry: false → (absent)",
    ],
    "gaudi-upgrade": ["node cordoned", "pod training-0 is being stopped", "pod training-0 is gone", "node uncordoned"],
    "furiosa-upgrade": [],
}
"""Expected changes of labels, cordon and pods besides journal, state and the mark of the cordon."""

PROBED = {"amd-reboot": "listed", "gaudi-upgrade": "listed", "furiosa-upgrade": "alive"}
PROBED |= {"tenstorrent-upgrade": "answering"}


@pytest.mark.submission
@pytest.mark.parametrize("name", VENDORS)
def test_a_vendors_modules_go_in_its_order_while_its_users_are_paused_and_its_parser_sees_the_device(name: str) -> None:
    vendor = Played()
    vendor.report = run_scenario(replace(VENDORS[name], kernel=WRONG), vendor)
    assert vendor.report.problems == [f"the kernel reports {list(VENDORS[name].kernel)}, expected {list(WRONG)}"]
    keys, texts = builtin()[VENDORS[name].profile].keys, vendor.texts
    shown = (keys.state, keys.version, "outcome ")
    apart = (keys.journal, keys.cordon, *shown, keys.upgrade_state, "module ", "journal ")
    seen = [
        "pod tt-telemetry" + text[text.index(" is ") :] if text.startswith("pod tt-telemetry-") else text
        for text in texts
        if not text.startswith(apart)
        and " sees a device" not in text
        and text not in (("node cordoned", "node uncordoned") if name != "gaudi-upgrade" else ())
    ]
    assert seen == SWITCHED[name]
    taken, *_, back = (at for at, text in enumerate(texts) if not text.startswith(("module ", name)))
    swap = [at for at, text in enumerate(texts) if text.startswith("module ")]
    assert taken < swap[0] <= swap[-1] < back
    title, headline, *lines = vendor.chapters[-1]
    assert (title, headline[:12]) == ("driver-manager status --probe", "ready since ")
    assert any(f"(probe: healthy: 1 device(s) {PROBED[name]}, sampled " in line for line in lines)
    assert any(line.split() == ["journal", "none:", "the", "node", "is", "not", "taken"] for line in lines)


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


class Stage(NamedTuple):
    """A scenario that is ready to be played."""

    fleet: SandboxFleet
    watcher: story.FleetWatcher
    play: story.FleetPlay
    show: Listener


@contextlib.contextmanager
def stage(scenario: FleetScenario, folder: Path) -> Generator[Stage, None, None]:
    show = Listener()
    fleet = SandboxFleet(scenario, builtin()["rebellions"], folder, show.line)
    with fleet, story.FleetWatcher(fleet, show) as watcher:
        yield Stage(fleet, watcher, story.FleetPlay(scenario, fleet, watcher, show), show)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, ScenarioReport]]:
    with stage(FLEET, tmp_path_factory.mktemp("fleet")) as found:
        yield found, found.play.report()


@pytest.mark.submission
def test_a_bad_driver_is_undone_and_a_good_one_reaches_all_nodes_in_real_runs(played: Any) -> None:
    (_, watcher, _, show), report = played
    assert report.problems == []
    assert (report.after.driver, report.after.digest) == (FLEET.good.version, FLEET.good.digest)
    _, bad, look, back, good = show.chapters
    assert ["status" in look, "undo" in back, FLEET.bad.version in bad, FLEET.good.version in good] == [True] * 4
    failed, undone, upgraded = (line for line in show.lines if "done: driver" in line or "error: module" in line)
    assert "cannot be loaded" in failed
    assert f"driver {FLEET.old.version} " in undone
    assert f"driver {FLEET.good.version} " in upgraded
    texts = [one.text for one in report.timeline]
    assert len(show.news) == len(texts) > 0, "each change is shown once"
    assert show.pictures[-1] == watcher.course.end
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
    "the undo is refused": ("rollout status and undo", lambda one: replace(one, answers=(*one.answers[:1], 2))),
    "it is not undone": ("after the undo", row("undone", CANARY, driver=FLEET.bad.version)),
    "a node is down after it": ("after the undo", row("undone", OTHER, pod="Terminating")),
    "a node is restarted for the undo without need": ("for the undo", one_more_pod(OTHER, FLEET.old.version)),
    "a node is restarted twice": ("restarts for", one_more_pod(OTHER, FLEET.good.version)),
    "a node keeps the old driver": ("in the end the nodes serve", row("end", OTHER, driver=FLEET.old.version)),
    "the waves change places": (WAVES, swapped),
    "a wave does not wait for the one before": ("was taken before", too_early),
    "a wave is left out": (WAVES, lambda course: replace(course, taken=[replace(one, wave=1) for one in course.taken])),
    "one too many at once": ("were under way", lambda course: replace(course, most_at_once=course.most_at_once + 1)),
    "one at a time": ("were under way", changed(most_at_once=1)),
    "a label has another state": ("the labels are", row("end", OTHER, upgrade="validation-required")),
    "it is not ready": ("the object's conditions", lambda one: replace(one, shown={**one.shown, "Ready": "False"})),
    "the controller fails": ("the controller ended", changed(controller_status=1)),
}


@pytest.mark.submission
@pytest.mark.parametrize(("what", "spoil"), SPOILED.values(), ids=SPOILED.keys())
def test_a_wrong_course_is_found(what: str, spoil: Spoil, played: tuple[Stage, ScenarioReport]) -> None:
    found = story.problems(FLEET, spoil(copy.deepcopy(played[0].watcher.course)))
    assert any(what in one for one in found), found


@pytest.mark.submission
@pytest.mark.parametrize(
    "change",
    [{"driver": FLEET.old.version}, {"digest": ""}, {"journal": True}, {"cordoned": True}, {"labels": {}}],
    ids=lambda change: next(iter(change)),
)
def test_a_wrong_end_of_the_real_runs_is_found(change: dict[str, Any], played: Any) -> None:
    (_, _, play, _), report = played
    assert play._left_on_host(report.before, report.after) == []
    assert play._left_on_host(report.before, replace(report.after, **change)) != []


def test_a_controller_that_ends_by_itself_ends_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stage(SMALL, tmp_path) as small:
        fleet = small.fleet
        env = environment(fleet.tree, fleet.kubeconfig, "", {})

        def ends(say: Any, *_: object) -> Process:
            return Process(command_line("--version"), env, fleet.tree.root, say, lambda _: fleet.store.wake())

        monkeypatch.setattr(fleet, "rollout_command", ends)
        report = small.play.report()
    assert report.problems == [f"the controller ended before Complete of driver {FLEET.old.version}"]


@pytest.mark.submission
def test_a_node_that_comes_back_with_a_driver_that_does_not_load_crashes_like_the_real_one(tmp_path: Path) -> None:
    with stage(SMALL, tmp_path) as small:
        fleet, name = small.fleet, SMALL.nodes[1]

        def pod() -> story.NodeRow:
            return small.watcher.picture.rows[1]

        fleet.set_release(SMALL.bad)
        old = next(one for one in fleet.store.list_objects("pods", fields=f"spec.nodeName={name}")[0])
        fleet.store.delete("pods", old["metadata"]["name"], namespace=fleet.namespace)
        crashes = "Init:CrashLoopBackOff"
        fleet.store.wait_until(lambda: small.watcher.picture.rows[1:] != () and pod().pod == crashes, "a crash", 75.0)
        assert (pod().node, pod().driver) == (name, SMALL.bad.version)
    assert small.watcher.course.pods == {(name, SMALL.bad.version): 1}
    assert small.watcher.course.taken == list[story.Taken]()
