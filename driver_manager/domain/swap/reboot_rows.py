"""The rows of the plan for drivers that only a reboot replaces (strategy `reboot`): no step here unloads anything.

Pure. Must not import the planner, which calls `plan_reboot_driver`.
"""

from __future__ import annotations

from dataclasses import replace

from driver_manager.domain.digest import in_words
from driver_manager.domain.errors import PreflightFailed
from driver_manager.domain.markers import UPGRADE, Marker
from driver_manager.domain.node import NodeChange
from driver_manager.domain.policy import Loader
from driver_manager.domain.reboot.patches import request_labels
from driver_manager.domain.reboot.snapshot import is_foreign
from driver_manager.domain.reboot_wish import RebootWish
from driver_manager.domain.swap.driver_state import is_loaded, places_us, why_replace
from driver_manager.domain.swap.loading import check, loading, making_way, notes, refuse_versions
from driver_manager.domain.swap.node_patches import found_journal, give_back, take
from driver_manager.domain.swap.plan import AnyStep, Decision, Plan
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.modules import LoadModules
from driver_manager.domain.swap.steps.mounts import RemoveArtifacts
from driver_manager.domain.swap.steps.reboot import (
    ClearRebootRequest,
    EndWithoutReboot,
    HoldForReboot,
    RequestReboot,
)


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
        return Plan(Decision.NOT_LOADED, reason, _loaded_by_us(now, work), notes(now))
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
    if marker is None or marker.reason != UPGRADE or not marker.boot_id or is_foreign(marker, now.obs.node.name):
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
    marker = Marker(UPGRADE, host.boot_id, node=node.name, from_driver=host.digest or "", to_driver=now.obs.digest)
    # The evidence of one that is there already is kept: one reboot serves both reasons.
    there = host.marker
    is_asked = there is not None and not there.is_stale(host.boot_id) and not is_foreign(there, node.name)
    labels = request_labels(node, now.profile.keys, UPGRADE)
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
    if marker is None or marker.reason != UPGRADE or not marker.to_driver:
        return False
    return marker.to_driver != now.obs.digest and now.host.digest == now.obs.digest
