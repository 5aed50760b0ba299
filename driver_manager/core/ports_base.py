"""Protocols of health-watch; all programs use its clock and reporter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from driver_manager.domain.health.watch import (
    ClientAnswer,
    Kept,
    MuteAnswer,
    Notice,
    RecoveryAnswer,
    Surroundings,
    WedgeSeen,
)
from driver_manager.domain.host import Marker, ProbeResult
from driver_manager.domain.journal import Owner
from driver_manager.domain.outage import Outage


class Clock(Protocol):
    """Time, and SIGTERM or SIGINT as the request to end."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""

    def wall(self) -> float:
        """Seconds since the epoch."""

    def random(self) -> float:
        """A random number, at least 0 and below 1: for jitter."""

    def sleep(self, seconds: float) -> None:
        """Sleep. Raises Terminated at once after SIGTERM, unless shielded."""

    def check(self) -> None:
        """Raise Terminated after SIGTERM, unless shielded."""

    def is_ending(self) -> bool:
        """True after SIGTERM."""

    def interruptible(self) -> AbstractContextManager[None]:
        """Within it, the request to end raises Terminated in the middle of a blocking call, unless shielded."""

    def every(self, seconds: float, say: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it `say` is called about every `seconds`, between any two instructions; nested, only the inner one."""

    def shielded(self) -> AbstractContextManager[None]:
        """Within it nothing raises Terminated: for a release."""


class Reporter(Protocol):
    """Progress for people and machines: one transition, one line."""

    def step(self, number: int, total: int, text: str) -> None:
        """A step begins."""

    def info(self, text: str) -> None:
        """Something changed that is not a step."""

    def warn(self, text: str) -> None:
        """Something is wrong but does not end the run."""


class HealthMarks(Protocol):
    """The marks on the host by which health-watch shows the driver's state. Every method raises ConfigError."""

    def alone(self) -> AbstractContextManager[Surroundings]:
        """The host as it is now. Within it no reconcile starts; `is_reconciling`: one is already running."""

    def withdraw_ready(self) -> None:
        """Move the ready marker aside."""

    def restore_ready(self) -> None:
        """Move the ready marker back; a new one that was written meanwhile stays."""

    def forget_ready(self) -> None:
        """Remove the withdrawn ready marker."""

    def request_recovery(self, marker: Marker) -> None:
        """Write the recovery marker, unless there is one of another writer or of this boot."""

    def clear_request(self) -> None:
        """Remove the recovery marker."""

    def recall(self) -> str:
        """The text that `remember` wrote last, "" for none."""

    def remember(self, text: str) -> None:
        """Keep `text` until the next boot."""

    def note_return(self) -> Outage | None:
        """The driver serves: close the window that a run left open, and return it; None for none."""

    def touch(self) -> None:
        """Set the record's modification time, which shows that the watch is alive."""


class Prober(Protocol):
    """Takes samples of the profile's probe."""

    def sample(self, *, is_first: bool = False) -> ProbeResult:
        """One sample, at the latest a few seconds after the probe's timeout. Raises Terminated.

        The first one of a driver that was just loaded may take as long as its devices need to settle.
        """

    def output(self) -> str:
        """The end of the tool's output at the last sample."""

    def abandoned(self) -> int:
        """The number of probes so far that could not be killed."""

    def stuck(self) -> Owner | None:
        """A probe that could not be killed and still runs: no other one is started meanwhile."""

    def inherit(self, stuck: Owner) -> None:
        """Wait for the stuck probe of an earlier process."""


class NodeNotifier(Protocol):
    """health-watch's requests for its Node, each a process of its own that ends in time. Each raises Terminated."""

    def mute(self) -> MuteAnswer:
        """The Node's mute."""

    def report(self, notice: Notice) -> str:
        """Post `notice` as an Event, once, and show its state on the Node; the problem, "" for none."""

    def restart_clients(self, load: str) -> ClientAnswer:
        """Restart the clients of this load of the driver, which serves now; another call continues."""

    def report_window(self, window: Outage) -> str:
        """Show on the Node that the window which its last outcome left open is over; see `report`."""


class EvidenceKeeper(Protocol):
    """Saves the evidence of a wedge on the host's disk, in a process of its own."""

    def keep(self, since_s: int, lines: Iterable[str]) -> Kept:
        """Save one file for each `since_s`, with `lines`, holders and kernel log, in time. Raises Terminated."""


class Recoverer(Protocol):
    """Takes the steps that may end a wedge, in a process of its own."""

    def is_begun(self) -> bool:
        """True if a step was begun on this host and has not ended, also if that was in an earlier boot."""

    def recover(self, seen: WedgeSeen) -> RecoveryAnswer:
        """One turn: the next step, if every condition for it is met. Raises Terminated."""
