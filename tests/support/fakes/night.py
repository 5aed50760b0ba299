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
OPERAND = "device-plugin"
ROOT = Path(__file__).parents[3]
FINALIZER = "example.com/backup"
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
    """One row. `headline` is what `status` begins with, `…` for what differs.

    `befalls` does it to a place, and gives what `status` is to be run with there. `attention` are the kinds of what
    `status` lists next, `event` a reason and what its message begins with. `metric` is a line of the textfile after it,
    which `alert` looks at, sooner or later; "" where that is another program's.
    """

    name: str
    headline: str
    state: str
    event: tuple[str, str]
    attention: tuple[str, ...]
    alert: str
    metric: str
    befalls: Callable[[Place], dict[str, str]]
    profile: str = "rebellions"

    def begins(self, text: str) -> bool:
        pattern = ".*".join(re.escape(part) for part in self.headline.split("…"))
        return re.match(pattern, text.partition("\n")[0]) is not None


def _held(place: Place) -> dict[str, str]:
    """Neither the new driver loads nor, as its tree is gone bad, the old one again."""
    place.tree.add_driver(BAD_ROOT, "3.0.0", fails=True)
    place.tree.add_driver(OLD_ROOT, "1.2.92", fails=True)
    env = {"DRIVER_ROOT": BAD_ROOT}
    assert place.run("reconcile-driver-state", **env)[0] == 5
    return env


def _stuck(place: Place) -> dict[str, str]:
    place.pin(OPERAND, FINALIZER)
    assert place.run("reconcile-driver-state", POD_TERMINATION_TIMEOUT="1s")[0] == 3
    return {}


def _bad_digest(place: Place) -> dict[str, str]:
    env = {"DRIVER_CONFIG_DIGEST": "two words"}
    assert place.run("reconcile-driver-state", **env)[0] == 2
    return env


def _no_right(place: Place) -> dict[str, str]:
    env = place.without_pods()
    assert place.run("reconcile-driver-state", **env)[0] == 7
    return env


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


def _reboot(place: Place) -> dict[str, str]:
    assert place.run("reconcile-driver-state", "--no-wait")[0] == 9
    return {}


NIGHTS = (
    Night(
        "a device is bad, three samples in a row",
        "wedged since …: the driver does not serve its devices: RBLN-CA12 is abnormal",
        "wedged",
        ("DriverWedged", "the driver does not serve its devices"),
        ("wedge",),
        "DriverWedged",
        'driver_manager_health_state{state="wedged"} 1.0',
        _wedge,
    ),
    Night(
        "the new driver does not load, nor does the old one again",
        "held since …: exit 5: …going back failed too: …the node stays paused",
        "held",
        ("DriverReconcileFailed", "exit 5: "),
        ("held",),
        "DriverNodeHeld",
        "driver_manager_node_held 1.0",
        _held,
    ),
    Night(
        "an operand's pod does not end",
        "failed since …: exit 3: …terminating, held by finalizer example.com/backup",
        "failed",
        ("DriverReconcileFailed", "exit 3: "),
        ("failed",),
        "DriverRunFailing",
        "driver_manager_run_failures_in_a_row 1.0",
        _stuck,
    ),
    Night(
        "the digest in the DaemonSet is unusable",
        "failed since …: exit 2: DRIVER_CONFIG_DIGEST in …is not one printable word",
        "failed",
        ("DriverReconcileFailed", "exit 2: "),
        ("failed",),
        "DriverRunFailing",
        "driver_manager_run_failures_in_a_row 1.0",
        _bad_digest,
    ),
    Night(
        "the account may not list pods",
        "failed since …: exit 7: the API server refused to list pods",
        "failed",
        ("DriverReconcileFailed", "exit 7: "),
        ("failed",),
        "DriverRunFailing",
        "driver_manager_run_failures_in_a_row 1.0",
        _no_right,
    ),
    Night(
        "another driver is wanted where only a reboot brings one",
        "reboot-required since …: only a reboot brings the wanted driver",
        "reboot-required",
        ("RebootRequired", "reason=upgrade"),
        ("reboot",),
        "DriverRebootWaiting",
        "",
        _reboot,
        "ascend",
    ),
)


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((ROOT / "deploy/components/metrics/rules.yaml").read_text(encoding="utf-8"))
    return [rule for group in rules["groups"] for rule in group["rules"]]


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
    assert [said for said in place.events() if said[0] == reason and said[1].startswith(words)], place.events()
    (rule,) = [one for one in alerts() if one["alert"] == night.alert]
    if night.metric:
        assert night.metric in textfile(place).read_text().splitlines()
        assert night.metric.partition("{")[0].partition(" ")[0] in rule["expr"]
    code, text = place.run("status", **env)
    assert code == 0, text
    assert night.begins(text), text.partition("\n")[0]
    body = conforms("status", place.run("status", "-o", "json", **env)[1])
    assert body["state"] == night.state
    assert tuple(one["kind"] for one in body["attention"][: len(night.attention)]) == night.attention
    assert all(one["remedy"] for one in body["attention"][: len(night.attention)])
