"""A reboot that left the wish as it was is not asked for again, and a host's own driver asks for none."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.errors import ExitCode
from driver_manager.domain.host import Marker, decode_reboot_wish, encode_marker
from driver_manager.domain.observation import Loader
from tests.support.fakes.builders import ASCEND, NEW_DIGEST, OLD_DIGEST
from tests.support.fakes.executions import ascend, run
from tests.support.fakes.scenarios import NEW_ROOT
from tests.support.fakes.world import World
from tests.support.selection import examples

PATHS, KEYS = ASCEND.paths, ASCEND.keys
OWN = "/lib/modules/6.1.0-fake/updates/drv_pcie_host.ko"


def requests(world: World) -> int:
    """How often a reboot was asked for."""
    return sum(reason == "RebootRequired" for reason, *_ in world.cluster.posted)


def asks(world: World) -> bool:
    labelled = KEYS.reboot_required in world.state().labels
    assert labelled is (PATHS.reboot_marker in world.host.files)
    return labelled


def boot(world: World, *, loaded: str = "23.0", digest: str = "") -> None:
    """A reboot; `loaded` is what something loads in the new boot, `digest` what it records."""
    world.reboot()
    world.next_process()
    world.host.loaded = {"drv_pcie_host": loaded} if loaded else {}
    if digest:
        world.host.files[PATHS.state_file] = digest


# the host's own driver


def test_a_hosts_own_driver_asks_for_no_reboot_at_any_boot() -> None:
    world = ascend(no_wait=True)
    world.host.host_driver = OWN
    for _ in range(3):
        boot(world)
        outcome = run(world)
        assert outcome.exit_code is ExitCode.STANDING_DOWN
        assert not asks(world)
    assert requests(world) == 0
    assert world.state().labels == {"openfuyao.com/npu.present": "true"}


# one reboot for one wish


@pytest.mark.parametrize("loader", [Loader.CONTAINER, Loader.MANAGER])
@pytest.mark.parametrize("digest", ["", OLD_DIGEST], ids=["nothing recorded", "another recorded"])
def test_a_reboot_after_which_another_driver_is_loaded_again_is_not_asked_for_again(
    loader: Loader, digest: str
) -> None:
    world = ascend(no_wait=True)
    world.policy = replace(world.policy, loader=loader)
    world.driver_root, world.host.offers = NEW_ROOT, {NEW_ROOT: "24.0"}
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert asks(world)
    for _ in range(2):
        boot(world, digest=digest)
        outcome = run(world)
        assert outcome.exit_code is ExitCode.MODULE_FAILED
        assert f"the node has rebooted for driver {NEW_DIGEST} since that was requested" in outcome.what
        assert PATHS.reboot_wish in outcome.remedy
        assert not asks(world), "what asked for the last reboot is taken back"
    assert requests(world) == 1


def test_a_forced_reinstall_asks_for_one_reboot_and_is_done_after_it() -> None:
    world = ascend(no_wait=True)
    world.policy = replace(world.policy, force_reinstall=True)
    world.host.files[PATHS.state_file] = NEW_DIGEST
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    boot(world, loaded="")
    assert run(world).exit_code is ExitCode.DONE, "its container loads it"
    for _ in range(3):
        boot_id = world.host.boot_id
        world.host.loaded, world.host.files[PATHS.state_file] = {"drv_pcie_host": "24.0"}, NEW_DIGEST
        world.next_process()
        outcome = run(world)
        assert outcome.exit_code is ExitCode.DONE, boot_id
        assert "after the reboot for the forced reinstall" in outcome.what
        boot(world, loaded="")
    assert requests(world) == 1


def test_a_reinstall_forced_later_asks_for_its_own_reboot() -> None:
    world = ascend(no_wait=True)
    run(world)
    boot(world, loaded="24.0", digest=NEW_DIGEST)
    for runs in (1, 2):
        world.policy = replace(world.policy, force_reinstall=True)
        assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
        assert requests(world) == 1 + runs
        world.policy = replace(world.policy, force_reinstall=False)
        boot(world, loaded="24.0", digest=NEW_DIGEST)
        assert run(world).exit_code is ExitCode.DONE
        world.next_process()


def test_another_driver_wanted_since_asks_again() -> None:
    world = ascend(no_wait=True)
    run(world)
    boot(world)
    assert run(world).exit_code is ExitCode.MODULE_FAILED
    world.next_process()
    world.digest = "e" * 64
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED
    assert decode_reboot_wish(world.host.files[PATHS.reboot_wish]).to_driver == "e" * 64
    # Back to the first one, which a reboot did not bring when it was asked for: much has happened since.
    boot(world)
    world.digest = NEW_DIGEST
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED


def test_a_wish_that_was_given_up_is_forgotten() -> None:
    world = ascend(no_wait=True)
    run(world)
    world.digest = OLD_DIGEST
    world.next_process()
    assert run(world).exit_code is ExitCode.DONE
    assert PATHS.reboot_wish not in world.host.files
    boot(world, digest=OLD_DIGEST)
    world.digest = NEW_DIGEST
    assert run(world).exit_code is ExitCode.REBOOT_REQUIRED


def test_a_recovery_is_asked_for_as_ever() -> None:
    world = ascend(no_wait=True)
    run(world)
    boot(world)
    recovery = encode_marker(Marker("recovery", world.host.boot_id))
    world.host.files[PATHS.reboot_marker] = recovery
    run(world)
    assert world.host.files[PATHS.reboot_marker] == recovery


EVENTS = st.sampled_from(["run", "boot with nothing", "boot with the old", "force", "unforce", "want new", "want old"])


@pytest.mark.submission
@example(["force", "want old", "run", "unforce", "run"])
@settings(max_examples=examples(200))
@given(st.lists(EVENTS, min_size=4, max_size=14))
def test_between_two_requests_for_one_wish_something_was_wanted_that_is_not_wanted_now(events: list[str]) -> None:
    """Whatever happens: the same wish, asked for in one boot, is not asked for again in the next one as it is."""
    world = ascend(no_wait=True)
    asked: list[tuple[str, bool]] = []
    for event in events:
        world.next_process()
        match event:
            case "run":
                before = requests(world)
                run(world)
                wish = (world.digest, world.policy.force_reinstall)
                if requests(world) > before:
                    assert asked[-1:] != [wish], "nothing else was wanted since"
                    asked.append(wish)
                elif asked[-1:] != [wish]:
                    asked.append(("", False))
            case "boot with nothing":
                boot(world, loaded="")
            case "boot with the old":
                boot(world, digest=OLD_DIGEST)
            case "force" | "unforce":
                world.policy = replace(world.policy, force_reinstall=event == "force")
            case "want new":
                world.digest = NEW_DIGEST
            case "want old":
                world.digest = OLD_DIGEST
