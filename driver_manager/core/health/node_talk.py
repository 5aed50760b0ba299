"""What health-watch has to tell its Node: when, and how often what failed is tried again. Depends on ports only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from driver_manager.domain.health import machine, notices
from driver_manager.domain.health.machine import HealthState, History
from driver_manager.domain.health.notices import Notice
from driver_manager.domain.health.surroundings import Mute
from driver_manager.ports import Clock, NodeNotifier

Warn = Callable[[str, str], None]
"""Says a trouble of a topic once, as long as it is the same; an empty text says that it is over."""

TOPIC, MUTE_TOPIC = "node", "mute of the node"
LOOK_S = 300.0
"""How often a Node with a wedged driver is asked whether somebody muted the watch meanwhile, in seconds."""


class NodeTalk:
    """Brings notices to the Node through `notifier`; without one nothing is told."""

    def __init__(self, notifier: NodeNotifier | None, clock: Clock, warn: Warn) -> None:
        self._notifier = notifier
        self._clock = clock
        self._warn = warn
        self._notice: Notice | None = None
        self._failed = 0
        self._next_s: float | None = 0.0
        self._asked_s = clock.monotonic()

    def asks(self, history: History, would_wedge: Callable[[], bool]) -> bool:
        """Whether the Node is to be asked now if it mutes the watch: before a wedge is declared, and then and again.

        A healthy driver is no reason, so nothing is asked of the API server for it.
        """
        if self._notifier is None:
            return False
        if history.state is HealthState.WEDGED:
            return self._clock.monotonic() - self._asked_s >= LOOK_S
        return would_wedge()

    def mute(self) -> Mute | None:
        """What the Node asks for, past or not, as it is to be held; None where it asks for nothing. Raises Terminated.

        What cannot be asked, or is no time, mutes nothing.
        """
        if self._notifier is None:
            return None
        self._asked_s = self._clock.monotonic()
        answer = self._notifier.mute()
        doubt = f"whether the Node mutes health-watch is not known: {answer.problem}" if answer.problem else ""
        self._warn(MUTE_TOPIC, answer.garbage or doubt)
        return machine.held(answer.mute, self._clock.wall()) if answer.mute is not None else None

    def tell(self, history: History, boot_id: str) -> History:
        """The history after the Node was told what it has to know; the same where nothing was, or not yet.

        A notice that cannot be brought is repeated, later each time, and given up after a number of tries: the next
        one begins anew. Raises Terminated.
        """
        notice = notices.due(history, boot_id)
        if self._notifier is None or notice is None:
            return history
        if notice.key != (self._notice.key if self._notice else ""):
            self._notice, self._failed, self._next_s = notice, 0, 0.0
        if self._next_s is None or self._clock.monotonic() < self._next_s:
            return history
        problem = self._notifier.tell(notice)
        if problem:
            self._put_off(notice, problem)
            return history
        self._warn(TOPIC, "")
        return replace(history, wedge=replace(history.wedge, told=notice.kind))

    def _put_off(self, notice: Notice, problem: str) -> None:
        self._failed += 1
        wait_s = notices.retry_after_s(self._failed)
        self._next_s = None if wait_s is None else self._clock.monotonic() + wait_s
        end = "it is given up until the next change" if wait_s is None else "it is tried again"
        self._warn(TOPIC, f"{notice.undone}: {problem}; {end}")
