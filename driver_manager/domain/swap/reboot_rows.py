"""The rows of the plan for drivers that only a reboot replaces (strategy `reboot`): no step here unloads anything.

Pure. Must not import the planner, which calls `plan_reboot_driver`.
"""

from __future__ import annotations

from driver_manager.domain.markers import UPGRADE, Marker
from driver_manager.domain.model import NodeChange
from driver_manager.domain.reboot.patches import request_labels
from driver_manager.domain.reboot.snapshot import is_foreign
from driver_manager.domain.swap.driver_state import is_loaded, why_replace
from driver_manager.domain.swap.loading import check, loading
from driver_manager.domain.swap.plan import Decision, Plan
from driver_manager.domain.swap.situation import Situation
from driver_manager.domain.swap.steps.reboot import ClearRebootRequest, HoldForReboot, RequestReboot


def plan_reboot_driver(now: Situation) -> Plan:
    """What a run would do: load the driver into a fresh kernel, ask for a reboot, or clear such a request.

    Raises PreflightFailed and ConfigError as `planner.plan`.
    """
    node, host = now.obs.node, now.host
    stale = host.marker is not None and host.marker.is_stale(host.boot_id)
    clear = _clear_request(now)
    if not is_loaded(host, now.profile):
        reason = "the driver is not loaded: a fresh boot can load it"
        check(now)
        return Plan(Decision.NOT_LOADED, reason, (*clear, *loading(now)))
    why = why_replace(now)
    if not why:
        return Plan(Decision.CURRENT, f"driver is current: digest {now.obs.digest[:12]}, loaded since this boot", clear)
    marker = Marker(UPGRADE, host.boot_id, node=node.name, from_driver=host.digest or "", to_driver=now.obs.digest)
    # The evidence of one that is there already is kept: one reboot serves both reasons.
    is_asked = host.marker is not None and not stale and not is_foreign(host.marker, node.name)
    path, labels = now.profile.paths.reboot_marker, request_labels(node, now.profile.keys, UPGRADE)
    request = RequestReboot("" if is_asked else path, marker, NodeChange(labels))
    return Plan(
        Decision.REBOOT,
        f"{why}; this driver must never be unloaded from a running kernel",
        (request, HoldForReboot(now.policy.no_wait, path, marker)),
    )


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
        why = f"it is for {marker.to_driver[:12] if marker else ''}, which is not wanted any more"
    else:
        return ()
    return (ClearRebootRequest(marker, NodeChange(labels), why),)


def _is_dropped(now: Situation) -> bool:
    """Whether an upgrade was asked for and then given up: what is loaded is wanted again."""
    marker = now.host.marker
    if marker is None or marker.reason != UPGRADE or not marker.to_driver:
        return False
    return marker.to_driver != now.obs.digest and now.host.digest == now.obs.digest
