"""Who may reboot at this moment, over the whole cluster: a value that one compare-and-swap keeps.

A holder is a Node by its uid: one created again under the same name does not inherit. There is no time to live: a
node that does not come back keeps its slot, so that a bad driver stops at the first node. Pure.
"""

from __future__ import annotations

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.wire import Fields, Form


class SlotHolder(Frozen):
    """A node that holds a slot for a reboot out of the boot `boot_id`, since `since_s` seconds after the epoch."""

    node: str
    uid: str
    boot_id: str
    since_s: int = 0


class SlotsUnreadable(ConfigError):
    """Who holds a slot cannot be told."""


FORM = Form(
    "the slots for reboots",
    SlotsUnreadable,
    "Make sure that no node reboots now, then delete the Lease that holds them.",
)


class Slots(Frozen):
    """The slots in use. No uid is in it twice."""

    holders: tuple[SlotHolder, ...] = ()

    def held_by(self, uid: str) -> SlotHolder | None:
        """The entry of the node `uid`, None where it holds no slot."""
        return next((holder for holder in self.holders if holder.uid == uid), None)

    def without(self, gone: frozenset[str]) -> Slots:
        """The same without the nodes whose uids are in `gone`."""
        return Slots(tuple(holder for holder in self.holders if holder.uid not in gone))

    def with_room(self, me: SlotHolder, limit: int) -> Slots | None:
        """The same with `me` in it; None where `limit` others hold one. Who is in already stays in."""
        others = self.without(frozenset({me.uid})).holders
        is_in = len(others) < len(self.holders)
        return Slots((*others, me)) if is_in or len(others) < limit else None


class SlotsSeen(Frozen):
    """The slots as read at `version`; `gone` are uids of holders that may be dropped. `problem`: why it is unknown."""

    slots: Slots = Slots()
    version: str = ""
    gone: frozenset[str] = frozenset()
    problem: str = ""


def encode(slots: Slots) -> str:
    """The slots as one line of JSON."""
    holders = [
        {"node": holder.node, "uid": holder.uid, "bootId": holder.boot_id, "since": holder.since_s}
        for holder in slots.holders
    ]
    return FORM.write({"holders": holders})


def decode(text: str) -> Slots:
    """The slots in `text`. Raises SlotsUnreadable: nobody may reboot while it is unknown who does."""
    holders = tuple(_holder(one) for one in FORM.read(text).each("holders"))
    if len({holder.uid for holder in holders}) < len(holders):
        raise FORM.refused("a node is in them twice")
    return Slots(holders)


def _holder(body: Fields) -> SlotHolder:
    holder = SlotHolder(body.text("node"), body.text("uid"), body.text("bootId"), body.whole("since"))
    if not holder.uid:
        raise body.bad("uid", "a uid")
    if holder.node in ("", ".", ".."):  # no Node is at such a path
        raise body.bad("node", "the name of a node")
    return holder
