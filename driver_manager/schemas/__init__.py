"""JSON Schemas (draft-07) of `-o json` output and of profile files."""

from __future__ import annotations

import json
from typing import Any

VERSION = 1
"""Of every form: where a field is taken away, or means something else, a new one begins."""

NAMES = (
    "status",
    "plan",
    "preflight",
    "holders",
    "profile-check",
    "failure",
    "rollout",
    "rollout-request",
    "rollout-history",
)
"""Of what commands print; that of profile files is `profile`."""


def schema(name: str) -> dict[str, Any]:
    """The schema of that form."""
    from importlib.resources import files  # noqa: PLC0415  # the commands need the version only

    found: dict[str, Any] = json.loads((files(__name__) / f"{name}.schema.json").read_text(encoding="utf-8"))
    return found
