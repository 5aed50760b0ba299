"""The rows of the plan for drivers that only a reboot replaces (strategy `reboot`): no step here unloads anything.

Pure. Must not import the planner, which calls `plan_reboot_driver`.
"""

from __future__ import annotations

from driver_manager.domain.markers import UPGRADE, Marker
from driver_manager.domain.model import Host, NodeChange, Observation, Policy
from driver_manager.domain.profile import Profile
from driver_manager.domain.reboot.patches import request_labels
from driver_manager.domain.reboot.snapshot import is_foreign
from driver_manager.domain.swap.driver_state import is_loaded, why_replace
from driver_manager.domain.swap.loading import check, loading
from driver_manager.domain.swap.plan import Decision, Plan
from driver_manager.domain.swap.steps.reboot import ClearRebootRequest, HoldForReboot, RequestReboot


def plan_reboot_driver(obs: Observation, host: Host, profile: Profile, policy: Policy) -> Plan:
    """What a run would do: load the driver into a fresh kernel, ask for a reboot, or clear such a request.

    Raises PreflightFailed and ConfigError as `planner.plan`.
    """
    paths, stale = profile.paths, host.marker is not None and host.marker.is_stale(host.boot_id)
    clear = _clear_request(obs, host, profile)
    if not is_loaded(host, profile):
        reason = "the driver is not loaded: a fresh boot can load it"
        check(host, profile, policy)
        return Plan(Decision.NOT_LOADED, reason, (*clear, *loading(obs, host, profile, policy)))
    why = why_replace(obs, host, policy)
    if not why:
        return Plan(Decision.CURRENT, f"driver is current: digest {obs.digest[:12]}, loaded since this boot", clear)
    marker = Marker(UPGRADE, host.boot_id, node=obs.node.name, from_driver=host.digest or "", to_driver=obs.digest)
    # The evidence of one that is there already is kept: one reboot serves both reasons.
    is_asked = host.marker is not None and not stale and not is_foreign(host.marker, obs.node.name)
    request = RequestReboot(
        "" if is_asked else paths.reboot_marker, marker, NodeChange(request_labels(obs.node, profile.keys, UPGRADE))
    )
    return Plan(
        Decision.REBOOT,
        f"{why}; this driver must never be unloaded from a running kernel",
        (request, HoldForReboot(policy.no_wait, paths.reboot_marker, marker)),
    )


def _clear_request(obs: Observation, host: Host, profile: Profile) -> tuple[ClearRebootRequest, ...]:
    """The step that clears a request which nothing asks for any more; none where there is no such."""
    # A marker without a boot id is an older operator's: whether it is stale cannot be told, so it is left to it.
    labels, marker = request_labels(obs.node, profile.keys, None), host.marker
    noted = obs.node.annotations.get(profile.keys.pre_reboot_boot_id, host.boot_id)
    if marker is not None and marker.is_stale(host.boot_id):
        why = "it is of an earlier boot"
    elif marker is None and not host.marker_problem and labels and noted != host.boot_id:
        why = "the node has rebooted since"
    elif _is_dropped(marker, obs, host):
        why = f"it is for {marker.to_driver[:12] if marker else ''}, which is not wanted any more"
    else:
        return ()
    return (ClearRebootRequest(marker, NodeChange(labels), why),)


def _is_dropped(marker: Marker | None, obs: Observation, host: Host) -> bool:
    """Whether an upgrade was asked for and then given up: what is loaded is wanted again."""
    if marker is None or marker.reason != UPGRADE or not marker.to_driver:
        return False
    return marker.to_driver != obs.digest and host.digest == obs.digest
