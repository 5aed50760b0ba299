"""What an option is: its name, its variable, its text, and the type of its value. Pure.

Owns no option: `driver_manager.settings` has the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

from driver_manager.domain.duration import parse_duration
from driver_manager.domain.frozen import Frozen

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SettingKind(Enum):
    """How an option's text is read."""

    TEXT = "text"
    FILE = "file"
    FLAG = "flag"
    DURATION = "duration"
    CHOICE = "choice"
    COUNT = "count"


class Setting(Frozen, Generic[T_co]):
    """One option whose value is a T. `default` is in the option's written form; `unset` is its value without one.

    `name` is the flag's, with underscores; `short` is its one letter, with the dash, "" without one. `also` are other
    names of the variable, read after it.
    """

    env: str
    kind: SettingKind
    help: str
    name: str
    unset: T_co
    default: str | bool | None = None
    choices: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    short: str = ""

    @property
    def flag(self) -> str:
        """The long flag."""
        return "--" + self.name.replace("_", "-")


AnySetting = Setting[Any]


def text(  # noqa: PLR0913  # what an option may have; all but two by keyword
    env: str,
    meaning: str,
    *,
    default: str | None = None,
    name: str = "",
    also: tuple[str, ...] = (),
    short: str = "",
) -> Setting[str]:
    """An option that takes a text; "" when unset."""
    return Setting(env, SettingKind.TEXT, meaning, name or env.lower(), "", default, also=also, short=short)


def file(env: str, meaning: str, *, default: str | None = None, name: str = "") -> Setting[str]:
    """An option that takes the path of a file; "" when unset."""
    return Setting(env, SettingKind.FILE, meaning, name or env.lower(), "", default)


def flag(env: str, meaning: str, *, also: tuple[str, ...] = ()) -> Setting[bool]:
    """An option that is on or off; off when unset."""
    return Setting(env, SettingKind.FLAG, meaning, env.lower(), False, False, also=also)


def choice(env: str, choices: tuple[str, ...], meaning: str, *, default: str) -> Setting[str]:
    """An option that takes one of `choices`."""
    return Setting(env, SettingKind.CHOICE, meaning, env.lower(), default, default, choices)


def count(env: str, meaning: str, *, default: str, name: str = "") -> Setting[int]:
    """An option that takes a whole number above 0."""
    return Setting(env, SettingKind.COUNT, meaning, name or env.lower(), int(default), default)


def duration(env: str, meaning: str, *, default: str, name: str = "") -> Setting[float]:
    """An option that takes a duration, in seconds."""
    return Setting(env, SettingKind.DURATION, meaning, name or env.lower(), parse_duration(default), default)


def optional_duration(env: str, meaning: str, *, name: str = "") -> Setting[float | None]:
    """An option that takes a duration, in seconds; None when unset, where the default is no constant."""
    return Setting(env, SettingKind.DURATION, meaning, name or env.lower(), None)


class Values:
    """The options of one command line, each in its own type."""

    def __init__(self, values: Mapping[AnySetting, Any]) -> None:
        self._values = values

    def __getitem__(self, setting: Setting[T]) -> T:
        """The value of `setting`. Raises KeyError for one that this command does not take."""
        if setting not in self._values:
            raise KeyError(f"this command does not take {setting.flag} ({setting.env})")
        value: T | None = self._values[setting]
        return setting.unset if value is None else value

    def get(self, setting: Setting[T], otherwise: T) -> T:
        """The value of `setting`; `otherwise` where this command does not take it."""
        return self[setting] if setting in self._values else otherwise
