"""Owns how the driver's state is read from a Node object: apart from all other labels and annotations, never left out.

Must not import the product.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.support.control_plane.api import Json

STATE_END, OUTCOME_END = "driver-manager.state", "driver-manager.last-outcome"
GENERATION_END = "driver-manager.generation"
STATE, LAST_OUTCOME = f"rebellions.ai/npu-{STATE_END}", f"rebellions.ai/npu-{OUTCOME_END}"

Shown = tuple[str | None, int | None]
"""The label's word, and the exit code in the annotation; None for what is not there."""

NOTHING: Shown = (None, None)


def of_others(values: Mapping[str, str]) -> dict[str, str]:
    """`values` without the label and the annotations of the driver's state."""
    return {key: text for key, text in values.items() if not key.endswith((STATE_END, OUTCOME_END, GENERATION_END))}


def shown(node: Json) -> Shown:
    """What the Node shows of the driver's state."""
    labels, notes = node["metadata"].get("labels", {}), node["metadata"].get("annotations", {})
    word = next((text for key, text in labels.items() if key.endswith(STATE_END)), None)
    outcome = next((json.loads(text) for key, text in notes.items() if key.endswith(OUTCOME_END)), None)
    return word, outcome["exitCode"] if outcome else None
