"""Measures nodes that reconcile at once: one alone, a thousand together, and those that an outage sends away."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.control_plane.many_nodes import Crowd, Crowded
from tests.support.control_plane.servers import ControlPlane
from tests.support.fakes.storm import Outage, no_numbers, own_numbers, peak, requests_s

NODES = 1_000
LIMIT_S = 1_500.0
UNLIMITED = ("--max-requests-inflight=4000", "--max-mutating-requests-inflight=2000")
"""For an API server on this machine alone. By its default it refuses some of a thousand with 429, who come again."""

CLIENTS = 1_000
OUTAGE = Outage(429, 5.0, retry_after_s=1)


@dataclass(frozen=True)
class Together:
    """Requests of one node alone, of each of many, and how many seconds after its last pod each of those was done."""

    alone: int
    requests: tuple[int, ...]
    reactions_s: tuple[float, ...]
    peak: int
    took_s: float

    @property
    def p99_s(self) -> float:
        """What 99 of 100 nodes stay below."""
        return self.reactions_s[int(0.99 * len(self.reactions_s))]


def measure_crowd(plane: ControlPlane) -> Together:
    """One node, then all of them. SystemExit where one does not end well."""
    alone, many = _reconciled(plane, 1), _reconciled(plane, NODES)
    return Together(
        alone.most_requests(),
        tuple(len(run.requests) for run in many.runs),
        tuple(many.reactions_s()),
        many.peak,
        many.took_s,
    )


def _reconciled(plane: ControlPlane, size: int) -> Crowded:
    with plane.api(plane.admin) as api, Crowd(plane, api, plane.agent_with_events, size) as crowd:
        done = crowd.reconcile(LIMIT_S)
    failed = [run for run in done.runs if run.code or not run.is_unloaded]
    if failed or len(done.runs) != size:
        raise SystemExit(f"{len(failed)} of {size} runs did not end as they have to: {failed[:1]}")
    return done


def measure_storm() -> tuple[int, int]:
    """The most requests in 100 ms when 1,000 clients were all told to come back in a second: with jitter, without."""
    return peak(requests_s(OUTAGE, own_numbers(CLIENTS))), peak(requests_s(OUTAGE, no_numbers(CLIENTS)))
