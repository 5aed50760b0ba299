"""Groups of commands that import a command when it is used: a small one must not pay for the others' libraries.

A name that no command has is an error with the names that come near it: click compares them, we know them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import click

Table = Mapping[str, tuple[str, str]]
"""Commands by their names, each as the module that it is in and its name there."""


class LazyGroup(click.Group):
    """A group of the commands in a table."""

    def __init__(self, *args: Any, table: Table, **known: Any) -> None:
        super().__init__(*args, **known)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None if there is none of that name."""
        if cmd_name not in self.table:
            return None
        module, attribute = self.table[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, but that it knows the names in our table, too. Raises NoSuchCommand."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            inner = self._by_last_word()
            found = click.NoSuchCommand(error.command_name, possibilities=[*self.table, *inner], ctx=ctx)
            if found.possibilities:
                found.possibilities[:] = [inner.get(name, name) for name in found.possibilities]
            raise found from None

    def _by_last_word(self) -> dict[str, str]:
        """The commands of the groups in this one by their own names, as `rollout undo` by `undo`; ours come first."""
        found = {words.rpartition(" ")[2]: words for words, _ in self.each() if " " in words}
        return {name: words for name, words in found.items() if name not in self.table}

    def each(self) -> Iterator[tuple[str, click.Command]]:
        """Every command with its words, those of the groups in it, too, and no group."""
        context = click.Context(self)
        for name in self.table:
            found = self.get_command(context, name)
            if isinstance(found, LazyGroup):
                yield from ((f"{name} {inner}", command) for inner, command in found.each())
            elif found is not None:
                yield name, found
