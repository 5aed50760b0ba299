"""`rollout plan` for people: the estimate, then wave by wave who goes, when, and how many pods that disturbs."""

from __future__ import annotations

from typing import Any

from driver_manager.cli.rollout_text import facts, headline, hints, nodes, rows, table, when
from driver_manager.domain.duration import spoken
from driver_manager.domain.listing import several

Json = dict[str, Any]

FATE = "the run on each node decides what happens to them"


def text(body: Json, now_s: float) -> str:
    """The screen of `rollout plan`; words in `body` are on one line each, `now_s` is in seconds since the epoch."""
    plan = body["plan"]
    lines = hints(body)
    if plan is not None:
        lines += rows("to go", _estimate(plan, now_s))
        lines += rows("disturbs", [_disturbed(plan)]) if plan["toGo"] else []
        lines += rows("waves", table(_waves(plan, now_s))) if plan["toGo"] else []
    return "\n".join([headline(body), *lines, *nodes(body, now_s), *facts(body, now_s)])


def _estimate(plan: Json, now_s: float) -> list[str]:
    count = plan["toGo"]
    if not count:
        return ["no node"]
    first = _count(count, "node")
    if plan["typicalSeconds"] is None:
        return [f"{first}; no estimate before the first node is done"]
    pace = f"{first}; a node takes about {spoken(plan['typicalSeconds'])}"
    if plan["windowSeconds"] is not None:
        pace += f", its users are without their device for {plan['windowSeconds']:.1f} s of it"
    if plan["ends"]:
        return [f"{pace}; done by {when(plan['ends'], now_s)} at the earliest"]
    return [f"{pace}; the end depends on what somebody has to do first"]


def _disturbed(plan: Json) -> str:
    if plan["pods"] is None:
        return "unknown: the pods on these nodes cannot be listed"
    if not plan["pods"]:
        return "no pod that uses the accelerator"
    return f"{_count(plan['pods'], 'pod')} that use the accelerator; {FATE}"


def _waves(plan: Json, now_s: float) -> list[list[str]]:
    cells = [["WAVE", "NAME", "TO GO", "PODS", "BEGINS", "ENDS", "NODES IN THEIR ORDER"]]
    for wave in plan["waves"]:
        cells.append(
            [
                str(wave["number"]),
                wave["name"],
                str(len(wave["nodes"]) or "-"),
                "?" if wave["pods"] is None else str(wave["pods"] or "-"),
                _begins(wave, now_s),
                when(wave["ends"], now_s) if wave["ends"] else "-",
                several(one["node"] for one in wave["nodes"]),
            ]
        )
    return cells


def _begins(wave: Json, now_s: float) -> str:
    if wave["approvalAfter"] is not None:
        return f"after the approval that follows wave {wave['approvalAfter']}"
    return when(wave["begins"], now_s) if wave["begins"] else "-"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
