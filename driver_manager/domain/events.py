"""The Events on a Node or on a rollout's object by their reasons, each with what it says: names that people alert on.

Pure.
"""

from __future__ import annotations

DRIVER_RECONCILED = "DriverReconciled"
DRIVER_RECONCILE_FAILED = "DriverReconcileFailed"
DRIVER_UPGRADE_REQUESTED = "DriverUpgradeRequested"
DRIVER_WEDGED = "DriverWedged"
DRIVER_RECOVERED = "DriverRecovered"
DRIVER_WEDGE_MUTED = "DriverWedgeMuted"
REBOOT_REQUIRED = "RebootRequired"
REBOOT_ESCALATED = "RebootEscalated"
REBOOT_COMPLETED = "RebootCompleted"
REBOOT_WITHDRAWN = "RebootWithdrawn"
REBOOT_FAILED = "RebootFailed"
NODE_UPGRADE_FAILED = "NodeUpgradeFailed"
ROLLOUT_STARTED = "RolloutStarted"
ROLLOUT_COMPLETE = "RolloutComplete"
ROLLOUT_HALTED = "RolloutHalted"
ROLLOUT_UNDO = "RolloutUndo"
ROLLOUT_CANNOT_UNDO = "RolloutCannotUndo"

EVENTS: dict[str, str] = {
    DRIVER_RECONCILED: "a run changed something and ended well; what was done and why",
    DRIVER_RECONCILE_FAILED: "a run failed after it had begun; its exit code, what failed, what to do",
    DRIVER_UPGRADE_REQUESTED: "the operator, who manages upgrades on this node, was asked to move the pods it names",
    DRIVER_WEDGED: "health-watch: the driver no longer serves its devices; why, and where the evidence is",
    DRIVER_RECOVERED: "health-watch: a driver that was wedged serves its devices again",
    DRIVER_WEDGE_MUTED: "health-watch is muted by hand: what it had marked for a wedge is taken back; until when",
    REBOOT_REQUIRED: "a marker asks for a reboot, `reason=upgrade` or `recovery`; once for each request",
    REBOOT_ESCALATED: "as many reboots as are allowed did not help: a person has to look; once for each request",
    REBOOT_COMPLETED: "the node rebooted, is Ready, and its driver is loaded; how long that took",
    REBOOT_WITHDRAWN: "nothing asks for the reboot any more; what was taken for it was given back",
    REBOOT_FAILED: "the host refused to reboot, or nothing rebooted it; the slot was given back",
    NODE_UPGRADE_FAILED: "the rollout gave this node up; for which revision and why",
    ROLLOUT_STARTED: "on the rollout: a revision that not all nodes have is on its way",
    ROLLOUT_COMPLETE: "on the rollout: every node of the fleet is on the newest revision",
    ROLLOUT_HALTED: "on the rollout: no more nodes begin before somebody has looked; which failed and why",
    ROLLOUT_UNDO: "on the rollout: the DaemonSet gets the template of an earlier revision; of which, and why",
    ROLLOUT_CANNOT_UNDO: "on the rollout: somebody asked to go back, and there is no revision to go back to",
}
"""Every reason that this program posts."""
