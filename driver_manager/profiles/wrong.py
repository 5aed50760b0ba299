"""One thing that is wrong with a profile file, as one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from driver_manager.domain.escaping import one_line, shortened

MAX_VALUE_CHARS = 120
"""A value is shown cut to this length."""


@dataclass(frozen=True)
class Wrong:
    """`key` is its path in the file, "" of the file itself; `what` names key, value and what was expected."""

    key: str
    what: str

    @classmethod
    def of(cls, key: str, value: Any, expected: str) -> Wrong:
        """A value that is not what was expected."""
        shown = shortened(repr(value), MAX_VALUE_CHARS)
        return cls(key, one_line(f"{key or 'the file'} is {shown}, expected {expected}"))

    @classmethod
    def lacking(cls, key: str, needs_it: str) -> Wrong:
        """A key that another one of the file needs."""
        return cls(key, f"{key} is missing, and {needs_it} needs it")
