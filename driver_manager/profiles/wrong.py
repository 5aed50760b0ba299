"""One thing that is wrong with a profile file, as one line."""

from __future__ import annotations

from typing import Any

from driver_manager.domain.escaping import one_line, shortened
from driver_manager.domain.frozen import Frozen

MAX_VALUE_CHARS = 120
"""A value is shown cut to this length."""


class Wrong(Frozen):
    """`key` is its path in the file, "" of the file itself; `what` names key, value and what was expected.

    `value` is as Python writes it and cut, "" where there is none; `expected` is "" where no value would be right.
    `line` is None where it is not known.
    """

    key: str
    what: str
    value: str = ""
    expected: str = ""
    line: int | None = None

    @classmethod
    def of(cls, key: str, value: Any, expected: str) -> Wrong:
        """A value that is not what was expected."""
        shown = shortened(repr(value), MAX_VALUE_CHARS)
        what = one_line(f"{key or 'the file'} is {shown}, expected {expected}")
        return cls(key, what, one_line(shown), expected)

    @classmethod
    def lacking(cls, key: str, needs_it: str) -> Wrong:
        """A key that another one of the file needs."""
        return cls(key, f"{key} is missing, and {needs_it} needs it", expected=f"a value, as {needs_it} needs it")
