"""Owns how a sweep shows that it can fail: with something broken one of its cases fails, which else passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

Case = Callable[[], object]
"""One case of a sweep, which raises AssertionError where it fails."""


def check_caught(
    cases: Sequence[Case], monkeypatch: pytest.MonkeyPatch, name: str, mutant: object, *at: object
) -> None:
    """One of `cases` fails while the attribute `name` of what is in `at` is `mutant`, and passes afterwards.

    That all of them pass where nothing is broken is what the sweep's own test says.
    """
    with monkeypatch.context() as broken:
        for target in at:
            broken.setattr(target, name, mutant)
        noticed = next(filter(_fails, cases), None)
    assert noticed is not None, f"none of {len(cases)} cases notices"
    noticed()


def _fails(case: Case) -> bool:
    try:
        case()
    except AssertionError:
        return True
    return False
