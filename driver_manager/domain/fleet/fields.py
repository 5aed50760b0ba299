"""What a DriverRollout asks for, field by field: name, kind, default, bounds, meaning and example, each once.

Owns the names of the custom resource and the table of its spec. The definition that the API server checks by, the
reader (`reading`) and the reference are made from it. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from driver_manager.domain import selectors
from driver_manager.domain.fleet.model import OnHalt, PreflightMode, UnitMode
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.pod import ROLLOUT
from driver_manager.domain.reboot import windows

GROUP = "driver-manager.rebellions.ai"
VERSION = "v1alpha1"
KIND = ROLLOUT
PLURAL = "driverrollouts"
SHORT_NAME = "dro"

APPROVED = f"{GROUP}/approved"
RETRY = f"{GROUP}/retry"
UNDO = f"{GROUP}/undo"


class Kind(Enum):
    """What a field holds; the words are those of the reference."""

    OBJECT = "object"
    LIST = "list of objects"
    TEXTS = "list of texts"
    FLAG = "true or false"
    WHOLE = "whole number"
    AMOUNT = "number or percent"
    CHOICE = "word"
    TEXT = "text"
    TIME = "time"
    DURATION = "duration"
    NAME = "name"
    SELECTOR = "label selector"
    LABEL_KEY = "label key"
    CONDITION = "condition type"
    WINDOWS = "maintenance windows"
    ZONE = "time zone"
    NUMBER = "number"
    URL = "address of a server"
    QUERY = "query"


class Grammar(Frozen):
    """How a text of some kind is written: the pattern that it matches as a whole, and the same in words."""

    pattern: str
    expected: str
    most_chars: int


WINDOW = r"([A-Za-z]{3}([,-][A-Za-z]{3})* +)?[0-2][0-9]:[0-5][0-9]-[0-2][0-9]:[0-5][0-9]"
GRAMMARS = {
    Kind.AMOUNT: Grammar(r"^([1-9][0-9]?|100)%$", "a whole number from 1, or a percent such as 10%", 4),
    Kind.DURATION: Grammar(
        r"^([0-9]{1,9}|([0-9]{1,9}(\.[0-9]{1,9})?[hms])+)$", "a duration such as 90, 30s, 5m or 1h30m", 40
    ),
    Kind.NAME: Grammar(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "a name of lower-case letters, digits, '-' and '.' such as driver", 253
    ),
    Kind.SELECTOR: Grammar(r"^[ -~]*$", "a label selector such as 'rack=a,tier!=prod'", 1000),
    Kind.LABEL_KEY: Grammar(
        f"^{selectors.KEY_PATTERN}$", "the key of a label such as topology.kubernetes.io/zone", 317
    ),
    Kind.CONDITION: Grammar(
        f"^{selectors.KEY_PATTERN}$", "the type of a condition of the Node such as NetworkReady", 317
    ),
    Kind.WINDOWS: Grammar(f"^( *({WINDOW}( *; *{WINDOW})* *;?)? *)$", windows.EXPECTED, 1000),
    # No user, password, query or fragment: what is written here can be read by whoever reads the object.
    Kind.URL: Grammar(
        r"^https?://([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?(/[-A-Za-z0-9._~/]*)?$",
        "http:// or https:// with a host, a port if it is not the default, and a path, such as http://prometheus.monitoring:9090",
        500,
    ),
    Kind.QUERY: Grammar(r"^[ -~\s]*$", "a query of Prometheus in printable ASCII", 2000),
    Kind.ZONE: Grammar(r"^[A-Za-z0-9][-+A-Za-z0-9_/]*$", "a time zone such as Europe/Berlin, or UTC", 64),
}
"""Kinds of texts that are checked. The patterns mean the same to Go's and to Python's reader of them."""


class Field(Frozen):
    """A field of the object. `default` is in the field's written form; None where there is none.

    `least` and `most` bound a number, the entries of a list, the seconds of a duration or the characters of a text;
    None where only the kind does. `fields` are those of an object, or of each entry of a list; there `apart` are fields
    of which an entry has at most one, and `key` is a field that no two entries share. `between` are two numbers of
    which it has at least one, the smaller one first.
    """

    name: str
    kind: Kind
    meaning: str
    default: Any = None
    example: Any = None
    is_required: bool = False
    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    apart: tuple[str, ...] = ()
    key: str = ""
    between: tuple[str, ...] = ()


DAY_S = 24 * 3600
MAX_WAVES = 20
MAX_GATES = 20
MAX_NODES = 100_000

WAVE = (
    Field("name", Kind.NAME, "name of the wave", example="canary", is_required=True, most=63),
    Field("nodeSelector", Kind.SELECTOR, "takes only nodes that match; without it any node", example="rack=a"),
    Field("count", Kind.WHOLE, "takes at most this number of nodes", example=1, least=1, most=MAX_NODES),
    Field(
        "percent",
        Kind.WHOLE,
        "takes at most this share of the nodes that match, rounded up; not together with `count`",
        example=10,
        least=1,
        most=100,
    ),
    Field(
        "soak",
        Kind.DURATION,
        "time from the end of this wave to the start of the next",
        default="0s",
        example="30m",
        least=0,
        most=30 * DAY_S,
    ),
    Field(
        "approval",
        Kind.FLAG,
        "whether the next wave waits until somebody has approved it (`driver-manager rollout approve`)",
        default=False,
        example=True,
    ),
)
UNITS = (
    Field(
        "topologyKey",
        Kind.LABEL_KEY,
        "nodes with the same value of this label are one unit; a node without it is a unit of its own",
        example="topology.kubernetes.io/rack",
        is_required=True,
    ),
    Field(
        "mode",
        Kind.CHOICE,
        "whether the nodes of a unit go one after the other, or start together",
        default=UnitMode.ONE_AT_A_TIME.value,
        example=UnitMode.TOGETHER.value,
        choices=tuple(mode.value for mode in UnitMode),
    ),
)
METRICS = (
    Field("name", Kind.NAME, "name of the metric, as reasons show it", example="errors", is_required=True, most=63),
    Field(
        "url",
        Kind.URL,
        "address of the Prometheus server; no user, password or token is sent",
        example="http://prometheus.monitoring:9090",
        is_required=True,
        least=1,
    ),
    Field(
        "query",
        Kind.QUERY,
        "instant query; `{node}` in it stands for the name of the node",
        example='sum(npu_errors_total{node="{node}"})',
        is_required=True,
        least=1,
    ),
    Field(
        "atLeast",
        Kind.NUMBER,
        "smallest number that passes; `atLeast` or `atMost` is required",
        example=0.99,
    ),
    Field("atMost", Kind.NUMBER, "largest number that passes; `atLeast` or `atMost` is required", example=0),
    Field(
        "delay",
        Kind.DURATION,
        "time from a ready driver to the first query: longer than the server takes to scrape again",
        default="1m",
        example="2m",
        least=0,
        most=DAY_S,
    ),
)
GATES = (
    Field(
        "pods",
        Kind.LIST,
        "pods that must be ready on a node, at least one for each entry, before its upgrade counts as done",
        most=MAX_GATES,
        fields=(
            Field(
                "namespace",
                Kind.NAME,
                "namespace of the pods; default: the object's own",
                example="monitoring",
                most=63,
            ),
            Field(
                "selector",
                Kind.SELECTOR,
                "label selector of the pods",
                example="app=validator",
                is_required=True,
                least=1,
            ),
        ),
    ),
    Field(
        "conditions",
        Kind.LIST,
        "conditions of the Node that must have this status before its upgrade counts as done",
        most=MAX_GATES,
        fields=(
            Field("type", Kind.CONDITION, "type of the condition", example="NetworkReady", is_required=True),
            Field(
                "status",
                Kind.CHOICE,
                "status that it must have",
                default="True",
                example="False",
                choices=("True", "False", "Unknown"),
            ),
        ),
    ),
    Field(
        "metrics",
        Kind.LIST,
        "queries to Prometheus servers, each of which must return one number within its bounds; an empty answer, "
        "several series or NaN does not pass. A query with `{node}` runs for each node before its upgrade counts as "
        "done; a query without it runs then too, and again before the next wave starts",
        most=MAX_GATES,
        fields=METRICS,
        key="name",
        between=("atLeast", "atMost"),
    ),
)
SPEC = (
    Field(
        "daemonSet",
        Kind.NAME,
        "name of the driver's DaemonSet, in the object's namespace; its `updateStrategy` has to be `OnDelete`",
        example="driver",
        is_required=True,
    ),
    Field(
        "paused",
        Kind.FLAG,
        "while true no more nodes start; nodes that have started are completed",
        default=False,
        example=True,
    ),
    Field(
        "maxParallel",
        Kind.WHOLE,
        "number of nodes that may be upgraded at the same time; 0 is no limit",
        default=1,
        example=4,
        least=0,
        most=MAX_NODES,
    ),
    Field(
        "maxUnavailable",
        Kind.AMOUNT,
        "number or percent of the rollout's nodes that may be out of service at the same time, for whatever reason: "
        "cordoned, not Ready, without a ready driver pod, or being upgraded; without it there is no such limit",
        example="10%",
        least=1,
        most=MAX_NODES,
    ),
    Field(
        "waves",
        Kind.LIST,
        "which nodes go in which order; a node belongs to the first wave that takes it, and is left out if none does",
        default=[{"name": "canary", "count": 1}, {"name": "tenth", "percent": 10}, {"name": "rest"}],
        least=1,
        most=MAX_WAVES,
        fields=WAVE,
        apart=("count", "percent"),
        key="name",
    ),
    Field(
        "units",
        Kind.OBJECT,
        "nodes that depend on each other; without it every node is a unit of its own",
        fields=UNITS,
    ),
    Field(
        "windows",
        Kind.WINDOWS,
        "when nodes may start; without it at any time",
        example="Sat,Sun 02:00-06:00; Mon-Fri 22:00-04:00",
    ),
    Field("timezone", Kind.ZONE, "time zone of `windows`", default="UTC", example="Europe/Berlin"),
    Field("gates", Kind.OBJECT, "what a node must show, besides a ready driver pod, to count as done", fields=GATES),
    Field(
        "failureThreshold",
        Kind.WHOLE,
        "number of failed nodes at which the rollout of a revision halts",
        default=1,
        example=3,
        least=1,
        most=MAX_NODES,
    ),
    Field(
        "onHalt",
        Kind.CHOICE,
        "what follows a halt: `hold` waits for somebody, `undo` gives the DaemonSet its last good template again",
        default=OnHalt.HOLD.value,
        example=OnHalt.UNDO.value,
        choices=tuple(word.value for word in OnHalt),
    ),
    Field(
        "nodeTimeout",
        Kind.DURATION,
        "time from a node's start to a ready driver pod, after which the node has failed",
        default="30m",
        example="1h",
        least=1,
        most=30 * DAY_S,
    ),
    Field(
        "validationTimeout",
        Kind.DURATION,
        "time from a ready driver pod to passed `gates`, after which the node has failed",
        default="10m",
        example="5m",
        least=1,
        most=30 * DAY_S,
    ),
    Field(
        "approveReboots",
        Kind.FLAG,
        "whether the rollout approves the reboot of a node that it has started and whose driver needs one",
        default=False,
        example=True,
    ),
    Field(
        "preflight",
        Kind.CHOICE,
        "what happens to a node that is expected to fail: `require` leaves it out, `warn` names it, `off` does not "
        "check; "
        "write `off` in quotes, as YAML reads it as false without them",
        default=PreflightMode.OFF.value,
        example=PreflightMode.REQUIRE.value,
        choices=tuple(mode.value for mode in PreflightMode),
    ),
)
"""The spec. What has no example is an object or a list, and has one in its fields."""


class WishField(Frozen):
    """An annotation of the object by which people ask for something: its key, how it is written, what it asks for."""

    key: str
    form: str
    meaning: str


WISHES = (
    WishField(APPROVED, "REVISION:WAVE", "waves of this revision up to this number, from 1, may begin"),
    WishField(RETRY, "REVISION", "this revision, which failed, may be tried again"),
    WishField(
        UNDO,
        "ID or ID:REVISION",
        "go back to the last good revision, or to this one; each ID, a text of your choice, counts once",
    ),
)
