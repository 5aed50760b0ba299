"""What a Node shows of its driver: the words, a record that stays readable and small, and changes that add no more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import errors, node_state
from driver_manager.domain.host import Marker
from driver_manager.domain.node import NodeChange
from driver_manager.domain.node_state import Generation, LastOutcome, NodeState, Sighting, decode_generation, seen_now
from driver_manager.domain.outage import Outage
from driver_manager.domain.text import MAX_CHARS
from driver_manager.domain.wire import Unreadable
from tests.support.fakes.builders import NEW_DIGEST, OLD_DIGEST, PROFILE, node
from tests.support.fakes.builders import host as a_host
from tests.support.fakes.cluster import changed_by
from tests.support.fakes.windows import WINDOWS

KEYS, PATHS = PROFILE.keys, PROFILE.paths
NOON = "2026-01-02T12:00:00Z"
TEXT = st.text(max_size=700)
OUTCOMES = st.builds(
    LastOutcome,
    state=st.sampled_from(NodeState),
    exit_code=st.integers(0, 11),
    what=TEXT,
    remedy=TEXT,
    step=TEXT,
    digest=st.text(alphabet=st.characters(categories=("L", "N", "P")), max_size=MAX_CHARS),
    version=TEXT,
    ended=st.just(NOON),
    since=st.just(NOON),
    window=st.none() | WINDOWS,
)
FAILED = LastOutcome(NodeState.FAILED, 5, "it did not load", "See dmesg.", "load modules", "ab12", "1.0", NOON, NOON)


@given(OUTCOMES)
def test_what_is_written_is_read_again_and_stays_small(outcome: LastOutcome) -> None:
    text = node_state.encode(outcome)
    again = node_state.decode(text)
    assert node_state.encode(again) == text
    assert (again.state, again.exit_code, again.digest) == (outcome.state, outcome.exit_code, outcome.digest)
    assert all(len(part) <= node_state.MAX_TEXT_CHARS for part in (again.what, again.remedy, again.step))
    assert len(text) < 16 * 1024, "every character may be written as twelve"


def test_the_words_of_the_label_are_a_contract_each_other_word_is_no_state_and_an_error_means_one() -> None:
    words = {"ready", "upgrading", "held", "failed", "wedged", "reboot-required"}
    assert {state.value for state in NodeState} == words
    assert node_state.state_on(node({KEYS.state: "dancing"}), KEYS) is None
    assert node_state.state_on(node({KEYS.state: "held"}), KEYS) is NodeState.HELD
    states = dict.fromkeys((errors.PodsRemain, errors.PreflightFailed, errors.Terminated), NodeState.FAILED)
    states |= {errors.RebootRequired: NodeState.REBOOT_REQUIRED, errors.StandingDown: NodeState.READY}
    assert {error: node_state.state_after(error("what", "remedy")) for error in states} == states


@given(st.text(max_size=300) | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_garbage_is_one_error_and_no_outcome(text: str) -> None:
    with pytest.raises(Unreadable):
        node_state.decode(text)
    assert node_state.outcome_on(node(annotations={KEYS.last_outcome: text}), KEYS) is None


def test_the_same_state_code_step_digest_and_words_are_shown_already() -> None:
    cut, holder = FAILED.what[:-1], {"what": "trainer (pid 42) has the device; the node was released"}
    rows: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
        *(({}, {}, True), ({}, {"what": cut}, True), ({}, {"version": "2.0", "ended": "", "since": ""}, True)),
        *(({}, {"what": "other words"}, False), ({}, {"what": f"{FAILED.what} and more"}, False)),
        *(({}, {"state": NodeState.HELD}, False), ({}, {"exit_code": 4}, False), ({}, {"digest": "ab13"}, False)),
        ({}, {"step": "unload modules"}, False),
        # Numbers make no other message.
        (holder, {"what": "trainer (pid 7) has the device"}, True),
        (holder, {"what": "backup (pid 42) has the device"}, False),
    ]
    for past, more, is_shown in rows:
        annotations = {KEYS.last_outcome: node_state.encode(replace(FAILED, **past))}
        there = node({KEYS.state: "failed"}, annotations=annotations)
        assert node_state.is_shown(there, KEYS, replace(FAILED, **more)) is is_shown, (past, more)
        assert not node_state.is_shown(node({}, annotations=annotations), KEYS, FAILED), "the label was removed"


def test_the_patch_and_the_json_patch_show_the_same() -> None:
    there = node({KEYS.state: "upgrading", "other": "x"}, annotations={"other": "y"})
    merged = node_state.added(there, NodeChange(), KEYS, FAILED)
    assert changed_by(there, node_state.operations(there, KEYS, FAILED)) == merged
    again = replace(there, annotations={**there.annotations, KEYS.last_outcome: "earlier"})
    assert changed_by(again, node_state.operations(again, KEYS, FAILED)) == merged
    other = replace(there, labels={KEYS.state: "wedged"})
    with pytest.raises(errors.Conflict):
        changed_by(other, node_state.operations(there, KEYS, FAILED))
    assert merged.labels == {KEYS.state: "failed", KEYS.version: FAILED.version}
    assert node_state.decode(str(merged.annotations[KEYS.last_outcome])) == FAILED


@pytest.mark.parametrize("word", list(NodeState))
@pytest.mark.parametrize("lasting", [(), (NodeState.WEDGED,), (NodeState.REBOOT_REQUIRED,)])
def test_a_failure_ends_nothing_that_lasts(word: NodeState, lasting: tuple[NodeState, ...]) -> None:
    there = node({KEYS.state: word.value})
    now = node_state.added(there, NodeChange(), KEYS, FAILED, frozenset(lasting)).labels[KEYS.state]
    assert now == (word.value if word in lasting else "failed")
    held = replace(FAILED, state=NodeState.HELD)
    assert node_state.added(there, NodeChange(), KEYS, held, frozenset(lasting)).labels[KEYS.state] == "held"


def test_the_hosts_marks_tell_what_lasts() -> None:
    gone = (PATHS.ready_withdrawn,)
    for marker, artifacts, state in (
        *((None, (), NodeState.READY), (None, gone, NodeState.WEDGED)),
        (Marker("recovery", "boot-1"), gone, NodeState.REBOOT_REQUIRED),
        (Marker("recovery", "an-earlier-boot"), (), NodeState.READY),
    ):
        host = replace(a_host(), boot_id="boot-1", marker=marker, artifacts=artifacts)
        assert node_state.state_of(host, PROFILE) is state
        assert node_state.lasting_on(host, PROFILE) == ({state} - {NodeState.READY})
        bare = replace(PROFILE, paths=replace(PROFILE.paths, ready_marker=""))
        assert NodeState.WEDGED in node_state.lasting_on(host, bare), "nothing says otherwise"


def test_without_keys_nothing_is_shown() -> None:
    off = replace(KEYS, state="", last_outcome="")
    assert node_state.added(node(), NodeChange(), off, FAILED).is_empty
    assert node_state.operations(node(), off, FAILED) == ()
    assert node_state.label(node(), off, NodeState.WEDGED) == {}
    assert node_state.is_shown(node(), off, FAILED)
    assert node_state.state_on(node({"": "held"}), off) is None


def test_a_state_that_lasts_keeps_its_beginning() -> None:
    begun = FAILED.of(1_000_000_000.0, None)
    assert begun.since == begun.ended == "2001-09-09T01:46:40Z"
    again = FAILED.of(1_000_000_060.0, begun)
    assert (again.since, again.ended) == ("2001-09-09T01:46:40Z", "2001-09-09T01:47:40Z")
    other = replace(FAILED, state=NodeState.HELD).of(1_000_000_060.0, begun)
    assert other.since == other.ended
    failed = LastOutcome(NodeState.FAILED, 3, "pods remain").of(1_000_000_000.0, None)
    another = LastOutcome(NodeState.FAILED, 5, "module failed").of(1_000_000_060.0, failed)
    assert (another.since, another.of(1_000_000_120.0, another).since) == (another.ended, another.ended)


def test_a_run_that_had_nothing_to_do_finds_what_is_over() -> None:
    asked = frozenset({NodeState.REBOOT_REQUIRED})
    for words, lasting, is_outdated in (
        ((None, "ready", "wedged", "dancing"), frozenset[NodeState](), False),
        (("upgrading", "held", "failed", "reboot-required"), frozenset[NodeState](), True),
        (("reboot-required",), asked, False),
    ):
        nodes = [node({KEYS.state: word} if word else {}) for word in words]
        assert [node_state.is_outdated(there, KEYS, lasting) for there in nodes] == [is_outdated] * len(nodes)


def test_an_outcome_with_a_window_of_no_era_of_ours_is_garbage() -> None:
    text = json.dumps(json.loads(node_state.encode(FAILED)) | {"window": Outage(-1.0, 1.0).to_json()})
    with pytest.raises(Unreadable, match="window is an object, expected times of this era"):
        node_state.decode(text)


# the driver generation: when two sightings are one, since when it is ready, and how the Node shows it

NOW_S = 1_700_000_500.0
SEEN = Sighting("boot-1", "17", NEW_DIGEST, (1_700_000_100.0, 1_700_000_101.5))
FIRST = Generation("boot-1", "17", NEW_DIGEST, 1_700_000_101.5)


def test_digest_boot_and_load_make_a_generation() -> None:
    rows: list[tuple[dict[str, Any], bool]] = [
        *(({}, True), ({"digest": ""}, True), ({"marked_s": (NOW_S - 1.0,)}, True)),
        *(({"digest": OLD_DIGEST}, False), ({"load": "18"}, False), ({"boot_id": "boot-2"}, False)),
    ]
    for change, is_same in rows:
        found = seen_now(replace(SEEN, **change), FIRST, NOW_S)
        assert (found == FIRST) is is_same, change
        assert (found.ready_s == FIRST.ready_s) is (is_same or "boot_id" in change), change
    later = seen_now(SEEN, replace(FIRST, digest=""), NOW_S)  # a digest that is recorded later
    assert (later.digest, later.ready_s) == (NEW_DIGEST, FIRST.ready_s)


def test_a_driver_is_ready_since_the_last_of_its_files_was_written() -> None:
    rows: list[tuple[dict[str, Any], Generation | None, float]] = [
        # Since the last of its files was written; one from the future does not count.
        *(({}, None, FIRST.ready_s), ({"marked_s": (NOW_S - 9.0, NOW_S + 9.0)}, None, NOW_S - 9.0)),
        # Without a file no pod is held to have opened an earlier driver.
        ({"marked_s": ()}, None, 0.0),
        # Files of an earlier generation do not count for the next one.
        ({"load": "18"}, FIRST, NOW_S),
        ({"load": "18", "marked_s": (FIRST.ready_s, NOW_S - 7.0)}, FIRST, NOW_S - 7.0),
    ]
    for change, earlier, ready_s in rows:
        assert seen_now(replace(SEEN, **change), earlier, NOW_S).ready_s == ready_s, change


def test_the_node_shows_a_generation_to_the_second_and_within_the_calendar() -> None:
    text = node_state.encode_generation(FIRST)
    assert "2023-11-14T22:15:01Z" in text
    assert (decode_generation(text), decode_generation(text).ready_s) == (FIRST, int(FIRST.ready_s))
    before = seen_now(replace(SEEN, marked_s=(-1e15,)), None, NOW_S)
    for one in (replace(FIRST, ready_s=0.0), before):
        assert decode_generation(node_state.encode_generation(one)).ready_s == 0.0
    for ready in ("9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "soon", ""):
        assert decode_generation(text.replace("2023-11-14T22:15:01Z", ready)).ready_s == 0.0


def test_garbage_is_no_generation() -> None:
    for text in ("", "[]", "{}", '{"v":2}', '{"v":1,"bootId":1}', '{"v":1,"bootId":"a","load":"b"}'):
        with pytest.raises(Unreadable):
            decode_generation(text)


moments = st.floats(0, 2 * NOW_S, allow_nan=False)
sightings = st.builds(
    Sighting,
    st.sampled_from(["boot-1", "boot-2"]),
    st.sampled_from(["17", "18"]),
    st.sampled_from(["", OLD_DIGEST, NEW_DIGEST]),
    st.lists(moments, max_size=2).map(tuple),
)


@given(st.lists(st.tuples(sightings, moments), min_size=1, max_size=6))
def test_a_generation_that_is_seen_again_stays_as_it_is(story: list[tuple[Sighting, float]]) -> None:
    """A generation that changed its time would restart clients again.

    Mutants: `earlier.ready_s` left out where it goes on; `or digest` in place of `and digest`.
    """
    earlier: Generation | None = None
    for seen, now_s in story:
        found = seen_now(seen, earlier, now_s)
        again = seen_now(seen, found, now_s + 60.0)
        assert (again, again.ready_s) == (found, found.ready_s)
        assert found.ready_s <= now_s or (earlier is not None and found.ready_s == earlier.ready_s)
        earlier = found
