"""click options made from the table of settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from driver_manager.settings import Kind, Setting, parse_duration

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[float]):
    """Seconds, written in Go's form or as a plain number."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds in `value`; a usage error names what was expected."""
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def styled(text: str, **style: Any) -> str:
    """`text` in a style, plain where NO_COLOR is set or the terminal is dumb; click drops styles off a terminal."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return text if plain else click.style(text, **style)


def _type_of(setting: Setting) -> Any:
    match setting.kind:
        case Kind.DURATION:
            return Duration()
        case Kind.CHOICE:
            return click.Choice(setting.choices)
        case Kind.COUNT:
            return click.IntRange(min=1)
        case Kind.FLAG:
            return click.BOOL
        case Kind.TEXT:
            return click.STRING


def with_options(*groups: tuple[Setting, ...]) -> Callable[[F], F]:
    """Decorator that adds every setting of `groups` as an option with its environment variable."""

    def decorate(command: F) -> F:
        for setting in reversed([setting for group in groups for setting in group]):
            command = click.option(
                setting.flag,
                setting.name,
                envvar=[setting.env, *setting.also],
                type=_type_of(setting),
                is_flag=setting.kind is Kind.FLAG,
                default=setting.default,
                show_default=setting.default not in (None, False),
                show_envvar=True,
                help=setting.help,
            )(command)
        return command

    return decorate


def output_option(command: F) -> F:
    """Decorator that adds `-o text|json`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="For people or machines.",
    )(command)
