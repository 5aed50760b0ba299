"""Mounts below a root, in the opposite order of mounting, and the devices of file systems."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.host.holders import devices_of, mount_points_below
from tests.support.fakes.host_folders import mountinfo

ROOT = "/run/rbln/driver"


def test_mounts_at_and_below_the_root_come_last_mounted_first_and_what_a_later_one_hides_after_it() -> None:
    text = mountinfo("/", ROOT, f"{ROOT}/proc", f"{ROOT}/dev", f"{ROOT}/dev/shm", "/run")
    assert mount_points_below(text, ROOT) == (f"{ROOT}/dev/shm", f"{ROOT}/dev", f"{ROOT}/proc", ROOT)
    text = mountinfo(ROOT, f"{ROOT}/dev", f"{ROOT}/dev/shm", ROOT, f"{ROOT}/dev")
    assert mount_points_below(text, ROOT) == (f"{ROOT}/dev", ROOT, f"{ROOT}/dev/shm", f"{ROOT}/dev", ROOT)
    assert set(mount_points_below(mountinfo("/", "/a"), "/")) == {"/", "/a"}
    others = ("/run/rbln", "/run/rbln/driver-old", "/run/rbln/driverx/a", "/", "/mnt/run/rbln/driver")
    assert mount_points_below(mountinfo(*others), ROOT) == (), "neighbours and parents"


def test_the_kernels_escapes_are_undone_once() -> None:
    points = {
        r"with\040space": "with space",
        r"tab\011": "tab\t",
        r"line\012": "line\n",
        r"back\134slash": "back\\slash",
        r"hash\043": "hash#",
        r"literal\134040": "literal\\040",
        "é": "é",
    }
    for written, point in points.items():
        assert mount_points_below(mountinfo(f"{ROOT}/{written}"), ROOT) == (f"{ROOT}/{point}",)


@given(st.text())
def test_no_garbage_breaks_the_reading(text: str) -> None:
    assert isinstance(mount_points_below(text, ROOT), tuple)


@given(st.lists(st.sampled_from(["", "/a", "/a/b", "/a/b/c", "/d", "/d/e"]), unique=True).map(sorted))
def test_no_mount_is_taken_off_before_those_inside_it(tails: list[str]) -> None:
    found = mount_points_below(mountinfo("/", *(ROOT + tail for tail in tails)), ROOT)
    assert sorted(found) == [ROOT + tail for tail in tails]
    for place, point in enumerate(found):
        assert not any(later.startswith(f"{point}/") for later in found[place + 1 :])


def test_a_file_system_is_named_by_its_device_unless_it_is_mounted_elsewhere_too() -> None:
    text = mountinfo("/", ROOT, f"{ROOT}/dev").replace(f"0:32 / {ROOT}/dev", f"0:30 / {ROOT}/dev")
    assert devices_of(text, [ROOT, f"{ROOT}/dev"]) == {"0:31"}
    assert devices_of(text, ["/absent"]) == frozenset()
