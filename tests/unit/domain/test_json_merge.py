"""The smallest merge patch: it changes what differs, removes what is to go, and says null of nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.json_merge import merge_patch
from driver_manager.sandbox import patches

LEAF = st.none() | st.booleans() | st.integers(0, 2) | st.lists(st.integers(0, 2), max_size=2)
VALUE = st.recursive(LEAF, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)
OBJECT = st.dictionaries(st.sampled_from("abc"), VALUE, max_size=3)


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {"a": None, "b": {"c": None, "d": 1}}, {"b": {"d": 1}}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": {"b": 1}}, {"a": {"b": None}}, {"a": {"b": None}}),
        ({"a": 1, "x": 2}, {"a": 1}, {}),
        ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}),
        ({"a": 1}, {"a": {"b": None}}, {"a": {}}),
        ({"a": {}}, {"a": {"b": None}}, {}),
    ],
)
def test_a_patch(old: Any, new: Any, patch: Any) -> None:
    assert merge_patch(old, new) == patch


def without_nulls(value: Any) -> Any:
    """What is stored of it."""
    if not isinstance(value, dict):
        return value
    return {key: without_nulls(one) for key, one in value.items() if one is not None}


@given(OBJECT, OBJECT)
def test_it_comes_to_the_same_as_sending_all(old: dict[str, Any], new: dict[str, Any]) -> None:
    stored = without_nulls(old)
    small = merge_patch(stored, new)
    assert patches.merge_patch(stored, small) == without_nulls(patches.merge_patch(stored, new))
    assert merge_patch(patches.merge_patch(stored, small), new) == {}, "the second time there is nothing to send"


@given(OBJECT)
def test_what_is_not_there_is_not_removed(new: dict[str, Any]) -> None:
    assert merge_patch({}, new) == without_nulls(new)
