"""How long to pause before something is asked again, so that a thousand nodes do not ask in the same moment. Pure.

Whoever pauses brings the random number, at least 0 and below 1. What sends many nodes away at once (a server that goes,
a refusal with Retry-After) must not bring them back at once, so no pause here is without a share of it.
"""

from __future__ import annotations

FIRST_WINDOW_S = 1.0
"""Wide enough for a thousand nodes: a hundred of them in each tenth of it."""

LEAST_S = 0.1
LAST_S = 2.5
"""The window and what comes before it double up to this, each: at most 5 s from one try to the next."""

MOST_DOUBLINGS = 16


def retry_s(attempt: int, asked_s: float, random: float) -> float:
    """Seconds before the next try after the `attempt`th (from 1), of which the server asked for `asked_s`.

    Never less than that; above it a pause and a random share of a window, both of which double with each attempt. The
    window is as wide as `asked_s` at least: those who were told the same come back one after the other.
    """
    doubled = 2.0 ** min(attempt - 1, MOST_DOUBLINGS)
    window_s = max(asked_s, min(LAST_S, FIRST_WINDOW_S * doubled))
    return min(LAST_S, LEAST_S * doubled) + asked_s + random * window_s


def around_s(seconds: float, random: float, share: float = 0.5) -> float:
    """`seconds`, more or less by up to `share` of it."""
    return seconds * (1.0 + share * (2.0 * random - 1.0))
