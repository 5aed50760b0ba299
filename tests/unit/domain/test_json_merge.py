"""The smallest merge patch: it changes what differs, removes what is to go, and says null of nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.wire import merge_patch, without_blanks
from driver_manager.sandbox.apiserver import apply_merge_patch

LEAF = st.booleans() | st.integers(0, 2) | st.lists(st.integers(0, 2), max_size=2) | st.sampled_from(["", "x"])
VALUE = st.recursive(LEAF, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)
OBJECT = st.dictionaries(st.sampled_from("abc"), VALUE, max_size=3)


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {"b": {"d": 1}}, {"b": {"d": 1}}),
        ({"a": 1, "b": 2}, {"b": 2}, {"a": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": None, "c": 3}}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": [1]}, {"a": [1, 2]}, {"a": [1, 2]}),
        ({"a": 1}, {"a": {"b": {}}}, {"a": {"b": {}}}),
    ],
)
def test_a_patch(old: Any, new: Any, patch: Any) -> None:
    assert merge_patch(old, new) == patch


@given(OBJECT, OBJECT)
def test_it_makes_the_one_of_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply_merge_patch(old, merge_patch(old, new)) == new
    assert merge_patch(new, new) == {}


@given(OBJECT)
def test_what_is_not_there_is_not_removed(new: dict[str, Any]) -> None:
    assert merge_patch({}, new) == new


def test_blanks_are_left_out_wherever_they_are() -> None:
    body = {"a": "", "b": None, "c": [{"d": "", "e": 0}], "f": {"g": ""}, "h": False, "i": []}
    assert without_blanks(body) == {"c": [{"e": 0}], "f": {}, "h": False, "i": []}
