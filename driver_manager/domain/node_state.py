"""The driver's state on the Node: a label with one word, and an annotation with the outcome of the last run.

Every version of the annotation ever written stays readable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from enum import Enum
from typing import Annotated, Any

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain import outage
from driver_manager.domain.errors import ManagerError, RebootRequired, StandingDown, Terminated
from driver_manager.domain.events import NEEDS_SERVICE
from driver_manager.domain.host import Host
from driver_manager.domain.node import MAX_LABEL_VALUE_CHARS, Condition, Node, NodeChange
from driver_manager.domain.outage import Outage
from driver_manager.domain.profile import NodeKeys, Profile, RecoveryStep
from driver_manager.domain.text import shortened, without_numbers, writable
from driver_manager.domain.wire import (
    LAST_MOMENT_S,
    Form,
    Operation,
    Part,
    Unreadable,
    body_of,
    pointer,
    replaced,
    seconds_of,
    written_time,
)

# The driver generation of a node: which driver serves it, since which load of which boot, and since when.
#
# A process that opened the device under an earlier generation has stale handles.

MAX_GENERATION_CHARS = 256
"""Maximum length of each text in the annotation and in records; no digest is longer."""


GENERATION_FORM = Form(
    "the driver generation",
    Unreadable,
    "No action needed: the next driver generation replaces it.",
    key="v",
    is_compact=True,
)


class Sighting(Struct, frozen=True):
    """The host's driver as its files show it now. `load` differs for each load, "" if none is loaded.

    `digest` is the recorded one, "" without one. `marked_s` is the time of the last file by which a driver becomes
    ready, in seconds since the epoch.
    """

    boot_id: str
    load: str = ""
    digest: str = ""
    marked_s: tuple[float, ...] = ()


class Generation(Struct, frozen=True):
    """One driver of one load; `ready_s` is since when it is ready, in seconds since the epoch, 0 where not known."""

    boot_id: Annotated[str, Part(chars=MAX_GENERATION_CHARS)]
    load: Annotated[str, Part(chars=MAX_GENERATION_CHARS)]
    digest: Annotated[str, Part(chars=MAX_GENERATION_CHARS)] = ""
    ready_s: Annotated[float, Part(None)] = 0.0

    def __eq__(self, other: object) -> bool:
        """True for the same boot, load and digest: the Node shows `ready_s` only to the second."""
        return isinstance(other, Generation) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, str, str]:
        return self.boot_id, self.load, self.digest

    def goes_on_as(self, seen: Sighting | Generation) -> bool:
        """Whether these are the same. A digest that is recorded later, or removed, makes no other generation."""
        is_same_load = (self.boot_id, self.load) == (seen.boot_id, seen.load)
        return is_same_load and (self.digest == seen.digest or not (self.digest and seen.digest))


def seen_now(seen: Sighting, earlier: Generation | None, now_s: float) -> Generation:
    """The generation of the host: `earlier`, which was recorded last, or the next one.

    It is ready since its last file was written, or since it is seen, `now_s`, if that file belongs to an earlier
    generation of this boot. Without a file and an earlier generation the time is unknown: no client counts as older.
    """
    if earlier is not None and earlier.goes_on_as(seen):
        return Generation(seen.boot_id, seen.load, earlier.digest or seen.digest, earlier.ready_s)
    before = earlier if earlier is not None and earlier.boot_id == seen.boot_id else None
    return Generation(seen.boot_id, seen.load, seen.digest, _ready_s(seen.marked_s, before, now_s))


def _ready_s(marked_s: Iterable[float], before: Generation | None, now_s: float) -> float:
    own = [moment for moment in marked_s if moment <= now_s and (before is None or moment > before.ready_s)]
    return max(own, default=now_s if before is not None else 0.0)


def encode_generation(generation: Generation) -> str:
    return GENERATION_FORM.write(
        {**body_of(generation), "ready": written_time(generation.ready_s) if generation.ready_s else ""}
    )


def decode_generation(text: str) -> Generation:
    """What `encode` wrote. Raises Unreadable."""
    body = GENERATION_FORM.read(text)
    return body.record(Generation, ready_s=seconds_of(body.text("ready")) or 0.0)


# The recovery of a wedged driver: in health-watch's record on the host, and as an annotation


class RecoveryState(Enum):
    """What is done about a wedge."""

    NONE = "none"
    WAITING = "waiting"
    UNDER_WAY = "under-way"
    NEEDS_SERVICE = "needs-service"


MAX_COUNT = 2**31


class Recovery(Struct, frozen=True):
    """The recovery of the wedge declared at `since_s`: a `step` of the profile's, its state, and the reason for it.

    `is_open`: one more turn is due, even if the driver is not wedged any more. `counts` are steps by `step.outcome`.
    """

    step: Annotated[str, Part(is_omitted=True)] = ""
    state: RecoveryState = RecoveryState.NONE
    reason: Annotated[str, Part(is_omitted=True, chars=400)] = ""
    since_s: Annotated[int, Part("since", least=0, most=LAST_MOMENT_S, is_omitted=True)] = 0
    is_open: Annotated[bool, Part("open", is_omitted=True)] = False
    counts: Annotated[Mapping[str, int], Part(least=0, most=MAX_COUNT, is_omitted=True)] = field(default_factory=dict)


NO_RECOVERY = Recovery()
IS_BLOCKED = "is blocked"
"""Begin of the reason of a step that would disturb a user."""
WAITS_FOR_APPROVAL = "waits for approval"
"""Begin of the reason of a step without an approval."""

_STEPS = frozenset({"", *(step.value for step in RecoveryStep)})
NOTE_FORM = Form("the annotation of a recovery", Unreadable, "It is written again.", key="v", is_compact=True)


def encode_note(seen: Recovery) -> str:
    """What the Node shows of a recovery, as an annotation: step, state and reason."""
    body = body_of(seen)
    return NOTE_FORM.write({key: body[key] for key in ("step", "state", "reason") if key in body})


def decode_note(text: str) -> Recovery | None:
    """The recovery that the annotation `text` shows, None if it cannot be read or names no step of a recovery.

    The step is in commands that `status` suggests, and other writers may change the annotation.
    """
    try:
        found = NOTE_FORM.read(text).record(Recovery)
    except Unreadable:
        return None
    return found if found.step in _STEPS else None


def recovery_text(found: Recovery) -> str:
    """What is done about a wedge, "" if nothing."""
    words = {
        RecoveryState.NONE: "",
        RecoveryState.WAITING: f"next step {found.step}" if found.step else "the next step waits",
        RecoveryState.UNDER_WAY: f"{found.step or 'recovery'} under way",
        RecoveryState.NEEDS_SERVICE: "needs service",
    }[found.state]
    return f"{words}: {found.reason}" if words and found.reason else words


def recovery_on(node: Node, keys: NodeKeys) -> Recovery:
    """The recovery that `node` shows; NO_RECOVERY if it shows none that can be read."""
    text = node.annotations.get(keys.recovery) if keys.recovery else None
    return (decode_note(text) if text is not None else None) or NO_RECOVERY


# The state and the outcome of the last run

MAX_TEXT_CHARS = 500
MAX_STEP_CHARS = 200
MAX_VERSION_CHARS = 64
MAX_COMPARED_CHARS = 200


class NodeState(Enum):
    """The words of the label."""

    READY = "ready"
    UPGRADING = "upgrading"
    HELD = "held"
    FAILED = "failed"
    WEDGED = "wedged"
    REBOOT_REQUIRED = "reboot-required"


Lasting = Set[NodeState]
"""States that outlast a run that fails before it takes the node."""

NONE_LASTS: Lasting = frozenset()
_RECOVERABLE = (NodeState.WEDGED, NodeState.REBOOT_REQUIRED)
"""States that a step of a recovery may end."""


class LastOutcome(Struct, frozen=True):
    """How the last run ended, and `since` when the node is in `state`; times are as `written_time` writes them.

    After a failure with another exit code, `since` is its time. `step` is what the run was doing, "" at its end;
    `digest` the wanted driver's; `version` what was loaded in the end, "" if nothing or unknown; `window` that of the
    last run with one.
    """

    state: NodeState
    exit_code: int
    what: str
    remedy: Annotated[str, Part(is_omitted=True)] = ""
    step: Annotated[str, Part(is_omitted=True)] = ""
    digest: Annotated[str, Part(is_omitted=True)] = ""
    version: Annotated[str, Part(is_omitted=True)] = ""
    ended: str = ""
    since: str = ""
    window: Annotated[Outage | None, Part(None)] = None

    def of(self, wall_s: float, before: LastOutcome | None) -> LastOutcome:
        """As written at `wall_s`, `since` the one `before` if that was the same state, with the last window."""
        now = written_time(wall_s)
        if before is None:
            return replace(self, ended=now, since=now)
        is_same = before.state is self.state and (
            self.state is not NodeState.FAILED or before.exit_code == self.exit_code
        )
        since = before.since if is_same and before.since else now
        return replace(self, ended=now, since=since, window=self.window or before.window)


FORM = Form(
    "the outcome of the last run",
    Unreadable,
    "No action needed: the next run writes it again.",
    key="v",
    is_compact=True,
)


def encode(outcome: LastOutcome) -> str:
    """The annotation's value: compact JSON with sorted keys, of bounded length. No digest is cut."""
    bounded = replace(
        outcome,
        what=shortened(writable(outcome.what), MAX_TEXT_CHARS),
        remedy=shortened(writable(outcome.remedy), MAX_TEXT_CHARS),
        step=shortened(writable(outcome.step), MAX_STEP_CHARS),
        digest=writable(outcome.digest),
        version=shortened(writable(outcome.version), MAX_VERSION_CHARS),
    )
    return FORM.write(body_of(bounded) | ({"window": outcome.window.to_json()} if outcome.window is not None else {}))


def decode(text: str) -> LastOutcome:
    """The outcome in `text`. Raises Unreadable for garbage and for versions newer than this one."""
    body = FORM.read(text)
    return body.record(LastOutcome, window=outage.read_in(body))


def state_on(node: Node, keys: NodeKeys) -> NodeState | None:
    """The state that `node` shows; None where it shows none, or a word that is not known here."""
    word = node.labels.get(keys.state) if keys.state else None
    return next((state for state in NodeState if state.value == word), None)


def outcome_on(node: Node, keys: NodeKeys) -> LastOutcome | None:
    """The outcome that `node` shows; None where it shows none that can be read."""
    text = node.annotations.get(keys.last_outcome) if keys.last_outcome else None
    try:
        return decode(text) if text is not None else None
    except Unreadable:
        return None


def is_shown(node: Node, keys: NodeKeys, outcome: LastOutcome, lasting: Lasting = NONE_LASTS) -> bool:
    """True if `node` shows this, numbers in its message apart, maybe with more text, or if nothing is to be shown."""
    if not keys.state:
        return True
    there = outcome_on(node, keys)
    if there is None or state_on(node, keys) is not word_for(node, keys, outcome, lasting):
        return False
    return _essence(there) == _essence(outcome) and _beginning(there.what).startswith(_beginning(outcome.what))


def _essence(outcome: LastOutcome) -> tuple[Any, ...]:
    step = shortened(writable(outcome.step), MAX_STEP_CHARS)
    return outcome.state, outcome.exit_code, step, writable(outcome.digest)


def _beginning(what: str) -> str:
    return without_numbers(writable(what)[:MAX_COMPARED_CHARS])


def word_for(node: Node, keys: NodeKeys, outcome: LastOutcome, lasting: Lasting = NONE_LASTS) -> NodeState:
    """The label's word after a run with `outcome`: one that failed untaken ends neither a wedge nor a wish."""
    there = state_on(node, keys)
    stays = outcome.state is NodeState.FAILED and there in lasting
    return there if stays and there is not None else outcome.state


def label(node: Node, keys: NodeKeys, state: NodeState) -> dict[str, str | None]:
    """The change of labels after which `node` shows `state`; empty where it does, or nothing is to be shown."""
    if not keys.state or node.labels.get(keys.state) == state.value:
        return {}
    return {keys.state: state.value}


def condition(node: Node, keys: NodeKeys, otherwise: NodeState | None = None) -> Condition | None:
    """The condition of `node` that follows its state label, or `otherwise` without a label; None if it is there.

    Its reason is NeedsService if no step that may end the state is left.
    """
    state = state_on(node, keys) or otherwise
    if state is None or not keys.condition:
        return None
    status = str(state is NodeState.READY)
    reason = "".join(word.capitalize() for word in state.value.split("-"))
    details = keys.last_outcome
    if state in _RECOVERABLE and recovery_on(node, keys).state is RecoveryState.NEEDS_SERVICE:
        reason, details = NEEDS_SERVICE, keys.recovery
    there, why = node.conditions.get(keys.condition, ("", ""))
    if (there, why) == (status, reason):
        return None
    message = f"the state is {state.value}; details are in the annotation {details}"
    return Condition(keys.condition, status, reason, message, is_turned=there != status)


def version_label(node: Node, keys: NodeKeys, version: str) -> dict[str, str | None]:
    """The change of labels after which `node` shows `version`, in the characters of a label; removed if it is ""."""
    value = re.sub(r"[^A-Za-z0-9._-]", "_", version)[:MAX_LABEL_VALUE_CHARS].strip("._-") or None
    return {keys.version: value} if keys.version and node.labels.get(keys.version) != value else {}


def cleared_label(node: Node, keys: NodeKeys) -> dict[str, str | None]:
    """The change of labels after which `node` no longer shows that a reboot is required."""
    return label(node, keys, NodeState.READY) if state_on(node, keys) is NodeState.REBOOT_REQUIRED else {}


def added(
    node: Node, change: NodeChange, keys: NodeKeys, outcome: LastOutcome, lasting: Lasting = NONE_LASTS
) -> NodeChange:
    """`change` of `node`, after which it shows `outcome` too."""
    if not keys.state:
        return change
    word = {keys.state: word_for(node, keys, outcome, lasting).value}
    labels = {**change.labels, **word, **version_label(node, keys, outcome.version)}
    annotations = {**change.annotations, keys.last_outcome: encode(outcome)}
    return replace(change, labels=labels, annotations=annotations)


def operations(node: Node, keys: NodeKeys, outcome: LastOutcome) -> tuple[Operation, ...]:
    """The same as operations of a JSON patch of `node`, which has labels and annotations; tests present values."""
    if not keys.state:
        return ()
    label_there, outcome_there = node.labels.get(keys.state), node.annotations.get(keys.last_outcome)
    return (
        *_put(label_there, word_for(node, keys, outcome).value, "metadata", "labels", keys.state),
        *_put(outcome_there, encode(outcome), "metadata", "annotations", keys.last_outcome),
        *(
            one
            for key, value in version_label(node, keys, outcome.version).items()
            for one in _put(node.labels.get(key), value, "metadata", "labels", key)
        ),
    )


def _put(old: str | None, new: str | None, *where: str) -> tuple[Operation, ...]:
    if old is None:
        return () if new is None else (Operation("add", pointer(*where), new),)
    return replaced(old, new, *where)


def state_after(error: ManagerError) -> NodeState:
    """The state of a node that is not held, after a run that ended with `error`."""
    match error:
        case RebootRequired():
            return NodeState.REBOOT_REQUIRED
        case Terminated():
            return NodeState.FAILED
        case StandingDown():
            return NodeState.READY
    return NodeState.FAILED


def lasting_on(host: Host, profile: Profile) -> Lasting:
    """The states that a run without a change of the driver does not end, by the marks on the host.

    A profile without a ready marker leaves no mark of a wedge, so the label counts.
    """
    state, has_mark = state_of(host, profile), bool(profile.paths.ready_withdrawn)
    wedged = () if has_mark and state is not NodeState.WEDGED else (NodeState.WEDGED,)
    return frozenset(one for one in (state, *wedged) if one is not NodeState.READY)


def state_of(host: Host, profile: Profile) -> NodeState:
    """The state of a driver that no run changed, by the host's marks: first a reboot, then health-watch's."""
    marker = host.marker
    if marker is not None and not marker.is_stale(host.boot_id):
        return NodeState.REBOOT_REQUIRED
    withdrawn = profile.paths.ready_withdrawn
    return NodeState.WEDGED if withdrawn and withdrawn in host.artifacts else NodeState.READY


def is_outdated(node: Node, keys: NodeKeys, lasting: Lasting) -> bool:
    """True if `node` shows what is over once a run ended well without a patch. Only health-watch ends a wedge."""
    match state_on(node, keys):
        case NodeState.UPGRADING | NodeState.HELD | NodeState.FAILED:
            return True
        case NodeState.REBOOT_REQUIRED:
            return NodeState.REBOOT_REQUIRED not in lasting
    return False
