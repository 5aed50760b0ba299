"""A mount is removed by the system call, among the host's mounts; what cannot be is said with the kernel's word."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from driver_manager.adapters.host import mounts as unmount
from driver_manager.adapters.host.holders import is_of_a_kernel, mount_namespace
from driver_manager.adapters.host.mounts import why_not_unmounted
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.domain.errors import ModuleFailed
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.deadlines import soon
from tests.support.fakes.host_folders import Tree, mountinfo

ROOT = PROFILE.paths.driver_root
NO_MOUNT = ("Invalid argument", "Operation not permitted")
"""What umount2(2) answers root and others."""


def ours(tmp_path: Path) -> Path:
    """A /proc whose first process is in our own namespaces."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/1").symlink_to("/proc/self")
    return tmp_path / "proc"


def test_what_is_no_mount_is_said_in_the_kernels_words(tmp_path: Path) -> None:
    proc = ours(tmp_path)
    for lazily in (False, True):
        assert why_not_unmounted(proc, "/no/mount", tmp_path, 30.0, lazily=lazily) in NO_MOUNT


def test_mounts_that_cannot_be_entered_are_named(tmp_path: Path) -> None:
    namespace = tmp_path / "proc/1/ns/mnt"
    namespace.parent.mkdir(parents=True)
    namespace.write_text("")
    said = why_not_unmounted(tmp_path / "proc", "/x", tmp_path, 30.0)
    assert said in [f"its mounts cannot be entered: {why}" for why in NO_MOUNT]


def test_mounts_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    namespace = tmp_path / "proc/1/ns/mnt"
    namespace.parent.mkdir(parents=True)
    os.mknod(namespace, stat.S_IFSOCK | 0o600)  # open(2) refuses a socket, whoever asks
    said = why_not_unmounted(tmp_path / "proc", "/x", tmp_path, 30.0)
    assert said == "its mounts cannot be entered: No such device or address"


def test_a_call_that_does_not_come_back_is_left_after_its_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unmount, "_unmounted", lambda *_: time.sleep(60))
    assert why_not_unmounted(ours(tmp_path), "/x", tmp_path, 0.2) == "timed out after 0.2 s"


def test_this_process_stays_where_it_is(tmp_path: Path) -> None:
    before = Path("/proc/self/ns/mnt").readlink()
    why_not_unmounted(ours(tmp_path), "/x", tmp_path, 30.0)
    assert Path("/proc/self/ns/mnt").readlink() == before


def test_a_kernels_proc_is_told_from_a_sandboxs(tmp_path: Path) -> None:
    assert is_of_a_kernel(Path("/proc"))
    assert not is_of_a_kernel(tmp_path)
    assert mount_namespace(ours(tmp_path)) is None


def test_where_it_is_a_kernels_no_program_is_run_and_the_mount_table_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    tree.put("/proc/1/mountinfo", mountinfo("/", ROOT))
    (tree.root / "proc/1/ns").mkdir()
    (tree.root / "proc/1/ns/mnt").symlink_to("/proc/self/ns/mnt")
    asked: list[tuple[str, bool]] = []

    def answer(_: Path, point: str, here: Path, timeout_s: float, *, lazily: bool) -> str:
        asked.append((point, lazily))
        assert here == tree.root / ROOT.lstrip("/")
        if lazily:
            tree.put("/proc/1/mountinfo", mountinfo("/"))
        return "" if lazily else "Device or resource busy"

    monkeypatch.setattr("driver_manager.adapters.host.system.why_not_unmounted", answer)
    monkeypatch.setenv("PATH", "")
    host = LinuxHost(tree.roots, PROFILE, FakeClock())
    host.unmount(ROOT, soon())
    assert asked == [(ROOT, False), (ROOT, True)]
    tree.put("/proc/1/mountinfo", mountinfo("/", ROOT))
    monkeypatch.setattr("driver_manager.adapters.host.system.why_not_unmounted", lambda *_, **__: "Operation refused")
    with pytest.raises(ModuleFailed, match=f"cannot unmount {ROOT}: Operation refused"):
        host.unmount(ROOT, soon())
