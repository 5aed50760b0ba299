"""What the host says of its driver, and the record of its clients, on a real file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.notes import HostClientNotes
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.node_state import seen_now
from tests.support.fakes.builders import NEW_DIGEST, PROFILE
from tests.support.fakes.clock import FakeClock

STATE, READY = PROFILE.paths.state_file, PROFILE.paths.ready_marker


class Tree:
    """A host with a loaded, recorded and ready driver."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.notes = self.another()
        self.put("/proc/sys/kernel/random/boot_id", "boot-1\n")
        self.put("/sys/module/rebellions/initstate", "live\n")
        self.put(STATE, f"{NEW_DIGEST}\n", 1_000.0)
        self.put(READY, "", 2_000.0)

    def another(self) -> HostClientNotes:
        """As another process has them."""
        root = self.root
        return HostClientNotes(HostRoots(root, root / "proc", root / "sys", root / "dev"), PROFILE, FakeClock())

    def put(self, path: str, text: str, written_s: float = 0.0) -> None:
        """A file of the host."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        os.utime(file, (written_s, written_s))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_sighting_is_what_the_drivers_files_say(tree: Tree) -> None:
    seen = tree.notes.sighting()
    assert (seen.boot_id, seen.digest, seen.marked_s) == ("boot-1", NEW_DIGEST, (1_000.0, 2_000.0))
    assert seen.load
    assert seen_now(seen, None, 3_000.0).ready_s == 2_000.0


def test_each_load_of_the_driver_is_another(tree: Tree) -> None:
    before = tree.notes.sighting().load
    (tree.root / "sys/module/rebellions").rename(tree.root / "sys/module/aside")
    assert tree.notes.sighting().load == ""
    tree.put("/sys/module/rebellions/initstate", "live\n")
    assert tree.notes.sighting().load not in ("", before)


@pytest.mark.parametrize("text", ["", "two words\n", "\ufffd\n", "x" * 300])
def test_what_is_no_digest_is_none(tree: Tree, text: str) -> None:
    tree.put(STATE, text)
    assert tree.notes.sighting().digest == ""


def test_files_that_are_not_there_say_nothing_and_a_long_record_is_read_whole(tree: Tree) -> None:
    for path in (STATE, READY):
        (tree.root / path.lstrip("/")).unlink()
    assert tree.notes.sighting().marked_s == ()
    assert tree.notes.recall() == ""
    tree.notes.remember("x" * 300_000)
    assert tree.another().recall() == "x" * 300_000


def test_of_two_at_once_one_is_alone(tree: Tree) -> None:
    with tree.notes.alone() as first, tree.another().alone() as second:
        assert (first, second) == (True, False)
    with tree.another().alone() as is_alone:
        assert is_alone


def test_a_host_that_cannot_be_looked_at_is_an_error_that_says_what_to_do(tree: Tree) -> None:
    (tree.root / STATE.lstrip("/")).unlink()
    (tree.root / STATE.lstrip("/")).mkdir()
    with pytest.raises(ConfigError, match=r"^cannot read or change .*rbln-driver\.state on the host: ") as caught:
        tree.notes.sighting()
    assert "mounted" in caught.value.remedy
