"""A driver that is loaded as a whole tree: in order of need, pass by pass, and what cannot be loaded stays out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host import modules as kmod
from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.system import LinuxHost, read_host
from driver_manager.adapters.process.run import run
from driver_manager.adapters.process.tools import Result
from driver_manager.domain.errors import ModuleFailed
from driver_manager.domain.host import DriverSource
from driver_manager.domain.profile import LoadScope, Profile, decode_profile, encode_profile
from driver_manager.sandbox.host import KERNEL, HostTree
from tests.support.fakes.builders import ASCEND, PROFILE
from tests.support.fakes.clock import FakeClock
from tests.support.fakes.deadlines import soon

ROOT = ASCEND.paths.driver_root
FOLDERS = {"flat, as the vendor ships it": "host", "by kernel": f"lib/modules/{KERNEL}/updates"}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostTree:
    """A host without a driver, its tools on PATH."""
    made = HostTree(tmp_path / "host", tmp_path / "bin", ASCEND)
    made.build()
    monkeypatch.setenv("PATH", str(made.bin), prepend=":")
    return made


def add(tree: HostTree, folder: str, name: str, *depends: str, **facts: Any) -> None:
    """A module file of the driver tree."""
    path = tree.root / ROOT.lstrip("/") / folder / f"{name}.ko"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {"version": "25.5.0", "vermagic": f"{KERNEL} SMP mod_unload", "depends": list(depends)}
    path.write_text(json.dumps({**body, **facts}))


def driver(tree: HostTree, folder: str, **root_facts: Any) -> None:
    """Five modules: names sort against need, one need is not said, one serves hardware that is not there."""
    add(tree, folder, "drv_pcie_host", "drv_zz_base", **root_facts)
    add(tree, folder, "drv_zz_base")
    add(tree, folder, "drv_aa_device", "drv_pcie_host")
    add(tree, folder, "asdrv_absent", fails=True)
    add(tree, folder, "ts_agent", "drv_aa_device", "drv_pcie_host")


def roots(tree: HostTree) -> HostRoots:
    return HostRoots(tree.root, tree.root / "proc", tree.root / "sys", tree.root / "dev")


def source(tree: HostTree, profile: Profile = ASCEND, root: str = ROOT) -> DriverSource:
    found = read_host(roots(tree), profile, root, None, loads=True).source
    assert found is not None
    return found


def loaded(tree: HostTree) -> set[str]:
    return {path.name for path in (tree.root / "sys/module").iterdir()}


@pytest.mark.submission
@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
def test_all_that_can_be_loaded_is_and_each_module_after_what_it_needs(tree: HostTree, folder: str) -> None:
    driver(tree, folder)
    offered = source(tree)
    assert offered.problem == ""
    assert offered.version == "25.5.0"
    names = [name for name, _ in offered.tree]
    assert len(names) == 5
    for first, then in (
        ("drv_zz_base", "drv_pcie_host"),
        ("drv_pcie_host", "drv_aa_device"),
        ("drv_aa_device", "ts_agent"),
    ):
        assert names.index(first) < names.index(then)
    LinuxHost(roots(tree), ASCEND, FakeClock()).load(offered, soon())
    assert loaded(tree) == {"drv_pcie_host", "drv_zz_base", "drv_aa_device", "ts_agent"}


@pytest.mark.submission
def test_a_need_that_no_module_tells_is_met_by_a_further_pass(tree: HostTree) -> None:
    driver(tree, "host")
    offered = source(tree)
    backwards = replace(offered, tree=tuple(reversed(offered.tree)))
    LinuxHost(roots(tree), ASCEND, FakeClock()).load(backwards, soon())
    assert "ts_agent" in loaded(tree)


@pytest.mark.submission
def test_each_module_gets_the_options_of_the_hosts_modprobe_d(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(tree, "host")
    (tree.root / "etc/modprobe.d").mkdir()
    (tree.root / "etc/modprobe.d/npu.conf").write_text('options drv-zz-base depth=7 name="a b"\n')
    ran: list[list[str]] = []

    def noted(argv: Sequence[str], **options: Any) -> Result:
        ran.append(list(argv))
        return run(argv, **options)

    monkeypatch.setattr(kmod, "run", noted)
    LinuxHost(roots(tree), ASCEND, FakeClock()).load(source(tree), soon())
    given = {Path(argv[2]).stem: argv[3:] for argv in ran if argv[0] == "insmod"}
    assert given["drv_zz_base"] == ['depth=7 name="a b"']
    assert given["drv_pcie_host"] == []


@pytest.mark.submission
def test_loading_again_over_what_a_killed_run_left_completes_it(tree: HostTree) -> None:
    driver(tree, "host")
    offered = source(tree)
    host = LinuxHost(roots(tree), ASCEND, FakeClock())
    host.load(replace(offered, tree=offered.tree[:3]), soon())
    assert "ts_agent" not in loaded(tree)
    host.load(offered, soon())
    host.load(offered, soon())
    assert "ts_agent" in loaded(tree)


@pytest.mark.submission
def test_a_root_module_that_does_not_load_is_a_failure_with_its_words_and_nothing_is_unloaded(tree: HostTree) -> None:
    driver(tree, "host", fails=True)
    with pytest.raises(ModuleFailed, match=r"drv_pcie_host cannot be loaded .*Input/output error"):
        LinuxHost(roots(tree), ASCEND, FakeClock()).load(source(tree), soon())
    assert loaded(tree) == {"drv_zz_base"}


def test_a_tree_without_the_root_module_is_a_problem_before_anything_is_done(tree: HostTree) -> None:
    add(tree, "host", "drv_zz_base")
    assert "drv_pcie_host" in source(tree).problem
    assert "has no module drv_pcie_host" in source(tree, root="/opt/absent").problem


def test_modules_of_other_kernels_are_not_taken_for_flat_ones(tree: HostTree) -> None:
    driver(tree, "lib/modules/5.10.0-other/updates")
    assert "5.10.0-other" in source(tree).problem


def test_of_a_driver_that_is_loaded_by_its_roots_no_tree_is_listed(tree: HostTree) -> None:
    rebellions = HostTree(tree.root, tree.bin, PROFILE)
    rebellions.add_driver("/opt/new", "2.0")
    assert source(tree, PROFILE, "/opt/new").tree == ()
    assert PROFILE.modules.load is LoadScope.ROOTS


def test_the_hosts_own_modules_are_never_loaded_as_a_whole(tree: HostTree) -> None:
    add(tree, "host", "drv_other")
    tree.add_driver("/", "25.5.0")
    assert source(tree, root="/").tree == ()


def test_the_scope_survives_the_way_into_another_process() -> None:
    assert decode_profile(encode_profile(ASCEND)).modules.load is LoadScope.TREE
