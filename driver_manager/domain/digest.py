"""What counts as a driver's digest, be it wanted or recorded, and how one is written in a sentence. Pure."""

from __future__ import annotations

FROM_ENVIRONMENT = "DRIVER_CONFIG_DIGEST"
"""Where a wanted digest comes from that was told, not derived."""

MAX_CHARS = 256
MAX_WHOLE_CHARS = 72
"""A longer one is cut: `sha256:` and its 64 digits are shown whole."""

HEAD_CHARS, TAIL_CHARS, PRINT_CHARS = 32, 16, 12
SEEN_AT_ONCE_CHARS = 16
"""Who compares two by eye looks at their beginnings."""


def is_digest(text: str) -> bool:
    """Whether `text` is one printable word of at most 256 characters; U+FFFD stands for bytes that were no text."""
    return bool(text) and len(text) <= MAX_CHARS and text.isprintable() and not {" ", "\ufffd"} & set(text)


def in_words(digest: str) -> str:
    """`digest` in a sentence: whole, or cut with a fingerprint behind it, so that no two of them look alike."""
    if len(digest) <= MAX_WHOLE_CHARS:
        return digest
    return f"{digest[:HEAD_CHARS]}…{digest[-TAIL_CHARS:]}#{fingerprint(digest)}"


def fingerprint(digest: str) -> str:
    """Twelve hexadecimal digits that no other digest has."""
    import hashlib  # noqa: PLC0415  # brings OpenSSL: 3 MiB, which a watch that asks for none does not pay

    return hashlib.sha256(digest.encode(errors="surrogatepass")).hexdigest()[:PRINT_CHARS]


def differing(one: str, other: str) -> tuple[str, str, str]:
    """Two digests in words, and where to look for the difference, "" where that is seen at once."""
    same = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    place = min(len(one), len(other)) if same is None else same
    hint = f" (they differ from character {place + 1} on)" if place >= SEEN_AT_ONCE_CHARS else ""
    return in_words(one), in_words(other), hint
