"""What a profile says of the order of its modules, and of roots of which one is enough, with stand-in tools."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from driver_manager.adapters.host.modules import firmware_search_path
from driver_manager.domain.errors import ModuleFailed
from driver_manager.domain.host import DriverSource
from driver_manager.domain.profile import (
    Modules,
    Profile,
    RootsNeeded,
    decode_profile,
    encode_profile,
    has_root,
    unload_order,
    users,
)
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.deadlines import soon
from tests.support.fakes.module_trees import ModuleHost

ROOT = "/opt/driver"
ORDERED = replace(PROFILE, modules=Modules(("core",), order=("below", "core", "links", "verbs")))
EITHER = replace(PROFILE, modules=Modules(("big_npu", "small_npu"), roots_needed=RootsNeeded.ANY))


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: Profile) -> ModuleHost:
    return ModuleHost(tmp_path, monkeypatch, profile)


def source(host: ModuleHost) -> DriverSource:
    found = host.facts(ROOT).source
    assert found is not None
    assert found.problem == ""
    return found


@pytest.mark.submission
def test_modules_that_nothing_else_orders_are_loaded_in_the_profiles_order_and_unloaded_backwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = made(tmp_path, monkeypatch, ORDERED)
    host.add(ROOT, "2.0", verbs=(), links=(), core=(), below=())
    host.system.load(source(host), soon())
    assert [name for tool, name in host.did if tool == "modprobe"] == ["below", "core", "links", "verbs"]
    host.did.clear()
    while loaded := host.system.modules():
        host.system.unload(unload_order(loaded, ORDERED.modules.order)[0], soon())
    assert host.did == [("rmmod", name) for name in ("verbs", "links", "core", "below")]
    assert host.names == set()


@pytest.mark.submission
def test_one_that_this_driver_lacks_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = made(tmp_path, monkeypatch, ORDERED)
    host.add(ROOT, "1.0", core=())
    assert source(host).sequence == ("core",)
    host.system.load(source(host), soon())
    assert host.names == {"core"}


def test_an_ordered_module_is_looked_at_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = made(tmp_path, monkeypatch, ORDERED)
    host.add(ROOT, "2.0", core=(), links=("absent",))
    (links,) = [one for one in source(host).dependencies if one.name == "links"]
    assert links.missing_dependencies == ("absent",)


def test_a_driver_with_one_of_the_roots_is_enough_where_the_profile_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = made(tmp_path, monkeypatch, EITHER)
    host.add(ROOT, "2.0", small_npu=())
    host.system.load(source(host), soon())
    assert host.names == {"small_npu"}
    assert has_root(host.system.modules(), EITHER.modules)
    both = replace(EITHER, modules=replace(EITHER.modules, roots_needed=RootsNeeded.ALL))
    found = made(tmp_path / "all", monkeypatch, both)
    found.add(ROOT, "2.0", small_npu=())
    lacking = found.facts(ROOT).source
    assert lacking is not None
    assert "no module big_npu" in lacking.problem


def test_a_driver_with_none_of_them_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = made(tmp_path, monkeypatch, EITHER)
    host.add(ROOT, "2.0", other=())
    found = host.facts(ROOT).source
    assert found is not None
    assert "no module big_npu or small_npu" in found.problem


@pytest.mark.parametrize("profile", [ORDERED, EITHER])
def test_another_process_reads_the_same(profile: Profile) -> None:
    assert decode_profile(encode_profile(profile)) == profile


def test_modprobe_is_given_the_profiles_options_before_the_hosts_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = made(tmp_path, monkeypatch, ORDERED)
    host.add(ROOT, "2.0", core=(), links=())
    (host.tree.root / "etc/modprobe.d").mkdir()
    (host.tree.root / "etc/modprobe.d/own.conf").write_text("options core depth=9\n")
    host.system.load(replace(source(host), given={"core": 'depth=7 name="a b"'}), soon())
    assert host.options == {"core": 'depth=7 name="a b" depth=9'}


def test_the_values_of_what_is_loaded_are_read_by_module_and_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = made(tmp_path, monkeypatch, ORDERED)
    host.loaded("core", depth="7", label="a b")
    assert host.facts(ROOT).parameters == {"core.depth": "7", "core.label": "a b"}


LETS_GO = replace(PROFILE, modules=Modules(("core",), conflicting_removable=("generic",)))


def test_a_module_that_the_profile_lets_go_is_seen_with_who_holds_it_and_unloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = made(tmp_path, monkeypatch, LETS_GO)
    host.loaded("generic", holders=("above",))
    host.loaded("above", users=3)
    host.loaded("unrelated")
    assert {name: users(one) for name, one in host.facts(ROOT).removable.items()} == {"generic": 0, "above": 3}
    with pytest.raises(ModuleFailed, match="refused to unload above"):
        host.system.remove_conflicting("above", soon())
    (host.tree.root / "sys/module/above").rename(tmp_path / "gone")
    (host.tree.root / "sys/module/generic/refcnt").write_text("0\n")
    host.system.remove_conflicting("generic", soon())
    assert host.names == {"unrelated"}


def test_the_kernel_is_told_where_the_firmware_is_and_it_is_looked_for_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = replace(ORDERED, paths=replace(ORDERED.paths, firmware="/var/lib/firmware"))
    host = made(tmp_path, monkeypatch, profile)
    assert host.facts(ROOT).firmware_path is None
    with pytest.raises(ModuleFailed, match=r"cannot set firmware_class\.path"):
        host.system.set_firmware_path("/var/lib/firmware")
    host.loaded("firmware_class", path="")
    assert host.facts(ROOT).firmware_path == ""
    host.system.set_firmware_path("/var/lib/firmware")
    assert (host.tree.root / "sys/module/firmware_class/parameters/path").read_text() == "/var/lib/firmware"
    assert host.facts(ROOT).firmware_path == "/var/lib/firmware"
    assert firmware_search_path(host.roots.sys, "6.1", "/opt/f")[0] == "/opt/f"
