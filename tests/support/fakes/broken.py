"""Owns how tests show that they can fail: with something broken one of them fails, which else passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

Case = Callable[[], object]
"""One test, or one case of a sweep, which raises AssertionError where it fails."""


def check_caught(
    cases: Sequence[Case],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    mutant: object,
    *at: object,
    also: tuple[type[BaseException], ...] = (),
) -> None:
    """One of `cases` fails while the attribute `name` of what is in `at` is `mutant`, and passes afterwards.

    `also`: what else they fail with. That all of them pass where nothing is broken is what their own test says.
    """
    with monkeypatch.context() as broken:
        for target in at:
            broken.setattr(target, name, mutant)
        noticed = next((case for case in cases if _fails(case, (AssertionError, *also))), None)
    assert noticed is not None, f"none of {len(cases)} cases notices"
    noticed()


def _fails(case: Case, failures: tuple[type[BaseException], ...]) -> bool:
    try:
        case()
    except failures:
        return True
    return False
