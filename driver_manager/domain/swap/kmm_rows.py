"""The rows of the plan where Kernel Module Management (KMM) unloads and loads the driver: no step here does either.

Pure. Must not import the planner, which calls `plan_kmm`.
"""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.kmm import KmmModule
from driver_manager.domain.pods.workloads import node_pods, staying, unread_claims
from driver_manager.domain.profile import Strategy
from driver_manager.domain.swap.driver_state import is_loaded, places_us
from driver_manager.domain.swap.leftovers import ready_names
from driver_manager.domain.swap.loading import check
from driver_manager.domain.swap.node_patches import found_journal, give_back
from driver_manager.domain.swap.node_taking import before_the_unload, releasing, taking
from driver_manager.domain.swap.plan import AnyStep, Decision, Plan
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.kmm import AskKmm, AwaitKmm
from driver_manager.domain.swap.steps.modules import WaitForDevice
from driver_manager.domain.swap.steps.mounts import RemoveArtifacts
from driver_manager.domain.swap.vfio_return import make_virtual_again, return_devices, wait_for_machines


def plan_kmm(now: Situation, module: KmmModule) -> Plan:
    """What a run would do: nothing, let KMM load a first driver, or clear the node and let KMM change the driver.

    Raises ConfigError where KMM would have to do what this driver, or our pod, does not allow; and as `planner.plan`.
    """
    now = _without_conflicting(now)
    if key := places_us(now):
        raise ConfigError(
            f"pod {now.obs.own_pod}, which is placed by {key}, needs the driver uninstalled, and KMM loads it",
            f"Remove the label {module.asked_key} from the node: KMM then unloads the driver.",
        )
    why = why_change(now, module)
    if not why:
        return _keep(now, module)
    if not is_loaded(now.host, now.profile):
        return _first_load(now, module, why)
    if now.profile.strategy is Strategy.REBOOT:
        raise ConfigError(
            f"{why}, and KMM unloads the old driver as soon as it is asked: profile {now.profile.name} forbids that",
            'Use a profile with strategy = "in-place" if this driver may be unloaded; else change the label yourself '
            "on a drained node, right before its reboot.",
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


def _without_conflicting(now: Situation) -> Situation:
    """`now` without the modules that a load of ours would remove first: KMM has a list of its own for that."""
    host = replace(now.host, removable={})
    return replace(now, host=host, obs=replace(now.obs, host=host))


def _keep(now: Situation, module: KmmModule) -> Plan:
    journal = found_journal(now.obs, now.profile)
    # Who was killed while KMM was at work has not verified anything.
    verified: tuple[AnyStep, ...] = (AwaitKmm(module),) if now.obs.journal is not None else ()
    steps = (*verified, *give_back(journal))
    reason = f"driver is current: KMM has loaded version {module.version} of {module}"
    users = staying(node_pods(now.obs), now.profile, now.policy.eviction, "the driver stays loaded")
    return Plan(Decision.CURRENT, reason, steps, workloads=users)


def _first_load(now: Situation, module: KmmModule, why: str) -> Plan:
    """Nothing can hold the device, so nobody is paused or evicted."""
    check(now)
    taken = taking(now, frozenset(), cordon=False)
    steps = (*wait_for_machines(now), *taken, *_change(now, module), *releasing(now, taken))
    users = staying(node_pods(now.obs), now.profile, now.policy.eviction, "no driver is loaded, so nothing is unloaded")
    return Plan(Decision.NOT_LOADED, f"no driver is loaded: {why}", steps, _warnings(now, module), users)


def _replace(now: Situation, module: KmmModule, why: str) -> Plan:
    before, taken, cleared = before_the_unload(now)
    steps = (
        *wait_for_machines(now),
        *before,
        WaitForDevice(now.policy.device_free_timeout_s),
        *_change(now, module),
        *releasing(now, taken),
    )
    warnings = (*cleared.warnings, *unread_claims(node_pods(now.obs)), *_warnings(now, module))
    return Plan(Decision.REPLACE, why, steps, warnings, cleared.found)


def _change(now: Situation, module: KmmModule) -> tuple[AnyStep, ...]:
    """KMM changes the driver: what speaks of the one before goes first, and nothing of a driver root is touched."""
    paths = now.profile.paths
    stale = (*ready_names(now.profile), paths.state_file, paths.failure_note)
    there = tuple(path for path in stale if path and path in now.host.artifacts)
    return (
        *((RemoveArtifacts(there),) if there else ()),
        *return_devices(now),
        *(() if module.is_asked(now.obs.node.labels) else (AskKmm(module),)),
        AwaitKmm(module),
        *make_virtual_again(now),
    )


def _warnings(now: Situation, module: KmmModule) -> tuple[str, ...]:
    if not now.obs.node.unschedulable:
        return ()
    what = f"node {now.obs.node.name} is cordoned: KMM unloads the driver of such a node, and loads none there"
    return (f"{what}, unless Module {module} tolerates node.kubernetes.io/unschedulable",)
