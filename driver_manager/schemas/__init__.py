"""JSON Schemas (draft-07) of `-o json` output and of profile files."""

from __future__ import annotations

import json
from typing import Any

VERSION = 1
"""Version of every form. It changes if a field is removed or changes its meaning."""

NAMES = (
    "status",
    "cluster",
    "upgrade",
    "plan",
    "holders",
    "profile-check",
    "failure",
    "rollout",
    "rollout-list",
    "rollout-request",
    "rollout-history",
)
"""Forms that commands print. `profile` is that of profile files."""


def schema(name: str) -> dict[str, Any]:
    from importlib.resources import files  # noqa: PLC0415  # the commands need the version only

    found: dict[str, Any] = json.loads((files(__name__) / f"{name}.schema.json").read_text(encoding="utf-8"))
    return found
