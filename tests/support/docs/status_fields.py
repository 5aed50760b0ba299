"""What the status of a DriverRollout shows. `domain.fleet.status` writes it; a test holds the two together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from driver_manager.domain.fleet.state import Phase


class Kind(Enum):
    """What a field holds, in the words of the reference."""

    OBJECT = "object"
    LIST = "list of objects"
    TEXTS = "list of texts"
    WHOLE = "whole number"
    TEXT = "text"
    TIME = "time"
    TRUTH = "true or false"


@dataclass(frozen=True)
class Field:
    """A field of the status. `fields` are those of an object, or of each entry of a list."""

    name: str
    kind: Kind
    meaning: str
    is_required: bool = False
    fields: tuple[Field, ...] = ()


COUNTS = (
    Field("total", Kind.WHOLE, "nodes in all"),
    Field("updated", Kind.WHOLE, "nodes that run the target revision"),
    Field("underWay", Kind.WHOLE, "nodes that are being upgraded"),
    Field("waiting", Kind.WHOLE, "nodes that will be upgraded"),
    Field("leftOut", Kind.WHOLE, "nodes that the rollout does not change"),
    Field("failed", Kind.WHOLE, "nodes whose upgrade failed"),
)
NODE = (
    Field("node", Kind.TEXT, "name of the node"),
    Field("wave", Kind.WHOLE, "number of its wave, from 1; 0 for none"),
    Field("since", Kind.TIME, "since when it is in this state"),
    Field("reason", Kind.TEXT, "why"),
    Field("uid", Kind.TEXT, "its uid"),
    Field("restarted", Kind.TRUTH, "whether its driver was restarted for the target"),
)
GROUP = (
    Field("reason", Kind.TEXT, "why these nodes do not start"),
    Field("count", Kind.WHOLE, "number of nodes"),
    Field("nodes", Kind.TEXTS, "some of their names"),
)
CONDITION = (
    Field("type", Kind.TEXT, "`Ready`, `Reconciling` or `Stalled`", is_required=True),
    Field("status", Kind.TEXT, "`True` or `False`", is_required=True),
    Field("observedGeneration", Kind.WHOLE, "generation of the object that it is about"),
    Field("lastTransitionTime", Kind.TIME, "when its status changed"),
    Field("reason", Kind.TEXT, "the cause in one word"),
    Field("message", Kind.TEXT, "the cause in a sentence"),
)
WAVE = (
    Field("number", Kind.WHOLE, "number of the wave, from 1"),
    Field("name", Kind.TEXT, "name of the wave"),
    *COUNTS,
    Field("ended", Kind.TIME, "when its last node was done, once it has ended"),
)
PREFLIGHT = (
    Field("passes", Kind.WHOLE, "nodes on which the new driver's run would begin"),
    Field("fails", Kind.WHOLE, "nodes on which it would fail"),
    Field("unknown", Kind.WHOLE, "nodes on which that is unknown"),
    Field("running", Kind.WHOLE, "nodes on which the preflight is running"),
)
PROBLEM = (
    Field("node", Kind.TEXT, "name of the node"),
    Field("wave", Kind.WHOLE, "number of its wave, from 1; 0 for none"),
    Field("result", Kind.TEXT, "`fails` or `unknown`"),
    Field("reason", Kind.TEXT, "why"),
)
PAST = (
    Field("revision", Kind.TEXT, "revision that was rolled out"),
    Field("began", Kind.TIME, "when that began"),
    Field("ended", Kind.TIME, "when it ended, if it has"),
    Field("outcome", Kind.TEXT, "how it ended"),
)
LOST = (
    Field("node", Kind.TEXT, "name of the node"),
    Field("uid", Kind.TEXT, "its uid"),
    Field("at", Kind.TIME, "when the rollout missed it"),
    Field("reason", Kind.TEXT, "what it was doing"),
    Field("failed", Kind.TRUTH, "whether it counts as failed; otherwise as lost under way"),
)
WAVE_HISTORY = (
    Field("number", Kind.WHOLE, "number of the wave, from 1"),
    Field("percent", Kind.WHOLE, "percentage that its size was computed from"),
    Field("size", Kind.WHOLE, "most nodes of the wave, fixed when it began"),
    Field("ended", Kind.TIME, "when it ended, and its soak time began"),
    Field("soaked", Kind.WHOLE, "seconds that it had soaked before all of its nodes disappeared"),
)
BACK = (
    Field("from", Kind.TEXT, "revision that the DaemonSet leaves"),
    Field("to", Kind.TEXT, "revision whose template it gets"),
)
STATUS = (
    Field("observedGeneration", Kind.WHOLE, "generation of the object that this status is about"),
    Field("phase", Kind.TEXT, f"one of {', '.join(f'`{phase.value}`' for phase in Phase)}"),
    Field(
        "conditions",
        Kind.LIST,
        "`Ready`: every node runs the target revision; `Reconciling`: the rollout is in progress; `Stalled`: it waits "
        "for a person",
        fields=CONDITION,
    ),
    Field("profile", Kind.TEXT, "profile of the DaemonSet, once a controller with that profile has read it"),
    Field("targetRevision", Kind.TEXT, "revision of the DaemonSet that is rolled out: the hash that its pods carry"),
    Field("goodRevision", Kind.TEXT, "last revision that all nodes ran"),
    Field("failedRevisions", Kind.TEXTS, "revisions that were halted; each is retried only on request"),
    Field("undone", Kind.TEXT, "ID of the last undo request that was done"),
    Field("announced", Kind.TEXT, "the last turn of the waves that an Event was posted for"),
    Field("undoing", Kind.OBJECT, "the undo that is in progress", fields=BACK),
    Field(
        "lost",
        Kind.LIST,
        "nodes that disappeared after their driver was restarted for the target, or failed, at most 200",
        fields=LOST,
    ),
    Field("waveHistory", Kind.LIST, "waves that have begun, with a percentage or a soak time", fields=WAVE_HISTORY),
    Field("retried", Kind.TEXT, "the last request for a retry that was seen, as REVISION:ID"),
    Field("clockSet", Kind.TEXT, "when the controller's clock was last set; the time of nodes counts from then"),
    Field("nodeSeconds", Kind.WHOLE, "median duration of a node"),
    Field("wave", Kind.WHOLE, "number of the current wave, from 1"),
    Field("counts", Kind.OBJECT, "number of nodes by their state in the rollout", fields=COUNTS),
    Field("waves", Kind.LIST, "the waves with their nodes", fields=WAVE),
    Field("underWay", Kind.LIST, "nodes that are being upgraded, the longest first, at most 20", fields=NODE),
    Field("alsoRestarted", Kind.TEXTS, "uids of further nodes whose driver was restarted, at most 500"),
    Field("failures", Kind.LIST, "nodes whose upgrade failed, the earliest first, at most 20", fields=NODE),
    Field("waiting", Kind.LIST, "nodes that will be upgraded, by what they wait for, at most 10 groups", fields=GROUP),
    Field("leftOut", Kind.LIST, "nodes that are left alone, by the reason, at most 10 groups", fields=GROUP),
    Field(
        "preflight", Kind.OBJECT, "nodes that wait, or are left out, by the result of their preflight", fields=PREFLIGHT
    ),
    Field(
        "preflightProblems",
        Kind.LIST,
        "nodes whose preflight fails or could not be run, by name, at most 20",
        fields=PROBLEM,
    ),
    Field("history", Kind.LIST, "the last 10 revisions, the newest last", fields=PAST),
)
