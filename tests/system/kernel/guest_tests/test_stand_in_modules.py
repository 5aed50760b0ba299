"""Facts about module loading on a real kernel that the product is built on. Runs in the guest."""

from __future__ import annotations

import errno
from pathlib import Path

import psutil
import pytest

from tests.support.kernel.guest_fixtures import (
    DEVICE,
    CommandResult,
    DriverRoots,
    delete_module,
    holders,
    holding_mapped,
    holding_open,
    is_loaded,
    modprobe,
    module_fact,
    open_files,
    rmmod,
    run,
)

pytestmark = pytest.mark.usefixtures("guest_kernel")


def test_modprobe_loads_both_modules_and_the_device_appears(roots: DriverRoots) -> None:
    assert modprobe(roots["v1"], "rebellions").status == 0
    assert module_fact("rebellions", "version") == "1.2.92"
    assert module_fact("rebellions_core", "version") == "1.2.92"
    assert DEVICE.is_char_device()
    assert rmmod("rebellions").status == 0
    assert not DEVICE.exists()


def test_a_module_in_use_names_its_holders_counts_them_and_cannot_be_removed(roots: DriverRoots) -> None:
    modprobe(roots["v1"], "rebellions")
    assert (holders("rebellions_core"), holders("rebellions")) == (["rebellions"], [])
    assert (module_fact("rebellions_core", "refcnt"), module_fact("rebellions", "refcnt")) == ("1", "0")
    done = rmmod("rebellions_core")
    assert done.status != 0
    assert "Module rebellions_core is in use by: rebellions" in done.stderr
    with holding_open():
        assert module_fact("rebellions", "refcnt") == "1"
        assert rmmod("rebellions") == CommandResult(1, "rmmod: ERROR: Module rebellions is in use\n")
        assert run("modprobe", "-r", "rebellions").status == 1
    assert is_loaded("rebellions")
    assert module_fact("rebellions", "refcnt") == "0"


def test_the_system_call_on_a_busy_module_answers_eagain(roots: DriverRoots) -> None:
    modprobe(roots["v1"], "rebellions")
    with holding_open():
        assert delete_module("rebellions") == errno.EAGAIN
        assert "Resource temporarily unavailable" in run("busybox", "rmmod", "rebellions").stderr
    assert delete_module("rebellions") == 0
    assert delete_module("rebellions") == errno.ENOENT


def test_an_open_device_shows_in_the_holders_fd_folder_and_not_in_psutil(roots: DriverRoots) -> None:
    modprobe(roots["v1"], "rebellions")
    with holding_open() as pid:
        assert DEVICE in open_files(pid)
        assert str(DEVICE) not in [opened.path for opened in psutil.Process(pid).open_files()]


def test_a_mapping_without_an_open_file_holds_the_module_and_shows_in_maps_only(roots: DriverRoots) -> None:
    modprobe(roots["v1"], "rebellions")
    with holding_mapped() as pid:
        assert module_fact("rebellions", "refcnt") == "1"
        assert DEVICE not in open_files(pid)
        assert str(DEVICE) in Path(f"/proc/{pid}/maps").read_text()
        assert rmmod("rebellions").status == 1


def test_modprobe_over_a_loaded_module_is_a_silent_no_op(roots: DriverRoots) -> None:
    modprobe(roots["v1"], "rebellions")
    again = modprobe(roots["v2"], "rebellions")
    assert (again.status, again.stderr) == (0, "")
    assert module_fact("rebellions", "version") == "1.2.92"


def test_two_versions_can_have_equal_source_checksums(roots: DriverRoots) -> None:
    seen = []
    for variant in ("v1", "v2"):
        modprobe(roots[variant], "rebellions")
        seen.append((module_fact("rebellions", "version"), module_fact("rebellions", "srcversion")))
        rmmod("rebellions")
        rmmod("rebellions_core")
    assert [version for version, _ in seen] == ["1.2.92", "2.0.1"]
    assert seen[0][1] == seen[1][1]


@pytest.mark.parametrize(
    ("variant", "options", "expected", "is_core_left"),
    [
        ("wrong-kernel", (), "could not insert 'rebellions': Exec format error", False),
        ("absent-kernel", (), "Module rebellions not found in directory {root}/lib/modules/", False),
        ("no-modules-dep", (), "Module rebellions not found", False),
        ("unknown-symbol", (), "Unknown symbol in module, or unknown parameter (see dmesg)", True),
        ("bad-init", (), "Input/output error", True),
        ("v2", ("fail_init=1",), "Input/output error", True),
    ],
)
def test_a_failed_load_says_why_and_may_leave_the_dependency_loaded(
    roots: DriverRoots, variant: str, options: tuple[str, ...], expected: str, is_core_left: bool
) -> None:
    failed = run("modprobe", "-d", roots[variant], "rebellions", *options)
    assert failed.status == 1
    assert expected.format(root=roots[variant]) in failed.stderr
    assert (is_loaded("rebellions"), is_loaded("rebellions_core")) == (False, is_core_left)
    assert not DEVICE.exists()
    if is_core_left:
        assert holders("rebellions_core") == []


def test_a_module_built_for_another_kernel_is_an_invalid_module_format(roots: DriverRoots) -> None:
    inserted = run("insmod", roots.module_file("wrong-kernel", "rebellions_core"))
    assert "Invalid module format" in inserted.stderr
    assert not is_loaded("rebellions_core")


def test_another_release_in_vermagic_alone_does_not_stop_a_kernel_with_modversions(roots: DriverRoots) -> None:
    assert modprobe(roots["other-release"], "rebellions").status == 0


def test_a_missing_parent_module_is_an_unknown_symbol(roots: DriverRoots) -> None:
    done = run("insmod", roots.module_file("v1", "rebellions"))
    assert done.status == 1
    assert "Unknown symbol in module" in done.stderr
