"""`profile check` and `profile schema`: a profile file before it goes anywhere."""

from __future__ import annotations

import json

import click

from driver_manager import profiles, schemas
from driver_manager.cli.help_screen import ScreenCommand
from driver_manager.cli.options import output_option
from driver_manager.cli.printing import put
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.escaping import json_text, one_line
from driver_manager.profiles.words import meaning


@click.command(cls=ScreenCommand, name="check", short_help="Show what is wrong with a profile file, or what it means.")
@click.argument("file")
@output_option
def check_command(*, file: str, output: str) -> int:
    """Show every mistake in the profile in FILE, one line for each; if there is none, show what the profile means.

    A line has the key, its value and what was expected. Exit code 2 where anything is wrong.
    """
    found = profiles.read_file(file)
    profile = found.profile
    if output == "json":
        findings = [
            {"key": one.key, "value": one.value, "expectation": one.expected, "line": one.line, "what": one.what}
            for one in found.wrong
        ]
        name = profile.name if profile is not None else None
        body = {"schemaVersion": schemas.VERSION, "file": file, "profile": name, "findings": findings}
        put(json_text(body, indent=2))
        return ExitCode.USAGE if findings else ExitCode.DONE
    if profile is None:
        put("\n".join(one_line(one.what) for one in found.wrong))
        raise ConfigError(
            f"profile {file} has {len(found.wrong)} mistake(s)",
            "Fix the file: docs/profiles.md lists every key, `driver-manager profile schema` prints the JSON Schema "
            "for editors.",
        )
    shipped = ", which replaces the shipped one" if profile.name in profiles.builtin() else ""
    topics = meaning(profile)
    width = max(len(topic) for topic, _ in topics)
    lines = [f"{file} is valid: profile {profile.name}{shipped}"]
    lines += [f"  {topic:{width}}  {sentence}" for topic, sentence in topics]
    put("\n".join(map(one_line, lines)))
    return ExitCode.DONE


@click.command(cls=ScreenCommand, name="schema", short_help="Print the JSON Schema of profile files, for editors.")
def schema_command() -> int:
    """Print the JSON Schema (draft-07) of profile files, for editors that complete and check TOML files."""
    put(json.dumps(schemas.schema("profile"), indent=2))
    return ExitCode.DONE
