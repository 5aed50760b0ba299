"""What a command prints on standard output, where a reader who went early changes nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from driver_manager.adapters.report.log import outlet_of
from driver_manager.adapters.report.terminal import for_terminal
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.escaping import json_text, words_on_one_line
from driver_manager.ports.base import Reporter

PRINT_S = 10.0


def in_form(output: str, body: Any, text: Callable[[Any], str]) -> str:
    """`body` as JSON where `output` is "json", else as `text` shows it, which gets every word on one line."""
    return json_text(body, indent=2) if output == "json" else text(words_on_one_line(body))


def put(text: str) -> None:
    """Print `text`, escaped but for line feeds and our own styles.

    Where nobody reads any more, the exit status still tells how the command ended. Raises ConfigError where it
    cannot be written.
    """
    try:
        click.echo(for_terminal(text))
    except BrokenPipeError:
        _to_nowhere()
    except OSError as error:
        raise unwritable(error) from error


def put_after(text: str, log: Reporter) -> None:
    """The same at the end of a command that changed something: what was done is done, printed or not.

    A reader that does not read holds the end of the command for `PRINT_S` seconds at most.
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
    """The error for a standard output that took no more; nothing is written to it from now on."""
    _to_nowhere()
    return ConfigError(
        f"standard output cannot be written: {error.strerror}", "Check that there is free space where it is written to."
    )


def is_of_printing(error: OSError) -> bool:
    """Whether it was raised while something was printed: also by click itself, which prints help."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code is click.echo.__code__


def _to_nowhere() -> None:
    """What is still buffered is flushed at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
