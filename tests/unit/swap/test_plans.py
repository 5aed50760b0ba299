"""The plan for each situation, whole, and what holds of any plan: the rows are in `tests/unit/golden/plans`."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from driver_manager.domain.errors import ConfigError, ManagerError, PodsRemain
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
from driver_manager.domain.swap import eviction, steps
from driver_manager.domain.swap.eviction import HOLDERS, STUCK, is_managed
from driver_manager.domain.swap.planner import plan, wants_users
from driver_manager.domain.swap.preflight import Check, access, host_files, places_us, remedies
from driver_manager.domain.swap.steps import GiveBack, LoadModules, PlanAgain, TakeNode, UnloadModules, WaitStep
from tests.support.fakes import builders
from tests.support.fakes.builders import PLUGIN, PROFILE, driver_pod, host, key, node, observation, pod, workload
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


EVICTS, DRAINS = Policy(eviction=EvictionRules(is_enabled=True)), Policy(eviction=EvictionRules(drains=True))
COMPLETES = replace(EVICTS, completion=selectors.parse("job in (a,1),!x"), completion_timeout_s=60.0)


@pytest.mark.parametrize("policy", [EVICTS, replace(EVICTS, safe_load=True), COMPLETES, DRAINS])
@pytest.mark.parametrize("notes", [{}, {PROFILE.keys.upgrade_enabled: "true"}])
def test_a_plan_is_json_with_each_step_and_each_pod(policy: Policy, notes: dict[str, str]) -> None:
    users = (workload("j", labels={"job": "1"}), workload("a"), workload("d", deleting=True))
    found = plan(Situation.of(observation(node=node(annotations=notes), pods=users), PROFILE, policy))
    body = json.loads(json.dumps(found.to_json()))
    assert [step["step"] for step in body["steps"]] == [type(step).__name__ for step in found.steps]
    assert all(step["text"] for step in body["steps"])
    fates = [(str(one.pod), one.action.value) for one in found.workloads]
    assert [(user["pod"], user["fate"]) for user in body["workloads"]] == fates
    assert all(user["uses"] and user["why"] for user in body["workloads"])


# what the planner asks of the facts


NVIDIA = builders.PROFILES["nvidia"]


@pytest.mark.parametrize(
    ("own", "profile", "label"),
    [
        (pod("vfio-a", key("vfio-manager")), PROFILE, key("vfio-manager")),
        (pod("v", "nvidia.com/gpu.deploy.vgpu-manager"), NVIDIA, "nvidia.com/gpu.deploy.vgpu-manager"),
        (pod("v", "nvidia.com/gpu.deploy.vfio-manager", "zone"), NVIDIA, "nvidia.com/gpu.deploy.vfio-manager"),
        (driver_pod(), PROFILE, ""),
        (pod("driver-a", builders.DRIVER, key("vfio-manager")), PROFILE, ""),
        (pod("debugger"), PROFILE, ""),
        (pod("own-manifest", "example.com/npu"), PROFILE, ""),
        (None, PROFILE, ""),
        (pod("v", "openfuyao.com/npu.present"), builders.ASCEND, ""),
    ],
)
def test_only_a_pod_that_another_deploy_label_places_uninstalls(own: Pod | None, profile: Profile, label: str) -> None:
    assert places_us(Situation.of(observation(own_pod=own), profile, Policy())) == label


def test_a_drain_during_the_run_is_judged_as_one_before_it() -> None:
    policy = Policy(eviction=EvictionRules(drains=True, drain_selector=selectors.parse("drain")))
    outside = observation(pods=(workload("a"), workload("d", labels={"drain": ""})))
    with pytest.raises(PodsRemain, match="tenant/a"):
        eviction.drain(Situation.of(outside, PROFILE, policy), node_pods(outside))


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
    assert eviction.is_completing(found, selectors.parse("job"), driver_pod()) is may
    assert eviction.is_completing(replace(found, uid="p"), selectors.parse("job"), None) is ("uid" in fields or may)


def test_only_the_annotation_true_makes_a_node_managed() -> None:
    for value in ("true", "false", "True", "", None):
        obs = observation(node=node(annotations={} if value is None else {PROFILE.keys.upgrade_enabled: value}))
        assert is_managed(Situation.of(obs, PROFILE, Policy())) is (value == "true"), value
        assert not is_managed(Situation.of(obs, builders.ASCEND, Policy())), value


def test_a_right_that_is_missing_is_named_with_its_remedy_and_one_to_watch_stops_nothing() -> None:
    patch = ("patch", "nodes")
    lack, have = access([patch], (patch, ("create", "pods/eviction")))
    assert (have.ok, lack.ok) == (True, False)
    assert "may not patch nodes" in lack.what
    assert "verb patch on nodes" in lack.remedy
    for right in (("watch", "pods"), ("watch", "nodes")):
        (lack,) = access([right], (right,))
        assert lack.ok is None
        assert f"may not watch {right[1]}: a run polls every few seconds instead" in lack.what


def test_a_remedy_is_shown_once_and_foreign_text_moves_no_cursor_on_the_screen() -> None:
    found = [Check("a", False, "x", what) for what in ("Do this.", "Do this.", "And that.")]
    assert remedies(found) == "Do this. And that."
    check = Check("digest", None, "said \x1b[2J", "look at \x07")
    screen = _text(Forecast(None, (check,), None), None)
    assert "said \\x1b[2J" in screen
    assert "look at \\x07" in screen


@pytest.mark.parametrize(
    ("marker", "wish", "named"),
    [
        (None, None, ""),
        (Marker("upgrade", "boot-0"), None, builders.ASCEND.paths.reboot_marker),
        (Marker("recovery", "boot-0"), None, builders.ASCEND.paths.reboot_marker),
        (Marker("upgrade", "boot-1"), None, builders.ASCEND.paths.reboot_marker),
        (Marker("recovery", "boot-1"), None, ""),
        (None, RebootWish("boot-0", "node-1", "d", False), builders.ASCEND.paths.reboot_wish),
    ],
)
def test_a_request_of_a_reboot_that_cannot_be_removed_is_found_before_the_driver_is_changed(
    marker: Marker | None, wish: RebootWish | None, named: str
) -> None:
    now = Situation.of(observation(host=host(marker=marker, reboot_wish=wish)), builders.ASCEND, Policy())
    check = host_files(now, {path: f"{path} cannot be removed" for path in builders.ASCEND.paths.reboot_files()})
    assert check.ok is not bool(named)
    assert not named or f"{named} cannot be removed" in check.what


# a pair of versions that is changed in another way than by the profile's strategy


@pytest.mark.parametrize(
    ("strategy", "pairs", "answer"),
    [
        (Strategy.REBOOT, [], True),
        (Strategy.REBOOT, [ChangeBy.REBOOT, ChangeBy.REFUSE], True),
        (Strategy.REBOOT, [ChangeBy.IN_PLACE], False),
        (Strategy.IN_PLACE, [ChangeBy.REBOOT], False),
    ],
)
def test_a_profile_with_a_pair_in_place_may_unload(strategy: Strategy, pairs: list[ChangeBy], answer: bool) -> None:
    transitions = tuple(Transition("1.*", "2.*", by, "firmware") for by in pairs)
    assert replace(builders.ASCEND, strategy=strategy, transitions=transitions).never_unloads is answer


TABLE = '\n[[transitions]]\nold = "6.2.*"\nnew = "6.3.*"\nstrategy = "refuse"\nwhy = "its firmware stays"\n'


def test_a_file_has_them_as_tables_and_a_wrong_one_is_named_by_its_place() -> None:
    shipped = Path(profiles.__file__).parent
    text = (shipped / "ascend.toml").read_text()
    found = profiles.parse(text + TABLE, "own.toml")
    assert found.transitions == (Transition("6.2.*", "6.3.*", ChangeBy.REFUSE, "its firmware stays"),)
    assert decode_profile(encode_profile(found)) == found
    with pytest.raises(ConfigError, match=r"transitions\[1\]\.strategy is 'slowly', expected one of in-place"):
        profiles.parse(text + TABLE + TABLE.replace("refuse", "slowly"), "own.toml")
    with pytest.raises(ConfigError, match=r"transitions\[0\]\.old is '', expected a version"):
        profiles.parse(text + TABLE.replace('"6.2.*"', '""'), "own.toml")
    lines = (shipped / "rebellions.toml").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith(("reboot", "recovery")))
    with pytest.raises(ConfigError, match=r"paths\.reboot_marker is missing, and the transition from 6\.2"):
        profiles.parse(text + TABLE.replace("refuse", "reboot"), "own.toml")


# any combination of facts and wishes leads to a sound plan or to an error with a remedy


def with_more(profile: Profile) -> Profile:
    """The profile with more of what a profile may say."""
    beside = replace(profile.modules, conflicting_removable=("generic_npu",))
    return replace(profile, modules=beside, paths=replace(profile.paths, firmware="/opt/firmware"))


def by_pair(profile: Profile) -> Profile:
    """The profile, where every change of versions takes a reboot."""
    paths = replace(profile.paths, reboot_marker="/var/lib/own/marker")
    return replace(profile, transitions=(Transition("*", "*", ChangeBy.REBOOT),), paths=paths)


PAIR, WITH_MORE, SHIPPED = "pair-", "more-", builders.PROFILES
MADE = [(PAIR, by_pair), (WITH_MORE, with_more)]
EVERY = SHIPPED | {prefix + name: change(one) for prefix, change in MADE for name, one in SHIPPED.items()}


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
NODE, OLD, NEW, ROOT = builders.NODE, builders.OLD_DIGEST, builders.NEW_DIGEST, builders.ROOT_MOUNT
NOT_BUILT = builders.source(problem="no", remedy="build it")
OLD_SOURCES = (builders.source("/opt/old", "1.0"), builders.source(ROOT, "1.0"))
WISHES = [("boot-0", NEW, False), ("boot-0", NEW, True), ("boot-0", OLD, False), ("boot-1", NEW, False)]
HOST_FACTS: dict[str, list[Any]] = {
    "digest": [None, OLD, NEW],
    "digest_problem": ["", "garbage"],
    "root_mounts": [(), (ROOT,)],
    "artifacts": [(), (READY, STATE)],
    "host_driver": ["", "/lib/m.ko"],
    "source": [None, builders.source(), builders.source(ROOT), NOT_BUILT],
    "previous_source": [None, *OLD_SOURCES],
    "marker": [None, Marker("upgrade", "boot-0"), Marker("upgrade", "boot-1")],
    "reboot_wish": [None, *(RebootWish(boot, NODE, digest, forced) for boot, digest, forced in WISHES)],
    "removable": [{}, {"generic_npu": Module("generic_npu", "", 0)}],
    "firmware_path": ["", None, "/opt/firmware"],
}
DRA = {key("dra-kubelet-plugin"): "true"}
NODE_FACTS: dict[str, list[Any]] = {
    "labels": [builders.LABELS, builders.LABELS | DRA, TAKEN | DRA, TAKEN, {}],
    "unschedulable": [False, True],
    "annotations": [{}, {PROFILE.keys.upgrade_enabled: "true"}],
}
OTHER_FACTS: dict[str, list[Any]] = {
    "claims": [(), (Claim("tenant", "c", PROFILE.device_classes),)],
    "holders": [(), HOLDERS_SEEN[:1], HOLDERS_SEEN],
    "journal": [None, builders.journal(), builders.journal(owner=builders.SOMEBODY)],
    "owner_alive": [True, False, None],
    "digest": ["", NEW],
    "own_pod": [None, driver_pod(), driver_pod(main_started=True), VFIO_MANAGER],
    "at": [Moment(), Moment(1_000.0, builders.LONG_AFTER_S)],
}


@st.composite
def observations(draw: st.DrawFn, *, own: Mapping[str, Module] | None = None) -> Observation:
    """Any combination of facts that the table looks at; `own` are the modules of the one driver that may be loaded."""

    def some(facts: Mapping[str, list[Any]]) -> dict[str, Any]:
        return {name: draw(st.sampled_from(values)) for name, values in facts.items()}

    modules = draw(st.sampled_from([{}, own] if own else [{}, builders.modules(), ASCEND_LOADED["modules"]]))
    users = draw(st.lists(st.sampled_from(USERS), unique_by=lambda pod: pod.uid, max_size=4))
    facts = {"host": host(modules=modules, **some(HOST_FACTS)), "node": node(**some(NODE_FACTS))}
    return observation(pods=tuple(users), **facts, **some(OTHER_FACTS))


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
Waits = frozenset[str]
WAITED = st.frozensets(st.sampled_from([eviction.SAFE_LOAD, eviction.OPERATOR, eviction.COMPLETION, HOLDERS, STUCK]))
WAITING = {steps.WaitForSafeLoad, steps.WaitForHolders, steps.WaitForStuckPods, steps.WaitAfterFailure}
ASKING = {*WAITING, steps.AskOperator, PlanAgain}
"""What may come before the node is taken: it asks an operator, who must not find us half-way, or only waits."""

UNDER_LOCK = {LoadModules, UnloadModules, steps.UnmountDriverRoot, steps.RemoveConflicting, steps.SetFirmwarePath}
OF_A_SHIPPED_DRIVER = {GiveBack, steps.ClearRebootRequest, steps.RemoveArtifacts, steps.WithdrawSafeLoad}


def planned(
    obs: Observation, profile: Profile, policy: Policy, waited: Waits, *, has_failed: bool = False
) -> tuple[steps.Plan, list[type]] | None:
    """The plan and the kinds of its steps, None where it is refused with a remedy."""
    now = Situation.of(obs, profile, policy, waited)
    try:
        found = plan(builders.failed_before(now) if has_failed else now)
    except ManagerError as error:
        if not error.remedy:
            raise
        return None
    return found, [type(step) for step in found.steps]


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_shipped_profile_can_be_seen_with_its_own_driver_loaded(name: str) -> None:
    profile = SHIPPED[name]
    found = plan(Situation.of(observation(host=host(modules=loaded(profile))), profile, Policy()))
    wanted = steps.Decision.REPLACE if profile.strategy is Strategy.IN_PLACE else steps.Decision.REBOOT
    assert found.decision is wanted


@pytest.mark.shares(3)
@settings(max_examples=examples(1_000))
@given(st.data(), st.sampled_from(sorted(EVERY)), POLICIES, WAITED, st.booleans())
def test_any_plan_is_sound(data: st.DataObject, name: str, policy: Policy, waited: Waits, failed: bool) -> None:
    profile = EVERY[name]
    obs = data.draw(observations(own=loaded(profile)))
    if (decided := planned(obs, profile, policy, waited, has_failed=failed)) is None:
        return
    found, kinds = decided
    check_vendors_order_and_switches(found, profile)
    check_makes_way_and_notes_what_went(found, kinds, obs.host if name.startswith(WITH_MORE) else None)
    assert found.reason
    assert json.loads(json.dumps(found.to_json()))["decision"] == found.decision.value
    assert found.to_text().count("\n") >= len(found.steps) + 1
    is_by_pair = name.startswith(PAIR) and obs.host is not None and has_root(obs.host.modules, profile.modules)
    if profile.strategy is Strategy.REBOOT or is_by_pair:
        assert UnloadModules not in kinds, "this driver must never be unloaded"
    if TakeNode in kinds:
        assert set(kinds[: kinds.index(TakeNode)]) <= ASKING, "an effect before the journal"
        assert GiveBack in kinds, "taken and never given back"
    if steps.RequestReboot in kinds:
        wanted = (NODE, obs.digest, policy.force_reinstall)
        wish = obs.host.reboot_wish if obs.host else None
        is_same = wish is not None and (wish.node, wish.to_driver, wish.is_forced) == wanted
        assert wish is None or not is_same or wish.boot_id == "boot-1", "a reboot for it was of no use already"
    if GiveBack in kinds:
        ends = {steps.StandDown, steps.HoldForReboot, steps.EndWithoutReboot}
        assert set(kinds[kinds.index(GiveBack) + 1 :]) <= ends, "work goes on after giving back"
    if steps.HoldForReboot in kinds and obs.journal is not None:
        assert GiveBack in kinds, "nothing reboots a node that is taken"
    if UNDER_LOCK & set(kinds):
        assert TakeNode in kinds, "two runs may do this at once"
    if steps.UnmountDriverRoot in kinds and policy.loader is Loader.CONTAINER:
        drivers = [pod for pod in obs.pods.pods if profile.deploy.driver_key in pod.selector_keys]
        assert not [pod for pod in drivers if pod.main_started], "a driver container is at work"
    if steps.UnmountDriverRoot in kinds and policy.loader is Loader.MANAGER and obs.host is not None:
        roots = [one.root for one in (obs.host.source, obs.host.previous_source) if one is not None]
        assert ROOT not in roots, "it unmounts what it loads from"
    if obs.journal is not None and obs.journal.owner != obs.me and not policy.take_over:
        assert obs.owner_alive is False, "another run's node is touched"
    assert LoadModules not in kinds or policy.loader is Loader.MANAGER
    if policy.loader is Loader.NONE:
        assert not wants_users(Situation.of(obs, profile, policy))
        check_touches_no_driver(found, kinds, obs, profile)


def check_touches_no_driver(found: steps.Plan, kinds: list[type], obs: Observation, profile: Profile) -> None:
    assert set(kinds) <= OF_A_SHIPPED_DRIVER, "the host's own driver is touched"
    removed = {path for step in found.steps if isinstance(step, steps.RemoveArtifacts) for path in step.paths}
    assert removed <= {profile.paths.reboot_wish}
    assert GiveBack in kinds or obs.journal is None
    assert found.decision is steps.Decision.CURRENT or obs.own_pod is VFIO_MANAGER, "which finds none to uninstall"


def check_vendors_order_and_switches(found: steps.Plan, profile: Profile) -> None:
    for step in found.steps:
        if isinstance(step, UnloadModules):
            backwards = [one for one in reversed(profile.modules.order) if one in step.names]
            assert [one for one in step.names if one in backwards] == backwards
        if isinstance(step, TakeNode):
            changed = step.change.labels
            assert all(changed[key] == "false" for key in profile.deploy.on_unless_false if key in changed)


def check_makes_way_and_notes_what_went(found: steps.Plan, kinds: list[type], seen: Host | None) -> None:
    """`seen` is the host of a profile that removes a module and sets a path, None for any other."""
    if LoadModules in kinds and seen is not None:
        assert (steps.RemoveConflicting in kinds) is bool(seen.removable)
        assert (steps.SetFirmwarePath in kinds) is (seen.firmware_path == "")
    if steps.RemoveConflicting in kinds:
        taken = next(step for step in found.steps if isinstance(step, TakeNode))
        assert taken.journal.removed == ("generic_npu",), "it would not be loaded again"
        assert not {UnloadModules, LoadModules} & set(kinds[: kinds.index(steps.RemoveConflicting)])
    if steps.SetFirmwarePath in kinds:
        assert kinds.index(steps.SetFirmwarePath) < kinds.index(LoadModules)


@pytest.mark.shares(3)
@settings(max_examples=examples(500))
@given(observations(), POLICIES, WAITED, st.booleans())
def test_any_plan_waits_first_spares_the_label_that_places_us_and_treats_users_pods_well(
    obs: Observation, policy: Policy, waited: Waits, failed: bool
) -> None:
    if (decided := planned(obs, PROFILE, policy, waited, has_failed=failed)) is None:
        return
    found, kinds = decided
    if obs.own_pod is VFIO_MANAGER:
        assert LoadModules not in kinds, "it brings no driver"
    own = obs.own_pod.selector_keys if obs.own_pod is not None else frozenset()
    taken = [step for step in found.steps if isinstance(step, TakeNode)]
    assert not any(own & step.change.labels.keys() for step in taken), "our own end"
    waits = [at for at, kind in enumerate(kinds) if issubclass(kind, WaitStep)]
    assert waits == list(range(0, 2 * len(waits), 2)), "something is requested before the waits"
    assert steps.WaitAfterFailure not in kinds[1:]
    check_treats_users_pods_well(found, kinds, obs, policy)
    afters = [step.after for step in found.steps if isinstance(step, PlanAgain)]
    assert not set(afters) & waited, "it waits twice for the same"
    assert len(set(afters)) == len(afters)
    for index, kind in enumerate(kinds):
        if kind in (steps.WaitForSafeLoad, steps.AskOperator, steps.WaitForCompletion) or issubclass(kind, WaitStep):
            assert kinds[index + 1] is PlanAgain, "it acts on what it saw before the wait"


def check_treats_users_pods_well(found: steps.Plan, kinds: list[type], obs: Observation, policy: Policy) -> None:
    clears = {steps.EvictWorkloads, steps.DrainNode} & set(kinds)
    evicted = [one.pod for one in found.workloads if one.action is PodAction.EVICT]
    assert len(clears) <= 1
    assert bool(evicted) <= bool(clears), "it tells of evictions that it does not make"
    assert len({one.pod.uid for one in found.workloads}) == len(found.workloads)
    blocked = [one for one in found.workloads if one.action is PodAction.BLOCK and one.has_asked]
    assert not blocked, "it begins all the same"
    if clears or steps.PauseLast in kinds or steps.AskOperator in kinds or steps.WaitForCompletion in kinds:
        assert obs.host is not None, "no pod has to leave if nothing is unloaded"
        assert "rebellions" in obs.host.modules, "no pod has to leave if nothing is unloaded"
    for clear in clears:
        assert not is_managed(Situation.of(obs, PROFILE, Policy())), "the operator evicts"
        assert kinds.index(TakeNode) < kinds.index(clear) < kinds.index(UnloadModules)
        assert policy.eviction.is_enabled or policy.eviction.drains or policy.eviction.evicts_holders or not evicted
        last = kinds.index(steps.PauseLast) if steps.PauseLast in kinds else None
        assert last is None or kinds.index(clear) < last < kinds.index(UnloadModules)


NOW_S = 10_000.0
SERVICE = PROFILE.host_services[0]
HOSTS = [host(), host(digest=NEW, root_mounts=(ROOT,)), host(modules={}, digest=None, root_mounts=(ROOT,))]


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Pod, ...]:
    """Pods that deploy labels placed, of any owner, some of them going."""
    return tuple(
        pod(
            f"p{number}",
            draw(st.sampled_from([PLUGIN, builders.EXPORTER, builders.DRIVER, "zone"])),
            owner_kind=draw(st.sampled_from(["DaemonSet", "ReplicaSet", "", "Job", "Custom"])),
            deleting=draw(st.booleans()),
            due_s=draw(st.sampled_from([None, 0.0, NOW_S])),
            is_mirror=draw(st.sampled_from([False, False, True])),
            host_paths=draw(st.sampled_from([(), (ROOT,)])),
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


@given(
    st.builds(observation, pods=crowds(), holders=HELD, at=st.just(Moment(wall_s=NOW_S)), host=st.sampled_from(HOSTS)),
    st.builds(
        Policy,
        loader=st.sampled_from(Loader),
        eviction=st.builds(EvictionRules, **any_of("is_enabled")),
        **any_of("stop_host_services"),
    ),
    st.frozensets(st.sampled_from([HOLDERS, STUCK])),
)
def test_no_pod_is_disturbed_while_something_is_in_the_way(obs: Observation, policy: Policy, waited: Waits) -> None:
    if (decided := planned(obs, PROFILE, policy, waited)) is None:
        return
    found, kinds = decided
    first = found.steps[: kinds.index(PlanAgain) if PlanAgain in kinds else None]
    if not any(isinstance(step, TakeNode) for step in first):
        return
    assert obs.host is not None
    if UnloadModules in kinds:
        stopped = obs.host.active_services if policy.stop_host_services else ()
        on_host = [one for one in obs.holders if not one.pod_uid and one.how != UNREAD]
        assert all(one.service in stopped for one in on_host), "a process of the host has the device"
    paused = {key for step in first if isinstance(step, steps.WaitForOperands) for key in step.keys}
    for other in obs.pods.pods:
        if other == obs.own_pod or not other.selector_keys & paused:
            continue
        if other.deleting and other.due_s == 0.0:
            assert STUCK in waited, "it takes the node though an operand is stuck"
        stays = not other.deleting and (other.is_mirror or other.owner_kind in UNMOVED_OWNERS)
        evicted = {str(user.pod) for user in found.workloads if user.action.value == "evict"}
        if stays and str(other) not in evicted:
            assert not other.host_paths, "it takes the node though nothing makes this pod leave"
            assert UnloadModules not in kinds
