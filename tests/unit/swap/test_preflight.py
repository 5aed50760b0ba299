"""What would make a run fail is found before the first effect, and each problem says what to do about it."""

from __future__ import annotations

import pytest

from driver_manager.cli.by_hand import _text
from driver_manager.domain import selectors
from driver_manager.domain.host import Marker, RebootWish
from driver_manager.domain.observation import EvictionRules, Policy, Situation
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.preflight import (
    Check,
    access,
    host_files,
    remedies,
    rights,
    rights_to_replace,
)
from driver_manager.domain.swap.steps import (
    AskOperator,
    DrainNode,
    EvictWorkloads,
    GiveBack,
    PauseLast,
    PlanAgain,
    RecordDigest,
    Step,
    WaitForCompletion,
    WaitForDevice,
    WaitForOperands,
    WaitForSafeLoad,
)
from tests.support.fakes.builders import ASCEND, PROFILE, host, journal, observation, source

EVICTS = EvictionRules(is_enabled=True, timeout_s=200.0)
COMPLETION = selectors.parse("job")


PATCH, EVICT = ("patch", "nodes"), ("create", "pods/eviction")
WATCH_NODES, WATCH_PODS = ("watch", "nodes"), ("watch", "pods")


@pytest.mark.parametrize(
    ("steps", "needed"),
    [
        ((), ()),
        ((RecordDigest("/s", "d", "/r", source()),), ()),
        ((GiveBack(journal()),), (PATCH,)),
        ((WaitForOperands(("k",), (), 1.0),), ()),
        ((WaitForOperands(("k",), ("p",), 1.0), GiveBack(journal())), (WATCH_PODS, PATCH)),
        ((PauseLast(("k",)),), (PATCH,)),
        ((WaitForSafeLoad("k", "p", 1.0), PlanAgain("x")), (PATCH, WATCH_NODES)),
        ((AskOperator("k", "s", "", ("p",), 1.0),), (PATCH, WATCH_PODS)),
        ((AskOperator("k", "s", "", ("p",), 1.0, asks=False),), (WATCH_PODS,)),
        ((WaitForCompletion(COMPLETION, ("p",), 1.0),), (WATCH_PODS,)),
        ((EvictWorkloads(("p",), (), 1.0),), (EVICT, WATCH_PODS)),
        ((EvictWorkloads((), ("p",), 1.0),), (WATCH_PODS,)),
        ((EvictWorkloads((), ("p",), 1.0, drains=True),), (EVICT, WATCH_PODS)),
        ((DrainNode(("p",), 0.0),), (EVICT, WATCH_PODS)),
        ((EvictWorkloads(("p",), (), 1.0), DrainNode(("p",), 0.0), WaitForDevice(1.0)), (EVICT, WATCH_PODS)),
    ],
)
def test_only_rights_that_the_steps_use_are_asked_for(
    steps: tuple[Step, ...], needed: tuple[tuple[str, str], ...]
) -> None:
    assert rights(steps) == needed


def test_a_right_that_is_missing_is_named_with_its_remedy() -> None:
    lack, have = access([PATCH], (PATCH, EVICT))
    assert (have.ok, lack.ok) == (True, False)
    assert "may not patch nodes" in lack.what
    assert "verb patch on nodes" in lack.remedy


@pytest.mark.parametrize("right", [WATCH_PODS, WATCH_NODES])
def test_a_missing_right_to_watch_stops_nothing_and_is_told(right: tuple[str, str]) -> None:
    (lack,) = access([right], (right,))
    assert lack.ok is None
    assert f"may not watch {right[1]}: a run polls every few seconds instead" in lack.what


@pytest.mark.parametrize(
    ("profile", "policy", "further"),
    [
        (PROFILE, Policy(), {("watch", "pods")}),
        (PROFILE, Policy(eviction=EVICTS), {("watch", "pods"), ("create", "pods/eviction")}),
        (PROFILE, Policy(eviction=EvictionRules(drains=True)), {("watch", "pods"), ("create", "pods/eviction")}),
        (PROFILE, Policy(safe_load=True), {("watch", "pods"), ("watch", "nodes")}),
        (ASCEND, Policy(eviction=EVICTS), set()),
    ],
    ids=["plain", "evicts", "drains", "safe-load", "never-unloaded"],
)
def test_a_replacement_needs_the_rights_of_what_it_would_do_and_no_others(
    profile: Profile, policy: Policy, further: set[tuple[str, str]]
) -> None:
    assert set(rights_to_replace(profile, policy)) == {("patch", "nodes"), *further}


def test_what_to_do_is_said_once_however_many_need_it() -> None:
    found = (
        Check("a", False, "x", "Do this."),
        Check("b", False, "y", "Do this."),
        Check("c", False, "z", "And that."),
    )
    assert remedies(found) == "Do this. And that."


def test_foreign_text_moves_no_cursor_on_the_screen() -> None:
    check = Check("digest", False, "said \x1b[2J", "look at \x07")
    screen = _text((check,), [check])
    assert "said \\x1b[2J" in screen
    assert "look at \\x07" in screen


@pytest.mark.parametrize(
    ("marker", "wish", "named"),
    [
        (None, None, ()),
        (Marker("upgrade", "boot-0"), None, (ASCEND.paths.reboot_marker,)),
        (Marker("recovery", "boot-0"), None, (ASCEND.paths.reboot_marker,)),
        (Marker("upgrade", "boot-1"), None, (ASCEND.paths.reboot_marker,)),
        (Marker("recovery", "boot-1"), None, ()),
        (None, RebootWish("boot-0", "node-1", "d", False), (ASCEND.paths.reboot_wish,)),
    ],
)
def test_a_request_of_a_reboot_that_cannot_be_removed_is_found_before_the_driver_is_changed(
    marker: Marker | None, wish: RebootWish | None, named: tuple[str, ...]
) -> None:
    unwritable = {path: f"{path} cannot be removed" for path in ASCEND.paths.reboot_files()}
    now = Situation.of(observation(host=host(marker=marker, reboot_wish=wish)), ASCEND, Policy())
    check = host_files(now, unwritable)
    assert check.ok is not bool(named)
    assert all(f"{path} cannot be removed" in check.what for path in named)
