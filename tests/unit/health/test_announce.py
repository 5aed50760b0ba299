"""The effect of a notice on the Node: the state as a label, unless a run or the rebooter owns it, and one Event."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from driver_manager.core.node import ATTEMPTS, announce, announce_window, show_condition
from driver_manager.domain import node_state
from driver_manager.domain.errors import ApiRefused, ApiUnavailable
from driver_manager.domain.health.watch import Notice, NoticeKind
from driver_manager.domain.node import Node
from driver_manager.domain.node_state import LastOutcome, NodeState, Recovery, RecoveryState
from driver_manager.domain.outage import Outage, OutagePart
from tests.support.fakes.builders import PROFILE, node
from tests.support.fakes.clock import FakeClock, RecordingReporter
from tests.support.fakes.cluster import FakeCluster
from tests.support.fakes.killer import Killed, Killer

KEYS = PROFILE.keys
WEDGE = Notice(NoticeKind.WEDGED, "boot-1", 1_700_000_000, "npu 0 is critical")
END = replace(WEDGE, kind=NoticeKind.RECOVERED, reason="1 device(s) OK")
FIRST = replace(END, since_s=0)
MUTED = replace(END, kind=NoticeKind.MUTED, reason="muted until 2026-01-02T03:04:05Z")


def note(state: str, step: str = "reset") -> str:
    return node_state.encode_note(Recovery(step, RecoveryState(state), "npu 0 is critical"))


def cluster_of(state: str | None, outcome: LastOutcome | None = None, **fields: Any) -> FakeCluster:
    """A Node that shows this state, and this outcome of the last run."""
    labels = {"other": "x", **({KEYS.state: state} if state is not None else {})}
    notes = {KEYS.last_outcome: node_state.encode(outcome)} if outcome else {}
    killer = Killer()
    return FakeCluster(killer, FakeClock(killer), node(labels, annotations=notes), **fields)


def now(cluster: FakeCluster) -> Node:
    assert cluster.current is not None
    return cluster.current


def reasons(cluster: FakeCluster) -> list[str]:
    """The Events."""
    return [reason for reason, _, _ in cluster.posted]


def shown(cluster: FakeCluster, *notices: Notice) -> str | None:
    """The state that the Node shows after them."""
    for notice in notices:
        announce(cluster, RecordingReporter(), KEYS, notice)
    assert now(cluster).labels["other"] == "x"
    return now(cluster).labels.get(KEYS.state)


def test_a_wedge_is_shown_unless_a_run_has_the_node_and_its_end_restores_the_state() -> None:
    for notice, before, outcome, after in (
        *[(WEDGE, before, None, "wedged") for before in (None, "ready", "failed", "another word", "wedged")],
        *[(WEDGE, before, None, before) for before in ("upgrading", "held", "reboot-required")],
        *[(END, before, None, before) for before in (None, "ready", "failed", "upgrading", "held", "x")],
        *((END, "reboot-required", None, "reboot-required"), (END, "wedged", None, "ready")),
        *((END, "wedged", NodeState.READY, "ready"), (END, "wedged", NodeState.FAILED, "failed")),
        *((FIRST, "ready", None, "ready"), (FIRST, "wedged", None, "ready")),
    ):
        cluster = cluster_of(before, LastOutcome(outcome, 0, "done") if outcome else None)
        for _ in range(2):  # the second time changes nothing
            assert shown(cluster, notice) == after
        assert len(cluster.patches) == (before != after)
        is_silent = notice is FIRST and before != "wedged"
        assert cluster.posted == ([] if is_silent else [(notice.event, notice.message, notice is WEDGE)])


def test_the_end_of_a_wedge_removes_its_approval_and_a_recovery_that_is_not_under_way() -> None:
    for notice, there, stays in (
        *[(WEDGE, note(state), True) for state in ("waiting", "under-way", "needs-service")],
        *[(one, note("under-way"), True) for one in (END, FIRST, MUTED)],
        *[(one, note(state), False) for one in (END, FIRST, MUTED) for state in ("waiting", "needs-service")],
        (END, "what no version reads", False),
    ):
        cluster = cluster_of("wedged")
        cluster.edit(annotations={KEYS.recovery: there, KEYS.approve_recovery: "reset", "other": "x"})
        shown(cluster, notice)
        kept = {KEYS.recovery: there} if stays else {}
        approval = {KEYS.approve_recovery: "reset"} if notice is WEDGE else {}
        assert now(cluster).annotations == {"other": "x", **kept, **approval}


def test_the_first_sample_of_a_boot_has_an_event_if_the_node_still_showed_a_wedge() -> None:
    for annotation, events in ((KEYS.approve_recovery, []), (KEYS.recovery, ["DriverRecovered"])):
        cluster = cluster_of("ready")
        cluster.edit(annotations={annotation: note("needs-service")})
        shown(cluster, FIRST)
        assert (now(cluster).annotations, reasons(cluster)) == ({}, events)


def test_where_the_state_is_not_shown_there_is_the_event_alone() -> None:
    cluster, keys = cluster_of("ready"), replace(KEYS, state="", last_outcome="")
    for notice in (WEDGE, END, FIRST):
        announce(cluster, RecordingReporter(), keys, notice)
    assert reasons(cluster) == ["DriverWedged", "DriverRecovered"]
    assert cluster.killer.calls == ["event", "event"], "no request for the Node without need"


def test_a_state_that_cannot_be_shown_does_not_keep_the_event_back() -> None:
    event = ["DriverWedged"]
    for call, events, state in (("node", event, "ready"), ("patch", event, "ready"), ("event", [], "wedged")):
        cluster = cluster_of("ready")
        cluster.killer.at(call, ApiRefused(f"the API server refused {call}", "Give this account the verb."))
        with pytest.raises(ApiRefused, match=call):
            announce(cluster, RecordingReporter(), KEYS, WEDGE)
        assert (reasons(cluster), now(cluster).labels[KEYS.state]) == (events, state)


def test_a_run_that_takes_the_node_in_the_same_moment_keeps_its_word() -> None:
    cluster = cluster_of("ready")
    cluster.killer.at("patch", lambda: cluster.edit({KEYS.state: "upgrading"}))
    assert shown(cluster, WEDGE) == "upgrading"


def test_a_node_that_keeps_changing_is_left_after_some_tries() -> None:
    cluster = cluster_of("ready")
    for _ in range(ATTEMPTS):
        cluster.killer.at("patch", lambda: cluster.edit(annotations={"n": str(cluster.version)}))
    with pytest.raises(ApiUnavailable, match="kept changing"):
        announce(cluster, RecordingReporter(), KEYS, WEDGE)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("effect", [0, 1])
@pytest.mark.parametrize("notice", [WEDGE, END])
def test_killed_anywhere_the_next_one_ends_as_an_undisturbed_one(notice: Notice, effect: int, after: bool) -> None:
    before = "ready" if notice is WEDGE else "wedged"
    killed, undisturbed = cluster_of(before), cluster_of(before)
    killed.killer.kill_at(effect, after=after)
    with pytest.raises(Killed):
        announce(killed, RecordingReporter(), KEYS, notice)
    killed.killer.revive()
    assert shown(killed, notice) == shown(undisturbed, notice)
    assert killed.posted == undisturbed.posted


def conditions(cluster: FakeCluster) -> list[tuple[str, str]]:
    return [(one.status, one.reason) for one in cluster.conditions]


def test_the_condition_follows_a_wedge_and_its_end_also_where_the_label_was_written_before() -> None:
    cluster = cluster_of("ready", has_conditions=True)
    shown(cluster, WEDGE, WEDGE, END)
    assert conditions(cluster) == [("False", "Wedged"), ("True", "Ready")]
    killed = cluster_of("ready", has_conditions=True)
    killed.killer.kill_at(0, after=True)
    with pytest.raises(Killed):
        shown(killed, WEDGE)
    killed.killer.revive()
    shown(killed, WEDGE)
    assert conditions(killed) == [("False", "Wedged")]
    service = cluster_of("wedged", has_conditions=True)
    service.edit(annotations={KEYS.recovery: note("needs-service")})
    shown(service, WEDGE, END)
    assert conditions(service) == [("False", "NeedsService"), ("True", "Ready")]


def test_a_condition_that_is_not_written_leaves_the_notice_undelivered_after_its_event() -> None:
    cluster = cluster_of("ready", has_conditions=True)
    cluster.killer.at("condition", ApiUnavailable("no answer", ""))
    with pytest.raises(ApiUnavailable):
        shown(cluster, WEDGE)
    assert len(cluster.posted) == 1
    shown(cluster, WEDGE)
    assert conditions(cluster) == [("False", "Wedged")]


def test_the_condition_of_a_state_that_a_wedge_does_not_replace_is_that_state() -> None:
    for state in ("upgrading", "reboot-required"):
        cluster = cluster_of(state, has_conditions=True)
        shown(cluster, WEDGE)
        assert [one.status for one in cluster.conditions] == ["False"]
        assert node_state.condition(cluster.node(), KEYS) is None


@pytest.mark.parametrize("word", ["wedged", "reboot-required"])
def test_the_condition_has_the_reason_needs_service_while_the_annotation_shows_it(word: str) -> None:
    cluster = cluster_of(word, has_conditions=True)
    found = []
    for there in (None, note("waiting"), note("needs-service"), note("under-way"), note("needs-service"), "garbage"):
        cluster.edit(annotations={KEYS.recovery: there})
        show_condition(cluster, KEYS, cluster.node())
        found.append(cluster.node().conditions[KEYS.condition][1])
    of_state = "".join(part.capitalize() for part in word.split("-"))
    assert found == [of_state, of_state, "NeedsService", of_state, "NeedsService", of_state]
    cluster.edit({KEYS.state: "upgrading"}, annotations={KEYS.recovery: note("needs-service")})
    condition = node_state.condition(cluster.node(), KEYS)
    assert condition is not None
    assert condition.reason == "Upgrading"


def test_the_end_of_a_window_is_shown_where_the_node_has_it_open() -> None:
    left = Outage(100.0, 4.0, {OutagePart.UNLOAD: 4.0}, is_open=True)
    over = left.ended_by_container(110.0, 112.0, 160.0)
    for there in (left, replace(left, began_s=99.0), replace(left, is_open=False), None):
        before = LastOutcome(NodeState.READY, 0, "done", digest="ab12", window=there)
        cluster = cluster_of(None, before)
        announce_window(cluster, RecordingReporter(), KEYS, over, "2.0.0")
        wanted = (replace(before, window=over, version="2.0.0"), "2.0.0") if there is left else (before, None)
        assert (node_state.outcome_on(now(cluster), KEYS), now(cluster).labels.get(KEYS.version)) == wanted
        assert len(cluster.patches) == (there is left)
