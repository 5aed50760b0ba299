"""DriverRollouts as people write them: good ones, and every kind of bad value with who refuses it in which words."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from driver_manager.domain.fleet.spec import APPROVED, GROUP, KIND, RETRY, UNDO, VERSION, RolloutPolicy
from driver_manager.domain.schema import fields_of

Json = dict[str, Any]

SPEC: Json = {"daemonSet": "driver"}
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
BLANK: Json = {"daemonSet": "driver", "windows": "", "paused": None, "waves": [{"name": "rest", "nodeSelector": ""}]}
"""One that says nothing in many words, as templates make them."""


@dataclass(frozen=True)
class Bad:
    """A spec that is wrong in one point: the `reader`'s problem, and what is in the API `server`'s refusal."""

    name: str
    spec: Any
    reader: str
    server: str = ""


def but(**fields: Any) -> Json:
    return {**copy.deepcopy(SPEC), **fields}


BESIDE: Json = {"waves": {"name": "rest"}, "units": {"topologyKey": "rack"}}
BESIDE |= {"pods": {"selector": "app=a"}, "conditions": {"type": "Fine"}}
"""What has to be in an entry or an object beside the one field that is looked at."""


def field(path: str, value: Any, expected: str, server: str = "") -> Bad:
    """One field of the spec has a bad value. `expected` is what the reader says of it after the value."""
    *outer, last = path.split(".")
    found = {last: value}
    for name in reversed(outer):
        key = name.removesuffix("[0]")
        entry = {**BESIDE.get(key, {}), **found}
        found = {key: [entry] if name.endswith("[0]") else entry}
    expected = expected if expected.startswith(":") else f", expected {expected}"
    shown = str(value).lower() if type(value) is bool else repr(value)
    return Bad(f"{path}={value!r}"[:60], but(**found), f"spec.{path} is {shown}{expected}", server)


NAME = "a name of lower-case letters, digits, '-' and '.' such as driver"
DURATION = "a duration such as 90, 30s, 5m or 1h30m"
KEY = "the key of a label such as topology.kubernetes.io/zone"
WINDOWS = "windows such as 'Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00'"
SELECTOR = "a label selector such as 'rack=a,tier!=prod'"
ZONE = "a time zone such as Europe/Berlin, or UTC"
COUNT, FROM_0 = "a whole number from 1 to 100000", "a whole number from 0 to 100000"
AMOUNT = "a whole number from 1, or a percent such as 10%"
SOAK = f"{DURATION}, from 0 s to 30 days"
FLAG, WAVES = "true or false", "a list of 1 to 20 objects"
ABOVE, BELOW = "in body should be greater than or equal to", "in body should be less than or equal to"
DAYS, NO_WINDOW = "Mon, Tue, Wed, Thu, Fri, Sat, Sun", "that is not a window"
STATUS = "one of True, False, Unknown"
CONDITION, SUPPORTED = "the type of a condition of the Node such as NetworkReady", "supported values:"
TOO_SHORT, NO_KEY = "in body should be at least 1 chars long", "spec.units.topologyKey: Required value"
FIELDS = ", ".join(sorted(fields_of(RolloutPolicy)))
TWO_OF_A = [{"name": "a"}, {"name": "b"}, {"name": "a"}]
TWO_AMOUNTS = [{"name": "canary", "count": 1, "percent": 10}]
BAD_SOAKS = ("soon", "-5m", "5 m", "5ms", "1h-5m", "")
BAD_AMOUNTS = ("0%", "101%", "10", "ten", "-5%", "1.5%", True)

OF_SET = "spec.daemonSet: "

BAD = (
    Bad("no-daemon-set", {}, f"spec.daemonSet is missing, expected {NAME}", f"{OF_SET}Required value"),
    Bad("no-object", [], "spec is [], expected an object", "spec in body must be of type object"),
    field("daemonSet", "Driver", NAME, f'{OF_SET}Invalid value: "Driver"'),
    field("daemonSet", "driver\n", NAME, f"{OF_SET}Invalid value"),
    Bad("too-long", but(daemonSet="d" * 254), f"spec.daemonSet is '{'d' * 118}…, expected 0 to 253 characters", OF_SET),
    Bad("removed", but(gates={"metric": []}), "spec.gates has a field 'metric', expected one of conditions, pods"),
    Bad("unknown", but(maxParralel=1), f"spec has a field 'maxParralel', expected one of {FIELDS}"),
    field("paused", "yes", FLAG, "must be of type boolean"),
    field("paused", 1, FLAG, "must be of type boolean"),
    field("maxParallel", -1, FROM_0, f"spec.maxParallel {ABOVE} 0"),
    field("maxParallel", 100_001, FROM_0, f"spec.maxParallel {BELOW} 100000"),
    field("maxParallel", True, FROM_0, "spec.maxParallel in body must be of type integer"),
    field("failureThreshold", 1.5, COUNT, "spec.failureThreshold in body must be of type integer"),
    field("failureThreshold", 0, COUNT, f"spec.failureThreshold {ABOVE} 1"),
    field("maxUnavailable", 0, AMOUNT, f"spec.maxUnavailable {ABOVE} 1"),
    *(field("maxUnavailable", value, AMOUNT, "spec.maxUnavailable") for value in BAD_AMOUNTS),
    field("waves", [], WAVES, "at least 1 items"),
    Bad(
        "waves-too-many",
        but(waves=[{"name": f"w{number}"} for number in range(21)]),
        "spec.waves is [{'name': 'w0'}, {'name': 'w1'}, {'name': 'w2'}, {'name': 'w3'}, {'name': … {'name': 'w19'}, "
        f"{{'name': 'w20'}}], expected {WAVES}",
        "spec.waves",
    ),
    Bad("wave-that-is-text", but(waves=["a"]), "spec.waves[0] is 'a', expected an object", "must be of type object"),
    Bad("nameless", but(waves=[{}]), f"spec.waves[0].name is missing, expected {NAME}", "spec.waves.name: Required"),
    field("waves[0].name", "w" * 64, "0 to 63 characters", "spec.waves.name: "),
    Bad("one-name", but(waves=TWO_OF_A), "spec.waves[2].name is 'a', expected a value other than that of entry 0"),
    Bad("two-amounts", but(waves=TWO_AMOUNTS), "spec.waves[0] has count and percent, expected at most one of them"),
    field("waves[0].count", 0, COUNT, f"spec.waves.count {ABOVE} 1"),
    field("waves[0].percent", 101, "a whole number from 1 to 100", f"spec.waves.percent {BELOW} 100"),
    field("waves[0].nodeSelector", "rack=a,=b", f"{SELECTOR} (unable to parse requirement: =b)"),
    field("waves[0].nodeSelector", "rack=ä", SELECTOR, "spec.waves.nodeSelector in body should match"),
    *(field("waves[0].soak", text, SOAK, "spec.waves.soak in body should match") for text in BAD_SOAKS),
    field("waves[0].soak", 90, SOAK, "spec.waves.soak in body must be of type string"),
    field("waves[0].soak", "800h", f"{SOAK} ('800h' is longer than 30 days)"),
    field("nodeTimeout", "0s", f"{DURATION}, from 1 s to 30 days"),
    Bad("no-key", but(units={}), f"spec.units.topologyKey is missing, expected {KEY}", NO_KEY),
    field("units.topologyKey", "a b", KEY, "spec.units.topologyKey in body should match"),
    field("units.mode", "together", "one of OneAtATime, Together", f'{SUPPORTED} "OneAtATime", "Together"'),
    field("windows", "Sut 02:00-06:00", f"{WINDOWS} ('Sut' is not a day, expected one of {DAYS})"),
    field("windows", "Sat 25:00-26:00", f": '25:00' is not a time of the day, expected {WINDOWS}"),
    field("windows", "02:00-02:00", f"{WINDOWS} ('02:00-02:00' opens at 02:00 and closes at 02:00: {NO_WINDOW})"),
    field("windows", "at night", WINDOWS, "spec.windows in body"),
    field("timezone", "Europe/Atlantis", ZONE),
    field("timezone", "../../etc/passwd", ZONE, "spec.timezone in body should match"),
    field("gates.pods[0].selector", "", "1 to 1000 characters", f"spec.gates.pods.selector {TOO_SHORT}"),
    field("gates.conditions[0].type", "Network Ready", CONDITION, "spec.gates.conditions.type in body should match"),
    field("gates.conditions[0].status", "yes", STATUS, f'{SUPPORTED} "True", "False", "Unknown"'),
    Bad(
        "metrics-that-were-removed",
        but(gates={"metrics": [{"name": "m", "url": "http://p", "query": "q", "atMost": 0, "delay": "30s"}]}),
        "spec.gates.metrics was removed: delete it, and use `conditions`, with a job that queries Prometheus and sets "
        "the condition",
    ),
    field("onHalt", "stop", "one of hold, undo", f'spec.onHalt: Unsupported value: "stop": {SUPPORTED} "hold", "undo"'),
)

BAD_WISHES = [
    *((APPROVED, value, "REVISION:WAVE") for value in ("3", "5d8c9:0", "5d8c9:all", "a b:1", 1)),
    *((RETRY, value, "REVISION or REVISION:ID") for value in ("", "5d8c9:")),
    *((UNDO, value, "ID or ID:REVISION") for value in ("", "a b", "a:")),
]


def zones(name: str) -> tzinfo | None:
    return {"UTC": UTC, "Europe/Berlin": ZoneInfo("Europe/Berlin")}.get(name)


def rollout(spec: Any, name: str = "drivers", namespace: str = "rbln-system", **annotations: Any) -> Json:
    metadata: Json = {"name": name, "namespace": namespace}
    if annotations:
        metadata["annotations"] = {f"{GROUP}/{key}": value for key, value in annotations.items()}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "spec": spec}
