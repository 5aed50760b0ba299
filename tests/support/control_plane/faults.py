"""Owns the faults that a test scripts for the proxy: what they match, what they do, which of them have fired.

Everything here is data: the `repr` of a fault is the Python that makes it again, so the script of a failure replays.
No I/O. Must not import the product.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from tests.support.control_plane.api import Json
from tests.support.control_plane.api_request import ApiRequest

ALWAYS = math.inf
"""For `Fault.times`: every matching request from the `nth` on."""

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True)
class Answer:
    """Answer with this HTTP status and a Status object; the server does not see the request."""

    status: int
    message: str = "a scripted fault"
    retry_after_s: int | None = None
    as_date: bool = False  # Retry-After is a date then

    def body(self) -> Json:
        """The Status object, as the API server words it."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": _REASONS[self.status],
            "code": self.status,
        }


@dataclass(frozen=True)
class Delay:
    """Keep the request back for `seconds`; with `applied`, the answer. What comes late is sent on all the same."""

    seconds: float
    applied: bool = False


@dataclass(frozen=True)
class Hold:
    """Keep the request back until the test releases it; with `applied`, the answer."""

    applied: bool = False


@dataclass(frozen=True)
class Drop:
    """Reset the connection before the request is sent on; with `applied`, once the server has answered."""

    applied: bool = False


@dataclass(frozen=True)
class Gone:
    """End this and every other connection, and refuse new ones for `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Certificate:
    """End every connection, and greet the next `handshakes` clients with a certificate that they cannot accept.

    `name`: `expired`, or `strange` for one that an unknown CA has signed.
    """

    name: str = "expired"
    handshakes: float = 1


@dataclass(frozen=True)
class Rotate:
    """The token of this request is answered 401 from now on; `token`, which is in `file` by then, stands for it."""

    file: str
    token: str


@dataclass(frozen=True)
class CutLine:
    """Pass `after` lines of a watch on, then half of the next. `clean`: with a regular end of the stream after it."""

    after: int = 0
    clean: bool = False


@dataclass(frozen=True)
class Silence:
    """Pass `after` lines of a watch on, then nothing, and no end. Without `headers` there is no answer at all."""

    after: int = 0
    headers: bool = True


@dataclass(frozen=True)
class ErrorEvent:
    """Pass `after` lines of a watch on, then an ERROR event, and end the stream: how a server tells of a 410."""

    answer: Answer = Answer(410, "too old resource version")
    after: int = 0


OnWatch = CutLine | Silence | ErrorEvent
Action = Answer | Delay | Hold | Drop | Gone | Certificate | Rotate | CutLine | Silence | ErrorEvent


@dataclass(frozen=True)
class Fault:
    """What is done to which requests.

    A request matches by `verb` and `resource` (`*`: any; `pods/eviction` with its subresource), by `user` ("": any) and
    by `path`, a regular expression searched for in the path without the query. Of the matching ones since the fault
    was added, the `nth` and the following are met by `action`, `times` in all. What acts on watches matches only them.
    `spares_dry_runs`: evictions that are only rehearsed do not match.
    """

    action: Action
    verb: str = "*"
    resource: str = "*"
    path: str = ""
    user: str = ""
    nth: int = 1
    times: float = 1
    spares_dry_runs: bool = False

    def covers(self, request: ApiRequest) -> bool:
        """Whether this request counts for `nth`."""
        target = request.target
        return (
            self.verb in ("*", target.verb)
            and self.resource in ("*", target.resource)
            and self.user in ("", request.user)
            and re.search(self.path, request.path) is not None
            and (target.verb == "watch" or not isinstance(self.action, OnWatch))
            and not (self.spares_dry_runs and request.is_dry_run)
        )


class Armed:
    """One fault of a script with its counters. Counted under the script's lock."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen = 0  # matching requests
        self.taken = 0  # of those, how many it is to meet, or has met
        self.fired = 0
        self.is_released = False
        self.is_over = False  # meets nothing any more

    @property
    def is_due(self) -> bool:
        """Whether the request just counted is its."""
        return not self.is_over and self.seen >= self.fault.nth and self.taken < self.fault.times

    @property
    def has_fired(self) -> bool:
        """As often as it was to; of `ALWAYS`, at least once."""
        return self.fired >= (1 if self.fault.times == ALWAYS else self.fault.times)


class Script:
    """The faults of one proxy, in order. Safe to share between threads.

    A request is met by each delay and hold that is due and by the first other fault that is; a further one that is
    due stays so, for the next request that it matches.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._changed = threading.Condition()
        self._armed = [Armed(fault) for fault in faults]

    def add(self, *faults: Fault) -> None:
        """Append faults; they count requests from now on."""
        with self._changed:
            self._armed += map(Armed, faults)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All of them, in order."""
        with self._changed:
            return tuple(armed.fault for armed in self._armed)

    def take(self, request: ApiRequest) -> list[Armed]:
        """Count the request, and the faults that are to meet it, in order. Each is then fired or given back."""
        taken: list[Armed] = []
        with self._changed:
            for armed in self._armed:
                if not armed.fault.covers(request):
                    continue
                armed.seen += 1
                is_pause = isinstance(armed.fault.action, Delay | Hold)
                if armed.is_due and (is_pause or all(isinstance(t.fault.action, Delay | Hold) for t in taken)):
                    armed.taken += 1
                    taken.append(armed)
        return taken

    def fire(self, armed: Armed) -> None:
        """Note that it acts now."""
        with self._changed:
            armed.fired += 1
            self._changed.notify_all()

    def give_back(self, armed: Armed) -> None:
        """It could not act on the request it was taken for: the next matching one is its."""
        with self._changed:
            armed.taken -= 1

    def release(self, *faults: Fault) -> None:
        """Let the held requests of these faults (of all, if none is named) go on, and hold no more."""
        with self._changed:
            for armed in self._armed:
                if not faults or armed.fault in faults:
                    armed.is_released = True
            self._changed.notify_all()

    def lift(self, fault: Fault) -> None:
        """From now on it meets no request."""
        with self._changed:
            for armed in self._armed:
                armed.is_over |= armed.fault == fault

    def wait_released(self, armed: Armed, limit_s: float) -> bool:
        """Whether it was released within `limit_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: armed.is_released, limit_s)

    def wait_fired(self, fault: Fault, times: int, limit_s: float) -> None:
        """AssertionError unless it has fired so often within `limit_s` seconds."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._fired(fault) >= times, limit_s)
            assert done, f"fired {self._fired(fault)} of {times} times within {limit_s:g} s: {fault}"

    def fired(self, fault: Fault) -> int:
        """How often it has acted."""
        with self._changed:
            return self._fired(fault)

    def unfired(self) -> list[Fault]:
        """The faults that have not acted as often as they were to."""
        with self._changed:
            return [armed.fault for armed in self._armed if not armed.has_fired]

    def _fired(self, fault: Fault) -> int:
        return sum(armed.fired for armed in self._armed if armed.fault == fault)
