"""What the sandbox's fleet looks like at one moment: a row for each node, and how the rollout stands.

Owns what of the objects is shown, in which words. Pure: how it is drawn is the screen's.
Must not import anything but the standard library, the domain and the sandbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from driver_manager.domain.fleet.model import UNDER_WAY, UpgradeState
from driver_manager.domain.fleet.record import NodeRecord, decode
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.profile import NodeKeys
from driver_manager.sandbox.fleet_players import version_of
from driver_manager.sandbox.store import Obj
from driver_manager.sandbox.tables import state_of

NONE = "-"
HEADINGS = ("NODE", "WAVE", "UPGRADE", "DRIVER", "POD", "WHY")
_WORDS_UNDER_WAY = frozenset(state.value for state in UNDER_WAY)


class NodeRow(Frozen):
    """A node: the wave in which it was taken, the word of its label, its driver pod's version and state, and why.

    Why it failed, or waits; what is under way needs no reason.
    """

    node: str
    wave: str
    upgrade: str
    driver: str
    pod: str
    why: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands below the headings."""
        return self.node, self.wave, self.upgrade, self.driver, self.pod, self.why

    @property
    def is_under_way(self) -> bool:
        """Whether the rollout has taken it and has not ended there."""
        return self.upgrade in _WORDS_UNDER_WAY

    @property
    def is_failed(self) -> bool:
        """Whether the rollout has failed there."""
        return self.upgrade == UpgradeState.FAILED.value

    def differs(self, other: NodeRow | None) -> bool:
        """Whether it is news beside `other`. Why is none: a failure's reason is the rollout's, too, and others wait."""
        return other is None or replace(self, why="") != replace(other, why="")


class Picture(Frozen):
    """All nodes by name, and what the rollout's object shows: the revision that it is about, its phase, and the message
    of its conditions.
    """

    target: str = ""
    phase: str = ""
    message: str = ""
    rows: tuple[NodeRow, ...] = ()

    @property
    def headline(self) -> str:
        """How the rollout stands, in one line."""
        return f"{self.phase}: {self.message}" if self.phase else "the controller has not read the rollout yet"


def picture_of(nodes: Iterable[Obj], pods: Iterable[Obj], rollout: Obj | None, keys: NodeKeys) -> Picture:
    """What these objects show; `pods` are those of the driver."""
    status = (rollout or {}).get("status") or {}
    message = next((one["message"] for one in status.get("conditions", ())), "")
    waves = {wave["number"]: wave["name"] for wave in status.get("waves", ())}
    # What holds all of them is the rollout's own message, and need not be said on each line.
    groups = [group for group in status.get("waiting", ()) if not message.startswith(group["reason"])]
    reasons = {name: group["reason"] for group in groups for name in group["nodes"]}
    by_node = {pod["spec"].get("nodeName", ""): pod for pod in pods}
    rows = []
    for node in nodes:
        name = node["metadata"]["name"]
        rows.append(_row(node, by_node.get(name), waves, reasons.get(name, ""), keys))
    return Picture(
        status.get("targetRevision", ""),
        status.get("phase", ""),
        message,
        tuple(sorted(rows, key=lambda one: one.node)),
    )


def record_of(node: Obj, keys: NodeKeys) -> NodeRecord | None:
    """What the rollout has written down on the node."""
    text = node["metadata"].get("annotations", {}).get(keys.rollout)
    return decode(text) if text is not None else None


def _row(node: Obj, pod: Obj | None, waves: Mapping[int, str], waits: str, keys: NodeKeys) -> NodeRow:
    record = record_of(node, keys)
    row = NodeRow(
        node["metadata"]["name"],
        waves.get(record.wave, NONE) if record is not None else NONE,
        node["metadata"].get("labels", {}).get(keys.upgrade_state, NONE),
        version_of(pod) if pod is not None else NONE,
        state_of(pod) if pod is not None else "gone",
    )
    if row.is_failed:
        return replace(row, why=record.reason if record is not None else "")
    return row if row.is_under_way else replace(row, why=waits)
