"""Who may reboot at this moment, over the whole cluster: a value that one compare-and-swap keeps.

A holder is a Node by its uid: one created again under the same name does not inherit. There is no time to live: a
node that does not come back keeps its slot, so that a bad driver stops at the first node. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from driver_manager.domain.errors import ConfigError

SCHEMA = 1


@dataclass(frozen=True)
class SlotHolder:
    """A node that holds a slot for a reboot out of the boot `boot_id`, since `since_s` seconds after the epoch."""

    node: str
    uid: str
    boot_id: str
    since_s: int = 0


class SlotsUnreadable(ConfigError):
    """Who holds a slot cannot be told."""


@dataclass(frozen=True)
class Slots:
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


@dataclass(frozen=True)
class SlotsSeen:
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
    return json.dumps({"schema": SCHEMA, "holders": holders}, sort_keys=True)


def decode(text: str) -> Slots:
    """The slots in `text`. Raises SlotsUnreadable: nobody may reboot while it is unknown who does."""
    try:
        body = json.loads(text)
        if body["schema"] != SCHEMA:
            raise _unreadable(f"their schema is {body['schema']!r}, this driver-manager knows {SCHEMA}")
        holders = tuple(_holder(entry) for entry in body["holders"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(f"they are not what they should be ({type(error).__name__})") from error
    if len({holder.uid for holder in holders}) < len(holders):
        raise _unreadable("a node is in them twice")
    return Slots(holders)


def _holder(entry: Any) -> SlotHolder:
    holder = SlotHolder(entry["node"], entry["uid"], entry["bootId"], entry["since"])
    texts = (holder.node, holder.uid, holder.boot_id)
    if not all(isinstance(text, str) for text in texts) or type(holder.since_s) is not int:
        raise ValueError(entry)
    if not holder.uid or holder.node in ("", ".", ".."):  # no Node is at such a path
        raise ValueError(entry)
    return holder


def _unreadable(why: str) -> SlotsUnreadable:
    return SlotsUnreadable(
        f"the slots for reboots cannot be read: {why}",
        "Make sure that no node reboots now, then delete the Lease that holds them.",
    )
