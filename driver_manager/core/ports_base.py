"""Protocols of health-watch, the smallest program: clock and reporter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from driver_manager.domain.health.watch import ClientAnswer, Kept, MuteAnswer, Notice, Surroundings
from driver_manager.domain.host import Marker, ProbeResult
from driver_manager.domain.journal import Owner
from driver_manager.domain.outage import Outage

# What every program needs from the outside: time, and somebody to tell. Adapters implement it.


class Clock(Protocol):
    """Time, and the wish to end."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def random(self) -> float:
        """A random number, at least 0 and below 1: for jitter."""
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep. Raises Terminated at once when the process was told to end, unless shielded."""
        ...

    def check(self) -> None:
        """Raise Terminated when the process was told to end, unless shielded."""
        ...

    def is_ending(self) -> bool:
        """Whether the process was told to end."""
        ...

    def interruptible(self) -> AbstractContextManager[None]:
        """Within it, the wish to end raises Terminated in the middle of a blocking call, unless shielded."""
        ...

    def every(self, seconds: float, say: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it `say` is called about every `seconds`, also in the middle of a blocking call.

        It may be called between any two instructions. Of two that are nested only the inner one is called.
        """
        ...

    def shielded(self) -> AbstractContextManager[None]:
        """Within it nothing raises Terminated: for giving back what was taken."""
        ...


class Reporter(Protocol):
    """Progress for people and machines: one transition, one line."""

    def step(self, number: int, total: int, text: str) -> None:
        """A step begins."""
        ...

    def info(self, text: str) -> None:
        """Something changed that is not a step."""
        ...

    def warn(self, text: str) -> None:
        """Something is wrong but does not end the run."""
        ...


class HealthMarks(Protocol):
    """The marks on the host by which health-watch speaks to others. Every method raises ConfigError."""

    def alone(self) -> AbstractContextManager[Surroundings]:
        """What is to be seen on the host; within it no reconcile begins to work. One that works already is said."""
        ...

    def withdraw_ready(self) -> None:
        """Put the ready marker aside, content and all, so that it can be put back."""
        ...

    def restore_ready(self) -> None:
        """Put it back; one that somebody else made meanwhile stays."""
        ...

    def forget_ready(self) -> None:
        """Remove what was put aside."""
        ...

    def request_recovery(self, marker: Marker) -> None:
        """Write the recovery marker, unless something is there that is not ours to replace."""
        ...

    def clear_request(self) -> None:
        """Remove the recovery marker."""
        ...

    def recall(self) -> str:
        """What `remember` was given, "" if that is gone."""
        ...

    def remember(self, text: str) -> None:
        """Keep `text` until the next boot."""
        ...

    def note_return(self) -> Outage | None:
        """The driver serves: the window that a run left open for it, now that it is over; None where none was."""
        ...

    def touch(self) -> None:
        """Note that what `remember` was given holds now: who looks at it sees that the watch lives. No write."""
        ...


class Prober(Protocol):
    """Takes samples of the profile's probe."""

    def sample(self) -> ProbeResult:
        """One sample, after the probe's timeout and a few seconds at the latest. Raises Terminated."""
        ...

    def output(self) -> str:
        """The end of what the tool printed at the last sample."""
        ...

    def abandoned(self) -> int:
        """How many probes so far could not be killed."""
        ...

    def stuck(self) -> Owner | None:
        """A probe that could not be killed and still lives: no other is started meanwhile."""
        ...

    def inherit(self, stuck: Owner) -> None:
        """What `stuck` said to an earlier process."""


class NodeNotifier(Protocol):
    """health-watch's way to its Node: each call is a process of its own, so that the loop needs no client."""

    def mute(self) -> MuteAnswer:
        """Whether the Node mutes health-watch. Over after a bounded time. Raises Terminated."""
        ...

    def tell(self, notice: Notice) -> str:
        """Record `notice` as an Event, and its state on the Node; what could not be done, "" where all was.

        Over after a bounded time, whatever the API server does; telling twice changes nothing. Raises Terminated.
        """
        ...

    def restart_clients(self, load: str) -> ClientAnswer:
        """Restart the clients of this load of the driver, which serves now.

        Over after a bounded time; asked again, it goes on. Raises Terminated.
        """
        ...

    def tell_window(self, window: Outage) -> str:
        """Show on the Node that the window which its last outcome has open is over; as `tell`."""
        ...


class EvidenceKeeper(Protocol):
    """Keeps what can be seen of a wedge on the host's disk, in a process of its own."""

    def keep(self, since_s: int, lines: Iterable[str]) -> Kept:
        """What became of a file with `lines`, holders and the kernel's log; the same `since_s` is the same file.

        Over after a bounded time. Raises Terminated.
        """
        ...
