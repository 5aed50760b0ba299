"""A bound on measured time follows the machine's pace, and is never shorter than written."""

from __future__ import annotations

import pytest

from tests.fakes import pace


@pytest.mark.parametrize(("starts_s", "ratio"), [((0.01, 0.02, 0.03), 1.0), ((0.12, 0.6, 0.24), 5.0)])
def test_the_slowest_start_tells_the_pace(
    monkeypatch: pytest.MonkeyPatch, starts_s: tuple[float, ...], ratio: float
) -> None:
    starts = iter(starts_s)
    monkeypatch.setattr(pace, "_start_s", lambda: next(starts))
    assert pace.patient(2.0) == pytest.approx(2.0 * ratio)


def test_the_start_of_an_interpreter_is_really_measured() -> None:
    assert pace._start_s() > 0
