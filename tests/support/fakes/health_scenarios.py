"""Scenarios of health-watch: scripts in `tests/unit/golden/health-watch.txt`, each with the trace that it must give.

Write a script below a title, then run `python -m tests.support.fakes.health_scenarios` to write all traces, and read
them. The first line of a script has the properties of the world, the second one samples and events in order. Samples,
each a turn of one minute: + good, - bad, ? unknown, x a broken tool; `-*8` is eight of them. Events are the keys of
EVENTS; some take a value, as `mute-node=300`, which is in seconds.

A trace has a line for each turn: the sample (. for none), the state, the marks on the host, the calls, and the logged
change of the state. Other log lines, Events and reported windows follow. Equal turns are one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from driver_manager.domain.health.watch import Mute, MuteAnswer
from driver_manager.domain.host import RECOVERY, UPGRADE_REASON, Health, Marker, ProbeResult, encode_marker
from driver_manager.domain.outage import Outage, OutagePart
from tests.support.fakes.health_world import BAD, GOOD, MARKER, READY, RECORD, UNKNOWN, WITHDRAWN, HealthWorld

GOLDEN = Path(__file__).parents[2] / "unit/golden/health-watch.txt"
BROKEN_TOOL = ProbeResult(Health.UNKNOWN, "no tool", is_tool_broken=True)
SAMPLES = {"+": GOOD, "-": BAD, "?": UNKNOWN, "x": BROKEN_TOOL}
MARKERS = {
    "upgrade": encode_marker(Marker(UPGRADE_REASON, "boot-1", writer="reconcile")),
    "foreign": encode_marker(Marker(RECOVERY, "boot-1", writer="another")),
    "text": "recovery wanted\n",
    "garbage": "\x00garbage",
}
OVER = Outage(100.0, 25.0, {OutagePart.UNLOAD: 4.0, OutagePart.INSTALL: 21.0})
INVALID = "does not mute health-watch: 'soon' is not a time"
QUIET = frozenset({"alone", "recall", "sample", "note return"})
"""Calls of every turn, which a trace leaves out."""


def _mute(world: HealthWorld, value: str, where: str) -> Mute:
    return Mute(world.clock.wall() + float(value), "then", where)


ANSWERS = {
    "none": MuteAnswer(),
    "invalid": MuteAnswer(invalid=f"the annotation {INVALID}"),
    "unreadable": MuteAnswer(problem="the API server does not answer"),
}


def _mute_node(world: HealthWorld, value: str) -> None:
    world.node_mute = ANSWERS.get(value) or MuteAnswer(_mute(world, value, "the annotation"))


def _mute_host(world: HealthWorld, value: str) -> None:
    world.host_mute = None if value in ("none", "invalid") else _mute(world, value, "the file")
    world.host_mute_problem = f"the file {INVALID}" if value == "invalid" else ""


def _repeated(text: str, times: str) -> list[str]:
    return [text] * int(times)


def _set(name: str, value: object) -> Callable[[HealthWorld, str], None]:
    return lambda world, _: setattr(world, name, value)


EVENTS: dict[str, Callable[[HealthWorld, str], object]] = {
    "restart": lambda world, _: world.start(),
    "reboot": lambda world, _: world.reboot(),
    "driver-starts": lambda world, _: world.start_driver(),
    "driver-leaves": _set("is_loaded", False),
    "reconcile": _set("is_reconciling", True),
    "reconcile-ends": _set("is_reconciling", False),
    "reconcile-during-sample": lambda world, _: world.killer.at(
        "sample", lambda: setattr(world, "is_reconciling", True), after=True
    ),
    "ready": lambda world, value: world.files.__setitem__(READY, value),
    "unready": lambda world, _: world.files.__delitem__(READY),
    "withdrawn": lambda world, _: world.files.__setitem__(WITHDRAWN, world.files.pop(READY)),
    "marker": lambda world, value: world.files.__setitem__(MARKER, MARKERS[value]),
    "record-removed": lambda world, _: world.files.__delitem__(RECORD),
    "marker-removed": lambda world, _: world.files.pop(MARKER, None),
    "break": lambda world, value: world.broken.add(value.replace("-", " ")),
    "repair": lambda world, _: world.broken.clear(),
    "mute-node": _mute_node,
    "mute-host": _mute_host,
    "clients-left": lambda world, value: world.clients_left.extend(_repeated(*value.split(":"))),
    "clients-done": lambda world, _: world.clients_left.clear(),
    "window": _set("window", OVER),
}


def scripts() -> dict[str, tuple[str, str, str]]:
    found = {}
    for block in re.split(r"^## ", GOLDEN.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, properties, script, *trace = block.rstrip("\n").split("\n")
        found[title] = (properties, script, "\n".join(trace).strip("\n"))
    return found


def world_of(properties: str) -> HealthWorld:
    names = set(properties.split()) - {"plain"}
    world = HealthWorld(
        has_ready="no-ready" not in names,
        has_marker="no-marker" not in names,
        has_node="node" in names,
        has_evidence="evidence" in names,
        probe_s=23.0 if "slow-probe" in names else 0.2,
    )
    if "client-warning" in names:
        world.client_warnings = ("the claims are not known",)
    return world


def play(world: HealthWorld, script: str) -> Iterator[str]:
    """Let everything in the script happen; a line at each turn."""
    for word in script.split():
        letter, _, times = word.partition("*")
        if letter in SAMPLES:
            for _ in range(int(times or 1)):
                yield _turn(world, letter)
        else:
            name, _, value = word.partition("=")
            EVENTS[name](world, value)


def _turn(world: HealthWorld, letter: str) -> str:
    calls, infos, warnings = len(world.killer.calls), len(world.reporter.infos), len(world.reporter.warnings)
    before, reported, windows = set(world.reported), len(world.reports), len(world.windows_reported)
    world.chip = SAMPLES[letter]
    world.turn()
    made = world.killer.calls[calls:]
    marks = [name for name in (READY, WITHDRAWN) if name in world.files]
    marks += ["request"] if world.has_request else ["other-marker"] if MARKER in world.files else []
    marks += [] if world.reports[-1].is_ready else ["not-ready"]
    assert len(world.reports) == reported + 1, "one report for each turn"
    shown = ", ".join(call for call in made if call not in QUIET)
    logged = [*world.reporter.infos[infos:], *(f"warning: {line}" for line in world.reporter.warnings[warnings:])]
    logged = [line.replace(BAD.reason, "bad").replace(GOOD.reason, "good") for line in logged]
    changes = "; ".join(line for line in logged if " → " in line)
    lines = [
        f"{letter if 'sample' in made else '.'} {world.state:<10} {' '.join(marks):<33} {shown:<28} {changes}".rstrip()
    ]
    lines += [f"    {line}" for line in logged if " → " not in line]
    lines += [f"    Event: {world.reported[key].message}" for key in world.reported if key not in before]
    lines += [f"    window of {one.seconds:g} s" for one in world.windows_reported[windows:]]
    return "\n".join(lines)


def trace(properties: str, script: str) -> str:
    found: list[list[object]] = []
    for line in play(world_of(properties), script):
        if found and found[-1][0] == line:
            found[-1][1] = int(str(found[-1][1])) + 1
        else:
            found.append([line, 1])
    return "\n".join(f"{line}  × {count}" if count != 1 else str(line) for line, count in found)


if __name__ == "__main__":
    blocks = [
        f"## {title}\n{properties}\n{script}\n\n{trace(properties, script)}\n"
        for title, (properties, script, _) in scripts().items()
    ]
    head = GOLDEN.read_text(encoding="utf-8").partition("## ")[0]
    GOLDEN.write_text(head + "\n".join(blocks), encoding="utf-8")
