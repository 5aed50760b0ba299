"""The one retry policy of the API: what is tried again, after which pause, for how long, and how it ends.

Nothing else repeats a request: what follows a conflict, an expired watch or a refused eviction is a new decision, and
the callers'. Sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from driver_manager.adapters.kube.answers import (
    EXPIRED,
    FORBIDDEN,
    UNAUTHENTICATED,
    Unauthenticated,
    refused,
    rejected,
    unauthenticated,
)
from driver_manager.domain.backoff import retry_s
from driver_manager.domain.errors import ApiUnavailable, WatchExpired
from driver_manager.ports.base import Clock, Reporter

if TYPE_CHECKING:
    import tenacity

AGAIN = frozenset({408, EXPIRED, 425, 429, 500, 502, 503, 504})
"""Statuses that may be others next time. A watch alone gets WatchExpired for 410: it cannot go on from its version."""

ATTEMPT_S, SHORTEST_ATTEMPT_S = 15.0, 0.5
"""What one attempt may take until its answer begins: half the budget, so that a hung one leaves time for another,
within these.
"""

CONNECT_S = 5.0
PROMPT_S = 1.0
"""Who asks only once asks again after a 401 that came within this time, and not after a later one."""

END_SHARE = 0.1
"""So much of the budget may be left unused: its end is the last try of all who began when the server went."""

ASKED_MOST_S = 30.0
"""Retry-After lengthens a pause, to this at most: a value beyond the reason of a rate limit is not believed."""

T = TypeVar("T")


class Transient(Exception):
    """An answer, or the lack of one, that may be different next time. `remedy` replaces the usual one."""

    def __init__(self, what: str, retry_after_s: float = 0.0, remedy: str = "") -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s
        self.remedy = remedy or "Check that the API server can be reached from this node; the next run tries again."


def error_for(status: int, what: str, message: str, asked_s: float, *, is_watch: bool) -> Exception:
    """The exception that an HTTP status of 300 or more means for `what` (verb, resource and namespace)."""
    if status == UNAUTHENTICATED:
        return unauthenticated(what, message)
    if status == FORBIDDEN:
        return refused(what, message)
    if status == EXPIRED and is_watch:
        return WatchExpired("the resourceVersion is too old", "Run again.")
    if status in AGAIN:
        return Transient(f"{what}: {status} {message}", asked_s)
    return rejected(status, what, message)


class Retries:
    """Repeats requests within a budget, on the given clock. `limit` may lower it at any time."""

    def __init__(self, clock: Clock, reporter: Reporter, budget_s: float) -> None:
        self._clock = clock
        self._reporter = reporter
        self._budget_s = budget_s
        self.repeated = 0
        self.attempt_s = min(ATTEMPT_S, max(SHORTEST_ATTEMPT_S, budget_s / 2))

    def limit(self, budget_s: float) -> None:
        """From now on, spend at most `budget_s` seconds on the retries of one call, and on one attempt."""
        self._budget_s = min(self._budget_s, budget_s)
        self.attempt_s = min(self.attempt_s, budget_s)

    def run(self, attempt: Callable[[], T], renewed: Callable[[], bool], *, only_once: bool = False) -> T:
        """What `attempt` gives, repeated while it raises Transient; after a 401 once more at once, if `renewed()`.

        `only_once`: a Transient is not tried again, and a 401 only where it came within `PROMPT_S`. Raises
        ApiUnavailable once the budget is spent, and whatever else `attempt` raises.
        """
        prompt_s = self._clock.monotonic() + PROMPT_S

        def renewed_in_time() -> bool:
            return renewed() and (not only_once or self._clock.monotonic() < prompt_s)

        budget_s = self._budget_s * (1.0 - END_SHARE * self._clock.random())
        end = self._clock.monotonic() + (0.0 if only_once else budget_s)
        try:
            return _with_fresh_credentials(attempt, renewed_in_time)
        except Transient as error:
            first = error
        try:
            return self._repeated(lambda: _with_fresh_credentials(attempt, renewed), first, end)
        except Transient as error:
            spent = "" if only_once else f" within {self._budget_s:g} s"
            what = f"the API server gave no usable answer{spent}: {error}"
            raise ApiUnavailable(what, error.remedy, min(ASKED_MOST_S, error.retry_after_s)) from error

    def _repeated(self, attempt: Callable[[], T], first: Transient, end: float) -> T:
        """What `attempt` gives after it failed as `first`. Raises Transient after `end`, in monotonic seconds."""
        import tenacity  # noqa: PLC0415  # most runs repeat nothing

        failed = [first]

        def again() -> T:
            if failed:
                raise failed.pop()
            self.repeated += 1
            return attempt()

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Transient),
            stop=lambda _: self._clock.monotonic() >= end,
            wait=lambda state: self._backoff_s(state, end),
            sleep=self._clock.sleep,
            before_sleep=self._say_retry,
            reraise=True,
        )
        return retrying(again)

    def _backoff_s(self, state: tenacity.RetryCallState, end: float) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_s = min(ASKED_MOST_S, error.retry_after_s) if isinstance(error, Transient) else 0.0
        backoff_s = retry_s(state.attempt_number, asked_s, self._clock.random())
        return min(max(0.0, end - self._clock.monotonic()), backoff_s)

    def _say_retry(self, state: tenacity.RetryCallState) -> None:
        if state.attempt_number == 1 or state.attempt_number % 10 == 0:
            error = state.outcome.exception() if state.outcome else None
            self._reporter.warn(f"API: {error}; trying again")


def _with_fresh_credentials(attempt: Callable[[], T], renewed: Callable[[], bool]) -> T:
    try:
        return attempt()
    except Unauthenticated:
        if not renewed():
            raise
        return attempt()
