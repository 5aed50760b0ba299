"""Help that fits a screen: the options that people type under their headings, all others with `--help-all`."""

from __future__ import annotations

import re
from typing import Any

import click

from driver_manager.domain.setting import AnySetting, SettingKind
from driver_manager.settings import COMMON, HEADINGS, heading_of

_SENTENCE_END = re.compile(r"(?<=\.)(?<!e\.g\.) ")

OWN = "Options"
"""The heading of a command's own options."""

ALL = "--help-all"
FLAG_COLUMNS = 34
"""A flag that is wider has its text in the line below."""


def first_sentence(text: str) -> str:
    """The first sentence of `text`; "e.g." ends none."""
    return _SENTENCE_END.split(text, maxsplit=1)[0]


class SettingOption(click.Option):
    """An option made from a Setting; its row of the help names the variable and the default behind the text."""

    def __init__(self, *args: Any, setting: AnySetting, **known: Any) -> None:
        super().__init__(*args, **known)
        self.setting = setting

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The flag and its variables: in a pod's manifest a value stands beside the variable, not beside the flag."""
        return f"{super().get_error_hint(ctx)} ({' or '.join([self.setting.env, *self.setting.also])})"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The flag with what it takes, and the text; its first sentence where not everything is wanted."""
        setting, is_whole = self.setting, bool(ctx.meta.get(ALL))
        takes = "" if setting.kind is SettingKind.FLAG else f" {self.make_metavar(ctx)}"
        text = setting.help if is_whole else first_sentence(setting.help)
        notes = ", ".join([setting.env, *setting.also]) if is_whole else setting.env
        if setting.default not in (None, False):
            notes += f"; default: {setting.default}"
        flag = ", ".join(filter(None, (setting.short, setting.flag)))
        return flag + takes, f"{text}  [{notes}]"


class ScreenCommand(click.Command):
    """A command whose `--help` has at most 40 lines of 100 columns, and whose `--help-all` has everything."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options, with `--help-all` last where `--help` leaves some out."""
        found = super().get_params(ctx)
        return [*found, _HELP_ALL] if any(not _is_common(one) for one in found) else found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options heading by heading."""
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        shown = [option for option in options if ctx.meta.get(ALL) or _is_common(option)]
        for heading in (OWN, *(heading for heading, _ in HEADINGS)):
            rows = [option.get_help_record(ctx) for option in shown if _heading(option) == heading]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl([row for row in rows if row is not None], FLAG_COLUMNS)


def _heading(option: click.Option) -> str:
    return heading_of(option.setting) if isinstance(option, SettingOption) else OWN


def _is_common(option: click.Parameter) -> bool:
    return not isinstance(option, SettingOption) or option.setting in COMMON


def _show_all(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        ctx.meta[ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_HELP_ALL = click.Option(
    [ALL],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options and exit.",
)
