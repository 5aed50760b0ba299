"""What counts as a driver's digest, be it wanted or recorded. Pure."""

from __future__ import annotations

MAX_CHARS = 256


def is_digest(text: str) -> bool:
    """Whether `text` is one printable word of at most 256 characters; U+FFFD stands for bytes that were no text."""
    return bool(text) and len(text) <= MAX_CHARS and text.isprintable() and not {" ", "\ufffd"} & set(text)
