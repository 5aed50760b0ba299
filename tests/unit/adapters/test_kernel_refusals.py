"""What this kernel never does with the driver's modules is read from /proc before anybody is disturbed for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver_manager.adapters.host.modules import permanent_modules
from driver_manager.domain.host import PastFailure, encode_failure
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.host_folders import Tree, load

NO_EXIT, NO_UNLOAD = "no exit function", "CONFIG_MODULE_UNLOAD"
NOTE = PROFILE.paths.failure_note


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("rebellions 16384 0 - Live 0xffffffffc0a00000 (OE)", ""),
        ("rebellions 16384 1 rebellions_peer, Live 0xffffffffc0a00000", ""),
        ("rebellions 16384 0 [permanent], Live 0x0000000000000000", NO_EXIT),
        ("rebellions 16384 1 rebellions_peer,[permanent], Live 0x0000000000000000", NO_EXIT),
        ("rebellions 16384 - - Live 0xffffffffc0a00000 (O)", NO_UNLOAD),
        ("rebellions 16384", ""),
        ("rebellions_other 16384 0 [permanent], Live 0x0", ""),
        ("other 16384 0 [permanent], Live 0x0", ""),
        ("", ""),
    ],
)
def test_a_module_that_cannot_be_unloaded_is_known_by_its_line(tmp_path: Path, line: str, why: str) -> None:
    (tmp_path / "modules").write_text(f"ext4 999 1 - Live 0x0\n{line}\n")
    found = permanent_modules(tmp_path, ["rebellions", "rebellions_core"])
    assert set(found) == ({"rebellions"} if why else set())
    assert why in found.get("rebellions", "")


def test_a_proc_without_the_list_says_nothing(tmp_path: Path) -> None:
    assert permanent_modules(tmp_path, ["rebellions"]) == {}


def test_only_the_drivers_own_modules_are_told(tree: Tree) -> None:
    load(tree.root / "sys", "rebellions")
    tree.put("/proc/modules", "rebellions 1 0 [permanent], Live 0x0\ndrm 1 0 [permanent], Live 0x0\n")
    assert set(tree.read().permanent) == {"rebellions"}


@pytest.mark.parametrize(
    ("text", "frozen"), [("1\n", True), ("0\n", False), ("", False), ("2\n", False), (None, False)]
)
def test_a_kernel_that_changes_no_modules_is_known_by_its_switch(tree: Tree, text: str | None, frozen: bool) -> None:
    if text is not None:
        tree.put("/proc/sys/kernel/modules_disabled", text)
    assert tree.read().are_modules_frozen is frozen


@pytest.mark.parametrize(("boot_id", "is_there"), [("boot-1", True), ("boot-0", False)])
def test_the_note_of_a_failure_is_read_in_its_own_boot(tree: Tree, boot_id: str, is_there: bool) -> None:
    past = PastFailure(boot_id, "wish", 4, "busy", 7.5)
    tree.put(NOTE, encode_failure(past))
    assert tree.read().failure == (past if is_there else None)


@pytest.mark.parametrize("content", ["", "{", b"\xff\xfe", "[" * 60_000])
def test_a_broken_note_is_none(tree: Tree, content: str | bytes) -> None:
    tree.put(NOTE, content)
    assert tree.read().failure is None


def test_a_folder_in_the_place_of_the_note_is_none(tree: Tree) -> None:
    (tree.root / NOTE.lstrip("/")).mkdir(parents=True)
    assert tree.read().failure is None
