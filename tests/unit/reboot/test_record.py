"""The rebooter's record: every version ever written stays readable, nothing else is taken for one."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.host import REASONS
from driver_manager.domain.reboot.state import (
    MAX_ATTEMPTS_KEPT,
    Attempt,
    Pending,
    RebootRequest,
    Record,
    RecordUnreadable,
    decode_reboot_record,
    encode_reboot_record,
)
from driver_manager.domain.wire import LAST_MOMENT_S

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("rebooter-v*.json"))
REQUESTS = st.builds(RebootRequest, st.text(max_size=40), st.sampled_from(REASONS), st.integers(0, 2**40))
SECONDS = st.none() | st.floats(0, 1e9)
RECORDS = st.builds(
    Record,
    announced=st.none() | REQUESTS,
    announced_key=st.text(max_size=20),
    escalated=st.text(max_size=20),
    pending=st.none()
    | st.builds(
        Pending,
        request=REQUESTS,
        node_uid=st.text(max_size=9),
        started_s=st.integers(0, 2**40),
        approved=st.booleans(),
        counted=st.booleans(),
        cleared=st.booleans(),
        commanded_s=SECONDS,
        given=st.booleans(),
        forced_s=SECONDS,
        refused_s=SECONDS,
    ),
    attempts=st.lists(st.builds(Attempt, st.integers(0, LAST_MOMENT_S), st.sampled_from(REASONS)), max_size=3).map(
        tuple
    ),
    reason=st.text(max_size=20),
)
GOOD: dict[str, Any] = json.loads(GOLDEN[0].read_text())


@given(RECORDS)
def test_what_is_encoded_is_decoded_again(record: Record) -> None:
    assert decode_reboot_record(encode_reboot_record(record)) == record


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_every_record_ever_written_is_read_and_written_again_the_same(path: Path) -> None:
    assert encode_reboot_record(decode_reboot_record(path.read_text())) == path.read_text()


@pytest.mark.submission
@given(
    st.text(max_size=100)
    | st.tuples(
        st.sampled_from(sorted(GOOD)), st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists)
    ).map(lambda change: json.dumps(GOOD | {change[0]: change[1]}))
)
def test_anything_else_is_refused_with_one_exception(text: str) -> None:
    with contextlib.suppress(RecordUnreadable):
        assert isinstance(decode_reboot_record(text), Record)


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
