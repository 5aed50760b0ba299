"""click options made from the table of settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from driver_manager.adapters.report.terminal import allows_colour
from driver_manager.cli.help_screen import SettingOption
from driver_manager.domain.duration import parse_duration
from driver_manager.domain.setting import AnySetting, SettingKind, Values
from driver_manager.settings import DRIVER_PROFILE

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


class Duration(click.ParamType[float]):
    """Seconds, written in Go's form or as a plain number."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds in `value`; a usage error names what was expected."""
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Flag(click.types.BoolParamType):
    """On or off, as click reads it; its own message lists sixteen spellings, an empty one first."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Whether it is on; a usage error names what was expected."""
        try:
            return bool(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{value!r} is neither true nor false", param, ctx)


def styled(text: str, **style: Any) -> str:
    """`text` in a style, plain where NO_COLOR is set or the terminal is dumb; click drops styles off a terminal."""
    return click.style(text, **style) if allows_colour() else text


def _profiles(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The shipped profiles that begin so, for a shell's completion."""
    from driver_manager import profiles  # noqa: PLC0415  # reading them is nobody else's business here

    return [name for name in (profiles.AUTO, *sorted(profiles.builtin())) if name.startswith(incomplete)]


def _type_of(setting: AnySetting) -> Any:
    match setting.kind:
        case SettingKind.DURATION:
            return Duration()
        case SettingKind.CHOICE:
            return click.Choice(setting.choices)
        case SettingKind.COUNT:
            return click.IntRange(min=1)
        case SettingKind.FLAG:
            return Flag()
        case SettingKind.FILE:
            return click.Path()  # whoever opens it says what is wrong with it; here it helps completion
        case SettingKind.TEXT:
            return click.STRING


def with_options(*groups: tuple[AnySetting, ...]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorator that adds every setting of `groups` as an option; the command gets them all as `values`."""
    settings = [setting for group in groups for setting in group]

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(command)
        def with_values(**options: Any) -> R:
            values = Values({setting: options.pop(setting.name) for setting in settings})
            return command(values=values, **options)

        made: Callable[..., R] = with_values
        for setting in reversed(settings):
            made = click.option(
                *filter(None, (setting.short, setting.flag)),
                setting.name,
                cls=SettingOption,
                setting=setting,
                envvar=[setting.env, *setting.also],
                type=_type_of(setting),
                is_flag=setting.kind is SettingKind.FLAG,
                default=setting.default,
                shell_complete=_profiles if setting is DRIVER_PROFILE else None,
                metavar="NUMBER" if setting.kind is SettingKind.COUNT else None,
                help=setting.help,
            )(made)
        return made

    return decorate


def output_option(command: F) -> F:
    """Decorator that adds `-o text|json`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        help="Output format.",
    )(command)
