"""What the controller needs of the object's form and of the rules, as protocols: it knows neither by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from driver_manager.domain.fleet.acts import FleetDecision
from driver_manager.domain.fleet.model import Fleet, Memory, Policy, Wishes


@dataclass(frozen=True)
class Reading:
    """What an object says. `problems` are what is wrong with its spec; then there is no policy."""

    policy: Policy | None
    wishes: Wishes
    memory: Memory
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class StatusWrite:
    """The status that an object should have. It is worth a write from the moment `due_s` (seconds since the epoch) on,
    None where what it has says the same.
    """

    status: Mapping[str, Any]
    due_s: float | None


class Read(Protocol):
    """Reads an object's JSON."""

    def __call__(self, body: Mapping[str, Any]) -> Reading:
        """What it says. Raises nothing."""
        ...


class Advance(Protocol):
    """The rules of a rollout."""

    def __call__(self, fleet: Fleet, now_s: float) -> FleetDecision:
        """What to do at `now_s`, in seconds since the epoch."""
        ...


class Write(Protocol):
    """Makes an object's status."""

    def __call__(
        self, decision: FleetDecision, old: Mapping[str, Any], generation: int, now_s: float
    ) -> StatusWrite:
        """The status after `decision` about an object of `generation` whose status is `old`."""
        ...


class Refuse(Protocol):
    """Makes the status of an object that cannot be read."""

    def __call__(
        self, problems: tuple[str, ...], old: Mapping[str, Any], generation: int, now_s: float
    ) -> StatusWrite:
        """The status that names `problems`."""
        ...


@dataclass(frozen=True)
class Forms:
    """All of them."""

    read: Read
    advance: Advance
    write: Write
    refuse: Refuse
