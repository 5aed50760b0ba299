"""The sandbox's stories of reboots as data: who asks, who allows it, and how often each node has to reboot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from driver_manager.domain.frozen import Frozen
from driver_manager.domain.markers import RECOVERY, UPGRADE


class RebootStory(Frozen):
    """One story. `reboots` is how often every node does; `recovers`: the chip does by itself, before anybody approves.

    An upgrade is asked for by the real reconcile; a recovery by the real health-watch where the chip `wedges`, else by
    a marker as it writes them.
    """

    name: str
    tells: str
    reason: str
    nodes: int = 1
    approves: bool = True
    recovers: bool = False
    wedges: bool = False
    reboots: int = 1
    env: Mapping[str, str] = field(default_factory=dict)


REBOOT_STORIES = {
    story.name: story
    for story in (
        RebootStory(
            "reboot-approved",
            "an upgrade requests a reboot: the node waits for approval, reboots once, loads the new driver and cleans "
            "up",
            UPGRADE,
        ),
        RebootStory(
            "reboot-recovery",
            "a wedged chip, and recoveries need no approval: the node reboots at once and cleans up",
            RECOVERY,
            approves=False,
            env={"AUTO_RECOVER": "true"},
        ),
        RebootStory(
            "wedge-to-reboot",
            "a chip wedges: health-watch requests a reboot, the rebooter waits for approval, reboots and cleans up",
            RECOVERY,
            wedges=True,
        ),
        RebootStory(
            "reboot-one-slot",
            "two nodes have to reboot, one at a time: the second waits until the first serves again",
            RECOVERY,
            nodes=2,
            env={"REBOOT_CORDON": "true"},
        ),
        RebootStory(
            "reboot-withdrawn",
            "the chip recovers before the approval: the request is withdrawn everywhere, nothing reboots",
            RECOVERY,
            approves=False,
            recovers=True,
            reboots=0,
        ),
    )
}
