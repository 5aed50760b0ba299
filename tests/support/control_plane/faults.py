"""Faults that a test scripts for the proxy, requests in the words of RBAC, and the record of what passed. No I/O."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.control_plane.api import PATIENCE_S, Json

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_NAMESPACE_PARTS = ("status", "finalize")  # of a namespace itself: what follows its name is no resource in it


@dataclass(frozen=True)
class Target:
    """What a request is about. `resource` carries its subresource (`pods/eviction`); "" for `/version` and the like."""

    verb: str
    resource: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True)
class ApiRequest:
    method: str
    path: str  # without the query
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None  # decoded JSON; None if there was none

    @property
    def target(self) -> Target:
        return target_of(self.method, self.path, self.query)

    @property
    def is_dry_run(self) -> bool:
        options = self.body.get("deleteOptions") if isinstance(self.body, dict) else None  # a JSON patch is a list
        return bool((options or {}).get("dryRun"))

    @property
    def is_watch(self) -> bool:
        return self.target.verb == "watch"


def target_of(method: str, path: str, query: Mapping[str, str]) -> Target:
    """The target of a request; a path that names no resource keeps the method in lower case as its verb."""
    parts = path.strip("/").split("/")
    skipped = {"api": 2, "apis": 3}.get(parts[0], len(parts))
    parts, namespace = parts[skipped:], ""
    if not parts:
        return Target(method.lower())
    if parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in _NAMESPACE_PARTS:
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource, *_ = *parts, "", ""
    resource = f"{plural}/{subresource}" if subresource else plural
    return Target(_verb(method, query, is_one=bool(name)), resource, namespace, name)


def _verb(method: str, query: Mapping[str, str], *, is_one: bool) -> str:
    if method == "GET":
        return "watch" if query.get("watch") in ("1", "true") else "get" if is_one else "list"
    verb = _VERBS.get(method, method.lower())
    return "deletecollection" if verb == "delete" and not is_one else verb


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
    """End all connections, and greet the next `handshakes` clients with a certificate: `expired`, or `strange`."""

    name: str = "expired"
    handshakes: float = 1


@dataclass(frozen=True)
class Rotate:
    """The token of this request is answered 401 from now on; `token`, which is in `file` by then, stands for it."""

    file: str
    token: str


@dataclass(frozen=True)
class CutLine:
    """Pass half of a watch's first line on. `clean`: with a regular end of the stream after it."""

    clean: bool = False


@dataclass(frozen=True)
class Silence:
    """Pass nothing of a watch on, and no end."""


@dataclass(frozen=True)
class ErrorEvent:
    """Pass an ERROR event on instead of a watch's lines, and end the stream: how a server tells of a 410."""

    answer: Answer = Answer(410, "too old resource version")


OnWatch = CutLine | Silence | ErrorEvent
Action = Answer | Delay | Hold | Drop | Gone | Certificate | Rotate | CutLine | Silence | ErrorEvent


@dataclass(frozen=True)
class Fault:
    """What is done to which requests.

    A request matches by `verb` and `resource` (`*`: any), and by `path`, a regular expression searched for in the path.
    Of the matching ones since the fault was added, the `nth` and the following are met, `times` in all. What acts on
    watches matches only them. `spares_dry_runs`: evictions that are only rehearsed do not match.
    """

    action: Action
    verb: str = "*"
    resource: str = "*"
    path: str = ""
    nth: int = 1
    times: float = 1
    spares_dry_runs: bool = False

    def covers(self, request: ApiRequest) -> bool:
        target = request.target
        return (
            self.verb in ("*", target.verb)
            and self.resource in ("*", target.resource)
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
        return not self.is_over and self.seen >= self.fault.nth and self.taken < self.fault.times


class Script:
    """The faults of one proxy, in order. Safe to share between threads.

    A request is met by each delay and hold that is due, and by the first other fault that is.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._changed = threading.Condition()
        self._armed = [Armed(fault) for fault in faults]

    def add(self, *faults: Fault) -> None:
        with self._changed:
            self._armed += map(Armed, faults)

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
        with self._changed:
            for armed in self._armed:
                armed.is_over |= armed.fault == fault

    def wait_released(self, armed: Armed, limit_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: armed.is_released, limit_s)

    def wait_fired(self, fault: Fault, times: int = 1, limit_s: float = PATIENCE_S) -> None:
        """AssertionError unless it has fired so often within `limit_s` seconds."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._fired(fault) >= times, limit_s)
            assert done, f"fired {self._fired(fault)} of {times} times within {limit_s:g} s: {fault}"

    def fired(self, fault: Fault) -> int:
        with self._changed:
            return self._fired(fault)

    def _fired(self, fault: Fault) -> int:
        return sum(armed.fired for armed in self._armed if armed.fault == fault)


@dataclass
class Exchange:
    """One request. Times are `time.monotonic()` in seconds, `ended_at_s` None while it runs.

    `status` is what the client was answered, noted before that is sent, and `served` what the server answered: None if
    nothing, or nothing yet.
    """

    number: int
    request: ApiRequest
    at_s: float = field(default_factory=time.monotonic)
    ended_at_s: float | None = None
    status: int | None = None
    served: int | None = None
    faults: list[Fault] = field(default_factory=list)

    def __str__(self) -> str:
        target = self.request.target
        what = "/".join(part for part in (target.resource, target.namespace, target.name) if part)
        met = "".join(f" {fault.action}" for fault in self.faults)
        return f"{target.verb} {what or self.request.path} {self.status}{met}"
