"""What would make a run fail is found before the first effect, and each problem says what to do about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.cli.by_hand import _text
from driver_manager.domain import selectors
from driver_manager.domain.host import DriverSource, Marker, MissingFirmware, Module, ModuleFile, RebootWish
from driver_manager.domain.observation import EvictionRules, Loader, Policy, Situation
from driver_manager.domain.profile import Profile
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.preflight import (
    Check,
    access,
    checks,
    host_files,
    problems,
    remedies,
    rights,
    rights_to_replace,
)
from driver_manager.domain.swap.steps import (
    AskOperator,
    Decision,
    DrainNode,
    EvictWorkloads,
    GiveBack,
    LoadModules,
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
from tests.support.fakes.plans import ASCEND_LOADED

MANAGER = Policy(loader=Loader.MANAGER)


@pytest.mark.parametrize("policy", [Policy(), Policy(deadline_s=360.0)])
def test_a_run_that_can_succeed_has_no_problem(policy: Policy) -> None:
    assert problems(Situation.of(observation(host=host()), PROFILE, policy)) == ()
    assert problems(Situation.of(observation(host=host(source=source())), PROFILE, MANAGER)) == ()


def test_a_deadline_that_cannot_hold_its_waits_names_both_figures() -> None:
    (problem,) = problems(Situation.of(observation(host=host()), PROFILE, Policy(deadline_s=359.9)))
    assert "359.9 s" in problem.what
    assert "360 s" in problem.what
    assert "RECONCILE_DEADLINE" in problem.remedy


EVICTS = EvictionRules(is_enabled=True, timeout_s=200.0)
COMPLETION = selectors.parse("job")


@pytest.mark.parametrize(
    ("policy", "budget_s"),
    [
        (Policy(), 360),
        (Policy(eviction=EvictionRules(timeout_s=200.0)), 360),
        (Policy(eviction=EVICTS), 560),
        (Policy(completion=COMPLETION, completion_timeout_s=40.0), 400),
        (Policy(completion_timeout_s=40.0), 360),
        (Policy(eviction=EVICTS, completion=COMPLETION), 860),
        (Policy(pod_termination_timeout_s=10.0, device_free_timeout_s=5.0), 15),
    ],
)
def test_a_deadline_has_to_hold_every_wait_that_was_asked_for(policy: Policy, budget_s: float) -> None:
    assert problems(Situation.of(observation(host=host()), PROFILE, replace(policy, deadline_s=budget_s))) == ()
    (problem,) = problems(Situation.of(observation(host=host()), PROFILE, replace(policy, deadline_s=budget_s - 0.5)))
    assert f"({budget_s:g} s)" in problem.what
    assert "POD_EVICTION_TIMEOUT" in problem.remedy


def test_the_default_deadline_holds_all_default_waits() -> None:
    everything = Policy(eviction=EvictionRules(is_enabled=True, drains=True), completion=COMPLETION, safe_load=True)
    assert problems(Situation.of(observation(host=host()), PROFILE, everything)) == ()


def test_a_manager_without_a_root_is_told_to_set_one() -> None:
    (problem,) = problems(Situation.of(observation(host=host()), PROFILE, MANAGER))
    assert "DRIVER_ROOT" in problem.remedy


def test_the_problem_of_a_root_is_passed_on_with_its_remedy() -> None:
    (problem,) = problems(
        Situation.of(
            observation(host=host(source=source(problem="built for 5.15", remedy="build it"))), PROFILE, MANAGER
        )
    )
    assert (problem.what, problem.remedy) == ("built for 5.15", "build it")


def test_a_bad_root_does_not_matter_where_the_container_loads() -> None:
    assert (
        problems(Situation.of(observation(host=host(source=source(problem="built for 5.15"))), PROFILE, Policy())) == ()
    )


def test_every_conflicting_module_is_a_problem_of_its_own() -> None:
    found = problems(
        Situation.of(observation(host=host(conflicting=("nouveau", "other"))), PROFILE, Policy(deadline_s=1.0))
    )
    assert [part for problem in found for part in ("nouveau", "other") if part in problem.what] == ["nouveau", "other"]
    assert len(found) == 3
    assert all(problem.remedy for problem in found)


KERNEL = "6.1.0-fake"
FITS = f"{KERNEL} SMP"


@pytest.mark.parametrize(
    ("file", "ok"),
    [
        (ModuleFile("m", "/m.ko", vermagic=FITS), True),
        (ModuleFile("m", "/m.ko", vermagic=FITS, layout_matches=True), True),
        (ModuleFile("m", "/m.ko", vermagic=FITS, layout_matches=False), False),
        (ModuleFile("m", "/m.ko", vermagic="5.15 SMP", layout_matches=True), True),
        (ModuleFile("m", "/m.ko", vermagic="5.15 SMP", layout_matches=False), False),
        (ModuleFile("m", "/m.ko", vermagic="5.15 SMP"), False),
        (ModuleFile("m", "/m.ko", vermagic=f"{KERNEL}-other SMP"), False),
        (ModuleFile("m", "/m.ko"), False),
        (ModuleFile("m", "/m.ko", unread="modinfo failed: killed"), False),
        (ModuleFile("m", "/m.ko", layout_matches=True, unread="modinfo failed: killed"), False),
        (ModuleFile("m", "/m.ko", vermagic=FITS, missing_dependencies=("n",)), False),
        (ModuleFile("m", "/m.ko", vermagic=FITS, unknown_symbols=()), True),
        (ModuleFile("m", "/m.ko", vermagic=FITS, unknown_symbols=("gone",)), False),
        (ModuleFile("m", "/m.ko", vermagic=FITS, is_signed=False), True),
    ],
)
def test_a_module_that_this_kernel_would_not_take_stops_the_run(file: ModuleFile, ok: bool) -> None:
    found = problems(Situation.of(observation(host=host(source=DriverSource("/opt", (file,)))), PROFILE, MANAGER))
    assert (found == ()) is ok
    assert all(problem.what and problem.remedy for problem in found)


def test_a_module_that_tells_nothing_of_itself_is_not_said_to_be_of_another_kernel() -> None:
    file = ModuleFile("m", "/m.ko", unread="modinfo failed: killed")
    (problem,) = problems(Situation.of(observation(host=host(source=DriverSource("/opt", (file,)))), PROFILE, MANAGER))
    assert "unknown whether /m.ko is built for" in problem.what
    assert "modinfo failed: killed" in problem.what
    assert "built for this kernel" not in problem.remedy
    assert "Run again" in problem.remedy


def test_what_modprobe_refuses_stops_the_run_and_kept_options_are_told() -> None:
    facts = host(source=source(refusal="modprobe would run `/bin/false` instead", options={"rebellions": "depth=7"}))
    now = Situation.of(observation(host=facts), PROFILE, MANAGER)
    (problem,) = problems(now)
    assert (problem.name, problem.what) == ("modprobe", "modprobe would run `/bin/false` instead")
    assert "install line" in problem.remedy
    (told,) = [check for check in checks(now) if check.name == "module options"]
    assert (told.ok, "rebellions depth=7" in told.what) == (True, True)
    assert problems(Situation.of(observation(host=facts), PROFILE, Policy())) == (), "the container loads by itself"


LOST = MissingFirmware("rebellions", ("a.bin", "b.bin"), ("/lib/firmware",), "/opt/new/lib/firmware")


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        (LOST, "copy the firmware from /opt/new/lib/firmware to /lib/firmware"),
        (replace(LOST, kept_in=""), "install its firmware on the host"),
    ],
)
def test_firmware_that_the_kernel_would_not_find_is_told_and_stops_nothing(
    missing: MissingFirmware, remedy: str
) -> None:
    now = Situation.of(observation(host=host(source=source(missing_firmware=(missing,)))), PROFILE, MANAGER)
    assert problems(now) == (), "a module may name more than this machine needs"
    (check,) = [check for check in checks(now) if check.name == "firmware of rebellions"]
    assert (check.ok, "a.bin, b.bin" in check.what, "/lib/firmware" in check.what) == (None, True, True)
    assert remedy in check.remedy


@pytest.mark.parametrize("policy", [MANAGER, Policy()])
@pytest.mark.parametrize("profile", [PROFILE, ASCEND], ids=["in-place", "reboot"])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_plan_that_loads_warns_of_missing_firmware(policy: Policy, profile: Profile, loaded: bool) -> None:
    there: dict[str, Any] = dict(ASCEND_LOADED) if profile is ASCEND else {}
    facts = host(source=source(missing_firmware=(LOST,)), **(there if loaded else {"modules": {}, "digest": None}))
    found = plan(Situation.of(observation(host=facts), profile, policy))
    warned = any("firmware that this kernel would not find" in warning for warning in found.warnings)
    assert warned is any(isinstance(step, LoadModules) for step in found.steps)
    assert warned is (policy is MANAGER and found.decision is not Decision.REBOOT)


@pytest.mark.parametrize(
    ("signed", "enforced", "ok"), [(True, True, True), (False, True, False), (None, True, None), (None, False, True)]
)
def test_a_signature_matters_where_the_kernel_asks_for_it(signed: bool | None, enforced: bool, ok: bool | None) -> None:
    file = ModuleFile("m", "/m.ko", vermagic=FITS, is_signed=signed)
    facts = host(source=DriverSource("/opt", (file,)), enforces_signatures=enforced)
    (check,) = [
        check
        for check in checks(Situation.of(observation(host=facts), PROFILE, MANAGER))
        if check.name == "signature of m"
    ]
    assert check.ok is ok


@pytest.mark.parametrize(
    ("policy", "artifacts", "stops"),
    [
        (MANAGER, (), True),
        (MANAGER, (PROFILE.paths.state_file,), True),
        (Policy(), (PROFILE.paths.state_file,), True),
        (Policy(), (), False),
    ],
)
def test_a_state_file_that_cannot_be_written_stops_whoever_has_to_write_or_remove_one(
    policy: Policy, artifacts: tuple[str, ...], stops: bool
) -> None:
    why = "/run/rbln has only 0 bytes left"
    full = host(source=source(), artifacts=artifacts, unwritable={PROFILE.paths.state_file: why})
    found = problems(Situation.of(observation(host=full), PROFILE, policy))
    assert [(problem.name, problem.what) for problem in found] == [("host files", why)] * stops
    assert all("free some space" in problem.remedy for problem in found)


@pytest.mark.parametrize(
    ("names", "foreign"),
    [
        (("rebellions", "rebellions_core"), ()),
        (("rebellions", "rebellions_peer"), ()),
        (("rebellions", "third_party"), ("third_party",)),
        (("ext4", "rebellions", "third_party"), ("ext4", "third_party")),
    ],
)
def test_a_foreign_module_above_the_driver_stops_the_run(names: tuple[str, ...], foreign: tuple[str, ...]) -> None:
    found = problems(
        Situation.of(observation(host=host(modules={name: Module(name) for name in names})), PROFILE, Policy())
    )
    assert [problem.name for problem in found] == ["modules above"] * bool(foreign)
    for problem in found:
        assert f"foreign module {', '.join(foreign)} uses the driver" in problem.what
        assert "modules.own" in problem.remedy


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
