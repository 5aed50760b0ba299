"""health-watch's states: the table of its transitions as a picture, and the marks that each state calls for."""

from __future__ import annotations

import itertools
from typing import Any

from driver_manager.domain.health import watch
from driver_manager.domain.health.watch import HealthState, History, MarkChange, Surroundings
from driver_manager.domain.host import RECOVERY, Marker
from tests.support.docs.markdown import table

BOOT = "boot-1"
MARKERS = (None, *(Marker(RECOVERY, boot, writer=watch.WRITER) for boot in (BOOT, "boot-0")), Marker("upgrade", BOOT))


def picture() -> str:
    """The transitions as a Mermaid state diagram; what leads to the same state shares an arrow."""
    lines = ["stateDiagram-v2", f"    [*] --> {HealthState.STARTING.value}"]
    for state, found in watch.TRANSITIONS.items():
        for target in HealthState:
            causes = [finding.value for finding, to in found.items() if to is target]
            if causes and target is not state:
                lines.append(f"    {state.value} --> {target.value}: {', '.join(causes)}")
    return "\n".join(lines)


def acts() -> dict[HealthState, list[MarkChange]]:
    """What each state may do to the marks on the host: `due` asked about every mixture of surroundings."""
    found: dict[HealthState, list[MarkChange]] = {}
    flags = (True, False)
    names = ("is_loaded", "is_reconciling", "is_withdrawn", "can_request")
    facts: dict[str, tuple[object, ...]] = {**dict.fromkeys(names, flags), "ready": (None, *flags), "marker": MARKERS}
    for state, failures, by_hand in itertools.product(HealthState, (0, 3), flags):
        history = History(state, failures=failures, is_muted_by_hand=by_hand)
        for values in itertools.product(*facts.values()):
            surroundings: Any = dict(zip(facts, values, strict=True))
            found.setdefault(state, []).extend(watch.mark_changes(history, Surroundings(BOOT, **surroundings)))
    return {state: [act for act in MarkChange if act in done] for state, done in found.items()}


def marks() -> str:
    rows = [(state.value, "; ".join(act.value for act in done) or "nothing") for state, done in acts().items()]
    return table(("state", "what it may do to the marks on the host"), rows)
