"""Mounts are taken off in the opposite order, and a process is known by its start time and namespace, not its pid."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.host.mounts import devices_of, mount_points_below
from driver_manager.adapters.process.tools import process_lives, this_process
from driver_manager.domain.journal import Owner
from tests.support.fakes.host_folders import mountinfo

ROOT = "/run/rbln/driver"


def test_mounts_at_and_below_the_root_come_last_mounted_first() -> None:
    text = mountinfo("/", ROOT, f"{ROOT}/proc", f"{ROOT}/dev", f"{ROOT}/dev/shm", "/run")
    assert mount_points_below(text, ROOT) == (f"{ROOT}/dev/shm", f"{ROOT}/dev", f"{ROOT}/proc", ROOT)


def test_what_a_later_mount_hides_comes_after_it() -> None:
    text = mountinfo(ROOT, f"{ROOT}/dev", f"{ROOT}/dev/shm", ROOT, f"{ROOT}/dev")
    assert mount_points_below(text, ROOT) == (f"{ROOT}/dev", ROOT, f"{ROOT}/dev/shm", f"{ROOT}/dev", ROOT)


@pytest.mark.parametrize(
    "point", ["/run/rbln", "/run/rbln/driver-old", "/run/rbln/driverx/a", "/", "/mnt/run/rbln/driver"]
)
def test_neighbours_and_parents_are_not_taken_off(point: str) -> None:
    assert mount_points_below(mountinfo(point), ROOT) == ()


@pytest.mark.parametrize(
    ("written", "point"),
    [
        (r"/run/rbln/driver/with\040space", f"{ROOT}/with space"),
        (r"/run/rbln/driver/tab\011", f"{ROOT}/tab\t"),
        (r"/run/rbln/driver/line\012", f"{ROOT}/line\n"),
        (r"/run/rbln/driver/back\134slash", f"{ROOT}/back\\slash"),
        (r"/run/rbln/driver/hash\043", f"{ROOT}/hash#"),
        (r"/run/rbln/driver/literal\134040", f"{ROOT}/literal\\040"),
        ("/run/rbln/driver/é", f"{ROOT}/é"),
    ],
)
def test_the_kernels_escapes_are_undone_once(written: str, point: str) -> None:
    assert mount_points_below(mountinfo(written), ROOT) == (point,)


def test_everything_is_below_the_hosts_root() -> None:
    assert set(mount_points_below(mountinfo("/", "/a"), "/")) == {"/", "/a"}


@given(st.text())
def test_no_garbage_breaks_the_reading(text: str) -> None:
    assert isinstance(mount_points_below(text, ROOT), tuple)


@given(st.lists(st.sampled_from(["", "/a", "/a/b", "/a/b/c", "/d", "/d/e"]), unique=True).map(sorted))
def test_no_mount_is_taken_off_before_those_inside_it(tails: list[str]) -> None:
    found = mount_points_below(mountinfo("/", *(ROOT + tail for tail in tails)), ROOT)
    assert sorted(found) == [ROOT + tail for tail in tails]
    for place, point in enumerate(found):
        assert not any(later.startswith(f"{point}/") for later in found[place + 1 :])


# file systems


def test_a_file_system_is_named_by_its_device_unless_it_is_mounted_elsewhere_too() -> None:
    text = mountinfo("/", ROOT, f"{ROOT}/dev").replace(f"0:32 / {ROOT}/dev", f"0:30 / {ROOT}/dev")
    assert devices_of(text, [ROOT, f"{ROOT}/dev"]) == {"0:31"}
    assert devices_of(text, ["/absent"]) == frozenset()


# processes


def test_this_process_lives_and_is_itself() -> None:
    me = this_process("boot")
    assert me.pid == os.getpid()
    assert me.boot_id == "boot"
    assert me.start_ticks > 0
    assert process_lives(me, Path("/nowhere"))


def test_another_process_with_the_same_pid_is_not_it() -> None:
    me = this_process("boot")
    assert not process_lives(
        Owner(pid=me.pid, start_ticks=me.start_ticks + 1, pid_namespace=me.pid_namespace), Path("/proc")
    )
    assert not process_lives(Owner(pid=2**22 + 1, start_ticks=1, pid_namespace=me.pid_namespace), Path("/proc"))


def stat(ticks: int, name: str = "driver-manager") -> str:
    return f"77 ({name}) S 1 77 77 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {ticks} 1000 10\n"


@pytest.fixture
def host_proc(tmp_path: Path) -> Path:
    """The host's /proc with one process of another namespace: pid 4711 there, 7 inside."""
    process = tmp_path / "4711"
    process.mkdir()
    (process / "stat").write_text(stat(5000, "bad ) name ("))
    (process / "status").write_text("Name:\tx\nNSpid:\t4711\t7\n")
    (tmp_path / "self").mkdir()
    gone = tmp_path / "4712"
    gone.mkdir()
    return tmp_path


OTHER_NAMESPACE = 1


@pytest.mark.parametrize(
    ("pid", "ticks", "answer"), [(7, 5000, True), (4711, 5000, False), (7, 5001, False), (8, 5000, False)]
)
def test_a_process_of_another_namespace_is_found_by_its_inner_pid_and_start(
    host_proc: Path, pid: int, ticks: int, answer: bool
) -> None:
    assert process_lives(Owner(pid=pid, start_ticks=ticks, pid_namespace=OTHER_NAMESPACE), host_proc) is answer


def test_an_unreadable_proc_shows_nobody() -> None:
    assert not process_lives(Owner(pid=7, start_ticks=1, pid_namespace=OTHER_NAMESPACE), Path("/nowhere"))


@pytest.mark.parametrize("broken", ["", "garbage", "77 (x) S 1"])
def test_a_stat_that_cannot_be_read_is_nobody(host_proc: Path, broken: str) -> None:
    (host_proc / "4711/stat").write_text(broken)
    assert not process_lives(Owner(pid=7, start_ticks=5000, pid_namespace=OTHER_NAMESPACE), host_proc)


@pytest.mark.submission
@pytest.mark.shares(3)
def test_an_owner_behind_a_process_that_does_not_answer_is_not_known_to_have_ended(host_proc: Path) -> None:
    stuck = host_proc / "4713"
    stuck.mkdir()
    os.mkfifo(stuck / "stat")  # what opens it waits for a writer
    assert process_lives(Owner(pid=7, start_ticks=5000, pid_namespace=OTHER_NAMESPACE), host_proc) is True
    assert process_lives(Owner(pid=8, start_ticks=5000, pid_namespace=OTHER_NAMESPACE), host_proc) is None
