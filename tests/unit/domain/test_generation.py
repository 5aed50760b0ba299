"""The driver generation: when two sightings are one, since when it is ready, and how the Node shows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.node_state import (
    Generation,
    GenerationUnreadable,
    Sighting,
    decode_generation,
    encode_generation,
    seen_now,
)
from tests.support.fakes.builders import NEW_DIGEST, OLD_DIGEST

NOW_S = 1_700_000_500.0
SEEN = Sighting("boot-1", "17", NEW_DIGEST, (1_700_000_100.0, 1_700_000_101.5))
FIRST = Generation("boot-1", "17", NEW_DIGEST, 1_700_000_101.5)


def test_a_driver_is_ready_since_the_last_of_its_files_was_written() -> None:
    found = seen_now(SEEN, None, NOW_S)
    assert (found, found.ready_s) == (FIRST, FIRST.ready_s)


@pytest.mark.parametrize(
    ("seen", "is_same"),
    [
        (SEEN, True),
        (replace(SEEN, digest=""), True),
        (replace(SEEN, marked_s=(NOW_S - 1.0,)), True),
        (replace(SEEN, digest=OLD_DIGEST), False),
        (replace(SEEN, load="18"), False),
        (replace(SEEN, boot_id="boot-2"), False),
    ],
    ids=["same", "digest removed", "marked again", "digest", "load", "boot"],
)
def test_digest_boot_and_load_make_a_generation(seen: Sighting, is_same: bool) -> None:
    found = seen_now(seen, FIRST, NOW_S)
    assert (found == FIRST) is is_same
    assert (found.ready_s == FIRST.ready_s) is (is_same or seen.boot_id == "boot-2")


def test_a_digest_that_is_recorded_later_belongs_to_the_same_generation() -> None:
    before = replace(FIRST, digest="")
    found = seen_now(SEEN, before, NOW_S)
    assert (found.digest, found.ready_s) == (NEW_DIGEST, before.ready_s)


def test_files_of_an_earlier_generation_say_nothing_of_the_next_one() -> None:
    assert seen_now(replace(SEEN, load="18"), FIRST, NOW_S).ready_s == NOW_S
    later = replace(SEEN, load="18", marked_s=(FIRST.ready_s, NOW_S - 7.0))
    assert seen_now(later, FIRST, NOW_S).ready_s == NOW_S - 7.0


def test_a_file_from_the_future_says_nothing() -> None:
    assert seen_now(replace(SEEN, marked_s=(NOW_S - 9.0, NOW_S + 9.0)), None, NOW_S).ready_s == NOW_S - 9.0


def test_without_a_file_nobody_is_held_to_have_opened_an_earlier_driver() -> None:
    assert seen_now(replace(SEEN, marked_s=()), None, NOW_S).ready_s == 0.0


def test_the_node_shows_it_to_the_second() -> None:
    text = encode_generation(FIRST)
    assert "2023-11-14T22:15:01Z" in text
    assert decode_generation(text) == FIRST
    assert decode_generation(text).ready_s == int(FIRST.ready_s)
    assert decode_generation(encode_generation(replace(FIRST, ready_s=0.0))).ready_s == 0.0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v":2}', '{"v":1,"bootId":1}', '{"v":1,"bootId":"a","load":"b"}'])
def test_garbage_is_no_generation(text: str) -> None:
    with pytest.raises(GenerationUnreadable):
        decode_generation(text)


@pytest.mark.parametrize("ready", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "soon", ""])
def test_a_time_that_no_calendar_has_is_not_known(ready: str) -> None:
    assert decode_generation(encode_generation(FIRST).replace("2023-11-14T22:15:01Z", ready)).ready_s == 0.0


def test_files_that_were_written_before_the_calendar_are_shown_within_it() -> None:
    found = seen_now(replace(SEEN, marked_s=(-1e15,)), None, NOW_S)
    assert decode_generation(encode_generation(found)).ready_s == 0.0


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
    """A generation that changed its time would restart clients anew.

    Mutants: `earlier.ready_s` left out where it goes on; `or digest` in place of `and digest`.
    """
    earlier: Generation | None = None
    for seen, now_s in story:
        found = seen_now(seen, earlier, now_s)
        again = seen_now(seen, found, now_s + 60.0)
        assert (again, again.ready_s) == (found, found.ready_s)
        assert found.ready_s <= now_s or (earlier is not None and found.ready_s == earlier.ready_s)
        earlier = found
