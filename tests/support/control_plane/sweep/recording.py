"""Owns the list of a run's effects: API writes as the proxy saw them and host effects as the process noted them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tests.support.control_plane.exchanges import Exchange

_READING = ("get", "list", "watch")
_ASKING = ("selfsubjectaccessreviews",)
"""Created to be answered, and kept nowhere."""


class Place(Enum):
    """Where an effect shows."""

    API = "api"
    HOST = "host"


@dataclass(frozen=True)
class Effect:
    """One effect of a run. `number` is its own among the host effects (from 0), or among the requests of its verb and
    resource (from 1)."""

    place: Place
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.place.value}: {self.name}"


def recorded(exchanges: Iterable[Exchange], host_effects: Iterable[tuple[float, str]]) -> tuple[Effect, ...]:
    """All effects of one run in the order in which they happened; both sides tell the monotonic clock's time."""
    found = [(at_s, Effect(Place.HOST, name, number)) for number, (at_s, name) in enumerate(host_effects)]
    asked: Counter[str] = Counter()
    for exchange in exchanges:
        target = exchange.request.target
        name = f"{target.verb} {target.resource}"
        asked[name] += 1
        if changes(exchange):
            found.append((exchange.at_s, Effect(Place.API, name, asked[name])))
    return tuple(effect for _, effect in sorted(found, key=lambda one: one[0]))


def changes(exchange: Exchange) -> bool:
    """Whether the request changes something on the server: an eviction that is only rehearsed does not."""
    target = exchange.request.target
    return target.verb not in _READING and target.resource not in _ASKING and not exchange.request.is_dry_run


def uncovered(reference: tuple[Effect, ...], seen: tuple[Effect, ...]) -> str:
    """Where a killed run's effects are not those that the points were taken from; "" where they are."""
    for wanted, there in zip(reference, seen, strict=False):
        if wanted != there:
            return f"expected {wanted}, there was {there}"
    if len(seen) > len(reference):
        return f"not in the recorded run: {seen[len(reference)]}"
    return ""
