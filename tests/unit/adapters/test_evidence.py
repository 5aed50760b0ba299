"""Evidence on the host's disk: what is in it, how much is kept, and what happens where it cannot be."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import system
from driver_manager.adapters.host.evidence import EVIDENCE_CHARS, EVIDENCE_KEPT, KERNEL_LINES, kernel_log, save_evidence
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.system import LinuxHost
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.health.watch import HealthState, History, encode_watch_record
from driver_manager.domain.profile import Profile
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.deadlines import soon
from tests.support.fakes.host_folders import Tree, load

FOLDER = PROFILE.paths.evidence


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A host with a loaded driver that is not in use."""
    made = Tree(tmp_path / "host")
    load(made.roots.sys, "rebellions_core", "rebellions")
    load(made.roots.sys, "rebellions")
    return made


def host(tree: Tree, profile: Profile = PROFILE) -> LinuxHost:
    return LinuxHost(tree.roots, profile, FakeClock())


def saved(tree: Tree, path: str) -> str:
    return (tree.root / path.lstrip("/")).read_text()


def use(tree: Tree) -> None:
    """Something has the device open, as the kernel counts it."""
    (tree.roots.sys / "module/rebellions/refcnt").write_text("1\n")


def test_what_is_kept_before_an_unload_says_what_was_seen(tree: Tree) -> None:
    tree.put("/dev/kmsg", b"6,1,5,-;rebellions: command timed out\n")
    noted = History(HealthState.SUSPECT, failures=2, evidence=("1700000000 unhealthy: npu 0 is slow",))
    tree.put(PROFILE.paths.health_record, encode_watch_record(noted, "boot-1"))
    path = host(tree).save_evidence("unload", ("before the unload of", "rebellions 1.0"), soon())
    assert path == f"{FOLDER}/1700001000-rebellions-unload.txt"
    text = saved(tree, path)
    for line in ("rebellions 1.0", "1700000000 unhealthy: npu 0 is slow", "rebellions: command timed out"):
        assert line in text.splitlines()
    assert "none: no module of the driver has a user" in text
    assert (tree.root / path.lstrip("/")).stat().st_mode & 0o777 == 0o600


def test_processes_are_looked_at_only_while_a_module_has_users(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []

    def holders(*_: object, timeout_s: float = 0.0) -> list[str]:
        looked.append(timeout_s)
        return ["pid 7 python /dev/rbln0"]

    monkeypatch.setattr(system, "holders_within", lambda *arguments: holders(timeout_s=arguments[-1]))
    host(tree).save_evidence("unload", (), soon())
    assert looked == []
    use(tree)
    path = host(tree).save_evidence("unload", (), soon(2.0))
    assert len(looked) == 1
    assert looked[0] <= 2.0, "it is over with its deadline"
    assert "pid 7 python /dev/rbln0" in saved(tree, path)


def test_without_a_folder_nothing_is_kept(tree: Tree) -> None:
    none = replace(PROFILE, paths=replace(PROFILE.paths, evidence=""))
    assert host(tree, none).save_evidence("unload", ("line",), soon()) == ""
    assert not (tree.root / FOLDER.lstrip("/")).exists()
    assert save_evidence(tree.roots, "", "1", ("line",), ()) == ""


def test_a_host_without_kernel_log_samples_or_proc_still_has_its_file(tree: Tree) -> None:
    use(tree)
    (tree.root / "proc/1/mountinfo").unlink()
    (tree.root / "proc/1").rmdir()
    text = saved(tree, host(tree).save_evidence("unload", ("line",), soon()))
    assert "line" in text
    assert "cannot be read: No such file" in text
    assert "unknown: " in text


def test_the_oldest_files_go_and_what_others_put_there_stays(tree: Tree) -> None:
    there = tree.root / FOLDER.lstrip("/")
    there.mkdir(parents=True)
    half_written = ".1700000000-rebellions-unload.txt.0123456789ab"
    for other in ("notes of mine", half_written):
        (there / other).touch()
    tree.put("/dev/kmsg", "6,1,5,-;the end\n")
    for number in range(EVIDENCE_KEPT + 5):
        save_evidence(tree.roots, FOLDER, f"{995 + number}-rebellions-unload", ("x" * 100_000,), ("y" * 200_000,))
    names = sorted(path.name for path in there.iterdir() if path.name[0].isdigit())
    assert len(names) == EVIDENCE_KEPT
    assert "1007-rebellions-unload.txt" in names
    assert "999-rebellions-unload.txt" not in names
    assert {"notes of mine", half_written} < {path.name for path in there.iterdir()}
    for name in names:
        text = (there / name).read_text()
        assert len(text) <= EVIDENCE_CHARS + 1
        assert text.endswith("the end\n")


def test_a_folder_that_is_none_is_an_error_and_a_link_does_not_lead_out_of_the_host(tree: Tree, tmp_path: Path) -> None:
    parent = tree.put("/var/lib/driver-manager", "")
    with pytest.raises(ConfigError, match="cannot write /var/lib/driver-manager/evidence/"):
        host(tree).save_evidence("unload", (), soon())
    parent.unlink()
    (tmp_path / "outside").mkdir()
    parent.symlink_to(tmp_path / "outside")
    host(tree).save_evidence("unload", (), soon())
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_kernel_log_without_end_is_read_up_to_its_last_lines(tree: Tree) -> None:
    (tree.root / "dev").mkdir()
    os.mkfifo(tree.root / "dev/kmsg")
    writer = os.open(tree.root / "dev/kmsg", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, b"6,1,5,-;one line\n")
        assert kernel_log(tree.roots) == ["one line"], "what is not there yet is not waited for"
    finally:
        os.close(writer)
    root = Path("/")
    assert len(kernel_log(HostRoots(root, root / "proc", root / "sys", root / "dev"))) <= KERNEL_LINES


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_process_that_does_not_answer_is_named_and_delays_nothing_beyond_the_deadline(tree: Tree) -> None:
    use(tree)
    (tree.root / "proc/4711/fd").mkdir(parents=True)
    os.mkfifo(tree.root / "proc/4711/maps")  # a pipe without a writer
    tree.put("/dev/rbln0", "")
    begun = time.monotonic()
    text = saved(tree, host(tree).save_evidence("unload", (), soon(4.0)))
    assert time.monotonic() - begun < 60.0
    assert "4711" in text
