"""The kinds of faults of the matrix, and the exit code of a run after each, written out: it is the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tests.support.control_plane.faults import (
    ALWAYS,
    Action,
    Answer,
    Certificate,
    CutLine,
    Delay,
    Drop,
    ErrorEvent,
    Fault,
    Gone,
    Hold,
    Rotate,
    Silence,
)
from tests.support.selection import Share

DONE, USAGE, PODS_REMAIN, REFUSED, UNAVAILABLE = 0, 2, 3, 7, 8
LEAST_PAUSE_S, LAST_PAUSE_S = 0.1, 2.5
"""The shortest pauses between the attempts of a call double from the one to the other."""

CALLS = 5
"""How many calls of a run make the same request: to take, to give back, the service's look, the event, one more."""

CHANGES_TRIED = 10
"""How often a run reads a Node again that keeps changing (`TAKE_ATTEMPTS`, `settling.ATTEMPTS`)."""

IN_VAIN_S = 5.0
FORBIDDEN = 'is forbidden: User "u" cannot {} resource "{}" in API group "" in the namespace "n"'


@dataclass(frozen=True)
class Asked:
    """One request of a route: the `nth` of its verb and resource."""

    verb: str
    resource: str
    nth: int

    def __str__(self) -> str:
        return f"{self.verb}-{self.resource or 'apis'}-{self.nth}"


class Family(Enum):
    AGAIN = "repeated within the budget"
    RENEWED = "credentials read again, repeated once"
    REFUSED = "final"
    WATCH = "watched again"
    HARMLESS = "waited for"
    STRANGE = "final on first contact"


@dataclass(frozen=True)
class Kind:
    """One kind of fault. `needs` is what it takes of the proxy or the credentials."""

    name: str
    family: Family
    action: Callable[[Asked], Action]
    needs: str = ""
    budget_s: float = 5.0
    wait_s: float = 30.0  # for pods and operators; pauses take no time, and pods need some to go


def _status(code: int) -> Callable[[Asked], Action]:
    return lambda asked: Answer(code, FORBIDDEN.format(asked.verb, asked.resource) if code == 403 else "a fault")


def _fixed(action: Action) -> Callable[[Asked], Action]:
    return lambda _: action


ROTATED = "rotated"
TLS, TOKEN_FILE = "tls", "token file"
TOKEN = "{token file}"

KINDS: tuple[Kind, ...] = (
    Kind("401", Family.RENEWED, _status(401)),
    Kind(ROTATED, Family.HARMLESS, _fixed(Rotate(TOKEN, ROTATED)), TOKEN_FILE),
    *(Kind(str(code), Family.REFUSED, _status(code)) for code in (403, 404, 409, 422)),
    *(Kind(str(code), Family.AGAIN, _status(code)) for code in (410, 429, 500, 503)),
    Kind("429-seconds", Family.AGAIN, _fixed(Answer(429, retry_after_s=2))),
    Kind("429-date", Family.AGAIN, _fixed(Answer(429, retry_after_s=2, as_date=True))),
    Kind("429-absurd", Family.AGAIN, _fixed(Answer(429, retry_after_s=10**9))),
    Kind("slow", Family.HARMLESS, _fixed(Delay(0.1))),
    Kind("mute", Family.AGAIN, _fixed(Hold()), budget_s=3.0),
    Kind("reset", Family.AGAIN, _fixed(Drop())),
    Kind("lost", Family.AGAIN, _fixed(Drop(applied=True))),
    Kind("away", Family.AGAIN, _fixed(Gone(0.02)), budget_s=60.0),
    Kind("expired", Family.AGAIN, _fixed(Certificate("expired", ALWAYS)), TLS),
    Kind("strange", Family.STRANGE, _fixed(Certificate("strange", ALWAYS)), TLS),
    Kind("half-a-line", Family.WATCH, _fixed(CutLine())),
    Kind("half-and-end", Family.WATCH, _fixed(CutLine(clean=True))),
    Kind("silent", Family.WATCH, _fixed(Silence()), wait_s=10.0),
    Kind("too-old", Family.WATCH, _fixed(ErrorEvent())),
)


@dataclass(frozen=True)
class Cell:
    """One run that is disturbed: which request of which route, by what, once or from then on."""

    route: str
    asked: Asked
    kind: str
    is_lasting: bool

    def __str__(self) -> str:
        return f"{self.route}/{self.asked}/{self.kind}/{'always' if self.is_lasting else 'once'}"

    @property
    def by(self) -> Kind:
        return next(kind for kind in KINDS if kind.name == self.kind)

    @property
    def wait_s(self) -> float:
        """For pods and operators: short where it is waited out, because a pod stays that counts as gone."""
        is_in_vain = self.by.family is Family.REFUSED and code_of(self, DONE) == PODS_REMAIN
        return IN_VAIN_S if is_in_vain else self.by.wait_s

    def fault(self, token_file: str) -> Fault:
        action = self.by.action(self.asked)
        if isinstance(action, Rotate):
            action = replace(action, file=token_file)
        if isinstance(action, Certificate) and not self.is_lasting:
            action = replace(action, handshakes=1)
        times = ALWAYS if self.is_lasting else 1
        return Fault(action, self.asked.verb, self.asked.resource, nth=self.asked.nth, times=times)


SHARES = 21


def cells(asked: Mapping[str, Sequence[Asked]], share: Share) -> list[Cell]:
    """The share of the cells of these routes: each request, each kind that can meet it, once and for ever.

    Taken diagonally, so that no share leaves out a kind for what every route asks.
    """
    return [
        Cell(route, one, kind.name, is_lasting)
        for step, (route, requests) in enumerate(asked.items())
        for at, one in enumerate(requests)
        for number, kind in enumerate(KINDS)
        for is_lasting in (False, True)
        if _can_meet(kind, one, is_lasting=is_lasting)
        and (step + at + number + 2 * is_lasting) % share.count == share.index - 1
    ]


def _can_meet(kind: Kind, asked: Asked, *, is_lasting: bool) -> bool:
    """What acts on watches needs one; a token is rotated once."""
    is_possible = kind.family is not Family.WATCH or asked.verb == "watch"
    return is_possible and not (kind.name == ROTATED and is_lasting)


def code_of(cell: Cell, undisturbed: int) -> int:
    """The exit code that the cell has to end with; `undisturbed` is that of the route."""
    what, kind = (cell.asked.verb, cell.asked.resource), cell.by
    for is_meant, code in _MEANINGS:
        if is_meant(cell, what):
            return undisturbed if code is None else code
    if kind.family in (Family.HARMLESS, Family.WATCH):
        return undisturbed
    if kind.family is Family.STRANGE:
        return UNAVAILABLE if cell.is_lasting else undisturbed
    if kind.family is Family.REFUSED:
        return REFUSED
    if not cell.is_lasting:
        return undisturbed
    return REFUSED if kind.family is Family.RENEWED else UNAVAILABLE


def _does_with_less(cell: Cell) -> bool:
    """Whether the run asks for the pods of its own namespace then, and is not refused these too."""
    return not cell.is_lasting and cell.route not in _SEES_ALL


def _is_first(cell: Cell) -> bool:
    return cell.asked == Asked("get", "nodes", 1)


_EVICTION = ("create", "pods/eviction")
_REVIEW = ("create", "selfsubjectaccessreviews")
_CLAIMS = ("list", "resourceclaims")
_BLOCKED = ("409", "410", "422", "429", "429-seconds", "429-date", "429-absurd", "500")
"""What an eviction may be refused with: by a budget, or by an admission webhook."""

Meant = Callable[[Cell, tuple[str, str]], bool]
_WITHDRAWAL = ("managed", Asked("get", "nodes", 3))
"""Looks whether its request is still there: what cannot be taken back is one warning."""

_RELEASES = {"full": 2, "rebind": 2, "first": 2, "vfio": 2, "evict": 3, "managed": 4}
"""Which patch of the Node gives it back, by route: a JSON patch, of which 422 means that a test in it failed."""

_LOOKS = {"full": (2, 3), "vfio": (2, 3), "evict": (3, 4), "managed": (5, 6)}
"""Which reads of the Node are looks at its labels before a module is unloaded: without an answer the run goes on."""

_WAITS = {"evict": 3}
"""Waits for pods of routes with more than two: for workloads, operands, and the DRA plugin, which is paused last."""

_SEES_ALL = ("evict", "managed")
"""Routes whose run may evict, and so does not do with the pods of its own namespace."""

_MEANINGS: tuple[tuple[Meant, int | None], ...] = (
    (lambda cell, what: cell.kind == "403" and cell.asked.nth > 1 and not cell.is_lasting, None),  # it was allowed
    (lambda cell, what: _cuts_off(cell) and not _is_first(cell), UNAVAILABLE),
    (lambda cell, what: what == ("get", "nodes") and cell.asked.nth in _LOOKS.get(cell.route, ()), None),
    (lambda cell, what: what in (("create", "events"), ("patch", "nodes/status")), None),  # one warning
    (lambda cell, what: what == ("list", "pods") and cell.kind == "403" and _does_with_less(cell), None),
    (lambda cell, what: what == _CLAIMS and cell.kind == "403", None),  # it gets the claims by their names instead
    (lambda cell, what: what == _REVIEW and cell.by.family in (Family.REFUSED, Family.RENEWED), None),
    (lambda cell, what: what[0] == "watch" and cell.by.family in (Family.REFUSED, Family.RENEWED), None),  # it looks
    (lambda cell, what: (cell.route, cell.asked) == _WITHDRAWAL and not cell.is_lasting, None),
    (lambda cell, what: what == _EVICTION and cell.kind in _BLOCKED and not cell.is_lasting, None),
    (lambda cell, what: what == _EVICTION and cell.kind in _BLOCKED, PODS_REMAIN),
    (lambda cell, what: what == _EVICTION and cell.kind == "404" and _is_rehearsed(cell), None),
    (lambda cell, what: what == _EVICTION and cell.kind == "404", PODS_REMAIN),  # believed, and then still there
    (lambda cell, what: cell.kind == "404" and what[1] == "nodes" and what[0] != "watch", USAGE),
    (lambda cell, what: cell.kind == "409" and what == ("patch", "nodes") and cell.is_lasting, UNAVAILABLE),
    (lambda cell, what: cell.kind == "409" and what == ("patch", "nodes"), None),
    (lambda cell, what: cell.kind == "422" and _is_release(cell) and not cell.is_lasting, None),
    (lambda cell, what: cell.kind == "410" and what[0] == "watch", None),  # listed again, then watched again
    (lambda cell, what: cell.kind == "strange" and _is_first(cell), USAGE),
)


def _is_release(cell: Cell) -> bool:
    return (cell.asked.verb, cell.asked.resource, cell.asked.nth) == ("patch", "nodes", _RELEASES.get(cell.route))


def _is_rehearsed(cell: Cell) -> bool:
    """Whether it is the dry run of one of the two evictions, and that alone."""
    return cell.asked.nth <= 2 and not cell.is_lasting


def _cuts_off(cell: Cell) -> bool:
    """Whether no later request gets through either: after the last one but the event's, that changes nothing."""
    is_last = cell.asked.resource == "events" and (cell.route, cell.asked.nth) != ("managed", 1)
    is_last |= cell.asked.resource == "nodes/status" and cell.route in ("current", "reboot", "restore")
    return cell.by.needs == TLS and cell.is_lasting and not is_last


def most_requests(cell: Cell) -> int:
    """How often the same verb and resource may be asked for in the whole of the disturbed run."""
    if cell.kind == "409" and (cell.asked.verb, cell.asked.resource) == ("patch", "nodes"):
        # Those before; one that gives the node back without a look; then twice as often as is tried with one.
        return cell.asked.nth + 2 * CHANGES_TRIED
    if cell.asked.verb == "watch" and cell.by.family is Family.REFUSED:  # not opened again in the same wait
        return 20
    if cell.kind == "silent":  # lasts as long as the wait
        return 12
    if cell.asked.verb == "watch":  # opened again each second of each wait
        return _WAITS.get(cell.route, 2) * int(cell.wait_s) + 10
    return CALLS * attempts_in(cell.by.budget_s)


def attempts_in(budget_s: float) -> int:
    """The most attempts of one call: after the shortest pauses, at the end of the budget, and one after a 401."""
    attempts, pause_s, spent_s = 1, LEAST_PAUSE_S, 0.0
    while spent_s < budget_s:
        attempts, spent_s, pause_s = attempts + 1, spent_s + pause_s, min(LAST_PAUSE_S, 2 * pause_s)
    return attempts + 1
