"""What a Prometheus server answers is a pass only where it is one number, asked for late enough, within its bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver_manager.domain.fleet.advance import advance
from driver_manager.domain.fleet.spec import (
    MAX_AGE_S,
    Amount,
    Answers,
    Fleet,
    MetricAnswer,
    MetricGate,
    MetricQuestion,
    UpgradeState,
    Wave,
    answer_of,
)
from driver_manager.domain.fleet.state import MarkNode, Phase
from tests.support.fakes.fleet_builders import NOW_S, begun, fleet, marks, new_pod, node, pod, policy, record, views

DONE, FAILED, RESTART, VALIDATION = (
    UpgradeState.DONE,
    UpgradeState.FAILED,
    UpgradeState.RESTART,
    UpgradeState.VALIDATION,
)
URL = "http://p:9090"
ALL = MetricGate("errors", URL, "errors", at_most=2.0, delay_s=30.0)
MINE = MetricGate("mine", URL, 'up{node="{node}"}', at_least=1.0, delay_s=30.0)
FRESH_S = NOW_S - 1.0


def vector(*values: Any) -> dict[str, Any]:
    """An answer with so many series."""
    result = [{"metric": {}, "value": [1.0, value]} for value in values]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


UNREADABLE = "the answer cannot be read"
ANSWERS: dict[str, tuple[int, Any, float | None, str]] = {
    "one": (200, vector("1.5"), 1.5, ""),
    "zero": (200, vector("0"), 0.0, ""),
    "scalar": (200, {"status": "success", "data": {"resultType": "scalar", "result": [1, "-7e3"]}}, -7000.0, ""),
    "nothing": (200, vector(), None, "the query returns nothing"),
    "two": (200, vector("1", "1"), None, "the query returns 2 series, one is needed"),
    "nan": (200, vector("NaN"), None, "the query returns NaN"),
    "endless": (200, vector("+Inf"), None, "the query returns +Inf"),
    "text": (200, {"status": "success", "data": {"resultType": "string", "result": [1, "1"]}}, None, "not return a"),
    "matrix": (200, {"status": "success", "data": {"resultType": "matrix", "result": []}}, None, "not return a number"),
    "value-no-text": (200, vector(1), None, UNREADABLE),
    "value-no-number": (200, vector("one"), None, UNREADABLE),
    "value-true": (200, vector(True), None, UNREADABLE),
    "histogram": (
        200,
        {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "histogram": []}]}},
        None,
        UNREADABLE,
    ),
    "no-data": (200, {"status": "success"}, None, UNREADABLE),
    "data-a-list": (200, {"status": "success", "data": []}, None, UNREADABLE),
    "result-an-object": (
        200,
        {"status": "success", "data": {"resultType": "vector", "result": {"a": 1}}},
        None,
        "read",
    ),
    "no-json": (200, None, None, "the server does not answer the query (HTTP 200)"),
    "a-list": (200, [], None, "does not answer the query (HTTP 200)"),
    "refused": (400, {"status": "error", "error": "parse error"}, None, "the query (HTTP 400): parse error"),
    "refused-with-control": (400, {"status": "error", "error": "a\x1b[2Jb"}, None, r"(HTTP 400): a\x1b[2Jb"),
    "refused-at-length": (422, {"status": "error", "error": "x" * 5000}, None, "(HTTP 422): xxx"),
    "a-good-body-of-an-error": (503, vector("1"), None, "(HTTP 503)"),
    "redirect": (302, vector("1"), None, "the server redirects (HTTP 302), and redirects are not followed"),
}


@pytest.mark.parametrize(("status", "body", "value", "problem"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_one_number_or_a_reason(status: int, body: Any, value: float | None, problem: str) -> None:
    text = b"\xff<html>" if body is None else json.dumps(body).encode()
    found = answer_of(status, text, 5.0)
    assert (found.asked_s, found.value) == (5.0, value)
    assert problem in found.problem
    assert (value is None) is bool(found.problem)
    assert len(found.problem) < 300


@given(st.integers(100, 599), st.binary() | st.from_regex(rb'\{"status":"success","data":.{0,40}\}'))
def test_whatever_a_server_sends_is_an_answer(status: int, body: bytes) -> None:
    found = answer_of(status, body, 1.0)
    assert (found.value is None) is bool(found.problem)


def facts(
    answers: Answers | None, gate: MetricGate = ALL, state: UpgradeState = VALIDATION, since_s: float = 60.0
) -> Fleet:
    """A node whose driver has been ready for so long."""
    one = node("a", state, record=record("a", since_s=NOW_S - since_s))
    return fleet([one], [new_pod("a")], policy=policy(metric_gates=(gate,)), metric_answers=answers)


def said(value: float | None, asked_s: float = FRESH_S, gate: MetricGate = ALL, problem: str = "") -> Answers:
    return {gate.question("a"): MetricAnswer(asked_s, value, problem)}


WAITS: dict[str, tuple[Answers | None, str]] = {
    "not-answered": ({}, "waits for metric errors: no answer yet"),
    "nobody-asks": (None, "waits for metric errors: only the controller queries it"),
    "unknown": (said(None, problem="the query returns nothing"), "waits for metric errors: the query returns nothing"),
    "too-much": (said(2.5), "waits for metric errors: it is 2.5, and must be at most 2"),
    "asked-too-early": (said(0.0, NOW_S - 31.0), "no answer yet"),
    "too-old": (said(0.0, NOW_S - MAX_AGE_S), "no answer yet"),
    "from-the-future": (said(0.0, NOW_S + MAX_AGE_S), "no answer yet"),
    "of-another-question": ({MetricQuestion(URL, "other"): MetricAnswer(FRESH_S, 0.0)}, "no answer yet"),
    "of-another-server": ({MetricQuestion("http://q", "errors"): MetricAnswer(FRESH_S, 0.0)}, "no answer yet"),
}


@pytest.mark.parametrize("case", WAITS)
def test_what_is_no_pass_waits_with_a_reason(case: str) -> None:
    answers, why = WAITS[case]
    waiting = facts(answers, since_s=300.0 if case == "too-old" else 60.0)
    assert marks(waiting) == {}
    assert why in views(waiting)["a"].reason
    assert advance(waiting, NOW_S).questions == (frozenset({ALL.question()}) if answers is not None else frozenset())


def test_a_node_that_waits_for_too_long_has_failed_with_the_last_reason() -> None:
    late = marks(facts(said(2.5), since_s=600.0))["a"]
    assert late.state is FAILED
    assert late.record is not None
    assert late.record.reason.endswith("waits for metric errors: it is 2.5, and must be at most 2")


PASSES = {"at-most": (ALL, 2.0), "far-below": (ALL, -1e9), "at-least": (MINE, 1.0), "far-above": (MINE, 1e9)}


@pytest.mark.parametrize(("gate", "value"), PASSES.values(), ids=PASSES)
@pytest.mark.parametrize("state", [VALIDATION, FAILED])
def test_one_number_within_its_bounds_is_a_pass(gate: MetricGate, value: float, state: UpgradeState) -> None:
    assert marks(facts(said(value, gate=gate), gate, state))["a"].state is DONE


def test_a_number_below_the_least_is_none() -> None:
    assert "it is 0.5, and must be at least 1" in views(facts(said(0.5, gate=MINE), MINE))["a"].reason


def test_it_is_asked_only_after_the_delay_and_the_answer_of_another_node_is_no_shortcut() -> None:
    fresh = facts(said(0.0), state=RESTART)
    assert marks(fresh)["a"].state is VALIDATION
    assert advance(fresh, NOW_S).questions == frozenset()
    early = facts(said(0.0), since_s=10.0)
    assert marks(early) == {}
    decided = advance(early, NOW_S)
    assert (decided.questions, decided.again_s) == (frozenset(), NOW_S + 20.0)
    assert "it is queried 30 s after the driver is ready" in views(early)["a"].reason


def test_each_node_has_its_own_query_and_is_asked_for_only_while_nothing_else_is_missing() -> None:
    nodes = [node(name, VALIDATION, record=record(name)) for name in "abc"] + [node("d")]
    pods = [new_pod("a"), new_pod("b"), new_pod("c", is_ready=False), pod("d")]
    asked = advance(fleet(nodes, pods, policy=policy(metric_gates=(MINE,)), metric_answers={}), NOW_S).questions
    assert asked == {MetricQuestion(URL, f'up{{node="{name}"}}') for name in "ab"}


def between(now: UpgradeState, answers: Answers, **rules: Any) -> Fleet:
    """The canary ended 100 s ago, and the next wave has one node."""
    waves = (Wave("canary", amount=Amount(1), soak_s=60.0, **rules), Wave("rest"))
    canary = node("a", now, record=record("a", since_s=NOW_S - 100.0))
    gates = (ALL, MINE)
    return fleet(
        [canary, node("b")],
        [new_pod("a"), pod("b")],
        policy=policy(waves=waves, metric_gates=gates),
        metric_answers=answers,
    )


def test_the_next_wave_waits_for_queries_about_the_fleet_once_more() -> None:
    unasked = between(DONE, {})
    decided = advance(unasked, NOW_S)
    assert (begun(unasked), decided.questions) == ([], frozenset({ALL.question()}))
    assert (decided.outlook.phase, decided.outlook.reason) == (Phase.SOAKING, "MetricGate")
    assert decided.outlook.message == "waits after wave 1 (canary) for metric errors: no answer yet"
    assert begun(between(DONE, said(3.0))) == []
    assert begun(between(DONE, said(2.0, NOW_S - 41.0))) == [], "it was asked before the soak time was over"
    assert begun(between(DONE, said(2.0))) == ["b"]
    assert advance(between(DONE, said(2.0)), NOW_S).questions == frozenset({ALL.question()}), "until it has begun"


def test_nobody_is_asked_while_something_else_keeps_the_next_wave() -> None:
    soaking = advance(between(DONE, {}), NOW_S - 50.0)
    assert (soaking.outlook.reason, soaking.questions) == ("Soaking", frozenset())
    unapproved = advance(between(DONE, {}, needs_approval=True), NOW_S)
    assert (unapproved.outlook.phase, unapproved.questions) == (Phase.WAITING_FOR_APPROVAL, frozenset())
    facts_ = between(DONE, {})
    paused = advance(replace(facts_, policy=replace(facts_.policy, paused=True)), NOW_S)
    assert (paused.outlook.phase, paused.questions) == (Phase.PAUSED, frozenset())


def test_a_fleet_that_is_complete_asks_for_nothing() -> None:
    done = fleet([node("a", DONE)], [new_pod("a")], policy=policy(metric_gates=(ALL, MINE)), metric_answers={})
    decided = advance(done, NOW_S)
    assert (decided.outlook.phase, decided.questions, decided.again_s) == (Phase.COMPLETE, frozenset(), None)
    assert not [act for act in decided.acts if isinstance(act, MarkNode)]
