"""A rollout for people: headline, what may be done, waves, nodes that failed, are under way, wait or are left out.

Made from the form for machines, so that both say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from driver_manager.cli.options import styled
from driver_manager.cli.rollout_body import grouped
from driver_manager.domain import timestamps
from driver_manager.domain.duration import spoken
from driver_manager.domain.fleet.acts import Phase, Place
from driver_manager.domain.fleet.status_form import STANDING
from driver_manager.domain.listing import several

Json = dict[str, Any]

COLOURS = {Phase.COMPLETE.value: "green", **{phase.value: "red" for phase in STANDING}}
"""Other phases are on their way, or wait."""

WORDS = {
    "updated": "updated",
    "underWay": "under way",
    "waiting": "waiting",
    "failed": "failed",
    "leftOut": "left out",
}
WIDTH = 11
MOST_NODES = 20
"""Nodes that each have a line, of one place."""


def text(body: Json, now_s: float) -> str:
    """The screen of `rollout status`; words in `body` are on one line each, `now_s` is in seconds since the epoch."""
    lines = [*hints(body), *rows("nodes", [in_short(body["counts"])])]
    lines += rows("waves", table(_waves(body, now_s))) if body["waves"] else []
    return "\n".join([headline(body), *lines, *nodes(body, now_s), *facts(body, now_s)])


def headline(body: Json) -> str:
    """Phase, reason and message."""
    phase, reason = body["phase"], body["reason"]
    word = styled(phase, fg=COLOURS.get(phase, "yellow"), bold=True)
    return f"{word}{f' ({reason})' if reason != phase else ''}: {body['message']}"


def in_short(counts: Json) -> str:
    """The counts in one line; what is zero is left out."""
    parts = [f"{counts[key]} {word}" for key, word in WORDS.items() if counts[key]]
    return f"{counts['total']} in all{': ' if parts else ''}{', '.join(parts)}"


def facts(body: Json, now_s: float) -> list[str]:
    """What the rollout is about, and who does it."""
    target, good = body["target"], body["good"]
    about = f" of DaemonSet {body['daemonSet']}" if body["daemonSet"] else ""
    lines = rows("rollout", [f"{body['rollout']}{about}, profile {body['profile']}"])
    if target is not None:
        since = f", since {when(target['began'], now_s)}" if target["began"] else ""
        last = f"; good on all nodes: {_named(good)}" if good is not None and good != target else ""
        lines += rows("revision", [f"{_named(target)}{since}{last}"])
    return lines + rows("controller", [_controller(body["controller"], now_s)])


def when(moment: str, now_s: float) -> str:
    """A moment, and how far from now that is."""
    then_s = timestamps.seconds_of(moment)
    if then_s is None:
        return moment
    return f"{moment} ({f'{spoken(now_s - then_s)} ago' if now_s >= then_s else f'in {spoken(then_s - now_s)}'})"


def rows(title: str, texts: Iterable[str]) -> list[str]:
    """Rows under one title, the title beside the first."""
    return [f"{title if number == 0 else '':<{WIDTH}} {row}".rstrip() for number, row in enumerate(texts)]


def table(cells: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns."""
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def nodes(body: Json, now_s: float) -> list[str]:
    """Every node that is not done, with its reason."""
    lines = [*_each(body, Place.FAILED, now_s), *_each(body, Place.UNDER_WAY, now_s)]
    return [*lines, *_groups(body, Place.WAITING), *_groups(body, Place.LEFT_OUT)]


def hints(body: Json) -> list[str]:
    """What may be done, and how."""
    texts = []
    for one in body["hints"]:
        texts += [one["what"], *([f"  {one['command']}"] if one["command"] else [])]
    return rows("to do", texts) if texts else []


def _waves(body: Json, now_s: float) -> list[list[str]]:
    """The table of the waves; a place that no wave has a node in has no column."""
    waves = body["waves"]
    shown_words = {key: word for key, word in WORDS.items() if any(wave[key] for wave in waves)}
    cells = [["WAVE", "NAME", "NODES", *(word.upper() for word in shown_words.values()), "ENDED"]]
    for wave in waves:
        mark = "*" if wave["number"] == body["wave"] else " "
        counted = [str(wave[key] or "-") for key in shown_words]
        ended = when(wave["ended"], now_s) if wave["ended"] else "-"
        cells.append([f"{wave['number']}{mark}", wave["name"], str(wave["total"]), *counted, ended])
    return cells


def _each(body: Json, place: Place, now_s: float) -> list[str]:
    """Nodes in this place, each with its reason; those that have been there for longest first."""
    found = sorted(
        (node for node in body["nodes"] if node["place"] == place.value),
        key=lambda node: (node["since"] is None, node["since"] or "", node["node"]),
    )
    texts = [_one(node, now_s) for node in found[:MOST_NODES]]
    texts += [f"and {len(found) - MOST_NODES} more"] if len(found) > MOST_NODES else []
    return rows(place.value, texts)


def _one(node: Json, now_s: float) -> str:
    then_s = timestamps.seconds_of(node["since"]) if node["since"] else None
    since = f" (for {spoken(now_s - then_s)})" if then_s is not None else ""
    return f"{node['node']}{since}: {node['reason']}" if node["reason"] else f"{node['node']}{since}"


def _groups(body: Json, place: Place) -> list[str]:
    """Nodes in this place by their reason."""
    found = grouped(node for node in body["nodes"] if node["place"] == place.value)
    return rows(place.value, [f"{_many(names)}: {why}" for why, names in found])


def _many(names: Sequence[str]) -> str:
    return several(names) if len(names) == 1 else f"{several(names)} ({len(names)})"


def _named(revision: Json) -> str:
    number = f" (number {revision['number']})" if revision["number"] is not None else ""
    return f"{revision['revision']}{number}"


def _controller(leader: Json | None, now_s: float) -> str:
    if leader is None:
        return "unknown"
    if leader["isLeading"]:
        return f"{leader['leader']} leads"
    last = f"; {leader['leader']} led until {when(leader['renewed'], now_s)}" if leader["renewed"] else ""
    return f"none leads{last}"
