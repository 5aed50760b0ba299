"""A bound on measured time follows the machine's pace, and is never shorter than written."""

from __future__ import annotations

import pytest

from tests.support.fakes import pace


@pytest.mark.parametrize(("starts", "ratio"), [((0.1, 0.5, 0.9), 1.0), ((1.0, 5.0, 2.0), 5.0)])
def test_the_slowest_start_tells_the_pace(
    monkeypatch: pytest.MonkeyPatch, starts: tuple[float, ...], ratio: float
) -> None:
    left = iter(starts)
    monkeypatch.setattr(pace, "floor_s", lambda: next(left) * pace.NOMINAL_S)
    assert pace.patient(2.0) == pytest.approx(2.0 * ratio)
