"""A thousand nodes that an API server sends away in one moment do not come back in one moment."""

from __future__ import annotations

import pytest

from driver_manager.adapters.kube import api as kube_retries
from driver_manager.domain.deadline import LAST_S, LEAST_S, around_s, retry_s
from tests.support.fakes.storm import BUDGET_S, Outage, no_numbers, own_numbers, peak, requests_s
from tests.support.selection import examples

OUTAGES = [
    Outage(429, 5.0, retry_after_s=1),
    Outage(429, 5.0),
    Outage(503, 30.0),
    Outage(503, 30.0, retry_after_s=10),
    Outage(503, BUDGET_S * 2),
]
CLIENTS = examples(1_000)
MOST = CLIENTS // 5
"""Of the thousand, in 100 ms."""

FEW = 20


def spread(outage: Outage) -> int:
    """The peak with jitter."""
    return peak(requests_s(outage, own_numbers(CLIENTS)))


@pytest.mark.submission
@pytest.mark.shares(3)
@pytest.mark.parametrize("outage", OUTAGES, ids=str)
def test_those_who_were_refused_together_come_back_one_after_the_other(outage: Outage) -> None:
    assert peak(requests_s(outage, no_numbers(FEW))) == FEW, "without jitter all come in the same moment"
    assert spread(outage) <= MOST


@pytest.mark.parametrize("outage", OUTAGES[:4], ids=str)
def test_all_get_their_answer_soon_after_the_server_is_back(outage: Outage) -> None:
    last_s = max(moments[-1] for moments in requests_s(outage, own_numbers(FEW)))
    assert outage.seconds <= last_s <= outage.seconds + 2 * max(outage.retry_after_s, 2 * LAST_S)


@pytest.mark.submission
def test_a_retry_after_without_jitter_above_it_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kube_retries, "retry_s", lambda attempt, asked_s, random: max(asked_s, retry_s(attempt, 0, random))
    )
    assert spread(OUTAGES[0]) > MOST


@pytest.mark.submission
@pytest.mark.shares(3)
def test_a_last_try_at_the_same_end_of_all_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_retries, "END_SHARE", 0.0)
    assert spread(OUTAGES[-1]) == CLIENTS


@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
def test_the_servers_wish_is_a_floor_and_the_pauses_grow_up_to_a_bound(random: float) -> None:
    grown = [retry_s(attempt, 0.0, random) for attempt in range(1, 200)]
    assert grown == sorted(grown)
    assert grown[0] >= LEAST_S
    assert grown[-1] <= 2 * LAST_S
    assert 7.0 < retry_s(1, 7.0, random) <= 14.0 + LEAST_S


def test_a_pause_around_a_time_is_as_long_on_average() -> None:
    assert (around_s(10.0, 0.0), around_s(10.0, 0.5), around_s(10.0, 1.0)) == (5.0, 10.0, 15.0)
    assert around_s(10.0, 0.0, 0.1) == 9.0
