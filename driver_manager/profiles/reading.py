"""A profile file becomes a Profile, or a list of all that is wrong with it: one line for each wrong value.

Owns types and unknown keys; what a value must be beyond its type is in `rules`, what two keys must be to each other in
`relations`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
import types
import typing
from enum import Enum
from typing import Any

from driver_manager.domain.escaping import one_line
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.profile import Profile
from driver_manager.profiles import derived_keys, relations
from driver_manager.profiles.rules import LEAST_ENTRIES, MAX_TIMEOUT_S, RULES
from driver_manager.profiles.wrong import Wrong

_LINE = re.compile(r"\(at line ([0-9]{1,9}),")
"""Where tomllib names the place of a mistake."""

_ANY_TEXT = "a text"
_SECONDS = "a number above 0 and at most a day of seconds"


class Reading(Frozen):
    """What a file says: a profile, or what is wrong."""

    profile: Profile | None
    wrong: tuple[Wrong, ...] = ()


def read(text: str) -> Reading:
    """The profile in `text`, or all that is wrong with it; what depends on two keys is looked at once each is right."""
    try:
        body = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a plain ValueError
        place = _LINE.search(str(error))
        line = int(place[1]) if place else None
        return Reading(None, (Wrong("", f"the file is not TOML: {one_line(str(error))}", "", "TOML", line),))
    reader = _Reader()
    profile = reader.table(Profile, body, "")
    if reader.wrong or profile is None:
        return Reading(None, tuple(reader.wrong))
    whole: Profile = derived_keys.with_derived_keys(profile)
    found = tuple(relations.broken(whole))
    return Reading(None if found else whole, found)


class _Reader:
    """Collects what is wrong on its way."""

    def __init__(self) -> None:
        self.wrong: list[Wrong] = []

    def table(self, kind: Any, body: Any, at: str) -> Any:
        """A dataclass `kind` from a TOML table; None where a value of it is wrong."""
        if not isinstance(body, dict):
            self._bad(at.rstrip("."), body, "a table")
            return None
        before, hints = len(self.wrong), _hints(kind)
        for key in body:
            if key not in hints:
                known = f"known keys here: {', '.join(sorted(hints))}"
                self.wrong.append(Wrong(f"{at}{key}", f"unknown key {one_line(at + key)}; {known}", expected=known))
        values = {key: self._value(hints[key], value, f"{at}{key}") for key, value in body.items() if key in hints}
        for field in dataclasses.fields(kind):
            if field.name not in values and _is_required(field):
                expected = _expected(hints[field.name], f"{at}{field.name}")
                what = f"{at}{field.name} is missing, expected {expected}"
                self.wrong.append(Wrong(at + field.name, what, expected=expected))
        return kind(**values) if len(self.wrong) == before else None

    def _value(self, hint: Any, value: Any, at: str) -> Any:
        kind = inner(hint)
        if dataclasses.is_dataclass(kind):
            return self.table(kind, value, f"{at}.")
        if is_list(kind):
            return self._list(typing.get_args(kind)[0], value, at)
        if kind is str:
            return self._text(value, at)
        if kind is float:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return float(value) if is_number and 0 < value <= MAX_TIMEOUT_S else self._bad(at, value, _SECONDS)
        if kind is bool:
            return value if isinstance(value, bool) else self._bad(at, value, _expected(kind, at))
        known = {member.value: member for member in kind}
        is_known = isinstance(value, str) and value in known
        return known[value] if is_known else self._bad(at, value, _expected(kind, at))

    def _list(self, kind: Any, value: Any, at: str) -> Any:
        if dataclasses.is_dataclass(kind):
            if not isinstance(value, list):
                return self._bad(at, value, "a list of tables")
            return tuple(self.table(kind, item, f"{at}[{number}].") for number, item in enumerate(value))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            return self._bad(at, value, "a list of texts")
        expected, least = LEAST_ENTRIES.get(at, ("", 0))
        if len(value) < least:
            return self._bad(at, value, expected)
        # One line for each key, though more than one of its texts may be wrong.
        wrong = next((item for item in value if not _is_right(item, at, in_list=True)), None)
        return tuple(value) if wrong is None else self._bad(at, wrong, _expected(str, at))

    def _text(self, value: Any, at: str) -> Any:
        is_right = isinstance(value, str) and _is_right(value, at)
        return value if is_right else self._bad(at, value, _expected(str, at))

    def _bad(self, at: str, value: Any, expected: str) -> None:
        self.wrong.append(Wrong.of(at, value, expected))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """The fields of a table, and what each holds; found out once for all profiles, as that is most of their reading."""
    return typing.get_type_hints(kind)


def inner(hint: Any) -> Any:
    """The type behind `| None`."""
    if isinstance(hint, types.UnionType):
        return next(option for option in typing.get_args(hint) if option is not type(None))
    return hint


def is_list(kind: Any) -> bool:
    """Whether a field of this type is a list in the file."""
    return typing.get_origin(kind) is tuple


def rule_path(at: str) -> str:
    """The key by which `rules` knows the value at `at`: without the numbers of tables in a list."""
    return re.sub(r"\[\d*\]", "", at)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_right(text: str, at: str, *, in_list: bool = False) -> bool:
    """Whether `text` may stand there. No path, key or argument may hold NUL, line feeds or other control letters."""
    rule = RULES.get(rule_path(at))
    if not text.isprintable():
        return False
    if rule is None:
        return True
    if not text and not in_list:
        return not rule.is_needed
    if rule.choices and text not in rule.choices:
        return False
    if rule.pattern and not re.fullmatch(rule.pattern, text):
        return False
    return rule.holds is None or rule.holds(text)


def _expected(hint: Any, at: str) -> str:
    """What was expected, in words."""
    kind, rule = inner(hint), RULES.get(rule_path(at))
    if rule is not None:
        return rule.expected
    if dataclasses.is_dataclass(kind):
        return "a table"
    if is_list(kind):
        return LEAST_ENTRIES.get(at, ("a list of texts", 0))[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(member.value) for member in kind)}"
    return {bool: "true or false", float: _SECONDS}.get(kind, f"{_ANY_TEXT} of printable letters")
