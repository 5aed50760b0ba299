"""A fuzz target, what counts as a finding, and whether a value is what its type promises."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from enum import Enum
from typing import Any

import msgspec

from driver_manager.domain.errors import ManagerError


def assert_conforms(value: Any, hint: Any) -> None:
    """Raise AssertionError where `value`, or something in it, is not of the type that was declared for it."""
    zones: dict[str, tzinfo] = {}

    def spelled(one: Any) -> str:
        if not isinstance(one, tzinfo):
            raise NotImplementedError(f"{one!r}")
        zones[str(one)] = one
        return str(one)

    try:
        plain = msgspec.to_builtins(value, enc_hook=spelled)
        again = msgspec.convert(plain, hint, dec_hook=lambda _, text: zones[text])
    except (msgspec.ValidationError, NotImplementedError, TypeError) as error:
        raise AssertionError(f"{value!r} is not {hint}: {error}") from error
    assert _is_same(again, value), f"{value!r} is not {hint}, but only reads like one"


def _is_same(again: Any, value: Any) -> bool:
    """Equal and of the same types: a set is no frozenset, and a text no member of an enum. NaN is the same as NaN."""
    if type(again) is not type(value):
        return type(again) is float and type(value) is int and again == value
    if isinstance(value, msgspec.Struct):
        return all(_is_same(getattr(again, name), getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, dict):
        return again.keys() == value.keys() and all(_is_same(again[key], one) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return len(again) == len(value) and all(map(_is_same, again, value))
    return bool(again == value) or repr(again) == repr(value) == "nan"


CPU_S = 2.0
"""No input of 64 KiB may cost more processor time than this."""


class Form(Enum):
    """How a target's inputs are built, so that they are changed in a way that gets past the first check."""

    JSON = "json"
    TEXT = "text"
    PARTS = "parts"
    """Parts with a NUL between them; the first byte of each says what it is for."""

    BYTES = "bytes"


class TooSlowError(AssertionError):
    """An input that costs more time than any may."""


@dataclass(frozen=True)
class Target:
    """`run` may raise only what is `allowed`. `seeds` are good inputs, `runs` those of the guided engine in CI."""

    name: str
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    form: Form = Form.TEXT
    allowed: tuple[type[Exception], ...] = (ManagerError,)
    runs: int = 3_000


def check(target: Target, data: bytes) -> bool:
    """Whether `target` took `data`; False where it refused it as documented. Raises what a finding raises."""
    begun_s = time.process_time()
    try:
        target.run(data)
        is_taken = True
    except target.allowed:
        is_taken = False
    took_s = time.process_time() - begun_s
    if took_s > CPU_S:
        raise TooSlowError(f"{target.name} took {took_s:.1f} s of processor for {len(data)} bytes")
    return is_taken


def text_of(data: bytes) -> str:
    return data.decode(errors="replace")


def parts_of(data: bytes) -> list[tuple[int, bytes]]:
    return [(part[0], part[1:]) for part in data.split(b"\0") if part]


def parts(*pairs: tuple[int, bytes | str]) -> bytes:
    """The input with these parts. A selector of 0 would end a part."""
    contents = [(number, content.encode() if isinstance(content, str) else content) for number, content in pairs]
    if any(not 0 < number < 256 or b"\0" in content for number, content in contents):
        raise ValueError("a part has a selector from 1 to 255 and no NUL")
    return b"\0".join(bytes([number]) + content for number, content in contents)
