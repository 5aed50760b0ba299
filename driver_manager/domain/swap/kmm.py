"""Rows of the plan in which Kernel Module Management (KMM) unloads and loads the driver.

Pure. Must not import the planner, which calls `plan_kmm`.
"""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.errors import ConfigError, PreflightFailed
from driver_manager.domain.kmm import NAME_OF_MODULE, KmmModule, KmmRequest
from driver_manager.domain.node import Pod
from driver_manager.domain.observation import Situation
from driver_manager.domain.pods.workloads import PodAction, Workload, node_pods, staying, unread_claims, with_action
from driver_manager.domain.profile import Strategy
from driver_manager.domain.swap.building import (
    before_the_unload,
    check,
    pause_in_two,
    ready_names,
    releasing,
    remove,
    taking,
)
from driver_manager.domain.swap.eviction import EvictionPlan, is_managed
from driver_manager.domain.swap.node_patches import found_journal, give_back, has_own_cordon, paused_keys
from driver_manager.domain.swap.preflight import is_loaded, places_us
from driver_manager.domain.swap.steps import AnyStep, AskKmm, AwaitKmm, Decision, Plan, WaitForDevice
from driver_manager.domain.swap.vfio import make_virtual_again, return_devices, undisturbed, wait_for_machines
from driver_manager.domain.text import several


def plan_kmm(now: Situation, module: KmmModule) -> Plan:
    """What a run would do: nothing, let KMM load a first driver, or clear the node and let KMM change the driver.

    Raises ConfigError where KMM would have to do what this driver, or our pod, does not allow; PreflightFailed where it
    would not do it, or where pods would be evicted in circles; and as `planner.plan`.
    """
    now = _without_conflicting(now)
    if key := places_us(now):
        return _uninstalled(now, module, key)
    why = why_change(now, module)
    if not why:
        return _keep(now, module)
    if _is_first_load(now, module):
        return _first_load(now, module, why if is_loaded(now.host, now.profile) else f"no driver is loaded: {why}")
    if _is_only_asked(now, module):
        return _take_back(now, module)
    if now.profile.strategy is Strategy.REBOOT:
        raise ConfigError(
            f"{why}, and KMM unloads the old driver as soon as it is asked: profile {now.profile.name} forbids that",
            'Use a profile with strategy = "in-place" if this driver may be unloaded; else change the label yourself '
            "on a drained node, right before its reboot.",
        )
    if is_managed(now):
        raise ConfigError(
            f"an operator manages the upgrades of node {now.obs.node.name} and cordons it for them, and on a cordoned "
            "node KMM unloads the driver at once, whoever uses it",
            f"Remove the annotation {now.profile.keys.upgrade_enabled}, or let KMM's operator change the driver.",
        )
    if _is_of_others(now, module):
        raise PreflightFailed(
            f"a driver is loaded, and KMM shows no version of {module}: it has not loaded that driver, and would not "
            "unload it",
            "Unload that driver, or keep the host from loading it and reboot. If KMM loads right now, run again.",
        )
    return _replace(now, module, why)


def why_change(now: Situation, module: KmmModule) -> str:
    """Why KMM has something to do, "" where the wanted version is asked for, shown as ready, and in the kernel."""
    labels = now.obs.node.labels
    if not module.is_asked(labels):
        return f"KMM has to load version {module.version} of {module}; {module.shown(labels)}"
    if not module.is_ready(labels):
        return f"KMM has not loaded version {module.version} of {module} yet; {module.shown(labels)}"
    if not is_loaded(now.host, now.profile):
        return f"KMM shows version {module.version} of {module} as ready, but the kernel does not have the driver"
    return ""


def is_replaced(now: Situation, module: KmmModule) -> bool:
    """Whether the node is cleared, so that it matters who uses the device."""
    return bool(why_change(now, module)) and not _is_first_load(now, module) and not _is_only_asked(now, module)


def _request(now: Situation, module: KmmModule) -> KmmRequest | None:
    """What a run of this boot has asked this KMM for; None where none has, or its node was given back."""
    request = now.obs.journal.kmm if now.obs.journal is not None else None
    if request is None or request.boot_id != now.host.boot_id or request.module.asked_key != module.asked_key:
        return None
    return request


def _is_first_load(now: Situation, module: KmmModule) -> bool:
    """Whether no driver is there that KMM would unload: none is loaded or to come before, or it is the wanted one."""
    if not is_loaded(now.host, now.profile):
        return not module.may_load_another(now.obs.node.labels)
    request = _request(now, module)
    is_same = request is not None and request.module == module and not request.load
    return (is_same and module.is_asked(now.obs.node.labels)) or _has_just_loaded(now, module)


def _is_of_others(now: Situation, module: KmmModule) -> bool:
    """Whether KMM has not loaded the driver: it shows none, and does not load one right now.

    A driver that has a record is another installer's.
    """
    labels = now.obs.node.labels
    is_unknown = is_loaded(now.host, now.profile) and _request(now, module) is None and not module.ready(labels)
    return is_unknown and (not module.at_work(labels) or now.host.digest is not None)


def _has_just_loaded(now: Situation, module: KmmModule) -> bool:
    """Whether the driver is the wanted one that KMM has loaded and not shown yet, as far as anybody can tell.

    Before it sets its workers to a version, it has unloaded the one before.
    """
    labels = now.obs.node.labels
    is_loading = module.asked(labels) == module.at_work(labels) == module.version and not module.ready(labels)
    return is_loading and _request(now, module) is None and not _is_of_others(now, module)


def _is_only_asked(now: Situation, module: KmmModule) -> bool:
    """Whether KMM has the wanted version loaded, and is asked for another one that it has not begun with."""
    request = _request(now, module)
    is_old = request is not None and bool(request.load) and request.shown != module.version
    return is_loaded(now.host, now.profile) and module.has_not_begun(now.obs.node.labels) and not is_old


def _without_conflicting(now: Situation) -> Situation:
    """`now` without the modules that a load of ours would remove first: KMM has a list of its own for that."""
    host = replace(now.host, removable={})
    return replace(now, host=host, obs=replace(now.obs, host=host))


def _uninstalled(now: Situation, module: KmmModule, key: str) -> Plan:
    """Our pod is there to uninstall the driver. Raises ConfigError while KMM has one loaded, or may load it."""
    labels = now.obs.node.labels
    if is_loaded(now.host, now.profile) or module.asked(labels) or module.is_changing(labels):
        raise ConfigError(
            f"pod {now.obs.own_pod}, which is placed by {key}, needs the driver uninstalled, and KMM loads it",
            f"Clear the node of pods that use the device, then remove the label {module.asked_key}: KMM unloads the "
            "driver at once.",
        )
    reason = "no driver is loaded: there is nothing to uninstall"
    return Plan(Decision.NOT_LOADED, reason, give_back(found_journal(now.obs, now.profile)))


def _keep(now: Situation, module: KmmModule) -> Plan:
    # Who was killed while KMM was at work has not verified anything, nor done what comes after that.
    verified = (*_outdated(now), AwaitKmm(module)) if now.obs.journal is not None else ()
    reason = f"driver is current: KMM has loaded version {module.version} of {module}"
    return Plan(
        Decision.CURRENT, reason, undisturbed(now, verified), workloads=_staying(now, "the driver stays loaded")
    )


def _take_back(now: Situation, module: KmmModule) -> Plan:
    """KMM has the wanted version loaded, and somebody asks it for another one: that is withdrawn, and nobody leaves."""
    check(now)
    taken = taking(now, frozenset(), cordon=False)
    steps = (*taken, AskKmm(module), AwaitKmm(module), *releasing(now, taken))
    reason = (
        f"driver is current: KMM has loaded version {module.version} of {module}, "
        f"but is asked for {module.asked(now.obs.node.labels) or 'no version'}"
    )
    return Plan(Decision.CURRENT, reason, steps, _warnings(now, module), _staying(now, "the driver stays loaded"))


def _first_load(now: Situation, module: KmmModule, why: str) -> Plan:
    """Nothing can hold a device that no driver serves, or KMM has just loaded the wanted one: nobody has to leave."""
    check(now)
    is_there = is_loaded(now.host, now.profile)
    taken = taking(now, frozenset(), cordon=False)
    change = _change(now, module, is_first=not is_there)
    steps = (*wait_for_machines(now), *taken, *change, *releasing(now, taken))
    users = _staying(now, "the driver stays loaded" if is_there else "no driver is loaded, so nothing is unloaded")
    return Plan(Decision.NOT_LOADED, why, steps, _warnings(now, module), users)


def _replace(now: Situation, module: KmmModule, why: str) -> Plan:
    before, taken, cleared = before_the_unload(now)
    _refuse_circles(now, module, cleared)
    steps = (
        *wait_for_machines(now),
        *before,
        WaitForDevice(now.policy.device_free_timeout_s),
        *_change(now, module, is_cleared=True),
        *releasing(now, taken),
    )
    warnings = (*cleared.warnings, *unread_claims(node_pods(now.obs)), *_warnings(now, module))
    return Plan(Decision.REPLACE, why, steps, warnings, cleared.found)


def _change(
    now: Situation, module: KmmModule, *, is_first: bool = False, is_cleared: bool = False
) -> tuple[AnyStep, ...]:
    """KMM changes the driver: what an installer before it recorded is removed, and no driver root is touched.

    That goes once KMM is asked: the journal shows then whose driver is to come.
    """
    node, journal = now.obs.node, now.obs.journal
    asks = (
        not module.is_asked(node.labels) or _request(now, module) is None or has_own_cordon(node, journal, now.profile)
    )
    return (
        *return_devices(now),
        *((AskKmm(module, is_first, is_cleared),) if asks else ()),
        *_outdated(now),
        AwaitKmm(module),
        *make_virtual_again(now),
    )


def _outdated(now: Situation) -> tuple[AnyStep, ...]:
    paths = now.profile.paths
    return remove(now, (*ready_names(now.profile), paths.state_file, paths.failure_note))


def _refuse_circles(now: Situation, module: KmmModule, cleared: EvictionPlan) -> None:
    """Raise PreflightFailed where pods would be evicted, and nothing would keep them from coming back at once."""
    evicted = with_action(cleared.found, PodAction.EVICT)
    offering = [pod for pod in now.obs.pods.pods if _is_of_kmm(pod, module)]
    are_paused = any(pause_in_two(now)) or bool(paused_keys(now.obs.node, now.profile))
    stays_cordoned = now.obs.node.unschedulable and not has_own_cordon(now.obs.node, now.obs.journal, now.profile)
    if not evicted or stays_cordoned or (are_paused and not offering):
        return
    why = f"device plugin {offering[0]} is KMM's" if offering else "no deploy label of this node can be paused"
    raise PreflightFailed(
        f"{several(tuple(str(one.pod) for one in evicted))} would be evicted, and nothing keeps such pods from coming "
        f"back: {why}, and on a cordoned node KMM unloads the driver at once",
        "Make the device plugin a component with a deploy label (docs/operands.md), end these pods yourself, or cordon "
        "the node if the Module tolerates node.kubernetes.io/unschedulable.",
    )


def _is_of_kmm(pod: Pod, module: KmmModule) -> bool:
    """Whether it is a device plugin that KMM itself runs: no label of ours moves it."""
    is_named = pod.labels.get(NAME_OF_MODULE) == module.name and pod.namespace == module.namespace
    return is_named and pod.owner_kind == "DaemonSet"


def _staying(now: Situation, why: str) -> tuple[Workload, ...]:
    return staying(node_pods(now.obs), now.profile, now.policy.eviction, why)


def _warnings(now: Situation, module: KmmModule) -> tuple[str, ...]:
    if not now.obs.node.unschedulable:
        return ()
    what = f"node {now.obs.node.name} is cordoned: KMM unloads the driver of such a node, and loads none there"
    return (f"{what}, unless Module {module} tolerates node.kubernetes.io/unschedulable",)
