"""The resourceVersions of Kubernetes objects, as far as they can be compared. Pure."""

from __future__ import annotations

MAX_DIGITS = 20
"""Of an unsigned number of 64 bits, as which etcd counts."""


def number(version: str) -> int | None:
    """The number that `version` is (kubernetes.io, "Resource versions"); None for what is none."""
    is_number = version.isascii() and version.isdecimal() and len(version) <= MAX_DIGITS
    return int(version) if is_number else None
