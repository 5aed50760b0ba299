"""What a person may do about a rollout that does not go on by itself, each with the command for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from driver_manager.domain.fleet.acts import Outlook, Phase, Place
from driver_manager.domain.fleet.model import Fleet
from driver_manager.domain.fleet.preflight import told
from driver_manager.domain.fleet.reading import RolloutObject
from driver_manager.domain.fleet.status_form import INVALID_SPEC
from driver_manager.domain.fleet.undo import last_good
from driver_manager.domain.frozen import Frozen
from driver_manager.domain.listing import MOST_NAMED

PROGRAM = "driver-manager rollout"
NO_CONTROLLER = "no controller leads, so nothing happens: install deploy/components/rollout, or check its pods"


class Hint(Frozen):
    """What may be done, and the command that does it, "" where none does."""

    what: str
    command: str = ""


class _Case(Frozen):
    rollout: RolloutObject
    fleet: Fleet | None
    outlook: Outlook

    def command(self, verb: str, *words: str) -> str:
        """The verb for this very rollout."""
        return " ".join((PROGRAM, verb, "-n", self.rollout.namespace, *words))

    @property
    def failed(self) -> list[str]:
        """The nodes that failed."""
        return [one.name for one in self.outlook.nodes if one.place is Place.FAILED]

    @property
    def refused(self) -> list[str]:
        """The nodes that are left out for what their preflight says."""
        left_out = [one for one in self.outlook.nodes if one.place is Place.LEFT_OUT]
        return [one.name for one in left_out if one.preflight is not None and one.reason == told(one.preflight)]


def hints(rollout: RolloutObject, fleet: Fleet | None, outlook: Outlook, *, has_leader: bool) -> tuple[Hint, ...]:
    """What may be done now, the most likely first."""
    case = _Case(rollout, fleet, outlook)
    found = [Hint(NO_CONTROLLER)] if not has_leader else []
    return (*found, *(hint for source in SOURCES for hint in source(case)))


def _unreadable(case: _Case) -> Iterator[Hint]:
    if case.outlook.reason == INVALID_SPEC:
        yield Hint("fix the spec", f"kubectl -n {case.rollout.namespace} edit driverrollout {case.rollout.name}")


def _failed_nodes(case: _Case) -> Iterator[Hint]:
    yield from _once_more(case, case.failed, "retry a failed node, after checking it")


def _failed_preflights(case: _Case) -> Iterator[Hint]:
    yield from _once_more(case, case.refused, "check again a node that is left out, after checking it")


def _once_more(case: _Case, nodes: Sequence[str], what: str) -> Iterator[Hint]:
    if not nodes or case.outlook.reason in ("FailedBefore", "Undoing"):
        return
    words = ("--rollout", case.rollout.name, *nodes[:MOST_NAMED])
    yield Hint(what, case.command("retry", *words) + (" ..." if len(nodes) > MOST_NAMED else ""))


def _failed_revision(case: _Case) -> Iterator[Hint]:
    if case.outlook.reason == "FailedBefore":
        yield Hint("try this revision again", case.command("retry", "--rollout", case.rollout.name, "--revision"))


def _way_back(case: _Case) -> Iterator[Hint]:
    if case.outlook.phase is not Phase.HALTED or case.outlook.reason == "Undoing" or case.fleet is None:
        return
    to = last_good(case.fleet, case.outlook.target)
    if to:
        yield Hint(f"go back to revision {to}", case.command("undo", case.rollout.name))


def _approval(case: _Case) -> Iterator[Hint]:
    if case.outlook.phase is Phase.WAITING_FOR_APPROVAL:
        yield Hint("approve the next wave", case.command("approve", case.rollout.name))


def _paused(case: _Case) -> Iterator[Hint]:
    if case.outlook.phase is Phase.PAUSED:
        yield Hint("resume", case.command("resume", case.rollout.name))


SOURCES: tuple[Callable[[_Case], Iterator[Hint]], ...] = (
    _unreadable,
    _failed_nodes,
    _failed_preflights,
    _failed_revision,
    _way_back,
    _approval,
    _paused,
)
