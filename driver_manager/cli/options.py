"""click options made from the table of settings."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, tzinfo
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from driver_manager.adapters.report.log import allows_colour, columns_of, for_terminal, outlet_of
from driver_manager.core.ports_base import Reporter
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.settings import (
    DRIVER_PROFILE,
    HEADINGS,
    KUBE_CONTEXT,
    KUBECONFIG,
    ONLY_VARIABLES,
    AnySetting,
    SettingKind,
    Values,
)
from driver_manager.domain.text import (
    json_text,
    parse_duration,
    shortened,
    shown_length,
    spoken,
    words_on_one_line,
    wrapped,
    writable,
)
from driver_manager.domain.wire import seconds_of, written_time

# Help that fits on a screen.

_SENTENCE_END = re.compile(r"(?<=\.)(?<!e\.g\.) ")

OWN = "Options"
VARIABLES = "Variables without an option (docs/reference.md)"
ALL = "--help-all"
FLAG_COLUMNS = 34
"""The text of a wider flag is on the next line."""


def first_sentence(text: str) -> str:
    return _SENTENCE_END.split(text, maxsplit=1)[0]


class SettingOption(click.Option):
    """An option made from a Setting. Its help ends with the variable and the default.

    A hidden one is no option of its command: only its variable is read.
    """

    def __init__(self, *args: Any, setting: AnySetting, **known: Any) -> None:
        super().__init__(*args, **known)
        self.setting = setting

    @property
    def variables(self) -> tuple[str, ...]:
        return (self.setting.env, *self.setting.also)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if not self.hidden:
            super().add_to_parser(parser, ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The flag and its variables: manifests set the variable, not the flag."""
        variables = " or ".join(self.variables)
        return variables if self.hidden else f"{super().get_error_hint(ctx)} ({variables})"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The flag with its metavar, and the help, of which `--help` shows the first sentence."""
        setting, is_whole = self.setting, bool(ctx.meta.get(ALL))
        takes = "" if setting.kind is SettingKind.FLAG else f" {self.make_metavar(ctx)}"
        text = setting.help if is_whole else first_sentence(setting.help)
        notes = ", ".join(self.variables) if is_whole else setting.env
        if setting.default not in (None, False):
            notes += f"; default: {setting.default}"
        flag = ", ".join(filter(None, (setting.short, setting.flag)))
        return flag + takes, f"{text}  [{notes}]"


class ScreenCommand(click.Command):
    """A command whose `--help` has at most 40 lines of 100 columns, and whose `--help-all` has everything.

    `is_of_pods`: containers of pods run it, so its log is JSON; the other commands are typed by people.
    """

    def __init__(self, *args: Any, is_of_pods: bool = False, **known: Any) -> None:
        super().__init__(*args, **known)
        self.is_of_pods = is_of_pods

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        found = super().get_params(ctx)
        return [*found, _HELP_ALL] if any(not _is_common(one) for one in found) else found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click. Raises ConfigError that names the variable of an option that this command does not have."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hidden = (one for one in self.params if isinstance(one, SettingOption) and one.hidden)
            variable = next((one.setting.env for one in hidden if error.option_name in one.opts), "")
            if not variable:
                raise
            what = f"{error.option_name} is not an option of {ctx.command_path}"
            raise ConfigError(what, f"Set the variable {variable}.") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        hidden = [one for one in options if isinstance(one, SettingOption) and one.hidden]
        shown = [one for one in options if one not in hidden and (ctx.meta.get(ALL) or _is_common(one))]
        for heading in (OWN, *dict(HEADINGS)):
            rows = [option.get_help_record(ctx) for option in shown if _heading(option) == heading]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl([row for row in rows if row is not None], FLAG_COLUMNS)
        if hidden and ctx.meta.get(ALL):
            with formatter.section(VARIABLES):
                formatter.write_text(", ".join(name for one in hidden for name in one.variables))


def is_of_pods(command: click.Command | None) -> bool:
    return isinstance(command, ScreenCommand) and command.is_of_pods


def _heading(option: click.Option) -> str:
    return option.setting.heading if isinstance(option, SettingOption) else OWN


def _is_common(option: click.Parameter) -> bool:
    return not isinstance(option, SettingOption) or (option.setting.is_common and not option.hidden)


def _show_all(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        ctx.meta[ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL = click.Option(
    [ALL], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help="Show all options and exit."
)


F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


def command(name: str, short_help: str, **known: Any) -> Callable[[Callable[..., int]], ScreenCommand]:
    """Decorator for the command `name`; `short_help` is its line in the list of commands."""
    return click.command(name, cls=ScreenCommand, short_help=short_help, **known)


class Duration(click.ParamType[float]):
    """Seconds, written in Go's form or as a plain number."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Flag(click.types.BoolParamType):
    """On or off, as click reads it. Its own message lists sixteen spellings, an empty one first."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        try:
            return bool(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"{value!r} is neither true nor false", param, ctx)


def styled(text: str, **style: Any) -> str:
    """`text` in a style, plain if NO_COLOR is set or the terminal is dumb. Without a terminal click drops styles."""
    return click.style(text, **style) if allows_colour() else text


def _profiles(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """The shipped profiles that begin with `incomplete`, for a shell's completion."""
    from driver_manager import profiles  # noqa: PLC0415  # only completion needs it

    return [name for name in (profiles.AUTO, *sorted(profiles.builtin())) if name.startswith(incomplete)]


def _contexts(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The contexts of the kubeconfig that begin with `incomplete`."""
    from driver_manager.adapters.kube.kubeconfig import contexts  # noqa: PLC0415  # only completion needs it

    kubeconfig = context.params.get(KUBECONFIG.name) or os.environ.get(KUBECONFIG.env) or ""
    return [name for name in contexts(kubeconfig)[0] if name.startswith(incomplete) and name.isprintable()]


_COMPLETIONS = {DRIVER_PROFILE: _profiles, KUBE_CONTEXT: _contexts}


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
            return click.Path()  # for completion; the code that opens it reports its errors
        case SettingKind.TEXT:
            return click.STRING


def with_options(
    *groups: Iterable[AnySetting], typed: Iterable[AnySetting] | None = None
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorator that adds every setting of `groups`; the command gets their `values`.

    Those of `typed`, by default every one that people type, have an option; the others only their variable.
    """
    settings = [setting for group in groups for setting in group]
    with_option = [one for one in settings if one.env not in ONLY_VARIABLES] if typed is None else list(typed)

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
                hidden=setting not in with_option,
                envvar=[setting.env, *setting.also],
                type=_type_of(setting),
                is_flag=setting.kind is SettingKind.FLAG,
                default=setting.default,
                shell_complete=_COMPLETIONS.get(setting),
                metavar="NUMBER" if setting.kind is SettingKind.COUNT else None,
                help=setting.help,
            )(made)
        return made

    return decorate


FORMATS = ("text", "json", "yaml")


def output_option(command: F) -> F:
    return click.option("-o", "--output", type=click.Choice(FORMATS), default="text", help="Output format.")(command)


# Standard output. A reader that closes it early changes nothing else.

PRINT_S = 10.0


def in_form(output: str, body: Any, text: Callable[[Any], str]) -> str:
    """`body` in a form for programs, or what `text` makes of it, with each text on one line if it fits."""
    return fitted(text(words_on_one_line(body))) if output == "text" else document(output, body)


def document(output: str, body: Any) -> str:
    """`body` as YAML if `output` is "yaml", else as JSON; both are printable ASCII."""
    text = json_text(body, indent=2)
    return _yaml(json.loads(text)) if output == "yaml" else text


_NUMBER = re.compile(r"[-+]?(?:\.\d[\d_]*|\d[\d_]*\.?[\d_]*)(?:[eE][-+]?\d+)?|0o[0-7]+")
"""Strings that are numbers in YAML 1.2, as of Go programs, and strings in YAML 1.1, as of PyYAML: they are quoted."""


def _yaml(body: Any) -> str:
    import yaml  # noqa: PLC0415  # no pod needs it

    def scalar(dumper: Any, text: str) -> Any:
        text = writable(text)
        style = '"' if _NUMBER.fullmatch(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    kind: Any = type("Dumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {})
    kind.add_representer(str, scalar)
    found: str = yaml.dump(body, Dumper=kind, sort_keys=False, width=2**30)
    return found.removesuffix("\n")


_INDENT = re.compile(r"\s*(?:\d+\. |[\w ]{1,10}: +)?")
"""The beginning of a line that its further lines leave free: spaces, and a number or a short title."""


def fitted(text: str) -> str:
    """`text` with lines that fit on the terminal of standard output."""
    columns = columns_of(sys.stdout)
    lines = [wrapped(line, columns, _indent(line)) for line in text.split("\n")]
    return "\n".join(part for parts in lines for part in parts)


def _indent(line: str) -> int:
    found = _INDENT.match(line)
    return len(found[0]) if found and found[0] else 2


def table(rows: Sequence[Sequence[str]], indent: int = 0) -> list[str]:
    """The rows in columns. On a terminal that is too narrow behind `indent`, the widest cells are cut."""
    widths = [max(map(shown_length, column)) for column in zip(*rows, strict=True)]
    columns = columns_of(sys.stdout)
    if columns:
        widths = narrowed(widths, columns - indent - 2 * len(widths) + 2)
    return ["  ".join(map(_cell, row, widths)).rstrip() for row in rows]


def _cell(text: str, width: int) -> str:
    """`text` in `width` columns; one with a style is not cut."""
    cut = text if shown_length(text) <= width or text.endswith("\x1b[0m") else shortened(text, width)
    return cut + " " * (width - shown_length(cut))


LEAST_CELL = 12


def narrowed(widths: Sequence[int], room: int) -> list[int]:
    """`widths`, of which the widest are less, down to `LEAST_CELL`, until all fit into `room`."""
    found = list(widths)
    while sum(found) > room and max(found) > LEAST_CELL:
        found[found.index(max(found))] -= 1
    return found


def titled(parts: Iterable[tuple[str, Iterable[str]]], width: int) -> list[str]:
    """The lines of all parts behind a column of `width`, each title before the first line of its part."""
    columns = columns_of(sys.stdout)
    return [
        row.rstrip()
        for title, lines in parts
        for number, line in enumerate(lines)
        for row in wrapped(f"{title if number == 0 else '':<{width}} {line}", columns, width + 1 + _indent(line))
    ]


def written_moment(wall_s: float | None) -> str | None:
    return None if wall_s is None else written_time(wall_s)


def when(moment: str, now_s: float) -> str:
    """A moment in the API's form, with its distance from `now_s` (seconds since the epoch)."""
    then_s = seconds_of(moment)
    return moment if then_s is None else f"{moment} ({distance(then_s, now_s)})"


def distance(then_s: float, now_s: float) -> str:
    return f"{spoken(now_s - then_s)} ago" if now_s >= then_s else f"in {spoken(then_s - now_s)}"


def put(text: str) -> None:
    """Print `text`, escaped except for line feeds and styles; ignores a closed pipe. Raises ConfigError."""
    try:
        click.echo(for_terminal(text))
    except BrokenPipeError:
        _to_nowhere()
    except OSError as error:
        raise unwritable(error) from error


def put_after(text: str, log: Reporter) -> None:
    """Print `text` at the end of a command that changed something, or log why it is not printed.

    A reader that does not read delays the end of the command by at most `PRINT_S` seconds.
    """
    try:
        outlet = outlet_of(sys.stdout)
        if outlet is None:
            put(text)
        elif outlet.push(f"{for_terminal(text)}\n".encode(errors="backslashreplace"), PRINT_S):
            log.warn(f"standard output was not read within {PRINT_S:g} s: the result is not printed")
    except BrokenPipeError:
        _to_nowhere()
    except OSError as error:
        log.warn(unwritable(error).what)
    except ConfigError as error:
        log.warn(f"{error.what}. {error.remedy}")


def unwritable(error: OSError) -> ConfigError:
    """The error for a failed write to standard output, which is then discarded."""
    _to_nowhere()
    return ConfigError(
        f"standard output cannot be written: {error.strerror}", "Check that there is free space where it is written to."
    )


def is_of_printing(error: OSError) -> bool:
    """True if `error` was raised while printing, also by click, which prints help."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code is click.echo.__code__


def _to_nowhere() -> None:
    """Send the rest to /dev/null, also the buffered text, which is flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def zone(name: str) -> tzinfo | None:
    """The time zone `name` of this system or of the package tzdata, None if there is none. UTC needs no files."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        return None
