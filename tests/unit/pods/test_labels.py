"""A paused label can always be given back, and nobody's edit is taken for a paused label."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from driver_manager.domain.pods.labels import (
    MAX_LABEL_VALUE_CHARS,
    decoded,
    is_pausable,
    is_paused,
    originals,
    paused_form,
    restored,
)

P = "paused-for-driver-upgrade"
LONGEST = "v" * (MAX_LABEL_VALUE_CHARS - len(P) - 1)
VALUES = st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", fullmatch=True)
LABELS = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), VALUES)


@pytest.mark.parametrize(
    ("value", "paused"),
    [
        ("true", P),
        ("gold", f"gold_{P}"),
        ("True", f"True_{P}"),
        (LONGEST, f"{LONGEST}_{P}"),
        (LONGEST + "v", P),
        ("v" * MAX_LABEL_VALUE_CHARS, P),
    ],
)
def test_a_value_is_paused_as_the_wire_contract_says(value: str, paused: str) -> None:
    assert paused_form(value, P) == paused


@pytest.mark.parametrize("value", [None, "", "false"])
def test_false_empty_and_absent_are_left_alone(value: str | None) -> None:
    assert not is_pausable(value)
    assert originals({} if value is None else {"a": value}, {}, frozenset({"a"}), P) == {}


@pytest.mark.parametrize("value", ["true", "gold", "False", P, f"gold_{P}"])
def test_everything_else_switches_an_operand_on(value: str) -> None:
    assert is_pausable(value)


@pytest.mark.parametrize(
    ("value", "answer"),
    [(P, True), (f"gold_{P}", True), (None, False), ("", False), ("true", False), (f"gold{P}", False), (P[:-1], False)],
)
def test_only_the_forms_that_managers_write_count_as_paused(value: str | None, answer: bool) -> None:
    assert is_paused(value, P) is answer


@given(VALUES)
@example(LONGEST)
@example(f"{LONGEST}x")
def test_every_paused_form_is_a_label_value_and_is_recognised(value: str) -> None:
    assume(is_pausable(value))
    paused = paused_form(value, P)
    assert len(paused) <= MAX_LABEL_VALUE_CHARS
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?", paused)
    assert is_paused(paused, P)


@given(VALUES)
def test_a_value_that_fits_is_decoded_from_its_paused_form_alone(value: str) -> None:
    assume(is_pausable(value) and not is_paused(value, P) and len(value) <= len(LONGEST))
    assert decoded(paused_form(value, P), P) == value


@given(LABELS)
def test_pausing_and_restoring_gives_every_label_back(labels: dict[str, str]) -> None:
    assume(not any(is_paused(value, P) for value in labels.values()))
    saved = originals(labels, {}, frozenset(labels), P)
    paused = labels | {key: paused_form(value, P) for key, value in saved.items()}
    assert all(is_paused(paused[key], P) for key in saved)
    assert paused | restored(paused, saved, P) == labels


@given(LABELS, LABELS)
def test_a_label_changed_or_deleted_during_the_pause_is_left_alone(before: dict[str, str], now: dict[str, str]) -> None:
    saved = originals(before, {}, frozenset(before), P)
    changes = restored(now, saved, P)
    assert changes.keys() <= now.keys(), "a key was created"
    for key in changes:
        assert is_paused(now[key], P)
        assert now[key] == paused_form(saved[key], P) or decoded(now[key], P) == saved[key]


@given(LABELS, LABELS, st.sets(st.sampled_from(["a", "b", "c", "d"])))
def test_originals_are_never_made_up_for_absent_keys(
    labels: dict[str, str], journaled: dict[str, str], keys: set[str]
) -> None:
    found = originals(labels, journaled, frozenset(keys), P)
    assert found.keys() <= labels.keys() & keys
    for key, value in found.items():
        assert is_paused(labels[key], P) or value == labels[key], "a label that is not paused speaks for itself"


def test_the_journal_explains_a_paused_value_that_did_not_fit() -> None:
    long = "v" * 60
    assert originals({"a": P}, {"a": long}, frozenset({"a"}), P) == {"a": long}


def test_a_journaled_value_is_not_believed_where_the_label_says_otherwise() -> None:
    assert originals({"a": f"silver_{P}"}, {"a": "gold"}, frozenset({"a"}), P) == {"a": "silver"}
    assert originals({"a": "silver"}, {"a": "gold"}, frozenset({"a"}), P) == {"a": "silver"}


def test_resuming_finds_the_same_originals_again() -> None:
    labels = {"a": "true", "b": "gold", "c": "v" * 60, "d": "false"}
    first = originals(labels, {}, frozenset(labels), P)
    paused = labels | {key: paused_form(value, P) for key, value in first.items()}
    assert originals(paused, first, frozenset(labels), P) == first


@pytest.mark.parametrize("original", ["gold", "true_gold", LONGEST])
def test_the_plain_paused_value_is_no_pause_of_a_value_that_fits_with_its_suffix(original: str) -> None:
    assert restored({"a": P}, {"a": original}, P) == {}


def test_a_true_that_another_manager_suffixed_is_restored_from_its_own_value() -> None:
    labels = {"a": f"true_{P}"}
    saved = originals(labels, {}, frozenset(labels), P)
    assert restored(labels, saved, P) == {"a": "true"}
