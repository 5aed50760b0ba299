"""What each rollout asks of Prometheus servers, and the newest answers. Decides nothing. Depends on ports only."""

from __future__ import annotations

from collections.abc import Iterable

from driver_manager.domain.fleet.metric_gates import MetricAnswer, MetricQuestion
from driver_manager.ports.fleet import Answered, MetricServers


class Hearing:
    """The questions by rollout. Only answers to what is asked now are kept."""

    def __init__(self, servers: MetricServers) -> None:
        self._servers = servers
        self._wanted: dict[str, frozenset[MetricQuestion]] = {}
        self._asked: frozenset[MetricQuestion] = frozenset()
        self._answers: dict[MetricQuestion, MetricAnswer] = {}

    def want(self, key: str, questions: frozenset[MetricQuestion]) -> None:
        """The rollout waits for answers to these, and to no others."""
        self._wanted[key] = questions

    def keep_only(self, keys: Iterable[str]) -> None:
        """The others are gone; ask for what is left."""
        kept = set(keys)
        self._wanted = {key: questions for key, questions in self._wanted.items() if key in kept}
        asked = frozenset().union(*self._wanted.values())
        if asked != self._asked:
            self._asked = asked
            self._answers = {question: self._answers[question] for question in asked & self._answers.keys()}
            self._servers.ask(asked)

    def hear(self, news: Answered) -> bool:
        """Whether somebody waits for this answer."""
        if news.question not in self._asked:
            return False
        self._answers[news.question] = news.answer
        return True

    def answers(self) -> dict[MetricQuestion, MetricAnswer]:
        """As they are now."""
        return dict(self._answers)
