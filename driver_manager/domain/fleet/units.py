"""Owns which nodes are one unit: a job, a rack, a link domain. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from driver_manager.domain.fleet.acts import Place
from driver_manager.domain.fleet.census import Member
from driver_manager.domain.fleet.model import UnitMode, Units
from driver_manager.domain.fleet.verdict import Standing


def name(member: Member, units: Units | None) -> str:
    """The unit of the node, "" for one that stands alone."""
    return member.node.labels.get(units.key, "") if units is not None else ""


def is_one_at_a_time(units: Units | None) -> bool:
    """Whether at most one node of a unit may be under way."""
    return units is not None and units.mode is UnitMode.ONE_AT_A_TIME


def busy(standings: Iterable[Standing], units: Units | None) -> dict[str, str]:
    """The units of which no other node may begin, each with the node that is under way."""
    if not is_one_at_a_time(units):
        return {}
    return _by_unit((one for one in standings if one.verdict.place is Place.UNDER_WAY), units)


def kept_back(standings: Iterable[Standing], blocked: Iterable[str], units: Units | None) -> dict[str, str]:
    """The units that go together and cannot yet, each with a node of it that has not begun and is `blocked`."""
    if units is None or units.mode is not UnitMode.TOGETHER:
        return {}
    stuck = set(blocked)
    waiting = (one for one in standings if one.verdict.place is Place.WAITING)
    return _by_unit((one for one in waiting if one.member.node.name in stuck), units)


def _by_unit(standings: Iterable[Standing], units: Units | None) -> dict[str, str]:
    """The units of `standings`, each with the name of a node of it."""
    return {unit: one.member.node.name for one in standings if (unit := name(one.member, units))}


def crews(candidates: Iterable[Standing], units: Units | None) -> list[tuple[str, list[Standing]]]:
    """The candidates by who begins together, each with the name of the unit: alone, but in units that go together."""
    together: dict[str, list[Standing]] = {}
    found: list[tuple[str, list[Standing]]] = []
    for standing in candidates:
        unit = name(standing.member, units)
        if not unit or units is None or units.mode is not UnitMode.TOGETHER:
            found.append((unit, [standing]))
        elif unit in together:
            together[unit].append(standing)
        else:
            together[unit] = [standing]
            found.append((unit, together[unit]))
    return found
