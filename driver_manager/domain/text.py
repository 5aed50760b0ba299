"""Digests, durations and foreign text as people read them: bounded, escaped, on one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

# Digests of a driver.

FROM_ENVIRONMENT = "DRIVER_CONFIG_DIGEST"
"""The source of a wanted digest that is set and not derived."""

MAX_CHARS = 256
MAX_WHOLE_CHARS = 72
"""A longer digest is cut; `sha256:` with its 64 digits is shown whole."""

HEAD_CHARS, TAIL_CHARS, PRINT_CHARS = 32, 16, 12
SEEN_AT_ONCE_CHARS = 16
"""People compare two digests by their first characters."""


def is_digest(text: str) -> bool:
    """True if `text` is one printable word of at most 256 characters. U+FFFD stands for bytes that are not UTF-8."""
    return bool(text) and len(text) <= MAX_CHARS and text.isprintable() and not {" ", "\ufffd"} & set(text)


def in_words(digest: str) -> str:
    """`digest` for a sentence: whole, or cut with its fingerprint, so that no two look alike."""
    if len(digest) <= MAX_WHOLE_CHARS:
        return digest
    return f"{digest[:HEAD_CHARS]}…{digest[-TAIL_CHARS:]}#{fingerprint(digest)}"


def fingerprint(digest: str) -> str:
    """Twelve hexadecimal digits of the SHA-256 of `digest`."""
    import hashlib  # noqa: PLC0415  # loads OpenSSL, 3 MiB, which health-watch does not need

    return hashlib.sha256(digest.encode(errors="surrogatepass")).hexdigest()[:PRINT_CHARS]


def differing(one: str, other: str) -> tuple[str, str, str]:
    """Two digests in words, and a hint where they differ, "" if the first characters differ."""
    same = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    place = min(len(one), len(other)) if same is None else same
    hint = f" (they differ from character {place + 1} on)" if place >= SEEN_AT_ONCE_CHARS else ""
    return in_words(one), in_words(other), hint


# Durations.

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
"""Stands for the omitted middle of a text."""


def writable(value: object) -> str:
    """`value` as text without lone surrogates, which JSON may escape (RFC 8259, section 8.2) and no encoding has."""
    return str(value).encode(errors="replace").decode()


def shortened(text: str, most: int) -> str:
    """`text` in at most `most` characters, without its middle: whole words, unless it is one, so no digest is cut."""
    if len(text) <= most:
        return text
    room = most - len(GAP)
    head, tail = text[: room - room // 3], text[len(text) - room // 3 :]
    if not text[len(head)].isspace():
        head = head.rpartition(" ")[0]
    if not text[-len(tail) - 1].isspace():
        tail = tail.partition(" ")[2]
    return f"{head.rstrip()}{GAP}{tail.lstrip()}".strip() if head or tail else f"{text[: most - 1]}…"


STYLE = re.compile(r"\x1b\[[0-9;]*m")


def shown_length(text: str) -> int:
    """Columns of `text`: styles take none."""
    return len(STYLE.sub("", text))


def wrapped(line: str, columns: int, indent: int) -> list[str]:
    """`line` in lines of at most `columns`, broken between words; all but the first are indented.

    Whole if `columns` is 0. A longer word stays whole, as it may be a command. Styles take no columns.
    """
    lines, words, used = list[str](), list[str](), 0
    for word in line.split(" "):
        wide = shown_length(word)
        if columns and "".join(words) and used + wide > max(columns, indent + MIN_COLUMNS):
            lines.append(" ".join(words))
            words, used = [" " * (indent - 1)] if indent else [], indent
        words.append(word)
        used += wide + 1
    return [*lines, " ".join(words)]


MIN_COLUMNS = 20


def shown(text: str) -> str:
    """`text` for a terminal: control characters other than line feeds are escaped."""
    letters = (one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text)
    return "".join(letters)


def one_line(text: str) -> str:
    """`text` for a log: line feeds are escaped too, as foreign text could forge a line with them."""
    return shown(text).replace("\n", "\\n")


def words_on_one_line(body: Any) -> Any:
    """A JSON value whose texts are each on one line."""
    if isinstance(body, str):
        return one_line(body)
    if isinstance(body, dict):
        return {one_line(key): words_on_one_line(value) for key, value in body.items()}
    return [words_on_one_line(value) for value in body] if isinstance(body, list | tuple) else body


def json_text(body: Any, **form: Any) -> str:
    """`body` as JSON of printable ASCII. `json` does not escape DEL."""
    return json.dumps(body, **form).replace("\x7f", "\\u007f")


# Messages.

MOST_NAMED = 10
"""A message fits into an Event, 1,024 characters, with its remedy."""


def sentences(what: str, remedy: str) -> str:
    """`what` and `remedy` as one text, with a full stop between them."""
    if not remedy:
        return what
    return f"{what} {remedy}" if what.endswith((".", "!", "?")) else f"{what}. {remedy}"


def without_numbers(text: str) -> str:
    """`text` without digits: process ids, seconds and counts differ each time."""
    return "".join(sign for sign in text if not sign.isdigit())


def several(texts: Iterable[object], joint: str = ", ") -> str:
    """The first ten of `texts`, and the number of the others."""
    found = [str(text) for text in texts]
    more = f"{joint}and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return joint.join(found[:MOST_NAMED]) + more
