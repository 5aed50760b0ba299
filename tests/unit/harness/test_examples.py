"""A run that leaves the long tests out tries a fifth of the examples, and no other run does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import examples


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("", {1: 1, 25: 25, 60: 60, 500: 500}),
        ("not cluster and not node", {1: 1, 25: 25, 60: 60, 500: 500}),
        ("long", {1: 1, 25: 25, 60: 60, 500: 500}),
        ("not long", {1: 1, 25: examples.FEWEST, 60: 12, 500: 100}),
        ("(not long and not image) and not kernel", {1: 1, 25: examples.FEWEST, 60: 12, 500: 100}),
    ],
)
def test_how_many_there_are(expression: str, wanted: dict[int, int], request: pytest.FixtureRequest) -> None:
    examples.configure(SimpleNamespace(option=SimpleNamespace(markexpr=expression)))  # type: ignore[arg-type]  # all it reads
    try:
        assert {count: examples.examples(count) for count in wanted} == wanted
    finally:
        examples.configure(request.config)


def test_this_run_tries_as_many_as_it_says(request: pytest.FixtureRequest) -> None:
    tried = 0

    @settings(max_examples=examples.examples(100), database=None)
    @given(st.integers())
    def holds(_: int) -> None:
        nonlocal tried
        tried += 1

    holds()
    assert tried == (20 if "not long" in request.config.option.markexpr else 100)
