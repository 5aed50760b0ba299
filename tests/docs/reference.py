"""docs/reference.md and the table of docs/profiles.md, from the code: `scripts/reference` writes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from driver_manager import settings
from driver_manager.adapters.kube.leases import LEASE
from driver_manager.cli.help_screen import SettingOption
from driver_manager.cli.main import COMMANDS, cli
from driver_manager.domain.errors import EXIT_MEANINGS
from driver_manager.domain.events import EVENTS
from driver_manager.domain.health.machine import History
from driver_manager.domain.health.metrics import PREFIX, HealthReport, families
from driver_manager.domain.model import DeviceVerdict, Health, ProbeResult
from driver_manager.domain.setting import AnySetting, SettingKind
from driver_manager.profiles import builtin
from tests.docs import profile_keys
from tests.docs.markdown import DOCS, code, codes, main, table, with_block
from tests.mutants.catalogue import MUTANTS

SCRIPT = "scripts/reference"
HEAD = f"""# Reference

Made from the code by `{SCRIPT}`; a test fails when it says something else than the code. What things mean in
practice: [operate.md](operate.md). How to write a profile: [profiles.md](profiles.md).
"""
OPTIONS = """## Options

Flag before environment before default; an empty variable counts as unset. Durations: `90`, `30s`, `5m`, `1h30m`.
`--help` shows what people type, `--help-all` everything. A flag without a value switches on; its variable takes
`true` or `1`.
"""
EXITS = """
Every failure prints one line what and one line what to do; the same goes to the termination log, and to an Event on the
Node once the node was observed. With `-o json` a command that fails prints `error`, `remedy` and `exitCode` as JSON.
`plan` exits as the run would where it is blocked; `health-watch` and `rebooter` end with 0 when told to terminate;
`health-watch --once`: 5 unhealthy, 6 cannot be told.
"""
KEYS = """## Labels and annotations

On the Node, by profile. Nothing else on it is ever changed but `spec.unschedulable`, and no label key is created but
those of a reboot and `…driver=pre-installed` on a host with its own driver.
"""
SAID = " Default: "
"""Where the text of a setting tells a default that is no constant."""

DERIVED = {
    "ready_withdrawn": "the ready marker, put aside by health-watch",
    "work_lock": "held locked by a reconcile while it works on the driver",
    "effect_lock": "held locked by a run during each change to the driver",
    "owner_note": "names the run that may change the driver",
    "reboot_wish": "remembers over a reboot which driver it was asked for",
    "rebooter_lock": "held locked by the one rebooter that works on this host",
    "health_record": "what health-watch remembers of this boot",
}
"""Paths that follow from others, with their meanings."""

DEVICE_METRIC = ProbeResult(Health.HEALTHY, "", devices=(DeviceVerdict("0", Health.HEALTHY, ""),))


def commands() -> dict[str, click.Command]:
    """Every command by its name."""
    context = click.Context(cli)
    return {name: command for name in COMMANDS if (command := cli.get_command(context, name)) is not None}


def takers(setting: AnySetting) -> list[str]:
    """The commands that take `setting`."""
    return [name for name, command in commands().items() if setting in _settings_of(command)]


def _settings_of(command: click.Command) -> list[AnySetting]:
    return [option.setting for option in command.params if isinstance(option, SettingOption)]


def _commands() -> str:
    rows = [(code(name), command.get_short_help_str(200)) for name, command in commands().items()]
    return "## Commands\n\n" + table(("command", "what"), rows)


def _own_options() -> str:
    """Options that are no settings: they have no variable."""
    own: dict[tuple[str, str], list[str]] = {}
    for name, command in commands().items():
        for option in command.params:
            if isinstance(option, click.Option) and not isinstance(option, SettingOption) and not option.hidden:
                own.setdefault((codes(option.opts), option.help or ""), []).append(name)
    rows = [(flags, codes(names), text) for (flags, text), names in own.items()]
    return "### Of single commands, without a variable\n\n" + table(("flag", "commands", "what"), rows)


def _options() -> Iterator[str]:
    yield OPTIONS
    for heading, group in settings.HEADINGS:
        rows = [
            (codes((one.env, *one.also)), code(one.flag), _takes(one), _default(one), _of(takers(one)), _help(one))
            for one in group
        ]
        yield f"### {heading}\n\n" + table(("environment", "flag", "takes", "default", "commands", "what"), rows)
    yield _own_options()


def _takes(setting: AnySetting) -> str:
    return (
        " or ".join(code(choice) for choice in setting.choices)
        if setting.kind is SettingKind.CHOICE
        else setting.kind.value
    )


def _default(setting: AnySetting) -> str:
    if setting.kind is SettingKind.FLAG:
        return "off"
    if setting.default is not None:
        return code(str(setting.default))
    return setting.help.partition(SAID)[2].rstrip(".") or "none"


def _help(setting: AnySetting) -> str:
    """What it says but for the default, which has a column of its own."""
    return setting.help if setting.default is not None else setting.help.partition(SAID)[0]


def _of(names: list[str]) -> str:
    """Names of commands; all but a few are told by those few."""
    others = [name for name in commands() if name not in names and name not in ("sandbox", "completion")]
    if not others:
        return "all"
    return codes(names) if len(names) <= len(others) else f"all but {codes(others)}"


def _exits() -> str:
    rows = [(str(exit_code.value), text) for exit_code, text in EXIT_MEANINGS.items()]
    return f"## Exit codes\n\n{table(('code', 'what'), rows)}\n\n{EXITS.strip()}"


def _node_keys() -> Iterator[str]:
    yield KEYS
    for name, profile in builtin().items():
        rows = [
            (code(value), profile_keys.MEANINGS[f"keys.{field}"])
            for field, value in vars(profile.keys).items()
            if value
        ]
        deploy = profile.deploy
        if deploy.prefix:
            rows.append(
                (code(f"{deploy.prefix}*"), f"label: `true` places an operand; `{deploy.paused_value}` pauses it")
            )
            rows.append((code(deploy.driver_key), "label: places the driver itself; never paused"))
        rows += [(code(label), "label: tells a node of this vendor") for label in profile.present_labels]
        yield f"### {name}\n\n" + table(("key", "what"), rows)
    yield f"Slots for reboots are in the Lease `{LEASE}` of the operator's namespace."


def _events() -> str:
    rows = [(code(reason), text) for reason, text in EVENTS.items()]
    return "## Events\n\nOn the Node, in the namespace `default`.\n\n" + table(("reason", "what it says"), rows)


def _metrics() -> str:
    found = families(HealthReport(History(), DEVICE_METRIC))
    rows = [
        (code(one.name.removeprefix(PREFIX)), one.kind, codes(one.values[0][0]) if one.values else "", one.help)
        for one in found
    ]
    head = f"## Metrics\n\nOf health-watch, with `--metrics-addr` or `--metrics-textfile`. Prefix `{PREFIX}`.\n\n"
    return head + table(("metric", "kind", "labels", "what"), rows)


def _files() -> Iterator[str]:
    yield "## Files on the host"
    for name, profile in builtin().items():
        paths = profile.paths
        rows = [
            (code(value), profile_keys.MEANINGS[f"paths.{field}"])
            for field, value in vars(paths).items()
            if isinstance(value, str) and value
        ]
        rows += [(code(getattr(paths, field)), text) for field, text in DERIVED.items() if getattr(paths, field)]
        yield f"### {name}\n\n" + table(("path", "what"), rows)


def _mutants() -> str:
    rows = [
        (code(one.name), one.breaks, codes(test.rpartition("/")[2] for test in one.tests)) for one in MUTANTS.values()
    ]
    return table(("mutant", "the promise that it breaks", "killed by"), rows)


def pages() -> Mapping[Path, str]:
    """Every page that is made here, with its text."""
    parts = [HEAD, _commands(), *_options(), _exits(), *_node_keys(), _events(), _metrics(), *_files()]
    profiles, reliability = DOCS / "profiles.md", DOCS / "reliability.md"
    return {
        DOCS / "reference.md": "\n\n".join(part.strip() for part in parts) + "\n",
        profiles: with_block(profiles.read_text(encoding="utf-8"), SCRIPT, profile_keys.rows()),
        reliability: with_block(reliability.read_text(encoding="utf-8"), SCRIPT, _mutants()),
    }


if __name__ == "__main__":
    sys.exit(main(SCRIPT, pages))
