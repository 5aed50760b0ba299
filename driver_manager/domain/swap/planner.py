"""plan(situation) → Plan: the decision table of reconcile-driver-state.

Pure: no clock, no I/O. Resuming is planning again: a journal from an earlier run is one more fact.
Raises the errors that stop a run before its first effect.
"""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.digest import in_words
from driver_manager.domain.errors import (
    ConfigError,
    DriverBusy,
    OwnedElsewhere,
    PodsRemain,
    PreflightFailed,
    RebootRequired,
    StandingDown,
)
from driver_manager.domain.model import Loader, Observation
from driver_manager.domain.modules import driver_version, unload_order
from driver_manager.domain.pods.operands import bound_to_root, moved_by
from driver_manager.domain.pods.workloads import holds_claim, node_pods, staying, unread_claims
from driver_manager.domain.profile import Strategy
from driver_manager.domain.reboot.state import is_granted
from driver_manager.domain.swap.driver_state import is_host_driver, is_loaded, places_us, why_replace
from driver_manager.domain.swap.eviction_plan import EvictionPlan, clearing, is_managed, safe_load, stale_safe_load
from driver_manager.domain.swap.leftovers import clean, driver_files, is_installing, ready_names
from driver_manager.domain.swap.loading import check, loading, notes
from driver_manager.domain.swap.node_patches import found_journal, give_back, pausable_keys, paused_keys, take
from driver_manager.domain.swap.obstacles import driver_pods, refuse_unmoved, wait_for_holders, wait_for_stuck
from driver_manager.domain.swap.plan import AnyStep, Decision, Plan, PlanAgain
from driver_manager.domain.swap.reboot_rows import plan_reboot_driver, withdraw_request
from driver_manager.domain.swap.retry_wait import wait_first
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.modules import StopServices, UnloadModules, WaitForDevice
from driver_manager.domain.swap.steps.mounts import RemoveArtifacts, UnmountDriverRoot
from driver_manager.domain.swap.steps.node import GiveBack, MarkCleared, PauseLast, StandDown, TakeNode
from driver_manager.domain.swap.steps.pods import WaitForOperands, WaitForRestart
from driver_manager.domain.swap.steps.waits import WaitStep


def plan(now: Situation) -> Plan:
    """What a run would do now, and why.

    Raises ConfigError without a digest to compare, OwnedElsewhere while another run's owner lives, PreflightFailed,
    PodsRemain and DriverBusy when the driver could not be replaced.
    """
    refuse_if_owned(now.obs, take_over=now.policy.take_over)
    skipped = _is_skipped(now)
    try:
        decided = _decided(now)
    except (PodsRemain, PreflightFailed, DriverBusy) as error:
        raise skipped or error from None
    if skipped and any(not isinstance(step, GiveBack) for step in decided.steps):
        raise skipped
    loads = decided.decision in (Decision.NOT_LOADED, Decision.REPLACE) and not places_us(now)
    first = safe_load(now) if loads else ()
    _refuse_before_a_reboot(now, decided)
    # Nobody is asked for anything before what is in the way had its time.
    waits = next((at for at, step in enumerate(decided.steps) if not isinstance(step, WaitStep | PlanAgain)), 0)
    steps = (*decided.steps[:waits], *(first or stale_safe_load(now)), *decided.steps[waits:])
    decided = replace(decided, steps=steps, warnings=(*_two_digests(now), *decided.warnings))
    return wait_first(now, decided)


def _two_digests(now: Situation) -> tuple[str, ...]:
    """What is said where our digest is not the one that the driver container records: no install ever satisfies it."""
    obs = now.obs
    if now.policy.loader is not Loader.CONTAINER or not obs.installed_digest:
        return ()
    wanted = f"the wanted digest {obs.digest} (from {obs.digest_source})"
    theirs = f"that of the driver container of pod {obs.own_pod}, {obs.installed_digest}"
    remedy = "Set DRIVER_CONFIG_DIGEST to the same value in both containers."
    return (f"{wanted} is not {theirs}: the driver is replaced at every start of this pod. {remedy}",)


def _refuse_before_a_reboot(now: Situation, decided: Plan) -> None:
    """Raise RebootRequired where the node would be taken though its reboot was granted, and may come at any moment."""
    takes = any(isinstance(step, TakeNode) for step in decided.steps)
    if takes and is_granted(now.obs.node, now.profile.keys, now.host.boot_id):
        raise RebootRequired(
            f"the reboot of node {now.obs.node.name} was granted, and may come at any moment",
            "Nothing: the run after the reboot goes on. `driver-manager status` says what the reboot waits for. "
            f"Where no rebooter runs any more, remove the annotation {now.profile.keys.reboot_in_progress}.",
        )


def wants_users(now: Situation) -> bool:
    """Whether claims and holders of the device matter to the plan: the loaded driver, or its root, is to go.

    Raises as `plan`.
    """
    refuse_if_owned(now.obs, take_over=now.policy.take_over)
    if now.profile.strategy is Strategy.REBOOT or not is_loaded(now.host, now.profile):
        return False
    if _stands_down(now):
        return False
    return bool(now.policy.clear_for or why_replace(now)) or (
        bool(now.host.root_mounts) and _container_starts_anew(now)
    )


def _decided(now: Situation) -> Plan:
    if now.policy.clear_for:
        return _clear(now)
    if _stands_down(now):
        return _stand_down(now)
    if now.profile.strategy is Strategy.REBOOT:
        return plan_reboot_driver(now)
    if not is_loaded(now.host, now.profile):
        return _first_install(now)
    why = why_replace(now)
    if why:
        return _replace(now, why)
    return _keep(now)


def _is_skipped(now: Situation) -> StandingDown | None:
    """By hand, the error for a node that is labelled to be left out; a pod's run is the operator's."""
    key = now.profile.keys.skip
    if not key or now.obs.node.labels.get(key) != "true" or now.obs.own_pod is not None or now.policy.ignore_skip:
        return None
    return StandingDown(
        f"node {now.obs.node.name} is labelled {key}=true: it is left out of upgrades",
        "Remove the label, or use --ignore-skip.",
    )


def refuse_if_owned(obs: Observation, *, take_over: bool) -> None:
    """Raise OwnedElsewhere when the journal belongs to another run that still lives and `take_over` is not asked."""
    journal = obs.journal
    if journal is None or take_over or obs.owner_alive is False or journal.owner == obs.me:
        return
    doubt = "which is still there" if obs.owner_alive else "of which cannot be told from here whether it lives"
    raise OwnedElsewhere(
        f"node {obs.node.name} is taken by {journal.owner}, {doubt}",
        "Wait for it: a pod resumes by itself when its container starts again. --take-over continues in its place, "
        "once you are sure that it does nothing any more.",
    )


def _stands_down(now: Situation) -> bool:
    """Whether a container would install its driver beside the host's own; who only uninstalls takes that one out."""
    return now.policy.loader is Loader.CONTAINER and is_host_driver(now) and not places_us(now)


def _stand_down(now: Situation) -> Plan:
    deploy = now.profile.deploy
    step = StandDown(
        key=deploy.driver_key if deploy.prefix else "",
        value=deploy.preinstalled_value,
        timeout_s=now.policy.pod_termination_timeout_s if now.obs.own_pod else 0.0,
        why=f"the host has its own driver ({now.host.host_driver})",
        already_labelled=now.obs.node.labels.get(deploy.driver_key) == deploy.preinstalled_value,
    )
    return Plan(
        Decision.HOST_DRIVER,
        f"the host has its own driver, {now.host.host_driver}; a container must not install another",
        (*withdraw_request(now), *give_back(found_journal(now.obs, now.profile)), step),
    )


def _first_install(now: Situation) -> Plan:
    """No module loaded: nothing can hold the device, so nobody is evicted or waited for but pods of a stale root."""
    check(now, keeps_driver=is_installing(now))
    work: list[AnyStep] = []
    if not is_installing(now):
        if now.host.modules:  # left behind by a load that failed or was killed
            work.append(UnloadModules(unload_order(now.host.modules)))
        work += clean(now, driver_files(now.profile))
    work += loading(now)
    stale = (
        bound_to_root(now.obs, now.profile)
        if any(isinstance(step, UnmountDriverRoot) for step in work)
        else frozenset()
    )
    # Whoever loads, unloads or unmounts takes the node, so that two runs never do so at once.
    owns = now.obs.journal is not None or any(not isinstance(step, RemoveArtifacts) for step in work)
    refuse_unmoved(now, stale, bound_only=True)
    taken = _taken(now, stale, cordon=False) if owns else ()
    steps = [*wait_for_stuck(now, stale), *taken, *work, *_release(now, taken)]
    reason = f"the driver is not loaded: {_who_loads(now)}"
    users = staying(node_pods(now.obs), now.profile, now.policy.eviction, "no driver is loaded, so nothing is unloaded")
    return Plan(Decision.NOT_LOADED, reason, tuple(steps), notes(now), users)


def _who_loads(now: Situation) -> str:
    if places_us(now):
        return "there is nothing to uninstall"
    loads = now.policy.loader is Loader.MANAGER
    return "load it" if loads else "its container loads it, the way is made clear"


def _keep(now: Situation) -> Plan:
    """Loaded and current. A driver container about to start anew replaces its root: operands must let go of it."""
    version = driver_version(now.host.modules)
    digest = in_words(now.obs.digest)
    reason = f"driver is current: digest {digest}, version {version or 'unknown'}, loaded since this boot"
    users = staying(node_pods(now.obs), now.profile, now.policy.eviction, "the driver stays loaded")
    if not _container_starts_anew(now):
        return Plan(Decision.CURRENT, reason, give_back(found_journal(now.obs, now.profile)), workloads=users)
    work = clean(now, ready_names(now.profile))
    if not now.host.root_mounts:
        return Plan(Decision.CURRENT, reason, (*work, *give_back(found_journal(now.obs, now.profile))), workloads=users)
    work = clean(now, (*ready_names(now.profile), now.profile.paths.failure_note))
    check(now, keeps_driver=True)
    first, last = _pause_in_two(now)
    refuse_unmoved(now, first, bound_only=True)
    taken = _taken(now, first, cordon=False)
    steps = (*wait_for_stuck(now, first), *taken, *work, *_release(now, taken))
    reason += "; its container starts anew, so pods must let go of the old root"
    held = tuple(f"{key} is not paused: pods may hold claims, and could not end without it" for key in sorted(last))
    return Plan(Decision.REBIND, reason, steps, held, users)


def _container_starts_anew(now: Situation) -> bool:
    """Whether we are the init container of a driver container: what an earlier one left on the host is stale."""
    return now.policy.loader is Loader.CONTAINER and now.obs.own_pod is not None and not now.obs.own_pod.main_started


def _clear(now: Situation) -> Plan:
    """All that comes before the unload, which is the driver container's own: it does that when its pod is deleted.

    Whatever digest is wanted: a container that is told to end does not ask for one.
    """
    why_not = _why_nothing_to_clear(now)
    if why_not:
        return Plan(Decision.CLEAR, f"nothing to clear: {why_not}")
    drivers = [pod for pod in driver_pods(now) if not pod.deleting]
    if not drivers and (driver_pods(now) or now.obs.journal is not None):
        return Plan(Decision.CLEAR, "nothing to clear: the driver pod is being deleted, or gone: the next one goes on")
    if not drivers:
        key = now.profile.deploy.driver_key
        raise ConfigError(
            f"the driver is loaded, and no pod that the label {key} places is on this node to unload it",
            f"Give the driver's DaemonSet a nodeSelector on {key}.",
        )
    before, _, cleared = _before_the_unload(now)
    uids, names = tuple(pod.uid for pod in drivers), tuple(map(str, drivers))
    steps = (
        *before,
        WaitForDevice(now.policy.device_free_timeout_s, uids),
        MarkCleared(now.policy.clear_for),
        WaitForRestart(uids, names),
    )
    warnings = (*cleared.warnings, *unread_claims(node_pods(now.obs)))
    why = f"driver pod {names[0]} is to be deleted for revision {now.policy.clear_for}, and unloads the driver then"
    return Plan(Decision.CLEAR, why, steps, warnings, cleared.found)


def _why_nothing_to_clear(now: Situation) -> str:
    if now.policy.loader is Loader.MANAGER:
        return "the manager itself unloads the driver, and clears the node before that"
    if now.profile.strategy is Strategy.REBOOT:
        return "the driver is changed by a reboot"
    if _stands_down(now):
        return f"the host has its own driver ({now.host.host_driver})"
    return "" if is_loaded(now.host, now.profile) else "the driver is not loaded"


def _replace(now: Situation, why: str) -> Plan:
    before, taken, cleared = _before_the_unload(now)
    steps: list[AnyStep] = [
        *before,
        WaitForDevice(now.policy.device_free_timeout_s),
        UnloadModules(unload_order(now.host.modules)),
        *clean(now, driver_files(now.profile)),
        *loading(now),
        *_release(now, taken),
    ]
    warnings = [*cleared.warnings, *unread_claims(node_pods(now.obs)), *notes(now)]
    if now.policy.loader is Loader.CONTAINER and now.obs.own_pod is None:
        warnings.append(
            "run by hand with DRIVER_LOAD=container: nothing loads the driver until the driver pod is restarted"
        )
    decision = Decision.UNINSTALL if places_us(now) else Decision.REPLACE
    return Plan(decision, why, tuple(steps), tuple(warnings), cleared.found)


def _before_the_unload(now: Situation) -> tuple[tuple[AnyStep, ...], tuple[AnyStep, ...], EvictionPlan]:
    """What makes everybody leave the device; which of it takes the node; and what becomes of users' pods."""
    check(now)
    cleared, cordon = clearing(now), not is_managed(now)
    services = now.host.active_services if now.policy.stop_host_services else ()
    first, last = _pause_in_two(now)
    patient = (*wait_for_stuck(now, first | last, cleared.found), *wait_for_holders(now, cleared.found))
    taken = _taken(now, first, cordon=cordon, services=services)
    # Nothing new shall come while others are waited for, so the cordon is set before that.
    early = _taken(now, frozenset(), cordon=True) if cordon and cleared.first else ()
    if not first:  # nobody to wait for, but somebody may have come before the cordon
        taken = (*taken, WaitForOperands((), (), now.policy.pod_termination_timeout_s))
    steps = (
        *patient,
        *early,
        *cleared.first,
        *taken,
        *cleared.steps,
        *_pause_last(now, last),
        *((StopServices(services),) if services else ()),
    )
    return steps, taken, cleared


def _pause_in_two(now: Situation) -> tuple[frozenset[str], frozenset[str]]:
    """Keys to pause at once, and those that have to wait until no claim is held any more."""
    keys = pausable_keys(now.obs.node, now.profile, now.obs.own_pod)
    last = (
        now.profile.deploy.last_keys
        if holds_claim(node_pods(now.obs), now.profile, now.policy.eviction)
        else frozenset()
    )
    return keys - last, (keys & last) - paused_keys(now.obs.node, now.profile)


def _pause_last(now: Situation, keys: frozenset[str]) -> tuple[AnyStep, ...]:
    if not keys:
        return ()
    names = tuple(sorted(keys))
    pods = tuple(sorted(str(pod) for pod in moved_by(now.obs.pods.pods, keys, now.obs.own_pod)))
    return (PauseLast(names), WaitForOperands(names, pods, now.policy.pod_termination_timeout_s))


def _taken(
    now: Situation, pause: frozenset[str], *, cordon: bool, services: tuple[str, ...] = ()
) -> tuple[AnyStep, ...]:
    step = take(now.obs, now.profile, pause, cordon=cordon, services=services)
    pods = tuple(sorted(str(pod) for pod in moved_by(now.obs.pods.pods, pause, now.obs.own_pod)))
    wait = WaitForOperands(tuple(sorted(pause)), pods, now.policy.pod_termination_timeout_s) if pause else None
    return tuple(found for found in (step, wait) if found is not None)


def _release(now: Situation, taken: tuple[AnyStep, ...]) -> tuple[GiveBack, ...]:
    for step in taken:
        if isinstance(step, TakeNode):
            return (GiveBack(step.journal),)
    return give_back(found_journal(now.obs, now.profile))
