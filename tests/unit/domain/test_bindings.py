"""The record of original bindings: every one ever written stays readable, and garbage is no record."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.pci import (
    MOST_VIRTUAL,
    Binding,
    BindingsUnreadable,
    decode_bindings,
    encode_bindings,
    merged_bindings,
    noted_bindings,
)

GOLDEN = Path(__file__).parents[1] / "golden/bindings-v1.json"
BOOT = "6f1b1c3e-0000-4000-8000-000000000001"
WAS = (Binding("0000:c1:00.0", "rebellions", "", 2), Binding("0000:c2:00.0", "", "vfio-pci"))
TEXT = st.text(max_size=20)
BINDINGS = st.builds(Binding, address=TEXT, driver=TEXT, override=TEXT, virtual_count=st.integers(0, MOST_VIRTUAL))


def test_every_record_ever_written_stays_readable() -> None:
    assert decode_bindings(GOLDEN.read_text()) == (BOOT, WAS)
    assert encode_bindings(BOOT, WAS) == GOLDEN.read_text()


@given(TEXT, st.lists(BINDINGS, max_size=4).map(tuple))
def test_what_is_encoded_is_decoded_again(boot: str, were: tuple[Binding, ...]) -> None:
    assert decode_bindings(encode_bindings(boot, were)) == (boot, were)


@pytest.mark.parametrize("text", ["", "garbage", '{"schema": 2}', '{"schema": 1, "bootId": 1}'])
def test_garbage_is_no_record_and_is_refused_with_one_exception(text: str) -> None:
    assert noted_bindings(text, BOOT) == ()
    with pytest.raises(BindingsUnreadable):
        decode_bindings(text)


def test_a_record_of_another_boot_says_nothing() -> None:
    assert noted_bindings(encode_bindings(BOOT, WAS), BOOT) == WAS
    assert noted_bindings(encode_bindings(BOOT, WAS), "another") == ()


def test_whoever_noted_a_function_first_saw_it_as_it_was() -> None:
    later = (Binding("0000:c1:00.0"), Binding("0000:c0:00.0", "rebellions"))
    assert merged_bindings(WAS, later) == (later[1], *WAS)
    assert merged_bindings((), later) == (later[1], later[0])
