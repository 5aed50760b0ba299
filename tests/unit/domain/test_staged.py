"""What the records of staged drivers say, and what makes one unusable."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver_manager.domain.host import SlotRecord, StagedSlot, StagedSlots, decode_staged, encode_staged
from driver_manager.domain.text import is_digest

GOLDEN = Path(__file__).parents[1] / "golden"
SUM = "ab" * 32
DIGESTS = st.text(min_size=1, max_size=256).filter(is_digest)
TREES = st.dictionaries(st.text(min_size=1), st.text())
RECORDS = st.builds(
    SlotRecord, DIGESTS | st.just(""), st.text(), st.text(), TREES, is_kept=st.booleans(), has_served=st.booleans()
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record: SlotRecord) -> None:
    assert decode_staged(encode_staged(record)) == record


def test_both_forms_of_the_record_stay_readable_the_first_without_its_files() -> None:
    first, second = (decode_staged((GOLDEN / f"slot-v{version}.json").read_text()) for version in (1, 2))
    assert first == SlotRecord("sha256:" + "0" * 64, "6.1.0-fake", "2.0.1")
    tree = {"usr/bin/rbln-smi": f"12 {SUM}", "usr/sbin": "-> bin"}
    assert second == replace(first, tree=tree, has_served=True)


RECORD = SlotRecord("d", "k", "1", {"a": f"3 {SUM}", "b/c": "5", "l": "-> a"})
WHOLE = {"a": "3", "b/c": "5", "l": "-> a"}


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (WHOLE, ""),
        ({**WHOLE, "more": "1", "m": "-> x"}, ""),
        ({**WHOLE, "a": f"3 {SUM}", "b/c": f"5 {SUM}"}, ""),
        ({**WHOLE, "a": f"3 {'cd' * 32}"}, "a"),
        ({"a": "3", "l": "-> a"}, "b/c"),
        ({**WHOLE, "a": "2"}, "a"),
        ({**WHOLE, "l": "-> b"}, "l"),
        ({**WHOLE, "l": "5"}, "l"),
        ({**WHOLE, "b/c": "-> a"}, "b/c"),
        ({}, "a, b/c, l"),
    ],
)
def test_a_tree_serves_with_everything_that_its_record_has(found: dict[str, str], wrong: str) -> None:
    why = RECORD.why_unusable("k", found)
    assert why == (f"it is not complete: {wrong} differs from its record or is missing" if wrong else "")
    assert RECORD.why_unusable("k2", found) == "it is for kernel k, this one is k2"


def test_a_slot_is_known_by_name_and_by_path() -> None:
    seen = StagedSlots("/run/driver", (StagedSlot("driver.next"),))
    assert seen.path("driver.next") == "/run/driver.next"
    assert seen.named("driver.next") == seen.at("/run/driver.next") == StagedSlot("driver.next")
    assert seen.named("driver") is seen.at("/run/driver") is None
