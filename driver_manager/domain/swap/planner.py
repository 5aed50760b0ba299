"""plan(situation) → Plan: the decision table of a run. The first row that matches wins.

Pure. Resuming is planning again: the journal of an earlier run is one more fact. Raises the errors that stop a run
before its first effect.
"""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.errors import (
    ConfigError,
    DriverBusy,
    PodsRemain,
    PreflightFailed,
    RebootRequired,
    StandingDown,
)
from driver_manager.domain.host import UPGRADE_REASON, Marker, RebootWish
from driver_manager.domain.node import NodeChange
from driver_manager.domain.observation import Loader, Mode, Situation
from driver_manager.domain.pods.workloads import (
    PodAction,
    bound_to_root,
    node_pods,
    staying,
    unread_claims,
    with_action,
)
from driver_manager.domain.profile import Strategy, driver_version, unload_order
from driver_manager.domain.reboot.decision import request_labels
from driver_manager.domain.reboot.state import is_foreign, is_granted
from driver_manager.domain.swap.building import (
    before_the_unload,
    check,
    clean,
    driver_files,
    is_installing,
    keep_root,
    load_notes,
    loading,
    making_way,
    pause_in_two,
    ready_names,
    refuse_versions,
    releasing,
    remove_left_over,
    remove_slots,
    stale_keys,
    taking,
)
from driver_manager.domain.swap.eviction import driver_pods, refuse_unmoved, safe_load, stale_safe_load, wait_for_stuck
from driver_manager.domain.swap.node_patches import found_journal, give_back, take
from driver_manager.domain.swap.preflight import (
    is_host_driver,
    is_loaded,
    places_us,
    refuse_if_owned,
    verified,
    why_replace,
)
from driver_manager.domain.swap.retry_wait import wait_first
from driver_manager.domain.swap.steps import (
    AnyStep,
    ClearRebootRequest,
    Decision,
    EndWithoutReboot,
    GiveBack,
    HoldForReboot,
    LoadModules,
    MarkCleared,
    Plan,
    PlanAgain,
    RemoveArtifacts,
    RequestReboot,
    StandDown,
    TakeNode,
    UnloadModules,
    UnmountDriverRoot,
    WaitForDevice,
    WaitForRestart,
    WaitStep,
)
from driver_manager.domain.swap.vfio import (
    is_switch,
    make_virtual_again,
    plan_vfio,
    return_devices,
    undisturbed,
    wait_for_machines,
)
from driver_manager.domain.text import in_words

# The rows of the plan for drivers that only a reboot replaces (strategy `reboot`): no step here unloads anything.
#
# Pure. Must not import the planner, which calls `plan_reboot_driver`.


def plan_reboot_driver(now: Situation) -> Plan:
    """What a run would do: load the driver into a fresh kernel, ask for a reboot, or clear such a request.

    Raises PreflightFailed, ModuleStuck and ConfigError as `planner.plan`.
    """
    host, clear = now.host, _clear_request(now)
    is_half_loaded = _is_half_loaded(now)
    if is_half_loaded or not is_loaded(host, now.profile):
        reason = "no driver is loaded: a fresh boot can load it"
        if is_half_loaded:
            reason = "an earlier run was interrupted while it loaded the driver"
        check(now)
        loads = loading(now)
        # A driver that is yet to be loaded is not ready: the run's end says so.
        loads = [*making_way(now), *loads] if loads else []
        work = (*(_without_state(now, clear) if loads else clear), *_forget_other_wish(now), *loads)
        return Plan(Decision.NOT_LOADED, reason, _loaded_by_us(now, work), load_notes(now))
    if key := places_us(now):
        raise PreflightFailed(
            f"pod {now.obs.own_pod}, which is placed by {key}, needs the driver uninstalled, and this driver must "
            "never be unloaded from a running kernel",
            "Prevent the driver from being loaded at boot, then reboot the node.",
        )
    why, back = why_replace(now), give_back(found_journal(now.obs, now.profile))
    current = f"digest {in_words(now.obs.digest)}, loaded since this boot"
    if not why:
        return Plan(Decision.CURRENT, f"driver is current: {current}", (*clear, *_forget_wish(now), *back))
    if _has_rebooted_for_it(now):
        if now.policy.force_reinstall and _is_recorded(now):
            reason = f"driver is current: {current}, after the reboot for the forced reinstall"
            return Plan(Decision.CURRENT, reason, (*clear, *back))
        return Plan(Decision.REBOOT, f"{why}; a reboot did not change that", (*clear, *back, _end(now, why)))
    refuse_versions(now)
    request, hold = _request(now)
    # Nothing reboots a node that is taken.
    reason = f"{why}; this driver must never be unloaded from a running kernel"
    return Plan(Decision.REBOOT, reason, (request, *back, hold))


def _is_half_loaded(now: Situation) -> bool:
    """Whether a run of this boot died while it loaded the driver: the node is taken for nothing else.

    By its record on the host: a journal alone may be forged, and the driver that is loaded is then not ours.
    """
    host, is_ours = now.host, now.obs.is_resumed and now.policy.loader is Loader.MANAGER
    return is_ours and is_loaded(host, now.profile) and host.digest is None and not host.digest_problem


def _loaded_by_us(now: Situation, work: tuple[AnyStep, ...]) -> tuple[AnyStep, ...]:
    """`work`, and the node taken around it where it loads, so that two runs never do so at once."""
    if not any(isinstance(step, LoadModules) for step in work):
        return (*work, *give_back(found_journal(now.obs, now.profile)))
    taken = take(now.obs, now.profile, frozenset(), cordon=False)
    journal = taken.journal if taken is not None else now.obs.journal
    return (*((taken,) if taken is not None else ()), *work, *give_back(journal))


def withdraw_request(now: Situation) -> tuple[ClearRebootRequest, ...]:
    """The step that takes back what an earlier run asked for, where no run asks for a driver any more."""
    marker = now.host.marker
    if not now.profile.paths.reboot_marker:
        return ()
    if marker is None or marker.reason != UPGRADE_REASON or not marker.boot_id or is_foreign(marker, now.obs.node.name):
        return _clear_request(now)
    labels = request_labels(now.obs.node, now.profile.keys, None)
    return (ClearRebootRequest(marker, NodeChange(labels), "the host has a driver of its own"),)


def forget_request(now: Situation) -> tuple[AnyStep, ...]:
    """Steps of a driver that is swapped in place by now, and for which a reboot was asked by an earlier run."""
    if not now.profile.paths.reboot_marker:
        return ()
    return (*_without_state(now, _clear_request(now)), *_forget_wish(now))


def _request(now: Situation) -> tuple[RequestReboot, HoldForReboot]:
    node, host, paths = now.obs.node, now.host, now.profile.paths
    marker = Marker(
        UPGRADE_REASON, host.boot_id, node=node.name, from_driver=host.digest or "", to_driver=now.obs.digest
    )
    # The evidence of one that is there already is kept: one reboot serves both reasons.
    there = host.marker
    is_asked = there is not None and not there.is_stale(host.boot_id) and not is_foreign(there, node.name)
    labels = request_labels(node, now.profile.keys, UPGRADE_REASON)
    wish = RebootWish(host.boot_id, node.name, now.obs.digest, now.policy.force_reinstall)
    noted = None if host.reboot_wish == wish else wish
    return (
        RequestReboot("" if is_asked else paths.reboot_marker, marker, NodeChange(labels), paths.reboot_wish, noted),
        HoldForReboot(now.policy.no_wait, paths.reboot_marker, marker),
    )


def _without_state(now: Situation, clear: tuple[ClearRebootRequest, ...]) -> tuple[ClearRebootRequest, ...]:
    """`clear`, after which the Node shows the driver's state as before."""
    key = now.profile.keys.state
    kept = (
        replace(step.change, labels={name: value for name, value in step.change.labels.items() if name != key})
        for step in clear
    )
    return tuple(replace(step, change=change) for step, change in zip(clear, kept, strict=True))


def _end(now: Situation, why: str) -> EndWithoutReboot:
    path, digest = now.profile.paths.reboot_wish, in_words(now.obs.digest) or "of unknown digest"
    return EndWithoutReboot(
        f"the node has rebooted for driver {digest} since that was requested, and {why}: another reboot would not help",
        "Find out what loads the other driver when the host starts (one of the host's own, another driver pod), or why "
        f"the wanted one did not record its digest. To ask for one more reboot, remove {path} on the host.",
    )


def _has_rebooted_for_it(now: Situation) -> bool:
    """Whether a reboot was asked for in an earlier boot of this node, for just what is wanted now."""
    wish = now.host.reboot_wish
    return wish is not None and wish.boot_id != now.host.boot_id and _is_wanted(wish, now)


def _is_wanted(wish: RebootWish, now: Situation) -> bool:
    wanted = (now.obs.node.name, now.obs.digest, now.policy.force_reinstall)
    return (wish.node, wish.to_driver, wish.is_forced) == wanted


def _is_recorded(now: Situation) -> bool:
    """Whether the wanted driver was installed in this boot: what tells so is gone with the boot."""
    return bool(now.obs.digest) and now.host.digest == now.obs.digest


def _forget_wish(now: Situation) -> tuple[RemoveArtifacts, ...]:
    """The step that forgets what a reboot was asked for: it is fulfilled, or not wanted any more."""
    return (RemoveArtifacts((now.profile.paths.reboot_wish,)),) if now.host.reboot_wish is not None else ()


def _forget_other_wish(now: Situation) -> tuple[RemoveArtifacts, ...]:
    """The same where another driver is wanted now: what it was asked for may be wanted, and asked for, again."""
    wish = now.host.reboot_wish
    is_other = wish is not None and bool(now.obs.digest) and wish.to_driver != now.obs.digest
    return _forget_wish(now) if is_other else ()


def _clear_request(now: Situation) -> tuple[ClearRebootRequest, ...]:
    """The step that clears a request which nothing asks for any more; none where there is no such."""
    # A marker without a boot id is an older operator's: whether it is stale cannot be told, so it is left to it.
    labels, marker = request_labels(now.obs.node, now.profile.keys, None), now.host.marker
    noted = now.obs.node.annotations.get(now.profile.keys.pre_reboot_boot_id, now.host.boot_id)
    if marker is not None and marker.is_stale(now.host.boot_id):
        why = "it is of an earlier boot"
    elif marker is None and not now.host.marker_problem and labels and noted != now.host.boot_id:
        why = "the node has rebooted since"
    elif _is_dropped(now):
        why = f"it is for {in_words(marker.to_driver) if marker else ''}, which is not wanted any more"
    else:
        return ()
    return (ClearRebootRequest(marker, NodeChange(labels), why),)


def _is_dropped(now: Situation) -> bool:
    """Whether an upgrade was asked for and then given up: what is loaded is wanted again."""
    marker = now.host.marker
    if marker is None or marker.reason != UPGRADE_REASON or not marker.to_driver:
        return False
    return marker.to_driver != now.obs.digest and now.host.digest == now.obs.digest


def plan(now: Situation) -> Plan:
    """What a run would do now, and why.

    Raises ConfigError without a digest to compare, OwnedElsewhere while another run's owner lives, PreflightFailed,
    PodsRemain and DriverBusy when the driver could not be replaced.
    """
    decided = plan_vfio(now) if now.policy.mode is Mode.VFIO else _plan_driver(now)
    _refuse_before_a_reboot(now, decided)
    return wait_first(now, decided)


def _plan_driver(now: Situation) -> Plan:
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
    # Nobody is asked for anything before what is in the way had its time.
    waits = next((at for at, step in enumerate(decided.steps) if not isinstance(step, WaitStep | PlanAgain)), 0)
    steps = (*decided.steps[:waits], *(first or stale_safe_load(now)), *decided.steps[waits:])
    return replace(decided, steps=steps, warnings=(*_two_digests(now), *decided.warnings))


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
    if takes and is_granted(now.obs.node, now.profile.keys, now.host.boot_id, now.host.granted_reboot):
        raise RebootRequired(
            f"the reboot of node {now.obs.node.name} was granted, and may happen at any moment",
            "No action needed: the run after the reboot continues. `driver-manager status` shows what the reboot "
            f"waits for. If no rebooter runs any more, remove the annotation {now.profile.keys.reboot_in_progress}.",
        )


def wants_users(now: Situation) -> bool:
    """Whether claims and holders of the device matter to the plan: the loaded driver, or its root, is to go.

    Raises as `plan`.
    """
    if now.policy.mode is Mode.VFIO:
        return is_switch(now)
    refuse_if_owned(now.obs, take_over=now.policy.take_over)
    if now.profile.strategy is Strategy.REBOOT or not is_loaded(now.host, now.profile):
        return False
    if now.policy.loader is Loader.NONE:
        return False
    if _stands_down(now):
        return False
    return bool(now.policy.clear_for or why_replace(now)) or (
        bool(now.host.root_mounts) and _container_starts_anew(now)
    )


def _decided(now: Situation) -> Plan:
    if now.policy.clear_for:
        return _clear(now)
    if now.policy.loader is Loader.NONE:
        return _with_no_request(now, _verify(now))
    if _stands_down(now):
        return _stand_down(now)
    if now.profile.strategy is Strategy.REBOOT:
        return plan_reboot_driver(now)
    return _with_no_request(now, _in_place(now))


def _in_place(now: Situation) -> Plan:
    if not is_loaded(now.host, now.profile):
        return _first_install(now)
    why = why_replace(now)
    if why:
        return _replace(now, why)
    return _keep(now)


def _with_no_request(now: Situation, decided: Plan) -> Plan:
    """`decided`, and at its end what an earlier run asked of a reboot is taken back: the node is not given back before.

    A reboot was asked for where the profile says so of a pair of versions.
    """
    forget, steps = forget_request(now), decided.steps
    if not forget:
        return decided
    end = next((at for at, step in enumerate(steps) if isinstance(step, GiveBack)), len(steps))
    return replace(decided, steps=(*steps[:end], *forget, *steps[end:]))


def _is_skipped(now: Situation) -> StandingDown | None:
    """By hand, the error for a node that is labelled to be left out; a pod's run is the operator's."""
    key = now.profile.keys.skip
    if not key or now.obs.node.labels.get(key) != "true" or now.obs.own_pod is not None or now.policy.ignore_skip:
        return None
    return StandingDown(
        f"node {now.obs.node.name} is labelled {key}=true: it is left out of upgrades",
        "Remove the label, or use --ignore-skip.",
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


def _verify(now: Situation) -> Plan:
    """The host loads its driver itself: what an earlier run left on the Node is given back, and nothing else is done.

    Raises as `verified`, and PreflightFailed where a run was ended while it gave devices to virtual machines: what such
    a failure gives back, these are part of.
    """
    if now.obs.journal is not None and now.obs.journal.devices:
        raise PreflightFailed(
            "a run that was giving devices to virtual machines was not completed, and DRIVER_LOAD=none loads no driver",
            "Run again: what that run changed on the devices is undone when the node is released.",
        )
    found = verified(now)
    users = staying(node_pods(now.obs), now.profile, now.policy.eviction, "the driver stays loaded")
    decision = Decision.CURRENT if is_loaded(now.host, now.profile) else Decision.NOT_LOADED
    return Plan(decision, found.reason, give_back(found_journal(now.obs, now.profile)), found.doubts, users)


def _first_install(now: Situation) -> Plan:
    """No module loaded: nothing can hold the device, so nobody is evicted or waited for but pods of a stale root."""
    check(now, keeps_driver=is_installing(now))
    work: list[AnyStep] = []
    if not is_installing(now):
        work += making_way(now)
        if now.host.modules:  # left behind by a load that failed or was killed
            work.append(UnloadModules(unload_order(now.host.modules, now.profile.modules.order)))
        work += clean(now, driver_files(now.profile))
    loads = loading(now)
    work += [*return_devices(now), *loads, *(make_virtual_again(now) if loads else ())]
    stale = (
        bound_to_root(now.obs, now.profile)
        if any(isinstance(step, UnmountDriverRoot) for step in work)
        else stale_keys(now)
    )
    # Whoever loads, unloads or unmounts takes the node, so that two runs never do so at once.
    owns = now.obs.journal is not None or any(not isinstance(step, RemoveArtifacts) for step in work)
    refuse_unmoved(now, stale, bound_only=True)
    taken = taking(now, stale, cordon=False) if owns else ()
    patient = (*wait_for_stuck(now, stale), *wait_for_machines(now))
    steps = [*patient, *keep_root(now), *taken, *work, *releasing(now, taken), *remove_slots(now)]
    reason = f"no driver is loaded{_who_loads(now)}"
    users = staying(node_pods(now.obs), now.profile, now.policy.eviction, "no driver is loaded, so nothing is unloaded")
    return Plan(Decision.NOT_LOADED, reason, tuple(steps), load_notes(now), users)


def _who_loads(now: Situation) -> str:
    if places_us(now):
        return ": there is nothing to uninstall"
    loads = now.policy.loader is Loader.MANAGER
    return "" if loads else ": its container loads it"


def _keep(now: Situation) -> Plan:
    """Loaded and current. A driver container about to start anew replaces its root: operands must let go of it."""
    version = driver_version(now.host.modules)
    digest = in_words(now.obs.digest)
    reason = f"driver is current: digest {digest}, version {version or 'unknown'}, loaded since this boot"
    users = staying(node_pods(now.obs), now.profile, now.policy.eviction, "the driver stays loaded")
    if not _container_starts_anew(now):
        end: tuple[AnyStep, ...] = (*undisturbed(now, ()), *remove_left_over(now))
        return Plan(Decision.CURRENT, reason, end, workloads=users)
    work = clean(now, ready_names(now.profile))
    if not now.host.root_mounts:
        return Plan(Decision.CURRENT, reason, undisturbed(now, work), workloads=users)
    work = clean(now, (*ready_names(now.profile), now.profile.paths.failure_note))
    check(now, keeps_driver=True)
    first, last = pause_in_two(now)
    refuse_unmoved(now, first, bound_only=True)
    taken = taking(now, first, cordon=False)
    patient = (*wait_for_stuck(now, first), *wait_for_machines(now))
    back = (*return_devices(now, probes=True), *make_virtual_again(now))
    steps = (*patient, *taken, *work, *back, *releasing(now, taken))
    reason += "; its container restarts, so pods must release the old root"
    held = tuple(
        f"{key} is not paused: pods may hold claims, and could not end without its operand" for key in sorted(last)
    )
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
        return Plan(
            Decision.CLEAR, "nothing to clear: the driver pod is being deleted, or gone: the next one continues"
        )
    if not drivers:
        key = now.profile.deploy.driver_key
        raise ConfigError(
            f"the driver is loaded, and no pod that the label {key} places is on this node to unload it",
            f"Give the driver's DaemonSet a nodeSelector on {key}.",
        )
    before, _, cleared = before_the_unload(now)
    uids, names = tuple(pod.uid for pod in drivers), tuple(map(str, drivers))
    steps = (
        *before,
        WaitForDevice(now.policy.device_free_timeout_s, uids),
        MarkCleared(now.policy.clear_for),
        WaitForRestart(uids, names),
    )
    warnings = (*cleared.warnings, *unread_claims(node_pods(now.obs)))
    why = f"driver pod {names[0]} will be deleted for revision {now.policy.clear_for}, and then unloads the driver"
    return Plan(Decision.CLEAR, why, steps, warnings, cleared.found)


def _why_nothing_to_clear(now: Situation) -> str:
    if now.policy.loader is Loader.NONE:
        return "the host itself loads the driver, and no run unloads it"
    if now.policy.loader is Loader.MANAGER:
        return "the manager itself unloads the driver, and clears the node before that"
    if now.profile.strategy is Strategy.REBOOT:
        return "the driver is changed by a reboot"
    if _stands_down(now):
        return f"the host has its own driver ({now.host.host_driver})"
    return "" if is_loaded(now.host, now.profile) else "the driver is not loaded"


def _replace(now: Situation, why: str) -> Plan:
    before, taken, cleared = before_the_unload(now)
    before = (*wait_for_machines(now), *before)
    clients = [one.pod for one in with_action(cleared.found, PodAction.RESTART)]
    uids, names, loads = tuple(pod.uid for pod in clients), tuple(map(str, clients)), loading(now)
    steps: list[AnyStep] = [
        *before,
        WaitForDevice(now.policy.device_free_timeout_s, uids, "clients of the driver"),
        *making_way(now),
        UnloadModules(unload_order(now.host.modules, now.profile.modules.order), uids, names),
        *clean(now, driver_files(now.profile)),
        *return_devices(now),
        *loads,
        *(make_virtual_again(now) if loads else ()),
        *releasing(now, taken),
        *remove_slots(now),
    ]
    warnings = [*cleared.warnings, *unread_claims(node_pods(now.obs)), *load_notes(now)]
    if now.policy.loader is Loader.CONTAINER and now.obs.own_pod is None:
        warnings.append(
            "run by hand with DRIVER_LOAD=container: nothing loads the driver until the driver pod is restarted"
        )
    decision = Decision.UNINSTALL if places_us(now) else Decision.REPLACE
    return Plan(decision, why, tuple(steps), tuple(warnings), cleared.found)
