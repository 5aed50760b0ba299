"""The recovery of a wedged driver: reset its devices, reload it, reboot the node.

`decide` gives the next act: the first of `GUARDS` that answers. Facts that need requests are None in the facts until a
decision asks for them. The attempts are in a record on the host's disk, as the limits outlast a reboot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Annotated

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.fleet.spec import UNDER_WAY_WORDS, decode_node_record
from driver_manager.domain.health.watch import WedgeSeen
from driver_manager.domain.node import Node, NodeChange
from driver_manager.domain.node_state import IS_BLOCKED, WAITS_FOR_APPROVAL, Recovery, RecoveryState, encode_note
from driver_manager.domain.profile import Profile, RecoveryStep
from driver_manager.domain.reboot.state import SlotsSeen
from driver_manager.domain.text import several, without_numbers
from driver_manager.domain.wire import LAST_MOMENT_S, Form, Part, body_of

# The record


class RecoveryOutcome(Enum):
    HEALED = "healed"
    FAILED = "failed"


MAX_ATTEMPTS_KEPT = 50
MOST_ATTEMPTS = 2**31
MAX_DEVICES = 256


class RecoveryAttempt(Struct, frozen=True):
    """One step, from before its approval is consumed until its slot is free again.

    `at_s` is in seconds since the epoch, `uptime_s` in seconds since the boot. `devices` are PCI addresses, none for an
    unknown device. `load` is the load of the driver that was wedged, `served` the number of devices that it served
    before, `pod` the uid of the driver pod that a reload evicts, `since_s` the wedge as in the facts. `approved`: an
    approval was consumed. `started`: the step may have had effects, so it is not done again. `closed`: its slot is free
    and its result is on the Node.
    """

    step: RecoveryStep
    boot_id: str
    at_s: Annotated[int, Part("at", least=0, most=LAST_MOMENT_S)]
    uptime_s: Annotated[float, Part("uptime")]
    devices: tuple[str, ...] = ()
    load: str = ""
    served: Annotated[int, Part(least=0, most=MAX_DEVICES)] = 0
    pod: Annotated[str, Part(is_omitted=True)] = ""
    since_s: Annotated[int, Part("since", least=0, most=LAST_MOMENT_S, is_omitted=True)] = 0
    approved: bool = False
    started: bool = False
    outcome: Annotated[RecoveryOutcome | None, Part()] = None
    reason: Annotated[str, Part(is_omitted=True, chars=400)] = ""
    closed: bool = False

    @property
    def key(self) -> str:
        """The attempt's name, the same in every process, in characters that a Kubernetes name allows."""
        return re.sub("[^a-z0-9-]", "-", f"{self.step.value}-{self.boot_id[:40]}-{self.at_s}".lower())


class RecoveryRecord(Struct, frozen=True):
    """The attempts, the newest last; only the last one may be open. `counts` are all attempts by `step.outcome`.

    `announced` are the steps of the last wedge whose Event was posted, `given_up` is the wedge without a step left.
    `slot` is the step whose slot the node may hold: it is recorded before the slot is taken.
    """

    attempts: tuple[RecoveryAttempt, ...] = ()
    announced: tuple[str, ...] = ()
    given_up: Annotated[str, Part("givenUp")] = ""
    counts: Annotated[Mapping[str, int], Part(is_omitted=True)] = field(default_factory=dict)
    slot: Annotated[RecoveryStep | None, Part(is_omitted=True)] = None

    @property
    def open(self) -> RecoveryAttempt | None:
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and not last.closed else None

    def with_open(self, attempt: RecoveryAttempt) -> RecoveryRecord:
        """The record with `attempt` in place of the open one, or as a new one."""
        before = self.attempts[:-1] if self.open is not None else self.attempts
        return replace(self, attempts=(*before, attempt)[-MAX_ATTEMPTS_KEPT:])

    def judged(self, outcome: RecoveryOutcome, reason: str) -> RecoveryRecord:
        """The record in which the open attempt has ended with `outcome`."""
        attempt = self.open
        if attempt is None:
            return self
        name = f"{attempt.step.value}.{outcome.value}"
        counts = {**self.counts, name: min(MOST_ATTEMPTS, self.counts.get(name, 0) + 1)}
        return replace(self.with_open(replace(attempt, outcome=outcome, reason=reason)), counts=counts)

    def without_open(self) -> RecoveryRecord:
        """The record in which the open attempt, which had no effect, does not count."""
        return replace(self, attempts=self.attempts[:-1]) if self.open is not None else self


class RecoveryRecordUnreadable(ConfigError):
    """The file is not a record that this version can act on."""


RECOVERY_RECORD_FORM = Form(
    "the record of recoveries",
    RecoveryRecordUnreadable,
    "Look at the file on the host and remove it: until then nothing is reset or reloaded on this node.",
)


def encode_recovery_record(record: RecoveryRecord) -> str:
    return RECOVERY_RECORD_FORM.write(body_of(record)) + "\n"


def decode_recovery_record(text: str) -> RecoveryRecord:
    """The record in `text`. Raises RecoveryRecordUnreadable."""
    return RECOVERY_RECORD_FORM.read(text).record(RecoveryRecord)


class ResetAnswer(Struct, frozen=True):
    """The result of a reset: who has the device open ("in use", nothing was done), or the `problem`, "" for none."""

    users: tuple[str, ...] = ()
    problem: str = ""


# The facts of one decision

DAY_S = 24 * 3600
LIMITS: dict[RecoveryStep, tuple[int, int]] = {RecoveryStep.RESET: (2, 3), RecoveryStep.RELOAD: (1, 2)}
"""Maximum attempts for one device: per boot, and in 24 hours. The rebooter limits reboots (REBOOT_ATTEMPTS)."""

HEALTHY_SAMPLES = 3
"""Healthy samples in a row after which a step has helped."""


REPEAT_S = 60.0
"""Seconds after which the driver pod is evicted again: a process may have ended between the record and the request."""


class RecoveryFacts(WedgeSeen, frozen=True, kw_only=True):
    """The facts of one decision. `wall_s` is in seconds since the epoch, `uptime_s` since the boot.

    `patience_s` is how long a step may take to help. `pod` is the uid of the driver pod that we run in, "" without one.
    `is_alone`: no run works on the driver. None until a decision asks for them: `holders`, which have a sick device
    open; `blockers` of a reload, such as pods that may not be evicted; `slots`.
    """

    profile: Profile
    boot_id: str
    wall_s: float
    uptime_s: float
    auto: frozenset[RecoveryStep] = frozenset()
    patience_s: float = 300.0
    node: Node | None = None
    pod: str = ""
    is_alone: bool = True
    holders: tuple[str, ...] | None = None
    blockers: tuple[str, ...] | None = None
    slots: SlotsSeen | None = None

    @property
    def wedge(self) -> str:
        """The name of the wedge, the same in every process."""
        return f"{self.boot_id[:40]}-{self.since_s}"


def steps_left(record: RecoveryRecord, facts: RecoveryFacts) -> tuple[RecoveryStep, ...]:
    """The steps that may still be tried, in order: within their limits, and never below one that this boot has seen."""
    ladder = facts.profile.recovery
    mine = [one for one in record.attempts if _is_about(one, facts.devices)]
    here = [one.step for one in mine if one.boot_id == facts.boot_id]
    least = max((ladder.index(step) for step in here if step in ladder), default=0)
    return tuple(step for step in ladder[least:] if _is_possible(step, facts) and _is_within(step, mine, facts))


def _is_about(attempt: RecoveryAttempt, devices: tuple[str, ...]) -> bool:
    return not attempt.devices or not devices or not set(attempt.devices).isdisjoint(devices)


def _is_possible(step: RecoveryStep, facts: RecoveryFacts) -> bool:
    """A reset needs to know its device."""
    return step is not RecoveryStep.RESET or bool(facts.devices)


def _is_within(step: RecoveryStep, attempts: list[RecoveryAttempt], facts: RecoveryFacts) -> bool:
    if step not in LIMITS:
        return True
    per_boot, per_day = LIMITS[step]
    mine = [one for one in attempts if one.step is step]
    of_devices = [[one for one in mine if not one.devices or device in one.devices] for device in facts.devices]
    return all(
        sum(one.boot_id == facts.boot_id for one in found) < per_boot
        and sum(one.at_s >= facts.wall_s - DAY_S for one in found) < per_day
        for found in of_devices or [mine]
    )


def next_step(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryStep | None:
    """The step to try next: the approved one, else the first automatic one, else the first; None if none is left.

    An automatic reload comes before a reset that is held up: what holds the device may be an operand, which only a
    reload moves.
    """
    left = steps_left(record, facts)
    approved = [step for step in left if step is approved_step(facts)]
    automatic = [step for step in left if step in facts.auto]
    if facts.holders and RecoveryStep.RELOAD in automatic:
        automatic = [step for step in automatic if step is not RecoveryStep.RESET]
    return next(iter((*approved, *automatic, *left)), None)


def approved_step(facts: RecoveryFacts) -> RecoveryStep | None:
    """The step that the Node's annotation names, None for none."""
    key = facts.profile.keys.approve_recovery
    text = facts.node.annotations.get(key) if facts.node is not None and key else None
    return next((step for step in RecoveryStep if step.value == text), None)


# Decisions


class RecoveryAct(Enum):
    """The next act. The first three end a turn, the next two ask for more facts, and all others have effects."""

    NOTHING = "nothing"
    WAIT = "wait"
    REBOOT = "leave it to the rebooter"
    ASK_USERS = "ask who uses the device"
    ASK_SLOTS = "ask which nodes hold the slots"
    ANNOUNCE = "announce the step"
    TAKE_SLOT = "take a slot"
    GRANT = "record the attempt and consume the approval"
    START = "start the step"
    JUDGE = "record the result"
    GIVE_BACK = "release the slot, as the step was not begun"
    CLOSE = "release the slot and report the result"
    GIVE_UP = "report that no step is left"


ENDS = frozenset({RecoveryAct.NOTHING, RecoveryAct.WAIT, RecoveryAct.REBOOT})
ASKS = frozenset({RecoveryAct.ASK_USERS, RecoveryAct.ASK_SLOTS})


class RecoveryDecision(Struct, frozen=True):
    """An act for a reason. `outcome` is the result that JUDGE records."""

    act: RecoveryAct
    reason: str
    step: RecoveryStep | None = None
    outcome: RecoveryOutcome | None = None


def decide(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision:
    """The next act. Total: every record and all facts have one."""
    return next(decision for guard in GUARDS if (decision := guard(record, facts)) is not None)


def _node_is_missing(_: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    return _wait("the Node does not exist") if facts.node is None else None


def _ended(record: RecoveryRecord, _: RecoveryFacts) -> RecoveryDecision | None:
    attempt = record.open
    if attempt is None or attempt.outcome is None:
        return None
    return RecoveryDecision(RecoveryAct.CLOSE, attempt.reason, attempt.step, attempt.outcome)


def _healing(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    """The step was started, and the driver is not wedged any more: wait until it is sure that the step has helped."""
    attempt = record.open
    if attempt is None or not attempt.started or attempt.boot_id != facts.boot_id or facts.is_wedged:
        return None
    if facts.healthy < HEALTHY_SAMPLES:
        done = f"{facts.healthy} of {HEALTHY_SAMPLES} healthy samples"
    elif facts.serving < attempt.served:
        done = f"{facts.serving} of {attempt.served} devices serve"
        if facts.uptime_s - attempt.uptime_s >= facts.patience_s:
            # The node would hold the slot, for which others wait, until a person looks.
            return RecoveryDecision(RecoveryAct.JUDGE, done, attempt.step, RecoveryOutcome.FAILED)
    else:
        why = f"{HEALTHY_SAMPLES} healthy samples, {facts.serving} device(s) serve"
        return RecoveryDecision(RecoveryAct.JUDGE, why, attempt.step, RecoveryOutcome.HEALED)
    return _wait(f"the {attempt.step.value} is done: {done}", attempt.step)


def _unhealed(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    """The step was started, and the driver is still wedged, or wedged again."""
    attempt = record.open
    if attempt is None or not attempt.started:
        return None
    step, is_other_load = attempt.step, bool(attempt.load and facts.load and facts.load != attempt.load)
    why = f"the driver is still wedged: {facts.reason}"
    if attempt.boot_id != facts.boot_id:
        why = "the host was rebooted before the result was known"
    elif facts.since_s not in (0, attempt.since_s) or is_other_load:
        why = f"the driver is wedged again: {facts.reason}"
    elif step is RecoveryStep.RELOAD and facts.pod == attempt.pod:
        if facts.uptime_s - attempt.uptime_s >= REPEAT_S:
            return RecoveryDecision(RecoveryAct.START, "the driver pod is still there", step)
        return _wait("the driver pod is terminating", step)
    elif facts.uptime_s - attempt.uptime_s < facts.patience_s:
        return _wait(f"the {step.value} is done: waiting for healthy samples", step)
    return RecoveryDecision(RecoveryAct.JUDGE, why, step, RecoveryOutcome.FAILED)


def _not_wedged(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    if facts.is_unsure:
        return _held_back(record, facts, "no sample shows whether the driver is still wedged")
    if facts.is_wedged:
        return None
    why = "the driver is not wedged"
    return _give_back(record, why) or RecoveryDecision(RecoveryAct.NOTHING, why)


def _another_boot(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    attempt = record.open
    return _give_back(record, "the host was rebooted") if attempt and attempt.boot_id != facts.boot_id else None


def _outdated(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    """An attempt that was not begun, as a process ended, begins only if all that it was granted for is still so."""
    attempt = record.open
    if attempt is None:
        return None
    is_reset, is_reload = attempt.step is RecoveryStep.RESET, attempt.step is RecoveryStep.RELOAD
    is_there = is_granted(facts, attempt) or approved_step(facts) is attempt.step
    changes = (
        ("another driver was loaded", attempt.load != facts.load),
        ("other devices are sick now", is_reset and attempt.devices != facts.devices),
        ("the driver pod was replaced", is_reload and attempt.pod != facts.pod),
        ("it is not approved any more", attempt.step not in facts.auto and not (attempt.approved and is_there)),
    )
    return next((_give_back(record, why) for why, is_so in changes if is_so), None)


def _exhausted(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    if record.open is not None:
        return None
    tried = [one.step.value for one in record.attempts if _is_about(one, facts.devices)]
    why = f"no step is left after {several(dict.fromkeys(tried)) or 'none'}: {facts.reason}"
    if record.given_up == facts.wedge:
        return _give_back(record, why) or RecoveryDecision(RecoveryAct.NOTHING, why)
    return RecoveryDecision(RecoveryAct.GIVE_UP, why) if next_step(record, facts) is None else None


def _reboot(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    if record.open is not None or next_step(record, facts) is not RecoveryStep.REBOOT:
        return None
    why = "the rebooter takes over"
    return _give_back(record, why) or RecoveryDecision(RecoveryAct.REBOOT, why, RecoveryStep.REBOOT)


def _announce(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    step = _wanted(record, facts)
    if step is None or announcement(facts, step) in record.announced:
        return None
    how = "without approval" if step in facts.auto else f"once the Node has {approval(facts, step)}"
    return RecoveryDecision(RecoveryAct.ANNOUNCE, f"the next step is a {step.value}, {how}: {facts.reason}", step)


def announcement(facts: RecoveryFacts, step: RecoveryStep) -> str:
    """The name of the Event for a step, the same in every process."""
    return f"{facts.wedge}-{step.value}"


def approval(facts: RecoveryFacts, step: RecoveryStep) -> str:
    """The annotation that approves `step`, as kubectl takes it."""
    return f"{facts.profile.keys.approve_recovery}={step.value}"


def _approval(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    step = _wanted(record, facts)
    if step is None or record.open is not None or step in facts.auto or approved_step(facts) is step:
        return None
    return _held_back(record, facts, f"{WAITS_FOR_APPROVAL}: annotate the Node with {approval(facts, step)}")


def _busy(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    why = why_busy(facts)
    return _held_back(record, facts, why) if why else None


def why_busy(facts: RecoveryFacts) -> str:
    """Why another writer has the node now, "" if none has."""
    node, keys, idle = facts.node, facts.profile.keys, facts.profile.idle_states
    if node is None:
        return "the Node does not exist"
    word = node.labels.get(keys.upgrade_state, "")
    found = (
        ("a run works on the driver", not facts.is_alone),
        ("a driver-manager run has taken the node", keys.journal in node.annotations),
        ("a reboot of the node was granted", keys.reboot_in_progress in node.annotations),
        (f"the label {keys.skip} excludes the node", node.labels.get(keys.skip) == "true"),
        (f"the label {keys.upgrade_state} is {word}: its operator upgrades the node", idle and word not in ("", *idle)),
        ("a rollout has the node under way", _is_in_rollout(node, keys.rollout)),
    )
    return next((why for why, is_so in found if is_so), "")


def _is_in_rollout(node: Node, key: str) -> bool:
    """True if a rollout has started the node, or may have: its record cannot be read."""
    text = node.annotations.get(key) if key else None
    try:
        return text is not None and decode_node_record(text).state in UNDER_WAY_WORDS
    except ConfigError:
        return True


def _no_pod(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    if _wanted(record, facts) is not RecoveryStep.RELOAD:
        return None
    if not facts.pod:
        return _held_back(record, facts, "health-watch does not run in the driver pod, which a reload replaces")
    return _held_back(record, facts, "it is unknown which driver is loaded") if not facts.load else None


def _users(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    """Asked before a slot is taken, so that a node that waits for its users holds no slot that others need."""
    step = _wanted(record, facts)
    found = facts.holders if step is RecoveryStep.RESET else facts.blockers
    if found is None:
        return RecoveryDecision(RecoveryAct.ASK_USERS, "check who would be disturbed", step)
    return _held_back(record, facts, f"{IS_BLOCKED}: {several(found, '; ')}") if found else None


def _slot(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    step, seen = _wanted(record, facts), facts.slots
    if record.slot not in (None, step):
        return _give_back(record, f"a {step.value} comes first" if step is not None else "no step is left")
    if seen is None:
        return RecoveryDecision(RecoveryAct.ASK_SLOTS, "check whether the slot is free", step)
    if seen.problem:
        return _held_back(record, facts, seen.problem)
    uid = facts.node.uid if facts.node is not None else ""
    if seen.slots.held_by(uid) is not None:
        return None
    others = [holder.node for holder in seen.slots.without(seen.gone).holders]
    if others:
        return _held_back(record, facts, f"waits for the slot, which {several(sorted(others))} holds")
    return RecoveryDecision(RecoveryAct.TAKE_SLOT, "the slot is free", step)


def _grant(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    step = _wanted(record, facts)
    return RecoveryDecision(RecoveryAct.GRANT, "every condition is met", step) if record.open is None else None


def _start(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryDecision | None:
    return RecoveryDecision(RecoveryAct.START, "every condition is met", _wanted(record, facts))


GUARDS: tuple[Callable[[RecoveryRecord, RecoveryFacts], RecoveryDecision | None], ...] = (
    _node_is_missing,
    _ended,
    _healing,
    _unhealed,
    _not_wedged,
    _another_boot,
    _outdated,
    _exhausted,
    _reboot,
    _announce,
    _approval,
    _busy,
    _no_pod,
    _users,
    _slot,
    _grant,
    _start,
)


def _wanted(record: RecoveryRecord, facts: RecoveryFacts) -> RecoveryStep | None:
    """The step of the open attempt, or the next one."""
    return record.open.step if record.open is not None else next_step(record, facts)


def _wait(why: str, step: RecoveryStep | None = None) -> RecoveryDecision:
    return RecoveryDecision(RecoveryAct.WAIT, why, step)


def _give_back(record: RecoveryRecord, why: str) -> RecoveryDecision | None:
    step = record.open.step if record.open is not None else record.slot
    return RecoveryDecision(RecoveryAct.GIVE_BACK, why, step) if step is not None else None


def _held_back(record: RecoveryRecord, facts: RecoveryFacts, why: str) -> RecoveryDecision:
    """Wait, but first release what was taken, so that no other node waits for this one."""
    return _give_back(record, why) or _wait(why, _wanted(record, facts))


# What health-watch and the Node show of a decision


def shown(record: RecoveryRecord, facts: RecoveryFacts, decision: RecoveryDecision) -> Recovery:
    """The recovery after a turn that ended with `decision`."""
    attempt, step = record.open, decision.step
    state = RecoveryState.NONE
    if facts.is_wedged and record.given_up == facts.wedge:
        state = RecoveryState.NEEDS_SERVICE
    elif attempt is not None and attempt.started:
        state, step = RecoveryState.UNDER_WAY, attempt.step
    elif facts.is_wedged or facts.is_unsure:
        state = RecoveryState.WAITING
    return Recovery(
        step=step.value if step is not None and state is not RecoveryState.NONE else "",
        state=state,
        reason=decision.reason if state is not RecoveryState.NONE else "",
        since_s=facts.since_s if facts.is_wedged or facts.is_unsure else 0,
        is_open=attempt is not None
        or record.slot is not None
        or (state is RecoveryState.WAITING and step is not RecoveryStep.REBOOT),
        counts=dict(record.counts),
    )


def note_change(facts: RecoveryFacts, seen: Recovery) -> NodeChange:
    """The change after which the Node shows `seen`; an approval does not outlast its wedge. Empty if it shows it."""
    node, keys = facts.node, facts.profile.keys
    if node is None or not keys.recovery or (facts.is_unsure and seen.state is RecoveryState.WAITING):
        return NodeChange()
    wanted = encode_note(seen) if seen.state is not RecoveryState.NONE else None
    there = node.annotations.get(keys.recovery)
    notes: dict[str, str | None] = {}
    if without_numbers(there or "") != without_numbers(wanted or ""):
        notes[keys.recovery] = wanted
    if wanted is None and keys.approve_recovery in node.annotations:
        notes[keys.approve_recovery] = None
    return NodeChange(annotations=notes)


def granted(facts: RecoveryFacts, attempt: RecoveryAttempt) -> NodeChange:
    """The patch of the grant: it consumes an approval, and names the attempt."""
    keys = facts.profile.keys
    notes: dict[str, str | None] = {keys.recovery: _granted_note(attempt)}
    return NodeChange(annotations=notes | ({keys.approve_recovery: None} if attempt.approved else {}))


def _granted_note(attempt: RecoveryAttempt) -> str:
    return encode_note(Recovery(attempt.step.value, RecoveryState.UNDER_WAY, f"attempt {attempt.key}"))


def is_granted(facts: RecoveryFacts, attempt: RecoveryAttempt) -> bool:
    """True if the patch of the grant has reached the Node: then it has consumed the approval."""
    node = facts.node
    note = node.annotations.get(facts.profile.keys.recovery) if node is not None else None
    return attempt.started or note == _granted_note(attempt)


def given_back(facts: RecoveryFacts, attempt: RecoveryAttempt) -> NodeChange:
    """The patch that restores the approval that `attempt` consumed, while the wedge lasts."""
    key, node = facts.profile.keys.approve_recovery, facts.node
    is_here = (facts.is_wedged or facts.is_unsure) and attempt.boot_id == facts.boot_id
    is_wanted = attempt.approved and is_here and is_granted(facts, attempt)
    is_there = node is not None and key in node.annotations
    return NodeChange(annotations={key: attempt.step.value} if is_wanted and not is_there else {})
