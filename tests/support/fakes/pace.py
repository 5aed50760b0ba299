"""How slow this machine is just now, for promises whose real time is measured: an idle one would keep them as written.

The measure is the floor that the figures of scripts/bench have beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.assurance.bench.figure import floor_s

T = TypeVar("T")

NOMINAL_S = 0.14
"""The processor time of one such start (0.12 to 0.15 s on a machine with two cores): all that an idle one takes."""

ROUNDS = 3


def ratio() -> float:
    """How many times slower than an idle machine, at least 1: the slowest of three starts, measured now."""
    return max(1.0, *(floor_s() / NOMINAL_S for _ in range(ROUNDS)))


def patient(seconds: float) -> float:
    """`seconds` of an idle machine on this one. Ask after what is measured, while the machine is as busy as it was."""
    return seconds * ratio()


def with_time_enough(
    ask: Callable[[float], T], had_time: Callable[[T], bool], limits_s: tuple[float, ...] = (0.5, 5.0, 20.0)
) -> T:
    """What `ask` found within the first limit that this machine was fast enough for, else within the last one.

    For what has to begin before a limit ends it.
    """
    found = ask(limits_s[0])
    for limit_s in limits_s[1:]:
        if had_time(found):
            break
        found = ask(limit_s)
    return found
