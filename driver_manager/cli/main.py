"""`driver-manager`: the group of commands, and the conversion of errors to log lines and an exit code."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import click
from click.shell_completion import ShellComplete, get_completion_class

from driver_manager import profiles, schemas
from driver_manager.adapters.report.log import LogForm, LogReporter
from driver_manager.cli.options import command, document, is_of_pods, is_of_printing, put, unwritable
from driver_manager.domain.errors import EXIT_MEANINGS, ConfigError, ExitCode, ManagerError, at_place
from driver_manager.domain.profile import Profile
from driver_manager.domain.settings import LOG_FORMAT, TERMINATION_LOG, Setting, mistyped
from driver_manager.domain.text import several

PROGRAM = "driver-manager"
VARIABLE = "_DRIVER_MANAGER_COMPLETE"
"""The variable by which a shell requests completions; the name is click's."""

SHELLS = ("bash", "zsh", "fish")


@command("completion", "Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_command(*, shell: str) -> int:
    """Print the script that completes commands, options and their values in SHELL.

    \b
    bash   source <(driver-manager completion bash)
    zsh    source <(driver-manager completion zsh)
    fish   driver-manager completion fish | source
    """
    known = get_completion_class(shell)
    if known is None:
        raise ConfigError(f"there is no completion for {shell}", f"Use one of {', '.join(SHELLS)}.")
    root = click.get_current_context().find_root().command
    # Not known.source(): it runs bash to read its version, and an image may have no bash.
    click.echo(ShellComplete.source(known(root, {}, PROGRAM, VARIABLE)))
    return ExitCode.DONE


Table = Mapping[str, tuple[str, str]]
"""Module and name of each command, by the word that runs it."""


class LazyGroup(click.Group):
    """A group that imports a command when it is used, so that it does not load the libraries of all others."""

    def __init__(self, *args: Any, table: Table, **known: Any) -> None:
        super().__init__(*args, **known)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, attribute = self.table[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word. Raises NoSuchCommand with similar names, those of inner groups too."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            inner = self._by_last_word()
            found = click.NoSuchCommand(error.command_name, possibilities=[*self.table, *inner], ctx=ctx)
            if found.possibilities:
                found.possibilities[:] = [inner.get(name, name) for name in found.possibilities]
            raise found from None

    def _by_last_word(self) -> dict[str, str]:
        """The commands of inner groups by their last word, as `rollout undo` by `undo`, unless this group has it."""
        found = {words.rpartition(" ")[2]: words for words, _ in self.each() if " " in words}
        return {name: words for name, words in found.items() if name not in self.table}

    def each(self) -> Iterator[tuple[str, click.Command]]:
        """All commands with their words, including those of inner groups, without the groups."""
        context = click.Context(self)
        for name in self.table:
            found = self.get_command(context, name)
            if isinstance(found, LazyGroup):
                yield from ((f"{name} {inner}", command) for inner, command in found.each())
            elif found is not None:
                yield name, found


COMMANDS = {
    "reconcile-driver-state": ("driver_manager.cli.reconcile", "reconcile_command"),
    "reconcile-vfio-state": ("driver_manager.cli.reconcile", "reconcile_vfio_command"),
    "plan": ("driver_manager.cli.reconcile", "plan_command"),
    "status": ("driver_manager.cli.status", "status_command"),
    "upgrade": ("driver_manager.cli.upgrade", "upgrade_command"),
    "preflight": ("driver_manager.cli.reconcile", "preflight_command"),
    "stage": ("driver_manager.cli.by_hand", "stage_command"),
    "rebooter": ("driver_manager.cli.rebooter", "rebooter_command"),
    "holders": ("driver_manager.cli.by_hand", "holders_command"),
    "restore": ("driver_manager.cli.by_hand", "restore_command"),
    "health-watch": ("driver_manager.cli.health_watch", "health_watch_command"),
    "rollout": ("driver_manager.cli.rollout_verbs", "rollout_group"),
    "collect": ("driver_manager.cli.collect", "collect_command"),
    "profile": ("driver_manager.cli.by_hand", "profile_group"),
    "sandbox": ("driver_manager.cli.sandbox", "sandbox_command"),
    "completion": ("driver_manager.cli.main", "completion_command"),
}

EPILOG = "Exit codes: " + " · ".join(f"{code.value} {text}" for code, text in EXIT_MEANINGS.items())


RECONCILE, PREFLIGHT = "reconcile-driver-state", "preflight"


class Commands(LazyGroup):
    """All commands, also by their names in vendors' own managers, so that those manifests run unchanged."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self._of_vendor(ctx, cmd_name)

    def _of_vendor(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command that a shipped profile calls `name`, with that profile as its default; None if none does."""
        for profile in profiles.builtin().values():
            for names, meant in ((profile.commands.reconcile, RECONCILE), (profile.commands.preflight, PREFLIGHT)):
                ours = super().get_command(ctx, meant) if name in names else None
                if ours is not None:
                    known = copy.copy(ours)
                    known.name = name
                    known.context_settings = {**ours.context_settings, "default_map": {"profile": profile.name}}
                    return known
        return None


@click.group(
    cls=Commands,
    table=COMMANDS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="driver-manager", prog_name="driver-manager")
def cli() -> None:
    """Driver manager for accelerators on one Kubernetes node.

    In the cluster, reconcile-driver-state is the init container of each driver pod. By hand, in a node debug pod,
    start with status and plan: both change nothing. Without a cluster, try sandbox.
    """


def entry() -> None:
    leave(run(sys.argv[1:]))


def leave(code: int) -> NoReturn:
    """Flush the streams and end this process without Python's clean-up, which takes 20 ms.

    A stream that cannot be flushed does not change the exit code: the code that printed has reported it.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run(argv: list[str]) -> int:
    """Run the command in `argv`; its exit code. Errors go to the log and the termination log."""
    try:
        result: Any = cli.main(argv, prog_name="driver-manager", standalone_mode=False, obj=tuple(argv))
    except click.exceptions.Abort:
        return _form(argv).fail(time.time, ExitCode.STANDING_DOWN, "interrupted", "Nothing was changed.")
    except click.exceptions.NoArgsIsHelpError as error:
        with contextlib.suppress(OSError):
            click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "driver-manager"
        return _end(argv, ConfigError(" ".join(error.format_message().split()), f"See `{command} --help`."))
    except ManagerError as error:
        return _end(argv, error)
    except OSError as error:
        if not is_of_printing(error):
            raise
        return _end(argv, unwritable(error))
    return int(result) if isinstance(result, int) else ExitCode.DONE


def _end(argv: list[str], error: ManagerError) -> int:
    form = _form(argv)
    output = _form_for_programs(argv)
    if output:
        remedy = at_place(error.remedy, form.place)
        body = {"schemaVersion": schemas.VERSION, "error": error.what, "remedy": remedy}
        body |= {"exitCode": int(error.exit_code), **error.facts}
        with contextlib.suppress(ConfigError):  # the log has the error too
            put(document(output, body))
    return form.fail(time.time, error.exit_code, error.what, error.remedy)


def _form_for_programs(argv: list[str]) -> str:
    """The form of output that a command line asks for which click may not have parsed, "" for text."""
    found = re.search(r"(?:^| )(?:-o ?|--output[ =])(json|yaml)\b", " ".join(argv))
    return found[1] if found else ""


def _read(setting: Setting[str]) -> str:
    """The value of a setting that click has not read, as it has no option."""
    return os.environ.get(setting.env) or str(setting.default)


def _form(argv: list[str]) -> LogForm:
    """The form of the log, for a command line that click may not have parsed."""
    found: click.Command | None = cli
    for word in argv:
        if not isinstance(found, LazyGroup):
            break
        found = found.get_command(click.Context(found), word)
    return LogForm.of(_read(LOG_FORMAT), "", _read(TERMINATION_LOG), is_of_pods=is_of_pods(found))


# Completion of `kubectl driver-rollout`.
#
# kubectl runs `kubectl_complete-driver_rollout` with the words so far, of which the last may be empty. It reads a line
# for each candidate, with its description after a tab, and then a directive (pkg/cmd/plugin/plugin_completion.go).

NO_FILES = ":4"
"""The directive not to complete file names (cobra, ShellCompDirectiveNoFileComp)."""


def kubectl_complete() -> None:
    for line in offers(sys.argv[1:]):
        click.echo(line)


def offers(words: list[str]) -> list[str]:
    """The candidates for the last of `words`, and the directive."""
    *before, last = words or [""]
    found = ShellComplete(cli, {}, PROGRAM, VARIABLE).get_completions(["rollout", *before], last)
    return [*(f"{one.value}\t{one.help}" if one.help else str(one.value) for one in found), NO_FILES]


def warn_of_unheeded(profile: Profile, log: LogReporter) -> None:
    """Warn of variables of the vendor's own manager that are set and have no effect here."""
    for name in profile.commands.unheeded:
        if os.environ.get(name, "").lower() in ("1", "t", "true"):
            log.warn(f"{name} is set but has no effect here; see docs/migrating.md")
    warn_of_mistyped(log)


def warn_of_mistyped(log: LogReporter) -> None:
    for name, near in mistyped(os.environ).items():
        log.warn(f"{name} is set, and no option reads it: did you mean {near}?")


def refuse_mistyped() -> None:
    """Raise ConfigError for variables that look like options and are none: in a run they are only a warning."""
    found = [f"{name} (did you mean {near}?)" for name, near in mistyped(os.environ).items()]
    if found:
        raise ConfigError(f"no option reads {several(found)}", "Correct or remove it where the container sets it.")
