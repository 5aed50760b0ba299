"""Text that came from elsewhere, made fit to be written down. Pure."""

from __future__ import annotations


def writable(value: object) -> str:
    """`value` as text that every encoding of Unicode has: JSON may escape half a character (RFC 8259, section 8.2)."""
    return str(value).encode(errors="replace").decode()


def shown(text: str) -> str:
    """`text` for a terminal: what would move its cursor, colour it or begin a line of its own is spelled out.

    Line feeds stay: who wants one line joins it before.
    """
    return "".join(letter if letter.isprintable() or letter == "\n" else _spelled(letter) for letter in text)


def one_line(text: str) -> str:
    """The same for a log, where a line feed in foreign text would begin a line that nobody wrote."""
    return shown(text).replace("\n", "\\n")


def _spelled(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
