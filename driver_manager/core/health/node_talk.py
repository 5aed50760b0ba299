"""What health-watch has to tell its Node: when, and how often what failed is tried again. Depends on ports only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from driver_manager.domain.health import machine, notices
from driver_manager.domain.health.machine import HealthState, History
from driver_manager.domain.health.notices import Notice
from driver_manager.domain.health.surroundings import Mute
from driver_manager.domain.window import Window
from driver_manager.ports.base import Clock
from driver_manager.ports.health import NodeNotifier

Warn = Callable[[str, str], None]
"""Says a trouble of a topic once, as long as it is the same; an empty text says that it is over."""

TOPIC, MUTE_TOPIC, WINDOW_TOPIC = "node", "mute of the node", "window on the node"
WINDOW_TRIES = 3
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
        self._window: Window | None = None
        self._window_tries = 0

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
        doubt = f"unknown whether the Node mutes health-watch: {answer.problem}" if answer.problem else ""
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

    def owe(self, window: Window) -> None:
        """The Node is to be told that this window is over."""
        if self._notifier is not None:
            self._window, self._window_tries = window, WINDOW_TRIES

    def tell_window(self) -> None:
        """Tell it what it is owed; a figure that cannot be brought in some turns is given up. Raises Terminated."""
        if self._notifier is None or self._window is None:
            return
        problem = self._notifier.tell_window(self._window)
        self._window_tries -= 1
        if not problem or not self._window_tries:
            self._window = None
        self._warn(WINDOW_TOPIC, f"the end of the window was not reported on the Node: {problem}" if problem else "")

    def _put_off(self, notice: Notice, problem: str) -> None:
        self._failed += 1
        wait_s = notices.retry_after_s(self._failed)
        self._next_s = None if wait_s is None else self._clock.monotonic() + wait_s
        end = "not retried until the next change" if wait_s is None else "it is retried"
        self._warn(TOPIC, f"{notice.undone}: {problem}; {end}")
