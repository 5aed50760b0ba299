"""The rebooter's record, the slots and the metrics: what was ever written stays readable, and nothing else is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.host import REASONS
from driver_manager.domain.reboot import state
from driver_manager.domain.reboot.state import Pending, RebootRequest, Record, SlotHolder, Slots
from driver_manager.domain.wire import LAST_MOMENT_S

GOOD: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden/rebooter-v1-pending.json").read_text())
REQUESTS = st.builds(RebootRequest, st.text(max_size=40), st.sampled_from(REASONS), st.integers(0, 2**40))
FLAGS = dict.fromkeys(("approved", "approved_recovery", "counted", "cleared", "given"), st.booleans())
TIMES = dict.fromkeys(("commanded_s", "forced_s", "refused_s"), st.none() | st.floats(0, 1e9))
PENDING = {"started_s": st.integers(0, 2**40), "refusal": st.text(max_size=9), **FLAGS, **TIMES}
PENDINGS = st.builds(Pending, REQUESTS, st.text(max_size=9), **PENDING)
ATTEMPTS = st.builds(state.Attempt, st.integers(0, LAST_MOMENT_S), st.sampled_from(REASONS))
RECORDS = st.builds(
    Record,
    announced=st.none() | REQUESTS,
    announced_key=st.text(max_size=20),
    escalated=st.text(max_size=20),
    pending=st.none() | PENDINGS,
    attempts=st.lists(ATTEMPTS, max_size=3).map(tuple),
    reason=st.text(max_size=20),
    completion=st.none() | st.builds(state.CompletionWait, st.text(max_size=9), st.floats(0, 1e9)),
)
NAMES = st.text(min_size=1, max_size=9).filter(lambda name: name not in (".", ".."))
Turn = tuple[bool, SlotHolder]
HOLDER = st.builds(SlotHolder, NAMES, st.sampled_from("abcdefgh"), st.text(max_size=9), st.integers(0, 2**64 - 1))


@given(RECORDS)
def test_a_record_that_is_encoded_is_decoded_again(record: Record) -> None:
    assert state.decode_reboot_record(state.encode_reboot_record(record)) == record


def test_seconds_that_are_none_and_an_attempt_at_no_moment_are_refused() -> None:
    text = json.dumps(GOOD | {"pending": GOOD["pending"] | {"commanded": 0}})
    texts = ["", "garbage", "[]", "7"]
    texts += [text.replace('"commanded": 0', f'"commanded": {one}') for one in ("NaN", "Infinity", '"1"', "true")]
    moments = (-1, 10**12, 10**40, 1.5, True)
    texts += [json.dumps(GOOD | {"attempts": [{"at": at, "reason": "upgrade"}]}) for at in moments]
    for one in texts:
        with pytest.raises(state.RecordUnreadable):
            state.decode_reboot_record(one)


def test_attempts_of_the_future_count_and_old_ones_do_not() -> None:
    record = Record(attempts=tuple(state.Attempt(at_s, "upgrade") for at_s in (10, 20, 10**10)))
    assert [record.attempts_since(begin) for begin in (0, 15, 21, 10**11)] == [3, 2, 1, 0]


def test_a_record_stays_small_enough_to_be_read_again() -> None:
    record = Record(reason="x" * 500)
    for number in range(1_000):
        record = record.counting(state.Attempt(1_700_000_000 + number, "recovery"))
    assert len(record.attempts) == state.MAX_ATTEMPTS_KEPT
    assert record.attempts[-1].at_s == 1_700_000_999
    assert len(state.encode_reboot_record(record)) < 8_000


@given(REQUESTS)
def test_the_key_of_a_request_can_be_part_of_an_objects_name(request: RebootRequest) -> None:
    assert len(request.key) <= 70
    assert set(request.key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def taken(*uids: str) -> Slots:
    return Slots(tuple(SlotHolder(f"node-{uid}", uid, "boot") for uid in uids))


@given(st.lists(HOLDER, unique_by=lambda holder: holder.uid, max_size=5))
def test_slots_that_are_encoded_are_decoded_again(holders: list[SlotHolder]) -> None:
    assert state.decode_slots(state.encode_slots(Slots(tuple(holders)))) == Slots(tuple(holders))


@given(st.lists(st.tuples(st.booleans(), HOLDER), max_size=30), st.integers(1, 4))
def test_however_they_come_and_go_there_are_never_more_than_the_limit(turns: list[Turn], limit: int) -> None:
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
    assert taken("a").held_by("a2") is None, "a node of the same name and another uid"


def test_slots_that_are_not_understood_are_refused() -> None:
    held, first = {"node": "n", "uid": "u", "bootId": "b", "since": 0}, r"holders\[0\]"
    wrong = (("uid", ""), ("node", ""), ("node", ".."), ("since", "now"))
    rows: list[tuple[Any, str]] = [
        *(({"schema": 2}, "schema is 2"), ({"holders": 1}, "holders is not a list of objects")),
        *(({"holders": [{**held, key: text}]}, rf"{first}\.{key} is {re.escape(repr(text))}") for key, text in wrong),
        *(
            ({"holders": [{"node": "n"}]}, rf"{first}\.uid is missing, expected a text"),
            ({"holders": [held] * 2}, "twice"),
        ),
    ]
    for change, expected in rows:
        with pytest.raises(state.SlotsUnreadable, match=expected):
            state.decode_slots(json.dumps({"schema": 1, "holders": [], **change}))
    for text in ("", "garbage", "[]", "7"):
        with pytest.raises(state.SlotsUnreadable):
            state.decode_slots(text)


REQUEST = RebootRequest("boot-1", "recovery", 1_700_000_000)
ASKED = Record(announced=REQUEST, announced_s=1_700_000_030)
REQUESTED, UNDER_WAY = ("reboot_requested_timestamp_seconds", "recovery"), ("reboot_under_way",)
REFUSED, ESCALATED = ("reboot_refused",), ("reboot_escalated",)
Values = dict[tuple[str, ...], float]


def shown(record: Record) -> Values:
    """The values other than 0, by name and labels."""
    found = {
        (family.name.removeprefix("driver_manager_"), *labels.values()): value
        for family in state.reboot_families(record)
        for labels, value in family.values
    }
    assert found.keys() >= {REQUESTED, UNDER_WAY, REFUSED, ESCALATED}
    return {name: value for name, value in found.items() if value}


def test_a_record_has_its_metrics() -> None:
    pending = Pending(REQUEST, "uid")
    asked: Values = {REQUESTED: 1_700_000_030}
    rows: list[tuple[Record, Values]] = [
        *((Record(), {}), (Record(escalated=REQUEST.key), {}), (replace(ASKED, announced=None), {})),
        *((ASKED, asked), (replace(ASKED, announced_s=0), {**asked, REQUESTED: 1_700_000_000})),
        (replace(ASKED, pending=pending), {**asked, UNDER_WAY: 1}),
        (replace(ASKED, pending=replace(pending, refused_s=4.0)), {**asked, UNDER_WAY: 1, REFUSED: 1}),
        (replace(ASKED, escalated=REQUEST.key), {**asked, ESCALATED: 1}),
        (replace(ASKED, escalated="another"), asked),
    ]
    assert [(record, shown(record)) for record, _ in rows] == rows


def test_reboots_are_counted_by_reason_and_stay_counted_when_attempts_are_forgotten() -> None:
    record = Record()
    for number in range(60):
        record = record.counting(state.Attempt(number, "upgrade" if number % 3 else "recovery"))
    values = shown(state.decode_reboot_record(state.encode_reboot_record(record)))
    assert values == {("reboots_total", "upgrade"): 40, ("reboots_total", "recovery"): 20}
    assert len(record.attempts) < 60


def test_what_an_older_version_wrote_is_read_and_a_newer_field_is_written_only_where_it_says_something() -> None:
    text = state.encode_reboot_record(Record())
    assert "reboots" not in text
    assert "announcedAt" not in text
    assert state.decode_reboot_record(text) == Record()
    full = replace(ASKED, reboots={"recovery": 2})
    assert state.decode_reboot_record(state.encode_reboot_record(full)) == full
