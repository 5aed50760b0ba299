"""Versioned JSON documents that another version of this program may read, JSON patches, and timestamps.

A reader refuses a newer version. Every error names the document, the field and the expected value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

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
        """The operation as JSON for the request."""
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
"""Maximum length of a value in a message."""

LAST_MOMENT_S = 253_402_300_799
"""The end of the year 9999 in seconds since the epoch: the last moment that `datetime` supports."""

MIN_WHOLE, MAX_WHOLE = -(2**63), 2**64 - 1
"""Bounds of a whole number in a document, unless its field has narrower ones; each is in the range of a float."""

MAX_DIGITS = 20
"""Maximum decimal digits of a 64-bit number."""

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
        """True if the field is null."""
        return self._value(key, "null or a value") is None

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
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
        """True or false."""
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
        """A finite number of seconds."""
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
        """A list of texts."""
        return tuple(map(writable, self._items(key, str, "texts", default)))

    def flags(self, key: str) -> tuple[bool, ...]:
        """A list of booleans."""
        return self._items(key, bool, "true and false")

    def texts_by_name(self, key: str) -> dict[str, str]:
        """An object whose values are texts."""
        found = self.fields(key)
        if any(type(value) is not str for value in found.body.values()):
            raise self._refused(f"{self._named(key)} holds something other than texts")
        return {writable(name): writable(value) for name, value in found.body.items()}

    def fields(self, key: str) -> Fields:
        """The fields of an object."""
        value = self._value(key, OBJECT)
        if type(value) is not dict:
            raise self.bad(key, OBJECT)
        return Fields(self.form, value, f"{self._named(key)}.")

    def each(self, key: str) -> tuple[Fields, ...]:
        """The fields of each object in a list."""
        objects = self._items(key, dict, "objects")
        return tuple(Fields(self.form, one, f"{self._named(key)}[{number}].") for number, one in enumerate(objects))

    def bad(self, key: str, expected: str) -> ConfigError:
        """The error for a field whose value is not `expected`."""
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
