"""DriverRollouts as people write them: good ones, and every kind of bad value with who refuses it in which words."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from driver_manager.domain.fleet.spec import APPROVED, GROUP, KIND, RETRY, UNDO, VERSION

Json = dict[str, Any]

SPEC: Json = {"daemonSet": "driver"}
"""The shortest one."""

FULL: Json = {
    "daemonSet": "driver",
    "paused": True,
    "maxParallel": 0,
    "maxUnavailable": "25%",
    "waves": [
        {"name": "canary", "nodeSelector": "rack=a,tier!=prod", "count": 2, "soak": "1h30m", "approval": True},
        {"name": "half", "percent": 50, "soak": "90"},
        {"name": "rest"},
    ],
    "units": {"topologyKey": "topology.kubernetes.io/rack", "mode": "Together"},
    "windows": "Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00",
    "timezone": "Europe/Berlin",
    "gates": {
        "pods": [{"namespace": "monitoring", "selector": "app=validator"}, {"selector": "app in (a,b)"}],
        "conditions": [{"type": "NetworkReady"}, {"type": "example.com/Broken", "status": "False"}],
    },
    "failureThreshold": 3,
    "onHalt": "undo",
    "nodeTimeout": "1h",
    "validationTimeout": "90s",
    "approveReboots": True,
    "preflight": "require",
}
"""One that says everything."""

BLANK: Json = {"daemonSet": "driver", "windows": "", "paused": None, "waves": [{"name": "rest", "nodeSelector": ""}]}
"""One that says nothing in many words, as templates make them."""


@dataclass(frozen=True)
class Bad:
    """A spec that is wrong in one point. `reader` is the reader's problem; `server` is in what the API server says.

    `server` is "" where the API server takes it.
    """

    name: str
    spec: Any
    reader: str
    server: str = ""


def but(**fields: Any) -> Json:
    """The shortest spec with these fields."""
    return {**copy.deepcopy(SPEC), **fields}


def wave(**fields: Any) -> Json:
    """The same with one wave."""
    return but(waves=[{"name": "canary", **fields}])


NAME = "a name of lower-case letters, digits, '-' and '.' such as driver"
DURATION = "a duration such as 90, 30s, 5m or 1h30m"
KEY = "the key of a label such as topology.kubernetes.io/zone"
WINDOWS = "windows such as 'Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00'"
SELECTOR = "a label selector such as 'rack=a,tier!=prod'"
COUNT = "from 1 to 100000"

BAD = (
    Bad("no-daemon-set", {}, f"spec.daemonSet is missing, expected {NAME}", "spec.daemonSet: Required value"),
    Bad("no-object", [], "spec is [], expected an object", "spec in body must be of type object"),
    Bad(
        "daemon-set-of-capitals",
        {"daemonSet": "Driver"},
        f"spec.daemonSet is 'Driver', expected {NAME}",
        'spec.daemonSet: Invalid value: "Driver"',
    ),
    Bad(
        "daemon-set-with-a-line-feed",
        {"daemonSet": "driver\n"},
        f"spec.daemonSet is 'driver\\n', expected {NAME}",
        "spec.daemonSet: Invalid value",
    ),
    Bad(
        "daemon-set-too-long",
        {"daemonSet": "d" * 254},
        f"spec.daemonSet is '{'d' * 118}…, expected 0 to 253 characters",
        "spec.daemonSet: ",
    ),
    Bad(
        "field-unknown",
        but(maxParralel=1),
        "spec has a field 'maxParralel', expected one of approveReboots, daemonSet, failureThreshold, gates, "
        "maxParallel, maxUnavailable, nodeTimeout, onHalt, paused, preflight, timezone, units, validationTimeout, "
        "waves, windows",
    ),
    Bad("flag-in-words", but(paused="yes"), "spec.paused is 'yes', expected true or false", "must be of type boolean"),
    Bad("flag-of-a-number", but(paused=1), "spec.paused is 1, expected true or false", "must be of type boolean"),
    Bad(
        "number-below",
        but(maxParallel=-1),
        "spec.maxParallel is -1, expected a whole number from 0 to 100000",
        "spec.maxParallel in body should be greater than or equal to 0",
    ),
    Bad(
        "number-above",
        but(maxParallel=100_001),
        "spec.maxParallel is 100001, expected a whole number from 0 to 100000",
        "spec.maxParallel in body should be less than or equal to 100000",
    ),
    Bad(
        "number-that-is-true",
        but(maxParallel=True),
        "spec.maxParallel is True, expected a whole number from 0 to 100000",
        "spec.maxParallel in body must be of type integer",
    ),
    Bad(
        "half-a-node",
        but(failureThreshold=1.5),
        f"spec.failureThreshold is 1.5, expected a whole number {COUNT}",
        "spec.failureThreshold in body must be of type integer",
    ),
    Bad(
        "threshold-of-none",
        but(failureThreshold=0),
        f"spec.failureThreshold is 0, expected a whole number {COUNT}",
        "spec.failureThreshold in body should be greater than or equal to 1",
    ),
    Bad(
        "none-unavailable",
        but(maxUnavailable=0),
        "spec.maxUnavailable is 0, expected a whole number from 1, or a percent such as 10%",
        "spec.maxUnavailable in body should be greater than or equal to 1",
    ),
    *(
        Bad(
            f"unavailable-{text}",
            but(maxUnavailable=text),
            f"spec.maxUnavailable is '{text}', expected a whole number from 1, or a percent such as 10%",
            "spec.maxUnavailable",
        )
        for text in ("0%", "101%", "10", "ten", "-5%", "1.5%")
    ),
    Bad(
        "unavailable-flag",
        but(maxUnavailable=True),
        "spec.maxUnavailable is True, expected a whole number from 1, or a percent such as 10%",
        "spec.maxUnavailable",
    ),
    Bad("no-wave", but(waves=[]), "spec.waves is [], expected a list of 1 to 20 objects", "at least 1 items"),
    Bad(
        "waves-too-many",
        but(waves=[{"name": f"w{number}"} for number in range(21)]),
        "spec.waves is [{'name': 'w0'}, {'name': 'w1'}, {'name': 'w2'}, {'name': 'w3'}, {'name': … {'name': 'w19'}, "
        "{'name': 'w20'}], expected a list of 1 to 20 objects",
        "spec.waves",
    ),
    Bad("wave-that-is-text", but(waves=["a"]), "spec.waves[0] is 'a', expected an object", "must be of type object"),
    Bad(
        "wave-nameless", but(waves=[{}]), f"spec.waves[0].name is missing, expected {NAME}", "spec.waves.name: Required"
    ),
    Bad(
        "wave-name-too-long",
        but(waves=[{"name": "w" * 64}]),
        f"spec.waves[0].name is '{'w' * 64}', expected 0 to 63 characters",
        "spec.waves.name: ",
    ),
    Bad(
        "waves-of-one-name",
        but(waves=[{"name": "a"}, {"name": "b"}, {"name": "a"}]),
        "spec.waves[2].name is 'a', expected a value other than that of entry 0",
    ),
    Bad(
        "wave-of-two-amounts",
        wave(count=1, percent=10),
        "spec.waves[0] has count and percent, expected at most one of them",
    ),
    Bad(
        "wave-of-none",
        wave(count=0),
        f"spec.waves[0].count is 0, expected a whole number {COUNT}",
        "spec.waves.count in body should be greater than or equal to 1",
    ),
    Bad(
        "wave-of-too-much",
        wave(percent=101),
        "spec.waves[0].percent is 101, expected a whole number from 1 to 100",
        "spec.waves.percent in body should be less than or equal to 100",
    ),
    Bad(
        "wave-selector-typo",
        wave(nodeSelector="rack=a,=b"),
        f"spec.waves[0].nodeSelector is 'rack=a,=b', expected {SELECTOR} (unable to parse requirement: =b)",
    ),
    Bad(
        "wave-selector-of-odd-signs",
        wave(nodeSelector="rack=ä"),
        f"spec.waves[0].nodeSelector is 'rack=ä', expected {SELECTOR}",
        "spec.waves.nodeSelector in body should match",
    ),
    *(
        Bad(
            f"soak-{text}",
            wave(soak=text),
            f"spec.waves[0].soak is '{text}', expected {DURATION}, from 0 s to 30 days",
            "spec.waves.soak in body should match",
        )
        for text in ("soon", "-5m", "5 m", "5ms", "1h-5m", "")
    ),
    Bad(
        "soak-of-a-number",
        wave(soak=90),
        f"spec.waves[0].soak is 90, expected {DURATION}, from 0 s to 30 days",
        "spec.waves.soak in body must be of type string",
    ),
    Bad(
        "soak-too-long",
        wave(soak="800h"),
        f"spec.waves[0].soak is '800h', expected {DURATION}, from 0 s to 30 days ('800h' is longer than 30 days)",
    ),
    Bad("no-time-at-all", but(nodeTimeout="0s"), f"spec.nodeTimeout is '0s', expected {DURATION}, from 1 s to 30 days"),
    Bad(
        "unit-without-key",
        but(units={}),
        f"spec.units.topologyKey is missing, expected {KEY}",
        "spec.units.topologyKey: Required value",
    ),
    Bad(
        "unit-key",
        but(units={"topologyKey": "a b"}),
        f"spec.units.topologyKey is 'a b', expected {KEY}",
        "spec.units.topologyKey in body should match",
    ),
    Bad(
        "unit-mode",
        but(units={"topologyKey": "rack", "mode": "together"}),
        "spec.units.mode is 'together', expected one of OneAtATime, Together",
        'supported values: "OneAtATime", "Together"',
    ),
    Bad(
        "window-of-no-day",
        but(windows="Sut 02:00-06:00"),
        f"spec.windows is 'Sut 02:00-06:00', expected {WINDOWS} "
        "('Sut' is not a day, expected one of Mon, Tue, Wed, Thu, Fri, Sat, Sun)",
    ),
    Bad(
        "window-of-no-time",
        but(windows="Sat 25:00-26:00"),
        f"spec.windows is 'Sat 25:00-26:00': '25:00' is not a time of the day, expected {WINDOWS}",
    ),
    Bad(
        "window-of-no-length",
        but(windows="02:00-02:00"),
        f"spec.windows is '02:00-02:00', expected {WINDOWS} "
        "('02:00-02:00' opens at 02:00 and closes at 02:00: that is not a window)",
    ),
    Bad(
        "window-none",
        but(windows="at night"),
        f"spec.windows is 'at night', expected {WINDOWS}",
        "spec.windows in body",
    ),
    Bad(
        "zone-unknown",
        but(timezone="Europe/Atlantis"),
        "spec.timezone is 'Europe/Atlantis', expected a time zone such as Europe/Berlin, or UTC",
    ),
    Bad(
        "zone-that-is-a-path",
        but(timezone="../../etc/passwd"),
        "spec.timezone is '../../etc/passwd', expected a time zone such as Europe/Berlin, or UTC",
        "spec.timezone in body should match",
    ),
    Bad(
        "gate-of-all-pods",
        but(gates={"pods": [{"selector": ""}]}),
        "spec.gates.pods[0].selector is '', expected 1 to 1000 characters",
        "spec.gates.pods.selector in body should be at least 1 chars long",
    ),
    Bad(
        "gate-of-no-condition",
        but(gates={"conditions": [{"type": "Network Ready"}]}),
        "spec.gates.conditions[0].type is 'Network Ready', expected the type of a condition of the Node such as "
        "NetworkReady",
        "spec.gates.conditions.type in body should match",
    ),
    Bad(
        "gate-of-no-status",
        but(gates={"conditions": [{"type": "NetworkReady", "status": "yes"}]}),
        "spec.gates.conditions[0].status is 'yes', expected one of True, False, Unknown",
        'supported values: "True", "False", "Unknown"',
    ),
    Bad(
        "metrics-that-were-removed",
        but(gates={"metrics": [{"name": "m", "url": "http://p", "query": "q", "atMost": 0, "delay": "30s"}]}),
        "spec.gates.metrics was removed: delete it, and use `conditions`, with a job that queries Prometheus and sets "
        "the condition",
    ),
    Bad(
        "on-halt",
        but(onHalt="stop"),
        "spec.onHalt is 'stop', expected one of hold, undo",
        'spec.onHalt: Unsupported value: "stop": supported values: "hold", "undo"',
    ),
)

BAD_WISHES = (
    (APPROVED, "3", "REVISION:WAVE"),
    (APPROVED, "5d8c9:0", "REVISION:WAVE"),
    (APPROVED, "5d8c9:all", "REVISION:WAVE"),
    (APPROVED, "a b:1", "REVISION:WAVE"),
    (APPROVED, 1, "REVISION:WAVE"),
    (RETRY, "", "REVISION"),
    (RETRY, "5d8c9:1", "REVISION"),
    (UNDO, "", "ID or ID:REVISION"),
    (UNDO, "a b", "ID or ID:REVISION"),
    (UNDO, "a:", "ID or ID:REVISION"),
)


def zones(name: str) -> tzinfo | None:
    """The time zones that these objects name."""
    return {"UTC": UTC, "Europe/Berlin": ZoneInfo("Europe/Berlin")}.get(name)


def rollout(spec: Any, name: str = "drivers", namespace: str = "rbln-system", **annotations: Any) -> Json:
    """The object as it comes from the API server."""
    metadata: Json = {"name": name, "namespace": namespace}
    if annotations:
        metadata["annotations"] = {f"{GROUP}/{key}": value for key, value in annotations.items()}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "spec": spec}
