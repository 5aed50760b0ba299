"""One patch takes a node, one gives it back; neither touches what is somebody else's."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.domain.journal import Journal, OldDriver, decode
from driver_manager.domain.node import Node
from driver_manager.domain.reboot.decision import CORDON_FOR_REBOOT
from driver_manager.domain.swap import node_patches
from driver_manager.domain.swap.node_patches import (
    decoded_journal,
    found_journal,
    give_back,
    pausable_keys,
    pause_more,
    release,
    take,
)
from driver_manager.domain.swap.steps import TakeNode
from tests.support.fakes.builders import (
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


def test_the_journal_holds_what_cannot_be_observed_again() -> None:
    step = taken(host=host(previous_source=source("/opt/old", "1.0")))
    written = decode(step.change.annotations[JOURNAL] or "").claims
    assert written == replace(step.journal, driver=OldDriver("1.0"))
    assert step.journal == journal(
        owner=ME,
        cordoned=True,
        node_uid="uid-1",
        cordon_manager="driver-manager",
        driver=OldDriver("1.0", "/opt/old", ("rebellions", "rebellions_core"), OLD_DIGEST),
        record=ME.process,
    )


def test_the_drivers_own_label_and_foreign_labels_are_never_pausable() -> None:
    labels = {**LABELS, key("off"): "false", key("empty"): "", key("gold"): "gold"}
    by_hand = observation(node=node(labels), own_pod=None)  # a run's own pod would spare the label as well
    assert pausable_keys(by_hand, PROFILE) == {PLUGIN, EXPORTER, key("gold")}
    assert pausable_keys(observation(node=node({DRIVER: "true"}), own_pod=None), PROFILE) == frozenset()


def test_the_rebooters_cordon_is_not_taken_for_ours_and_stays() -> None:
    now = node(unschedulable=True, annotations={CORDON: CORDON_FOR_REBOOT})
    assert decoded_journal(now, PROFILE, ME) is None
    step = taken(node=now)
    assert not step.journal.cordoned
    assert step.change.unschedulable is None
    assert CORDON not in step.change.annotations
    paused = node(PAUSED_LABELS, unschedulable=True, annotations={CORDON: CORDON_FOR_REBOOT})
    for found in (decoded_journal(paused, PROFILE, ME), journal(cordoned=True)):
        assert found is not None
        change = release(paused, found, PROFILE)
        assert change.labels.keys() == {PLUGIN, EXPORTER}, "what is ours is given back all the same"
        assert change.unschedulable is None
        assert CORDON not in change.annotations


# giving back


def given_back(now: Node, **fields: Any) -> tuple[dict[str, str | None], dict[str, str | None], bool | None]:
    change = release(now, replace(journal(cordoned=True), **fields), PROFILE)
    return dict(change.labels), dict(change.annotations), change.unschedulable


# whose cordon it is

MARKED = {CORDON: "true"}


@pytest.mark.parametrize("by", sorted(node_patches.BY_HAND))
def test_a_cordon_that_a_person_set_is_not_adopted_whatever_the_mark_says(by: str) -> None:
    marked = node(unschedulable=True, annotations=MARKED, cordon_manager=by)
    assert not taken(node=marked).journal.cordoned
    assert node_patches.decoded_journal(marked, PROFILE, SOMEBODY) is None


# pausing more, later

LAST = key("dra-kubelet-plugin")
HELD = journal(labels={PLUGIN: "true"})


def more(value: str | None, known: Journal = HELD) -> tuple[Journal, dict[str, str | None], dict[str, str | None]]:
    labels = {**LABELS, PLUGIN: PAUSED, **({} if value is None else {LAST: value})}
    longer, change = pause_more(node(labels), known, PROFILE, {LAST})
    assert change.unschedulable is None
    return longer, dict(change.labels), dict(change.annotations)


@pytest.mark.parametrize(("value", "paused"), [("true", PAUSED), ("gold", f"gold_{PAUSED}"), ("x" * 60, PAUSED)])
def test_what_leaves_last_is_paused_and_journaled_in_one_patch(value: str, paused: str) -> None:
    longer, labels, annotations = more(value)
    assert labels == {LAST: paused}
    assert longer == replace(HELD, labels={PLUGIN: "true", LAST: value})
    assert {name: decode(text or "").claims for name, text in annotations.items()} == {JOURNAL: longer}
    now = node({**LABELS, PLUGIN: PAUSED, LAST: paused}, annotations={JOURNAL: "…"})
    assert dict(release(now, longer, PROFILE).labels) == {PLUGIN: "true", LAST: value}


@pytest.mark.parametrize("value", [None, "", "false"])
def test_what_was_switched_off_meanwhile_is_not_paused(value: str | None) -> None:
    assert more(value) == (HELD, {}, {})


def test_what_somebody_paused_meanwhile_is_adopted_without_a_patch() -> None:
    longer, labels, annotations = more(f"gold_{PAUSED}")
    assert (labels, annotations) == ({}, {})
    assert longer.labels == {PLUGIN: "true", LAST: "gold"}


def test_an_edit_after_the_first_patch_is_what_is_restored() -> None:
    longer, labels, _ = more("silver", replace(HELD, labels={LAST: "gold"}))
    assert labels == {LAST: f"silver_{PAUSED}"}
    assert longer.labels == {LAST: "silver"}


def test_pausing_more_twice_changes_nothing_the_second_time() -> None:
    longer, labels, _ = more("gold")
    again, change = pause_more(node({**LABELS, LAST: labels[LAST] or ""}), longer, PROFILE, {LAST})
    assert (again, change.is_empty) == (longer, True)


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
