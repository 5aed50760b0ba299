"""The note of a failure is read back as it was written, and in its own boot only; garbage is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.host import (
    MAX_ATTEMPTS,
    MAX_WHAT_CHARS,
    FailureUnreadable,
    PastFailure,
    decode_failure,
    encode_failure,
    is_process,
    noted_failure,
    pod_blocker,
    process_blocker,
)

GOLDEN = Path(__file__).parents[1] / "golden/failure-v1.json"
PAST = PastFailure(
    boot_id="0d6f9c1e-3b51-4a52-9f63-0c2d3a7b8e10",
    wish="f271582e8db73e45696f1c56cdf4e127",
    exit_code=4,
    what="the device is still in use after 60 s: rebellions (1 user(s))",
    failed_s=8123.5,
    attempts=3,
    pod_uid="5c1f0d2e-0000-4000-8000-000000000001",
    blockers=("process 4242 trainer",),
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def test_the_first_form_ever_written_is_still_read_and_written_the_same() -> None:
    assert decode_failure(GOLDEN.read_text()) == PAST
    assert encode_failure(PAST) == GOLDEN.read_text()


@given(
    st.builds(
        PastFailure,
        boot_id=TEXTS,
        wish=TEXTS,
        exit_code=st.integers(0, 255),
        what=TEXTS,
        failed_s=st.floats(0, 1e9),
        attempts=st.integers(1, MAX_ATTEMPTS),
        pod_uid=TEXTS,
        blockers=st.lists(TEXTS, max_size=3).map(tuple),
    )
)
def test_what_is_written_is_read_back(past: PastFailure) -> None:
    assert decode_failure(encode_failure(past)) == past
    assert encode_failure(past).count("\n") == 1


def test_a_long_reason_and_many_attempts_are_cut_to_what_is_read_again() -> None:
    written = encode_failure(replace(PAST, what="x" * 5_000, attempts=MAX_ATTEMPTS + 1))
    assert (len(decode_failure(written).what), decode_failure(written).attempts) == (MAX_WHAT_CHARS, MAX_ATTEMPTS)


@pytest.mark.parametrize(
    ("text", "boot_id", "is_there"),
    [
        (encode_failure(PAST), PAST.boot_id, True),
        (encode_failure(PAST), "another boot", False),
        ("", PAST.boot_id, False),
        ("{", PAST.boot_id, False),
        (encode_failure(PAST).replace('"schema": 1', '"schema": 2'), PAST.boot_id, False),
        (encode_failure(PAST).replace('"attempts": 3', '"attempts": 0'), PAST.boot_id, False),
    ],
    ids=["this-boot", "other-boot", "none", "garbage", "newer", "bad-field"],
)
def test_only_a_note_of_this_boot_that_can_be_read_counts(text: str, boot_id: str, is_there: bool) -> None:
    assert (noted_failure(text, boot_id) is not None) is is_there


def test_a_note_that_cannot_be_read_says_that_nothing_is_to_be_done() -> None:
    with pytest.raises(FailureUnreadable, match="the note of the last failure cannot be read") as caught:
        decode_failure("[]")
    assert caught.value.remedy.startswith("No action needed")


def test_processes_and_pods_that_stand_in_the_way_are_told_apart() -> None:
    assert is_process(process_blocker(7, "x"))
    assert not is_process(pod_blocker("7 x"))
    assert process_blocker(7, "x") != process_blocker(7, "y"), "numbers of processes come again"
