"""Marks of health-watch, and what the host says of its driver, on a real file system, also after a kill at any call."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host.files import WorkLock
from driver_manager.adapters.host.health import HostMarks
from driver_manager.adapters.host.notes import HostClientNotes, RunFiguresFile
from driver_manager.core.health import HealthWatch, WatchPolicy, WatchPorts
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.health.watch import WRITER, Mute, Surroundings
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, Marker, encode_marker
from driver_manager.domain.node_state import seen_now
from driver_manager.domain.outage import Outage, OutagePart
from driver_manager.domain.run_report import RunReport
from driver_manager.profiles import builtin
from tests.support.fakes.builders import NEW_DIGEST
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.effect_child import CAME_TO_ITS_END, KILLED, Blow, struck
from tests.support.fakes.health_world import BAD, GOOD, HealthWorld
from tests.support.fakes.host_folders import Tree as Folders

ASCEND = builtin()["ascend"]
PROFILE = replace(ASCEND, paths=replace(ASCEND.paths, ready_marker="/run/ascend/.ready"))
STATE, READY = PROFILE.paths.state_file, PROFILE.paths.ready_marker
HALF = re.compile(r"\.[0-9a-f]{12}$")
MOST_EFFECTS = 60
OWN = Marker(RECOVERY, "boot-1", writer=WRITER)
UPGRADE = Marker(UPGRADE_REASON, "boot-1")
OTHERS = (UPGRADE, replace(UPGRADE, boot_id="boot-0", writer=WRITER), replace(OWN, boot_id="boot-0", writer="other"))


class Tree(Folders):
    """A host with a loaded and ready driver."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.marks = HostMarks(self.roots, PROFILE, FakeClock())
        self.marker = root / PROFILE.paths.reboot_marker.lstrip("/")
        self.put("sys/module/drv_pcie_host/initstate", "live\n")
        self.put(READY, "VERSION=1\n")

    def dated(self, path: str, text: str, written_s: float) -> None:
        os.utime(self.put(path, text), (written_s, written_s))

    def notes(self) -> HostClientNotes:
        """As any process has them."""
        return HostClientNotes(self.roots, PROFILE, FakeClock())

    def seen(self) -> Surroundings:
        with self.marks.alone() as seen:
            return seen

    def names(self) -> list[str]:
        """Files that others may look at: not our own, and not what a kill left half written."""
        found = [*(self.root / "run/ascend").iterdir(), *(self.root / "var/lib/ascend").glob(".*")]
        ours = ("driver-manager.lock", "health-watch.json")
        return sorted(path.name for path in found if path.name not in ours and not HALF.search(path.name))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_what_is_to_be_seen_is_read_and_a_module_that_is_not_live_is_not_loaded(tree: Tree) -> None:
    state = tree.root / "sys/module/drv_pcie_host/initstate"
    driver = str(state.parent.stat().st_ino)
    assert tree.seen() == Surroundings("boot-1", driver, is_loaded=True, ready=True, can_request=True)
    for text in ("coming\n", "going\n"):
        state.write_text(text)
        assert not tree.seen().is_loaded
    state.unlink()
    assert not tree.seen().is_loaded


def test_a_reconcile_at_work_is_seen_none_begins_while_health_watch_looks_and_of_two_one_is_alone(tree: Tree) -> None:
    lock = WorkLock(tree.roots.files(), PROFILE.paths.work_lock)
    with lock.working(FakeClock(), 0.0):
        assert tree.seen().is_reconciling
    assert not tree.seen().is_reconciling
    with tree.marks.alone(), lock.working(FakeClock(), 0.0) as held:
        assert not held
    with tree.notes().alone() as first, tree.notes().alone() as second:
        assert (first, second) == (True, False)
    with tree.notes().alone() as is_alone:
        assert is_alone


def test_a_profile_without_marks_has_none(tree: Tree) -> None:
    bare = replace(PROFILE, paths=replace(PROFILE.paths, ready_marker="", reboot_marker=""))
    with HostMarks(tree.roots, bare, FakeClock()).alone() as seen:
        assert replace(seen, driver="") == Surroundings("boot-1", ready=None, can_request=False)


def test_a_request_is_written_where_nothing_is_or_our_own_of_an_earlier_boot(tree: Tree) -> None:
    tree.marks.request_recovery(OWN)
    assert tree.seen().marker == OWN
    tree.marker.write_text(encode_marker(replace(OWN, boot_id="boot-0")))
    tree.marks.request_recovery(OWN)
    assert tree.seen().has_request_of_ours


@pytest.mark.parametrize("text", ["driver upgrade\n", "garbage", "", *map(encode_marker, OTHERS)])
def test_a_marker_that_came_in_the_last_moment_is_not_written_over(tree: Tree, text: str) -> None:
    tree.put(PROFILE.paths.reboot_marker, text)
    tree.marks.request_recovery(OWN)
    assert tree.marker.read_text() == text
    assert tree.names() == [".ready", ".reboot-required"]


def test_marks_that_are_gone_already_are_no_trouble(tree: Tree) -> None:
    tree.marks.clear_request()
    tree.marks.forget_ready()
    tree.marks.restore_ready()
    (tree.root / "run/ascend/.ready").unlink()
    tree.marks.withdraw_ready()
    assert tree.names() == []


def test_a_mute_in_a_file_is_seen_and_garbage_in_it_is_named(tree: Tree) -> None:
    path = "run/ascend/health-watch.mute-until"
    problem = f"/{path} on the host does not mute health-watch: "
    assert (tree.seen().mute, tree.seen().mute_problem) == (None, "")
    tree.put(path, "2026-01-02T03:04:05Z\n")
    assert tree.seen().mute == Mute(1_767_323_045.0, "2026-01-02T03:04:05Z", f"/{path} on the host")
    tree.put(path, "for ever\n")
    assert tree.seen().mute is None
    assert tree.seen().mute_problem.startswith(f"{problem}'for ever' is not a time")
    (tree.root / path).unlink()
    (tree.root / path).mkdir()
    assert tree.seen().mute is None
    assert problem in tree.seen().mute_problem


def test_what_is_remembered_is_recalled_private_and_dated(tree: Tree) -> None:
    marks, path = tree.marks, tree.root / "run/ascend/health-watch.json"
    assert (marks.recall(), marks.touched_s()) == ("", None)
    with pytest.raises(ConfigError):
        marks.touch()
    marks.remember("text\n")
    assert path.stat().st_mode & 0o777 == 0o600
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert marks.touched_s() == 1_000_000_000
    marks.touch()
    assert (marks.touched_s() or 0.0) > 1_700_000_000
    assert marks.recall() == "text\n"
    path.unlink()
    path.mkdir()
    assert marks.recall() == ""
    with pytest.raises(ConfigError, match=r"health-watch\.json"):
        marks.remember("text\n")


def test_the_end_of_a_window_is_when_the_containers_files_say_so(tree: Tree) -> None:
    figures = RunFiguresFile(tree.roots.files(), PROFILE.paths)
    now_s = FakeClock().wall()
    left = Outage(now_s - 60, 4.0, {OutagePart.UNLOAD: 4.0}, is_open=True)
    assert tree.marks.note_return() is None
    figures.add(RunReport(0, now_s - 56, 4.0, window=left))
    tree.dated(STATE, "digest\n", now_s - 40)
    tree.dated(READY, "VERSION=1\n", now_s - 35)
    assert tree.marks.note_return() == Outage(
        now_s - 60, 25.0, {OutagePart.UNLOAD: 4.0, OutagePart.INSTALL: 16.0, OutagePart.PROBE: 5.0}
    )
    assert tree.marks.note_return() is None, "once"
    found = figures.read()
    assert (found.windows, found.window_seconds) == (1, 25.0)


def test_a_node_that_is_held_does_not_serve_however_its_driver_came(tree: Tree) -> None:
    figures = RunFiguresFile(tree.roots.files(), PROFILE.paths)
    figures.add(RunReport(5, 104.0, 4.0, is_held=True, window=Outage(100.0, 4.0, is_open=True)))
    assert tree.marks.note_return() is None
    assert figures.read().windows == 0


def test_a_host_that_cannot_be_read_or_changed_is_reported_with_its_path(tree: Tree) -> None:
    (tree.root / STATE.lstrip("/")).mkdir(parents=True)
    with pytest.raises(ConfigError, match=rf"^cannot read or change {STATE} on the host: ") as caught:
        tree.notes().sighting()
    assert "mounted" in caught.value.remedy
    (tree.root / "proc/sys/kernel/random/boot_id").unlink()
    with pytest.raises(ConfigError, match="boot_id"):
        tree.seen()
    tree.put("/var/lib/ascend", "a file")
    with pytest.raises(ConfigError, match="reboot-required"):
        tree.marks.clear_request()


def test_a_sighting_is_what_the_drivers_files_say_and_each_load_is_another(tree: Tree) -> None:
    tree.dated(STATE, f"{NEW_DIGEST}\n", 1_000.0)
    tree.dated(READY, "", 2_000.0)
    seen = tree.notes().sighting()
    assert (seen.boot_id, seen.digest, seen.marked_s) == ("boot-1", NEW_DIGEST, (1_000.0, 2_000.0))
    assert seen_now(seen, None, 3_000.0).ready_s == 2_000.0
    (tree.root / "sys/module/drv_pcie_host").rename(tree.root / "sys/module/aside")
    assert tree.notes().sighting().load == ""
    tree.put("/sys/module/drv_pcie_host/initstate", "live\n")
    assert len({seen.load, tree.notes().sighting().load, ""}) == 3


def test_files_that_are_not_there_or_garbage_say_nothing_and_a_long_record_is_read_whole(tree: Tree) -> None:
    (tree.root / READY.lstrip("/")).unlink()
    assert tree.notes().sighting().marked_s == ()
    for text in ("", "two words\n", "\ufffd\n", "x" * 300):
        tree.put(STATE, text)
        assert tree.notes().sighting().digest == ""
    assert tree.notes().recall() == ""
    tree.notes().remember("x" * 300_000)
    assert tree.notes().recall() == "x" * 300_000


def turn(tree: Tree, *, healthy: bool) -> None:
    """A new process that takes one turn."""
    prober = HealthWorld()
    prober.chip = GOOD if healthy else BAD
    ports = WatchPorts(prober, tree.marks, FakeClock(), RecordingReporter())
    HealthWatch(ports, WatchPolicy(failures=1), lambda _: None).turn()


@pytest.mark.parametrize("healthy", [False, True])
def test_a_kill_at_any_change_of_the_file_system_is_mended_by_the_next_process(tmp_path: Path, healthy: bool) -> None:
    for number in range(MOST_EFFECTS):
        tree = Tree(tmp_path / str(number))
        if healthy:
            turn(tree, healthy=False)
        ended = struck(Blow(number, tree.root), partial(turn, tree, healthy=healthy))
        seen = tree.seen()
        assert not (seen.has_request_of_ours and seen.ready), "a reboot is asked for while the driver is ready"
        assert seen.ready or seen.is_withdrawn, "the ready marker is lost"
        turn(tree, healthy=healthy)
        assert tree.names() == ([".ready"] if healthy else [".ready.withdrawn", ".reboot-required"])
        assert not healthy or (tree.root / READY.lstrip("/")).read_text() == "VERSION=1\n"
        if ended == CAME_TO_ITS_END:
            break
        assert ended == KILLED
    assert 3 < number < MOST_EFFECTS - 1, "every effect was met"


def test_a_broken_symlink_in_the_markers_place_is_reported_and_stays(tree: Tree) -> None:
    tree.marker.parent.mkdir(parents=True)
    tree.marker.symlink_to("absent")
    assert tree.seen().may_request
    with pytest.raises(ConfigError, match="a dangling symlink"):
        tree.marks.request_recovery(OWN)
    assert tree.marker.is_symlink()
    assert not tree.marker.exists()
