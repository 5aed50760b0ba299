"""Every marker ever written stays readable; what is not understood is refused, so that it cannot reboot a node."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.host import MAX_CHARS, REASONS, Marker, MarkerUnreadable, decode_marker, encode_marker
from driver_manager.domain.wire import LAST_MOMENT_S

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("marker-v*.json"))
GOOD: dict[str, Any] = json.loads(GOLDEN[0].read_text())
TEXT = st.text(max_size=20)
MARKERS = st.builds(
    Marker,
    reason=st.sampled_from(REASONS),
    boot_id=st.text(min_size=1, max_size=20),
    node=TEXT,
    from_driver=TEXT,
    to_driver=TEXT,
    writer=TEXT,
    written_s=st.integers(0, LAST_MOMENT_S),
    evidence=st.lists(TEXT, max_size=3).map(tuple),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(MARKERS)
def test_what_is_encoded_is_decoded_again(marker: Marker) -> None:
    assert decode_marker(encode_marker(marker)) == marker


@pytest.mark.submission
@given(
    st.text(max_size=400)
    | JSON.map(json.dumps)
    | st.tuples(st.sampled_from(sorted(GOOD)), JSON).map(lambda change: json.dumps(GOOD | {change[0]: change[1]}))
)
def test_anything_else_is_refused_with_one_exception(text: str) -> None:
    with contextlib.suppress(MarkerUnreadable):
        assert decode_marker(text).reason in REASONS


@pytest.mark.parametrize(
    ("text", "reason"),
    [("upgrade\n", "upgrade"), ("reason=recovery", "recovery"), ("Driver upgraded, please reboot", "upgrade")],
)
def test_plain_text_that_names_a_reason_is_an_older_operators(text: str, reason: str) -> None:
    marker = decode_marker(text)
    assert (marker.reason, marker.boot_id) == (reason, "")
    assert not marker.is_stale("any boot")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reason": "because"}, "reason is 'because'"),
        ({"reason": ["upgrade"]}, "reason is"),
        ({"bootId": ""}, "does not name a boot"),
        ({"evidence": "text"}, "evidence is not a list"),
        ({"time": 10**20}, "time is 100000000000000000000, expected a whole number from 0 to 253402300799"),
        ({"time": -1}, "time is -1, expected a whole number from 0"),
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(MarkerUnreadable, match=said):
        decode_marker(json.dumps(GOOD | change))


@pytest.mark.parametrize(
    "text", ["", "reboot", "[1]", "upgrade\x00", "upgrade" + " " * 400, "\ufffd\ufffd upgrade", "[" * 9000]
)
def test_garbage_is_no_marker(text: str) -> None:
    with pytest.raises(MarkerUnreadable):
        decode_marker(text)


def test_a_marker_that_was_cut_short_is_not_taken_for_an_older_operators() -> None:
    whole = encode_marker(Marker("upgrade", "an earlier boot", node="n", writer="w")).rstrip()
    for length in range(len(whole)):
        for text in (whole[:length], f" \n{whole[:length]}"):
            with pytest.raises(MarkerUnreadable):
                decode_marker(text)


def test_a_marker_fits_the_reader_however_long_its_evidence_is() -> None:
    marker = Marker("recovery", "boot", evidence=tuple(f"{number} {'x' * 1000}" for number in range(200)))
    text = encode_marker(marker)
    assert len(text) <= MAX_CHARS
    assert decode_marker(text).evidence == marker.evidence[-len(decode_marker(text).evidence) :]
    assert len(decode_marker(text).evidence) > 50
    with pytest.raises(MarkerUnreadable, match="longer than"):
        decode_marker(" " * (MAX_CHARS + 1))


def test_a_marker_is_stale_in_any_other_boot() -> None:
    assert Marker("upgrade", "boot-0").is_stale("boot-1")
    assert not Marker("upgrade", "boot-1").is_stale("boot-1")
