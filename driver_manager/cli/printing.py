"""What a command prints on standard output, where a reader who went early changes nothing else."""

from __future__ import annotations

import os
import sys

import click


def put(text: str) -> None:
    """Print `text`. Where nobody reads any more, the exit status still tells how the command ended."""
    try:
        click.echo(text)
    except BrokenPipeError:
        # What is still buffered is flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
