"""The annotation that a rollout keeps on a Node, as versioned JSON. Pure.

It is all that a controller needs to go on where another one died: what the node was taken for, when, and which pod was
to go. Every version of the form ever written stays readable.
"""

from __future__ import annotations

from dataclasses import dataclass

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.escaping import shortened, writable
from driver_manager.domain.wire import Form

MAX_TEXT_CHARS = 500


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What a rollout has done on a node. `since_s` is when the node came to its state, in seconds since the epoch.

    `began_s` is when the node was taken for `revision`. `pod` is the uid of the driver's pod that was to go; whatever
    other pod is there came after it. `boot_id` is that of the node then. `wave` counts from 1. `rollout` is the
    namespace/name of the object. `reason` says why the node is in its state. `outcome_s` is when the last outcome ended
    that the node showed as it was taken, by the clock of the node, 0 without one; None where an earlier version wrote
    the record.
    """

    rollout: str
    revision: str
    wave: int
    pod: str
    boot_id: str
    began_s: float
    since_s: float
    reason: str = ""
    outcome_s: float | None = None


class NodeRecordUnreadable(ConfigError):
    """The annotation is not a rollout's record, as far as this version knows."""


FORM = Form(
    "the rollout's record on the Node",
    NodeRecordUnreadable,
    "Remove the annotation and the upgrade-state label once the node's driver is ready; the rollout then continues "
    "with it.",
    key="v",
    is_compact=True,
)


def encode(record: NodeRecord) -> str:
    """The annotation's value: compact JSON with sorted keys, of bounded length."""
    body = {
        "rollout": record.rollout,
        "revision": record.revision,
        "wave": record.wave,
        "pod": record.pod,
        "boot": record.boot_id,
        "began": round(record.began_s, 3),
        "since": round(record.since_s, 3),
    }
    reason = shortened(writable(record.reason), MAX_TEXT_CHARS)
    told = {"reason": reason} if reason else {}
    outcome = {"outcome": round(record.outcome_s, 3)} if record.outcome_s is not None else {}
    return FORM.write({**body, **told, **outcome})


def decode(text: str) -> NodeRecord:
    """The record in `text`. Raises NodeRecordUnreadable for garbage and for versions newer than this one."""
    body = FORM.read(text)
    return NodeRecord(
        rollout=body.text("rollout"),
        revision=body.text("revision"),
        wave=body.whole("wave"),
        pod=body.text("pod"),
        boot_id=body.text("boot"),
        began_s=body.seconds("began"),
        since_s=body.seconds("since"),
        reason=body.text("reason", ""),
        outcome_s=body.seconds("outcome") if "outcome" in body else None,
    )
