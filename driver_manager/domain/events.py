"""Reasons of Events on a Node and on a DriverRollout, with their meaning. Alerts depend on these names."""

from __future__ import annotations

DRIVER_RECONCILED = "DriverReconciled"
DRIVER_RECONCILE_FAILED = "DriverReconcileFailed"
DRIVER_UPGRADE_REQUESTED = "DriverUpgradeRequested"
DRIVER_WEDGED = "DriverWedged"
DRIVER_RECOVERED = "DriverRecovered"
DRIVER_WEDGE_MUTED = "DriverWedgeMuted"
DEVICE_LOST = "DeviceLost"
DRIVER_CLIENT_RESTARTED = "DriverClientRestarted"
RECOVERY_REQUIRED = "RecoveryRequired"
RECOVERY_STARTED = "RecoveryStarted"
RECOVERY_SUCCEEDED = "RecoverySucceeded"
RECOVERY_FAILED = "RecoveryFailed"
NEEDS_SERVICE = "NeedsService"
REBOOT_REQUIRED = "RebootRequired"
REBOOT_ESCALATED = "RebootEscalated"
REBOOT_COMPLETED = "RebootCompleted"
REBOOT_WITHDRAWN = "RebootWithdrawn"
REBOOT_FAILED = "RebootFailed"
JOURNAL_FIELD_IGNORED = "JournalFieldIgnored"
NODE_UPGRADE_FAILED = "NodeUpgradeFailed"
ROLLOUT_STARTED = "RolloutStarted"
ROLLOUT_NODE_LOST = "RolloutNodeLost"
ROLLOUT_WAVE_ENDED = "RolloutWaveEnded"
ROLLOUT_SOAKING = "RolloutSoaking"
ROLLOUT_APPROVAL_REQUIRED = "RolloutApprovalRequired"
ROLLOUT_HALTED = "RolloutHalted"
ROLLOUT_UNDO = "RolloutUndo"
ROLLOUT_CANNOT_UNDO = "RolloutCannotUndo"
ROLLOUT_COMPLETE = "RolloutComplete"

EVENTS: dict[str, str] = {
    DRIVER_RECONCILED: "a run changed something and succeeded; what was done and why",
    DRIVER_RECONCILE_FAILED: "a run failed after it had begun; its exit code, what failed, what to do",
    DRIVER_UPGRADE_REQUESTED: "the operator, which manages upgrades on this node, was asked to move the pods it names",
    DRIVER_WEDGED: "health-watch: the driver no longer serves its devices; why, and where the evidence is",
    DRIVER_RECOVERED: "health-watch: a driver that was wedged serves its devices again",
    DRIVER_WEDGE_MUTED: "health-watch is muted by hand: what it had marked for a wedge is withdrawn; until when",
    RECOVERY_REQUIRED: "health-watch: the next step that may end a wedge, and what it waits for; once per step",
    RECOVERY_STARTED: "health-watch: a step that may end a wedge was started; which, and for which devices",
    RECOVERY_SUCCEEDED: "health-watch: the step ended the wedge; what shows that",
    RECOVERY_FAILED: "health-watch: the step did not end the wedge; why",
    NEEDS_SERVICE: "no step that may end the wedge is left, and nothing more is tried; what was tried",
    DEVICE_LOST: "health-watch: a device that served in this boot has left the PCI bus; its address",
    DRIVER_CLIENT_RESTARTED: "a client of an earlier driver was evicted, so that it opens the new one; once per pod",
    REBOOT_REQUIRED: "a marker asks for a reboot, `reason=upgrade` or `recovery`; once for each request",
    REBOOT_ESCALATED: "the allowed number of reboots did not help: check the node; once per request",
    REBOOT_COMPLETED: "the node rebooted, is Ready, and its driver is loaded; how long that took",
    REBOOT_WITHDRAWN: "nothing asks for the reboot any more; what was taken for it was released",
    REBOOT_FAILED: "the host refused to reboot, or nothing rebooted it; the slot was released",
    JOURNAL_FIELD_IGNORED: "a field of the node's journal is ignored, as no run can have written it; which, and why",
    NODE_UPGRADE_FAILED: "a rollout: the node did not get a ready driver of the new revision; which revision, and why",
}
"""Every reason that this program posts on a Node."""

ROLLOUT_EVENTS: dict[str, str] = {
    ROLLOUT_STARTED: "the DaemonSet has a new revision, and its nodes begin to get it",
    ROLLOUT_NODE_LOST: "a node disappeared while it was under way or failed: its name, what it was doing (`Warning`)",
    ROLLOUT_WAVE_ENDED: "no node of the wave waits or is under way any more; the number of done and failed nodes",
    ROLLOUT_SOAKING: "the soak time after a wave has begun: until when",
    ROLLOUT_APPROVAL_REQUIRED: "the next wave waits for an approval (`Warning`)",
    ROLLOUT_HALTED: "no further node starts: too many failed, or the revision failed before (`Warning`)",
    ROLLOUT_UNDO: "the DaemonSet gets the template of an earlier revision, after a halt or as asked (`Warning`)",
    ROLLOUT_CANNOT_UNDO: "an undo was asked for, and there is no revision to go back to (`Warning`)",
    ROLLOUT_COMPLETE: "every node of the rollout runs the revision; their number",
}
"""Every reason that this program posts on a DriverRollout."""


def client_key(uid: str) -> str:
    """The key of the Event for a client's restart: run and health-watch use the same one, so it is posted once."""
    return f"{DRIVER_CLIENT_RESTARTED}-{uid}".lower()
