"""One patch takes a node, one gives it back; neither touches what is somebody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.journal import OldDriver, decode
from driver_manager.domain.model import Module, Node
from driver_manager.domain.steps import TakeNode
from driver_manager.domain.taking import decoded_journal, found_journal, give_back, pausable_keys, release, take
from tests.fakes.builders import (
    DRIVER,
    EXPORTER,
    LABELS,
    ME,
    OLD_DIGEST,
    PAUSED,
    PLUGIN,
    PROFILE,
    SOMEBODY,
    host,
    journal,
    key,
    modules,
    node,
    observation,
    source,
)

JOURNAL, CORDON = PROFILE.keys.journal, PROFILE.keys.cordon
BOTH = frozenset({PLUGIN, EXPORTER})
PAUSED_LABELS = {**LABELS, PLUGIN: PAUSED, EXPORTER: PAUSED}


def taken(*, cordon: bool = True, **fields: object) -> TakeNode:
    step = take(observation(**fields), PROFILE, BOTH, cordon=cordon)
    assert step is not None
    return step


def test_pause_cordon_and_journal_are_one_patch() -> None:
    change = taken().change
    assert change.labels == {PLUGIN: PAUSED, EXPORTER: PAUSED}
    assert set(change.annotations) == {JOURNAL, CORDON}
    assert change.unschedulable is True


def test_the_journal_holds_what_cannot_be_observed_again() -> None:
    step = taken(host=host(previous_source=source("/opt/old", "1.0")))
    assert decode(step.change.annotations[JOURNAL] or "") == step.journal
    assert step.journal == journal(
        owner=ME,
        cordoned=True,
        cordon_manager="driver-manager",
        driver=OldDriver("1.0", "/opt/old", ("rebellions", "rebellions_core"), OLD_DIGEST),
    )


def test_the_drivers_own_label_and_foreign_labels_are_never_pausable() -> None:
    labels = {**LABELS, key("off"): "false", key("empty"): "", key("gold"): "gold"}
    assert pausable_keys(node(labels), PROFILE) == {PLUGIN, EXPORTER, key("gold")}
    assert DRIVER not in pausable_keys(node({DRIVER: "true"}), PROFILE)


def test_a_node_that_is_ours_just_so_is_not_patched_again() -> None:
    first = taken()
    annotations = {name: value for name, value in first.change.annotations.items() if value is not None}
    again = observation(node=node(PAUSED_LABELS, annotations=annotations, unschedulable=True), journal=first.journal)
    assert take(again, PROFILE, BOTH, cordon=True) is None


def test_taking_over_from_a_dead_run_only_changes_the_owner() -> None:
    first = taken()
    annotations = {name: value for name, value in first.change.annotations.items() if value is not None}
    obs = observation(
        me=SOMEBODY, node=node(PAUSED_LABELS, annotations=annotations, unschedulable=True), journal=first.journal
    )
    step = take(obs, PROFILE, BOTH, cordon=True)
    assert step is not None
    assert step.journal == replace(first.journal, owner=SOMEBODY)
    assert set(step.change.annotations) == {JOURNAL}
    assert step.change.labels == {}
    assert step.change.unschedulable is None


def test_a_resumed_run_remembers_the_old_driver_that_is_gone() -> None:
    old = OldDriver("1.0", "/opt/old", ("rebellions",))
    step = taken(host=host(modules={}), journal=journal(driver=old, owner=SOMEBODY))
    assert step.journal.driver == old


def test_a_resumed_run_does_not_take_a_half_proven_new_driver_for_the_old_one() -> None:
    old = OldDriver("1.0", "/opt/old", ("rebellions",))
    half = host(modules=modules("2.0"), digest=None, previous_source=source("/opt/new", "2.0"))
    assert taken(host=half, journal=journal(driver=old)).journal.driver == old


def test_nothing_loaded_is_journaled_as_no_driver() -> None:
    assert taken(host=host(modules={})).journal.driver is None
    left_behind = {"rebellions_core": Module("rebellions_core", "1.0")}
    assert taken(host=host(modules=left_behind)).journal.driver is None


def test_an_administrators_cordon_is_not_taken_for_ours() -> None:
    step = taken(node=node(unschedulable=True))
    assert step.change.unschedulable is None
    assert CORDON not in step.change.annotations
    assert not step.journal.cordoned


def test_a_cordon_that_a_dead_run_marked_is_ours_again() -> None:
    step = taken(node=node(unschedulable=True, annotations={CORDON: "true"}))
    assert step.change.unschedulable is None
    assert step.journal.cordoned


def test_labels_found_paused_are_adopted() -> None:
    labels = {**LABELS, key("client"): f"gold_{PAUSED}"}
    step = take(observation(node=node(labels)), PROFILE, frozenset({PLUGIN}), cordon=False)
    assert step is not None
    assert step.journal.labels == {PLUGIN: "true", key("client"): "gold"}
    assert step.change.labels == {PLUGIN: PAUSED}


# giving back


def given_back(now: Node, **fields: Any) -> tuple[dict[str, str | None], dict[str, str | None], bool | None]:
    change = release(now, replace(journal(cordoned=True), **fields), PROFILE)
    return dict(change.labels), dict(change.annotations), change.unschedulable


OURS = {JOURNAL: "…", CORDON: "true"}


def test_labels_cordon_and_journal_are_given_back_in_one_patch() -> None:
    now = node(PAUSED_LABELS, annotations=OURS, unschedulable=True)
    assert given_back(now) == ({PLUGIN: "true", EXPORTER: "true"}, {JOURNAL: None, CORDON: None}, False)


@pytest.mark.parametrize("now", ["true", "false", "", "silver", f"gold_{PAUSED}"])
def test_a_label_edited_during_the_pause_is_left_alone(now: str) -> None:
    labels, _, _ = given_back(node({**PAUSED_LABELS, PLUGIN: now}, annotations=OURS))
    assert labels == {EXPORTER: "true"}


def test_a_label_deleted_during_the_pause_is_not_made_again() -> None:
    labels, _, _ = given_back(node({EXPORTER: PAUSED}, annotations=OURS))
    assert labels == {EXPORTER: "true"}


def test_a_cordon_lifted_by_hand_stays_lifted_and_its_mark_goes() -> None:
    _, annotations, unschedulable = given_back(node(annotations=OURS))
    assert annotations == {JOURNAL: None, CORDON: None}
    assert unschedulable is None


@pytest.mark.parametrize(("annotations", "cordoned"), [({JOURNAL: "…"}, True), ({JOURNAL: "…"}, False), (OURS, False)])
def test_a_cordon_that_is_not_marked_or_not_journaled_stays(annotations: dict[str, str], cordoned: bool) -> None:
    now = node(PAUSED_LABELS, annotations=annotations, unschedulable=True)
    _, removed, unschedulable = given_back(now, cordoned=cordoned)
    assert unschedulable is None
    assert CORDON not in removed


def test_giving_back_twice_changes_nothing() -> None:
    assert release(node(), journal(cordoned=True), PROFILE).is_empty


# without a journal


def test_paused_labels_and_a_marked_cordon_tell_what_to_give_back() -> None:
    now = node({**LABELS, PLUGIN: PAUSED, key("c"): f"gold_{PAUSED}"}, annotations={CORDON: ""}, unschedulable=True)
    found = decoded_journal(now, PROFILE, ME)
    assert found is not None
    assert found.labels == {PLUGIN: "true", key("c"): "gold"}
    assert found.cordoned
    assert given_back(now, labels=found.labels)[0] == {PLUGIN: "true", key("c"): "gold"}


@pytest.mark.parametrize("now", [node(), node(unschedulable=True), node(annotations={CORDON: "true"})])
def test_a_node_that_nobody_paused_has_nothing_to_give_back(now: Node) -> None:
    assert decoded_journal(now, PROFILE, ME) is None
    assert give_back(None) == ()


def test_the_nodes_own_journal_goes_before_what_the_labels_tell() -> None:
    known = journal(labels={PLUGIN: "gold"})
    assert found_journal(observation(node=node(PAUSED_LABELS), journal=known), PROFILE) == known
