"""`sandbox`: play a scenario of the real command without a cluster and without a device."""

from __future__ import annotations

import difflib
import io
import shutil
import sys
import textwrap
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TextIO

import click
from msgspec.structs import asdict

from driver_manager.adapters.report.log import CYAN, GREEN, RED, has_colour, is_capable, painted, size_of
from driver_manager.cli.options import command, document, narrowed, output_option, styled
from driver_manager.cli.options import table as columns
from driver_manager.domain.errors import ConfigError, ExitCode
from driver_manager.domain.fleet.spec import UpgradeState
from driver_manager.domain.text import shortened
from driver_manager.profiles import builtin
from driver_manager.sandbox import scenarios
from driver_manager.sandbox.cluster import NODE
from driver_manager.sandbox.fleet import FLEET_SCENARIOS, HEADINGS, FleetScenario, NodeRow, Picture, run_fleet_scenario
from driver_manager.sandbox.loops import (
    REBOOT_SCENARIOS,
    RECOVERY_SCENARIOS,
    run_reboot_scenario,
    run_recovery_scenario,
)

# The screen of a scenario: lines, and on a terminal a table of the fleet below them, which is redrawn. Without room or
# without a terminal each change is a line.

MOST_COLUMNS = 100
HEADLINES = 8
LEAST_LINES = 24


class FleetScreen:
    """Shows a scenario as lines, and below them the fleet. Thread-safe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        lines = shutil.get_terminal_size().lines
        self._is_live = is_capable(stream) and lines >= LEAST_LINES
        self._paints = has_colour(stream)
        self._lock = threading.RLock()
        self._picture: Picture | None = None
        self._drawn = 0

    @property
    def terminal(self) -> TextIO | None:
        return self._stream if is_capable(self._stream) else None

    def chapter(self, title: str) -> None:
        with self._lock:
            self._picture, self._drawn = None, 0
            self.line("")
            width = min(MOST_COLUMNS, shutil.get_terminal_size().columns)
            self.line(styled(f"── {title} ", bold=True) + "─" * max(0, width - len(title) - 4))

    def end(self) -> None:
        """Show nothing more."""
        with self._lock:
            self._picture, self._is_live, self._stream = None, False, io.StringIO()

    def line(self, text: str) -> None:
        with self._lock:
            self._erase()
            click.echo(text, file=self._stream)
            self._draw()

    def picture(self, picture: Picture, news: Sequence[str]) -> None:
        with self._lock:
            if not self._is_live:
                for text in news:
                    self.line(text)
                return
            self._erase()
            self._picture = picture
            self._draw()

    def _erase(self) -> None:
        """Erase the table (ECMA-48: cursor up, erase in page)."""
        if self._drawn:
            click.echo(f"\x1b[{self._drawn}A\r\x1b[J", nl=False, file=self._stream)
        self._drawn = 0

    def _draw(self) -> None:
        if self._picture is None:
            return
        lines = table(self._picture, size_of(self._stream)[0], paints=self._paints)
        click.echo("\n".join(lines), file=self._stream)
        self._drawn = len(lines)


def table(picture: Picture, columns: int, *, paints: bool) -> list[str]:
    """The rollout's message and its nodes, in lines of at most `columns`."""
    headline = textwrap.wrap(picture.headline, columns, max_lines=HEADLINES, placeholder=" ...")
    cells = [HEADINGS, *(row.cells for row in picture.rows)]
    *wide, why = (max(map(len, column)) for column in zip(*cells, strict=True))
    widths = narrowed(wide, columns - 2 * len(wide) - min(why, columns // 4))
    lines = [_cut(one, widths, columns) for one in cells]
    colours = ["", *(_colour(row) for row in picture.rows)]
    return [
        "",
        *headline,
        *(painted(line, colour, wanted=paints and bool(colour)) for line, colour in zip(lines, colours, strict=True)),
    ]


def _cut(cells: Sequence[str], widths: Sequence[int], columns: int) -> str:
    padded = (shortened(cell, width).ljust(width) for cell, width in zip(cells, widths, strict=False))
    line = "  ".join((*padded, cells[-1])).rstrip()
    return line if len(line) <= columns else f"{line[: max(0, columns - 3)]}..."


def _colour(row: NodeRow) -> str:
    if row.is_failed:
        return RED
    if row.is_under_way:
        return CYAN
    return GREEN if row.upgrade == UpgradeState.DONE.value else ""


LOOP_SCENARIOS: dict[str, scenarios.NamedScenario] = {**REBOOT_SCENARIOS, **RECOVERY_SCENARIOS}
ALL: dict[str, scenarios.NamedScenario] = {**scenarios.SCENARIOS, **LOOP_SCENARIOS, **FLEET_SCENARIOS}


def _names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in ALL if name.startswith(incomplete)]


@command("sandbox", "Play a scenario without a cluster and without a device.")
@click.argument("name", default="", metavar="[SCENARIO]", shell_complete=_names)
@click.option("--list", "wants_list", is_flag=True, help="List the scenarios.")
@click.option("--all", "wants_all", is_flag=True, help="Play every scenario.")
@click.option("--shell", "wants_shell", is_flag=True, help="Then open a shell in which kubectl and all commands work.")
@output_option
def sandbox_command(*, name: str, wants_list: bool, wants_all: bool, wants_shell: bool, output: str) -> int:
    """Play SCENARIO (default: upgrade) on an embedded API server and host tree. Needs no cluster, device or root.

    The real command line runs as its own process, as it would in a container; only the kernel's tools are stand-ins.
    Shows the plan, the progress, what the API server saw, and the final state compared with the first. In the scenario
    `fleet` the controller and the runs of one node are real; the other nodes are simulated. With --shell the API server
    and the host stay until you leave the shell. With --shell, `fleet` plays only to its failed canary.
    """
    if wants_list:
        listed = [{"name": scenario.name, "tells": scenario.summary} for scenario in ALL.values()]
        rows = [f"{row['name']:<26} {row['tells']}" for row in listed]
        click.echo("\n".join(rows) if output == "text" else document(output, listed))
        return ExitCode.DONE
    if wants_all and name:
        raise ConfigError("a scenario and --all cannot be used together", "Use one of them.")
    name = name or "upgrade"
    if not wants_all and name not in ALL:
        near = difflib.get_close_matches(name, ALL, n=1)
        meant = f"Did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"there is no scenario {name!r}", f"{meant}See `driver-manager sandbox --list`.")
    if wants_shell and (wants_all or output != "text" or name in LOOP_SCENARIOS):
        raise ConfigError(
            "--shell needs one scenario without health-watch or rebooter, and text output",
            f"Leave out --all and --output, and give one of {', '.join([*scenarios.SCENARIOS, *FLEET_SCENARIOS])}.",
        )
    names = list(ALL) if wants_all else [name]
    reports = [_play(each, output, wants_shell=wants_shell) for each in names]
    if output != "text":
        click.echo(document(output, [_as_json(report) for report in reports]))
    good = sum(not report.problems for report in reports)
    if wants_all:
        click.echo(f"{good} of {len(reports)} scenarios ended as expected", err=output != "text")
    return ExitCode.INTERNAL if any(report.problems for report in reports) else ExitCode.DONE


def _play(name: str, output: str, *, wants_shell: bool) -> scenarios.ScenarioReport:
    screen = FleetScreen(sys.stdout if output == "text" else sys.stderr)
    screen.line(f"sandbox: {name}: {ALL[name].summary}")
    if name in FLEET_SCENARIOS:
        scenario = FLEET_SCENARIOS[name]
        shell = partial(_open_fleet_shell, scenario, screen) if wants_shell else None
        report = run_fleet_scenario(scenario.by_hand if wants_shell else scenario, screen, shell)
    elif name in REBOOT_SCENARIOS:
        report = run_reboot_scenario(REBOOT_SCENARIOS[name], screen)
    elif name in RECOVERY_SCENARIOS:
        report = run_recovery_scenario(RECOVERY_SCENARIOS[name], screen)
    else:
        return _play_scenario(scenarios.SCENARIOS[name], screen, wants_shell=wants_shell)
    if report.problems or not wants_shell:
        _show(report, screen)
    return report


def _play_scenario(scenario: scenarios.Scenario, screen: FleetScreen, *, wants_shell: bool) -> scenarios.ScenarioReport:
    """Play the scenario, and show its report while the server and the host still run."""

    def then(report: scenarios.ScenarioReport, env: Mapping[str, str]) -> None:
        _show(report, screen)
        if wants_shell:
            lines = (
                f"kubectl get nodes -L {builtin()[scenario.profile].keys.state}",
                "kubectl get pods -A",
                f"kubectl describe node {NODE}",
                "driver-manager status",
                "driver-manager holders",
                "driver-manager restore --dry-run",
                "FORCE_REINSTALL=true driver-manager reconcile-driver-state",
                *scenario.tries,
            )
            title = f"{NODE} is up until you leave this shell; driver-manager and kubectl work on it"
            _open_shell(title, lines, screen, env)

    return scenarios.run_scenario(scenario, screen, screen.terminal, then)


def _open_shell(title: str, lines: Sequence[str], screen: FleetScreen, env: Mapping[str, str]) -> None:
    """Show what to try, and run a shell to its end. The screen shows nothing more."""
    screen.chapter(title)
    for line in (*lines, "exit"):
        screen.line(f"  {line}")
    screen.line("")
    sys.stdout.flush()
    screen.end()
    scenarios.run_shell(env)


def _open_fleet_shell(scenario: FleetScenario, screen: FleetScreen, env: Mapping[str, str]) -> None:
    good, bad, canary = scenario.good.version, scenario.bad.version, scenario.canary
    rows = (
        ("driver-manager rollout status", "why the rollout is halted, and what to do"),
        (f"driver-manager rollout retry {canary}", f"it fails again: the module of driver {bad} still does not load"),
        ("driver-manager rollout undo", f"{canary} goes back to driver {scenario.old.version}"),
        ("driver-manager rollout history", "each revision and how it ended"),
        (f"new-driver {good}", "roll out a good driver, as kubectl apply would"),
        ("driver-manager rollout status --watch", "Ctrl-C ends it; the last wave waits for your approval"),
        ("driver-manager rollout approve", "the last wave starts"),
        ("driver-manager rollout pause", "nodes that have started are completed; resume continues"),
        (f"driver-manager upgrade {scenario.nodes[-1]} --wait", "while the rollout is paused: this node alone"),
        (f"new-driver {bad}", "it does not start again: a revision that failed waits for retry --revision"),
    )
    title = f"{len(scenario.nodes)} nodes and the controller are up until you leave this shell; try"
    _open_shell(title, [f"{line:<40}# {why}" for line, why in rows], screen, env)


def _show(report: scenarios.ScenarioReport, screen: FleetScreen) -> None:
    if not report.is_shown:
        screen.chapter("timeline: what the cluster and the node saw (… stands for the deploy labels' common prefix)")
        for happening in report.timeline:
            screen.line(f"{happening.at_s:7.2f} s  {happening.text}")
    screen.chapter(f"the end compared with the beginning{': ' + report.node if report.node else ''}")
    for row in _rows(report.before, report.after):
        screen.line(row)
    screen.line("")
    codes = ", ".join("killed" if code < 0 else str(code) for code in report.exit_codes)
    ended = f"exit code{'s' * (len(report.exit_codes) > 1)} {codes}; " if codes else ""
    screen.line(f"{ended}{report.requests} API requests (events apart) in {report.seconds:.1f} s")
    for problem in report.problems:
        screen.line(f"NOT AS EXPECTED: {problem}")
    if not report.problems:
        screen.line("as expected: " + report.scenario.summary)


def _rows(before: scenarios.NodeSummary, after: scenarios.NodeSummary) -> list[str]:
    pairs: list[tuple[str, Any, Any]] = [
        (key, before.labels.get(key, "(absent)"), after.labels.get(key, "(absent)"))
        for key in sorted(before.labels | after.labels)
    ]
    pairs += [
        ("cordoned", before.cordoned, after.cordoned),
        ("journal", before.journal, after.journal),
        ("driver version", before.driver, after.driver),
        ("recorded digest", before.digest or "none", after.digest or "none"),
    ]
    rows = [(name, _word(old), _mark(_word(old), _word(new))) for name, old, new in pairs]
    return columns([("", "before", "after"), *rows])


def _word(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _mark(old: str, new: str) -> str:
    return new if old == new else styled(f"{new}  (changed)", fg="yellow")


def _as_json(report: scenarios.ScenarioReport) -> dict[str, Any]:
    return {
        "scenario": report.scenario.name,
        "exitCodes": report.exit_codes,
        "requests": report.requests,
        "seconds": round(report.seconds, 3),
        "before": asdict(report.before),
        "after": asdict(report.after),
        "timeline": [{"atSeconds": round(one.at_s, 3), "text": one.text} for one in report.timeline],
        "problems": report.problems,
    }
