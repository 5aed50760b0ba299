"""Reads JSON by a table of fields, and collects what is wrong with it, each problem in one line with what was expected.

Knows kinds, defaults and bounds; what the values are for is the business of `reading`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

from driver_manager.domain import selectors
from driver_manager.domain.duration import parse_duration
from driver_manager.domain.fleet.fields import DAY_S, GRAMMARS, Field, Kind
from driver_manager.domain.fleet.model import Amount
from driver_manager.domain.reboot import windows
from driver_manager.domain.wire import FLAG, OBJECT, WHOLE, in_brief

MOST = 1e15
"""No number is larger, so that all of them are written as they are meant."""

NUMBER = "a number"

Zones = Callable[[str], tzinfo | None]
"""The time zone of this name; None where there is none."""


class Values:
    """Reads values, each as what its kind stands for; None stands for one that is absent or wrong."""

    def __init__(self, zones: Zones) -> None:
        self._zones = zones
        self.problems: list[str] = []

    def bad(self, at: str, value: Any, expected: str) -> None:
        """One more problem."""
        self.problems.append(f"{at} is {in_brief(value)}, expected {expected}")

    def object(self, fields: Sequence[Field], body: Any, at: str) -> dict[str, Any]:
        """The values of all `fields` in the object `body`. What is absent, or null, has its default."""
        if type(body) is not dict:
            self.bad(at, body, OBJECT)
            return {}
        known = {one.name for one in fields}
        for name in sorted(body.keys() - known):
            self.problems.append(f"{at} has a field {in_brief(name)}, expected one of {', '.join(sorted(known))}")
        return {one.name: self._field(one, body, f"{at}.{one.name}") for one in fields}

    def _field(self, one: Field, body: Mapping[str, Any], at: str) -> Any:
        if body.get(one.name) is not None:
            return self._value(one, body[one.name], at)
        if one.is_required:
            self.problems.append(f"{at} is missing, expected {_expected(one)}")
        return None if one.default is None else self._value(one, one.default, at)

    def _value(self, one: Field, value: Any, at: str) -> Any:
        found: Any = None
        match one.kind, value:
            case Kind.OBJECT, dict():
                return self.object(one.fields, value, at)
            case Kind.LIST, list() if _fits(one, len(value)):
                self._compare(one, value, at)
                return [self.object(one.fields, item, f"{at}[{number}]") for number, item in enumerate(value)]
            case ((Kind.WHOLE | Kind.AMOUNT), int()) if type(value) is int and _fits(one, value):
                found = value if one.kind is Kind.WHOLE else Amount(value)
            case Kind.NUMBER, int() | float() if type(value) is not bool and abs(value) <= MOST:
                found = float(value)
            case (Kind.FLAG, bool()) | (Kind.CHOICE, str()) if one.kind is Kind.FLAG or value in one.choices:
                found = value
            case _, str() if one.kind in GRAMMARS:
                return self._text(one, value, at)
        if found is None:
            self.bad(at, value, _expected(one))
        return found

    def _compare(self, one: Field, entries: Sequence[Any], at: str) -> None:
        """What the entries of a list may not have together."""
        first: dict[str, int] = {}
        for number, entry in enumerate(entries):
            if type(entry) is not dict:
                continue
            both = [name for name in one.apart if entry.get(name) is not None]
            if len(both) > 1:
                self.problems.append(f"{at}[{number}] has {' and '.join(both)}, expected at most one of them")
            if problem := _unordered(one, entry):
                self.problems.append(f"{at}[{number}] {problem}")
            key = entry.get(one.key)
            if type(key) is str and first.setdefault(key, number) != number:
                self.bad(f"{at}[{number}].{one.key}", key, f"a value other than that of entry {first[key]}")

    def _text(self, one: Field, text: str, at: str) -> Any:
        least, most = chars(one)
        if not least <= len(text) <= most:
            self.bad(at, text, f"{least} to {most} characters")
            return None
        expected = _expected(one)
        try:
            meant = self._meant(one, text) if re.fullmatch(GRAMMARS[one.kind].pattern, text) else None
        except ValueError as error:
            why = f": {error}" if expected in str(error) else f", expected {expected} ({error})"
            self.problems.append(f"{at} is {in_brief(text)}{why}")
            return None
        if meant is None:
            self.bad(at, text, expected)
        return meant

    def _meant(self, one: Field, text: str) -> Any:
        """What a text means that is written as its kind is. Raises ValueError; None where that is the whole reason."""
        match one.kind:
            case Kind.AMOUNT:
                return Amount(int(text.removesuffix("%")), is_percent=True)
            case Kind.SELECTOR:
                return selectors.parse(text)
            case Kind.WINDOWS:
                return windows.parse(text)
            case Kind.ZONE:
                return self._zones(text)
            case Kind.DURATION:
                seconds = parse_duration(text)
                return seconds if _fits(one, seconds) else None
        return text


def chars(one: Field) -> tuple[int, int]:
    """How many characters a text has at least and at most. The bounds of an amount or a duration are of its meaning."""
    most = GRAMMARS[one.kind].most_chars
    return (0, most) if one.kind in (Kind.AMOUNT, Kind.DURATION) else (one.least or 0, min(most, one.most or most))


def _expected(one: Field) -> str:
    """What a field takes, in words."""
    if one.kind in GRAMMARS:
        expected = GRAMMARS[one.kind].expected
        is_timed = one.kind is Kind.DURATION
        return f"{expected}, from {one.least} s to {(one.most or 0) // DAY_S} days" if is_timed else expected
    return {
        Kind.CHOICE: f"one of {', '.join(one.choices)}",
        Kind.WHOLE: f"{WHOLE} from {one.least} to {one.most}",
        Kind.LIST: f"a list of {one.least or 0} to {one.most} objects",
        Kind.FLAG: FLAG,
        Kind.NUMBER: NUMBER,
        Kind.OBJECT: OBJECT,
    }[one.kind]


def _unordered(one: Field, entry: Mapping[str, Any]) -> str:
    """What is wrong with the two numbers that are the bounds of an entry."""
    if not one.between:
        return ""
    low, high = (entry.get(name) for name in one.between)
    if low is None and high is None:
        return f"has neither {' nor '.join(one.between)}, expected at least one of them"
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        return f"has {one.between[0]} above {one.between[1]}"
    return ""


def _fits(one: Field, number: float) -> bool:
    return (one.least is None or number >= one.least) and (one.most is None or number <= one.most)
