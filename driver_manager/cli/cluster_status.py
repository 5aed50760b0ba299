"""`status --all`: the nodes of a cluster in one table. Reads only Nodes, page by page."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from driver_manager import profiles, schemas
from driver_manager.adapters.kube.api import KubeApi, unexpired
from driver_manager.adapters.kube.fleet import pages
from driver_manager.adapters.kube.objects import as_node, understood
from driver_manager.adapters.process.clock import SystemClock
from driver_manager.adapters.report.log import LogReporter, columns_of
from driver_manager.cli.options import distance, in_form, put, styled, table
from driver_manager.cli.session import connection, log_form, named_profile
from driver_manager.core.fleet_ports import FactKind, Subject
from driver_manager.domain import settings
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.profile import Profile
from driver_manager.domain.settings import Values
from driver_manager.domain.status import NodeOverview, overview
from driver_manager.domain.swap.steps import as_json
from driver_manager.domain.text import several, shortened, shown_length, wrapped
from driver_manager.domain.wire import seconds_of

Json = dict[str, Any]

READY = "ready"
COLOURS = {READY: "green", "upgrading": "yellow", "unknown": "yellow"}
"""All other states are red."""

MOST_ROWS = 40
"""Maximum nodes that need no attention with a row each; more are grouped by profile, state and version."""

LEAST_REASON = 40
"""Minimum columns of the reason beside the other columns; in a narrower terminal it is below them."""

MOST_REASON = 600
"""Maximum characters of a reason: the Node of one does not hide the others."""


def show_cluster(values: Values, output: str) -> int:
    """Print all nodes that have a profile. Raises ManagerError."""
    clock = SystemClock()
    clock.install()
    now_s = clock.wall()
    body = cluster_body(open_api(values, clock, log_form(values).reporter(clock.wall)), values, now_s)
    put(in_form(output, body, lambda words: cluster_text(words, now_s)))
    return ExitCode.DONE


def open_api(values: Values, clock: SystemClock, log: LogReporter) -> KubeApi:
    """The API server, for a command that changes nothing. Raises ConfigError."""
    timeout_s = values[settings.API_TIMEOUT]
    budget_s = settings.BY_HAND_API_TIMEOUT_S if timeout_s is None else timeout_s
    return KubeApi(connection(values), clock, log, budget_s)


def cluster_body(api: KubeApi, values: Values, now_s: float) -> Json:
    """The JSON form of all nodes that have a profile; `now_s` is in seconds since the epoch. Raises ManagerError."""
    named, known = named_profile(values)
    wanted = known if named is None else {named.name: named}
    found = unexpired(lambda: [*_overviews(api, wanted, now_s)], "list nodes")
    return _body(sorted(found, key=lambda one: one.rank))


def _overviews(api: KubeApi, wanted: Mapping[str, Profile], now_s: float) -> Iterator[NodeOverview]:
    """Each node once for each profile whose driver it has or should have."""
    for page in pages(api, Subject(FactKind.NODES)):
        for node in understood(lambda body: [as_node(item) for item in body.get("items") or []], page):
            marks = {*node.labels, *node.annotations}
            for profile in wanted.values():
                if not marks.isdisjoint(profile.keys.names) or profiles.is_labelled(profile, node.labels):
                    yield overview(node, profile, now_s)


def _body(found: Sequence[NodeOverview]) -> Json:
    """The JSON form, which `schemas/cluster.schema.json` describes."""
    states = Counter(one.state.value if one.state is not None else "unknown" for one in found)
    return {
        "schemaVersion": schemas.VERSION,
        "total": len(found),
        "needAttention": sum(one.needs_attention for one in found),
        "states": dict(sorted(states.items())),
        "nodes": as_json(found),
    }


# The text form. The reason is the last column, and wraps on a terminal.

Row = tuple[str, str, str, str, str, str]
HEADINGS: Row = ("NODE", "PROFILE", "STATE", "VERSION", "SINCE", "REASON")


def cluster_text(body: Json, now_s: float) -> str:
    """The table of `body`, whose words are on one line each; `now_s` is in seconds since the epoch."""
    if not body["nodes"]:
        return "no node has a label of a known profile"
    urgent = [one for one in body["nodes"] if one["needsAttention"]]
    calm = [one for one in body["nodes"] if not one["needsAttention"]]
    rows = [HEADINGS, *(_row(one, now_s) for one in urgent)]
    rows += [_row(one, now_s) for one in calm] if len(calm) <= MOST_ROWS else _groups(calm)
    lines = [_summary(body, len(urgent)), *_vendors(body), "", *_table(rows)]
    hint = "`driver-manager status NODE` shows all facts of one node and what to do"
    return "\n".join([*lines, "", hint] if any(one["remedy"] for one in urgent) else lines)


def _summary(body: Json, urgent: int) -> str:
    total = f"{body['total']} node{'' if body['total'] == 1 else 's'}"
    if not urgent:
        return f"{total}: none needs attention"
    verb = "needs" if urgent == 1 else "need"
    return f"{total}: {styled(f'{urgent} {verb} attention', fg='red', bold=True)}"


def _vendors(body: Json) -> Iterator[str]:
    """A line for each profile: its nodes by state."""
    for profile in sorted({one["profile"] for one in body["nodes"]}):
        states = Counter(one["state"] or "unknown" for one in body["nodes"] if one["profile"] == profile)
        yield f"  {profile}: {', '.join(f'{count} {state}' for state, count in sorted(states.items()))}"


def _row(one: Json, now_s: float) -> Row:
    then_s, since = seconds_of(one["since"] or ""), "-"
    if then_s is not None:
        since = distance(then_s, now_s) if then_s <= now_s else one["since"]
    mark = " (cordoned)" if one["cordoned"] else ""
    reason = shortened(one["reason"], MOST_REASON)
    return f"{one['node']}{mark}", one["profile"], _state(one), one["version"] or "-", since, reason


def _state(one: Json) -> str:
    state = one["state"] or "unknown"
    return styled(state, fg=COLOURS.get(state, "red"))


def _groups(calm: Sequence[Json]) -> list[Row]:
    names: dict[tuple[str, str, str], list[str]] = {}
    for one in calm:
        names.setdefault((one["profile"], _state(one), one["version"] or "-"), []).append(one["node"])
    return [(f"{len(found)} nodes", *group, "-", several(found)) for group, found in names.items()]


def _table(rows: Sequence[Row]) -> Iterator[str]:
    columns, cells = columns_of(sys.stdout), table([row[:-1] for row in rows])
    left = max(map(shown_length, cells)) + 2
    for cell, row in zip(cells, rows, strict=True):
        beside = f"{cell}{' ' * (left - shown_length(cell))}{row[-1]}".rstrip()
        is_beside = not columns or columns - left >= LEAST_REASON or not row[-1]
        yield from wrapped(beside, columns, left) if is_beside else (cell, f"    {row[-1]}")
