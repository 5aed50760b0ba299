"""How slots are called, what their records say, and which may go."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.host import (
    FoundTree,
    SlotRecord,
    SlotRecordUnreadable,
    StagedFile,
    StagedSlot,
    StagedSlots,
    decode_staged,
    encode_staged,
    free_name,
    removable,
    slot_name,
    why_unusable,
)
from driver_manager.domain.text import is_digest

GOLDEN = Path(__file__).parents[1] / "golden"
SUM = "ab" * 32
DIGESTS = st.text(min_size=1, max_size=256).filter(is_digest)
NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1).filter(
    lambda part: part not in (".", "..")
)
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
RECORDS = st.builds(
    SlotRecord,
    DIGESTS | st.just(""),
    st.text(),
    st.text(),
    st.lists(st.builds(StagedFile, PATHS, st.integers(0, 2**63 - 1), st.just(SUM))).map(tuple),
    st.dictionaries(PATHS, st.text()),
)
SLOTS = st.lists(
    st.builds(StagedSlot, NAMES, made_s=st.floats(0, 9), problem=st.sampled_from(["", "half"])),
    unique_by=lambda slot: slot.name,
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("digest", "name"),
    [
        ("2.0.1", "2.0.1"),
        ("f" * 64, "f" * 64),
        ("", "unrecorded"),
        ("sha256:" + "0" * 64, "sha256-" + "0" * 64 + "-"),
        ("../../etc", "etc-"),
        (".hidden", "hidden-"),
        ("unrecorded", "unrecorded-"),
        ("a-0123456789ab", "a-0123456789ab-"),
        ("::", "slot-"),
        ("a:", "a--"),
    ],
)
def test_a_slot_is_called_as_its_digest_as_far_as_that_is_a_file_name(digest: str, name: str) -> None:
    found = slot_name(digest)
    assert found == name or (name.endswith("-") and re.fullmatch(re.escape(name) + "[0-9a-f]{12}", found))


@given(DIGESTS, DIGESTS)
def test_two_digests_never_have_one_name_and_every_name_is_a_file_beside_others(one: str, other: str) -> None:
    assert (slot_name(one) == slot_name(other)) == (one == other)
    name = slot_name(one)
    assert Path(name).name == name
    assert not name.startswith(".")
    assert len(name) <= 100
    assert name.isascii()
    assert name != slot_name("")


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: SlotRecord) -> None:
    assert decode_staged(encode_staged(record)) == record


@pytest.mark.submission
@given(JSON | st.text())
def test_garbage_is_no_record_and_breaks_nothing(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(SlotRecordUnreadable) as caught:
        decode_staged(text)
    assert caught.value.remedy


@pytest.mark.submission
@pytest.mark.shares(3)
@given(RECORDS, JSON, st.sampled_from(["schema", "digest", "kernel", "version", "files", "links"]))
def test_a_record_with_one_field_of_anything_is_read_or_refused(record: SlotRecord, value: Any, key: str) -> None:
    with contextlib.suppress(SlotRecordUnreadable):
        decode_staged(json.dumps({**json.loads(encode_staged(record)), key: value}))


@pytest.mark.parametrize(
    "change",
    [
        {"files": [{"path": "../x", "bytes": 1, "sha256": SUM}]},
        {"files": [{"path": "/x", "bytes": 1, "sha256": SUM}]},
        {"files": [{"path": "x", "bytes": -1, "sha256": SUM}]},
        {"files": [{"path": "x", "bytes": 1, "sha256": "short"}]},
        {"links": {"a/../../b": "x"}},
        {"schema": 2},
    ],
)
def test_a_record_that_leads_out_of_its_slot_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(SlotRecordUnreadable):
        decode_staged(json.dumps({**json.loads(encode_staged(SlotRecord("d", "k", "1"))), **change}))


def test_the_first_form_of_the_record_stays_readable() -> None:
    record = decode_staged((GOLDEN / "slot-v1.json").read_text())
    assert record == SlotRecord(
        "sha256:" + "0" * 64, "6.1.0-fake", "2.0.1", (StagedFile("usr/bin/rbln-smi", 12, SUM),), {"usr/sbin": "bin"}
    )


RECORD = SlotRecord("d", "k", "1", (StagedFile("a", 3, SUM), StagedFile("b/c", 5, SUM)), {"l": "a"})
WHOLE = {"a": 3, "b/c": 5}


@pytest.mark.parametrize(
    ("digest", "kernel", "sizes", "links", "why"),
    [
        ("d", "k", WHOLE, {"l": "a"}, ""),
        ("d", "k", {**WHOLE, "more": 1}, {"l": "a", "m": "x"}, ""),
        ("e", "k", WHOLE, {"l": "a"}, "its record is of d"),
        ("d", "k2", WHOLE, {"l": "a"}, "it is for kernel k, this one is k2"),
        ("d", "k", {"a": 3}, {"l": "a"}, "it is not complete: b/c is missing"),
        ("d", "k", {**WHOLE, "a": 2}, {"l": "a"}, "it is not complete: a has 2 bytes, its record has 3"),
        ("d", "k", WHOLE, {"l": "b"}, "it is not complete: l is no longer a link to a"),
        ("d", "k", {}, {}, "it is not complete: a is missing; b/c is missing; l is no longer a link to a"),
    ],
)
def test_what_makes_a_slot_unusable(digest: str, kernel: str, sizes: dict[str, int], links: Any, why: str) -> None:
    assert why_unusable(RECORD, digest, kernel, FoundTree(sizes, links)) == why


def slots(*names: str) -> list[StagedSlot]:
    """Slots, the oldest first."""
    return [StagedSlot(name, made_s=float(number)) for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "current", "previous", "gone"),
    [
        ("abcd", "d", "c", ("a",)),
        ("abcd", "a", "b", ("c",)),
        ("abc", "c", "b", ()),
        ("abcd", "d", "", ("a", "b")),
        ("ab", "", "", ("a",)),
        ("", "", "", ()),
    ],
)
def test_the_current_one_the_one_before_and_one_more_stay(
    names: str, current: str, previous: str, gone: tuple[str, ...]
) -> None:
    assert removable(slots(*names), current, previous) == gone


def test_of_the_others_one_that_can_be_used_stays() -> None:
    found = [StagedSlot("good", made_s=1.0), StagedSlot("half", made_s=2.0, problem="half")]
    assert removable(found, "", "") == ("half",)


@given(SLOTS, NAMES, NAMES)
def test_whatever_there_is_the_current_one_and_the_one_before_stay(
    found: list[StagedSlot], current: str, previous: str
) -> None:
    gone = removable(found, current, previous)
    left = {slot.name for slot in found} - set(gone)
    assert not {current, previous} & set(gone)
    assert len(left - {current, previous}) == min(1, len({slot.name for slot in found} - {current, previous}))
    remaining = [slot for slot in found if slot.name in left]
    assert removable(remaining, current, previous) == (), "once is enough"


@given(NAMES, st.sets(NAMES))
def test_a_free_name_is_free_and_begins_as_was_wanted(name: str, taken: set[str]) -> None:
    found = free_name(name, taken | {f"{name}-2"})
    assert found not in taken | {f"{name}-2"}
    assert found.startswith(name)


def test_a_path_is_that_of_a_slot_only_in_the_folder() -> None:
    seen = StagedSlots("/run/driver")
    assert seen.path("a") == "/run/driver.slots/a"
    assert [seen.name_of(path) for path in ("/run/driver.slots/a", "/run/driver", "/opt/driver.slots/a")] == [
        "a",
        "",
        "",
    ]
