"""The planner's order of steps, found by asking it: plans of many thousand mixtures of facts, merged by decision."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any

from msgspec.structs import replace

from driver_manager.domain import selectors
from driver_manager.domain.deadline import Moment
from driver_manager.domain.errors import ManagerError
from driver_manager.domain.host import Holder, Host, Marker, Module, RebootWish, StagedSlot, StagedSlots
from driver_manager.domain.node import Claim, Node, PodList
from driver_manager.domain.observation import EvictionRules, Loader, Mode, Policy, Situation
from driver_manager.domain.pci import Binding, PciBus, PciFunction
from driver_manager.domain.profile import Profile, Strategy
from driver_manager.domain.swap import steps as kinds
from driver_manager.domain.swap.eviction import COMPLETION, OPERATOR, SAFE_LOAD
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.steps import Decision, Plan, PlanAgain
from tests.support.fakes import builders
from tests.support.fakes.pci import VFIO_DRIVER, function

SEED, MIXTURES, CLEARING, GIVING, RETURNING = 1, 4000, 800, 1600, 800
DRA = {builders.key("dra-kubelet-plugin"): "true"}
USERS = (
    builders.workload("asks"),
    builders.workload("ending", labels={"job": "1"}),
    builders.workload("leaving", deleting=True),
    builders.workload("claims", resources=(), claims=("c",)),
)
STUCK = builders.pod("stuck", builders.PLUGIN, deleting=True, due_s=0.0)
HOLDER = Holder(7, "x", "/dev/rbln0", "open")
LEFT_BEHIND = {"rebellions_core": builders.modules()["rebellions_core"]}
LOADED = {"rebellions": builders.modules(), "ascend": {"drv_pcie_host": builders.modules()["rebellions"]}}
_REMOVABLE = replace(builders.PROFILE.modules, conflicting_removable=("generic_npu",))
DRAWN = (
    replace(builders.PROFILE, modules=_REMOVABLE, paths=replace(builders.PROFILE.paths, firmware="/var/lib/firmware")),
    replace(builders.ASCEND, modules=replace(builders.ASCEND.modules, conflicting_removable=("generic_npu",))),
)
"""A driver of each strategy, of which the profile says more than the shipped ones."""


@dataclass(frozen=True)
class Order:
    """Steps of one decision in an order that every plan keeps; `always` are those that every plan with steps has."""

    strategy: Strategy
    decision: Decision
    plans: int
    steps: tuple[str, ...]
    always: frozenset[str]


def mixture(dice: random.Random, profile: Profile) -> Situation:
    """Some facts and wishes, and some progress of a run."""
    held: dict[str, Any] = {"pods": tuple(user for user in USERS if dice.random() < 0.4)}
    held["claims"] = (Claim("tenant", "c", profile.device_classes),) if dice.random() < 0.5 else ()
    if dice.random() < 0.4:
        held["holders"] = (HOLDER,)
    if dice.random() < 0.4:
        held["pods"] = (*held["pods"], STUCK)
        held["at"] = Moment(wall_s=builders.LONG_AFTER_S)
    obs = builders.observation(
        host=_host(dice, profile),
        node=_node(dice, profile),
        journal=dice.choice((None, None, builders.journal())),
        own_pod=dice.choice(OWN_PODS),
        **held,
    )
    policy = _policy(dice)
    waited = frozenset(what for what in (SAFE_LOAD, OPERATOR, COMPLETION) if dice.random() < 0.5)
    now = Situation.of(obs, profile, policy, waited)
    return builders.failed_before(now) if dice.random() < 0.3 else now


VFIO_MANAGER = builders.pod("vfio", builders.key("vfio-manager"))
OWN_PODS = (None, builders.driver_pod(), builders.driver_pod(main_started=True), VFIO_MANAGER)
_WANTED = StagedSlot("driver.next", builders.NEW_DIGEST, "2.0")
STAGED = (
    StagedSlots("/opt/driver", (StagedSlot("driver", "c"), _WANTED), wanted=_WANTED.name),
    StagedSlots("/opt/driver", (_WANTED,), wanted=_WANTED.name),
)
"""The new driver is staged: the driver at the root was staged as well, or was not."""


def _host(dice: random.Random, profile: Profile) -> Host:
    paths = profile.paths
    return builders.host(
        modules=dice.choice(({}, LEFT_BEHIND, LOADED[profile.name])),
        digest=dice.choice((None, builders.OLD_DIGEST, builders.NEW_DIGEST)),
        root_mounts=dice.choice(((), (paths.driver_root,))),
        artifacts=dice.choice(((), (paths.state_file, paths.ready_marker))),
        host_driver=dice.choice(("", "", "/lib/m.ko")),
        source=dice.choice((None, builders.source())),
        previous_source=dice.choice((None, builders.source("/opt/old", "1.0"))),
        active_services=dice.choice(((), ("rbln_daemon.service",))),
        marker=dice.choice((None, Marker("upgrade", "boot-0"), Marker("upgrade", "boot-1"))),
        reboot_wish=dice.choice((None, None, RebootWish("boot-0", builders.NODE, builders.NEW_DIGEST))),
        slots=dice.choice((None, None, *STAGED)) if profile.strategy is Strategy.IN_PLACE else None,
        removable=dice.choice(({}, {}, {"generic_npu": Module("generic_npu", "", 0)})),
    )


def _node(dice: random.Random, profile: Profile) -> Node:
    keys = profile.keys
    asked = {keys.safe_load: "true"} if keys.safe_load else {}
    managed = {keys.upgrade_enabled: "true"} if keys.upgrade_enabled else {}
    labels = builders.LABELS | DRA if dice.random() < 0.7 else {}
    labels |= {builders.PLUGIN: "paused-for-mig-change"} if dice.random() < 0.2 else {}
    return builders.node(labels, annotations=dice.choice(({}, {}, managed, asked)))


def _policy(dice: random.Random) -> Policy:
    return Policy(
        # Who only looks has no steps but those that give back what an earlier run left.
        loader=dice.choice((Loader.CONTAINER, Loader.MANAGER)),
        no_wait=dice.random() < 0.5,
        stop_host_services=dice.random() < 0.5,
        eviction=EvictionRules(is_enabled=dice.random() < 0.7, drains=dice.random() < 0.3),
        completion=selectors.parse(dice.choice(("", "job"))),
        safe_load=dice.random() < 0.3,
    )


def _cleared(dice: random.Random, profile: Profile) -> Situation:
    """The same facts, for a run that only clears the node, in a pod beside the driver's."""
    now = mixture(dice, profile)
    own = builders.pod("clear", main_started=True)
    driver = builders.pod("driver-old", builders.DRIVER, main_started=True)
    obs = replace(now.obs, own_pod=own, pods=PodList((*now.obs.pods.pods, own, driver), now.obs.pods.resource_version))
    policy = replace(now.policy, loader=Loader.CONTAINER, driver_pod_leaves=True, clear_for="new")
    return replace(now, obs=obs, policy=policy)


_NATIVE, _BARE, _GIVEN = (function(number, driver=name) for number, name in enumerate(("rebellions", "", VFIO_DRIVER)))
_KEPT = replace(_GIVEN, override=VFIO_DRIVER)
_PARENT = replace(_NATIVE, virtual_count=2)


def _given(dice: random.Random, profile: Profile) -> Situation:
    """The same facts, for a run that gives the devices to virtual machines."""
    now = _with_devices(dice, mixture(dice, profile), ((), (_NATIVE, _GIVEN), (_PARENT,), (_BARE,), (_GIVEN,)))
    obs = replace(now.obs, own_pod=VFIO_MANAGER)
    policy = replace(now.policy, mode=Mode.VFIO, loader=Loader.CONTAINER, safe_load=False, driver_pod_leaves=True)
    return replace(now, obs=obs, policy=policy)


def _returned(dice: random.Random, profile: Profile) -> Situation:
    """The same facts, with devices that virtual machines had."""
    now = _with_devices(dice, mixture(dice, profile), ((_KEPT,), (_NATIVE, _KEPT)))
    held = Holder(8, "qemu", "/dev/vfio/12", "open") if dice.random() < 0.3 else None
    was = (Binding(_KEPT.address, "rebellions", virtual_count=2),) if dice.random() < 0.3 else ()
    host = replace(now.host, bindings=was)
    return replace(now, host=host, obs=replace(now.obs, host=host, group_holders=(held,) if held is not None else ()))


def _with_devices(
    dice: random.Random, situation: Situation, mixtures: tuple[tuple[PciFunction, ...], ...]
) -> Situation:
    host = replace(situation.host, bus=PciBus(dice.choice(mixtures)))
    return replace(situation, host=host, obs=replace(situation.obs, host=host))


@cache
def sequences(profile: Profile) -> dict[Decision, list[tuple[str, ...]]]:
    """The steps of every plan that the mixtures lead to, by decision; those that are refused have none."""
    dice, found = random.Random(SEED), dict[Decision, list[tuple[str, ...]]]()  # noqa: S311  # the same at every run
    for made in (*[mixture] * MIXTURES, *[_cleared] * CLEARING, *[_given] * GIVING, *[_returned] * RETURNING):
        with contextlib.suppress(ManagerError):
            decided = plan(made(dice, profile))
            found.setdefault(decided.decision, []).append(_names(decided, profile))
    return found


def _names(decided: Plan, profile: Profile) -> tuple[str, ...]:
    """The steps by their names; one that may come at two places of a plan with what tells them apart."""
    found, before = [], ""
    for step, following in zip_longest(decided.steps, decided.steps[1:]):
        name = type(step).__name__
        match step:
            case PlanAgain():
                continue
            case kinds.TakeNode() if isinstance(following, kinds.WaitForCompletion):
                name += " to cordon it first"
            case kinds.RemoveArtifacts(paths=(profile.paths.reboot_wish,)):
                name += " of the request to reboot"
            case kinds.WaitForOperands() if before == kinds.PauseLast.__name__:
                name += " that leave last"
        if isinstance(following, PlanAgain):
            name += ", PlanAgain"
        found.append(name)
        before = type(step).__name__
    return tuple(found)


def merged(strategy: Strategy, decision: Decision, plans: list[tuple[str, ...]]) -> Order:
    """One order that all of `plans` keep. Raises ValueError where there is none: they contradict each other."""
    names = tuple(dict.fromkeys(name for steps in plans for name in steps))
    before: dict[str, set[str]] = {name: set() for name in names}
    for steps in set(plans):
        for at, name in enumerate(steps):
            before[name].update(steps[:at])
    ordered: list[str] = []
    while left := [name for name in names if name not in ordered]:
        ready = [name for name in left if before[name] <= set(ordered)]
        if not ready:
            raise ValueError(f"{decision.value}: the plans contradict each other about {', '.join(left)}")
        ordered.append(min(ready, key=lambda name: (-sum(name in other for other in before.values()), name)))
    with_steps = [set(steps) for steps in plans if steps]
    always = frozenset.intersection(*map(frozenset, with_steps)) if with_steps else frozenset()
    return Order(strategy, decision, len(plans), tuple(ordered), always)


@cache
def orders() -> tuple[Order, ...]:
    """Every decision's order: of a driver that can be swapped, then of one that cannot be."""
    found = [(profile, decision, sequences(profile).get(decision)) for profile in DRAWN for decision in Decision]
    return tuple(merged(profile.strategy, decision, plans) for profile, decision, plans in found if plans is not None)


def steps(order: Order) -> str:
    """The steps of one decision; those of every plan are bold."""
    names = (f"**{step}**" if step in order.always else step for step in order.steps)
    return ", ".join(names).replace(", PlanAgain", " ↻") or "no step"
