"""Reads TOML tables and JSON objects into records by the types of their fields, and reports every problem.

A record's types are its schema: `name: Annotated[str, Rule(...)]`. The reference, the JSON Schema of profiles and the
CustomResourceDefinition are made from the same types.

msgspec stops at the first problem and does not show the value, so it does not serve here.
"""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Annotated, Any, TypeVar

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace

from driver_manager.domain.text import one_line, shortened

R = TypeVar("R", bound=Struct)

MAX_VALUE_CHARS = 120


class Rule(Struct, frozen=True):
    """What a value must be besides its type. `expected` describes it in a message.

    `pattern` matches the whole text, in Python, Go and ECMA 262; `holds` checks what no pattern can; `parse` returns
    what the text stands for, or raises ValueError. `least` and `most` bound a number, seconds or the entries of a list,
    `chars` the length of a text. `or_number`: or a number. `removed` names the replacement, and refuses any value.
    """

    expected: str = ""
    pattern: str = ""
    holds: Callable[[Any], bool] | None = None
    parse: Callable[[str], Any] | None = None
    least: int | None = None
    most: int | None = None
    chars: tuple[int, int] | None = None
    choices: tuple[str, ...] = ()
    or_number: bool = False
    removed: str = ""

    @property
    def or_empty(self) -> Rule:
        return replace(self, pattern=f"(?:{self.pattern})?")

    def fits(self, number: float) -> bool:
        return (self.least is None or number >= self.least) and (self.most is None or number <= self.most)


class Key(Struct, frozen=True):
    """The name of a field in the document, if it is not that of the attribute."""

    name: str


class FieldType(Struct, frozen=True):
    """A field of a record. `kind` is its type without None; `item` is the type of the entries of a list."""

    key: str
    name: str
    kind: Any
    rule: Rule
    default: Any
    item: FieldType | None

    @property
    def is_required(self) -> bool:
        return self.default is NODEFAULT

    @property
    def is_record(self) -> bool:
        """True if the value is a record of fields, which no text stands for."""
        return isinstance(self.kind, type) and issubclass(self.kind, Struct) and self.rule.parse is None


@functools.cache  # evaluating the hints takes most of the time of reading a file
def fields_of(record: type[Struct]) -> Mapping[str, FieldType]:
    """The fields of `record` by their keys in the document."""
    found = {}
    for one in fields(record):
        default = one.default if one.default_factory is NODEFAULT else one.default_factory()
        field = _field(one.name, one.type, default)
        found[field.key] = field
    return found


def _field(name: str, hint: Any, default: Any = NODEFAULT) -> FieldType:
    kind, *notes = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    if isinstance(kind, types.UnionType):
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    rule = next((note for note in notes if isinstance(note, Rule)), Rule())
    key = next((note.name for note in notes if isinstance(note, Key)), name)
    item = _field(name, typing.get_args(kind)[0]) if typing.get_origin(kind) is tuple else None
    return FieldType(key, name, kind, rule, default, item)


class Problem(Struct, frozen=True):
    """One wrong value. `key` is its path, "" for the whole file; `what` is the message.

    `value` is cut, "" if there is none; `expected` is "" if no value would be right; `line` is None if unknown.
    """

    key: str
    what: str
    value: str = ""
    expected: str = ""
    line: int | None = None

    @classmethod
    def of(cls, key: str, value: Any, expected: str) -> Problem:
        shown = shortened(str(value).lower() if type(value) is bool else repr(value), MAX_VALUE_CHARS)
        what = one_line(f"{key or 'the file'} is {shown}, expected {expected}")
        return cls(key, what, one_line(shown), expected)

    @classmethod
    def missing(cls, key: str, expected: str) -> Problem:
        return cls(key, f"{key} is missing, expected {expected}", expected=expected)


class Words(Struct, frozen=True):
    """What a format calls one record and several, and its message for an unknown field."""

    record: str
    records: str
    unknown: str


TOML = Words("a table", "tables", "unknown key {path}{near}; known keys here: {known}")
JSON = Words("an object", "objects", "{at} has a field {key!r}, expected one of {known}")


class Reader:
    """Reads values and collects their problems; returns None for a wrong value.

    A parser in `parsers` takes precedence over the rule's own, by the type that it returns.
    """

    def __init__(self, words: Words, parsers: Mapping[type, Callable[[str], Any]] | None = None) -> None:
        self.problems: list[Problem] = []
        self._words = words
        self._parsers = parsers or {}

    def record(self, record: type[R], body: Any, at: str = "") -> R | None:
        """A `record` from a table or an object. A field that is absent or null has its default."""
        if type(body) is not dict:
            self._bad(at, body, self._words.record)
            return None
        before, fields, start = len(self.problems), fields_of(record), f"{at}." if at else ""
        for key in sorted(body.keys() - fields.keys()):
            known = ", ".join(sorted(name for name, one in fields.items() if not one.rule.removed))
            cut = shortened(key, MAX_VALUE_CHARS)
            near = f" (did you mean {_near(key, fields)}?)" if _near(key, fields) else ""
            what = self._words.unknown.format(at=at, key=cut, path=start + cut, near=near, known=known)
            self.problems.append(Problem(start + key, one_line(what), expected=f"one of {known}"))
        values = {}
        for key, one in fields.items():
            if body.get(key) is not None:
                values[one.name] = self._value(one, body[key], start + key)
            elif one.is_required:
                self.problems.append(Problem.missing(start + key, self._expected(one)))
        return record(**values) if len(self.problems) == before else None

    def _value(self, one: FieldType, value: Any, at: str) -> Any:
        if one.rule.removed:
            self.problems.append(Problem(at, f"{at} {one.rule.removed}"))
            return None
        if one.item is not None:
            return self._list(one, one.item, value, at)
        if one.is_record:
            return self.record(one.kind, value, at)
        if type(value) is str and (one.kind is str or one.rule.parse is not None):
            return self._text(one, value, at)
        return one.kind(value) if _is_right(one, value) else self._bad(at, value, self._expected(one))

    def _list(self, one: FieldType, item: FieldType, value: Any, at: str) -> Any:
        if type(value) is not list or not (item.is_record or all(type(entry) is str for entry in value)):
            return self._bad(at, value, self._listed(one, item))
        if not one.rule.fits(len(value)):
            return self._bad(at, value, one.rule.expected or self._listed(one, item))
        if item.is_record:
            return tuple(self.record(item.kind, entry, f"{at}[{number}]") for number, entry in enumerate(value))
        # One problem for each list, even if several of its texts are wrong.
        found: list[Any] = []
        for entry in value:
            found.append(self._text(item, entry, at))
            if found[-1] is None:
                return None
        return tuple(found)

    def _text(self, one: FieldType, text: str, at: str) -> Any:
        rule, expected = one.rule, self._expected(one)
        if rule.chars is not None and not rule.chars[0] <= len(text) <= rule.chars[1]:
            return self._bad(at, text, f"{rule.chars[0]} to {rule.chars[1]} characters")
        is_right = text.isprintable() and (not rule.pattern or re.fullmatch(rule.pattern, text))
        if not is_right or (rule.choices and text not in rule.choices) or (rule.holds and not rule.holds(text)):
            return self._bad(at, text, expected)
        parse = self._parsers.get(one.kind, rule.parse)
        if parse is None:
            return text
        try:
            found = parse(text)
        except ValueError as error:
            problem = Problem.of(at, text, expected)
            what = f"{at} is {problem.value}: {error}" if expected in str(error) else f"{problem.what} ({error})"
            self.problems.append(replace(problem, what=one_line(what)))
            return None
        is_fit = found is not None and (one.kind is not float or rule.fits(found))
        return found if is_fit else self._bad(at, text, expected)

    def _bad(self, at: str, value: Any, expected: str) -> Any:
        self.problems.append(Problem.of(at, value, expected))
        return None

    def _listed(self, one: FieldType, item: FieldType) -> str:
        bounds = f"{one.rule.least or 0} to {one.rule.most} " if one.rule.most is not None else ""
        return f"a list of {bounds}{self._words.records if item.is_record else 'texts'}"

    def _expected(self, one: FieldType) -> str:
        kind, rule = one.kind, one.rule
        if rule.expected:
            return rule.expected
        if one.is_record:
            return self._words.record
        if one.item is not None:
            return self._listed(one, one.item)
        if rule.choices or issubclass(kind, Enum):
            return f"one of {', '.join(rule.choices or (member.value for member in kind))}"
        return {bool: "true or false", int: f"a whole number from {rule.least} to {rule.most}"}.get(
            kind, "a text of printable letters"
        )


def _near(key: str, known: Iterable[str]) -> str:
    """The one of `known` that is most like `key`, "" if none is."""
    import difflib  # noqa: PLC0415  # for a mistake only

    return next(iter(difflib.get_close_matches(key, known, 1)), "")


def _is_right(one: FieldType, value: Any) -> bool:
    """True if a number, a flag or a word of an enumeration may be the value of a field."""
    if type(value) is str:
        return issubclass(one.kind, Enum) and value in {member.value for member in one.kind}
    if one.kind is bool:
        return type(value) is bool
    if type(value) is not int and not (type(value) is float and one.kind is float):
        return False
    takes_numbers = (one.kind in (int, float) and one.rule.parse is None) or one.rule.or_number
    return takes_numbers and one.rule.fits(value) and (one.rule.holds is None or one.rule.holds(value))
