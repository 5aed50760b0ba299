"""What a Node has to show after a run: one rule for every run of every test, apart from what each of them is about."""

from __future__ import annotations

from dataclasses import dataclass

from driver_manager.core.swap.run import Outcome
from driver_manager.domain import node_state
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.node import Node
from driver_manager.domain.node_state import NodeState
from driver_manager.domain.profile import NodeKeys

NOT_TOLD = (ExitCode.OWNED_ELSEWHERE, ExitCode.API_REFUSED, ExitCode.API_UNAVAILABLE)
"""After these the Node is another run's, or could not be patched."""

AFTER = {ExitCode.DONE: NodeState.READY, ExitCode.REBOOT_REQUIRED: NodeState.REBOOT_REQUIRED}


@dataclass(frozen=True)
class Shown:
    """The label's word, and the exit code and digest in the annotation; None for what the Node does not show."""

    state: str | None = None
    exit_code: int | None = None
    digest: str | None = None


NOTHING_SHOWN = Shown()


def shown(node: Node, keys: NodeKeys) -> Shown:
    word, outcome = node.labels.get(keys.state), node_state.outcome_on(node, keys)
    return Shown(word, outcome.exit_code if outcome else None, outcome.digest if outcome else None)


def why_wrong(
    outcome: Outcome, before: Node | None, after: Node | None, keys: NodeKeys, *, was_ended: bool, is_reboot_asked: bool
) -> str:
    """How `after`, where a run ended with `outcome`, shows something else than that; "" where it does not."""
    if after is None or before is None or before.uid != after.uid or outcome.exit_code in NOT_TOLD:
        return ""
    now, code = shown(after, keys), outcome.exit_code
    untouched = shown(before, keys) == now and (before.labels, before.annotations) == (after.labels, after.annotations)
    if keys.journal in after.annotations:
        is_left = was_ended and now.state == NodeState.UPGRADING.value
        return "" if now.state == NodeState.HELD.value or is_left or untouched else f"held, and shown as {now}"
    if code is ExitCode.STANDING_DOWN:
        wanted = {NodeState.FAILED.value} if was_ended else {NodeState.READY.value}
    else:
        wanted = {AFTER.get(code, NodeState.FAILED).value}
    if now.state in wanted and now.exit_code == code:
        return ""
    lasting = {NodeState.WEDGED.value} | ({NodeState.REBOOT_REQUIRED.value} if is_reboot_asked else set())
    if NodeState.FAILED.value in wanted and now.state in lasting and now.state == shown(before, keys).state:
        return "" if now.exit_code == code else f"{outcome} is shown as {now}"
    is_silent = code in (ExitCode.DONE, ExitCode.STANDING_DOWN) or was_ended
    stays = {None, NodeState.READY.value, NodeState.WEDGED.value}
    if is_reboot_asked:
        stays |= {NodeState.REBOOT_REQUIRED.value}
    return "" if is_silent and (now.state in stays or was_ended) else f"{outcome} is shown as {now}"
