"""What others write is a number where it is one, as a resourceVersion is; any other text is none, and no crash."""

from __future__ import annotations

import pytest

from driver_manager.domain.wire import decimal


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7", 7),
        ("007", 7),
        (str(2**64 - 1), 2**64 - 1),
        ("", None),
        ("-1", None),
        ("1_0", None),
        ("\u00b2", None),
        ("\u0663", None),
        ("9" * 21, None),
        ("9" * 5_000, None),
    ],
)
def test_a_text_is_a_number_of_64_bits_or_none(text: str, found: int | None) -> None:
    assert decimal(text) == found
