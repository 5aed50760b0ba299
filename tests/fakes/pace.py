"""How slow this machine is just now, for promises whose real time is measured: an idle one would keep them as written.

The measure is the floor that the figures of scripts/bench have beside them.
"""

from __future__ import annotations

from tests.bench.floor import floor_s

NOMINAL_S = 0.14
"""The processor time of one such start (0.12 to 0.15 s on a machine with two cores): all that an idle one takes."""

ROUNDS = 3


def ratio() -> float:
    """How many times slower than an idle machine, at least 1: the slowest of three starts, measured now."""
    return max(1.0, *(floor_s() / NOMINAL_S for _ in range(ROUNDS)))


def patient(seconds: float) -> float:
    """`seconds` of an idle machine on this one. Ask after what is measured, while the machine is as busy as it was."""
    return seconds * ratio()
