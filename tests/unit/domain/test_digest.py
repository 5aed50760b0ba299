"""A digest is one printable word: what is recorded is read back as the same word."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.host.files import HostFiles
from driver_manager.domain.text import MAX_CHARS, MAX_WHOLE_CHARS, differing, in_words, is_digest


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


DIGESTS = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=MAX_CHARS)


@given(DIGESTS, DIGESTS)
def test_no_two_digests_look_alike_in_a_sentence(one: str, other: str) -> None:
    assert (in_words(one) == in_words(other)) is (one == other)
    assert len(in_words(one)) <= MAX_WHOLE_CHARS


LONG = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=20, max_size=MAX_CHARS)


@given(LONG, st.integers(0, MAX_CHARS - 1), st.characters(categories=("L", "N")))
def test_two_that_differ_in_one_character_differ_in_words(digest: str, at: int, letter: str) -> None:
    other = digest[: at % len(digest)] + letter + digest[at % len(digest) + 1 :]
    assert (in_words(digest) == in_words(other)) is (digest == other)


@pytest.mark.parametrize("digest", ["ab12", "v2.0.1", "f" * 64, "sha256:" + "0" * 64])
def test_a_usual_digest_is_shown_whole(digest: str) -> None:
    assert in_words(digest) == digest


@pytest.mark.parametrize(
    ("one", "other", "hint"),
    [
        ("ab12", "ab13", ""),
        ("release-2.0.1", "release-2.0.2", ""),
        ("0" * 64, "0" * 40 + "1" * 24, " (they differ from character 41 on)"),
        ("0" * 64, "0" * 63, " (they differ from character 64 on)"),
    ],
)
def test_where_two_digests_differ_is_said_where_the_eye_may_miss_it(one: str, other: str, hint: str) -> None:
    assert differing(one, other) == (one, other, hint)
