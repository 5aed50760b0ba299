"""Versioned JSON documents that another version of this program may read, JSON patches, and timestamps.

A reader refuses a newer version. Every error names the document, the field and the expected value.
"""

from __future__ import annotations

import functools
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, TypeVar

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace

from driver_manager.domain.errors import ConfigError
from driver_manager.domain.text import shortened, writable

# JSON merge patches (RFC 7386), and objects that every API server accepts.


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The smallest patch that turns `old` into `new`. It has a null only for a key of `old` that `new` lacks."""
    found: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                found[key] = inner
        elif key not in old or before != value:
            found[key] = value
    return found


def without_blanks(value: Any) -> Any:
    """`value` without fields that are null or an empty text.

    An API server 1.20 built with Go 1.19 reads an empty text in a custom resource as null, and refuses it.
    """
    match value:
        case dict():
            return {key: without_blanks(one) for key, one in value.items() if one not in (None, "")}
        case list():
            return [without_blanks(one) for one in value]
    return value


# JSON patches (RFC 6902): the API server applies all operations or none.
#
# A `test` that fails makes the whole patch fail, so a patch can check its preconditions without a read before it.


class Operation(Struct, frozen=True):
    """One operation at `path`, a JSON pointer; `remove` has no value."""

    op: str
    path: str
    value: Any = None

    def to_json(self) -> dict[str, Any]:
        body = {"op": self.op, "path": self.path}
        return body if self.op == "remove" else {**body, "value": self.value}


def expect(value: Any, *where: str | int) -> Operation:
    """A `test`: the patch applies only if the value at `where` is `value`."""
    return Operation("test", pointer(*where), value)


def replaced(old: Any, new: Any, *where: str | int) -> tuple[Operation, ...]:
    """Operations that replace `old` at `where` by `new`, or remove it if `new` is None; they fail without `old`."""
    change = Operation("remove", pointer(*where)) if new is None else Operation("replace", pointer(*where), new)
    return (expect(old, *where), change)


def pointer(*where: str | int) -> str:
    """The JSON pointer (RFC 6901) with the parts `where`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in where)


MAX_VALUE_CHARS = 80
LAST_MOMENT_S = 253_402_300_799
"""The end of the year 9999 in seconds since the epoch: the last moment that `datetime` supports."""

MIN_WHOLE, MAX_WHOLE = -(2**63), 2**64 - 1
"""Bounds of a whole number in a document, unless its field has narrower ones; each is in the range of a float."""

MAX_DIGITS = 20

TEXT, WHOLE, FLAG, OBJECT = "a text", "a whole number", "true or false", "an object"


def parsed(text: str) -> Any:
    """The JSON value in `text`. Raises ValueError for other text, and for nesting that is too deep."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def decimal(text: str) -> int | None:
    """The whole number that `text` has as at most MAX_DIGITS ASCII digits; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


class HostFileUnreadable(ConfigError):
    """This version cannot read a document in a file on the host: it is garbage, or a newer version wrote it."""


class Form(Struct, frozen=True):
    """A kind of document. `name` is its name in messages; `version` is its newest known version, in the field `key`.

    If a document cannot be read, methods raise `unreadable` with `remedy`. `is_compact`: write no spaces.
    """

    name: str
    unreadable: type[ConfigError]
    remedy: str
    key: str = "schema"
    version: int = 1
    is_compact: bool = False

    def write(self, body: Mapping[str, Any]) -> str:
        """The document with the fields of `body`: one line of JSON with sorted keys, without a line feed."""
        return json.dumps(
            {self.key: self.version, **body}, sort_keys=True, separators=(",", ":") if self.is_compact else None
        )

    def read(self, text: str) -> Fields:
        """The fields of the document in `text`. Raises `unreadable` for garbage and for newer versions."""
        try:
            value = parsed(text)
        except ValueError as error:
            raise self.refused(f"not JSON ({error})") from error
        return self.opened(value)

    def opened(self, value: Any) -> Fields:
        """The fields of the document `value`, parsed JSON. Raises as `read`."""
        if type(value) is not dict:
            raise self.refused("not a JSON object")
        called = "version" if self.key == "v" else self.key
        version = value.get(self.key)
        if type(version) is not int or version < 1:
            raise self.refused(f"{called} is {in_brief(version)}, expected a whole number from 1")
        if version > self.version:
            raise self.unreadable(
                f"{self.name} cannot be read: version {in_brief(version)} is newer than this driver-manager, "
                f"which knows up to {self.version} ({called} is {in_brief(version)})",
                "Run a driver-manager at least as new as the one that wrote it; nothing was changed.",
            )
        return Fields(self, value)

    def refused(self, why: str) -> ConfigError:
        """The error for a document that cannot be read because of `why`."""
        return self.unreadable(f"{self.name} cannot be read: {why}", self.remedy)


class Fields(Struct, frozen=True):
    """The fields of a document or of an object in it. `at` is the path of the object, for messages.

    Texts have no unpaired surrogates (RFC 8259, section 8.2), as no file name and no argument can have them.
    Every method raises the form's error if the field has another type, or is absent and has no default.
    """

    form: Form
    body: Mapping[str, Any]
    at: str = ""

    def __contains__(self, key: object) -> bool:
        return key in self.body

    def is_null(self, key: str) -> bool:
        return self._value(key, "null or a value") is None

    def text(self, key: str, default: str | None = None) -> str:
        if default is not None and key not in self.body:
            return default
        value = self._value(key, TEXT)
        if type(value) is not str:
            raise self.bad(key, TEXT)
        return writable(value)

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """One of `choices`."""
        expected = f"one of {', '.join(choices)}"
        value = self._value(key, expected)
        if type(value) is not str or value not in choices:
            raise self.bad(key, expected)
        return value

    def flag(self, key: str) -> bool:
        value = self._value(key, FLAG)
        if type(value) is not bool:
            raise self.bad(key, FLAG)
        return value

    def whole(self, key: str, default: int | None = None, *, least: int | None = None, most: int | None = None) -> int:
        """A whole number from `least` to `most`, and of at most 64 bits."""
        if default is not None and key not in self.body:
            return default
        expected = f"{WHOLE} from {least} to {most}" if least is not None else WHOLE
        value = self._value(key, expected)
        low, high = MIN_WHOLE if least is None else least, MAX_WHOLE if most is None else most
        if type(value) is not int or not low <= value <= high:
            raise self.bad(key, expected)
        return value

    def seconds(self, key: str) -> float:
        expected = "a number of seconds"
        value = self._value(key, expected)
        try:
            seconds = float(value) if type(value) in (int, float) else math.nan
        except OverflowError:
            seconds = math.nan
        if not math.isfinite(seconds):
            raise self.bad(key, expected)
        return seconds

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        return tuple(map(writable, self._items(key, str, "texts", default)))

    def flags(self, key: str) -> tuple[bool, ...]:
        return self._items(key, bool, "true and false")

    def texts_by_name(self, key: str) -> dict[str, str]:
        found = self.fields(key)
        if any(type(value) is not str for value in found.body.values()):
            raise self._refused(f"{self._named(key)} holds something other than texts")
        return {writable(name): writable(value) for name, value in found.body.items()}

    def fields(self, key: str) -> Fields:
        value = self._value(key, OBJECT)
        if type(value) is not dict:
            raise self.bad(key, OBJECT)
        return Fields(self.form, value, f"{self._named(key)}.")

    def each(self, key: str) -> tuple[Fields, ...]:
        objects = self._items(key, dict, "objects")
        return tuple(Fields(self.form, one, f"{self._named(key)}[{number}].") for number, one in enumerate(objects))

    def record(self, kind: type[R], **given: Any) -> R:
        """The record of these fields; `given` has the attributes that the document does not have as they are."""
        columns = (one for one in columns_of(kind) if one.part.key is not None and one.name not in given)
        return kind(**{one.name: self._cell(one) for one in columns}, **given)

    def _cell(self, column: Column) -> Any:
        key, part = column.part.key or column.name, column.part
        if key not in self.body and (part.is_optional or part.is_omitted):
            return column.default
        if column.is_nullable and not part.is_omitted and self.is_null(key):
            return None
        if column.kind is tuple:
            items = self.texts if column.item is str else self.flags if column.item is bool else self.each
            return tuple(one.record(column.item) if isinstance(one, Fields) else _cut(one, part) for one in items(key))
        if column.kind is Mapping:
            body = self.fields(key)
            if column.item is str:
                return self.texts_by_name(key)
            return {name: body._one(name, column.item, part) for name in body.body}
        return self._one(key, column.kind, part)

    def _one(self, key: str, kind: Any, part: Part) -> Any:
        if issubclass(kind, Struct):
            return self.fields(key).record(kind)
        if issubclass(kind, Enum):
            return kind(self.choice(key, [one.value for one in kind]))
        if part.choices:
            return self.choice(key, part.choices)
        if kind is int:
            return self.whole(key, least=part.least, most=part.most)
        return self.flag(key) if kind is bool else self.seconds(key) if kind is float else _cut(self.text(key), part)

    def bad(self, key: str, expected: str) -> ConfigError:
        return self._refused(f"{self._named(key)} is {in_brief(self.body.get(key))}, expected {expected}")

    def _items(self, key: str, kind: type, of: str, default: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
        if default is not None and key not in self.body:
            return default
        value = self._value(key, f"a list of {of}")
        if type(value) is not list or any(type(item) is not kind for item in value):
            raise self._refused(f"{self._named(key)} is not a list of {of}")
        return tuple(value)

    def _value(self, key: str, expected: str) -> Any:
        if key not in self.body:
            raise self._refused(f"{self._named(key)} is missing, expected {expected}")
        return self.body[key]

    def _named(self, key: str) -> str:
        """The path of the field for a message; the name is shortened, as the document's writer chooses it."""
        return f"{self.at}{shortened(key, MAX_VALUE_CHARS)}"

    def _refused(self, why: str) -> ConfigError:
        return self.form.refused(why)


# Records: Structs whose attributes are the fields of an object, by the types and the `Part` of each.

R = TypeVar("R", bound=Struct)


class Part(Struct, frozen=True):
    """How an attribute stands in a document: under `key` (default: its name in camel case), not at all if that is None.

    An `is_optional` one may be absent: it then has its default. One that `is_omitted` is absent while it has its
    default, and never null. `least` and `most` bound whole numbers; of a text `chars` characters count.
    """

    key: str | None = ""
    least: int | None = None
    most: int | None = None
    is_optional: bool = False
    is_omitted: bool = False
    chars: int | None = None
    choices: tuple[str, ...] = ()


class Column(Struct, frozen=True):
    """An attribute of a record. `kind` is its type without None; `item` is that of the values of a tuple or mapping."""

    name: str
    kind: Any
    item: Any
    is_nullable: bool
    part: Part
    default: Any


@functools.cache
def columns_of(record: Any) -> tuple[Column, ...]:
    """The attributes of a kind of record."""
    found = []
    for one in fields(record):
        kind, *notes = typing.get_args(one.type) if typing.get_origin(one.type) is Annotated else (one.type,)
        is_nullable = isinstance(kind, types.UnionType)
        kind = typing.get_args(kind)[0] if is_nullable else kind
        item = (*typing.get_args(kind)[kind.__origin__ is Mapping :], None)[0] if typing.get_origin(kind) else None
        first, *words = one.name.split("_")
        part = next((note for note in notes if isinstance(note, Part)), Part())
        if part.key == "":
            part = replace(part, key=first + "".join(map(str.capitalize, words)))
        default = one.default if one.default_factory is NODEFAULT else one.default_factory()
        found.append(Column(one.name, typing.get_origin(kind) or kind, item, is_nullable, part, default))
    return tuple(found)


def body_of(record: Struct, digits: int | None = None) -> dict[str, Any]:
    """The fields of `record` as JSON, with numbers of seconds rounded to `digits` decimal places."""
    found = {}
    for one in columns_of(type(record)):
        value = getattr(record, one.name)
        if one.part.key is not None and not (one.part.is_omitted and value == one.default):
            found[one.part.key] = _plain(value, digits)
    return found


def _plain(value: Any, digits: int | None) -> Any:
    match value:
        case Struct():
            return body_of(value, digits)
        case Enum():
            return value.value
        case tuple():
            return [_plain(one, digits) for one in value]
        case Mapping():
            return {key: _plain(one, digits) for key, one in value.items()}
        case float() if digits is not None:
            return round(value, digits)
    return value


def _cut(value: Any, part: Part) -> Any:
    return value[: part.chars] if type(value) is str else value


def in_brief(value: Any) -> str:
    """A JSON value as text for a message, at most MAX_VALUE_CHARS long."""
    match value:
        case dict():
            return OBJECT
        case list():
            return "a list"
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


# Timestamps: RFC 3339, in UTC, to the second.


def written_time(wall_s: float) -> str:
    """The moment `wall_s`, in seconds since the epoch, as `2026-01-02T03:04:05Z`.

    A moment before the epoch becomes the epoch, and one after LAST_MOMENT_S becomes that.
    """
    return datetime.fromtimestamp(min(max(wall_s, 0.0), LAST_MOMENT_S), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float | None:
    """Seconds since the epoch of an RFC 3339 time with offset; None for any other text.

    A time that is after the year 9999 in UTC (9999-12-31T23:59:59-01:00) gives None too.
    """
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC).timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
