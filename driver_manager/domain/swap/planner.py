"""plan(situation) → Plan: the decision table of a run. The first row that matches wins.

Resuming is planning again: the journal of an earlier run is one more fact. Raises the errors that stop a run before its
first effect.
"""

from __future__ import annotations

from msgspec.structs import replace

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
from driver_manager.domain.pods.workloads import PodAction, bound_to_root, plugin_keys, with_action
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
    pause_last,
    ready_names,
    releasing,
    stale_keys,
    taking,
    users_stay,
)
from driver_manager.domain.swap.eviction import (
    driver_pods,
    refuse_unmoved,
    safe_load,
    stale_safe_load,
    wait_for_owners,
    wait_for_stuck,
)
from driver_manager.domain.swap.node_patches import paused_keys
from driver_manager.domain.swap.preflight import (
    is_host_driver,
    is_loaded,
    places_us,
    refuse,
    refuse_if_owned,
    verified,
    versions,
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

# The rows for drivers that only a reboot replaces (strategy `reboot`): no step here unloads a module.


def plan_reboot_driver(situation: Situation) -> Plan:
    """The plan to load into a fresh kernel, ask for a reboot, or clear such a request. Raises as `planner.plan`."""
    host, clear = situation.host, _clear_request(situation)
    is_half_loaded = _is_half_loaded(situation)
    if is_half_loaded or not is_loaded(host, situation.profile):
        reason = "no driver is loaded: a fresh boot can load it"
        if is_half_loaded:
            reason = "an earlier run was interrupted while it loaded the driver"
        check(situation)
        loads = loading(situation)
        # A driver that is not loaded yet is not ready: the outcome of the run shows when it is.
        loads = [*making_way(situation), *loads] if loads else []
        work = (*(_without_state(situation, clear) if loads else clear), *_forget_other_wish(situation), *loads)
        return Plan(Decision.NOT_LOADED, reason, _loaded_by_us(situation, work), load_notes(situation))
    if key := places_us(situation):
        raise PreflightFailed(
            f"pod {situation.obs.own_pod}, which is placed by {key}, needs the driver uninstalled, and this driver "
            "must never be unloaded from a running kernel",
            "Prevent the driver from being loaded at boot, then reboot the node.",
        )
    why, back = why_replace(situation), releasing(situation)
    current = f"digest {in_words(situation.obs.digest)}, loaded since this boot"
    if not why:
        return Plan(Decision.CURRENT, f"driver is current: {current}", (*clear, *_forget_wish(situation), *back))
    if _has_rebooted_for_it(situation):
        is_recorded = bool(situation.obs.digest) and situation.host.digest == situation.obs.digest
        if situation.policy.force_reinstall and is_recorded:
            reason = f"driver is current: {current}, after the reboot for the forced reinstall"
            return Plan(Decision.CURRENT, reason, (*clear, *back))
        return Plan(Decision.REBOOT, f"{why}; a reboot did not change that", (*clear, *back, _end(situation, why)))
    refuse(versions(situation))
    request, hold = _request(situation)
    # Nothing reboots a node that is taken.
    reason = f"{why}; this driver must never be unloaded from a running kernel"
    return Plan(Decision.REBOOT, reason, (request, *back, hold))


def _is_half_loaded(situation: Situation) -> bool:
    """Whether a run of this boot died while it loaded the driver: the node is taken for nothing else.

    By its record on the host: a journal alone may be forged, and the driver that is loaded is then not ours.
    """
    host, is_ours = situation.host, situation.obs.is_resumed and situation.policy.loader is Loader.MANAGER
    return is_ours and is_loaded(host, situation.profile) and host.digest is None and not host.digest_problem


def _loaded_by_us(situation: Situation, work: tuple[AnyStep, ...]) -> tuple[AnyStep, ...]:
    """`work`, and the node taken around it where it loads, so that two runs never do so at once."""
    if not any(isinstance(step, LoadModules) for step in work):
        return (*work, *releasing(situation))
    taken = taking(situation, frozenset(), cordon=False)
    return (*taken, *work, *releasing(situation, taken))


def withdraw_request(situation: Situation) -> tuple[ClearRebootRequest, ...]:
    """The step that takes back what an earlier run asked for, where no run asks for a driver any more."""
    marker = situation.host.marker
    if not situation.profile.paths.reboot_marker:
        return ()
    is_upgrade = marker is not None and marker.reason == UPGRADE_REASON and bool(marker.boot_id)
    if marker is None or not is_upgrade or is_foreign(marker, situation.obs.node.name):
        return _clear_request(situation)
    labels = request_labels(situation.obs.node, situation.profile.keys, None)
    return (ClearRebootRequest(marker, NodeChange(labels), "the host has a driver of its own"),)


def forget_request(situation: Situation) -> tuple[AnyStep, ...]:
    """Steps of a driver that is swapped in place by now, and for which a reboot was asked by an earlier run."""
    if not situation.profile.paths.reboot_marker:
        return ()
    return (*_without_state(situation, _clear_request(situation)), *_forget_wish(situation))


def _request(situation: Situation) -> tuple[RequestReboot, HoldForReboot]:
    node, host, paths = situation.obs.node, situation.host, situation.profile.paths
    digest = situation.obs.digest
    marker = Marker(UPGRADE_REASON, host.boot_id, node=node.name, from_driver=host.digest or "", to_driver=digest)
    # The evidence of one that is there already is kept: one reboot serves both reasons.
    there = host.marker
    is_asked = there is not None and not there.is_stale(host.boot_id) and not is_foreign(there, node.name)
    labels = request_labels(node, situation.profile.keys, UPGRADE_REASON)
    wish = RebootWish(host.boot_id, node.name, digest, situation.policy.force_reinstall)
    noted = None if host.reboot_wish == wish else wish
    return (
        RequestReboot("" if is_asked else paths.reboot_marker, marker, NodeChange(labels), paths.reboot_wish, noted),
        HoldForReboot(situation.policy.no_wait, paths.reboot_marker, marker),
    )


def _without_state(situation: Situation, clear: tuple[ClearRebootRequest, ...]) -> tuple[ClearRebootRequest, ...]:
    """`clear`, after which the Node shows the driver's state as before."""
    key, kept = situation.profile.keys.state, []
    for step in clear:
        labels = {name: value for name, value in step.change.labels.items() if name != key}
        kept.append(replace(step, change=replace(step.change, labels=labels)))
    return tuple(kept)


def _end(situation: Situation, why: str) -> EndWithoutReboot:
    path, digest = situation.profile.paths.reboot_wish, in_words(situation.obs.digest) or "of unknown digest"
    return EndWithoutReboot(
        f"the node has rebooted for driver {digest} since that was requested, and {why}: another reboot would not help",
        "Find out what loads the other driver when the host starts (one of the host's own, another driver pod), or why "
        f"the wanted one did not record its digest. To ask for one more reboot, remove {path} on the host.",
    )


def _has_rebooted_for_it(situation: Situation) -> bool:
    """Whether a reboot was asked for in an earlier boot of this node, for just what is wanted now."""
    wish = situation.host.reboot_wish
    if wish is None or wish.boot_id == situation.host.boot_id:
        return False
    wanted = (situation.obs.node.name, situation.obs.digest, situation.policy.force_reinstall)
    return (wish.node, wish.to_driver, wish.is_forced) == wanted


def _forget_wish(situation: Situation) -> tuple[RemoveArtifacts, ...]:
    """The step that forgets what a reboot was asked for: it is fulfilled, or not wanted any more."""
    return (RemoveArtifacts((situation.profile.paths.reboot_wish,)),) if situation.host.reboot_wish is not None else ()


def _forget_other_wish(situation: Situation) -> tuple[RemoveArtifacts, ...]:
    """The same where another driver is wanted now: what it was asked for may be wanted, and asked for, again."""
    wish = situation.host.reboot_wish
    is_other = wish is not None and bool(situation.obs.digest) and wish.to_driver != situation.obs.digest
    return _forget_wish(situation) if is_other else ()


def _clear_request(situation: Situation) -> tuple[ClearRebootRequest, ...]:
    """The step that clears a request which nothing asks for any more; none where there is no such."""
    # A marker without a boot id is an older operator's: it may be stale or not, so that operator keeps it.
    labels, marker = request_labels(situation.obs.node, situation.profile.keys, None), situation.host.marker
    noted = situation.obs.node.annotations.get(situation.profile.keys.pre_reboot_boot_id, situation.host.boot_id)
    if marker is not None and marker.is_stale(situation.host.boot_id):
        why = "it is of an earlier boot"
    elif marker is None and not situation.host.marker_problem and labels and noted != situation.host.boot_id:
        why = "the node has rebooted since"
    elif _is_dropped(situation):
        why = f"it is for {in_words(marker.to_driver) if marker else ''}, which is not wanted any more"
    else:
        return ()
    return (ClearRebootRequest(marker, NodeChange(labels), why),)


def _is_dropped(situation: Situation) -> bool:
    """True if an upgrade was requested and then given up: the loaded driver is wanted again."""
    marker = situation.host.marker
    if marker is None or marker.reason != UPGRADE_REASON or not marker.to_driver:
        return False
    return marker.to_driver != situation.obs.digest and situation.host.digest == situation.obs.digest


def plan(situation: Situation) -> Plan:
    """What a run would do now, and why.

    Raises ConfigError without a digest to compare, OwnedElsewhere while another run's owner lives, PreflightFailed,
    PodsRemain and DriverBusy when the driver could not be replaced.
    """
    decided = plan_vfio(situation) if situation.policy.mode is Mode.VFIO else _plan_driver(situation)
    _refuse_before_a_reboot(situation, decided)
    return wait_first(situation, decided)


def _plan_driver(situation: Situation) -> Plan:
    refuse_if_owned(situation.obs, take_over=situation.policy.take_over)
    skipped = _is_skipped(situation)
    try:
        decided = _decided(situation)
    except (PodsRemain, PreflightFailed, DriverBusy) as error:
        raise skipped or error from None
    if skipped and any(not isinstance(step, GiveBack) for step in decided.steps):
        raise skipped
    loads = decided.decision in (Decision.NOT_LOADED, Decision.REPLACE) and not places_us(situation)
    first = safe_load(situation) if loads else ()
    # Ask no operator for anything before the obstacles had their time.
    waits = next((at for at, step in enumerate(decided.steps) if not isinstance(step, WaitStep | PlanAgain)), 0)
    steps = (*decided.steps[:waits], *(first or stale_safe_load(situation)), *decided.steps[waits:])
    return replace(decided, steps=steps, warnings=(*_two_digests(situation), *decided.warnings))


def _two_digests(situation: Situation) -> tuple[str, ...]:
    """The warning if our digest differs from the one that the driver container records: no install satisfies it."""
    obs = situation.obs
    if situation.policy.loader is not Loader.CONTAINER or not obs.installed_digest:
        return ()
    wanted = f"the wanted digest {obs.digest} (from {obs.digest_source})"
    theirs = f"that of the driver container of pod {obs.own_pod}, {obs.installed_digest}"
    remedy = "Set DRIVER_CONFIG_DIGEST to the same value in both containers."
    return (f"{wanted} is not {theirs}: the driver is replaced at every start of this pod. {remedy}",)


def _refuse_before_a_reboot(situation: Situation, decided: Plan) -> None:
    """Raise RebootRequired where the node would be taken though its reboot was granted, and may come at any moment."""
    host, keys = situation.host, situation.profile.keys
    if decided.has(TakeNode) and is_granted(situation.obs.node, keys, host.boot_id, host.granted_reboot):
        raise RebootRequired(
            f"the reboot of node {situation.obs.node.name} was granted, and may happen at any moment",
            "No action needed: the run after the reboot continues. `driver-manager status` shows what the reboot "
            f"waits for. If no rebooter runs any more, remove the annotation {keys.reboot_in_progress}.",
        )


def wants_users(situation: Situation) -> bool:
    """Whether claims and holders matter: the loaded driver, or its root, is to go. Raises as `plan`."""
    if situation.policy.mode is Mode.VFIO:
        return is_switch(situation)
    refuse_if_owned(situation.obs, take_over=situation.policy.take_over)
    if situation.profile.strategy is Strategy.REBOOT or not is_loaded(situation.host, situation.profile):
        return False
    if situation.policy.loader is Loader.NONE or _stands_down(situation):
        return False
    if situation.policy.clear_for or why_replace(situation):
        return True
    return bool(situation.host.root_mounts) and _container_starts_again(situation)


def _decided(situation: Situation) -> Plan:
    if situation.policy.clear_for:
        return _clear(situation)
    if situation.policy.loader is Loader.NONE:
        return _with_no_request(situation, _verify(situation))
    if _stands_down(situation):
        return _stand_down(situation)
    if situation.profile.strategy is Strategy.REBOOT:
        return plan_reboot_driver(situation)
    return _with_no_request(situation, _in_place(situation))


def _in_place(situation: Situation) -> Plan:
    if not is_loaded(situation.host, situation.profile):
        return _first_install(situation)
    why = why_replace(situation)
    return _replace(situation, why) if why else _keep(situation)


def _with_no_request(situation: Situation, decided: Plan) -> Plan:
    """`decided`, and at its end the withdrawal of what an earlier run asked of a reboot; the release comes after it.

    A reboot was requested if the profile requires one for a pair of versions.
    """
    forget, steps = forget_request(situation), decided.steps
    if not forget:
        return decided
    end = next((at for at, step in enumerate(steps) if isinstance(step, GiveBack)), len(steps))
    return replace(decided, steps=(*steps[:end], *forget, *steps[end:]))


def _is_skipped(situation: Situation) -> StandingDown | None:
    """By hand, the error for a node that is labelled to be left out; a pod's run is the operator's."""
    key, node = situation.profile.keys.skip, situation.obs.node
    is_labelled = bool(key) and node.labels.get(key) == "true"
    if not is_labelled or situation.obs.own_pod is not None or situation.policy.ignore_skip:
        return None
    return StandingDown(
        f"node {node.name} is labelled {key}=true: it is left out of upgrades",
        "Remove the label, or set IGNORE_SKIP=true (--ignore-skip).",
    )


def _stands_down(situation: Situation) -> bool:
    """Whether a container would install its driver beside the host's own; who only uninstalls takes that one out."""
    return situation.policy.loader is Loader.CONTAINER and is_host_driver(situation) and not places_us(situation)


def _stand_down(situation: Situation) -> Plan:
    deploy = situation.profile.deploy
    step = StandDown(
        key=deploy.driver_key if deploy.prefix else "",
        value=deploy.preinstalled_value,
        timeout_s=situation.policy.pod_termination_timeout_s if situation.obs.own_pod else 0.0,
        why=f"the host has its own driver ({situation.host.host_driver})",
        already_labelled=situation.obs.node.labels.get(deploy.driver_key) == deploy.preinstalled_value,
    )
    return Plan(
        Decision.HOST_DRIVER,
        f"the host has its own driver, {situation.host.host_driver}; a container must not install another",
        (*withdraw_request(situation), *releasing(situation), step),
    )


def _verify(situation: Situation) -> Plan:
    """The host loads its driver itself: release what an earlier run left on the Node, and do nothing else.

    Raises as `verified`, and PreflightFailed if a run was ended while it moved devices to virtual machines: a release
    after a failure would undo that.
    """
    if situation.obs.journal is not None and situation.obs.journal.devices:
        raise PreflightFailed(
            "a run that was giving devices to virtual machines was not completed, and DRIVER_LOAD=none loads no driver",
            "What it changed on the devices is undone when the node is released; the next run tries again.",
        )
    found = verified(situation)
    users = users_stay(situation, "the driver stays loaded")
    decision = Decision.CURRENT if is_loaded(situation.host, situation.profile) else Decision.NOT_LOADED
    return Plan(decision, found.reason, releasing(situation), found.doubts, users)


def _first_install(situation: Situation) -> Plan:
    """No module is loaded, so nothing can hold the device: the run waits only for pods of a stale root."""
    check(situation, keeps_driver=is_installing(situation))
    work: list[AnyStep] = []
    if not is_installing(situation):
        work += making_way(situation)
        if situation.host.modules:  # left behind by a load that failed or was killed
            work.append(UnloadModules(unload_order(situation.host.modules, situation.profile.modules.order)))
        work += clean(situation, driver_files(situation.profile))
    loads = loading(situation)
    work += [*return_devices(situation), *loads, *(make_virtual_again(situation) if loads else ())]
    unmounts = any(isinstance(step, UnmountDriverRoot) for step in work)
    stale = bound_to_root(situation.obs, situation.profile) if unmounts else stale_keys(situation)
    # A run that loads, unloads or unmounts acquires the node, so that two runs never do so at once.
    owns = situation.obs.journal is not None or any(not isinstance(step, RemoveArtifacts) for step in work)
    refuse_unmoved(situation, stale, bound_only=True)
    # No claim is read here: whether or not one is held, a DRA plugin leaves when all others have left.
    last = plugin_keys(situation.obs.pods.pods, situation.profile) & stale
    taken = taking(situation, stale - last, cordon=False) if owns else ()
    plugins = pause_last(situation, last) if owns else ()
    patient = (*wait_for_stuck(situation, stale), *wait_for_machines(situation))
    steps = [*patient, *keep_root(situation), *taken, *plugins, *work, *releasing(situation, taken)]
    reason = "no driver is loaded"
    if places_us(situation):
        reason += ": there is nothing to uninstall"
    elif situation.policy.loader is not Loader.MANAGER:
        reason += ": its container loads it"
    users = users_stay(situation, "no driver is loaded, so nothing is unloaded")
    return Plan(Decision.NOT_LOADED, reason, tuple(steps), load_notes(situation), users)


def _keep(situation: Situation) -> Plan:
    """Loaded and current. A driver container that is about to start replaces its root: operands must close it."""
    version = driver_version(situation.host.modules)
    digest = in_words(situation.obs.digest)
    reason = f"driver is current: digest {digest}, version {version or 'unknown'}, loaded since this boot"
    users = users_stay(situation, "the driver stays loaded")
    if not _container_starts_again(situation) or not situation.host.root_mounts:
        work = clean(situation, ready_names(situation.profile)) if _container_starts_again(situation) else []
        return Plan(Decision.CURRENT, reason, undisturbed(situation, work), workloads=users)
    work = clean(situation, (*ready_names(situation.profile), situation.profile.paths.failure_note))
    check(situation, keeps_driver=True)
    first, last = pause_in_two(situation)
    refuse_unmoved(situation, first, bound_only=True)
    taken = taking(situation, first, cordon=False)
    patient = (*wait_for_owners(situation), *wait_for_stuck(situation, first), *wait_for_machines(situation))
    back = (*return_devices(situation, probes=True), *make_virtual_again(situation))
    # A DRA plugin with the old root is restarted: pods keep their claims, and can end once it is back.
    restarted = last & bound_to_root(situation.obs, situation.profile)
    plugins = pause_last(situation, restarted)
    steps = (*patient, *taken, *plugins, *work, *back, *releasing(situation, taken))
    reason += "; its container restarts, so pods must release the old root"
    why = "pods may hold claims, and could not end without its operand"
    left = last - restarted - paused_keys(situation.obs.node, situation.profile)
    held = tuple(f"{key} is not paused: {why}" for key in sorted(left))
    return Plan(Decision.REBIND, reason, steps, held, users)


def _container_starts_again(situation: Situation) -> bool:
    """Whether we are the init container of a driver container: what an earlier one left on the host is stale."""
    own = situation.obs.own_pod
    return situation.policy.loader is Loader.CONTAINER and own is not None and not own.main_started


def _clear(situation: Situation) -> Plan:
    """All steps before the unload, which the driver container does when its pod is deleted.

    The wanted digest does not matter: a container that is asked to end does not check it.
    """
    why_not = _why_nothing_to_clear(situation)
    if why_not:
        return Plan(Decision.CLEAR, f"nothing to clear: {why_not}")
    drivers = [pod for pod in driver_pods(situation) if not pod.deleting]
    if not drivers and (driver_pods(situation) or situation.obs.journal is not None):
        why_not = "the driver pod is being deleted, or gone: the next one continues"
        return Plan(Decision.CLEAR, f"nothing to clear: {why_not}")
    if not drivers:
        key = situation.profile.deploy.driver_key
        raise ConfigError(
            f"the driver is loaded, and no pod that the label {key} places is on this node to unload it",
            f"Give the driver's DaemonSet a nodeSelector on {key}.",
        )
    before, _, cleared = before_the_unload(situation)
    uids, names = tuple(pod.uid for pod in drivers), tuple(map(str, drivers))
    steps = (
        *before,
        WaitForDevice(situation.policy.device_free_timeout_s, uids),
        MarkCleared(situation.policy.clear_for),
        WaitForRestart(uids, names),
    )
    revision = situation.policy.clear_for
    why = f"driver pod {names[0]} will be deleted for revision {revision}, and then unloads the driver"
    return Plan(Decision.CLEAR, why, steps, cleared.warnings, cleared.found)


def _why_nothing_to_clear(situation: Situation) -> str:
    if situation.policy.loader is Loader.NONE:
        return "the host itself loads the driver, and no run unloads it"
    if situation.policy.loader is Loader.MANAGER:
        return "the manager itself unloads the driver, and clears the node before that"
    if situation.profile.strategy is Strategy.REBOOT:
        return "the driver is changed by a reboot"
    if _stands_down(situation):
        return f"the host has its own driver ({situation.host.host_driver})"
    return "" if is_loaded(situation.host, situation.profile) else "the driver is not loaded"


def _replace(situation: Situation, why: str) -> Plan:
    before, taken, cleared = before_the_unload(situation)
    before = (*wait_for_machines(situation), *before)
    clients = [one.pod for one in with_action(cleared.found, PodAction.RESTART)]
    uids, names, loads = tuple(pod.uid for pod in clients), tuple(map(str, clients)), loading(situation)
    steps: list[AnyStep] = [
        *before,
        WaitForDevice(situation.policy.device_free_timeout_s, uids, "clients of the driver"),
        *making_way(situation),
        UnloadModules(unload_order(situation.host.modules, situation.profile.modules.order), uids, names),
        *clean(situation, driver_files(situation.profile)),
        *return_devices(situation),
        *loads,
        *(make_virtual_again(situation) if loads else ()),
        *releasing(situation, taken),
    ]
    warnings = [*cleared.warnings, *load_notes(situation)]
    if situation.policy.loader is Loader.CONTAINER and situation.obs.own_pod is None:
        by_hand = "run by hand with DRIVER_LOAD=container"
        warnings.append(f"{by_hand}: nothing loads the driver until the driver pod is restarted")
    decision = Decision.UNINSTALL if places_us(situation) else Decision.REPLACE
    return Plan(decision, why, tuple(steps), tuple(warnings), cleared.found)
