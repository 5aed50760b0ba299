"""`completion`: the script by which a shell completes this command's words."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.domain.errors import ConfigError, ExitCode

PROGRAM = "driver-manager"
VARIABLE = "_DRIVER_MANAGER_COMPLETE"
"""By which click is asked for completions: the name it gives this variable itself."""

SHELLS = ("bash", "zsh", "fish")


@click.command(cls=ScreenCommand, name="completion", short_help="Print the completion script of a shell.")
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
    # Not known.source(): for bash it runs the shell to ask its version, and an image may have none.
    click.echo(ShellComplete.source(known(root, {}, PROGRAM, VARIABLE)))
    return ExitCode.DONE
