"""A driver is loaded in the order of need and of its profile, by its roots or as a whole tree, with stand-in tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host.modules import firmware_search_path
from driver_manager.domain.errors import ModuleFailed
from driver_manager.domain.host import DriverSource
from driver_manager.domain.profile import Modules, Profile, RootsNeeded, has_root, unload_order, users
from driver_manager.sandbox.host import KERNEL
from tests.support.fakes.builders import ASCEND, PROFILE
from tests.support.fakes.deadlines import soon
from tests.support.fakes.module_trees import ModuleHost

ROOT = "/opt/driver"
ORDERED = replace(PROFILE, modules=Modules(("core",), order=("below", "core", "links", "verbs")))
EITHER = replace(PROFILE, modules=Modules(("big_npu", "small_npu"), roots_needed=RootsNeeded.ANY))
BOTH = replace(EITHER, modules=replace(EITHER.modules, roots_needed=RootsNeeded.ALL))

Made = Callable[[Profile], ModuleHost]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A host for each profile."""
    return lambda profile: ModuleHost(tmp_path / profile.name, monkeypatch, profile)


def source(host: ModuleHost, root: str = ROOT) -> DriverSource:
    found = host.facts(root).source
    assert found is not None
    return found


@pytest.mark.submission
@pytest.mark.parametrize("names", [("below", "core", "links", "verbs"), ("core",)])
def test_modules_are_loaded_in_the_profiles_order_and_unloaded_backwards(made: Made, names: tuple[str, ...]) -> None:
    host = made(ORDERED)
    host.add(ROOT, "2.0", KERNEL, **dict.fromkeys(reversed(names), ()))
    assert source(host).sequence == names
    host.system.load(source(host), soon())
    assert [name for tool, name in host.did if tool == "modprobe"] == list(names)
    host.did.clear()
    while loaded := host.system.modules():
        host.system.unload(unload_order(loaded, ORDERED.modules.order)[0], soon())
    assert host.did == [("rmmod", name) for name in reversed(names)]
    assert host.names == set()


def test_an_ordered_module_is_looked_at_before_anything_is_done(made: Made) -> None:
    host = made(ORDERED)
    host.add(ROOT, "2.0", core=(), links=("absent",))
    (links,) = [one for one in source(host).dependencies if one.name == "links"]
    assert links.missing_dependencies == ("absent",)


@pytest.mark.parametrize(
    ("profile", "name", "problem"),
    [(EITHER, "small_npu", ""), (BOTH, "small_npu", "big_npu"), (EITHER, "other", "big_npu or small_npu")],
)
def test_a_driver_with_one_of_the_roots_may_be_enough(made: Made, profile: Profile, name: str, problem: str) -> None:
    host = made(profile)
    host.add(ROOT, "2.0", KERNEL, **{name: ()})
    found = source(host)
    assert (bool(found.problem), f"no module {problem}" in found.problem) == (bool(problem), bool(problem))
    if not problem:
        host.system.load(found, soon())
        assert host.names == {name}
        assert has_root(host.system.modules(), profile.modules)


def test_modprobe_is_given_the_profiles_options_before_the_hosts_own(made: Made) -> None:
    host = made(ORDERED)
    host.add(ROOT, "2.0", core=(), links=())
    host.tree.write("etc/modprobe.d/own.conf", "options core depth=9")
    host.system.load(replace(source(host), given={"core": 'depth=7 name="a b"'}), soon())
    assert host.options == {"core": 'depth=7 name="a b" depth=9'}


def test_a_module_that_the_profile_lets_go_is_seen_with_who_holds_it_and_unloaded(made: Made, tmp_path: Path) -> None:
    host = made(replace(PROFILE, modules=Modules(("core",), conflicting_removable=("generic",))))
    host.loaded("generic", holders=("above",))
    host.loaded("above", users=3)
    host.loaded("core", depth="7", label="a b")
    facts = host.facts(ROOT)
    assert facts.parameters == {"core.depth": "7", "core.label": "a b"}, "those of the driver"
    assert {name: users(one) for name, one in facts.removable.items()} == {"generic": 0, "above": 3}
    with pytest.raises(ModuleFailed, match="refused to unload above"):
        host.system.remove_conflicting("above", soon())
    (host.tree.root / "sys/module/above").rename(tmp_path / "gone")
    (host.tree.root / "sys/module/generic/refcnt").write_text("0\n")
    host.system.remove_conflicting("generic", soon())
    assert host.names == {"core"}


def test_the_kernel_gets_the_firmware_folder_and_looks_there(made: Made) -> None:
    host = made(replace(ORDERED, paths=replace(ORDERED.paths, firmware="/var/lib/firmware")))
    assert host.facts(ROOT).firmware_path is None
    with pytest.raises(ModuleFailed, match=r"cannot set firmware_class\.path"):
        host.system.set_firmware_path("/var/lib/firmware")
    host.loaded("firmware_class", path="")
    assert host.facts(ROOT).firmware_path == ""
    host.system.set_firmware_path("/var/lib/firmware")
    assert (host.tree.root / "sys/module/firmware_class/parameters/path").read_text() == "/var/lib/firmware"
    assert host.facts(ROOT).firmware_path == "/var/lib/firmware"
    assert firmware_search_path(host.roots.sys, "6.1", "/opt/f")[0] == "/opt/f"


WHOLE = ASCEND.paths.driver_root


def add(host: ModuleHost, folder: str, name: str, *depends: str, **facts: Any) -> None:
    """A module file of the driver tree."""
    body = {"version": "25.5.0", "vermagic": f"{KERNEL} SMP mod_unload", "depends": list(depends)}
    host.tree.write(f"{WHOLE.lstrip('/')}/{folder}/{name}.ko", json.dumps({**body, **facts}))


def driver(made: Made, folder: str = "host", **root_facts: Any) -> ModuleHost:
    """A host that offers five modules: names sort against need, one need is not given, one serves absent hardware."""
    host = made(ASCEND)
    add(host, folder, "drv_pcie_host", "drv_zz_base", **root_facts)
    add(host, folder, "drv_zz_base")
    add(host, folder, "drv_aa_device", "drv_pcie_host")
    add(host, folder, "asdrv_absent", fails=True)
    add(host, folder, "ts_agent", "drv_aa_device", "drv_pcie_host")
    return host


@pytest.mark.submission
@pytest.mark.parametrize(
    ("folder", "parts"),
    [
        ("host", [slice(None)]),
        (f"lib/modules/{KERNEL}/updates", [slice(None)]),
        ("host", [slice(None, None, -1)]),  # a need that no module tells is met by a further pass
        ("host", [slice(3), slice(None), slice(None)]),  # over what a killed run left
    ],
)
def test_all_that_can_be_loaded_is_each_after_its_needs(made: Made, folder: str, parts: list[slice]) -> None:
    ascend = driver(made, folder)
    offered = source(ascend, WHOLE)
    assert (offered.problem, offered.version) == ("", "25.5.0")
    names = [name for name, _ in offered.tree]
    in_need = ["drv_zz_base", "drv_pcie_host", "drv_aa_device", "ts_agent"]
    assert [name for name in names if name != "asdrv_absent"] == in_need
    assert len(names) == 5
    for part in parts:
        ascend.system.load(replace(offered, tree=offered.tree[part]), soon())
        assert ("ts_agent" in ascend.names) is (part != slice(3))
    assert ascend.names == set(in_need)


def test_each_module_gets_the_options_of_the_hosts_modprobe_d(made: Made) -> None:
    ascend = driver(made)
    ascend.tree.write("etc/modprobe.d/npu.conf", 'options drv-zz-base depth=7 name="a b"')
    ascend.system.load(source(ascend, WHOLE), soon())
    assert ascend.inserted["drv_zz_base"] == ['depth=7 name="a b"']
    assert ascend.inserted["drv_pcie_host"] == []


def test_a_root_module_that_does_not_load_is_a_failure_and_nothing_is_unloaded(made: Made) -> None:
    ascend = driver(made, fails=True)
    with pytest.raises(ModuleFailed, match=r"drv_pcie_host cannot be loaded .*Input/output error"):
        ascend.system.load(source(ascend, WHOLE), soon())
    assert ascend.names == {"drv_zz_base"}


def test_a_tree_without_the_root_module_is_a_problem_before_anything_is_done(made: Made) -> None:
    ascend = made(replace(ASCEND, name="without"))
    add(ascend, "host", "drv_zz_base")
    for root, problem in ((WHOLE, "drv_pcie_host"), ("/opt/absent", "has no module drv_pcie_host")):
        assert problem in source(ascend, root).problem
    assert "5.10.0-other" in source(driver(made, "lib/modules/5.10.0-other/updates"), WHOLE).problem


def test_no_tree_is_listed_of_a_driver_that_is_loaded_by_its_roots_or_of_the_host(made: Made) -> None:
    for profile, root, version in ((PROFILE, "/opt/new", "2.0"), (ASCEND, "/", "25.5.0")):
        host = made(profile)
        add(host, "host", "drv_other")
        host.tree.add_driver(root, version)
        assert source(host, root).tree == ()
