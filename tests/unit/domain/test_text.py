"""Sentences, digests and durations; control characters in text from elsewhere are escaped at each way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.host.files import HostFiles
from driver_manager.adapters.kube.objects import about_node, event_body
from driver_manager.adapters.report.log import for_terminal, painted
from driver_manager.cli.options import in_form, table
from driver_manager.domain import text as texts
from driver_manager.domain.fleet.spec import RolloutState
from driver_manager.domain.fleet.state import FleetDecision, Outlook, Phase
from driver_manager.domain.fleet.status import status_of
from driver_manager.domain.metrics import by_label, exposition
from driver_manager.domain.text import MAX_CHARS, in_words, is_digest, one_line, parse_duration


def test_what_and_remedy_are_two_sentences() -> None:
    busy, stop = "the device is busy", "Stop what uses it."
    rows = {(busy, stop): f"{busy}. {stop}", (f"{busy}.", stop): f"{busy}. {stop}", (busy, ""): busy}
    rows |= {("is it busy?", stop): f"is it busy? {stop}"}
    assert {row: texts.sentences(*row) for row in rows} == rows


@given(st.text(max_size=400), st.integers(10, 300))
def test_a_text_is_cut_in_its_middle_and_to_its_bound(text: str, most: int) -> None:
    cut = texts.shortened(text, most)
    assert len(cut) <= most
    assert cut == text if len(text) <= most else texts.GAP.strip() in cut


WORDS = st.lists(st.text("abcdef0123456789", min_size=8, max_size=20), min_size=1, max_size=40)


@given(WORDS, st.integers(60, 200))
def test_a_word_is_left_whole_or_left_out(words: list[str], most: int) -> None:
    text = " ".join(words)
    assert set(texts.shortened(text, most).replace(texts.GAP, " ").split()) <= {*words, "…"}


def test_one_printable_word_is_a_digest_and_anything_else_is_none() -> None:
    digests = ("d", "f" * 64, "sha256:abc", "é", "d" * MAX_CHARS)
    others = ("", " ", "two words", "line\n", "\t", "\x00", "\u2028", "\ufffd", "d" * (MAX_CHARS + 1))
    assert [text for text in (*digests, *others) if is_digest(text)] == list(digests)


@given(st.text(max_size=40))
def test_what_counts_as_a_digest_survives_the_state_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    if not is_digest(text):
        return
    root: Path = tmp_path_factory.getbasetemp()
    files = HostFiles(root, root / "proc")
    files.write("/state", text + "\n")
    assert (files.read("/state") or "").strip() == text


LETTERS = st.characters(categories=("L", "N", "P", "S"))
DIGESTS = st.text(LETTERS, min_size=1, max_size=MAX_CHARS)


@given(DIGESTS, DIGESTS)
def test_no_two_digests_look_alike_in_a_sentence(one: str, other: str) -> None:
    assert (in_words(one) == in_words(other)) is (one == other)
    assert len(in_words(one)) <= texts.MAX_WHOLE_CHARS


LETTER = st.characters(categories=("L", "N"))


@given(st.text(LETTERS, min_size=20, max_size=MAX_CHARS), st.integers(0, MAX_CHARS - 1), LETTER)
def test_two_that_differ_in_one_character_differ_in_words(digest: str, at: int, letter: str) -> None:
    other = digest[: at % len(digest)] + letter + digest[at % len(digest) + 1 :]
    assert (in_words(digest) == in_words(other)) is (digest == other)


def test_a_usual_digest_is_shown_whole_and_the_difference_of_two_is_pointed_out() -> None:
    for digest in ("ab12", "v2.0.1", "f" * 64, "sha256:" + "0" * 64):
        assert in_words(digest) == digest
    rows = {("ab12", "ab13"): "", ("release-2.0.1", "release-2.0.2"): ""}
    rows |= {("0" * 64, "0" * 40 + "1" * 24): " (they differ from character 41 on)"}
    rows |= {("0" * 64, "0" * 63): " (they differ from character 64 on)"}
    assert {row: texts.differing(*row) for row in rows} == {row: (*row, hint) for row, hint in rows.items()}


DURATIONS = (
    *(("0", 0.0), ("0s", 0.0), ("90", 90.0), ("1.5", 1.5), ("30s", 30.0), ("5m", 300.0), (" 5m ", 300.0)),
    *(("1h30m", 5400.0), ("1.5h", 5400.0), ("1m0.5s", 60.5), ("250ms", 0.25), ("1m250ms", 60.25)),
    *(("10us", 1e-5), ("10µs", 1e-5), ("10ns", 1e-8), ("720h", 2_592_000.0)),
)
NO_DURATIONS = (
    *("", " ", "s", "five", "5x", "-5m", "+-1", "5m30", "30 s", "1h 30m", "5m;", "5mm"),
    *("1e3", "inf", "nan", "0x10"),
)


def test_a_duration_is_read_and_anything_else_is_refused() -> None:
    assert {text: parse_duration(text) for text, _ in DURATIONS} == pytest.approx(dict(DURATIONS))
    refused = dict.fromkeys(NO_DURATIONS, "is not a duration such as")
    refused |= dict.fromkeys(("721h", "2592001", "9" * 400), "longer than 30 days")
    for text, why in refused.items():
        with pytest.raises(ValueError, match=why):
            parse_duration(text)


@given(st.text(max_size=12))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 0 <= seconds <= texts.MAX_DURATION_S


@given(st.integers(0, 500), st.integers(0, 59), st.integers(0, 59))
def test_gos_own_form_is_read_back(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds


# control characters: escaped at each way out, in terminal, JSON, Events, conditions, metrics

RAW = "\x00\x07\x1b\r\x7f\x80\x85\x9b\u200e\u202a\u202e\u2028\u2029\u2066\u2069\ud800\udfff"
TEXTS = st.text(st.characters() | st.sampled_from(RAW + "\n"))
VALUES = st.recursive(TEXTS | st.integers() | st.none(), lambda one: st.lists(one) | st.dictionaries(TEXTS, one))


def is_clean(text: str, but: str = "") -> bool:
    """True if `text` has no control character but those in `but`, and can be encoded."""
    return all(letter.isprintable() or letter in but for letter in text) and bool(text.encode() or True)


@given(VALUES)
def test_words_on_one_line_are_clean_and_json_is_the_same_value(value: object) -> None:
    assert is_clean(in_form("text", value, repr))
    written = texts.json_text(value, indent=2)
    assert is_clean(written, "\n")
    assert json.loads(written) == json.loads(json.dumps(value))
    assert texts.words_on_one_line(texts.words_on_one_line(value)) == texts.words_on_one_line(value)


@given(TEXTS)
def test_only_our_styles_and_line_feeds_pass_the_last_guard(text: str) -> None:
    assert is_clean(for_terminal(text).replace("\x1b[1m", ""), "\n")
    red = painted("a", "31", wanted=True)
    assert for_terminal(f"{red}\x1b[8m\x1b[2J") == f"{red}\\x1b[8m\\x1b[2J"


@pytest.mark.parametrize("letter", [*RAW, "\n"])
def test_a_control_character_is_spelled_out_also_in_what_others_show_for_us(letter: str) -> None:
    assert one_line(f"a{letter}b") != "ab"
    event = event_body(about_node("n"), "Reason", f"a{letter}b", 0.0, warning=True, key="")
    outlook = Outlook(Phase.STALLED, "Reason", f"a{letter}b", target="", wave=0, nodes=(), waves=())
    status = status_of(FleetDecision((), RolloutState(), outlook), {}, 1, 0.0)
    metrics = exposition([by_label("gauge", "x", "help", "label", {f"a{letter}b": 1.0})])
    shown = (event["message"], status["conditions"][0]["message"], metrics.splitlines()[-1])
    assert [text for text in (one_line(f"a{letter}b"), *shown) if not is_clean(text)] == []
    assert metrics.count("\n") == 3


@given(st.lists(st.text("abc.", min_size=1, max_size=30)), st.integers(20, 90), st.integers(0, 12))
def test_a_wrapped_line_has_the_same_words_and_fits(words: list[str], columns: int, indent: int) -> None:
    line = " ".join(words)
    lines = texts.wrapped(line, columns, indent)
    assert " ".join(lines).split() == words
    assert [one for one in lines if len(one) > max(columns, indent + 20) and len(one.split()) > 1] == []
    assert all(one.startswith(" " * indent) for one in lines[1:])
    assert texts.wrapped(line, 0, indent) == [line]


def test_a_narrow_table_cuts_its_widest_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driver_manager.cli.options.columns_of", lambda _: 60)
    image = "registry.example.com/a/very/long/name/of/an/image:1.2.3-beta4"
    lines = table([("NODE", "IMAGES", "WHY"), ("a", image, "it is held")])
    assert [len(line) <= 60 for line in lines] == [True, True]
    assert lines[1].endswith("…  it is held")
    styled = f"\x1b[33m{'y' * 40}\x1b[0m"
    (line,) = table([("x" * 40, styled, "end")])
    assert line.endswith(f"  {styled}  end"), "a style ends where it has to"
