"""A digest is one printable word: what is recorded is read back as the same word."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.host.files import HostFiles
from driver_manager.domain.digest import MAX_CHARS, is_digest


@pytest.mark.parametrize("text", ["d", "f" * 64, "sha256:abc", "é", "d" * MAX_CHARS])
def test_one_printable_word_is_a_digest(text: str) -> None:
    assert is_digest(text)


@pytest.mark.parametrize(
    "text", ["", " ", "two words", "line\n", "\t", "\x00", "\u2028", "\ufffd", "d" * (MAX_CHARS + 1)]
)
def test_anything_else_is_none(text: str) -> None:
    assert not is_digest(text)


@given(st.text(max_size=40))
def test_what_counts_as_a_digest_survives_the_state_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    if not is_digest(text):
        return
    root: Path = tmp_path_factory.getbasetemp()
    files = HostFiles(root, root / "proc")
    files.write("/state", text + "\n")
    assert (files.read("/state") or "").strip() == text
