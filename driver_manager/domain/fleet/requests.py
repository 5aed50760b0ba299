"""Requests of `rollout` commands, and when one is refused because it would change nothing.

A request is a field of the spec, an annotation of the object or an annotation of a Node, which the controller reads.
Every command shows the fleet after its request, as `advance` decides it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.fleet import advance as way
from driver_manager.domain.fleet.advance import advance, survey
from driver_manager.domain.fleet.nodes import place
from driver_manager.domain.fleet.spec import APPROVED, RETRY, UNDO, Fleet, FleetNode, Wave
from driver_manager.domain.fleet.state import NodePhase, NodeStatus, NodeView, Outlook, Phase
from driver_manager.domain.fleet.waves import Survey, is_approved, is_retry_requested
from driver_manager.domain.text import several

LOOK = "`driver-manager rollout status` shows its state."


class Request(Struct, frozen=True):
    """What a command writes: fields of the spec and annotations of the object, and `nodes` to retry.

    `did` describes it in words; `after` is the fleet once it is written.
    """

    did: tuple[str, ...]
    after: Fleet
    spec: Mapping[str, object] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[FleetNode, ...] = ()


def outlook_after(request: Request, now_s: float) -> Outlook:
    """The rollout once the controller has read the request."""
    decided = advance(request.after, now_s)
    if decided.memory.undo_to:  # one decision stores it, and the next one acts on it
        decided = advance(replace(request.after, memory=decided.memory), now_s)
    return decided.outlook


def pause(fleet: Fleet) -> Request:
    """Start no more nodes. Raises ConfigError if the rollout is paused."""
    if fleet.policy.paused:
        raise ConfigError("the rollout is paused already", "Continue it with `driver-manager rollout resume`.")
    return _paused(fleet, "paused; no more nodes start, nodes that have started are completed", is_paused=True)


def resume(fleet: Fleet) -> Request:
    """Start nodes again. Raises ConfigError unless the rollout is paused."""
    if not fleet.policy.paused:
        raise ConfigError("the rollout is not paused", LOOK)
    return _paused(fleet, "resumed", is_paused=False)


def _paused(fleet: Fleet, did: str, *, is_paused: bool) -> Request:
    after = replace(fleet, policy=replace(fleet.policy, paused=is_paused))
    return Request((did,), after, spec={"paused": is_paused})


def approval(fleet: Fleet, now_s: float, wave: int | None) -> Request:
    """Approve the waves up to `wave`, None for the next one. Raises ConfigError."""
    seen = _active(fleet, now_s)
    target, waves = seen.terms.target, fleet.policy.waves
    approved = fleet.wishes.approved if fleet.wishes.approved_for == target else 0
    asking = asking_waves(seen)
    if wave is None:
        wave = _waiting_wave(seen, asking)
    if not 1 <= wave <= len(waves):
        known = ", ".join(_named(number, waves) for number in range(1, len(waves) + 1))
        raise ConfigError(f"there is no wave {wave}", f"The waves are: {known}.")
    if wave <= approved:
        raise ConfigError(f"wave {wave} is approved already for revision {target}", LOOK)
    if not any(number < wave for number in asking):
        raise ConfigError(f"wave {wave} does not wait for an approval", LOOK)
    wishes = replace(fleet.wishes, approved_for=target, approved=wave)
    did = f"approved; waves of revision {target} up to {_named(wave, waves)} may begin"
    return Request((did,), replace(fleet, wishes=wishes), annotations={APPROVED: f"{target}:{wave}"})


def asking_waves(seen: Survey) -> list[int]:
    """The waves with nodes whose following wave still needs an approval."""
    turn, waves = seen.turn, seen.terms.policy.waves
    return [
        view.number
        for view, rule in zip(turn.waves[:-1], waves, strict=False)
        if rule.needs_approval
        and any(view.counts.values())
        and view.number >= turn.reached
        and not is_approved(view.number, seen.terms)
    ]


def retry_of_nodes(fleet: Fleet, now_s: float, names: Sequence[str]) -> Request:
    """Retry these nodes, all or none. Raises ConfigError."""
    seen = _active(fleet, now_s)
    standings = {one.member.node.name: one for one in seen.standings}
    wanted = list(dict.fromkeys(names))
    refused = [f"{name}: {why}" for name in wanted if (why := _why_no_retry(standings.get(name), seen))]
    if refused:
        raise ConfigError(f"nothing to retry: {several(refused, '; ')}", LOOK)
    asked = tuple(replace(standings[name].member.node, wants_retry=True) for name in wanted)
    by_name = {node.name: node for node in asked}
    after = replace(fleet, nodes=tuple(by_name.get(node.name, node) for node in fleet.nodes))
    views = {view.name: view for view in advance(after, now_s).outlook.nodes}
    did = tuple(_tries_again(views[name]) for name in wanted)
    return Request(did, after, nodes=asked)


def _tries_again(view: NodeView) -> str:
    if view.place is NodePhase.LEFT_OUT:
        return f"node {view.name} is checked again"
    return f"node {view.name} is retried: {view.reason or view.place.value}"


def retry_of_revision(fleet: Fleet, now_s: float, wish: str) -> Request:
    """Retry the target revision after it was halted or undone, or nodes were lost. `wish` is its id.

    Raises ConfigError.
    """
    seen = _active(fleet, now_s)
    target, memory = seen.terms.target, fleet.memory
    if memory.undo_to and memory.undo_from == target:
        raise ConfigError(f"the rollout goes back from revision {target} now", LOOK)
    if target not in memory.failed and not seen.lost:
        raise ConfigError(
            f"revision {target} was not halted or undone before",
            "Retry failed nodes by their names: `driver-manager rollout retry NODE`.",
        )
    if is_retry_requested(fleet, target):
        raise ConfigError(f"revision {target} may already be retried", LOOK)
    after = replace(fleet, wishes=replace(fleet.wishes, retry=target, retry_id=wish))
    return Request((f"revision {target} may be retried",), after, annotations={RETRY: f"{target}:{wish}"})


def undo(fleet: Fleet, now_s: float, to: str, wish: str) -> Request:
    """Go back to revision `to` (hash, name, number; "": the last good one). `wish` is its id. Raises ConfigError."""
    seen = _active(fleet, now_s)
    target, memory = seen.terms.target, fleet.memory
    if memory.undo_to and memory.undo_from == target:
        raise ConfigError(f"the rollout already goes back from revision {target} to {memory.undo_to}", LOOK)
    found = way.named_revision(fleet, to) if to else way.last_good(fleet, target)
    if not found:
        what = f"there is no revision {to}" if to else "no earlier revision is known to be good on all nodes"
        raise ConfigError(what, f"Choose one with --to: {_others(fleet, target)}.")
    if found == target:
        remedy = f"Choose another one with --to: {_others(fleet, target)}."
        raise ConfigError(f"revision {found} is the target already", remedy)
    wishes = replace(fleet.wishes, undo=wish, undo_to=found if to else "")
    other = sum(one.member.pod is not None and one.member.pod.revision != found for one in seen.standings)
    those = "1 node runs" if other == 1 else f"{other} nodes run"
    did = f"goes back from revision {target} to {found} by the same rules; {those} another revision now"
    did += "; paused: `rollout resume` starts it" if fleet.policy.paused else ""
    text = f"{wish}:{found}" if to else wish
    return Request((did,), replace(fleet, wishes=wishes), annotations={UNDO: text})


def _active(fleet: Fleet, now_s: float) -> Survey:
    """The survey of the fleet. Raises ConfigError if the rollout does nothing now."""
    seen = survey(fleet, now_s)
    if seen.hold is not None and seen.hold.stands_aside:
        raise ConfigError(f"the rollout does nothing now: {seen.hold.message}", LOOK)
    return seen


def _waiting_wave(seen: Survey, asking: Sequence[int]) -> int:
    """The wave that waits for an approval. Raises ConfigError if none does."""
    gate = seen.turn.gate
    is_waiting = any(one.wave > seen.turn.upto and one.verdict.place is NodePhase.WAITING for one in seen.standings)
    if gate is not None and gate.phase is Phase.WAITING_FOR_APPROVAL and is_waiting:
        return gate.wave + 1
    ahead = f"To approve ahead of time, use --wave {asking[0] + 1}." if asking else "No later wave needs one."
    raise ConfigError("nothing waits for an approval now", ahead)


def _why_no_retry(standing: NodeStatus | None, seen: Survey) -> str:
    """Why a retry would change nothing for the node, "" if it would."""
    if standing is None:
        return "it is not in this rollout, as it has no driver pod of the DaemonSet"
    member, verdict = standing.member, standing.verdict
    if member.node.wants_retry:
        return "a retry was already asked for"
    asked = place(replace(member, node=replace(member.node, wants_retry=True)), seen.terms)
    if (asked.place, asked.reason, asked.wants_turn) != (verdict.place, verdict.reason, verdict.wants_turn):
        return ""
    if asked.place is NodePhase.LEFT_OUT and asked.acts:  # its preflight runs again
        return ""
    reason = f" ({verdict.reason})" if verdict.reason else ""
    return f"it has not failed, it is {verdict.place.value}{reason}"


def _named(number: int, waves: Sequence[Wave]) -> str:
    return f"{number} ({waves[number - 1].name})"


def _others(fleet: Fleet, target: str) -> str:
    """The other revisions, the newest first, as text."""
    known = sorted(fleet.revisions, key=lambda one: -one.number)
    found = [f"{one.number} ({one.hash})" for one in known if one.hash != target]
    return several(found) if found else "there is no other revision"
