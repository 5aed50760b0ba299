"""Firmware is looked for where this kernel looks: in the host's folders, compressed or not, never in a driver root."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host import modules
from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.host.modules import ModuleTrees, firmware_search_path, has_firmware
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.host import MissingFirmware
from tests.support.fakes.host_folders import KERNEL, Tree

NAME = "vendor/chip.bin"
STANDARD = (
    f"/lib/firmware/updates/{KERNEL}",
    "/lib/firmware/updates",
    f"/lib/firmware/{KERNEL}",
    "/lib/firmware",
)
ROOT = "/run/rbln/driver"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("text", "first"), [(None, ()), ("", ()), ("\n", ()), (f"{ROOT}/lib/firmware\n", (f"{ROOT}/lib/firmware",))]
)
def test_the_kernels_own_folders_are_searched_after_the_one_that_it_was_told(
    tree: Tree, text: str | None, first: tuple[str, ...]
) -> None:
    if text is not None:
        tree.put("/sys/module/firmware_class/parameters/path", text)
    assert firmware_search_path(tree.root / "sys", KERNEL, "") == (*first, *STANDARD)


@pytest.mark.parametrize("folder", STANDARD)
@pytest.mark.parametrize("suffix", ["", ".xz", ".zst"])
def test_a_file_in_any_of_them_is_found_compressed_or_not(tree: Tree, folder: str, suffix: str) -> None:
    files = HostFiles(tree.root, tree.root / "proc")
    assert not has_firmware(files, STANDARD, NAME)
    tree.put(f"{folder}/{NAME}{suffix}", "")
    assert has_firmware(files, STANDARD, NAME)
    assert has_firmware(files, STANDARD, "vendor/ch*.bin")
    assert not has_firmware(files, STANDARD, "vendor/other*.bin")


def test_a_link_of_the_host_leads_to_the_hosts_files(tree: Tree) -> None:
    files = HostFiles(tree.root, tree.root / "proc")
    tree.put(f"/usr/lib/firmware/{NAME}", "")
    (tree.root / "lib").symlink_to("/usr/lib")
    assert has_firmware(files, STANDARD, NAME)


def source(tree: Tree, monkeypatch: pytest.MonkeyPatch, *names: str) -> tuple[MissingFirmware, ...]:
    """What a driver that names `names` would not find."""
    tree.put(f"{ROOT}/lib/modules/{KERNEL}/modules.dep", "rebellions.ko:\n")
    tree.put(f"{ROOT}/lib/modules/{KERNEL}/rebellions.ko", "")
    told = "".join(f"firmware:       {name}\n" for name in names)

    def run(argv: Sequence[str], **_: Any) -> Result:
        return Result(0, f"vermagic:       {KERNEL} SMP\n{told}" if argv[0] == "modinfo" else "", "")

    monkeypatch.setattr(modules, "run", run)
    trees = ModuleTrees(HostFiles(tree.root, tree.root / "proc"), tree.root / "proc", tree.root / "sys", KERNEL)
    return trees.source(ROOT, ("rebellions",)).missing_firmware


def test_firmware_of_the_driver_root_is_not_found_by_the_kernel(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.put(f"{ROOT}/lib/firmware/{NAME}", "")
    tree.put("/lib/firmware/there.bin", "")
    (missing,) = source(tree, monkeypatch, NAME, "there.bin", "absent.bin")
    assert missing == MissingFirmware("rebellions", (NAME, "absent.bin"), STANDARD, f"{ROOT}/lib/firmware")


def test_where_all_of_it_is_found_nothing_is_missing(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.put(f"/lib/firmware/{NAME}.xz", "")
    assert source(tree, monkeypatch, NAME) == ()
    assert source(tree, monkeypatch) == ()


def test_what_nobody_has_is_kept_nowhere(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    (missing,) = source(tree, monkeypatch, NAME)
    assert (missing.names, missing.kept_in) == ((NAME,), "")
