"""The rebooter's record, the slots and the metrics: what was ever written stays readable, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.host import REASONS
from driver_manager.domain.reboot.state import (
    MAX_ATTEMPTS_KEPT,
    Attempt,
    CompletionWait,
    Pending,
    RebootRequest,
    Record,
    RecordUnreadable,
    SlotHolder,
    Slots,
    SlotsUnreadable,
    decode_reboot_record,
    decode_slots,
    encode_reboot_record,
    encode_slots,
    reboot_families,
)
from driver_manager.domain.wire import LAST_MOMENT_S

GOLDEN = Path(__file__).parents[1] / "golden"
RECORD_FILES, SLOT_FILES = sorted(GOLDEN.glob("rebooter-v*.json")), sorted(GOLDEN.glob("slots-v*.json"))
GOOD: dict[str, Any] = json.loads(RECORD_FILES[0].read_text())
REQUESTS = st.builds(RebootRequest, st.text(max_size=40), st.sampled_from(REASONS), st.integers(0, 2**40))
FLAGS = dict.fromkeys(("approved", "approved_recovery", "counted", "cleared", "given"), st.booleans())
TIMES = dict.fromkeys(("commanded_s", "forced_s", "refused_s"), st.none() | st.floats(0, 1e9))
PENDINGS = st.builds(
    Pending,
    REQUESTS,
    st.text(max_size=9),
    started_s=st.integers(0, 2**40),
    refusal=st.text(max_size=9),
    **FLAGS,
    **TIMES,
)
ATTEMPTS = st.builds(Attempt, st.integers(0, LAST_MOMENT_S), st.sampled_from(REASONS))
RECORDS = st.builds(
    Record,
    announced=st.none() | REQUESTS,
    announced_key=st.text(max_size=20),
    escalated=st.text(max_size=20),
    pending=st.none() | PENDINGS,
    attempts=st.lists(ATTEMPTS, max_size=3).map(tuple),
    reason=st.text(max_size=20),
    completion=st.none() | st.builds(CompletionWait, st.text(max_size=9), st.floats(0, 1e9)),
)
NAMES = st.text(min_size=1, max_size=9).filter(lambda name: name not in (".", ".."))
HOLDER = st.builds(SlotHolder, NAMES, st.sampled_from("abcdefgh"), st.text(max_size=9), st.integers(0, 2**64 - 1))


# the record


@given(RECORDS)
def test_a_record_that_is_encoded_is_decoded_again(record: Record) -> None:
    assert decode_reboot_record(encode_reboot_record(record)) == record


@pytest.mark.parametrize("path", RECORD_FILES, ids=lambda path: path.name)
def test_every_record_ever_written_is_read_and_written_again_the_same(path: Path) -> None:
    assert encode_reboot_record(decode_reboot_record(path.read_text())) == path.read_text()


@pytest.mark.parametrize("text", ["", "garbage", "[]", "7", '{"schema": 9}'])
def test_what_is_no_document_is_neither_a_record_nor_slots(text: str) -> None:
    with pytest.raises(RecordUnreadable):
        decode_reboot_record(text)
    with pytest.raises(SlotsUnreadable):
        decode_slots(text)


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", '"1"', "true"])
def test_seconds_that_are_none_are_refused(seconds: str) -> None:
    text = json.dumps(GOOD | {"pending": GOOD["pending"] | {"commanded": 0}})
    with pytest.raises(RecordUnreadable):
        decode_reboot_record(text.replace('"commanded": 0', f'"commanded": {seconds}'))


@pytest.mark.parametrize("at", [-1, 10**12, 10**40, 1.5, True])
def test_an_attempt_at_no_moment_is_refused(at: object) -> None:
    with pytest.raises(RecordUnreadable):
        decode_reboot_record(json.dumps(GOOD | {"attempts": [{"at": at, "reason": "upgrade"}]}))


def test_attempts_of_the_future_count_and_old_ones_do_not() -> None:
    record = Record(attempts=(Attempt(10, "upgrade"), Attempt(20, "upgrade"), Attempt(10**10, "upgrade")))
    assert [record.attempts_since(begin) for begin in (0, 15, 21, 10**11)] == [3, 2, 1, 0]


def test_a_record_stays_small_enough_to_be_read_again() -> None:
    record = Record(reason="x" * 500)
    for number in range(1_000):
        record = record.counting(Attempt(1_700_000_000 + number, "recovery"))
    assert len(record.attempts) == MAX_ATTEMPTS_KEPT
    assert record.attempts[-1].at_s == 1_700_000_999
    assert len(encode_reboot_record(record)) < 8_000


@pytest.mark.submission
@given(REQUESTS)
def test_the_key_of_a_request_can_be_part_of_an_objects_name(request: RebootRequest) -> None:
    assert len(request.key) <= 70
    assert set(request.key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


# the slots


def taken(*uids: str) -> Slots:
    return Slots(tuple(SlotHolder(f"node-{uid}", uid, "boot") for uid in uids))


@given(st.lists(HOLDER, unique_by=lambda holder: holder.uid, max_size=5))
def test_slots_that_are_encoded_are_decoded_again(holders: list[SlotHolder]) -> None:
    assert decode_slots(encode_slots(Slots(tuple(holders)))) == Slots(tuple(holders))


def test_all_slots_ever_written_are_read_and_written_again_the_same() -> None:
    assert SLOT_FILES
    for path in SLOT_FILES:
        assert encode_slots(decode_slots(path.read_text())) == path.read_text().strip(), path.name


@given(st.lists(st.tuples(st.booleans(), HOLDER), max_size=30), st.integers(1, 4))
def test_however_they_come_and_go_there_are_never_more_than_the_limit(
    turns: list[tuple[bool, SlotHolder]], limit: int
) -> None:
    slots = Slots()
    for takes, holder in turns:
        slots = (slots.with_room(holder, limit) or slots) if takes else slots.without(frozenset({holder.uid}))
        assert len(slots.holders) <= limit
        assert len({one.uid for one in slots.holders}) == len(slots.holders)


def test_who_is_in_stays_in_with_its_new_boot_though_all_slots_are_taken() -> None:
    again = taken("a", "b").with_room(SlotHolder("node-a", "a", "next"), 1)
    assert again is not None
    held = again.held_by("a")
    assert held is not None
    assert held.boot_id == "next"
    assert taken("a").with_room(SlotHolder("node-b", "b", "boot"), 1) is None


def test_a_node_of_the_same_name_and_another_uid_holds_nothing() -> None:
    assert taken("a").held_by("a2") is None


HELD = {"node": "n", "uid": "u", "bootId": "b", "since": 0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema is 2"),
        ({"holders": [{"node": "n"}]}, r"holders\[0\]\.uid is missing, expected a text"),
        ({"holders": [{**HELD, "uid": ""}]}, r"holders\[0\]\.uid is ''"),
        ({"holders": [{**HELD, "node": ""}]}, r"holders\[0\]\.node is ''"),
        ({"holders": [{**HELD, "node": ".."}]}, r"holders\[0\]\.node is '\.\.'"),
        ({"holders": [{**HELD, "since": "now"}]}, r"holders\[0\]\.since is 'now'"),
        ({"holders": [HELD] * 2}, "twice"),
        ({"holders": 1}, "holders is not a list of objects"),
    ],
)
def test_slots_that_are_not_understood_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SlotsUnreadable, match=said):
        decode_slots(json.dumps({"schema": 1, "holders": []} | change))


# the metrics

REQUEST = RebootRequest("boot-1", "recovery", 1_700_000_000)
ASKED = Record(announced=REQUEST, announced_s=1_700_000_030)
REQUESTED, UNDER_WAY = ("reboot_requested_timestamp_seconds", "recovery"), ("reboot_under_way",)
REFUSED, ESCALATED = ("reboot_refused",), ("reboot_escalated",)


def shown(record: Record) -> dict[tuple[str, ...], float]:
    """The values other than 0, by name and labels."""
    found = {
        (family.name.removeprefix("driver_manager_"), *labels.values()): value
        for family in reboot_families(record)
        for labels, value in family.values
    }
    assert found.keys() >= {REQUESTED, UNDER_WAY, REFUSED, ESCALATED}
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize(
    ("record", "values"),
    [
        (Record(), {}),
        (ASKED, {REQUESTED: 1_700_000_030}),
        (replace(ASKED, announced_s=0), {REQUESTED: 1_700_000_000}),
        (replace(ASKED, announced=None), {}),
        (replace(ASKED, pending=Pending(REQUEST, "uid")), {REQUESTED: 1_700_000_030, UNDER_WAY: 1}),
        (
            replace(ASKED, pending=Pending(REQUEST, "uid", refused_s=4.0)),
            {REQUESTED: 1_700_000_030, UNDER_WAY: 1, REFUSED: 1},
        ),
        (replace(ASKED, escalated=REQUEST.key), {REQUESTED: 1_700_000_030, ESCALATED: 1}),
        (replace(ASKED, escalated="another"), {REQUESTED: 1_700_000_030}),
        (Record(escalated=REQUEST.key), {}),
    ],
)
def test_a_record_has_its_metrics(record: Record, values: dict[tuple[str, ...], float]) -> None:
    assert shown(record) == values


def test_reboots_are_counted_by_reason_and_stay_counted_when_attempts_are_forgotten() -> None:
    record = Record()
    for number in range(60):
        record = record.counting(Attempt(number, "upgrade" if number % 3 else "recovery"))
    values = shown(decode_reboot_record(encode_reboot_record(record)))
    assert values == {("reboots_total", "upgrade"): 40, ("reboots_total", "recovery"): 20}
    assert len(record.attempts) < 60


def test_what_an_older_version_wrote_is_read_and_a_newer_field_is_written_only_where_it_says_something() -> None:
    text = encode_reboot_record(Record())
    assert "reboots" not in text
    assert "announcedAt" not in text
    assert decode_reboot_record(text) == Record()
    full = replace(ASKED, reboots={"recovery": 2})
    assert decode_reboot_record(encode_reboot_record(full)) == full
