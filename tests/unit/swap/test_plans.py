"""The plan for each situation, whole, and what holds of any plan: the rows are in `tests/unit/golden/plans`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager import profiles
from driver_manager.cli.reconcile import _text
from driver_manager.core.swap.run import Forecast
from driver_manager.domain import selectors
from driver_manager.domain.deadline import Moment
from driver_manager.domain.errors import ConfigError, ManagerError, OwnedElsewhere, PodsRemain
from driver_manager.domain.host import UNREAD, Holder, Host, Marker, Module, RebootWish
from driver_manager.domain.node import Claim, Pod
from driver_manager.domain.observation import EvictionRules, Loader, Observation, Policy, Situation
from driver_manager.domain.pods.workloads import UNMOVED_OWNERS, PodAction, node_pods
from driver_manager.domain.profile import (
    ChangeBy,
    Profile,
    Strategy,
    Transition,
    decode_profile,
    encode_profile,
    has_root,
)
from driver_manager.domain.swap.eviction import (
    COMPLETION,
    HOLDERS,
    OPERATOR,
    SAFE_LOAD,
    STUCK,
    drain,
    is_completing,
    is_managed,
)
from driver_manager.domain.swap.planner import plan, wants_users
from driver_manager.domain.swap.preflight import Check, access, host_files, places_us, refuse_if_owned, remedies
from driver_manager.domain.swap.steps import (
    AskOperator,
    ClearRebootRequest,
    Decision,
    DrainNode,
    EndWithoutReboot,
    EvictWorkloads,
    GiveBack,
    HoldForReboot,
    LoadModules,
    PauseLast,
    Plan,
    PlanAgain,
    RemoveArtifacts,
    RemoveConflicting,
    RequestReboot,
    SetFirmwarePath,
    StandDown,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitAfterFailure,
    WaitForCompletion,
    WaitForHolders,
    WaitForOperands,
    WaitForSafeLoad,
    WaitForStuckPods,
    WaitStep,
    WithdrawSafeLoad,
)
from tests.support.fakes.builders import (
    ASCEND,
    DRIVER,
    EXPORTER,
    LABELS,
    LONG_AFTER_S,
    NEW_DIGEST,
    NODE,
    OLD_DIGEST,
    PLUGIN,
    PROFILE,
    PROFILES,
    ROOT_MOUNT,
    SOMEBODY,
    driver_pod,
    failed_before,
    host,
    journal,
    key,
    modules,
    node,
    observation,
    pod,
    source,
    workload,
)
from tests.support.fakes.plans import ASCEND_LOADED, GOLDEN, READY, STATE, TAKEN, Row, rows, shown, written
from tests.support.selection import examples

FILES = sorted(GOLDEN.glob("*.txt"))
ROWS = [(path.stem, row) for path in FILES for row in rows(path)]


@pytest.mark.parametrize(("_", "row"), ROWS, ids=[f"{stem}: {row.title}" for stem, row in ROWS])
def test_the_plan_of_a_row(_: str, row: Row) -> None:
    for facts in row.facts:
        assert shown(facts) == row.plan, (
            f"for the facts\n{facts}\nIf it should be so: .venv/bin/python -m tests.support.fakes.plans"
        )


def test_no_two_rows_have_a_title_or_their_facts_in_common() -> None:
    assert [path.name for path in FILES if written(list(rows(path))) != path.read_text(encoding="utf-8")] == []
    titles = [(stem, row.title) for stem, row in ROWS]
    facts = [text for _, row in ROWS for text in row.facts]
    assert (len(titles), len(facts)) == (len(set(titles)), len(set(facts)))


# plans for machines

MANAGED = node(annotations={PROFILE.keys.upgrade_enabled: "true"})
EVICTS = Policy(eviction=EvictionRules(is_enabled=True))
COMPLETES = replace(EVICTS, completion=selectors.parse("job in (a,1),!x"), completion_timeout_s=60.0)
JOB = workload("j", labels={"job": "1"})


@pytest.mark.parametrize(
    "policy", [EVICTS, replace(EVICTS, safe_load=True), COMPLETES, Policy(eviction=EvictionRules(drains=True))]
)
@pytest.mark.parametrize("where", [node(), MANAGED])
def test_a_plan_is_json_with_each_step_and_each_pod(policy: Policy, where: Any) -> None:
    obs = observation(node=where, pods=(JOB, workload("a"), workload("d", deleting=True)))
    found = plan(Situation.of(obs, PROFILE, policy))
    body = json.loads(json.dumps(found.to_json()))
    assert [step["step"] for step in body["steps"]] == [type(step).__name__ for step in found.steps]
    assert all(step["text"] for step in body["steps"])
    assert [(user["pod"], user["fate"]) for user in body["workloads"]] == [
        (str(one.pod), one.action.value) for one in found.workloads
    ]
    assert all(user["uses"] and user["why"] for user in body["workloads"])


# what the planner asks of the facts


@pytest.mark.parametrize("take_over", [False, True])
def test_an_owner_that_may_be_running_is_refused_off_the_node(take_over: bool) -> None:
    obs = observation(journal=journal(owner=SOMEBODY), owner_alive=None, host=None, own_pod=None)
    if take_over:
        refuse_if_owned(obs, take_over=True)
        return
    with pytest.raises(OwnedElsewhere, match="cannot determine whether it is still running") as caught:
        refuse_if_owned(obs, take_over=False)
    assert "--take-over" in caught.value.remedy


NVIDIA = PROFILES["nvidia"]


@pytest.mark.parametrize(
    ("own", "profile", "label"),
    [
        (pod("vfio-a", key("vfio-manager")), PROFILE, key("vfio-manager")),
        (pod("v", "nvidia.com/gpu.deploy.vgpu-manager"), NVIDIA, "nvidia.com/gpu.deploy.vgpu-manager"),
        (pod("v", "nvidia.com/gpu.deploy.vfio-manager", "zone"), NVIDIA, "nvidia.com/gpu.deploy.vfio-manager"),
        (driver_pod(), PROFILE, ""),
        (pod("driver-a", DRIVER, key("vfio-manager")), PROFILE, ""),
        (pod("debugger"), PROFILE, ""),
        (pod("own-manifest", "example.com/npu"), PROFILE, ""),
        (None, PROFILE, ""),
        (pod("v", "openfuyao.com/npu.present"), ASCEND, ""),
    ],
)
def test_only_a_pod_that_another_deploy_label_places_uninstalls(own: Pod | None, profile: Profile, label: str) -> None:
    assert places_us(Situation.of(observation(own_pod=own), profile, Policy())) == label


def test_a_drain_during_the_run_is_judged_as_one_before_it() -> None:
    policy = Policy(eviction=EvictionRules(drains=True, drain_selector=selectors.parse("drain")))
    outside = observation(pods=(workload("a"), workload("d", labels={"drain": ""})))
    with pytest.raises(PodsRemain, match="tenant/a"):
        drain(Situation.of(outside, PROFILE, policy), node_pods(outside))


@pytest.mark.parametrize(
    ("fields", "may"),
    [
        ({}, True),
        ({"phase": "Pending"}, True),
        ({"deleting": True}, True),
        ({"phase": "Succeeded"}, False),
        ({"phase": "Failed"}, False),
        ({"labels": {}}, False),
        ({"uid": "driver-a"}, False),
    ],
)
def test_which_pods_may_complete(fields: dict[str, Any], may: bool) -> None:
    found = workload("p", **{"labels": {"job": "x"}, **fields})
    assert is_completing(found, selectors.parse("job"), driver_pod()) is may
    assert is_completing(replace(found, uid="p"), selectors.parse("job"), None) is ("uid" in fields or may)


@pytest.mark.parametrize(
    ("value", "answer"), [("true", True), ("false", False), ("True", False), ("", False), (None, False)]
)
def test_only_the_annotation_true_makes_a_node_managed(value: str | None, answer: bool) -> None:
    notes = {} if value is None else {PROFILE.keys.upgrade_enabled: value}
    assert is_managed(Situation.of(observation(node=node(annotations=notes)), PROFILE, Policy())) is answer
    assert not is_managed(Situation.of(observation(node=node(annotations=notes)), ASCEND, Policy()))


# preflight

PATCH, EVICT = ("patch", "nodes"), ("create", "pods/eviction")
WATCH_NODES, WATCH_PODS = ("watch", "nodes"), ("watch", "pods")


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


def test_what_to_do_is_said_once_however_many_need_it() -> None:
    found = [Check("a", False, "x", what) for what in ("Do this.", "Do this.", "And that.")]
    assert remedies(found) == "Do this. And that."


def test_foreign_text_moves_no_cursor_on_the_screen() -> None:
    check = Check("digest", None, "said \x1b[2J", "look at \x07")
    screen = _text(Forecast(None, (check,), None), None)
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


# a pair of versions that is changed in another way than by the profile's strategy

WITH_MARKER = replace(PROFILE.paths, reboot_marker="/var/lib/own/.reboot-required")


PAIR_BY = {by: Transition("1.*", "2.*", by, "firmware") for by in ChangeBy}


@pytest.mark.parametrize(
    ("strategy", "pairs", "answer"),
    [
        (Strategy.REBOOT, (), True),
        (Strategy.REBOOT, (PAIR_BY[ChangeBy.REBOOT], PAIR_BY[ChangeBy.REFUSE]), True),
        (Strategy.REBOOT, (PAIR_BY[ChangeBy.IN_PLACE],), False),
        (Strategy.IN_PLACE, (PAIR_BY[ChangeBy.REBOOT],), False),
    ],
)
def test_only_a_profile_without_a_pair_in_place_never_unloads(
    strategy: Strategy, pairs: tuple[Transition, ...], answer: bool
) -> None:
    profile = replace(PROFILE, strategy=strategy, paths=WITH_MARKER, transitions=pairs)
    assert profile.never_unloads is answer


TABLE = """
[[transitions]]
old = "6.2.*"
new = "6.3.*"
strategy = "refuse"
why = "its firmware stays"
"""


def test_a_file_has_them_as_tables_and_a_wrong_one_is_named_by_its_place() -> None:
    text = (Path(profiles.__file__).parent / "ascend.toml").read_text()
    found = profiles.parse(text + TABLE, "own.toml")
    assert found.transitions == (Transition("6.2.*", "6.3.*", ChangeBy.REFUSE, "its firmware stays"),)
    assert decode_profile(encode_profile(found)) == found
    with pytest.raises(ConfigError, match=r"transitions\[1\]\.strategy is 'slowly', expected one of in-place"):
        profiles.parse(text + TABLE + TABLE.replace("refuse", "slowly"), "own.toml")
    with pytest.raises(ConfigError, match=r"transitions\[0\]\.old is '', expected a version"):
        profiles.parse(text + TABLE.replace('"6.2.*"', '""'), "own.toml")


def test_a_pair_by_reboot_needs_a_marker_to_ask_by() -> None:
    lines = (Path(profiles.__file__).parent / "rebellions.toml").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith(("reboot", "recovery")))
    with pytest.raises(ConfigError, match=r"paths\.reboot_marker is missing, and the transition from 6\.2"):
        profiles.parse(text + TABLE.replace("refuse", "reboot"), "own.toml")


# any combination of facts and wishes leads to a sound plan or to an error with a remedy

DRA = {key("dra-kubelet-plugin"): "true"}
CONFLICTING = {"generic_npu": Module("generic_npu", "", 0)}


def with_more(profile: Profile) -> Profile:
    """The profile with more of what a profile may say."""
    beside = replace(profile.modules, conflicting_removable=("generic_npu",))
    return replace(profile, modules=beside, paths=replace(profile.paths, firmware="/opt/firmware"))


PAIR, WITH_MORE = "pair-", "more-"
BY_REBOOT = (Transition("*", "*", ChangeBy.REBOOT),)
PAIRS = {
    f"{PAIR}{name}": replace(one, transitions=BY_REBOOT, paths=replace(one.paths, reboot_marker="/var/lib/own/marker"))
    for name, one in PROFILES.items()
}
"""The same, where every change of versions takes a reboot."""

EVERY = PROFILES | PAIRS | {f"{WITH_MORE}{name}": with_more(one) for name, one in PROFILES.items()}


def loaded(profile: Profile) -> dict[str, Module]:
    """The driver as the profile knows it in the kernel: the modules that it orders, or its first root."""
    return {name: Module(name, "1.0", 0) for name in profile.modules.order or profile.modules.roots[:1]}


USERS = (
    workload("asks"),
    workload("bare", owner_kind="", labels={"job": "1"}),
    workload("ending", labels={"job": "1"}),
    workload("leaving", deleting=True),
    workload("claims", resources=(), claims=("c",)),
    workload("holds", resources=()),
    workload("web", resources=()),
    workload("placed", resources=(), selector_keys=frozenset({PLUGIN})),
    pod("stuck", PLUGIN, deleting=True, due_s=0.0),
)
HOLDERS_SEEN = (Holder(7, "x", "/dev/rbln0", "open", pod_uid="holds"), Holder(8, "y", "/dev/rbln0", "mapped"))
VFIO_MANAGER = pod("vfio", key("vfio-manager"))


WISHES = (
    None,
    RebootWish("boot-0", NODE, NEW_DIGEST),
    RebootWish("boot-0", NODE, NEW_DIGEST, is_forced=True),
    RebootWish("boot-0", NODE, OLD_DIGEST),
    RebootWish("boot-1", NODE, NEW_DIGEST),
)


@st.composite
def observations(draw: st.DrawFn, *, own: Mapping[str, Module] | None = None) -> Observation:
    """Any combination of facts that the table looks at; `own` are the modules of the one driver that may be loaded."""
    facts = host(
        modules=draw(st.sampled_from([{}, own] if own else [{}, modules(), ASCEND_LOADED["modules"]])),
        digest=draw(st.sampled_from([None, OLD_DIGEST, NEW_DIGEST])),
        digest_problem=draw(st.sampled_from(["", "garbage"])),
        root_mounts=draw(st.sampled_from([(), (ROOT_MOUNT,)])),
        artifacts=draw(st.sampled_from([(), (READY, STATE)])),
        host_driver=draw(st.sampled_from(["", "/lib/m.ko"])),
        source=draw(st.sampled_from([None, source(), source(ROOT_MOUNT), source(problem="no", remedy="build it")])),
        previous_source=draw(st.sampled_from([None, source("/opt/old", "1.0"), source(ROOT_MOUNT, "1.0")])),
        marker=draw(st.sampled_from([None, Marker("upgrade", "boot-0"), Marker("upgrade", "boot-1")])),
        reboot_wish=draw(st.sampled_from(WISHES)),
        removable=draw(st.sampled_from([{}, CONFLICTING])),
        firmware_path=draw(st.sampled_from(["", None, "/opt/firmware"])),
    )
    return observation(
        host=facts,
        node=node(
            draw(st.sampled_from([LABELS, LABELS | DRA, TAKEN | DRA, TAKEN, {}])),
            unschedulable=draw(st.booleans()),
            annotations=draw(st.sampled_from([{}, {PROFILE.keys.upgrade_enabled: "true"}])),
        ),
        pods=tuple(draw(st.lists(st.sampled_from(USERS), unique_by=lambda pod: pod.uid, max_size=4))),
        claims=draw(st.sampled_from([(), (Claim("tenant", "c", PROFILE.device_classes),)])),
        holders=draw(st.sampled_from([(), HOLDERS_SEEN[:1], HOLDERS_SEEN])),
        journal=draw(st.sampled_from([None, journal(), journal(owner=SOMEBODY)])),
        owner_alive=draw(st.sampled_from([True, False, None])),
        digest=draw(st.sampled_from(["", NEW_DIGEST])),
        own_pod=draw(st.sampled_from([None, driver_pod(), driver_pod(main_started=True), VFIO_MANAGER])),
        at=draw(st.sampled_from([Moment(), Moment(1_000.0, LONG_AFTER_S)])),
    )


def any_of(*names: str) -> dict[str, st.SearchStrategy[bool]]:
    return dict.fromkeys(names, st.booleans())


POLICIES: st.SearchStrategy[Policy] = st.builds(
    Policy,
    loader=st.sampled_from(Loader),
    driver_version=st.sampled_from(["", "1.0", "2.0"]),
    eviction=st.builds(EvictionRules, **any_of("is_enabled", "forces", "evicts_holders", "drains")),
    completion=st.sampled_from([selectors.parse(""), selectors.parse("job")]),
    **any_of("force_reinstall", "no_wait", "take_over", "safe_load"),
)
WAITED = st.frozensets(st.sampled_from([SAFE_LOAD, OPERATOR, COMPLETION, HOLDERS, STUCK]))
ASKING = {WaitForSafeLoad, AskOperator, PlanAgain, WaitForHolders, WaitForStuckPods, WaitAfterFailure}
"""What may come before the node is taken: it asks an operator, who must not find us half-way, or only waits."""


OF_A_SHIPPED_DRIVER = {GiveBack, ClearRebootRequest, RemoveArtifacts, WithdrawSafeLoad}


def planned(
    obs: Observation, profile: Profile, policy: Policy, waited: Iterable[str] = (), *, has_failed: bool = False
) -> tuple[Plan, list[type]] | None:
    """The plan and the kinds of its steps, None where it is refused with a remedy."""
    now = Situation.of(obs, profile, policy, frozenset(waited))
    try:
        found = plan(failed_before(now) if has_failed else now)
    except ManagerError as error:
        if not error.remedy:
            raise
        return None
    return found, [type(step) for step in found.steps]


def on_nodes_of(names: Iterable[str]) -> st.SearchStrategy[tuple[Observation, str]]:
    """A node, and which of these profiles is used on it; its driver may be loaded there."""
    return st.sampled_from(sorted(names)).flatmap(
        lambda name: st.tuples(observations(own=loaded(EVERY[name])), st.just(name))
    )


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_shipped_profile_can_be_seen_with_its_own_driver_loaded(name: str) -> None:
    profile = PROFILES[name]
    found = plan(Situation.of(observation(host=host(modules=loaded(profile))), profile, Policy()))
    wanted = Decision.REPLACE if profile.strategy is Strategy.IN_PLACE else Decision.REBOOT
    assert found.decision is wanted


@pytest.mark.shares(3)
@settings(max_examples=examples(1_000))
@given(on_nodes_of(EVERY), POLICIES, WAITED, st.booleans())
def test_any_plan_is_sound(
    seen: tuple[Observation, str], policy: Policy, waited: frozenset[str], has_failed: bool
) -> None:
    obs, name = seen
    if (decided := planned(obs, EVERY[name], policy, waited, has_failed=has_failed)) is None:
        return
    found, kinds = decided
    check_vendors_order_and_switches(found, EVERY[name])
    check_makes_way_and_notes_what_went(found, kinds, obs.host if name.startswith(WITH_MORE) else None)
    assert found.reason
    assert json.loads(json.dumps(found.to_json()))["decision"] == found.decision.value
    assert found.to_text().count("\n") >= len(found.steps) + 1
    by_pair = name.startswith(PAIR) and obs.host is not None and has_root(obs.host.modules, EVERY[name].modules)
    if EVERY[name].strategy is Strategy.REBOOT or by_pair:
        assert UnloadModules not in kinds, "this driver must never be unloaded"
    if TakeNode in kinds:
        assert set(kinds[: kinds.index(TakeNode)]) <= ASKING, "an effect before the journal"
        assert GiveBack in kinds, "taken and never given back"
    if RequestReboot in kinds:
        wanted = (NODE, obs.digest, policy.force_reinstall)
        wish = obs.host.reboot_wish if obs.host else None
        is_same = wish is not None and (wish.node, wish.to_driver, wish.is_forced) == wanted
        assert wish is None or not is_same or wish.boot_id == "boot-1", "a reboot for it was of no use already"
    if GiveBack in kinds:
        ends = {StandDown, HoldForReboot, EndWithoutReboot}
        assert set(kinds[kinds.index(GiveBack) + 1 :]) <= ends, "work goes on after giving back"
    if HoldForReboot in kinds and obs.journal is not None:
        assert GiveBack in kinds, "nothing reboots a node that is taken"
    if {LoadModules, UnloadModules, UnmountDriverRoot, RemoveConflicting, SetFirmwarePath} & set(kinds):
        assert TakeNode in kinds, "two runs may do this at once"
    if UnmountDriverRoot in kinds and policy.loader is Loader.CONTAINER:
        at_work = [
            pod for pod in obs.pods.pods if pod.main_started and EVERY[name].deploy.driver_key in pod.selector_keys
        ]
        assert not at_work, "a driver container is at work"
    if UnmountDriverRoot in kinds and policy.loader is Loader.MANAGER and obs.host is not None:
        sources = (obs.host.source, obs.host.previous_source)
        assert ROOT_MOUNT not in [one.root for one in sources if one is not None], "it unmounts what it loads from"
    if obs.journal is not None and obs.journal.owner != obs.me and not policy.take_over:
        assert obs.owner_alive is False, "another run's node is touched"
    assert LoadModules not in kinds or policy.loader is Loader.MANAGER
    if policy.loader is Loader.NONE:
        assert not wants_users(Situation.of(obs, EVERY[name], policy))
        check_touches_no_driver(found, kinds, obs, EVERY[name])


def check_touches_no_driver(found: Plan, kinds: list[type], obs: Observation, profile: Profile) -> None:
    assert set(kinds) <= OF_A_SHIPPED_DRIVER, "the host's own driver is touched"
    removed = {path for step in found.steps if isinstance(step, RemoveArtifacts) for path in step.paths}
    assert removed <= {profile.paths.reboot_wish}
    assert GiveBack in kinds or obs.journal is None
    assert found.decision is Decision.CURRENT or obs.own_pod is VFIO_MANAGER, "which finds none to uninstall"


def check_vendors_order_and_switches(found: Plan, profile: Profile) -> None:
    for step in found.steps:
        if isinstance(step, UnloadModules):
            backwards = [one for one in reversed(profile.modules.order) if one in step.names]
            assert [one for one in step.names if one in backwards] == backwards
        if isinstance(step, TakeNode):
            changed = step.change.labels
            assert all(changed[key] == "false" for key in profile.deploy.on_unless_false if key in changed)


def check_makes_way_and_notes_what_went(found: Plan, kinds: list[type], seen: Host | None) -> None:
    """`seen` is the host of a profile that removes a module and sets a path, None for any other."""
    if LoadModules in kinds and seen is not None:
        assert (RemoveConflicting in kinds) is bool(seen.removable)
        assert (SetFirmwarePath in kinds) is (seen.firmware_path == "")
    if RemoveConflicting in kinds:
        taken = next(step for step in found.steps if isinstance(step, TakeNode))
        assert taken.journal.removed == ("generic_npu",), "nobody would load it again"
        assert not {UnloadModules, LoadModules} & set(kinds[: kinds.index(RemoveConflicting)])
    if SetFirmwarePath in kinds:
        assert kinds.index(SetFirmwarePath) < kinds.index(LoadModules)


@pytest.mark.shares(3)
@settings(max_examples=examples(300))
@given(observations(), POLICIES, WAITED, st.booleans())
def test_any_plan_waits_first_and_spares_the_label_that_places_us(
    obs: Observation, policy: Policy, waited: frozenset[str], has_failed: bool
) -> None:
    if (decided := planned(obs, PROFILE, policy, waited, has_failed=has_failed)) is None:
        return
    found, kinds = decided
    if obs.own_pod is VFIO_MANAGER:
        assert LoadModules not in kinds, "it brings no driver"
    own = obs.own_pod.selector_keys if obs.own_pod is not None else frozenset()
    taken = [step for step in found.steps if isinstance(step, TakeNode)]
    assert not any(own & step.change.labels.keys() for step in taken), "our own end"
    waits = [at for at, kind in enumerate(kinds) if issubclass(kind, WaitStep)]
    assert waits == list(range(0, 2 * len(waits), 2)), "somebody is asked for something before the waits"
    assert not [kind for kind in kinds[1:] if kind is WaitAfterFailure]


@pytest.mark.shares(3)
@settings(max_examples=examples(500))
@given(observations(), POLICIES, WAITED, st.booleans())
def test_any_plan_treats_users_pods_well(
    obs: Observation, policy: Policy, waited: frozenset[str], has_failed: bool
) -> None:
    if (decided := planned(obs, PROFILE, policy, waited, has_failed=has_failed)) is None:
        return
    found, kinds = decided
    is_loaded = obs.host is not None and "rebellions" in obs.host.modules
    clears = {EvictWorkloads, DrainNode} & set(kinds)
    evicted = [one.pod for one in found.workloads if one.action is PodAction.EVICT]
    assert len(clears) <= 1
    assert bool(evicted) <= bool(clears), "it tells of evictions that it does not make"
    assert len({one.pod.uid for one in found.workloads}) == len(found.workloads)
    assert not [one for one in found.workloads if one.action is PodAction.BLOCK and one.has_asked], (
        "it begins all the same"
    )
    if clears or PauseLast in kinds or AskOperator in kinds or WaitForCompletion in kinds:
        assert is_loaded, "nobody has to leave where nothing is unloaded"
    for clear in clears:
        assert not is_managed(Situation.of(obs, PROFILE, Policy())), "the operator evicts"
        assert kinds.index(TakeNode) < kinds.index(clear) < kinds.index(UnloadModules)
        assert policy.eviction.is_enabled or policy.eviction.drains or policy.eviction.evicts_holders or not evicted
        assert PauseLast not in kinds or kinds.index(clear) < kinds.index(PauseLast) < kinds.index(UnloadModules)
    afters = [step.after for step in found.steps if isinstance(step, PlanAgain)]
    assert not set(afters) & waited, "it waits twice for the same"
    assert len(set(afters)) == len(afters)
    for index, kind in enumerate(kinds):
        if kind in (WaitForSafeLoad, AskOperator, WaitForCompletion) or issubclass(kind, WaitStep):
            assert kinds[index + 1] is PlanAgain, "it acts on what it saw before the wait"


NOW_S = 10_000.0
SERVICE = PROFILE.host_services[0]
REBOUND: dict[str, Any] = {"host": host(digest=NEW_DIGEST, root_mounts=(ROOT_MOUNT,))}
STALE: dict[str, Any] = {"host": host(modules={}, digest=None, root_mounts=(ROOT_MOUNT,))}
OWNERS_OF_ANY_KIND = st.sampled_from(["DaemonSet", "ReplicaSet", "", "Job", "Custom"])


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Pod, ...]:
    """Pods that deploy labels placed, of any owner, some of them going."""
    return tuple(
        pod(
            f"p{number}",
            draw(st.sampled_from([PLUGIN, EXPORTER, DRIVER, "zone"])),
            owner_kind=draw(OWNERS_OF_ANY_KIND),
            deleting=draw(st.booleans()),
            due_s=draw(st.sampled_from([None, 0.0, NOW_S])),
            is_mirror=draw(st.sampled_from([False, False, True])),
            host_paths=draw(st.sampled_from([(), (ROOT_MOUNT,)])),
        )
        for number in range(draw(st.integers(0, 4)))
    )


HELD = st.lists(
    st.builds(
        Holder,
        pid=st.integers(1, 3),
        process=st.just("x"),
        node=st.just("/dev/rbln0"),
        how=st.sampled_from(["open", "mapped", UNREAD]),
        pod_uid=st.sampled_from(["", "p0", "p1", "gone"]),
        service=st.sampled_from(["", SERVICE, "sshd.service"]),
    ),
    max_size=3,
).map(tuple)


@pytest.mark.submission
@given(
    pods=crowds(),
    holders=HELD,
    fields=st.sampled_from([{}, REBOUND, STALE]),
    loader=st.sampled_from(Loader),
    evicts=st.booleans(),
    stops=st.booleans(),
    waited=st.frozensets(st.sampled_from([HOLDERS, STUCK])),
)
def test_nobody_is_disturbed_while_something_known_is_in_the_way(
    pods: tuple[Pod, ...],
    holders: tuple[Holder, ...],
    fields: dict[str, Any],
    loader: Loader,
    evicts: bool,
    stops: bool,
    waited: frozenset[str],
) -> None:
    policy = Policy(loader=loader, stop_host_services=stops, eviction=EvictionRules(is_enabled=evicts))
    at = Moment(wall_s=NOW_S)
    obs = observation(pods=pods, holders=holders, at=at, **fields)
    if (decided := planned(obs, PROFILE, policy, waited)) is None:
        return
    found, kinds = decided
    first = found.steps[: next((at for at, step in enumerate(found.steps) if isinstance(step, PlanAgain)), None)]
    if not any(isinstance(step, TakeNode) for step in first):
        return
    assert obs.host is not None
    if UnloadModules in kinds:
        stopped = obs.host.active_services if stops else ()
        on_host = [one for one in holders if not one.pod_uid and one.how != UNREAD and one.service not in stopped]
        assert not on_host, "it takes the node though a process of the host has the device"
    paused = {key for step in first if isinstance(step, WaitForOperands) for key in step.keys}
    for other in pods:
        if not other.selector_keys & paused:
            continue
        if other.deleting and other.due_s == 0.0:
            assert STUCK in waited, "it takes the node though an operand is stuck"
        stays = not other.deleting and (other.is_mirror or other.owner_kind in UNMOVED_OWNERS)
        evicted = {str(user.pod) for user in found.workloads if user.action.value == "evict"}
        if stays and str(other) not in evicted:
            assert not other.host_paths, "it takes the node though nothing makes this pod leave"
            assert UnloadModules not in kinds
