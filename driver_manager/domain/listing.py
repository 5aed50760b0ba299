"""How many things are named in one line. Pure."""

from __future__ import annotations

from collections.abc import Iterable

MOST_NAMED = 10
"""An Event holds 1,024 characters, and the remedy has to fit in too."""


def several(texts: Iterable[object], joint: str = ", ") -> str:
    """The first of `texts` in a row, and how many more there are."""
    found = [str(text) for text in texts]
    more = f"{joint}and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return joint.join(found[:MOST_NAMED]) + more
