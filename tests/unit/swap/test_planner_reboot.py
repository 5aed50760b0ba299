"""Strategy `reboot`: the driver is never unloaded; one reboot is asked for, and the request is cleared after it."""

from __future__ import annotations

import pytest

from driver_manager.domain import host_record
from driver_manager.domain.host import Marker
from driver_manager.domain.observation import Loader, Policy, Situation
from driver_manager.domain.reboot.decision import REBOOT_STATE
from driver_manager.domain.swap.planner import plan
from driver_manager.domain.swap.steps import (
    ClearRebootRequest,
    Decision,
    GiveBack,
    HoldForReboot,
    LoadModules,
    RecordDigest,
    RequestReboot,
    TakeNode,
)
from tests.support.fakes.builders import ASCEND, NEW_DIGEST, OLD_DIGEST, host, journal, node, observation, source
from tests.support.fakes.plans import ASCEND_LOADED, CONTAINER, MANAGER, one


def test_a_driver_of_strategy_reboot_is_never_unloaded_but_a_reboot_requested() -> None:
    found = plan(Situation.of(observation(host=host(**ASCEND_LOADED)), ASCEND, Policy(no_wait=True)))
    assert found.decision is Decision.REBOOT
    assert [type(step) for step in found.steps] == [RequestReboot, HoldForReboot]
    request = one(found, RequestReboot)
    assert request.path == ASCEND.paths.reboot_marker
    assert (request.marker.reason, request.marker.boot_id) == ("upgrade", "boot-1")
    assert (request.marker.from_driver, request.marker.to_driver) == (OLD_DIGEST, NEW_DIGEST)
    assert request.change.labels[ASCEND.keys.reboot_required] == "true"
    assert one(found, HoldForReboot).no_wait


def test_a_current_driver_of_strategy_reboot_clears_only_a_stale_request() -> None:
    labels = {ASCEND.keys.reboot_required: "true"}
    for marker, expected in (
        (None, []),
        (Marker("upgrade", "boot-1"), []),
        (Marker("upgrade", "boot-0"), [ClearRebootRequest]),
    ):
        obs = observation(host=host(**ASCEND_LOADED, digest=NEW_DIGEST, marker=marker), node=node(labels))
        found = plan(Situation.of(obs, ASCEND, CONTAINER))
        assert [type(step) for step in found.steps] == expected
    assert one(found, ClearRebootRequest).change.labels == {ASCEND.keys.reboot_required: None}


def test_a_fresh_boot_loads_a_driver_of_strategy_reboot() -> None:
    obs = observation(host=host(modules={}, digest=None, source=source(), marker=Marker("upgrade", "boot-0")))
    found = plan(Situation.of(obs, ASCEND, MANAGER))
    assert [type(step) for step in found.steps] == [
        TakeNode,
        ClearRebootRequest,
        LoadModules,
        RecordDigest,
        GiveBack,
    ]
    taken = one(found, TakeNode)
    assert (taken.journal.labels, taken.journal.cordoned, taken.change.unschedulable) == ({}, False, None)


@pytest.mark.parametrize("policy", [CONTAINER, MANAGER])
@pytest.mark.parametrize("digest", [None, NEW_DIGEST, OLD_DIGEST])
@pytest.mark.parametrize("boot_id", ["boot-0", "boot-1"])
def test_a_node_that_a_dead_run_left_taken_is_given_back_before_a_reboot_is_waited_for(
    policy: Policy, digest: str | None, boot_id: str
) -> None:
    left = journal(boot_id=boot_id, record="boot-1:1:9:9")
    record = host_record.of(left) if boot_id == "boot-1" else None  # a boot takes it away
    facts = host(**ASCEND_LOADED, digest=digest, source=source(), run_record=record)
    found = plan(Situation.of(observation(host=facts, journal=left), ASCEND, policy))
    kinds = [type(step) for step in found.steps]
    if policy is MANAGER and digest is None and boot_id == "boot-1":
        assert found.decision is Decision.NOT_LOADED
        assert "interrupted" in found.reason
        assert kinds == [TakeNode, LoadModules, RecordDigest, GiveBack]
        assert one(found, LoadModules).previous is None, "nothing may be unloaded for a way back"
    elif digest == NEW_DIGEST:
        assert kinds == [GiveBack]
    else:
        assert kinds == [RequestReboot, GiveBack, HoldForReboot]


def test_a_driver_of_unknown_origin_is_half_loaded_by_no_journal_alone() -> None:
    facts = host(**ASCEND_LOADED, digest=None, source=source())
    found = plan(Situation.of(observation(host=facts, journal=journal()), ASCEND, MANAGER))
    assert [type(step) for step in found.steps] == [RequestReboot, GiveBack, HoldForReboot]


def test_where_a_container_loads_nothing_is_taken_for_it() -> None:
    found = plan(Situation.of(observation(host=host(modules={}, digest=None)), ASCEND, CONTAINER))
    assert found.steps == ()


STATE_KEY, LABEL = ASCEND.keys.upgrade_state, ASCEND.keys.reboot_required
ASKED = {LABEL: "true", STATE_KEY: REBOOT_STATE, ASCEND.keys.state: "reboot-required"}


def test_a_request_sets_all_its_labels_once() -> None:
    fresh = plan(Situation.of(observation(host=host(**ASCEND_LOADED)), ASCEND, CONTAINER))
    assert one(fresh, RequestReboot).change.labels == ASKED
    again = plan(Situation.of(observation(host=host(**ASCEND_LOADED), node=node(ASKED)), ASCEND, CONTAINER))
    assert one(again, RequestReboot).change.is_empty


@pytest.mark.parametrize("marker", [Marker("recovery", "boot-1"), Marker("upgrade", "")])
def test_a_marker_that_may_be_of_this_boot_is_kept_as_it_is(marker: Marker) -> None:
    found = plan(Situation.of(observation(host=host(**ASCEND_LOADED, marker=marker)), ASCEND, CONTAINER))
    assert [type(step) for step in found.steps] == [RequestReboot, HoldForReboot]
    assert one(found, RequestReboot).path == ""
    assert "marker" not in one(found, RequestReboot).describe()


def test_a_marker_of_another_boot_is_written_anew() -> None:
    found = plan(
        Situation.of(observation(host=host(**ASCEND_LOADED, marker=Marker("upgrade", "boot-0"))), ASCEND, CONTAINER)
    )
    assert one(found, RequestReboot).path == ASCEND.paths.reboot_marker


@pytest.mark.parametrize("loaded", [True, False])
def test_after_the_reboot_both_labels_go_again(loaded: bool) -> None:
    facts = ASCEND_LOADED if loaded else {"modules": {}}
    found = plan(
        Situation.of(
            observation(
                host=host(**facts, digest=NEW_DIGEST, marker=Marker("upgrade", "boot-0"), source=source()),
                node=node({**ASKED, "other": "x"}),
            ),
            ASCEND,
            Policy(loader=Loader.MANAGER),
        ),
    )
    # Ready it is at once where nothing is to be loaded, else at the end of the run.
    shown = {ASCEND.keys.state: "ready"} if loaded else {}
    assert one(found, ClearRebootRequest).change.labels == {LABEL: None, STATE_KEY: None, **shown}


def test_a_state_that_another_manager_wrote_stays() -> None:
    marker = Marker("upgrade", "boot-0")
    obs = observation(
        host=host(**ASCEND_LOADED, digest=NEW_DIGEST, marker=marker), node=node({STATE_KEY: "upgrade-done"})
    )
    assert one(plan(Situation.of(obs, ASCEND, CONTAINER)), ClearRebootRequest).change.is_empty


@pytest.mark.parametrize("loaded", [True, False])
def test_a_marker_without_a_boot_id_is_not_called_stale(loaded: bool) -> None:
    facts = ASCEND_LOADED if loaded else {"modules": {}}
    marker = Marker("upgrade", "")
    obs = observation(host=host(**facts, digest=NEW_DIGEST, marker=marker), node=node(ASKED))
    assert plan(Situation.of(obs, ASCEND, CONTAINER)).steps == ()


def test_a_marker_of_another_node_does_not_stand_in_for_ours() -> None:
    foreign = Marker("upgrade", "boot-1", node="another")
    found = plan(Situation.of(observation(host=host(**ASCEND_LOADED, marker=foreign)), ASCEND, CONTAINER))
    assert one(found, RequestReboot).path == ASCEND.paths.reboot_marker


def test_labels_of_an_earlier_boot_go_though_the_marker_is_gone_already() -> None:
    notes = {ASCEND.keys.pre_reboot_boot_id: "boot-0"}
    for marker_problem, expected in (("", [ClearRebootRequest]), ("it cannot be read", [])):
        obs = observation(
            host=host(**ASCEND_LOADED, digest=NEW_DIGEST, marker_problem=marker_problem),
            node=node(ASKED, annotations=notes),
        )
        assert [type(step) for step in plan(Situation.of(obs, ASCEND, CONTAINER)).steps] == expected
    here = {ASCEND.keys.pre_reboot_boot_id: "boot-1"}
    obs = observation(host=host(**ASCEND_LOADED, digest=NEW_DIGEST), node=node(ASKED, annotations=here))
    assert plan(Situation.of(obs, ASCEND, CONTAINER)).steps == ()


@pytest.mark.parametrize(
    ("marker", "is_cleared"),
    [
        (Marker("upgrade", "boot-1", to_driver="e" * 64), True),
        (Marker("upgrade", "boot-1", to_driver=NEW_DIGEST), False),
        (Marker("upgrade", "boot-1"), False),
        (Marker("recovery", "boot-1", to_driver="e" * 64), False),
    ],
)
def test_an_upgrade_that_is_not_wanted_any_more_asks_for_no_reboot(marker: Marker, is_cleared: bool) -> None:
    obs = observation(host=host(**ASCEND_LOADED, digest=NEW_DIGEST, marker=marker), node=node(ASKED))
    found = plan(Situation.of(obs, ASCEND, CONTAINER))
    assert bool(found.steps) is is_cleared
    if is_cleared:
        cleared = {LABEL: None, STATE_KEY: None, ASCEND.keys.state: "ready"}
        assert one(found, ClearRebootRequest).change.labels == cleared
        assert "not wanted any more" in one(found, ClearRebootRequest).describe()
