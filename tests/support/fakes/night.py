"""What goes wrong at night, and how it shows in `status`, on the Node and in its Events.

One table for docs/operate.md, the sandbox and the real API server: each plays every row with the real command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import yaml

from driver_manager.domain.node_state import NodeState
from driver_manager.profiles import builtin
from driver_manager.sandbox.host import HostTree
from tests.support.fakes.schemas import conforms

OLD_ROOT, BAD_ROOT = "/opt/rbln/1.2.92", "/opt/rbln/bad"
ROOT = Path(__file__).parents[3]
BAD_DEVICE = '{"devices": [{"npu": 0, "name": "RBLN-CA12", "status": "abnormal", "device": "rbln0"}]}'


class Place(Protocol):
    @property
    def tree(self) -> HostTree: ...

    def run(self, *argv: str, **env: str) -> tuple[int, str]:
        """Run a command as the init container does; its exit code and what it printed on standard output."""
        ...

    def node(self) -> dict[str, Any]: ...

    def events(self) -> list[tuple[str, str]]: ...

    def pin(self, component: str, finalizer: str) -> None: ...

    def watch(self, is_over: Callable[[], bool], **env: str) -> None: ...

    def without_pods(self) -> dict[str, str]:
        """The environment of an account that may not list pods."""
        ...


@dataclass(frozen=True)
class Night:
    """One row. `headline` is what `status` begins with, `…` for what differs; its first word is the state.

    `event` is a reason and what its message begins with, `attention` the kind of what `status` lists next. `metric` is
    a line of the textfile after it, which `alert` looks at, sooner or later; "" where that is another program's.
    `befalls` does it to a place, and gives what `status` is to be run with there.
    """

    name: str
    headline: str
    event: tuple[str, str]
    attention: str
    alert: str
    metric: str
    befalls: Callable[[Place], dict[str, str]]
    profile: str = "rebellions"

    @property
    def state(self) -> str:
        return self.headline.partition(" ")[0]

    def begins(self, text: str) -> bool:
        pattern = ".*".join(re.escape(part) for part in self.headline.split("…"))
        return re.match(pattern, text.partition("\n")[0]) is not None


def _reconciled(place: Place, code: int, *options: str, **env: str) -> dict[str, str]:
    """A run ends with this exit code."""
    assert place.run("reconcile-driver-state", *options, **env)[0] == code
    return env


def _held(place: Place) -> dict[str, str]:
    """Neither the new driver loads nor, as its tree is gone bad, the old one again."""
    place.tree.add_driver(BAD_ROOT, "3.0.0", fails=True)
    place.tree.add_driver(OLD_ROOT, "1.2.92", fails=True)
    return _reconciled(place, 5, DRIVER_ROOT=BAD_ROOT)


def _stuck(place: Place) -> dict[str, str]:
    place.pin("device-plugin", "example.com/backup")
    _reconciled(place, 3, POD_TERMINATION_TIMEOUT="1s")
    return {}


def _wedge(place: Place) -> dict[str, str]:
    """The driver is loaded and was ready, and the vendor's tool finds a device bad."""
    paths, tree = builtin()["rebellions"].paths, place.tree
    tool = tree.root / OLD_ROOT.lstrip("/") / "usr/bin/rbln-smi"
    tool.write_text(f"#!/bin/sh\necho '{BAD_DEVICE}'\n")
    ready = tree.root / paths.ready_marker.lstrip("/")
    ready.parent.mkdir(parents=True, exist_ok=True)
    ready.touch()
    record = tree.root / paths.health_record.lstrip("/")
    env = {"DRIVER_ROOT": OLD_ROOT, "HEALTH_WATCH_INTERVAL": "100ms"}
    place.watch(lambda: record.exists() and '"state": "wedged"' in record.read_text(), **env)
    return {"DRIVER_ROOT": OLD_ROOT}


FAILS = ("failed", "DriverRunFailing", "driver_manager_run_failures_in_a_row 1.0")
NIGHTS = (
    Night(
        "a device is bad, three samples in a row",
        "wedged since …: the driver does not serve its devices: RBLN-CA12 is abnormal",
        ("DriverWedged", "the driver does not serve its devices"),
        *("wedge", "DriverWedged", 'driver_manager_health_state{state="wedged"} 1.0'),
        _wedge,
    ),
    Night(
        "the new driver does not load, nor does the old one again",
        "held since …: exit 5: …going back failed too: …the node stays paused",
        ("DriverReconcileFailed", "exit 5: "),
        *("held", "DriverNodeHeld", "driver_manager_node_held 1.0"),
        _held,
    ),
    Night(
        "an operand's pod does not end",
        "failed since …: exit 3: …terminating, held by finalizer example.com/backup",
        ("DriverReconcileFailed", "exit 3: "),
        *FAILS,
        _stuck,
    ),
    Night(
        "the digest in the DaemonSet is unusable",
        "failed since …: exit 2: DRIVER_CONFIG_DIGEST in …is not one printable word",
        ("DriverReconcileFailed", "exit 2: "),
        *FAILS,
        lambda place: _reconciled(place, 2, DRIVER_CONFIG_DIGEST="two words"),
    ),
    Night(
        "the account may not list pods",
        "failed since …: exit 7: the API server refused to list pods",
        ("DriverReconcileFailed", "exit 7: "),
        *FAILS,
        lambda place: _reconciled(place, 7, **place.without_pods()),
    ),
    Night(
        "another driver is wanted where only a reboot brings one",
        "reboot-required since …: only a reboot brings the wanted driver",
        ("RebootRequired", "reason=upgrade"),
        *("reboot", "DriverRebootWaiting", ""),
        lambda place: _reconciled(place, 9, "--no-wait"),
        "ascend",
    ),
)


def textfile(place: Place) -> Path:
    return place.tree.root / "driver.prom"


def check(night: Night, place: Place) -> None:
    """Let it happen. Raises AssertionError where `status`, the Node or its Events do not show it as the table says."""
    env = night.befalls(place)
    keys = builtin()[night.profile].keys
    node = place.node()["metadata"]
    assert node["labels"].get(keys.state) == night.state
    if night.state != NodeState.WEDGED.value:  # that is no run's
        assert json.loads(node["annotations"][keys.last_outcome])["state"] == night.state
    reason, words = night.event
    assert [event for event in place.events() if event[0] == reason and event[1].startswith(words)], place.events()
    groups = yaml.safe_load((ROOT / "deploy/components/metrics/rules.yaml").read_text(encoding="utf-8"))["groups"]
    (rule,) = [one for group in groups for one in group["rules"] if one["alert"] == night.alert]
    if night.metric:
        assert night.metric in textfile(place).read_text().splitlines()
        assert night.metric.partition("{")[0].partition(" ")[0] in rule["expr"]
    code, text = place.run("status", **env)
    assert code == 0, text
    assert night.begins(text), text.partition("\n")[0]
    body = conforms("status", place.run("status", "-o", "json", **env)[1])
    assert body["state"] == night.state
    assert body["attention"][0]["kind"] == night.attention
    assert body["attention"][0]["remedy"]
