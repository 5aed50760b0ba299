"""What goes into one line: how many things, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterable

MOST_NAMED = 10
"""An Event holds 1,024 characters, and the remedy has to fit in too."""


def sentences(what: str, remedy: str) -> str:
    """What happened and what to do as one text, with a stop between them."""
    if not remedy:
        return what
    return f"{what} {remedy}" if what.endswith((".", "!", "?")) else f"{what}. {remedy}"


def without_numbers(text: str) -> str:
    """`text` without what differs from one time to the next: process ids, seconds, counts."""
    return "".join(sign for sign in text if not sign.isdigit())


def several(texts: Iterable[object], joint: str = ", ") -> str:
    """The first of `texts` in a row, and how many more there are."""
    found = [str(text) for text in texts]
    more = f"{joint}and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return joint.join(found[:MOST_NAMED]) + more
