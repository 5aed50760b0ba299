"""Text from elsewhere is escaped at each way out: terminal, JSON, Events, conditions, metrics."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.adapters.kube.objects import about_node, event_body
from driver_manager.adapters.report.log import for_terminal, painted
from driver_manager.cli.options import in_form
from driver_manager.domain.fleet.spec import RolloutState
from driver_manager.domain.fleet.state import FleetDecision, Outlook, Phase
from driver_manager.domain.fleet.status import status_of
from driver_manager.domain.metrics import by_label, exposition
from driver_manager.domain.text import json_text, one_line, words_on_one_line

RAW = "\x00\x07\x1b\r\x7f\x80\x85\x9b\u200e\u202a\u202e\u2028\u2029\u2066\u2069\ud800\udfff"
TEXTS = st.text(st.characters() | st.sampled_from(RAW + "\n"))
VALUES = st.recursive(TEXTS | st.integers() | st.none(), lambda one: st.lists(one) | st.dictionaries(TEXTS, one))


def is_clean(text: str, but: str = "") -> bool:
    """True if `text` has no control character but those in `but`, and can be encoded."""
    return all(letter.isprintable() or letter in but for letter in text) and bool(text.encode() or True)


@pytest.mark.parametrize("letter", [*RAW, "\n"])
def test_a_control_character_is_spelled_out(letter: str) -> None:
    assert is_clean(one_line(f"a{letter}b"))
    assert one_line(f"a{letter}b") != "ab"


@given(VALUES)
def test_words_on_one_line_are_clean_and_json_is_the_same_value(value: object) -> None:
    assert is_clean(in_form("text", value, repr))
    written = json_text(value, indent=2)
    assert is_clean(written, "\n")
    assert json.loads(written) == json.loads(json.dumps(value))
    assert words_on_one_line(words_on_one_line(value)) == words_on_one_line(value)


@given(TEXTS)
def test_only_our_styles_and_line_feeds_pass_the_last_guard(text: str) -> None:
    assert is_clean(for_terminal(text).replace("\x1b[1m", ""), "\n")
    red = painted("a", "31", wanted=True)
    assert for_terminal(f"{red}\x1b[8m\x1b[2J") == f"{red}\\x1b[8m\\x1b[2J"


@pytest.mark.parametrize("letter", [*RAW, "\n"])
def test_what_others_show_for_us_is_escaped(letter: str) -> None:
    event = event_body(about_node("n"), "Reason", f"a{letter}b", 0.0, warning=True, key="")
    outlook = Outlook(Phase.STALLED, "Reason", f"a{letter}b", target="", wave=0, nodes=(), waves=())
    status = status_of(FleetDecision((), RolloutState(), outlook), {}, 1, 0.0)
    metrics = exposition([by_label("gauge", "x", "help", "label", {f"a{letter}b": 1.0})])
    for text in (event["message"], status["conditions"][0]["message"], metrics.splitlines()[-1]):
        assert is_clean(text)
    assert metrics.count("\n") == 3
