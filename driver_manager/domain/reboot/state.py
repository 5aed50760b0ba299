"""Everything that one decision about a reboot is made of, and what the user allows. Pure."""

from __future__ import annotations

from dataclasses import field

from driver_manager.domain.frozen import Frozen
from driver_manager.domain.markers import REASONS, UPGRADE
from driver_manager.domain.node import Node
from driver_manager.domain.profile import NodeKeys
from driver_manager.domain.reboot.record import Pending, RebootRequest, Record, request_of
from driver_manager.domain.reboot.slots import SlotsSeen
from driver_manager.domain.reboot.snapshot import Snapshot, is_foreign, is_stale
from driver_manager.domain.reboot.windows import Schedule


class RebootPolicy(Frozen):
    """What the user allows. Times in seconds, `grace_s` is how long a reboot command may take to take the host down."""

    node: str
    keys: NodeKeys
    auto_upgrade: bool = False
    auto_recover: bool = False
    min_uptime_s: float = 600.0
    max_attempts: int = 3
    attempt_window_s: float = 24 * 3600.0
    max_concurrent: int = 1
    schedule: Schedule = field(default_factory=Schedule)
    cordon: bool = False
    clear_workloads: bool = False
    grace_s: float = 300.0
    dry_run: bool = False

    def is_automatic(self, reason: str) -> bool:
        """Whether a reboot for `reason` needs no approval."""
        return self.auto_upgrade if reason == UPGRADE else self.auto_recover


def is_granted(node: Node, keys: NodeKeys, boot_id: str, recorded: str | None) -> bool:
    """True if the Node has the grant for a reboot out of this boot, for the reason `recorded` on the host.

    More accounts can write the annotations than the record. Where it cannot be read (None) the Node alone decides: only
    for a caller that the grant holds back.
    """
    notes = node.annotations
    reason = notes.get(keys.reboot_in_progress) if keys.reboot_in_progress else None
    if reason not in REASONS or notes.get(keys.pre_reboot_boot_id) != boot_id:
        return False
    return recorded is None or recorded == reason


class RebootState(Frozen):
    """Everything one decision is made of. `node` is None where the Node does not exist.

    `blockers` and `slots` are None as long as nobody asked for them. `driver_problem` is why the driver does not serve
    its devices yet, "" when it does.
    """

    snapshot: Snapshot
    record: Record
    node: Node | None
    policy: RebootPolicy
    wall_s: float
    driver_problem: str = ""
    is_here: bool = True
    blockers: tuple[str, ...] | None = None
    slots: SlotsSeen | None = None

    @property
    def boot_id(self) -> str:
        """This boot."""
        return self.snapshot.boot_id

    @property
    def request(self) -> RebootRequest | None:
        """The request of this boot and node, None where there is none that may be acted on."""
        marker = self.snapshot.marker
        if marker is None or self.is_stale or is_foreign(marker, self.policy.node):
            return None
        return request_of(marker, self.boot_id)

    @property
    def is_stale(self) -> bool:
        """Whether the marker was written before this boot. An older operator's is of the boot it was announced in."""
        return is_stale(self.snapshot, self.record)

    @property
    def pending(self) -> Pending | None:
        """The reboot under way: as recorded, else as far as the Node tells, which is enough to undo one only."""
        node = self.node
        if self.record.pending is not None or node is None:
            return self.record.pending
        boot = node.annotations.get(self.policy.keys.pre_reboot_boot_id, "")
        reason = node.annotations.get(self.policy.keys.reboot_in_progress, "")
        if reason not in REASONS:
            return None
        return Pending(RebootRequest(boot, reason), node.uid)

    @property
    def here(self) -> Pending | None:
        """The reboot under way out of this boot."""
        pending = self.pending
        return pending if pending is not None and pending.request.boot_id == self.boot_id else None

    @property
    def reason(self) -> str:
        """Why a reboot is required, "" where none is."""
        return self.request.reason if self.request is not None else ""

    @property
    def is_granted(self) -> bool:
        """Whether Node and record have the grant for a reboot out of this boot."""
        return self.node is not None and is_granted(
            self.node, self.policy.keys, self.boot_id, self.record.granted(self.boot_id)
        )

    @property
    def holds_slot(self) -> bool:
        """Whether this node holds a slot for a reboot out of this boot, as far as was asked."""
        held = self.slots.slots.held_by(self.node.uid) if self.slots and self.node else None
        return held is not None and held.boot_id == self.boot_id
