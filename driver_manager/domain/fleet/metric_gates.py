"""Owns what a query to a Prometheus server has to answer before a node is done, or the next wave begins. Pure.

A query that names `{node}` is asked for each node that has nothing else to wait for; any other one is asked once for
all of them, and once more before the next wave. Only one number that was asked for late enough, and is within its
bounds, is a pass: no answer, no series, several of them or NaN is a reason to wait. Who asks, and how often, is not
decided here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from driver_manager.domain.duration import spoken
from driver_manager.domain.escaping import one_line, shortened
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.wire import parsed

NODE = "{node}"
"""Stands for the name of the node in a query."""

MAX_AGE_S = 120.0
"""An answer that is older is none: whoever asks may hang."""

MAX_PROBLEM_CHARS = 200


class MetricGate(Frozen):
    """The answer to `query` of the server at `url` has to be within the bounds, of which there is at least one.

    It counts where it was asked for `delay_s` after the driver was ready, or later: a server shows what it has scraped
    before for some time.
    """

    name: str
    url: str
    query: str
    at_least: float | None = None
    at_most: float | None = None
    delay_s: float = 60.0

    @property
    def is_per_node(self) -> bool:
        """Whether each node has a query of its own."""
        return NODE in self.query

    def question(self, node: str = "") -> MetricQuestion:
        """What is asked for this node."""
        return MetricQuestion(self.url, self.query.replace(NODE, node))


@dataclass(frozen=True, slots=True)
class MetricQuestion:
    """A query as it is sent, and where."""

    url: str
    query: str


@dataclass(frozen=True, slots=True)
class MetricAnswer:
    """What came of a question asked at `asked_s` (seconds since the epoch): one number, or why there is none."""

    asked_s: float
    value: float | None = None
    problem: str = ""


Answers = Mapping[MetricQuestion, MetricAnswer]


@dataclass(frozen=True, slots=True)
class Shut:
    """Why a gate is not passed, what has to be asked meanwhile, and when time alone changes that."""

    why: str
    questions: tuple[MetricQuestion, ...] = ()
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """The newest answers at `now_s`. `answers` is None where nobody asks: on a laptop, say."""

    answers: Answers | None
    now_s: float

    def judge(self, gates: Iterable[MetricGate], node: str, since_s: float, not_before_s: float = 0.0) -> Shut:
        """The first of `gates` that is not passed, with all their questions that are due; no reason where all are.

        Counted from `since_s`, math.inf where that has not begun; no answer counts that was asked for before
        `not_before_s`.
        """
        reasons, questions, moments = list[str](), list[MetricQuestion](), list[float]()
        for gate in gates:
            due_s, question = max(since_s + gate.delay_s, not_before_s), gate.question(node)
            if self.now_s < due_s:
                if due_s < math.inf:
                    moments.append(due_s)
                why = f"it is queried {spoken(gate.delay_s)} after the driver is ready"
            else:
                questions.append(question)
                answer = self._answer(question, due_s)
                why = self._why_not(gate, answer)
                if answer is not None:
                    moments.append(answer.asked_s + MAX_AGE_S)
            if why:
                reasons.append(f"metric {gate.name}: {why}")
        why = reasons[0] if reasons else ""
        return Shut(why, tuple(questions) if self.answers is not None else (), min(moments, default=None))

    def _answer(self, question: MetricQuestion, due_s: float) -> MetricAnswer | None:
        """The answer that counts, None where there is none."""
        found = (self.answers or {}).get(question)
        if found is None or found.asked_s < due_s or abs(self.now_s - found.asked_s) >= MAX_AGE_S:
            return None
        return found

    def _why_not(self, gate: MetricGate, answer: MetricAnswer | None) -> str:
        if self.answers is None:
            return "only the controller queries it"
        if answer is None:
            return "no answer yet"
        return answer.problem if answer.value is None else _out_of_bounds(gate, answer.value)


def _out_of_bounds(gate: MetricGate, value: float) -> str:
    if gate.at_least is not None and not value >= gate.at_least:
        return f"it is {value:.6g}, and must be at least {gate.at_least:.6g}"
    if gate.at_most is not None and not value <= gate.at_most:
        return f"it is {value:.6g}, and must be at most {gate.at_most:.6g}"
    return ""


def answer_of(status: int, body: bytes, asked_s: float) -> MetricAnswer:
    """What an answer of the query API says (prometheus.io, HTTP API, Instant queries). Never raises."""
    try:
        found = parsed(body.decode())
    except ValueError:
        found = None
    if status != 200 or type(found) is not dict or found.get("status") != "success":
        return MetricAnswer(asked_s, problem=_refusal(status, found))
    try:
        value = _number(found["data"])
    except _NoNumberError as error:
        return MetricAnswer(asked_s, problem=str(error))
    except (ValueError, TypeError, LookupError):
        return MetricAnswer(asked_s, problem="the answer cannot be read")
    return MetricAnswer(asked_s, value)


class _NoNumberError(Exception):
    """An answer that is understood, and is not one number."""


def _number(data: Any) -> float:
    """The one number of a result. Raises _NoNumberError; ValueError, TypeError, LookupError for what is no result."""
    kind, result = data["resultType"], data["result"]
    if kind == "vector":
        if not result:
            raise _NoNumberError("the query returns nothing")
        if len(result) > 1:
            raise _NoNumberError(f"the query returns {len(result)} series, one is needed")
        sample = result[0]["value"]
    elif kind == "scalar":
        sample = result
    else:
        raise _NoNumberError("the query does not return a number")
    if type(sample[1]) is not str:
        raise ValueError(sample)
    value = float(sample[1])
    if not math.isfinite(value):
        raise _NoNumberError(f"the query returns {sample[1]}")
    return value


def _refusal(status: int, found: Any) -> str:
    if 300 <= status < 400:
        return f"the server redirects (HTTP {status}), and redirects are not followed"
    error = found.get("error") if type(found) is dict else None
    said = f": {shortened(one_line(error), MAX_PROBLEM_CHARS)}" if type(error) is str and error else ""
    return f"the server does not answer the query (HTTP {status}){said}"
