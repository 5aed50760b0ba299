"""A marker that is not understood is refused and reboots no node; what makes a staged driver unusable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain import host
from driver_manager.domain.host import Marker, SlotRecord, decode_marker, encode_marker
from driver_manager.domain.text import is_digest
from driver_manager.domain.wire import LAST_MOMENT_S, Unreadable

GOLDEN = Path(__file__).parents[1] / "golden"
GOOD: dict[str, Any] = json.loads((GOLDEN / "marker-v1-recovery.json").read_text())
TEXT = st.text(max_size=20)
MARKERS = st.builds(
    Marker,
    reason=st.sampled_from(host.REASONS),
    boot_id=st.text(min_size=1, max_size=20),
    node=TEXT,
    from_driver=TEXT,
    to_driver=TEXT,
    writer=TEXT,
    written_s=st.integers(0, LAST_MOMENT_S),
    evidence=st.lists(TEXT, max_size=3).map(tuple),
)


@given(MARKERS)
def test_what_is_encoded_is_decoded_again_and_is_stale_in_any_other_boot(marker: Marker) -> None:
    assert decode_marker(encode_marker(marker)) == marker
    assert [marker.is_stale(boot) for boot in (marker.boot_id, f"{marker.boot_id}x")] == [False, True]


def test_plain_text_that_names_a_reason_is_an_older_operators() -> None:
    rows = {"upgrade\n": "upgrade", "reason=recovery": "recovery", "Driver upgraded, please reboot": "upgrade"}
    found = {text: decode_marker(text) for text in rows}
    assert {text: (one.reason, one.boot_id) for text, one in found.items()} == {text: (rows[text], "") for text in rows}
    assert not any(one.is_stale("any boot") for one in found.values())


def test_a_field_that_is_not_what_it_should_be_is_named() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        *(({"reason": "because"}, "reason is 'because'"), ({"reason": ["upgrade"]}, "reason is")),
        *(({"bootId": ""}, "does not name a boot"), ({"evidence": "text"}, "evidence is not a list")),
        ({"time": 10**20}, "time is 100000000000000000000, expected a whole number from 0 to 253402300799"),
        ({"time": -1}, "time is -1, expected a whole number from 0"),
    ]
    for change, expected in rows:
        with pytest.raises(Unreadable, match=expected):
            decode_marker(json.dumps(GOOD | change))


def test_garbage_is_no_marker_and_one_that_was_cut_short_is_not_taken_for_an_older_operators() -> None:
    texts = ["", "reboot", "[1]", "upgrade\x00", "upgrade" + " " * 400, "\ufffd\ufffd upgrade", "[" * 9000]
    whole = encode_marker(Marker("upgrade", "an earlier boot", node="n", writer="w")).rstrip()
    texts += [f"{start}{whole[:length]}" for length in range(len(whole)) for start in ("", " \n")]
    for text in texts:
        with pytest.raises(Unreadable):
            decode_marker(text)


def test_a_marker_fits_the_reader_however_long_its_evidence_is() -> None:
    marker = Marker("recovery", "boot", evidence=tuple(f"{number} {'x' * 1000}" for number in range(200)))
    text = encode_marker(marker)
    assert len(text) <= host.MAX_CHARS
    assert decode_marker(text).evidence == marker.evidence[-len(decode_marker(text).evidence) :]
    assert len(decode_marker(text).evidence) > 50
    with pytest.raises(Unreadable, match="longer than"):
        decode_marker(" " * (host.MAX_CHARS + 1))


# records of staged drivers

SUM = "ab" * 32
DIGESTS = st.text(min_size=1, max_size=256).filter(is_digest)
TREES = st.dictionaries(st.text(min_size=1), st.text())
RECORDS = st.builds(
    SlotRecord, DIGESTS | st.just(""), st.text(), st.text(), TREES, is_kept=st.booleans(), has_served=st.booleans()
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: SlotRecord) -> None:
    assert host.decode_staged(host.encode_staged(record)) == record


def test_both_forms_of_the_record_stay_readable_the_first_without_its_files() -> None:
    first, second = (host.decode_staged((GOLDEN / f"slot-v{version}.json").read_text()) for version in (1, 2))
    assert first == SlotRecord("sha256:" + "0" * 64, "6.1.0-fake", "2.0.1")
    tree = {"usr/bin/rbln-smi": f"12 {SUM}", "usr/sbin": "-> bin"}
    assert second == replace(first, tree=tree, has_served=True)


def test_a_tree_serves_with_everything_that_its_record_has() -> None:
    record = SlotRecord("d", "k", "1", {"a": f"3 {SUM}", "b/c": "5", "l": "-> a"})
    whole = {"a": "3", "b/c": "5", "l": "-> a"}
    for change, wrong in (
        *(({}, ""), ({"more": "1", "m": "-> x"}, ""), ({"a": f"3 {SUM}", "b/c": f"5 {SUM}"}, "")),
        *(({"a": f"3 {'cd' * 32}"}, "a"), ({"b/c": ""}, "b/c"), ({"a": "2"}, "a"), ({"l": "-> b"}, "l")),
        *(({"l": "5"}, "l"), ({"b/c": "-> a"}, "b/c"), (dict.fromkeys(whole, ""), "a, b/c, l")),
    ):
        found = {name: text for name, text in {**whole, **change}.items() if text}  # "" is a file that is missing
        why = f"it is not complete: {wrong} differs from its record or is missing" if wrong else ""
        assert record.why_unusable("k", found) == why, change
        assert record.why_unusable("k2", found) == "it is for kernel k, this one is k2"


def test_a_slot_is_known_by_name_and_by_path() -> None:
    seen = host.StagedSlots("/run/driver", (host.StagedSlot("driver.next"),))
    assert seen.path("driver.next") == "/run/driver.next"
    assert seen.named("driver.next") == seen.at("/run/driver.next") == host.StagedSlot("driver.next")
    assert seen.named("driver") is seen.at("/run/driver") is None
