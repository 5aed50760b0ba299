"""One patch takes a node, one gives it back; neither touches what is somebody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from driver_manager.domain.host import Module
from driver_manager.domain.journal import Journal, OldDriver, decode
from driver_manager.domain.node import FIELD_MANAGER, Node
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


def test_the_driver_of_another_boot_is_not_the_one_to_go_back_to() -> None:
    old = OldDriver("1.0", "/opt/old", ("rebellions",))
    loaded = host(modules=modules("1.5"), previous_source=source("/opt/found", "1.5"))
    step = taken(host=loaded, journal=journal(driver=old, boot_id="boot-0"))
    assert step.journal.driver is not None
    assert (step.journal.driver.version, step.journal.driver.root) == ("1.5", "/opt/found")


def test_nothing_loaded_is_journaled_as_no_driver() -> None:
    assert taken(host=host(modules={})).journal.driver is None
    left_behind = {"rebellions_core": Module("rebellions_core", "1.0")}
    assert taken(host=host(modules=left_behind)).journal.driver is None


def test_an_administrators_cordon_is_not_taken_for_ours() -> None:
    step = taken(node=node(unschedulable=True))
    assert step.change.unschedulable is None
    assert CORDON not in step.change.annotations
    assert not step.journal.cordoned


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


# whose cordon it is

MARKED = {CORDON: "true"}


def cordoned_by(manager: str, **annotations: str) -> Node:
    return node(PAUSED_LABELS, annotations={**OURS, **annotations}, unschedulable=True, cordon_manager=manager)


@pytest.mark.parametrize(
    ("journaled", "on_record", "lifted"),
    [
        (FIELD_MANAGER, FIELD_MANAGER, True),
        (FIELD_MANAGER, "kubectl-cordon", False),
        (FIELD_MANAGER, "", True),
        ("", "kubectl-cordon", False),
        ("", "another-manager", True),
        ("kubectl-edit", "kubectl-edit", False),
        ("", "", True),
        ("another-manager", "another-manager", True),
        ("another-manager", "kubectl-cordon", False),
        ("another-manager", FIELD_MANAGER, False),
    ],
)
def test_a_cordon_that_somebody_set_anew_meanwhile_is_theirs_where_the_server_tells(
    journaled: str, on_record: str, lifted: bool
) -> None:
    _, annotations, unschedulable = given_back(cordoned_by(on_record), cordon_manager=journaled)
    assert unschedulable is (False if lifted else None)
    assert annotations == {JOURNAL: None, CORDON: None}, "the mark goes either way: the cordon is no manager's any more"


@pytest.mark.parametrize("by", sorted(node_patches.BY_HAND))
def test_a_cordon_that_a_person_set_is_not_adopted_whatever_the_mark_says(by: str) -> None:
    marked = node(unschedulable=True, annotations=MARKED, cordon_manager=by)
    assert not taken(node=marked).journal.cordoned
    assert node_patches.decoded_journal(marked, PROFILE, SOMEBODY) is None


def test_an_adopted_cordon_is_on_record_for_whoever_set_it() -> None:
    adopted = taken(node=node(unschedulable=True, annotations=MARKED, cordon_manager="another-manager")).journal
    assert (adopted.cordoned, adopted.cordon_manager) == (True, "another-manager")
    assert release(cordoned_by("another-manager"), adopted, PROFILE).unschedulable is False
    assert release(cordoned_by("kubectl-cordon"), adopted, PROFILE).unschedulable is None


def test_a_resumed_run_goes_by_the_first_ones_record_so_that_a_cordon_set_in_between_stays() -> None:
    first = taken().journal
    assert first.cordon_manager == FIELD_MANAGER
    between = node(PAUSED_LABELS, annotations=MARKED, unschedulable=True, cordon_manager="another-manager")
    resumed = taken(node=between, journal=first, me=SOMEBODY).journal
    assert resumed.cordon_manager == FIELD_MANAGER
    assert release(cordoned_by("another-manager"), resumed, PROFILE).unschedulable is None
    by_hand = taken(node=replace(between, cordon_manager="kubectl-cordon"), journal=first, me=SOMEBODY).journal
    assert release(cordoned_by("kubectl-cordon"), by_hand, PROFILE).unschedulable is None


def test_a_journal_of_a_run_that_cordoned_nothing_has_no_manager() -> None:
    assert taken(node=node(unschedulable=True, cordon_manager="kubectl-cordon")).journal.cordon_manager == ""
    assert taken(cordon=False, node=node(cordon_manager="x")).journal.cordon_manager == ""


def test_the_mark_of_a_cordon_that_was_lifted_does_not_make_the_next_one_ours() -> None:
    step = taken(cordon=False, node=node(annotations=MARKED))
    assert step.change.annotations[CORDON] is None
    assert step.change.unschedulable is None
    assert not step.journal.cordoned
    assert release(cordoned_by("kubectl-cordon"), step.journal, PROFILE).unschedulable is None
    unmarked = node(PAUSED_LABELS, annotations={JOURNAL: "…"}, unschedulable=True, cordon_manager="")
    assert release(unmarked, step.journal, PROFILE).unschedulable is None


def test_a_cordon_of_ours_that_was_lifted_by_hand_is_set_again_where_it_is_needed() -> None:
    step = taken(node=node(annotations=MARKED), journal=journal(cordoned=True, cordon_manager="another-manager"))
    assert step.change.unschedulable is True
    assert step.journal.cordon_manager == FIELD_MANAGER


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


# mutants


def always_ours(obs: Any, *, sets_cordon: bool) -> str:
    return ""


def the_node_says(obs: Any, *, sets_cordon: bool) -> str:
    manager: str = FIELD_MANAGER if sets_cordon else obs.node.cordon_manager
    return manager


def the_mark_alone(now: Node, _: object) -> bool:
    return CORDON in now.annotations


@pytest.mark.parametrize(
    ("name", "mutant", "check"),
    [
        ("_cordon_manager", always_ours, test_an_adopted_cordon_is_on_record_for_whoever_set_it),
        (
            "_cordon_manager",
            the_node_says,
            test_a_resumed_run_goes_by_the_first_ones_record_so_that_a_cordon_set_in_between_stays,
        ),
        (
            "has_managers_cordon",
            the_mark_alone,
            test_the_mark_of_a_cordon_that_was_lifted_does_not_make_the_next_one_ours,
        ),
    ],
)
def test_a_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, mutant: object, check: Any) -> None:
    check()
    monkeypatch.setattr(node_patches, name, mutant)
    with pytest.raises(AssertionError):
        check()


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


@pytest.mark.parametrize("there", [journal(labels={PLUGIN: "true"}), None], ids=["journal", "none"])
def test_a_label_that_somebody_paused_on_a_taken_node_is_not_adopted(there: Journal | None) -> None:
    """Without a journal it is what a dead manager left."""
    labels = {**LABELS, PLUGIN: PAUSED, EXPORTER: "true", key("off"): PAUSED}
    step = taken(node=node(labels), journal=there)
    assert (key("off") in step.journal.labels) is (there is None)
    assert step.journal.labels[PLUGIN] == "true"
    assert set(step.change.labels) == {EXPORTER}
    given_back = release(node({**labels, EXPORTER: PAUSED}), step.journal, PROFILE)
    assert (key("off") in given_back.labels) is (there is None)
