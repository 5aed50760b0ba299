"""Versions are compared as numbers where they are some; any other text is none, and no crash."""

from __future__ import annotations

import pytest

from driver_manager.domain.resource_versions import number


@pytest.mark.parametrize(
    ("version", "found"),
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
def test_a_version_is_a_number_of_64_bits_or_none(version: str, found: int | None) -> None:
    assert number(version) == found
