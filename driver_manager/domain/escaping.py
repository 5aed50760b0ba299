"""Text that came from elsewhere, made fit to be written down. Pure."""

from __future__ import annotations

import json
from typing import Any

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
