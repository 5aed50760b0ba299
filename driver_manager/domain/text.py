"""Text from elsewhere, made safe to print: one line, escaped, bounded. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

# What counts as a driver's digest, be it wanted or recorded, and how one is written in a sentence. Pure.

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


# Durations as people write them. Pure.

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")
MAX_DURATION_S = 30 * 24 * 3600.0
MAX_DURATION_CHARS = 1_000


def parse_duration(text: str) -> float:
    """Seconds in `text`: Go's form (`0s`, `5m`, `1h30m`, `1.5h`) or plain seconds. Raises ValueError."""
    cleaned = text.strip()
    if len(cleaned) > MAX_DURATION_CHARS:
        raise ValueError(f"{cleaned[:20]!r}… is not a duration such as 90, 30s, 5m or 1h30m")
    if re.fullmatch(r"\d+(\.\d+)?", cleaned):
        seconds = float(cleaned)
    else:
        parts = _DURATION.findall(cleaned)
        if not parts or "".join(number + unit for number, unit in parts) != cleaned:
            raise ValueError(f"{text!r} is not a duration such as 90, 30s, 5m or 1h30m")
        seconds = sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{text!r} is longer than 30 days")
    return seconds


def spoken(seconds: float) -> str:
    """A time span for people, in its two largest units: `35 s`, `12 min`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 24:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    days = hours // 24
    return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"


GAP = " … "
"""Stands for what was left out of a text."""


def writable(value: object) -> str:
    """`value` as text that every encoding of Unicode has: JSON may escape half a character (RFC 8259, section 8.2)."""
    return str(value).encode(errors="replace").decode()


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` characters: what lies in its middle is left out, by whole words where there are some.

    A digest is one word, so none is cut unless there is nothing else.
    """
    if len(text) <= most:
        return text
    room = most - len(GAP)
    head, tail = text[: room - room // 3], text[len(text) - room // 3 :]
    if not text[len(head)].isspace():
        head = head.rpartition(" ")[0]
    if not text[-len(tail) - 1].isspace():
        tail = tail.partition(" ")[2]
    return f"{head.rstrip()}{GAP}{tail.lstrip()}".strip() if head or tail else f"{text[: most - 1]}…"


def shown(text: str) -> str:
    """`text` for a terminal: what would move its cursor, colour it or begin a line of its own is spelled out.

    Line feeds stay: who wants one line joins it before.
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else _spelled(letter) for letter in text)


def one_line(text: str) -> str:
    """The same for a log, where a line feed in foreign text would begin a line that nobody wrote."""
    return shown(text).replace("\n", "\\n")


def words_on_one_line(body: Any) -> Any:
    """A JSON value whose every text is on one line: what people are shown is made from such a value."""
    if isinstance(body, str):
        return one_line(body)
    if isinstance(body, dict):
        return {one_line(key): words_on_one_line(value) for key, value in body.items()}
    return [words_on_one_line(value) for value in body] if isinstance(body, list | tuple) else body


def json_text(body: Any, **form: Any) -> str:
    """`body` as JSON of printable ASCII; its codec leaves DEL, the one control character above the others."""
    return json.dumps(body, **form).replace("\x7f", "\\u007f")


def _spelled(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


# What goes into one line: how many things, and in which order. Pure.

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
