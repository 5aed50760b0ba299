"""A fuzz target, what counts as a finding, and whether a value is what its type promises."""

from __future__ import annotations

import functools
import time
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from msgspec import Struct

from driver_manager.domain.errors import ManagerError


def assert_conforms(value: Any, hint: Any, at: str = "result") -> None:
    """Raise AssertionError where `value`, or something in it, is not of the type that was declared for it."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if origin in (typing.Union, types.UnionType):
        assert any(_conforms(value, option, at) for option in arguments), f"{at} is {value!r}, not {hint}"
    elif origin is tuple and arguments[-1:] == (Ellipsis,):
        _assert_kind(value, tuple, at)
        _assert_all(value, arguments[0], at)
    elif origin is tuple:
        _assert_kind(value, tuple, at)
        assert len(value) == len(arguments), f"{at} has {len(value)} parts"
        for number, (item, kind) in enumerate(zip(value, arguments, strict=True)):
            assert_conforms(item, kind, f"{at}[{number}]")
    elif origin in (frozenset, set, list):
        _assert_kind(value, origin, at)
        _assert_all(value, arguments[0], at)
    elif origin in (dict, Mapping):
        _assert_kind(value, Mapping, at)
        _assert_all(value, arguments[0], f"{at} key")
        _assert_all(value.values(), arguments[1], f"{at} value")
    elif isinstance(hint, type) and issubclass(hint, Struct):
        _assert_kind(value, hint, at)
        for name, kind in _fields(hint).items():
            assert_conforms(getattr(value, name), kind, f"{at}.{name}")
    else:
        _assert_plain(value, hint, at)


def _assert_plain(value: Any, hint: Any, at: str) -> None:
    kind = type(None) if hint is None else hint
    if kind is float:
        assert type(value) in (float, int), f"{at} is {value!r}, not a number"
    elif kind in (int, str, bool, bytes):
        assert type(value) is kind, f"{at} is {value!r}, not {kind.__name__}"
    elif isinstance(kind, type) and issubclass(kind, Enum):
        assert type(value) is kind, f"{at} is {value!r}, not of {kind.__name__}"
    else:
        _assert_kind(value, kind, at)


def _assert_kind(value: Any, kind: type, at: str) -> None:
    assert isinstance(value, kind), f"{at} is {value!r}, not {kind}"


def _assert_all(values: Iterable[Any], kind: Any, at: str) -> None:
    for value in values:
        assert_conforms(value, kind, at)


def _conforms(value: Any, hint: Any, at: str) -> bool:
    try:
        assert_conforms(value, hint, at)
    except AssertionError:
        return False
    return True


@functools.cache
def _fields(kind: type[Struct]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__}


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
    """`run` reads foreign input; it may raise what is `allowed`, and nothing else. `seeds` are good inputs.

    `runs` is how many executions the guided engine does of it in CI.
    """

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
