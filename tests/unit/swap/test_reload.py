"""A reload that health-watch requested: the run replaces a driver with itself, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from driver_manager.adapters.host.files import HostRoots
from driver_manager.adapters.host.notes import load_numbers, load_text
from driver_manager.adapters.host.system import read_host
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.host import ReloadRequest, encode_reload_request
from driver_manager.domain.observation import Loader
from driver_manager.domain.profile import Profile
from driver_manager.sandbox import fake_tools
from driver_manager.sandbox.host import KERNEL, HostTree
from driver_manager.sandbox.scenarios import NEW, NEW_DIGEST
from tests.support.fakes.builders import OLD_DIGEST, PROFILE, PROFILES
from tests.support.fakes.sandboxed import by_hand
from tests.support.fakes.scenarios import NEW_ROOT, OLD_ROOT, made, undisturbed
from tests.support.fakes.world import World

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


@pytest.mark.parametrize(
    ("request_of", "policy"),
    [
        ({"boot_id": "boot-0"}, {}),
        ({"load": "another"}, {}),
        ({}, {"loader": Loader.NONE}),
    ],
    ids=["another boot", "another load", "loaded by the host"],
)
def test_a_request_of_another_boot_or_load_changes_nothing(
    request_of: dict[str, str], policy: dict[str, Loader]
) -> None:
    world = made(RELOADS, **policy)
    world.host.ask_for_reload(**request_of)
    world.ended(ExitCode.DONE, "nothing to do: driver is current")
    assert (world.host.loads, REQUEST in world.host.files) == (1, True)


def sick_after(world: World) -> None:
    world.host.sick = {"2.0"}


def without_nodes(world: World) -> None:
    world.host.has_device_nodes = False


@pytest.mark.parametrize("kill", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("is_sick_before", [False, True])
@pytest.mark.parametrize("fault", [sick_after, without_nodes])
def test_a_device_that_a_reload_does_not_recover_is_told_and_the_run_ends_well(
    fault: Callable[[World], None], is_sick_before: bool, kill: bool
) -> None:
    world = made(RELOADS)
    if is_sick_before:
        sick_after(world)
    world.on("load rebellions", fault, after=True)
    if kill:
        world.killed("load rebellions_core")
    told = "" if fault is sick_after and is_sick_before else "the reload did not recover it"
    world.ended(ExitCode.DONE, "driver 2.0 loaded")
    outcome = world.node.annotations[PROFILE.keys.last_outcome]
    assert told in outcome
    assert ("as before the swap" in outcome) is not bool(told)
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

LOADED = "<loaded>"


def prepared(folder: Path, profile: Profile = PROFILE) -> tuple[HostTree, HostRoots]:
    tree = HostTree(folder / "host", folder / "bin", profile)
    tree.build()
    tree.add_driver("/opt/driver", NEW, modules=dict.fromkeys(profile.modules.roots, ()))
    tree.load("/opt/driver")
    return tree, HostRoots(*(tree.root / name for name in ("", "proc", "sys", "dev")))


def requested(tree: HostTree, text: str) -> None:
    path = tree.root / tree.profile.paths.reload_request.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def boot_of(roots: HostRoots, profile: Profile) -> str:
    return read_host(roots, profile, "", None, loads=False).boot_id


@pytest.mark.parametrize(
    ("boot", "load", "reason", "found"),
    [
        ("", LOADED, "rbln0 is error", "rbln0 is error"),
        ("", LOADED, "", ""),
        ("", LOADED, "two\nlines", "two\\nlines"),
        ("earlier", LOADED, "x", None),
        ("", "1", "x", None),
        ("", "", "x", None),
    ],
)
def test_a_request_counts_in_its_boot_and_for_its_load(
    tmp_path: Path, boot: str, load: str, reason: str, found: str | None
) -> None:
    tree, roots = prepared(tmp_path)
    known = load_text(roots, PROFILE.modules) if load == LOADED else load
    requested(tree, encode_reload_request(ReloadRequest(boot or boot_of(roots, PROFILE), known, reason)))
    host = read_host(roots, PROFILE, "", None, loads=False)
    assert (host.reload, REQUEST in host.artifacts) == (found, True)
    fake_tools.rmmod(tree.root, [PROFILE.modules.roots[0]])
    assert read_host(roots, PROFILE, "", None, loads=False).reload is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99}', '{"schema": 1, "bootId": 1}', "\udcff"])
def test_a_request_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    tree, roots = prepared(tmp_path)
    requested(tree, "")
    path = tree.root / REQUEST.lstrip("/")
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert read_host(roots, PROFILE, "", None, loads=False).reload is None
    path.unlink()
    path.mkdir()
    assert read_host(roots, PROFILE, "", None, loads=False).reload is None


def test_a_reload_that_was_killed_between_two_root_modules_still_counts(tmp_path: Path) -> None:
    profile = PROFILES["furiosa"]
    tree, roots = prepared(tmp_path, profile)
    first, second = profile.modules.roots
    folder = str(tree.root / "opt/driver")
    assert fake_tools.modprobe(tree.root, ["--dirname", folder, "--set-version", KERNEL, second]) == 0
    requested(
        tree, encode_reload_request(ReloadRequest(boot_of(roots, profile), load_text(roots, profile.modules), "x"))
    )
    assert fake_tools.rmmod(tree.root, [first]) == 0
    assert list(load_numbers(roots, profile.modules)) == [second]
    assert read_host(roots, profile, "", None, loads=False).reload == "x"
    assert fake_tools.rmmod(tree.root, [second]) == 0
    tree.load("/opt/driver")
    assert read_host(roots, profile, "", None, loads=False).reload is None


@pytest.mark.submission
@pytest.mark.shares(2)
def test_the_commands_show_the_request_and_one_run_reloads_the_driver(tmp_path: Path) -> None:
    def prepare(tree: HostTree) -> None:
        tree.add_driver("/opt/driver-new", NEW)
        tree.load("/opt/driver-new")
        tree.record(NEW_DIGEST, "/opt/driver-new", NEW)

    with by_hand(tmp_path, prepare) as node:
        roots = HostRoots(*(node.tree.root / name for name in ("", "proc", "sys", "dev")))
        before = load_text(roots, PROFILE.modules)
        requested(node.tree, encode_reload_request(ReloadRequest(boot_of(roots, PROFILE), before, "rbln0 is error")))
        for words in (("plan",), ("reconcile-driver-state", "--dry-run"), ("status",)):
            assert WHY in node.call(*words)[1], words
        code, said = node.call("reconcile-driver-state")
        assert (code, WHY in said) == (0, True), said
        assert load_text(roots, PROFILE.modules) not in ("", before)
        assert not (node.tree.root / REQUEST.lstrip("/")).exists()
        assert "nothing to do: driver is current" in node.call("reconcile-driver-state")[1]
