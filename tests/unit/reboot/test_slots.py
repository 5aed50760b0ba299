"""Slots as a value: never more than there are, none twice, none lost."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.reboot.state import SlotHolder, Slots, SlotsUnreadable, decode_slots, encode_slots

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("slots-v*.json"))
NAMES = st.text(min_size=1, max_size=9).filter(lambda name: name not in (".", ".."))
HOLDER = st.builds(SlotHolder, NAMES, st.sampled_from("abcdefgh"), st.text(max_size=9), st.integers(0, 2**64 - 1))


def taken(*uids: str) -> Slots:
    return Slots(tuple(SlotHolder(f"node-{uid}", uid, "boot") for uid in uids))


@given(st.lists(HOLDER, unique_by=lambda holder: holder.uid, max_size=5))
def test_what_is_encoded_is_decoded_again(holders: list[SlotHolder]) -> None:
    assert decode_slots(encode_slots(Slots(tuple(holders)))) == Slots(tuple(holders))


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_all_slots_ever_written_are_read_and_written_again_the_same(path: Path) -> None:
    assert encode_slots(decode_slots(path.read_text())) == path.read_text().strip()


def test_there_are_golden_files() -> None:
    assert GOLDEN


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema is 2"),
        ({"holders": [{"node": "n"}]}, r"holders\[0\]\.uid is missing, expected a text"),
        ({"holders": [{"node": "n", "uid": "", "bootId": "b", "since": 0}]}, r"holders\[0\]\.uid is ''"),
        ({"holders": [{"node": "", "uid": "u", "bootId": "b", "since": 0}]}, r"holders\[0\]\.node is ''"),
        ({"holders": [{"node": "..", "uid": "u", "bootId": "b", "since": 0}]}, r"holders\[0\]\.node is '\.\.'"),
        (
            {"holders": [{"node": "n", "uid": "u", "bootId": "b", "since": "now"}]},
            r"holders\[0\]\.since is 'now'",
        ),
        ({"holders": [{"node": "n", "uid": "u", "bootId": "b", "since": 0}] * 2}, "twice"),
        ({"holders": 1}, "holders is not a list of objects"),
    ],
)
def test_what_is_not_understood_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SlotsUnreadable, match=said):
        decode_slots(json.dumps({"schema": 1, "holders": []} | change))


@given(st.text(max_size=60) | st.recursive(st.none() | st.integers(), st.lists, max_leaves=4).map(json.dumps))
def test_anything_else_is_refused_with_one_exception(text: str) -> None:
    with contextlib.suppress(SlotsUnreadable):
        decode_slots(text)
