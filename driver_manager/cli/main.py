"""`driver-manager`: the group of commands, and the one place where an error becomes two lines and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any, NoReturn

import click

from driver_manager import schemas
from driver_manager.adapters.report.log import LogForm
from driver_manager.cli.lazy import LazyGroup
from driver_manager.cli.printing import is_of_printing, put, unwritable
from driver_manager.domain.errors import EXIT_MEANINGS, ConfigError, ExitCode, ManagerError
from driver_manager.domain.escaping import json_text
from driver_manager.domain.setting import Setting
from driver_manager.settings import LOG_FORMAT, TERMINATION_LOG

COMMANDS = {
    "reconcile-driver-state": ("driver_manager.cli.reconcile", "reconcile_command"),
    "reconcile-vfio-state": ("driver_manager.cli.reconcile", "reconcile_vfio_command"),
    "plan": ("driver_manager.cli.reconcile", "plan_command"),
    "status": ("driver_manager.cli.status", "status_command"),
    "preflight": ("driver_manager.cli.preflight", "preflight_command"),
    "stage": ("driver_manager.cli.stage", "stage_command"),
    "rebooter": ("driver_manager.cli.rebooter", "rebooter_command"),
    "holders": ("driver_manager.cli.holders", "holders_command"),
    "restore": ("driver_manager.cli.restore", "restore_command"),
    "health-watch": ("driver_manager.cli.health_watch", "health_watch_command"),
    "rollout": ("driver_manager.cli.rollout", "rollout_group"),
    "profile": ("driver_manager.cli.profile", "profile_group"),
    "sandbox": ("driver_manager.cli.sandbox", "sandbox_command"),
    "completion": ("driver_manager.cli.completion", "completion_command"),
}

EPILOG = "Exit codes: " + " · ".join(f"{code.value} {text}" for code, text in EXIT_MEANINGS.items())


class Commands(LazyGroup):
    """All commands, also by the names that vendors' own managers have for them."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None if there is none of that name, be it a vendor's."""
        if cmd_name not in self.table:
            from driver_manager.cli import vendor_commands  # noqa: PLC0415  # our own names need no profiles

            return vendor_commands.find(cmd_name, lambda ours: self.get_command(ctx, ours))
        return super().get_command(ctx, cmd_name)


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
    """The console script: run, and end with the exit code of the wire contract."""
    leave(run(sys.argv[1:]))


def leave(code: int) -> NoReturn:
    """End this process with all that was written; nothing is taken down that ends with it.

    Taking modules down one by one is 20 ms that a node is given back later. A stream that cannot be written any more
    changes no exit code: whoever printed into it has said so.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def run(argv: list[str]) -> int:
    """Run the command in `argv`; its exit code. Errors go to standard error and the termination log."""
    try:
        result: Any = cli.main(argv, prog_name="driver-manager", standalone_mode=False, obj=tuple(argv))
    except click.exceptions.Abort:
        return _fail(argv, ExitCode.STANDING_DOWN, "interrupted", "Nothing was changed.")
    except click.exceptions.NoArgsIsHelpError as error:
        with contextlib.suppress(OSError):
            click.echo(error.format_message(), err=True)
        return ExitCode.USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "driver-manager"
        return _end(argv, ConfigError(_usage_text(error), f"See `{command} --help`."))
    except ManagerError as error:
        return _end(argv, error)
    except OSError as error:
        if not is_of_printing(error):
            raise
        return _end(argv, unwritable(error))
    return int(result) if isinstance(result, int) else ExitCode.DONE


def _end(argv: list[str], error: ManagerError) -> int:
    """Everything that is said of a failure; the exit code."""
    if _wants_json(argv):
        said = {"error": error.what, "remedy": error.remedy, "exitCode": int(error.exit_code)}
        body = {"schemaVersion": schemas.VERSION, **said, **error.facts}
        with contextlib.suppress(ConfigError):  # the two lines say what failed, wherever they can be written
            put(json_text(body, indent=2))
    return _fail(argv, error.exit_code, error.what, error.remedy)


def _wants_json(argv: list[str]) -> bool:
    words = " ".join(argv)
    return any(form in words for form in ("-o json", "-ojson", "--output json", "--output=json"))


def _usage_text(error: click.ClickException) -> str:
    return " ".join(error.format_message().split())


def _told(argv: list[str], option: Setting[str]) -> str:
    """An option where click has not read it, or could not: flag before environment before default."""
    for number, word in enumerate(argv):
        if word == option.flag and number + 1 < len(argv):
            return argv[number + 1]
        if word.startswith(f"{option.flag}="):
            return word.partition("=")[2]
    return os.environ.get(option.env) or str(option.default or option.unset)


def _fail(argv: list[str], code: ExitCode, what: str, remedy: str) -> int:
    """Two lines, as every failure has them; the exit code."""
    wanted = _told(argv, LOG_FORMAT)
    as_json = wanted == "json" or (wanted != "text" and not sys.stderr.isatty())
    path = _told(argv, TERMINATION_LOG)
    return LogForm(as_json, termination_log=path).fail(time.time, code, what, remedy)
