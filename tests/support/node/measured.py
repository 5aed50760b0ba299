"""Owns the table of what tests on a real node saw: action, what the kubelet did, end state, seconds.

Each run writes it to build/node. The copy in this folder, `measured.json`, is what docs/reliability.md shows; a test
that ends in another state than is shown there fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from tests.support.control_plane.api import Json
from tests.support.docs.markdown import table
from tests.support.fakes.pace import ratio
from tests.support.node.place import FOLDER
from tests.support.node.timeline import Part

RECORD = Path(__file__).with_name("measured.json")
HEAD = ("action", "what the kubelet did", "end state", "seconds")
PARTS = "Where the time of the upgrade goes, from the deletion of the driver's pod to the ready marker:"
PARTS_HEAD = ("part", "ours", "seconds")
SHOWN_S = 0.005
WINDOWS_HEAD = ("who loads", "window", "its parts")


class Action(Enum):
    """What is measured, in the order of the table."""

    FIRST_INSTALL = "first install"
    OPERANDS = "upgrade, six operands that stop in 3 s: driver pod deleted → ready"
    USERS = "upgrade, two users' pods with a budget of one"
    KILLED_ONCE = "kill -9 of the run in a wait, once"
    KILLED_FOUR_TIMES = "kill -9 of the run in a wait, four times"
    POD_DELETED = "driver pod deleted in a wait"
    POD_FORCED = "driver pod force-deleted in a wait"
    KUBELET = "kubelet killed and started in a wait"
    CONTAINERD = "containerd killed and started in a wait"
    API_SERVER = "API server gone for 8 s in a wait"
    BUSY = "upgrade, a process of the host has the device open: three retries of the kubelet"
    UNMOVED = "upgrade, a pod that no label moves"
    VFIO = "the pod of a vfio-manager, placed by its own label"
    REBOOTER = "rebooter: refused by the host, then told"
    ROLLOUT = "rollout of one node: `kubectl set env` → `Ready=True` of the object"


@dataclass
class Row:
    """One line of the table."""

    action: Action
    kubelet: str = ""
    end: str = ""
    seconds: float = 0.0

    def to_json(self) -> Json:
        """As it is kept."""
        return {
            "action": self.action.value,
            "kubelet": self.kubelet,
            "end": self.end,
            "seconds": round(self.seconds, 1),
        }


@dataclass
class Table:
    """The rows by action, the kubelet's version, and how busy the machine was at their beginning."""

    kubernetes: str
    rows: dict[Action, Row] = field(default_factory=dict)
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    slower: float = field(default_factory=ratio)
    parts: tuple[Part, ...] = ()
    windows: Mapping[str, Json] = field(default_factory=dict)
    last: ClassVar[str] = ""

    @contextlib.contextmanager
    def row(self, action: Action) -> Iterator[Row]:
        """A row, timed until the context ends; none where that ends with an error. Of several the shortest is kept.

        AssertionError where its end state is not the one that the docs show.
        """
        row, began_s = Row(action), time.monotonic()
        yield row
        row.seconds = time.monotonic() - began_s
        self.rows[action] = min(self.rows.get(action, row), row, key=lambda one: one.seconds)
        Table.last = as_markdown(self.to_json())
        shown = [one["end"] for one in recorded()["rows"] if one["action"] == action.value]
        assert shown in ([], [row.end]), f"{action.value} ends with {row.end!r}, and docs/reliability.md shows {shown}"

    def to_json(self) -> Json:
        """As it is kept."""
        rows = [self.rows[action].to_json() for action in Action if action in self.rows]
        return {
            "kubernetes": self.kubernetes,
            "processors": len(os.sched_getaffinity(0)),
            "load": round(self.load, 1),
            "slower": round(self.slower, 1),
            "rows": rows,
            "parts": [part.to_json() for part in self.parts],
            "windows": {"load": round(self.load, 1), "ways": self.windows},
        }

    def write(self) -> None:
        """Keep it in build/node."""
        if self.rows:
            Table.last = as_markdown(self.to_json())
            (FOLDER / RECORD.name).write_text(json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")
            (FOLDER / "measured.md").write_text(Table.last + "\n")


def recorded() -> Json:
    """What the docs show."""
    found: Json = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def as_markdown(measured: Json) -> str:
    """The tables, and the machine they were measured on."""
    rows = [(one["action"], one["kubelet"], one["end"], f"{one['seconds']:.1f}") for one in measured["rows"]]
    parts = [(one["part"], "yes" if one["ours"] else "", f"{one['seconds']:.2f}") for one in measured["parts"]]
    machine = (
        f"One run of Kubernetes {measured['kubernetes']} on {measured['processors']} processors, load average "
        f"{measured['load']} at its beginning; the start of an interpreter took {measured['slower']} times as long as "
        "on an idle machine."
    )
    return f"{table(HEAD, rows)}\n\n{machine}\n\n{PARTS}\n\n{table(PARTS_HEAD, parts)}"


def upgrades_as_markdown(measured: Json) -> str:
    """A few rows of it for the first look: whole upgrades, and how long users are without their device."""
    seconds = {one["action"]: f"{one['seconds']:.1f} s" for one in measured["rows"]}
    rows = [(action.value, seconds[action.value]) for action in (Action.OPERANDS, Action.USERS, Action.ROLLOUT)]
    rows += [(f"users without their device, {how}", f"{one['seconds']:.1f} s") for how, one in _ways(measured)]
    return table((f"on Kubernetes {measured['kubernetes']}", "time"), rows)


def _ways(measured: Json) -> Iterator[tuple[str, Json]]:
    yield from measured["windows"]["ways"].items()


def windows_as_markdown(measured: Json) -> str:
    """The table of windows, and the machine they were measured on."""
    rows = [
        (
            how,
            f"{found['seconds']:.1f} s",
            ", ".join(f"{part} {took:.2f} s" for part, took in found["parts"].items() if took >= SHOWN_S),
        )
        for how, found in _ways(measured)
    ]
    machine = (
        f"On Kubernetes {measured['kubernetes']} and {measured['processors']} processors, load average "
        f"{measured['windows']['load']} at the beginning."
    )
    return f"{table(WINDOWS_HEAD, rows)}\n\n{machine}"
