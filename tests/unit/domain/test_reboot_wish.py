"""What a reboot was asked for is read again after it, whatever version wrote it; garbage is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.host import RebootWish, WishUnreadable, decode_reboot_wish, encode_reboot_wish

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("wish-v*.json"))
TEXT = st.text(max_size=20)


@given(st.builds(RebootWish, boot_id=TEXT, node=TEXT, to_driver=TEXT, is_forced=st.booleans()))
def test_what_is_encoded_is_decoded_again(wish: RebootWish) -> None:
    assert decode_reboot_wish(encode_reboot_wish(wish)) == wish


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_every_wish_ever_written_is_read_and_written_again_the_same(path: Path) -> None:
    assert encode_reboot_wish(decode_reboot_wish(path.read_text())) == path.read_text()


@given(st.text(max_size=200))
def test_anything_else_is_refused_with_one_exception(text: str) -> None:
    with contextlib.suppress(WishUnreadable):
        decode_reboot_wish(text)
