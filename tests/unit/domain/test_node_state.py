"""What a Node shows of its driver: the words, a record that stays readable and small, and changes that add no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager import profiles
from driver_manager.domain import errors, node_state
from driver_manager.domain.errors import ConfigError
from driver_manager.domain.host import Marker
from driver_manager.domain.node import NodeChange
from driver_manager.domain.node_state import LastOutcome, LastOutcomeUnreadable, NodeState
from driver_manager.domain.outage import Outage, OutagePart
from driver_manager.domain.text import GAP, MAX_CHARS, shortened
from driver_manager.domain.wire import seconds_of, written_time
from tests.support.fakes.builders import PROFILE, PROFILES, node
from tests.support.fakes.builders import host as a_host
from tests.support.fakes.cluster import changed_by
from tests.support.fakes.windows import WINDOWS

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("last-outcome-v*.json"))
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


def test_the_words_of_the_label_are_a_contract() -> None:
    words = {"ready", "upgrading", "held", "failed", "wedged", "reboot-required"}
    assert {state.value for state in NodeState} == words
    assert set(node_state.MEANINGS) == set(NodeState)
    assert {NodeState.READY, NodeState.UPGRADING} == set(NodeState) - node_state.NEEDS_HAND


@pytest.mark.parametrize(
    ("profile", "stem"),
    [
        ("rebellions", "rebellions.ai/npu-driver-manager"),
        ("nvidia", "nvidia.com/gpu-driver-manager"),
        ("ascend", "npu.openfuyao.com/driver-manager"),
    ],
)
def test_the_keys_follow_from_the_journals(profile: str, stem: str) -> None:
    keys = PROFILES[profile].keys
    assert (keys.state, keys.last_outcome) == (f"{stem}.state", f"{stem}.last-outcome")


OWN = """
name = "own"
strategy = "in-place"
pci_vendor = "1234"
[keys]
journal = "{journal}"
cordon = "example.com/cordon"
{more}
[deploy]
prefix = "{prefix}"
[modules]
roots = ["own"]
[paths]
driver_root = "/run/own/driver"
state_file = "/run/own/state"
load_record = "/run/own/record"
"""


def own(journal: str, more: str = "", prefix: str = "example.com/deploy.") -> Any:
    """A user's profile that knows nothing of these keys, but for `more`."""
    return profiles.parse(OWN.format(journal=journal, more=more, prefix=prefix), "own.toml")


@pytest.mark.parametrize(
    ("journal", "more", "state"),
    [
        ("example.com/npu.journal", "", "example.com/npu.state"),
        ("example.com/what-was-taken", "", "example.com/driver-manager.state"),
        ("example.com/npu.journal", 'upgrade_state = "example.com/npu.state"', "example.com/driver-manager.state"),
        ("example.com/npu.journal", 'state = "example.com/mine"', "example.com/mine"),
        (f"example.com/{'x' * 54}.journal", "", f"example.com/{'x' * 54}.state"),
    ],
)
def test_a_profile_from_before_these_keys_keeps_working(journal: str, more: str, state: str) -> None:
    keys = own(journal, more).keys
    assert keys.state == state
    assert keys.last_outcome.endswith(".last-outcome")
    assert len(keys.last_outcome.partition("/")[2]) <= 63


def test_a_key_for_two_things_is_refused() -> None:
    with pytest.raises(ConfigError, match="different key for each"):
        own("example.com/npu.journal", 'state = "example.com/cordon"')


@pytest.mark.parametrize("prefix", ["example.com/", "example.com/npu", "example.com/npu.", "example.com/driver-"])
@pytest.mark.parametrize("journal", ["example.com/npu.journal", "example.com/other"])
def test_no_key_of_ours_is_taken_for_a_deploy_label(prefix: str, journal: str) -> None:
    profile = own(journal, prefix=prefix)
    labels = {profile.keys.state: "ready", f"{prefix}plugin": "true", profile.deploy.driver_key: "true"}
    assert profile.deploy_keys(labels) == {f"{prefix}plugin"}


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_every_record_ever_written_is_read_and_loses_nothing_when_written_again(path: Path) -> None:
    text = path.read_text().strip()
    assert json.loads(node_state.encode(node_state.decode(text))) == json.loads(text)


def test_there_are_golden_records() -> None:
    assert GOLDEN


@given(OUTCOMES)
def test_what_is_written_is_read_again_and_stays_small(outcome: LastOutcome) -> None:
    text = node_state.encode(outcome)
    again = node_state.decode(text)
    assert node_state.encode(again) == text
    assert (again.state, again.exit_code, again.digest) == (outcome.state, outcome.exit_code, outcome.digest)
    assert all(len(part) <= node_state.MAX_TEXT_CHARS for part in (again.what, again.remedy, again.step))
    assert len(text) < 16 * 1024, "every character may be written as twelve"


@given(st.text(max_size=300) | st.recursive(st.none() | st.integers(), st.lists).map(json.dumps))
def test_garbage_is_one_error_and_no_outcome(text: str) -> None:
    with pytest.raises(LastOutcomeUnreadable):
        node_state.decode(text)
    assert node_state.outcome_on(node(annotations={KEYS.last_outcome: text}), KEYS) is None


def test_a_word_that_is_not_known_is_no_state() -> None:
    assert node_state.state_on(node({KEYS.state: "dancing"}), KEYS) is None
    assert node_state.state_on(node({KEYS.state: "held"}), KEYS) is NodeState.HELD


@pytest.mark.parametrize(
    ("more", "is_shown"),
    [
        ({}, True),
        ({"what": "other words"}, False),
        ({"what": FAILED.what[:-1]}, True),
        ({"what": f"{FAILED.what} and more"}, False),
        ({"version": "2.0", "ended": "", "since": ""}, True),
        ({"state": NodeState.HELD}, False),
        ({"exit_code": 4}, False),
        ({"step": "unload modules"}, False),
        ({"digest": "ab13"}, False),
    ],
)
def test_the_same_state_code_step_digest_and_words_are_shown_already(
    more: dict[str, Any], is_shown: bool
) -> None:  # a column
    there = node({KEYS.state: "failed"}, annotations={KEYS.last_outcome: node_state.encode(FAILED)})
    assert node_state.is_shown(there, KEYS, replace(FAILED, **more)) is is_shown


def test_numbers_make_no_other_message() -> None:
    told = replace(FAILED, what="trainer (pid 42) has the device; the node was released")
    there = node({KEYS.state: "failed"}, annotations={KEYS.last_outcome: node_state.encode(told)})
    for what, is_shown in (("trainer (pid 7) has the device", True), ("backup (pid 42) has the device", False)):
        assert node_state.is_shown(there, KEYS, replace(FAILED, what=what)) is is_shown


def test_a_label_that_somebody_removed_is_not_shown() -> None:
    there = node({}, annotations={KEYS.last_outcome: node_state.encode(FAILED)})
    assert not node_state.is_shown(there, KEYS, FAILED)


def test_the_patch_and_the_json_patch_show_the_same() -> None:
    there = node({KEYS.state: "upgrading", "other": "x"}, annotations={"other": "y"})
    merged = node_state.added(there, NodeChange(), KEYS, FAILED)
    assert changed_by(there, node_state.operations(there, KEYS, FAILED)) == merged
    again = replace(there, annotations={**there.annotations, KEYS.last_outcome: "earlier"})
    assert changed_by(again, node_state.operations(again, KEYS, FAILED)) == merged
    other = replace(there, labels={KEYS.state: "wedged"})
    with pytest.raises(errors.Conflict):
        changed_by(other, node_state.operations(there, KEYS, FAILED))
    assert merged.labels == {KEYS.state: "failed"}
    assert node_state.decode(str(merged.annotations[KEYS.last_outcome])) == FAILED


@pytest.mark.parametrize("word", list(NodeState))
@pytest.mark.parametrize("lasting", [(), (NodeState.WEDGED,), (NodeState.REBOOT_REQUIRED,)])
def test_a_failure_ends_nothing_that_lasts(word: NodeState, lasting: tuple[NodeState, ...]) -> None:
    there = node({KEYS.state: word.value})
    now = node_state.added(there, NodeChange(), KEYS, FAILED, frozenset(lasting)).labels[KEYS.state]
    assert now == (word.value if word in lasting else "failed")
    held = replace(FAILED, state=NodeState.HELD)
    assert node_state.added(there, NodeChange(), KEYS, held, frozenset(lasting)).labels[KEYS.state] == "held"


@pytest.mark.parametrize(
    ("marker", "artifacts", "state"),
    [
        (None, (), NodeState.READY),
        (None, (PATHS.ready_withdrawn,), NodeState.WEDGED),
        (Marker("recovery", "boot-1"), (PATHS.ready_withdrawn,), NodeState.REBOOT_REQUIRED),
        (Marker("recovery", "an-earlier-boot"), (), NodeState.READY),
    ],
)
def test_the_hosts_marks_tell_what_lasts(marker: Marker | None, artifacts: tuple[str, ...], state: NodeState) -> None:
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


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (errors.PodsRemain, NodeState.FAILED),
        (errors.PreflightFailed, NodeState.FAILED),
        (errors.RebootRequired, NodeState.REBOOT_REQUIRED),
        (errors.StandingDown, NodeState.READY),
        (errors.Terminated, NodeState.FAILED),
    ],
)
def test_an_error_means_a_state(error: type[errors.ManagerError], state: NodeState) -> None:
    assert node_state.state_after(error("what", "remedy")) is state


@pytest.mark.parametrize(
    ("word", "is_asked", "is_outdated"),
    [
        (None, False, False),
        ("ready", False, False),
        ("wedged", False, False),
        ("dancing", False, False),
        ("upgrading", False, True),
        ("held", False, True),
        ("failed", False, True),
        ("reboot-required", False, True),
        ("reboot-required", True, False),
    ],
)
def test_a_run_that_had_nothing_to_do_finds_what_is_over(
    word: str | None, is_asked: bool, is_outdated: bool
) -> None:  # columns
    there = node({KEYS.state: word} if word else {})
    lasting = frozenset({NodeState.REBOOT_REQUIRED} if is_asked else ())
    assert node_state.is_outdated(there, KEYS, lasting) is is_outdated


@given(st.text(max_size=400), st.integers(10, 300))
def test_a_text_is_cut_in_its_middle_and_to_its_bound(text: str, most: int) -> None:
    cut = shortened(text, most)
    assert len(cut) <= most
    assert cut == text if len(text) <= most else GAP.strip() in cut


WORDS = st.lists(st.text("abcdef0123456789", min_size=8, max_size=20), min_size=1, max_size=40)


@given(WORDS, st.integers(60, 200))
def test_a_word_is_left_whole_or_left_out(words: list[str], most: int) -> None:
    text = " ".join(words)
    assert set(shortened(text, most).replace(GAP, " ").split()) <= {*words, "…"}


@given(st.integers(0, 4_000_000_000))
def test_a_moment_is_read_as_it_was_written(wall_s: int) -> None:
    assert seconds_of(written_time(wall_s)) == wall_s


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-02", "2026-01-02T03:04:05"])
def test_what_is_no_moment_of_a_known_zone_is_none(text: str) -> None:
    assert seconds_of(text) is None


@pytest.mark.parametrize(
    "window",
    [
        Outage(1.0, 1.0, {OutagePart.EVICT: 1.7e308}),
        Outage(1.0, 1.0, {OutagePart.EVICT: 1.7e308, OutagePart.LOAD: 1.7e308}),
        Outage(1.0, 1.7e308),
        Outage(-1.0, 1.0),
        Outage(1e300, 1.0),
    ],
)
def test_an_outcome_with_a_window_of_no_era_of_ours_is_garbage(window: Outage) -> None:
    text = json.dumps(json.loads(node_state.encode(FAILED)) | {"window": window.to_json()})
    with pytest.raises(LastOutcomeUnreadable, match="window is an object, expected times of this era"):
        node_state.decode(text)
