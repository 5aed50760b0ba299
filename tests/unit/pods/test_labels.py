"""A paused label or switch can always be given back, and no user's edit is taken for a paused label."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.adapters.kube.objects import as_pod
from driver_manager.domain import journal as journals
from driver_manager.domain.errors import ExitCode
from driver_manager.domain.node import MAX_LABEL_VALUE_CHARS
from driver_manager.domain.pods import labels as module
from driver_manager.domain.pods.labels import decoded, is_pausable, is_paused, originals, paused_form, restored
from tests.support.fakes.builders import PROFILE
from tests.support.fakes.scenarios import GATE, OPEN_GATE, SHUT_GATE, replace_with_more_of_the_profile
from tests.support.fakes.world import World

Labels = dict[str, str]
GATES = (GATE, OPEN_GATE, SHUT_GATE)
P = "paused-for-driver-upgrade"
LONGEST = "v" * (MAX_LABEL_VALUE_CHARS - len(P) - 1)
VALUES = st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", fullmatch=True)
LABELS = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), VALUES)


def test_a_value_is_paused_as_the_wire_contract_says() -> None:
    rows = {value: f"{value}_{P}" for value in ("gold", "True", LONGEST)}
    rows |= dict.fromkeys(("true", LONGEST + "v", "v" * MAX_LABEL_VALUE_CHARS), P)
    assert {value: paused_form(value, P) for value in rows} == rows


def test_false_empty_and_absent_are_left_alone() -> None:
    for value in (None, "", "false", "true", "gold", "False", P, f"gold_{P}"):
        is_off = value in (None, "", "false")
        assert is_pausable(value) is not is_off, value
        assert (originals({} if value is None else {"a": value}, {}, frozenset({"a"}), P) == {}) is is_off, value


def test_only_the_forms_that_managers_write_count_as_paused() -> None:
    rows = {P: True, f"gold_{P}": True, **dict.fromkeys((None, "", "true", f"gold{P}", P[:-1]), False)}
    assert {value: is_paused(value, P) for value in rows} == rows


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
@example({"a": "true", "b": "gold", "c": "v" * 60, "d": "false"})
def test_pausing_and_restoring_gives_every_label_back(labels: Labels) -> None:
    assume(not any(is_paused(value, P) for value in labels.values()))
    saved = originals(labels, {}, frozenset(labels), P)
    paused = labels | {key: paused_form(value, P) for key, value in saved.items()}
    assert all(is_paused(paused[key], P) for key in saved)
    assert paused | restored(paused, saved, P) == labels
    assert originals(paused, saved, frozenset(labels), P) == saved, "a run that resumes finds the same again"


@given(LABELS, LABELS)
def test_a_label_changed_or_deleted_during_the_pause_is_left_alone(before: Labels, now: Labels) -> None:
    saved = originals(before, {}, frozenset(before), P)
    changes = restored(now, saved, P)
    assert changes.keys() <= now.keys(), "a key was created"
    for key in changes:
        assert is_paused(now[key], P)
        assert now[key] == paused_form(saved[key], P) or decoded(now[key], P) == saved[key]


@given(LABELS, LABELS, st.sets(st.sampled_from(["a", "b", "c", "d"])))
def test_originals_are_never_made_up_for_absent_keys(labels: Labels, journaled: Labels, keys: set[str]) -> None:
    found = originals(labels, journaled, frozenset(keys), P)
    assert found.keys() <= labels.keys() & keys
    for key, value in found.items():
        assert is_paused(labels[key], P) or value == labels[key], "a label that is not paused speaks for itself"


def test_the_journal_explains_a_paused_value_that_did_not_fit() -> None:
    for label, journaled, original in (
        *((P, "v" * 60, "v" * 60), ("silver", "gold", "silver")),
        (f"silver_{P}", "gold", "silver"),  # a journaled value is not believed where the label says otherwise
        (f"true_{P}", None, "true"),  # as another manager suffixes it
    ):
        saved = originals({"a": label}, {} if journaled is None else {"a": journaled}, frozenset({"a"}), P)
        assert saved == {"a": original}
        assert restored({"a": label}, saved, P) == ({} if label == "silver" else {"a": original})
    for original in ("gold", "true_gold", LONGEST):  # the plain value is no pause of one that fits with its suffix
        assert restored({"a": P}, {"a": original}, P) == {}


# a switch that is on while the Node lacks it is paused by a key that we make, and that goes away again

JOURNAL = PROFILE.keys.journal
SWITCHES = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["", "true", "false", "gold"]))


def at_unload(action: Callable[[World], object]) -> World:
    """A run that ends well; `action` happens in the middle of it."""
    world = replace_with_more_of_the_profile().on("unload rebellions", action)
    world.ended()
    return world


def test_all_three_are_off_during_the_swap_and_the_journal_knows_what_they_were() -> None:
    found: list[tuple[list[str | None], Mapping[str, str | None]]] = []
    at_unload(lambda world: found.append(([world.node.labels.get(key) for key in GATES], world.journal.gates)))
    assert found == [(["false"] * 3, {GATE: None, OPEN_GATE: "yes"})]


@pytest.mark.parametrize("value", [None, "true", "mine", ""])
def test_afterwards_the_one_that_was_absent_is_absent_again_and_the_shut_one_stays_shut(value: str | None) -> None:
    world = at_unload(lambda one: one.cluster.edit({GATE: value}) if value is not None else None)
    assert [world.state().labels.get(key) for key in GATES] == [value, "yes", "false"], "who switches one on wins"


def test_a_failure_before_the_driver_is_touched_gives_them_back() -> None:
    world = replace_with_more_of_the_profile().given(device_free_timeout_s=1.0, stuck_users={"rebellions": 1})
    world.ended(ExitCode.DRIVER_BUSY)
    assert [world.state().labels.get(key) for key in GATES] == [None, "yes", "false"]


@given(SWITCHES, SWITCHES)
def test_what_is_switched_off_comes_back_as_it_was_and_nothing_else_changes(labels: Labels, journaled: Labels) -> None:
    saved = module.gate_originals(labels, journaled, frozenset("abc"))
    off = {**labels, **dict.fromkeys(saved, "false")}
    changes = {**off, **module.gates_restored(off, saved)}
    back = {key: value for key, value in changes.items() if value is not None}
    known = {key: value for key, value in journaled.items() if labels.get(key) == "false"}
    assert back == labels | known


def test_a_pod_is_placed_by_a_switch_that_must_not_say_false_and_by_no_other_denial() -> None:
    rows = ("a NotIn false", "b NotIn true", "c DoesNotExist", "d In true")
    split = (row.split() for row in rows)
    terms = [{"key": key, "operator": operator, "values": values} for key, operator, *values in split]
    required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    body = {"metadata": {"name": "n", "namespace": "s", "uid": "u"}, "spec": {"affinity": affinity}}
    assert as_pod(body).selector_keys == {"a", "d"}


def test_an_older_manager_refuses_a_journal_with_gates_and_reads_any_other() -> None:
    plain = journals.Journal(journals.Owner(), "boot")
    assert '"v":1' in journals.encode(plain)
    assert '"v":2' in journals.encode(replace(plain, gates={GATE: None}))
    wrong = '{"v":2,"bootId":"","owner":{"pod":"p","uid":"u"},"labels":{},"cordoned":false,"gates":{"a":7}}'
    with pytest.raises(journals.JournalUnreadable, match="gates"):
        journals.decode(wrong)
