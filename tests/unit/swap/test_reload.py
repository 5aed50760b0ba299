"""A reload that health-watch requested: the run replaces a driver with itself, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.notes import load_numbers, load_text
from driver_manager.adapters.host.system import read_host
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.host import Host, ReloadRequest, encode_reload_request
from driver_manager.domain.observation import Loader
from driver_manager.domain.profile import Profile
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import KERNEL, HostTree
from driver_manager.sandbox.scenarios import NEW, NEW_DIGEST
from tests.support.fakes.builders import OLD_DIGEST, PROFILE, PROFILES
from tests.support.fakes.sandboxed import by_hand
from tests.support.fakes.scenarios import NEW_ROOT, OLD_ROOT, made, undisturbed

REQUEST = PROFILE.paths.reload_request
RELOADS = "reload_by_manager"
WHY = "a reload was requested to recover the driver: rbln0 is error"
KILLS = [(effect, after) for effect in range(undisturbed(RELOADS)[2]) for after in (False, True)]


def test_a_request_of_this_load_reloads_the_driver_and_then_nothing() -> None:
    world = made(RELOADS)
    world.ended(ExitCode.DONE, "driver 2.0 loaded", WHY)
    assert (world.host.loads, REQUEST in world.host.files, world.is_released) == (2, False, True)
    world.again(ExitCode.DONE, "nothing to do: driver is current")
    assert world.host.loads == 2


@pytest.mark.parametrize(("effect", "after"), KILLS)
def test_a_killed_reload_is_finished_and_not_begun_again(effect: int, after: bool) -> None:
    world = made(RELOADS)
    world.killer.kill_at(effect, after=after)
    assert world.run() is None
    # A driver that no run has recorded is loaded again, as in every swap.
    is_unrecorded = world.host.loads == 2 and PROFILE.paths.state_file not in world.host.files
    world.finish()
    assert world.host.loads == 3 if is_unrecorded else 2
    assert REQUEST not in world.host.files
    world.again(ExitCode.DONE, "nothing to do: driver is current")


def test_a_request_of_another_boot_or_load_or_of_the_hosts_own_driver_changes_nothing() -> None:
    for request, policy in (({"boot_id": "boot-0"}, {}), ({"load": "another"}, {}), ({}, {"loader": Loader.NONE})):
        world = made(RELOADS, **policy)
        world.host.ask_for_reload(**request)
        world.ended(ExitCode.DONE, "nothing to do: driver is current")
        assert (world.host.loads, REQUEST in world.host.files) == (1, True), (request, policy)


@pytest.mark.parametrize("kill", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("was_sick", [False, True])
@pytest.mark.parametrize("fault", [{"sick": {"2.0"}}, {"has_device_nodes": False}], ids=["sick", "no device node"])
def test_a_reload_that_recovers_nothing_says_so(fault: dict[str, Any], was_sick: bool, kill: bool) -> None:
    world = made(RELOADS, sick={"2.0"}) if was_sick else made(RELOADS)
    world.on("load rebellions", lambda one: one.given(**fault), after=True)
    if kill:
        world.killed("load rebellions_core")
    message = "" if "sick" in fault and was_sick else "the reload did not recover it"
    world.ended(ExitCode.DONE, "driver 2.0 loaded")
    outcome = world.node.annotations[PROFILE.keys.last_outcome]
    assert message in outcome
    assert ("as before the swap" in outcome) is not bool(message)
    assert (world.host.loads, world.is_released) == (2, True)
    world.again(ExitCode.DONE, "nothing to do: driver is current")


def test_a_reload_whose_load_fails_goes_back_and_is_not_tried_again() -> None:
    world = made(RELOADS, offers={NEW_ROOT: "2.0"})
    world.on("load rebellions", lambda world: world.given(broken={"2.0"}), lambda world: world.given(broken=set()))
    world.ended(ExitCode.MODULE_FAILED, "the old driver 2.0 is loaded again")
    assert world.is_released
    world.again(ExitCode.DONE, "nothing to do: driver is current")
    assert world.host.loads == 2


def test_a_run_that_continues_a_reload_with_another_driver_judges_that_one() -> None:
    world = made(RELOADS).killed("unload rebellions_core")
    world.given(digest=OLD_DIGEST, driver_root=OLD_ROOT, sick={"1.0"})
    world.ended(ExitCode.MODULE_FAILED, "its probe reports", "the old driver 2.0 is loaded again")


# what the host's file says, on the sandbox's host


def prepared(folder: Path, profile: Profile = PROFILE) -> HostTree:
    tree = HostTree(folder / "host", folder / "bin", profile)
    tree.build()
    tree.add_driver("/opt/driver", NEW, modules=dict.fromkeys(profile.modules.roots, ()))
    tree.load("/opt/driver")
    return tree


def roots_of(tree: HostTree) -> HostRoots:
    return HostRoots(*(tree.root / name for name in ("", "proc", "sys", "dev")))


def seen(tree: HostTree) -> Host:
    return read_host(roots_of(tree), tree.profile, "", None, loads=False)


def loaded(tree: HostTree) -> str:
    return load_text(roots_of(tree), tree.profile.modules)


def request(tree: HostTree, *, boot: str = "", load: str | None = None, reason: str = "x") -> None:
    """A request for this boot and load unless the test says another one."""
    known = loaded(tree) if load is None else load
    text = encode_reload_request(ReloadRequest(boot or seen(tree).boot_id, known, reason))
    tree.write(tree.profile.paths.reload_request.lstrip("/"), text)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"reason": "rbln0 is error"}, "rbln0 is error"),
        ({"reason": ""}, ""),
        ({"reason": "two\nlines"}, "two\\nlines"),
        ({"boot": "earlier"}, None),
        ({"load": "1"}, None),
        ({"load": ""}, None),
    ],
)
def test_a_request_counts_in_its_boot_and_for_its_load(
    tmp_path: Path, fields: dict[str, str], found: str | None
) -> None:
    tree = prepared(tmp_path)
    request(tree, **fields)
    host = seen(tree)
    assert (host.reload, REQUEST in host.artifacts) == (found, True)
    fake_tools.rmmod(tree.root, [PROFILE.modules.roots[0]])
    assert seen(tree).reload is None


def test_a_request_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    tree = prepared(tmp_path)
    path = tree.inside(REQUEST)
    path.parent.mkdir(parents=True, exist_ok=True)
    for text in ("", "{", "[]", '{"schema": 99}', '{"schema": 1, "bootId": 1}', "\udcff"):
        path.write_bytes(text.encode(errors="surrogateescape"))
        assert seen(tree).reload is None, text
    path.unlink()
    path.mkdir()
    assert seen(tree).reload is None


def test_a_reload_that_was_killed_between_two_root_modules_still_counts(tmp_path: Path) -> None:
    tree = prepared(tmp_path, PROFILES["furiosa"])
    first, second = tree.profile.modules.roots
    argv = ["--dirname", str(tree.inside("/opt/driver")), "--set-version", KERNEL, second]
    assert fake_tools.modprobe(tree.root, argv) == 0
    request(tree)
    assert fake_tools.rmmod(tree.root, [first]) == 0
    assert (list(load_numbers(roots_of(tree), tree.profile.modules)), seen(tree).reload) == ([second], "x")
    assert fake_tools.rmmod(tree.root, [second]) == 0
    tree.load("/opt/driver")
    assert seen(tree).reload is None


@pytest.mark.submission
@pytest.mark.shares(2)
def test_the_commands_show_the_request_and_one_run_reloads_the_driver(tmp_path: Path) -> None:
    with by_hand(tmp_path, lambda tree: tree.serve("/opt/driver-new", NEW, NEW_DIGEST)) as node:
        before = loaded(node.tree)
        request(node.tree, reason="rbln0 is error")
        for words in (("plan",), ("reconcile-driver-state", "--dry-run"), ("status",)):
            assert WHY in node.call(*words)[1], words
        code, output = node.call("reconcile-driver-state")
        assert (code, WHY in output) == (0, True), output
        assert loaded(node.tree) not in ("", before)
        assert not node.tree.inside(REQUEST).exists()
        assert "nothing to do: driver is current" in node.call("reconcile-driver-state")[1]
